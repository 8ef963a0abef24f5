//! How many attempts a destination may have under way at once (F2).
//!
//! The limit grows by one when a round of successes was answered in its time, and is halved when the
//! destination says or shows that it is too much: 429, 503, a timeout, an answer that took 20 s.
//! Other failures (500, refused) say nothing of load. Invariant: the limit is at least 1, at most
//! what the endpoint allows, and does not grow while answers take much longer than they used to.
//!
//! The limit that was too much is remembered: the next time, the one below it is held for many
//! rounds before that is tried again. Otherwise a receiver with one worker would be asked for two at
//! once after every success.
//!
//! Latency is two moving averages: a short one over the last answers, and a long one that starts as
//! the average of the first answers and then follows the short one by the clock, within minutes. So
//! a busy receiver's own queue does not become the measure at once, and one whose work really got
//! longer is not held back for ever.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::time::Timestamp;

const START: u16 = 4;

/// An answer after this time is as good as none: whoever drips is slow, whatever it says.
pub const DRAWN_OUT: Duration = Duration::from_secs(20);

/// Cuts closer together than this would punish one overload twice, however fast the answers.
const CUTS_APART_LEAST: Duration = Duration::from_millis(100);
/// However slow the answers, an overload that lasts is answered again after this time.
const CUTS_APART_MOST: Duration = Duration::from_secs(30);

/// How many rounds the limit below the one that was too much is held. With fewer, a receiver that
/// turns away everything above its workers would idle after every cut for too large a part of the
/// time.
const ROUNDS_BELOW: u32 = 64;

/// Slower than this is slow.
const SLOW: Duration = Duration::from_secs(1);
/// What is assumed before anything is known.
const LATENCY_AT_FIRST: Duration = Duration::from_millis(100);
/// Among fast answers, a few milliseconds more are noise.
const NOISE_US: u64 = 10_000;

/// The short average moves this part of the way to every answer.
const SHORT: u64 = 8;
/// The long average is that of the first so many answers.
const FIRST_ANSWERS: u8 = 32;
/// From then on it follows the short one as slowly as this.
const LONG: Duration = Duration::from_secs(300);
/// How often it moves: more often, the steps would be lost to rounding.
const LONG_STEP: Duration = Duration::from_secs(1);

/// The limit of one destination, and what it has learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    cut_at: Timestamp,
    /// When the long average moved last.
    moved_at: Timestamp,
    /// Microseconds; 0 before anything is known.
    short_us: u32,
    long_us: u32,
    /// Successes towards the next limit.
    successes: u32,
    limit: u16,
    /// The limit that was too much; 0 when none was.
    too_much: u16,
    /// How many answers the long average has seen, up to [`FIRST_ANSWERS`].
    answers: u8,
}

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
    /// How many may be under way where the endpoint allows `most`.
    pub fn limit(&self, most: u16) -> u16 {
        self.limit.clamp(1, most.max(1))
    }

    /// An attempt succeeded; `in_flight` were under way with it.
    pub fn succeeded(&mut self, now: Timestamp, took: Duration, in_flight: u16, most: u16) {
        self.learn(now, took);
        if took >= DRAWN_OUT {
            self.overloaded(now);
            return;
        }
        self.limit = self.limit(most);
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

    /// An attempt failed in a way that says nothing of load: 500, refused. Unless it took very long,
    /// it changes nothing.
    pub fn failed(&mut self, now: Timestamp, took: Duration) {
        if took >= DRAWN_OUT {
            self.timed_out(now, took);
        }
    }

    /// Nothing came within the attempt's time.
    pub fn timed_out(&mut self, now: Timestamp, took: Duration) {
        // The long average does not see it: waiting in vain says nothing of how long the work takes.
        self.learn_short(micros(took));
        self.overloaded(now);
    }

    /// The destination had too much: 429, 503.
    pub fn overloaded(&mut self, now: Timestamp) {
        let apart = self.latency().clamp(CUTS_APART_LEAST, CUTS_APART_MOST);
        // What was sent before a cut and fails after it is the same overload. A cut in the future is
        // a clock that was set back.
        if self.cut_at <= now && now.since(self.cut_at) < apart {
            return;
        }
        self.cut_at = now;
        self.too_much = self.limit.max(2);
        self.limit = (self.limit / 2).max(1);
        self.successes = 0;
    }

    /// How long an attempt takes at present: what a slot is expected to cost.
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

    /// Whether it holds its slots for long.
    pub fn is_slow(&self) -> bool {
        self.latency() > SLOW
    }

    /// How many successes the next limit takes.
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
            // After a silence the last answers are worth no more than so many.
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

/// At least one, so that 0 can stand for "not known".
fn micros(took: Duration) -> u32 {
    u32::try_from(took.as_micros()).unwrap_or(u32::MAX).max(1)
}

/// `part / of` of the way from one number to another.
fn towards(from: u32, to: u32, part: u128, of: u128) -> u32 {
    let step = u128::from(from.abs_diff(to)) * part / of;
    let step = u32::try_from(step).expect("a part of the way between two numbers that fit");
    if to > from { from + step } else { from - step }
}
