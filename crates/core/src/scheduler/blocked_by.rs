//! What blocks a lane from sending right now, and which event unblocks it: a pause or a `Retry-After`, the lane's own
//! slots, its destination, or a gate it shares. Being blocked costs no attempt. `answer.rs` updates the gates after an
//! answer.
//!
//! Invariant: a blocked lane is checked again by the event that unblocks it.

use super::Scheduler;
use super::lane::Lane;
use super::timer::Timer;
use crate::flow::SharedGate;
use crate::flow::breaker::BreakerState;
use crate::{Hold, Tier, Timestamp, Why};

#[derive(Clone, Copy, Debug)]
pub(super) struct LaneBlock {
    pub(super) hold: Hold,
    pub(super) unblocked_by: UnblockedBy,
}

impl LaneBlock {
    pub(super) fn until(why: Why, at: Timestamp) -> Self {
        Self { hold: Hold { why, until: Some(at) }, unblocked_by: UnblockedBy::Time(at) }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum UnblockedBy {
    Resume,
    AttemptEnd,
    Gate(SharedGate),
    Time(Timestamp),
}

impl Scheduler {
    /// What holds a whole lane: none of its deliveries is admitted, paged in or sent.
    pub(super) fn holding(&self, lane: &Lane, now: Timestamp) -> Option<Hold> {
        if let Some(hold) = self.explicit_hold(lane, now) {
            return Some(hold);
        }
        if let BreakerState::Open { until, .. } = lane.breaker_state(now) {
            return Some(Hold { why: Why::BreakerOpen, until });
        }
        self.shared.open(lane, now).map(|(_, hold)| hold)
    }

    /// A pause, the lane's own hold, a disabled endpoint, or missing settings.
    fn explicit_hold(&self, lane: &Lane, now: Timestamp) -> Option<Hold> {
        let wide = self.pauses.holding(lane.settings.as_deref(), now);
        wide.map(|(_, hold)| hold).or_else(|| lane.held(now))
    }

    /// What blocks a lane from sending a delivery of this tier now.
    pub(super) fn blocked_by(&self, index: u32, tier: Tier, now: Timestamp) -> Option<LaneBlock> {
        let lane = &self.lanes[index];
        if let Some(hold) = self.explicit_hold(lane, now) {
            return Some(LaneBlock { hold, unblocked_by: UnblockedBy::Resume });
        }
        if !lane.has_slot() {
            let why = if lane.is_strict() { Why::Order } else { Why::Concurrency };
            return Some(LaneBlock { hold: Hold { why, until: None }, unblocked_by: UnblockedBy::AttemptEnd });
        }
        let settings = lane.settings.as_ref()?;
        if tier == Tier::Engagement
            && let Some(at) = settings.off_peak().and_then(|window| window.opens_at(now))
        {
            return Some(LaneBlock::until(Why::OffPeak, at));
        }
        let own = lane.destination.as_ref().and_then(|destination| destination.blocked_by(settings, now));
        own.or_else(|| self.shared.blocked_by(lane, now))
    }

    /// Makes sure that a held lane is checked again although it has nothing in the window to send.
    pub(super) fn park_held(&mut self, index: u32, now: Timestamp) {
        let lane = &self.lanes[index];
        if let BreakerState::Open { until: Some(at), .. } = lane.breaker_state(now) {
            return self.wake_lane(index, at, now);
        }
        if let Some((gate, hold)) = self.shared.open(lane, now) {
            self.shared.park(gate, lane.id, lane.used(), hold.until, &mut self.timers);
        }
    }

    /// Makes sure that a blocked lane is checked again.
    pub(super) fn park(&mut self, index: u32, block: LaneBlock, now: Timestamp) {
        let lane = &self.lanes[index];
        match block.unblocked_by {
            // The end of an attempt, a resume or the hold's own timer checks the lane.
            UnblockedBy::Resume | UnblockedBy::AttemptEnd => {}
            UnblockedBy::Time(at) => self.wake_lane(index, at, now),
            UnblockedBy::Gate(gate) => {
                self.shared.park(gate, lane.id, lane.used(), block.hold.until, &mut self.timers);
            }
        }
    }

    /// Sets a timer to check a lane at this time, unless an earlier one is set.
    pub(super) fn wake_lane(&mut self, index: u32, at: Timestamp, now: Timestamp) {
        let lane = &mut self.lanes[index];
        if at < lane.wakes_at || lane.wakes_at < now {
            lane.wakes_at = at;
            let id = lane.id;
            self.timers.set(at, Timer::Lane(id));
        }
    }

    /// Adds a lane to a tier's ring if it has a delivery to send and is not blocked.
    pub(super) fn enqueue_lane(&mut self, index: u32, tier: Tier, now: Timestamp) {
        let lane = &self.lanes[index];
        if lane.in_ring[tier.index()] {
            return;
        }
        if !lane.has_ready(tier, now) {
            if let Some(at) = lane.postponed_until(tier, now) {
                self.wake_lane(index, at, now);
            }
            return;
        }
        if let Some(block) = self.blocked_by(index, tier, now) {
            if block.hold.why == Why::RateLimit
                && let Some(pace) =
                    self.lanes[index].destination.as_mut().and_then(|destination| destination.pace.as_mut())
            {
                pace.held_back(now);
            }
            return self.park(index, block, now);
        }
        let Some(tenant) = lane.settings.as_ref().map(|settings| settings.tenant) else { return };
        let speed = lane.speed();
        self.lanes[index].in_ring[tier.index()] = true;
        let tenant = self.turns.tenant(tenant, now);
        self.turns.join(tier, tenant, index, speed, now);
    }

    pub(super) fn enqueue_tiers(&mut self, index: u32, now: Timestamp) {
        for tier in Tier::ALL {
            self.enqueue_lane(index, tier, now);
        }
        let lane = &self.lanes[index];
        if lane.has_more() {
            self.stand_in_line(index);
        }
    }

    pub(super) fn enqueue_all_lanes(&mut self, now: Timestamp) {
        for index in 0..self.lanes.slots.bound() {
            if self.lanes.slots.get(index).is_some() {
                self.enqueue_tiers(index, now);
            }
        }
    }

    /// Drops a lane that has nothing to do and is in no ring.
    pub(super) fn drop_if_idle(&mut self, index: u32, now: Timestamp) {
        let lane = &self.lanes[index];
        if lane.in_flight > 0 || lane.in_ring != [false; 3] || lane.kept != [0; 3] {
            return;
        }
        if lane.is_idle(now) {
            self.lanes.remove(index);
        } else if let Some(at) = lane.destination.as_ref().map(|destination| destination.over_at(now)) {
            self.wake_lane(index, at, now);
        }
    }
}
