//! Time slices (G2, F4): retries to one destination are released together at the end of a slice, not one by one.
//! They share a connection, and the receiver has idle time in between. When capacity is tight, the lower tiers
//! wait for longer slices.
//!
//! Invariant: a delivery is released no earlier than it is due and at most one slice later. A delivery
//! that does not wait is never delayed by a slice.

use std::time::Duration;

use crate::time::millis_up;
use crate::{LaneId, Roll, Tier, Timestamp};

/// The longest slice. Every other length divides it, so that a shorter slice never straddles the end of a longer
/// one: retries of one destination are released together even where their tiers and waits differ.
const LONGEST_MS: i64 = 100_000;

/// How many of the slots are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tightness {
    /// Less than 90 %.
    Easy,
    /// 90 % or more: the lower tiers wait for longer slices.
    Tight,
}

impl Tightness {
    pub fn of(in_flight: u32, slots: u32) -> Self {
        if u64::from(in_flight) * 10 >= u64::from(slots) * 9 { Self::Tight } else { Self::Easy }
    }
}

/// When a delivery of this lane is released: at the end of the slice that `due` falls into, or at `due` if it is
/// not sliced.
pub fn released_at(due: Timestamp, now: Timestamp, lane: LaneId, tier: Tier, tight: Tightness) -> Timestamp {
    let Some(length) = length_ms(due.since(now), tier, tight) else { return due };
    let into = due.as_millis().rem_euclid(length);
    let left = (phase_ms(lane) - into).rem_euclid(length);
    Timestamp::from_millis(due.as_millis().saturating_add(left))
}

/// The length of the slices for a delivery that waits this long; `None` when it is not sliced.
fn length_ms(wait: Duration, tier: Tier, tight: Tightness) -> Option<i64> {
    // A slice is at most a tenth of the wait it lengthens, a quarter when capacity is tight: a
    // short backoff stays short.
    let (longest, times) = match tight {
        Tightness::Easy => (millis_up(wait) / 10, 1),
        Tightness::Tight => (millis_up(wait) / 4, 10),
    };
    let full = match tier {
        Tier::Transactional => return None,
        Tier::Promotional => 1_000 * times,
        Tier::Engagement => 10_000 * times,
    };
    std::iter::successors(Some(full), |length| shorter(*length)).find(|length| *length <= longest)
}

/// The next shorter length: the longest that divides this one.
fn shorter(length: i64) -> Option<i64> {
    match length {
        ..=1 => None,
        even if even % 2 == 0 => Some(even / 2),
        // A power of ten divided by all its twos is a power of five.
        odd => Some(odd / 5),
    }
}

/// The offset of this lane's slice ends. Each lane has its own, so that the slices of all lanes do not end at once.
fn phase_ms(lane: LaneId) -> i64 {
    // Lane ids are consecutive; forking scatters them.
    let scattered = Roll(lane.raw()).fork(0).0;
    i64::try_from(scattered % LONGEST_MS.unsigned_abs()).expect("below the longest slice")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::seconds;

    const NOW: Timestamp = Timestamp::from_millis(1_790_000_000_000);
    const LANE: LaneId = LaneId::from_raw(7);

    /// The longest delay by a slice, over all due times within a hundred seconds.
    fn longest_kept(wait: Duration, tier: Tier, tight: Tightness) -> Duration {
        let dues = (0..100_000).map(|ms| NOW + Duration::from_millis(ms));
        // The wait is the same for each: only where in the slice it falls differs.
        dues.map(|due| released_at(due, due - wait, LANE, tier, tight).since(due)).max().expect("not empty")
    }

    #[track_caller]
    fn check(wait: Duration, tier: Tier, tight: Tightness, slice_ms: u64) {
        // A delivery due a millisecond after the end of a slice waits for the rest of the next slice.
        let kept = slice_ms.saturating_sub(1);
        assert_eq!(longest_kept(wait, tier, tight), Duration::from_millis(kept), "{tier:?} after {wait:?}");
    }

    #[test]
    fn slices_are_as_long_as_the_tier_says_and_ten_times_that_when_capacity_is_tight() {
        let long = seconds(3_600);
        check(long, Tier::Promotional, Tightness::Easy, 1_000);
        check(long, Tier::Engagement, Tightness::Easy, 10_000);
        check(long, Tier::Promotional, Tightness::Tight, 10_000);
        check(long, Tier::Engagement, Tightness::Tight, 100_000);
    }

    #[test]
    fn transactional_and_fresh_messages_are_never_sliced() {
        for tight in [Tightness::Easy, Tightness::Tight] {
            check(seconds(3_600), Tier::Transactional, tight, 0);
            for tier in Tier::ALL {
                check(Duration::ZERO, tier, tight, 0);
                assert_eq!(released_at(NOW, NOW + seconds(9), LANE, tier, tight), NOW, "overdue");
            }
        }
    }

    #[test]
    fn a_short_backoff_stays_short() {
        check(seconds(10), Tier::Promotional, Tightness::Easy, 1_000);
        check(Duration::from_millis(9_999), Tier::Promotional, Tightness::Easy, 500);
        check(seconds(1), Tier::Promotional, Tightness::Easy, 25);
        check(seconds(1), Tier::Engagement, Tightness::Tight, 125);
        check(Duration::from_millis(9), Tier::Engagement, Tightness::Easy, 0);
    }

    #[test]
    fn capacity_is_tight_from_nine_tenths_of_the_slots_on() {
        assert_eq!(Tightness::of(0, 10), Tightness::Easy);
        assert_eq!(Tightness::of(8, 10), Tightness::Easy);
        assert_eq!(Tightness::of(9, 10), Tightness::Tight);
        assert_eq!(Tightness::of(921, 1_024), Tightness::Easy);
        assert_eq!(Tightness::of(922, 1_024), Tightness::Tight);
        assert_eq!(Tightness::of(0, 0), Tightness::Tight, "no slot at all is no room");
        assert_eq!(Tightness::of(u32::MAX, u32::MAX), Tightness::Tight);
    }

    #[test]
    fn the_slices_of_many_destinations_end_evenly_spread() {
        const LANES: u64 = 1_000;
        const BUCKETS: usize = 20;
        // Ids come in a row, and from several writers.
        for first in [0, 1 << 40, 5 << 41] {
            for slice_ms in [1_000, 10_000, LONGEST_MS] {
                let mut lanes_in = [0_u64; BUCKETS];
                for lane in first..first + LANES {
                    let place = phase_ms(LaneId::from_raw(lane)) % slice_ms;
                    let bucket = usize::try_from(place).expect("a small number") * BUCKETS
                        / usize::try_from(slice_ms).expect("a small number");
                    lanes_in[bucket] += 1;
                }
                let expected = LANES / BUCKETS as u64;
                let off = lanes_in.iter().map(|count| count.abs_diff(expected).pow(2)).sum::<u64>();
                // Chi-square with 19 degrees of freedom: above 43.8 once in a thousand.
                assert!(off <= 43 * expected, "{slice_ms} ms from lane {first}: {lanes_in:?}");
            }
        }
    }

    fn any_tier() -> impl Strategy<Value = Tier> {
        prop::sample::select(&Tier::ALL[..])
    }

    fn any_tightness() -> impl Strategy<Value = Tightness> {
        prop::sample::select(vec![Tightness::Easy, Tightness::Tight])
    }

    fn any_instant() -> impl Strategy<Value = Timestamp> {
        prop_oneof![8 => 0..4_000_000_000_000_i64, 1 => any::<i64>()].prop_map(Timestamp::from_millis)
    }

    /// The bound by another formula: the tier's slice, but at most the allowed share of the wait.
    fn promised(wait: Duration, tier: Tier, tight: Tightness) -> Duration {
        let full = seconds([0, 1, 10][tier.index()]);
        match tight {
            Tightness::Easy => full.min(wait / 10),
            Tightness::Tight => (full * 10).min(wait / 4),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn a_release_is_never_early_and_never_more_than_a_slice_late(
            now in any_instant(),
            wait_ms in prop_oneof![0..200_000_u64, any::<u64>()],
            lane in any::<u64>(),
            tier in any_tier(),
            tight in any_tightness(),
        ) {
            let due = now + Duration::from_millis(wait_ms);
            let released = released_at(due, now, LaneId::from_raw(lane), tier, tight);
            prop_assert!(released >= due);
            prop_assert!(released.since(due) <= promised(due.since(now), tier, tight));
        }

        #[test]
        fn deliveries_due_in_one_slice_are_released_together(
            start in 0..4_000_000_000_000_i64,
            waits_ms in prop::collection::vec(400_000..600_000_u64, 2..40),
            lane in any::<u64>(),
            tier in any_tier(),
            tight in any_tightness(),
        ) {
            let now = Timestamp::from_millis(start);
            let lane = LaneId::from_raw(lane);
            let pairs: Vec<_> = waits_ms
                .iter()
                .map(|wait| now + Duration::from_millis(*wait))
                .map(|due| (due, released_at(due, now, lane, tier, tight)))
                .collect();
            for (due, released) in &pairs {
                for (other_due, other_released) in &pairs {
                    // A delivery due between another's due time and its release is released with it.
                    if due <= other_due && other_due <= released {
                        prop_assert_eq!(released, other_released);
                    }
                }
            }
        }

        #[test]
        fn a_shorter_slice_never_straddles_the_end_of_a_longer_one(
            start in 0..4_000_000_000_000_i64,
            wait_ms in 0..2_000_000_u64,
            lane in any::<u64>(),
            tier in any_tier(),
            tight in any_tightness(),
        ) {
            let now = Timestamp::from_millis(start);
            let lane = LaneId::from_raw(lane);
            let due = now + Duration::from_millis(wait_ms);
            let longest = released_at(due, due - seconds(86_400), lane, Tier::Engagement, Tightness::Tight);
            prop_assert!(released_at(due, now, lane, tier, tight) <= longest);
        }
    }
}
