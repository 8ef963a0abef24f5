//! What a restart must know of breakers (E1): those that are not closed are written down while they
//! change, every few seconds. A crash loses the last of that and nothing else.
//!
//! Invariants: one write is under way at most; while every breaker is closed and was, nothing is
//! written and nobody is woken. What is kept of a breaker is `core::flow::breaker::Soft`.

use std::time::Duration;

use posthaste_core::cause::Class;
use posthaste_core::delivery::Verdict;
use posthaste_core::queue::{BreakerOf, Reset, SoftBreaker};
use posthaste_core::time::Timestamp;

use super::call::Call;
use super::{Dispatch, Effect};

/// How old what the store knows of breakers may become.
const REMEMBER_EVERY: Duration = Duration::from_secs(5);

/// What the store knows of breakers.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    /// What it has, or is being given.
    breakers: Vec<SoftBreaker>,
    is_writing: bool,
    /// One may have changed since they were looked at.
    is_stale: bool,
    /// They are not looked at before: it costs as much as there are.
    look_at: Timestamp,
}

impl Remembered {
    /// When to look whether something must be written, if anything may have changed.
    pub(super) fn look_at(&self) -> Option<Timestamp> {
        (self.is_stale && !self.is_writing).then_some(self.look_at)
    }

    /// Whether a write is under way.
    pub(super) fn is_writing(&self) -> bool {
        self.is_writing
    }

    /// An attempt ended: that can open or close a breaker.
    pub(super) fn heard(&mut self, verdict: &Verdict) {
        // While every breaker is closed, a success changes none.
        self.is_stale |= verdict.class != Class::Delivered || !self.breakers.is_empty();
    }

    /// The store has it.
    pub(super) fn written(&mut self) {
        self.is_writing = false;
    }
}

impl Dispatch {
    /// Takes over breakers that were not closed before the restart: each probes first.
    pub(super) fn restore_breakers(&mut self, now: Timestamp, breakers: Vec<SoftBreaker>) {
        self.queue.restore_breakers(now, &breakers);
        for breaker in &breakers {
            if let BreakerOf::Lane(lane) = breaker.of {
                // Nothing may ever come for it: its endpoint may be gone.
                self.queue.forget_idle_lane(lane, now);
            }
        }
        self.remembered.breakers = breakers;
    }

    /// Resets a breaker; `false` when it is closed.
    pub(super) fn reset(&mut self, now: Timestamp, of: BreakerOf, how: Reset) -> bool {
        self.remembered.is_stale = true;
        self.queue.reset(now, of, how)
    }

    /// Writes down the breakers that are not closed, if that is due and they have changed.
    pub(super) fn remember(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        // The last word of a drain does not wait for its time.
        let is_due = now >= self.remembered.look_at || (self.draining && self.queue.in_flight() == 0);
        // One that nobody sends to any more is forgotten without a word: seen when something else is.
        let may_differ = self.remembered.is_stale || !self.remembered.breakers.is_empty();
        if self.remembered.is_writing || !is_due || !may_differ {
            return;
        }
        self.remembered.is_stale = false;
        self.remembered.look_at = now + REMEMBER_EVERY;
        let breakers = self.queue.soft_breakers();
        if breakers != self.remembered.breakers {
            self.remembered.is_writing = true;
            self.remembered.breakers.clone_from(&breakers);
            effects.push(Effect::Store(Call::Remember(breakers)));
        }
    }
}
