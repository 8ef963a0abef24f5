//! The write-ahead log beside the database, and the thread that copies it into the database (SQLite's checkpoints).
//!
//! The writer appends to the log; a thread with a connection of its own copies it into the database (PASSIVE: neither
//! it nor the writer waits for the other). Under load that thread never reaches the end of the log. So the writer
//! itself restarts the log between two commits (RESTART), once the log has reached half of its bound and the thread is
//! close behind: all callers wait while the writer copies and syncs, so little must be left to copy.
//!
//! Invariants: the log stays within its bound except while a backup or an audit reads; any other read that holds it
//! back at the bound is interrupted. A copy that fails for another reason than a full disk stops the store like any
//! other failed write.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::mpsc::WeakSender;

use super::schema::BUSY_WAIT;
use super::{Bounds, Joined, Looks, PAGE_BYTES, Shared, WriteRequest, failed, is_full, reading};
use crate::StoreError;

/// At the bound, how long the writer waits for reads to end by themselves before it interrupts them, and then for the
/// interrupted ones to end.
const READS_END_WITHIN: Duration = Duration::from_millis(250);

/// The thread copies the log in at most so many steps: a longer step would occupy a core and the disk for milliseconds
/// and delay commits.
const STEPS: u32 = 32;

pub(super) struct LogKeeper {
    /// Pages in the log, as SQLite reports after each commit.
    pages: Arc<AtomicU32>,
    /// How many of them the thread had copied at its last step. Out of date while the log begins anew.
    copied: Arc<AtomicU32>,
    max: u32,
    /// The length of the log, in pages, at which the thread was last woken.
    woken_at: u32,
    /// The length at which the writer tries again to restart the log, after reads prevented it.
    again_at: u32,
    wake: SyncSender<()>,
    /// Held by the thread that copies: SQLite lets a second copy fail instead of wait.
    copying: Arc<Mutex<()>>,
    // Declared after `wake`, whose drop ends the thread.
    _thread: Joined,
}

impl LogKeeper {
    /// Starts the thread on a connection of its own, and counts what `writer` commits.
    pub(super) fn start(
        writer: &mut Connection,
        own: Connection,
        bounds: Bounds,
        shared: Arc<Shared>,
        requests: WeakSender<WriteRequest>,
    ) -> Result<Self, StoreError> {
        let pages = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&pages);
        writer
            .wal_hook(Some(move |_: &mut _, pages: std::ffi::c_int| {
                counted.store(u32::try_from(pages).unwrap_or(0), Ordering::Relaxed);
                Ok(())
            }))
            .map_err(failed("watch the log"))?;
        // One pending wake-up is enough: the thread copies everything when it runs.
        let (wake, woken) = sync_channel(1);
        let copying = Arc::new(Mutex::new(()));
        let copied = Arc::new(AtomicU32::new(0));
        let side = Side {
            again_after: bounds.again_after,
            conn: own,
            copying: Arc::clone(&copying),
            copied: Arc::clone(&copied),
            shared,
            requests,
        };
        let thread = Joined::spawn("store-log", move || side.serve(&woken))?;
        let max = u32::try_from(bounds.log_bytes / PAGE_BYTES).unwrap_or(u32::MAX);
        Ok(Self { pages, copied, max, woken_at: 0, again_at: 0, wake, copying, _thread: thread })
    }

    /// Wakes the thread, which finds out by itself what is to be done.
    pub(super) fn wake(&self) {
        // If the channel is full, the thread is about to run anyway; if it is closed, the store is stopping.
        _ = self.wake.try_send(());
    }

    /// Keeps the log within its bound, after a commit.
    pub(super) fn committed(&mut self, conn: &Connection, shared: &Shared) -> Result<(), StoreError> {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages < self.woken_at {
            (self.woken_at, self.again_at) = (0, 0);
        }
        if pages - self.woken_at >= self.max / STEPS {
            self.woken_at = pages;
            self.wake();
        }
        // A commit takes at most an eighth of the bound: one that begins below the last eighth ends within the bound.
        let at_the_bound = pages >= self.max / 8 * 7;
        if pages < (self.max / 2).max(self.again_at) && !at_the_bound {
            return Ok(());
        }
        // Waiting for the end of a backup or an audit would take too long; such a reader bounds the log itself. A full
        // disk makes a backup give up, so then the log is restarted.
        if at_the_bound && !shared.reserve.is_given_up() && reading::is_under_way(&shared.path) {
            return Ok(());
        }
        // On a full disk the thread copies nothing, and the log must not grow.
        let left = pages.saturating_sub(self.copied.load(Ordering::Relaxed));
        if left > self.max / 32 && !at_the_bound && !shared.reserve.is_given_up() {
            self.wake();
            return Ok(());
        }
        let Some(_alone) = lock(&self.copying, at_the_bound) else { return Ok(()) };
        let begun = if at_the_bound {
            copy_all(conn, RESTART, &shared.looks)
        } else {
            copy_rest(conn, RESTART, Duration::ZERO)
        };
        match begun {
            Ok(Copied { all: true, .. }) => {}
            Ok(Copied { all: false, .. }) => self.again_at = pages.saturating_add(self.max / 8),
            Err(error) if is_full(&error) => {
                self.again_at = pages.saturating_add(self.max / 8);
                shared.reserve.give_up();
                self.wake();
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Copies everything and truncates the log. Interrupts reads that prevent it; returns `false` when one does not end
    /// in time, or the disk is full.
    pub(super) fn empty(&mut self, conn: &Connection, shared: &Shared) -> Result<bool, StoreError> {
        let Some(_alone) = lock(&self.copying, true) else { return Ok(false) };
        match copy_all(conn, TRUNCATE, &shared.looks) {
            Ok(copied) => Ok(copied.all),
            Err(error) if is_full(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Takes the right to copy; `None` if the other thread has it and `wait` is false.
fn lock(copying: &Mutex<()>, wait: bool) -> Option<MutexGuard<'_, ()>> {
    if wait {
        return Some(copying.lock().unwrap_or_else(PoisonError::into_inner));
    }
    match copying.try_lock() {
        Ok(alone) => Some(alone),
        Err(TryLockError::Poisoned(alone)) => Some(alone.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// After it, the next commit begins the log anew.
const RESTART: &str = "PRAGMA wal_checkpoint(RESTART)";
/// The same, and truncates the log to zero bytes.
const TRUNCATE: &str = "PRAGMA wal_checkpoint(TRUNCATE)";

/// Like [`copy_rest`], and interrupts the reads that prevent it for longer than [`READS_END_WITHIN`].
fn copy_all(conn: &Connection, pragma: &str, looks: &Looks) -> Result<Copied, StoreError> {
    let before = looks.mark();
    let copied = copy_rest(conn, pragma, READS_END_WITHIN)?;
    if copied.all {
        return Ok(copied);
    }
    looks.end(before);
    copy_rest(conn, pragma, READS_END_WITHIN)
}

/// Copies the rest and lets the next commit begin the log anew, unless a read or another program prevents it for
/// longer than `wait`.
fn copy_rest(conn: &Connection, pragma: &str, wait: Duration) -> Result<Copied, StoreError> {
    conn.busy_timeout(wait).map_err(failed("set how long to wait for reads"))?;
    let copied = copy(conn, pragma);
    conn.busy_timeout(BUSY_WAIT).map_err(failed("set how long to wait for others"))?;
    copied
}

struct Side {
    again_after: Duration,
    conn: Connection,
    copying: Arc<Mutex<()>>,
    copied: Arc<AtomicU32>,
    shared: Arc<Shared>,
    requests: WeakSender<WriteRequest>,
}

impl Side {
    fn serve(&self, woken: &Receiver<()>) {
        loop {
            let full = self.shared.reserve.is_given_up();
            let woken = if full { woken.recv_timeout(self.again_after) } else { woken.recv().map_err(Into::into) };
            match woken {
                Err(RecvTimeoutError::Disconnected) => return,
                _ if self.shared.stopped.get().is_some() => {}
                // Copying would make the database grow, and the free space is reserved for settles.
                Ok(()) if self.shared.reserve.is_given_up() => {}
                Ok(()) => self.empty(),
                Err(RecvTimeoutError::Timeout) => self.find_room(),
            }
        }
    }

    /// Copies the log as far as no read prevents it.
    fn empty(&self) {
        let alone = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        let copied = copy(&self.conn, "PRAGMA wal_checkpoint(PASSIVE)");
        drop(alone);
        match copied {
            Ok(copied) => self.copied.store(copied.pages, Ordering::Relaxed),
            Err(error) if is_full(&error) => self.shared.reserve.give_up(),
            Err(error) => {
                self.shared.fail(&error);
                self.wake_writer();
            }
        }
    }

    /// Runs from time to time on a full disk: wakes the writer if it holds requests back, else tries to restore the
    /// reserve.
    fn find_room(&self) {
        if self.shared.reserve.is_stuck() {
            self.wake_writer();
        } else {
            self.shared.reserve.try_again();
        }
    }

    fn wake_writer(&self) {
        if let Some(requests) = self.requests.upgrade() {
            // If the queue is full, the writer is awake anyway.
            _ = requests.try_send(WriteRequest::Wake);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Copied {
    /// No read or other program prevented copying the whole log.
    all: bool,
    /// How many pages of the log are copied, counted from its beginning.
    pages: u32,
}

fn copy(conn: &Connection, pragma: &str) -> Result<Copied, StoreError> {
    let copied = conn.query_row(pragma, [], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(2)?)));
    let (busy, pages) = copied.map_err(failed("copy the log into the database"))?;
    Ok(Copied { all: busy == 0, pages: u32::try_from(pages).unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use posthaste_core::{Key, MessageId, TenantId, Timestamp};

    use super::*;
    use crate::sqlite::Sqlite;
    use crate::{Accepted, Message, Outbox};

    const LOG: u64 = 1 << 20;
    const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);

    fn open(folder: &Path) -> Sqlite {
        let bounds = Bounds { reserve_bytes: 0, log_bytes: LOG, ..Bounds::default() };
        Sqlite::open_bounded(folder, crate::conformance::master_key_of_tests(), bounds).expect("a fresh folder opens")
    }

    /// Accepts messages of about five pages each, and checks the length of the log after each.
    async fn accept(store: &Sqlite, folder: &Path) {
        let session = store.open(NOW).await.expect("a fresh store opens").session;
        for n in 0..200 {
            let id = MessageId(Key::new(session.writer, 1 + n));
            let message = Message {
                correlation_id: Some(id.to_string()),
                ..Message::new(id, TenantId::from_raw(9), NOW, vec![b'x'; 40_000])
            };
            let accepted = Accepted::new(message, Vec::new());
            store.accept(session, vec![accepted]).await.expect("it is accepted");
            let log = fs::metadata(folder.join("posthaste.db-wal")).expect("the log is there").len();
            assert!(log <= LOG, "{log} bytes after {n} messages");
        }
    }

    #[tokio::test]
    async fn the_log_stays_within_its_bound() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        accept(&open(folder.path()), folder.path()).await;
    }

    #[tokio::test]
    async fn a_read_that_holds_the_log_back_at_its_bound_is_interrupted() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = open(folder.path());
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let endless = store.readers.read(move |conn| {
            let count = |sql| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).map_err(failed("count for ever"));
            count("SELECT count(*) FROM message")?;
            _ = begun.send(());
            count("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")
        });
        let accepting = async {
            has_begun.await.expect("it begins");
            accept(&store, folder.path()).await;
        };
        let (ended, ()) = tokio::join!(endless, accepting);
        let StoreError::Database { source, .. } = ended.expect_err("it never ends by itself") else {
            panic!("the database ends it");
        };
        assert_eq!(source.sqlite_error_code(), Some(rusqlite::ErrorCode::OperationInterrupted));
        let next = store.readers.read(|conn| copy(conn, "SELECT count(*), 0, 0 FROM meta"));
        next.await.expect("the next read is not ended");
    }
}
