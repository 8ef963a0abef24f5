//! How long things are kept, and the steps in which the rest is let go.

use std::time::Duration;

use posthaste_core::id::{DeliveryId, TenantId};
use posthaste_core::time::Timestamp;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long things are kept where nothing else was agreed with their tenant (L7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// A message with its payload, from its accept; longer while a delivery is unfinished or a dead
    /// letter needs it.
    pub payload: Duration,
    /// What became of a delivery, its attempts and its dead letter, from its end. What is still
    /// pending so long after its birth is given up.
    pub history: Duration,
    /// The journal.
    pub journal: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { payload: 7 * DAY, history: 30 * DAY, journal: 400 * DAY }
    }
}

/// What was agreed with a tenant on how long its things are kept; where nothing is said, it is as long as everybody's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnRetention {
    /// See [`Retention::payload`].
    pub payload: Option<Duration>,
    /// See [`Retention::history`].
    pub history: Option<Duration>,
}

/// What was agreed with some tenants, among those whose ids are in a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Behind this one.
    pub after: Option<TenantId>,
    /// Up to this one; `None` for all that follow.
    pub upto: Option<TenantId>,
    /// Each with what was agreed, by id. With all others in the range nothing is.
    pub own: Vec<(TenantId, OwnRetention)>,
}

impl Agreed {
    /// With these tenants, and with nobody else.
    pub fn all(own: Vec<(TenantId, OwnRetention)>) -> Self {
        Self { after: None, upto: None, own }
    }

    pub(crate) fn covers(&self, tenant: TenantId) -> bool {
        self.after.is_none_or(|after| tenant > after) && self.upto.is_none_or(|upto| tenant <= upto)
    }
}

impl Retention {
    /// As it is for a tenant with whom this was agreed.
    pub(crate) fn with(self, own: OwnRetention) -> Self {
        Self {
            payload: own.payload.unwrap_or(self.payload),
            history: own.history.unwrap_or(self.history),
            journal: self.journal,
        }
    }

    /// What is not later than this has been kept for long enough.
    pub(crate) fn old(&self, phase: RetentionPhase, now: Timestamp) -> Timestamp {
        before(
            now,
            match phase {
                RetentionPhase::Messages => self.payload,
                RetentionPhase::Keys => KEYS_KEPT,
                RetentionPhase::Journal => self.journal,
                RetentionPhase::Pending | RetentionPhase::History | RetentionPhase::Kept | RetentionPhase::Jobs => {
                    self.history
                }
                RetentionPhase::Space => Duration::ZERO,
            },
        )
    }
}

/// Rows that one step removes at most: more would hold up everybody else's commit.
pub const RETENTION_STEP_MAX: u32 = 500;

/// Idempotency keys are of use for a day.
const KEYS_KEPT: Duration = DAY;

/// What is let go, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetentionPhase {
    /// What waited longer than anything is kept ends as dead, where nothing else has ended it (E4).
    Pending,
    /// Messages whose time is over: removed, or moved to where those are kept that are still needed.
    Messages,
    /// What became of deliveries.
    History,
    /// Messages that were still needed, and are not any more.
    Kept,
    /// Jobs that have ended.
    Jobs,
    /// Idempotency keys.
    Keys,
    /// Rows of the journal.
    Journal,
    /// Room in the file, given back to the disk.
    Space,
}

impl RetentionPhase {
    pub(crate) const ALL: [Self; 8] =
        [Self::Pending, Self::Messages, Self::History, Self::Kept, Self::Jobs, Self::Keys, Self::Journal, Self::Space];

    /// The one that follows.
    pub fn next(self) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| *phase > self)
    }
}

/// Where a run of retention is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionStep {
    /// What is let go.
    pub phase: RetentionPhase,
    /// Of whom: tenants with whom this time was agreed; `None` for all others.
    pub kept: Option<Duration>,
    /// Behind this row.
    pub after: u64,
}

impl RetentionStep {
    /// Where a run begins.
    pub const START: Self = Self::of(RetentionPhase::Pending);

    /// Where a phase begins.
    pub const fn of(phase: RetentionPhase) -> Self {
        Self { phase, kept: None, after: 0 }
    }

    /// The beginning of the next phase; `None` when this was the last.
    pub fn next_phase(self) -> Option<Self> {
        self.phase.next().map(Self::of)
    }
}

/// What a step did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retained {
    /// Rows removed, moved or ended; pages given back.
    pub removed: u64,
    /// Those that waited too long, and are dead now.
    pub given_up: Vec<DeliveryId>,
    /// The next step; `None` when the run is over.
    pub next: Option<RetentionStep>,
}

/// The time so long before `now`; what is not later has been kept for long enough.
pub(crate) fn before(now: Timestamp, kept: Duration) -> Timestamp {
    let kept = i64::try_from(kept.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(now.as_millis().saturating_sub(kept))
}
