//! A receiver of the demo: a real socket with a role and a log.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::RETRY_AFTER;
use hyper::{Request, Response, StatusCode};
use posthaste_crypto::signature::Secret;
use posthaste_engine::clock::Clock;
use posthaste_testkit::receivers::{HttpReceiver, Responder, TimedResponse, field, is_signed};

use super::behaviour::{ReceiverBehaviour, ReceiverHealth};
use super::log::{RequestLog, RequestNumber};
use super::plan::{DemoClock, ReceiverName, SCALE};

/// A receiver that listens on loopback until it is dropped.
#[derive(Debug)]
pub(super) struct DemoReceiver {
    pub(super) who: ReceiverName,
    /// The id of its endpoint; empty until that is created.
    pub(super) endpoint: String,
    http: HttpReceiver<ReceiverState>,
}

#[derive(Debug)]
struct ReceiverState {
    clock: Arc<DemoClock>,
    secret: Secret,
    behaviour: Mutex<ReceiverBehaviour>,
    log: Mutex<RequestLog>,
}

/// The signed request that a response answers.
#[derive(Clone, Debug)]
struct AnsweredRequest {
    number: RequestNumber,
    message: String,
}

impl DemoReceiver {
    pub(super) async fn start(who: ReceiverName, clock: &Arc<DemoClock>) -> Result<Self> {
        let (behaviour, log) = (Mutex::new(ReceiverBehaviour::of(who, &clock.plan)), Mutex::default());
        let state = ReceiverState { clock: Arc::clone(clock), secret: Secret::generate(), behaviour, log };
        let http = HttpReceiver::listen(state).await.context("cannot listen on this machine")?;
        Ok(Self { who, endpoint: String::new(), http })
    }

    pub(super) fn as_endpoint(&self) -> serde_json::Value {
        let secret = self.http.responder().secret.reveal();
        let ttl = (self.who == ReceiverName::Partner).then(|| self.http.responder().clock.plan.ttl.as_secs());
        serde_json::json!({
            "url": format!("http://{}/{}", self.http.address, self.who.name()),
            "ttl": ttl,
            "signing": { "secret": secret.as_str() },
        })
    }

    pub(super) fn log(&self) -> MutexGuard<'_, RequestLog> {
        lock(&self.http.responder().log)
    }

    pub(super) fn does(&self) -> (ReceiverHealth, String) {
        lock(&self.http.responder().behaviour).does(self.http.responder().clock.now())
    }

    /// The number of requests that came before the time of a `Retry-After`.
    pub(super) fn early(&self) -> usize {
        lock(&self.http.responder().behaviour).early()
    }
}

impl Responder for ReceiverState {
    fn answer(&self, request: Request<Bytes>) -> TimedResponse {
        let number = lock(&self.log).arrived(self.clock.now());
        if !is_signed(&self.secret, &request, self.clock.system.now()) {
            lock(&self.log).forged += 1;
            return StatusCode::BAD_REQUEST.into();
        }
        let reply = lock(&self.behaviour).answer(self.clock.now());
        // Without a status it never answers: the sender times out and closes the connection.
        let after = reply.status.map_or(Duration::MAX, |_| reply.after / SCALE);
        let status = reply.status.and_then(|status| StatusCode::from_u16(status).ok());
        let mut response = TimedResponse::from(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)).response;
        if let Some(seconds) = reply.retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response.extensions_mut().insert(AnsweredRequest { number, message: field(&request, "webhook-id").to_owned() });
        TimedResponse { response, after }
    }

    fn is_answering(&self, response: &Response<Full<Bytes>>) {
        if let Some(AnsweredRequest { number, message }) = response.extensions().get() {
            lock(&self.log).answered(*number, message, response.status().as_u16());
        }
    }
}

fn lock<T>(one: &Mutex<T>) -> MutexGuard<'_, T> {
    one.lock().unwrap_or_else(PoisonError::into_inner)
}
