//! The receiver: one server, a waiting room, and an outage.

use std::ops::Range;
use std::time::Duration;

use posthaste_core::cause::Cause;
use posthaste_core::classify;
use posthaste_core::delivery::Verdict;

use super::Scenario;

/// Whoever would wait longer than this is turned away.
const WAITING_ROOM: Duration = Duration::from_secs(2);
/// How soon a refused connection or a `503` is noticed while the receiver is down.
const FAILS_IN: Duration = Duration::from_millis(20);
/// When a request that gets no answer is given up.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);
/// A probe is given up sooner.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Turning away takes no time.
const SHEDS_IN: Duration = Duration::ZERO;

/// What a request meets while the receiver is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// Nothing listens.
    Refuses,
    /// Something in front of it answers `503`.
    Unavailable,
    /// No answer comes.
    Silent,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// When the sender knows, counted from the request.
    pub(super) after: Duration,
    pub(super) verdict: Verdict,
}

/// One receiver. Its time counts from the first moment of the run.
#[derive(Debug)]
pub(super) struct Receiver {
    service: Duration,
    shed: Duration,
    outage: Range<Duration>,
    down: Down,
    /// When its server has nothing left to do.
    busy_until: Duration,
}

impl Receiver {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let service = Duration::from_secs_f64(1.0 / scenario.capacity);
        Self {
            service,
            shed: service.mul_f64(scenario.shed_cost),
            outage: scenario.outage_begins()..scenario.recovers(),
            down: scenario.down,
            busy_until: Duration::ZERO,
        }
    }

    /// A request comes.
    pub(super) fn answer(&mut self, now: Duration, probe: bool) -> Answer {
        if self.outage.contains(&now) {
            return match self.down {
                Down::Refuses => Answer { after: FAILS_IN, verdict: Verdict::of(Cause::ConnectRefused) },
                Down::Unavailable => Answer { after: FAILS_IN, verdict: status(503) },
                Down::Silent => {
                    let after = if probe { PROBE_TIMEOUT } else { ATTEMPT_TIMEOUT };
                    Answer { after, verdict: Verdict::of(Cause::Unknown) }
                }
            };
        }
        let begins = self.busy_until.max(now);
        if begins - now > WAITING_ROOM {
            self.busy_until += self.shed;
            return Answer { after: SHEDS_IN, verdict: status(503) };
        }
        self.busy_until = begins + self.service;
        Answer { after: self.busy_until - now, verdict: status(200) }
    }
}

fn status(code: u16) -> Verdict {
    let cause = classify::status(code);
    Verdict { status: Some(code), ..Verdict::of(cause) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statuses(receiver: &mut Receiver, at: Duration, requests: usize) -> Vec<Option<u16>> {
        (0..requests).map(|_| receiver.answer(at, false).verdict.status).collect()
    }

    #[test]
    fn whoever_finds_the_waiting_room_full_is_turned_away() {
        let mut receiver = Receiver::new(&Scenario { outage: Duration::ZERO, ..Scenario::default() });
        let answered = statuses(&mut receiver, Duration::from_secs(10), 150);
        // Two seconds of waiting at 50 a second, and the one that is being served.
        assert_eq!(answered.iter().filter(|status| **status == Some(200)).count(), 101);
        assert_eq!(answered.iter().position(|status| *status == Some(503)), Some(101));
        let last = receiver.answer(Duration::from_secs(11), false);
        assert_eq!((last.verdict.status, last.after), (Some(200), Duration::from_millis(1_040)));
    }

    #[test]
    fn turning_away_can_take_the_time_of_serving() {
        let mut receiver = Receiver::new(&Scenario { shed_cost: 0.25, ..Scenario::default() });
        statuses(&mut receiver, Duration::ZERO, 101 + 400);
        // 400 turned away at a quarter each is two more seconds: the room is still full.
        assert_eq!(receiver.answer(Duration::from_millis(1_990), false).verdict.status, Some(503));
    }

    #[test]
    fn an_outage_ends_when_it_ends() {
        for (down, cause) in [
            (Down::Refuses, Cause::ConnectRefused),
            (Down::Unavailable, Cause::Unavailable),
            (Down::Silent, Cause::Unknown),
        ] {
            let scenario = Scenario { down, ..Scenario::default() };
            let mut receiver = Receiver::new(&scenario);
            let last_moment = scenario.recovers() - Duration::from_millis(1);
            assert_eq!(receiver.answer(scenario.outage_begins(), false).verdict.cause, cause);
            assert_eq!(receiver.answer(last_moment, false).verdict.cause, cause);
            assert_eq!(receiver.answer(scenario.recovers(), false).verdict.cause, Cause::Ok);
        }
    }
}
