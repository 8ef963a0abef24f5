//! Stores the breakers that are not closed, so that a restart knows them (E1). They are written every few
//! seconds while they change; a crash loses only the changes since the last write.
//!
//! Invariants: at most one write is under way; while every breaker is closed and was at the last write, nothing
//! is written and no timer is set. The stored part of a breaker is `core::flow::breaker::Soft`.

use std::time::Duration;

use posthaste_core::scheduler::{BreakerOf, Reset, SoftBreaker};
use posthaste_core::{Class, Timestamp, Verdict};

use super::call::StoreCall;
use super::{Dispatch, Effect};

/// The shortest time between two writes, and so how old the stored breakers may become.
const REMEMBER_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct StoredBreakers {
    /// Those that are stored or being written.
    breakers: Vec<SoftBreaker>,
    /// Whether a write is under way.
    pub(super) is_writing: bool,
    /// A breaker may have changed since the last comparison.
    is_stale: bool,
    /// The earliest time of the next comparison, whose cost grows with the number of breakers.
    look_at: Timestamp,
}

impl StoredBreakers {
    /// When to compare the breakers with the stored ones; `None` if none can have changed or a write is under way.
    pub(super) fn look_at(&self) -> Option<Timestamp> {
        (self.is_stale && !self.is_writing).then_some(self.look_at)
    }

    /// An attempt ended, which can open or close a breaker.
    pub(super) fn heard(&mut self, verdict: &Verdict) {
        // While every breaker is closed, a success changes none.
        self.is_stale |= verdict.class != Class::Delivered || !self.breakers.is_empty();
    }
}

impl Dispatch {
    /// Takes over breakers that were not closed before the restart: each probes first.
    pub(super) fn restore_breakers(&mut self, now: Timestamp, breakers: Vec<SoftBreaker>) {
        self.scheduler.restore_breakers(now, &breakers);
        for breaker in &breakers {
            if let BreakerOf::Lane(lane) = breaker.of {
                // Its endpoint may be gone, and no delivery may ever come for it.
                self.scheduler.forget_idle_lane(lane, now);
            }
        }
        self.stored_breakers.breakers = breakers;
    }

    /// Resets a breaker; `false` when it is closed.
    pub(super) fn reset(&mut self, now: Timestamp, of: BreakerOf, how: Reset) -> bool {
        self.stored_breakers.is_stale = true;
        self.scheduler.reset(now, of, how)
    }

    /// Stores the breakers that are not closed, if that is due and they have changed.
    pub(super) fn remember(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        // The last write of a shutdown does not wait for its time.
        let is_due = now >= self.stored_breakers.look_at || (self.draining && self.scheduler.in_flight() == 0);
        // A breaker whose lane sends nothing any more is evicted without a notice, so stored breakers are compared too.
        let may_differ = self.stored_breakers.is_stale || !self.stored_breakers.breakers.is_empty();
        if self.stored_breakers.is_writing || !is_due || !may_differ {
            return;
        }
        self.stored_breakers.is_stale = false;
        self.stored_breakers.look_at = now + REMEMBER_EVERY;
        let breakers = self.scheduler.soft_breakers();
        if breakers != self.stored_breakers.breakers {
            self.stored_breakers.is_writing = true;
            self.stored_breakers.breakers.clone_from(&breakers);
            effects.push(Effect::Store(StoreCall::Remember(breakers)));
        }
    }
}
