//! The writer thread, the only one that writes. It does SQL only: it takes the requests that queued up during the last
//! sync, or under load until `spacing` lets the next commit begin, runs them in one transaction, commits, and passes
//! them on to `answers`.
//!
//! Invariants: no request is answered and no delivery handed to the dispatch loop before its commit is on the disk.
//! After a failed commit nothing is ever written again, since the state of the file after a failed sync is unknown. A
//! full disk is the one exception: the transaction is rolled back, producers are refused, other callers too when even
//! the reserve is used up, and all other requests are held here and tried again until there is room.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use tokio::sync::{mpsc, oneshot, watch};

use super::answers::{Answers, answer};
use super::arrivals::Arrivals;
use super::follower::Follower;
use super::group::Group;
use super::log::LogKeeper;
use super::spacing::Spacing;
use super::{Bounds, Joined, Reply, Shared, WriteRequest, is_full};
use crate::StoreError;

/// Rows changed by one commit: with more, the first request would wait too long for the rest.
const GROUP_ROWS_MAX: usize = 512;
/// Payload written by one commit, for the same reason.
const GROUP_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Requests that wait for the writer: two groups of single ones. The next caller waits in its task.
const QUEUE: usize = 2 * GROUP_ROWS_MAX;

/// How long a producer waits for a place in the queue. When the disk stalls for longer, more requests wait than it can
/// catch up with, so they get `StoreError::Busy`.
const PLACE_WITHIN: Duration = Duration::from_secs(5);

/// Waits for at most [`PLACE_WITHIN`], then returns [`StoreError::Busy`].
pub(super) async fn soon<T>(wait: impl Future<Output = T>) -> Result<T, StoreError> {
    tokio::time::timeout(PLACE_WITHIN, wait).await.map_err(|_| StoreError::Busy)
}

pub(super) struct Writer {
    // Dropped before the thread is joined: the drop ends the thread.
    requests: mpsc::Sender<WriteRequest>,
    /// Closed when the thread has closed the file.
    ended: watch::Receiver<()>,
    _thread: Joined,
}

impl Writer {
    /// Starts the writer on `conn`, and the threads of the log and the follower on connections of their own.
    pub(super) fn start(
        mut conn: Connection,
        log: Connection,
        follower: Connection,
        bounds: Bounds,
        shared: Arc<Shared>,
    ) -> Result<Self, StoreError> {
        let (requests, queue) = mpsc::channel(QUEUE);
        let log = LogKeeper::start(&mut conn, log, bounds, Arc::clone(&shared), requests.downgrade())?;
        let follower = Follower::start(follower, requests.downgrade())?;
        let answers = Answers::start(Arc::clone(&shared))?;
        let (lives, ended) = watch::channel(());
        let thread = Joined::spawn("store-writer", move || {
            run(conn, queue, Beside { log, follower, answers }, bounds, &shared);
            drop(lives);
        })?;
        Ok(Self { requests, ended, _thread: thread })
    }

    /// Queues a request and waits for its answer.
    pub(super) async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> WriteRequest) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        // Reserve the place before calling `request`: it may hand over something to the writer, such as room for
        // arrivals, that would be lost if there were no place.
        let place = self.requests.reserve().await.map_err(|_| StoreError::Stopped)?;
        place.send(request(reply));
        answer.await.map_err(|_| StoreError::Stopped)?
    }

    /// Like [`Self::ask`], for requests that can be repeated: waits for a place in the queue no longer than
    /// [`PLACE_WITHIN`].
    pub(super) async fn ask_soon<T>(&self, request: impl FnOnce(Reply<T>) -> WriteRequest) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let place = match self.requests.try_reserve() {
            Ok(place) => place,
            Err(_) => soon(self.requests.reserve()).await?.map_err(|_| StoreError::Stopped)?,
        };
        place.send(request(reply));
        answer.await.map_err(|_| StoreError::Stopped)?
    }

    /// Queues a request whose answer goes elsewhere.
    pub(super) async fn send(&self, request: WriteRequest) -> Result<(), StoreError> {
        self.requests.send(request).await.map_err(|_| StoreError::Stopped)
    }

    /// Lets the thread finish what is queued, and waits for its end.
    pub(super) async fn stop(&self) {
        // If this fails, the thread has stopped already, or is about to.
        _ = self.requests.send(WriteRequest::Stop).await;
        let mut ended = self.ended.clone();
        while ended.changed().await.is_ok() {}
    }
}

struct Beside {
    log: LogKeeper,
    follower: Follower,
    answers: Answers,
}

fn run(conn: Connection, mut queue: mpsc::Receiver<WriteRequest>, mut beside: Beside, bounds: Bounds, shared: &Shared) {
    // Dropped only after `shared.fail`: a caller that sees its reply channel closed finds the reason there.
    let mut waiting = Vec::with_capacity(QUEUE);
    let served = Group::prepare(&conn, Arc::clone(&shared.vault), bounds)
        .and_then(|group| serve(&conn, group, &mut queue, &mut waiting, &mut beside, shared));
    if let Err(error) = served {
        // After a failed write, closing must not write or sync the file again.
        let quiet = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        if let Err(error) = quiet {
            tracing::warn!(%error, "cannot turn off the checkpoint that closing the database makes");
        }
        shared.fail(&error);
    }
    let Beside { log, follower, answers } = beside;
    // Committed groups are answered and handed to the dispatch loop, also after a later failure.
    drop(answers);
    shared.arrivals.close();
    drop(waiting);
    // Drop every queued request, so that the follower and other callers get an error instead of waiting for ever. A
    // caller that has reserved a place may still send: a request sent after the queue is dropped would stay in it.
    queue.close();
    while queue.blocking_recv().is_some() {}
    // Close the other connections first: the last one to close empties the log, and that must be the writer's.
    drop(follower);
    drop(log);
    drop(conn);
}

fn serve(
    conn: &Connection,
    mut group: Group<'_>,
    queue: &mut mpsc::Receiver<WriteRequest>,
    waiting: &mut Vec<WriteRequest>,
    Beside { log, follower, answers }: &mut Beside,
    shared: &Shared,
) -> Result<(), StoreError> {
    let mut spacing = Spacing::new();
    loop {
        // While the disk is full, held requests are tried again when another request or a wake-up arrives, not at once.
        let stuck = shared.reserve.is_stuck();
        if (stuck || waiting.is_empty()) && queue.blocking_recv_many(waiting, GROUP_ROWS_MAX) == 0 {
            return Ok(());
        }
        spacing.begin();
        while waiting.len() < GROUP_ROWS_MAX
            && let Ok(request) = queue.try_recv()
        {
            waiting.push(request);
        }
        if shared.stopped.get().is_some() {
            return Err(StoreError::Stopped);
        }
        for request in waiting.extract_if(.., |request| matches!(request, WriteRequest::CatchUp(_))) {
            if let WriteRequest::CatchUp(reply) = request {
                follower.catch_up(reply);
            }
        }
        for request in waiting.extract_if(.., |request| matches!(request, WriteRequest::EmptyLog(_))) {
            if let WriteRequest::EmptyLog(reply) = request {
                _ = reply.send(Ok(log.empty(conn, shared)?));
            }
        }
        let woken = waiting.extract_if(.., |request| matches!(request, WriteRequest::Wake)).count() > 0;
        if shared.reserve.is_given_up() {
            refuse(waiting, WriteRequest::is_producers, &shared.arrivals);
        }
        if stuck {
            refuse(waiting, WriteRequest::is_callers, &shared.arrivals);
        }
        waiting.retain(|request| !request.is_abandoned());
        if stuck && !woken {
            if waiting.iter().any(|request| matches!(request, WriteRequest::Stop)) {
                return Ok(());
            }
            continue;
        }
        let together = fitting(waiting);
        if together == 0 {
            shared.reserve.unstick();
            continue;
        }
        spacing.requests = together;
        match group.write(&mut waiting[..together]) {
            Ok(refused) => {
                shared.reserve.unstick();
                let rows = waiting[..together].iter().map(|request| request.weight().0).sum();
                shared.commits.note(rows, group.commit_took);
                shared.cache.apply(&group.changed);
                group.changed.clear();
                follower.grew(group.journal.last);
                let rest = waiting.split_off(together);
                let committed = std::mem::replace(waiting, rest);
                let stops = committed.iter().any(|request| matches!(request, WriteRequest::Stop));
                answers.committed(committed, refused)?;
                if stops {
                    return Ok(());
                }
                log.committed(conn, shared)?;
            }
            Err(error) if is_full(&error) => {
                // The first time, giving up the reserve makes room; when that is used up too, writing has to wait.
                if shared.reserve.is_given_up() {
                    shared.reserve.set_stuck();
                    let is_asked =
                        |request: &WriteRequest| request.is_callers() || matches!(request, WriteRequest::Open { .. });
                    refuse(waiting, is_asked, &shared.arrivals);
                }
                shared.reserve.give_up();
                log.wake();
            }
            Err(error) => return Err(error),
        }
    }
}

/// Refuses the waiting requests that `which` selects, because the disk is full. The others come from the dispatch loop
/// and the store's own upkeep, which bound how many there are.
fn refuse(waiting: &mut Vec<WriteRequest>, which: impl Fn(&WriteRequest) -> bool, arrivals: &Arrivals) {
    let some: Vec<_> = waiting.extract_if(.., |request| which(request)).collect();
    let refused = (0..some.len()).map(|place| (place, StoreError::Full)).collect();
    answer(some, refused, arrivals);
}

/// How many of these requests fit into one group: at least one, if there is any.
fn fitting(waiting: &[WriteRequest]) -> usize {
    let (mut rows, mut bytes) = (0, 0);
    let full = waiting.iter().position(|request| {
        let full = rows >= GROUP_ROWS_MAX || bytes >= GROUP_BYTES_MAX;
        let (more_rows, more_bytes) = request.weight();
        rows += more_rows;
        bytes += more_bytes;
        full
    });
    full.unwrap_or(waiting.len())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use posthaste_core::Timestamp;

    use super::*;
    use crate::journal::Entries;
    use crate::sqlite::fixture::fresh;
    use crate::sqlite::request::{Asker, WorkCall};

    #[tokio::test]
    async fn work_of_a_caller_that_hung_up_is_not_begun() {
        let (_folder, store, session) = fresh().await;
        for (by, done) in [(Asker::Caller, 0), (Asker::Within, 1)] {
            let count = Arc::new(AtomicUsize::new(0));
            let (reply, answer) = oneshot::channel();
            drop(answer);
            let counts = Arc::clone(&count);
            let run = move |_: &Connection, _: &mut Entries| Ok(counts.fetch_add(1, Ordering::Relaxed));
            store.writer.send(WriteRequest::work(session, 1, by, WorkCall::new(run, reply))).await.expect("a place");
            store.work(session, 1, |_| Ok(())).await.expect("it is done after it");
            assert_eq!(count.load(Ordering::Relaxed), done, "{by:?}");
        }
        store.close().await;
    }

    #[tokio::test]
    async fn requests_while_the_writer_stops_get_an_error() {
        let (_folder, store, _) = fresh().await;
        let requests = &store.writer.requests;
        let place = requests.reserve().await.expect("a place");
        requests.send(WriteRequest::Stop).await.expect("a place");
        requests.closed().await;
        let (reply, answer) = oneshot::channel();
        place.send(WriteRequest::Open { at: Timestamp::default(), start: None, reply });
        assert!(answer.await.is_err(), "the reply channel is closed");
    }
}
