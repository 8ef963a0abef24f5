//! What is derived from the journal, as its lists and counts show it.

use posthaste_core::cause::Cause;
use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, EndpointId, LaneId, MessageId, TenantId};
use posthaste_core::state::{Phase, State};
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;
use posthaste_crypto::LookupKey;

use super::{Details, Message, Shown};
use crate::derived::NameKind;
use crate::journal::Hidden;

/// Deliveries that one request for a history looks at: each look reads a row and its attempts, some 40 µs on
/// a busy machine.
pub const HISTORY_LOOKED_MAX: u32 = 500;

/// Rows that one request for any other list looks at, by what a look costs: one that only passes a row over is 1,
/// some 2 µs.
pub const LISTED_LOOKED_MAX: u32 = 20_000;

/// Whose deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryOf {
    /// Those to an endpoint.
    Endpoint(EndpointId),
    /// Those of a message.
    Message(MessageId),
    /// A tenant's.
    Tenant(TenantId),
    /// All there are.
    Everybody,
}

/// Which deliveries: those that match all that is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryFilter {
    /// Whose.
    pub of: HistoryOf,
    /// In this state.
    pub phase: Option<Phase>,
    /// Ended, or last tried, with this cause.
    pub cause: Option<Cause>,
    /// As urgent as this.
    pub tier: Option<Tier>,
    /// Born at this time or later.
    pub since: Option<Timestamp>,
    /// Born before this time.
    pub until: Option<Timestamp>,
}

impl HistoryFilter {
    /// Every delivery to an endpoint.
    pub const fn of(endpoint: EndpointId) -> Self {
        Self::all(HistoryOf::Endpoint(endpoint))
    }

    /// All of these.
    pub const fn all(of: HistoryOf) -> Self {
        Self { of, phase: None, cause: None, tier: None, since: None, until: None }
    }

    /// What can be said before anybody looks at how it stands.
    pub(crate) fn may_match(&self, delivery: &Delivery) -> bool {
        self.tier.is_none_or(|tier| delivery.tier == tier)
            && self.since.is_none_or(|since| delivery.born >= since)
            && self.until.is_none_or(|until| delivery.born < until)
    }

    /// Whether it asks for this one.
    pub fn matches(&self, shown: &Shown) -> bool {
        let delivery = &shown.delivery;
        self.phase.is_none_or(|phase| is_in(delivery.state, phase))
            && self.cause.is_none_or(|cause| delivery.state.cause() == Some(cause))
            && self.may_match(delivery)
    }
}

/// Whether a state is in this phase as far as a store knows: what is being sent, its owner alone can tell from what
/// waits.
fn is_in(state: State, phase: Phase) -> bool {
    match phase {
        Phase::Dispatching => matches!(state.phase(), Phase::Queued | Phase::Retry),
        phase => state.phase() == phase,
    }
}

/// A part of a history. It may be short, even empty, and still not the last: looking
/// stops after [`HISTORY_LOOKED_MAX`] of an endpoint or a message, and else as [`LISTED_LOOKED_MAX`] says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryPage {
    /// Those found.
    pub deliveries: Vec<Shown>,
    /// Go on behind this one; `None` when there is nothing more.
    pub next: Option<DeliveryId>,
}

/// Which messages: those that match all that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageFilter {
    /// Whose; everybody's when nobody is named.
    pub tenant: Option<TenantId>,
    /// With this name, which only a tenant's messages have.
    pub name: Option<Name>,
    /// With this event type.
    pub event_type: Option<String>,
    /// As urgent as this.
    pub tier: Option<Tier>,
    /// Accepted at this time or later.
    pub since: Option<Timestamp>,
    /// Accepted before this time.
    pub until: Option<Timestamp>,
}

impl MessageFilter {
    /// Whether it asks for one that says this of itself; names are found elsewhere.
    pub(crate) fn matches(&self, tenant: TenantId, tier: Tier, at: Timestamp) -> bool {
        self.tenant.is_none_or(|asked| asked == tenant)
            && self.tier.is_none_or(|asked| asked == tier)
            && self.since.is_none_or(|since| at >= since)
            && self.until.is_none_or(|until| at < until)
    }
}

/// A message in a list: all but its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedMessage {
    /// Its id.
    pub id: MessageId,
    /// Whose.
    pub tenant: TenantId,
    /// When it was accepted.
    pub at: Timestamp,
    /// How urgent it is.
    pub tier: Tier,
    /// What happened.
    pub event_type: Option<String>,
    /// Whose data it is.
    pub subject: Option<String>,
    /// The caller's.
    pub correlation_id: Option<String>,
    /// What else its producer said of it.
    pub details: Option<Box<Details>>,
}

impl ListedMessage {
    /// A message without its payload.
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

/// A part of a list of messages. It may be short, even empty, and still not the last: see [`LISTED_LOOKED_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessagePage {
    /// Those found.
    pub messages: Vec<ListedMessage>,
    /// Go on behind this one; `None` when there is nothing more.
    pub next: Option<MessageId>,
}

/// What a message can be found by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// Whose data it is.
    Subject(String),
    /// What ties everything about it together.
    Correlation(String),
}

impl Name {
    /// The name as the journal has it.
    pub(crate) fn hide(&self, lookup: &LookupKey, tenant: TenantId) -> (NameKind, Hidden) {
        match self {
            Self::Subject(name) => (NameKind::Subject, Hidden::new(lookup, "subject", tenant, name)),
            Self::Correlation(name) => (NameKind::Correlation, Hidden::new(lookup, "correlation", tenant, name)),
        }
    }
}

/// A part of the messages of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedPage {
    /// Those found.
    pub messages: Vec<MessageId>,
    /// Go on behind this one; `None` when there is nothing more.
    pub next: Option<MessageId>,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counted {
    /// Messages accepted.
    Messages,
    /// Deliveries made.
    Deliveries,
    /// Attempts made.
    Attempts,
    /// Deliveries that arrived.
    Delivered,
    /// Deliveries that were given up.
    Dead,
    /// Deliveries whose time was over.
    Expired,
    /// Deliveries that somebody ended.
    Cancelled,
}

/// A whole hour since 1970, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hour(pub i64);

impl Hour {
    /// The hour of a time.
    pub const fn of(at: Timestamp) -> Self {
        Self(at.as_millis().div_euclid(3_600_000))
    }
}

/// How often something happened to a tenant within an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Whose. What belongs to no endpoint we know of is counted for the tenant 0.
    pub tenant: TenantId,
    /// When.
    pub hour: Hour,
    /// What.
    pub counted: Counted,
    /// How often.
    pub count: u64,
}

/// How much is pending in all lanes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// In the order of [`Tier::ALL`](posthaste_core::tier::Tier::ALL).
    pub by_tier: [u64; 3],
    /// Those of them that were never tried.
    pub untried: u64,
}

impl Pending {
    /// Those that were tried and have not ended.
    pub fn tried(&self) -> u64 {
        self.by_tier.iter().sum::<u64>().saturating_sub(self.untried)
    }
}

/// How much is pending in a lane, by tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Of which lane.
    pub lane: LaneId,
    /// In the order of [`Tier::ALL`].
    pub by_tier: [u64; 3],
}

impl Waiting {
    /// Of all tiers together.
    pub fn total(&self) -> u64 {
        self.by_tier.iter().sum()
    }
}
