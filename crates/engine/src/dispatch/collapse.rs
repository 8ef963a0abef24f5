//! What a newer delivery took the place of: its row has ended with the newer one's commit, and memory
//! follows before anything is picked.
//!
//! Invariant: what was superseded is not sent once the loop has heard of it. What is in flight then may
//! still arrive; what comes of it is history.

use posthaste_core::id::DeliveryId;
use posthaste_core::time::Timestamp;

use super::Dispatch;

impl Dispatch {
    /// The rows of these have ended.
    pub(super) fn supersede(&mut self, now: Timestamp, deliveries: &[DeliveryId]) {
        for id in deliveries {
            if self.queue.is_under_way(*id) {
                // A change of it may have been made before its row ended, and be answered after.
                self.superseded.insert(*id);
            } else {
                self.drop_superseded(now, *id);
            }
        }
    }

    /// An attempt was not made after all: it waits again, unless its row has ended meanwhile.
    pub(super) fn put_back(&mut self, now: Timestamp, id: DeliveryId) {
        if self.superseded.remove(&id) {
            self.drop_superseded(now, id);
        }
    }

    fn drop_superseded(&mut self, now: Timestamp, id: DeliveryId) {
        self.queue.refused(now, id);
        // A page that is under way may still bring its row.
        self.depart(id);
    }
}
