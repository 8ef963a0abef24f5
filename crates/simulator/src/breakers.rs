//! The proof `breakers`: the core's breaker follows its rules exactly.
//!
//! Random sequences of events are applied to the core's breaker and to a slow, obvious model of the same rules
//! (`breakers/model.rs`, `breakers/sequences.rs`). A healthy receiver must never open the breaker, and a flapping one
//! must get few requests.

mod model;
mod sequences;

use std::ops::RangeInclusive;
use std::time::Duration;

use posthaste_core::flow::breaker::{Breaker, BreakerAnswer, BreakerChange, BreakerRule, LetsThrough, Signal};
use posthaste_core::{EndpointId, Roll, Timestamp};

use self::model::Slip;
use self::sequences::Reached;
use posthaste_prove::{Figure, Findings, Options};

/// The sequences within which a wrong model must differ.
const CONTROL_SEQUENCES: u64 = 20_000;
/// How many differences are printed.
const PRINTED_MAX: usize = 10;

/// Runs the sequences, the controls and both receivers.
pub(crate) fn run(options: &Options) -> Findings {
    let sequences = options.seeds.unwrap_or(if options.quick { 50_000 } else { 1_000_000 });
    let first = options.first.unwrap_or(1);
    let mut figures = sequence_figures(first, sequences);
    figures.push(control_figure());
    figures.extend(receiver_figures());
    Ok(figures)
}

fn sequence_figures(first: u64, sequences: u64) -> Vec<Figure> {
    eprintln!("breakers: {sequences} random sequences against the model");
    let began = tokio::time::Instant::now();
    let (reached, different) = run_all(first, first.saturating_add(sequences));
    let took = began.elapsed();
    eprintln!("  {reached:?}");
    for (seed, difference) in different.iter().take(PRINTED_MAX) {
        eprintln!("sequence {seed}: {difference}");
        eprintln!("    repeat it with: cargo xtask prove breakers --seeds 1 --first {seed}");
    }
    // With few sequences some transitions may not occur.
    let enough = if sequences >= 10_000 { sequences as f64 / 100.0 } else { 0.0 };
    vec![
        Figure::at_least("events", reached.events as f64, "events", 20.0 * sequences as f64),
        Figure::at_least("rarest_transition", reached.rarest() as f64, "times", enough),
        Figure::at_most("differences_from_the_model", different.len() as f64, "sequences", 0.0),
        Figure::at_most("time", took.as_secs_f64(), "s", 60.0),
    ]
}

fn run_all(first: u64, end: u64) -> (Reached, Vec<(u64, String)>) {
    let run = |(reached, different): &mut (Reached, Vec<_>), seed| {
        let (more, difference) = sequences::run(seed, Slip::None);
        reached.add(more);
        different.extend(difference.map(|difference| (seed, difference)));
    };
    let [(mut reached, mut different), (more, others)] = crate::on_two_threads(first..end, run);
    reached.add(more);
    different.extend(others);
    different.sort();
    (reached, different)
}

fn control_figure() -> Figure {
    let caught = Slip::ALL.into_iter().filter(|slip| {
        let differs = first_difference(*slip, CONTROL_SEQUENCES);
        match &differs {
            Some((seed, difference)) => eprintln!("control, a wrong model, {slip:?}: sequence {seed}: {difference}"),
            None => eprintln!("control, a wrong model, is not detected: {slip:?}"),
        }
        differs.is_some()
    });
    Figure::at_least("negative_controls_caught", caught.count() as f64, "models", Slip::ALL.len() as f64)
}

fn first_difference(slip: Slip, sequences: u64) -> Option<(u64, String)> {
    (1..=sequences).find_map(|seed| Some((seed, sequences::run(seed, slip).1?)))
}

fn receiver_figures() -> Vec<Figure> {
    let trips = |rule| (1..=5).map(|seed| false_trips(&rule, seed)).sum::<u64>();
    // The control: a rule that is known to open by chance, about 120 times a day.
    let twitchy = BreakerRule { share_milli: 50, in_a_row: 0, ..BreakerRule::ENDPOINT };
    let mut figures = vec![
        Figure::at_most("false_trips", trips(BreakerRule::ENDPOINT) as f64, "in 5 days", 0.0),
        Figure::at_least("false_trips_of_a_twitchy_rule", trips(twitchy) as f64, "in 5 days", 500.0),
    ];
    for per_second in [20, 100] {
        let found = [1, 2, 3].map(|seed| flapping(per_second, seed));
        let worst = |of: fn(&Flapping) -> f64| found.iter().map(of).fold(0.0, f64::max);
        let name = |what: &str| format!("flapping_at_{per_second}_{what}");
        figures.push(Figure::at_most(&name("sent"), 100.0 * worst(|found| found.share), "% of offered", 5.0));
        // A breaker that never closes again would send least, so silence has a bar too.
        figures.push(Figure::at_most(&name("silence"), worst(|found| found.silence.as_secs_f64()), "s", 61.0));
    }
    figures
}

const DAY_MS: i64 = 86_400_000;

/// How often a breaker opens in a day of 5 answers per second, of which 2 % are failures.
fn false_trips(rule: &BreakerRule, seed: u64) -> u64 {
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
struct Flapping {
    /// Requests sent, as a share of the messages for it.
    share: f64,
    /// The longest time without a request.
    silence: Duration,
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
fn flapping(per_second: u32, seed: u64) -> Flapping {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaker_and_model_agree() {
        for seed in 1..=2_000 {
            let (_, difference) = sequences::run(seed, Slip::None);
            assert_eq!(difference, None, "sequence {seed}");
        }
    }

    #[test]
    fn wrong_models_differ_from_the_breaker() {
        for slip in Slip::ALL {
            assert!(first_difference(slip, CONTROL_SEQUENCES).is_some(), "{slip:?}");
        }
    }
}
