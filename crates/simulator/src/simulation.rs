//! The proofs `simulation`, that no promise is broken in many seeds, and `determinism`, that a seed gives the same run
//! in every process.

use crate::RunOutcome;
use crate::oracle::Violation;
use crate::plan::RunPlan;
use posthaste_prove::{CannotRun, Context, Figure, Findings, Options};

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
    let threads = crate::on_two_threads(all.into_iter(), Runs::add);
    let took = began.elapsed();
    let problems: Vec<(u64, String)> = threads.iter().flat_map(Runs::problems).collect();
    for (seed, problem) in problems.iter().take(20) {
        keep(*seed, problem);
        eprintln!("seed {seed}: {problem}\n    repeat it with: {}", crate::repeat(*seed));
    }
    let sum = |count: fn(&RunOutcome) -> usize| {
        threads.iter().flat_map(|runs| &runs.on_the_heap).map(count).sum::<usize>() as f64
    };
    let driven: usize = threads.iter().map(|runs| runs.driven.len()).sum();
    // Runs without faults would prove nothing. With few seeds there may be none.
    let enough = |a_seed: f64| if seeds >= 100 { a_seed * seeds as f64 } else { 0.0 };
    let caught = (1..=20).filter(|seed| !sabotaged(*seed).violations.is_empty()).count();
    Ok(vec![
        Figure::at_least("seeds", sum(|_| 1), "runs", seeds as f64),
        Figure::at_least("driven_seeds", driven as f64, "runs", (seeds / DRIVEN_EVERY) as f64),
        Figure::at_least("deliveries", sum(|run| run.deliveries), "deliveries", enough(400.0)),
        Figure::at_least("crashes", sum(|run| run.crashes), "crashes", enough(0.5)),
        Figure::at_least("breakers_opened", sum(|run| run.exercised.breakers_opened), "times", enough(0.5)),
        Figure::at_least("drains", sum(|run| run.exercised.drains), "backlogs", enough(0.1)),
        Figure::at_least("rate_limited", sum(|run| run.exercised.rate_limited), "looks", enough(5.0)),
        Figure::at_least("turns", sum(|run| run.exercised.turns), "looks", enough(5.0)),
        Figure::at_least("erased", sum(|run| run.exercised.erased), "deliveries", enough(2.0)),
        Figure::at_least("superseded", sum(|run| run.exercised.superseded), "deliveries", enough(5.0)),
        Figure::at_least("negative_control_caught", caught as f64, "of 20 sabotaged seeds", 1.0),
        Figure::at_most("violations", problems.len() as f64, "violations", 0.0),
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

/// The runs of one thread.
#[derive(Default)]
struct Runs {
    on_the_heap: Vec<RunOutcome>,
    driven: Vec<RunOutcome>,
}

impl Runs {
    fn add(&mut self, seed: u64) {
        self.on_the_heap.push(guarded(seed, crate::run));
        if seed.is_multiple_of(DRIVEN_EVERY) {
            self.driven.push(guarded(seed, crate::driven::run));
        }
        if self.on_the_heap.len().is_multiple_of(100) {
            eprintln!("  {} seeds, {} violations", self.on_the_heap.len(), self.problems().count());
        }
    }

    fn problems(&self) -> impl Iterator<Item = (u64, String)> {
        let found = |run: &RunOutcome, how: &str| {
            run.violations.iter().map(|found| (run.seed, format!("{how}{found}"))).collect::<Vec<_>>()
        };
        let on_the_heap = self.on_the_heap.iter().flat_map(move |run| found(run, ""));
        on_the_heap.chain(self.driven.iter().flat_map(move |run| found(run, "driven: ")))
    }
}

/// The control: a run whose producers get "accepted" too early. The oracle must detect that.
fn sabotaged(seed: u64) -> RunOutcome {
    crate::world::run(&RunPlan { acks_early: true, ..RunPlan::from_seed(seed) })
}

/// Runs a seed, and turns a panic of the engine into a violation.
fn guarded(seed: u64, run: fn(u64) -> RunOutcome) -> RunOutcome {
    std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|_| {
        let promise = "the engine never panics";
        let panicked = Violation { promise, seen: "it panicked; see above".into() };
        RunOutcome { seed, violations: vec![panicked], ..RunOutcome::default() }
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
    let output = std::process::Command::new(std::env::current_exe().context("cannot find this program")?)
        .args(["--traces", &first.to_string(), &seeds.to_string()])
        .env_clear()
        .env("TZ", "Pacific/Chatham")
        .env("LC_ALL", "tr_TR.UTF-8")
        .env("RUST_BACKTRACE", "0")
        .current_dir(std::env::temp_dir())
        .output()
        .context("cannot start the second process")?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| line.parse().context("the second process printed no trace")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_seeds_are_numbers() {
        kept().expect("every line of seeds/kept.txt is a comment or begins with a seed");
    }
}
