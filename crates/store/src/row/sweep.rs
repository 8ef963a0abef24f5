//! What is written off without having been sent: by a cut, or because its time is over.

use posthaste_core::cut::Scope;
use posthaste_core::id::DeliveryId;
use posthaste_core::time::Timestamp;

/// Rows one sweep looks at, so that it takes some milliseconds whatever waits in the store.
pub const SWEEP_LOOKS_MAX: u32 = 20_000;
/// Rows one sweep ends, so that nobody's commit waits long for it.
pub const SWEEP_ENDS_MAX: u32 = 500;

/// Which rows a sweep ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// What a cut covers, as far as a key or an index finds it: all deliveries of a message, the
    /// spilled ones of a lane.
    Cut(Scope),
    /// What a lane's cut covers or whose time to live is over, wherever it is: looks at every row,
    /// by id, a part at a time. What was sent and waits for its receipt is not over.
    Roll {
        /// Only what comes after this one.
        after: Option<DeliveryId>,
        /// At this time.
        now: Timestamp,
    },
}

/// What a sweep came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweptRows {
    /// Deliveries that have ended by it, by id.
    pub ended: Vec<DeliveryId>,
    /// How many it would have ended and left, since their owner has them under way.
    pub spared: u32,
    /// Where it stopped before it had seen everything. For [`Sweep::Roll`] the next goes on after
    /// this one; for [`Sweep::Cut`] the next is the same again.
    pub stopped_at: Option<DeliveryId>,
}
