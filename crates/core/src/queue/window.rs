//! What the window holds: who comes in, who waits, who leaves, and what is left in the store.

use std::sync::Arc;

use super::lane::{Lane, LaneSettings, Order, Overflow};
use super::timer::Timer;
use super::{Item, Place, Queue, Stage};
use crate::delivery::Delivery;
use crate::id::{DeliveryId, LaneId};
use crate::state::State;
use crate::tier::Tier;
use crate::time::Timestamp;

/// What became of one that asked to come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is in the window.
    Taken,
    /// It was there already.
    Known,
    /// Its queue or the window is full, or its lane is held: leave it in the store.
    NoRoom,
}

/// A page to read from the store: the first `limit` rows of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageWanted {
    /// Which lane.
    pub lane: LaneId,
    /// Which tier; for a strict lane all of them.
    pub tier: Tier,
    /// In which order.
    pub order: Order,
    /// How many.
    pub limit: u32,
}

/// One that makes room for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shed {
    /// Which.
    pub delivery: DeliveryId,
    /// Of which lane.
    pub lane: LaneId,
    /// And tier.
    pub tier: Tier,
}

impl Queue {
    /// Lets a delivery into the window, if there is room for it.
    ///
    /// `place` is where its row is now. A strict lane takes its head alone.
    pub fn admit(&mut self, now: Timestamp, delivery: Delivery, place: Place) -> Admission {
        if self.items.contains_key(&delivery.id) {
            return Admission::Known;
        }
        let index = self.lane(delivery.lane);
        if !self.has_room(index, &delivery, place, now) {
            self.drop_if_idle(index, now);
            return Admission::NoRoom;
        }
        let id = delivery.id;
        self.insert(delivery, place, Stage::Waiting);
        self.wait(id, now);
        Admission::Taken
    }

    /// Whether the window holds it.
    pub fn knows(&self, id: DeliveryId) -> bool {
        self.items.contains_key(&id)
    }

    /// Takes over a lane's settings, new or changed.
    pub fn set_lane(&mut self, now: Timestamp, settings: &Arc<LaneSettings>) {
        let index = self.lane(settings.lane);
        let lane = self.lane_mut(index);
        if lane.settings.as_ref().is_some_and(|known| Arc::ptr_eq(known, settings)) {
            return;
        }
        let before = Tier::ALL.map(|tier| lane.is_spilling(tier));
        lane.take_over(settings);
        for tier in Tier::ALL {
            let spilling = self.lane_ref(index).is_spilling(tier);
            if spilling != before[tier.index()] {
                self.spilling_changes.push((settings.lane, tier, spilling));
            }
        }
        self.ring_lane(index, now);
    }

    /// Whether this lane's settings are known.
    pub fn knows_lane(&self, lane: LaneId) -> bool {
        self.lane_index.get(&lane).is_some_and(|index| self.lane_ref(*index).settings.is_some())
    }

    /// Forgets a lane that was looked at and has nothing to do.
    pub fn forget_idle_lane(&mut self, lane: LaneId, now: Timestamp) {
        if let Some(index) = self.lane_index.get(&lane).copied() {
            self.drop_if_idle(index, now);
        }
    }

    // --- what is behind the window ---

    /// Whether the store holds rows of this queue behind the window. New ones then belong there
    /// too: they must not overtake.
    pub fn is_spilling(&self, lane: LaneId, tier: Tier) -> bool {
        self.lane_index.get(&lane).is_some_and(|index| self.lane_ref(*index).is_spilling(tier))
    }

    /// Takes the queues that began or ended to spill since the last call.
    pub fn take_spilling_changes(&mut self) -> Vec<(LaneId, Tier, bool)> {
        std::mem::take(&mut self.spilling_changes)
    }

    /// Rows of this queue were written as spilled.
    pub fn spilled(&mut self, id: LaneId, tier: Tier) {
        let index = self.lane(id);
        let lane = self.lane_mut(index);
        let at = lane.paged_as(tier);
        let overflow = lane.overflow[at];
        if !overflow.more && !overflow.paging {
            self.spilling_changes.push((id, tier, true));
        }
        let overflow = &mut self.lane_mut(index).overflow[at];
        overflow.more = true;
        overflow.since |= overflow.paging;
        self.hungry.insert(id);
    }

    /// A queue whose rows should be paged in now; ask until it says `None`.
    ///
    /// A page is always the first rows of its queue: those the window knows are passed over, so
    /// no cursor can lose a row that was committed late.
    pub fn next_page(&mut self, now: Timestamp) -> Option<PageWanted> {
        while self.items.len() < self.limits.window {
            let lane = self.hungry.pop_first()?;
            if let Some(wanted) = self.page_wanted(lane, now) {
                // Another tier of the lane may want one too.
                self.hungry.insert(lane);
                return Some(wanted);
            }
        }
        None
    }

    fn page_wanted(&mut self, lane: LaneId, now: Timestamp) -> Option<PageWanted> {
        let index = *self.lane_index.get(&lane)?;
        let order = self.lane_ref(index).settings.as_ref()?.order;
        if self.holding(self.lane_ref(index), now).is_some() {
            return None;
        }
        let per_queue = self.limits.per_queue;
        let entry = self.lane_mut(index);
        if entry.old_pages > 0 {
            return None;
        }
        if order == Order::Strict {
            // Paged as a whole, one row at a time: the head may be of any tier.
            let more = entry.overflow.iter().any(|queue| queue.more);
            let wanted = more && entry.kept == [0; 3] && !entry.overflow[0].paging;
            return wanted.then(|| {
                entry.overflow[0].paging = true;
                PageWanted { lane, tier: Tier::ALL[0], order, limit: 1 }
            });
        }
        let tier = Tier::ALL.into_iter().find(|tier| {
            let overflow = entry.overflow[tier.index()];
            overflow.more && !overflow.paging && entry.kept[tier.index()] <= per_queue / 2
        })?;
        entry.overflow[tier.index()].paging = true;
        Some(PageWanted { lane, tier, order, limit: entry.kept[tier.index()] + (per_queue / 2).max(1) })
    }

    /// A page came: whether the store may hold more of this queue than the window.
    pub fn paged(&mut self, now: Timestamp, id: LaneId, tier: Tier, more: bool) {
        let Some(index) = self.lane_index.get(&id).copied() else { return };
        let lane = self.lane_mut(index);
        if lane.old_pages > 0 {
            lane.old_pages -= 1;
            self.hungry.insert(id);
            return;
        }
        let at = lane.paged_as(tier);
        let missed = std::mem::take(&mut lane.overflow[at].since);
        if lane.is_strict() {
            lane.overflow = Default::default();
        }
        lane.overflow[at] = Overflow { more: more || missed, paging: false, since: false };
        if lane.overflow[at].more {
            self.hungry.insert(id);
        } else if lane.is_strict() {
            self.spilling_changes.extend(Tier::ALL.map(|tier| (id, tier, false)));
        } else {
            self.spilling_changes.push((id, tier, false));
        }
        self.drop_if_idle(index, now);
    }

    /// Rows to write as spilled because the window is nearly full: what waits in held lanes makes
    /// room for what can be sent. They have left the window when this returns; once they are
    /// written, [`Queue::spilled`] must hear of them.
    pub fn shed(&mut self, now: Timestamp) -> Vec<Shed> {
        let mut shed = Vec::new();
        if self.items.len() < self.limits.window / 4 * 3 {
            return shed;
        }
        let lanes = u32::try_from(self.lanes.len()).expect("the window bounds the number of lanes");
        for step in 0..lanes {
            let index = (self.shed_from + step) % lanes;
            if self.lanes[index as usize].is_some() && self.holding(self.lane_ref(index), now).is_some() {
                self.shed_lane(index, now, &mut shed);
            }
            if self.items.len() < self.limits.window / 2 {
                self.shed_from = index + 1;
                break;
            }
        }
        shed
    }

    fn shed_lane(&mut self, index: u32, now: Timestamp, shed: &mut Vec<Shed>) {
        let mut ready = Vec::new();
        for tier in Tier::ALL {
            while let Some(id) = self.lane_mut(index).pop(tier) {
                ready.push((tier, id));
            }
        }
        let lane = self.lane_ref(index).id;
        for (tier, id) in ready {
            let Some(item) = self.items.get(&id).filter(|item| item.stage == Stage::Ready) else { continue };
            if item.place == Place::Spilled {
                self.spilled(lane, tier);
            } else {
                shed.push(Shed { delivery: id, lane, tier });
            }
            self.leave(id, now);
        }
    }

    fn has_room(&self, index: u32, delivery: &Delivery, place: Place, now: Timestamp) -> bool {
        let lane = self.lane_ref(index);
        if lane.is_strict() {
            return lane.kept == [0; 3];
        }
        if place == Place::Ready && lane.is_spilling(delivery.tier) {
            return false;
        }
        // A receipt is waited for whatever the lane does; everything else needs its queue's room.
        matches!(delivery.state, State::AwaitingAck { .. })
            || (lane.kept[delivery.tier.index()] < self.limits.per_queue
                && self.items.len() < self.limits.window
                && (lane.settings.is_none() || self.holding(lane, now).is_none()))
    }

    pub(super) fn insert(&mut self, delivery: Delivery, place: Place, stage: Stage) {
        let index = self.lane(delivery.lane);
        self.lane_mut(index).kept[delivery.tier.index()] += 1;
        self.items.insert(delivery.id, Item { delivery, place, stage });
    }

    /// Lets one wait for its due time; when that has come it is ready at once.
    pub(super) fn wait(&mut self, id: DeliveryId, now: Timestamp) {
        let item = self.items.get_mut(&id).expect("waits in the window");
        item.stage = Stage::Waiting;
        self.recording.remove(&id);
        let due = item.delivery.state.due().unwrap_or(now);
        if let Some(at) = item.delivery.expiry.at() {
            self.timers.set(at, Timer::Over(id));
        }
        if due > now || matches!(item.delivery.state, State::AwaitingAck { .. }) {
            self.timers.set(due, Timer::Due(id));
        } else {
            self.due(id, now);
        }
    }

    /// Forgets one: it has ended, or the store keeps it.
    pub(super) fn leave(&mut self, id: DeliveryId, now: Timestamp) {
        let Some(item) = self.items.remove(&id) else { return };
        self.recording.remove(&id);
        if self.in_flight.remove(&id) {
            let index = self.lane(item.delivery.lane);
            let lane = self.lane_mut(index);
            lane.in_flight = lane.in_flight.saturating_sub(1);
        }
        if let Some(index) = self.lane_index.get(&item.delivery.lane).copied() {
            let kept = &mut self.lane_mut(index).kept[item.delivery.tier.index()];
            *kept = kept.saturating_sub(1);
            self.ring_lane(index, now);
            self.drop_if_idle(index, now);
        }
    }

    // --- lanes ---

    pub(super) fn lane(&mut self, id: LaneId) -> u32 {
        if let Some(index) = self.lane_index.get(&id) {
            return *index;
        }
        let index = self.free_lanes.pop().unwrap_or_else(|| {
            self.lanes.push(None);
            u32::try_from(self.lanes.len() - 1).expect("the window bounds the number of lanes")
        });
        self.lanes[index as usize] = Some(Lane::new(id));
        self.lane_index.insert(id, index);
        index
    }

    pub(super) fn lane_ref(&self, index: u32) -> &Lane {
        self.lanes[index as usize].as_ref().expect("an indexed lane is there")
    }

    pub(super) fn lane_mut(&mut self, index: u32) -> &mut Lane {
        self.lanes[index as usize].as_mut().expect("an indexed lane is there")
    }

    pub(super) fn lane_of(&self, id: DeliveryId) -> Option<&Lane> {
        let lane = self.items.get(&id)?.delivery.lane;
        self.lane_index.get(&lane).map(|index| self.lane_ref(*index))
    }

    /// Puts a lane in its tier's ring if it has something to send and may.
    pub(super) fn ring(&mut self, index: u32, tier: Tier, now: Timestamp) {
        let lane = self.lane_ref(index);
        if !lane.in_ring[tier.index()] && lane.has_ready(tier) && self.may_send(index, now) {
            self.lane_mut(index).in_ring[tier.index()] = true;
            self.turn.join(tier, index);
        }
    }

    pub(super) fn ring_lane(&mut self, index: u32, now: Timestamp) {
        for tier in Tier::ALL {
            self.ring(index, tier, now);
        }
        let lane = self.lane_ref(index);
        if lane.overflow.iter().any(|queue| queue.more) {
            let id = lane.id;
            self.hungry.insert(id);
        }
    }

    pub(super) fn ring_every_lane(&mut self, now: Timestamp) {
        for index in 0..u32::try_from(self.lanes.len()).expect("the window bounds the number of lanes") {
            if self.lanes[index as usize].is_some() {
                self.ring_lane(index, now);
            }
        }
    }

    /// Frees a lane that has nothing to do and stands in no ring.
    pub(super) fn drop_if_idle(&mut self, index: u32, now: Timestamp) {
        let lane = self.lane_ref(index);
        if lane.in_flight == 0 && lane.in_ring == [false; 3] && lane.is_idle(now) {
            let id = lane.id;
            self.lane_index.remove(&id);
            self.lanes[index as usize] = None;
            self.free_lanes.push(index);
        }
    }
}
