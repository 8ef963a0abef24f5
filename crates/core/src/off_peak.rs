//! Off-peak windows (G2, C6): the hours of the local day in which engagement messages are sent.
//!
//! Invariant: the window is open exactly while the local clock reads a time inside it. If the clock is put
//! forward past the opening time, the window opens at that instant. If the clock is put back, hours that
//! occur twice are open twice. The engine's `zone` reads the offsets of a time zone.

use std::fmt;
use std::sync::Arc;

use crate::Timestamp;

const MINUTE_MS: i64 = 60_000;
const DAY_MINUTES: u16 = 24 * 60;
const DAY_MS: i64 = DAY_MINUTES as i64 * MINUTE_MS;

/// No time zone is further from UTC than this; a larger value was probably given in milliseconds.
const OFFSET_SECONDS_MAX: u32 = 26 * 3_600;

/// The offsets from UTC of one time zone, and the time from which each applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// Sorted by time, never empty. The first also applies before its time, the last without end.
    changes: Vec<(Timestamp, i32)>,
}

impl Offsets {
    /// Takes pairs of an instant and the offset that applies from then on, in seconds east of UTC.
    pub fn new(mut changes: Vec<(Timestamp, i32)>) -> Result<Self, BadOffsets> {
        changes.sort_unstable();
        if let Some((_, seconds)) = changes.iter().find(|(_, seconds)| seconds.unsigned_abs() > OFFSET_SECONDS_MAX) {
            return Err(BadOffsets::OutOfRange(*seconds));
        }
        if let Some(pair) = changes.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1) {
            return Err(BadOffsets::TwiceAt(pair[0].0));
        }
        // Zones also list changes of the abbreviation alone, with the same offset.
        changes.dedup_by_key(|(_, seconds)| *seconds);
        if changes.is_empty() {
            return Err(BadOffsets::Empty);
        }
        Ok(Self { changes })
    }

    /// An offset that never changes, in seconds east of UTC.
    pub fn fixed(seconds: i32) -> Result<Self, BadOffsets> {
        Self::new(vec![(Timestamp::default(), seconds)])
    }

    /// The offset at `now`, and the time of its next change.
    fn at(&self, now: Timestamp) -> (i32, Option<Timestamp>) {
        let next = self.changes.partition_point(|(from, _)| *from <= now).max(1);
        (self.changes[next - 1].1, self.changes.get(next).map(|(from, _)| *from))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadOffsets {
    Empty,
    /// The offset in seconds is further from UTC than any time zone.
    OutOfRange(i32),
    /// Two different offsets begin at this instant.
    TwiceAt(Timestamp),
}

impl fmt::Display for BadOffsets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "a time zone without any offset: give at least one, 0 for UTC"),
            Self::OutOfRange(seconds) => {
                write!(f, "offset of {seconds} s from UTC: give whole seconds, at most {OFFSET_SECONDS_MAX} either way")
            }
            Self::TwiceAt(at) => write!(f, "two different offsets from UTC begin at {at}: keep one of them"),
        }
    }
}

impl std::error::Error for BadOffsets {}

/// A daily window in local time, such as 20:00–07:00.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffPeak {
    from: u16,
    to: u16,
    offsets: Arc<Offsets>,
}

impl OffPeak {
    /// The window that opens and closes at these minutes of the local day, 0 to 1,439. It spans
    /// midnight when it closes at an earlier minute than it opens.
    pub fn new(from: u16, to: u16, offsets: Arc<Offsets>) -> Result<Self, BadWindow> {
        if let Some(minute) = [from, to].into_iter().find(|minute| *minute >= DAY_MINUTES) {
            return Err(BadWindow::NoSuchMinute(minute));
        }
        if from == to {
            return Err(BadWindow::NoLength(from));
        }
        Ok(Self { from, to, offsets })
    }

    /// When the window opens next, or `None` while it is open.
    ///
    /// It does not open on a day on which the clock jumps over all of it.
    pub fn opens_at(&self, now: Timestamp) -> Option<Timestamp> {
        let [from, to] = [self.from, self.to].map(|minute| i64::from(minute) * MINUTE_MS);
        let length = (to - from).rem_euclid(DAY_MS);
        let mut at = now;
        let opens = loop {
            let (seconds, changes_at) = self.offsets.at(at);
            // Reduced to the day first, so that the sum cannot overflow.
            let local = at.as_millis().rem_euclid(DAY_MS) + i64::from(seconds) * 1_000;
            let since_from = (local - from).rem_euclid(DAY_MS);
            if since_from < length {
                break at;
            }
            let reached = Timestamp::from_millis(at.as_millis().saturating_add(DAY_MS - since_from));
            match changes_at {
                Some(change) if change <= reached => at = change,
                _ => break reached,
            }
        };
        (opens > now).then_some(opens)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadWindow {
    /// A minute above 1,439.
    NoSuchMinute(u16),
    /// It closes at the minute it opens.
    NoLength(u16),
}

impl fmt::Display for BadWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchMinute(minute) => {
                write!(f, "off-peak window: a day has no minute {minute}; give 0 (00:00) to 1439 (23:59)")
            }
            Self::NoLength(minute) => {
                let (hour, minute) = (minute / 60, minute % 60);
                write!(
                    f,
                    "off-peak window: from and to are both {hour:02}:{minute:02}; \
                     give two different times, or no window to send at any hour"
                )
            }
        }
    }
}

impl std::error::Error for BadWindow {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: i32 = 3_600;

    /// The minute of the day of a local time.
    const fn clock(hour: u16, minute: u16) -> u16 {
        hour * 60 + minute
    }

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_millis(minutes * MINUTE_MS)
    }

    /// Minutes since the epoch of a time in 2026, UTC.
    fn utc(month: i64, day: i64, hour: i64, minute: i64) -> i64 {
        const DAYS_BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
        const NEW_YEAR_2026: i64 = 20_454;
        let before = DAYS_BEFORE[usize::try_from(month - 1).expect("a month")];
        (NEW_YEAR_2026 + before + day - 1) * 1_440 + hour * 60 + minute
    }

    /// An offset at the start of 2026 and its later changes, in seconds east of UTC.
    fn changes(first: i32, later: &[(i64, i32)]) -> Vec<(Timestamp, i32)> {
        let later = later.iter().map(|(minutes, seconds)| (at(*minutes), *seconds));
        std::iter::once((at(utc(1, 1, 0, 0)), first)).chain(later).collect()
    }

    /// Forward on the last Sunday of March, back on the last of October, at 01:00 UTC.
    fn berlin() -> Vec<(Timestamp, i32)> {
        changes(HOUR, &[(utc(3, 29, 1, 0), 2 * HOUR), (utc(10, 25, 1, 0), HOUR)])
    }

    /// Forward on the second Sunday of March, back on the first of November, at 02:00 local time.
    fn new_york() -> Vec<(Timestamp, i32)> {
        changes(-5 * HOUR, &[(utc(3, 8, 7, 0), -4 * HOUR), (utc(11, 1, 6, 0), -5 * HOUR)])
    }

    /// By half an hour only: back on the first Sunday of April, forward on the first of October, at 02:00 local time.
    fn lord_howe() -> Vec<(Timestamp, i32)> {
        changes(11 * HOUR, &[(utc(4, 4, 15, 0), 21 * HOUR / 2), (utc(10, 3, 15, 30), 11 * HOUR)])
    }

    fn kolkata() -> Vec<(Timestamp, i32)> {
        changes(11 * HOUR / 2, &[])
    }

    fn window(from: u16, to: u16, changes: Vec<(Timestamp, i32)>) -> OffPeak {
        let offsets = Offsets::new(changes).expect("valid offsets");
        OffPeak::new(from, to, Arc::new(offsets)).expect("a valid window")
    }

    /// Checks that a window opens and closes at these minutes, asked a minute before each.
    #[track_caller]
    fn check(window: &OffPeak, opens: i64, closes: i64) {
        assert_eq!(window.opens_at(at(opens - 1)), Some(at(opens)));
        assert_eq!(window.opens_at(at(opens)), None, "its first minute is inside");
        assert_eq!(window.opens_at(at(closes - 1)), None, "its last minute is before the end");
        assert!(window.opens_at(at(closes)).is_some());
    }

    #[test]
    fn a_window_opens_and_closes_by_the_local_clock_and_may_span_midnight() {
        check(&window(clock(1, 0), clock(5, 0), berlin()), utc(2, 10, 0, 0), utc(2, 10, 4, 0));
        check(&window(clock(1, 0), clock(5, 0), kolkata()), utc(2, 9, 19, 30), utc(2, 9, 23, 30));
        let night = window(clock(20, 0), clock(7, 0), berlin());
        check(&night, utc(2, 10, 19, 0), utc(2, 11, 6, 0));
        assert_eq!(night.opens_at(at(utc(2, 10, 23, 30))), None);
    }

    #[test]
    fn an_opening_or_closing_time_that_does_not_exist_is_at_the_change() {
        check(&window(clock(2, 30), clock(7, 0), berlin()), utc(3, 29, 1, 0), utc(3, 29, 5, 0));
        check(&window(clock(2, 15), clock(7, 0), lord_howe()), utc(10, 3, 15, 30), utc(10, 3, 20, 0));
        check(&window(clock(22, 0), clock(2, 30), new_york()), utc(3, 8, 3, 0), utc(3, 8, 7, 0));
    }

    #[test]
    fn a_window_that_the_clock_jumps_over_does_not_open_that_day() {
        for (from, to) in [(clock(2, 10), clock(2, 50)), (clock(2, 0), clock(2, 10))] {
            let next_day = utc(3, 30, 0, 0) + i64::from(from - clock(2, 0));
            assert_eq!(window(from, to, berlin()).opens_at(at(utc(3, 28, 2, 0))), Some(at(next_day)));
        }
    }

    #[test]
    fn hours_that_come_twice_are_open_twice() {
        let twice = window(clock(2, 10), clock(2, 50), berlin());
        check(&twice, utc(10, 25, 0, 10), utc(10, 25, 0, 50));
        check(&twice, utc(10, 25, 1, 10), utc(10, 25, 1, 50));
        // Closed at 01:45 for the first time, and a quarter of an hour later it is 01:30 once more.
        let half = window(clock(1, 0), clock(1, 45), lord_howe());
        check(&half, utc(4, 4, 14, 0), utc(4, 4, 14, 45));
        check(&half, utc(4, 4, 15, 0), utc(4, 4, 15, 15));
    }

    #[test]
    fn times_outside_the_listed_offsets_use_the_nearest_one() {
        let night = window(clock(20, 0), clock(7, 0), berlin());
        check(&night, utc(1, -30, 19, 0), utc(1, -29, 6, 0));
        check(&night, utc(12, 400, 19, 0), utc(12, 401, 6, 0));
    }

    #[test]
    fn an_invalid_window_is_refused_with_a_remedy() {
        let utc = || Arc::new(Offsets::fixed(0).expect("UTC is an offset"));
        let build = |from, to| OffPeak::new(from, to, utc()).map_err(|bad| bad.to_string());
        assert!(build(0, 1_439).is_ok());
        assert_eq!(
            build(1_200, 1_200).expect_err("no length"),
            "off-peak window: from and to are both 20:00; give two different times, or no window to send at any hour"
        );
        let no_such = "off-peak window: a day has no minute 1440; give 0 (00:00) to 1439 (23:59)";
        assert_eq!(build(0, 1_440).expect_err("too late"), no_such);
        assert_eq!(build(1_440, 1_440).expect_err("too late"), no_such);
    }

    #[test]
    fn offsets_may_come_in_any_order_and_repeat_and_invalid_ones_are_refused() {
        assert_eq!(Offsets::new(vec![]), Err(BadOffsets::Empty));
        assert_eq!(Offsets::fixed(7_200_000), Err(BadOffsets::OutOfRange(7_200_000)));
        assert_eq!(Offsets::fixed(i32::MIN), Err(BadOffsets::OutOfRange(i32::MIN)));
        let twice = vec![(at(3), 0), (at(5), HOUR), (at(5), 0)];
        assert_eq!(Offsets::new(twice), Err(BadOffsets::TwiceAt(at(5))));

        let mut shuffled = berlin();
        shuffled.reverse();
        shuffled.push((at(utc(5, 1, 0, 0)), 2 * HOUR));
        assert_eq!(Offsets::new(shuffled), Offsets::new(berlin()));
    }

    /// Whether the local clock reads a time inside the window at this minute: a second, independent calculation.
    fn reads_inside(from: u16, to: u16, changes: &[(Timestamp, i32)], minute: i64) -> bool {
        let passed = changes.iter().rev().find(|(from, _)| *from <= at(minute));
        let seconds = passed.unwrap_or(&changes[0]).1;
        let local = (minute + i64::from(seconds / 60)).rem_euclid(1_440);
        let (from, to) = (i64::from(from), i64::from(to));
        if from < to { from <= local && local < to } else { from <= local || local < to }
    }

    fn any_place() -> impl Strategy<Value = Vec<(Timestamp, i32)>> {
        prop_oneof![Just(berlin()), Just(new_york()), Just(lord_howe()), Just(kolkata())]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn opening_time_matches_a_minute_by_minute_search(
            changes in any_place(),
            from in 0_u16..1_440,
            to in 0_u16..1_440,
            near in 0_usize..3,
            shift in -2 * 1_440_i64..1_440,
        ) {
            prop_assume!(from != to);
            let near = changes[near.min(changes.len() - 1)].0.as_millis() / MINUTE_MS;
            let start = near + shift;
            let inside = |minute: &i64| reads_inside(from, to, &changes, *minute);
            let opens = (start..).find(inside).expect("it opens some day");
            let window = window(from, to, changes.clone());
            prop_assert_eq!(window.opens_at(at(start)), (opens > start).then(|| at(opens)));
        }

        #[test]
        fn opening_time_is_never_in_the_past(
            now in any::<i64>(),
            from in 0_u16..1_440,
            to in 0_u16..1_440,
            changes in prop::collection::vec((any::<i64>(), -93_600_i32..=93_600), 1..8),
        ) {
            prop_assume!(from != to);
            let changes = changes.into_iter().map(|(ms, seconds)| (Timestamp::from_millis(ms), seconds)).collect();
            let Ok(offsets) = Offsets::new(changes) else { return Ok(()) };
            let window = OffPeak::new(from, to, Arc::new(offsets)).expect("a valid window");
            let now = Timestamp::from_millis(now);
            prop_assert!(window.opens_at(now).is_none_or(|opens| opens > now));
        }
    }
}
