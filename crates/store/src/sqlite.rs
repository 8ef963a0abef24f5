//! The promise in one SQLite file: the default store.
//!
//! Nothing touches the file on a runtime thread: a call is prepared where it comes in, asked of a thread, and answered
//! by one. Where to read:
//!
//! - **The threads.** `writer` takes what is asked (`request`, `work`) and runs it in one transaction (`group`); `answers`
//!   tells everybody, and hands what was accepted to the loop (`arrivals`); `log` empties the log behind the writer;
//!   `follower` keeps what is derived from the journal; `reader` has those that look; `sealer` seals batches. Each is
//!   a `thread`.
//! - **What is written.** `accept` (`idempotency`, `collapse`), `settle` (`excerpt`), `cut` and its `sweep`, `pause`,
//!   `breaker`, `endpoint`, `document`, `dead_letter`, `job` and `replay`, `retention`, `erasure` (`erasures_file`,
//!   `scrub`), and with each commit the `journal`.
//! - **What is read.** `page` for the loop, `show` and `list` for people, `archive` and `derived` for what was, `signed`
//!   and `audit` for who wants proof, `backup` for a copy (`reading`).
//! - **Secrets.** `vault` has the keys, `rotation` the one above them; `sealed` and `seals` say what is under which,
//!   `token` what a row says of itself.
//! - **The file.** `folder`, `header`, `schema` and `renew` open it; `column` says how fields stand in its tables, which
//!   are in `sqlite/migrations/`; `low` saves a start from looking at everything; `reserve`, `fault` and `commits` know
//!   how the disk is.
//!
//! Invariants: an answer is given after its commit is on the disk; a read that begins after an
//! answer sees what was answered; the folder belongs to one process at a time.

mod accept;
mod answers;
mod archive;
mod arrivals;
pub mod audit;
pub mod backup;
mod breaker;
mod collapse;
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
mod folder;
mod follower;
mod group;
mod header;
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
mod sealer;
mod seals;
mod settle;
mod show;
mod signed;
mod spacing;
mod sweep;
mod thread;
mod token;
mod vault;
mod work;
mod writer;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use posthaste_core::cut::{Cut, Scope};
use posthaste_core::id::{DeliveryId, LaneId};
use posthaste_core::queue::{BreakerOf, LaneSettings, Reset, SoftBreaker};
use posthaste_core::time::Timestamp;
use posthaste_crypto::LookupKey;
use posthaste_crypto::api_key::ApiKeyHasher;
use posthaste_crypto::master::{KeyCheck, Masters};
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::journal::Entries;
use crate::row::{
    Acceptance, Accepted, Act, Arrival, By, Page, Pause, PauseScope, Query, Session, Settled, Settlement, Start, Sweep,
    SweptRows,
};
use crate::{Condition, Outbox, StoreError, StoreState, Watchable};
use accept::Found;
use arrivals::Arrivals;
pub use commits::Commits;
use endpoint::Kept;
pub use erasure::ErasedAgain;
use folder::Folder;
use reader::{Looks, READERS, Readers};
use request::{Asker, Change, Request};
use reserve::Reserve;
use sealer::Sealer;
use token::Check;
pub use token::{RETRY_TOKEN_TTL, Tokens};
use vault::{Own, Vault};
use work::Asked;
use writer::Writer;

/// A store in a data folder.
///
/// Dropping it finishes what is queued and waits for its threads; [`Sqlite::close`] does the same
/// without holding up the runtime.
#[derive(Debug)]
pub struct Sqlite {
    // In this order: the writer's connection closes last and tidies the file up.
    sealer: Sealer,
    readers: Readers,
    writer: Writer,
    shared: Arc<Shared>,
    own: Own,
    path: PathBuf,
    folder: Mutex<Option<Folder>>,
}

/// What the writer shares with its callers.
#[derive(Debug)]
struct Shared {
    vault: Arc<Vault>,
    arrivals: Arrivals,
    kept: Kept,
    commits: commits::Count,
    tokens: token::Count,
    looks: Arc<Looks>,
    reserve: Reserve,
    /// The data folder.
    path: PathBuf,
    stopped: OnceLock<String>,
}

impl Shared {
    /// Remembers why nothing may be written any more; the first reason stands.
    fn fail(&self, error: &StoreError) {
        let reason = fault::chain(error);
        if self.stopped.set(reason.clone()).is_ok() {
            tracing::error!(reason, "the store stops writing; restart to recover");
        }
    }
}

/// Bounds on what the store takes of the disk, and how patient it is with a full one. Tests have
/// smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Room held in reserve so that what was sent can be settled on a full disk.
    pub reserve_bytes: u64,
    /// The log beside the database; a commit that is larger than an eighth of it may exceed it.
    pub log_bytes: u64,
    /// How often it is tried to write on a full disk.
    pub again_after: Duration,
    /// How many rows are written between two looks at how old the oldest ready one is; a start looks at
    /// about twice as many in vain.
    pub low_every: usize,
    /// How long after it is due a row is sent for its MAC alone; a later one is looked at twice.
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
    /// Opens the store in a folder, which is made if it is missing, with the master key it is sealed
    /// under. Blocks while an older file is brought up to date.
    pub fn open_folder(path: &Path, masters: Masters) -> Result<Self, StoreError> {
        Self::open_bounded(path, masters, Bounds::default())
    }

    /// The same with other bounds.
    pub fn open_bounded(path: &Path, masters: Masters, bounds: Bounds) -> Result<Self, StoreError> {
        Self::open_asking(path, bounds, |_| Ok(masters))
    }

    /// The same with a master key that is asked for once the folder is ours: `ask` is told which keys it is
    /// sealed under, none where nothing is sealed yet, and gives them or says why it cannot.
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
            kept: Kept::default(),
            commits: commits::Count::default(),
            tokens: token::Count::new(bounds.retry_token_ttl),
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
            path: path.to_owned(),
            folder: Mutex::new(Some(folder)),
        })
    }

    /// The tables of this build as SQL, for whoever keeps a file and must know whether it still fits.
    pub fn schema() -> String {
        schema::MIGRATIONS.concat()
    }

    /// What public ids are made with: random, made once for the life of the store.
    pub fn id_key(&self) -> [u8; 16] {
        self.own.id_key
    }

    /// What names are hashed with that are only looked up: made once for the life of the store.
    pub fn lookups(&self) -> LookupKey {
        self.shared.vault.lookups().clone()
    }

    /// What API keys are hashed with.
    pub fn api_keys(&self) -> ApiKeyHasher {
        self.shared.vault.api_keys()
    }

    /// What tells it from every other store: random, made once for its life.
    pub fn store_id(&self) -> [u8; 16] {
        self.own.store_id
    }

    /// The commits so far, and how long they took.
    pub fn commits(&self) -> Commits {
        self.shared.commits.read()
    }

    /// What rows said of themselves when they were read back.
    pub fn tokens(&self) -> Tokens {
        self.shared.tokens.read()
    }

    /// Sends whatever rows there are, whoever wrote them: for the control of a proof.
    #[cfg(any(test, feature = "conformance"))]
    pub fn trust_every_row(&self) {
        self.shared.tokens.trust();
    }

    /// Leaves in the file what is deleted from it: for the control of a proof.
    #[cfg(any(test, feature = "conformance"))]
    pub async fn leave_what_is_deleted(&self, session: Session) -> Result<(), StoreError> {
        let leave = |conn: &Connection| {
            conn.execute_batch("PRAGMA secure_delete = OFF").map_err(failed("leave what is deleted"))
        };
        self.work(session, 1, leave).await
    }

    /// Why nothing is written any more, if a commit has failed.
    pub fn stopped(&self) -> Option<&str> {
        self.shared.stopped.get().map(String::as_str)
    }

    /// Finishes what is queued, closes the file and leaves the folder. Every later call is
    /// answered with [`StoreError::Stopped`].
    pub async fn close(&self) {
        self.readers.stop().await;
        self.writer.stop().await;
        drop(self.folder.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Brings everything derived from the journal up to date, for whoever measures or compares it:
    /// lists and counts are right without.
    pub async fn catch_up(&self) -> Result<(), StoreError> {
        let (reply, done) = oneshot::channel();
        self.writer.send(Request::CatchUp(reply)).await?;
        done.await.map_err(|_| StoreError::Stopped)
    }

    async fn change(&self, session: Session, change: Change) -> Result<(), StoreError> {
        self.writer.ask(|reply| Request::Change { session, change, reply }).await
    }

    /// Has the writer run something that changes about this many rows.
    async fn work<T: Send + 'static>(
        &self,
        session: Session,
        rows: usize,
        mut run: impl FnMut(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.noted_work(session, rows, move |conn, _| run(conn)).await
    }

    /// The same for something that leaves entries in the journal.
    async fn noted_work<T: Send + 'static>(
        &self,
        session: Session,
        rows: usize,
        run: impl FnMut(&Connection, &mut Entries) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.writer.ask(|reply| Request::work(session, rows, Asker::Within, Asked::new(run, reply))).await
    }

    /// The same for something that a caller asks for, who can ask again: it is refused where not even settles find room,
    /// and not begun when the caller has left.
    async fn asked_work<T: Send + 'static>(
        &self,
        session: Session,
        rows: usize,
        run: impl FnMut(&Connection, &mut Entries) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.writer.ask(|reply| Request::work(session, rows, Asker::Caller, Asked::new(run, reply))).await
    }
}

/// Says what was being done when the database refused.
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
            recipient_rows: self.shared.kept.rows_read(),
        }
    }
}

impl Outbox for Sqlite {
    async fn open(&self, at: Timestamp) -> Result<Start, StoreError> {
        self.writer.ask(|reply| Request::Open { at, start: None, reply }).await
    }

    async fn accept(&self, session: Session, messages: Vec<Accepted>) -> Result<Vec<Acceptance>, StoreError> {
        // The writer would say the same, once keys were made and everything was sealed.
        if self.shared.reserve.is_given_up() && self.stopped().is_none() {
            return Err(StoreError::Full);
        }
        let room = arrivals::room(messages.iter());
        let keyed = seals::keys_given(&messages);
        // The room first: what waits for it is not there twice.
        let permit = self.shared.arrivals.make_room_soon(room).await?;
        let (messages, sealed, entries) = self.seal(messages).await?;
        let told = self
            .writer
            .ask_soon(|reply| {
                // From here on the writer answers for the room, whether or not we still wait.
                permit.forget();
                Request::Accept { session, messages, sealed, entries, found: Found::default(), room, reply }
            })
            .await?;
        // From here on it is done, whatever cannot be read.
        Ok(Box::pin(self.open_answers(told.pass_on(), keyed)).await)
    }

    async fn arrivals(&self) -> Vec<Arrival> {
        self.shared.arrivals.fetch().await
    }

    async fn settle(&self, session: Session, mut settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        // What went well has none: it is not kept waiting.
        let said = excerpt::take(&mut settlements);
        if !said.is_empty() {
            let vault = Arc::clone(&self.shared.vault);
            match self.readers.read_again(move |conn| excerpt::seal(conn, &vault, &said)).await {
                Ok(sealed) => sealed.into_iter().for_each(|(at, excerpt)| settlements[at].excerpt = Some(excerpt)),
                // What became of deliveries must not be lost for it.
                Err(error) => tracing::warn!(%error, "how some answers began could not be sealed, and is not kept"),
            }
        }
        let settled = Vec::with_capacity(settlements.len());
        let entries = crate::journal::of_settle(&settlements);
        let macs = token::of_settle(self.shared.vault.row_macs(), &settlements);
        let suspects = token::suspects(&settlements);
        let settle = |reply| Request::Settle { session, settlements, entries, macs, settled, reply };
        let settled = self.writer.ask(settle).await?;
        self.shared.tokens.tell(&suspects, &settled);
        Ok(settled)
    }

    async fn spill(&self, session: Session, deliveries: Vec<DeliveryId>) -> Result<(), StoreError> {
        self.change(session, Change::Spill(deliveries)).await
    }

    async fn page(&self, query: Query, limit: u32, now: Timestamp) -> Result<Page, StoreError> {
        let shared = Arc::clone(&self.shared);
        self.readers.read(move |conn| page::read(conn, &Check { shared: &shared, now }, query, limit)).await
    }

    async fn lanes(&self, lanes: Vec<LaneId>) -> Result<Vec<Arc<LaneSettings>>, StoreError> {
        let (mut found, missing) = self.shared.kept.by_lanes(&lanes);
        if !missing.is_empty() {
            let read_at = self.shared.kept.changes();
            let vault = Arc::clone(&self.shared.vault);
            let read = self.readers.read(move |conn| endpoint::read_lanes(conn, &vault, &missing)).await?;
            found.extend(self.shared.kept.keep(read_at, read));
        }
        let found: HashMap<LaneId, Arc<LaneSettings>> =
            found.into_iter().map(|entry| (entry.lane.lane, entry.lane)).collect();
        Ok(lanes.iter().filter_map(|lane| found.get(lane).cloned()).collect())
    }

    async fn cut(&self, session: Session, cut: Cut, by: Option<By>) -> Result<u64, StoreError> {
        let scope = cut.scope;
        match self.writer.ask(|reply| Request::Cut { session, cut, by, ended: None, reply }).await? {
            Some(ended) => Ok(ended),
            None => match self.readers.read(move |conn| page::count_ended(conn, scope)).await {
                // Whoever asked must not take it for a failed write: a long look may be ended by the log.
                Err(error @ StoreError::Database { .. }) => {
                    tracing::warn!(%error, "a cut is in force, and what it ended could not be counted");
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

    async fn uncut(&self, session: Session, scope: Scope, at: Timestamp) -> Result<(), StoreError> {
        self.change(session, Change::Uncut(scope, at)).await
    }

    async fn pause(&self, session: Session, pause: Pause, at: Timestamp) -> Result<(), StoreError> {
        self.change(session, Change::Pause(pause, at)).await
    }

    async fn resume(&self, session: Session, scope: PauseScope, act: Act) -> Result<(), StoreError> {
        self.change(session, Change::Resume(scope, act)).await
    }

    async fn reset(&self, session: Session, of: BreakerOf, how: Reset, act: Act) -> Result<(), StoreError> {
        self.change(session, Change::Reset(of, how, act)).await
    }

    async fn remember(&self, session: Session, breakers: Vec<SoftBreaker>) -> Result<(), StoreError> {
        self.change(session, Change::Remember(breakers)).await
    }
}
