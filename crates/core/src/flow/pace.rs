//! How fast a destination is fed while it recovers (E2), or while it says that it has too much.
//!
//! A pace begins well below what the receiver took when it was well, grows by the second while
//! answers come and latency holds, quickly up to a ceiling the receiver has shown it can take,
//! slowly beyond it, and is halved by every second in which the receiver says 429 or 503. It stays
//! below twice of what the receiver has shown, bursts included, until that has gone well for two
//! minutes: then it has shown that. A pace ends when it has not been needed for a while.

use std::time::Duration;

use super::bucket::{Bucket, Rate};
use crate::time::Timestamp;

/// In thousandths a second: nobody is fed slower than one a second.
const LEAST: u64 = 1_000;
/// A recovery begins at this share of what the receiver took when it was well.
const BEGIN: (u64, u64) = (2, 3);
/// The least a recovery begins at: a receiver that was never seen busy is no weakling for that.
const BEGIN_LEAST: u64 = 5_000;
/// Quick growth ends here: one and a half times what it took when it was well.
const CEILING: (u64, u64) = (3, 2);
/// Growth a second below the ceiling, and beyond it.
const QUICK: (u64, u64) = (13, 10);
const SLOW: (u64, u64) = (101, 100);
/// Growth ends here, as a share of what it has shown it can take.
const MOST: (u64, u64) = (11, 6);
/// A receiver that was given the most for so long, and took it well, has shown that it can take it.
/// Without that a long backlog would take longer to drain than it took to grow.
const SHOWN_AFTER: Duration = Duration::from_secs(120);
/// What is left of the pace when latency does not hold, once a second.
const EASE: (u64, u64) = (19, 20);
/// Growth and cuts happen once in this time.
const STEP: Duration = Duration::from_secs(1);
/// A pace that has held nothing back for this long has done its work.
const QUIET: Duration = Duration::from_secs(60);

/// The pace of one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// In thousandths a second.
    rate: u64,
    ceiling: u64,
    /// What the receiver has shown it can take.
    shown: u64,
    /// Since when it is given the most of that, and takes it well.
    at_most_since: Option<Timestamp>,
    bucket: Bucket,
    /// When it last grew or was cut.
    stepped: Timestamp,
    /// When it last held something back, or was cut.
    needed: Timestamp,
}

/// What an answer says of the pace it was sent at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Taken, and as quickly as usual.
    Well,
    /// Taken, but slower than usual.
    Slowly,
    /// Refused for being too much: 429 or 503.
    TooMuch,
    /// It says nothing of the pace.
    Nothing,
}

impl Pace {
    /// Begins a recovery of a destination that took `healthy` (thousandths a second) when it was well.
    pub fn recovering(now: Timestamp, healthy: u64) -> Self {
        let rate = of(healthy, BEGIN).max(BEGIN_LEAST);
        Self::at(now, rate, of(healthy, CEILING).max(rate), healthy.max(rate))
    }

    /// Slows a destination down that had too much at `sent` (thousandths a second).
    pub fn slowed(now: Timestamp, sent: u64) -> Self {
        let sent = sent.max(LEAST);
        Self::at(now, (sent / 2).max(LEAST), sent, sent)
    }

    fn at(now: Timestamp, rate: u64, ceiling: u64, shown: u64) -> Self {
        let bucket = Bucket::full(&limit(rate), now);
        Self { rate, ceiling, shown, at_most_since: None, bucket, stepped: now, needed: now }
    }

    /// In thousandths a second.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// When the next one may go; `None`: now.
    pub fn next_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.bucket.next_at(&limit(self.rate), now)
    }

    /// One goes.
    pub fn take(&mut self, now: Timestamp) {
        // Whoever asks has looked: there is a token, or the clock was set back in between.
        let _ = self.bucket.take(&limit(self.rate), now);
    }

    /// Something had to wait for the pace.
    pub fn held_back(&mut self, now: Timestamp) {
        self.needed = self.needed.max(now);
    }

    /// Adds what time has earned: also after the clock was set back.
    pub fn catch_up(&mut self, now: Timestamp) {
        self.bucket.catch_up(&limit(self.rate), now);
    }

    /// One that was taken then was not sent.
    pub fn give_back(&mut self, taken: Timestamp) {
        self.bucket.give_back(&limit(self.rate), taken);
    }

    /// What an answer says; the pace changes at most once a second.
    pub fn answered(&mut self, now: Timestamp, answer: Answer) {
        let due = now.since(self.stepped) >= STEP || now < self.stepped;
        match answer {
            Answer::TooMuch => {
                self.needed = self.needed.max(now);
                if due {
                    // What was too much is not tried again in a hurry.
                    self.ceiling = of(self.rate, EASE).max(LEAST);
                    self.step_to((self.rate / 2).max(LEAST), now);
                }
            }
            Answer::Slowly if due => self.step_to(of(self.rate, EASE).max(LEAST), now),
            Answer::Well if due => self.grow(now),
            _ => {}
        }
    }

    /// Grows, as far as the receiver has shown that it may.
    fn grow(&mut self, now: Timestamp) {
        let most = of(self.shown, MOST);
        let grown =
            if self.rate < self.ceiling { of(self.rate, QUICK).min(self.ceiling) } else { of(self.rate, SLOW) + 1 };
        if grown < most {
            return self.step_to(grown, now);
        }
        let since = self.at_most_since.unwrap_or(now).min(now);
        self.step_to(most, now);
        self.at_most_since = Some(since);
        if now.since(since) >= SHOWN_AFTER {
            self.shown = most;
            self.at_most_since = None;
        }
    }

    fn step_to(&mut self, rate: u64, now: Timestamp) {
        self.rate = rate;
        self.stepped = now;
        self.at_most_since = None;
    }

    /// Whether it has not been needed for a while.
    pub fn is_over(&self, now: Timestamp) -> bool {
        now.since(self.needed) >= QUIET
    }
}

/// A twentieth of a second's worth may go at once: what came a moment late is not lost.
fn limit(rate: u64) -> Rate {
    Rate::milli(rate).with_burst(u32::try_from(rate / 20_000).unwrap_or(u32::MAX))
}

/// When so many will have gone at this rate, beside so much fresh work (both in thousandths a
/// second); `None` when they never will at that.
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

    const NOW: Timestamp = Timestamp::from_millis(1_000_000);

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_recovery_ramps_up_to_what_the_receiver_has_shown_and_goes_on_slowly() {
        let mut pace = Pace::recovering(NOW, 30_000);
        let mut rates = vec![pace.rate()];
        for second in 1..=12 {
            pace.answered(NOW + seconds(second), Answer::Well);
            rates.push(pace.rate());
        }
        assert_eq!(rates[..5], [20_000, 26_000, 33_800, 43_940, 45_000]);
        assert!(rates[5..].windows(2).all(|pair| pair[1] > pair[0] && pair[1] <= pair[0] * 103 / 100), "{rates:?}");
    }

    /// The rate in each of so many seconds in which all goes well.
    fn well_for(pace: &mut Pace, from: Timestamp, count: u64) -> Vec<u64> {
        let second = |second| {
            pace.answered(from + seconds(second), Answer::Well);
            pace.rate()
        };
        (1..=count).map(second).collect()
    }

    #[test]
    fn no_second_of_a_recovery_has_twice_of_what_the_receiver_has_shown() {
        let mut pace = Pace::recovering(NOW, 30_000);
        let mut sent: Vec<Timestamp> = Vec::new();
        for millis in 0..120_000 {
            let now = NOW + Duration::from_millis(millis);
            pace.answered(now, Answer::Well);
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
    fn a_receiver_that_took_the_most_for_two_minutes_has_shown_that_it_can() {
        let rates = well_for(&mut Pace::recovering(NOW, 30_000), NOW, 200);
        let reached = rates.iter().position(|rate| *rate == 55_000).expect("it grows");
        assert!(rates[reached..=reached + 120].iter().all(|rate| *rate == 55_000), "{rates:?}");
        assert!(rates[reached + 121] > 55_000, "{rates:?}");
    }

    #[test]
    fn a_receiver_that_was_slow_in_between_has_not_shown_it() {
        let mut pace = Pace::recovering(NOW, 30_000);
        well_for(&mut pace, NOW, 100);
        pace.answered(NOW + seconds(101), Answer::Slowly);
        assert_eq!(well_for(&mut pace, NOW + seconds(101), 120).iter().max(), Some(&55_000));
    }

    #[test]
    fn a_receiver_that_has_too_much_is_given_half_each_second_and_never_nothing() {
        let mut pace = Pace::slowed(NOW, 30_000);
        let mut rates = vec![pace.rate()];
        for half in 1..=12 {
            pace.answered(NOW + Duration::from_millis(half * 500), Answer::TooMuch);
            rates.push(pace.rate());
        }
        rates.dedup();
        assert_eq!(rates, [15_000, 7_500, 3_750, 1_875, 1_000]);
    }

    #[test]
    fn it_never_grows_without_an_answer_that_says_it_may() {
        let mut pace = Pace::recovering(NOW, 30_000);
        pace.answered(NOW + seconds(100), Answer::Nothing);
        assert_eq!(pace.rate(), 20_000);
        pace.answered(NOW + seconds(101), Answer::Slowly);
        assert_eq!(pace.rate(), 19_000);
    }

    #[test]
    fn it_is_over_once_nothing_had_to_wait_for_it() {
        let mut pace = Pace::recovering(NOW, 30_000);
        pace.held_back(NOW + seconds(10));
        assert!(!pace.is_over(NOW + seconds(69)));
        assert!(pace.is_over(NOW + seconds(70)));
    }

    #[test]
    fn a_forecast_counts_what_fresh_work_leaves_over() {
        assert_eq!(forecast(NOW, 36_000, 50_000, 30_000), Some(NOW + seconds(1_800)));
        assert_eq!(forecast(NOW, 0, 0, 0), Some(NOW));
        assert_eq!(forecast(NOW, 1, 30_000, 30_000), None);
    }
}
