//! Jobs: large fan-outs and replays, which make deliveries in chunks and resume after a restart.
//!
//! A job has a cursor. A chunk of deliveries and the new cursor are written in one transaction, which checks that the
//! cursor has not moved since the chunk was built. A chunk that is submitted twice is stale the second time.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{DeliveryId, JobId, MessageId, TenantId, Tier, Timestamp};

use super::dead_letter::{BoundedCount, DeadLetterCursor, DeadLetterFilter, ListOrder};
use super::replay::{Missing, Skips};
use super::{FirstAnswer, Message, NewDelivery};

/// Work that makes deliveries, chunk by chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryJob {
    /// The job's id; a fan-out has the id of its message.
    pub id: JobId,
    pub tenant: TenantId,
    pub at: Timestamp,
    /// The kind of job, with its parameters.
    pub kind: JobKind,
    /// Whether it runs, is paused, or has ended.
    pub state: JobState,
    /// The position after the last item processed.
    pub cursor: JobCursor,
    pub made: u64,
    /// The number of items skipped, by reason.
    pub skipped: Skips,
    /// For a replay, how many items matched when it was asked for, where they were counted.
    pub total: Option<BoundedCount>,
    /// Maximum number of deliveries made per second; `None` for no limit other than yielding to other work.
    pub per_second: Option<u32>,
    pub reason: Option<String>,
}

/// The kind of a job, with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// Makes the deliveries of a message, one for each endpoint of its tenant that wants it.
    FanOut(FanOut),
    /// Replays the dead letters that match a filter, up to this number; those filed later are not part of the job.
    ReplayFound { filter: DeadLetterFilter, upto: u64 },
    /// Replays the deliveries of a stored list.
    ReplayListed,
    /// Replays the expired deliveries that match a filter; with `dead`, dead ones too.
    ReplayEnded { filter: DeadLetterFilter, dead: bool },
    /// Makes deliveries for messages that an endpoint is missing.
    ReplayMissing(Missing),
}

/// A message that goes to more endpoints than an accept makes deliveries for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FanOut {
    pub message: MessageId,
    pub tier: Tier,
    /// Its deliveries are not sent before this time.
    pub deliver_at: Option<Timestamp>,
    /// How long it is worth sending; `None` uses each endpoint's own TTL.
    pub ttl: Option<Duration>,
}

impl FanOut {
    pub(crate) fn job(self, message: &Message) -> DeliveryJob {
        DeliveryJob::new(JobId(message.id.0), message.tenant, message.at, JobKind::FanOut(self))
    }
}

impl DeliveryJob {
    /// A job that has made nothing yet, without a rate limit or a reason.
    pub(crate) fn new(id: JobId, tenant: TenantId, at: Timestamp, kind: JobKind) -> Self {
        Self {
            id,
            tenant,
            at,
            kind,
            state: JobState::Running,
            cursor: JobCursor::START,
            made: 0,
            skipped: Skips::default(),
            total: None,
            per_second: None,
            reason: None,
        }
    }

    /// Whether the job runs and this chunk was built from its current cursor.
    pub(crate) fn takes(&self, chunk: &Chunk) -> bool {
        self.state == JobState::Running && self.cursor == chunk.from
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    Running,
    /// It makes none until an operator or tenant resumes it.
    Paused,
    /// It has processed everything. Final.
    Done,
    /// It makes no more deliveries; those already made stay. Final.
    Cancelled,
}

impl JobState {
    /// Whether a caller may change the state to `next`.
    pub fn may_become(self, next: Self) -> bool {
        let has_ended = matches!(self, Self::Done | Self::Cancelled);
        !has_ended && self != next && next != Self::Done
    }
}

/// A job's position: directly after an endpoint (fan-out), or after a dead letter, a list index, an ended delivery or a
/// message (replay).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobCursor {
    /// For a dead letter, when its delivery ended; otherwise unused.
    pub at: Timestamp,
    /// The dead letter's number, the list index, or the id.
    pub number: u64,
}

impl JobCursor {
    pub const START: Self = Self { at: Timestamp::from_millis(i64::MIN), number: 0 };

    /// Directly after an id or a list index.
    pub const fn behind(number: u64) -> Self {
        Self { at: Timestamp::from_millis(0), number }
    }

    /// The position as a cursor into the list of dead letters; `None` at the start.
    pub(crate) fn letter(self) -> Option<DeadLetterCursor> {
        (self != Self::START).then_some(DeadLetterCursor { at: self.at, number: self.number })
    }
}

impl From<DeadLetterCursor> for JobCursor {
    fn from(cursor: DeadLetterCursor) -> Self {
        Self { at: cursor.at, number: cursor.number }
    }
}

/// The result of starting a replay under an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    Now(Box<DeliveryJob>),
    /// The replay was started before under the same key; this was the answer.
    Before(FirstAnswer),
    /// The key was used for another request: nothing was started.
    KeyReused,
}

/// Selects jobs to list, by id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobQuery {
    /// Running jobs of all tenants.
    Running,
    /// Running fan-outs of all tenants.
    FanOuts,
    ReplaysOf(TenantId),
    /// Replays of a tenant in any state.
    Replays(TenantId, ListOrder),
    /// Replays of all tenants in any state.
    EveryReplay(ListOrder),
}

#[derive(Clone, Debug)]
pub struct Chunk {
    pub job: JobId,
    pub at: Timestamp,
    /// The position of the job's cursor when the chunk was built.
    pub from: JobCursor,
    /// The position of the job's cursor after the chunk.
    pub to: JobCursor,
    /// The deliveries, by id.
    pub deliveries: Vec<ChunkDelivery>,
    /// Items between `from` and `to` that were skipped.
    pub skipped: Skips,
    pub last: bool,
}

#[derive(Clone, Debug)]
pub struct ChunkDelivery {
    pub new: NewDelivery,
    pub message: Arc<Message>,
    /// In a replay, the ended delivery that this one replays.
    pub replays: Option<DeliveryId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunked {
    /// It was applied and made this many deliveries.
    Done(u64),
    /// It was not applied: the job's cursor has moved, or the job no longer runs.
    Stale,
}
