//! Acts: what is carried out to its end once it has begun, whether or not whoever asked for it still waits.
//!
//! A verb that writes to the store and then tells memory of it is an act. Its caller may hang up between the two, and
//! a future that is dropped there would leave memory with what was: a revoked key that goes on to admit. So such a
//! verb hands its act over to the engine, which carries it out beside its loop, and waits for the answer; whoever drops
//! the wait drops nothing else.
//!
//! Invariant: what was handed over ends before the engine does. An act is short: whatever only reads, or waits for
//! somebody else, stays with the caller.

use std::future::Future;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::dispatch::driver::Ended;
use crate::engine::Engine;

/// Acts under way at once; whoever brings one more waits at the door. There is one writer, so more would wait for it.
const ACTS_MAX: usize = 1_024;

type Act = BoxFuture<'static, ()>;

/// Where acts are handed over.
#[derive(Debug)]
pub(crate) struct Acts {
    handed: mpsc::Sender<Act>,
    /// Each act has a place until it has ended.
    places: Arc<Semaphore>,
}

/// What carries them out.
pub(crate) struct Carrier {
    handed: mpsc::Receiver<Act>,
}

impl Acts {
    pub(crate) fn new() -> (Self, Carrier) {
        let (sender, handed) = mpsc::channel(ACTS_MAX);
        (Self { handed: sender, places: Arc::new(Semaphore::new(ACTS_MAX)) }, Carrier { handed })
    }

    /// Has an act carried out, and waits for its answer.
    async fn carry_out<T: Send + 'static>(&self, act: impl Future<Output = T> + Send + 'static) -> Result<T, Ended> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| Ended)?;
        let (answer, answered) = oneshot::channel();
        let act = async move {
            // Whoever asked may have left; the work is done all the same.
            _ = answer.send(act.await);
            drop(place);
        };
        // Whoever has a place finds room: what is not taken is that the engine has ended.
        self.handed.try_send(Box::pin(act)).map_err(|_| Ended)?;
        answered.await.map_err(|_| Ended)
    }

    /// Waits until nothing is under way.
    #[cfg(test)]
    pub(crate) async fn all_ended(&self) {
        let all = u32::try_from(ACTS_MAX).expect("it is small");
        drop(self.places.acquire_many(all).await);
    }
}

impl Carrier {
    /// Carries out what is handed over until `stop`, and ends what was handed over by then.
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
    /// Carries out an act to its end, and gives its answer to whoever still waits for it.
    pub(crate) async fn act<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        self: &Arc<Self>,
        act: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T, Ended> {
        self.acts.carry_out(act(Arc::clone(self))).await
    }
}

#[cfg(test)]
mod tests;
