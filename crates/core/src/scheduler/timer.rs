//! Timers of the window: one heap, in which equal times are ordered by kind, and the actions when they fire.
//!
//! Invariant: a timer that fires although its subject no longer needs it does no harm.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::flight::DeliveryChange;
use super::window::Item;
use super::{Scheduler, Stage};
use crate::delivery::{self, Circumstances};
use crate::flow::SharedGate;
use crate::{DeliveryId, LaneId, Roll, State, TenantId, Timestamp};

/// The purpose of a timer. A timer whose subject no longer needs it is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A lane's hold ends, or it has a token again, or it may be dropped.
    Lane(LaneId),
    /// A shared gate lets requests through again.
    Gate(SharedGate),
    /// A tenant has a token again.
    Tenant(TenantId),
    /// A pause of every lane, of a tenant or of an origin ends.
    Pause,
    /// Held lanes are searched again for rows that make room.
    Evict,
    /// A delivery's next transition is due.
    Due(DeliveryId),
    /// A delivery's TTL is over.
    Over(DeliveryId),
}

/// How soon a decision is tried again that needs settings of a lane which are not known yet.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Unneeded timers are removed only if there are at least this many timers.
const TIDY_FROM: usize = 1_024;

/// The timers, earliest first.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Timestamp, Timer)>>,
    /// Twice the number of needed timers at the last removal.
    tidy_at: usize,
    /// The time of the last call of [`Scheduler::next`].
    latest: Timestamp,
    /// Deliveries whose TTL may be over.
    pub(super) over: Vec<DeliveryId>,
    /// Deliveries whose receipt did not come in time.
    pub(super) unacknowledged: Vec<DeliveryId>,
}

impl Timers {
    pub(super) fn set(&mut self, at: Timestamp, timer: Timer) {
        self.heap.push(Reverse((at, timer)));
    }

    /// Takes the earliest timer that has fired by `now`.
    pub(super) fn take(&mut self, now: Timestamp) -> Option<Timer> {
        self.heap.peek().filter(|Reverse((at, _))| *at <= now)?;
        self.heap.pop().map(|Reverse((_, timer))| timer)
    }

    pub(super) fn next_at(&self) -> Option<Timestamp> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Whether half of the timers may be unneeded: the timer of a TTL of days outlives its delivery.
    pub(super) fn is_untidy(&self) -> bool {
        self.heap.len() >= self.tidy_at.max(TIDY_FROM)
    }

    /// Removes unneeded timers and duplicates.
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

impl Scheduler {
    /// Runs every timer that has fired by `now`.
    pub(super) fn fire(&mut self, now: Timestamp) {
        if now < self.timers.latest {
            self.catch_up(now);
        }
        self.timers.latest = now;
        if self.timers.is_untidy() {
            self.tidy_timers();
        }
        while let Some(timer) = self.timers.take(now) {
            match timer {
                Timer::Due(id) => self.due(id, now),
                Timer::Over(id) => self.timers.over.push(id),
                Timer::Pause => {
                    self.pauses.remove_ended(now);
                    self.enqueue_all_lanes(now);
                }
                Timer::Lane(lane) => {
                    if let Some(index) = self.lanes.find(lane) {
                        let lane = &mut self.lanes[index];
                        lane.release(now);
                        lane.wakes_at = Timestamp::MAX;
                        self.tidy_destination(index, now);
                        self.enqueue_tiers(index, now);
                        self.drop_if_idle(index, now);
                    }
                }
                Timer::Gate(gate) => self.look_at_gate(gate, now),
                Timer::Tenant(tenant) => self.turns.wake(tenant),
                // The timer only wakes the dispatch loop, which then calls `Scheduler::evict`.
                Timer::Evict => {}
            }
        }
    }

    /// After the clock was set back: limits continue from the new time.
    fn catch_up(&mut self, now: Timestamp) {
        for index in 0..self.lanes.slots.bound() {
            if let Some(lane) = self.lanes.slots.get_mut(index)
                && let Some(destination) = &mut lane.destination
            {
                destination.catch_up(lane.settings.as_deref(), now);
            }
        }
        self.shared.catch_up(now);
        self.turns.catch_up(now);
        let gates: Vec<SharedGate> = self.shared.iter().map(|(gate, ..)| gate).collect();
        gates.into_iter().for_each(|gate| self.enqueue_parked(gate, now));
        self.enqueue_all_lanes(now);
    }

    /// Removes timers that are not needed any more. A delivery that waits again sets its timer again.
    fn tidy_timers(&mut self) {
        let mut timers = std::mem::take(&mut self.timers);
        timers.tidy(|at, timer| match timer {
            Timer::Pause | Timer::Gate(_) | Timer::Tenant(_) | Timer::Evict => true,
            Timer::Due(id) => self.window.get(id).is_some_and(|item| item.stage == Stage::Waiting),
            Timer::Over(id) => self.window.get(id).is_some_and(Item::waits),
            Timer::Lane(lane) => self.lanes.of(lane).is_some_and(|lane| lane.wakes_at == at || lane.hold_ends(at)),
        });
        self.timers = timers;
    }

    /// Handles a delivery that is due: it becomes ready in its lane, or its receipt is missing.
    pub(super) fn due(&mut self, id: DeliveryId, now: Timestamp) {
        let Some(item) = self.window.get_mut(id).filter(|item| item.stage == Stage::Waiting) else { return };
        match item.delivery.state.due() {
            Some(due) if due > now => {} // the due time has changed, and a later timer is set
            _ if matches!(item.delivery.state, State::AwaitingAck { .. }) => self.timers.unacknowledged.push(id),
            _ => {
                item.stage = Stage::Ready;
                let (index, tier, born) = (item.lane, item.delivery.tier, item.delivery.born);
                let lane = &mut self.lanes[index];
                let part = lane.part(born);
                lane.push(tier, part, id);
                self.enqueue_lane(index, tier, now);
            }
        }
    }

    /// The next delivery whose receipt did not come in time, as a record of its retry or end.
    pub(super) fn next_ack_timeout(&mut self, now: Timestamp, roll: Roll) -> Option<DeliveryChange> {
        loop {
            let id = self.timers.unacknowledged.pop()?;
            let Some(item) = self.window.get(id).filter(|item| item.stage == Stage::Waiting) else { continue };
            if !matches!(item.delivery.state, State::AwaitingAck { .. }) {
                continue;
            }
            let Some(settings) = self.lane_of(id).and_then(|lane| lane.settings.clone()) else {
                // The lane's settings are not known yet: tried again soon.
                self.timers.set(now + ASK_AGAIN, Timer::Due(id));
                continue;
            };
            let (strict, cut) = (settings.strict(), self.cuts.cause(&item.delivery));
            let given = Circumstances { strict, cut, ..Circumstances::new(&settings.policy) };
            let decision = delivery::ack_timeout(&item.delivery, &given, now, roll.fork(id.raw()));
            return Some(self.window.apply(id, &decision));
        }
    }
}
