//! Lists and counts derived from the journal, rebuilt for each call.

use std::convert::Infallible;

use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, EndpointId, LaneId, MessageId, TenantId};
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;

use super::MemoryState;
use super::journal::lookup_key;
use crate::derived::{Derived, NameKind};
use crate::row::{
    HISTORY_LOOKED_MAX, HistoryFilter, HistoryOf, HistoryPage, HourlyCount, LaneBacklog, ListOrder, ListedMessage,
    MessageFilter, MessagePage, Name, NamedPage, PendingCounts, UtcHour,
};

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

    pub fn history(
        &self,
        filter: &HistoryFilter,
        order: ListOrder,
        after: Option<DeliveryId>,
        limit: u32,
        now: Timestamp,
    ) -> HistoryPage {
        let is_mine = |endpoint: EndpointId, id: DeliveryId| match filter.of {
            HistoryOf::Endpoint(of) => endpoint == of,
            HistoryOf::Message(message) => {
                self.delivery(id, now).is_some_and(|shown| shown.delivery.message == message)
            }
            HistoryOf::Tenant(tenant) => {
                self.endpoints.get(&endpoint).is_some_and(|endpoint| endpoint.tenant == tenant)
            }
            HistoryOf::AllTenants => true,
        };
        let mine = self.derived().deliveries.into_iter().filter(|(of, id)| is_mine(*of, *id)).map(|(_, id)| id);
        let mut page = HistoryPage::default();
        for (looked, id) in listed(mine.collect(), order, after).into_iter().enumerate() {
            if looked == HISTORY_LOOKED_MAX as usize || page.deliveries.len() == limit as usize {
                return page;
            }
            page.next = Some(id);
            page.deliveries.extend(self.delivery(id, now).filter(|shown| filter.matches(shown)));
        }
        page.next = None;
        page
    }

    pub fn listed_messages(
        &self,
        filter: &MessageFilter,
        order: ListOrder,
        after: Option<MessageId>,
        limit: u32,
    ) -> MessagePage {
        let named = match (filter.tenant, &filter.name) {
            (Some(tenant), Some(name)) => Some(self.named(tenant, name, ListOrder::OldestFirst, None, u32::MAX)),
            _ => None,
        };
        let has_name = |id: &MessageId| named.as_ref().is_none_or(|named| named.messages.contains(id));
        let ids = self.messages.keys().copied().filter(has_name).collect();
        let mut page = MessagePage::default();
        for id in listed(ids, order, after) {
            if page.messages.len() == limit as usize {
                return page;
            }
            let message = &self.messages[&id];
            let has_type = filter.event_type.is_none() || message.event_type == filter.event_type;
            page.next = Some(id);
            if has_type && filter.matches(message.tenant, message.tier, message.at) {
                page.messages.push(ListedMessage::of(message));
            }
        }
        page.next = None;
        page
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

    pub fn tallies(&self, tenant: TenantId, since: UtcHour, until: UtcHour) -> Vec<HourlyCount> {
        let all = self.derived().tallies.into_iter();
        all.filter(|((of, hour, _), _)| *of == tenant && *hour >= since && *hour < until)
            .map(|((tenant, hour, counted), count)| HourlyCount { tenant, hour, counted, count: count.unsigned_abs() })
            .collect()
    }

    pub fn all_pending(&self) -> PendingCounts {
        let count =
            |is: &dyn Fn(&Delivery) -> bool| self.pending.values().filter(|row| is(&row.delivery)).count() as u64;
        PendingCounts {
            by_tier: Tier::ALL.map(|tier| count(&|delivery| delivery.tier == tier)),
            untried: count(&|delivery| delivery.attempts == 0),
        }
    }

    pub fn waiting(&self, lane: LaneId) -> LaneBacklog {
        let pending = self.derived().pending;
        let of = |tier: Tier| pending.get(&(lane, tier)).map_or(0, |count| count.unsigned_abs());
        LaneBacklog { lane, by_tier: Tier::ALL.map(of) }
    }
}

/// The ids after `after`, in this order.
fn listed<T: Ord + Copy>(mut all: Vec<T>, order: ListOrder, after: Option<T>) -> Vec<T> {
    all.sort_unstable();
    if order == ListOrder::NewestFirst {
        all.reverse();
    }
    all.retain(|id| match (order, after) {
        (_, None) => true,
        (ListOrder::NewestFirst, Some(after)) => *id < after,
        (ListOrder::OldestFirst, Some(after)) => *id > after,
    });
    all
}
