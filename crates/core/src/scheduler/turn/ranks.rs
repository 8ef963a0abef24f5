//! The tenants of one tier that may send, in two lines: those with quick destinations and those with
//! slow ones.
//!
//! Invariant: a line that was skipped or empty continues from the position of the other one.

use std::collections::BTreeSet;

/// Whether attempts at a destination take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::scheduler) enum Speed {
    Quick,
    Slow,
}

impl Speed {
    pub(super) const ALL: [Self; 2] = [Self::Quick, Self::Slow];

    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

#[derive(Clone, Copy, Debug)]
pub(in crate::scheduler) struct Room {
    /// The most slots of one tenant while several are active.
    pub(in crate::scheduler) cap: u32,
    /// Whether slow destinations may use another slot.
    pub(in crate::scheduler) slow: bool,
    /// The lowest tier is picked first while it holds fewer slots than this.
    pub(in crate::scheduler) lowest: u32,
}

/// The tenants of one tier that may send.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    /// The line of quick destinations and that of slow ones, by [`Speed::index`].
    pub(super) lines: [TenantLine; 2],
    /// How far the slow line fell behind the quick one while it was skipped. It does not catch up.
    left_behind: u64,
    pub(super) in_flight: u32,
    pub(super) passed: u64,
}

#[derive(Debug, Default)]
pub(super) struct TenantLine {
    /// Tenants by the slot-time they have used.
    pub(super) order: BTreeSet<(u64, u32)>,
    /// The slot-time of the tenant that was picked last; an idle tenant continues from here.
    now_at: u64,
}

impl Ranks {
    /// The next tenant: the slot-time it has used, its index, and its line.
    pub(super) fn first(&self, room: Room) -> Option<(u64, u32, Speed)> {
        let [quick, slow] = self.lines.each_ref().map(|line| line.order.first().copied());
        let quick = quick.map(|(had, tenant)| (had, tenant, Speed::Quick));
        let slow = slow.map(|(had, tenant)| (had.saturating_add(self.left_behind), tenant, Speed::Slow));
        quick.into_iter().chain(slow.filter(|_| room.slow)).min()
    }

    /// The slot-time from which an idle tenant continues. An empty line first moves up to the other one.
    pub(super) fn floor(&mut self, speed: Speed) -> u64 {
        let [quick, slow] = &self.lines;
        let beside = match speed {
            Speed::Quick => slow.now_at.saturating_add(self.left_behind),
            Speed::Slow => quick.now_at.saturating_sub(self.left_behind),
        };
        let line = &mut self.lines[speed.index()];
        if line.order.is_empty() {
            line.now_at = line.now_at.max(beside);
        }
        line.now_at
    }

    /// Notes the pick of a tenant that has used this much. While the slow line is skipped, it saves up no credit.
    pub(super) fn picked(&mut self, place: u64, speed: Speed, room: Room) {
        let slow = self.lines[Speed::Slow.index()].order.first().map(|(had, _)| place.saturating_sub(*had));
        if let Some(behind) = slow.filter(|_| !room.slow) {
            self.left_behind = self.left_behind.max(behind);
        }
        self.lines[speed.index()].now_at = match speed {
            Speed::Quick => place,
            Speed::Slow => place.saturating_sub(self.left_behind),
        };
    }
}
