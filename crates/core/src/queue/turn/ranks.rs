//! The tenants of one tier that may send, in two lines: those with quick destinations and those with
//! slow ones. Invariant: a line that was passed over or empty goes on from where the other one is.

use std::collections::BTreeSet;

/// Whether a destination holds its slots for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::queue) enum Speed {
    Quick,
    Slow,
}

impl Speed {
    pub(super) const ALL: [Self; 2] = [Self::Quick, Self::Slow];

    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

/// What may be taken.
#[derive(Clone, Copy, Debug)]
pub(in crate::queue) struct Room {
    /// How many slots one tenant may hold beside others.
    pub(in crate::queue) cap: u32,
    /// Whether slow destinations may have another slot.
    pub(in crate::queue) slow: bool,
    /// While the lowest tier holds fewer slots than this, it is first.
    pub(in crate::queue) lowest: u32,
}

/// The tenants of one tier that may send.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    /// Those with quick lanes, and those with slow ones.
    pub(super) lines: [Line; 2],
    /// How much the slow line fell behind the quick one while it was passed over. It does not catch
    /// up.
    left_behind: u64,
    pub(super) in_flight: u32,
    /// How far the tier has come.
    pub(super) passed: u64,
}

#[derive(Debug, Default)]
pub(super) struct Line {
    /// Tenants by what they have had.
    pub(super) order: BTreeSet<(u64, u32)>,
    /// What the tenant picked last has had: what an idle one starts from.
    now_at: u64,
}

impl Ranks {
    /// Who is next: what it has had, which tenant, and in which line it stands.
    pub(super) fn first(&self, room: Room) -> Option<(u64, u32, Speed)> {
        let [quick, slow] = self.lines.each_ref().map(|line| line.order.first().copied());
        let quick = quick.map(|(had, tenant)| (had, tenant, Speed::Quick));
        let slow = slow.map(|(had, tenant)| (had.saturating_add(self.left_behind), tenant, Speed::Slow));
        quick.into_iter().chain(slow.filter(|_| room.slow)).min()
    }

    /// What an idle tenant starts from. A line in which nobody stands goes on with the other one.
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

    /// One that has had this much is picked. While the slow line is passed over it saves nothing up.
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
