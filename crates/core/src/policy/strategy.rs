//! How the delay grows from retry to retry, before tier, cap and jitter (C1).

use std::time::Duration;

use super::ratio::Ratio;

/// The longest delay: above every cap of every tier, and far from overflow.
const FAR: Duration = Duration::from_secs(10_000 * 86_400);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// The same delay each time.
    Fixed { base: Duration },
    /// `step × n`.
    Linear { step: Duration },
    /// `base × multiplierⁿ⁻¹`.
    Exponential { base: Duration, multiplier: Ratio },
    /// The listed delays, never empty; the last one repeats.
    List { delays: Vec<Duration> },
}

impl Strategy {
    /// The names of all strategies, as the API takes them.
    pub(super) const NAMES: [&str; 4] = ["fixed", "linear", "exponential", "list"];

    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Fixed { .. } => "fixed",
            Self::Linear { .. } => "linear",
            Self::Exponential { .. } => "exponential",
            Self::List { .. } => "list",
        }
    }

    /// The delay before retry number `retry`; the first is 1.
    pub(super) fn delay(&self, retry: u16) -> Duration {
        let retry = retry.max(1);
        match self {
            Self::Fixed { base } => *base,
            Self::Linear { step } => step.saturating_mul(u32::from(retry)).min(FAR),
            Self::Exponential { base, multiplier } => grown(*base, *multiplier, retry - 1),
            Self::List { delays } => delays[usize::from(retry).min(delays.len()) - 1],
        }
    }
}

/// `base × multiplier` to the power of `times`.
fn grown(base: Duration, multiplier: Ratio, times: u16) -> Duration {
    // In millionths of a microsecond: rounded to whole ones, 1 ms × 1.0001 would never grow.
    const FINE: u128 = 1_000_000;
    let far = FAR.as_micros() * FINE;
    let mut delay = base.as_micros() * FINE;
    for _ in 0..times {
        if delay >= far {
            return FAR;
        }
        delay = multiplier.times(delay);
    }
    Duration::from_micros(u64::try_from(delay.min(far) / FINE).expect("FAR in microseconds fits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(strategy: &Strategy, expected: &[u64]) {
        let delays: Vec<_> = (1..).take(expected.len()).map(|retry| strategy.delay(retry).as_millis()).collect();
        assert_eq!(delays, expected.iter().map(|ms| u128::from(*ms)).collect::<Vec<_>>());
    }

    fn times(multiplier: f64) -> Ratio {
        Ratio::within(multiplier, 1, 1_000).expect("a valid multiplier")
    }

    #[test]
    fn each_strategy_grows_as_documented() {
        let base = Duration::from_secs(3);
        check(&Strategy::Fixed { base }, &[3_000, 3_000, 3_000]);
        check(&Strategy::Linear { step: base }, &[3_000, 6_000, 9_000]);
        check(&Strategy::Exponential { base, multiplier: times(2.0) }, &[3_000, 6_000, 12_000, 24_000]);
        check(&Strategy::Exponential { base, multiplier: times(1.5) }, &[3_000, 4_500, 6_750, 10_125]);
        let delays = vec![Duration::from_secs(1), Duration::from_secs(5)];
        check(&Strategy::List { delays }, &[1_000, 5_000, 5_000, 5_000]);
    }

    #[test]
    fn slow_growth_is_not_rounded_away() {
        let slow = Strategy::Exponential { base: Duration::from_millis(1), multiplier: times(1.0001) };
        let grown = Duration::from_secs_f64(0.001 * 1.0001_f64.powi(999));
        assert!(slow.delay(1_000).abs_diff(grown) <= Duration::from_micros(1), "{:?}", slow.delay(1_000));
    }

    #[test]
    fn growth_stops_at_the_longest_delay_instead_of_overflowing() {
        let longest = Duration::from_secs(30 * 86_400);
        for retry in [1, 2, 10, 1_000, u16::MAX] {
            let delay = Strategy::Exponential { base: longest, multiplier: times(1_000.0) }.delay(retry);
            assert!((longest..=FAR).contains(&delay));
            assert!(Strategy::Linear { step: longest }.delay(retry) <= FAR);
        }
    }
}
