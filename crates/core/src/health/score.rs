//! The score of an endpoint: a summary of its health for its owner (E5). It decides nothing.

use std::time::Duration;

use super::{EndpointHealth, EndpointStanding, Phase};
use crate::{Cause, Timestamp};

/// A median latency above this costs points.
const SLOW: Duration = Duration::from_secs(5);

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
    /// The time of the last successful attempt.
    pub last_success_at: Option<Timestamp>,
    /// The first failed attempt since then; `None` if the last attempt succeeded or the endpoint is disabled.
    pub failing_since: Option<Timestamp>,
    /// When the endpoint is probed next; `None` if it is not disabled.
    pub probe_at: Option<Timestamp>,
    /// Whether the owner was warned, or the endpoint is disabled.
    pub standing: EndpointStanding,
}

impl EndpointHealth {
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
