//! What keeps things from being sent: pauses of everything, a tenant or a lane, a lane's hold, cuts,
//! and what is known of its destination. A gate that holds says why and until when; holding costs
//! no attempt. What an answer does to the gates is in `answer.rs`.

use super::Queue;
use super::lane::Lane;
use super::timer::Timer;
use crate::cause::Cause;
use crate::cut::Scope;
use crate::flow::SharedGate;
use crate::flow::breaker::Standing;
use crate::hold::{Hold, Why};
use crate::id::{DeliveryId, Key, LaneId, TenantId};
use crate::tier::Tier;
use crate::time::Timestamp;

impl Queue {
    /// Puts a cut in force and says what it spares: what is in flight may still arrive, and what
    /// is being recorded has its outcome already.
    pub fn cut(&mut self, scope: Scope, upto: Key, cause: Cause) -> Vec<DeliveryId> {
        let mut spared: Vec<DeliveryId> = self
            .in_flight
            .iter()
            .map(|flight| &flight.delivery)
            .chain(self.recording.iter())
            .filter(|id| id.0 <= upto)
            .filter(|id| {
                let delivery = &self.items[id].delivery;
                match scope {
                    Scope::Message(message) => delivery.message == message,
                    Scope::Lane(lane) => delivery.lane == lane,
                }
            })
            .copied()
            .collect();
        spared.sort_unstable();
        self.cuts.put(scope, upto, cause);
        spared
    }

    /// Forgets a cut whose rows are all swept.
    pub fn forget_cut(&mut self, scope: Scope, upto: Key) {
        self.cuts.forget(scope, upto);
    }

    /// Pauses everything.
    pub fn pause_all(&mut self, hold: Hold) {
        self.shed_in_vain = None;
        self.paused_all = Some(hold);
        self.set_pause_timer(hold);
    }

    /// Pauses a tenant.
    pub fn pause_tenant(&mut self, tenant: TenantId, hold: Hold) {
        self.shed_in_vain = None;
        self.paused_tenants.insert(tenant, hold);
        self.set_pause_timer(hold);
    }

    /// Pauses a lane.
    pub fn pause_lane(&mut self, lane: LaneId, hold: Hold) {
        self.shed_in_vain = None;
        let index = self.lane(lane);
        self.lane_mut(index).holds_mut().paused = Some(hold);
        if let Some(until) = hold.until {
            self.timers.set(until, Timer::Lane(lane));
        }
    }

    /// Ends a pause of everything.
    pub fn resume_all(&mut self, now: Timestamp) {
        self.paused_all = None;
        self.ring_every_lane(now);
    }

    /// Ends a tenant's pause.
    pub fn resume_tenant(&mut self, tenant: TenantId, now: Timestamp) {
        self.paused_tenants.remove(&tenant);
        self.ring_every_lane(now);
    }

    /// Ends a lane's pause.
    pub fn resume_lane(&mut self, lane: LaneId, now: Timestamp) {
        if let Some(index) = self.lane_index.get(&lane).copied() {
            let lane = self.lane_mut(index);
            lane.holds_mut().paused = None;
            lane.release(now);
            self.ring_lane(index, now);
            self.drop_if_idle(index, now);
        }
    }

    fn set_pause_timer(&mut self, hold: Hold) {
        if let Some(until) = hold.until {
            self.timers.set(until, Timer::Pause);
        }
    }

    /// Holds a lane; of two holds the one that lasts longer counts.
    pub(super) fn hold(&mut self, lane: LaneId, hold: Hold) {
        let index = self.lane(lane);
        let holds = self.lane_mut(index).holds_mut();
        let longer = match (holds.by_answer.map(|held| held.until), hold.until) {
            (Some(None), _) => false,
            (Some(Some(held)), Some(until)) => until > held,
            _ => true,
        };
        if longer {
            holds.by_answer = Some(hold);
            self.shed_in_vain = None;
            if let Some(until) = hold.until {
                self.timers.set(until, Timer::Lane(lane));
            }
        }
    }

    /// What holds a whole lane for now: nothing of it is taken in, paged in or sent.
    pub(super) fn holding(&self, lane: &Lane, now: Timestamp) -> Option<Hold> {
        if let Some(hold) = self.word(lane, now) {
            return Some(hold);
        }
        if let Some(Standing::Open { until, .. }) =
            lane.destination.as_ref().map(|destination| destination.breaker.standing(now))
        {
            return Some(Hold { why: Why::BreakerOpen, until });
        }
        self.shared_open(lane, now).map(|(_, hold)| hold)
    }

    /// Somebody's word, or the receiver's, that a lane must wait.
    fn word(&self, lane: &Lane, now: Timestamp) -> Option<Hold> {
        if let Some(hold) = self.paused_all.filter(|hold| hold.holds(now)) {
            return Some(hold);
        }
        if !self.paused_tenants.is_empty()
            && let Some(settings) = &lane.settings
            && let Some(hold) = self.paused_tenants.get(&settings.tenant).filter(|hold| hold.holds(now))
        {
            return Some(*hold);
        }
        lane.held(now)
    }

    /// What keeps a lane from sending something of this tier now.
    pub(super) fn bar(&self, index: u32, tier: Tier, now: Timestamp) -> Option<Bar> {
        let lane = self.lane_ref(index);
        if let Some(hold) = self.word(lane, now) {
            return Some(Bar { hold, lifts: Lifts::ByWord });
        }
        if !lane.has_slot() {
            let why = if lane.is_strict() { Why::Order } else { Why::Concurrency };
            return Some(Bar { hold: Hold { why, until: None }, lifts: Lifts::ByLanding });
        }
        let settings = lane.settings.as_ref()?;
        if tier == Tier::Engagement
            && let Some(at) = settings.off_peak().and_then(|window| window.opens_at(now))
        {
            return Some(Bar::until(Why::OffPeak, at));
        }
        let own = lane.destination.as_ref().and_then(|destination| destination.bar(settings, now));
        own.or_else(|| self.shared_bar(lane, now))
    }

    /// Sees to it that a held lane is looked at again, though it has nothing in the window to send.
    pub(super) fn park_held(&mut self, index: u32, now: Timestamp) {
        let lane = self.lane_ref(index);
        let id = lane.id;
        if let Some(Standing::Open { until: Some(at), .. }) =
            lane.destination.as_ref().map(|destination| destination.breaker.standing(now))
        {
            return self.wake_lane(index, at, now);
        }
        if let Some((gate, hold)) = self.shared_open(lane, now) {
            self.park_at(gate, id, hold.until);
        }
    }

    /// Sees to it that a barred lane is looked at again.
    pub(super) fn park(&mut self, index: u32, bar: Bar, now: Timestamp) {
        let lane = self.lane_ref(index).id;
        match bar.lifts {
            // A landing, a resume or the hold's own timer looks at the lane.
            Lifts::ByWord | Lifts::ByLanding => {}
            Lifts::At(at) => self.wake_lane(index, at, now),
            Lifts::ByGate(gate) => self.park_at(gate, lane, bar.hold.until),
        }
    }

    /// Looks at a lane again at this time, unless that happens anyway.
    pub(super) fn wake_lane(&mut self, index: u32, at: Timestamp, now: Timestamp) {
        let lane = self.lane_mut(index);
        if at < lane.wakes_at || lane.wakes_at < now {
            lane.wakes_at = at;
            let id = lane.id;
            self.timers.set(at, Timer::Lane(id));
        }
    }
}

/// Something that keeps a lane from sending.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bar {
    pub(super) hold: Hold,
    pub(super) lifts: Lifts,
}

/// How a bar is lifted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lifts {
    ByWord,
    ByLanding,
    ByGate(SharedGate),
    At(Timestamp),
}

impl Bar {
    pub(super) fn until(why: Why, at: Timestamp) -> Self {
        Self { hold: Hold { why, until: Some(at) }, lifts: Lifts::At(at) }
    }
}
