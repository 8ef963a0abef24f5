//! The proof `crash-points`: small scenarios, with a crash at every possible point: a store call started, committed,
//! answered; a send started, answered.

use crate::plan::RunPlan;
use crate::world;
use posthaste_prove::{Figure, Findings, Options};

/// The first seed; other seeds than those of `simulation`.
const FIRST: u64 = 700_000;

#[derive(Default)]
struct Tally {
    scenarios: u64,
    crashes: u64,
    duplicates: u64,
    problems: Vec<String>,
    caught: u64,
}

/// Runs `crash-points`.
pub(crate) fn run(options: &Options) -> Findings {
    let scenarios = options.seeds.unwrap_or(if options.quick { 40 } else { 200 });
    let first = options.first.unwrap_or(FIRST);
    let tallies = crate::on_two_threads(first..first + scenarios, scenario);
    let sum = |count: fn(&Tally) -> u64| tallies.iter().map(count).sum::<u64>() as f64;
    let problems: Vec<&String> = tallies.iter().flat_map(|tally| &tally.problems).collect();
    for problem in problems.iter().take(20) {
        eprintln!("{problem}");
    }
    let lost = problems.iter().filter(|problem| problem.contains("lost") || problem.contains("ends")).count();
    Ok(vec![
        Figure::at_least("scenarios", sum(|tally| tally.scenarios), "scenarios", scenarios.min(40) as f64),
        Figure::at_least("crash_points", sum(|tally| tally.crashes), "crashes", 1_000.0),
        Figure::at_least("duplicates_seen", sum(|tally| tally.duplicates), "requests", 1.0),
        Figure::at_least("negative_control_caught", sum(|tally| tally.caught), "scenarios", 1.0),
        Figure::at_most("lost", lost as f64, "deliveries", 0.0),
        Figure::at_most("violations", problems.len() as f64, "violations", 0.0),
    ])
}

fn scenario(tally: &mut Tally, seed: u64) {
    let mut plan = RunPlan::small(seed);
    let points = world::run(&plan).points;
    for point in 1..=points {
        plan.crash_at_point = Some(point);
        let outcome = world::run(&plan);
        tally.crashes += outcome.crashes as u64;
        tally.duplicates += outcome.duplicates as u64;
        let repeat = format!("cargo xtask prove crash-points --seeds 1 --first {seed}");
        let problem = |found: &_| format!("seed {seed}, crash at point {point}: {found}\n    repeat it with: {repeat}");
        tally.problems.extend(outcome.violations.iter().map(problem));
    }
    // The control: the same crashes with producers that get "accepted" too early must show losses.
    plan.acks_early = true;
    let seen = (1..=points.min(40)).any(|point| {
        plan.crash_at_point = Some(point);
        !world::run(&plan).violations.is_empty()
    });
    tally.caught += u64::from(seen);
    tally.scenarios += 1;
}
