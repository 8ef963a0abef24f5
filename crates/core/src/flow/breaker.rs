//! A circuit breaker as a value (E1, E3, B6): it watches what a destination answers and says whether
//! the next request may go. *Closed* lets everything through, *open* nothing, *half-open* one probe
//! at a time.
//!
//! Whoever sends asks [`Breaker::lets_through`] first, calls [`Breaker::start`] when something is really sent,
//! and brings the pass's generation back with [`Breaker::answered`], or with [`Breaker::put_back`]
//! when it was not sent after all. What an answer means is `signal.rs`; the sliding window is
//! `window.rs`. Which breakers a lane has is the queue's business.
//!
//! Invariants: a success never opens; only a breaker that was half-open closes by itself; an answer
//! to a request from before the last transition changes nothing; a hold that nobody lengthened is
//! never above [`HOLD_MAX_WAITED`] while messages wait. Every call is total: any order, any clock.

mod signal;
#[cfg(test)]
mod tests;
mod window;

use std::fmt;
use std::time::Duration;

use crate::dice::Roll;
use crate::id::EndpointId;
use crate::time::{Timestamp, millis_up};

use window::{Counted, Window};

pub use signal::Signal;
pub use window::{ENDPOINTS_MAX, WINDOW};

/// The longest hold while messages wait: longer, and what came during it would be old news.
pub const HOLD_MAX_WAITED: Duration = Duration::from_secs(60);
/// The longest hold while none do.
pub const HOLD_MAX: Duration = Duration::from_secs(300);
/// This many probes in a row must succeed before it closes.
pub const PROBES_TO_CLOSE: u8 = 3;
/// One that opens again so soon after it closed never was well: its hold goes on growing.
pub const FLAPS_WITHIN: Duration = Duration::from_secs(60);
/// From this share of a window on, overload answers count.
const OVERLOADED_MILLI: u64 = 900;
/// A destination fails when this many answers of a window were failures or overload, …
const FAILING_ANSWERS: u64 = 5;
/// … and they are this share of it.
const FAILING_MILLI: u64 = 100;

/// When a breaker opens, and for how long at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// This many failures in a row open it, however far apart; 0 is never.
    pub in_a_row: u16,
    /// This share of failures among the window's successes and failures opens it, in thousandths.
    pub share_milli: u16,
    /// The share counts from this many on; overload answers must be as many.
    pub volume: u32,
    /// For a share to count, so many different endpoints had a part in it within the window; more
    /// than [`ENDPOINTS_MAX`] are not told apart.
    pub endpoints: u8,
    /// The first hold, ±10 %. Above [`HOLD_MAX_WAITED`] it is only kept while no message waits.
    pub open_for: Duration,
}

impl Rule {
    /// For an endpoint on its own.
    pub const ENDPOINT: Self =
        Self { in_a_row: 10, share_milli: 500, volume: 20, endpoints: 1, open_for: Duration::from_secs(30) };
    /// For scheme, host and port.
    pub const ORIGIN: Self = Self::ENDPOINT.of_origin();
    /// For a provider, or a group of origins: a small share of much.
    pub const REGION: Self = Self { in_a_row: 0, share_milli: 50, volume: 200, endpoints: 5, ..Self::ENDPOINT };
    /// For the resolver of names: nearly everybody's names fail. `endpoints` are origins here.
    pub const RESOLVER: Self = Self { in_a_row: 0, share_milli: 900, volume: 20, endpoints: 5, ..Self::ENDPOINT };
    /// The same where several tenants send: `endpoints` are tenants, so that one whose names are broken does not
    /// hold the others.
    pub const RESOLVER_OF_TENANTS: Self = Self { endpoints: 2, ..Self::RESOLVER };

    /// For an origin, where this is the rule for its endpoints: a share alone, and of two endpoints, so that no tenant
    /// switches off another's host.
    #[must_use]
    pub const fn of_origin(self) -> Self {
        Self { in_a_row: 0, endpoints: 2, ..self }
    }
}

/// How a breaker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Everything goes.
    Closed,
    /// Nothing goes.
    Open {
        /// When the first probe may go; `None` when somebody must end it.
        until: Option<Timestamp>,
        /// When it opened; a failed probe does not begin it anew.
        since: Timestamp,
    },
    /// One probe at a time goes.
    HalfOpen {
        /// How many in a row succeeded.
        successes: u8,
        /// Whether one is under way.
        probing: bool,
    },
}

/// What a breaker lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetsThrough {
    /// The next request may go, and so may others.
    All,
    /// The next request may go, alone.
    Probe,
    /// The next request waits.
    Nothing {
        /// Until when; `None` while a probe is under way, or until somebody ends it.
        until: Option<Timestamp>,
    },
}

/// What a request was sent under. Its answer brings the generation back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Between which two transitions it was sent.
    pub generation: u32,
    /// Whether it is the probe.
    pub probe: bool,
}

impl Pass {
    /// What a new breaker gives: for requests sent before there was one.
    pub const FIRST: Self = Self { generation: 1, probe: false };
    /// For a request sent in spite of the breaker: no generation is this, so its answer counts for
    /// nothing.
    const UNCOUNTED: Self = Self { generation: 0, probe: false };
}

/// The answer to a request, as a breaker sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// That of the request's [`Pass`].
    pub generation: u32,
    /// Which endpoint it was sent to.
    pub endpoint: EndpointId,
    /// What it says of the destination.
    pub signal: Signal,
    /// Whether anything waits to be sent there: then a hold is shorter.
    pub messages_wait: bool,
    /// How long the receiver asked to be left alone, within what the policy allows.
    pub retry_after: Option<Duration>,
}

/// What an answer did to a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was closed and opened.
    Opened,
    /// A probe failed.
    Reopened,
    /// Enough probes succeeded.
    Closed,
}

/// What opened a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Failures in a row.
    InARow(u16),
    /// The share of failures among successes and failures.
    Share {
        /// In thousandths, rounded down.
        milli: u16,
        /// Of how many; it counts no further than the type does.
        of: u16,
    },
    /// The share of 429 and 503 among all answers.
    Overloaded {
        /// In thousandths, rounded down.
        milli: u16,
        /// Of how many; it counts no further than the type does.
        of: u16,
    },
    /// The credential was refused.
    Credential,
    /// The provider asked that nothing is sent with the credential for a while.
    RetryAfter,
    /// It was open before a restart; what opened it is not kept.
    BeforeRestart,
}

impl fmt::Display for Opened {
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

/// What survives a restart of a breaker that is not closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Soft {
    /// When it opened; a failed probe does not begin it anew.
    pub since: Timestamp,
    /// How long it held last; zero when it has no hold to grow from.
    pub hold: Duration,
}

/// One breaker.
#[derive(Clone, Debug)]
pub struct Breaker {
    window: Window,
    /// When it opened; of a closed one, when it closed.
    since: Timestamp,
    /// The end of the hold while it is open, [`Timestamp::MAX`] for none.
    until: Timestamp,
    generation: u32,
    /// The last hold, from which the next one grows; 0 when there was none.
    hold_ms: u32,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed { failed_in_a_row: u16 },
    Open { why: Opened },
    HalfOpen { why: Opened, successes: u8, probing: bool },
}

impl Default for Breaker {
    fn default() -> Self {
        Self::new()
    }
}

impl Breaker {
    /// A closed one that has seen nothing.
    pub fn new() -> Self {
        Self {
            window: Window::default(),
            since: Timestamp::default(),
            until: Timestamp::MAX,
            generation: Pass::FIRST.generation,
            hold_ms: 0,
            state: State::Closed { failed_in_a_row: 0 },
        }
    }

    /// One that was not closed when the process ended: it probes first, whatever was left of its hold.
    pub fn restore(soft: Soft) -> Self {
        let mut breaker = Self { since: soft.since, hold_ms: whole_millis(soft.hold), ..Self::new() };
        breaker.enter(State::HalfOpen { why: Opened::BeforeRestart, successes: 0, probing: false });
        breaker
    }

    /// How it stands.
    pub fn standing(&self, now: Timestamp) -> Standing {
        match self.state {
            State::Closed { .. } => Standing::Closed,
            State::Open { .. } if self.hold_is_over(now) => Standing::HalfOpen { successes: 0, probing: false },
            State::Open { .. } => Standing::Open { until: self.end_of_hold(), since: self.since },
            State::HalfOpen { successes, probing, .. } => Standing::HalfOpen { successes, probing },
        }
    }

    /// What it lets through now.
    pub fn lets_through(&self, now: Timestamp) -> LetsThrough {
        match self.standing(now) {
            Standing::Closed => LetsThrough::All,
            Standing::Open { until, .. } => LetsThrough::Nothing { until },
            Standing::HalfOpen { probing: false, .. } => LetsThrough::Probe,
            Standing::HalfOpen { probing: true, .. } => LetsThrough::Nothing { until: None },
        }
    }

    /// Takes note that something is sent; while it is half-open, that is the probe.
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

    /// Takes note that what was to go under this generation did not: a probe's place is free again.
    pub fn put_back(&mut self, generation: u32) {
        if generation == self.generation
            && let State::HalfOpen { probing, .. } = &mut self.state
        {
            *probing = false;
        }
    }

    /// Takes note of an answer.
    pub fn answered(&mut self, now: Timestamp, roll: Roll, rule: &Rule, answer: Answer) -> Option<Change> {
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
                Some(Change::Opened)
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
                    Some(Change::Closed)
                }
                Signal::Failure | Signal::Overload => {
                    let hold = self.next_hold(roll, rule, answer).max(answer.retry_after.unwrap_or_default());
                    self.open(now, hold, why);
                    Some(Change::Reopened)
                }
            },
            State::Open { .. } | State::HalfOpen { .. } => None,
        }
    }

    /// Probes at once instead of waiting for the end of the hold, or for a probe that never came
    /// back. A closed one stays as it is.
    pub fn reset(&mut self) {
        if let State::Open { why } | State::HalfOpen { why, .. } = self.state {
            self.enter(State::HalfOpen { why, successes: 0, probing: false });
        }
    }

    /// Closes at once, without a probe. A closed one stays as it is.
    pub fn force_close(&mut self, now: Timestamp) {
        if !matches!(self.state, State::Closed { .. }) {
            self.close(now);
        }
    }

    /// Opens at once, whatever the window says, since its credential was refused (B6). Without an end
    /// it takes somebody who replaces the credential, and then [`Breaker::force_close`].
    pub fn trip(&mut self, now: Timestamp, until: Option<Timestamp>) {
        if matches!(self.state, State::Closed { .. }) {
            self.since = now;
        }
        let hold = until.map_or(Duration::ZERO, |until| until.since(now));
        self.open(now, hold, if until.is_some() { Opened::RetryAfter } else { Opened::Credential });
        if until.is_none() {
            self.until = Timestamp::MAX;
        }
    }

    /// What to keep of it for the next start; `None` of a closed one.
    pub fn soft(&self) -> Option<Soft> {
        let hold = Duration::from_millis(self.hold_ms.into());
        (!matches!(self.state, State::Closed { .. })).then_some(Soft { since: self.since, hold })
    }

    /// What opened it; `None` of a closed one.
    pub fn reason(&self) -> Option<Opened> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { why } | State::HalfOpen { why, .. } => Some(why),
        }
    }

    /// What the receiver took lately, in thousandths a second: the average over the window's whole
    /// seconds since it began to fill. The window stays as it was when the breaker opens, and is
    /// empty when it closes.
    pub fn successes_per_second(&self, now: Timestamp) -> u64 {
        let seen = self.window.at(now);
        match seen.seconds {
            // Not even one second is whole: it is the best that is known.
            0 | 1 => 1_000 * seen.successes,
            seconds => 1_000 * (seen.successes - seen.successes_this_second) / u64::from(seconds - 1),
        }
    }

    /// Whether enough of the window went wrong for retries to be rationed.
    pub fn is_failing(&self, now: Timestamp) -> bool {
        let seen = self.window.at(now);
        let troubled = seen.failures + seen.overloads;
        troubled >= FAILING_ANSWERS && milli(troubled, seen.answers()) >= FAILING_MILLI
    }

    /// Whether a new one would do as well: closed for a while, nothing in the window, no failures in a
    /// row. To forget it is safe once nothing sent under it is under way.
    pub fn is_as_new(&self, now: Timestamp) -> bool {
        matches!(self.state, State::Closed { failed_in_a_row: 0 })
            && (self.hold_ms == 0 || now.since(self.since) > FLAPS_WITHIN)
            && self.window.at(now).answers() == 0
    }

    /// Counts an answer while it is closed, and says whether that opens it.
    fn count(&mut self, now: Timestamp, rule: &Rule, failed_in_a_row: u16, answer: Answer) -> Option<Opened> {
        match answer.signal {
            Signal::Neutral => None,
            Signal::Success => {
                self.window.count(now, Counted::Success, answer.endpoint);
                self.state = State::Closed { failed_in_a_row: 0 };
                None
            }
            Signal::Failure => {
                self.window.count(now, Counted::Failure, answer.endpoint);
                let failed_in_a_row = if rule.in_a_row == 0 { 0 } else { failed_in_a_row.saturating_add(1) };
                self.state = State::Closed { failed_in_a_row };
                if rule.in_a_row > 0 && failed_in_a_row >= rule.in_a_row {
                    return Some(Opened::InARow(failed_in_a_row));
                }
                let seen = self.window.at(now);
                let of = seen.successes + seen.failures;
                let share = milli(seen.failures, of);
                let opens = share >= u64::from(rule.share_milli)
                    && of >= u64::from(rule.volume)
                    && self.window.endpoints_failed() >= rule.endpoints.min(ENDPOINTS_MAX);
                opens.then(|| Opened::Share { milli: shown(share), of: shown(of) })
            }
            Signal::Overload => {
                self.window.count(now, Counted::Overload, answer.endpoint);
                let seen = self.window.at(now);
                let share = milli(seen.overloads, seen.answers());
                let opens = share >= OVERLOADED_MILLI
                    && seen.overloads >= u64::from(rule.volume)
                    && self.window.endpoints_overloaded() >= rule.endpoints.min(ENDPOINTS_MAX);
                opens.then(|| Opened::Overloaded { milli: shown(share), of: shown(seen.answers()) })
            }
        }
    }

    /// The first hold by the rule, or the last one and half of it; bounded after the dice.
    fn next_hold(&self, roll: Roll, rule: &Rule, answer: Answer) -> Duration {
        let wanted = match self.hold_ms {
            0 => {
                let tenth = rule.open_for / 10;
                roll.between(rule.open_for - tenth, rule.open_for.saturating_add(tenth))
            }
            last => Duration::from_millis((u64::from(last) * 3).div_ceil(2)),
        };
        wanted.min(if answer.messages_wait { HOLD_MAX_WAITED } else { HOLD_MAX })
    }

    fn open(&mut self, now: Timestamp, hold: Duration, why: Opened) {
        self.hold_ms = whole_millis(hold);
        self.until = now + Duration::from_millis(self.hold_ms.into());
        self.enter(State::Open { why });
    }

    fn close(&mut self, now: Timestamp) {
        // What was counted before says nothing of the receiver that has recovered.
        self.window = Window::default();
        self.since = now;
        self.enter(State::Closed { failed_in_a_row: 0 });
    }

    /// Every transition ends a generation: what was sent before it has no say any more.
    fn enter(&mut self, state: State) {
        self.state = state;
        self.generation = match self.generation.wrapping_add(1) {
            // That of a pass that counts for nothing.
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
            // More left than the hold was long: the clock was set back, and would hold it for as long.
            left.is_zero() || left > Duration::from_millis(self.hold_ms.into()) + WINDOW
        })
    }
}

/// A part in thousandths, rounded down; of nothing it is nothing.
fn milli(part: u64, of: u64) -> u64 {
    (1_000 * part).checked_div(of).unwrap_or(0)
}

fn shown(number: u64) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

/// Rounded up, and at most seven weeks: longer than any wait there is.
fn whole_millis(hold: Duration) -> u32 {
    u32::try_from(millis_up(hold)).unwrap_or(u32::MAX)
}
