//! Pauses of the whole server, a tenant, an origin or a lane, and holds of a lane by an answer's `Retry-After`.
//! `blocked_by.rs` applies them to a lane.
//!
//! Invariant: a pause ends no delivery and spends no attempt.

use super::Scheduler;
use super::lane::LaneSettings;
use super::timer::Timer;
use crate::hold::Hold;
use crate::id::{LaneId, OriginId, TenantId};
use crate::time::Timestamp;

/// Which pause holds a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PausedBy {
    /// The pause of the whole server.
    All,
    /// The pause of its tenant.
    Tenant(TenantId),
    /// The pause of its origin.
    Origin(OriginId),
    /// The pause of the lane itself.
    Lane,
}

impl Scheduler {
    /// Pauses every lane.
    pub fn pause_all(&mut self, hold: Hold) {
        self.evicted_in_vain = None;
        self.paused_all = Some(hold);
        self.set_pause_timer(hold);
    }

    /// Pauses a tenant.
    pub fn pause_tenant(&mut self, tenant: TenantId, hold: Hold) {
        self.evicted_in_vain = None;
        self.paused_tenants.insert(tenant, hold);
        self.set_pause_timer(hold);
    }

    /// Pauses every lane that sends to this origin.
    pub fn pause_origin(&mut self, origin: OriginId, hold: Hold) {
        self.evicted_in_vain = None;
        self.paused_origins.insert(origin, hold);
        self.set_pause_timer(hold);
    }

    /// Pauses a lane.
    pub fn pause_lane(&mut self, lane: LaneId, hold: Hold) {
        self.evicted_in_vain = None;
        let index = self.lane(lane);
        self.lane_mut(index).holds_mut().paused = Some(hold);
        if let Some(until) = hold.until {
            self.timers.set(until, Timer::Lane(lane));
        }
    }

    /// The pause of the lane itself, if there is one.
    pub fn pause_of_lane(&self, lane: LaneId, now: Timestamp) -> Option<Hold> {
        let holds = self.lane_ref(*self.lane_index.get(&lane)?).holds.as_ref()?;
        holds.paused.filter(|hold| hold.holds(now))
    }

    /// The pause that holds a lane, if any; the widest if there are several.
    pub fn paused_by(&self, lane: LaneId, now: Timestamp) -> Option<PausedBy> {
        let lane = self.lane_index.get(&lane).map(|index| self.lane_ref(*index));
        let settings = lane.and_then(|lane| lane.settings.as_deref());
        let wide = self.wide_pause(settings, now).map(|(by, _)| by);
        let own = || lane?.holds.as_ref()?.paused.filter(|hold| hold.holds(now)).map(|_| PausedBy::Lane);
        wide.or_else(own)
    }

    /// The widest pause of more than one lane that holds a lane with these settings.
    pub(super) fn wide_pause(&self, settings: Option<&LaneSettings>, now: Timestamp) -> Option<(PausedBy, Hold)> {
        let in_force = |hold: &Hold| hold.holds(now);
        if let Some(hold) = self.paused_all.filter(in_force) {
            return Some((PausedBy::All, hold));
        }
        if self.paused_tenants.is_empty() && self.paused_origins.is_empty() {
            return None;
        }
        let settings = settings?;
        if let Some(hold) = self.paused_tenants.get(&settings.tenant).copied().filter(in_force) {
            return Some((PausedBy::Tenant(settings.tenant), hold));
        }
        let origin = settings.origin?;
        let hold = self.paused_origins.get(&origin).copied().filter(in_force)?;
        Some((PausedBy::Origin(origin), hold))
    }

    /// Ends the pause of every lane.
    pub fn resume_all(&mut self, now: Timestamp) {
        self.paused_all = None;
        self.enqueue_all_lanes(now);
    }

    /// Ends a tenant's pause.
    pub fn resume_tenant(&mut self, tenant: TenantId, now: Timestamp) {
        self.paused_tenants.remove(&tenant);
        self.enqueue_all_lanes(now);
    }

    /// Ends an origin's pause.
    pub fn resume_origin(&mut self, origin: OriginId, now: Timestamp) {
        self.paused_origins.remove(&origin);
        self.enqueue_all_lanes(now);
    }

    /// Ends a lane's pause.
    pub fn resume_lane(&mut self, lane: LaneId, now: Timestamp) {
        if let Some(index) = self.lane_index.get(&lane).copied() {
            let lane = self.lane_mut(index);
            lane.holds_mut().paused = None;
            lane.release(now);
            self.enqueue_tiers(index, now);
            self.drop_if_idle(index, now);
        }
    }

    /// Holds a lane; of two holds the longer one applies.
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
            self.evicted_in_vain = None;
            if let Some(until) = hold.until {
                self.timers.set(until, Timer::Lane(lane));
            }
        }
    }

    fn set_pause_timer(&mut self, hold: Hold) {
        if let Some(until) = hold.until {
            self.timers.set(until, Timer::Pause);
        }
    }
}
