//! Two model receivers for a breaker: a healthy one with a few failures, and one that fails in every other second.

use std::ops::RangeInclusive;
use std::time::Duration;

use posthaste_core::flow::breaker::{Breaker, BreakerAnswer, BreakerChange, BreakerRule, LetsThrough, Signal};
use posthaste_core::{EndpointId, Roll, Timestamp};

const DAY_MS: i64 = 86_400_000;

/// How often a breaker opens in a day of 5 answers per second, of which 2 % are failures.
pub(super) fn false_trips(rule: &BreakerRule, seed: u64) -> u64 {
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut breaker = Breaker::default();
    let mut trips = 0;
    for ms in (0..DAY_MS).step_by(200) {
        let now = Timestamp::from_millis(ms + dice.i64(0..200));
        if matches!(breaker.lets_through(now), LetsThrough::Nothing { .. }) {
            continue;
        }
        let generation = breaker.start(now).generation;
        let signal = if dice.u8(..100) < 2 { Signal::Failure } else { Signal::Success };
        let change = breaker.answered(now, Roll(dice.u64(..)), rule, answer(generation, signal));
        trips += u64::from(change == Some(BreakerChange::Opened));
    }
    trips
}

/// The requests to a flapping receiver in the measured time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flapping {
    /// Requests sent, as a share of the messages for it.
    pub(super) share: f64,
    /// The longest time without a request.
    pub(super) silence: Duration,
}

/// The time of an answer; it varies, so that probes fall on different parts of the receiver's seconds.
const ANSWER_MS: RangeInclusive<i64> = 20..=200;
/// The time before the measurement.
const SETTLES_MS: i64 = 600_000;
const MEASURED_MS: i64 = 3_600_000;

/// Runs a load of `per_second` messages to a receiver that fails in every other second.
///
/// Messages that cannot be sent wait, and failed ones wait again. After the breaker closes, messages are sent at half
/// the rate of the load, growing by a factor of 1.3 each second.
pub(super) fn flapping(per_second: u32, seed: u64) -> Flapping {
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut breaker = Breaker::default();
    let mut under_way: Vec<(i64, u32, Signal)> = Vec::new();
    let mut waiting = 0_u64;
    let mut pace = f64::INFINITY;
    let mut allowance = 0.0_f64;
    let (mut offered, mut sent, mut last_sent, mut silence) = (0_u64, 0_u64, SETTLES_MS, 0_i64);
    for ms in 0..SETTLES_MS + MEASURED_MS {
        let now = Timestamp::from_millis(ms);
        let measured = ms >= SETTLES_MS;
        if dice.u32(..1_000) < per_second {
            waiting += 1;
            offered += u64::from(measured);
        }
        for (_, generation, signal) in under_way.extract_if(.., |(at, ..)| *at <= ms) {
            waiting += u64::from(signal == Signal::Failure);
            let change = breaker.answered(now, Roll(dice.u64(..)), &BreakerRule::ENDPOINT, answer(generation, signal));
            if change == Some(BreakerChange::Closed) {
                (pace, allowance) = (f64::from(per_second) / 2.0, 0.0);
            }
        }
        if ms % 1_000 == 0 {
            pace *= 1.3;
        }
        allowance = (allowance + pace / 1_000.0).min(1.0);
        let may_go = match breaker.lets_through(now) {
            LetsThrough::All => allowance >= 1.0,
            LetsThrough::Probe => true,
            LetsThrough::Nothing { .. } => false,
        };
        if may_go && waiting > 0 {
            waiting -= 1;
            allowance = 0.0;
            let is_well = ms / 1_000 % 2 == 0;
            let signal = if is_well { Signal::Success } else { Signal::Failure };
            under_way.push((ms + dice.i64(ANSWER_MS), breaker.start(now).generation, signal));
            if measured {
                sent += 1;
                silence = silence.max(ms - last_sent);
                last_sent = ms;
            }
        }
    }
    let silence = Duration::from_millis(u64::try_from(silence).unwrap_or(0));
    Flapping { share: sent as f64 / offered as f64, silence }
}

fn answer(generation: u32, signal: Signal) -> BreakerAnswer {
    BreakerAnswer { generation, endpoint: EndpointId::from_raw(1), signal, messages_wait: true, retry_after: None }
}
