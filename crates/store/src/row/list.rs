//! Lists and counts that are derived from the journal: filters, pages and tallies.

use posthaste_core::{
    Cause, Delivery, DeliveryId, EndpointId, LaneId, MessageId, Phase, State, TenantId, Tier, Timestamp,
};
use posthaste_crypto::LookupKey;

use super::{DeliveryRecord, Details, Message};
use crate::derived::NameKind;
use crate::journal::Hidden;

/// Maximum number of deliveries that one request for a history reads. Each one reads a row and its attempts, about
/// 40 µs on a busy machine.
pub const HISTORY_LOOKED_MAX: u32 = 500;

/// Maximum cost of one request for any other list. Skipping a row costs 1, about 2 µs.
pub const LISTED_LOOKED_MAX: u32 = 20_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryOf {
    Endpoint(EndpointId),
    Message(MessageId),
    Tenant(TenantId),
    /// Deliveries of all tenants.
    AllTenants,
}

/// Selects deliveries that match all given fields; `None` matches any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryFilter {
    /// The endpoint, message or tenant whose deliveries are listed.
    pub of: HistoryOf,
    pub phase: Option<Phase>,
    /// Ended, or last tried, with this cause.
    pub cause: Option<Cause>,
    pub tier: Option<Tier>,
    /// Born at this time or later.
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

impl HistoryFilter {
    pub const fn of(endpoint: EndpointId) -> Self {
        Self::all(HistoryOf::Endpoint(endpoint))
    }

    /// Every delivery of this owner.
    pub const fn all(of: HistoryOf) -> Self {
        Self { of, phase: None, cause: None, tier: None, since: None, until: None }
    }

    /// Whether the delivery can match, judged by the fields that do not depend on its state.
    pub(crate) fn may_match(&self, delivery: &Delivery) -> bool {
        self.tier.is_none_or(|tier| delivery.tier == tier)
            && self.since.is_none_or(|since| delivery.born >= since)
            && self.until.is_none_or(|until| delivery.born < until)
    }

    pub fn matches(&self, shown: &DeliveryRecord) -> bool {
        let delivery = &shown.delivery;
        self.phase.is_none_or(|phase| is_in(delivery.state, phase))
            && self.cause.is_none_or(|cause| delivery.state.cause() == Some(cause))
            && self.may_match(delivery)
    }
}

/// Whether a stored state matches a phase. The store does not know which waiting deliveries are in flight, so
/// `Dispatching` matches all of them.
fn is_in(state: State, phase: Phase) -> bool {
    match phase {
        Phase::Dispatching => matches!(state.phase(), Phase::Queued | Phase::Retry),
        phase => state.phase() == phase,
    }
}

/// A page of a history. It may be short or empty although more follow: reading stops after [`HISTORY_LOOKED_MAX`]
/// deliveries of an endpoint or a message, and otherwise at [`LISTED_LOOKED_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryPage {
    pub deliveries: Vec<DeliveryRecord>,
    /// The next page begins after this one; `None` if this is the last page.
    pub next: Option<DeliveryId>,
}

/// Selects messages that match all given fields; `None` matches any value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageFilter {
    pub tenant: Option<TenantId>,
    /// With this subject or correlation id; needs a tenant, because names belong to one.
    pub name: Option<Name>,
    pub event_type: Option<String>,
    pub tier: Option<Tier>,
    /// Accepted at this time or later.
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

impl MessageFilter {
    /// Whether the filter selects a message with these fields. The caller matches the name and the event type.
    pub(crate) fn matches(&self, tenant: TenantId, tier: Tier, at: Timestamp) -> bool {
        self.tenant.is_none_or(|wanted| wanted == tenant)
            && self.tier.is_none_or(|wanted| wanted == tier)
            && self.since.is_none_or(|since| at >= since)
            && self.until.is_none_or(|until| at < until)
    }
}

/// A message in a list: all fields but its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedMessage {
    pub id: MessageId,
    pub tenant: TenantId,
    pub at: Timestamp,
    pub tier: Tier,
    pub event_type: Option<String>,
    /// The person or account the message is about.
    pub subject: Option<String>,
    pub correlation_id: Option<String>,
    pub details: Option<Box<Details>>,
}

impl ListedMessage {
    /// Copies all fields of a message but its payload.
    pub fn of(message: &Message) -> Self {
        Self {
            id: message.id,
            tenant: message.tenant,
            at: message.at,
            tier: message.tier,
            event_type: message.event_type.clone(),
            subject: message.subject.clone(),
            correlation_id: message.correlation_id.clone(),
            details: message.details.clone(),
        }
    }
}

/// A page of messages. It may be short or empty although more follow: see [`LISTED_LOOKED_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessagePage {
    pub messages: Vec<ListedMessage>,
    /// The next page begins after this one; `None` if this is the last page.
    pub next: Option<MessageId>,
}

/// A name by which a tenant's messages can be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// The person or account that messages are about.
    Subject(String),
    Correlation(String),
}

impl Name {
    /// The keyed hash of the name, as the journal holds it.
    pub(crate) fn hide(&self, lookup: &LookupKey, tenant: TenantId) -> (NameKind, Hidden) {
        match self {
            Self::Subject(name) => (NameKind::Subject, Hidden::new(lookup, "subject", tenant, name)),
            Self::Correlation(name) => (NameKind::Correlation, Hidden::new(lookup, "correlation", tenant, name)),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedPage {
    pub messages: Vec<MessageId>,
    /// The next page begins after this one; `None` if this is the last page.
    pub next: Option<MessageId>,
}

/// A counter in a tenant's hourly tallies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CountedEvent {
    Messages,
    Deliveries,
    Attempts,
    Delivered,
    Dead,
    Expired,
    Cancelled,
}

/// A whole hour since 1970, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UtcHour(pub i64);

impl UtcHour {
    pub const fn of(at: Timestamp) -> Self {
        Self(at.as_millis().div_euclid(3_600_000))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HourlyCount {
    /// The tenant. Deliveries of endpoints that are no longer stored count for tenant 0.
    pub tenant: TenantId,
    pub hour: UtcHour,
    pub counted: CountedEvent,
    pub count: u64,
}

/// The number of pending deliveries in all lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingCounts {
    /// By tier, in the order of [`Tier::ALL`](posthaste_core::Tier::ALL).
    pub by_tier: [u64; 3],
    /// The number of these without an attempt.
    pub untried: u64,
}

impl PendingCounts {
    /// The number of pending deliveries with at least one attempt.
    pub fn tried(&self) -> u64 {
        self.by_tier.iter().sum::<u64>().saturating_sub(self.untried)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneBacklog {
    pub lane: LaneId,
    /// By tier, in the order of [`Tier::ALL`].
    pub by_tier: [u64; 3],
}

impl LaneBacklog {
    pub fn total(&self) -> u64 {
        self.by_tier.iter().sum()
    }
}
