//! Dead letters: deliveries that were given up.
//!
//! Dead letters are numbered in the order in which they are filed. A purge covers the numbers up to the highest at the
//! time of its request, so it never covers a delivery that dies later, however low the delivery's id.

use posthaste_core::{Cause, DeliveryId, EndpointId, MessageId, TenantId, Tier, Timestamp};

/// Maximum number of dead letters that one request reads. A list, a count or a step of a sweep stops there and returns
/// a cursor.
pub const DEAD_LETTERS_LOOKED_MAX: usize = 10_000;

/// Maximum number of dead letters that one transaction removes. A purge of no more than these removes them at once.
pub const DEAD_LETTERS_SWEPT_MAX: usize = 500;

/// Maximum number of purges under way: every list compares each dead letter it reads with all of them.
pub const PURGES_MAX: usize = 64;

/// A delivery that was given up. Its attempts come with [`crate::Archive::delivery`], its payload with
/// [`crate::Archive::message`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Its number, in the order of filing; never reused.
    pub number: u64,
    pub delivery: DeliveryId,
    pub message: MessageId,
    pub tenant: TenantId,
    pub endpoint: EndpointId,
    pub tier: Tier,
    pub cause: Cause,
    pub event_type: Option<String>,
    pub attempts: u16,
    pub at: Timestamp,
    /// The delivery that a replay made of it, if it was replayed.
    pub replayed_as: Option<DeliveryId>,
}

/// Selects dead letters that match all given fields; `None` matches any value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    pub tenant: Option<TenantId>,
    pub endpoint: Option<EndpointId>,
    pub cause: Option<Cause>,
    pub event_type: Option<String>,
    pub tier: Option<Tier>,
    /// Ended at this time or later.
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

/// The part of a filter for which there is an index. The rest of the filter is applied to the rows read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LetterIndex<'a> {
    Endpoint(EndpointId),
    Cause(TenantId, Cause),
    EventType(TenantId, &'a str),
    Tier(TenantId, Tier),
    Tenant(TenantId),
    AllTenants,
}

impl DeadLetterFilter {
    pub fn of(tenant: TenantId) -> Self {
        Self { tenant: Some(tenant), ..Self::default() }
    }

    /// The same filter, restricted to one tenant.
    pub(crate) fn within(&self, tenant: TenantId) -> Self {
        Self { tenant: Some(tenant), ..self.clone() }
    }

    pub fn matches(&self, letter: &DeadLetter) -> bool {
        self.tenant.is_none_or(|tenant| tenant == letter.tenant)
            && self.endpoint.is_none_or(|endpoint| endpoint == letter.endpoint)
            && self.cause.is_none_or(|cause| cause == letter.cause)
            && self.event_type.as_ref().is_none_or(|event| letter.event_type.as_ref() == Some(event))
            && self.tier.is_none_or(|tier| tier == letter.tier)
            && self.has_time(letter.at)
    }

    /// Whether a time of an end is within `since` and `until`.
    pub(crate) fn has_time(&self, at: Timestamp) -> bool {
        self.since.is_none_or(|since| at >= since) && self.until.is_none_or(|until| at < until)
    }

    /// The index to read: the one that usually leaves the fewest rows.
    pub(crate) fn walk(&self) -> LetterIndex<'_> {
        let tenant = match (self.endpoint, self.tenant) {
            (Some(endpoint), _) => return LetterIndex::Endpoint(endpoint),
            (None, None) => return LetterIndex::AllTenants,
            (None, Some(tenant)) => tenant,
        };
        match (self.cause, &self.event_type, self.tier) {
            (Some(cause), ..) => LetterIndex::Cause(tenant, cause),
            (None, Some(event_type), _) => LetterIndex::EventType(tenant, event_type),
            (None, None, Some(tier)) => LetterIndex::Tier(tenant, tier),
            (None, None, None) => LetterIndex::Tenant(tenant),
        }
    }

    /// Whether reading the index of [`walk`](Self::walk) yields this letter.
    pub(crate) fn meets(&self, letter: &DeadLetter) -> bool {
        let is_in_index = match self.walk() {
            LetterIndex::Endpoint(endpoint) => letter.endpoint == endpoint,
            LetterIndex::Cause(tenant, cause) => letter.tenant == tenant && letter.cause == cause,
            LetterIndex::EventType(tenant, event_type) => {
                letter.tenant == tenant && letter.event_type.as_deref() == Some(event_type)
            }
            LetterIndex::Tier(tenant, tier) => letter.tenant == tenant && letter.tier == tier,
            LetterIndex::Tenant(tenant) => letter.tenant == tenant,
            LetterIndex::AllTenants => true,
        };
        is_in_index && self.has_time(letter.at)
    }
}

/// The order of a list: dead letters by the time of their end and then by number, other lists by id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListOrder {
    /// The latest first.
    #[default]
    NewestFirst,
    OldestFirst,
}

impl ListOrder {
    /// Whether an item comes after the position `after` in this order; `None` is before the first item.
    pub(crate) fn is_behind<T: PartialOrd + Copy>(self, item: T, after: Option<T>) -> bool {
        after.is_none_or(|after| match self {
            Self::NewestFirst => item < after,
            Self::OldestFirst => item > after,
        })
    }
}

/// A position in a list of dead letters: directly after one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadLetterCursor {
    /// When that dead letter's delivery ended.
    pub at: Timestamp,
    /// That dead letter's number.
    pub number: u64,
}

impl DeadLetter {
    /// The position directly after this letter.
    pub const fn cursor(&self) -> DeadLetterCursor {
        DeadLetterCursor { at: self.at, number: self.number }
    }
}

/// A page of dead letters. It may be short or empty although more follow, because reading stops after
/// [`DEAD_LETTERS_LOOKED_MAX`] rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterPage {
    pub letters: Vec<DeadLetter>,
    /// Where the next page begins; `None` if this is the last.
    pub next: Option<DeadLetterCursor>,
}

/// A count that may have stopped at a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundedCount {
    Exactly(u64),
    /// At least this many: counting stopped after reading [`DEAD_LETTERS_LOOKED_MAX`] rows.
    AtLeast(u64),
}

/// The result of one step of the sweep of purged dead letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub removed: u64,
    pub more: bool,
}

/// A purge under way. The dead letters it covers are neither listed nor replayed, and a sweep removes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Purge {
    pub(crate) filter: DeadLetterFilter,
    /// The highest number it covers.
    pub(crate) upto: u64,
    /// How far the sweep has come, oldest first.
    pub(crate) swept: Option<DeadLetterCursor>,
}

impl Purge {
    pub(crate) fn covers(&self, letter: &DeadLetter) -> bool {
        letter.number <= self.upto && self.filter.matches(letter)
    }
}
