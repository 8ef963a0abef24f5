//! Limiters that are wrong on purpose, each with the measurement that must detect it.

use posthaste_core::Timestamp;
use posthaste_core::flow::bucket::{Bucket, Rate};

use super::{ABOVE_BAR_PERCENT, Limit, Limiter, Measured, REACHED_BAR, SECOND, bucket, ours};

pub(super) struct Wrong {
    pub(super) name: &'static str,
    pub(super) make: fn(Limit, i64) -> Limiter,
    pub(super) shows: fn(&Measured) -> bool,
}

pub(super) const LIMITERS: [Wrong; 8] = [
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
