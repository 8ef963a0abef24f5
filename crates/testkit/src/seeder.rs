//! Fills a store with pending rows and keeps it for later runs.
//!
//! The rows go in through the front door: a session, endpoints, accepts of the real writer in large
//! batches. A store of five million is made once and then copied (a filesystem that can share the
//! blocks does). What is kept lies in the target folder, named by its shape and the schema's hash:
//! a store of another schema is never taken for this one's.

mod mint;

use std::fs::{self, File};
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;

use futures_util::future::{Either, join_all, select};
use futures_util::stream::{self, StreamExt};
use posthaste_core::queue::Place;
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Directory, Outbox, Session, StoreError};

use crate::master_key;
use crate::prove::CannotRun;

pub use mint::{Mint, Target};

/// Messages in one accept, hence in one commit: large enough that the disk's sync is no part of it.
const BATCH: u64 = 4_096;
/// Accepts under way: one is written while the next is made.
const BATCHES: usize = 2;
/// Endpoints written together.
const ENDPOINTS: usize = 512;
/// Progress is told this often.
const TELL_EVERY: u64 = 500_000;

/// What a seeded store looks like: `rows` messages of one delivery each, waiting behind the window
/// of `lanes` lanes, which take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Pending deliveries.
    pub rows: u64,
    /// Lanes they are spread over: numbers 0 and up of [`Target`].
    pub lanes: u64,
}

impl Shape {
    /// The name it is kept under.
    fn name(self) -> String {
        format!("spilled-{}-over-{}", self.rows, self.lanes)
    }
}

/// A store of this shape as a folder of one's own: dropped with what it holds.
///
/// # Errors
/// When the store refuses, or the disk does.
pub fn copy(shape: Shape) -> Result<tempfile::TempDir, CannotRun> {
    let folder = tempfile::Builder::new().prefix("run-").tempdir_in(shelf()?)?;
    copy_into(shape, folder.path())?;
    Ok(folder)
}

/// Copies a store of this shape into a folder that is there and empty.
///
/// # Errors
/// When the store refuses, or the disk does.
pub fn copy_into(shape: Shape, folder: &Path) -> Result<(), CannotRun> {
    let kept = kept(shape)?;
    for file in fs::read_dir(kept)? {
        let file = file?;
        fs::copy(file.path(), folder.join(file.file_name()))?;
    }
    Ok(())
}

/// The kept store of this shape; made if there is none. Never to be opened: it would change.
fn kept(shape: Shape) -> Result<PathBuf, CannotRun> {
    let shelf = shelf()?;
    // One process makes it while the others wait for it.
    let lock = File::create(shelf.join("lock"))?;
    lock.lock()?;
    let mut hasher = DefaultHasher::new();
    (Sqlite::schema(), mint::BODY_BYTES).hash(&mut hasher);
    let kept = shelf.join(format!("{}-{:016x}", shape.name(), hasher.finish()));
    if kept.exists() {
        return Ok(kept);
    }
    forget_others(&shelf, shape)?;
    let begun = shelf.join("begun");
    if begun.exists() {
        fs::remove_dir_all(&begun)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(make(&begun, shape))?;
    fs::rename(&begun, &kept)?;
    Ok(kept)
}

/// Where stores are kept: in cargo's target folder, which nobody backs up and anybody may delete.
///
/// # Errors
/// When it cannot be made.
pub fn shelf() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    let shelf = target.map_or_else(std::env::temp_dir, Path::to_path_buf).join("seeded-stores");
    fs::create_dir_all(&shelf)?;
    Ok(shelf)
}

/// Removes stores of this shape that an older schema left behind.
fn forget_others(shelf: &Path, shape: Shape) -> io::Result<()> {
    let prefix = format!("{}-", shape.name());
    for file in fs::read_dir(shelf)? {
        let file = file?;
        if file.file_name().to_string_lossy().starts_with(&prefix) {
            fs::remove_dir_all(file.path())?;
        }
    }
    Ok(())
}

async fn make(folder: &Path, shape: Shape) -> Result<(), CannotRun> {
    eprintln!("seeding {} rows over {} lanes, kept for later runs", shape.rows, shape.lanes);
    let store = Sqlite::open_folder(folder, master_key())?;
    let session = store.open().await?.session;
    put_endpoints(&store, session, 0..shape.lanes).await?;
    let mint = Mint::new(session, 0..shape.lanes, Place::Spilled);
    fill(&store, session, &mint, shape.rows).await?;
    store.close().await;
    Ok(())
}

/// Makes the endpoints behind these lanes.
///
/// # Errors
/// When the store refuses.
pub async fn put_endpoints(store: &Sqlite, session: Session, lanes: std::ops::Range<u64>) -> Result<(), StoreError> {
    let lanes: Vec<u64> = lanes.collect();
    for some in lanes.chunks(ENDPOINTS) {
        let put = some.iter().map(|lane| store.put_endpoint(session, Target(*lane).endpoint(), None));
        join_all(put).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    }
    Ok(())
}

/// Accepts `rows` messages of this mint; nobody takes in what arrives.
///
/// # Errors
/// When the store refuses.
pub async fn fill(store: &Sqlite, session: Session, mint: &Mint, rows: u64) -> Result<(), StoreError> {
    let batches = (0..rows).step_by(usize::try_from(BATCH).expect("a small number"));
    let accepts = stream::iter(batches).map(|from| async move {
        let messages = (from..rows.min(from + BATCH)).map(|_| mint.message()).collect();
        store.accept(session, messages).await?;
        if (from + BATCH) % TELL_EVERY < BATCH {
            eprintln!("  {} rows", from + BATCH);
        }
        Ok::<(), StoreError>(())
    });
    let mut accepts = accepts.buffered(BATCHES);
    let all = async {
        while let Some(accepted) = accepts.next().await {
            accepted?;
        }
        Ok(())
    };
    while_arrivals_are_dropped(store, all).await
}

/// Waits for `work`, and lets go of whatever arrives: an accept waits for room there.
async fn while_arrivals_are_dropped<T>(
    store: &Sqlite,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let mut work = pin!(work);
    loop {
        let arrivals = pin!(store.arrivals());
        match select(work, arrivals).await {
            Either::Left((done, _)) => return done,
            Either::Right((arrived, still)) => {
                if arrived.is_empty() {
                    return still.await;
                }
                work = still;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_core::queue::{Order, Span};
    use posthaste_core::tier::Tier;
    use posthaste_core::time::Timestamp;
    use posthaste_store::Query;

    #[tokio::test]
    async fn a_seeded_store_has_its_rows_behind_the_windows_of_its_lanes() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let shape = Shape { rows: 10_000, lanes: 3 };
        make(folder.path(), shape).await.expect("it is seeded");
        let store = Sqlite::open_folder(folder.path(), master_key()).expect("it was closed");
        let start = store.open().await.expect("a session");
        assert_eq!(start.spilled.len(), 3);
        let mut rows = 0;
        for (lane, tier) in start.spilled {
            let query = Query::Spilled { lane, tier, order: Order::Fifo, span: Span::ALL };
            rows += store.page(query, 20_000, Timestamp::MAX).await.expect("a page").rows.len();
            assert_eq!(tier, Tier::Promotional);
        }
        assert_eq!(rows, 10_000);
        let lanes = store.lanes((0..3).map(|n| Target(n).lane()).collect()).await.expect("a read");
        assert_eq!(lanes.len(), 3, "every lane has its endpoint");
        store.close().await;
    }
}
