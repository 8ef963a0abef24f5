//! Counts the results of a run from outside: from the requests that the receiver saw and the times at which messages
//! ended.

use std::time::Duration;

use posthaste_prove::chart::Second;

use super::{FRESH, OutageScenario};

/// The results of a run. *Held* messages were created during the outage, *fresh* messages within [`FRESH`] after it.
/// Only these two kinds count.
#[derive(Clone, Debug, PartialEq)]
pub struct OutageOutcome {
    /// Held and fresh messages.
    pub messages: u64,
    /// Requests to a receiver that was down.
    pub tries_into_outage: u64,
    /// Requests after the recovery, to the end of the run.
    pub tries_after: u64,
    /// Requests after the recovery that were answered `503`.
    pub shed: u64,
    /// The most requests in one second after the recovery.
    pub peak: u32,
    /// The most requests in ten seconds after the recovery, as a rate per second.
    pub peak_10s: f64,
    /// Requests per second within [`FRESH`] after the recovery.
    pub mean: f64,
    /// Deliveries per second within [`FRESH`] after the recovery.
    pub goodput: f64,
    /// The time from the recovery until the last held message was delivered; `None` if one is still pending.
    pub drained: Option<Duration>,
    /// The time from the recovery until 99 % of the held messages were delivered; `None` if too many are pending.
    pub drained_99: Option<Duration>,
    /// The median time to deliver a fresh message; `None` if too many are pending.
    pub fresh_p50: Option<Duration>,
    /// The 99th percentile of that time.
    pub fresh_p99: Option<Duration>,
    /// The 99th percentile of that time for messages created after the breaker closed.
    pub after_close_p99: Option<Duration>,
    /// Mean number of attempts of all messages.
    pub tries_a_message: f64,
    /// Mean number of attempts of held messages.
    pub tries_a_held_message: f64,
    /// The time from the recovery until the breaker closed; zero for a sender without a breaker.
    pub detection_lag: Option<Duration>,
    /// Messages that ended without being delivered.
    pub lost: u64,
    /// Messages that were still pending at the end of the run.
    pub waiting: u64,
    /// The load on the receiver in each second of the run.
    pub seconds: Vec<Second>,
}

/// The history of one message.
#[derive(Clone, Copy, Debug)]
struct Life {
    created: Duration,
    tries: u32,
    end: Option<MessageEnd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageEnd {
    Delivered(Duration),
    Lost,
}

/// The counts of a run under way.
#[derive(Debug, Default)]
pub(super) struct OutageTally {
    outage_begins: Duration,
    recovers: Duration,
    watch: Duration,
    lives: Vec<Life>,
    seconds: Vec<Second>,
    tries_into_outage: u64,
    tries_after: u64,
    shed: u64,
    delivered_fresh_time: u64,
    unended: u64,
    breaker_closed: Option<Duration>,
}

impl OutageTally {
    pub(super) fn new(scenario: &OutageScenario) -> Self {
        Self {
            outage_begins: scenario.outage_begins(),
            recovers: scenario.recovers(),
            watch: scenario.watch,
            ..Self::default()
        }
    }

    /// Counts a new message; the first is number 0.
    pub(super) fn created(&mut self, now: Duration) {
        self.lives.push(Life { created: now, tries: 0, end: None });
        self.unended += u64::from(now < self.recovers + FRESH);
    }

    /// Counts a request of a message to the receiver.
    pub(super) fn sent(&mut self, message: usize, now: Duration, taken: bool) {
        self.lives[message].tries += 1;
        let second = usize::try_from(now.as_secs()).expect("a run is shorter than memory is large");
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, Second::default());
        }
        self.seconds[second].tries += 1;
        self.seconds[second].failed += u32::from(!taken);
        if now >= self.recovers {
            self.tries_after += 1;
            self.shed += u64::from(!taken);
        } else if now >= self.outage_begins {
            self.tries_into_outage += 1;
        }
    }

    pub(super) fn ended(&mut self, message: usize, end: MessageEnd) {
        let life = &mut self.lives[message];
        if life.end.replace(end).is_none() && life.created < self.recovers + FRESH {
            self.unended -= 1;
        }
        let fresh_time = self.recovers..self.recovers + FRESH;
        self.delivered_fresh_time += u64::from(matches!(end, MessageEnd::Delivered(at) if fresh_time.contains(&at)));
    }

    /// Notes that the sender's breaker is closed after the recovery; only the first call counts.
    pub(super) fn breaker_closed(&mut self, now: Duration) {
        self.breaker_closed.get_or_insert(now);
    }

    pub(super) fn has_seen_breaker_close(&self) -> bool {
        self.breaker_closed.is_some()
    }

    /// Whether every message that counts has been created and has ended, and the time to watch is over.
    pub(super) fn is_complete(&self, now: Duration) -> bool {
        now >= self.recovers + self.watch.max(FRESH) && self.unended == 0
    }

    pub(super) fn outcome(mut self, now: Duration) -> OutageOutcome {
        self.seconds.resize(whole_seconds(now).max(self.seconds.len()), Second::default());
        let held = self.born(self.outage_begins, self.recovers);
        let fresh = self.born(self.recovers, self.recovers + FRESH);
        let after_close = self.breaker_closed.map(|closed| self.born(closed, self.recovers + FRESH));
        let all: Vec<Life> = held.iter().chain(&fresh).copied().collect();
        let drained = sorted(&held, |_, delivered| delivered.saturating_sub(self.recovers));
        let waits = sorted(&fresh, |created, delivered| delivered - created);
        let waits_after_close =
            after_close.map(|after_close| sorted(&after_close, |created, delivered| delivered - created));
        let after: Vec<u32> =
            self.seconds.iter().skip(whole_seconds(self.recovers)).map(|second| second.tries).collect();
        let fresh_seconds = whole_seconds(FRESH);
        OutageOutcome {
            messages: all.len() as u64,
            tries_into_outage: self.tries_into_outage,
            tries_after: self.tries_after,
            shed: self.shed,
            peak: after.iter().copied().max().unwrap_or(0),
            peak_10s: f64::from(after.windows(10).map(|ten| ten.iter().sum()).max().unwrap_or(0_u32)) / 10.0,
            mean: f64::from(after.iter().take(fresh_seconds).sum::<u32>()) / fresh_seconds as f64,
            goodput: self.delivered_fresh_time as f64 / fresh_seconds as f64,
            drained: quantile(&drained, 1.0),
            drained_99: quantile(&drained, 0.99),
            fresh_p50: quantile(&waits, 0.5),
            fresh_p99: quantile(&waits, 0.99),
            after_close_p99: waits_after_close.and_then(|waits| quantile(&waits, 0.99)),
            tries_a_message: tries_each(&all),
            tries_a_held_message: tries_each(&held),
            detection_lag: self.breaker_closed.map(|closed| closed.saturating_sub(self.recovers)),
            lost: all.iter().filter(|life| life.end == Some(MessageEnd::Lost)).count() as u64,
            waiting: self.unended,
            seconds: self.seconds,
        }
    }

    fn born(&self, from: Duration, to: Duration) -> Vec<Life> {
        self.lives.iter().filter(|life| (from..to).contains(&life.created)).copied().collect()
    }
}

/// A time of every message that is not lost, ascending. Pending messages are `None` and come last.
fn sorted(lives: &[Life], time: impl Fn(Duration, Duration) -> Duration) -> Vec<Option<Duration>> {
    let mut times: Vec<Option<Duration>> = lives
        .iter()
        .filter(|life| life.end != Some(MessageEnd::Lost))
        .map(|life| match life.end {
            Some(MessageEnd::Delivered(at)) => Some(time(life.created, at)),
            _ => None,
        })
        .collect();
    times.sort_unstable_by_key(|time| time.unwrap_or(Duration::MAX));
    times
}

/// The quantile of ascending times; `None` if it falls on a pending message.
fn quantile(ascending: &[Option<Duration>], share: f64) -> Option<Duration> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length is a length")]
    let rank = (ascending.len() as f64 * share).ceil() as usize;
    ascending.get(rank.saturating_sub(1)).copied().flatten()
}

fn tries_each(lives: &[Life]) -> f64 {
    lives.iter().map(|life| f64::from(life.tries)).sum::<f64>() / lives.len() as f64
}

fn whole_seconds(time: Duration) -> usize {
    usize::try_from(time.as_secs()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Down from 10 to 20; the breaker closes at 25. One message a second from 0 to 40.
    fn tally() -> OutageTally {
        let scenario = OutageScenario { warm_up: at(10), outage: at(10), ..OutageScenario::default() };
        let mut tally = OutageTally::new(&scenario);
        (0..40).for_each(|second| tally.created(at(second)));
        tally.breaker_closed(at(25));
        tally
    }

    #[test]
    fn held_and_fresh_messages_are_counted_apart() {
        let mut tally = tally();
        for message in 0..40 {
            let created = message as u64;
            let held = (10..20).contains(&created);
            if held {
                tally.sent(message, at(created), false);
                tally.sent(message, at(30), true);
                tally.ended(message, MessageEnd::Delivered(at(30)));
            } else {
                tally.sent(message, at(created), true);
                tally.ended(message, MessageEnd::Delivered(at(created)));
            }
        }
        assert!(!tally.is_complete(at(100)) && tally.is_complete(at(20) + FRESH));
        let outcome = tally.outcome(at(100));
        assert_eq!((outcome.messages, outcome.lost, outcome.waiting), (30, 0, 0));
        assert_eq!((outcome.tries_into_outage, outcome.tries_after, outcome.shed), (10, 30, 0));
        assert_eq!((outcome.peak, outcome.peak_10s), (11, 2.0));
        assert_eq!((outcome.drained, outcome.detection_lag), (Some(at(10)), Some(at(5))));
        assert_eq!((outcome.fresh_p99, outcome.after_close_p99), (Some(at(0)), Some(at(0))));
        assert_eq!((outcome.tries_a_message, outcome.tries_a_held_message), (40.0 / 30.0, 2.0));
        assert_eq!(outcome.seconds.len(), 100);
        assert_eq!(outcome.seconds[15], Second { tries: 1, failed: 1 });
    }

    #[test]
    fn pending_messages_leave_a_time_unknown_and_lost_ones_do_not() {
        let mut tally = tally();
        for message in 10..40 {
            match message {
                10 => tally.ended(message, MessageEnd::Lost),
                11 => {}
                _ => tally.ended(message, MessageEnd::Delivered(at(60))),
            }
        }
        let outcome = tally.outcome(at(100));
        assert_eq!((outcome.lost, outcome.waiting), (1, 11), "ten of the waiting were created in the warm-up");
        assert_eq!((outcome.drained, outcome.fresh_p99), (None, Some(at(40))));
    }
}
