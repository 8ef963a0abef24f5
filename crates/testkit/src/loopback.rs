//! A transport inside the process: a function judges every attempt, and the result is reported after a fixed time. The
//! payload is passed with the attempt or read from the store, as in production.

use std::collections::VecDeque;
use std::fmt;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use posthaste_core::cause::Cause;
use posthaste_core::delivery::Verdict;
use posthaste_core::time::Timestamp;
use posthaste_engine::dispatch::driver::Transport;
use posthaste_engine::dispatch::{Finished, SendAttempt};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Archive, Message, StoreError};
use tokio::time::Instant;

/// The receiver: judges each attempt.
pub type Receive = Box<dyn FnMut(&SendAttempt, &Message) -> Verdict + Send>;

type Read = Pin<Box<dyn Future<Output = (SendAttempt, Result<Option<Arc<Message>>, StoreError>)> + Send>>;

/// The transport.
pub struct Loopback {
    store: Arc<Sqlite>,
    receive: Receive,
    /// The time of an attempt: the same for all, so that they end in order.
    takes: Duration,
    reads: FuturesUnordered<Read>,
    under_way: VecDeque<(Instant, Finished)>,
}

impl Loopback {
    /// A transport whose attempts take this long.
    pub fn new(store: Arc<Sqlite>, takes: Duration, receive: Receive) -> Self {
        Self { store, receive, takes, reads: FuturesUnordered::new(), under_way: VecDeque::new() }
    }

    fn arrives(&mut self, send: &SendAttempt, message: Result<&Message, Cause>) {
        let verdict = message.map_or_else(Verdict::of, |message| (self.receive)(send, message));
        let finished = Finished { delivery: send.start.delivery, verdict, took: self.takes, excerpt: None };
        self.under_way.push_back((Instant::now() + self.takes, finished));
    }
}

impl Transport for Loopback {
    fn send(&mut self, send: SendAttempt, _now: Timestamp) {
        match send.message.clone() {
            Some(message) => self.arrives(&send, Ok(&message)),
            None => {
                let store = Arc::clone(&self.store);
                self.reads.push(Box::pin(async move {
                    let message = store.message(send.start.message).await;
                    (send, message)
                }));
            }
        }
    }

    async fn finished(&mut self) -> Vec<Finished> {
        loop {
            let now = Instant::now();
            let ended = self.under_way.partition_point(|(at, _)| *at <= now);
            if ended > 0 {
                return self.under_way.drain(..ended).map(|(_, finished)| finished).collect();
            }
            let next = self.under_way.front().map(|(at, _)| *at);
            tokio::select! {
                biased;
                Some((send, message)) = self.reads.next(), if !self.reads.is_empty() => {
                    // As in production: an attempt whose message cannot be read is retried; with an altered or erased
                    // message it is not.
                    let message = match &message {
                        Ok(Some(message)) => Ok(&**message),
                        Err(StoreError::Altered { .. }) => Err(Cause::TokenRejected),
                        Ok(None) => Err(Cause::Erased),
                        Err(_) => Err(Cause::StoreUnavailable),
                    };
                    self.arrives(&send, message);
                }
                () = tokio::time::sleep_until(next.unwrap_or(now)), if next.is_some() => {}
                else => pending().await,
            }
        }
    }
}

impl fmt::Debug for Loopback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loopback").field("takes", &self.takes).finish_non_exhaustive()
    }
}

/// The verdict of an attempt that the receiver accepted.
pub fn taken() -> Verdict {
    Verdict { status: Some(204), ..Verdict::of(Cause::Ok) }
}
