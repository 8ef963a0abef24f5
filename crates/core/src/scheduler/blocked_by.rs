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
use crate::hold::{Hold, Why};
use crate::tier::Tier;
use crate::time::Timestamp;

/// What blocks a lane from sending.
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

/// The event that unblocks a lane.
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
        if let Some(BreakerState::Open { until, .. }) =
            lane.destination.as_ref().map(|destination| destination.breaker.standing(now))
        {
            return Some(Hold { why: Why::BreakerOpen, until });
        }
        self.shared_open(lane, now).map(|(_, hold)| hold)
    }

    /// A pause, the lane's own hold, a disabled endpoint, or missing settings.
    fn explicit_hold(&self, lane: &Lane, now: Timestamp) -> Option<Hold> {
        let wide = self.wide_pause(lane.settings.as_deref(), now);
        wide.map(|(_, hold)| hold).or_else(|| lane.held(now))
    }

    /// What blocks a lane from sending a delivery of this tier now.
    pub(super) fn blocked_by(&self, index: u32, tier: Tier, now: Timestamp) -> Option<LaneBlock> {
        let lane = self.lane_ref(index);
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
        own.or_else(|| self.blocked_by_shared(lane, now))
    }

    /// Makes sure that a held lane is checked again although it has nothing in the window to send.
    pub(super) fn park_held(&mut self, index: u32, now: Timestamp) {
        let lane = self.lane_ref(index);
        let id = lane.id;
        if let Some(BreakerState::Open { until: Some(at), .. }) =
            lane.destination.as_ref().map(|destination| destination.breaker.standing(now))
        {
            return self.wake_lane(index, at, now);
        }
        if let Some((gate, hold)) = self.shared_open(lane, now) {
            self.park_at(gate, id, hold.until);
        }
    }

    /// Makes sure that a blocked lane is checked again.
    pub(super) fn park(&mut self, index: u32, block: LaneBlock, now: Timestamp) {
        let lane = self.lane_ref(index).id;
        match block.unblocked_by {
            // The end of an attempt, a resume or the hold's own timer checks the lane.
            UnblockedBy::Resume | UnblockedBy::AttemptEnd => {}
            UnblockedBy::Time(at) => self.wake_lane(index, at, now),
            UnblockedBy::Gate(gate) => self.park_at(gate, lane, block.hold.until),
        }
    }

    /// Sets a timer to check a lane at this time, unless an earlier one is set.
    pub(super) fn wake_lane(&mut self, index: u32, at: Timestamp, now: Timestamp) {
        let lane = self.lane_mut(index);
        if at < lane.wakes_at || lane.wakes_at < now {
            lane.wakes_at = at;
            let id = lane.id;
            self.timers.set(at, Timer::Lane(id));
        }
    }
}
