//! Shares, scales and multipliers as parts per million: exact and comparable. Floating-point numbers are
//! converted when a spec is checked, and not used after that.

use std::fmt;
use std::time::Duration;

const MILLION: u64 = 1_000_000;

/// A part of a whole, or a multiple of it, to the millionth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ratio(u64);

impl Ratio {
    /// All of it.
    pub(super) const ONE: Self = Self(MILLION);

    /// The nearest ratio to a configured number; `None` if that is not within `low..=high`, as NaN
    /// never is. The bounds keep it far from overflow.
    pub(super) fn within(written: f64, low: u32, high: u32) -> Option<Self> {
        let bounds = f64::from(low)..=f64::from(high);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and u32::MAX millions, so the rounded value fits exactly"
        )]
        bounds.contains(&written).then(|| Self((written * 1e6).round() as u64))
    }

    /// This part of a duration, to the microsecond, rounded down.
    pub(super) fn of(self, whole: Duration) -> Duration {
        let micros = self.times(whole.as_micros().min(u128::from(u64::MAX)));
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// This multiple of a number below 2⁹⁰.
    pub(super) fn times(self, number: u128) -> u128 {
        number * u128::from(self.0) / u128::from(MILLION)
    }
}

impl fmt::Display for Ratio {
    /// As a percentage: `20%`, `12.5%`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 10_000, self.0 % 10_000);
        match rest {
            0 => write!(f, "{whole}%"),
            _ => write!(f, "{whole}.{}%", format!("{rest:04}").trim_end_matches('0')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_exact_where_a_float_is_not() {
        let tenth = Ratio::within(0.1, 0, 1).expect("within bounds");
        assert_eq!(tenth.of(Duration::from_secs(30)), Duration::from_secs(3));
        assert_eq!(tenth.to_string(), "10%");
        assert_eq!(Ratio::within(0.125, 0, 1).expect("within bounds").to_string(), "12.5%");
    }

    #[test]
    fn nan_and_numbers_out_of_bounds_are_refused() {
        for written in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.1, 1.000_001, f64::MAX] {
            assert_eq!(Ratio::within(written, 0, 1), None, "{written}");
        }
    }

    #[test]
    fn the_largest_ratio_of_the_longest_duration_saturates() {
        let huge = Ratio::within(f64::from(u32::MAX), 0, u32::MAX).expect("within bounds");
        assert_eq!(huge.of(Duration::MAX), Duration::from_micros(u64::MAX));
    }
}
