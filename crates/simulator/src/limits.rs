//! The proof `limits`: a token bucket allows exactly as many sends as its limit, also when the clock jumps.
//!
//! Senders with more messages than the limit call it every millisecond, at the times that it promises, and after
//! pauses. Their sends are counted in every sliding second. As controls, the same measurements must detect the
//! limiters that are wrong on purpose.

use posthaste_core::Timestamp;
use posthaste_core::flow::bucket::{Bucket, Rate};

use posthaste_prove::{Figure, Findings, Options};

const ABOVE_BAR_PERCENT: f64 = 1.0;
const REACHED_BAR: f64 = 0.98;

/// The start of the measurement, not at the start of a second.
const START: i64 = 1_700_000_000_377;
const SECOND: i64 = 1_000;
const HOUR: i64 = 3_600 * SECOND;

/// Measures the bucket and then the wrong limiters.
pub(crate) fn run(options: &Options) -> Findings {
    let sends = if options.quick { 100_000 } else { 1_000_000 };
    let found = Measured::of(ours, sends);
    eprintln!("limits: {} sends at {} limits", found.sends, LEAST_BURST.len() + LARGER_BURST.len());

    let caught = WRONG_LIMITERS.iter().filter(|limiter| {
        let caught = (limiter.shows)(&Measured::of(limiter.make, 20_000));
        if !caught {
            eprintln!("  control, a wrong limiter, is not detected: {}", limiter.name);
        }
        caught
    });
    Ok(vec![
        Figure::at_least("sends", found.sends as f64, "sends", f64::from(sends)),
        Figure::at_most("above_limit_in_any_second", found.above_percent, "%", ABOVE_BAR_PERCENT),
        Figure::at_most("above_limit_and_burst", found.above_burst_percent, "%", ABOVE_BAR_PERCENT),
        Figure::at_least("share_of_limit_reached", found.reached, "of 1", REACHED_BAR),
        Figure::at_most("sends_not_as_promised", found.broken_promises as f64, "sends", 0.0),
        Figure::at_most("added_by_a_clock_jump", found.added_bursts, "bursts", 1.0),
        Figure::at_most("stall_beyond_one_token", found.stall_ms as f64, "ms", 0.0),
        Figure::at_least("negative_controls_caught", caught.count() as f64, "limiters", WRONG_LIMITERS.len() as f64),
    ])
}

/// The largest number of sends in any half-open second, given their milliseconds.
fn most_in_a_second(times: &[i64]) -> usize {
    let mut times = times.to_vec();
    times.sort_unstable();
    let mut first = 0;
    let counts = times.iter().enumerate().map(|(last, time)| {
        while time - times[first] >= SECOND {
            first += 1;
        }
        last - first + 1
    });
    counts.max().unwrap_or(0)
}

#[derive(Clone, Copy, Debug)]
struct Limit {
    per_second: u32,
    /// The burst; 0 for the least possible one.
    burst: u32,
}

/// The limits that are measured with the least burst.
const LEAST_BURST: [u32; 8] = [7, 33, 100, 499, 500, 501, 3_333, 10_000];
/// Limits with larger bursts.
const LARGER_BURST: [(u32, u32); 6] = [(7, 7), (100, 20), (499, 2), (500, 500), (3_333, 50), (10_000, 2_000)];

impl Limit {
    fn rate(self) -> Rate {
        Rate::per_second(self.per_second).with_burst(self.burst)
    }

    /// The most sends at once. The least burst is one, or the tokens of two milliseconds.
    fn at_once(self) -> u32 {
        self.burst.max(self.per_second.div_ceil(500))
    }

    /// The most sends in a second, without the tolerance.
    fn allowed(self) -> u32 {
        if self.burst == 0 { self.per_second } else { self.per_second + self.burst - 1 }
    }

    /// The time in which this many tokens grow, in milliseconds.
    fn time_of(self, sends: u32) -> i64 {
        let millis = (u64::from(sends) * 1_000).div_ceil(self.per_second.into());
        i64::try_from(millis).expect("within weeks")
    }
}

/// A limiter: called at a millisecond for one send, it allows it or returns when to call again.
type Limiter = Box<dyn FnMut(i64) -> Result<(), i64>>;

/// The bucket as the scheduler uses it: some tokens are given back, because something else prevents the send.
fn ours(limit: Limit, start: i64) -> Limiter {
    bucket(limit, start, 1)
}

/// A bucket in which every third token is first given back this many times.
fn bucket(limit: Limit, start: i64, times: usize) -> Limiter {
    let rate = limit.rate();
    let mut bucket = Bucket::full(&rate, Timestamp::from_millis(start));
    let mut calls = 0u32;
    Box::new(move |now| {
        let now = Timestamp::from_millis(now);
        calls = calls.wrapping_add(1);
        if calls.is_multiple_of(3) && bucket.take(&rate, now).is_ok() {
            (0..times).for_each(|_| bucket.give_back(&rate, now));
        }
        bucket.take(&rate, now).map_err(Timestamp::as_millis)
    })
}

/// The measurements of a limiter.
#[derive(Debug)]
struct Measured {
    sends: usize,
    /// With the least burst: the sends of the fullest second above the limit, in percent.
    above_percent: f64,
    /// With larger bursts: the sends of the fullest second above limit and burst, in percent.
    above_burst_percent: f64,
    /// The smallest share of the limit that a sender without pauses got.
    reached: f64,
    /// Sends that differ between a sender that calls every millisecond and one that calls at the promised times.
    broken_promises: usize,
    /// The most sends that a jump of the clock added, in bursts.
    added_bursts: f64,
    /// The longest time without a send after a jump, beyond the time of one token.
    stall_ms: i64,
}

impl Measured {
    /// Measures all limits; those with the least burst with this many sends in all.
    fn of(make: fn(Limit, i64) -> Limiter, sends: u32) -> Self {
        let mut found = Self {
            sends: 0,
            above_percent: f64::NEG_INFINITY,
            above_burst_percent: f64::NEG_INFINITY,
            reached: f64::INFINITY,
            broken_promises: 0,
            added_bursts: 0.0,
            stall_ms: 0,
        };
        let each = sends.div_ceil(u32::try_from(LEAST_BURST.len()).expect("a few"));
        for (per_second, burst) in LEAST_BURST.map(|limit| (limit, 0)).into_iter().chain(LARGER_BURST) {
            let limit = Limit { per_second, burst };
            let span = limit.time_of(each);
            found.pace(limit, span, make);
            for jumps in jumps() {
                found.jump(limit, &jumps, make);
            }
        }
        found
    }

    fn pace(&mut self, limit: Limit, span: i64, make: fn(Limit, i64) -> Limiter) {
        let steady = every_milli(make(limit, START), span);
        let promised = as_promised(make(limit, START), span);
        let uneven = with_pauses(make(limit, START), span, limit.per_second.into());
        for times in [&steady, &uneven] {
            let above = (most_in_a_second(times) as f64 / f64::from(limit.allowed()) - 1.0) * 100.0;
            let most = if limit.burst == 0 { &mut self.above_percent } else { &mut self.above_burst_percent };
            *most = most.max(above);
            self.sends += times.len();
        }
        self.reached = self.reached.min(steady.len() as f64 / (f64::from(limit.per_second) * span as f64 / 1e3));
        let equal = steady.iter().zip(&promised).take_while(|(steady, promised)| steady == promised).count();
        self.broken_promises += steady.len().max(promised.len()) - equal;
    }

    fn jump(&mut self, limit: Limit, jumps: &[Jump], make: fn(Limit, i64) -> Limiter) {
        let token = limit.time_of(1);
        let last = jumps.iter().map(|jump| jump.at).max().unwrap_or(0);
        let span = last + 2 * token + SECOND;
        let sends = by_clock(make(limit, START), span, jumps);
        let without = by_clock(make(limit, START), span, &[]);

        let (mut sent, mut sent_without) = (0, 0);
        for (now, without) in without.iter().enumerate() {
            sent += sends[now];
            sent_without += without;
            self.added_bursts = self.added_bursts.max((sent - sent_without) as f64 / f64::from(limit.at_once()));
        }
        for jump in jumps {
            let after = sends.iter().skip(usize::try_from(jump.at).expect("after the start"));
            let waited = after.take_while(|sends| **sends == 0).count();
            self.stall_ms = self.stall_ms.max(i64::try_from(waited).expect("a few seconds") - token);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Jump {
    /// Its time, in milliseconds from the start.
    at: i64,
    /// Its size, in milliseconds.
    by: i64,
}

/// Jumps by hours and by milliseconds, at several times, alone and undone soon after.
fn jumps() -> Vec<Vec<Jump>> {
    let mut all = Vec::new();
    for at in [1_000, 1_001, 1_037, 1_143, 1_500] {
        for by in [HOUR, 7 * HOUR, 250, 1, -1, -250, -HOUR, -7 * HOUR] {
            all.push(vec![Jump { at, by }]);
            all.push(vec![Jump { at, by }, Jump { at: at + 10, by: -by }]);
        }
    }
    all
}

/// The times of the sends of a sender that calls every millisecond.
fn every_milli(mut limiter: Limiter, span: i64) -> Vec<i64> {
    let mut times = Vec::new();
    (START..START + span).for_each(|now| take_all(&mut limiter, now, &mut times));
    times
}

/// The times of the sends of a sender that calls only at the promised times.
fn as_promised(mut limiter: Limiter, span: i64) -> Vec<i64> {
    let (mut now, mut times) = (START, Vec::new());
    while now < START + span {
        match limiter(now) {
            Ok(()) => times.push(now),
            Err(promised) => now = promised.max(now + 1),
        }
    }
    times
}

/// The times of the sends of a sender with random pauses.
fn with_pauses(mut limiter: Limiter, span: i64, seed: u64) -> Vec<i64> {
    let mut dice = fastrand::Rng::with_seed(seed);
    let (mut now, mut times) = (START, Vec::new());
    while now < START + span {
        let pause_at = (now + dice.i64(1..3 * SECOND)).min(START + span);
        (now..pause_at).for_each(|now| take_all(&mut limiter, now, &mut times));
        now = pause_at + dice.i64(1..3 * SECOND);
    }
    times
}

/// The number of sends in each millisecond of a span in which the clock jumps.
fn by_clock(mut limiter: Limiter, span: i64, jumps: &[Jump]) -> Vec<i64> {
    let mut times = Vec::new();
    let each = (0..span).map(|now| {
        let set: i64 = jumps.iter().filter(|jump| jump.at <= now).map(|jump| jump.by).sum();
        times.clear();
        take_all(&mut limiter, START + now + set, &mut times);
        i64::try_from(times.len()).expect("a few")
    });
    each.collect()
}

fn take_all(limiter: &mut Limiter, now: i64, times: &mut Vec<i64>) {
    /// A bound, so that a limiter without a limit does not loop for ever.
    const ENOUGH: usize = 50_000;
    times.extend((0..ENOUGH).take_while(|_| limiter(now).is_ok()).map(|_| now));
}

/// A limiter that is wrong on purpose, with the measurement that must detect it.
struct Wrong {
    name: &'static str,
    make: fn(Limit, i64) -> Limiter,
    shows: fn(&Measured) -> bool,
}

const WRONG_LIMITERS: [Wrong; 8] = [
    Wrong { name: "counts by the calendar second", make: by_calendar, shows: above },
    Wrong { name: "gives every third token back twice", make: given_back_twice, shows: above },
    Wrong { name: "has a burst of two instead of one", make: larger_burst, shows: above },
    Wrong { name: "never sends", make: never, shows: |found| found.reached < REACHED_BAR },
    Wrong { name: "waits whole milliseconds", make: whole_millis, shows: |found| found.reached < REACHED_BAR },
    Wrong { name: "promises too late", make: late, shows: |found| found.broken_promises > 0 },
    Wrong { name: "saves through a jump", make: saving, shows: |found| found.added_bursts > 1.0 },
    Wrong { name: "waits for the clock to come back", make: waiting, shows: |found| found.stall_ms > 0 },
];

fn above(found: &Measured) -> bool {
    found.above_percent > ABOVE_BAR_PERCENT
}

fn by_calendar(limit: Limit, _: i64) -> Limiter {
    let (mut second, mut sent) = (0, 0);
    Box::new(move |now| {
        if now / SECOND != second {
            (second, sent) = (now / SECOND, 0);
        }
        if sent == limit.per_second {
            return Err((second + 1) * SECOND);
        }
        sent += 1;
        Ok(())
    })
}

fn given_back_twice(limit: Limit, start: i64) -> Limiter {
    bucket(limit, start, 2)
}

fn larger_burst(limit: Limit, start: i64) -> Limiter {
    ours(Limit { burst: limit.at_once() + 1, ..limit }, start)
}

fn never(_: Limit, _: i64) -> Limiter {
    Box::new(|now| Err(now + 1))
}

/// Loses the fraction of a millisecond at each send.
fn whole_millis(limit: Limit, _: i64) -> Limiter {
    let mut next = i64::MIN;
    Box::new(move |now| {
        if now < next {
            return Err(next);
        }
        next = now + limit.time_of(1);
        Ok(())
    })
}

fn late(limit: Limit, start: i64) -> Limiter {
    let mut limiter = ours(limit, start);
    Box::new(move |now| limiter(now).map_err(|promised| promised + 1))
}

/// Keeps up to two bursts when the clock jumps forward, and one otherwise.
fn saving(limit: Limit, start: i64) -> Limiter {
    let rate = limit.rate();
    let wide = Rate::per_second(limit.per_second).with_burst(limit.at_once() * 2);
    let mut bucket = Bucket::full(&rate, Timestamp::from_millis(start));
    let mut last = start;
    Box::new(move |now| {
        let rate = if now > last + 1 { &wide } else { &rate };
        let now = Timestamp::from_millis(now);
        let taken = bucket.take(rate, now).map_err(Timestamp::as_millis);
        if taken.is_err() {
            last = now.as_millis();
        }
        taken
    })
}

fn waiting(limit: Limit, start: i64) -> Limiter {
    let mut limiter = ours(limit, start);
    let mut latest = start;
    Box::new(move |now| {
        latest = latest.max(now);
        limiter(latest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fullest_second_is_half_open_and_may_start_anywhere() {
        assert_eq!(most_in_a_second(&[]), 0);
        assert_eq!(most_in_a_second(&[5, 1_005, 2_005]), 1);
        assert_eq!(most_in_a_second(&[5, 1_004, 1_005, 2_003]), 3);
        assert_eq!(most_in_a_second(&[900, 900, 999, 1_100, 1_100]), 5);
        assert_eq!(most_in_a_second(&[2_500, 100, 2_000, 1_050, 2_001]), 3, "in any order");
    }

    #[test]
    fn bucket_keeps_its_limits_and_wrong_limiters_are_detected() {
        let found = Measured::of(ours, 20_000);
        for limiter in &WRONG_LIMITERS {
            assert!(!(limiter.shows)(&found), "taken for one that {}: {found:?}", limiter.name);
            let wrong = Measured::of(limiter.make, 20_000);
            assert!((limiter.shows)(&wrong), "{}: {wrong:?}", limiter.name);
        }
    }
}
