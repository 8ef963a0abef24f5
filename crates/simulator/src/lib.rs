//! The simulator: the production dispatch loop under virtual time, in a world drawn from a seed.
//!
//! A run has a time of faults, after which everything works, and ends when no delivery is pending. [`plan`] draws a
//! scenario from a seed, [`world`] runs it on an event heap (or [`driven`] through the tokio driver), [`wire`] has the
//! receivers, [`history`] records what an observer outside sees, and [`oracle`] judges that history alone.
//!
//! Beside it are the proofs that run single parts of the core over virtual time.

mod breakers;
mod contention;
mod crash_points;
pub mod driven;
mod fairness;
pub mod history;
mod limits;
pub mod oracle;
pub mod outage;
mod outsider;
pub mod plan;
pub mod planted;
mod schedules;
pub mod simulation;
pub mod wire;
pub mod world;

use std::sync::{Mutex, PoisonError};

use posthaste_prove::Proof;

use oracle::{Exercised, Violation};
use plan::RunPlan;

#[derive(Clone, Debug, Default)]
pub struct RunOutcome {
    pub seed: u64,
    /// All broken promises.
    pub violations: Vec<Violation>,
    /// A hash of the run's events: the same for the same seed on every machine.
    pub trace: u64,
    pub deliveries: usize,
    pub requests: usize,
    /// Requests that repeated an attempt.
    pub duplicates: usize,
    /// How often the node crashed.
    pub crashes: usize,
    /// How often breakers, limits and so on were observed.
    pub exercised: Exercised,
    /// How many crash points the run had.
    pub points: u64,
}

/// Runs a seed on the event heap.
pub fn run(seed: u64) -> RunOutcome {
    world::run(&RunPlan::from_seed(seed))
}

/// The command that repeats a run.
pub fn repeat(seed: u64) -> String {
    format!("cargo xtask prove simulation --seeds 1 --first {seed}")
}

/// Runs seeds on two threads, each taking the next one, and returns what each thread has collected. A sum of the two
/// does not depend on which thread runs which seed.
fn on_two_threads<T: Default + Send>(
    seeds: impl Iterator<Item = u64> + Send,
    run: impl Fn(&mut T, u64) + Sync,
) -> [T; 2] {
    let seeds = Mutex::new(seeds);
    let next = || seeds.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        let mut collected = T::default();
        while let Some(seed) = next() {
            run(&mut collected, seed);
        }
        collected
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        [work(), other.join().expect("a seed that panics fails the proof")]
    })
}

pub const PROOFS: &[Proof] = &[
    Proof::new("schedules", schedules::run)
        .shows("every jitter by statistics, the presets as documented, contention against known figures"),
    Proof::new("limits", limits::run).shows("no sliding second above its limit, also when the clock jumps"),
    Proof::new("breakers", breakers::run)
        .shows("breakers against a slow model, no false trips, a flapping endpoint left alone"),
    Proof::new("fairness", fairness::run)
        .shows("equal shares by slot-time, weights, quiet tenants beside noisy ones, no tier starved"),
    Proof::new("outage", outage::proof::run)
        .shows("twenty minutes of outage: the load on the receiver with naive retries, and with Posthaste"),
    Proof::new("simulation", simulation::run)
        .shows("the production loop under faults: no promise is broken in any seed"),
    Proof::new("determinism", simulation::determinism).shows("a seed gives the same run in every process"),
    Proof::new("crash-points", crash_points::run).shows("a crash at every effect of many scenarios loses nothing"),
    Proof::new("planted-bugs", planted::run)
        .shows("the oracle reports every bug on a list, and nothing while they are switched off"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_the_same_run() {
        let (one, two) = (run(7), run(7));
        assert_eq!(one.trace, two.trace);
        assert_eq!((one.deliveries, one.requests, one.points), (two.deliveries, two.requests, two.points));
    }

    #[test]
    fn different_seeds_give_different_runs() {
        let mut traces: Vec<u64> = (1..=5).map(|seed| run(seed).trace).collect();
        traces.sort_unstable();
        traces.dedup();
        assert_eq!(traces.len(), 5);
    }

    #[test]
    fn few_seeds_break_no_promise_on_either_driver() {
        for seed in 1..=5 {
            let outcome = run(seed);
            assert_eq!(outcome.violations, [], "{}", repeat(seed));
            assert!(outcome.deliveries > 0 && outcome.requests > 0, "seed {seed} did nothing");
            assert_eq!(driven::run(seed).violations, [], "driven; {}", repeat(seed));
        }
    }
}
