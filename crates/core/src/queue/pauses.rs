//! Somebody's word that something must wait: pauses of everything, a tenant, an origin or a lane, and a lane's hold
//! that an answer asked for. What is held still exists; what they mean for a lane is in `bar.rs`.

use super::Queue;
use super::lane::LaneSettings;
use super::timer::Timer;
use crate::hold::Hold;
use crate::id::{LaneId, OriginId, TenantId};
use crate::time::Timestamp;

/// Which pause holds a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PausedBy {
    /// The one of everything.
    All,
    /// Its tenant's.
    Tenant(TenantId),
    /// The one of where it sends to.
    Origin(OriginId),
    /// Its own.
    Lane,
}

impl Queue {
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

    /// Pauses every lane that sends there.
    pub fn pause_origin(&mut self, origin: OriginId, hold: Hold) {
        self.shed_in_vain = None;
        self.paused_origins.insert(origin, hold);
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

    /// Who paused a lane, and until when, as far as somebody has.
    pub fn pause_of_lane(&self, lane: LaneId, now: Timestamp) -> Option<Hold> {
        let holds = self.lane_ref(*self.lane_index.get(&lane)?).holds.as_ref()?;
        holds.paused.filter(|hold| hold.holds(now))
    }

    /// Which pause holds a lane, where one does: the widest, since all of them have to end.
    pub fn paused_by(&self, lane: LaneId, now: Timestamp) -> Option<PausedBy> {
        let lane = self.lane_index.get(&lane).map(|index| self.lane_ref(*index));
        let settings = lane.and_then(|lane| lane.settings.as_deref());
        let wide = self.wide_pause(settings, now).map(|(by, _)| by);
        let own = || lane?.holds.as_ref()?.paused.filter(|hold| hold.holds(now)).map(|_| PausedBy::Lane);
        wide.or_else(own)
    }

    /// A pause that holds more than one lane, among them one with these settings.
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

    /// Ends an origin's pause.
    pub fn resume_origin(&mut self, origin: OriginId, now: Timestamp) {
        self.paused_origins.remove(&origin);
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

    fn set_pause_timer(&mut self, hold: Hold) {
        if let Some(until) = hold.until {
            self.timers.set(until, Timer::Pause);
        }
    }
}
