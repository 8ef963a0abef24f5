//! What keeps things from being sent: pauses of everything, a tenant or a lane, a lane's hold,
//! cuts. A gate that holds says why and until when; holding costs no attempt.

use super::Queue;
use super::lane::Lane;
use super::timer::Timer;
use crate::cause::Cause;
use crate::cut::Scope;
use crate::hold::Hold;
use crate::id::{DeliveryId, Key, LaneId, TenantId};
use crate::time::Timestamp;

impl Queue {
    /// Puts a cut in force and says what it spares: what is in flight may still arrive, and what
    /// is being recorded has its outcome already.
    pub fn cut(&mut self, scope: Scope, upto: Key, cause: Cause) -> Vec<DeliveryId> {
        let spared = self
            .in_flight
            .union(&self.recording)
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
        self.cuts.put(scope, upto, cause);
        spared
    }

    /// Forgets a cut whose rows are all swept.
    pub fn forget_cut(&mut self, scope: Scope, upto: Key) {
        self.cuts.forget(scope, upto);
    }

    /// Pauses everything.
    pub fn pause_all(&mut self, hold: Hold) {
        self.paused_all = Some(hold);
        self.set_pause_timer(hold);
    }

    /// Pauses a tenant.
    pub fn pause_tenant(&mut self, tenant: TenantId, hold: Hold) {
        self.paused_tenants.insert(tenant, hold);
        self.set_pause_timer(hold);
    }

    /// Pauses a lane.
    pub fn pause_lane(&mut self, lane: LaneId, hold: Hold) {
        let index = self.lane(lane);
        self.lane_mut(index).paused = Some(hold);
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
            self.lane_mut(index).paused = None;
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
        let lane_mut = self.lane_mut(index);
        let longer = match (lane_mut.hold.map(|held| held.until), hold.until) {
            (Some(None), _) => false,
            (Some(Some(held)), Some(asked)) => asked > held,
            _ => true,
        };
        if longer {
            lane_mut.hold = Some(hold);
            if let Some(until) = hold.until {
                self.timers.set(until, Timer::Lane(lane));
            }
        }
    }

    /// What holds a lane, at any of its gates.
    pub(super) fn holding(&self, lane: &Lane, now: Timestamp) -> Option<Hold> {
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

    pub(super) fn may_send(&self, index: u32, now: Timestamp) -> bool {
        let lane = self.lane_ref(index);
        lane.has_slot() && self.holding(lane, now).is_none()
    }
}
