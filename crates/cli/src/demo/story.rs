//! The demo's time, which receivers, producers and the screen share.

use std::sync::OnceLock;
use std::time::Duration;

use posthaste_core::Timestamp;
use posthaste_engine::clock::{Clock, SystemClock};

use super::plan::{Plan, SCALE};

/// A plan, and how far it has come.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) plan: Plan,
    /// What the machine's clock said when the scaled one began: a server that is started later agrees with it.
    pub(super) since: Timestamp,
    pub(super) clock: SystemClock,
    begun: OnceLock<Timestamp>,
}

impl Story {
    pub(super) fn new(plan: Plan) -> Self {
        let since = SystemClock::new().now();
        Self { plan, since, clock: SystemClock::scaled_since(since, SCALE), begun: OnceLock::new() }
    }

    /// The first message is sent now.
    pub(super) fn begin(&self) {
        let _ = self.begun.set(self.clock.now());
    }

    /// How far it has come; nowhere before it has begun.
    pub(super) fn now(&self) -> Duration {
        self.begun.get().map_or(Duration::ZERO, |begun| self.clock.now().since(*begun))
    }
}
