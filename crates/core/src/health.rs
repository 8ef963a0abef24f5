//! Decides how an endpoint is doing (E4, E5): when its owner is warned, when it is disabled, when a
//! disabled one is probed, and what a person reads of it.
//!
//! A [`Health`] is told what happened and asked what to do; whoever asks makes the step durable and
//! tells the owner. Invariants: a success ends everything held against an endpoint; nothing is
//! decided about one that is not tried; its size does not grow with traffic. What a person reads is
//! in [`Score`].

mod day;
mod latency;
mod score;

use std::time::Duration;

pub use score::Score;

use crate::cause::{Cause, Class};
use crate::delivery::Verdict;
use crate::dice::Roll;
use crate::time::Timestamp;
use day::Day;
use latency::Latency;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// An owner is warned when nothing succeeded for this long.
pub const WARN_AFTER: Duration = HOUR;

/// An endpoint that hurts others is disabled when everything failed for this long.
pub const DISABLE_AFTER: Duration = DAY;

/// How many deliveries must be lost to it, or wait behind it, for that: fewer are no harm worth
/// switching off a quiet endpoint for.
pub const HARMED_MIN: u64 = 10;

/// Any endpoint is disabled when everything failed for this long.
pub const DISABLE_ANY_AFTER: Duration = Duration::from_secs(5 * DAY.as_secs());

/// The first probe of a disabled endpoint comes this long after; the wait doubles with each that fails.
pub const PROBE_WAIT_FIRST: Duration = MINUTE;

/// The longest wait between two probes: an endpoint that is back is found within the hour.
pub const PROBE_WAIT_MAX: Duration = HOUR;

/// A receiver may ask for a longer wait than that, up to this: nobody is left alone for ever.
const ASKED_MAX: Duration = DAY;

/// How far a wait between probes strays either way, so that what was disabled together is not
/// probed together: a tenth.
const PROBE_SPREAD: u32 = 10;

/// What is known of one endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    phase: Phase,
    /// A warned endpoint succeeded and its owner has not been told so far.
    owes_recovered: bool,
    last_tried_at: Option<Timestamp>,
    last_success_at: Option<Timestamp>,
    last_cause: Option<Cause>,
    day: Day,
    latency: Latency,
}

/// One for each endpoint, and there are many.
const _: () = assert!(size_of::<Health>() <= 512);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Its last try succeeded, or there was none.
    #[default]
    Fine,
    /// Nothing succeeded since this try, which failed.
    Failing { since: Timestamp, warned: bool },
    /// Nothing is sent but probes.
    Disabled { since: Timestamp, reason: Reason, probe_at: Timestamp, failed_probes: u8 },
}

/// What to do about an endpoint, and to tell its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing succeeded for an hour: tell the owner. Once in a failing period.
    Warn,
    /// Send no more to it; what is made for it waits.
    Disable(Reason),
    /// A disabled one answered its probe: deliver what waited.
    Enable,
    /// The first success after a warning: tell the owner.
    Recovered,
}

/// Why an endpoint was disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Everything failed for a day, and at least [`HARMED_MIN`] deliveries were lost or wait.
    DayOfHarm,
    /// Nothing succeeded for five days.
    FiveDays,
}

impl Reason {
    /// The reason's name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DayOfHarm => "everything_failed_for_24h",
            Self::FiveDays => "nothing_succeeded_for_5d",
        }
    }
}

/// How an endpoint stands: what must survive a restart, and what [`Health::restored`] takes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing to tell anybody.
    Healthy,
    /// Its owner was warned.
    Failing {
        /// The first try that failed.
        since: Timestamp,
    },
    /// It gets nothing but probes.
    Disabled {
        /// From when on.
        since: Timestamp,
        /// Why.
        reason: Reason,
    },
}

impl Health {
    /// Takes up where a restart left off. What was not worth a [`Step`] is forgotten: a warning
    /// comes up to an hour later, nothing sooner.
    pub fn restored(standing: Standing, now: Timestamp, roll: Roll) -> Self {
        let phase = match standing {
            Standing::Healthy => Phase::Fine,
            Standing::Failing { since } => Phase::Failing { since, warned: true },
            Standing::Disabled { since, reason } => {
                let probe_at = now + probe_wait(0, roll);
                Phase::Disabled { since, reason, probe_at, failed_probes: 0 }
            }
        };
        Self { phase, ..Self::default() }
    }

    /// An attempt ended so, after this long.
    pub fn attempted(&mut self, now: Timestamp, verdict: &Verdict, took: Duration) {
        let Some(said) = Said::of(verdict) else { return };
        self.note(now, said, verdict.cause);
        // A refused connection is quick, but no answer.
        if said == Said::Taken || verdict.status.is_some() {
            self.latency.note(now, took);
        }
        self.phase = match (self.phase, said) {
            // One sent before: a probe will find out what it is worth.
            (disabled @ Phase::Disabled { .. }, _) => disabled,
            (phase, Said::Taken) => {
                self.owes_recovered |= matches!(phase, Phase::Failing { warned: true, .. });
                Phase::Fine
            }
            (Phase::Fine, Said::Refused) => Phase::Failing { since: now, warned: false },
            // The clock may have gone back; a period does not begin in the future.
            (Phase::Failing { since, warned }, Said::Refused) => Phase::Failing { since: since.min(now), warned },
        };
    }

    /// A delivery ended dead, for this cause.
    pub fn ended(&mut self, now: Timestamp, cause: Cause) {
        if is_of_the_endpoint(cause) {
            let hour = self.day.hour(now);
            hour.ended = hour.ended.saturating_add(1);
        }
    }

    /// Its breaker opened.
    pub fn tripped(&mut self, now: Timestamp) {
        let hour = self.day.hour(now);
        hour.trips = hour.trips.saturating_add(1);
    }

    /// What is to be done by now, with so many deliveries waiting behind the endpoint. Ask until
    /// there is nothing: steps come one at a time, in the order their owner should hear of them.
    pub fn look(&mut self, now: Timestamp, waiting: u64, roll: Roll) -> Option<Step> {
        if std::mem::take(&mut self.owes_recovered) {
            return Some(Step::Recovered);
        }
        let Phase::Failing { since, warned } = self.phase else { return None };
        if !warned {
            let due = now.since(since) >= WARN_AFTER;
            self.phase = Phase::Failing { since, warned: due };
            return due.then_some(Step::Warn);
        }
        let reason = self.reason_to_disable(now, since, waiting)?;
        let probe_at = now + probe_wait(0, roll);
        self.phase = Phase::Disabled { since: now, reason, probe_at, failed_probes: 0 };
        Some(Step::Disable(reason))
    }

    fn reason_to_disable(&self, now: Timestamp, since: Timestamp, waiting: u64) -> Option<Reason> {
        let failing_for = now.since(since);
        let tried_of_late = self.last_tried_at.is_some_and(|at| now.since(at) < DAY);
        if failing_for < DISABLE_AFTER || !tried_of_late {
            return None;
        }
        if failing_for >= DISABLE_ANY_AFTER {
            return Some(Reason::FiveDays);
        }
        let harmed = self.day.total(now).ended.saturating_add(waiting);
        (harmed >= HARMED_MIN).then_some(Reason::DayOfHarm)
    }

    /// When a disabled endpoint is to be probed next; `None` when it is not disabled.
    pub const fn probe_at(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::Disabled { probe_at, .. } => Some(probe_at),
            Phase::Fine | Phase::Failing { .. } => None,
        }
    }

    /// A probe of a disabled endpoint ended so. One that ends after somebody enabled it says nothing.
    pub fn probed(&mut self, now: Timestamp, roll: Roll, verdict: &Verdict) -> Option<Step> {
        let Phase::Disabled { since, reason, failed_probes, .. } = self.phase else { return None };
        let said = Said::of(verdict);
        if said == Some(Said::Taken) {
            self.enabled();
            self.note(now, Said::Taken, verdict.cause);
            return Some(Step::Enable);
        }
        let mut failed_probes = failed_probes;
        if said == Some(Said::Refused) {
            self.note(now, Said::Refused, verdict.cause);
            failed_probes = failed_probes.saturating_add(1);
        }
        let asked = verdict.retry_after.unwrap_or_default().min(ASKED_MAX);
        let probe_at = now + probe_wait(failed_probes, roll).max(asked);
        self.phase = Phase::Disabled { since, reason, probe_at, failed_probes };
        None
    }

    /// It gets deliveries again, by its owner's word: what was held against it is forgotten, and
    /// only what fails from now on counts.
    pub fn enabled(&mut self) {
        *self = Self { last_success_at: self.last_success_at, last_cause: self.last_cause, ..Self::default() };
    }

    /// How it stands.
    pub const fn standing(&self) -> Standing {
        match self.phase {
            Phase::Fine | Phase::Failing { warned: false, .. } => Standing::Healthy,
            Phase::Failing { since, warned: true } => Standing::Failing { since },
            Phase::Disabled { since, reason, .. } => Standing::Disabled { since, reason },
        }
    }

    fn note(&mut self, now: Timestamp, said: Said, cause: Cause) {
        self.last_tried_at = Some(now);
        let hour = self.day.hour(now);
        hour.tried = hour.tried.saturating_add(1);
        match said {
            Said::Taken => {
                hour.taken = hour.taken.saturating_add(1);
                self.last_success_at = Some(now);
            }
            Said::Refused => self.last_cause = Some(cause),
        }
    }
}

/// What a try says of its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Taken,
    Refused,
}

impl Said {
    /// `None` when it says nothing of it: the fault is ours, or a credential's.
    const fn of(verdict: &Verdict) -> Option<Self> {
        match verdict.class {
            Class::Delivered => Some(Self::Taken),
            Class::Retry | Class::Limited | Class::Dead | Class::Gone | Class::TooLarge => Some(Self::Refused),
            Class::Credential | Class::Ours | Class::Decided => None,
        }
    }
}

/// Whether a delivery that ended so ended by a fault of its endpoint, not of its message or ours.
const fn is_of_the_endpoint(cause: Cause) -> bool {
    match cause.class() {
        // Tries were spent on what may pass: DNS and TLS are among it.
        Class::Retry | Class::Limited => true,
        Class::Dead => matches!(
            cause,
            Cause::Unauthorized
                | Cause::Forbidden
                | Cause::NotFound
                | Cause::MethodNotAllowed
                | Cause::RedirectNotFollowed
        ),
        Class::Delivered | Class::Gone | Class::TooLarge | Class::Credential | Class::Ours | Class::Decided => false,
    }
}

/// The wait before the next probe, after so many that failed.
fn probe_wait(failed: u8, roll: Roll) -> Duration {
    let doubled = 1_u32.checked_shl(failed.into()).unwrap_or(u32::MAX);
    let wait = PROBE_WAIT_FIRST.saturating_mul(doubled).min(PROBE_WAIT_MAX);
    roll.between(wait - wait / PROBE_SPREAD, wait + wait / PROBE_SPREAD)
}

#[cfg(test)]
mod tests;
