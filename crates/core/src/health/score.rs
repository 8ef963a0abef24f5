//! How an endpoint is doing, as a person reads it (E5).

use std::time::Duration;

use super::{Health, Phase, Standing};
use crate::cause::Cause;
use crate::time::Timestamp;

/// Half of the answers taking longer than this costs points.
const SLOW: Duration = Duration::from_secs(5);

/// How an endpoint is doing. Counts and shares are of the last 24 hours, by the hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Score {
    /// 0 to 100, by this rule: the success share in percent, rounded down, or 100 when nothing was
    /// tried; 2 less for each time the breaker opened, but no more than 20; 10 less when half of
    /// the answers take longer than 5 s; at most 20 while failing; 0 when disabled.
    pub points: u8,
    /// How many thousandths of the tries succeeded, rounded down; `None` when nothing was tried.
    pub success_share_milli: Option<u16>,
    /// What half of the recent answers took at most, roughly; `None` when there was no answer.
    pub latency_p50: Option<Duration>,
    /// What 99 of 100 took at most, roughly.
    pub latency_p99: Option<Duration>,
    /// Attempts made.
    pub tried: u64,
    /// Times its breaker opened.
    pub trips: u64,
    /// Why the last try that failed did.
    pub last_cause: Option<Cause>,
    /// When a try last succeeded.
    pub last_success_at: Option<Timestamp>,
    /// The first failed try since then; `None` when the last one succeeded, or it is disabled.
    pub failing_since: Option<Timestamp>,
    /// When it is probed next; `None` when it is not disabled.
    pub probe_at: Option<Timestamp>,
    /// How it stands.
    pub standing: Standing,
}

impl Health {
    /// How it is doing, as a person reads it.
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
}

/// The rule of [`Score::points`].
fn points(score: &Score) -> u8 {
    let most = match score.standing {
        Standing::Healthy => 100,
        Standing::Failing { .. } => 20,
        Standing::Disabled { .. } => 0,
    };
    let percent = score.success_share_milli.unwrap_or(1_000) / 10;
    let for_trips = score.trips.saturating_mul(2).min(20);
    let for_slowness = if score.latency_p50.is_some_and(|took| took > SLOW) { 10 } else { 0 };
    let left = u64::from(percent).saturating_sub(for_trips + for_slowness).min(most);
    u8::try_from(left).expect("at most 100")
}
