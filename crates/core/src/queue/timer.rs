//! Deadlines of the window: one heap, equal deadlines in the order of what they are for; and what each
//! does when it has come.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::record::Record;
use super::{Queue, Stage};
use crate::delivery::{self, Circumstances};
use crate::dice::Roll;
use crate::flow::SharedGate;
use crate::id::{DeliveryId, LaneId, TenantId};
use crate::state::State;
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

/// How soon to look again at what could not be decided for want of its lane's settings.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(1);

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

impl Queue {
    /// Lets every deadline that has come take effect.
    pub(super) fn fire(&mut self, now: Timestamp) {
        if now < self.latest {
            self.catch_up(now);
        }
        self.latest = now;
        if self.timers.is_untidy() {
            self.tidy_timers();
        }
        while let Some(timer) = self.timers.take(now) {
            match timer {
                Timer::Due(id) => self.due(id, now),
                Timer::Over(id) => self.over.push(id),
                // What is over stays over: a clock that is set back would find no timer to end it.
                Timer::Pause => {
                    self.paused_all = self.paused_all.filter(|hold| hold.holds(now));
                    self.paused_tenants.retain(|_, hold| hold.holds(now));
                    self.paused_origins.retain(|_, hold| hold.holds(now));
                    self.ring_every_lane(now);
                }
                Timer::Lane(lane) => {
                    if let Some(index) = self.lane_index.get(&lane).copied() {
                        let lane = self.lane_mut(index);
                        lane.release(now);
                        lane.wakes_at = Timestamp::MAX;
                        self.tidy_destination(index, now);
                        self.ring_lane(index, now);
                        self.drop_if_idle(index, now);
                    }
                }
                Timer::Gate(gate) => self.look_at_gate(gate, now),
                Timer::Tenant(tenant) => self.turn.wake(tenant),
                // Whoever is woken asks for what makes room.
                Timer::Shed => {}
            }
        }
    }

    /// The clock was set back: limits go on from here instead of waiting for the time it was.
    fn catch_up(&mut self, now: Timestamp) {
        for index in 0..self.lanes.bound() {
            let Some(lane) = self.lanes.get_mut(index) else { continue };
            let settings = lane.settings.clone();
            if let Some(destination) = &mut lane.destination {
                destination.catch_up(settings.as_deref(), now);
            }
        }
        self.catch_up_shared(now);
        self.turn.catch_up(now);
        let gates: Vec<SharedGate> = self.shared.keys().copied().collect();
        gates.into_iter().for_each(|gate| self.ring_parked(gate, now));
        self.ring_every_lane(now);
    }

    /// Forgets deadlines of what has moved on. Whoever waits again sets them again.
    fn tidy_timers(&mut self) {
        let mut timers = std::mem::take(&mut self.timers);
        timers.tidy(|at, timer| match timer {
            Timer::Pause | Timer::Gate(_) | Timer::Tenant(_) | Timer::Shed => true,
            Timer::Due(id) => self.items.get(&id).is_some_and(|item| item.stage == Stage::Waiting),
            Timer::Over(id) => {
                self.items.get(&id).is_some_and(|item| matches!(item.stage, Stage::Ready | Stage::Waiting))
            }
            Timer::Lane(lane) => self.lane_index.get(&lane).is_some_and(|index| {
                let lane = self.lane_ref(*index);
                lane.wakes_at == at || lane.hold_ends(at)
            }),
        });
        self.timers = timers;
    }

    /// Its next step is due: it stands in its lane, or its receipt did not come.
    pub(super) fn due(&mut self, id: DeliveryId, now: Timestamp) {
        let Some(item) = self.items.get_mut(&id).filter(|item| item.stage == Stage::Waiting) else { return };
        match item.delivery.state.due() {
            Some(due) if due > now => {} // it was moved; a later entry stands for it
            _ if matches!(item.delivery.state, State::AwaitingAck { .. }) => self.unacknowledged.push(id),
            _ => {
                item.stage = Stage::Ready;
                let (index, tier, born) = (item.lane, item.delivery.tier, item.delivery.born);
                let lane = self.lane_mut(index);
                let part = lane.part(born);
                lane.push(tier, part, id);
                self.ring(index, tier, now);
            }
        }
    }

    /// Receipts that did not come in time become retries: what to record of each.
    pub(super) fn next_ack_timeout(&mut self, now: Timestamp, roll: Roll) -> Option<Record> {
        loop {
            let id = self.unacknowledged.pop()?;
            let Some(item) = self.items.get(&id).filter(|item| item.stage == Stage::Waiting) else { continue };
            if !matches!(item.delivery.state, State::AwaitingAck { .. }) {
                continue;
            }
            let Some(settings) = self.lane_of(id).and_then(|lane| lane.settings.clone()) else {
                // Its lane is not known yet: decided as soon as it is.
                self.timers.set(now + ASK_AGAIN, Timer::Due(id));
                continue;
            };
            let (strict, cut) = (settings.strict(), self.cuts.cause(&item.delivery));
            let given = Circumstances { strict, cut, ..Circumstances::new(&settings.policy) };
            let decision = delivery::ack_timeout(&item.delivery, &given, now, roll.fork(id.raw()));
            return Some(self.apply(id, &decision));
        }
    }
}
