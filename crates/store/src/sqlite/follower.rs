//! The thread that follows the journal and keeps what is derived from it: an endpoint's history,
//! names of messages, tallies, how much is pending in each queue.
//!
//! It reads many rows, sorts what follows from them, and has the writer put it down in slices, so
//! that each page of an index is touched once and nobody waits long. A batch has its end written
//! down before its first slice: a crash repeats the batch from its beginning, and every slice is
//! such that making it twice is making it once.
//!
//! Invariant: what is derived covers the journal up to `followed`, and of what lies behind it only
//! parts that a reader who reads the rest of the journal himself can tell apart (see `derived`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use posthaste_core::id::{EndpointId, TenantId};
use rusqlite::Connection;
use tokio::sync::mpsc::WeakSender;
use tokio::sync::oneshot;

use super::derived::{self, Slice};
use super::journal;
use super::request::Request;
use super::thread::Joined;
use crate::StoreError;
use crate::derived::Derived;

/// Entries that make a batch worth while, by what they weigh. A reader has to look at as many himself;
/// twice as many deliveries of a lane stand on each page of its history that is written.
const ENTRIES_MAX: u64 = 40_000;
/// The same for rows, where each holds little.
const ROWS_MAX: u64 = 2_000;
/// With nothing new for this long, a smaller batch will do.
const QUIET: Duration = Duration::from_secs(1);
/// Rows written at once: whoever accepts waits for them. So few go along with a group of others.
const SLICE: usize = 128;

/// What the writer tells the thread.
#[derive(Debug)]
pub(super) struct Follower {
    wake: SyncSender<()>,
    behind: Arc<Behind>,
    // After `wake`, whose end ends it.
    _thread: Joined,
}

/// How much of the journal is not followed yet.
#[derive(Debug, Default)]
struct Behind {
    rows: AtomicU64,
    entries: AtomicU64,
    /// Whoever wants to hear when nothing of today's is left.
    waiting: Mutex<Vec<oneshot::Sender<()>>>,
}

impl Follower {
    /// Starts the thread on a connection of its own.
    pub(super) fn start(conn: Connection, requests: WeakSender<Request>) -> Result<Self, StoreError> {
        let (wake, woken) = sync_channel(1);
        let behind = Arc::new(Behind::default());
        let side = Side { conn, requests, behind: Arc::clone(&behind), owners: BTreeMap::new() };
        let thread = Joined::spawn("store-follower", move || side.serve(&woken))?;
        Ok(Self { wake, behind, _thread: thread })
    }

    /// A row whose entries weigh so much was committed.
    pub(super) fn grew(&self, entries: usize) {
        if entries > 0 {
            self.behind.rows.fetch_add(1, Ordering::Relaxed);
            self.behind.entries.fetch_add(entries as u64, Ordering::Relaxed);
            self.wake();
        }
    }

    /// Catches up without waiting for more, and says when it has.
    pub(super) fn catch_up(&self, reply: oneshot::Sender<()>) {
        self.behind.waiting().push(reply);
        self.wake();
    }

    fn wake(&self) {
        // Full: it is about to look anyway. Gone: the store is stopping.
        _ = self.wake.try_send(());
    }
}

/// The thread's side.
struct Side {
    conn: Connection,
    requests: WeakSender<Request>,
    behind: Arc<Behind>,
    /// The tenant of each endpoint seen lately.
    owners: BTreeMap<EndpointId, TenantId>,
}

/// Owners remembered; beyond it all are forgotten and read again.
const OWNERS_MAX: usize = 65_536;

impl Side {
    fn serve(mut self, woken: &Receiver<()>) {
        let mut has_complained = false;
        loop {
            let waiting = std::mem::take(&mut *self.behind.waiting());
            match self.catch_up() {
                Ok(()) => {
                    has_complained = false;
                    waiting.into_iter().for_each(|waits| _ = waits.send(()));
                }
                Err(StoreError::Stopped) => return,
                // The journal keeps what was not followed; the next wake tries again.
                Err(error) if !has_complained => {
                    has_complained = true;
                    tracing::warn!(%error, "cannot follow the journal; lists and counts read it themselves");
                }
                Err(_) => {}
            }
            if !self.gather(woken) {
                return;
            }
        }
    }

    /// Waits until a batch is worth while; `false` at the end.
    fn gather(&self, woken: &Receiver<()>) -> bool {
        let mut next = woken.recv().map_err(|_| RecvTimeoutError::Disconnected);
        while next.is_ok() && !self.behind.is_enough() {
            next = woken.recv_timeout(QUIET);
        }
        next != Err(RecvTimeoutError::Disconnected)
    }

    fn catch_up(&mut self) -> Result<(), StoreError> {
        while self.follow_a_batch()? {}
        Ok(())
    }

    /// Follows what a batch may hold; `false` when there was nothing.
    fn follow_a_batch(&mut self) -> Result<bool, StoreError> {
        let (derived, to) = {
            let moment = self.conn.unchecked_transaction().map_err(super::failed("begin to follow"))?;
            let at = derived::followed(&moment)?;
            let Batch { derived, to, rows, entries } = read(&moment, at, &mut self.owners)?;
            self.behind.less(rows, entries);
            (derived, to)
        };
        let Some(to) = to else { return Ok(false) };
        let facts = derived.into_facts();
        let mut slices = facts.chunks(SLICE).peekable();
        if slices.peek().is_none() {
            self.write(Slice { facts: Vec::new(), to, is_last: true })?;
        }
        while let Some(slice) = slices.next() {
            self.write(Slice { facts: slice.to_vec(), to, is_last: slices.peek().is_none() })?;
        }
        if self.owners.len() > OWNERS_MAX {
            self.owners.clear();
        }
        Ok(true)
    }

    fn write(&self, slice: Slice) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        let requests = self.requests.upgrade().ok_or(StoreError::Stopped)?;
        requests.blocking_send(Request::Follow { slice, reply }).map_err(|_| StoreError::Stopped)?;
        drop(requests);
        answer.blocking_recv().map_err(|_| StoreError::Stopped)?
    }
}

impl Behind {
    fn is_enough(&self) -> bool {
        let is_long = self.rows.load(Ordering::Relaxed) >= ROWS_MAX;
        is_long || self.entries.load(Ordering::Relaxed) >= ENTRIES_MAX || !self.waiting().is_empty()
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<oneshot::Sender<()>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn less(&self, rows: u64, entries: u64) {
        let less = |count: &AtomicU64, by: u64| {
            _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(now.saturating_sub(by)));
        };
        less(&self.rows, rows);
        less(&self.entries, entries);
    }
}

/// What a batch holds.
struct Batch {
    derived: Derived,
    /// The last row it covers, if it covers any.
    to: Option<u64>,
    rows: u64,
    entries: u64,
}

/// Reads a batch: to the end that was written down for it, or as far as is worth while.
fn read(
    conn: &Connection,
    at: derived::Followed,
    owners: &mut BTreeMap<EndpointId, TenantId>,
) -> Result<Batch, StoreError> {
    let mut batch = Batch { derived: Derived::default(), to: None, rows: 0, entries: 0 };
    journal::each(conn, at.followed, |row| {
        // Whoever accepts or delivers goes first: a batch takes a core for milliseconds.
        std::thread::yield_now();
        for entry in row.entries() {
            let entry = entry?;
            batch.derived.add(&entry, |endpoint| derived::owner(conn, owners, endpoint))?;
            batch.entries += entry.weight() as u64;
        }
        batch.rows += 1;
        batch.to = Some(row.number);
        let is_full = batch.entries >= ENTRIES_MAX || batch.rows >= ROWS_MAX;
        let is_end = at.following.map_or(is_full, |end| row.number >= end);
        Ok(if is_end { journal::Then::Stop } else { journal::Then::GoOn })
    })?;
    Ok(batch)
}
