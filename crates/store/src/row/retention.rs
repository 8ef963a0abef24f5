//! How long things are kept, and the steps in which the rest is let go.

use std::time::Duration;

use posthaste_core::time::Timestamp;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long things are kept (L7).
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

impl Retention {
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
    /// Behind this row.
    pub after: u64,
}

impl RetentionStep {
    /// Where a run begins.
    pub const START: Self = Self { phase: RetentionPhase::Pending, after: 0 };

    /// The beginning of the next phase; `None` when this was the last.
    pub fn next_phase(self) -> Option<Self> {
        self.phase.next().map(|phase| Self { phase, after: 0 })
    }
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retained {
    /// Rows removed, moved or ended; pages given back.
    pub removed: u64,
    /// The next step; `None` when the run is over.
    pub next: Option<RetentionStep>,
}

/// The time so long before `now`; what is not later has been kept for long enough.
fn before(now: Timestamp, kept: Duration) -> Timestamp {
    let kept = i64::try_from(kept.as_millis()).unwrap_or(i64::MAX);
    Timestamp::from_millis(now.as_millis().saturating_sub(kept))
}
