//! Jobs: large fan-outs and replays, which make deliveries in chunks and go on after a restart.
//!
//! A job has a cursor. A chunk of deliveries and the cursor behind it are one transaction, guarded by
//! where the cursor stood: whoever tries the same chunk twice is told that it is stale.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::id::{DeliveryId, JobId, MessageId, TenantId};
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;

use super::dead_letter::{Count, DeadLetterCursor, DeadLetterFilter, ListOrder};
use super::idempotency::Before;
use super::replay::{Missing, Skips};
use super::{FirstAnswer, Message, NewDelivery};

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
    /// What it passed over, and why.
    pub skipped: Skips,
    /// How many a replay found when it was asked for.
    pub total: Option<Count>,
    /// Deliveries it may make in a second; as fast as it yields to others when `None`.
    pub per_second: Option<u32>,
    /// Why, in the words of whoever asked.
    pub reason: Option<String>,
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
    /// Gives what a filter finds among all that has ended another life.
    ReplayEnded {
        /// Which.
        filter: DeadLetterFilter,
        /// Whether dead letters are meant, and not only what has expired.
        dead: bool,
    },
    /// Makes the deliveries that an endpoint has none of.
    ReplayMissing(Missing),
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
            skipped: Skips::default(),
            total: None,
            per_second: None,
            reason: None,
        }
    }
}

impl Job {
    /// Whether this chunk is made from where the job stands.
    pub(crate) fn takes(&self, chunk: &Chunk) -> bool {
        self.state == JobState::Running && self.cursor == chunk.from
    }
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

/// Where a job is: for a fan-out behind an endpoint, for a replay behind a dead letter, a place in its list, a
/// delivery that has ended or a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobCursor {
    /// When that dead letter ended; nothing otherwise.
    pub at: Timestamp,
    /// Its number, the place, or the id.
    pub number: u64,
}

impl JobCursor {
    /// Before everything.
    pub const START: Self = Self { at: Timestamp::from_millis(i64::MIN), number: 0 };

    /// Behind an id or a place.
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

/// What became of a replay that was asked for under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It has begun.
    Now(Box<Job>),
    /// It had begun before, under the same key: this was the answer.
    Before(FirstAnswer),
    /// The key stands for another request: nothing was begun.
    KeyReused,
}

impl From<Before> for Begun {
    fn from(before: Before) -> Self {
        match before {
            Before::Same(answer) => Self::Before(answer),
            Before::Another => Self::KeyReused,
        }
    }
}

/// Which jobs to list, by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobQuery {
    /// Those that go on, of everybody.
    Running,
    /// The fan-outs among them.
    FanOuts,
    /// A tenant's replays among them.
    ReplaysOf(TenantId),
    /// A tenant's replays, whatever became of them.
    Replays(TenantId, ListOrder),
    /// Everybody's replays, whatever became of them.
    EveryReplay(ListOrder),
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
    /// The deliveries, by id.
    pub deliveries: Vec<Spread>,
    /// What was passed over on the way.
    pub skipped: Skips,
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
