//! The proofs `simulation`, that no promise is broken in many seeds, and `determinism`, that a seed gives the same run
//! in every process.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::RunOutcome;
use crate::oracle::Exercised;
use crate::plan::{RunPlan, Sabotage};
use posthaste_prove::{CannotRun, Figure, Findings, Options};

/// Seeds that once failed. Every simulation runs them first.
const KEPT: &str = include_str!("../seeds/kept.txt");

/// One seed in this many is also run through the tokio driver.
const DRIVEN_EVERY: u64 = 20;

pub fn run(options: &Options) -> Findings {
    let seeds = options.seeds.unwrap_or(if options.quick { 200 } else { 2_000 });
    let first = options.first.unwrap_or(1);
    let mut all: Vec<u64> = if options.first.is_none() { kept()? } else { Vec::new() };
    all.extend(first..first + seeds);
    let began = tokio::time::Instant::now();
    let tally = run_all(&all);
    let took = began.elapsed();
    for (seed, problem) in tally.problems.iter().take(20) {
        keep(*seed, problem);
        eprintln!("seed {seed}: {problem}\n    repeat it with: {}", crate::repeat(*seed));
    }
    // Runs without faults would prove nothing. With few seeds there may be none.
    let enough = |a_seed: f64| if seeds >= 100 { a_seed * seeds as f64 } else { 0.0 };
    let gates = tally.exercised;
    let caught = (1..=20).filter(|seed| !sabotaged(*seed).violations.is_empty()).count();
    Ok(vec![
        Figure::at_least("seeds", tally.runs as f64, "runs", seeds as f64),
        Figure::at_least("driven_seeds", tally.driven as f64, "runs", (seeds / DRIVEN_EVERY) as f64),
        Figure::at_least("deliveries", tally.deliveries as f64, "deliveries", enough(400.0)),
        Figure::at_least("crashes", tally.crashes as f64, "crashes", enough(0.5)),
        Figure::at_least("breakers_opened", gates.breakers_opened as f64, "times", enough(0.5)),
        Figure::at_least("drains", gates.drains as f64, "backlogs", enough(0.1)),
        Figure::at_least("rate_limited", gates.rate_limited as f64, "looks", enough(5.0)),
        Figure::at_least("turns", gates.turns as f64, "looks", enough(5.0)),
        Figure::at_least("erased", gates.erased as f64, "deliveries", enough(2.0)),
        Figure::at_least("superseded", gates.superseded as f64, "deliveries", enough(5.0)),
        Figure::at_least("negative_control_caught", caught as f64, "of 20 sabotaged seeds", 1.0),
        Figure::at_most("violations", tally.problems.len() as f64, "violations", 0.0),
        Figure::at_most("time", took.as_secs_f64(), "s", if options.quick { 120.0 } else { 180.0 }),
    ])
}

/// Adds a seed that failed to the kept ones. The developer who fixes the fault replaces the problem by a description of
/// it.
fn keep(seed: u64, problem: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/kept.txt");
    let Ok(text) = std::fs::read_to_string(path) else { return };
    let known = |line: &str| line.split_whitespace().next() == Some(&seed.to_string());
    if !text.lines().any(known)
        && let Err(error) = std::fs::write(path, format!("{text}{seed:<7} {problem}\n"))
    {
        eprintln!("cannot keep seed {seed} in {path}: {error}");
    }
}

fn kept() -> Result<Vec<u64>, CannotRun> {
    let lines = KEPT.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let seed = |line: &str| line.split_whitespace().next().unwrap_or(line).parse::<u64>();
    lines
        .map(|line| seed(line).map_err(|_| CannotRun(format!("seeds/kept.txt: {line:?} does not begin with a seed"))))
        .collect()
}

#[derive(Default)]
struct Tally {
    runs: u64,
    driven: u64,
    deliveries: u64,
    crashes: u64,
    exercised: Exercised,
    problems: Vec<(u64, String)>,
}

impl Tally {
    fn add(&mut self, outcome: &RunOutcome) {
        self.runs += 1;
        self.deliveries += outcome.deliveries as u64;
        self.crashes += outcome.crashes as u64;
        self.exercised += outcome.exercised;
        self.problems.extend(outcome.violations.iter().map(|found| (outcome.seed, found.to_string())));
    }

    fn merge(&mut self, other: Self) {
        self.runs += other.runs;
        self.driven += other.driven;
        self.deliveries += other.deliveries;
        self.crashes += other.crashes;
        self.exercised += other.exercised;
        self.problems.extend(other.problems);
    }
}

/// Runs seeds on two threads, each taking the next one. The sum does not depend on which thread runs which seed.
fn run_all(seeds: &[u64]) -> Tally {
    let next = AtomicU64::new(0);
    let work = || {
        let mut tally = Tally::default();
        while let Some(seed) = usize::try_from(next.fetch_add(1, Ordering::Relaxed)).ok().and_then(|at| seeds.get(at)) {
            tally.add(&guarded(*seed, crate::run));
            if seed.is_multiple_of(DRIVEN_EVERY) {
                let outcome = guarded(*seed, crate::driven::run);
                tally.driven += 1;
                tally.problems.extend(outcome.violations.iter().map(|found| (*seed, format!("driven: {found}"))));
            }
            if tally.runs.is_multiple_of(100) {
                eprintln!("  {} seeds, {} violations", tally.runs, tally.problems.len());
            }
        }
        tally
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let mut tally = work();
        tally.merge(other.join().expect("a seed's panic is caught where it happens"));
        tally
    })
}

/// The control: a run whose producers get "accepted" too early. The oracle must detect that.
fn sabotaged(seed: u64) -> RunOutcome {
    let mut plan = RunPlan::from_seed(seed);
    plan.sabotage = Some(Sabotage::AckBeforeDurable);
    crate::world::run(&plan)
}

/// Runs a seed, and turns a panic of the engine into a violation.
fn guarded(seed: u64, run: fn(u64) -> RunOutcome) -> RunOutcome {
    std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|_| RunOutcome {
        seed,
        violations: vec![crate::oracle::Violation {
            promise: "the engine never panics",
            seen: "it panicked; see above".into(),
        }],
        trace: 0,
        deliveries: 0,
        requests: 0,
        duplicates: 0,
        crashes: 0,
        exercised: Exercised::default(),
        points: 0,
    })
}

/// Runs `determinism`: compares the traces of seeds in this process and in another one with a different environment.
pub fn determinism(options: &Options) -> Findings {
    let seeds = options.seeds.unwrap_or(if options.quick { 20 } else { 100 });
    let first = options.first.unwrap_or(1);
    let here: Vec<u64> = (first..first + seeds).map(|seed| crate::run(seed).trace).collect();
    let there = other_process(first, seeds)?;
    let differ = here.iter().zip(&there).filter(|(a, b)| a != b).count() + here.len().abs_diff(there.len());
    // The control: different seeds must have different traces.
    let control = (crate::run(first).trace != crate::run(first + 1).trace) as u8;
    Ok(vec![
        Figure::at_least("seeds", here.len() as f64, "seeds", seeds as f64),
        Figure::at_most("traces_that_differ", differ as f64, "seeds", 0.0),
        Figure::at_least("negative_control_caught", f64::from(control), "controls", 1.0),
    ])
}

/// Prints the traces of some seeds, in the second process of [`determinism`].
pub fn print_traces(first: u64, seeds: u64) {
    for seed in first..first + seeds {
        println!("{}", crate::run(seed).trace);
    }
}

fn other_process(first: u64, seeds: u64) -> Result<Vec<u64>, CannotRun> {
    let cannot = |what: &str, error: &dyn std::fmt::Display| CannotRun(format!("{what}: {error}"));
    let binary = std::env::current_exe().map_err(|error| cannot("cannot find this program", &error))?;
    let output = std::process::Command::new(binary)
        .args(["--traces", &first.to_string(), &seeds.to_string()])
        .env_clear()
        .env("TZ", "Pacific/Chatham")
        .env("LC_ALL", "tr_TR.UTF-8")
        .env("RUST_BACKTRACE", "0")
        .current_dir(std::env::temp_dir())
        .output()
        .map_err(|error| cannot("cannot start the second process", &error))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .map(|line| line.parse().map_err(|error| cannot("the second process printed no trace", &error)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_seeds_are_numbers() {
        kept().expect("every line of seeds/kept.txt is a comment or begins with a seed");
    }
}
