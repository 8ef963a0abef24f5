//! The proof `planted-bugs`: the simulator's oracle detects bugs that are planted on purpose.
//!
//! The bugs are listed in `planted/README.md`, each with a patch beside it. The proof makes a copy of the sources in
//! the target folder ([`copy`]), applies every patch, and builds the copy once. A bug is inactive until it is switched
//! on by name; [`hunt`] then runs seeds of the simulator, from the first on, until the oracle reports a violation.
//! With all bugs inactive the same copy must break no promise.

mod copy;
mod patch;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::plan::RunPlan;
use copy::Replica;
use posthaste_prove::{CannotRun, Context, Figure, Findings, Options};

/// The environment variable that switches on a bug in the copy.
const AWAKE: &str = "PLANTED_BUG";

/// A fault of the world around the engine. It needs no patch, because the simulator has a switch for it.
const ACK_BEFORE_DURABLE: &str = "ack_before_durable";

/// The seeds within which every bug must be detected.
const SEEDS_MAX: u64 = 500;
/// The seeds that must break no promise while all bugs are inactive.
const CONTROL_SEEDS: u64 = 100;
/// The timeout of a hunt. A bug that makes the simulator loop for ever counts as not detected.
const HUNT_MAX: Duration = Duration::from_secs(90);

/// Runs `planted-bugs`. There is no shorter form, because the build takes most of the time.
pub fn run(_: &Options) -> Findings {
    let folder = folder();
    let bugs = listed(&read(&folder.join("README.md"))?);
    let patched: Vec<&str> = bugs.iter().map(String::as_str).filter(|bug| *bug != ACK_BEFORE_DURABLE).collect();
    let copy = Replica::make(&workspace(), &target()?, &folder, &patched)?;
    eprintln!("planted-bugs: building a copy with {} inactive bugs", patched.len());
    let began = Instant::now();
    let hunter = copy.build()?;
    eprintln!("planted-bugs: built in {:.0} s", began.elapsed().as_secs_f64());

    let control = start_hunt(&hunter, "", CONTROL_SEEDS)?;
    let mut caught = Vec::new();
    eprintln!("\n{:<26} {:>5} {:>6}  caught by", "bug", "seed", "s");
    for bug in &bugs {
        let found = start_hunt(&hunter, bug, SEEDS_MAX)?;
        eprintln!("{bug:<26} {found}");
        caught.extend(found.first.map(|(seed, _)| seed));
    }
    let most = caught.iter().max().copied().unwrap_or(0);
    Ok(vec![
        Figure::at_least("bugs_planted", bugs.len() as f64, "bugs", 16.0),
        Figure::at_least("bugs_caught", caught.len() as f64, "bugs", bugs.len() as f64),
        Figure::at_most("most_seeds", most as f64, "seeds", SEEDS_MAX as f64),
        Figure::at_most("complaints_while_all_sleep", f64::from(u8::from(control.first.is_some())), "of 1 run", 0.0),
    ])
}

/// The names in the first column of the list.
fn listed(readme: &str) -> Vec<String> {
    let name = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
    readme.lines().filter_map(name).collect()
}

/// The result of a hunt.
struct Found {
    /// The first seed in which a promise was broken, with that promise.
    first: Option<(u64, String)>,
    took: Duration,
}

/// Runs the copy with one bug, or none if the name is empty, over a number of seeds.
fn start_hunt(hunter: &Path, bug: &str, seeds: u64) -> Result<Found, CannotRun> {
    let began = Instant::now();
    let ran = Command::new(hunter).arg(seeds.to_string()).env(AWAKE, bug).output();
    // Standard error is ignored: bugs may also make the engine panic, which does not count.
    let printed = ran.context(format!("cannot start {}", hunter.display()))?.stdout;
    let line = String::from_utf8_lossy(&printed);
    let first = line.split_once(' ').and_then(|(seed, by)| Some((seed.parse().ok()?, by.trim().to_owned())));
    Ok(Found { first, took: began.elapsed() })
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64();
        match &self.first {
            Some((seed, promise)) => write!(f, "{seed:>5} {seconds:>6.1}  {promise}"),
            None => write!(f, "{:>5} {seconds:>6.1}  not detected", "–"),
        }
    }
}

/// The process of a hunt, built from the copy: runs seeds until the oracle reports a violation, and prints seed and
/// promise.
pub fn hunt() {
    // A simulator that loops for ever has detected nothing.
    std::thread::spawn(|| {
        std::thread::sleep(HUNT_MAX);
        std::process::exit(1);
    });
    let seeds = std::env::args().nth(1).and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS_MAX);
    let acks_early = std::env::var(AWAKE).is_ok_and(|bug| bug == ACK_BEFORE_DURABLE);
    if let Some((seed, promise)) = first_violation(seeds, acks_early) {
        println!("{seed} {promise}");
    }
}

/// Returns the lowest seed that fails, which does not depend on the threads' speed.
fn first_violation(seeds: u64, acks_early: bool) -> Option<(u64, &'static str)> {
    let lowest = AtomicU64::new(u64::MAX);
    let both = crate::on_two_threads(1..=seeds, |found, seed| {
        if seed > lowest.load(Ordering::Relaxed) {
            return;
        }
        let plan = RunPlan { acks_early, ..RunPlan::from_seed(seed) };
        let outcome = std::panic::catch_unwind(|| crate::world::run(&plan));
        let broken = outcome.ok().and_then(|outcome| outcome.violations.first().map(|first| first.promise));
        if let Some(promise) = broken {
            lowest.fetch_min(seed, Ordering::Relaxed);
            *found = Some((seed, promise));
        }
    });
    both.into_iter().flatten().min()
}

fn workspace() -> PathBuf {
    let simulator = Path::new(env!("CARGO_MANIFEST_DIR"));
    simulator.ancestors().nth(2).expect("the crate is two folders below the workspace").to_owned()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("planted")
}

/// Cargo's target folder of this program. The copy is built in it too, so that common dependencies are not built again.
fn target() -> Result<PathBuf, CannotRun> {
    let here = std::env::current_exe().context("cannot find this program")?;
    let target = here.ancestors().nth(2);
    target.map(Path::to_owned).context(format!("{} is not in a target folder", here.display()))
}

fn read(path: &Path) -> Result<String, CannotRun> {
    std::fs::read_to_string(path).context(format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_bug_has_a_patch_that_applies() {
        let bugs = listed(&read(&folder().join("README.md")).expect("the list is beside the patches"));
        assert!(bugs.len() >= 16, "{bugs:?}");
        let patched: Vec<&str> = bugs.iter().map(String::as_str).filter(|bug| *bug != ACK_BEFORE_DURABLE).collect();
        let patches = patch::read_all(&folder(), &patched).unwrap_or_else(|CannotRun(why)| panic!("{why}"));
        let files = patch::apply(&workspace(), &patches).unwrap_or_else(|CannotRun(why)| panic!("{why}"));
        assert!(!files.is_empty());
    }

    #[test]
    fn names_are_read_from_the_first_column() {
        assert_eq!(listed("| name | what |\n|---|---|\n| `a_b` | x | A1 |\ntext `c`\n"), ["a_b"]);
    }
}
