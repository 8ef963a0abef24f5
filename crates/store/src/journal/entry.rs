//! One thing that happened, as the journal keeps it.
//!
//! How it is packed is `wire`. The kinds' numbers are on people's disks: new ones go to the end, none ever moves or leaves.

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

use super::{Hidden, Marks};
use crate::number;
use crate::row::{
    Accepted, Attempt, By, Document, DocumentKind, Endpoint, EndpointStatus, JobState, OwnRetention, Pause, PauseScope,
    RetentionPhase, SecretAct, Settlement,
};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A session began: whatever is minted under this writer is its own.
    Opened {
        /// Its number.
        session: u64,
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
        /// The queue of each delivery.
        deliveries: Vec<(LaneId, Tier)>,
    },
    /// An attempt was made and did not end its delivery.
    Attempted {
        /// Which delivery's.
        delivery: DeliveryId,
        /// Where to.
        lane: LaneId,
        /// The attempt.
        attempt: Attempt,
    },
    /// An attempt whose delivery had ended or moved on: kept, and without effect.
    Late {
        /// Which delivery's.
        delivery: DeliveryId,
        /// Where to.
        lane: LaneId,
        /// The attempt.
        attempt: Attempt,
    },
    /// A delivery ended.
    Ended {
        /// Which.
        delivery: DeliveryId,
        /// Of what.
        message: MessageId,
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
    },
    /// A cut was forgotten: all its rows are swept.
    Uncut {
        /// What it ended.
        scope: Scope,
    },
    /// Somebody paused something.
    Paused {
        /// What.
        scope: PauseScope,
        /// Until when; `None` until it is resumed.
        until: Option<Timestamp>,
        /// Who.
        by: Option<By>,
    },
    /// A pause was ended.
    Resumed {
        /// Of what.
        scope: PauseScope,
        /// Who ended it.
        by: Option<By>,
    },
    /// An operator reset a breaker.
    Reset {
        /// Whose.
        of: BreakerOf,
        /// How.
        how: Reset,
        /// Who.
        by: Option<By>,
    },
    /// An endpoint was made or changed.
    Endpoint {
        /// Which.
        endpoint: EndpointId,
        /// Whose.
        tenant: TenantId,
        /// Whether it takes messages.
        status: EndpointStatus,
    },
    /// Somebody looked at an endpoint's secrets, or rotated them.
    Secret {
        /// Which endpoint's.
        endpoint: EndpointId,
        /// Whose.
        tenant: TenantId,
        /// What was done.
        act: SecretAct,
    },
    /// A job made deliveries.
    Spread {
        /// Which job.
        job: JobId,
        /// Whose.
        tenant: TenantId,
        /// When.
        at: Timestamp,
        /// Each delivery, of what, and its queue.
        deliveries: Vec<(DeliveryId, MessageId, LaneId, Tier)>,
    },
    /// A replay began, or a job was paused, resumed, cancelled or done.
    Job {
        /// Which.
        job: JobId,
        /// Whose.
        tenant: TenantId,
        /// What it became.
        state: JobState,
    },
    /// Somebody took dead letters back.
    Purged {
        /// Whose.
        tenant: TenantId,
        /// The highest number that is covered.
        upto: u64,
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
        /// Whether it is no more.
        removed: bool,
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
            deliveries: accepted.deliveries.iter().map(|new| (new.delivery.lane, new.delivery.tier)).collect(),
        }
    }

    /// What a settlement leaves if it takes effect: nothing where it only moves a row.
    pub fn settled(settlement: &Settlement) -> Option<Self> {
        let delivery = &settlement.record.delivery;
        match settlement.attempt {
            attempt if delivery.state.is_terminal() => Some(Self::ended(delivery, attempt)),
            Some(attempt) => Some(Self::Attempted { delivery: delivery.id, lane: delivery.lane, attempt }),
            None => None,
        }
    }

    /// What a settlement leaves that came too late.
    pub fn late(settlement: &Settlement) -> Option<Self> {
        let delivery = &settlement.record.delivery;
        settlement.attempt.map(|attempt| Self::Late { delivery: delivery.id, lane: delivery.lane, attempt })
    }

    /// A delivery's end.
    pub fn ended(delivery: &Delivery, attempt: Option<Attempt>) -> Self {
        Self::Ended {
            delivery: delivery.id,
            message: delivery.message,
            lane: delivery.lane,
            tier: delivery.tier,
            state: delivery.state,
            attempts: delivery.attempts,
            attempt,
        }
    }

    /// A cut in force.
    pub fn cut(cut: &Cut) -> Self {
        Self::Cut { scope: cut.scope, upto: cut.upto, cause: cut.cause, at: cut.at }
    }

    /// A pause in force.
    pub fn paused(pause: &Pause) -> Self {
        Self::Paused { scope: pause.scope, until: pause.until, by: pause.by }
    }

    /// An endpoint as it is now.
    pub fn endpoint(endpoint: &Endpoint) -> Self {
        Self::Endpoint { endpoint: endpoint.id, tenant: endpoint.tenant, status: endpoint.status }
    }

    /// A document as it is now.
    pub fn filed(document: &Document) -> Self {
        Self::Document { kind: document.kind, id: document.id, tenant: document.tenant, removed: false }
    }

    /// A document that is no more.
    pub fn unfiled(kind: DocumentKind, id: Key, tenant: TenantId) -> Self {
        Self::Document { kind, id, tenant, removed: true }
    }

    /// What a chunk made.
    pub fn spread<'d>(
        job: JobId,
        tenant: TenantId,
        at: Timestamp,
        deliveries: impl Iterator<Item = &'d Delivery>,
    ) -> Self {
        let each = deliveries.map(|delivery| (delivery.id, delivery.message, delivery.lane, delivery.tier));
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

    /// When it happened, where it says so.
    pub fn at(&self) -> Option<Timestamp> {
        match self {
            Self::Accepted { at, .. }
            | Self::Cut { at, .. }
            | Self::Spread { at, .. }
            | Self::Retained { at, .. }
            | Self::Agreed { at, .. }
            | Self::Erased { at, .. }
            | Self::ErasureDone { at, .. }
            | Self::Exported { at, .. }
            | Self::RotationBegun { at, .. }
            | Self::RotationEnded { at, .. } => Some(*at),
            Self::Attempted { attempt, .. } | Self::Late { attempt, .. } => Some(attempt.at),
            Self::Ended { state, .. } => number::split(state).1,
            Self::Opened { .. }
            | Self::Uncut { .. }
            | Self::Paused { .. }
            | Self::Resumed { .. }
            | Self::Reset { .. }
            | Self::Endpoint { .. }
            | Self::Job { .. }
            | Self::Purged { .. }
            | Self::Secret { .. }
            | Self::Document { .. } => None,
        }
    }
}
