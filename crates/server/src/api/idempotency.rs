//! Reads the `Idempotency-Key` of a request that creates something: a second request with the same key and body gets
//! the first one's answer (A5). The store alone guarantees that, and keeps keys and answers.
//!
//! Of concurrent requests with the same key one runs, and the others wait for its answer, for five seconds at most.
//! [`InProgress`] only bounds that wait. It knows requests by their `Authorization` header, so those with different API
//! keys of one tenant are not matched here, only in the store.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use posthaste_core::TenantId;
use posthaste_crypto::digest::{self, Digest};
use posthaste_engine::tenants::Made;
use posthaste_store::FirstAnswer;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::caller::TENANT;
use super::prelude::*;
use super::{json_bytes, json_vec};
use crate::value;

pub(super) const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// The longest key that is accepted.
const KEY_BYTES_MAX: usize = 128;

/// How long a request waits for the first one with its key.
const WAIT: Duration = Duration::from_secs(5);
/// `Retry-After` for a request that has waited in vain, in seconds.
const ASK_AGAIN: u64 = 1;

/// Reads a body and, if the request has one, its key with the digest of the request.
pub(super) async fn keyed_body(tenant: TenantId, mut request: Request) -> Result<(Bytes, Option<(String, Digest)>)> {
    let key = key(request.headers())?;
    request.headers_mut().remove(KEY);
    let path = request.uri().path().to_owned();
    let body = body(request).await?;
    let key = key.map(|key| (key, stands_for(tenant, &path, &body)));
    Ok((body, key))
}

/// The digest of a request that its key stands for: tenant, path and body.
pub(super) fn stands_for(tenant: TenantId, path: &str, body: &[u8]) -> Digest {
    digest::hash_parts(&[&tenant.raw().to_be_bytes(), path.as_bytes(), body])
}

/// Repeats the first answer to a request, marked with `Idempotency-Replayed`.
pub(super) fn replayed(answer: FirstAnswer) -> Response {
    let mut response = first(answer);
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

/// The first answer to a request, which the store keeps with the request's key.
pub(super) fn first_answer(status: StatusCode, body: &impl Serialize) -> FirstAnswer {
    FirstAnswer { status: status.as_u16(), body: json_vec(body).into() }
}

/// Answers a request that made something, or repeats the first answer.
pub(super) fn made<T>(made: Made<T>, answer: impl FnOnce(&T) -> FirstAnswer) -> Response {
    match made {
        Made::Now(made) => first(answer(&made)),
        Made::Before(first) => replayed(first),
    }
}

pub(super) fn first(FirstAnswer { status, body }: FirstAnswer) -> Response {
    json_bytes(StatusCode::from_u16(status).unwrap_or(StatusCode::OK), body)
}

/// Reads the key, with or without quotes.
fn key(headers: &HeaderMap) -> Result<Option<String>> {
    let mut given = headers.get_all(KEY).iter();
    let Some(first) = given.next() else { return Ok(None) };
    let written = first.as_bytes();
    let bare = written.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(written);
    match std::str::from_utf8(bare) {
        Ok(key) if is_key(key) && given.next().is_none() => Ok(Some(key.to_owned())),
        _ => {
            let detail = format!("give one Idempotency-Key of 1 to {KEY_BYTES_MAX} visible ASCII characters");
            Err(Problem::new(Code::InvalidIdempotencyKey, detail))
        }
    }
}

pub(super) fn key_of_line(raw: &RawValue) -> Result<String, String> {
    let key = value::text(raw)?;
    if is_key(&key) {
        Ok(key)
    } else {
        Err(format!("must be 1 to {KEY_BYTES_MAX} visible ASCII characters, no quotes"))
    }
}

fn is_key(text: &str) -> bool {
    let visible = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"');
    visible && (1..=KEY_BYTES_MAX).contains(&text.len())
}

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
            headers.get(name).map(HeaderValue::as_bytes).hash(&mut hasher);
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

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Notify>>> {
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

    fn check(values: &[&str], expected: Option<Option<&str>>) {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(KEY, HeaderValue::try_from(*value).expect("a header's value"));
        }
        assert_eq!(key(&headers).ok(), expected.map(|key| key.map(str::to_owned)), "{values:?}");
    }

    #[test]
    fn a_key_is_1_to_128_visible_characters_bare_or_quoted() {
        check(&[], Some(None));
        check(&["order-99"], Some(Some("order-99")));
        check(&["\"order-99\""], Some(Some("order-99")));
        check(&[&"k".repeat(128)], Some(Some(&"k".repeat(128))));
        for bad in ["", "\"\"", "\"", "a b", "a\"b", "\"a", &"k".repeat(129), "schlüssel"] {
            check(&[bad], None);
        }
        check(&["a", "a"], None);
    }

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
                headers.insert(*name, HeaderValue::from_static(value));
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
