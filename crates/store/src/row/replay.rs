//! Replays: the request, the items found, and the reasons for skipping items.

use std::time::Duration;

use posthaste_core::{Cause, Delivery, DeliveryId, EndpointId, JobId, State, TenantId, Timestamp};

use super::dead_letter::{BoundedCount, DeadLetter, DeadLetterFilter, DeadLetterPage};
use super::job::{DeliveryJob, JobCursor, JobKind, JobState};
use super::list::ListedMessage;
use crate::StoreError;

/// Maximum number of deliveries that one replay can list; larger replays use a filter.
pub const REPLAY_LISTED_MAX: usize = 1_000;

#[derive(Clone, Debug)]
pub struct NewReplay {
    pub id: JobId,
    pub tenant: TenantId,
    pub at: Timestamp,
    pub what: ReplayWhat,
    /// The number of items, if the caller has counted them. Listed deliveries and dead letters are counted by the
    /// store.
    pub total: Option<BoundedCount>,
    /// Maximum number of deliveries made per second.
    pub per_second: Option<u32>,
    pub reason: Option<String>,
    /// Maximum number of running replays of the tenant; the store refuses to start more.
    pub running_max: Option<u32>,
}

/// The deliveries or messages that a replay selects.
#[derive(Clone, Debug)]
pub enum ReplayWhat {
    /// Dead letters that match and are filed when the replay begins.
    Found(DeadLetterFilter),
    /// Deliveries that match and have expired when the replay begins; with `dead`, dead ones too.
    Ended { filter: DeadLetterFilter, dead: bool },
    /// These deliveries, if they are dead or expired; at most [`REPLAY_LISTED_MAX`].
    Listed(Vec<DeliveryId>),
    /// Messages that an endpoint has no delivery of.
    Missing(Missing),
}

/// Messages accepted in a time span that have no delivery to an endpoint. The store does not check whether the endpoint
/// wants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The endpoint that lacks the deliveries.
    pub endpoint: EndpointId,
    /// Accepted at this time or later.
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

impl Missing {
    /// Whether a time of acceptance is within the span.
    pub(crate) fn has_time(&self, at: Timestamp) -> bool {
        self.since.is_none_or(|since| at >= since) && self.until.is_none_or(|until| at < until)
    }
}

/// The reason why a replay skipped a selected item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skip {
    /// Its payload is no longer retained.
    PayloadGone,
    /// Its endpoint takes no messages: it is gone or deleted.
    EndpointGone,
    ReplayedBefore,
    Purged,
    /// It is quarantined, and the filter does not name the cause `token_rejected`.
    Quarantined,
    NotEnded,
    Delivered,
    Cancelled,
    /// The store does not have it, or no longer has it.
    NotFound,
}

impl Skip {
    pub const ALL: [Self; 9] = [
        Self::PayloadGone,
        Self::EndpointGone,
        Self::ReplayedBefore,
        Self::Purged,
        Self::Quarantined,
        Self::NotEnded,
        Self::Delivered,
        Self::Cancelled,
        Self::NotFound,
    ];

    pub const fn code(self) -> &'static str {
        match self {
            Self::PayloadGone => "payload_gone",
            Self::EndpointGone => "endpoint_gone",
            Self::ReplayedBefore => "replayed_before",
            Self::Purged => "purged",
            Self::Quarantined => "quarantined",
            Self::NotEnded => "not_ended",
            Self::Delivered => "delivered",
            Self::Cancelled => "cancelled",
            Self::NotFound => "not_found",
        }
    }
}

/// The number of skipped items, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skips([u64; Skip::ALL.len()]);

impl Skips {
    /// `count` items skipped for one reason.
    pub fn of(why: Skip, count: u64) -> Self {
        let mut skips = Self::default();
        skips.add(why, count);
        skips
    }

    /// Adds `count` items to a reason.
    pub fn add(&mut self, why: Skip, count: u64) {
        self.0[why as usize] += count;
    }

    /// Adds all counts of `others`.
    pub fn add_all(&mut self, others: Self) {
        others.each().for_each(|(why, count)| self.add(why, count));
    }

    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The reasons with a count above 0, each with its count.
    pub fn each(self) -> impl Iterator<Item = (Skip, u64)> {
        Skip::ALL.into_iter().map(move |why| (why, self.0[why as usize])).filter(|(_, count)| *count > 0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayPage {
    pub items: Vec<ReplayItem>,
    /// The position after the page.
    pub next: JobCursor,
    pub last: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayItem {
    pub found: Replayable,
    /// The position after the item.
    pub cursor: JobCursor,
}

/// What a replay can make of a selected item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replayable {
    /// A new delivery that replays this one, given as it ended.
    Ended(Delivery),
    /// A delivery of this message, if the endpoint wants it.
    Missing(Box<ListedMessage>),
    /// Nothing, for this reason.
    Not(Skip),
}

/// The links that replays make between deliveries. Known as long as the outcome of the earlier delivery is retained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lives {
    pub before: Option<DeliveryId>,
    pub next: Option<DeliveryId>,
    pub made: Option<MadeBy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeBy {
    pub job: JobId,
    /// When the replay was asked for; `None` once the job is no longer retained.
    pub asked: Option<Timestamp>,
    pub at: Timestamp,
}

impl Replayable {
    pub fn ended(&self) -> Option<&Delivery> {
        match self {
            Self::Ended(delivery) => Some(delivery),
            _ => None,
        }
    }
}

impl NewReplay {
    /// A replay without a rate limit or a reason.
    pub const fn new(id: JobId, tenant: TenantId, at: Timestamp, what: ReplayWhat) -> Self {
        Self { id, tenant, at, what, total: None, per_second: None, reason: None, running_max: None }
    }

    /// Fails with [`StoreError::TooMany`] if the tenant already has as many running replays as allowed.
    pub(crate) fn has_room(&self, running: usize) -> Result<(), StoreError> {
        match self.running_max.map(|most| most as usize) {
            Some(limit) if running >= limit => Err(StoreError::TooMany { what: "replays", limit }),
            _ => Ok(()),
        }
    }

    pub fn begun(&self) -> Result<DeliveryJob, StoreError> {
        self.job(u64::MAX)
    }

    /// The filter, restricted to the replay's own tenant.
    pub(crate) fn filter(&self, filter: &DeadLetterFilter) -> DeadLetterFilter {
        filter.within(self.tenant)
    }

    /// The number of dead letters to replay, counted on a page that begins at the start.
    pub(crate) fn counted(page: &DeadLetterPage) -> BoundedCount {
        let open = page.letters.iter().filter(|letter| letter.replayed_as.is_none()).count() as u64;
        if page.next.is_some() { BoundedCount::AtLeast(open) } else { BoundedCount::Exactly(open) }
    }

    /// The replay's job in its initial state. `upto` is the highest number of a dead letter to replay.
    pub(crate) fn job(&self, upto: u64) -> Result<DeliveryJob, StoreError> {
        let mut total = self.total;
        let kind = match &self.what {
            ReplayWhat::Found(filter) => JobKind::ReplayFound { filter: self.filter(filter), upto },
            ReplayWhat::Ended { filter, dead } => JobKind::ReplayEnded { filter: self.filter(filter), dead: *dead },
            ReplayWhat::Missing(missing) => JobKind::ReplayMissing(*missing),
            ReplayWhat::Listed(ids) if ids.len() > REPLAY_LISTED_MAX => {
                return Err(StoreError::TooMany { what: "deliveries", limit: REPLAY_LISTED_MAX });
            }
            ReplayWhat::Listed(ids) => {
                total = Some(BoundedCount::Exactly(ids.len() as u64));
                JobKind::ReplayListed
            }
        };
        Ok(DeliveryJob {
            total,
            per_second: self.per_second,
            reason: self.reason.clone(),
            ..DeliveryJob::new(self.id, self.tenant, self.at, kind)
        })
    }
}

/// The next deliveries that a replay selects, before it is checked whether they can be replayed.
pub(crate) struct Met {
    /// Each delivery with the position after it.
    pub(crate) found: Vec<(DeliveryId, JobCursor)>,
    pub(crate) next: JobCursor,
    pub(crate) last: bool,
}

/// What a store knows about a selected delivery.
pub(crate) struct ReplayCandidate {
    /// The delivery as it ended; `None` if it has not ended or is unknown.
    pub(crate) ended: Option<Delivery>,
    pub(crate) is_pending: bool,
    pub(crate) was_replayed: bool,
    /// Whether its dead letter is filed and not purged.
    pub(crate) is_filed: bool,
    pub(crate) has_payload: bool,
}

impl JobKind {
    /// What the replay can make of a delivery. A quarantined delivery is skipped unless the filter asks for exactly
    /// those, because its row may have been forged.
    pub(crate) fn judge(&self, known: ReplayCandidate) -> Replayable {
        let Some(delivery) = known.ended else {
            return Replayable::Not(if known.is_pending { Skip::NotEnded } else { Skip::NotFound });
        };
        let skip = match delivery.state {
            State::Delivered { .. } => Some(Skip::Delivered),
            State::Cancelled { .. } => Some(Skip::Cancelled),
            _ if known.was_replayed => Some(Skip::ReplayedBefore),
            State::Dead { .. } if !known.is_filed => Some(Skip::Purged),
            State::Dead { cause: Cause::TokenRejected, .. } if !self.asks_for_quarantined() => Some(Skip::Quarantined),
            State::Dead { .. } | State::Expired { .. } if !known.has_payload => Some(Skip::PayloadGone),
            State::Dead { .. } | State::Expired { .. } => None,
            _ => Some(Skip::NotEnded),
        };
        skip.map_or(Replayable::Ended(delivery), Replayable::Not)
    }

    fn asks_for_quarantined(&self) -> bool {
        match self {
            Self::ReplayFound { filter, .. } | Self::ReplayEnded { filter, .. } => {
                filter.cause == Some(Cause::TokenRejected)
            }
            _ => false,
        }
    }
}

impl DeliveryJob {
    /// The deliveries to replay on a page of the dead letters after the cursor: those filed before the replay was asked
    /// for, and not replayed since.
    pub(crate) fn meets_letters(&self, upto: u64, page: &DeadLetterPage) -> Met {
        let end = page.letters.last().map(DeadLetter::cursor);
        let open = page.letters.iter().filter(|letter| letter.number <= upto && letter.replayed_as.is_none());
        Met {
            found: open.map(|letter| (letter.delivery, letter.cursor().into())).collect(),
            next: page.next.or(end).map_or(self.cursor, JobCursor::from),
            last: page.next.is_none(),
        }
    }

    /// The deliveries to replay on a page of its list, of which `wanted` were requested.
    pub(crate) fn meets_listed(&self, found: Vec<(DeliveryId, JobCursor)>, wanted: u32) -> Met {
        let next = found.last().map_or(self.cursor, |(_, cursor)| *cursor);
        Met { last: found.len() < wanted as usize, found, next }
    }

    /// Whether a replay of ended deliveries selects this one. The caller checks the event type, which is a field of the
    /// message. Deliveries that were made or ended after the replay was asked for are not part of it.
    pub(crate) fn meets_ended(&self, filter: &DeadLetterFilter, dead: bool, ended: &Delivery) -> bool {
        // An expired delivery also matches the cause of its last attempt.
        let (at, last) = match ended.state {
            State::Expired { at } => (at, ended.last_cause),
            State::Dead { at, .. } if dead => (at, None),
            _ => return false,
        };
        ended.id.0 < self.id.0
            && at <= self.at
            && filter.endpoint.is_none_or(|endpoint| ended.endpoint == endpoint)
            && filter.cause.is_none_or(|wanted| ended.state.cause() == Some(wanted) || last == Some(wanted))
            && filter.tier.is_none_or(|tier| tier == ended.tier)
            && filter.has_time(at)
    }

    /// The number of items a replay has yet to process; `None` if its items were not counted.
    pub fn left(&self) -> Option<BoundedCount> {
        let done = self.made + self.skipped.total();
        Some(match self.total? {
            BoundedCount::Exactly(total) => BoundedCount::Exactly(total.saturating_sub(done)),
            BoundedCount::AtLeast(total) => BoundedCount::AtLeast(total.saturating_sub(done)),
        })
    }

    /// The estimated time of completion, at the job's rate limit or else at its average rate so far. `None` if it does
    /// not run, has made no progress, or its items were not counted.
    pub fn done_at(&self, now: Timestamp) -> Option<Timestamp> {
        let (BoundedCount::Exactly(left) | BoundedCount::AtLeast(left)) = self.left()?;
        if self.state != JobState::Running {
            return None;
        }
        let done = self.made + self.skipped.total();
        let micros = match self.per_second {
            Some(pace) => u128::from(left) * 1_000_000 / u128::from(pace.max(1)),
            None if done == 0 => return None,
            None => now.since(self.at).as_micros() * u128::from(left) / u128::from(done),
        };
        Some(now + Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(per_second: Option<u32>) -> DeliveryJob {
        let replay = NewReplay {
            total: Some(BoundedCount::Exactly(100)),
            per_second,
            ..NewReplay::new(
                JobId::from_raw(1),
                TenantId::from_raw(1),
                Timestamp::from_millis(0),
                ReplayWhat::Ended { filter: DeadLetterFilter::of(TenantId::from_raw(1)), dead: true },
            )
        };
        replay.job(0).expect("not a list that could be too long")
    }

    #[test]
    fn replay_with_a_rate_limit_estimates_its_end_from_the_limit() {
        let mut job = job(Some(10));
        let now = Timestamp::from_millis(1_000);
        assert_eq!(job.done_at(now), Some(Timestamp::from_millis(11_000)));
        (job.made, job.skipped) = (30, Skips::of(Skip::EndpointGone, 20));
        assert_eq!(job.left(), Some(BoundedCount::Exactly(50)));
        assert_eq!(job.done_at(now), Some(Timestamp::from_millis(6_000)));
        job.state = JobState::Paused;
        assert_eq!(job.done_at(now), None);
    }

    #[test]
    fn replay_without_a_rate_limit_estimates_its_end_from_its_progress() {
        let mut job = job(None);
        let now = Timestamp::from_millis(1_000);
        assert_eq!(job.done_at(now), None);
        job.made = 25;
        assert_eq!(job.done_at(now), Some(Timestamp::from_millis(4_000)));
        job.made = 1_000;
        assert_eq!(job.done_at(now), Some(now));
    }
}
