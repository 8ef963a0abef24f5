//! The default store: one SQLite file.
//!
//! No async runtime thread touches the file: a call is prepared in the caller's task, sent to one of the store's
//! threads, and answered by one. The modules:
//!
//! - **Threads.** `writer` takes requests (`request`) and runs a group of them in one transaction (`group`);
//!   `answers` replies to the callers after the commit, and hands accepted deliveries to the dispatch loop
//!   (`arrivals`); `log` copies the write-ahead log into the database; `follower` updates the tables derived from the
//!   journal; `reader` runs reads; the sealer of `seals` encrypts batches. Each is a `thread`.
//! - **Writes.** `accept` (`idempotency`), `settle` (`excerpt`), `cut` and its `sweep`, `pause`,
//!   `breaker`, `endpoint`, `document`, `dead_letter`, `job` and `replay`, `retention`, `erasure` (`erasures_file`,
//!   `scrub`), and with each commit the `journal`.
//! - **Reads.** `page` for the dispatch loop, `show` and `list` for the API, `archive` and `derived` for history and
//!   counts, `signed` and `audit` for the audit trail, `backup` for a copy of the file (`reading`).
//! - **Secrets.** `vault` holds the data keys, `rotation` replaces the master key that wraps them; `sealed` and `seals`
//!   define which value is sealed under which key, `token` the MAC that each delivery's row carries.
//! - **The file.** `folder`, `schema` and `renew` open it; `column` maps fields to columns of the tables, which are in
//!   `sqlite/migrations/`; `statement` runs cached SQL; `low` spares a start a scan of all pending rows; `reserve`,
//!   `fault` and `commits` deal with a full, failing or slow disk.
//!
//! Invariants: a write is answered after its commit is on the disk; a read that begins after an
//! answer sees that write; the folder belongs to one process at a time.

mod accept;
mod answers;
mod archive;
mod arrivals;
pub mod audit;
pub mod backup;
mod breaker;
mod column;
mod commits;
mod cut;
mod dead_letter;
mod derived;
mod document;
mod endpoint;
mod erasure;
mod erasures_file;
mod excerpt;
mod fault;
#[cfg(test)]
mod fixture;
mod folder;
mod follower;
mod group;
mod idempotency;
mod job;
mod journal;
mod list;
mod log;
mod low;
mod page;
mod pause;
mod reader;
mod reading;
mod renew;
mod replay;
mod request;
mod reserve;
mod retention;
pub mod rotation;
mod schema;
mod scrub;
mod sealed;
mod seals;
mod settle;
mod show;
mod signed;
mod spacing;
mod statement;
mod sweep;
mod thread;
mod token;
mod vault;
mod writer;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use posthaste_core::scheduler::{BreakerOf, Reset, SoftBreaker};
use posthaste_core::{Cut, CutScope, DeliveryId, LaneId, LaneSettings, Timestamp};
use posthaste_crypto::LookupKey;
use posthaste_crypto::api_key::ApiKeyHasher;
use posthaste_crypto::master::{KeyCheck, Masters};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::journal::Entries;
use crate::row::{
    Acceptance, Accepted, ApiKeyRef, ArrivedDelivery, AuditStamp, Pause, PauseScope, PendingPage, Query, Session,
    SessionStart, Settled, Settlement, Sweep, SweptRows,
};
use crate::{Condition, Outbox, StoreError, StoreState, Watchable};
use accept::AcceptResult;
use arrivals::Arrivals;
use column::*;
pub use commits::Commits;
use dead_letter::Files;
use endpoint::EndpointCache;
pub use erasure::ErasedAgain;
use fault::is_full;
use folder::{DATABASE, FILE_MODE, FOLDER_MODE, Folder};
use idempotency::SealedCall;
use journal::Then;
use reader::{Looks, READERS, Readers};
use request::{Asker, Reply, SmallChange, WorkCall, WriteRequest};
use reserve::Reserve;
use schema::PAGE_BYTES;
use sealed::{NameHashes, SealedAccept};
use seals::Sealer;
use statement::prepare;
use sweep::WriteOff;
use thread::Joined;
use token::Check;
pub use token::{RETRY_TOKEN_TTL, Tokens};
use vault::{Own, UnwrittenKey, Vault};
use writer::Writer;

/// A store in a data folder.
///
/// Dropping it finishes what is queued and waits for its threads; [`Sqlite::close`] does the same
/// without holding up the runtime.
pub struct Sqlite {
    // The order of the fields matters: the writer's connection closes last and empties the log.
    sealer: Sealer,
    readers: Readers,
    writer: Writer,
    shared: Arc<Shared>,
    own: Own,
    folder: Mutex<Option<Folder>>,
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

/// The state that the writer shares with its callers.
struct Shared {
    vault: Arc<Vault>,
    arrivals: Arrivals,
    cache: EndpointCache,
    commits: commits::CommitHistogram,
    tokens: token::TokenCounters,
    looks: Arc<Looks>,
    reserve: Reserve,
    path: PathBuf,
    stopped: OnceLock<String>,
}

impl Shared {
    /// Stops all writing for good, with the reason; later calls do not replace the first reason.
    fn fail(&self, error: &StoreError) {
        let reason = fault::chain(error);
        if self.stopped.set(reason.clone()).is_ok() {
            tracing::error!(reason, "the store stops writing; restart to recover");
        }
    }
}

/// Limits on the store's disk use, and intervals of its upkeep. Tests set smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Size of the reserve file, which is given up on a full disk so that sent deliveries can still be settled.
    pub reserve_bytes: u64,
    /// Size limit of the write-ahead log; a commit that is larger than an eighth of it may exceed it.
    pub log_bytes: u64,
    /// How long to wait between two attempts to write on a full disk.
    pub again_after: Duration,
    /// How many rows are written before the low-water mark is raised again; a start scans about twice as many rows
    /// that are not ready.
    pub low_every: usize,
    /// A row that is overdue by no more than this is sent if its MAC is valid; one that is overdue by more is also
    /// checked against the history.
    pub retry_token_ttl: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            reserve_bytes: 64 << 20,
            log_bytes: 64 << 20,
            again_after: Duration::from_secs(1),
            low_every: 2_048,
            retry_token_ttl: RETRY_TOKEN_TTL,
        }
    }
}

impl Sqlite {
    /// Opens the store in a folder, which is created if it is missing, with the master key it is sealed
    /// under. Blocks while an older file is migrated.
    pub fn open_folder(path: &Path, masters: Masters) -> Result<Self, StoreError> {
        Self::open_bounded(path, masters, Bounds::default())
    }

    /// Like [`Self::open_folder`], with other bounds.
    pub fn open_bounded(path: &Path, masters: Masters, bounds: Bounds) -> Result<Self, StoreError> {
        Self::open_asking(path, bounds, |_| Ok(masters))
    }

    /// Like [`Self::open_bounded`], but gets the master keys from `ask` once the folder is locked. `ask` is called with
    /// the checks of the keys that the store is sealed under (none for a new store) and returns the keys, or the
    /// reason why it cannot.
    pub fn open_asking(
        path: &Path,
        bounds: Bounds,
        ask: impl FnOnce(&[KeyCheck]) -> Result<Masters, String>,
    ) -> Result<Self, StoreError> {
        let folder = Folder::take(path)?;
        let mut conn = schema::open_writer(&folder, bounds.log_bytes)?;
        let (vault, own) = Vault::open(&mut conn, &folder, ask)?;
        let log = schema::open_log(&folder)?;
        let follower = schema::open_reader(&folder)?;
        let connections: Vec<_> = (0..READERS).map(|_| schema::open_reader(&folder)).collect::<Result<_, _>>()?;
        let looks = Arc::new(Looks::of(&connections));
        let shared = Arc::new(Shared {
            vault: Arc::new(vault),
            arrivals: Arrivals::new(),
            cache: EndpointCache::default(),
            commits: commits::CommitHistogram::default(),
            tokens: token::TokenCounters::new(bounds.retry_token_ttl),
            looks: Arc::clone(&looks),
            reserve: Reserve::open(&folder, bounds.reserve_bytes)?,
            path: path.to_owned(),
            stopped: OnceLock::new(),
        });
        Ok(Self {
            sealer: Sealer::start(&shared.vault)?,
            readers: Readers::start(connections, &looks)?,
            writer: Writer::start(conn, log, follower, bounds, Arc::clone(&shared))?,
            shared,
            own,
            folder: Mutex::new(Some(folder)),
        })
    }

    /// The tables of this build as SQL; a cached database file is out of date when this text differs.
    pub fn schema() -> String {
        schema::MIGRATIONS.concat()
    }

    /// The key that public ids are encrypted with: random, created with the store and never changed.
    pub fn id_key(&self) -> [u8; 16] {
        self.own.id_key
    }

    /// The key of the hashes by which names are looked up; created with the store and never changed.
    pub fn lookups(&self) -> LookupKey {
        self.shared.vault.lookups.clone()
    }

    pub fn api_keys(&self) -> ApiKeyHasher {
        self.shared.vault.api_keys()
    }

    /// The id of this store: random, created with the store and never changed.
    pub fn store_id(&self) -> [u8; 16] {
        self.own.store_id
    }

    /// The commits since the store was opened, and how long they took.
    pub fn commits(&self) -> Commits {
        self.shared.commits.read()
    }

    /// The results of checking rows' MACs since the store was opened.
    pub fn tokens(&self) -> Tokens {
        self.shared.tokens.read()
    }

    /// Turns the check of rows' MACs off: for the control run of a proof.
    #[cfg(any(test, feature = "conformance"))]
    pub fn trust_every_row(&self) {
        self.shared.tokens.trust();
    }

    /// Turns `secure_delete` off, so that deleted bytes stay in the file: for the control run of a proof.
    #[cfg(any(test, feature = "conformance"))]
    pub async fn leave_what_is_deleted(&self, session: Session) -> Result<(), StoreError> {
        let leave = |conn: &Connection| {
            conn.execute_batch("PRAGMA secure_delete = OFF").map_err(failed("leave what is deleted"))
        };
        self.work(session, 1, leave).await
    }

    /// Why the store stopped writing, if a commit has failed.
    pub fn stopped(&self) -> Option<&str> {
        self.shared.stopped.get().map(String::as_str)
    }

    /// Finishes what is queued, closes the file and releases the folder's lock. Every later call
    /// gets [`StoreError::Stopped`].
    pub async fn close(&self) {
        self.readers.stop().await;
        self.writer.stop().await;
        drop(self.folder.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Brings everything derived from the journal up to date, for measurements and comparisons:
    /// lists and counts are exact without it.
    pub async fn catch_up(&self) -> Result<(), StoreError> {
        let (reply, done) = oneshot::channel();
        self.writer.send(WriteRequest::CatchUp(reply)).await?;
        done.await.map_err(|_| StoreError::Stopped)
    }

    /// Runs `read` on a reader thread, with the keys that open what it reads.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection, &Vault) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        self.readers.read(move |conn| read(conn, &vault)).await
    }

    async fn change(&self, session: Session, change: SmallChange) -> Result<(), StoreError> {
        self.writer.ask(|reply| WriteRequest::Change { session, change, reply }).await
    }

    /// Has the writer run a function that changes about `rows` rows.
    async fn work<T: Send + 'static>(
        &self,
        session: Session,
        rows: usize,
        mut run: impl FnMut(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.noted_work(session, rows, move |conn, _| run(conn)).await
    }

    /// Like [`Self::work`], for a function that also adds entries to the journal.
    async fn noted_work<T: Send + 'static>(
        &self,
        session: Session,
        rows: usize,
        run: impl FnMut(&Connection, &mut Entries) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.writer.ask(|reply| WriteRequest::work(session, rows, Asker::Within, WorkCall::new(run, reply))).await
    }

    /// Like [`Self::noted_work`], for a call of the API, which can be repeated: refused when the disk is full even for
    /// settles, and not begun when the caller has hung up.
    async fn asked_work<T: Send + 'static>(
        &self,
        session: Session,
        rows: usize,
        run: impl FnMut(&Connection, &mut Entries) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.writer.ask(|reply| WriteRequest::work(session, rows, Asker::Caller, WorkCall::new(run, reply))).await
    }
}

/// Makes a [`StoreError`] that says what was being done when SQLite returned an error.
fn failed(doing: &'static str) -> impl Fn(rusqlite::Error) -> StoreError {
    move |source| StoreError::Database { doing, source }
}

impl Watchable for Sqlite {
    fn condition(&self) -> Condition {
        let (commits, tokens) = (self.commits(), self.tokens());
        let state = match self.stopped() {
            Some(_) => StoreState::Stopped,
            None if self.shared.reserve.is_given_up() => StoreState::Full,
            None => StoreState::Well,
        };
        Condition {
            state,
            commits: commits.count,
            rows: commits.rows,
            commit_p50: commits.within(0.5),
            commit_p99: commits.within(0.99),
            tokens_renewed: tokens.renewed,
            tokens_rejected: tokens.rejected,
            recipient_rows: self.shared.cache.rows_read(),
        }
    }
}

impl Outbox for Sqlite {
    async fn open(&self, at: Timestamp) -> Result<SessionStart, StoreError> {
        self.writer.ask(|reply| WriteRequest::Open { at, start: None, reply }).await
    }

    async fn accept(&self, session: Session, messages: Vec<Accepted>) -> Result<Vec<Acceptance>, StoreError> {
        // The writer would refuse it too, but only after keys were made and everything was sealed.
        if self.shared.reserve.is_given_up() && self.stopped().is_none() {
            return Err(StoreError::Full);
        }
        let room = arrivals::room(messages.iter());
        let keyed = seals::keys_given(&messages);
        // Take the room before sealing: a message that waits for room is not yet in memory twice.
        let permit = self.shared.arrivals.make_room_soon(room).await?;
        let (messages, sealed, entries) = self.seal(messages).await?;
        let reply = self
            .writer
            .ask_soon(|reply| {
                // From here on the writer gives the room back, whether or not this caller still waits.
                permit.forget();
                WriteRequest::Accept { session, messages, sealed, entries, found: AcceptResult::default(), room, reply }
            })
            .await?;
        // The messages are committed: a stored answer that cannot be read must not make this an error.
        Ok(Box::pin(self.open_answers(reply.wake_rest(), keyed)).await)
    }

    async fn arrivals(&self) -> Vec<ArrivedDelivery> {
        self.shared.arrivals.fetch().await
    }

    async fn settle(&self, session: Session, mut settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        // Successful attempts have no excerpt, and do not wait for a reader.
        let excerpts = excerpt::take(&mut settlements);
        if !excerpts.is_empty() {
            let vault = Arc::clone(&self.shared.vault);
            match self.readers.read_again(move |conn| excerpt::seal(conn, &vault, &excerpts)).await {
                Ok(sealed) => sealed.into_iter().for_each(|(at, excerpt)| settlements[at].excerpt = Some(excerpt)),
                // The outcomes of the deliveries are recorded all the same.
                Err(error) => tracing::warn!(%error, "excerpts of receivers' answers could not be sealed; dropped"),
            }
        }
        let settled = Vec::with_capacity(settlements.len());
        let entries = crate::journal::settle_entries(&settlements);
        let macs = token::macs_of_settle(&self.shared.vault.row_macs, &settlements);
        let suspects = token::suspects(&settlements);
        let settle = |reply| WriteRequest::Settle { session, settlements, entries, macs, settled, reply };
        let settled = self.writer.ask(settle).await?;
        self.shared.tokens.tell(&suspects, &settled);
        Ok(settled)
    }

    async fn spill(&self, session: Session, deliveries: Vec<DeliveryId>) -> Result<(), StoreError> {
        self.change(session, SmallChange::Spill(deliveries)).await
    }

    async fn page(&self, query: Query, limit: u32, now: Timestamp) -> Result<PendingPage, StoreError> {
        let shared = Arc::clone(&self.shared);
        self.readers.read(move |conn| page::read(conn, &Check { shared: &shared, now }, query, limit)).await
    }

    async fn lanes(&self, lanes: Vec<LaneId>) -> Result<Vec<Arc<LaneSettings>>, StoreError> {
        let (mut found, missing) = self.shared.cache.by_lanes(&lanes);
        if !missing.is_empty() {
            let read_at = self.shared.cache.changes();
            let missing = missing.into_iter().map(|lane| lane.0);
            let read = self.read(move |conn, vault| endpoint::read(conn, vault, endpoint::BY_LANE, missing)).await?;
            found.extend(self.shared.cache.keep(read_at, read));
        }
        let found: HashMap<LaneId, Arc<LaneSettings>> =
            found.into_iter().map(|entry| (entry.lane.lane, entry.lane)).collect();
        Ok(lanes.iter().filter_map(|lane| found.get(lane).cloned()).collect())
    }

    async fn cut(&self, session: Session, cut: Cut, by: Option<ApiKeyRef>) -> Result<u64, StoreError> {
        let scope = cut.scope;
        match self.writer.ask(|reply| WriteRequest::Cut { session, cut, by, ended: None, reply }).await? {
            Some(ended) => Ok(ended),
            None => match self.readers.read(move |conn| page::count_ended(conn, scope)).await {
                // The cut is committed: the caller must not take a failed count for a failed write. A long read may
                // have been interrupted to keep the log within its bound.
                Err(error @ StoreError::Database { .. }) => {
                    tracing::warn!(%error, "a cut is in force, but the deliveries it ended could not be counted");
                    Ok(0)
                }
                counted => counted,
            },
        }
    }

    async fn sweep(&self, session: Session, sweep: Sweep, under_way: Vec<DeliveryId>) -> Result<SweptRows, StoreError> {
        let found = self.readers.read(move |conn| sweep::find(conn, sweep, &under_way)).await?;
        let found = Arc::new(found);
        let ending = Arc::clone(&found);
        let end = move |conn: &Connection, entries: &mut Entries| sweep::end(conn, sweep, &ending, entries);
        let ended = self.noted_work(session, found.len(), end).await?;
        Ok(found.swept(ended))
    }

    async fn uncut(&self, session: Session, scope: CutScope, at: Timestamp) -> Result<(), StoreError> {
        self.change(session, SmallChange::Uncut(scope, at)).await
    }

    async fn pause(&self, session: Session, pause: Pause, at: Timestamp) -> Result<(), StoreError> {
        self.change(session, SmallChange::Pause(pause, at)).await
    }

    async fn resume(&self, session: Session, scope: PauseScope, act: AuditStamp) -> Result<(), StoreError> {
        self.change(session, SmallChange::Resume(scope, act)).await
    }

    async fn reset(&self, session: Session, of: BreakerOf, how: Reset, act: AuditStamp) -> Result<(), StoreError> {
        self.change(session, SmallChange::Reset(of, how, act)).await
    }

    async fn remember(&self, session: Session, breakers: Vec<SoftBreaker>) -> Result<(), StoreError> {
        self.change(session, SmallChange::Remember(breakers)).await
    }
}
