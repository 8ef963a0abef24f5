//! The model of a receiver: one server with a bounded queue, and an outage.

use std::ops::Range;
use std::time::Duration;

use posthaste_core::classify;
use posthaste_core::{Cause, Verdict};

use super::OutageScenario;

/// The bound of the queue: a request that would wait longer than this is answered `503`.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// How long a refused connection or a `503` takes while the receiver is down.
const FAILS_IN: Duration = Duration::from_millis(20);
/// The timeout of a request that gets no answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout of a breaker's probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// A `503` of a full queue takes no time.
const SHEDS_IN: Duration = Duration::ZERO;

/// How the receiver fails while it is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    Refuses,
    /// A proxy in front of it answers `503`.
    Unavailable,
    /// It does not answer.
    Silent,
}

/// The receiver's answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ModelAnswer {
    /// The time from the request to its result.
    pub(super) after: Duration,
    pub(super) verdict: Verdict,
}

/// A receiver. Its times count from the start of the run.
#[derive(Debug)]
pub(super) struct ModelReceiver {
    service: Duration,
    shed: Duration,
    outage: Range<Duration>,
    down: Down,
    /// When the server will have served everything in its queue.
    busy_until: Duration,
}

impl ModelReceiver {
    pub(super) fn new(scenario: &OutageScenario) -> Self {
        let service = Duration::from_secs_f64(1.0 / scenario.capacity);
        Self {
            service,
            shed: service.mul_f64(scenario.shed_cost),
            outage: scenario.outage_begins()..scenario.recovers(),
            down: scenario.down,
            busy_until: Duration::ZERO,
        }
    }

    /// Handles a request.
    pub(super) fn answer(&mut self, now: Duration, probe: bool) -> ModelAnswer {
        if self.outage.contains(&now) {
            return match self.down {
                Down::Refuses => ModelAnswer { after: FAILS_IN, verdict: Verdict::of(Cause::ConnectRefused) },
                Down::Unavailable => ModelAnswer { after: FAILS_IN, verdict: status(503) },
                Down::Silent => {
                    let after = if probe { PROBE_TIMEOUT } else { ATTEMPT_TIMEOUT };
                    ModelAnswer { after, verdict: Verdict::of(Cause::Unknown) }
                }
            };
        }
        let begins = self.busy_until.max(now);
        if begins - now > LONGEST_WAIT {
            self.busy_until += self.shed;
            return ModelAnswer { after: SHEDS_IN, verdict: status(503) };
        }
        self.busy_until = begins + self.service;
        ModelAnswer { after: self.busy_until - now, verdict: status(200) }
    }
}

fn status(code: u16) -> Verdict {
    let cause = classify::status(code);
    Verdict { status: Some(code), ..Verdict::of(cause) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statuses(receiver: &mut ModelReceiver, at: Duration, requests: usize) -> Vec<Option<u16>> {
        (0..requests).map(|_| receiver.answer(at, false).verdict.status).collect()
    }

    #[test]
    fn requests_over_the_bound_of_the_queue_get_503() {
        let mut receiver = ModelReceiver::new(&OutageScenario { outage: Duration::ZERO, ..OutageScenario::default() });
        let answered = statuses(&mut receiver, Duration::from_secs(10), 150);
        // Two seconds of queue at 50 a second, and the request that is being served.
        assert_eq!(answered.iter().filter(|status| **status == Some(200)).count(), 101);
        assert_eq!(answered.iter().position(|status| *status == Some(503)), Some(101));
        let last = receiver.answer(Duration::from_secs(11), false);
        assert_eq!((last.verdict.status, last.after), (Some(200), Duration::from_millis(1_040)));
    }

    #[test]
    fn cost_of_a_503_adds_to_the_queue() {
        let mut receiver = ModelReceiver::new(&OutageScenario { shed_cost: 0.25, ..OutageScenario::default() });
        statuses(&mut receiver, Duration::ZERO, 101 + 400);
        // 400 rejections at a quarter of the service time each are two more seconds: the queue is still full.
        assert_eq!(receiver.answer(Duration::from_millis(1_990), false).verdict.status, Some(503));
    }

    #[test]
    fn outage_covers_its_time_range_exactly() {
        for (down, cause) in [
            (Down::Refuses, Cause::ConnectRefused),
            (Down::Unavailable, Cause::Unavailable),
            (Down::Silent, Cause::Unknown),
        ] {
            let scenario = OutageScenario { down, ..OutageScenario::default() };
            let mut receiver = ModelReceiver::new(&scenario);
            let last_moment = scenario.recovers() - Duration::from_millis(1);
            assert_eq!(receiver.answer(scenario.outage_begins(), false).verdict.cause, cause);
            assert_eq!(receiver.answer(last_moment, false).verdict.cause, cause);
            assert_eq!(receiver.answer(scenario.recovers(), false).verdict.cause, Cause::Ok);
        }
    }
}
