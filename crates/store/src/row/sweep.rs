//! Sweeps: the end of deliveries that will not be sent, because a cut covers them or their TTL is over.

use posthaste_core::{Cut, CutScope, DeliveryId, Timestamp};

/// Maximum number of rows that one sweep reads, so that it takes a few milliseconds however many rows are pending.
pub const SWEEP_LOOKS_MAX: u32 = 20_000;
/// Maximum number of rows that one sweep ends, so that other commits do not wait long.
pub const SWEEP_ENDS_MAX: u32 = 500;

/// Selects the rows that a sweep ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// The rows a cut covers that a key or an index finds: all deliveries of a message, or the spilled deliveries of a
    /// lane.
    Cut(CutScope),
    /// All rows that a lane's cut covers or whose TTL is over, in any place. Scans the pending rows by id after `after`, a
    /// part per call. The TTL does not apply to a delivery that was sent and waits for its receipt.
    Roll { after: Option<DeliveryId>, now: Timestamp },
}

impl Sweep {
    /// Whether deliveries that this cut spared are skipped even if they are not in the caller's `under_way`.
    ///
    /// The caller lists what is in flight when it requests the sweep. A cut made between that moment and the sweep may
    /// have spared a delivery that was sent in between. A message's sweep is requested after its cut, and the cut lets
    /// nothing be sent later, so its list is complete. Deliveries of a lane that are skipped here are found by a roll
    /// that was requested after the cut.
    pub(crate) fn leaves_spared(&self, cut: &Cut) -> bool {
        match self {
            Self::Cut(CutScope::Message(_)) => false,
            Self::Cut(CutScope::Lane(_)) => true,
            Self::Roll { now, .. } => cut.at >= *now,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweptRows {
    /// Deliveries that the sweep ended, by id.
    pub ended: Vec<DeliveryId>,
    /// The number of covered deliveries that were skipped because they are in flight.
    pub spared: u32,
    /// The last row read, if the sweep reached a bound before the end. The next [`Sweep::Roll`] continues after it; a
    /// [`Sweep::Cut`] is simply repeated.
    pub stopped_at: Option<DeliveryId>,
}
