//! Collapse keys: a newer delivery replaces one that still waits. The older row ends in the newer one's commit, and
//! memory follows before the next delivery is picked.
//!
//! Invariant: a superseded delivery is not sent once the loop has handled the arrival that replaced it. If it is in
//! flight then, it may still arrive; its attempt is kept in the history.

use posthaste_core::{DeliveryId, Timestamp};

use super::Dispatch;

impl Dispatch {
    /// The rows of these deliveries have ended.
    pub(super) fn supersede(&mut self, now: Timestamp, deliveries: &[DeliveryId]) {
        for id in deliveries {
            if self.scheduler.is_under_way(*id) {
                // A settlement may have been stored before its row ended, and be answered after.
                self.superseded.insert(*id);
            } else {
                self.drop_superseded(now, *id);
            }
        }
    }

    /// An attempt was not made: the delivery waits again, unless its row has ended meanwhile.
    pub(super) fn put_back(&mut self, now: Timestamp, id: DeliveryId) {
        if self.superseded.remove(&id) {
            self.drop_superseded(now, id);
        }
    }

    fn drop_superseded(&mut self, now: Timestamp, id: DeliveryId) {
        self.scheduler.refused(now, id);
        // A page that is being read may still contain its row.
        self.depart(id);
    }
}
