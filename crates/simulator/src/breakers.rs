//! The proof `breakers`: the core's breaker follows its rules exactly.
//!
//! Random sequences of events are applied to the core's breaker and to a slow, obvious model of the same rules
//! (`breakers/model.rs`, `breakers/sequences.rs`). A healthy receiver must never open the breaker, and a flapping one
//! must get few requests (`breakers/receivers.rs`).

mod model;
mod receivers;
mod sequences;

use std::sync::atomic::{AtomicU64, Ordering};

use posthaste_core::flow::breaker::BreakerRule;

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

/// Runs sequences on two threads, each taking the next seed. The sum does not depend on which thread runs which seed.
fn run_all(first: u64, end: u64) -> (Reached, Vec<(u64, String)>) {
    let next = AtomicU64::new(first);
    let work = || {
        let (mut reached, mut different) = (Reached::default(), Vec::new());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return (reached, different);
            }
            let (more, difference) = sequences::run(seed, Slip::None);
            reached.add(&more);
            different.extend(difference.map(|difference| (seed, difference)));
        }
    };
    let ((mut reached, mut different), (more, others)) = std::thread::scope(|scope| {
        let other = scope.spawn(work);
        (work(), other.join().expect("a breaker never panics, and neither does its model"))
    });
    reached.add(&more);
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
    let trips = |rule| (1..=5).map(|seed| receivers::false_trips(&rule, seed)).sum::<u64>();
    // The control: a rule that is known to open by chance, about 120 times a day.
    let twitchy = BreakerRule { share_milli: 50, in_a_row: 0, ..BreakerRule::ENDPOINT };
    let mut figures = vec![
        Figure::at_most("false_trips", trips(BreakerRule::ENDPOINT) as f64, "in 5 days", 0.0),
        Figure::at_least("false_trips_of_a_twitchy_rule", trips(twitchy) as f64, "in 5 days", 500.0),
    ];
    for per_second in [20, 100] {
        let found = [1, 2, 3].map(|seed| receivers::flapping(per_second, seed));
        let worst = |of: fn(&receivers::Flapping) -> f64| found.iter().map(of).fold(0.0, f64::max);
        let name = |what: &str| format!("flapping_at_{per_second}_{what}");
        figures.push(Figure::at_most(&name("sent"), 100.0 * worst(|found| found.share), "% of offered", 5.0));
        // A breaker that never closes again would send least, so silence has a bar too.
        figures.push(Figure::at_most(&name("silence"), worst(|found| found.silence.as_secs_f64()), "s", 61.0));
    }
    figures
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
