//! Measures the size of the file after retention. Four fifths of an aged store are past their retention; a retention
//! run deletes them and gives their space back. The file is compared with that of a fresh store with the other rows
//! alone.

use std::fs;
use std::path::Path;
use std::time::Duration;

use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Archive, Outbox, Retention, RetentionStep, Session};
use tokio::time::Instant;

use crate::fixtures::seeder::{self, SeedShape, YOUNG, put_endpoints};
use crate::master_key;
use crate::prove::CannotRun;

/// The size of the file after retention, as a multiple of that of a fresh store with the same rows.
pub(super) async fn to_fresh(shape: SeedShape) -> Result<f64, CannotRun> {
    let folder = tokio::task::block_in_place(|| seeder::copy(shape))?;
    let store = Sqlite::open_folder(folder.path(), master_key())?;
    let session = store.open(YOUNG).await?.session;
    let (began, full) = (Instant::now(), bytes(folder.path(), "posthaste.db")?);
    let (steps, longest) = retain(&store, session).await?;
    let (took, log) = (began.elapsed(), bytes(folder.path(), "posthaste.db-wal")?);
    store.close().await;
    let left = bytes(folder.path(), "posthaste.db")? + bytes(folder.path(), "posthaste.db-wal")?;
    drop(folder);
    let fresh = fresh(shape).await?;
    eprintln!(
        "retention: of {} MiB {} left, after {steps} steps in {:.0} s, the longest {:.0} ms, the log then {} MiB; a \
         fresh store has {} MiB",
        full >> 20,
        left >> 20,
        took.as_secs_f64(),
        longest.as_secs_f64() * 1e3,
        log >> 20,
        fresh >> 20
    );
    Ok(left as f64 / fresh as f64)
}

/// Makes a complete retention run, one hour after the last accept. Returns its number of steps, and the time of the
/// longest.
async fn retain(store: &Sqlite, session: Session) -> Result<(u64, Duration), CannotRun> {
    let now = YOUNG + Duration::from_secs(3_600);
    let mut next = Some(RetentionStep::START);
    let (mut steps, mut longest) = (0, Duration::ZERO);
    while let Some(step) = next {
        let began = Instant::now();
        next = store.retain(session, Retention::default(), now, step, Vec::new()).await?.next;
        longest = longest.max(began.elapsed());
        steps += 1;
    }
    Ok((steps, longest))
}

/// The size of a fresh store's file with the young rows alone, in bytes.
async fn fresh(shape: SeedShape) -> Result<u64, CannotRun> {
    let folder = tempfile::Builder::new().prefix("run-").tempdir_in(seeder::shelf()?)?;
    let store = Sqlite::open_folder(folder.path(), master_key())?;
    let session = store.open(YOUNG).await?.session;
    put_endpoints(&store, session, shape.targets()).await?;
    seeder::age(&store, session, &shape.mint(session), shape.young()).await?;
    store.close().await;
    bytes(folder.path(), "posthaste.db")
}

fn bytes(folder: &Path, file: &str) -> Result<u64, CannotRun> {
    match fs::metadata(folder.join(file)) {
        Ok(file) => Ok(file.len()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error.into()),
    }
}
