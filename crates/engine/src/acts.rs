//! Acts: futures that run to their end once they have begun, even if the caller stops waiting.
//!
//! A method that writes to the store and then updates memory is an act. Its caller may disconnect between the two; if
//! the future were dropped there, memory would keep the old state, and a revoked key would still be admitted. So the
//! method hands its act to the engine, which runs it beside the dispatch loop, and waits for the answer. Dropping the
//! wait does not drop the act.
//!
//! Invariant: every act that was handed over ends before the engine does. An act is short: code that only reads, or
//! waits for another party, stays in the caller's own future.

use std::future::Future;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::dispatch::driver::Ended;
use crate::engine::Engine;

/// Acts under way at once; the caller of one more waits. The store has one writer thread, so more at once would only
/// wait for it.
const ACTS_MAX: usize = 1_024;

type Act = BoxFuture<'static, ()>;

/// The sending side: hands acts to the [`Carrier`].
#[derive(Debug)]
pub(crate) struct Acts {
    handed: mpsc::Sender<Act>,
    /// Each act holds a permit until it has ended.
    permits: Arc<Semaphore>,
}

/// The receiving side: runs the acts.
pub(crate) struct Carrier {
    handed: mpsc::Receiver<Act>,
}

impl Acts {
    pub(crate) fn new() -> (Self, Carrier) {
        let (sender, handed) = mpsc::channel(ACTS_MAX);
        (Self { handed: sender, permits: Arc::new(Semaphore::new(ACTS_MAX)) }, Carrier { handed })
    }

    /// Hands an act to the carrier, and waits for its answer.
    async fn carry_out<T: Send + 'static>(&self, act: impl Future<Output = T> + Send + 'static) -> Result<T, Ended> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| Ended)?;
        let (answer, answered) = oneshot::channel();
        let act = async move {
            // The caller may have stopped waiting; the act runs to its end all the same.
            _ = answer.send(act.await);
            drop(permit);
        };
        // The channel has room for every permit, so this fails only when the engine has ended.
        self.handed.try_send(Box::pin(act)).map_err(|_| Ended)?;
        answered.await.map_err(|_| Ended)
    }

    /// Waits until no act is under way.
    #[cfg(test)]
    pub(crate) async fn all_ended(&self) {
        let all = u32::try_from(ACTS_MAX).expect("it is small");
        drop(self.permits.acquire_many(all).await);
    }
}

impl Carrier {
    /// Runs acts. After `stop` it takes no new ones, and returns when those it has have ended.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut under_way = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled(), if !self.handed.is_closed() => self.handed.close(),
                Some(()) = under_way.next(), if !under_way.is_empty() => {}
                act = self.handed.recv() => match act {
                    Some(act) => under_way.push(act),
                    None => break,
                },
            }
        }
        while under_way.next().await.is_some() {}
    }
}

impl<S, C> Engine<S, C> {
    /// Runs an act to its end, and returns its answer if the caller still waits for it.
    pub(crate) async fn act<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        self: &Arc<Self>,
        act: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T, Ended> {
        self.acts.carry_out(act(Arc::clone(self))).await
    }
}

#[cfg(test)]
mod tests;
