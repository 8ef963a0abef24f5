//! One thing that happened, as the journal keeps it.
//!
//! How it is packed is `wire`, what it is called is `kind`. The kinds' numbers are on people's disks: new ones go to the end, none ever moves or leaves.

mod kind;
mod wire;

use posthaste_core::cause::Cause;
use posthaste_core::cut::{Cut, Scope};
use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, EndpointId, JobId, Key, LaneId, MessageId, TenantId};
use posthaste_core::queue::{BreakerOf, Reset};
use posthaste_core::state::State;
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;
use posthaste_crypto::digest::Digest;
use posthaste_crypto::master::MasterKeyId;

pub use kind::Kind;

use super::{Hidden, Marks};
use crate::number;
use crate::row::{
    Accepted, Act, Attempt, By, Deed, Document, DocumentKind, Endpoint, EndpointStatus, Job, JobKind, JobState,
    OwnRetention, Pause, PauseScope, RetentionPhase, SecretAct, Settlement,
};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A session began: whatever is minted under this writer is its own.
    Opened {
        /// Its number.
        session: u64,
        /// When.
        at: Timestamp,
    },
    /// A message became durable, with the deliveries whose ids follow its own.
    Accepted {
        /// Which.
        message: MessageId,
        /// Whose.
        tenant: TenantId,
        /// When.
        at: Timestamp,
        /// The mark of its payload.
        digest: Digest,
        /// Whose data it is, hidden.
        subject: Option<Hidden>,
        /// What ties everything about it together, hidden.
        correlation: Option<Hidden>,
        /// Where each delivery goes, and its queue.
        deliveries: Vec<(EndpointId, LaneId, Tier)>,
    },
    /// An attempt was made and did not end its delivery.
    Attempted {
        /// Which delivery's.
        delivery: DeliveryId,
        /// Where to.
        endpoint: EndpointId,
        /// The attempt.
        attempt: Attempt,
    },
    /// An attempt whose delivery had ended or moved on: kept, and without effect.
    Late {
        /// Which delivery's.
        delivery: DeliveryId,
        /// Where to.
        endpoint: EndpointId,
        /// The attempt.
        attempt: Attempt,
    },
    /// A delivery ended.
    Ended {
        /// Which.
        delivery: DeliveryId,
        /// Of what.
        message: MessageId,
        /// Where to.
        endpoint: EndpointId,
        /// In which lane.
        lane: LaneId,
        /// In which tier.
        tier: Tier,
        /// How, and when.
        state: State,
        /// Attempts in all.
        attempts: u16,
        /// The attempt that led to it, if one did.
        attempt: Option<Attempt>,
    },
    /// A cut was put in force.
    Cut {
        /// What it ends.
        scope: Scope,
        /// The highest id it covers.
        upto: Key,
        /// Why.
        cause: Cause,
        /// When.
        at: Timestamp,
        /// Who wanted it, where somebody did.
        by: Option<By>,
    },
    /// A cut was forgotten: all its rows are swept.
    Uncut {
        /// What it ended.
        scope: Scope,
        /// When.
        at: Timestamp,
    },
    /// Somebody paused something.
    Paused {
        /// What.
        scope: PauseScope,
        /// Until when; `None` until it is resumed.
        until: Option<Timestamp>,
        /// When.
        at: Timestamp,
        /// Who.
        by: Option<By>,
    },
    /// A pause was ended.
    Resumed {
        /// Of what.
        scope: PauseScope,
        /// When.
        at: Timestamp,
        /// Who ended it.
        by: Option<By>,
    },
    /// Somebody asked for a delivery to be sent now.
    Hurried {
        /// Which.
        delivery: DeliveryId,
        /// Of what.
        message: MessageId,
        /// Where to.
        endpoint: EndpointId,
        /// When.
        at: Timestamp,
        /// Who.
        by: Option<By>,
    },
    /// An operator reset a breaker.
    Reset {
        /// Whose.
        of: BreakerOf,
        /// How.
        how: Reset,
        /// When.
        at: Timestamp,
        /// Who.
        by: Option<By>,
    },
    /// An endpoint was made, changed or deleted.
    Endpoint {
        /// Which.
        endpoint: EndpointId,
        /// Whose.
        tenant: TenantId,
        /// What was done.
        deed: Deed,
        /// Whether it takes messages.
        status: EndpointStatus,
        /// When.
        at: Timestamp,
        /// Who, where somebody did.
        by: Option<By>,
    },
    /// Somebody looked at an endpoint's secrets, or rotated them.
    Secret {
        /// Which endpoint's.
        endpoint: EndpointId,
        /// Whose.
        tenant: TenantId,
        /// What was done.
        act: SecretAct,
        /// When.
        at: Timestamp,
        /// Who.
        by: Option<By>,
    },
    /// A job made deliveries.
    Spread {
        /// Which job.
        job: JobId,
        /// Whose.
        tenant: TenantId,
        /// When.
        at: Timestamp,
        /// Each delivery.
        deliveries: Vec<SpreadDelivery>,
    },
    /// A replay began, or a job was paused, resumed, cancelled or done.
    Job {
        /// Which.
        job: JobId,
        /// Whose.
        tenant: TenantId,
        /// What it became.
        state: JobState,
        /// Of a replay, when it was asked for: a part of the id it is known by. None of a fan-out, whose id is its
        /// message's.
        replay: Option<Timestamp>,
        /// When.
        at: Timestamp,
        /// Who, where somebody did.
        by: Option<By>,
    },
    /// Somebody took dead letters back.
    Purged {
        /// Whose.
        tenant: TenantId,
        /// The highest number that is covered.
        upto: u64,
        /// When.
        at: Timestamp,
        /// Who.
        by: Option<By>,
    },
    /// What was kept for long enough was let go.
    Retained {
        /// Of which kind.
        phase: RetentionPhase,
        /// The highest key among them; what is missing up to here may be missing.
        upto: u64,
        /// How many.
        removed: u64,
        /// What ended, was made or happened no later than then.
        before: Timestamp,
        /// When.
        at: Timestamp,
        /// Whose, where that time was agreed with the tenant.
        tenant: Option<TenantId>,
    },
    /// From now on a tenant's things are kept for so long.
    Agreed {
        /// Whose.
        tenant: TenantId,
        /// How long.
        own: OwnRetention,
        /// When.
        at: Timestamp,
    },
    /// A tenant, an API key or a policy was made, changed or removed.
    Document {
        /// What it is.
        kind: DocumentKind,
        /// Which.
        id: Key,
        /// Whose.
        tenant: TenantId,
        /// When it was made: a part of the id it is known by.
        made: Timestamp,
        /// What was done.
        deed: Deed,
        /// When.
        at: Timestamp,
        /// Who, where somebody did.
        by: Option<By>,
    },
    /// Somebody was erased: what was sealed for them cannot be opened any more, and their outcomes go.
    Erased {
        /// Whose, or who.
        tenant: TenantId,
        /// Whom.
        whom: ErasedWhom,
        /// When.
        at: Timestamp,
        /// Who asked for it.
        by: Option<By>,
    },
    /// Nothing is left of somebody who was erased.
    ErasureDone {
        /// The row of the journal that announced it.
        announced: u64,
        /// Messages that are gone.
        messages: u64,
        /// Deliveries that are gone, pending and ended.
        deliveries: u64,
        /// When.
        at: Timestamp,
    },
    /// Somebody asked for all that is held about a subject.
    Exported {
        /// Whose.
        tenant: TenantId,
        /// The mark that the subject's messages have here; none where nobody knew it.
        subject: Option<Hidden>,
        /// When.
        at: Timestamp,
        /// Who asked.
        by: Option<By>,
    },
    /// Keys are wrapped by a newer master key from now on.
    RotationBegun {
        /// The newer.
        to: MasterKeyId,
        /// When.
        at: Timestamp,
        /// Who asked for it.
        by: Option<By>,
    },
    /// Nothing is wrapped by an older master key any more.
    RotationEnded {
        /// The newer.
        to: MasterKeyId,
        /// How many keys were wrapped anew.
        rewrapped: u64,
        /// When.
        at: Timestamp,
    },
}

/// Who was erased, as the journal can say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErasedWhom {
    /// A whole tenant: all that it had up to this row.
    Tenant,
    /// A subject, by the mark that its messages have here; none where nobody knew it.
    Subject(Option<Hidden>),
}

/// A delivery that a job made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpreadDelivery {
    /// Its id.
    pub delivery: DeliveryId,
    /// What it carries.
    pub message: MessageId,
    /// Where it goes, and its queue.
    pub queue: (EndpointId, LaneId, Tier),
}

const fn queue_of(delivery: &Delivery) -> (EndpointId, LaneId, Tier) {
    (delivery.endpoint, delivery.lane, delivery.tier)
}

impl Entry {
    /// A message with its deliveries.
    pub fn accepted(accepted: &Accepted, marks: &Marks) -> Self {
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

    /// What a settlement leaves if it takes effect: nothing where it only moves a row.
    pub fn settled(settlement: &Settlement) -> Option<Self> {
        let delivery = &settlement.record.delivery;
        match settlement.attempt {
            attempt if delivery.state.is_terminal() => Some(Self::ended(delivery, attempt)),
            Some(attempt) => Some(Self::Attempted { delivery: delivery.id, endpoint: delivery.endpoint, attempt }),
            None => None,
        }
    }

    /// What a settlement leaves that came too late.
    pub fn late(settlement: &Settlement) -> Option<Self> {
        let delivery = &settlement.record.delivery;
        settlement.attempt.map(|attempt| Self::Late { delivery: delivery.id, endpoint: delivery.endpoint, attempt })
    }

    /// A delivery's end.
    pub fn ended(delivery: &Delivery, attempt: Option<Attempt>) -> Self {
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

    /// A cut in force.
    pub fn cut(cut: &Cut, by: Option<By>) -> Self {
        Self::Cut { scope: cut.scope, upto: cut.upto, cause: cut.cause, at: cut.at, by }
    }

    /// A pause in force.
    pub fn paused(pause: &Pause, at: Timestamp) -> Self {
        Self::Paused { scope: pause.scope, until: pause.until, at, by: pause.by }
    }

    /// The pause of a lane whose delivery ended, and nothing behind it may go first.
    pub fn paused_by_end(settlement: &Settlement) -> Self {
        let Delivery { lane, state, .. } = &settlement.record.delivery;
        let at = number::split(state).1.or(settlement.attempt.map(|attempt| attempt.at)).unwrap_or_default();
        Self::Paused { scope: PauseScope::Lane(*lane), until: None, at, by: None }
    }

    /// An endpoint as it is now.
    pub fn endpoint(endpoint: &Endpoint, Act { at, by }: Act) -> Self {
        let Endpoint { id, tenant, status, .. } = *endpoint;
        let deed = match (status, endpoint.version) {
            (EndpointStatus::Deleted, _) => Deed::Removed,
            (_, 0) => Deed::Made,
            _ => Deed::Changed,
        };
        Self::Endpoint { endpoint: id, tenant, deed, status, at, by }
    }

    /// An endpoint that was given another status.
    pub fn turned(endpoint: EndpointId, tenant: TenantId, status: EndpointStatus, Act { at, by }: Act) -> Self {
        let deed = if status == EndpointStatus::Deleted { Deed::Removed } else { Deed::Changed };
        Self::Endpoint { endpoint, tenant, deed, status, at, by }
    }

    /// Something was done with an endpoint's secrets.
    pub fn secret(endpoint: EndpointId, tenant: TenantId, act: SecretAct, done: Act) -> Self {
        Self::Secret { endpoint, tenant, act, at: done.at, by: done.by }
    }

    /// A document that was made, changed or removed.
    pub fn document(document: &Document, deed: Deed, Act { at, by }: Act) -> Self {
        let Document { kind, id, tenant, at: made, .. } = *document;
        Self::Document { kind, id, tenant, made, deed, at, by }
    }

    /// What became of a job.
    pub fn job(job: &Job, state: JobState, Act { at, by }: Act) -> Self {
        let replay = if matches!(job.kind, JobKind::FanOut(_)) { None } else { Some(job.at) };
        Self::Job { job: job.id, tenant: job.tenant, state, replay, at, by }
    }

    /// That a delivery was asked for now.
    pub const fn hurried(delivery: &Delivery, Act { at, by }: Act) -> Self {
        Self::Hurried { delivery: delivery.id, message: delivery.message, endpoint: delivery.endpoint, at, by }
    }

    /// What a chunk made.
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

    /// How much follows from it: one that made many deliveries weighs as many.
    pub fn weight(&self) -> usize {
        match self {
            Self::Accepted { deliveries, .. } => deliveries.len().max(1),
            Self::Spread { deliveries, .. } => deliveries.len().max(1),
            _ => 1,
        }
    }

    /// When it happened.
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
            // Of an end that is none, which nobody writes, there is no time.
            Self::Ended { state, .. } => number::split(state).1.unwrap_or_default(),
        }
    }

    /// Who did it, where that is kept.
    pub fn by(&self) -> Option<By> {
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
