//! Detached tasks: futures that run to their end once they have begun, even if the caller stops waiting.
//!
//! A method that writes to the store and then updates memory runs detached. Its caller may disconnect between the two;
//! if the future were dropped there, memory would keep the old state, and a revoked key would still be admitted. So the
//! method hands the future to the engine, which runs it beside the dispatch loop, and waits for the answer. Dropping the
//! wait does not drop the future.
//!
//! Invariant: every task that was handed over ends before the engine does. A task is short: code that only reads, or
//! waits for another party, stays in the caller's own future.

use std::future::Future;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{Engine, EngineStopped};

/// Tasks under way at once; the caller of one more waits. The store has one writer thread, so more at once would only
/// wait for it.
const TASKS_MAX: usize = 1_024;

type Task = BoxFuture<'static, ()>;

/// The sending side: hands tasks to the [`DetachedRunner`].
#[derive(Debug)]
pub(crate) struct DetachedTasks {
    handed: mpsc::Sender<Task>,
    /// Each task holds a permit until it has ended.
    permits: Arc<Semaphore>,
}

/// The receiving side: runs the tasks.
pub(crate) struct DetachedRunner {
    handed: mpsc::Receiver<Task>,
}

impl DetachedTasks {
    pub(crate) fn new() -> (Self, DetachedRunner) {
        let (sender, handed) = mpsc::channel(TASKS_MAX);
        (Self { handed: sender, permits: Arc::new(Semaphore::new(TASKS_MAX)) }, DetachedRunner { handed })
    }

    /// Hands a task to the runner, and waits for its answer.
    async fn carry_out<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, EngineStopped> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| EngineStopped)?;
        let (answer, answered) = oneshot::channel();
        let task = async move {
            // The caller may have stopped waiting; the task runs to its end all the same.
            _ = answer.send(task.await);
            drop(permit);
        };
        // The channel has room for every permit, so this fails only when the engine has ended.
        self.handed.try_send(Box::pin(task)).map_err(|_| EngineStopped)?;
        answered.await.map_err(|_| EngineStopped)
    }

    /// Waits until no task is under way.
    #[cfg(test)]
    pub(crate) async fn all_ended(&self) {
        let all = u32::try_from(TASKS_MAX).expect("it is small");
        drop(self.permits.acquire_many(all).await);
    }
}

impl DetachedRunner {
    /// Runs tasks. After `stop` it takes no new ones, and returns when those it has have ended.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut under_way = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled(), if !self.handed.is_closed() => self.handed.close(),
                Some(()) = under_way.next(), if !under_way.is_empty() => {}
                task = self.handed.recv() => match task {
                    Some(task) => under_way.push(task),
                    None => break,
                },
            }
        }
        while under_way.next().await.is_some() {}
    }
}

impl<S, C> Engine<S, C> {
    /// Runs a future to its end, and returns its answer if the caller still waits for it.
    pub(crate) async fn run_detached<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        self: &Arc<Self>,
        make: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T, EngineStopped> {
        self.detached.carry_out(make(Arc::clone(self))).await
    }
}

#[cfg(test)]
mod tests;
