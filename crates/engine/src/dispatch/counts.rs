//! The loop's counters for metrics: plain numbers that the loop owns and returns on request. Gauges, such as how much
//! is pending in memory, are computed on request.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste_core::scheduler::SchedulerFigures;
use posthaste_core::{Cause, Class, State};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    pub counts: DispatchCounts,
    pub queue: SchedulerFigures,
    /// Outcomes that are decided and not yet durable.
    pub unsettled: u64,
}

/// The classes of attempts, each with its label in metrics.
pub const CLASSES: [(Class, &str); 8] = [
    (Class::Delivered, "delivered"),
    (Class::Retry, "retry"),
    (Class::Limited, "limited"),
    (Class::Dead, "dead"),
    (Class::Gone, "gone"),
    (Class::TooLarge, "too_large"),
    (Class::Credential, "credential"),
    (Class::Ours, "ours"),
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DispatchCounts {
    pub arrived: u64,
    /// Attempts that ended, by [`CLASSES`].
    pub attempts: [u64; CLASSES.len()],
    pub took: DurationHistogram,
    /// The time from an attempt's due time to its start.
    pub latency: DurationHistogram,
    pub delivered: u64,
    pub cancelled: u64,
    /// Deliveries whose TTL ended.
    pub expired: u64,
    /// Dead letters, by cause.
    pub dead: BTreeMap<Cause, u64>,
    /// Deliveries ended by a sweep: by a cut or an erasure, or because their TTL ended behind the window.
    pub swept: u64,
    /// State changes that the table of states refused: anything but zero is a bug.
    pub refused_moves: u64,
}

impl DispatchCounts {
    pub(super) fn attempted(&mut self, class: Class, took: Duration) {
        if let Some(at) = CLASSES.iter().position(|(known, _)| *known == class) {
            self.attempts[at] += 1;
            self.took.note(took);
        }
    }

    pub(super) fn recorded(&mut self, state: &State) {
        match state {
            State::Delivered { .. } => self.delivered += 1,
            State::Cancelled { .. } => self.cancelled += 1,
            State::Expired { .. } => self.expired += 1,
            State::Dead { cause, .. } => *self.dead.entry(*cause).or_default() += 1,
            _ => {}
        }
    }
}

/// The upper bounds of a histogram's buckets, in milliseconds.
pub const BUCKETS_MS: [u64; 14] = [1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000, 300_000, 3_600_000];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurationHistogram {
    /// How many durations fall into each bucket of [`BUCKETS_MS`]; the last holds those above all bounds.
    pub buckets: [u64; BUCKETS_MS.len() + 1],
    /// The sum of all durations, in milliseconds.
    pub sum_ms: u64,
}

impl DurationHistogram {
    pub(super) fn note(&mut self, duration: Duration) {
        let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        self.buckets[BUCKETS_MS.partition_point(|upper| *upper < ms)] += 1;
        self.sum_ms = self.sum_ms.saturating_add(ms);
    }
}

#[cfg(test)]
mod tests {
    use posthaste_core::Timestamp;

    use super::*;

    #[test]
    fn attempts_and_outcomes_are_counted_by_class_and_state() {
        let at = Timestamp::default();
        let mut counts = DispatchCounts::default();
        counts.attempted(Class::Retry, Duration::from_millis(3));
        counts.attempted(Class::Delivered, Duration::from_secs(9_999));
        counts.recorded(&State::Dead { at, cause: Cause::NotFound });
        counts.recorded(&State::Retry { due: at, cause: Cause::Unavailable });
        counts.recorded(&State::Delivered { at });
        assert_eq!((counts.attempts[0], counts.attempts[1], counts.delivered), (1, 1, 1));
        assert_eq!(counts.dead, BTreeMap::from([(Cause::NotFound, 1)]));
        assert_eq!(counts.took.sum_ms, 9_999_003);
    }

    #[test]
    fn a_duration_falls_into_the_first_bucket_that_holds_it() {
        let bucket = |ms| {
            let mut spread = DurationHistogram::default();
            spread.note(Duration::from_millis(ms));
            spread.buckets.iter().position(|count| *count == 1)
        };
        assert_eq!((bucket(0), bucket(1), bucket(2), bucket(3)), (Some(0), Some(0), Some(1), Some(2)));
        assert_eq!((bucket(3_600_000), bucket(3_600_001)), (Some(13), Some(14)));
    }
}
