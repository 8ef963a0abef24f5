//! The baseline: a minimal scheduler with one heap of due times, without lanes, limits or states. A delivery is pushed
//! when it arrives and popped when it is sent; a failed one is pushed again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use posthaste_core::{DeliveryId, Roll, Timestamp};

use super::owner::{PENDING, fails};

const RETRY_AFTER: Duration = Duration::from_secs(10);

/// A heap with as many entries as the scheduler's window in the other loads.
pub(super) struct Heap {
    due: BinaryHeap<Reverse<(Timestamp, DeliveryId)>>,
    arrived: u64,
}

impl Heap {
    pub(super) fn new() -> Self {
        let mut heap = Self { due: BinaryHeap::new(), arrived: 0 };
        for _ in 0..PENDING {
            heap.arrive();
        }
        heap
    }

    pub(super) fn run(&mut self, deliveries: u64) {
        for _ in 0..deliveries {
            self.arrive();
            while self.attempt_fails() {}
        }
    }

    fn arrive(&mut self) {
        self.arrived += 1;
        self.due.push(Reverse((self.now(), DeliveryId::from_raw(self.arrived))));
    }

    fn attempt_fails(&mut self) -> bool {
        let Reverse((_, id)) = self.due.pop().expect("there is always something pending");
        let failed = fails(Roll(self.arrived).fork(id.raw()));
        if failed {
            self.due.push(Reverse((self.now() + RETRY_AFTER, id)));
        }
        failed
    }

    /// A millisecond passes with every arrival.
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(0) + Duration::from_millis(self.arrived)
    }
}
