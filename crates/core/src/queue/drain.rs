//! A backlog on its way out (E2): what waited when a breaker closed is kept apart from what comes
//! after, so that fresh messages do not queue behind it.
//!
//! Three parts, each in the lane's own order: *fresh* is what was born since (it stays in the lane's
//! own queue), *young* had waited a short time only, *backlog* is the rest. Four of five sends are
//! fresh where both wait; what fresh work leaves over goes to the young, then to the backlog. The
//! young come first because most of them were born when the receiver was well again and nobody
//! knew: they are news, the backlog is not.

use std::cmp::Reverse;
use std::time::Duration;

use super::lane::{Overflow, Ready};
use crate::id::DeliveryId;
use crate::tier::Tier;
use crate::time::Timestamp;

/// What had waited less than this when the breaker closed is young.
pub(super) const YOUNG: Duration = Duration::from_secs(45);

/// Fresh ones in a row while others wait.
const FRESH_IN_A_ROW: u8 = 4;

/// Which of a draining lane's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Fresh,
    Young,
    Backlog,
}

/// The parts in the order they are paged in.
pub(super) const PARTS: [Part; 3] = [Part::Fresh, Part::Young, Part::Backlog];

/// The rows of a queue from one id (with it) to another (without it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub from: DeliveryId,
    /// What comes after the last.
    pub below: DeliveryId,
}

impl Span {
    /// All rows there can be.
    pub const ALL: Self = Self { from: DeliveryId::from_raw(0), below: DeliveryId::from_raw(u64::MAX >> 1) };

    /// Whether a row is among them.
    pub fn contains(&self, id: DeliveryId) -> bool {
        self.from <= id && id < self.below
    }
}

/// What waited when a breaker closed.
#[derive(Debug)]
pub(super) struct Drain {
    begun: Timestamp,
    /// The first id of the young, and of the fresh.
    young_from: DeliveryId,
    fresh_from: DeliveryId,
    /// By tier: young, then backlog.
    ready: [[Ready; 3]; 2],
    overflow: [[Overflow; 3]; 2],
    fresh_in_a_row: u8,
}

impl Drain {
    pub(super) fn new(begun: Timestamp, young_from: DeliveryId, fresh_from: DeliveryId) -> Self {
        let young_from = young_from.min(fresh_from);
        Self {
            begun,
            young_from,
            fresh_from,
            ready: Default::default(),
            overflow: Default::default(),
            fresh_in_a_row: 0,
        }
    }

    pub(super) fn part(&self, born: Timestamp) -> Part {
        if born >= self.begun {
            Part::Fresh
        } else if born + YOUNG > self.begun {
            Part::Young
        } else {
            Part::Backlog
        }
    }

    /// Whose rows these are in the store.
    pub(super) fn part_of_row(&self, id: DeliveryId) -> Part {
        if id >= self.fresh_from {
            Part::Fresh
        } else if id >= self.young_from {
            Part::Young
        } else {
            Part::Backlog
        }
    }

    pub(super) fn span(&self, part: Part) -> Span {
        match part {
            Part::Fresh => Span { from: self.fresh_from, ..Span::ALL },
            Part::Young => Span { from: self.young_from, below: self.fresh_from },
            Part::Backlog => Span { below: self.young_from, ..Span::ALL },
        }
    }

    pub(super) fn push(&mut self, part: Part, tier: Tier, rank: Reverse<u64>) {
        self.ready[apart(part)][tier.index()].push(rank);
    }

    /// The next of those kept apart, unless it is the turn of a fresh one.
    pub(super) fn pop(&mut self, tier: Tier, fresh_waits: bool) -> Option<Reverse<u64>> {
        let apart = if self.has_ready(tier) { Some(()) } else { None };
        if fresh_waits && (apart.is_none() || self.fresh_in_a_row < FRESH_IN_A_ROW) {
            self.fresh_in_a_row = self.fresh_in_a_row.saturating_add(1).min(FRESH_IN_A_ROW);
            return None;
        }
        self.fresh_in_a_row = 0;
        self.ready.iter_mut().find_map(|part| part[tier.index()].pop())
    }

    pub(super) fn has_ready(&self, tier: Tier) -> bool {
        self.ready.iter().any(|part| !part[tier.index()].is_empty())
    }

    pub(super) fn ready_count(&self, part: Part, tier: Tier) -> usize {
        self.ready[apart(part)][tier.index()].len()
    }

    pub(super) fn take_ready(&mut self, tier: Tier, into: &mut Vec<Reverse<u64>>) {
        for part in &mut self.ready {
            into.extend(part[tier.index()].drain());
        }
    }

    pub(super) fn overflow(&mut self, part: Part, tier: usize) -> &mut Overflow {
        &mut self.overflow[apart(part)][tier]
    }

    pub(super) fn set_more(&mut self, more: bool) {
        let overflow = if more { Overflow::UNKNOWN } else { Overflow::default() };
        self.overflow = [[overflow; 3]; 2];
        if self.young_from == self.fresh_from {
            self.overflow[0] = Default::default();
        }
    }

    pub(super) fn has_more(&self) -> bool {
        self.overflow.iter().flatten().any(|queue| queue.more)
    }

    pub(super) fn pages_under_way(&self) -> u8 {
        self.overflow.iter().flatten().map(|queue| u8::from(queue.paging)).sum()
    }

    /// Whether everything that was kept apart has gone.
    pub(super) fn is_empty(&self) -> bool {
        self.overflow.iter().flatten().all(|queue| !queue.is_spilling())
            && self.ready.iter().flatten().all(Ready::is_empty)
    }
}

fn apart(part: Part) -> usize {
    usize::from(part == Part::Backlog)
}
