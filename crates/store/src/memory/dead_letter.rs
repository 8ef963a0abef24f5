//! Dead letters in memory: filed by the settle that ends a delivery as dead, and read in the order of the SQLite
//! store's indexes, so that pages of both stores end at the same row.

use std::collections::BTreeMap;

use posthaste_core::{Delivery, DeliveryId, MessageId, State, TenantId};

use super::{MemoryState, MemoryStore};
use crate::journal::JournalEntry;
use crate::{
    AuditStamp, BoundedCount, DEAD_LETTERS_LOOKED_MAX, DEAD_LETTERS_SWEPT_MAX, DeadLetter, DeadLetterCursor,
    DeadLetterFilter, DeadLetterPage, DeadLetters, ListOrder, PURGES_MAX, Purge, Session, StoreError, Swept,
};

#[derive(Debug, Default)]
pub(super) struct LetterTables {
    last: u64,
    letters: BTreeMap<u64, DeadLetter>,
    by_delivery: BTreeMap<DeliveryId, u64>,
    purges: BTreeMap<u64, Purge>,
}

impl LetterTables {
    /// The letters that the filter's index holds, in its order, after `after`.
    fn walk(
        &self,
        filter: &DeadLetterFilter,
        order: ListOrder,
        after: Option<DeadLetterCursor>,
    ) -> impl Iterator<Item = &DeadLetter> {
        let is_in = |letter: &&DeadLetter| filter.meets(letter) && order.is_behind(letter.cursor(), after);
        let mut letters: Vec<&DeadLetter> = self.letters.values().filter(is_in).collect();
        letters.sort_unstable_by_key(|letter| letter.cursor());
        if order == ListOrder::NewestFirst {
            letters.reverse();
        }
        letters.into_iter()
    }

    fn is_purged(&self, letter: &DeadLetter) -> bool {
        self.purges.values().any(|purge| purge.covers(letter))
    }

    /// The highest number filed.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Whether the delivery's dead letter is filed and not purged.
    pub(super) fn is_filed(&self, delivery: DeliveryId) -> bool {
        let letter = self.by_delivery.get(&delivery).and_then(|number| self.letters.get(number));
        letter.is_some_and(|letter| !self.is_purged(letter))
    }

    pub(super) fn replayed(&mut self, delivery: DeliveryId, as_id: DeliveryId) {
        let letter = self.by_delivery.get(&delivery).and_then(|number| self.letters.get_mut(number));
        if let Some(letter) = letter {
            letter.replayed_as = Some(as_id);
        }
    }

    /// Whether any dead letter needs this message's payload.
    pub(super) fn has_message(&self, message: MessageId) -> bool {
        self.letters.values().any(|letter| letter.message == message)
    }

    pub(super) fn delete_expired(&mut self, delivery: DeliveryId) {
        if let Some(number) = self.by_delivery.get(&delivery).copied() {
            self.remove(number);
        }
    }

    fn remove(&mut self, number: u64) {
        if let Some(letter) = self.letters.remove(&number) {
            self.by_delivery.remove(&letter.delivery);
        }
    }
}

impl DeadLetters for MemoryStore {
    async fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        order: ListOrder,
        after: Option<DeadLetterCursor>,
        limit: u32,
    ) -> Result<DeadLetterPage, StoreError> {
        Ok(self.lock().dead_letters(&filter, order, after, limit))
    }

    async fn count_dead_letters(&self, filter: DeadLetterFilter) -> Result<BoundedCount, StoreError> {
        let memory = self.lock();
        let page = memory.dead_letters(&filter, ListOrder::OldestFirst, None, u32::MAX);
        let count = page.letters.len() as u64;
        Ok(if page.next.is_some() { BoundedCount::AtLeast(count) } else { BoundedCount::Exactly(count) })
    }

    async fn purge_dead_letters(
        &self,
        session: Session,
        tenant: TenantId,
        filter: DeadLetterFilter,
        AuditStamp { at, by }: AuditStamp,
    ) -> Result<BoundedCount, StoreError> {
        let memory = &mut *self.lock();
        memory.guard(session)?;
        let filter = filter.within(tenant);
        let page = memory.dead_letters(&filter, ListOrder::OldestFirst, None, u32::MAX);
        let count = page.letters.len() as u64;
        if page.next.is_none() && page.letters.len() <= DEAD_LETTERS_SWEPT_MAX {
            for letter in page.letters {
                memory.dead.remove(letter.number);
            }
            memory.note([JournalEntry::Purged { tenant, upto: memory.dead.last, at, by }]);
            return Ok(BoundedCount::Exactly(count));
        }
        if memory.dead.purges.len() >= PURGES_MAX {
            return Err(StoreError::TooMany { what: "purges", limit: PURGES_MAX });
        }
        let id = memory.dead.purges.keys().next_back().map_or(1, |last| last + 1);
        memory.dead.purges.insert(id, Purge { filter, upto: memory.dead.last, swept: None });
        memory.note([JournalEntry::Purged { tenant, upto: memory.dead.last, at, by }]);
        Ok(if page.next.is_some() { BoundedCount::AtLeast(count) } else { BoundedCount::Exactly(count) })
    }

    async fn sweep_dead_letters(&self, session: Session) -> Result<Swept, StoreError> {
        let memory = &mut *self.lock();
        memory.guard(session)?;
        let Some((&id, purge)) = memory.dead.purges.first_key_value() else { return Ok(Swept::default()) };
        let purge = purge.clone();
        let mut covered = Vec::new();
        let mut next = None;
        for (looked, letter) in (1..).zip(memory.dead.walk(&purge.filter, ListOrder::OldestFirst, purge.swept)) {
            if purge.covers(letter) {
                covered.push(letter.number);
            }
            if covered.len() == DEAD_LETTERS_SWEPT_MAX || looked == DEAD_LETTERS_LOOKED_MAX {
                next = Some(letter.cursor());
                break;
            }
        }
        for number in &covered {
            memory.dead.remove(*number);
        }
        match next {
            Some(_) => _ = memory.dead.purges.insert(id, Purge { swept: next, ..purge }),
            None => _ = memory.dead.purges.remove(&id),
        }
        Ok(Swept { removed: covered.len() as u64, more: !memory.dead.purges.is_empty() })
    }
}

impl MemoryState {
    /// Files a delivery that has just ended, if it is dead.
    pub(super) fn file(&mut self, delivery: &Delivery) {
        let State::Dead { at, cause } = delivery.state else { return };
        let Some(message) = self.messages.get(&delivery.message) else { return };
        let dead = &mut self.dead;
        dead.last += 1;
        dead.by_delivery.insert(delivery.id, dead.last);
        dead.letters.insert(
            dead.last,
            DeadLetter {
                number: dead.last,
                delivery: delivery.id,
                message: delivery.message,
                tenant: message.tenant,
                endpoint: delivery.endpoint,
                tier: delivery.tier,
                cause,
                event_type: message.event_type.clone(),
                attempts: delivery.attempts,
                at,
                replayed_as: None,
            },
        );
    }

    pub fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        order: ListOrder,
        after: Option<DeadLetterCursor>,
        limit: u32,
    ) -> DeadLetterPage {
        let mut page = DeadLetterPage::default();
        for (looked, letter) in (1..).zip(self.dead.walk(filter, order, after)) {
            if filter.matches(letter) && !self.dead.is_purged(letter) {
                page.letters.push(letter.clone());
            }
            if page.letters.len() == limit as usize || looked == DEAD_LETTERS_LOOKED_MAX {
                page.next = Some(letter.cursor());
                break;
            }
        }
        page
    }
}
