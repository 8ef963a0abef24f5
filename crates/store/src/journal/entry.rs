//! An entry of the journal: one change, with its time.
//!
//! `wire` packs and unpacks entries, and names and numbers their kinds. The numbers are stored on users' disks: a new kind
//! gets the next one, and no number is ever changed or removed.

mod wire;

use posthaste_core::scheduler::{BreakerOf, Reset};
use posthaste_core::{
    Cause, Cut, CutScope, Delivery, DeliveryId, EndpointId, JobId, Key, LaneId, MessageId, State, TenantId, Tier,
    Timestamp,
};
use posthaste_crypto::digest::Digest;
use posthaste_crypto::master::MasterKeyId;

pub use wire::EntryKind;

use super::{Hidden, MessageMarks};
use crate::number;
use crate::row::{
    Accepted, ApiKeyRef, AttemptRecord, AuditStamp, ChangeKind, DeliveryJob, Document, DocumentKind, Endpoint,
    EndpointStatus, JobKind, JobState, Pause, PauseScope, RetentionOverride, RetentionPhase, SecretAct, Settlement,
};

/// A change. `at` is its time. `by` is the API key that asked for it, where that is known; `None` if the server made the
/// change by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalEntry {
    /// A session began. Ids minted under its writer from here on belong to it.
    Opened { session: u64, at: Timestamp },
    /// A message became durable, with the deliveries whose ids follow its own. `digest` is the keyed fingerprint of its
    /// payload.
    Accepted {
        message: MessageId,
        tenant: TenantId,
        at: Timestamp,
        digest: Digest,
        subject: Option<Hidden>,
        correlation: Option<Hidden>,
        deliveries: Vec<(EndpointId, LaneId, Tier)>,
    },
    /// An attempt was made and did not end its delivery.
    Attempted { delivery: DeliveryId, endpoint: EndpointId, attempt: AttemptRecord },
    /// An attempt whose delivery had already ended or changed: recorded, but without effect.
    Late { delivery: DeliveryId, endpoint: EndpointId, attempt: AttemptRecord },
    /// A delivery ended. `state` has the time and cause of the end, `attempt` is the attempt that led to it, if one did.
    Ended {
        delivery: DeliveryId,
        message: MessageId,
        endpoint: EndpointId,
        lane: LaneId,
        tier: Tier,
        state: State,
        attempts: u16,
        attempt: Option<AttemptRecord>,
    },
    /// A message was cancelled, or all pending deliveries of an endpoint were ended. `upto` is the highest id covered. A
    /// cut without an API key was made by the dispatch loop.
    Cut { scope: CutScope, upto: Key, cause: Cause, at: Timestamp, by: Option<ApiKeyRef> },
    /// A cut was removed: all its rows are swept.
    Uncut { scope: CutScope, at: Timestamp },
    /// A pause began. `until` is when it ends by itself; `None` if it lasts until it is resumed.
    Paused { scope: PauseScope, until: Option<Timestamp>, at: Timestamp, by: Option<ApiKeyRef> },
    /// A pause was ended.
    Resumed { scope: PauseScope, at: Timestamp, by: Option<ApiKeyRef> },
    /// A caller asked for a delivery to be retried now.
    Hurried { delivery: DeliveryId, message: MessageId, endpoint: EndpointId, at: Timestamp, by: Option<ApiKeyRef> },
    /// An operator reset the breaker of a lane or gate.
    Reset { of: BreakerOf, how: Reset, at: Timestamp, by: Option<ApiKeyRef> },
    /// An endpoint was made, changed or deleted.
    Endpoint {
        endpoint: EndpointId,
        tenant: TenantId,
        deed: ChangeKind,
        status: EndpointStatus,
        at: Timestamp,
        by: Option<ApiKeyRef>,
    },
    /// A caller was shown an endpoint's secrets, or rotated them.
    Secret { endpoint: EndpointId, tenant: TenantId, act: SecretAct, at: Timestamp, by: Option<ApiKeyRef> },
    /// A job made deliveries.
    Spread { job: JobId, tenant: TenantId, at: Timestamp, deliveries: Vec<SpreadDelivery> },
    /// A replay began, or a job was paused, resumed, cancelled or done. `replay` is when a replay was asked for, which is
    /// part of its public id; `None` for a fan-out, which has the id of its message.
    Job {
        job: JobId,
        tenant: TenantId,
        state: JobState,
        replay: Option<Timestamp>,
        at: Timestamp,
        by: Option<ApiKeyRef>,
    },
    /// Dead letters with numbers up to `upto` were purged.
    Purged { tenant: TenantId, upto: u64, at: Timestamp, by: Option<ApiKeyRef> },
    /// Retention deleted expired rows.
    Retained {
        /// The phase of the retention run, which is the kind of row deleted.
        phase: RetentionPhase,
        /// The highest key among the deleted rows: rows up to this one may be missing.
        upto: u64,
        /// The number of rows deleted.
        removed: u64,
        /// The retention limit: rows that ended, were made or happened no later than this were deleted.
        before: Timestamp,
        at: Timestamp,
        /// The tenant that owns the rows, if they were deleted under its retention override.
        tenant: Option<TenantId>,
    },
    /// A tenant's retention override changed.
    Agreed { tenant: TenantId, own: RetentionOverride, at: Timestamp },
    /// A tenant, an API key or a policy was made, changed or removed. `tenant` owns it, or it is
    /// [`OPERATOR`](crate::OPERATOR)'s; `made` is when it was made, which is part of its public id.
    Document {
        kind: DocumentKind,
        id: Key,
        tenant: TenantId,
        made: Timestamp,
        deed: ChangeKind,
        at: Timestamp,
        by: Option<ApiKeyRef>,
    },
    /// A tenant or one of its subjects was erased: values sealed for it cannot be opened any more, and its outcomes are
    /// removed.
    Erased { tenant: TenantId, whom: ErasedTarget, at: Timestamp, by: Option<ApiKeyRef> },
    /// The erasure that row `announced` announced is complete: nothing of the subject or tenant is left. `deliveries`
    /// counts those removed, pending and ended.
    ErasureDone { announced: u64, messages: u64, deliveries: u64, at: Timestamp },
    /// A caller exported the data held about a subject, hidden as its messages have it in the journal; `None` if the store
    /// did not know the subject.
    Exported { tenant: TenantId, subject: Option<Hidden>, at: Timestamp, by: Option<ApiKeyRef> },
    /// A rotation began: from now on keys are wrapped by a newer master key.
    RotationBegun { to: MasterKeyId, at: Timestamp, by: Option<ApiKeyRef> },
    /// A rotation ended: no master key older than this one wraps anything.
    RotationEnded { to: MasterKeyId, rewrapped: u64, at: Timestamp },
}

/// What an erasure covers, as the journal records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErasedTarget {
    /// A whole tenant, with everything it had up to this row.
    Tenant,
    /// A subject, hidden as in the entries of its messages; `None` if the store did not know the subject.
    Subject(Option<Hidden>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpreadDelivery {
    pub delivery: DeliveryId,
    pub message: MessageId,
    pub queue: (EndpointId, LaneId, Tier),
}

const fn queue_of(delivery: &Delivery) -> (EndpointId, LaneId, Tier) {
    (delivery.endpoint, delivery.lane, delivery.tier)
}

impl JournalEntry {
    pub fn accepted(accepted: &Accepted, marks: &MessageMarks) -> Self {
        let message = &accepted.message;
        Self::Accepted {
            message: message.id,
            tenant: message.tenant,
            at: message.at,
            digest: marks.payload,
            subject: marks.subject,
            correlation: marks.correlation,
            deliveries: accepted.deliveries.iter().map(|new| queue_of(&new.delivery)).collect(),
        }
    }

    /// The entry that a settlement writes when it is applied; `None` if it only moves a row.
    pub fn settled(settlement: &Settlement) -> Option<Self> {
        let delivery = &settlement.record.delivery;
        match settlement.attempt {
            attempt if delivery.state.is_terminal() => Some(Self::ended(delivery, attempt)),
            Some(attempt) => Some(Self::Attempted { delivery: delivery.id, endpoint: delivery.endpoint, attempt }),
            None => None,
        }
    }

    /// The entry that a stale settlement writes; `None` if it has no attempt.
    pub fn late(settlement: &Settlement) -> Option<Self> {
        let delivery = &settlement.record.delivery;
        settlement.attempt.map(|attempt| Self::Late { delivery: delivery.id, endpoint: delivery.endpoint, attempt })
    }

    pub fn ended(delivery: &Delivery, attempt: Option<AttemptRecord>) -> Self {
        Self::Ended {
            delivery: delivery.id,
            message: delivery.message,
            endpoint: delivery.endpoint,
            lane: delivery.lane,
            tier: delivery.tier,
            state: delivery.state,
            attempts: delivery.attempts,
            attempt,
        }
    }

    pub fn cut(cut: &Cut, by: Option<ApiKeyRef>) -> Self {
        Self::Cut { scope: cut.scope, upto: cut.upto, cause: cut.cause, at: cut.at, by }
    }

    pub fn paused(pause: &Pause, at: Timestamp) -> Self {
        Self::Paused { scope: pause.scope, until: pause.until, at, by: pause.by }
    }

    /// The entry of the pause of a strict lane whose delivery ended as dead, if the lane must then be held.
    pub fn paused_by_end(settlement: &Settlement) -> Self {
        let Delivery { lane, state, .. } = &settlement.record.delivery;
        let at = number::split(state).1.or(settlement.attempt.map(|attempt| attempt.at)).unwrap_or_default();
        Self::Paused { scope: PauseScope::Lane(*lane), until: None, at, by: None }
    }

    /// The entry of an endpoint that was made, changed or deleted.
    pub fn endpoint(endpoint: &Endpoint, AuditStamp { at, by }: AuditStamp) -> Self {
        let Endpoint { id, tenant, status, .. } = *endpoint;
        let deed = match (status, endpoint.version) {
            (EndpointStatus::Deleted, _) => ChangeKind::Removed,
            (_, 0) => ChangeKind::Made,
            _ => ChangeKind::Changed,
        };
        Self::Endpoint { endpoint: id, tenant, deed, status, at, by }
    }

    pub fn turned(
        endpoint: EndpointId,
        tenant: TenantId,
        status: EndpointStatus,
        AuditStamp { at, by }: AuditStamp,
    ) -> Self {
        let deed = if status == EndpointStatus::Deleted { ChangeKind::Removed } else { ChangeKind::Changed };
        Self::Endpoint { endpoint, tenant, deed, status, at, by }
    }

    /// The entry of an endpoint's secrets being shown or rotated.
    pub fn secret(endpoint: EndpointId, tenant: TenantId, act: SecretAct, done: AuditStamp) -> Self {
        Self::Secret { endpoint, tenant, act, at: done.at, by: done.by }
    }

    pub fn document(document: &Document, deed: ChangeKind, AuditStamp { at, by }: AuditStamp) -> Self {
        let Document { kind, id, tenant, at: made, .. } = *document;
        Self::Document { kind, id, tenant, made, deed, at, by }
    }

    /// The entry of a job that changed to `state`.
    pub fn job(job: &DeliveryJob, state: JobState, AuditStamp { at, by }: AuditStamp) -> Self {
        let replay = if matches!(job.kind, JobKind::FanOut(_)) { None } else { Some(job.at) };
        Self::Job { job: job.id, tenant: job.tenant, state, replay, at, by }
    }

    /// The entry of a delivery that a caller asked to retry now.
    pub const fn hurried(delivery: &Delivery, AuditStamp { at, by }: AuditStamp) -> Self {
        Self::Hurried { delivery: delivery.id, message: delivery.message, endpoint: delivery.endpoint, at, by }
    }

    pub fn spread<'d>(
        job: JobId,
        tenant: TenantId,
        at: Timestamp,
        deliveries: impl Iterator<Item = &'d Delivery>,
    ) -> Self {
        let each = deliveries.map(|delivery| SpreadDelivery {
            delivery: delivery.id,
            message: delivery.message,
            queue: queue_of(delivery),
        });
        Self::Spread { job, tenant, at, deliveries: each.collect() }
    }

    /// How much derived data follows from the entry: the number of deliveries it made, at least 1.
    pub fn weight(&self) -> usize {
        match self {
            Self::Accepted { deliveries, .. } => deliveries.len().max(1),
            Self::Spread { deliveries, .. } => deliveries.len().max(1),
            _ => 1,
        }
    }

    pub fn at(&self) -> Timestamp {
        match self {
            Self::Opened { at, .. }
            | Self::Accepted { at, .. }
            | Self::Cut { at, .. }
            | Self::Uncut { at, .. }
            | Self::Paused { at, .. }
            | Self::Resumed { at, .. }
            | Self::Hurried { at, .. }
            | Self::Reset { at, .. }
            | Self::Endpoint { at, .. }
            | Self::Secret { at, .. }
            | Self::Spread { at, .. }
            | Self::Job { at, .. }
            | Self::Purged { at, .. }
            | Self::Retained { at, .. }
            | Self::Agreed { at, .. }
            | Self::Document { at, .. }
            | Self::Erased { at, .. }
            | Self::ErasureDone { at, .. }
            | Self::Exported { at, .. }
            | Self::RotationBegun { at, .. }
            | Self::RotationEnded { at, .. } => *at,
            Self::Attempted { attempt, .. } | Self::Late { attempt, .. } => attempt.at,
            // `state` is always terminal here, and every terminal state has a time.
            Self::Ended { state, .. } => number::split(state).1.unwrap_or_default(),
        }
    }

    /// The API key that caused the change, where the entry has one.
    pub fn by(&self) -> Option<ApiKeyRef> {
        match self {
            Self::Cut { by, .. }
            | Self::Paused { by, .. }
            | Self::Resumed { by, .. }
            | Self::Hurried { by, .. }
            | Self::Reset { by, .. }
            | Self::Endpoint { by, .. }
            | Self::Secret { by, .. }
            | Self::Job { by, .. }
            | Self::Purged { by, .. }
            | Self::Document { by, .. }
            | Self::Erased { by, .. }
            | Self::Exported { by, .. }
            | Self::RotationBegun { by, .. } => *by,
            Self::Opened { .. }
            | Self::Accepted { .. }
            | Self::Attempted { .. }
            | Self::Late { .. }
            | Self::Ended { .. }
            | Self::Uncut { .. }
            | Self::Spread { .. }
            | Self::Retained { .. }
            | Self::Agreed { .. }
            | Self::ErasureDone { .. }
            | Self::RotationEnded { .. } => None,
        }
    }
}
