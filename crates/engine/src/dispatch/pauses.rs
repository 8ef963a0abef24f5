//! What is paused: what was said of it, and which pause of its scope is the latest. The queue knows only that it
//! holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use posthaste_core::hold::{Hold, Why};
use posthaste_core::id::LaneId;
use posthaste_core::queue::{PausedBy, Queue};
use posthaste_core::time::Timestamp;
use posthaste_store::{Pause, PauseScope};

/// Counts the pauses of a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseNumber(u64);

/// The pauses in force, and how many there were.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    said: BTreeMap<PauseScope, Arc<Pause>>,
    /// Of every scope that was paused: a resume ends those before it was asked for.
    numbers: BTreeMap<PauseScope, PauseNumber>,
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
