//! The proof `retry-tokens`: rows that an attacker wrote into the database file are never sent (L2).
//!
//! A store is filled and closed. A program that has the file but no key forges rows, moves them, back-dates them and
//! swaps payloads. Then the production driver runs over the store. None of these deliveries may arrive; all of them
//! must be quarantined, journalled and logged; and all other deliveries must arrive, however late they are.
//!
//! The control is the same with the check switched off: the forged rows must be sent.

pub mod forger;
mod world;

use posthaste_core::{Cause, State};
use posthaste_store::journal::JournalEntry;
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Archive, BoundedCount, DeadLetterFilter, DeadLetters};

use crate::fixtures::{SeededTarget, block_on};
use crate::prove::{CannotRun, Figure, Findings, Options};
use world::{Filled, LANES, Run};

#[derive(Clone, Copy)]
struct Size {
    /// Rows of each attack, before its share.
    each: u64,
    /// Rows that are not attacked.
    late: u64,
}

const FULL: Size = Size { each: 500, late: 1_000 };
const QUICK: Size = Size { each: 60, late: 200 };

pub fn run(options: &Options) -> Findings {
    let size = if options.quick { QUICK } else { FULL };
    block_on(async {
        let mut figures = attacked(size).await?;
        figures.push(control(size).await?);
        Ok(figures)
    })
}

async fn attacked(size: Size) -> Findings {
    let filled = Filled::new(size).await?;
    let touched = filled.vandalise()?;
    let run = Run::over(&filled, false, |run| run.rejected >= touched.len() as u64).await?;
    let sent = touched.iter().filter(|id| run.arrived.contains(id)).count();
    let untouched = filled.untouched();
    let missing = untouched.iter().filter(|id| !run.arrived.contains(id)).count();
    let store = Sqlite::open_folder(filled.folder.path(), crate::master_key())?;
    let mut quarantined = 0;
    for id in &touched {
        let found = store.delivery(*id, filled.now).await?;
        let is_so = |state| matches!(state, State::Dead { cause: Cause::TokenRejected, .. });
        quarantined += u64::from(found.is_some_and(|found| is_so(found.delivery.state)));
    }
    let (letters, journalled) = (letters(&store).await?, journalled(&store).await?);
    store.close().await;
    let all = touched.len() as f64;
    eprintln!("{all} touched, {sent} of them sent, {quarantined} quarantined; {missing} others missing");
    Ok(vec![
        Figure::at_least("touched", all, "rows", 4.0 * size.each as f64),
        Figure::at_most("touched_sent", sent as f64, "deliveries", 0.0),
        Figure::at_least("quarantined", quarantined as f64, "deliveries", all),
        Figure::at_least("dead_letters", letters as f64, "letters", all),
        Figure::at_least("journalled", journalled as f64, "entries", all),
        Figure::at_least("told_at_error", run.errors as f64, "lines", all),
        Figure::at_least("counted", run.rejected as f64, "deliveries", all),
        Figure::at_most("untouched_missing", missing as f64, "deliveries", 0.0),
        Figure::at_least("renewed", run.renewed as f64, "rows", size.late as f64),
        Figure::at_most("untouched_rejected", run.rejected as f64 - all, "deliveries", 0.0),
    ])
}

/// The control: without the check, forged rows are sent.
async fn control(size: Size) -> Result<Figure, CannotRun> {
    let filled = Filled::new(size).await?;
    filled.vandalise()?;
    let forged = filled.forged();
    let sent = |run: &Run| forged.iter().filter(|id| run.arrived.contains(id)).count();
    let run = Run::over(&filled, true, |run| sent(run) == forged.len()).await?;
    Ok(Figure::at_least("control_forged_sent", sent(&run) as f64, "deliveries", forged.len() as f64))
}

/// The number of dead letters with the cause `TokenRejected`, of all tenants.
async fn letters(store: &Sqlite) -> Result<u64, CannotRun> {
    let mut tenants: Vec<_> = (0..LANES).map(|lane| SeededTarget(lane).tenant()).collect();
    tenants.sort_unstable();
    tenants.dedup();
    let mut letters = 0;
    for tenant in tenants {
        let filter = DeadLetterFilter { cause: Some(Cause::TokenRejected), ..DeadLetterFilter::of(tenant) };
        let (BoundedCount::Exactly(count) | BoundedCount::AtLeast(count)) = store.count_dead_letters(filter).await?;
        letters += count;
    }
    Ok(letters)
}

/// The number of ends with the cause `TokenRejected` in the journal.
async fn journalled(store: &Sqlite) -> Result<u64, CannotRun> {
    let (mut after, mut ends) = (0, 0);
    loop {
        let rows = store.journal(after, 100).await?;
        let Some(last) = rows.last() else { return Ok(ends) };
        after = last.number;
        for row in &rows {
            for entry in row.entries() {
                let is_so = |state| matches!(state, State::Dead { cause: Cause::TokenRejected, .. });
                ends += u64::from(matches!(entry?, JournalEntry::Ended { state, .. } if is_so(state)));
            }
        }
    }
}
