//! A receiver of the demo: a real socket with a role, and a log that the ledger compares the server's results with.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::RETRY_AFTER;
use hyper::{Request, Response, StatusCode};
use posthaste_crypto::signature::Secret;
use posthaste_engine::clock::Clock;
use posthaste_prove::chart::Second;
use posthaste_testkit::receivers::{HttpReceiver, Responder, TimedResponse, field, is_signed};

use super::behaviour::{ReceiverBehaviour, ReceiverHealth};
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

/// The requests that a receiver got.
#[derive(Debug, Default)]
pub(super) struct RequestLog {
    arrivals: Vec<Arrival>,
    taken: BTreeMap<String, usize>,
    /// Requests without a valid signature. They are refused.
    pub(super) forged: usize,
}

#[derive(Clone, Copy, Debug)]
struct Arrival {
    at: Duration,
    /// The status that was answered; `None` if the sender closed the connection before.
    answer: Option<u16>,
}

/// The index of a request in the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestNumber(usize);

impl RequestLog {
    pub(super) fn arrived(&mut self, at: Duration) -> RequestNumber {
        self.arrivals.push(Arrival { at, answer: None });
        RequestNumber(self.arrivals.len() - 1)
    }

    pub(super) fn answered(&mut self, RequestNumber(index): RequestNumber, message: &str, status: u16) {
        self.arrivals[index].answer = Some(status);
        if is_taken(status) {
            *self.taken.entry(message.to_owned()).or_default() += 1;
        }
    }

    pub(super) fn requests(&self) -> usize {
        self.arrivals.len()
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.len()
    }

    pub(super) fn times_taken(&self, message: &str) -> usize {
        self.taken.get(message).copied().unwrap_or(0)
    }

    pub(super) fn duplicates(&self) -> usize {
        self.taken.values().map(|times| times - 1).sum()
    }

    pub(super) fn seconds(&self, length: Duration) -> Vec<Second> {
        let mut seconds = vec![Second::default(); usize::try_from(length.as_secs()).unwrap_or(0)];
        for arrival in &self.arrivals {
            let index = usize::try_from(arrival.at.as_secs()).unwrap_or(usize::MAX);
            let Some(second) = seconds.get_mut(index) else { continue };
            second.tries += 1;
            second.failed += u32::from(!arrival.answer.is_some_and(is_taken));
        }
        seconds
    }
}

fn is_taken(status: u16) -> bool {
    (200..300).contains(&status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_messages_are_duplicates_and_unanswered_requests_have_failed() {
        let mut log = RequestLog::default();
        let at = |second: u64| Duration::from_millis(second * 1_000 + 500);
        for (second, message, status) in [(0, "a", 204), (0, "a", 204), (1, "b", 502), (1, "b", 204)] {
            let entry = log.arrived(at(second));
            log.answered(entry, message, status);
        }
        log.arrived(at(2));
        assert_eq!((log.requests(), log.taken(), log.duplicates()), (5, 2, 1));
        assert_eq!((log.times_taken("a"), log.times_taken("b"), log.times_taken("c")), (2, 1, 0));
        let loads: Vec<(u32, u32)> =
            log.seconds(Duration::from_secs(2)).iter().map(|second| (second.tries, second.failed)).collect();
        assert_eq!(loads, [(2, 0), (2, 1)], "the chart ends before the last request");
    }
}
