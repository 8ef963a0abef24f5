//! The stored records, as plain data types.

pub(crate) mod collapse;
mod dead_letter;
mod document;
mod endpoint;
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
use posthaste_core::scheduler::{Order, SoftBreaker};
use posthaste_core::{
    Audience, Cause, Cut, Delivery, DeliveryChange, DeliveryId, EndpointChange, IdRange, Key, LaneId, LaneSettings,
    MessageId, OriginId, RowIndex, TenantId, Tier, Timestamp, WriterId,
};

pub use collapse::CollapseKey;
pub use dead_letter::*;
pub use document::*;
pub use endpoint::*;
pub use erasure::*;
pub use idempotency::{Acceptance, FirstAnswer, Idempotency, KeyHash};
pub use job::*;
pub use list::*;
pub use replay::*;
pub use retention::{
    RETENTION_STEP_MAX, Retained, Retention, RetentionOverride, RetentionOverrides, RetentionPhase, RetentionStep,
};
pub use sweep::*;

/// Identifies the process that may write to the store. A newer session fences all older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// The session's number, higher than that of every earlier session.
    pub id: u64,
    /// The writer id that new keys are minted under; no other session uses it.
    pub writer: WriterId,
    /// The epoch at which the session owns its shards. On one node all shards have the same epoch.
    pub epoch: u64,
}

/// The state a session finds when it begins.
#[derive(Clone, Debug)]
pub struct SessionStart {
    pub session: Session,
    /// Cuts whose rows are not all swept.
    pub cuts: Vec<Cut>,
    pub pauses: Vec<Pause>,
    pub spilled: Vec<(LaneId, Tier)>,
    /// Breakers that were not closed when last stored; lanes first, then by id.
    pub breakers: Vec<SoftBreaker>,
}

/// A message from a producer, with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub id: MessageId,
    pub tenant: TenantId,
    pub at: Timestamp,
    /// The event type, such as `order.paid`.
    pub event_type: Option<String>,
    /// The person or account the message is about, for export and erasure.
    pub subject: Option<String>,
    /// The producer's correlation id; without one the message's own public id is used (A4).
    pub correlation_id: Option<String>,
    /// The payload, byte for byte.
    pub body: Bytes,
    /// A smaller payload for receivers that reject the size of `body`.
    pub compact: Option<Bytes>,
    pub tier: Tier,
    pub details: Option<Box<Details>>,
}

/// Optional fields of a message. They are stored and shown; a large fan-out also uses the audience.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    pub labels: Vec<(String, String)>,
    pub region: Option<String>,
    pub cost_center: Option<String>,
    pub audience: Audience,
    /// Its deliveries are not sent before this time.
    pub deliver_at: Option<Timestamp>,
    /// How long it is worth sending, from its birth.
    pub ttl: Option<Duration>,
}

impl Message {
    /// A message with a payload and default values for everything else.
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
    pub message: Arc<Message>,
    /// Its deliveries; their ids directly follow the message's id.
    pub deliveries: Vec<NewDelivery>,
    /// The idempotency key, if the producer gave one.
    pub idempotency: Option<Idempotency>,
    /// Set if a job makes the deliveries, because they are too many for one transaction.
    pub fan_out: Option<FanOut>,
}

impl Accepted {
    /// A message with these deliveries and no idempotency key.
    pub fn new(message: impl Into<Arc<Message>>, deliveries: Vec<NewDelivery>) -> Self {
        Self { message: message.into(), deliveries, idempotency: None, fan_out: None }
    }
}

#[derive(Clone, Debug)]
pub struct NewDelivery {
    pub delivery: Delivery,
    pub place: RowIndex,
    /// The settings of its lane, included so that they need not be looked up again.
    pub lane: Arc<LaneSettings>,
    /// Waiting deliveries of its lane with the same key are superseded.
    pub collapse: Option<CollapseKey>,
}

impl NewDelivery {
    /// A delivery without a collapse key.
    pub fn new(delivery: Delivery, place: RowIndex, lane: Arc<LaneSettings>) -> Self {
        Self { delivery, place, lane, collapse: None }
    }
}

/// A delivery that became durable and is to enter the dispatch loop's window.
#[derive(Clone, Debug)]
pub struct ArrivedDelivery {
    pub new: NewDelivery,
    pub message: Arc<Message>,
    /// Deliveries it superseded: they ended in the same commit.
    pub superseded: Vec<DeliveryId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingRow {
    pub delivery: Delivery,
    pub place: RowIndex,
    /// Whether it may be sent.
    pub token: Token,
}

/// The result of verifying a pending row's retry token, which shows whether the store wrote the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    Valid,
    /// The token is valid but past its lifetime; the delivery's history is consistent with the row.
    Renewed,
    /// The token is invalid, or the delivery has ended or changed since. The delivery must not be sent.
    Rejected,
}

/// Selects pending rows. Delayed and spilled rows come in the order in which they would be sent, all others by id,
/// which is the order in which they were accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// Ready rows of earlier sessions' writers, those before `before`, by id after `after`: the rows a crash left behind.
    /// One page reads a bounded part of the table, so it may be short or empty although more rows follow.
    Left { after: Option<DeliveryId>, before: WriterId },
    /// Delayed rows after `after` that are due at `until` or earlier.
    Delayed { after: Option<(Timestamp, DeliveryId)>, until: Timestamp },
    /// The first spilled rows of one queue, in the queue's order: lowest id first, or highest. The tier is ignored for a
    /// strict lane, which has one queue for all tiers.
    Spilled { lane: LaneId, tier: Tier, order: Order, span: IdRange },
    /// This row.
    One(DeliveryId),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingPage {
    pub rows: Vec<PendingRow>,
    /// Whether there may be more rows that match.
    pub more: bool,
    /// For [`Query::Left`]: the id after which the next page begins; `None` if the whole table was read.
    pub looked: Option<DeliveryId>,
    /// For [`Query::Delayed`]: when the first row beyond `until` is due.
    pub next_due: Option<Timestamp>,
}

/// Maximum size of the stored beginning of a receiver's response. Error messages usually fit in it.
pub const EXCERPT_BYTES_MAX: usize = 1_024;

/// A delivery's new state, to be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    pub record: DeliveryChange,
    /// The epoch at which the caller owns the delivery's shard.
    pub epoch: u64,
    /// The attempt that led to the change, if one did.
    pub attempt: Option<AttemptRecord>,
    /// The beginning of the receiver's response, if it is worth storing; at most [`EXCERPT_BYTES_MAX`] bytes.
    pub excerpt: Option<Bytes>,
}

impl Settlement {
    /// The time of the attempt by whose response the receiver asked to be disabled, if it did.
    pub(crate) fn asked_to_disable(&self) -> Option<Timestamp> {
        let disables = self.record.endpoint_change == Some(EndpointChange::Disabled);
        self.attempt.filter(|_| disables).map(|attempt| attempt.at)
    }
}

/// One attempt, as stored in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    /// The attempt's number, from 1.
    pub number: u16,
    pub at: Timestamp,
    pub took: Duration,
    pub cause: Cause,
    /// The status of the response, if there was one.
    pub status: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    Done,
    /// It was not applied: the delivery has ended, has changed, or is owned by another session. Its attempt is
    /// recorded in the history all the same.
    Stale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PauseScope {
    All,
    Tenant(TenantId),
    Lane(LaneId),
    Origin(OriginId),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    pub scope: PauseScope,
    /// When the pause ends by itself; `None` if it lasts until it is resumed.
    pub until: Option<Timestamp>,
    /// The text of the origin, if one is paused: its id is only a hash.
    pub origin: Option<String>,
    pub reason: Option<String>,
    /// The API key that asked for the pause, where that is known.
    pub by: Option<ApiKeyRef>,
}

impl Pause {
    /// A pause without a reason or an API key.
    pub const fn new(scope: PauseScope, until: Option<Timestamp>) -> Self {
        Self { scope, until, origin: None, reason: None, by: None }
    }
}

/// The API key that made a change. Both fields form its public id, which is valid even after the key is revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiKeyRef {
    pub key: Key,
    pub made: Timestamp,
}

/// The time of a change, and the API key that made it: what the audit trail records of every change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditStamp {
    pub at: Timestamp,
    /// The API key; `None` if the server made the change by itself or does not ask for API keys.
    pub by: Option<ApiKeyRef>,
}

impl AuditStamp {
    /// A change without an API key.
    pub const fn at(at: Timestamp) -> Self {
        Self { at, by: None }
    }
}

/// The kind of a change to an endpoint or document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Made,
    Changed,
    Removed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryRecord {
    /// The delivery. If a cut covers it or its TTL is over, its state already says so, even before the sweep.
    pub delivery: Delivery,
    /// The place its row is stored under; `None` if the delivery has ended.
    pub place: Option<RowIndex>,
    /// All attempts, in the order in which they were made.
    pub attempts: Vec<AttemptRecord>,
}
