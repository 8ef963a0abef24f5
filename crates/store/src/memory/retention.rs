//! Retention in memory: each step deletes all expired data of its phase, like a run over a small file.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use posthaste_core::{Cause, Delivery, DeliveryId, JobId, MessageId, State, TenantId, Timestamp};

use super::MemoryState;
use crate::journal::JournalEntry;
use crate::row::idempotency::UtcDay;
use crate::row::retention::before;
use crate::{
    JournalRow, Message, Retained, Retention, RetentionOverride, RetentionOverrides, RetentionPhase, RetentionStep,
    Session, StoreError,
};

/// Deleted data to which the journal may still refer.
#[derive(Debug, Default)]
pub(super) struct DeletedData {
    pub(super) deliveries: BTreeSet<DeliveryId>,
    pub(super) messages: BTreeSet<MessageId>,
    /// Expired messages that are still needed.
    kept: BTreeSet<MessageId>,
    pub(super) journal: u64,
}

/// The retention times of all tenants at a time.
struct Times {
    retention: Retention,
    now: Timestamp,
    own: BTreeMap<TenantId, RetentionOverride>,
}

impl Times {
    fn of(&self, tenant: TenantId) -> RetentionOverride {
        self.own.get(&tenant).copied().unwrap_or_default()
    }

    fn old(&self, phase: RetentionPhase, tenant: TenantId) -> Timestamp {
        self.retention.with(self.of(tenant)).old(phase, self.now)
    }

    /// The distinct retention times in use: `None` for the default, then the overrides.
    fn each(&self, time: impl Fn(&RetentionOverride) -> Option<Duration>) -> BTreeSet<Option<Duration>> {
        self.own.values().map(time).chain([None]).collect()
    }

    fn is_past(&self, message: &Message) -> bool {
        message.at <= self.old(RetentionPhase::Messages, message.tenant)
    }
}

impl MemoryState {
    pub fn set_retention_overrides(
        &mut self,
        session: Session,
        overrides: &RetentionOverrides,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        self.guard(session)?;
        let mut all = self.own.clone();
        all.retain(|tenant, _| !overrides.covers(*tenant));
        all.extend(overrides.own.iter().copied().filter(|(_, own)| *own != RetentionOverride::default()));
        let of = |own: &BTreeMap<TenantId, RetentionOverride>, tenant| own.get(&tenant).copied().unwrap_or_default();
        let tenants: BTreeSet<TenantId> = self.own.keys().chain(all.keys()).copied().collect();
        let is_other = |tenant: &TenantId| of(&self.own, *tenant) != of(&all, *tenant);
        let entries: Vec<JournalEntry> = tenants
            .into_iter()
            .filter(is_other)
            .map(|tenant| JournalEntry::Agreed { tenant, own: of(&all, tenant), at: now })
            .collect();
        let changed = entries.len() as u64;
        self.own = all;
        self.note(entries);
        Ok(changed)
    }

    pub fn retain(
        &mut self,
        session: Session,
        retention: Retention,
        now: Timestamp,
        step: RetentionStep,
        under_way: &[DeliveryId],
    ) -> Result<Retained, StoreError> {
        self.guard(session)?;
        let times = Times { retention, now, own: self.own.clone() };
        let mut given_up = Vec::new();
        let removed = match step.phase {
            RetentionPhase::Pending => {
                given_up = self.give_up(&times, under_way);
                given_up.len()
            }
            RetentionPhase::Messages => self.delete_messages(&times),
            RetentionPhase::History => self.delete_history(&times),
            RetentionPhase::Kept => self.delete_kept(&times),
            RetentionPhase::Jobs => {
                let gone = self.jobs.delete_expired(|tenant| times.old(step.phase, tenant));
                self.announce(&times, step.phase, gone)
            }
            RetentionPhase::Keys => {
                let gone = self.forget_keys_before(UtcDay::of(retention.old(step.phase, now)));
                self.announce(&times, step.phase, (gone, 0))
            }
            RetentionPhase::Journal => self.delete_journal(&times),
            RetentionPhase::Space => 0,
        };
        Ok(Retained { removed: removed as u64, given_up, next: step.next_phase() })
    }

    /// Records in the journal how many rows were deleted under the default retention time, up to which key.
    fn announce(&mut self, times: &Times, phase: RetentionPhase, (removed, upto): (usize, u64)) -> usize {
        let (before, at) = (times.retention.old(phase, times.now), times.now);
        if removed > 0 {
            self.note([JournalEntry::Retained { phase, upto, removed: removed as u64, before, at, tenant: None }]);
        }
        removed
    }

    fn give_up(&mut self, times: &Times, under_way: &[DeliveryId]) -> Vec<DeliveryId> {
        let mut given_up = Vec::new();
        for kept in times.each(|own| own.history) {
            let is_old = |delivery: &Delivery| {
                let owner = self.owner(delivery.endpoint);
                times.of(owner).history == kept && delivery.born <= times.old(RetentionPhase::Pending, owner)
            };
            let waits = |delivery: &Delivery| {
                let shown = self.delivery(delivery.id, times.now).map(|shown| shown.delivery.state);
                let is_sent = matches!(delivery.state, State::AwaitingAck { .. }) || under_way.contains(&delivery.id);
                !is_sent && shown.is_some_and(|state| !state.is_terminal())
            };
            let state = State::Dead { at: times.now, cause: Cause::Retention };
            let ends: Vec<Delivery> = self
                .pending
                .values()
                .map(|row| &row.delivery)
                .filter(|delivery| is_old(delivery) && waits(delivery))
                .map(|delivery| Delivery { state, ..delivery.clone() })
                .collect();
            self.note(ends.iter().map(|delivery| JournalEntry::ended(delivery, None)).collect::<Vec<_>>());
            for delivery in ends {
                self.remove(delivery.id);
                self.file(&delivery);
                given_up.push(delivery.id);
                self.ended.insert(delivery.id, delivery);
            }
        }
        given_up
    }

    fn delete_messages(&mut self, times: &Times) -> usize {
        let phase = RetentionPhase::Messages;
        let mut count = 0;
        for kept in times.each(|own| own.payload) {
            let past: Vec<MessageId> = self
                .messages
                .values()
                .filter(|message| times.of(message.tenant).payload == kept)
                .filter(|message| times.is_past(message) && !self.gone.kept.contains(&message.id))
                .map(|message| message.id)
                .collect();
            for id in &past {
                if self.needs(*id) {
                    self.gone.kept.insert(*id);
                } else {
                    self.let_message_go(*id);
                }
            }
            let own = RetentionOverride { payload: kept, history: None };
            let times = Times { retention: times.retention.with(own), now: times.now, own: BTreeMap::new() };
            count += self.announce(&times, phase, (past.len(), past.last().map_or(0, |id| id.raw())));
        }
        count
    }

    fn delete_kept(&mut self, times: &Times) -> usize {
        let is_over =
            |id: &MessageId| !self.needs(*id) && self.messages.get(id).is_none_or(|message| times.is_past(message));
        let over: Vec<MessageId> = self.gone.kept.iter().copied().filter(is_over).collect();
        for id in &over {
            self.gone.kept.remove(id);
            self.let_message_go(*id);
        }
        self.announce(times, RetentionPhase::Kept, (over.len(), over.last().map_or(0, |id| id.raw())))
    }

    pub(super) fn let_message_go(&mut self, id: MessageId) {
        self.messages.remove(&id);
        self.jobs.chunks.retain(|(of, _), _| *of != id);
        self.jobs.missed.retain(|(of, _), _| *of != id);
        self.gone.messages.insert(id);
    }

    /// Whether a payload is still needed.
    fn needs(&self, id: MessageId) -> bool {
        self.pending.values().any(|row| row.delivery.message == id)
            || self.dead.has_message(id)
            || self.jobs.is_fanning_out(JobId(id.0))
    }

    fn delete_history(&mut self, times: &Times) -> usize {
        let phase = RetentionPhase::History;
        let ended = |delivery: &Delivery| crate::number::split(&delivery.state).1;
        let mut count = 0;
        for kept in times.each(|own| own.history) {
            let own = RetentionOverride { payload: None, history: kept };
            let before = times.retention.with(own).old(phase, times.now);
            let mut past: BTreeMap<Option<TenantId>, Vec<DeliveryId>> = BTreeMap::new();
            for delivery in self.ended.values().filter(|delivery| ended(delivery) <= Some(before)) {
                let owner = self.owner(delivery.endpoint);
                if times.of(owner).history == kept {
                    past.entry(kept.map(|_| owner)).or_default().push(delivery.id);
                }
            }
            let upto = past.values().flatten().max().map_or(0, |id| id.raw());
            let announcement = |(tenant, ids): (&Option<TenantId>, &Vec<DeliveryId>)| {
                let (removed, tenant) = (ids.len() as u64, *tenant);
                JournalEntry::Retained { phase, upto, removed, before, at: times.now, tenant }
            };
            self.note(past.iter().map(announcement).collect::<Vec<_>>());
            for id in past.into_values().flatten() {
                self.let_outcome_go(id);
                count += 1;
            }
        }
        count
    }

    pub(super) fn let_outcome_go(&mut self, id: DeliveryId) {
        self.ended.remove(&id);
        self.attempts.remove(&id);
        self.excerpts.retain(|(of, _), _| *of != id);
        self.dead.delete_expired(id);
        self.jobs.forget_life(id);
        self.gone.deliveries.insert(id);
    }

    /// Writes the entries of retention overrides again whose rows are about to be deleted.
    fn repeat_overrides(&mut self, times: &Times, old: Timestamp) {
        let last_entry_at = |of: TenantId| {
            self.happened.iter().rev().flatten().find_map(|entry| match entry {
                JournalEntry::Agreed { tenant, at, .. } if *tenant == of => Some(*at),
                _ => None,
            })
        };
        let entries: Vec<JournalEntry> = times
            .own
            .iter()
            .filter(|(tenant, _)| last_entry_at(**tenant) <= Some(old))
            .map(|(tenant, own)| JournalEntry::Agreed { tenant: *tenant, own: *own, at: times.now })
            .collect();
        self.note(entries);
    }

    fn finds_outcome(&self, row: &JournalRow) -> bool {
        let is_kept = |entry: JournalEntry| match entry {
            JournalEntry::Ended { delivery, .. } => self.ended.contains_key(&delivery),
            _ => false,
        };
        row.entries().flatten().any(is_kept)
    }

    fn delete_journal(&mut self, times: &Times) -> usize {
        let longest = times.own.values().filter_map(|own| own.history).max().unwrap_or_default();
        let old = times.retention.old(RetentionPhase::Journal, times.now).min(before(times.now, longest));
        // A row without a time never expires.
        let is_old = |row: &&JournalRow| row.at > Timestamp::default() && row.at <= old;
        let rows = self.journal(self.gone.journal, u32::MAX);
        // The last expired row stays, because the next row holds its hash. A row with the end of a stored outcome stays
        // too.
        let Some(old_upto) = rows.iter().skip(1).rfind(is_old).map(|row| row.number - 1) else { return 0 };
        let upto = rows.iter().find(|row| self.finds_outcome(row)).map_or(old_upto, |row| old_upto.min(row.number - 1));
        if rows.first().is_none_or(|first| upto < first.number) {
            return 0;
        }
        let past = rows.iter().filter(|row| row.number <= upto).count();
        self.repeat_overrides(times, old);
        self.gone.journal = upto;
        self.signed.delete_expired(upto);
        self.announce(times, RetentionPhase::Journal, (past, upto))
    }
}
