//! The proof `store-faults`: the k-th write or sync of a real store fails, with EIO or ENOSPC, once or from then on.
//!
//! A failed sync or a write that fails with EIO stops the store: it acknowledges nothing more and reports the reason. A
//! write that fails with ENOSPC does not stop it: new work is refused, attempts that were made are still settled, and
//! accepting resumes by itself when there is room. Either way the next start finds everything that was acknowledged. A
//! power cut after that start must not change this, although the kernel, after a failed sync, takes the bytes that it
//! could not write as durable.
//!
//! Negative control: a disk that reports success for syncs that failed. The loss must be detected.

use std::time::Duration;

use posthaste_store::sqlite::Sqlite;
use posthaste_testkit::prove::{Figure, Findings, Options, count};
use tokio::time::{sleep, timeout};

use crate::crowd::{self, CrowdTally, Flaw, bounds, judge, new_folder};
use crate::disk::{DiskCall, DiskFault, FaultKind, FaultyDisk};
use crate::load::{StoreHealth, StoreLoad};

const K_MAX: u64 = 200;

/// How many writes fail with ENOSPC before there is room again.
const FULL_TIMES: u64 = 6;

/// How long a store may take to go on or to stop.
const WITHIN: Duration = Duration::from_secs(30);

pub(crate) fn run(options: &Options) -> Findings {
    // The first calls belong to a store's first start, where every call does something else: a quick run keeps them
    // all.
    let among = |k: &u64| !options.quick || *k <= 10 || k.is_multiple_of(8);
    let cases: Vec<_> = (1..=K_MAX).filter(among).flat_map(faults).collect();
    let all = 0..cases.len() as u64;
    let case = |n: u64| cases[usize::try_from(n).expect("a place in a list")];
    let found = crowd::run("store-faults", all, |n| life(n, case(n)))?;
    eprintln!("store-faults: {found}");
    let silent = 0..if options.quick { 20 } else { 100 };
    let silent_fault = |n| DiskFault { call: DiskCall::Sync, kind: FaultKind::Silent, at: 1 + n, times: u64::MAX };
    let control = crowd::run("the control", silent, |n| life(n, silent_fault(n)))?;
    eprintln!("the control, a disk that hides failed syncs: {control}");
    let caught = count(control.lost + control.damaged);
    Ok(vec![
        Figure::at_least("faults", count(found.seeds), "cases", count(cases.len() as u64)),
        Figure::at_least("struck", count(found.struck), "failed calls", count(cases.len() as u64)),
        Figure::at_most("acknowledged_lost", count(found.lost), "cases", 0.0),
        Figure::at_most("corrupt", count(found.damaged), "cases", 0.0),
        Figure::at_most("misbehaved", count(found.misbehaved), "cases that did not stop or go on", 0.0),
        Figure::at_least("control_caught", caught, "cases of a disk that hides failed syncs", 1.0),
    ])
}

/// Every way in which the k-th call may fail.
fn faults(k: u64) -> impl Iterator<Item = DiskFault> {
    let calls = [DiskCall::Write, DiskCall::Sync];
    let kinds = [FaultKind::Broken, FaultKind::Full];
    let pairs = calls.into_iter().flat_map(move |call| kinds.into_iter().map(move |kind| (call, kind)));
    pairs.flat_map(move |(call, kind)| {
        // Space can be freed, so a full disk recovers after some time; a broken one does not.
        let lasting = if (call, kind) == (DiskCall::Write, FaultKind::Full) { FULL_TIMES } else { u64::MAX };
        [1, lasting].into_iter().map(move |times| DiskFault { call, kind, at: k, times })
    })
}

/// The life of one store: it meets a fault, starts again on a healed disk, and loses power.
fn life(seed: u64, fault: DiskFault) -> Result<CrowdTally, Flaw> {
    let mut dice = fastrand::Rng::with_seed(seed ^ 0xfa17);
    let mut load = StoreLoad::new(seed);
    let folder = new_folder();
    let disk = FaultyDisk::of(folder.path(), dice.u64(..)).expect("the folder is there");
    let goes_on = fault.kind == FaultKind::Silent || (fault.call, fault.kind) == (DiskCall::Write, FaultKind::Full);

    // Half of the stores meet the fault during their first start.
    let at_the_start = dice.bool();
    if at_the_start {
        disk.fail(fault);
    }
    match crowd::open(folder.path(), bounds(&mut dice)) {
        Ok(store) => {
            let met = meet(&store, &disk, &mut load, (!at_the_start).then_some(fault), goes_on);
            crowd::block_on(met)?;
        }
        Err(_) if disk.struck() > 0 => {}
        Err(flaw) => return Err(flaw),
    }
    let struck = disk.struck();

    // The next start, on a healed disk; then a power cut.
    disk.heal();
    disk.restart().expect("the store's files are there");
    let store = crowd::open(folder.path(), bounds(&mut dice))?;
    crowd::block_on(async {
        if !load.begin(&store).await? {
            return Err(Flaw::Misbehaved("no session can begin after the fault".to_owned()));
        }
        load.verify(&store).await?;
        for _ in 0..dice.u8(..6) {
            load.round(&store).await?;
        }
        Ok(())
    })?;
    disk.cut();
    drop(store);
    let left = new_folder();
    disk.restore_into(left.path()).expect("the real disk has room");
    judge(left.path(), &mut load)?;
    Ok(CrowdTally { struck, cuts: 1, acknowledged: load.acknowledged(), ..CrowdTally::default() })
}

/// Puts load on the store until the fault has occurred, and checks that the store stops or goes on as it must.
async fn meet(
    store: &Sqlite,
    disk: &FaultyDisk,
    load: &mut StoreLoad,
    fault: Option<DiskFault>,
    goes_on: bool,
) -> Result<(), Flaw> {
    if !load.begin(store).await? {
        return stopped(store, goes_on);
    }
    if let Some(fault) = fault {
        load.round(store).await?;
        disk.fail(fault);
    }
    let met = timeout(WITHIN, async {
        while disk.struck() == 0 {
            if load.round(store).await? == StoreHealth::Stopped {
                break;
            }
        }
        if goes_on {
            resume(store, load).await
        } else {
            while load.round(store).await? != StoreHealth::Stopped {}
            stopped(store, goes_on)
        }
    });
    met.await.unwrap_or_else(|_| Err(Flaw::Misbehaved("the store neither stopped nor went on".to_owned())))
}

/// Runs rounds until the store has accepted everything in five of them.
async fn resume(store: &Sqlite, load: &mut StoreLoad) -> Result<(), Flaw> {
    let mut well = 0;
    while well < 5 {
        match load.round(store).await? {
            StoreHealth::Well => well += 1,
            StoreHealth::Full => sleep(Duration::from_millis(2)).await,
            StoreHealth::Stopped => return stopped(store, true),
        }
    }
    Ok(())
}

fn stopped(store: &Sqlite, goes_on: bool) -> Result<(), Flaw> {
    match store.stopped() {
        Some(why) if goes_on => Err(Flaw::Misbehaved(format!("the store stopped: {why}"))),
        Some(_) => Ok(()),
        None if goes_on => Ok(()),
        None => Err(Flaw::Misbehaved("the store stopped without a reason".to_owned())),
    }
}
