//! The proof `store-powercut`: power cuts at any change of a real store's files. Afterwards everything acknowledged is
//! there, everything else is there completely or not at all, and the database passes SQLite's integrity check.
//!
//! Negative control: the same with `synchronous = NORMAL`, under which a commit is acknowledged before it is synced.
//! The loss must be detected.
//!
//! A seed draws the load and what each cut leaves; which write a cut hits also depends on the scheduling of the store's
//! threads. To reproduce a failure, run its seed many times.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use posthaste_store::sqlite::Bounds;
use posthaste_testkit::prove::{CannotRun, Figure, Findings, Options, count};
use tokio::time::timeout;

use crate::crowd::{self, CrowdTally, Flaw, bounds, judge, new_folder};
use crate::disk::FaultyDisk;
use crate::load::{StoreHealth, StoreLoad};

/// Power cuts in one life.
const CUTS: usize = 3;

/// How long a store may take from a start to the next cut: seconds, on a machine that does other work.
const WITHIN: Duration = Duration::from_secs(60);

pub(crate) fn run(options: &Options) -> Findings {
    let seeds = options.seeds.unwrap_or(if options.quick { 150 } else { 2_000 });
    let first = options.first.unwrap_or(1);
    let found = crowd::run("store-powercut", first..first + seeds, |seed| life(seed, |_| {}))?;
    eprintln!("store-powercut: {found}");
    let weakened = AtomicBool::new(false);
    let weaken = |disk: &FaultyDisk| {
        disk.weaken();
        weakened.fetch_or(disk.has_weakened(), Ordering::Relaxed);
    };
    let control = crowd::run("the control", first..first + (seeds / 10).clamp(20, 100), |seed| life(seed, weaken))?;
    eprintln!("the control, synchronous = NORMAL: {control}");
    if !weakened.into_inner() {
        return Err(CannotRun("the control ran with synchronous = FULL".to_owned()));
    }
    Ok(vec![
        Figure::at_least("power_cuts", count(found.cuts), "cuts", count(seeds * 2)),
        Figure::at_least("acknowledged", count(found.acknowledged), "calls", count(seeds * 20)),
        Figure::at_most("acknowledged_lost", count(found.lost), "seeds", 0.0),
        Figure::at_most("corrupt", count(found.damaged), "seeds", 0.0),
        Figure::at_most("misbehaved", count(found.misbehaved), "seeds", 0.0),
        Figure::at_least("control_caught", count(control.lost), "seeds under synchronous = NORMAL", 1.0),
    ])
}

/// The life of one store: its first start and a few power cuts. `prepare` is called with each disk when it is new and
/// after its power was cut.
fn life(seed: u64, prepare: impl Fn(&FaultyDisk)) -> Result<CrowdTally, Flaw> {
    let mut dice = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let mut load = StoreLoad::new(seed);
    let mut tally = CrowdTally::default();
    let mut folder = new_folder();
    for _ in 0..CUTS {
        let disk = FaultyDisk::of(folder.path(), dice.u64(..)).expect("the folder is there");
        prepare(&disk);
        let within = [20, 100, 400, 1_500][dice.usize(..4)];
        disk.cut_at(dice.u64(1..=within));
        until_cut(folder.path(), &disk, &mut load, bounds(&mut dice))?;
        tally.cuts += 1;
        prepare(&disk);
        let next = new_folder();
        disk.restore_into(next.path()).expect("the real disk has room");
        folder = next;
    }
    judge(folder.path(), &mut load)?;
    tally.acknowledged = load.acknowledged();
    Ok(tally)
}

/// Opens a store on the disk and puts load on it until the power is cut.
fn until_cut(folder: &Path, disk: &FaultyDisk, load: &mut StoreLoad, bounds: Bounds) -> Result<(), Flaw> {
    let store = match crowd::open(folder, bounds) {
        Ok(store) => store,
        Err(_) if disk.is_cut() => return Ok(()),
        Err(flaw) => return Err(flaw),
    };
    let run = async {
        if !load.begin(&store).await? {
            return Ok(());
        }
        load.verify(&store).await?;
        while load.round(&store).await? != StoreHealth::Stopped {}
        Ok(())
    };
    let ran = crowd::block_on(async {
        let too_long = |_| Flaw::Misbehaved("the store neither stopped nor went on".to_owned());
        timeout(WITHIN, run).await.map_err(too_long)
    })?;
    match ran {
        // Without power reads fail too: the next start decides.
        Err(_) if disk.is_cut() => Ok(()),
        Ok(()) if !disk.is_cut() => {
            let why = store.stopped().unwrap_or("without a reason");
            Err(Flaw::Misbehaved(format!("the store stopped by itself: {why}")))
        }
        ran => ran,
    }
}
