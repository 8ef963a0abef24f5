//! The pauses in force, each with its note, and the number of the latest pause of each scope. The scheduler knows only
//! that a scope is held.
//!
//! Invariant: when an outcome pauses its lane, outcome and pause are durable by the same commit. A pause or resume of
//! that lane that is requested after the decision reaches the store after the outcome.

use std::collections::BTreeMap;
use std::sync::Arc;

use posthaste_core::scheduler::PausedBy;
use posthaste_core::{DeliveryId, Hold, LaneId, Scheduler, Timestamp, Why};
use posthaste_store::{Pause, PauseScope};

use super::Effect;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseNumber(u64);

/// The pauses in force, and how many each scope had.
#[derive(Debug, Default)]
pub(super) struct PauseTable {
    by_scope: BTreeMap<PauseScope, Arc<Pause>>,
    /// The latest pause of each scope: a resume ends the pauses up to the one that was the latest when it was asked
    /// for.
    numbers: BTreeMap<PauseScope, PauseNumber>,
    /// Outcomes that pause their lanes and are not written yet.
    unwritten: BTreeMap<DeliveryId, LaneId>,
    /// Effects that wait for those outcomes, in order.
    behind: Vec<(LaneId, Effect)>,
}

impl PauseTable {
    pub(super) fn pause(&mut self, scheduler: &mut Scheduler, pause: Pause) {
        self.numbers.entry(pause.scope).or_insert(PauseNumber(0)).0 += 1;
        let hold = Hold { why: Why::Paused, until: pause.until };
        match pause.scope {
            PauseScope::All => scheduler.pause_all(hold),
            PauseScope::Tenant(tenant) => scheduler.pause_tenant(tenant, hold),
            PauseScope::Lane(lane) => scheduler.pause_lane(lane, hold),
            PauseScope::Origin(origin) => scheduler.pause_origin(origin, hold),
        }
        self.by_scope.insert(pause.scope, Arc::new(pause));
    }

    /// A receiver asked to be disabled: its lane is held before the store disables its endpoint.
    pub(super) fn disable(&mut self, scheduler: &mut Scheduler, lane: LaneId) {
        self.numbers.entry(PauseScope::Lane(lane)).or_insert(PauseNumber(0)).0 += 1;
        scheduler.pause_lane(lane, Hold { why: Why::EndpointDisabled, until: None });
    }

    /// The outcome of this delivery pauses its lane, and is to be written.
    pub(super) fn decided(&mut self, delivery: DeliveryId, lane: LaneId) {
        self.unwritten.insert(delivery, lane);
    }

    /// An outcome is written: emits the effects that waited for it.
    pub(super) fn written(&mut self, delivery: DeliveryId, effects: &mut Vec<Effect>) {
        if let Some(lane) = self.unwritten.remove(&delivery).filter(|lane| !self.is_decided(*lane)) {
            effects.extend(self.behind.extract_if(.., |(of, _)| *of == lane).map(|(_, effect)| effect));
        }
    }

    /// Emits an effect once every outcome that pauses the lane is written.
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

    /// Ends a pause in memory, unless the scope was paused again since this number.
    pub(super) fn resume(&mut self, scheduler: &mut Scheduler, now: Timestamp, scope: PauseScope, number: PauseNumber) {
        if self.number(scope) != number {
            return;
        }
        self.by_scope.remove(&scope);
        match scope {
            PauseScope::All => scheduler.resume_all(now),
            PauseScope::Tenant(tenant) => scheduler.resume_tenant(tenant, now),
            PauseScope::Lane(lane) => scheduler.resume_lane(lane, now),
            PauseScope::Origin(origin) => scheduler.resume_origin(origin, now),
        }
    }

    pub(super) fn number(&self, scope: PauseScope) -> PauseNumber {
        self.numbers.get(&scope).copied().unwrap_or(PauseNumber(0))
    }

    /// The pause of a scope, while it holds.
    pub(super) fn in_force(&self, scope: PauseScope, now: Timestamp) -> Option<&Arc<Pause>> {
        self.by_scope.get(&scope).filter(|pause| is_in_force(pause, now))
    }

    /// The pauses in force, in the order of scopes: skips `passed` and returns at most `most`.
    pub(super) fn list(&self, passed: usize, most: usize, now: Timestamp) -> Vec<Arc<Pause>> {
        let in_force = self.by_scope.values().filter(|pause| is_in_force(pause, now));
        in_force.skip(passed).take(most).cloned().collect()
    }
}

fn is_in_force(pause: &Pause, now: Timestamp) -> bool {
    pause.until.is_none_or(|until| now < until)
}

pub(super) fn scope(by: PausedBy, lane: LaneId) -> PauseScope {
    match by {
        PausedBy::All => PauseScope::All,
        PausedBy::Tenant(tenant) => PauseScope::Tenant(tenant),
        PausedBy::Origin(origin) => PauseScope::Origin(origin),
        PausedBy::Lane => PauseScope::Lane(lane),
    }
}
