//! Points in time: wall-clock milliseconds, which the caller passes in.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Milliseconds since the Unix epoch. Arithmetic saturates: no input makes it panic or wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The latest time there is: no due time is later.
    pub const MAX: Self = Self(i64::MAX);

    pub const fn from_millis(ms: i64) -> Self {
        Self(ms)
    }

    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// The time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

pub(crate) const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A duration in whole milliseconds, rounded up: a wait is never shorter than what was asked for.
pub fn millis_up(duration: Duration) -> i64 {
    let ms = duration.as_nanos().div_ceil(1_000_000);
    i64::try_from(ms).unwrap_or(i64::MAX)
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(millis_up(wait)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(millis_up(span)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

/// A duration the way people write it: `500ms`, `30s`, `2m`, `1h 30m`, `2d`.
pub fn human(duration: Duration) -> String {
    let ms = duration.as_millis();
    if ms == 0 {
        return "0s".to_owned();
    }
    if ms < 1_000 {
        return format!("{ms}ms");
    }
    let seconds = ms / 1_000;
    let parts = [(seconds / 86_400, "d"), (seconds / 3_600 % 24, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    // Two units are enough for a reader: the seconds of a day do not matter.
    let shown: Vec<String> = parts
        .iter()
        .skip_while(|(count, _)| *count == 0)
        .take(2)
        .filter(|(count, _)| *count > 0)
        .map(|(count, unit)| format!("{count}{unit}"))
        .collect();
    if seconds < 10 && !ms.is_multiple_of(1_000) {
        return format!("{}.{}s", seconds, ms % 1_000 / 100);
    }
    shown.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_write_them() {
        let cases = [
            (0, "0s"),
            (250, "250ms"),
            (1_500, "1.5s"),
            (30_000, "30s"),
            (120_000, "2m"),
            (5_400_000, "1h 30m"),
            (86_400_000 + 1_000, "1d"),
            (2 * 86_400_000 + 3_600_000, "2d 1h"),
        ];
        for (ms, text) in cases {
            assert_eq!(human(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        assert_eq!(Timestamp::MAX + Duration::MAX, Timestamp::MAX);
        let early = Timestamp::from_millis(5);
        assert_eq!(early.since(Timestamp::from_millis(9)), Duration::ZERO);
        assert_eq!(early + Duration::from_micros(1), Timestamp::from_millis(6));
    }
}
