//! Collapse keys: which delivery of a lane another one takes the place of.

use std::collections::BTreeSet;

use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, LaneId};
use posthaste_core::time::Timestamp;

use super::Memory;
use crate::row::collapse::{CollapseKey, superseded};

/// Deliveries by what they collapse under. Those that have ended are dropped when their key is used.
pub(super) type Collapsing = BTreeSet<(LaneId, CollapseKey, DeliveryId)>;

impl Memory {
    /// Ends what waits under this key, and says which; what a cut has ended is left to its sweep.
    pub(super) fn supersede(&mut self, lane: LaneId, key: CollapseKey, at: Timestamp) -> Vec<Delivery> {
        let all = (lane, key, DeliveryId::from_raw(0))..=(lane, key, DeliveryId::from_raw(u64::MAX));
        let known: Vec<DeliveryId> = self.collapsing.range(all).map(|(.., id)| *id).collect();
        let mut ended = Vec::new();
        for id in known {
            let cut = |row: &crate::Row| self.cuts.values().any(|cut| cut.covers(&row.delivery));
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
