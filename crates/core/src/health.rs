//! The health of an endpoint (E4, E5): when its owner is warned, when it is disabled, when a
//! disabled one is probed, and its score.
//!
//! The caller reports attempts and ends to an [`EndpointHealth`] and asks for the next [`HealthStep`], which it makes
//! durable and reports to the owner. Invariants: a success clears all failures of an endpoint; an endpoint without recent
//! attempts is not disabled; an `EndpointHealth` does not grow with traffic. [`Score`] is the readable summary.

mod day;
mod latency;

use std::time::Duration;

use crate::{Cause, Class, Roll, Timestamp, Verdict};
use day::DayCounts;
use latency::Latency;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The owner is warned when every attempt has failed for this long.
pub const WARN_AFTER: Duration = HOUR;

/// An endpoint with at least [`HARMED_MIN`] affected deliveries is disabled when every attempt has failed for this
/// long.
pub const DISABLE_AFTER: Duration = DAY;

/// How many deliveries must have died in the last day or be waiting for [`DISABLE_AFTER`] to apply: an endpoint with
/// little traffic is not disabled so soon.
pub const HARMED_MIN: u64 = 10;

/// Any endpoint is disabled when every attempt has failed for this long.
pub const DISABLE_ANY_AFTER: Duration = Duration::from_secs(5 * DAY.as_secs());

/// The wait before the first probe of a disabled endpoint; it doubles with each probe that fails.
pub const PROBE_WAIT_FIRST: Duration = MINUTE;

/// The longest wait between two probes.
pub const PROBE_WAIT_MAX: Duration = HOUR;

/// The longest `Retry-After` that a probe's answer may set.
const RETRY_AFTER_MAX: Duration = DAY;

/// The wait between probes is spread by one part in this many either way, so that endpoints that were disabled
/// together are not probed together.
const PROBE_SPREAD: u32 = 10;

/// A median latency above this costs points.
const SLOW: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointHealth {
    phase: Phase,
    /// A warned endpoint succeeded, and [`HealthStep::Recovered`] has not been returned yet.
    owes_recovered: bool,
    last_tried_at: Option<Timestamp>,
    last_success_at: Option<Timestamp>,
    last_cause: Option<Cause>,
    day: DayCounts,
    latency: Latency,
}

// There is one for each endpoint.
const _: () = assert!(size_of::<EndpointHealth>() <= 512);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// The last attempt succeeded, or there was none.
    #[default]
    Fine,
    /// Every attempt failed since the one at `since`.
    Failing { since: Timestamp, warned: bool },
    /// Only probes are sent.
    Disabled { since: Timestamp, reason: Reason, probe_at: Timestamp, failed_probes: u8 },
}

/// A change of an endpoint's health that the caller applies and reports to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthStep {
    /// Warn the owner: every attempt failed for an hour. Once in a failing period.
    Warn,
    /// Disable the endpoint: its deliveries wait.
    Disable(Reason),
    /// Enable a disabled endpoint that answered its probe: its waiting deliveries are sent.
    Enable,
    /// Report the first success after a warning.
    Recovered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Everything failed for a day, and at least [`HARMED_MIN`] deliveries were lost or wait.
    DayOfHarm,
    /// Every attempt failed for five days.
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

/// The part of a [`EndpointHealth`] that must survive a restart; [`EndpointHealth::restored`] continues from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointStanding {
    /// The owner was not warned.
    Healthy,
    /// The owner was warned.
    Failing {
        /// The first attempt that failed.
        since: Timestamp,
    },
    /// Only probes are sent.
    Disabled { since: Timestamp, reason: Reason },
}

/// A summary of an endpoint's health. Counts and shares cover the last 24 hours, by the hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Score {
    /// 0 to 100, by this rule: the success share in percent, rounded down, or 100 without attempts;
    /// minus 2 for each time the breaker opened, at most 20; minus 10 if half of
    /// the answers take longer than 5 s; at most 20 while failing; 0 when disabled.
    pub points: u8,
    /// The share of attempts that succeeded, in thousandths, rounded down; `None` without attempts.
    pub success_share_milli: Option<u16>,
    /// The approximate median latency of recent answers; `None` without answers.
    pub latency_p50: Option<Duration>,
    /// The approximate 99th percentile of the latency.
    pub latency_p99: Option<Duration>,
    pub tried: u64,
    /// How often the endpoint's breaker opened.
    pub trips: u64,
    pub last_cause: Option<Cause>,
    pub last_success_at: Option<Timestamp>,
    /// The first failed attempt since then; `None` if the last attempt succeeded or the endpoint is disabled.
    pub failing_since: Option<Timestamp>,
    /// When the endpoint is probed next; `None` if it is not disabled.
    pub probe_at: Option<Timestamp>,
    /// Whether the owner was warned, or the endpoint is disabled.
    pub standing: EndpointStanding,
}

impl EndpointHealth {
    /// Continues after a restart. Failures that had not led to a [`HealthStep`] are forgotten, so a warning may come up to
    /// an hour later; no step comes earlier.
    pub fn restored(standing: EndpointStanding, now: Timestamp, roll: Roll) -> Self {
        let phase = match standing {
            EndpointStanding::Healthy => Phase::Fine,
            EndpointStanding::Failing { since } => Phase::Failing { since, warned: true },
            EndpointStanding::Disabled { since, reason } => {
                let probe_at = now + probe_wait(0, roll);
                Phase::Disabled { since, reason, probe_at, failed_probes: 0 }
            }
        };
        Self { phase, ..Self::default() }
    }

    pub fn attempted(&mut self, now: Timestamp, verdict: &Verdict, took: Duration) {
        let Some(outcome) = Outcome::of(verdict) else { return };
        self.note(now, outcome, verdict.cause);
        // The time of a refused connection is no latency of an answer.
        if outcome == Outcome::Taken || verdict.status.is_some() {
            self.latency.note(now, took);
        }
        self.phase = match (self.phase, outcome) {
            // An attempt from before the endpoint was disabled: only a probe enables it.
            (disabled @ Phase::Disabled { .. }, _) => disabled,
            (phase, Outcome::Taken) => {
                self.owes_recovered |= matches!(phase, Phase::Failing { warned: true, .. });
                Phase::Fine
            }
            (Phase::Fine, Outcome::Refused) => Phase::Failing { since: now, warned: false },
            // The clock may have been set back; a failing period does not begin in the future.
            (Phase::Failing { since, warned }, Outcome::Refused) => Phase::Failing { since: since.min(now), warned },
        };
    }

    /// Notes that a delivery died with this cause.
    pub fn ended(&mut self, now: Timestamp, cause: Cause) {
        if is_of_the_endpoint(cause) {
            let hour = self.day.hour(now);
            hour.ended = hour.ended.saturating_add(1);
        }
    }

    /// Notes that the endpoint's breaker opened.
    pub fn tripped(&mut self, now: Timestamp) {
        let hour = self.day.hour(now);
        hour.trips = hour.trips.saturating_add(1);
    }

    /// The next step that is due, where `waiting` deliveries wait for the endpoint. To be called until it returns
    /// `None`: steps come one at a time, in the order in which the owner is notified.
    pub fn look(&mut self, now: Timestamp, waiting: u64, roll: Roll) -> Option<HealthStep> {
        if std::mem::take(&mut self.owes_recovered) {
            return Some(HealthStep::Recovered);
        }
        let Phase::Failing { since, warned } = self.phase else { return None };
        if !warned {
            let due = now.since(since) >= WARN_AFTER;
            self.phase = Phase::Failing { since, warned: due };
            return due.then_some(HealthStep::Warn);
        }
        let reason = self.reason_to_disable(now, since, waiting)?;
        let probe_at = now + probe_wait(0, roll);
        self.phase = Phase::Disabled { since: now, reason, probe_at, failed_probes: 0 };
        Some(HealthStep::Disable(reason))
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

    /// When a disabled endpoint is probed next; `None` if it is not disabled.
    pub const fn probe_at(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::Disabled { probe_at, .. } => Some(probe_at),
            Phase::Fine | Phase::Failing { .. } => None,
        }
    }

    /// Notes the outcome of a probe. Ignored if the endpoint was enabled in the meantime.
    pub fn probed(&mut self, now: Timestamp, roll: Roll, verdict: &Verdict) -> Option<HealthStep> {
        let Phase::Disabled { since, reason, failed_probes, .. } = self.phase else { return None };
        let outcome = Outcome::of(verdict);
        if outcome == Some(Outcome::Taken) {
            self.enabled();
            self.note(now, Outcome::Taken, verdict.cause);
            return Some(HealthStep::Enable);
        }
        let mut failed_probes = failed_probes;
        if outcome == Some(Outcome::Refused) {
            self.note(now, Outcome::Refused, verdict.cause);
            failed_probes = failed_probes.saturating_add(1);
        }
        let retry_after = verdict.retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        let probe_at = now + probe_wait(failed_probes, roll).max(retry_after);
        self.phase = Phase::Disabled { since, reason, probe_at, failed_probes };
        None
    }

    /// Notes that the owner enabled the endpoint: earlier failures are forgotten.
    pub fn enabled(&mut self) {
        *self = Self { last_success_at: self.last_success_at, last_cause: self.last_cause, ..Self::default() };
    }

    /// The part of it that must survive a restart.
    pub const fn standing(&self) -> EndpointStanding {
        match self.phase {
            Phase::Fine | Phase::Failing { warned: false, .. } => EndpointStanding::Healthy,
            Phase::Failing { since, warned: true } => EndpointStanding::Failing { since },
            Phase::Disabled { since, reason, .. } => EndpointStanding::Disabled { since, reason },
        }
    }

    /// The summary of its health. It decides nothing.
    pub fn score(&self, now: Timestamp) -> Score {
        let total = self.day.total(now);
        let share = (total.taken * 1_000).checked_div(total.tried);
        let mut score = Score {
            points: 0,
            success_share_milli: share.map(|milli| u16::try_from(milli).unwrap_or(1_000)),
            latency_p50: self.latency.percentile(now, 50),
            latency_p99: self.latency.percentile(now, 99),
            tried: total.tried,
            trips: total.trips,
            last_cause: self.last_cause,
            last_success_at: self.last_success_at,
            failing_since: match self.phase {
                Phase::Failing { since, .. } => Some(since),
                Phase::Fine | Phase::Disabled { .. } => None,
            },
            probe_at: self.probe_at(),
            standing: self.standing(),
        };
        score.points = points(&score);
        score
    }

    fn note(&mut self, now: Timestamp, outcome: Outcome, cause: Cause) {
        self.last_tried_at = Some(now);
        let hour = self.day.hour(now);
        hour.tried = hour.tried.saturating_add(1);
        match outcome {
            Outcome::Taken => {
                hour.taken = hour.taken.saturating_add(1);
                self.last_success_at = Some(now);
            }
            Outcome::Refused => self.last_cause = Some(cause),
        }
    }
}

/// The outcome of an attempt, as far as the endpoint is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Taken,
    Refused,
}

impl Outcome {
    /// `None` if it does not concern the endpoint: the fault is ours or the credential's.
    const fn of(verdict: &Verdict) -> Option<Self> {
        match verdict.class {
            Class::Delivered => Some(Self::Taken),
            Class::Retry | Class::Limited | Class::Dead | Class::Gone | Class::TooLarge => Some(Self::Refused),
            Class::Credential | Class::Ours | Class::Decided => None,
        }
    }
}

/// Whether a delivery that ended with this cause died by a fault of its endpoint, not of its message or ours.
const fn is_of_the_endpoint(cause: Cause) -> bool {
    use Cause::{Forbidden, MethodNotAllowed, NotFound, RedirectNotFollowed, Unauthorized};
    match cause.class() {
        // All attempts were spent on transient failures, including DNS and TLS.
        Class::Retry | Class::Limited => true,
        Class::Dead => matches!(cause, Unauthorized | Forbidden | NotFound | MethodNotAllowed | RedirectNotFollowed),
        Class::Delivered | Class::Gone | Class::TooLarge | Class::Credential | Class::Ours | Class::Decided => false,
    }
}

fn points(score: &Score) -> u8 {
    let most = match score.standing {
        EndpointStanding::Healthy => 100,
        EndpointStanding::Failing { .. } => 20,
        EndpointStanding::Disabled { .. } => 0,
    };
    let percent = score.success_share_milli.unwrap_or(1_000) / 10;
    let for_trips = score.trips.saturating_mul(2).min(20);
    let for_slowness = if score.latency_p50.is_some_and(|took| took > SLOW) { 10 } else { 0 };
    let left = u64::from(percent).saturating_sub(for_trips + for_slowness).min(most);
    u8::try_from(left).expect("at most 100")
}

/// The wait before the next probe, after this many failed ones.
fn probe_wait(failed: u8, roll: Roll) -> Duration {
    let doubled = 1_u32.checked_shl(failed.into()).unwrap_or(u32::MAX);
    let wait = PROBE_WAIT_FIRST.saturating_mul(doubled).min(PROBE_WAIT_MAX);
    roll.between(wait - wait / PROBE_SPREAD, wait + wait / PROBE_SPREAD)
}

#[cfg(test)]
mod tests;
