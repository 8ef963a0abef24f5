//! Compares SQLite with [`MemoryStore`](crate::MemoryStore): any history of calls, with restarts and crashes in
//! between, must give the same results and the same pages from both.
//!
//! A history is drawn from a seed, so that a proof can run any number of them and name the one that failed. With a
//! [`PlantedFault`] the two stores get different calls, as if SQLite lacked a guard; then they must differ.

mod both;
mod compare;
mod step;

use proptest::collection;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use both::Both;
use step::{HistoryStep, step};

/// Maximum number of calls in a history.
const STEPS_MAX: usize = 40;

/// A guard that SQLite is made to appear to lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// A settle of another epoch is applied.
    EpochForgotten,
    /// A settle with a different attempt count is applied.
    AttemptsForgotten,
    /// An attempt is not stored.
    AttemptDropped,
    FenceForgotten,
    /// A duplicate is accepted again.
    KeyForgotten,
    /// A superseded delivery continues to wait.
    CollapseForgotten,
}

impl PlantedFault {
    pub const ALL: [Self; 6] = [
        Self::EpochForgotten,
        Self::AttemptsForgotten,
        Self::AttemptDropped,
        Self::FenceForgotten,
        Self::KeyForgotten,
        Self::CollapseForgotten,
    ];
}

/// Runs the history of a seed on both stores and returns its number of calls.
///
/// # Panics
/// If the stores differ.
pub fn run(seed: u64) -> usize {
    take_through(seed, None)
}

/// Like [`run`], with a fault that the comparison must find.
///
/// # Panics
/// If the stores differ, as they should in most histories.
pub fn run_with(seed: u64, fault: PlantedFault) -> usize {
    take_through(seed, Some(fault))
}

fn take_through(seed: u64, fault: Option<PlantedFault>) -> usize {
    let history = drawn(seed);
    let calls = history.len();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without IO can be built");
    runtime.block_on(async {
        let mut both = Both::open(fault).await;
        for step in history {
            both.take(step).await;
        }
        both.compare().await;
        both.restart().await;
        both.compare().await;
    });
    calls
}

fn drawn(seed: u64) -> Vec<HistoryStep> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let tree = collection::vec(step(), 1..STEPS_MAX).new_tree(&mut runner);
    tree.expect("no step is ever rejected").current()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few enough for a unit test; the proof `store-conformance` runs more.
    const SEEDS: u64 = 48;

    #[test]
    fn every_history_reads_the_same_from_both() {
        (0..SEEDS).for_each(|seed| _ = run(seed));
    }

    #[test]
    fn a_store_that_lacks_a_guard_reads_differently() {
        for fault in PlantedFault::ALL {
            let differs = (0..100).any(|seed| std::panic::catch_unwind(|| run_with(seed, fault)).is_err());
            assert!(differs, "{fault:?}");
        }
    }
}
