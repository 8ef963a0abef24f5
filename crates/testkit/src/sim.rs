//! The simulator: the production dispatch loop under virtual time, in a world drawn from a seed.
//!
//! A run has a time of faults, after which everything works, and ends when no delivery is pending. [`plan`] draws a
//! scenario from a seed, [`world`] runs it on an event heap (or [`driven`] through the tokio driver), [`wire`] has the
//! receivers, [`history`] records what an observer outside sees, and [`oracle`] judges that history alone.

pub mod driven;
pub mod history;
pub mod oracle;
mod outsider;
pub mod plan;
mod producer;
pub mod wire;
pub mod world;

use oracle::{Exercised, Violation};
use plan::Plan;

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed of the run.
    pub seed: u64,
    /// All broken promises.
    pub violations: Vec<Violation>,
    /// A hash of the run's events: the same for the same seed on every machine.
    pub trace: u64,
    /// Deliveries that were acknowledged.
    pub deliveries: usize,
    /// Requests that left.
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
pub fn run(seed: u64) -> Outcome {
    world::run(&Plan::from_seed(seed))
}

/// The command that repeats a run.
pub fn repeat(seed: u64) -> String {
    format!("cargo xtask prove simulation --seeds 1 --first {seed}")
}

#[cfg(test)]
mod tests;
