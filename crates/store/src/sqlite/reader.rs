//! The reader threads. Each has a connection of its own, so a long read delays no other; all take their work from one
//! bounded queue. While a read lasts, the log cannot begin anew, so a read that lasts too long can be interrupted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, InterruptHandle};
use tokio::sync::{mpsc, oneshot};

use super::fault::is_interrupted;
use super::{Joined, failed};
use crate::StoreError;

pub(super) const READERS: usize = 4;

/// Reads that wait for a thread; the next caller waits in its own task.
const QUEUE: usize = 256;

enum Job {
    Read(Box<dyn FnOnce(&Connection) + Send>),
    Stop,
}

/// The reads under way, at most one for each connection.
pub(super) struct Looks {
    marks: AtomicU64,
    looks: Vec<Look>,
}

/// A point in the order in which reads begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark(u64);

struct Look {
    /// The last mark before the current read began; 0 while there is no read.
    since: AtomicU64,
    handle: InterruptHandle,
}

impl Looks {
    pub(super) fn of(connections: &[Connection]) -> Self {
        let look = |conn: &Connection| Look { since: AtomicU64::new(0), handle: conn.get_interrupt_handle() };
        Self { marks: AtomicU64::new(1), looks: connections.iter().map(look).collect() }
    }

    /// Makes a mark: reads that begin later come after it.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.marks.fetch_add(1, Ordering::Relaxed))
    }

    /// Interrupts the reads that began before the mark. Their callers get SQLite's "interrupted" error, and may try
    /// again.
    pub(super) fn end(&self, before: Mark) {
        for look in &self.looks {
            let since = look.since.load(Ordering::Relaxed);
            if since != 0 && since <= before.0 {
                tracing::warn!("ended a long read that kept the write-ahead log from being truncated");
                look.handle.interrupt();
            }
        }
    }

    fn begun(&self, place: usize) {
        self.looks[place].since.store(self.marks.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn ended(&self, place: usize) {
        self.looks[place].since.store(0, Ordering::Relaxed);
    }
}

pub(super) struct Readers {
    // Dropped before the threads are joined: the drop ends them.
    jobs: mpsc::Sender<Job>,
    _threads: Vec<Joined>,
}

impl Readers {
    /// Starts a thread for each connection. `looks` are made from the same connections, in the same order.
    pub(super) fn start(connections: Vec<Connection>, looks: &Arc<Looks>) -> Result<Self, StoreError> {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let queue = Arc::new(Mutex::new(queue));
        let threads = connections
            .into_iter()
            .enumerate()
            .map(|(place, conn)| {
                let (queue, looks) = (Arc::clone(&queue), Arc::clone(looks));
                Joined::spawn("store-reader", move || {
                    serve(&conn, &queue, &looks, place);
                    drop(conn);
                    // The last thread to end drops the jobs of callers that had reserved a place in the queue.
                    if let Some(queue) = Arc::into_inner(queue) {
                        refuse_rest(queue.into_inner().unwrap_or_else(PoisonError::into_inner));
                    }
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { jobs, _threads: threads })
    }

    /// Runs `read` on one of the threads, in one read transaction: all it reads is one snapshot.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let job = move |conn: &Connection| {
            let snapshot = conn.unchecked_transaction().map_err(failed("begin to read"));
            _ = reply.send(snapshot.and_then(|snapshot| read(&snapshot)));
        };
        self.jobs.send(Job::Read(Box::new(job))).await.map_err(|_| StoreError::Stopped)?;
        answer.await.map_err(|_| StoreError::Stopped)?
    }

    /// Like [`Self::read`], and reads once more if it was interrupted to keep the log within its bound.
    pub(super) async fn read_again<T: Send + 'static>(
        &self,
        read: impl Fn(&Connection) -> Result<T, StoreError> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        let read = Arc::new(read);
        let again = Arc::clone(&read);
        match self.read(move |conn| read(conn)).await {
            Err(error) if is_interrupted(&error) => self.read(move |conn| again(conn)).await,
            done => done,
        }
    }

    /// Lets the threads finish what is queued, and waits for their end.
    pub(super) async fn stop(&self) {
        for _ in 0..READERS {
            if self.jobs.send(Job::Stop).await.is_err() {
                return;
            }
        }
        self.jobs.closed().await;
    }
}

fn serve(conn: &Connection, queue: &Mutex<mpsc::Receiver<Job>>, looks: &Looks, place: usize) {
    loop {
        // The thread that waits for a job holds the lock, and releases it before it runs the job.
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        match job {
            Some(Job::Read(read)) => {
                looks.begun(place);
                read(conn);
                looks.ended(place);
                leave(conn);
            }
            Some(Job::Stop) | None => return,
        }
    }
}

/// Ends the read transaction if the interrupt has left it open: it would hold the log back, and the next read could not
/// begin.
fn leave(conn: &Connection) {
    if !conn.is_autocommit()
        && let Err(error) = conn.execute_batch("ROLLBACK")
    {
        tracing::warn!(%error, "a read transaction could not be ended");
    }
}

/// Drops the jobs that no thread will run: their callers get [`StoreError::Stopped`].
fn refuse_rest(mut queue: mpsc::Receiver<Job>) {
    queue.close();
    while queue.blocking_recv().is_some() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reads_while_the_readers_stop_get_an_error() {
        let connections = vec![Connection::open_in_memory().expect("memory is there")];
        let looks = Arc::new(Looks::of(&connections));
        let readers = Readers::start(connections, &looks).expect("a thread");
        let place = readers.jobs.reserve().await.expect("a place");
        readers.jobs.send(Job::Stop).await.expect("a place");
        readers.jobs.closed().await;
        let (reply, answer) = oneshot::channel::<()>();
        place.send(Job::Read(Box::new(move |_| drop(reply))));
        assert!(answer.await.is_err());
    }

    #[tokio::test]
    async fn read_again_repeats_an_interrupted_read_once() {
        let connections = vec![Connection::open_in_memory().expect("memory is there")];
        let looks = Arc::new(Looks::of(&connections));
        let readers = Readers::start(connections, &looks).expect("a thread");
        for (ended, read) in [(0, Some(0)), (1, Some(1)), (2, None)] {
            let reads = AtomicU64::new(0);
            let read_again = readers.read_again(move |_| {
                let before = reads.fetch_add(1, Ordering::Relaxed);
                if before < ended {
                    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_INTERRUPT);
                    return Err(failed("read")(rusqlite::Error::SqliteFailure(code, None)));
                }
                Ok(before)
            });
            assert_eq!(read_again.await.ok(), read, "ended {ended} times");
        }
    }

    #[test]
    fn an_open_read_transaction_is_ended_before_the_next_read() {
        let conn = Connection::open_in_memory().expect("memory is there");
        // An interrupted read leaves its transaction open.
        conn.execute_batch("BEGIN").expect("a transaction");
        leave(&conn);
        assert!(conn.is_autocommit());
    }

    #[tokio::test]
    async fn a_read_sees_no_write_made_meanwhile() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let open = || Connection::open(folder.path().join("some.db")).expect("a file");
        let writer = open();
        writer.execute_batch("PRAGMA journal_mode = wal; CREATE TABLE some (id)").expect("a fresh file");
        let connections = vec![open()];
        let looks = Arc::new(Looks::of(&connections));
        let readers = Readers::start(connections, &looks).expect("a thread");
        let count = |conn: &Connection| {
            conn.query_row("SELECT count(*) FROM some", [], |row| row.get::<_, i64>(0)).map_err(failed("count"))
        };
        let write = move || writer.execute_batch("INSERT INTO some VALUES (1)").map_err(failed("write"));
        let found = readers.read(move |conn| {
            let before = count(conn)?;
            write()?;
            Ok((before, count(conn)?))
        });
        assert_eq!(found.await.expect("a read"), (0, 0));
        assert_eq!(readers.read(count).await.expect("a read"), 1, "the next one sees it");
    }
}
