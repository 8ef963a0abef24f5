//! The proof `erasure`: the data of an erased subject cannot be recovered, even with the files, the master key and a
//! record of the ciphertexts that the files had before (L5).
//!
//! The subjects have messages that are pending, delivered, dead, replayed, or kept for their dead letters; receivers
//! quote the payload in their refusals. A running engine erases half of the subjects while messages about the others go
//! on. Then a separate process ([`digger`]) searches the files for the recorded ciphertexts and wrapped keys. It also
//! searches an older copy of the data to which the list of erasures was applied.
//!
//! The control is the same without `secure_delete`: the digger must find something.

pub mod digger;
mod world;

use std::fs;
use std::path::Path;
use std::time::Duration;

use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::sqlite::audit::{Trust, verify};
use posthaste_store::{Archive, Outbox};

use crate::fixtures::{copied, runtime};
use crate::master_key;
use crate::prove::{CannotRun, Figure, Findings, Options};
use digger::dig;
use world::{ErasedBefore, ErasureWorld, People};

const FULL: usize = 100;
const QUICK: usize = 12;
/// The files of a data folder that have no data: the reserve and the lock.
const NO_DATA: &[&str] = &["reserve", "lock"];
/// People to erase in the control.
const FEW: usize = 6;

pub fn run(options: &Options) -> Findings {
    let people = if options.quick { QUICK } else { FULL };
    runtime()?.block_on(async {
        let mut figures = Box::pin(erased(people)).await?;
        figures.push(Box::pin(control()).await?);
        Ok(figures)
    })
}

async fn erased(count: usize) -> Findings {
    let home = tempfile::tempdir_in(crate::fixtures::seeder::shelf()?)?;
    let data = home.path().join("data");
    let people = People::new(count);
    let filled = ErasureWorld::fill(&data, people, false).await?;
    let older = copied(&data, &home.path().join("older"), |name| NO_DATA.contains(&name))?;
    let ErasedBefore { values: recorded, quoted } = filled.record(&data)?;
    let canaries = filled.people.canaries();
    let (before, _) = dig("search-erased", &[&data], &recorded)?;
    let gone = filled.erase(&data, &home.path().join("running")).await?;
    let running = home.path().join("running");
    let (left_running, _) = dig("search-erased", &[&running], &recorded)?;
    let (left, searched) = dig("search-erased", &[&data], &recorded)?;
    let (in_clear, _) = dig("search-erased", &[&data, &running], &canaries)?;
    let copy = copied(&data, &home.path().join("opened"), |name| NO_DATA.contains(&name))?;
    let (found, opened) = dig("open-erased", &[&copy], &canaries)?;
    let findings = verify(&data, &Trust::without_checkpoints(SystemClock::new().now()), |_| {})?.report.found;
    let list = fs::read_to_string(data.join("erasures"))?;
    let (readable, missing) = apply_again(&older, &list, &gone.people).await?;
    let (left_older, _) = dig("search-erased", &[&older], &recorded)?;
    eprintln!("erased in {:?}", gone.took);
    Ok(vec![
        Figure::at_least("erased_subjects", gone.subjects as f64, "subjects", count as f64),
        Figure::at_least("recorded", recorded.len() as f64, "values", 10.0 * count as f64),
        // At least two answers quote each of them: one of a refused message, and one of ten days ago.
        Figure::at_least("recorded_answers", quoted as f64, "values", 2.0 * count as f64),
        Figure::at_least("found_before", before as f64, "windows", 1_000.0 * count as f64),
        Figure::at_least("searched", searched as f64 / 1e6, "MB", 0.1),
        Figure::at_most("left_while_running", left_running as f64, "windows", 0.0),
        Figure::at_most("left_after_a_stop", left as f64, "windows", 0.0),
        Figure::at_most("canaries_in_the_clear", in_clear as f64, "windows", 0.0),
        Figure::at_least("rows_opened", opened as f64, "texts", count as f64),
        Figure::at_most("canaries_in_rows", found as f64, "texts", 0.0),
        Figure::at_most("sent_after_the_answer", gone.sent_after as f64, "beyond in_flight", 0.0),
        Figure::at_most("others_missing", gone.others_missing as f64, "messages", 0.0),
        Figure::at_most("audit_findings", findings as f64, "findings", 0.0),
        Figure::at_most("older_copy_left", left_older as f64, "windows", 0.0),
        Figure::at_most("older_copy_readable", readable as f64, "messages", 0.0),
        Figure::at_most("older_copy_others_missing", missing as f64, "messages", 0.0),
    ])
}

/// The control: without `secure_delete` something is left.
async fn control() -> Result<Figure, CannotRun> {
    let home = tempfile::tempdir_in(crate::fixtures::seeder::shelf()?)?;
    let data = home.path().join("data");
    let filled = ErasureWorld::fill(&data, People::new(FEW), true).await?;
    let recorded = filled.record(&data)?.values;
    filled.erase(&data, &home.path().join("running")).await?;
    let (left, _) = dig("search-erased", &[&data], &recorded)?;
    Ok(Figure::at_least("control_without_secure_delete", left as f64, "windows", 1.0))
}

/// Applies the list of erasures to an older copy. Returns how many messages about erased people can be read then, and
/// how many messages about others cannot.
async fn apply_again(older: &Path, list: &str, people: &People) -> Result<(u64, u64), CannotRun> {
    let store = Sqlite::open_folder(older, master_key())?;
    let now = SystemClock::new().now();
    let session = store.open(now).await?.session;
    let again = store.erase_again(session, list, now + Duration::from_secs(1)).await?;
    eprintln!("the list, applied to the older copy: {again:?}");
    let (mut readable, mut missing) = (0, 0);
    for person in people.all() {
        for id in &person.first {
            let is_there = store.message(*id).await?.is_some();
            readable += u64::from(is_there && person.is_erased);
            missing += u64::from(!is_there && !person.is_erased);
        }
    }
    store.close().await;
    Ok((readable, missing))
}
