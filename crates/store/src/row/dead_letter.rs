//! Dead letters: deliveries that were given up, as their list shows them.
//!
//! A dead letter has a number of its own, given in the order of filing, so that a purge knows what
//! was there when it was asked for: a delivery that dies later is not covered, however low its id.

use posthaste_core::cause::Cause;
use posthaste_core::id::{DeliveryId, EndpointId, MessageId, TenantId};
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;

/// Dead letters that one request looks at: a list, a count or a step of a sweep stops there and
/// says where to go on.
pub const DEAD_LETTERS_LOOKED_MAX: usize = 10_000;

/// As many are removed by one transaction; also what a purge removes at once, without a cut.
pub const DEAD_LETTERS_SWEPT_MAX: usize = 500;

/// Purges that may be under way at once: every list compares what it looks at with each of them.
pub const PURGES_MAX: usize = 64;

/// A delivery that was given up. Its attempts come with [`crate::Archive::delivery`], its payload with
/// [`crate::Archive::message`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// In the order of filing; never used again.
    pub number: u64,
    /// The delivery.
    pub delivery: DeliveryId,
    /// What it carried.
    pub message: MessageId,
    /// Whose.
    pub tenant: TenantId,
    /// For whom it was.
    pub endpoint: EndpointId,
    /// How urgent it was.
    pub tier: Tier,
    /// Why it was given up.
    pub cause: Cause,
    /// Its message's event type.
    pub event_type: Option<String>,
    /// How many attempts were made.
    pub attempts: u16,
    /// When it ended.
    pub at: Timestamp,
    /// Its next life, if it was replayed.
    pub replayed_as: Option<DeliveryId>,
}

/// Which dead letters: those that match all that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Whose; everybody's when nobody is named.
    pub tenant: Option<TenantId>,
    /// For whom.
    pub endpoint: Option<EndpointId>,
    /// Given up for this.
    pub cause: Option<Cause>,
    /// With this event type.
    pub event_type: Option<String>,
    /// As urgent as this.
    pub tier: Option<Tier>,
    /// Ended at this time or later.
    pub since: Option<Timestamp>,
    /// Ended before this time.
    pub until: Option<Timestamp>,
}

/// What of a filter an index finds; the rest applies to the rows that are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walk<'a> {
    Endpoint(EndpointId),
    Cause(TenantId, Cause),
    EventType(TenantId, &'a str),
    Tier(TenantId, Tier),
    Tenant(TenantId),
    Everybody,
}

impl DeadLetterFilter {
    /// Every dead letter of a tenant.
    pub const fn of(tenant: TenantId) -> Self {
        Self {
            tenant: Some(tenant),
            endpoint: None,
            cause: None,
            event_type: None,
            tier: None,
            since: None,
            until: None,
        }
    }

    /// The same of a tenant's alone.
    pub(crate) fn within(&self, tenant: TenantId) -> Self {
        Self { tenant: Some(tenant), ..self.clone() }
    }

    /// Whether it asks for this one.
    pub fn matches(&self, letter: &DeadLetter) -> bool {
        self.tenant.is_none_or(|tenant| tenant == letter.tenant)
            && self.endpoint.is_none_or(|endpoint| endpoint == letter.endpoint)
            && self.cause.is_none_or(|cause| cause == letter.cause)
            && self.event_type.as_ref().is_none_or(|event| letter.event_type.as_ref() == Some(event))
            && self.tier.is_none_or(|tier| tier == letter.tier)
            && self.has_time(letter.at)
    }

    /// Whether something that ended then is in its span of time.
    pub(crate) fn has_time(&self, at: Timestamp) -> bool {
        self.since.is_none_or(|since| at >= since) && self.until.is_none_or(|until| at < until)
    }

    /// The index to walk: the one that leaves the fewest rows to look at for most people.
    pub(crate) fn walk(&self) -> Walk<'_> {
        let tenant = match (self.endpoint, self.tenant) {
            (Some(endpoint), _) => return Walk::Endpoint(endpoint),
            (None, None) => return Walk::Everybody,
            (None, Some(tenant)) => tenant,
        };
        match (self.cause, &self.event_type, self.tier) {
            (Some(cause), ..) => Walk::Cause(tenant, cause),
            (None, Some(event_type), _) => Walk::EventType(tenant, event_type),
            (None, None, Some(tier)) => Walk::Tier(tenant, tier),
            (None, None, None) => Walk::Tenant(tenant),
        }
    }

    /// Whether the walk comes by this one.
    pub(crate) fn meets(&self, letter: &DeadLetter) -> bool {
        let met = match self.walk() {
            Walk::Endpoint(endpoint) => letter.endpoint == endpoint,
            Walk::Cause(tenant, cause) => letter.tenant == tenant && letter.cause == cause,
            Walk::EventType(tenant, event_type) => {
                letter.tenant == tenant && letter.event_type.as_deref() == Some(event_type)
            }
            Walk::Tier(tenant, tier) => letter.tenant == tenant && letter.tier == tier,
            Walk::Tenant(tenant) => letter.tenant == tenant,
            Walk::Everybody => true,
        };
        met && self.has_time(letter.at)
    }
}

/// In which order a list comes: by the time of the end, then by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListOrder {
    /// What happened last comes first.
    #[default]
    NewestFirst,
    /// What happened first comes first.
    OldestFirst,
}

/// A place in a list of dead letters: just behind one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadLetterCursor {
    /// When that one ended.
    pub at: Timestamp,
    /// Its number.
    pub number: u64,
}

impl DeadLetter {
    /// The place just behind it.
    pub const fn cursor(&self) -> DeadLetterCursor {
        DeadLetterCursor { at: self.at, number: self.number }
    }
}

/// A part of a list. It may be short, even empty, and still not the last: looking stops after
/// [`DEAD_LETTERS_LOOKED_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterPage {
    /// Those found.
    pub letters: Vec<DeadLetter>,
    /// Where to go on; `None` when there is nothing more.
    pub next: Option<DeadLetterCursor>,
}

/// How many there are, as far as it was worth counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// This many.
    Exactly(u64),
    /// This many were met before counting stopped after [`DEAD_LETTERS_LOOKED_MAX`] looks.
    AtLeast(u64),
}

/// A step of a sweep that is made in small steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// How many rows it removed.
    pub removed: u64,
    /// Whether there is more to do.
    pub more: bool,
}

/// A purge under way: what it covers is not listed and not replayed, and a sweep removes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Purge {
    pub(crate) filter: DeadLetterFilter,
    /// The highest number it covers.
    pub(crate) upto: u64,
    /// How far it is swept, oldest first.
    pub(crate) swept: Option<DeadLetterCursor>,
}

impl Purge {
    pub(crate) fn covers(&self, letter: &DeadLetter) -> bool {
        letter.number <= self.upto && self.filter.matches(letter)
    }
}
