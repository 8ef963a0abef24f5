//! Replays: what is asked for, what is met on the way, and why something is passed over.

use std::time::Duration;

use posthaste_core::cause::Cause;
use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, EndpointId, JobId, TenantId};
use posthaste_core::state::State;
use posthaste_core::time::Timestamp;

use super::dead_letter::{Count, DeadLetter, DeadLetterFilter, DeadLetterPage};
use super::job::{Job, JobCursor, JobKind, JobState};
use super::list::ListedMessage;
use crate::StoreError;

/// Deliveries that one replay names at most; more are found by a filter.
pub const REPLAY_LISTED_MAX: usize = 1_000;

/// A replay to begin.
#[derive(Clone, Debug)]
pub struct NewReplay {
    /// Its id.
    pub id: JobId,
    /// Whose.
    pub tenant: TenantId,
    /// When it was asked for.
    pub at: Timestamp,
    /// What to replay.
    pub what: ReplayWhat,
    /// How many there are of it, where whoever asks has counted what the store does not: those of a list and
    /// dead letters it counts itself.
    pub total: Option<Count>,
    /// Deliveries it may make in a second.
    pub per_second: Option<u32>,
    /// Why, in the words of whoever asked.
    pub reason: Option<String>,
    /// So many of its tenant's may go on at once; one more is refused.
    pub running_max: Option<u32>,
}

/// What a replay takes.
#[derive(Clone, Debug)]
pub enum ReplayWhat {
    /// The dead letters that match and are filed by now.
    Found(DeadLetterFilter),
    /// What has expired by now and matches, and with `dead` the dead letters too.
    Ended {
        /// Which.
        filter: DeadLetterFilter,
        /// Whether dead letters are meant as well.
        dead: bool,
    },
    /// These deliveries, as far as they are dead or expired; at most [`REPLAY_LISTED_MAX`].
    Listed(Vec<DeliveryId>),
    /// Messages that an endpoint has no delivery of.
    Missing(Missing),
}

/// What an endpoint never got: messages accepted in a span of time that have no delivery for it. Whether it
/// wants them is not for the store to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Whose.
    pub endpoint: EndpointId,
    /// Accepted then or later.
    pub since: Option<Timestamp>,
    /// Accepted before this time.
    pub until: Option<Timestamp>,
}

impl Missing {
    /// Whether a message that was accepted then is in the span.
    pub(crate) fn has_time(&self, at: Timestamp) -> bool {
        self.since.is_none_or(|since| at >= since) && self.until.is_none_or(|until| at < until)
    }
}

/// Why something that was selected gets no other life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skip {
    /// Its payload is not kept any more.
    PayloadGone,
    /// Its endpoint takes no messages: it is gone or deleted.
    EndpointGone,
    /// It was replayed before.
    ReplayedBefore,
    /// It was purged.
    Purged,
    /// It is quarantined, and nobody asked for just that.
    Quarantined,
    /// It waits or is being sent.
    NotEnded,
    /// It arrived.
    Delivered,
    /// It was cancelled, or its message was.
    Cancelled,
    /// Nothing is known of it any more.
    NotFound,
}

impl Skip {
    /// Every reason there is.
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

    /// What the world calls it.
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

/// How many were passed over, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skips([u64; Skip::ALL.len()]);

impl Skips {
    /// So many for one reason.
    pub fn of(why: Skip, count: u64) -> Self {
        let mut skips = Self::default();
        skips.add(why, count);
        skips
    }

    /// Counts more.
    pub fn add(&mut self, why: Skip, count: u64) {
        self.0[why as usize] += count;
    }

    /// Counts all of these.
    pub fn add_all(&mut self, others: Self) {
        others.each().for_each(|(why, count)| self.add(why, count));
    }

    /// Of all reasons together.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The reasons there were, each with how often.
    pub fn each(self) -> impl Iterator<Item = (Skip, u64)> {
        Skip::ALL.into_iter().map(move |why| (why, self.0[why as usize])).filter(|(_, count)| *count > 0)
    }
}

/// What a replay deals with next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayPage {
    /// What it is about.
    pub items: Vec<ReplayItem>,
    /// Behind all of these.
    pub next: JobCursor,
    /// Whether there is nothing behind it.
    pub last: bool,
}

/// Something that was selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayItem {
    /// What can be made of it.
    pub found: Replayable,
    /// Behind it.
    pub cursor: JobCursor,
}

/// What can be made of something that was selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replayable {
    /// Another life for this delivery, as it ended.
    Ended(Delivery),
    /// A delivery of this message, if the endpoint wants it.
    Missing(Box<ListedMessage>),
    /// Nothing.
    Not(Skip),
}

/// How a delivery is linked to others by replays. Known while what became of the former life is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lives {
    /// Whose next life it is.
    pub before: Option<DeliveryId>,
    /// Its own next life.
    pub next: Option<DeliveryId>,
    /// The replay that made it.
    pub made: Option<MadeBy>,
}

/// The replay that made a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeBy {
    /// Its job.
    pub job: JobId,
    /// When that was asked for; nothing once it is forgotten.
    pub asked: Option<Timestamp>,
    /// When it made the delivery.
    pub at: Timestamp,
}

impl Replayable {
    /// The delivery that can have another life.
    pub fn ended(&self) -> Option<&Delivery> {
        match self {
            Self::Ended(delivery) => Some(delivery),
            _ => None,
        }
    }
}

impl NewReplay {
    /// A replay without a pace or a reason.
    pub const fn new(id: JobId, tenant: TenantId, at: Timestamp, what: ReplayWhat) -> Self {
        Self { id, tenant, at, what, total: None, per_second: None, reason: None, running_max: None }
    }

    /// Whether it may go on beside so many others of its tenant.
    pub(crate) fn has_room(&self, running: usize) -> Result<(), StoreError> {
        match self.running_max.map(|most| most as usize) {
            Some(limit) if running >= limit => Err(StoreError::TooMany { what: "replays", limit }),
            _ => Ok(()),
        }
    }

    /// Its job, before it has done anything.
    pub fn begun(&self) -> Result<Job, StoreError> {
        self.job(u64::MAX)
    }

    /// What it takes: its own tenant's alone, whatever the filter says.
    pub(crate) fn filter(&self, filter: &DeadLetterFilter) -> DeadLetterFilter {
        filter.within(self.tenant)
    }

    /// How many dead letters there are for it, as far as this page says.
    pub(crate) fn counted(page: &DeadLetterPage) -> Count {
        let open = page.letters.iter().filter(|letter| letter.replayed_as.is_none()).count() as u64;
        if page.next.is_some() { Count::AtLeast(open) } else { Count::Exactly(open) }
    }

    /// Its job, before it has done anything. Dead letters are taken up to a number.
    pub(crate) fn job(&self, upto: u64) -> Result<Job, StoreError> {
        let mut total = self.total;
        let kind = match &self.what {
            ReplayWhat::Found(filter) => JobKind::ReplayFound { filter: self.filter(filter), upto },
            ReplayWhat::Ended { filter, dead } => JobKind::ReplayEnded { filter: self.filter(filter), dead: *dead },
            ReplayWhat::Missing(missing) => JobKind::ReplayMissing(*missing),
            ReplayWhat::Listed(ids) if ids.len() > REPLAY_LISTED_MAX => {
                return Err(StoreError::TooMany { what: "deliveries", limit: REPLAY_LISTED_MAX });
            }
            ReplayWhat::Listed(ids) => {
                total = Some(Count::Exactly(ids.len() as u64));
                JobKind::ReplayListed
            }
        };
        Ok(Job {
            id: self.id,
            tenant: self.tenant,
            at: self.at,
            kind,
            state: JobState::Running,
            cursor: JobCursor::START,
            made: 0,
            skipped: Skips::default(),
            total,
            per_second: self.per_second,
            reason: self.reason.clone(),
        })
    }
}

/// What a replay meets next, whether or not it can have another life.
pub(crate) struct Met {
    /// Each with the place behind it.
    pub(crate) found: Vec<(DeliveryId, JobCursor)>,
    pub(crate) next: JobCursor,
    pub(crate) last: bool,
}

/// What a store knows of a delivery that was selected.
pub(crate) struct Known {
    /// As it ended.
    pub(crate) ended: Option<Delivery>,
    pub(crate) is_pending: bool,
    pub(crate) was_replayed: bool,
    /// Whether its dead letter is there and not purged.
    pub(crate) is_filed: bool,
    pub(crate) has_payload: bool,
}

impl JobKind {
    /// What can be made of this. What is quarantined stays so, unless somebody asks for just that: nobody knows
    /// who scheduled it.
    pub(crate) fn judge(&self, known: Known) -> Replayable {
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

impl Job {
    /// What a replay meets on a page of the dead letters behind its cursor: those filed when it was asked for,
    /// and not replayed since.
    pub(crate) fn meets_letters(&self, upto: u64, page: &DeadLetterPage) -> Met {
        let end = page.letters.last().map(DeadLetter::cursor);
        let open = page.letters.iter().filter(|letter| letter.number <= upto && letter.replayed_as.is_none());
        Met {
            found: open.map(|letter| (letter.delivery, letter.cursor().into())).collect(),
            next: page.next.or(end).map_or(self.cursor, JobCursor::from),
            last: page.next.is_none(),
        }
    }

    /// What it meets of its list, of which so many were wanted.
    pub(crate) fn meets_listed(&self, found: Vec<(DeliveryId, JobCursor)>, wanted: u32) -> Met {
        let next = found.last().map_or(self.cursor, |(_, cursor)| *cursor);
        Met { last: found.len() < wanted as usize, found, next }
    }

    /// Whether a replay of what has ended meets this one, as far as it says itself: its event type is its
    /// message's. What was made or ended after it was asked for is another replay's.
    pub(crate) fn meets_ended(&self, filter: &DeadLetterFilter, dead: bool, ended: &Delivery) -> bool {
        // What expired may also be meant by what its last attempt met.
        let (at, last) = match ended.state {
            State::Expired { at } => (at, ended.last_cause),
            State::Dead { at, .. } if dead => (at, None),
            _ => return false,
        };
        ended.id.0 < self.id.0
            && at <= self.at
            && filter.endpoint.is_none_or(|endpoint| ended.endpoint == endpoint)
            && filter.cause.is_none_or(|asked| ended.state.cause() == Some(asked) || last == Some(asked))
            && filter.tier.is_none_or(|tier| tier == ended.tier)
            && filter.has_time(at)
    }

    /// How many of those a replay found are left; nothing where nobody counted them.
    pub fn left(&self) -> Option<Count> {
        let done = self.made + self.skipped.total();
        Some(match self.total? {
            Count::Exactly(total) => Count::Exactly(total.saturating_sub(done)),
            Count::AtLeast(total) => Count::AtLeast(total.saturating_sub(done)),
        })
    }

    /// When it will be done if it goes on like this: at the pace it may have, or else at the pace it has had so
    /// far. Nothing while it does not run or nobody can say.
    pub fn done_at(&self, now: Timestamp) -> Option<Timestamp> {
        let (Count::Exactly(left) | Count::AtLeast(left)) = self.left()?;
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

    fn job(per_second: Option<u32>) -> Job {
        let replay = NewReplay {
            total: Some(Count::Exactly(100)),
            per_second,
            ..NewReplay::new(
                JobId::from_raw(1),
                TenantId::from_raw(1),
                Timestamp::from_millis(0),
                ReplayWhat::Ended { filter: DeadLetterFilter::of(TenantId::from_raw(1)), dead: true },
            )
        };
        replay.job(0).expect("it is no list")
    }

    #[test]
    fn a_replay_with_a_pace_is_done_when_the_rest_has_gone_at_it() {
        let mut job = job(Some(10));
        let now = Timestamp::from_millis(1_000);
        assert_eq!(job.done_at(now), Some(Timestamp::from_millis(11_000)));
        (job.made, job.skipped) = (30, Skips::of(Skip::EndpointGone, 20));
        assert_eq!(job.left(), Some(Count::Exactly(50)));
        assert_eq!(job.done_at(now), Some(Timestamp::from_millis(6_000)));
        job.state = JobState::Paused;
        assert_eq!(job.done_at(now), None);
    }

    #[test]
    fn a_replay_without_a_pace_goes_on_as_it_has_so_far() {
        let mut job = job(None);
        let now = Timestamp::from_millis(1_000);
        assert_eq!(job.done_at(now), None);
        job.made = 25;
        assert_eq!(job.done_at(now), Some(Timestamp::from_millis(4_000)));
        job.made = 1_000;
        assert_eq!(job.done_at(now), Some(now));
    }
}
