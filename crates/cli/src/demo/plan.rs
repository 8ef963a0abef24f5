//! The events of the demo, their times and the clock, which receivers, producers and the screen share. Times are
//! counted by the scaled clock from the first message on.

use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Result, ensure};
use posthaste_core::Timestamp;
use posthaste_engine::clock::{Clock, SystemClock};

/// The speed of the scaled clock: a second of the machine is a minute of the demo.
pub(super) const SCALE: u32 = 60;
/// The most messages in a second of the machine: with more, the demo's own process would be the bottleneck.
const PER_SECOND_MAX: u64 = 1_000;
/// The least capacity of the receiver that goes down: a recovering endpoint is sent at least 5 requests a second.
const CAPACITY_MIN: f64 = 6.0;
/// The capacity of the receiver that goes down, as a multiple of its usual load.
const CAPACITY_BY_LOAD: f64 = 2.0;
/// The time from the repair of a receiver to the replay of its dead letters: attempts under way are recorded by then.
const REPLAY_AFTER: Duration = Duration::from_secs(45);

/// The receivers, in the order of the display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReceiverName {
    Shop,
    Billing,
    Crm,
    Partner,
    Legacy,
    Erp,
}

impl ReceiverName {
    pub(super) const ALL: [Self; 6] = [Self::Shop, Self::Billing, Self::Crm, Self::Partner, Self::Legacy, Self::Erp];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Shop => "shop",
            Self::Billing => "billing",
            Self::Crm => "crm",
            Self::Partner => "partner",
            Self::Legacy => "legacy",
            Self::Erp => "erp",
        }
    }

    pub(super) fn for_message(number: usize) -> Self {
        TURNS[number % TURNS.len()]
    }

    fn share(self) -> f64 {
        TURNS.iter().filter(|who| **who == self).count() as f64 / TURNS.len() as f64
    }
}

/// The receivers of messages in turn. Most messages go to the receiver that has the outage, whose load is drawn.
const TURNS: [ReceiverName; 20] = {
    use ReceiverName::{Billing, Crm, Erp, Legacy, Partner, Shop};
    [
        Billing, Shop, Billing, Erp, Billing, Shop, Crm, Billing, Shop, Partner, Billing, Erp, Billing, Shop, Billing,
        Crm, Billing, Shop, Erp, Legacy,
    ]
};

/// The times of the demo's events.
#[derive(Debug)]
pub(super) struct DemoPlan {
    pub(super) messages: usize,
    /// How long messages are sent.
    pub(super) length: Duration,
    pub(super) outage: Range<Duration>,
    /// Requests a second that `billing` can take.
    pub(super) capacity: f64,
    /// The periods in which `crm` answers 429.
    pub(super) quiet: [Range<Duration>; 2],
    /// The TTL of messages for `partner`.
    pub(super) ttl: Duration,
    /// The time from which `legacy` answers 410 instead of 503.
    pub(super) gone: Duration,
    pub(super) kill: Duration,
    /// The time from which `erp` works.
    pub(super) mended: Duration,
    /// The time at which the dead letters of `erp` are replayed.
    pub(super) replay: Duration,
}

impl DemoPlan {
    pub(super) fn new(seconds: u64, messages: u64) -> Result<Self> {
        ensure!(
            messages <= seconds * PER_SECOND_MAX,
            "--messages {messages} in --seconds {seconds} are more than {PER_SECOND_MAX} a second; send fewer or take \
             longer, or measure with `posthaste bench`"
        );
        let length = Duration::from_secs(seconds) * SCALE;
        // In the default run these are minutes.
        let at = |fifteenths: f64| Duration::from_secs_f64((length.as_secs_f64() * fifteenths / 15.0).round());
        let load = messages as f64 * ReceiverName::Billing.share() / length.as_secs_f64();
        Ok(Self {
            messages: usize::try_from(messages)?,
            length,
            outage: at(2.0)..at(7.0),
            capacity: ((load * CAPACITY_BY_LOAD).max(CAPACITY_MIN) * 10.0).round() / 10.0,
            // Not around the kill: a lane's hold is not on disk, only the due time of the delivery that got a 429.
            quiet: [at(2.5)..at(4.0), at(9.0)..at(10.5)],
            ttl: at(3.0),
            gone: at(2.5),
            kill: at(5.0),
            mended: at(8.5),
            replay: at(8.5) + REPLAY_AFTER,
        })
    }
}

/// A plan with the clock that it runs by.
#[derive(Debug)]
pub(super) struct DemoClock {
    pub(super) plan: DemoPlan,
    /// The machine's time when the scaled clock began. A server that is started later gets it, so that its clock
    /// agrees.
    pub(super) since: Timestamp,
    pub(super) system: SystemClock,
    begun: OnceLock<Timestamp>,
}

impl DemoClock {
    pub(super) fn new(plan: DemoPlan) -> Self {
        let since = SystemClock::new().now();
        Self { plan, since, system: SystemClock::scaled_since(since, SCALE), begun: OnceLock::new() }
    }

    /// Sets the demo's time to zero: the first message is sent now.
    pub(super) fn begin(&self) {
        let _ = self.begun.set(self.system.now());
    }

    /// The demo's time; zero before it has begun.
    pub(super) fn now(&self) -> Duration {
        self.begun.get().map_or(Duration::ZERO, |begun| self.system.now().since(*begun))
    }
}

pub(super) fn minutes_and_seconds(time: Duration) -> String {
    format!("{:02}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_happens_in_order_while_messages_are_sent() {
        for (seconds, messages) in [(3, 60), (15, 6_000), (40, 20_000)] {
            let plan = DemoPlan::new(seconds, messages).expect("a plan");
            let [first, second] = &plan.quiet;
            let order = [
                plan.outage.start,
                first.start,
                first.end,
                plan.kill,
                plan.outage.end,
                plan.mended,
                second.start,
                second.end,
                plan.length,
            ];
            assert!(order.is_sorted(), "{plan:?}");
            assert!(plan.outage.start < plan.gone && plan.gone < plan.kill && plan.mended < plan.replay, "{plan:?}");
        }
    }

    #[test]
    fn every_receiver_gets_messages_and_billing_has_spare_capacity() {
        let shares = ReceiverName::ALL.map(ReceiverName::share);
        assert!(shares.iter().all(|share| *share > 0.0));
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        let plan = DemoPlan::new(15, 6_000).expect("a plan");
        assert!((plan.capacity - 6.0).abs() < 1e-9, "{}", plan.capacity);
        let plan = DemoPlan::new(15, 15_000).expect("a plan");
        assert!((plan.capacity - 13.3).abs() < 1e-9, "{}", plan.capacity);
    }

    #[test]
    fn more_than_1000_messages_a_second_are_refused() {
        let refusal = DemoPlan::new(3, 3_001).expect_err("too fast").to_string();
        assert!(refusal.contains("more than 1000 a second"), "{refusal}");
    }

    #[test]
    fn a_time_is_minutes_and_seconds() {
        assert_eq!(minutes_and_seconds(Duration::from_secs(0)), "00:00");
        assert_eq!(minutes_and_seconds(Duration::from_secs(12 * 60 + 7)), "12:07");
    }
}
