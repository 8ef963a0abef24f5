//! Producers that call a real server, and the ledger of messages that it acknowledged to them. The ledger is outside
//! the server's process, so it survives the server's death.
//!
//! A producer hands in one message after the other, each under an idempotency key of its own, and sends it again under
//! the same key until it is acknowledged: a refused or broken connection acknowledges nothing, and neither does a
//! refusal. So in the end every message that the server has is in the ledger, even if the first answer was lost.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONNECTION, RETRY_AFTER};
use hyper::{Method, StatusCode};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::caller::{Answer, Line};

/// The pause before a producer tries again to connect.
const RECONNECT_AFTER: Duration = Duration::from_millis(5);
/// How many different unexpected answers are kept.
const SURPRISES_KEPT: usize = 20;

/// The acknowledged messages, and counts of refusals.
#[derive(Debug, Default)]
pub struct Ledger {
    pages: Mutex<Pages>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Pages {
    promised: BTreeSet<String>,
    refusals: Refusals,
    surprises: BTreeSet<String>,
}

/// How often messages were refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Refusals with 429.
    pub by_quota: u64,
    /// Refusals with 503.
    pub by_server: u64,
    /// Refusals of both kinds without a valid `Retry-After`.
    pub without_retry_after: u64,
    /// Calls that were not answered: the connection was refused, or broke.
    pub unanswered: u64,
}

impl Ledger {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ids of all acknowledged messages.
    pub fn promised(&self) -> BTreeSet<String> {
        self.pages().promised.clone()
    }

    /// How many messages were acknowledged.
    pub fn count(&self) -> usize {
        self.pages().promised.len()
    }

    /// The counts of refusals.
    pub fn refusals(&self) -> Refusals {
        self.pages().refusals
    }

    /// Answers that are neither an acknowledgement nor a refusal. There should be none.
    pub fn surprises(&self) -> BTreeSet<String> {
        self.pages().surprises.clone()
    }

    /// Waits until `enough` holds for the number of acknowledged messages and the refusals. Returns `false` after the
    /// time `within`.
    pub async fn waits_for(&self, within: Duration, enough: impl Fn(usize, Refusals) -> bool) -> bool {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                if enough(self.count(), self.refusals()) {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(within, waiting).await.is_ok()
    }

    /// Records an answer. Returns whether the message is not to be sent again.
    fn note(&self, answer: &Answer) -> bool {
        let mut pages = self.pages();
        let refusals = &mut pages.refusals;
        let promised = match answer.status {
            StatusCode::ACCEPTED => answer.text("id").map(str::to_owned),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                let by_quota = answer.status == StatusCode::TOO_MANY_REQUESTS;
                refusals.by_quota += u64::from(by_quota);
                refusals.by_server += u64::from(!by_quota);
                let after = answer.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
                refusals.without_retry_after += u64::from(after.is_none_or(|seconds| seconds == 0));
                drop(pages);
                self.changed.notify_waiters();
                return false;
            }
            _ => None,
        };
        match promised {
            Some(id) => _ = pages.promised.insert(id),
            None if pages.surprises.len() < SURPRISES_KEPT => {
                pages.surprises.insert(format!("{} {}", answer.status, answer.body));
            }
            None => {}
        }
        drop(pages);
        self.changed.notify_waiters();
        // After an unexpected answer too: sending the message again would get the same answer.
        true
    }

    fn note_unanswered(&self) {
        self.pages().refusals.unanswered += 1;
        self.changed.notify_waiters();
    }
}

/// The messages that producers hand in, and their pace.
#[derive(Clone, Debug)]
pub struct Load {
    /// The number of producers, each with one message under way.
    pub producers: usize,
    /// How many bytes of text a payload has.
    pub payload_bytes: Range<usize>,
    /// How long a producer pauses after each acknowledgement.
    pub pause: Range<Duration>,
    /// The tier of the messages.
    pub tier: &'static str,
    /// How long a producer waits after a refusal. It ignores `Retry-After`, in order to notice at once when the server
    /// accepts again.
    pub patience: Duration,
    /// Further request headers.
    pub fields: Vec<(&'static str, String)>,
}

impl Load {
    /// Producers of small events without pauses.
    pub fn of(producers: usize) -> Self {
        Self {
            producers,
            payload_bytes: 100..900,
            pause: Duration::ZERO..Duration::ZERO,
            tier: "promotional",
            patience: Duration::from_millis(20),
            fields: Vec::new(),
        }
    }
}

/// Producers at work.
#[derive(Debug)]
pub struct Producers {
    ledger: Arc<Ledger>,
    address: watch::Sender<SocketAddr>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Producers {
    /// Starts to hand in messages at this address.
    pub fn start(load: &Load, address: SocketAddr) -> Self {
        let ledger = Arc::new(Ledger::default());
        let (address, found_at) = watch::channel(address);
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for number in 0..load.producers {
            let producer = Producer {
                number,
                load: load.clone(),
                ledger: Arc::clone(&ledger),
                found_at: found_at.clone(),
                stop: stop.clone(),
                dice: fastrand::Rng::with_seed(number as u64),
                line: None,
            };
            tasks.spawn(producer.produces());
        }
        Self { ledger, address, stop, tasks }
    }

    /// Sets the server's address for new connections.
    pub fn look_at(&self, address: SocketAddr) {
        self.address.send_replace(address);
    }

    /// The producers' ledger.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Stops the producers once their messages under way are acknowledged. Returns how many were still waiting after
    /// the time `within`.
    pub async fn stop(mut self, within: Duration) -> usize {
        self.stop.cancel();
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(within, all).await;
        self.tasks.len()
    }
}

struct Producer {
    number: usize,
    load: Load,
    ledger: Arc<Ledger>,
    found_at: watch::Receiver<SocketAddr>,
    stop: CancellationToken,
    dice: fastrand::Rng,
    line: Option<Line>,
}

impl Producer {
    async fn produces(mut self) {
        for count in 1_u64.. {
            if self.stop.is_cancelled() {
                return;
            }
            let key = format!("{}-{count}", self.number);
            let text = "x".repeat(self.dice.usize(self.load.payload_bytes.clone()));
            let body =
                format!("{{\"tier\":\"{}\",\"payload\":{{\"key\":\"{key}\",\"text\":\"{text}\"}}}}", self.load.tier);
            let body = Bytes::from(body);
            while !self.hands_in(&key, &body).await {}
            let Range { start, end } = self.load.pause;
            if end > Duration::ZERO {
                tokio::time::sleep(start + (end - start).mul_f64(self.dice.f64())).await;
            }
        }
    }

    /// Sends the message. Returns whether it is not to be sent again.
    async fn hands_in(&mut self, key: &str, body: &Bytes) -> bool {
        match self.call(key, body).await {
            Ok(answer) => {
                if answer.headers.get(CONNECTION).is_some_and(|value| value == "close") {
                    self.line = None;
                }
                let done = self.ledger.note(&answer);
                if !done {
                    tokio::time::sleep(self.load.patience).await;
                }
                done
            }
            Err(_) => {
                self.line = None;
                self.ledger.note_unanswered();
                tokio::time::sleep(RECONNECT_AFTER).await;
                false
            }
        }
    }

    async fn call(&mut self, key: &str, body: &Bytes) -> std::io::Result<Answer> {
        let line = match &mut self.line {
            Some(line) => line,
            none => {
                let address = *self.found_at.borrow();
                none.insert(Line::open(address).await?)
            }
        };
        let mut fields = vec![("idempotency-key", key)];
        fields.extend(self.load.fields.iter().map(|(name, value)| (*name, value.as_str())));
        line.call(Method::POST, "/v1/messages", &fields, body.clone()).await
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderMap, HeaderValue};

    use super::*;

    fn answer(status: StatusCode, body: &str) -> Answer {
        Answer { status, headers: HeaderMap::new(), body: body.to_owned() }
    }

    #[test]
    fn repeated_acknowledgement_is_recorded_once() {
        let ledger = Ledger::default();
        let promised = answer(StatusCode::ACCEPTED, r#"{"id":"msg_1"}"#);
        assert!(ledger.note(&promised) && ledger.note(&promised));
        assert_eq!((ledger.count(), ledger.surprises().len()), (1, 0));
    }

    #[test]
    fn refusals_are_counted_by_kind_and_by_missing_retry_after() {
        let ledger = Ledger::default();
        let mut polite = answer(StatusCode::SERVICE_UNAVAILABLE, "");
        polite.headers.insert(RETRY_AFTER, HeaderValue::from_static("5"));
        assert!(!ledger.note(&polite));
        assert!(!ledger.note(&answer(StatusCode::TOO_MANY_REQUESTS, "")));
        let refusals = Refusals { by_quota: 1, by_server: 1, without_retry_after: 1, unanswered: 0 };
        assert_eq!((ledger.refusals(), ledger.count()), (refusals, 0));
    }

    #[test]
    fn unexpected_answers_are_kept() {
        let ledger = Ledger::default();
        assert!(ledger.note(&answer(StatusCode::ACCEPTED, "{}")));
        assert!(ledger.note(&answer(StatusCode::NOT_FOUND, "there is no such route")));
        let expected = ["202 Accepted {}", "404 Not Found there is no such route"];
        assert_eq!(ledger.surprises(), expected.map(str::to_owned).into());
    }
}
