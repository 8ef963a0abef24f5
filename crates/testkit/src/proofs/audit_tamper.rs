//! The proof `audit-tamper`: an attacker with the database file and an old checkpoint, but without the store's key,
//! cannot change the past undetected by an audit.
//!
//! The attacker is a separate process. Each attack gets a fresh copy of one small store; the verifier has the
//! file and one checkpoint that was exported half-way through its history. Copies that were not tampered with, but on
//! which retention or an erasure has run, must not raise an alarm.
//!
//! The controls: a verifier that checks rows and tables but neither links nor checkpoints, and a verifier without a
//! checkpoint, must each miss at least one attack.

pub(super) mod attacker;
mod world;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use posthaste_core::Timestamp;
use posthaste_store::audit::{AuditReport, Finding};
use posthaste_store::sqlite::audit::{Trust, verify};
use posthaste_store::{Erase, ErasureTarget, Erasures, RetentionOverrides};

use crate::fixtures::{block_on, part};
use crate::prove::{CannotRun, Context, Figure, Findings, Options, count};
use world::AuditWorld;

const FULL: u64 = 2_000;
const QUICK: u64 = 200;

/// Days after which retention runs on untouched copies: before and after each of its limits.
const DAYS: &[u64] = &[1, 8, 29, 31, 32, 45, 200, 399, 400, 401, 500, 800];

pub fn run(options: &Options) -> Findings {
    let tampers = if options.quick { QUICK } else { FULL };
    let first = options.first.unwrap_or(0);
    let world = block_on(AuditWorld::make())?;
    let mut tally = Tally::default();
    tally.untouched(&audit(world.folder.path(), &world.trust(world.ended()))?, "as it was made");
    for seed in first..first + tampers {
        tally.tampered(&world, seed)?;
    }
    for day in DAYS {
        for own in [Vec::new(), world::own_retention()] {
            let tenants = own.len();
            for (report, when) in block_on(retained(&world, *day, RetentionOverrides::all(own)))? {
                let how = format!("after retention on day {day}, by times of {tenants} tenants' own, {when}");
                tally.untouched(&report, &how);
            }
        }
    }
    for (report, when) in block_on(during_erasures(&world))? {
        tally.untouched(&report, &format!("during an erasure, {when}"));
    }
    eprintln!("{} audits of untouched copies; seen, by what was done: {:#?}", tally.untouched, tally.seen);
    Ok(vec![
        Figure::at_least("tampers", count(tally.tampers), "changes", count(tampers)),
        Figure::at_most("unseen", count(tally.unseen), "changes", 0.0),
        Figure::at_least("untouched", count(tally.untouched), "audits", count(2 * DAYS.len() as u64)),
        Figure::at_most("false_alarms", count(tally.false_alarms), "audits", 0.0),
        Figure::at_least("control_without_links_missed", count(tally.missed_without_links), "changes", 1.0),
        Figure::at_least("control_without_checkpoint_missed", count(tally.missed_without_checkpoint), "changes", 1.0),
    ])
}

#[derive(Default)]
struct Tally {
    tampers: u64,
    unseen: u64,
    seen: BTreeMap<String, u64>,
    untouched: u64,
    false_alarms: u64,
    missed_without_links: u64,
    missed_without_checkpoint: u64,
}

impl Tally {
    fn tampered(&mut self, world: &AuditWorld, seed: u64) -> Result<(), CannotRun> {
        let copy = world.copy()?;
        let what = tamper(copy.path(), &world.exported, seed)?;
        let report = audit(copy.path(), &world.trust(world.ended()))?;
        self.tampers += 1;
        if report.is_clean() {
            self.unseen += 1;
            eprintln!("UNSEEN: {what} (seed {seed})");
        } else {
            *self.seen.entry(what.clone()).or_default() += 1;
        }
        if !report.findings.iter().any(is_of_rows_or_tables) {
            self.missed_without_links += 1;
        }
        if what == attacker::SIGNED_ANEW && audit(copy.path(), &Trust::without_checkpoints(world.ended()))?.is_clean() {
            self.missed_without_checkpoint += 1;
        }
        Ok(())
    }

    fn untouched(&mut self, report: &AuditReport, which: &str) {
        self.untouched += 1;
        if !report.is_clean() {
            self.false_alarms += 1;
            eprintln!("FALSE ALARM {which}: {:?}", report.findings);
        }
    }
}

/// Whether a verifier would make this finding that checks each row alone and compares it with the tables.
fn is_of_rows_or_tables(finding: &Finding) -> bool {
    matches!(
        finding,
        Finding::Changed { .. }
            | Finding::Unreadable { .. }
            | Finding::Outcome { .. }
            | Finding::OutcomesMissing { .. }
            | Finding::OutcomesAdded { .. }
            | Finding::AttemptsAdded { .. }
    )
}

fn audit(folder: &Path, trust: &Trust) -> Result<AuditReport, CannotRun> {
    Ok(verify(folder, trust, |_| {})?.report)
}

/// Runs the attacker on a copy. Returns the attack's description.
fn tamper(folder: &Path, checkpoint: &str, seed: u64) -> Result<String, CannotRun> {
    let output = part::run("tamper", [folder.as_os_str(), checkpoint.as_ref(), seed.to_string().as_ref()], "")?;
    Ok(output.trim().to_owned())
}

/// Audits of a copy on which retention has run: before a checkpoint is signed for that, after, and once it is closed.
async fn retained(
    world: &AuditWorld,
    day: u64,
    agreed: RetentionOverrides,
) -> Result<Vec<(AuditReport, &'static str)>, CannotRun> {
    let copy = world.copy()?;
    let now = world.ended() + Duration::from_secs(day * 24 * 60 * 60);
    let retention = world::Retain::begin(copy.path(), now, agreed).await?;
    let mut reports = vec![(audit(copy.path(), &world.trust(now))?, "before it is signed for")];
    retention.sign().await?;
    reports.push((audit(copy.path(), &world.trust(now))?, "signed for"));
    retention.end().await;
    let later = Timestamp::from_millis(now.as_millis() + 1);
    reports.push((audit(copy.path(), &world.trust(later))?, "stopped"));
    Ok(reports)
}

/// Audits of a copy on which a subject and then its tenant are erased: one after each step.
async fn during_erasures(world: &AuditWorld) -> Result<Vec<(AuditReport, String)>, CannotRun> {
    let copy = world.copy()?;
    let now = world.ended() + Duration::from_secs(60);
    let mut reports = Vec::new();
    for whom in [world::subject(), ErasureTarget::Tenant] {
        let (store, session) = world::open(copy.path(), now).await?;
        let erasure =
            store.erase(session, Erase { tenant: world::TENANT, whom: whom.clone(), at: now, by: None }).await?;
        reports.push((audit(copy.path(), &world.trust(now))?, format!("{whom:?}, announced")));
        loop {
            let step = store.erase_step(session, erasure.number, now, Vec::new()).await?;
            reports.push((audit(copy.path(), &world.trust(now))?, format!("{whom:?}, {step:?}")));
            let step = step.context("the store does not know the erasure")?;
            if step.erasure.done.is_some() {
                if step.erasure.deliveries == 0 {
                    return Err(CannotRun(format!("nothing was erased: {step:?}")));
                }
                break;
            }
        }
        store.close().await;
        reports.push((audit(copy.path(), &world.trust(now))?, format!("{whom:?}, stopped")));
    }
    Ok(reports)
}
