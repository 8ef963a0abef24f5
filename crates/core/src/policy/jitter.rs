//! Jitter: how far a wait may differ from the delay of its strategy, so that deliveries that failed together are
//! not retried together (C1, C5).
//!
//! Every kind of jitter is a range from which one roll draws evenly. The preview shows the same ranges that the
//! engine draws from.

use std::time::Duration;

use crate::Roll;

use super::ratio::Ratio;

/// How a wait is spread. `e` is the delay before jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Jitter {
    /// `e`.
    None,
    /// `0 … e`.
    Full,
    /// `e/2 … e`.
    Equal,
    /// From the first delay to three times the previous wait, cut at the cap after the draw. The strategy's later
    /// delays are not used.
    Decorrelated,
    /// `e ± share`.
    Spread(Ratio),
    /// `e … e + share`.
    Add(Ratio),
}

impl Jitter {
    /// The names of all kinds, as the API takes them.
    pub(super) const NAMES: [&str; 6] = ["none", "full", "equal", "decorrelated", "spread", "add"];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Full => "full",
            Self::Equal => "equal",
            Self::Decorrelated => "decorrelated",
            Self::Spread(_) => "spread",
            Self::Add(_) => "add",
        }
    }

    /// The range of a wait with the delay `aim`.
    ///
    /// Decorrelated does not use the delay, see [`Band::decorrelated`]; here its range is exactly `aim`.
    pub(super) fn around(self, aim: Duration) -> Band {
        match self {
            Self::None | Self::Decorrelated => Band::new(aim, aim),
            Self::Full => Band::new(Duration::ZERO, aim),
            Self::Equal => Band::new(aim / 2, aim),
            Self::Spread(share) => Band::new(aim - share.of(aim), aim + share.of(aim)),
            Self::Add(share) => Band::new(aim, aim + share.of(aim)),
        }
    }

    /// The range of a first retry that must start no later than `aim` (C6).
    ///
    /// It extends as far below `aim` as the kind of jitter does. A kind that only lengthens a wait gets the same
    /// width below `aim` instead: cutting its range at `aim` would make all retries start at that moment.
    pub(super) fn below(self, aim: Duration) -> Band {
        match self {
            Self::None | Self::Full | Self::Equal => self.around(aim),
            // The same proportion as its own range: from the first delay to three times that.
            Self::Decorrelated => Band::new(aim / 3, aim),
            Self::Spread(share) | Self::Add(share) => Band::new(aim - share.of(aim), aim),
        }
    }
}

/// The range of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Band {
    low: Duration,
    high: Duration,
    /// The cap, for decorrelated alone: a longer draw is cut to it.
    cut: Duration,
}

impl Band {
    /// Rounded down to the microsecond, the resolution of [`Roll::between`].
    fn new(low: Duration, high: Duration) -> Self {
        let whole = |wait: Duration| Ratio::ONE.of(wait);
        Self { low: whole(low), high: whole(high), cut: Duration::MAX }
    }

    /// `min(cap, U(base, 3 × previous))`; for the first retry, `previous` is `base`.
    pub(super) fn decorrelated(base: Duration, previous: Option<Duration>, cap: Duration) -> Self {
        // A previous wait below the base comes from a shortened first retry or another policy: three times
        // that could be below the base.
        let previous = previous.unwrap_or(base).max(base);
        Self { low: base, high: previous.saturating_mul(3), cut: cap }
    }

    pub(super) fn draw(self, roll: Roll) -> Duration {
        roll.between(self.low, self.high).min(self.cut)
    }

    /// The wait that a middle roll draws.
    pub(super) fn middle(self) -> Duration {
        self.draw(Roll(u64::MAX / 2))
    }

    pub(super) fn earliest(self) -> Duration {
        self.low.min(self.cut)
    }

    pub(super) fn latest(self) -> Duration {
        self.high.min(self.cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const E: Duration = Duration::from_secs(12);

    fn share(written: f64) -> Ratio {
        Ratio::within(written, 0, 1).expect("a valid share")
    }

    #[track_caller]
    fn check(band: Band, low_ms: u64, high_ms: u64) {
        let (low, high) = (Duration::from_millis(low_ms), Duration::from_millis(high_ms));
        assert_eq!((band.earliest(), band.latest()), (low, high));
        assert_eq!((band.draw(Roll(0)), band.draw(Roll(u64::MAX))), (low, high), "both ends are drawn");
    }

    #[test]
    fn each_kind_has_its_documented_range() {
        check(Jitter::None.around(E), 12_000, 12_000);
        check(Jitter::Full.around(E), 0, 12_000);
        check(Jitter::Equal.around(E), 6_000, 12_000);
        check(Jitter::Spread(share(0.2)).around(E), 9_600, 14_400);
        check(Jitter::Add(share(0.5)).around(E), 12_000, 18_000);
    }

    #[test]
    fn a_bounded_first_wait_is_only_shortened_and_still_spread() {
        check(Jitter::None.below(E), 12_000, 12_000);
        check(Jitter::Full.below(E), 0, 12_000);
        check(Jitter::Equal.below(E), 6_000, 12_000);
        check(Jitter::Decorrelated.below(E), 4_000, 12_000);
        check(Jitter::Spread(share(0.2)).below(E), 9_600, 12_000);
        check(Jitter::Add(share(0.5)).below(E), 6_000, 12_000);
    }

    #[test]
    fn decorrelated_grows_from_the_previous_wait_and_is_cut_at_the_cap() {
        let (base, cap) = (Duration::from_secs(2), Duration::from_secs(60));
        check(Band::decorrelated(base, None, cap), 2_000, 6_000);
        check(Band::decorrelated(base, Some(Duration::from_secs(5)), cap), 2_000, 15_000);
        check(Band::decorrelated(base, Some(Duration::from_secs(30)), cap), 2_000, 60_000);
        check(Band::decorrelated(base, Some(Duration::MAX), cap), 2_000, 60_000);
        // After a shortened wait it starts from its base.
        check(Band::decorrelated(base, Some(Duration::from_millis(400)), cap), 2_000, 6_000);
    }
}
