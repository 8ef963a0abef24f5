//! What is written off without having been sent: by a cut, or because its time is over.

use posthaste_core::cut::{Cut, Scope};
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

impl Sweep {
    /// Whether what this cut spared is left alone, also where the caller does not have it under way.
    ///
    /// A caller says what is under way when it asks. A cut may be made between that and the sweep, and
    /// may have spared something that was sent in between. A message's sweep is asked for after its cut,
    /// which let nothing be sent later; of a lane's the roll finds what is left, once it was asked for
    /// after the cut.
    pub(crate) fn leaves_spared(&self, cut: &Cut) -> bool {
        match self {
            Self::Cut(Scope::Message(_)) => false,
            Self::Cut(Scope::Lane(_)) => true,
            Self::Roll { now, .. } => cut.at >= *now,
        }
    }
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
