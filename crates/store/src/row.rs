//! What is kept, as plain records.

pub(crate) mod collapse;
mod dead_letter;
mod document;
mod endpoint;
mod endpoint_selector;
mod erasure;
pub mod idempotency;
mod job;
mod list;
mod replay;
pub mod retention;
mod sweep;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::cause::Cause;
use posthaste_core::cut::{Cut, EndpointChange};
use posthaste_core::delivery::Delivery;
use posthaste_core::fanout::Audience;
use posthaste_core::id::{DeliveryId, Key, LaneId, MessageId, OriginId, TenantId, WriterId};
use posthaste_core::queue::{LaneSettings, Order, Place, Record, SoftBreaker, Span};
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;

pub use collapse::CollapseKey;
pub use dead_letter::{
    Count, DEAD_LETTERS_LOOKED_MAX, DEAD_LETTERS_SWEPT_MAX, DeadLetter, DeadLetterCursor, DeadLetterFilter,
    DeadLetterPage, ListOrder, PURGES_MAX, Swept,
};
pub(crate) use dead_letter::{Purge, Walk};
pub use document::{Document, DocumentKind, Filed, OPERATOR};
pub use endpoint::{
    DisabledBy, Endpoint, EndpointPut, EndpointRate, EndpointStatus, EndpointTarget, EndpointTls, SecretAct,
    SigningSecret, WebhookTarget,
};
pub use endpoint_selector::{EndpointSelector, MatchedEndpoints};
pub use erasure::{Erase, Erasure, ErasureStep, ExportAsked, Whom};
pub use idempotency::{Acceptance, FirstAnswer, Idempotency, KeyHash};
pub use job::{Begun, Chunk, Chunked, FanOut, Job, JobCursor, JobKind, JobQuery, JobState, Spread};
pub use list::{
    Counted, HISTORY_LOOKED_MAX, HistoryFilter, HistoryOf, HistoryPage, Hour, LISTED_LOOKED_MAX, ListedMessage,
    MessageFilter, MessagePage, Name, NamedPage, Pending, Tally, Waiting,
};
pub(crate) use replay::Known;
pub use replay::{
    Lives, MadeBy, Missing, NewReplay, REPLAY_LISTED_MAX, ReplayItem, ReplayPage, ReplayWhat, Replayable, Skip, Skips,
};
pub use retention::{Agreed, OwnRetention, RETENTION_STEP_MAX, Retained, Retention, RetentionPhase, RetentionStep};
pub use sweep::{SWEEP_ENDS_MAX, SWEEP_LOOKS_MAX, Sweep, SweptRows};

/// Who may write: the writer keys are minted under, and the epoch its shards are held at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// The session's number, higher than every one before it.
    pub id: u64,
    /// Mints keys; never used by another session.
    pub writer: WriterId,
    /// At which it holds its shards. On one node all shards share it.
    pub epoch: u64,
}

/// What a session finds when it begins.
#[derive(Clone, Debug)]
pub struct Start {
    /// The session.
    pub session: Session,
    /// Cuts whose rows are not all swept.
    pub cuts: Vec<Cut>,
    /// Pauses in force.
    pub pauses: Vec<Pause>,
    /// Queues with rows behind the window.
    pub spilled: Vec<(LaneId, Tier)>,
    /// Breakers that were not closed, as they were remembered last; lanes first, then by id.
    pub breakers: Vec<SoftBreaker>,
}

/// What a producer sent, with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its id.
    pub id: MessageId,
    /// Whose.
    pub tenant: TenantId,
    /// When it was accepted.
    pub at: Timestamp,
    /// What happened.
    pub event_type: Option<String>,
    /// Whose data it is, for export and erasure.
    pub subject: Option<String>,
    /// The caller's; without one the message's own public id takes its place (A4).
    pub correlation_id: Option<String>,
    /// The payload, byte for byte.
    pub body: Bytes,
    /// A smaller variant for receivers that refuse the payload's size.
    pub compact: Option<Bytes>,
    /// How urgent it is.
    pub tier: Tier,
    /// What else its producer said of it.
    pub details: Option<Box<Details>>,
}

/// What a producer may say of a message: carried along and shown, and for large fan-outs whom it is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// For compliance, by name.
    pub labels: Vec<(String, String)>,
    /// Where it belongs.
    pub region: Option<String>,
    /// Who pays for it.
    pub cost_center: Option<String>,
    /// Whom it is for.
    pub audience: Audience,
    /// Not before this.
    pub deliver_at: Option<Timestamp>,
    /// How long it is worth sending.
    pub ttl: Option<Duration>,
}

impl Message {
    /// One that says nothing of itself but its body.
    pub fn new(id: MessageId, tenant: TenantId, at: Timestamp, body: impl Into<Bytes>) -> Self {
        Self {
            id,
            tenant,
            at,
            event_type: None,
            subject: None,
            correlation_id: None,
            body: body.into(),
            compact: None,
            tier: Tier::default(),
            details: None,
        }
    }
}

/// A message to accept, with its deliveries.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// The message.
    pub message: Arc<Message>,
    /// Its deliveries: ids follow the message's.
    pub deliveries: Vec<NewDelivery>,
    /// The key it was sent with, if its producer gave one.
    pub idempotency: Option<Idempotency>,
    /// Whether its deliveries are made by a job instead, for want of room in one transaction.
    pub fan_out: Option<FanOut>,
}

impl Accepted {
    /// A message with these deliveries and no key.
    pub fn new(message: impl Into<Arc<Message>>, deliveries: Vec<NewDelivery>) -> Self {
        Self { message: message.into(), deliveries, idempotency: None, fan_out: None }
    }
}

/// A delivery to accept.
#[derive(Clone, Debug)]
pub struct NewDelivery {
    /// The delivery, queued.
    pub delivery: Delivery,
    /// Where its row goes.
    pub place: Place,
    /// Its lane's settings, carried along so that nobody has to look them up again.
    pub lane: Arc<LaneSettings>,
    /// Whose place it takes in its lane.
    pub collapse: Option<CollapseKey>,
}

impl NewDelivery {
    /// One that takes nobody's place.
    pub fn new(delivery: Delivery, place: Place, lane: Arc<LaneSettings>) -> Self {
        Self { delivery, place, lane, collapse: None }
    }
}

/// A delivery that became durable, on its way into the window.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The delivery.
    pub new: NewDelivery,
    /// What it carries.
    pub message: Arc<Message>,
    /// Those whose place it took: their rows have ended with its commit.
    pub superseded: Vec<DeliveryId>,
}

/// A pending delivery as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The delivery.
    pub delivery: Delivery,
    /// Where its row is.
    pub place: Place,
    /// Whether it may be sent.
    pub token: Token,
}

/// What a pending row's token says: whether the row is as the store wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// It is.
    Valid,
    /// It is, and was due long ago: what else is known of the delivery fits it.
    Renewed,
    /// It is not, or its delivery has ended or moved on since: it is never sent.
    Rejected,
}

/// Which pending rows to read. Delayed and spilled rows come in the order they would be sent in,
/// all others by id, which is the order they were accepted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// Ready rows of earlier sessions' writers, by id: what a crash left behind. A page looks at a
    /// bounded part of the table: it may be short or empty and have more behind it.
    Left {
        /// Only what comes after this one.
        after: Option<DeliveryId>,
        /// Only what was minted before this writer.
        before: WriterId,
    },
    /// Delayed rows by (due, id).
    Delayed {
        /// Only what comes after this one.
        after: Option<(Timestamp, DeliveryId)>,
        /// Only what is due until then.
        until: Timestamp,
    },
    /// Spilled rows of one queue: the first ones, in its order. A strict lane's are of all tiers.
    Spilled {
        /// Which lane.
        lane: LaneId,
        /// Which tier; a strict lane has one queue for all.
        tier: Tier,
        /// Lowest id first, or highest.
        order: Order,
        /// From which id to which.
        span: Span,
    },
    /// One row.
    One(DeliveryId),
}

/// Rows that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The rows.
    pub rows: Vec<Row>,
    /// Whether there may be more of the same.
    pub more: bool,
    /// For [`Query::Left`]: the next page goes on after this one; nothing when all were looked at.
    pub looked: Option<DeliveryId>,
    /// For [`Query::Delayed`]: when the first row beyond `until` is due.
    pub next_due: Option<Timestamp>,
}

/// What is kept of an answer: a receiver says in its first lines what it did not like.
pub const EXCERPT_BYTES_MAX: usize = 1_024;

/// What became of a delivery, to be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The change.
    pub record: Record,
    /// At which epoch the caller holds the delivery's shard.
    pub epoch: u64,
    /// The attempt that led to it, if one did.
    pub attempt: Option<Attempt>,
    /// How the receiver's answer to it begins, where that is worth keeping; at most [`EXCERPT_BYTES_MAX`].
    pub excerpt: Option<Bytes>,
}

impl Settlement {
    /// When its receiver asked for nothing more, if it did.
    pub(crate) fn asked_to_disable(&self) -> Option<Timestamp> {
        let disables = self.record.endpoint_change == Some(EndpointChange::Disabled);
        self.attempt.filter(|_| disables).map(|attempt| attempt.at)
    }
}

/// One attempt, as history keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Which, from 1.
    pub number: u16,
    /// When it ended.
    pub at: Timestamp,
    /// How long it took.
    pub took: Duration,
    /// What happened.
    pub cause: Cause,
    /// The answer's status, where there was one.
    pub status: Option<u16>,
}

/// Whether a settlement took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It did.
    Done,
    /// It did not: the delivery has ended, moved on, or belongs to somebody else. Its attempt is
    /// in the history all the same.
    Stale,
}

/// What somebody paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PauseScope {
    /// Everything.
    All,
    /// A tenant.
    Tenant(TenantId),
    /// A lane.
    Lane(LaneId),
    /// Every lane that sends there.
    Origin(OriginId),
}

/// A pause in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Of what.
    pub scope: PauseScope,
    /// Until when; `None` until somebody resumes it.
    pub until: Option<Timestamp>,
    /// The origin as it is written, where one is paused: its id is a hash.
    pub origin: Option<String>,
    /// Why, in the words of whoever paused it.
    pub reason: Option<String>,
    /// Who paused it, where that is known.
    pub by: Option<By>,
}

impl Pause {
    /// One that nobody has said anything about.
    pub const fn new(scope: PauseScope, until: Option<Timestamp>) -> Self {
        Self { scope, until, origin: None, reason: None, by: None }
    }
}

/// Who did something: the API key they showed. Its public id is made of both, also when the key is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct By {
    /// The key's id.
    pub key: Key,
    /// When it was made.
    pub made: Timestamp,
}

/// When something was done, and who did it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Act {
    /// When.
    pub at: Timestamp,
    /// Who; nobody where the server did it by itself, or asked nobody who they are.
    pub by: Option<By>,
}

impl Act {
    /// One that nobody in particular did.
    pub const fn at(at: Timestamp) -> Self {
        Self { at, by: None }
    }
}

/// What was done with something that people make, change and remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// It was made.
    Made,
    /// It was changed.
    Changed,
    /// It was removed.
    Removed,
}

/// A delivery as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The delivery; a cut or a TTL that is over shows at once.
    pub delivery: Delivery,
    /// Where its row is; `None` when it has ended.
    pub place: Option<Place>,
    /// Every attempt in the order they were made.
    pub attempts: Vec<Attempt>,
}
