//! Lists and counts derived from the journal, rebuilt for each call.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::{Delivery, DeliveryId, EndpointId, LaneId, MessageId, TenantId, Tier, Timestamp};

use super::journal::lookup_key;
use super::{MemoryState, MemoryStore};
use crate::derived::{Derived, NameKind};
use crate::journal::JournalEntry;
use crate::{
    Archive, AuditStamp, DELIVERIES_MAX, DeliveryRecord, HISTORY_LOOKED_MAX, HistoryFilter, HistoryOf, HistoryPage,
    HourlyCount, JournalRow, LaneBacklog, ListOrder, ListedMessage, Message, MessageFilter, MessagePage, Name,
    NamedPage, PendingCounts, Retained, Retention, RetentionOverrides, RetentionStep, Session, StoreError, UtcHour,
};

impl Archive for MemoryStore {
    async fn message(&self, id: MessageId) -> Result<Option<Arc<Message>>, StoreError> {
        Ok(self.lock().messages.get(&id).cloned())
    }

    async fn accepted_at(&self, messages: Vec<MessageId>) -> Result<Vec<Option<Timestamp>>, StoreError> {
        let memory = self.lock();
        Ok(messages.iter().map(|id| memory.messages.get(id).map(|message| message.at)).collect())
    }

    async fn delivery(&self, id: DeliveryId, now: Timestamp) -> Result<Option<DeliveryRecord>, StoreError> {
        Ok(self.lock().delivery(id, now))
    }

    async fn excerpts(&self, id: DeliveryId) -> Result<Vec<(u16, Bytes)>, StoreError> {
        let memory = self.lock();
        let message = memory.ended.get(&id).or_else(|| memory.pending.get(&id).map(|row| &row.delivery));
        if message.is_none_or(|delivery| memory.erasures.has(delivery.message)) {
            return Ok(Vec::new());
        }
        Ok(memory
            .excerpts
            .range((id, 0)..=(id, u16::MAX))
            .map(|((_, number), bytes)| (*number, bytes.clone()))
            .collect())
    }

    async fn deliveries(
        &self,
        message: MessageId,
        after: Option<DeliveryId>,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<DeliveryRecord>, StoreError> {
        let memory = self.lock();
        let inline = (DeliveryId(message.0.plus(1)), DELIVERIES_MAX);
        let chunks = memory.jobs.chunks.iter().filter(|((of, _), _)| *of == message);
        let chunks = chunks.map(|((_, first), count)| (*first, *count));
        Ok(std::iter::once(inline)
            .chain(chunks)
            .flat_map(|(first, count)| (0..count).map(move |n| DeliveryId(first.0.plus(n))))
            .collect::<BTreeSet<DeliveryId>>()
            .into_iter()
            .filter(|id| after.is_none_or(|after| *id > after))
            .filter_map(|id| memory.delivery(id, now))
            .filter(|shown| shown.delivery.message == message)
            .take(limit as usize)
            .collect())
    }

    async fn messages(
        &self,
        filter: MessageFilter,
        order: ListOrder,
        after: Option<MessageId>,
        limit: u32,
    ) -> Result<MessagePage, StoreError> {
        let memory = self.lock();
        let named = match (filter.tenant, &filter.name) {
            (Some(tenant), Some(name)) => Some(memory.named(tenant, name, ListOrder::OldestFirst, None, u32::MAX)),
            _ => None,
        };
        let has_name = |id: &MessageId| named.as_ref().is_none_or(|named| named.messages.contains(id));
        let ids = memory.messages.keys().copied().filter(has_name).collect();
        let mut page = MessagePage::default();
        for id in listed(ids, order, after) {
            if page.messages.len() == limit as usize {
                return Ok(page);
            }
            let message = &memory.messages[&id];
            let has_type = filter.event_type.is_none() || message.event_type == filter.event_type;
            page.next = Some(id);
            if has_type && filter.matches(message.tenant, message.tier, message.at) {
                page.messages.push(ListedMessage::of(message));
            }
        }
        page.next = None;
        Ok(page)
    }

    async fn history(
        &self,
        filter: HistoryFilter,
        order: ListOrder,
        after: Option<DeliveryId>,
        limit: u32,
        now: Timestamp,
    ) -> Result<HistoryPage, StoreError> {
        let memory = self.lock();
        let is_mine = |endpoint: EndpointId, id: DeliveryId| match filter.of {
            HistoryOf::Endpoint(of) => endpoint == of,
            HistoryOf::Message(message) => {
                memory.delivery(id, now).is_some_and(|shown| shown.delivery.message == message)
            }
            HistoryOf::Tenant(tenant) => {
                memory.endpoints.get(&endpoint).is_some_and(|endpoint| endpoint.tenant == tenant)
            }
            HistoryOf::AllTenants => true,
        };
        let mine = memory.derived().deliveries.into_iter().filter(|(of, id)| is_mine(*of, *id)).map(|(_, id)| id);
        let mut page = HistoryPage::default();
        for (looked, id) in listed(mine.collect(), order, after).into_iter().enumerate() {
            if looked == HISTORY_LOOKED_MAX as usize || page.deliveries.len() == limit as usize {
                return Ok(page);
            }
            page.next = Some(id);
            page.deliveries.extend(memory.delivery(id, now).filter(|shown| filter.matches(shown)));
        }
        page.next = None;
        Ok(page)
    }

    async fn named(
        &self,
        tenant: TenantId,
        name: Name,
        order: ListOrder,
        after: Option<MessageId>,
        limit: u32,
    ) -> Result<NamedPage, StoreError> {
        Ok(self.lock().named(tenant, &name, order, after, limit))
    }

    async fn tallies(&self, tenant: TenantId, since: UtcHour, until: UtcHour) -> Result<Vec<HourlyCount>, StoreError> {
        let memory = self.lock();
        let all = memory.derived().tallies.into_iter();
        Ok(all
            .filter(|((of, hour, _), _)| *of == tenant && *hour >= since && *hour < until)
            .map(|((tenant, hour, counted), count)| HourlyCount { tenant, hour, counted, count: count.unsigned_abs() })
            .collect())
    }

    async fn pending(&self) -> Result<PendingCounts, StoreError> {
        let memory = self.lock();
        let count =
            |is: &dyn Fn(&Delivery) -> bool| memory.pending.values().filter(|row| is(&row.delivery)).count() as u64;
        Ok(PendingCounts {
            by_tier: Tier::ALL.map(|tier| count(&|delivery| delivery.tier == tier)),
            untried: count(&|delivery| delivery.attempts == 0),
        })
    }

    async fn waiting(&self, lane: LaneId) -> Result<LaneBacklog, StoreError> {
        let memory = self.lock();
        let pending = memory.derived().pending;
        let of = |tier: Tier| pending.get(&(lane, tier)).map_or(0, |count| count.unsigned_abs());
        Ok(LaneBacklog { lane, by_tier: Tier::ALL.map(of) })
    }

    async fn journal(&self, after: u64, limit: u32) -> Result<Vec<JournalRow>, StoreError> {
        Ok(self.lock().journal(after, limit))
    }

    async fn note_retry_now(&self, session: Session, delivery: &Delivery, act: AuditStamp) -> Result<(), StoreError> {
        let memory = &mut *self.lock();
        memory.guard(session)?;
        memory.note([JournalEntry::hurried(delivery, act)]);
        Ok(())
    }

    async fn set_retention_overrides(
        &self,
        session: Session,
        overrides: RetentionOverrides,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        self.lock().set_retention_overrides(session, &overrides, now)
    }

    async fn retain(
        &self,
        session: Session,
        retention: Retention,
        now: Timestamp,
        step: RetentionStep,
        under_way: Vec<DeliveryId>,
    ) -> Result<Retained, StoreError> {
        self.lock().retain(session, retention, now, step, &under_way)
    }
}

impl MemoryState {
    fn derived(&self) -> Derived {
        let mut derived = Derived::default();
        for entry in self.happened.iter().flatten() {
            let Ok(()) = derived.add(entry, |endpoint| Ok::<_, Infallible>(self.owner(endpoint)));
        }
        derived.deliveries.retain(|(_, id)| !self.gone.deliveries.contains(id));
        derived.names.retain(|(kind, _, id)| {
            let is_hidden = *kind == NameKind::Subject && self.erasures.has(*id);
            !is_hidden && !self.gone.messages.contains(id)
        });
        derived
    }

    /// The tenant of an endpoint; tenant 0 if the endpoint is not in the store.
    pub(super) fn owner(&self, endpoint: EndpointId) -> TenantId {
        self.endpoints.get(&endpoint).map_or(TenantId::from_raw(0), |endpoint| endpoint.tenant)
    }

    pub fn named(
        &self,
        tenant: TenantId,
        name: &Name,
        order: ListOrder,
        after: Option<MessageId>,
        limit: u32,
    ) -> NamedPage {
        let (kind, hidden) = name.hide(&lookup_key(), tenant);
        let mine = self.derived().names.into_iter().filter(|name| (name.0, name.1) == (kind, hidden));
        let all = listed(mine.map(|name| name.2).collect(), order, after);
        let messages: Vec<MessageId> = all.iter().copied().take(limit as usize).collect();
        let next = messages.last().copied().filter(|_| messages.len() < all.len());
        NamedPage { messages, next }
    }
}

/// The ids after `after`, in this order.
fn listed<T: Ord + Copy>(mut all: Vec<T>, order: ListOrder, after: Option<T>) -> Vec<T> {
    all.sort_unstable();
    if order == ListOrder::NewestFirst {
        all.reverse();
    }
    all.retain(|id| order.is_behind(*id, after));
    all
}
