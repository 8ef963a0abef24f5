//! Collapse keys: which waiting deliveries of a lane a new one supersedes.

use std::collections::BTreeSet;

use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, LaneId};
use posthaste_core::time::Timestamp;

use super::MemoryState;
use crate::row::collapse::{CollapseKey, superseded};

/// Deliveries by lane and collapse key. Deliveries that have ended are removed when their key is used again.
pub(super) type Collapsing = BTreeSet<(LaneId, CollapseKey, DeliveryId)>;

impl MemoryState {
    /// Ends the deliveries that wait under this key and returns them. Deliveries that a cut covers are left to the
    /// sweep.
    pub(super) fn supersede(&mut self, lane: LaneId, key: CollapseKey, at: Timestamp) -> Vec<Delivery> {
        let all = (lane, key, DeliveryId::from_raw(0))..=(lane, key, DeliveryId::from_raw(u64::MAX));
        let known: Vec<DeliveryId> = self.collapsing.range(all).map(|(.., id)| *id).collect();
        let mut ended = Vec::new();
        for id in known {
            let cut = |row: &crate::PendingRow| self.cuts.values().any(|cut| cut.covers(&row.delivery));
            if self.pending.get(&id).is_some_and(cut) {
                continue;
            }
            self.collapsing.remove(&(lane, key, id));
            if let Some(mut row) = self.remove(id) {
                row.delivery.state = superseded(&row.delivery, at);
                ended.push(row.delivery.clone());
                self.ended.insert(id, row.delivery);
            }
        }
        ended
    }
}
