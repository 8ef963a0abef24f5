//! The proof `disk`: the real binary on a disk that is full or fails.
//!
//! Full: producers are refused with a `Retry-After`, acknowledged messages arrive meanwhile, and the server accepts
//! again by itself once there is room. Failing: the process exits with the reason, and the next start finds everything
//! that was acknowledged. The binary is unchanged; the faults are injected below it (`shim.c`).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

use crate::fixtures::{Launch, ProducerLoad, ServerUnderLoad, binary, folder, runtime};
use crate::prove::{CannotRun, Figure, Findings, Options, count};
use crate::receivers::Manners;

const PRODUCERS: usize = 16;
/// Attempts under way at once. Including those that wait for the commit of their outcome, twice as many are in flight.
const SLOTS: usize = 64;
/// Acknowledgements to wait for before each fault, and after it.
const PROMISES: usize = 400;
/// Refusals to wait for: enough to show that the server has detected the fault and goes on refusing.
const REFUSALS: u64 = 100;
/// The bar for accepting again. The server checks for room about once a second.
const RESUMES_WITHIN: Duration = Duration::from_secs(5);
/// The timeout of every wait; far beyond every bar.
const PATIENCE: Duration = Duration::from_secs(30);
/// If no message has arrived for this long, the acknowledged messages that are missing will not arrive while the disk
/// is full.
const STANDS_STILL: Duration = Duration::from_secs(10);

/// How many times each fault occurs.
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 1;

pub fn run(options: &Options) -> Findings {
    let binary = binary()?;
    let rounds = if options.quick { ROUNDS_QUICK } else { ROUNDS };
    runtime()?.block_on(async {
        let mut figures = full(&binary, rounds, options).await?;
        for (name, fault) in [("failed_write", ShimmedDisk::WritesFail), ("failed_sync", ShimmedDisk::SyncsFail)] {
            figures.extend(fails(&binary, name, fault, rounds).await?);
        }
        Ok(figures)
    })
}

/// A server on a disk that can be made to fail.
struct World {
    served: ServerUnderLoad,
    shim: Shim,
    /// The server's standard error.
    stderr: PathBuf,
    _tools: TempDir,
}

impl World {
    async fn begin(binary: &Path) -> Result<Self, CannotRun> {
        // Two folders: faults must not affect the files of the tools.
        let (folder, tools) = (folder()?, tempfile::tempdir()?);
        let shim = Shim::make(tools.path())?;
        // Canonical, because the shim compares paths.
        let home = folder.path().canonicalize()?;
        let stderr = tools.path().join("stderr");
        let launch = Launch::new(binary, &home).with("POSTHASTE_SLOTS", SLOTS.to_string());
        let launch = shim.below(launch).complaining_to(&stderr);
        let manners = Manners { takes: Duration::from_millis(5)..Duration::from_millis(30), fails_one_in: None };
        let served = ServerUnderLoad::begin(folder, launch, manners, &ProducerLoad::of(PRODUCERS)).await?;
        Ok(Self { served, shim, stderr, _tools: tools })
    }

    /// Waits for `PROMISES` more acknowledgements.
    async fn promises_more(&self) -> Result<(), CannotRun> {
        self.served.promises(self.served.ledger().count() + PROMISES).await
    }

    /// Keeps the disk full until the server has refused enough, then makes room. Returns how soon the server accepts
    /// messages again, and how many acknowledged messages did not arrive meanwhile.
    async fn is_without_room(&self, disk: ShimmedDisk) -> Result<(Duration, usize), CannotRun> {
        let ledger = self.served.ledger();
        self.shim.is(disk)?;
        let before = ledger.refusals().by_server;
        if !ledger.waits_for(PATIENCE, |_, refusals| refusals.by_server >= before + REFUSALS).await {
            return Err(CannotRun("the server refuses no producer although the disk is full".to_owned()));
        }
        let promised = ledger.promised();
        // Without any room no outcome is recorded, so the slots stay taken and not everything can arrive.
        let missing = match disk {
            ShimmedDisk::Crowded => 0,
            _ => self.served.counter.waits_for_all(&promised, STANDS_STILL).await,
        };
        self.shim.is(ShimmedDisk::Well)?;
        let cleared = Instant::now();
        if !ledger.waits_for(PATIENCE, |count, _| count > promised.len()).await {
            return Err(CannotRun("the server does not resume although the disk has room".to_owned()));
        }
        Ok((cleared.elapsed(), missing))
    }
}

async fn full(binary: &Path, rounds: usize, options: &Options) -> Findings {
    let mut world = World::begin(binary).await?;
    world.promises_more().await?;
    let refused_while_well = world.served.ledger().refusals().by_server;
    let (mut resumed, mut missing) = (Duration::ZERO, 0);
    for _ in 0..rounds {
        for disk in [ShimmedDisk::Full, ShimmedDisk::Crowded] {
            let (took, not_come) = world.is_without_room(disk).await?;
            eprintln!("{disk:?}: accepting messages {took:.1?} after there was room");
            (resumed, missing) = (resumed.max(took), missing + not_come);
            world.promises_more().await?;
        }
    }
    let exits = usize::from(world.served.server.ended()?.is_some());
    let World { served, shim, .. } = world;
    let ended = served.ends().await;
    let (refusals, seens) = (ended.ledger.refusals(), ended.counter.seens());
    eprintln!("full: {} promised, {refusals:?}, {} calls of the system failed", ended.promised.len(), shim.refused()?);
    Ok(vec![
        Figure::at_least("full_refused", refusals.by_server as f64, "answers", (2 * rounds) as f64 * REFUSALS as f64),
        Figure::at_most("full_refused_without_retry_after", refusals.without_retry_after as f64, "answers", 0.0),
        Figure::at_most("full_other_answers", count(ended.surprises), "answers", 0.0),
        Figure::at_most("full_unanswered", refusals.unanswered as f64, "calls", 0.0),
        Figure::at_most("full_exits", count(exits), "exits", 0.0),
        Figure::at_most("full_missing_meanwhile", count(missing), "messages", 0.0),
        Figure::at_most("full_resumes_after", resumed.as_secs_f64(), "s", RESUMES_WITHIN.as_secs_f64())
            .by_the_clock(options),
        Figure::at_most("full_lost", count(ended.lost), "messages", 0.0),
        Figure::at_most("full_unended", count(ended.unended().await?), "messages", 0.0),
        Figure::at_most("full_duplicates", count(seens.duplicates()), "arrivals", 0.0),
        // The controls: the refusals are due to the fault, and the count of losses can fail.
        Figure::at_most("control_refused_while_well", refused_while_well as f64, "answers", 0.0),
        Figure::at_least("control_lost", count(seens.without_one().lost(&ended.promised)), "messages", 1.0),
    ])
}

async fn fails(binary: &Path, name: &str, fault: ShimmedDisk, rounds: usize) -> Findings {
    let mut world = World::begin(binary).await?;
    let (mut exits_with_an_error, mut reasons) = (0, 0);
    for _ in 0..rounds {
        world.promises_more().await?;
        world.shim.is(fault)?;
        let Some(status) = world.served.ends_by_itself(PATIENCE).await? else {
            return Err(CannotRun(format!("the server goes on after a {name}")));
        };
        world.shim.is(ShimmedDisk::Well)?;
        let stderr = fs::read_to_string(&world.stderr)?;
        // A death by a signal does not count: a supervisor could not tell the reason from it.
        exits_with_an_error += usize::from(status.code().is_some_and(|code| code != 0));
        reasons += usize::from(stderr.contains("the store stopped: ") && stderr.contains("I/O error"));
        eprintln!("{name}: {status}: {}", stderr.lines().last().unwrap_or_default());
        world.served.start()?;
    }
    world.promises_more().await?;
    let ended = world.served.ends().await;
    let seens = ended.counter.seens();
    let figure = |what: &str| format!("{name}_{what}");
    Ok(vec![
        Figure::at_least(&figure("exits_with_an_error"), count(exits_with_an_error), "exits", count(rounds)),
        Figure::at_least(&figure("tells_its_reason"), count(reasons), "exits", count(rounds)),
        Figure::at_most(&figure("lost"), count(ended.lost), "messages", 0.0),
        Figure::at_most(&figure("unended"), count(ended.unended().await?), "messages", 0.0),
        Figure::at_most(&figure("arrived_unacknowledged"), count(seens.unpromised(&ended.promised)), "messages", 0.0),
        Figure::at_most(&figure("duplicates"), count(seens.duplicates()), "arrivals", count(rounds * 2 * SLOTS)),
        Figure::at_most(&figure("other_answers"), count(ended.surprises), "answers", 0.0),
    ])
}

/// The offsets of the fields in the shared file; `struct orders` in `shim.c`.
const MODE_AT: u64 = 0;
const FREE_AT: u64 = 8;
const REFUSED_AT: u64 = 16;
const ORDERS_BYTES: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShimmedDisk {
    /// Without faults.
    Well,
    /// Full; bytes that the server frees can be used again.
    Full,
    /// Full; bytes that the server frees cannot be used again, as if another process took them.
    Crowded,
    /// Every write fails.
    WritesFail,
    SyncsFail,
}

/// A library that is preloaded into the server to inject faults, and the shared file that controls it meanwhile.
#[derive(Debug)]
struct Shim {
    library: PathBuf,
    orders: PathBuf,
    file: File,
}

impl Shim {
    /// Compiles the library into this folder.
    fn make(folder: &Path) -> Result<Self, CannotRun> {
        let [source, library, orders] = ["shim.c", "shim.so", "orders"].map(|name| folder.join(name));
        fs::write(&source, include_str!("failing_disk/shim.c"))?;
        let compiled =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).arg("-ldl").status();
        match compiled {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(CannotRun(format!("cc cannot compile the failing disk: {status}"))),
            Err(error) => return Err(CannotRun(format!("a C compiler is needed for the failing disk: {error}"))),
        }
        fs::write(&orders, [0; ORDERS_BYTES])?;
        let file = OpenOptions::new().read(true).write(true).open(&orders)?;
        Ok(Self { library, orders, file })
    }

    /// Preloads the library into a server.
    fn below(&self, launch: Launch) -> Launch {
        let data = launch.data();
        launch.with("LD_PRELOAD", &self.library).with("DISK_ORDERS", &self.orders).with("DISK_FOLDER", data)
    }

    /// Sets the state of the disk, with effect at once.
    fn is(&self, disk: ShimmedDisk) -> io::Result<()> {
        let (mode, free): (i64, i64) = match disk {
            ShimmedDisk::Well => (0, 0),
            ShimmedDisk::Full => (1, 0),
            ShimmedDisk::Crowded => (1, i64::MIN / 2),
            ShimmedDisk::WritesFail => (2, 0),
            ShimmedDisk::SyncsFail => (3, 0),
        };
        self.file.write_all_at(&free.to_ne_bytes(), FREE_AT)?;
        self.file.write_all_at(&mode.to_ne_bytes(), MODE_AT)
    }

    /// How many calls have failed so far.
    fn refused(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, REFUSED_AT)?;
        Ok(u64::from_ne_bytes(bytes))
    }
}
