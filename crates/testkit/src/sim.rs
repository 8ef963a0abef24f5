//! The simulator: the production dispatch loop under virtual time, with everything around it
//! made up from a seed.
//!
//! A run breaks things, then heals them and waits until nothing is left to do. [`plan`] turns a
//! seed into a scenario, [`world`] runs it on an event heap (or [`driven`] through the tokio
//! driver), [`wire`] is the receivers, [`history`] is what a person outside could have seen, and
//! [`oracle`] judges that alone.

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

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed it came from.
    pub seed: u64,
    /// Everything that went wrong.
    pub violations: Vec<Violation>,
    /// The same for the same seed, whatever the machine.
    pub trace: u64,
    /// Deliveries that were acknowledged.
    pub deliveries: usize,
    /// Requests that left.
    pub requests: usize,
    /// Requests that repeated an attempt.
    pub duplicates: usize,
    /// How often the node crashed.
    pub crashes: usize,
    /// What was done to the gates.
    pub exercised: Exercised,
    /// How many places a crash could have been at.
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
