//! Deadlines of the window: one heap, equal deadlines in the order of what they are for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::flow::SharedGate;
use crate::id::{DeliveryId, LaneId, TenantId};
use crate::time::Timestamp;

/// What a deadline is for. An entry whose subject has moved on is simply passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A lane's hold ends, or it has a token again, or it may be forgotten.
    Lane(LaneId),
    /// A gate that lanes share lets through again.
    Gate(SharedGate),
    /// A tenant has a token again.
    Tenant(TenantId),
    /// A pause of everything or of a tenant ends.
    Pause,
    /// Held lanes are looked at again for rows that make room.
    Shed,
    /// A delivery's next step is due.
    Due(DeliveryId),
    /// A delivery's time to live is over.
    Over(DeliveryId),
}

/// Below this many, entries nobody waits for do no harm.
const TIDY_FROM: usize = 1_024;

/// The deadlines, earliest first.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Timestamp, Timer)>>,
    /// Twice what was wanted when it was looked at last.
    tidy_at: usize,
}

impl Timers {
    pub(super) fn set(&mut self, at: Timestamp, timer: Timer) {
        self.heap.push(Reverse((at, timer)));
    }

    /// Takes the earliest one that has come.
    pub(super) fn take(&mut self, now: Timestamp) -> Option<Timer> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, timer))| timer)
    }

    /// When the earliest one comes.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Whether half of it may be entries that nobody waits for: a TTL of days outlives its delivery.
    pub(super) fn is_untidy(&self) -> bool {
        self.heap.len() >= self.tidy_at.max(TIDY_FROM)
    }

    /// Keeps what is wanted, once.
    pub(super) fn tidy(&mut self, wanted: impl Fn(Timestamp, Timer) -> bool) {
        let mut kept = std::mem::take(&mut self.heap).into_vec();
        kept.retain(|Reverse((at, timer))| wanted(*at, *timer));
        kept.sort_unstable();
        kept.dedup();
        self.tidy_at = kept.len() * 2;
        self.heap = kept.into();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }
}
