//! A lane: the queue of one destination, one part for each tier.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::hold::{Hold, Why};
use crate::id::{DeliveryId, LaneId, TenantId};
use crate::policy::Policy;
use crate::tier::Tier;
use crate::time::Timestamp;

/// In which order a destination gets its messages (G4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// First in, first out.
    #[default]
    Fifo,
    /// The newest first: old news is worth less.
    NewestFirst,
    /// One in flight, later ones wait for its end.
    Strict,
}

/// What a strict lane does when its head is dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDead {
    /// The next one goes.
    #[default]
    Skip,
    /// The lane stops until somebody resumes it.
    Hold,
}

/// What a lane's owner has set.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneSettings {
    /// Which lane.
    pub lane: LaneId,
    /// Whose.
    pub tenant: TenantId,
    /// In which order.
    pub order: Order,
    /// For strict lanes.
    pub on_dead: OnDead,
    /// How many attempts may be under way at once.
    pub max_in_flight: u16,
    /// When to try again.
    pub policy: Arc<Policy>,
}

/// One lane with work in the window.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) id: LaneId,
    /// `None` until the store was asked: nothing is sent on a guess.
    pub(super) settings: Option<Arc<LaneSettings>>,
    /// What the receiver asked for, or a credential's fault.
    pub(super) hold: Option<Hold>,
    /// Somebody's word.
    pub(super) paused: Option<Hold>,
    pub(super) in_flight: u16,
    /// What the window holds of it, in any stage.
    pub(super) kept: [u32; 3],
    /// Whether the store holds more of it than the window.
    pub(super) overflow: [Overflow; 3],
    /// Pages under way that were asked for before the lane became strict, or stopped being it.
    /// They say nothing of the queues there are now.
    pub(super) old_pages: u8,
    /// Whether it stands in a tier's ring.
    pub(super) in_ring: [bool; 3],
    ready: [BinaryHeap<Reverse<u64>>; 3],
}

/// What is behind the window of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Overflow {
    /// The store may hold spilled rows that the window does not.
    pub(super) more: bool,
    /// A page was asked for and has not come.
    pub(super) paging: bool,
    /// Rows were spilled since that page was asked for: it may have missed them.
    pub(super) since: bool,
}

impl Lane {
    pub(super) fn new(id: LaneId) -> Self {
        Self {
            id,
            settings: None,
            hold: None,
            paused: None,
            in_flight: 0,
            kept: [0; 3],
            overflow: [Overflow::default(); 3],
            old_pages: 0,
            in_ring: [false; 3],
            ready: Default::default(),
        }
    }

    pub(super) fn order(&self) -> Order {
        self.settings.as_ref().map_or(Order::Fifo, |settings| settings.order)
    }

    pub(super) fn is_strict(&self) -> bool {
        self.order() == Order::Strict
    }

    /// Which of its queues a tier's rows are paged with: a strict lane is paged as a whole.
    pub(super) fn paged_as(&self, tier: Tier) -> usize {
        if self.is_strict() { 0 } else { tier.index() }
    }

    /// The store holds rows of this queue behind the window.
    pub(super) fn is_spilling(&self, tier: Tier) -> bool {
        let overflow = self.overflow[self.paged_as(tier)];
        overflow.more || overflow.paging
    }

    /// Nothing of it is worth remembering.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.kept == [0; 3]
            && self.paused.is_none_or(|hold| !hold.holds(now))
            && self.hold.is_none_or(|hold| !hold.holds(now))
            && self.old_pages == 0
            && self.overflow.iter().all(|overflow| !overflow.more && !overflow.paging)
    }

    /// What keeps the whole lane from sending, apart from pauses above it.
    pub(super) fn held(&self, now: Timestamp) -> Option<Hold> {
        if self.settings.is_none() {
            return Some(Hold { why: Why::Store, until: None });
        }
        if let Some(paused) = self.paused.filter(|hold| hold.holds(now)) {
            return Some(paused);
        }
        self.hold.filter(|hold| hold.holds(now))
    }

    /// Forgets what no longer holds.
    pub(super) fn release(&mut self, now: Timestamp) {
        self.paused = self.paused.filter(|hold| hold.holds(now));
        self.hold = self.hold.filter(|hold| hold.holds(now));
    }

    pub(super) fn has_slot(&self) -> bool {
        let most = match &self.settings {
            Some(settings) if settings.order == Order::Strict => 1,
            Some(settings) => settings.max_in_flight,
            None => 0,
        };
        self.in_flight < most
    }

    pub(super) fn push(&mut self, tier: Tier, id: DeliveryId) {
        let rank = self.rank(id.raw());
        self.ready[tier.index()].push(Reverse(rank));
    }

    pub(super) fn pop(&mut self, tier: Tier) -> Option<DeliveryId> {
        let Reverse(rank) = self.ready[tier.index()].pop()?;
        Some(DeliveryId::from_raw(self.rank(rank)))
    }

    pub(super) fn has_ready(&self, tier: Tier) -> bool {
        !self.ready[tier.index()].is_empty()
    }

    /// Takes over settings; ranks and queues that were made under another order are made anew.
    pub(super) fn take_over(&mut self, settings: &Arc<LaneSettings>) {
        let (old, new) = (self.order(), settings.order);
        let newest = |order| order == Order::NewestFirst;
        if newest(old) != newest(new) {
            for heap in &mut self.ready {
                *heap = heap.drain().map(|Reverse(rank)| Reverse(!rank)).collect();
            }
        }
        let strict = |order| order == Order::Strict;
        if strict(old) != strict(new) {
            self.regroup();
        }
        self.settings = Some(Arc::clone(settings));
    }

    /// A strict lane is paged as a whole, another one tier by tier: which rows are behind which
    /// queue is not known after a change, so every queue is looked at.
    fn regroup(&mut self) {
        let paging = self.overflow.iter().map(|queue| u8::from(queue.paging)).sum::<u8>();
        let more = paging > 0 || self.overflow.iter().any(|queue| queue.more);
        self.old_pages = self.old_pages.saturating_add(paging);
        self.overflow = [Overflow { more, paging: false, since: false }; 3];
    }

    /// A delivery's place in the heap; applied twice it gives the id back.
    fn rank(&self, raw: u64) -> u64 {
        if self.order() == Order::NewestFirst { !raw } else { raw }
    }
}
