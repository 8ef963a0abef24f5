//! Jobs: large fan-outs and replays, which make deliveries in chunks and go on after a restart.
//!
//! A job has a cursor. A chunk of deliveries and the cursor behind it are one transaction, guarded by
//! where the cursor stood: whoever tries the same chunk twice is told that it is stale.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::cause::Cause;
use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, JobId, MessageId, TenantId};
use posthaste_core::state::State;
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;

use super::dead_letter::{Count, DeadLetter, DeadLetterCursor, DeadLetterFilter, DeadLetterPage, ListOrder};
use super::{FirstAnswer, Message, NewDelivery};
use crate::StoreError;

/// Deliveries that one chunk makes at most.
pub const CHUNK_MAX: usize = 1_000;

/// Deliveries that one replay names at most; more are found by a filter.
pub const REPLAY_LISTED_MAX: usize = 1_000;

/// Work that makes deliveries, chunk by chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its id; a fan-out's is its message's.
    pub id: JobId,
    /// Whose.
    pub tenant: TenantId,
    /// When it was asked for.
    pub at: Timestamp,
    /// What it does.
    pub kind: JobKind,
    /// How far it is.
    pub state: JobState,
    /// Behind what it has dealt with.
    pub cursor: JobCursor,
    /// Deliveries it made.
    pub made: u64,
    /// What it passed over: no payload is kept, the endpoint takes no messages, somebody else replayed or
    /// purged it meanwhile, or it is quarantined.
    pub skipped: u64,
    /// How many a replay found when it was asked for.
    pub total: Option<Count>,
    /// Deliveries it may make in a second; as fast as it yields to others when `None`.
    pub per_second: Option<u32>,
}

/// What a job does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// Makes the deliveries of a message, one for each endpoint of its tenant that wants it.
    FanOut(FanOut),
    /// Gives what a filter finds another life.
    ReplayFound {
        /// Which dead letters.
        filter: DeadLetterFilter,
        /// The highest number it takes: what is filed later is another replay's.
        upto: u64,
    },
    /// Gives named deliveries another life.
    ReplayListed,
}

impl JobKind {
    /// Whether a replay may give this another life. What is quarantined stays so, unless somebody asks for
    /// just that: nobody knows who scheduled it.
    pub(crate) fn replays(&self, ended: &Delivery) -> bool {
        let State::Dead { cause: Cause::TokenRejected, .. } = ended.state else { return true };
        matches!(self, Self::ReplayFound { filter, .. } if filter.cause == Some(Cause::TokenRejected))
    }
}

/// A message that goes to more endpoints than an accept makes deliveries for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FanOut {
    /// The message.
    pub message: MessageId,
    /// How urgent it is.
    pub tier: Tier,
    /// Not before this.
    pub deliver_at: Option<Timestamp>,
    /// How long it is worth sending; an endpoint's own TTL stands in where it has none.
    pub ttl: Option<Duration>,
}

impl FanOut {
    /// The job that carries it out.
    pub(crate) fn job(self, message: &Message) -> Job {
        Job {
            id: JobId(message.id.0),
            tenant: message.tenant,
            at: message.at,
            kind: JobKind::FanOut(self),
            state: JobState::Running,
            cursor: JobCursor::START,
            made: 0,
            skipped: 0,
            total: None,
            per_second: None,
        }
    }
}

impl Job {
    /// Whether this chunk is made from where the job stands.
    pub(crate) fn takes(&self, chunk: &Chunk) -> bool {
        self.state == JobState::Running && self.cursor == chunk.from
    }

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
}

/// What a replay meets next, whether or not it can have another life.
pub(crate) struct Met {
    /// Each with the place behind it.
    pub(crate) found: Vec<(DeliveryId, JobCursor)>,
    pub(crate) next: JobCursor,
    pub(crate) last: bool,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It goes on.
    Running,
    /// It waits for somebody's word.
    Paused,
    /// It has dealt with everything. An end.
    Done,
    /// It makes nothing more; what it made stays. An end.
    Cancelled,
}

impl JobState {
    /// Whether somebody may change it into this.
    pub fn may_become(self, next: Self) -> bool {
        let has_ended = matches!(self, Self::Done | Self::Cancelled);
        !has_ended && self != next && next != Self::Done
    }
}

/// Where a job is: for a fan-out behind an endpoint, for a replay behind a dead letter or behind a
/// place in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobCursor {
    /// When that dead letter ended; nothing otherwise.
    pub at: Timestamp,
    /// Its number, the endpoint's id, or the place.
    pub number: u64,
}

impl JobCursor {
    /// Before everything.
    pub const START: Self = Self { at: Timestamp::from_millis(i64::MIN), number: 0 };

    /// Behind an endpoint or a place.
    pub const fn behind(number: u64) -> Self {
        Self { at: Timestamp::from_millis(0), number }
    }

    /// The dead letter it is behind, in a replay of what was found.
    pub(crate) fn letter(self) -> Option<DeadLetterCursor> {
        (self != Self::START).then_some(DeadLetterCursor { at: self.at, number: self.number })
    }
}

impl From<DeadLetterCursor> for JobCursor {
    fn from(cursor: DeadLetterCursor) -> Self {
        Self { at: cursor.at, number: cursor.number }
    }
}

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
    /// Deliveries it may make in a second.
    pub per_second: Option<u32>,
}

impl NewReplay {
    /// The dead letters it takes: its own tenant's alone, whatever the filter says.
    pub(crate) fn filter(&self, filter: &DeadLetterFilter) -> DeadLetterFilter {
        DeadLetterFilter { tenant: self.tenant, ..filter.clone() }
    }

    /// The job for the dead letters on this page and behind it, as far as they are filed by now.
    pub(crate) fn of_found(&self, filter: DeadLetterFilter, upto: u64, page: &DeadLetterPage) -> Job {
        let open = page.letters.iter().filter(|letter| letter.replayed_as.is_none()).count() as u64;
        let total = if page.next.is_some() { Count::AtLeast(open) } else { Count::Exactly(open) };
        self.job(JobKind::ReplayFound { filter, upto }, total)
    }

    /// The job for a list, unless that is too long.
    pub(crate) fn of_listed(&self, ids: &[DeliveryId]) -> Result<Job, StoreError> {
        if ids.len() > REPLAY_LISTED_MAX {
            return Err(StoreError::TooMany { what: "deliveries", limit: REPLAY_LISTED_MAX });
        }
        Ok(self.job(JobKind::ReplayListed, Count::Exactly(ids.len() as u64)))
    }

    fn job(&self, kind: JobKind, total: Count) -> Job {
        Job {
            id: self.id,
            tenant: self.tenant,
            at: self.at,
            kind,
            state: JobState::Running,
            cursor: JobCursor::START,
            made: 0,
            skipped: 0,
            total: Some(total),
            per_second: self.per_second,
        }
    }
}

/// What became of a replay that was asked for under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It has begun.
    Now(Job),
    /// It had begun before, under the same key: this was the answer.
    Before(FirstAnswer),
    /// The key stands for another request: nothing was begun.
    KeyReused,
}

/// What a replay takes.
#[derive(Clone, Debug)]
pub enum ReplayWhat {
    /// The dead letters that match and are filed by now.
    Found(DeadLetterFilter),
    /// These deliveries, as far as they are dead or expired; at most [`REPLAY_LISTED_MAX`].
    Listed(Vec<DeliveryId>),
}

/// Which jobs to list, by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobQuery {
    /// Those that go on, of everybody.
    Running,
    /// A tenant's, whatever became of them.
    Of(TenantId),
    /// A tenant's replays, whatever became of them.
    Replays(TenantId, ListOrder),
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

/// Something to replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayItem {
    /// As it ended; `None` when it can have no other life: no payload is kept, it was replayed before, it
    /// is neither dead nor expired, or it is quarantined and nobody asked for just that.
    pub ended: Option<Delivery>,
    /// Behind it.
    pub cursor: JobCursor,
}

/// A chunk of deliveries to make.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// Of which job.
    pub job: JobId,
    /// When it is made.
    pub at: Timestamp,
    /// Where the job's cursor stands for whoever made the chunk.
    pub from: JobCursor,
    /// Where it stands afterwards.
    pub to: JobCursor,
    /// The deliveries, by id; at most [`CHUNK_MAX`].
    pub deliveries: Vec<Spread>,
    /// What was passed over on the way.
    pub skipped: u64,
    /// Whether the job is done with it.
    pub last: bool,
}

/// A delivery of a chunk.
#[derive(Clone, Debug)]
pub struct Spread {
    /// The delivery.
    pub new: NewDelivery,
    /// What it carries.
    pub message: Arc<Message>,
    /// Whose next life it is, in a replay.
    pub replays: Option<DeliveryId>,
}

/// Whether a chunk took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunked {
    /// It did, and made this many deliveries.
    Done(u64),
    /// It did not: the job is elsewhere, or does not run any more.
    Stale,
}
