//! Pauses of the whole server, a tenant, an origin or a lane, and holds of a lane by an answer's `Retry-After`.
//! `blocked_by.rs` applies them to a lane.
//!
//! Invariant: a pause ends no delivery and spends no attempt.

use super::Scheduler;
use super::lane::LaneSettings;
use super::timer::Timer;
use crate::{Hold, IdMap, LaneId, OriginId, TenantId, Timestamp};

/// Which pause holds a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PausedBy {
    All,
    Tenant(TenantId),
    Origin(OriginId),
    Lane,
}

/// The pauses of more than one lane.
#[derive(Debug, Default)]
pub(super) struct WidePauses {
    all: Option<Hold>,
    tenants: IdMap<TenantId, Hold>,
    origins: IdMap<OriginId, Hold>,
}

impl WidePauses {
    /// The widest pause that holds a lane with these settings.
    pub(super) fn holding(&self, settings: Option<&LaneSettings>, now: Timestamp) -> Option<(PausedBy, Hold)> {
        let in_force = |hold: &Hold| hold.holds(now);
        if let Some(hold) = self.all(now) {
            return Some((PausedBy::All, hold));
        }
        if self.tenants.is_empty() && self.origins.is_empty() {
            return None;
        }
        let settings = settings?;
        if let Some(hold) = self.tenants.get(&settings.tenant).copied().filter(in_force) {
            return Some((PausedBy::Tenant(settings.tenant), hold));
        }
        let origin = settings.origin?;
        let hold = self.origins.get(&origin).copied().filter(in_force)?;
        Some((PausedBy::Origin(origin), hold))
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_none() && self.tenants.is_empty() && self.origins.is_empty()
    }

    pub(super) fn all(&self, now: Timestamp) -> Option<Hold> {
        self.all.filter(|hold| hold.holds(now))
    }

    /// How many tenants and how many origins are paused.
    pub(super) fn counts(&self, now: Timestamp) -> (u64, u64) {
        let tenants = self.tenants.values().filter(|hold| hold.holds(now)).count();
        let origins = self.origins.values().filter(|hold| hold.holds(now)).count();
        (tenants as u64, origins as u64)
    }

    /// Removes pauses that have ended: if the clock is set back, there is no timer to end them again.
    pub(super) fn remove_ended(&mut self, now: Timestamp) {
        self.all = self.all(now);
        self.tenants.retain(|_, hold| hold.holds(now));
        self.origins.retain(|_, hold| hold.holds(now));
    }
}

impl Scheduler {
    pub fn pause_all(&mut self, hold: Hold) {
        self.pauses.all = Some(hold);
        self.pause_began(hold);
    }

    pub fn pause_tenant(&mut self, tenant: TenantId, hold: Hold) {
        self.pauses.tenants.insert(tenant, hold);
        self.pause_began(hold);
    }

    pub fn pause_origin(&mut self, origin: OriginId, hold: Hold) {
        self.pauses.origins.insert(origin, hold);
        self.pause_began(hold);
    }

    pub fn pause_lane(&mut self, lane: LaneId, hold: Hold) {
        self.backlog.hold_began();
        let index = self.lanes.ensure(lane);
        self.lanes[index].holds_mut().paused = Some(hold);
        if let Some(until) = hold.until {
            self.timers.set(until, Timer::Lane(lane));
        }
    }

    pub fn pause_of_lane(&self, lane: LaneId, now: Timestamp) -> Option<Hold> {
        let holds = self.lanes.of(lane)?.holds.as_ref()?;
        holds.paused.filter(|hold| hold.holds(now))
    }

    /// The pause that holds a lane, if any; the widest if there are several.
    pub fn paused_by(&self, lane: LaneId, now: Timestamp) -> Option<PausedBy> {
        let lane = self.lanes.of(lane);
        let settings = lane.and_then(|lane| lane.settings.as_deref());
        let wide = self.pauses.holding(settings, now).map(|(by, _)| by);
        let own = || lane?.holds.as_ref()?.paused.filter(|hold| hold.holds(now)).map(|_| PausedBy::Lane);
        wide.or_else(own)
    }

    pub fn resume_all(&mut self, now: Timestamp) {
        self.pauses.all = None;
        self.enqueue_all_lanes(now);
    }

    pub fn resume_tenant(&mut self, tenant: TenantId, now: Timestamp) {
        self.pauses.tenants.remove(&tenant);
        self.enqueue_all_lanes(now);
    }

    pub fn resume_origin(&mut self, origin: OriginId, now: Timestamp) {
        self.pauses.origins.remove(&origin);
        self.enqueue_all_lanes(now);
    }

    pub fn resume_lane(&mut self, lane: LaneId, now: Timestamp) {
        if let Some(index) = self.lanes.find(lane) {
            let lane = &mut self.lanes[index];
            lane.holds_mut().paused = None;
            lane.release(now);
            self.enqueue_tiers(index, now);
            self.drop_if_idle(index, now);
        }
    }

    /// Holds a lane; of two holds the longer one applies.
    pub(super) fn hold(&mut self, lane: LaneId, hold: Hold) {
        let index = self.lanes.ensure(lane);
        let holds = self.lanes[index].holds_mut();
        let longer = match (holds.by_answer.map(|held| held.until), hold.until) {
            (Some(None), _) => false,
            (Some(Some(held)), Some(until)) => until > held,
            _ => true,
        };
        if longer {
            holds.by_answer = Some(hold);
            self.backlog.hold_began();
            if let Some(until) = hold.until {
                self.timers.set(until, Timer::Lane(lane));
            }
        }
    }

    fn pause_began(&mut self, hold: Hold) {
        self.backlog.hold_began();
        if let Some(until) = hold.until {
            self.timers.set(until, Timer::Pause);
        }
    }
}
