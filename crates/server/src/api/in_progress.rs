//! Concurrent requests with the same `Idempotency-Key`: one runs, and the others wait for its answer, for five seconds
//! at most.
//!
//! The store alone guarantees idempotency. This layer only bounds how long such requests wait. It knows them by their
//! `Authorization` header, so requests with different API keys of one tenant are not matched here, only in the store.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::caller::TENANT;
use super::idempotency::KEY;
use crate::problem::{Code, Problem};

/// How long a request waits for the first one with its key.
const WAIT: Duration = Duration::from_secs(5);
/// `Retry-After` for a request that has waited in vain, in seconds.
const ASK_AGAIN: u64 = 1;

/// The keyed requests under way.
#[derive(Debug, Default)]
pub(crate) struct InProgress {
    hasher: RandomState,
    /// Notifies the waiting requests when the one under way ends.
    under_way: Mutex<HashMap<u64, Arc<Notify>>>,
}

/// A request under way; dropping it lets the next one with its key run.
#[derive(Debug)]
struct Entered<'a> {
    all: &'a InProgress,
    id: u64,
}

/// The first request was still running after [`WAIT`].
#[derive(Debug, PartialEq, Eq)]
struct StillRunning;

/// A layer that runs requests with the same idempotency key one after the other.
pub(crate) async fn run_in_turn(State(all): State<Arc<InProgress>>, request: Request, next: Next) -> Response {
    let Some(id) = all.id(request.headers()) else { return next.run(request).await };
    match all.enter(id).await {
        Ok(_entered) => next.run(request).await,
        Err(StillRunning) => {
            let detail = "the first request with this key is still running; send it again to get its answer";
            Problem::new(Code::IdempotencyInProgress, detail).after(ASK_AGAIN).into_response()
        }
    }
}

impl InProgress {
    /// Hashes the caller and the idempotency key of a request; `None` without a key.
    fn id(&self, headers: &HeaderMap) -> Option<u64> {
        let key = headers.get(KEY)?;
        let mut hasher = self.hasher.build_hasher();
        for name in [AUTHORIZATION, TENANT] {
            headers.get(name).map(http::HeaderValue::as_bytes).hash(&mut hasher);
        }
        key.as_bytes().hash(&mut hasher);
        Some(hasher.finish())
    }

    async fn enter(&self, id: u64) -> Result<Entered<'_>, StillRunning> {
        let until = Instant::now() + WAIT;
        loop {
            let first = match self.lock().entry(id) {
                Entry::Vacant(free) => {
                    free.insert(Arc::default());
                    return Ok(Entered { all: self, id });
                }
                Entry::Occupied(first) => Arc::clone(first.get()),
            };
            let mut ended = std::pin::pin!(first.notified());
            // The first may have ended before this one began to wait.
            ended.as_mut().enable();
            if self.lock().get(&id).is_some_and(|now| Arc::ptr_eq(now, &first)) {
                timeout_at(until, ended).await.map_err(|_| StillRunning)?;
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Notify>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(ended) = self.all.lock().remove(&self.id) {
            ended.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_second_request_waits_five_seconds_for_the_first() {
        let all = InProgress::default();
        let first = all.enter(7).await.expect("no other request is under way");
        let began = Instant::now();
        assert_eq!(all.enter(7).await.err(), Some(StillRunning));
        assert_eq!(began.elapsed(), WAIT);
        assert!(all.enter(8).await.is_ok(), "a request with another key does not wait");
        let second = async { all.enter(7).await.map(drop) };
        let ends = async {
            tokio::time::advance(Duration::from_secs(2)).await;
            drop(first);
        };
        assert_eq!(tokio::join!(second, ends).0, Ok(()), "it runs as soon as the first has ended");
        assert_eq!(began.elapsed(), WAIT + Duration::from_secs(2));
        assert!(all.lock().is_empty(), "entries of ended requests are removed");
    }

    #[test]
    fn requests_are_matched_by_caller_and_key() {
        let all = InProgress::default();
        let id = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, http::HeaderValue::from_static(value));
            }
            all.id(&headers)
        };
        assert_eq!(id(&[("authorization", "Bearer a")]), None, "a request without a key does not wait");
        let one = id(&[("authorization", "Bearer a"), ("idempotency-key", "k")]);
        assert_eq!(one, id(&[("authorization", "Bearer a"), ("idempotency-key", "k")]));
        assert_ne!(one, id(&[("authorization", "Bearer b"), ("idempotency-key", "k")]));
        assert_ne!(one, id(&[("authorization", "Bearer a"), ("idempotency-key", "l")]));
    }
}
