//! A circuit breaker as a value (E1, E3, B6): it counts a destination's failures and decides whether the next request
//! may be sent. *Closed* lets every request through, *open* none, *half-open* one probe at a time.
//!
//! The caller checks [`Breaker::lets_through`] first, calls [`Breaker::start`] when a request is sent,
//! and returns the generation of its pass with [`Breaker::answered`], or with [`Breaker::put_back`]
//! if the request was not sent after all. `signal.rs` maps an outcome to a signal; the sliding window is
//! `window.rs`. The scheduler decides which breakers apply to a lane.
//!
//! Invariants: a success never opens it; only a half-open breaker closes by itself; the answer to a request from before
//! the last transition changes nothing; a hold is never above [`HOLD_MAX_WAITED`] while messages wait, unless a
//! `Retry-After` asked for more. Calls may come in any order and with any clock.

mod signal;
#[cfg(test)]
mod tests;
mod window;

use std::fmt;
use std::time::Duration;

use crate::time::millis_up;
use crate::{EndpointId, Roll, Timestamp};

use window::AnswerWindow;

pub use signal::Signal;
pub use window::{ENDPOINTS_MAX, WINDOW};

/// The longest hold while messages wait: a longer one would make them arrive too late.
pub const HOLD_MAX_WAITED: Duration = Duration::from_secs(60);
/// The longest hold while no message waits.
pub const HOLD_MAX: Duration = Duration::from_secs(300);
/// This many probes in a row must succeed before a breaker closes.
pub const PROBES_TO_CLOSE: u8 = 3;
/// A breaker that opens again within this time of closing is flapping: its hold continues to grow.
pub const FLAPS_WITHIN: Duration = Duration::from_secs(60);
/// Overload answers open a breaker from this share of the window on.
const OVERLOADED_MILLI: u64 = 900;
/// A destination is failing when at least this many answers of the window are failures or overload …
const FAILING_ANSWERS: u64 = 5;
/// … and they are at least this share of it.
const FAILING_MILLI: u64 = 100;

/// When a breaker opens, and for how long at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerRule {
    /// This many failures in a row open it, at any distance in time; 0 turns this off.
    pub in_a_row: u16,
    /// This share of failures among the window's successes and failures opens it, in thousandths.
    pub share_milli: u16,
    /// The least number of successes and failures for the share to apply, and of overload answers for theirs.
    pub volume: u32,
    /// The least number of different endpoints that failed within the window for a share to apply; at most
    /// [`ENDPOINTS_MAX`] are distinguished.
    pub endpoints: u8,
    /// The first hold, ±10 %. Above [`HOLD_MAX_WAITED`] it is only kept while no message waits.
    pub open_for: Duration,
}

impl BreakerRule {
    /// For a single endpoint.
    pub const ENDPOINT: Self =
        Self { in_a_row: 10, share_milli: 500, volume: 20, endpoints: 1, open_for: Duration::from_secs(30) };
    /// For scheme, host and port.
    pub const ORIGIN: Self = Self::ENDPOINT.for_origin();
    /// For a provider, or a group of origins: a small share of many answers.
    pub const REGION: Self = Self { in_a_row: 0, share_milli: 50, volume: 200, endpoints: 5, ..Self::ENDPOINT };
    /// For the DNS resolver: nearly all names fail to resolve. `endpoints` counts origins here.
    pub const RESOLVER: Self = Self { in_a_row: 0, share_milli: 900, volume: 20, endpoints: 5, ..Self::ENDPOINT };
    /// For the DNS resolver where several tenants send: `endpoints` counts tenants, so that one tenant's broken names
    /// do not hold the others.
    pub const RESOLVER_OF_TENANTS: Self = Self { endpoints: 2, ..Self::RESOLVER };

    /// The rule for an origin whose endpoints have this rule: only the share applies, and two endpoints must fail, so
    /// that one tenant's endpoint cannot hold another tenant's host.
    #[must_use]
    pub const fn for_origin(self) -> Self {
        Self { in_a_row: 0, endpoints: 2, ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    Closed,
    Open {
        /// When the first probe may be sent; `None` if the breaker must be closed or reset by a call.
        until: Option<Timestamp>,
        /// When it opened; failed probes do not change this.
        since: Timestamp,
    },
    HalfOpen {
        /// How many probes in a row succeeded.
        successes: u8,
        probing: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetsThrough {
    All,
    /// One request, the probe.
    Probe,
    Nothing {
        /// When a probe may be sent; `None` while one is in flight, or if a call must close or reset the breaker.
        until: Option<Timestamp>,
    },
}

/// A breaker's permission for one request. The caller returns the generation with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The number of the breaker's transition before the request.
    pub generation: u32,
    pub probe: bool,
}

impl Pass {
    /// The pass of a new breaker, for requests that are sent before the breaker is created.
    pub const FIRST: Self = Self { generation: 1, probe: false };
    /// For a request sent although the breaker lets nothing through. No breaker has this generation, so the answer is
    /// not counted.
    const UNCOUNTED: Self = Self { generation: 0, probe: false };
}

/// The answer to a request, as a breaker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerAnswer {
    /// The generation of the request's [`Pass`].
    pub generation: u32,
    pub endpoint: EndpointId,
    pub signal: Signal,
    /// Whether deliveries wait for the destination: a hold is then at most [`HOLD_MAX_WAITED`].
    pub messages_wait: bool,
    /// The receiver's `Retry-After`, bounded by the policy.
    pub retry_after: Option<Duration>,
}

/// A transition that an answer caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerChange {
    Opened,
    /// From half-open to open: a probe failed.
    Reopened,
    /// From half-open to closed: enough probes succeeded.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenReason {
    /// This many failures, at any distance in time.
    InARow(u16),
    /// The share of failures among successes and failures, in thousandths and rounded down; `of` counts both, up to the
    /// type's maximum.
    Share { milli: u16, of: u16 },
    /// The share of 429 and 503 among all answers, likewise.
    Overloaded { milli: u16, of: u16 },
    /// The provider refused the credential.
    Credential,
    /// The provider answered with a `Retry-After` for the whole credential.
    RetryAfter,
    /// It was open before a restart, which does not keep the reason.
    BeforeRestart,
}

impl fmt::Display for OpenReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |milli: u16| match milli % 10 {
            0 => format!("{}%", milli / 10),
            tenth => format!("{}.{tenth}%", milli / 10),
        };
        match *self {
            Self::InARow(failures) => write!(f, "{failures} failures in a row"),
            Self::Share { milli, of } => write!(f, "{} of {of} answers were failures", percent(milli)),
            Self::Overloaded { milli, of } => write!(f, "{} of {of} answers were 429 or 503", percent(milli)),
            Self::Credential => f.write_str("the credential was refused"),
            Self::RetryAfter => f.write_str("the provider asked for a pause"),
            Self::BeforeRestart => f.write_str("it was open before a restart"),
        }
    }
}

/// The part of a breaker that is kept over a restart while it is not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Soft {
    /// When it opened; failed probes do not change this.
    pub since: Timestamp,
    /// The length of its last hold; zero if there was none.
    pub hold: Duration,
}

#[derive(Clone, Debug)]
pub struct Breaker {
    window: AnswerWindow,
    /// When it opened; while it is closed, when it closed.
    since: Timestamp,
    /// The end of the hold while it is open; [`Timestamp::MAX`] for a hold without an end.
    until: Timestamp,
    generation: u32,
    /// The length of the last hold, from which the next one grows; 0 if there was none.
    hold_ms: u32,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed { failed_in_a_row: u16 },
    Open { why: OpenReason },
    HalfOpen { why: OpenReason, successes: u8, probing: bool },
}

// Every lane and every shared gate may have one.
const _: () = assert!(size_of::<Breaker>() <= 280);

impl Default for Breaker {
    /// A closed breaker that has counted nothing.
    fn default() -> Self {
        Self {
            window: AnswerWindow::default(),
            since: Timestamp::default(),
            until: Timestamp::MAX,
            generation: Pass::FIRST.generation,
            hold_ms: 0,
            state: State::Closed { failed_in_a_row: 0 },
        }
    }
}

impl Breaker {
    /// A breaker that was not closed when the process ended: half-open, also if its hold had not ended.
    pub fn restore(soft: Soft) -> Self {
        let mut breaker = Self { since: soft.since, hold_ms: whole_millis(soft.hold), ..Self::default() };
        breaker.enter(State::HalfOpen { why: OpenReason::BeforeRestart, successes: 0, probing: false });
        breaker
    }

    pub fn standing(&self, now: Timestamp) -> BreakerState {
        match self.state {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { .. } if self.hold_is_over(now) => BreakerState::HalfOpen { successes: 0, probing: false },
            State::Open { .. } => BreakerState::Open { until: self.end_of_hold(), since: self.since },
            State::HalfOpen { successes, probing, .. } => BreakerState::HalfOpen { successes, probing },
        }
    }

    pub fn lets_through(&self, now: Timestamp) -> LetsThrough {
        match self.standing(now) {
            BreakerState::Closed => LetsThrough::All,
            BreakerState::Open { until, .. } => LetsThrough::Nothing { until },
            BreakerState::HalfOpen { probing: false, .. } => LetsThrough::Probe,
            BreakerState::HalfOpen { probing: true, .. } => LetsThrough::Nothing { until: None },
        }
    }

    /// Notes that a request is sent. While the breaker is half-open, the request is the probe.
    pub fn start(&mut self, now: Timestamp) -> Pass {
        if let State::Open { why } = self.state
            && self.hold_is_over(now)
        {
            self.enter(State::HalfOpen { why, successes: 0, probing: false });
        }
        match &mut self.state {
            State::Closed { .. } => Pass { generation: self.generation, probe: false },
            State::HalfOpen { probing: probing @ false, .. } => {
                *probing = true;
                Pass { generation: self.generation, probe: true }
            }
            State::Open { .. } | State::HalfOpen { .. } => Pass::UNCOUNTED,
        }
    }

    /// Notes that a request of this generation was not sent after all: another probe may be sent.
    pub fn put_back(&mut self, generation: u32) {
        if generation == self.generation
            && let State::HalfOpen { probing, .. } = &mut self.state
        {
            *probing = false;
        }
    }

    /// Counts an answer, and returns the transition it caused.
    pub fn answered(
        &mut self,
        now: Timestamp,
        roll: Roll,
        rule: &BreakerRule,
        answer: BreakerAnswer,
    ) -> Option<BreakerChange> {
        if answer.generation != self.generation {
            return None;
        }
        match self.state {
            State::Closed { failed_in_a_row } => {
                let why = self.count(now, rule, failed_in_a_row, answer)?;
                if now.since(self.since) > FLAPS_WITHIN {
                    self.hold_ms = 0;
                }
                self.since = now;
                self.open(now, self.next_hold(roll, rule, answer), why);
                Some(BreakerChange::Opened)
            }
            State::HalfOpen { why, successes, probing: true } => match answer.signal {
                Signal::Neutral => {
                    self.state = State::HalfOpen { why, successes, probing: false };
                    None
                }
                Signal::Success if successes + 1 < PROBES_TO_CLOSE => {
                    self.state = State::HalfOpen { why, successes: successes + 1, probing: false };
                    None
                }
                Signal::Success => {
                    self.close(now);
                    Some(BreakerChange::Closed)
                }
                Signal::Failure | Signal::Overload => {
                    let hold = self.next_hold(roll, rule, answer).max(answer.retry_after.unwrap_or_default());
                    self.open(now, hold, why);
                    Some(BreakerChange::Reopened)
                }
            },
            State::Open { .. } | State::HalfOpen { .. } => None,
        }
    }

    /// Becomes half-open at once, without waiting for the end of the hold or for a probe in flight. No effect on a
    /// closed breaker.
    pub fn reset(&mut self) {
        if let State::Open { why } | State::HalfOpen { why, .. } = self.state {
            self.enter(State::HalfOpen { why, successes: 0, probing: false });
        }
    }

    /// Closes at once, without a probe. No effect on a closed breaker.
    pub fn force_close(&mut self, now: Timestamp) {
        if !matches!(self.state, State::Closed { .. }) {
            self.close(now);
        }
    }

    /// Opens at once, without regard to the window (B6). With `until`, for a provider's `Retry-After`. Without, for a
    /// refused credential: it stays open until the credential is replaced, which calls [`Breaker::force_close`].
    pub fn trip(&mut self, now: Timestamp, until: Option<Timestamp>) {
        if matches!(self.state, State::Closed { .. }) {
            self.since = now;
        }
        let hold = until.map_or(Duration::ZERO, |until| until.since(now));
        self.open(now, hold, if until.is_some() { OpenReason::RetryAfter } else { OpenReason::Credential });
        if until.is_none() {
            self.until = Timestamp::MAX;
        }
    }

    /// What is kept for the next start; `None` while it is closed.
    pub fn soft(&self) -> Option<Soft> {
        let hold = Duration::from_millis(self.hold_ms.into());
        (!matches!(self.state, State::Closed { .. })).then_some(Soft { since: self.since, hold })
    }

    /// What opened it; `None` while it is closed.
    pub fn reason(&self) -> Option<OpenReason> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { why } | State::HalfOpen { why, .. } => Some(why),
        }
    }

    /// The rate of successes in thousandths a second: the average over the whole seconds of the window since it
    /// began to fill. The window is kept when the breaker opens, and emptied when it closes.
    pub fn successes_per_second(&self, now: Timestamp) -> u64 {
        let seen = self.window.at(now);
        match seen.seconds {
            // No second is over yet: the current one is the best estimate.
            0 | 1 => 1_000 * seen.successes,
            seconds => 1_000 * (seen.successes - seen.successes_this_second) / u64::from(seconds - 1),
        }
    }

    /// Whether enough of the window's answers are failures or overload for the retry budget to apply.
    pub fn is_failing(&self, now: Timestamp) -> bool {
        let seen = self.window.at(now);
        let troubled = seen.failures + seen.overloads;
        troubled >= FAILING_ANSWERS && milli(troubled, seen.answers()) >= FAILING_MILLI
    }

    /// Whether it behaves like a new breaker: closed for a while, an empty window, and no failures in a row.
    /// It may then be dropped, once no request that passed it is in flight.
    pub fn is_as_new(&self, now: Timestamp) -> bool {
        matches!(self.state, State::Closed { failed_in_a_row: 0 })
            && (self.hold_ms == 0 || now.since(self.since) > FLAPS_WITHIN)
            && self.window.at(now).answers() == 0
    }

    /// Counts an answer while the breaker is closed, and returns the reason if it opens.
    fn count(
        &mut self,
        now: Timestamp,
        rule: &BreakerRule,
        failed_in_a_row: u16,
        answer: BreakerAnswer,
    ) -> Option<OpenReason> {
        self.window.count(now, answer.signal, answer.endpoint);
        match answer.signal {
            Signal::Neutral => None,
            Signal::Success => {
                self.state = State::Closed { failed_in_a_row: 0 };
                None
            }
            Signal::Failure => {
                let failed_in_a_row = if rule.in_a_row == 0 { 0 } else { failed_in_a_row.saturating_add(1) };
                self.state = State::Closed { failed_in_a_row };
                if rule.in_a_row > 0 && failed_in_a_row >= rule.in_a_row {
                    return Some(OpenReason::InARow(failed_in_a_row));
                }
                let seen = self.window.at(now);
                let of = seen.successes + seen.failures;
                let share = milli(seen.failures, of);
                let opens = share >= u64::from(rule.share_milli)
                    && of >= u64::from(rule.volume)
                    && self.window.failed.count() >= rule.endpoints.min(ENDPOINTS_MAX);
                opens.then(|| OpenReason::Share { milli: shown(share), of: shown(of) })
            }
            Signal::Overload => {
                let seen = self.window.at(now);
                let share = milli(seen.overloads, seen.answers());
                let opens = share >= OVERLOADED_MILLI
                    && seen.overloads >= u64::from(rule.volume)
                    && self.window.overloaded.count() >= rule.endpoints.min(ENDPOINTS_MAX);
                opens.then(|| OpenReason::Overloaded { milli: shown(share), of: shown(seen.answers()) })
            }
        }
    }

    /// The first hold by the rule, or one and a half times the last one; bounded after the roll.
    fn next_hold(&self, roll: Roll, rule: &BreakerRule, answer: BreakerAnswer) -> Duration {
        let wanted = match self.hold_ms {
            0 => {
                let tenth = rule.open_for / 10;
                roll.between(rule.open_for - tenth, rule.open_for.saturating_add(tenth))
            }
            last => Duration::from_millis((u64::from(last) * 3).div_ceil(2)),
        };
        wanted.min(if answer.messages_wait { HOLD_MAX_WAITED } else { HOLD_MAX })
    }

    fn open(&mut self, now: Timestamp, hold: Duration, why: OpenReason) {
        self.hold_ms = whole_millis(hold);
        self.until = now + Duration::from_millis(self.hold_ms.into());
        self.enter(State::Open { why });
    }

    fn close(&mut self, now: Timestamp) {
        // Answers from before the recovery no longer count.
        self.window = AnswerWindow::default();
        self.since = now;
        self.enter(State::Closed { failed_in_a_row: 0 });
    }

    /// Every transition ends a generation: answers to earlier requests are not counted.
    fn enter(&mut self, state: State) {
        self.state = state;
        self.generation = match self.generation.wrapping_add(1) {
            // 0 is the generation of `Pass::UNCOUNTED`.
            0 => Pass::FIRST.generation,
            next => next,
        };
    }

    fn end_of_hold(&self) -> Option<Timestamp> {
        (self.until != Timestamp::MAX).then_some(self.until)
    }

    fn hold_is_over(&self, now: Timestamp) -> bool {
        self.end_of_hold().is_some_and(|until| {
            let left = until.since(now);
            // If more is left than the hold was long, the clock was set back.
            left.is_zero() || left > Duration::from_millis(self.hold_ms.into()) + WINDOW
        })
    }
}

/// A part in thousandths, rounded down; 0 if `of` is 0.
fn milli(part: u64, of: u64) -> u64 {
    (1_000 * part).checked_div(of).unwrap_or(0)
}

fn shown(number: u64) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

/// Rounded up, and at most seven weeks, which is longer than any wait.
fn whole_millis(hold: Duration) -> u32 {
    u32::try_from(millis_up(hold)).unwrap_or(u32::MAX)
}
