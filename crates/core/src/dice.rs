//! Randomness as an argument: the caller draws a random number, and the core only reads it.

use std::time::Duration;

/// One random number, evenly distributed over `u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roll(pub u64);

impl Roll {
    /// An independent roll, derived for the `n`th of several decisions made from one roll.
    pub const fn fork(self, n: u64) -> Self {
        let mut mixed = self.0 ^ n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Self(mixed ^ (mixed >> 31))
    }

    /// A duration drawn evenly from `low..=high`, to the microsecond; `low` if `low` is above `high`.
    pub fn between(self, low: Duration, high: Duration) -> Duration {
        let low = micros(low);
        let width = micros(high).saturating_sub(low);
        let steps = u128::from(width) + 1;
        let drawn = (u128::from(self.0) * steps) >> 64;
        Duration::from_micros(low + u64::try_from(drawn).expect("below steps, which fit"))
    }
}

/// Whole microseconds, at most a quarter of `u64::MAX`, so that a sum of two does not overflow.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).min(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_and_highest_roll_reach_both_ends() {
        let (low, high) = (Duration::from_secs(1), Duration::from_secs(3));
        assert_eq!(Roll(0).between(low, high), low);
        assert_eq!(Roll(u64::MAX).between(low, high), high);
        assert_eq!(Roll(u64::MAX).between(high, low), high);
    }
}
