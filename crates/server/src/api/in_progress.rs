//! Requests with the same `Idempotency-Key` that come at once: one is carried out, the others wait for its answer, and
//! not for ever.
//!
//! The store alone decides what a key stands for. This only keeps twins from queueing behind one that is slow: whoever
//! presents another key of the same tenant is not known here for a twin, and is answered as exactly.

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

/// How long a twin waits for the first.
const WAIT: Duration = Duration::from_secs(5);
/// When it may ask again, in seconds.
const ASK_AGAIN: u64 = 1;

/// The keyed requests under way.
#[derive(Debug, Default)]
pub(crate) struct InProgress {
    hasher: RandomState,
    /// Whoever waits for each is told of its end.
    under_way: Mutex<HashMap<u64, Arc<Notify>>>,
}

/// One that is under way, until this goes.
#[derive(Debug)]
struct Entered<'a> {
    all: &'a InProgress,
    id: u64,
}

/// The first was still running after all that time.
#[derive(Debug, PartialEq, Eq)]
struct StillRunning;

/// Lets keyed requests in one by one.
pub(crate) async fn one_by_one(State(all): State<Arc<InProgress>>, request: Request, next: Next) -> Response {
    let Some(id) = all.id(request.headers()) else { return next.run(request).await };
    match all.enter(id).await {
        Ok(_entered) => next.run(request).await,
        Err(StillRunning) => {
            let detail = "the first request with this key is still being carried out; ask again for its answer";
            Problem::new(Code::IdempotencyInProgress, detail).after(ASK_AGAIN).into_response()
        }
    }
}

impl InProgress {
    /// Which request it is: whose, and under which key.
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
            // It may have ended between the look and the wait.
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
    async fn a_twin_waits_for_the_first_and_is_told_after_five_seconds() {
        let all = InProgress::default();
        let first = all.enter(7).await.expect("nobody else is there");
        let began = Instant::now();
        assert_eq!(all.enter(7).await.err(), Some(StillRunning));
        assert_eq!(began.elapsed(), WAIT);
        assert!(all.enter(8).await.is_ok(), "another key waits for nobody");
        let twin = async { all.enter(7).await.map(drop) };
        let ends = async {
            tokio::time::advance(Duration::from_secs(2)).await;
            drop(first);
        };
        assert_eq!(tokio::join!(twin, ends).0, Ok(()), "it comes in as soon as the first has ended");
        assert_eq!(began.elapsed(), WAIT + Duration::from_secs(2));
        assert!(all.lock().is_empty(), "nothing is left of those that have ended");
    }

    #[test]
    fn a_request_is_known_by_whose_it_is_and_its_key() {
        let all = InProgress::default();
        let id = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, http::HeaderValue::from_static(value));
            }
            all.id(&headers)
        };
        assert_eq!(id(&[("authorization", "Bearer a")]), None, "without a key nobody waits");
        let one = id(&[("authorization", "Bearer a"), ("idempotency-key", "k")]);
        assert_eq!(one, id(&[("authorization", "Bearer a"), ("idempotency-key", "k")]));
        assert_ne!(one, id(&[("authorization", "Bearer b"), ("idempotency-key", "k")]));
        assert_ne!(one, id(&[("authorization", "Bearer a"), ("idempotency-key", "l")]));
    }
}
