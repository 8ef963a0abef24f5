//! The pace: a rate limit for a destination that recovers from an outage (E2), or that answers 429 or 503.
//!
//! A recovery begins below the rate that the receiver took when it was healthy. The pace grows each second while
//! answers come with normal latency: quickly up to a ceiling, slowly above it. It is halved by every second
//! with a 429 or 503. It stays below twice the highest rate that the receiver has sustained, bursts included; a rate
//! counts as sustained after two minutes of good answers. A pace ends when it has not held anything back for a while.

use std::time::Duration;

use super::bucket::{Bucket, Rate};
use crate::Timestamp;

/// The lowest pace: one send a second, in thousandths.
const LEAST: u64 = 1_000;
/// A recovery begins at this share of the healthy rate.
const BEGIN: (u64, u64) = (2, 3);
/// The lowest pace at which a recovery begins: a receiver that was idle before the outage may be able to take more.
const BEGIN_LEAST: u64 = 5_000;
/// The ceiling of quick growth: one and a half times the healthy rate.
const CEILING: (u64, u64) = (3, 2);
/// Growth a second below the ceiling, and above it.
const QUICK: (u64, u64) = (13, 10);
const SLOW: (u64, u64) = (101, 100);
/// The limit of growth, as a share of the sustained rate.
const MOST: (u64, u64) = (11, 6);
/// The limit of growth counts as sustained after this long with good answers. Without this rule a long backlog would
/// take longer to drain than it took to grow.
const SUSTAINED_AFTER: Duration = Duration::from_secs(120);
/// The pace is multiplied by this once a second while latency is too high.
const EASE: (u64, u64) = (19, 20);
/// The pace changes at most once in this time.
const STEP: Duration = Duration::from_secs(1);
/// A pace ends when it has held nothing back for this long.
const QUIET: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// In thousandths a second.
    pub(crate) rate: u64,
    ceiling: u64,
    /// The highest rate that the receiver has sustained.
    sustained: u64,
    /// Since when the rate has been at the limit of growth with good answers.
    at_most_since: Option<Timestamp>,
    bucket: Bucket,
    stepped: Timestamp,
    /// When the pace last held a send back or the receiver answered 429 or 503.
    needed: Timestamp,
}

/// What an answer means for the pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaceAnswer {
    /// A success with normal latency.
    Well,
    /// A success with too high latency.
    Slowly,
    /// 429 or 503.
    TooMuch,
    /// Nothing: the pace does not change.
    Nothing,
}

impl Pace {
    /// Begins a recovery of a destination with the healthy rate `healthy`, in thousandths a second.
    pub fn recovering(now: Timestamp, healthy: u64) -> Self {
        let rate = of(healthy, BEGIN).max(BEGIN_LEAST);
        Self::at(now, rate, of(healthy, CEILING).max(rate), healthy.max(rate))
    }

    /// Slows down a destination that answered 429 or 503 at the rate `sent`, in thousandths a second.
    pub fn slowed(now: Timestamp, sent: u64) -> Self {
        let sent = sent.max(LEAST);
        Self::at(now, (sent / 2).max(LEAST), sent, sent)
    }

    fn at(now: Timestamp, rate: u64, ceiling: u64, sustained: u64) -> Self {
        let bucket = Bucket::full(&limit(rate), now);
        Self { rate, ceiling, sustained, at_most_since: None, bucket, stepped: now, needed: now }
    }

    /// The time of the next send; `None` if it may start now.
    pub fn next_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.bucket.next_at(&limit(self.rate), now)
    }

    pub fn take(&mut self, now: Timestamp) {
        // The caller has checked `next_at`: there is a token unless the clock was set back since.
        let _ = self.bucket.take(&limit(self.rate), now);
    }

    /// Notes that a send had to wait for the pace.
    pub fn held_back(&mut self, now: Timestamp) {
        self.needed = self.needed.max(now);
    }

    /// Moves the bucket to `now`, also after the clock was set back.
    pub fn catch_up(&mut self, now: Timestamp) {
        self.bucket.catch_up(&limit(self.rate), now);
    }

    /// Gives back a send that was counted at `taken` and not made.
    pub fn give_back(&mut self, taken: Timestamp) {
        self.bucket.give_back(&limit(self.rate), taken);
    }

    /// Adapts the pace to an answer, at most once a second.
    pub fn answered(&mut self, now: Timestamp, answer: PaceAnswer) {
        let due = now.since(self.stepped) >= STEP || now < self.stepped;
        match answer {
            PaceAnswer::TooMuch => {
                self.needed = self.needed.max(now);
                if due {
                    // Quick growth now ends below the rate that caused the overload.
                    self.ceiling = of(self.rate, EASE).max(LEAST);
                    self.step_to((self.rate / 2).max(LEAST), now);
                }
            }
            PaceAnswer::Slowly if due => self.step_to(of(self.rate, EASE).max(LEAST), now),
            PaceAnswer::Well if due => self.grow(now),
            _ => {}
        }
    }

    /// Grows, up to the limit that the sustained rate allows.
    fn grow(&mut self, now: Timestamp) {
        let most = of(self.sustained, MOST);
        let grown =
            if self.rate < self.ceiling { of(self.rate, QUICK).min(self.ceiling) } else { of(self.rate, SLOW) + 1 };
        if grown < most {
            return self.step_to(grown, now);
        }
        let since = self.at_most_since.unwrap_or(now).min(now);
        self.step_to(most, now);
        self.at_most_since = Some(since);
        if now.since(since) >= SUSTAINED_AFTER {
            self.sustained = most;
            self.at_most_since = None;
        }
    }

    fn step_to(&mut self, rate: u64, now: Timestamp) {
        self.rate = rate;
        self.stepped = now;
        self.at_most_since = None;
    }

    /// Whether the pace has held nothing back for a while.
    pub fn is_over(&self, now: Timestamp) -> bool {
        now.since(self.needed) >= QUIET
    }
}

/// The rate with a burst of a twentieth of a second, so that short delays do not lower it.
fn limit(rate: u64) -> Rate {
    Rate::milli(rate).with_burst(u32::try_from(rate / 20_000).unwrap_or(u32::MAX))
}

/// When `waiting` deliveries will be sent at `rate`, of which new messages take `fresh` (both in thousandths a
/// second); `None` if the rate leaves nothing for them.
pub fn forecast(now: Timestamp, waiting: u64, rate: u64, fresh: u64) -> Option<Timestamp> {
    let spare = rate.saturating_sub(fresh);
    if waiting == 0 {
        return Some(now);
    }
    let millis = u128::from(waiting) * 1_000_000 / u128::from((spare > 0).then_some(spare)?);
    Some(now + Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)))
}

fn of(value: u64, (times, over): (u64, u64)) -> u64 {
    value.saturating_mul(times) / over
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::seconds;

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    #[test]
    fn a_recovery_grows_quickly_to_the_ceiling_and_slowly_above_it() {
        let mut pace = Pace::recovering(NOW, 30_000);
        let mut rates = vec![pace.rate];
        for second in 1..=12 {
            pace.answered(NOW + seconds(second), PaceAnswer::Well);
            rates.push(pace.rate);
        }
        assert_eq!(rates[..5], [20_000, 26_000, 33_800, 43_940, 45_000]);
        assert!(rates[5..].windows(2).all(|pair| pair[1] > pair[0] && pair[1] <= pair[0] * 103 / 100), "{rates:?}");
    }

    /// The rate in each of `count` seconds with good answers.
    fn well_for(pace: &mut Pace, from: Timestamp, count: u64) -> Vec<u64> {
        let second = |second| {
            pace.answered(from + seconds(second), PaceAnswer::Well);
            pace.rate
        };
        (1..=count).map(second).collect()
    }

    #[test]
    fn no_second_of_a_recovery_has_twice_the_sustained_rate() {
        let mut pace = Pace::recovering(NOW, 30_000);
        let mut sent: Vec<Timestamp> = Vec::new();
        for millis in 0..120_000 {
            let now = NOW + Duration::from_millis(millis);
            pace.answered(now, PaceAnswer::Well);
            while pace.next_at(now).is_none() {
                pace.take(now);
                sent.push(now);
            }
        }
        let in_a_second = |from: &Timestamp| sent.iter().filter(|at| *at >= from && at.since(*from) < STEP).count();
        let peak = sent.iter().map(in_a_second).max();
        assert!(peak.is_some_and(|peak| (55..60).contains(&peak)), "{peak:?}");
    }

    #[test]
    fn the_limit_of_growth_counts_as_sustained_after_two_minutes() {
        let rates = well_for(&mut Pace::recovering(NOW, 30_000), NOW, 200);
        let reached = rates.iter().position(|rate| *rate == 55_000).expect("it grows");
        assert!(rates[reached..=reached + 120].iter().all(|rate| *rate == 55_000), "{rates:?}");
        assert!(rates[reached + 121] > 55_000, "{rates:?}");
    }

    #[test]
    fn a_slow_answer_restarts_the_two_minutes() {
        let mut pace = Pace::recovering(NOW, 30_000);
        well_for(&mut pace, NOW, 100);
        pace.answered(NOW + seconds(101), PaceAnswer::Slowly);
        assert_eq!(well_for(&mut pace, NOW + seconds(101), 120).iter().max(), Some(&55_000));
    }

    #[test]
    fn overload_halves_the_pace_each_second_down_to_one_a_second() {
        let mut pace = Pace::slowed(NOW, 30_000);
        let mut rates = vec![pace.rate];
        for half in 1..=12 {
            pace.answered(NOW + Duration::from_millis(half * 500), PaceAnswer::TooMuch);
            rates.push(pace.rate);
        }
        rates.dedup();
        assert_eq!(rates, [15_000, 7_500, 3_750, 1_875, 1_000]);
    }

    #[test]
    fn the_pace_grows_only_by_good_answers() {
        let mut pace = Pace::recovering(NOW, 30_000);
        pace.answered(NOW + seconds(100), PaceAnswer::Nothing);
        assert_eq!(pace.rate, 20_000);
        pace.answered(NOW + seconds(101), PaceAnswer::Slowly);
        assert_eq!(pace.rate, 19_000);
    }

    #[test]
    fn the_pace_is_over_a_minute_after_it_last_held_back() {
        let mut pace = Pace::recovering(NOW, 30_000);
        pace.held_back(NOW + seconds(10));
        assert!(!pace.is_over(NOW + seconds(69)));
        assert!(pace.is_over(NOW + seconds(70)));
    }

    #[test]
    fn a_forecast_counts_the_rate_left_over_by_new_messages() {
        assert_eq!(forecast(NOW, 36_000, 50_000, 30_000), Some(NOW + seconds(1_800)));
        assert_eq!(forecast(NOW, 0, 0, 0), Some(NOW));
        assert_eq!(forecast(NOW, 1, 30_000, 30_000), None);
    }
}
