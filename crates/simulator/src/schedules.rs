//! The proof `schedules`: retry policies wait as documented.
//!
//! It has three parts, each in a file of its own: every jitter distributes its waits as its formula says, by statistics
//! (`spread.rs`); the presets wait as documented, to the microsecond (`written.rs`); and the jitters reproduce known
//! figures of contending clients ([`crate::contention`]). Formulas and documented waits are written here again,
//! independently of the core.

mod spread;
mod written;

use crate::contention::{self, Contender, ContentionOutcome, REFERENCE};
use posthaste_prove::{Figure, Findings, Options};

/// How far a measured mean or deviation may be from its formula. With this many draws chance alone stays below half of
/// it.
const STATISTICS_BAR_PERCENT: f64 = 1.0;
const CLIENTS: usize = 100;

/// Runs all three parts.
pub(crate) fn run(options: &Options) -> Findings {
    let (draws, runs) = if options.quick { (200_000, 40) } else { (500_000, 200) };
    let mut figures = spread_figures(draws);
    figures.extend(written_figures());
    figures.extend(contention_figures(runs));
    Ok(figures)
}

fn spread_figures(draws: u32) -> Vec<Figure> {
    let cases = spread::cases();
    eprintln!("jitter: {} cases of strategy, jitter, tier and retry, {draws} draws each", cases.len());
    let findings: Vec<_> = cases.iter().map(|case| case.measure(draws)).collect();
    for (case, found) in cases.iter().zip(&findings).filter(|(_, found)| !found.is_within(STATISTICS_BAR_PERCENT)) {
        eprintln!("  {}: {found:?}", case.name);
    }
    let worst = |error: fn(&spread::Deviation) -> f64| findings.iter().map(error).fold(0.0, f64::max);
    let controls = spread::controls();
    let passed = controls.iter().filter(|control| control.measure(draws).is_within(STATISTICS_BAR_PERCENT));
    let passed: Vec<&str> = passed.map(|control| control.name.as_str()).collect();
    for name in &passed {
        eprintln!("  control, a wrong jitter, is not detected: {name}");
    }
    let caught = controls.len() - passed.len();
    vec![
        Figure::at_most("jitter_values_outside_range", worst(|found| found.outside as f64), "waits", 0.0),
        Figure::at_most("jitter_mean_error", worst(|found| found.mean_percent), "%", STATISTICS_BAR_PERCENT),
        Figure::at_most("jitter_spread_error", worst(|found| found.sd_percent), "%", STATISTICS_BAR_PERCENT),
        Figure::at_least("negative_controls_caught", caught as f64, "jitters", controls.len() as f64),
    ]
}

fn written_figures() -> Vec<Figure> {
    let presets = written::presets();
    let exact = presets.iter().filter(|preset| match preset.differences().as_slice() {
        [] => true,
        differences => {
            eprintln!("preset {}: {}", preset.name, differences.join("; "));
            false
        }
    });
    vec![Figure::at_least("presets_as_written", exact.count() as f64, "presets", presets.len() as f64)]
}

fn contention_figures(runs: u32) -> Vec<Figure> {
    eprintln!("contention: {CLIENTS} clients, {runs} runs each; known averages in brackets");
    let averages = Contender::all().map(|contender| contender.average(CLIENTS, runs, 1));
    for ((name, known), ContentionOutcome { calls, millis }) in REFERENCE.iter().zip(&averages) {
        eprintln!("  {name:12} {calls:6.0} calls ({})  {millis:7.0} ms ({})", known.calls, known.millis);
    }
    let broken = contention::broken_orderings(&averages);
    for ordering in &broken {
        eprintln!("  does not hold: {ordering}");
    }
    let (mut calls, mut time, mut time_plain) = (0.0_f64, 0.0_f64, 0.0_f64);
    for ((name, known), average) in REFERENCE.iter().zip(&averages) {
        calls = calls.max(percent_off(average.calls, known.calls));
        let worst = if *name == "exponential" { &mut time_plain } else { &mut time };
        *worst = worst.max(percent_off(average.millis, known.millis));
    }
    vec![
        Figure::at_most("contention_calls_error", calls, "%", 3.0),
        Figure::at_most("contention_time_error", time, "%", 8.0),
        // Without jitter the end depends on a few unlucky clients.
        Figure::at_most("contention_time_error_without_jitter", time_plain, "%", 15.0),
        Figure::at_most("contention_orderings_broken", broken.len() as f64, "orderings", 0.0),
    ]
}

fn percent_off(measured: f64, known: f64) -> f64 {
    (measured - known).abs() / known * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_wait_as_documented() {
        for preset in written::presets() {
            assert_eq!(preset.differences(), Vec::<String>::new(), "{}", preset.name);
        }
    }

    #[test]
    fn statistics_accept_right_jitters_and_detect_wrong_ones() {
        for case in spread::cases().iter().step_by(17) {
            let found = case.measure(200_000);
            assert!(found.is_within(STATISTICS_BAR_PERCENT), "{}: {found:?}", case.name);
        }
        for control in spread::controls() {
            let found = control.measure(20_000);
            assert!(!found.is_within(STATISTICS_BAR_PERCENT), "{}: {found:?}", control.name);
        }
    }
}
