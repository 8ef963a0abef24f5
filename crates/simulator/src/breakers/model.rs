//! A slow model of the breaker's rules: it keeps every answer of the window and counts them again each time, without
//! running sums.
//!
//! It shares the core's plain types but none of its arithmetic. [`Slip`] makes it wrong on purpose.

use std::collections::BTreeSet;
use std::time::Duration;

use posthaste_core::flow::breaker::{
    BreakerAnswer, BreakerChange, BreakerRule, BreakerState, LetsThrough, OpenReason, Pass, Signal, Soft,
};
use posthaste_core::{EndpointId, Roll, Timestamp};

/// A mistake of the model, to show that the comparison detects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slip {
    /// No mistake.
    None,
    /// Answers to requests from before a transition count.
    LateAnswersCount,
    /// The bound of a hold is applied before its random part, which may then exceed it.
    BoundBeforeDice,
    /// An answer is kept for one second too long.
    LongerWindow,
    /// A breaker that has just closed begins with its first hold again.
    FlappingForgotten,
}

impl Slip {
    pub(super) const ALL: [Self; 4] =
        [Self::LateAnswersCount, Self::BoundBeforeDice, Self::LongerWindow, Self::FlappingForgotten];
}

pub(super) struct BreakerModel {
    rule: BreakerRule,
    slip: Slip,
    phase: Phase,
    generation: u32,
    /// The last hold, if the next one grows from it.
    last_hold: Option<Duration>,
    window: Vec<Kept>,
    /// The second of the first answer since the window was last empty.
    began: i64,
}

#[derive(Clone, Copy)]
enum Phase {
    Closed { failed_in_a_row: u32, at: Option<Timestamp> },
    Open { since: Timestamp, until: Option<Timestamp>, why: OpenReason },
    HalfOpen { since: Timestamp, why: OpenReason, successes: u8, probing: bool },
}

/// An answer in the window.
#[derive(Clone, Copy)]
struct Kept {
    second: i64,
    endpoint: EndpointId,
    signal: Signal,
}

impl Kept {
    fn counts(&self, second: i64, kept_for: i64) -> bool {
        self.second <= second && self.second > second - kept_for
    }
}

impl BreakerModel {
    pub(super) fn new(rule: BreakerRule, slip: Slip) -> Self {
        let phase = Phase::Closed { failed_in_a_row: 0, at: None };
        Self { rule, slip, phase, generation: 1, last_hold: None, window: Vec::new(), began: 0 }
    }

    pub(super) fn restore(rule: BreakerRule, slip: Slip, soft: Soft) -> Self {
        let phase = Phase::HalfOpen { since: soft.since, why: OpenReason::BeforeRestart, successes: 0, probing: false };
        let last_hold = Some(soft.hold).filter(|hold| !hold.is_zero());
        Self { phase, generation: 2, last_hold, ..Self::new(rule, slip) }
    }

    pub(super) fn standing(&self, now: Timestamp) -> BreakerState {
        match self.phase {
            Phase::Closed { .. } => BreakerState::Closed,
            Phase::Open { until: Some(until), .. } if self.is_over(until, now) => {
                BreakerState::HalfOpen { successes: 0, probing: false }
            }
            Phase::Open { since, until, .. } => BreakerState::Open { until, since },
            Phase::HalfOpen { successes, probing, .. } => BreakerState::HalfOpen { successes, probing },
        }
    }

    pub(super) fn lets_through(&self, now: Timestamp) -> LetsThrough {
        match self.standing(now) {
            BreakerState::Closed => LetsThrough::All,
            BreakerState::Open { until, .. } => LetsThrough::Nothing { until },
            BreakerState::HalfOpen { probing: false, .. } => LetsThrough::Probe,
            BreakerState::HalfOpen { probing: true, .. } => LetsThrough::Nothing { until: None },
        }
    }

    pub(super) fn start(&mut self, now: Timestamp) -> Pass {
        match (self.lets_through(now), self.phase) {
            (LetsThrough::All, _) => Pass { generation: self.generation, probe: false },
            (LetsThrough::Nothing { .. }, _) => Pass { generation: 0, probe: false },
            (LetsThrough::Probe, Phase::Open { since, why, .. }) => {
                self.turn(Phase::HalfOpen { since, why, successes: 0, probing: true });
                Pass { generation: self.generation, probe: true }
            }
            (LetsThrough::Probe, _) => {
                self.set_probing(true);
                Pass { generation: self.generation, probe: true }
            }
        }
    }

    pub(super) fn put_back(&mut self, generation: u32) {
        if generation == self.generation {
            self.set_probing(false);
        }
    }

    pub(super) fn answered(&mut self, now: Timestamp, roll: Roll, answer: BreakerAnswer) -> Option<BreakerChange> {
        if answer.generation != self.generation && self.slip != Slip::LateAnswersCount {
            return None;
        }
        match self.phase {
            Phase::Open { .. } | Phase::HalfOpen { probing: false, .. } => None,
            Phase::Closed { failed_in_a_row, at } => {
                let why = self.count(now, failed_in_a_row, at, answer)?;
                let flaps = at.is_some_and(|at| now.as_millis().saturating_sub(at.as_millis()) <= 60_000);
                if !flaps || self.slip == Slip::FlappingForgotten {
                    self.last_hold = None;
                }
                let hold = self.hold(roll, answer.messages_wait);
                self.open(now, now, hold, why);
                Some(BreakerChange::Opened)
            }
            Phase::HalfOpen { since, why, successes, probing: true } => {
                self.set_probing(false);
                match (answer.signal, successes) {
                    (Signal::Neutral, _) => None,
                    (Signal::Success, 2) => {
                        self.close(now);
                        Some(BreakerChange::Closed)
                    }
                    (Signal::Success, _) => {
                        self.phase = Phase::HalfOpen { since, why, successes: successes + 1, probing: false };
                        None
                    }
                    (Signal::Failure | Signal::Overload, _) => {
                        let hold = self.hold(roll, answer.messages_wait);
                        self.open(now, since, hold.max(answer.retry_after.unwrap_or(hold)), why);
                        Some(BreakerChange::Reopened)
                    }
                }
            }
        }
    }

    pub(super) fn reset(&mut self) {
        if let Phase::Open { since, why, .. } | Phase::HalfOpen { since, why, .. } = self.phase {
            self.turn(Phase::HalfOpen { since, why, successes: 0, probing: false });
        }
    }

    pub(super) fn force_close(&mut self, now: Timestamp) {
        if !matches!(self.phase, Phase::Closed { .. }) {
            self.close(now);
        }
    }

    pub(super) fn trip(&mut self, now: Timestamp, until: Option<Timestamp>) {
        let since = match self.phase {
            Phase::Closed { .. } => now,
            Phase::Open { since, .. } | Phase::HalfOpen { since, .. } => since,
        };
        self.last_hold = until.map(|until| until.since(now)).filter(|hold| !hold.is_zero());
        let why = if until.is_some() { OpenReason::RetryAfter } else { OpenReason::Credential };
        self.turn(Phase::Open { since, until: until.map(|until| until.max(now)), why });
    }

    pub(super) fn soft(&self) -> Option<Soft> {
        match self.phase {
            Phase::Closed { .. } => None,
            Phase::Open { since, .. } | Phase::HalfOpen { since, .. } => {
                Some(Soft { since, hold: self.last_hold.unwrap_or_default() })
            }
        }
    }

    pub(super) fn reason(&self) -> Option<OpenReason> {
        match self.phase {
            Phase::Closed { .. } => None,
            Phase::Open { why, .. } | Phase::HalfOpen { why, .. } => Some(why),
        }
    }

    pub(super) fn successes_per_second(&self, now: Timestamp) -> u64 {
        let second = self.second(now);
        let successes = || self.seen(now).filter(|kept| kept.signal == Signal::Success);
        let whole_seconds = (second - self.began).clamp(0, 29);
        match u64::try_from(whole_seconds) {
            _ if self.window.is_empty() => 0,
            Ok(seconds @ 1..) => 1_000 * count(successes().filter(|kept| kept.second < second)) / seconds,
            _ => 1_000 * count(successes()),
        }
    }

    pub(super) fn is_failing(&self, now: Timestamp) -> bool {
        let all = count(self.seen(now));
        let bad = count(self.seen(now).filter(|kept| kept.signal != Signal::Success));
        bad >= 5 && bad * 10 >= all
    }

    pub(super) fn is_as_new(&self, now: Timestamp) -> bool {
        let Phase::Closed { failed_in_a_row: 0, at } = self.phase else { return false };
        let may_flap = at.is_some_and(|at| self.last_hold.is_some() && now.since(at) <= Duration::from_secs(60));
        count(self.seen(now)) == 0 && !may_flap
    }

    /// Counts an answer to a closed breaker. Returns the reason if it opens.
    fn count(
        &mut self,
        now: Timestamp,
        failed_in_a_row: u32,
        at: Option<Timestamp>,
        answer: BreakerAnswer,
    ) -> Option<OpenReason> {
        let BreakerAnswer { signal, endpoint, .. } = answer;
        let failed_in_a_row = match signal {
            Signal::Neutral => return None,
            Signal::Success => 0,
            Signal::Overload => failed_in_a_row,
            Signal::Failure => failed_in_a_row + u32::from(self.rule.in_a_row > 0),
        };
        self.phase = Phase::Closed { failed_in_a_row, at };
        let (second, kept_for) = (self.second(now), self.kept_for());
        self.window.retain(|kept| kept.counts(second, kept_for));
        if self.window.is_empty() {
            self.began = second;
        }
        self.window.push(Kept { second, endpoint, signal });

        let of = |wanted| count(self.window.iter().filter(|kept| kept.signal == wanted));
        let endpoints = |wanted| {
            let seen = self.window.iter().filter(|kept| kept.signal == wanted).map(|kept| kept.endpoint);
            seen.collect::<BTreeSet<_>>().len() >= usize::from(self.rule.endpoints.min(5))
        };
        let (successes, failures, overloads) = (of(Signal::Success), of(Signal::Failure), of(Signal::Overload));
        let (judged, all) = (successes + failures, successes + failures + overloads);
        let volume = u64::from(self.rule.volume);
        let in_a_row = u32::from(self.rule.in_a_row);
        match signal {
            Signal::Failure if in_a_row > 0 && failed_in_a_row >= in_a_row => {
                Some(OpenReason::InARow(short(failed_in_a_row)))
            }
            Signal::Failure
                if judged >= volume
                    && failures * 1_000 >= u64::from(self.rule.share_milli) * judged
                    && endpoints(Signal::Failure) =>
            {
                Some(OpenReason::Share { milli: short(failures * 1_000 / judged), of: short(judged) })
            }
            Signal::Overload if overloads >= volume && overloads * 10 >= all * 9 && endpoints(Signal::Overload) => {
                Some(OpenReason::Overloaded { milli: short(overloads * 1_000 / all), of: short(all) })
            }
            _ => None,
        }
    }

    /// The answers in the window at `now`.
    fn seen(&self, now: Timestamp) -> impl Iterator<Item = &Kept> {
        let (second, kept_for) = (self.second(now), self.kept_for());
        self.window.iter().filter(move |kept| kept.counts(second, kept_for))
    }

    /// How many seconds an answer is kept.
    fn kept_for(&self) -> i64 {
        if self.slip == Slip::LongerWindow { 31 } else { 30 }
    }

    /// The second that `now` counts as. If the clock was set back by up to 30 s, time stands still.
    fn second(&self, now: Timestamp) -> i64 {
        let second = now.as_millis().div_euclid(1_000);
        let newest = self.window.iter().map(|kept| kept.second).max();
        newest.filter(|newest| second < *newest && second >= newest - 30).unwrap_or(second)
    }

    fn hold(&self, roll: Roll, messages_wait: bool) -> Duration {
        let longest = Duration::from_secs(if messages_wait { 60 } else { 300 });
        let open_for = self.rule.open_for;
        let spread = |hold: Duration| roll.between(hold * 9 / 10, hold * 11 / 10);
        match self.last_hold {
            Some(last) => (last + last / 2).min(longest),
            None if self.slip == Slip::BoundBeforeDice => spread(open_for.min(longest)),
            None => spread(open_for).min(longest),
        }
    }

    fn open(&mut self, now: Timestamp, since: Timestamp, hold: Duration, why: OpenReason) {
        let until = now + hold;
        // The real length, after rounding to whole milliseconds.
        self.last_hold = Some(until.since(now));
        self.turn(Phase::Open { since, until: Some(until), why });
    }

    fn close(&mut self, now: Timestamp) {
        self.window.clear();
        self.turn(Phase::Closed { failed_in_a_row: 0, at: Some(now) });
    }

    fn turn(&mut self, phase: Phase) {
        self.phase = phase;
        self.generation += 1;
    }

    fn set_probing(&mut self, under_way: bool) {
        if let Phase::HalfOpen { probing, .. } = &mut self.phase {
            *probing = under_way;
        }
    }

    /// Whether a hold has ended: at its end, or if the clock was set back to long before its beginning.
    fn is_over(&self, until: Timestamp, now: Timestamp) -> bool {
        let long_before = until - self.last_hold.unwrap_or_default() - Duration::from_secs(30);
        now >= until || now < long_before
    }
}

fn count<T>(of: impl Iterator<Item = T>) -> u64 {
    of.map(|_| 1).sum()
}

fn short(number: impl TryInto<u16>) -> u16 {
    number.try_into().unwrap_or(u16::MAX)
}
