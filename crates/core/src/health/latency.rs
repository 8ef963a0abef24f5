//! Latency percentiles, from a small histogram on a logarithmic scale in which old answers weigh less.
//!
//! Invariant: a percentile between 2 ms and 65 s is within a factor of two of the true one.

use std::time::Duration;

use crate::Timestamp;

/// Each bucket is twice as wide as the one before: below 2 ms, below 4 ms … below 32 s, and all above.
const BUCKETS: usize = 16;

/// The weight of one answer. It halves every six hours, and so becomes zero after two days.
const ONE: u32 = 1 << 8;

/// All weights halve in this interval.
const HALF_LIFE_MS: i64 = 6 * 3_600_000;

/// Weighted counts of answers by latency.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Latency {
    weights: [u32; BUCKETS],
    /// The number of half-lives since the epoch.
    latest: i64,
}

impl Latency {
    pub(super) fn note(&mut self, now: Timestamp, took: Duration) {
        self.fade_to(now);
        let index = bucket(took);
        if self.weights[index] > u32::MAX - ONE {
            // Halving all weights keeps the percentiles.
            self.halve(1);
        }
        self.weights[index] += ONE;
    }

    /// The latency that this percentage of the answers did not exceed, to within the width of a bucket; `None` if
    /// there is no recent answer.
    pub(super) fn percentile(&self, now: Timestamp, percent: u64) -> Option<Duration> {
        let mut faded = self.clone();
        faded.fade_to(now);
        let sum: u64 = faded.weights.iter().copied().map(u64::from).sum();
        let mut left = sum * percent / 100;
        for (index, weight) in faded.weights.iter().copied().map(u64::from).enumerate() {
            if weight > 0 && left <= weight {
                let (low, high) = bounds(index);
                return Some(Duration::from_micros(low + (high - low) * left / weight));
            }
            left -= weight;
        }
        None
    }

    fn fade_to(&mut self, now: Timestamp) {
        let latest = now.as_millis().div_euclid(HALF_LIFE_MS);
        // If the clock was set back, no weight is halved; old answers then weigh more for a while, which is harmless.
        self.halve(u32::try_from(latest.saturating_sub(self.latest).max(0)).unwrap_or(u32::MAX));
        self.latest = latest;
    }

    fn halve(&mut self, times: u32) {
        for weight in &mut self.weights {
            *weight = weight.checked_shr(times).unwrap_or(0);
        }
    }
}

fn bucket(took: Duration) -> usize {
    let ms = u32::try_from(took.as_millis()).unwrap_or(u32::MAX).max(1);
    usize::try_from(ms.ilog2()).map_or(BUCKETS - 1, |index| index.min(BUCKETS - 1))
}

/// The bounds of a bucket, in microseconds.
const fn bounds(index: usize) -> (u64, u64) {
    let low = if index == 0 { 0 } else { 1_000 << index };
    (low, 1_000 << (index + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_790_000_000_000);
    const SIX_HOURS: Duration = Duration::from_secs(6 * 3_600);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn of(answers: &[(u64, u64)]) -> Latency {
        let mut latency = Latency::default();
        for (count, took) in answers {
            for _ in 0..*count {
                latency.note(NOW, ms(*took));
            }
        }
        latency
    }

    #[track_caller]
    fn check(latency: &Latency, percent: u64, low: u64, high: u64) {
        let took = latency.percentile(NOW, percent).expect("there are answers");
        assert!(ms(low) <= took && took <= ms(high), "p{percent} is {took:?}, not {low} to {high} ms");
    }

    #[test]
    fn a_percentile_is_within_a_factor_of_two_of_the_truth() {
        let mixed = of(&[(98, 40), (2, 3_000)]);
        check(&mixed, 50, 32, 64);
        check(&mixed, 99, 2_048, 4_096);
        check(&of(&[(1, 0)]), 50, 0, 2);
        check(&of(&[(100, 40_000), (100, 900_000)]), 99, 32_768, 65_536);
        assert_eq!(Latency::default().percentile(NOW, 50), None, "without answers");

        let even = of(&(1..=1_000).map(|took| (1, took)).collect::<Vec<_>>());
        for percent in (10..=100).step_by(10) {
            check(&even, percent, percent * 10 * 9 / 10, percent * 10 * 11 / 10);
        }
    }

    #[test]
    fn old_answers_weigh_less_and_are_forgotten_after_two_days() {
        let mut latency = of(&[(100, 3_000)]);
        let later = NOW + SIX_HOURS * 4;
        for _ in 0..100 {
            latency.note(later, ms(40));
        }
        let p50 = latency.percentile(later, 50).expect("there are answers");
        assert!(p50 < ms(64), "{p50:?}: those of a day ago weigh a sixteenth");
        assert!(of(&[(1, 40)]).percentile(NOW + SIX_HOURS * 7, 50).is_some());
        assert_eq!(of(&[(1, 40)]).percentile(NOW + SIX_HOURS * 9, 50), None);
    }

    #[test]
    fn a_full_bucket_keeps_the_shape() {
        let mut latency = Latency { weights: [0; BUCKETS], ..of(&[(1, 40)]) };
        latency.weights[bucket(ms(40))] = u32::MAX;
        latency.weights[bucket(ms(3_000))] = u32::MAX / 4;
        latency.note(NOW, ms(40));
        check(&latency, 50, 32, 64);
        check(&latency, 99, 2_048, 4_096);
    }

    #[test]
    fn extreme_times_and_durations_do_not_overflow() {
        let mut latency = Latency::default();
        for at in [i64::MAX, i64::MIN, 0, i64::MAX] {
            latency.note(Timestamp::from_millis(at), Duration::MAX);
            assert!(latency.percentile(Timestamp::from_millis(at), 99).is_some());
        }
    }
}
