//! What is paused: what was said of it, and which pause of its scope is the latest. The queue knows only that it
//! holds.
//!
//! Invariant: a lane that an outcome holds is held by the same commit as the outcome is written. What somebody says of
//! the lane after that outcome was decided reaches the store behind it.

use std::collections::BTreeMap;
use std::sync::Arc;

use posthaste_core::hold::{Hold, Why};
use posthaste_core::id::{DeliveryId, LaneId};
use posthaste_core::queue::{PausedBy, Queue};
use posthaste_core::time::Timestamp;
use posthaste_store::{Pause, PauseScope};

use super::Effect;

/// Counts the pauses of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseNumber(u64);

/// The pauses in force, and how many there were.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    said: BTreeMap<PauseScope, Arc<Pause>>,
    /// Of every scope that was paused: a resume ends those before it was asked for.
    numbers: BTreeMap<PauseScope, PauseNumber>,
    /// The lanes of outcomes that hold them, and are not written yet.
    unwritten: BTreeMap<DeliveryId, LaneId>,
    /// What was asked for meanwhile, in its order.
    behind: Vec<(LaneId, Effect)>,
}

impl Pauses {
    /// Holds, from now on.
    pub(super) fn pause(&mut self, queue: &mut Queue, pause: Pause) {
        self.numbers.entry(pause.scope).or_insert(PauseNumber(0)).0 += 1;
        let hold = Hold { why: Why::Paused, until: pause.until };
        match pause.scope {
            PauseScope::All => queue.pause_all(hold),
            PauseScope::Tenant(tenant) => queue.pause_tenant(tenant, hold),
            PauseScope::Lane(lane) => queue.pause_lane(lane, hold),
            PauseScope::Origin(origin) => queue.pause_origin(origin, hold),
        }
        self.said.insert(pause.scope, Arc::new(pause));
    }

    /// A receiver asked for nothing more: its lane holds before its endpoint is disabled.
    pub(super) fn disable(&mut self, queue: &mut Queue, lane: LaneId) {
        self.numbers.entry(PauseScope::Lane(lane)).or_insert(PauseNumber(0)).0 += 1;
        queue.pause_lane(lane, Hold { why: Why::EndpointDisabled, until: None });
    }

    /// The outcome of this delivery is to be written, and holds its lane from then on.
    pub(super) fn decided(&mut self, delivery: DeliveryId, lane: LaneId) {
        self.unwritten.insert(delivery, lane);
    }

    /// An outcome is written: what waited for it is done now.
    pub(super) fn written(&mut self, delivery: DeliveryId, effects: &mut Vec<Effect>) {
        if let Some(lane) = self.unwritten.remove(&delivery).filter(|lane| !self.is_decided(*lane)) {
            effects.extend(self.behind.extract_if(.., |(of, _)| *of == lane).map(|(_, effect)| effect));
        }
    }

    /// Does this once every outcome is written that holds the lane.
    pub(super) fn behind_outcomes(&mut self, lane: LaneId, effect: Effect, effects: &mut Vec<Effect>) {
        if self.is_decided(lane) {
            self.behind.push((lane, effect));
        } else {
            effects.push(effect);
        }
    }

    fn is_decided(&self, lane: LaneId) -> bool {
        self.unwritten.values().any(|of| *of == lane)
    }

    /// Lets go, unless somebody has paused it again since.
    pub(super) fn resume(&mut self, queue: &mut Queue, now: Timestamp, scope: PauseScope, number: PauseNumber) {
        if self.number(scope) != number {
            return;
        }
        self.said.remove(&scope);
        match scope {
            PauseScope::All => queue.resume_all(now),
            PauseScope::Tenant(tenant) => queue.resume_tenant(tenant, now),
            PauseScope::Lane(lane) => queue.resume_lane(lane, now),
            PauseScope::Origin(origin) => queue.resume_origin(origin, now),
        }
    }

    /// Which pause of a scope is the latest.
    pub(super) fn number(&self, scope: PauseScope) -> PauseNumber {
        self.numbers.get(&scope).copied().unwrap_or(PauseNumber(0))
    }

    /// The pause of a scope, while it holds.
    pub(super) fn in_force(&self, scope: PauseScope, now: Timestamp) -> Option<&Arc<Pause>> {
        self.said.get(&scope).filter(|pause| is_in_force(pause, now))
    }

    /// What is paused, in the order of scopes, without the first so many.
    pub(super) fn list(&self, passed: usize, most: usize, now: Timestamp) -> Vec<Arc<Pause>> {
        let in_force = self.said.values().filter(|pause| is_in_force(pause, now));
        in_force.skip(passed).take(most).cloned().collect()
    }
}

fn is_in_force(pause: &Pause, now: Timestamp) -> bool {
    pause.until.is_none_or(|until| now < until)
}

/// The scope of the pause that holds a lane.
pub(super) fn scope(by: PausedBy, lane: LaneId) -> PauseScope {
    match by {
        PausedBy::All => PauseScope::All,
        PausedBy::Tenant(tenant) => PauseScope::Tenant(tenant),
        PausedBy::Origin(origin) => PauseScope::Origin(origin),
        PausedBy::Lane => PauseScope::Lane(lane),
    }
}
