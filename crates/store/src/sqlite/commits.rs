//! A histogram of how long commits take, which mostly measures the disk.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets for each doubling of the time: a percentile is at most an eighth too high.
const FINE: u64 = 8;
/// Covers up to four minutes, in microseconds; longer commits count as four minutes.
const DOUBLINGS: usize = 28;
const BUCKETS: usize = DOUBLINGS * 8;

/// The commits of a store since it was opened, or between two readings.
#[derive(Clone, PartialEq, Eq)]
pub struct Commits {
    pub count: u64,
    /// Rows changed by them: deliveries accepted and settled.
    pub rows: u64,
    took: [u64; BUCKETS],
}

impl Commits {
    /// The commits since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            count: self.count.saturating_sub(earlier.count),
            rows: self.rows.saturating_sub(earlier.rows),
            took: std::array::from_fn(|bucket| self.took[bucket].saturating_sub(earlier.took[bucket])),
        }
    }

    /// The percentile: the time within which this share (0 to 1) of the commits ended, at most an eighth too high.
    pub fn within(&self, share: f64) -> Duration {
        let mut left = (self.count as f64 * share).ceil();
        for (bucket, count) in self.took.iter().enumerate() {
            left -= *count as f64;
            if left <= 0.0 {
                return upper(bucket);
            }
        }
        Duration::ZERO
    }
}

impl fmt::Debug for Commits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p99 = self.within(0.99);
        f.debug_struct("Commits").field("count", &self.count).field("rows", &self.rows).field("p99", &p99).finish()
    }
}

/// The histogram: the writer thread adds to it, any thread may read it.
pub(super) struct CommitHistogram {
    rows: AtomicU64,
    took: [AtomicU64; BUCKETS],
}

impl CommitHistogram {
    pub(super) fn note(&self, rows: usize, took: Duration) {
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
        self.took[bucket(took)].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Commits {
        let took: [u64; BUCKETS] = std::array::from_fn(|bucket| self.took[bucket].load(Ordering::Relaxed));
        Commits { count: took.iter().sum(), rows: self.rows.load(Ordering::Relaxed), took }
    }
}

impl Default for CommitHistogram {
    fn default() -> Self {
        Self { rows: AtomicU64::new(0), took: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

/// The bucket of a time: below eight microseconds one for each microsecond; above, eight for each doubling.
fn bucket(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX).min((1 << DOUBLINGS) - 1);
    let bucket = if micros < FINE {
        micros
    } else {
        let doubling = u64::from(micros.ilog2()) - u64::from(FINE.ilog2());
        FINE + doubling * FINE + (micros >> doubling) - FINE
    };
    usize::try_from(bucket).expect("below the number of buckets")
}

/// The longest time that falls into a bucket.
fn upper(bucket: usize) -> Duration {
    let bucket = bucket as u64;
    if bucket < FINE {
        return Duration::from_micros(bucket);
    }
    let (doubling, fine) = ((bucket - FINE) / FINE, (bucket - FINE) % FINE);
    Duration::from_micros(((FINE + fine + 1) << doubling) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_limits_are_at_most_an_eighth_too_high() {
        for micros in [0, 1, 7, 8, 9, 15, 16, 17, 1_000, 1_023, 1_024, 123_456, 100_000_000] {
            let upper = upper(bucket(Duration::from_micros(micros))).as_micros();
            let micros = u128::from(micros);
            assert!(upper >= micros && upper <= micros + micros / 8, "{micros} µs are counted as {upper}");
        }
        bucket(Duration::MAX);
    }

    #[test]
    fn percentiles_since_a_reading_leave_out_earlier_commits() {
        let count = CommitHistogram::default();
        count.note(7, Duration::from_secs(3));
        let before = count.read();
        for millis in 1..=100 {
            count.note(10, Duration::from_millis(millis));
        }
        let since = count.read().since(&before);
        assert_eq!((since.count, since.rows), (100, 1_000));
        let median = since.within(0.5).as_millis();
        assert!((50..=57).contains(&median), "{median} ms");
        assert!(since.within(1.0) < Duration::from_secs(1));
    }
}
