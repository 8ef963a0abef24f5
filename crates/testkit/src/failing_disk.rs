//! The proof `disk`: the real binary on a disk that is full, or fails.
//!
//! Full: producers are refused and told when to come back, what was promised arrives meanwhile, and everything
//! resumes by itself. Failing: the process ends and says why, and the next start finds everything acknowledged.
//! The binary is the one that is shipped; its faults happen below it (`shim.c`).

mod shim;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::Instant;

use crate::counter::Manners;
use crate::ledger::Load;
use crate::posthaste::{self, Launch};
use crate::prove::{CannotRun, Figure, Findings, Options};
use crate::served::{Served, count, folder, runtime};
use shim::{Disk, Shim};

const PRODUCERS: usize = 16;
/// Attempts under way at once; with what waits for its commit, twice as many are in flight.
const SLOTS: usize = 64;
/// Promises before each fault, and after it.
const PROMISES: usize = 400;
/// Refusals that show that the server has found out, and stays with it.
const REFUSALS: u64 = 100;
/// The server tries about once a second whether there is room.
const RESUMES_WITHIN: Duration = Duration::from_secs(5);
/// Far beyond every bar.
const PATIENCE: Duration = Duration::from_secs(30);
/// What of the promises has not come by then, with nothing else coming, does not come while the disk is full.
const STANDS_STILL: Duration = Duration::from_secs(10);

/// Disks fill up and are cleared so often, each way.
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 1;

/// Runs the proof.
pub fn run(options: &Options) -> Findings {
    let binary = posthaste::binary()?;
    let rounds = if options.quick { ROUNDS_QUICK } else { ROUNDS };
    runtime()?.block_on(async {
        let mut figures = full(&binary, rounds, options).await?;
        for (name, fault) in [("failed_write", Disk::WritesFail), ("failed_sync", Disk::SyncsFail)] {
            figures.extend(fails(&binary, name, fault, rounds).await?);
        }
        Ok(figures)
    })
}

/// A server on a disk that is well so far.
struct World {
    served: Served,
    shim: Shim,
    /// What the server says on stderr.
    complaints: PathBuf,
    _tools: TempDir,
}

impl World {
    async fn begin(binary: &Path) -> Result<Self, CannotRun> {
        // Apart from each other: the disk of the tools is well.
        let (folder, tools) = (folder()?, tempfile::tempdir()?);
        let shim = Shim::make(tools.path())?;
        // As the system writes it: the shim compares names of files.
        let home = folder.path().canonicalize()?;
        let complaints = tools.path().join("stderr");
        let launch = Launch::new(binary, &home).with("POSTHASTE_SLOTS", SLOTS.to_string());
        let launch = shim.below(launch).complaining_to(&complaints);
        let manners = Manners { takes: Duration::from_millis(5)..Duration::from_millis(30), fails_one_in: None };
        let served = Served::begin(folder, launch, manners, &Load::of(PRODUCERS)).await?;
        Ok(Self { served, shim, complaints, _tools: tools })
    }

    /// So much more is promised.
    async fn promises_more(&self) -> io::Result<()> {
        self.served.promises(self.served.ledger().count() + PROMISES).await
    }

    /// The disk has no room until something is seen, and then has; gives how soon the server takes messages again,
    /// and how many of its promises did not come meanwhile.
    async fn is_without_room(&self, disk: Disk) -> io::Result<(Duration, usize)> {
        let ledger = self.served.ledger();
        self.shim.is(disk)?;
        let before = ledger.refusals().by_server;
        if !ledger.waits_for(PATIENCE, |_, refusals| refusals.by_server >= before + REFUSALS).await {
            return Err(io::Error::other("nobody is refused although the disk is full"));
        }
        let promised = ledger.promised();
        // A disk without a byte records no outcome: what was in flight stays so.
        let missing = match disk {
            Disk::Crowded => 0,
            _ => self.served.counter().waits_for_all(&promised, STANDS_STILL).await,
        };
        self.shim.is(Disk::Well)?;
        let cleared = Instant::now();
        if !ledger.waits_for(PATIENCE, |count, _| count > promised.len()).await {
            return Err(io::Error::other("the server does not resume although the disk has room"));
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
        for disk in [Disk::Full, Disk::Crowded] {
            let (took, not_come) = world.is_without_room(disk).await?;
            eprintln!("{disk:?}: taking messages {took:.1?} after there was room");
            (resumed, missing) = (resumed.max(took), missing + not_come);
            world.promises_more().await?;
        }
    }
    let exits = usize::from(world.served.server().ended()?.is_some());
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
        // The refusals are the fault's, and the count can fail.
        Figure::at_most("control_refused_while_well", refused_while_well as f64, "answers", 0.0),
        Figure::at_least("control_lost", count(seens.without_one().lost(&ended.promised)), "messages", 1.0),
    ])
}

async fn fails(binary: &Path, name: &str, fault: Disk, rounds: usize) -> Findings {
    let mut world = World::begin(binary).await?;
    let (mut ended_badly, mut told) = (0, 0);
    for _ in 0..rounds {
        world.promises_more().await?;
        world.shim.is(fault)?;
        let Some(status) = world.served.ends_by_itself(PATIENCE).await? else {
            return Err(CannotRun(format!("the server goes on after a {name}")));
        };
        world.shim.is(Disk::Well)?;
        let complaints = fs::read_to_string(&world.complaints)?;
        // A signal is no exit: it says nothing to whoever supervises the process.
        ended_badly += usize::from(status.code().is_some_and(|code| code != 0));
        told += usize::from(complaints.contains("the store stopped: ") && complaints.contains("I/O error"));
        eprintln!("{name}: {status}: {}", complaints.lines().last().unwrap_or_default());
        world.served.start()?;
    }
    world.promises_more().await?;
    let ended = world.served.ends().await;
    let seens = ended.counter.seens();
    let figure = |what: &str| format!("{name}_{what}");
    Ok(vec![
        Figure::at_least(&figure("exits_with_an_error"), count(ended_badly), "exits", count(rounds)),
        Figure::at_least(&figure("tells_its_reason"), count(told), "exits", count(rounds)),
        Figure::at_most(&figure("lost"), count(ended.lost), "messages", 0.0),
        Figure::at_most(&figure("unended"), count(ended.unended().await?), "messages", 0.0),
        Figure::at_most(&figure("arrived_unacknowledged"), count(seens.unpromised(&ended.promised)), "messages", 0.0),
        Figure::at_most(&figure("duplicates"), count(seens.duplicates()), "arrivals", count(rounds * 2 * SLOTS)),
        Figure::at_most(&figure("other_answers"), count(ended.surprises), "answers", 0.0),
    ])
}
