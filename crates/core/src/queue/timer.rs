//! Deadlines of the window: one heap, equal deadlines in the order of what they are for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::id::{DeliveryId, LaneId};
use crate::time::Timestamp;

/// What a deadline is for. An entry whose subject has moved on is simply passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A lane's hold ends.
    Lane(LaneId),
    /// A pause of everything or of a tenant ends.
    Pause,
    /// A delivery's next step is due.
    Due(DeliveryId),
    /// A delivery's time to live is over.
    Over(DeliveryId),
}

/// The deadlines, earliest first.
#[derive(Debug, Default)]
pub(super) struct Timers(BinaryHeap<Reverse<(Timestamp, Timer)>>);

impl Timers {
    pub(super) fn set(&mut self, at: Timestamp, timer: Timer) {
        self.0.push(Reverse((at, timer)));
    }

    /// Takes the earliest one that has come.
    pub(super) fn take(&mut self, now: Timestamp) -> Option<Timer> {
        let Reverse((at, _)) = self.0.peek()?;
        if *at > now {
            return None;
        }
        self.0.pop().map(|Reverse((_, timer))| timer)
    }

    /// When the earliest one comes.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }
}
