//! What is derived from the journal, as its lists and counts show it.

use posthaste_core::cause::Cause;
use posthaste_core::id::{DeliveryId, EndpointId, LaneId, MessageId, TenantId};
use posthaste_core::state::Phase;
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;
use posthaste_crypto::LookupKey;

use super::Shown;
use crate::derived::NameKind;
use crate::journal::Hidden;
use crate::number::split;

/// Deliveries that one request for a history looks at: each look reads a row and its attempts, some 40 µs on
/// a busy machine.
pub const HISTORY_LOOKED_MAX: u32 = 500;

/// Which deliveries of an endpoint: those that match all that is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryFilter {
    /// To which endpoint.
    pub endpoint: EndpointId,
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
    /// Every delivery of an endpoint.
    pub const fn of(endpoint: EndpointId) -> Self {
        Self { endpoint, phase: None, cause: None, tier: None, since: None, until: None }
    }

    /// Whether it asks for this one.
    pub fn matches(&self, shown: &Shown) -> bool {
        let delivery = &shown.delivery;
        let last = split(&delivery.state).2.or_else(|| shown.attempts.last().map(|attempt| attempt.cause));
        self.phase.is_none_or(|phase| delivery.state.phase() == phase)
            && self.cause.is_none_or(|cause| last == Some(cause))
            && self.tier.is_none_or(|tier| delivery.tier == tier)
            && self.since.is_none_or(|since| delivery.born >= since)
            && self.until.is_none_or(|until| delivery.born < until)
    }
}

/// A part of an endpoint's history. It may be short, even empty, and still not the last: looking
/// stops after [`HISTORY_LOOKED_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryPage {
    /// Those found.
    pub deliveries: Vec<Shown>,
    /// Go on behind this one; `None` when there is nothing more.
    pub next: Option<DeliveryId>,
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
