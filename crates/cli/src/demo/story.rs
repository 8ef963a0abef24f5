//! The demo's clock, which receivers, producers and the screen share.

use std::sync::OnceLock;
use std::time::Duration;

use posthaste_core::Timestamp;
use posthaste_engine::clock::{Clock, SystemClock};

use super::plan::{Plan, SCALE};

/// A plan with the clock that it runs by.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) plan: Plan,
    /// The machine's time when the scaled clock began. A server that is started later gets it, so that its clock
    /// agrees.
    pub(super) since: Timestamp,
    pub(super) clock: SystemClock,
    begun: OnceLock<Timestamp>,
}

impl Story {
    pub(super) fn new(plan: Plan) -> Self {
        let since = SystemClock::new().now();
        Self { plan, since, clock: SystemClock::scaled_since(since, SCALE), begun: OnceLock::new() }
    }

    /// Sets the demo's time to zero: the first message is sent now.
    pub(super) fn begin(&self) {
        let _ = self.begun.set(self.clock.now());
    }

    /// The demo's time; zero before it has begun.
    pub(super) fn now(&self) -> Duration {
        self.begun.get().map_or(Duration::ZERO, |begun| self.clock.now().since(*begun))
    }
}
