//! Retention: how long data is kept, and the steps in which expired data is deleted.

use std::time::Duration;

use posthaste_core::{DeliveryId, TenantId, Timestamp};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The default retention times, for tenants without an override (L7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// For a message with its payload, from its accept. A message that an unfinished delivery or a dead letter needs is
    /// kept longer.
    pub payload: Duration,
    /// For the outcome of a delivery, its attempts and its dead letter, from its end. A delivery still pending so long
    /// after its birth is given up.
    pub history: Duration,
    pub journal: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { payload: 7 * DAY, history: 30 * DAY, journal: 400 * DAY }
    }
}

/// A tenant's retention override; `None` means that the default applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionOverride {
    /// See [`Retention::payload`].
    pub payload: Option<Duration>,
    /// See [`Retention::history`].
    pub history: Option<Duration>,
}

/// The retention overrides of all tenants in a range of ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionOverrides {
    /// The range begins after this tenant; `None` for the first.
    pub after: Option<TenantId>,
    /// The range ends with this tenant; `None` for the last.
    pub upto: Option<TenantId>,
    /// The overrides, by tenant id. Other tenants in the range have none.
    pub own: Vec<(TenantId, RetentionOverride)>,
}

impl RetentionOverrides {
    /// The overrides of all tenants: those not listed have none.
    pub fn all(own: Vec<(TenantId, RetentionOverride)>) -> Self {
        Self { after: None, upto: None, own }
    }

    pub(crate) fn covers(&self, tenant: TenantId) -> bool {
        self.after.is_none_or(|after| tenant > after) && self.upto.is_none_or(|upto| tenant <= upto)
    }
}

impl Retention {
    pub(crate) fn with(self, own: RetentionOverride) -> Self {
        Self {
            payload: own.payload.unwrap_or(self.payload),
            history: own.history.unwrap_or(self.history),
            journal: self.journal,
        }
    }

    /// The retention limit of a phase: data with this time or an earlier one has expired.
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

/// Maximum number of rows that one step removes, so that other commits do not wait long.
pub const RETENTION_STEP_MAX: u32 = 500;

/// How long idempotency keys are kept.
const KEYS_KEPT: Duration = DAY;

/// The phases of a retention run, in this order. A phase deletes one kind of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RetentionPhase {
    /// Deliveries pending longer than the history is kept: they end as dead (E4).
    Pending,
    /// Expired messages: deleted, or set aside if they are still needed.
    Messages,
    /// Outcomes of deliveries, with their attempts and dead letters.
    History,
    /// Expired messages that were set aside and are no longer needed.
    Kept,
    Jobs,
    Keys,
    Journal,
    /// Free pages of the database file, returned to the file system.
    Space,
}

impl RetentionPhase {
    pub(crate) const ALL: [Self; 8] =
        [Self::Pending, Self::Messages, Self::History, Self::Kept, Self::Jobs, Self::Keys, Self::Journal, Self::Space];

    /// The phase that follows; `None` after the last.
    pub fn next(self) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| *phase > self)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionStep {
    pub phase: RetentionPhase,
    /// The tenants covered: those whose override is this duration; `None` for all tenants without an override.
    pub kept: Option<Duration>,
    /// The step begins after the row with this key.
    pub after: u64,
}

impl RetentionStep {
    pub const START: Self = Self::of(RetentionPhase::Pending);

    pub const fn of(phase: RetentionPhase) -> Self {
        Self { phase, kept: None, after: 0 }
    }

    /// The beginning of the next phase; `None` after the last.
    pub fn next_phase(self) -> Option<Self> {
        self.phase.next().map(Self::of)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retained {
    /// The number of rows removed, moved or ended, or of pages returned to the file system.
    pub removed: u64,
    /// Deliveries that were pending for too long and ended as dead.
    pub given_up: Vec<DeliveryId>,
    /// The next step; `None` if the run is over.
    pub next: Option<RetentionStep>,
}

/// The retention limit: data with this time or an earlier one has been kept for `kept`.
pub(crate) fn before(now: Timestamp, kept: Duration) -> Timestamp {
    let kept = i64::try_from(kept.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(now.as_millis().saturating_sub(kept))
}
