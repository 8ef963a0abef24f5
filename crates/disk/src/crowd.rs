//! Runs many seeds in parallel, one to a thread, and adds up their results. The run of one seed is a *life*: the
//! history of one store, from its first start on.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use posthaste_store::sqlite::{Bounds, Sqlite};
use posthaste_testkit::master_key;
use posthaste_testkit::prove::CannotRun;
use rusqlite::Connection;
use tempfile::TempDir;

use crate::load::StoreLoad;

/// A fault of the store that a life found.
#[derive(Debug)]
pub(crate) enum Flaw {
    /// Acknowledged data is missing, refused data is present, or data is there in part.
    Lost(String),
    /// The store cannot be read.
    Damaged(String),
    /// The store did not stop when it had to, or stopped when it had to go on.
    Misbehaved(String),
}

impl From<String> for Flaw {
    fn from(what: String) -> Self {
        Self::Lost(what)
    }
}

/// The results of one life, or of many.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CrowdTally {
    pub(crate) seeds: u64,
    pub(crate) lost: u64,
    pub(crate) damaged: u64,
    pub(crate) misbehaved: u64,
    pub(crate) cuts: u64,
    pub(crate) struck: u64,
    pub(crate) acknowledged: u64,
}

impl std::ops::AddAssign for CrowdTally {
    fn add_assign(&mut self, one: Self) {
        self.seeds += one.seeds;
        self.lost += one.lost;
        self.damaged += one.damaged;
        self.misbehaved += one.misbehaved;
        self.cuts += one.cuts;
        self.struck += one.struck;
        self.acknowledged += one.acknowledged;
    }
}

impl fmt::Display for CrowdTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seeds, lost, damaged, misbehaved, cuts, struck, acknowledged } = self;
        write!(
            f,
            "{seeds} lives, {cuts} cuts, {struck} faults, {acknowledged} acknowledged; {lost} lost something, {damaged} \
             were damaged, {misbehaved} misbehaved"
        )
    }
}

/// How many flaws are printed; the rest are only counted.
const SHOWN: u64 = 5;

/// Runs the life of every seed. Flaws are counted, and the first ones printed.
pub(crate) fn run(
    name: &str,
    seeds: Range<u64>,
    life: impl Fn(u64) -> Result<CrowdTally, Flaw> + Sync,
) -> Result<CrowdTally, CannotRun> {
    let next = AtomicU64::new(seeds.start);
    let printed = AtomicU64::new(0);
    let work = || {
        let mut sum = CrowdTally::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return sum;
            }
            sum.seeds += 1;
            let (flaws, what) = match life(seed) {
                Ok(one) => {
                    sum += one;
                    continue;
                }
                Err(Flaw::Lost(what)) => (&mut sum.lost, what),
                Err(Flaw::Damaged(what)) => (&mut sum.damaged, what),
                Err(Flaw::Misbehaved(what)) => (&mut sum.misbehaved, what),
            };
            *flaws += 1;
            if printed.fetch_add(1, Ordering::Relaxed) < SHOWN {
                eprintln!("{name}, seed {seed}: {what}");
            }
        }
    };
    // Lives mostly wait for the threads of their stores and for the real disk, so there are more of them than cores.
    let threads = thread::available_parallelism().map_or(4, |n| n.get().clamp(2, 4) * 2);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut sum = CrowdTally::default();
        for worker in workers {
            sum += worker.join().map_err(|_| CannotRun("a life panicked; the message is above".to_owned()))?;
        }
        Ok(sum)
    })
}

/// Runs to the end on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T, Flaw>>) -> Result<T, Flaw> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime without sockets needs nothing but memory").block_on(future)
}

/// Opens a store. A failure is a flaw.
pub(crate) fn open(folder: &Path, bounds: Bounds) -> Result<Sqlite, Flaw> {
    Sqlite::open_bounded(folder, master_key(), bounds)
        .map_err(|error| Flaw::Damaged(format!("the store does not open: {}", chain(&error))))
}

/// Opens the store on a disk that works, and checks what is left in it.
pub(crate) fn judge(folder: &Path, load: &mut StoreLoad) -> Result<(), Flaw> {
    let store = open(folder, Bounds { reserve_bytes: 0, ..Bounds::default() })?;
    block_on(async {
        if !load.begin(&store).await? {
            return Err(Flaw::Misbehaved("no session can begin".to_owned()));
        }
        load.verify(&store).await?;
        store.close().await;
        Ok(())
    })?;
    drop(store);
    check_integrity(folder)
}

/// Bounds with which the log is checkpointed all the time, now and then, or never. Retries come fast, and the low-water
/// mark is updated every time.
pub(crate) fn bounds(dice: &mut fastrand::Rng) -> Bounds {
    let log_bytes = [128 << 10, 1 << 20, 64 << 20][dice.usize(..3)];
    Bounds {
        reserve_bytes: 64 << 10,
        log_bytes,
        again_after: Duration::from_millis(2),
        low_every: 1,
        ..Bounds::default()
    }
}

/// A temporary folder for one life.
pub(crate) fn new_folder() -> TempDir {
    tempfile::tempdir().expect("the proofs have a folder for what they leave behind")
}

/// Runs SQLite's integrity check on a closed store.
pub(crate) fn check_integrity(folder: &Path) -> Result<(), Flaw> {
    let found: rusqlite::Result<String> = Connection::open(folder.join("posthaste.db"))
        .and_then(|conn| conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)));
    match found.unwrap_or_else(|error| error.to_string()).as_str() {
        "ok" => Ok(()),
        found => Err(Flaw::Damaged(format!("the database is damaged: {found}"))),
    }
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(below) = source {
        text += &format!(": {below}");
        source = below.source();
    }
    text
}
