//! The threads that read. Each has a connection of its own, so a long look at the table delays
//! nobody else; all take their work from one bounded queue.

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::failed;
use super::thread::Joined;
use crate::StoreError;

/// As many as may look at the table at once.
pub(super) const READERS: usize = 4;

/// Reads that wait for a thread; the next caller waits in its own task.
const QUEUE: usize = 256;

enum Job {
    Read(Box<dyn FnOnce(&Connection) + Send>),
    Stop,
}

/// The reading threads.
#[derive(Debug)]
pub(super) struct Readers {
    // Dropped before the threads are joined: that is what ends them.
    jobs: mpsc::Sender<Job>,
    _threads: Vec<Joined>,
}

impl Readers {
    pub(super) fn start(connections: Vec<Connection>) -> Result<Self, StoreError> {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let queue = Arc::new(Mutex::new(queue));
        let threads = connections
            .into_iter()
            .map(|conn| {
                let queue = Arc::clone(&queue);
                Joined::spawn("store-reader", move || serve(&conn, &queue))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { jobs, _threads: threads })
    }

    /// Runs `read` on one of the threads. All it reads is as of one moment.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let job = move |conn: &Connection| {
            let moment = conn.unchecked_transaction().map_err(failed("begin to read"));
            _ = reply.send(moment.and_then(|moment| read(&moment)));
        };
        self.jobs.send(Job::Read(Box::new(job))).await.map_err(|_| StoreError::Stopped)?;
        answer.await.map_err(|_| StoreError::Stopped)?
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

fn serve(conn: &Connection, queue: &Mutex<mpsc::Receiver<Job>>) {
    loop {
        // Whoever waits holds the lock; it is free again before the work begins.
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
        match job {
            Some(Job::Read(read)) => read(conn),
            Some(Job::Stop) | None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_read_sees_nothing_of_what_is_written_meanwhile() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let open = || Connection::open(folder.path().join("some.db")).expect("a file");
        let writer = open();
        writer.execute_batch("PRAGMA journal_mode = wal; CREATE TABLE some (id)").expect("a fresh file");
        let readers = Readers::start(vec![open()]).expect("a thread");
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
