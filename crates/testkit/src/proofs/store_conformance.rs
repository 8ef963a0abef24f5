//! The proof `store-conformance`: both stores pass every case of the contract, and read the same after any history of
//! calls with crashes in between.
//!
//! The controls are histories in which SQLite behaves as if it lacked one guard: each must differ from the memory
//! store.

use std::cell::RefCell;
use std::panic::catch_unwind;

use posthaste_store::MemoryStore;
use posthaste_store::conformance::histories::{self, PlantedFault};
use posthaste_store::conformance::run as every_case;
use posthaste_store::sqlite::Sqlite;

use crate::master_key;
use crate::prove::{CannotRun, Figure, Findings, Options};

/// The histories within which each fault must show.
const CONTROL_SEEDS: u64 = 100;
/// The least number of cases: with fewer, some were removed by mistake.
const CASES: f64 = 92.0;

pub fn run(options: &Options) -> Findings {
    let seeds = options.seeds.unwrap_or(if options.quick { 30 } else { 600 });
    let first = options.first.unwrap_or(1);
    let memory = cases(async || MemoryStore::default())?;
    eprintln!("memory: {memory} cases");
    // Each store reserves room on the disk, so only one folder is kept at a time.
    let folder = RefCell::new(None);
    let sqlite = cases(async || {
        let fresh = tempfile::tempdir().expect("a temporary folder");
        let store = Sqlite::open_folder(fresh.path(), master_key());
        folder.replace(Some(fresh));
        store.expect("a fresh folder opens")
    })?;
    eprintln!("SQLite: {sqlite} cases");
    let mut calls = 0;
    let mut differ = 0;
    for seed in first..first + seeds {
        match catch_unwind(|| histories::run(seed)) {
            Ok(taken) => calls += taken,
            Err(_) => {
                eprintln!("seed {seed} differs; repeat it with: {} --seeds 1 --first {seed}", REPEAT);
                differ += 1;
            }
        }
    }
    let caught = controls();
    Ok(vec![
        Figure::at_least("cases_memory", memory as f64, "cases", CASES),
        Figure::at_least("cases_sqlite", sqlite as f64, "cases", memory.max(1) as f64),
        Figure::at_least("histories", seeds as f64, "histories", seeds as f64),
        Figure::at_least("calls", calls as f64, "calls", seeds as f64 * 5.0),
        Figure::at_most("histories_that_differ", f64::from(differ), "histories", 0.0),
        Figure::at_least("negative_controls_caught", caught as f64, "faults", PlantedFault::ALL.len() as f64),
    ])
}

const REPEAT: &str = "cargo xtask prove store-conformance";

/// How many cases a store passes: all of them, or 0 if one fails.
fn cases<S: posthaste_store::Store>(make: impl AsyncFn() -> S) -> Result<usize, CannotRun> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let passed = catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(every_case(make))));
    Ok(passed.unwrap_or(0))
}

/// How many faults show in some history.
fn controls() -> usize {
    let loud = std::panic::take_hook();
    // The panics of the controls are expected, and not printed.
    std::panic::set_hook(Box::new(|_| {}));
    let shows = |fault: &PlantedFault| {
        (0..CONTROL_SEEDS).any(|seed| catch_unwind(|| histories::run_with(seed, *fault)).is_err())
    };
    let missed: Vec<PlantedFault> = PlantedFault::ALL.into_iter().filter(|fault| !shows(fault)).collect();
    std::panic::set_hook(loud);
    if !missed.is_empty() {
        eprintln!("no history shows these faults: {missed:?}");
    }
    PlantedFault::ALL.len() - missed.len()
}
