//! Makes stores with many pending rows, and caches them for later runs.
//!
//! The rows are written through the store's own interface: a session, endpoints, accepts in large batches. A store of
//! five million rows is made once and then copied; a file system that can share blocks makes that cheap. The cache is
//! in cargo's target folder. Its entries are named by shape and schema hash, so that a store of another schema is
//! never used.

mod mint;

use std::fs::{self, File};
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::pin::pin;

use bytes::Bytes;
use futures_util::future::{Either, join_all, select};
use futures_util::stream::{self, StreamExt};
use posthaste_core::scheduler::RowIndex;
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{
    Act, Chunked, Directory, Document, DocumentKind, Endpoint, EndpointPut, Filed, Jobs, Outbox, Register, Session,
    StoreError,
};

use crate::master_key;
use crate::prove::CannotRun;

pub use mint::{CROWD, CROWD_EVENTS, Mint, THEN, Target, YOUNG, campaign};

/// Messages in one accept, and so in one commit: enough to make the cost of the sync negligible.
const BATCH: u64 = 4_096;
/// Accepts under way at once: one is written while the next is made.
const BATCHES: usize = 2;
/// Endpoints written at once.
const ENDPOINTS: usize = 512;
/// Rows between two lines of progress.
const REPORT_EVERY: u64 = 500_000;

/// The content of a seeded store: spilled rows of lanes in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How many deliveries it has.
    pub rows: u64,
    /// How many lanes they are spread over.
    pub lanes: u64,
    /// The kind of messages they belong to.
    pub of: Of,
}

/// The kind of messages that the rows of a seeded store belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// Each delivery has a message of its own. The lanes are the [`Target`]s from 0 on.
    Messages,
    /// All deliveries are of one message, whose fan-out made them chunk by chunk and is still under way. The lanes are
    /// [`Target`]s of its tenant alone.
    OneMessage,
    /// No deliveries at all: each lane is one of [`Target::addressed`], all of the tenant [`CROWD`].
    Endpoints,
    /// As [`Of::Messages`], but most deliveries have ended: the old ones are delivered, and every second [`YOUNG`] one
    /// is dead.
    Aged,
}

impl Shape {
    /// The numbers of its [`Target`]s.
    pub fn targets(self) -> impl Iterator<Item = u64> {
        let step = match self.of {
            Of::Messages | Of::Aged => 1,
            Of::OneMessage | Of::Endpoints => mint::TENANTS,
        };
        (0..self.lanes).map(move |lane| lane * step)
    }

    /// The mint that makes its rows, for the session that fills the store.
    pub fn mint(self, session: Session) -> Mint {
        Mint::new(session, self.targets(), RowIndex::Spilled).with_young(self.young().start)
    }

    /// The numbers of its [`YOUNG`] messages: the last fifth.
    pub fn young(self) -> Range<u64> {
        1 + self.rows - self.rows / 5..self.rows + 1
    }

    /// The name of its folder in the cache, without the hash.
    fn name(self) -> String {
        let of = match self.of {
            Of::Messages => "spilled",
            Of::OneMessage => "of-one",
            Of::Endpoints => "addressed",
            Of::Aged => "aged",
        };
        format!("{of}-{}-over-{}", self.rows, self.lanes)
    }
}

/// Copies a store of this shape into a temporary folder.
///
/// # Errors
/// If the store cannot be made or copied.
pub fn copy(shape: Shape) -> Result<tempfile::TempDir, CannotRun> {
    let folder = tempfile::Builder::new().prefix("run-").tempdir_in(shelf()?)?;
    copy_into(shape, folder.path())?;
    Ok(folder)
}

/// Copies a store of this shape into a folder that exists and is empty.
///
/// # Errors
/// If the store cannot be made or copied.
pub fn copy_into(shape: Shape, folder: &Path) -> Result<(), CannotRun> {
    let kept = kept(shape)?;
    for file in fs::read_dir(kept)? {
        let file = file?;
        let copy = folder.join(file.file_name());
        fs::copy(file.path(), &copy)?;
        // Otherwise the disk would still be writing it during a measurement.
        File::open(copy)?.sync_all()?;
    }
    Ok(())
}

/// The folder of the cached store of this shape, made if there is none. It must not be opened: that would change it.
fn kept(shape: Shape) -> Result<PathBuf, CannotRun> {
    let shelf = shelf()?;
    // One process makes it while the others wait.
    let lock = File::create(shelf.join("lock"))?;
    lock.lock()?;
    let mut hasher = DefaultHasher::new();
    (Sqlite::schema(), mint::BODY_BYTES, THEN.as_millis()).hash(&mut hasher);
    let kept = shelf.join(format!("{}-{:016x}", shape.name(), hasher.finish()));
    if kept.exists() {
        return Ok(kept);
    }
    remove_outdated(&shelf, shape)?;
    let begun = shelf.join("begun");
    if begun.exists() {
        fs::remove_dir_all(&begun)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(make(&begun, shape))?;
    fs::rename(&begun, &kept)?;
    Ok(kept)
}

/// Changes the URL of every endpoint of a store of this shape.
///
/// # Errors
/// If the store refuses a change.
pub async fn send_to(folder: &Path, shape: Shape, url: &str) -> Result<(), CannotRun> {
    let store = Sqlite::open_folder(folder, master_key())?;
    let session = store.open(THEN).await?.session;
    for lane in shape.targets() {
        // The first change after the endpoint was made: any other version would be refused as stale.
        let target = Target(lane);
        let endpoint = Endpoint { version: 1, target: target.target(url.to_owned()), ..target.endpoint() };
        match store.put_endpoint(session, endpoint, None, Act::at(THEN)).await? {
            EndpointPut::Done => {}
            refused => return Err(CannotRun(format!("endpoint {lane} was not changed: {refused:?}"))),
        }
    }
    store.close().await;
    Ok(())
}

/// The folder of cached stores, in cargo's target folder, where it may be deleted at any time.
///
/// # Errors
/// If the folder cannot be made.
pub fn shelf() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    let shelf = target.map_or_else(std::env::temp_dir, Path::to_path_buf).join("seeded-stores");
    fs::create_dir_all(&shelf)?;
    Ok(shelf)
}

/// Removes stores of this shape that an older schema left behind.
fn remove_outdated(shelf: &Path, shape: Shape) -> io::Result<()> {
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
    let session = store.open(THEN).await?.session;
    if shape.of != Of::Endpoints {
        put_endpoints(&store, session, shape.targets()).await?;
    }
    let mint = shape.mint(session);
    match shape.of {
        Of::Endpoints => put_crowd(&store, session, shape).await?,
        Of::Messages => fill(&store, session, &mint, shape.rows).await?,
        Of::OneMessage => fan_out(&store, session, &mint, shape.rows).await?,
        Of::Aged => {
            age(&store, session, &mint, 1..shape.young().start).await?;
            age(&store, session, &mint, shape.young()).await?;
        }
    }
    // No producer is this fast: a measurement must not begin with a journal follower that is millions of entries
    // behind.
    store.catch_up().await?;
    store.close().await;
    Ok(())
}

/// Accepts the messages of these numbers, and settles those of them that have ended.
///
/// # Errors
/// If the store refuses.
pub async fn age(store: &Sqlite, session: Session, mint: &Mint, numbers: Range<u64>) -> Result<(), StoreError> {
    fill_some(store, session, mint, numbers.clone()).await?;
    in_batches(numbers, |batch| async move {
        let ended = batch.filter_map(|number| mint.ended(number));
        store.settle(session, ended.collect()).await.map(drop)
    })
    .await?;
    store.catch_up().await
}

/// Accepts one message, and makes its deliveries as its fan-out job would.
async fn fan_out(store: &Sqlite, session: Session, mint: &Mint, rows: u64) -> Result<(), StoreError> {
    let campaign = mint.campaign();
    store.accept(session, vec![campaign.clone()]).await?;
    let all = async {
        for n in 0..rows.div_ceil(mint::CHUNK) {
            let made = n * mint::CHUNK;
            let chunk = mint.chunk(&campaign, n, mint::CHUNK.min(rows - made));
            assert_ne!(store.spread(session, chunk).await?, Chunked::Stale, "no other process advances the job");
            if made.is_multiple_of(REPORT_EVERY) && made > 0 {
                eprintln!("  {made} rows");
            }
        }
        Ok(())
    };
    while_arrivals_are_dropped(store, all).await
}

/// Stores the endpoints of these lanes.
///
/// # Errors
/// If the store refuses.
pub async fn put_endpoints(
    store: &Sqlite,
    session: Session,
    lanes: impl IntoIterator<Item = u64>,
) -> Result<(), StoreError> {
    put(store, session, lanes.into_iter().map(|lane| Target(lane).endpoint()).collect()).await
}

/// Stores a tenant and its endpoints, each with a subject and a tag of its own.
async fn put_crowd(store: &Sqlite, session: Session, shape: Shape) -> Result<(), CannotRun> {
    let tenant = Target(0).tenant();
    let document = Document {
        kind: DocumentKind::Tenant,
        id: tenant.0,
        tenant,
        name: Some(CROWD.to_owned()),
        at: THEN,
        body: Bytes::from_static(b"{}"),
    };
    if store.file(session, document, None, Act::at(THEN)).await? != Filed::Done {
        return Err(CannotRun("the tenant was not made".to_owned()));
    }
    let put = |lane| store.put_endpoint(session, Target(lane).addressed(), None, Act::at(THEN));
    let mut under_way = stream::iter(shape.targets().map(put)).buffer_unordered(2 * ENDPOINTS);
    let mut done = 0;
    while let Some(put) = under_way.next().await {
        if put? != EndpointPut::Done {
            return Err(CannotRun("an endpoint was not made".to_owned()));
        }
        done += 1;
        if done % REPORT_EVERY == 0 {
            eprintln!("  {done} endpoints");
        }
    }
    Ok(())
}

async fn put(store: &Sqlite, session: Session, endpoints: Vec<Endpoint>) -> Result<(), StoreError> {
    for some in endpoints.chunks(ENDPOINTS) {
        let put = some.iter().map(|endpoint| store.put_endpoint(session, endpoint.clone(), None, Act::at(THEN)));
        join_all(put).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    }
    Ok(())
}

/// Accepts `rows` messages of this mint, and drops their arrivals.
///
/// # Errors
/// If the store refuses.
pub async fn fill(store: &Sqlite, session: Session, mint: &Mint, rows: u64) -> Result<(), StoreError> {
    fill_some(store, session, mint, 1..rows + 1).await
}

/// Accepts the messages of these numbers, and drops their arrivals.
///
/// # Errors
/// If the store refuses.
pub async fn fill_some(store: &Sqlite, session: Session, mint: &Mint, numbers: Range<u64>) -> Result<(), StoreError> {
    let all = in_batches(numbers, |batch| async move {
        store.accept(session, batch.map(|number| mint.numbered(number)).collect()).await.map(drop)
    });
    while_arrivals_are_dropped(store, all).await
}

/// Calls `each` with these numbers in large batches, two at a time.
///
/// # Errors
/// The first error of a batch.
pub async fn in_batches<F: Future<Output = Result<(), StoreError>>>(
    numbers: Range<u64>,
    each: impl Fn(Range<u64>) -> F,
) -> Result<(), StoreError> {
    let end = numbers.end;
    let batches = numbers.step_by(usize::try_from(BATCH).expect("a small number"));
    let mut under_way = stream::iter(batches).map(|from| each(from..end.min(from + BATCH))).buffered(BATCHES);
    let mut done = 0;
    while let Some(ended) = under_way.next().await {
        ended?;
        done += BATCH;
        if done % REPORT_EVERY < BATCH {
            eprintln!("  {done} rows");
        }
    }
    Ok(())
}

/// Waits for `work` and drops arrivals meanwhile: an accept waits while the store's queue of arrivals is full.
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
    use posthaste_core::scheduler::{IdRange, Order};
    use posthaste_core::tier::Tier;
    use posthaste_core::time::Timestamp;
    use posthaste_store::{JobQuery, Query};

    #[tokio::test]
    async fn seeded_store_has_all_rows_spilled_in_its_lanes() {
        for of in [Of::Messages, Of::OneMessage] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let shape = Shape { rows: 9_500, lanes: 3, of };
            make(folder.path(), shape).await.expect("it is seeded");
            let store = Sqlite::open_folder(folder.path(), master_key()).expect("it was closed");
            let start = store.open(THEN).await.expect("a session");
            assert_eq!(start.spilled.len(), 3);
            let mut rows = 0;
            for (lane, tier) in start.spilled {
                let query = Query::Spilled { lane, tier, order: Order::Fifo, span: IdRange::ALL };
                rows += store.page(query, 20_000, Timestamp::MAX).await.expect("a page").rows.len();
                assert_eq!(tier, Tier::Promotional);
            }
            assert_eq!(rows, 9_500);
            let lanes = shape.targets().map(|n| Target(n).lane()).collect();
            assert_eq!(store.lanes(lanes).await.expect("a read").len(), 3, "every lane has its endpoint");
            let jobs = store.jobs(JobQuery::Running, None, 10).await.expect("a read");
            let made: Vec<u64> = jobs.iter().map(|job| job.made).collect();
            assert_eq!(made, if of == Of::OneMessage { vec![9_500] } else { Vec::new() });
            store.close().await;
        }
    }
}
