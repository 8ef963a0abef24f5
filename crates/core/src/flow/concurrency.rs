//! The adaptive limit of attempts in flight at one destination (F2).
//!
//! The limit grows by one after a round of successes with normal latency, and is halved at a sign of overload: 429,
//! 503, a timeout, an answer that took 20 s. Other failures (500, refused) do not change it. Invariant: the limit is at
//! least 1, at most what the endpoint allows, and does not grow while answers take much longer than they used to.
//!
//! The limit at which an overload occurred is remembered: when the limit has grown to just below it, it stays there
//! for many rounds before it is tried again. Otherwise a receiver with one worker would get two requests at
//! once after every success.
//!
//! Latency is measured by two moving averages: a short one over the last answers, and a long one that starts as
//! the average of the first answers and then follows the short one over minutes. So the queueing delay of a busy
//! receiver does not become the new normal at once, and a receiver whose work has become longer for good is not
//! limited for ever.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::Timestamp;

const START: u16 = 4;

/// An answer that took this long counts as an overload, whether or not it was a success.
pub const DRAWN_OUT: Duration = Duration::from_secs(20);

/// The least time between two halvings: one overload must not count twice.
const CUTS_APART_LEAST: Duration = Duration::from_millis(100);
/// The most time between two halvings during a lasting overload, even if answers take longer.
const CUTS_APART_MOST: Duration = Duration::from_secs(30);

/// How many rounds the limit stays just below the one that caused an overload. With fewer rounds, a receiver that
/// refuses everything above its number of workers would be halved, and so partly idle, too often.
const ROUNDS_BELOW: u32 = 64;

/// A destination with a higher latency is slow.
const SLOW: Duration = Duration::from_secs(1);
/// The latency that is assumed before the first answer.
const LATENCY_AT_FIRST: Duration = Duration::from_millis(100);
/// A difference of this much is ignored, as noise of fast answers.
const NOISE_US: u64 = 10_000;

/// The short average moves by one part in this many towards every answer.
const SHORT: u64 = 8;
/// The long average starts as the average of this many first answers.
const FIRST_ANSWERS: u8 = 32;
/// The time constant with which the long average then follows the short one.
const LONG: Duration = Duration::from_secs(300);
/// The least time between two moves of the long average: smaller steps would be lost to rounding.
const LONG_STEP: Duration = Duration::from_secs(1);

/// The limit of one destination, and the measurements behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    cut_at: Timestamp,
    /// When the long average moved last.
    moved_at: Timestamp,
    /// The short average in microseconds; 0 before the first answer.
    short_us: u32,
    long_us: u32,
    /// Successes counted towards the next limit.
    successes: u32,
    limit: u16,
    /// The limit at the last overload; 0 if there was none.
    too_much: u16,
    /// How many answers the long average contains, up to [`FIRST_ANSWERS`].
    answers: u8,
}

const _: () = assert!(size_of::<Concurrency>() <= 40);

impl Default for Concurrency {
    fn default() -> Self {
        let never = Timestamp::from_millis(i64::MIN);
        Self {
            cut_at: never,
            moved_at: never,
            short_us: 0,
            long_us: 0,
            successes: 0,
            limit: START,
            too_much: 0,
            answers: 0,
        }
    }
}

impl Concurrency {
    /// The limit, where the endpoint allows at most `most` attempts in flight.
    pub fn limit(&self, most: u16) -> u16 {
        self.limit.clamp(1, most.max(1))
    }

    /// An attempt succeeded; `in_flight` counts it and the others that were in flight.
    pub fn succeeded(&mut self, now: Timestamp, took: Duration, in_flight: u16, most: u16) {
        self.learn(now, took);
        self.limit = self.limit(most);
        if took >= DRAWN_OUT {
            self.overloaded(now);
            return;
        }
        let in_use = u32::from(in_flight) * 2 >= u32::from(self.limit);
        if !in_use || self.limit >= most || !self.latency_holds() {
            return;
        }
        self.successes += 1;
        if self.successes >= self.needed() {
            self.successes = 0;
            self.limit += 1;
        }
    }

    /// An attempt failed for a reason other than load, such as 500 or a refused connection. It changes nothing unless
    /// it took [`DRAWN_OUT`] or longer.
    pub fn failed(&mut self, now: Timestamp, took: Duration) {
        if took >= DRAWN_OUT {
            self.timed_out(now, took);
        }
    }

    pub fn timed_out(&mut self, now: Timestamp, took: Duration) {
        // Not counted in the long average: a timeout does not show how long the work takes.
        self.learn_short(micros(took));
        self.overloaded(now);
    }

    /// The destination answered 429 or 503, or an attempt took too long.
    pub fn overloaded(&mut self, now: Timestamp) {
        let apart = self.latency().clamp(CUTS_APART_LEAST, CUTS_APART_MOST);
        // A failure soon after a cut belongs to the same overload. If the cut is in the future, the clock was set back.
        if self.cut_at <= now && now.since(self.cut_at) < apart {
            return;
        }
        self.cut_at = now;
        self.too_much = self.limit.max(2);
        self.limit = (self.limit / 2).max(1);
        self.successes = 0;
    }

    /// How long an attempt is expected to take: the short average.
    pub fn latency(&self) -> Duration {
        match self.short_us {
            0 => LATENCY_AT_FIRST,
            known => Duration::from_micros(known.into()),
        }
    }

    /// Whether answers take about as long as they used to.
    pub fn latency_holds(&self) -> bool {
        u64::from(self.short_us) <= 2 * u64::from(self.long_us) + NOISE_US
    }

    /// Whether attempts hold their slots for long.
    pub fn is_slow(&self) -> bool {
        self.latency() > SLOW
    }

    /// How many successes raise the limit by one.
    fn needed(&self) -> u32 {
        let round = u32::from(self.limit);
        if self.limit + 1 == self.too_much { round * ROUNDS_BELOW } else { round }
    }

    fn learn(&mut self, now: Timestamp, took: Duration) {
        let took_us = micros(took);
        self.learn_short(took_us);
        let passed = now.since(self.moved_at);
        if self.answers < FIRST_ANSWERS {
            self.answers += 1;
            self.long_us = towards(self.long_us, took_us, 1, self.answers.into());
            self.moved_at = now;
        } else if passed >= LONG_STEP {
            // After an idle time the last answers must not replace the whole average.
            let part = passed.min(LONG / 8).as_millis();
            self.long_us = towards(self.long_us, self.short_us, part, LONG.as_millis());
            self.moved_at = now;
        } else if now < self.moved_at {
            self.moved_at = now;
        }
    }

    fn learn_short(&mut self, took_us: u32) {
        self.short_us = match self.short_us {
            0 => took_us,
            known => towards(known, took_us, 1, SHORT.into()),
        };
    }
}

/// At least 1, since 0 means "no answer yet".
fn micros(took: Duration) -> u32 {
    u32::try_from(took.as_micros()).unwrap_or(u32::MAX).max(1)
}

/// Moves `from` towards `to` by `part / of` of their distance.
fn towards(from: u32, to: u32, part: u128, of: u128) -> u32 {
    let step = u128::from(from.abs_diff(to)) * part / of;
    let step = u32::try_from(step).expect("a part of the way between two numbers that fit");
    if to > from { from + step } else { from - step }
}
