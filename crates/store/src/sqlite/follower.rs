//! The thread that follows the journal and updates the tables derived from it: histories of endpoints,
//! names of messages, tallies, the number of pending deliveries in each queue.
//!
//! It reads a batch of rows, sorts the facts that follow from them, and has the writer write them in slices, so that
//! each page of an index is written once and other writes do not wait long. The end of a batch is written before its
//! first slice: after a crash the batch is repeated from its beginning, and writing a slice twice has no further
//! effect.
//!
//! Invariant: the derived tables cover the journal up to `followed`. Of later rows they have at most parts of one
//! batch, which a reader that adds the rest of the journal can recognise (see `derived`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use posthaste_core::{EndpointId, TenantId};
use rusqlite::Connection;
use tokio::sync::mpsc::WeakSender;
use tokio::sync::oneshot;

use super::derived::FactSlice;
use super::{Joined, WriteRequest, derived, journal};
use crate::StoreError;
use crate::derived::Derived;

/// The weight of entries that fill a batch. Larger batches write fewer pages of the index for the same entries, but
/// each read of a derived table has to add as many entries from the journal.
const ENTRIES_MAX: u64 = 40_000;
/// The number of rows that fill a batch, for rows with few entries.
const ROWS_MAX: u64 = 2_000;
/// After so long without a new row, a smaller batch is followed.
const QUIET: Duration = Duration::from_secs(1);
/// Facts written in one request, while accepts wait. Few enough to share a group with other requests.
const SLICE: usize = 128;

pub(super) struct Follower {
    wake: SyncSender<()>,
    behind: Arc<Behind>,
    // Declared after `wake`, whose drop ends the thread.
    _thread: Joined,
}

/// How much of the journal is not followed yet.
#[derive(Default)]
struct Behind {
    rows: AtomicU64,
    entries: AtomicU64,
    /// Callers that wait until the journal, as it was when they asked, is followed.
    waiting: Mutex<Vec<oneshot::Sender<()>>>,
}

impl Follower {
    /// Starts the thread on a connection of its own.
    pub(super) fn start(conn: Connection, requests: WeakSender<WriteRequest>) -> Result<Self, StoreError> {
        let (wake, woken) = sync_channel(1);
        let behind = Arc::new(Behind::default());
        let side = Side { conn, requests, behind: Arc::clone(&behind), owners: BTreeMap::new() };
        let thread = Joined::spawn("store-follower", move || side.serve(&woken))?;
        Ok(Self { wake, behind, _thread: thread })
    }

    /// Notes that a row with entries of this weight was committed; zero if there was none.
    pub(super) fn grew(&self, entries: usize) {
        if entries > 0 {
            self.behind.rows.fetch_add(1, Ordering::Relaxed);
            self.behind.entries.fetch_add(entries as u64, Ordering::Relaxed);
            self.wake();
        }
    }

    /// Has the thread catch up at once, and answers when it has.
    pub(super) fn catch_up(&self, reply: oneshot::Sender<()>) {
        self.behind.waiting().push(reply);
        self.wake();
    }

    fn wake(&self) {
        // If the channel is full, the thread is about to run anyway; if it is closed, the store is stopping.
        _ = self.wake.try_send(());
    }
}

struct Side {
    conn: Connection,
    requests: WeakSender<WriteRequest>,
    behind: Arc<Behind>,
    owners: BTreeMap<EndpointId, TenantId>,
}

/// The most entries in the cache of owners; beyond it all are evicted.
const OWNERS_MAX: usize = 65_536;

impl Side {
    fn serve(mut self, woken: &Receiver<()>) {
        let mut has_warned = false;
        loop {
            let waiting = std::mem::take(&mut *self.behind.waiting());
            match self.catch_up() {
                Ok(()) => {
                    has_warned = false;
                    waiting.into_iter().for_each(|waits| _ = waits.send(()));
                }
                Err(StoreError::Stopped) => return,
                // The journal still has the rows; the next wake-up tries again.
                Err(error) if !has_warned => {
                    has_warned = true;
                    tracing::warn!(%error, "cannot follow the journal; lists and counts read the journal itself");
                }
                Err(_) => {}
            }
            if !self.gather(woken) {
                return;
            }
        }
    }

    /// Waits until a batch is full or no row has come for a while; `false` when the store stops.
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

    /// Follows one batch; `false` if there was no row to follow.
    fn follow_a_batch(&mut self) -> Result<bool, StoreError> {
        let (derived, to) = {
            let snapshot = self.conn.unchecked_transaction().map_err(super::failed("begin to follow"))?;
            let at = derived::followed(&snapshot)?;
            let Batch { derived, to, rows, entries } = read(&snapshot, at, &mut self.owners)?;
            self.behind.less(rows, entries);
            (derived, to)
        };
        let Some(to) = to else { return Ok(false) };
        let facts = derived.into_facts();
        let mut slices = facts.chunks(SLICE).peekable();
        if slices.peek().is_none() {
            self.write(FactSlice { facts: Vec::new(), to, is_last: true })?;
        }
        while let Some(slice) = slices.next() {
            self.write(FactSlice { facts: slice.to_vec(), to, is_last: slices.peek().is_none() })?;
        }
        if self.owners.len() > OWNERS_MAX {
            self.owners.clear();
        }
        Ok(true)
    }

    fn write(&self, slice: FactSlice) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        let requests = self.requests.upgrade().ok_or(StoreError::Stopped)?;
        requests.blocking_send(WriteRequest::Follow { slice, reply }).map_err(|_| StoreError::Stopped)?;
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

/// A batch of rows of the journal, and the facts derived from them.
struct Batch {
    derived: Derived,
    /// The last row it covers, if it covers any.
    to: Option<u64>,
    rows: u64,
    entries: u64,
}

/// Reads a batch: up to the stored end of one that was interrupted, otherwise until it is full.
fn read(
    conn: &Connection,
    at: derived::Followed,
    owners: &mut BTreeMap<EndpointId, TenantId>,
) -> Result<Batch, StoreError> {
    let mut batch = Batch { derived: Derived::default(), to: None, rows: 0, entries: 0 };
    journal::each(conn, at.followed, |row| {
        // A batch occupies a core for milliseconds: let threads that accept or deliver run first.
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
