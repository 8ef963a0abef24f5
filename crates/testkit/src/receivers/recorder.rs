//! HTTP receivers on real sockets with a given behaviour, which verify signatures and log every request. Proofs use
//! this log and not the sender's own counts.

use std::io;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::HeaderMap;
use hyper::{Request, StatusCode};
use posthaste_crypto::signature::Secret;
use posthaste_engine::clock::{Clock, SystemClock};

use super::{HttpReceiver, Responder, TimedResponse, field, is_signed};
use crate::fixtures::lock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Accepts every request.
    Healthy,
    /// Refuses every request, with the request's body in its answer.
    Quotes { status: StatusCode },
}

#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// The header `webhook-id`.
    pub message: String,
    /// The header `posthaste-delivery`.
    pub delivery: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Whether its signature was valid and recent.
    pub is_signed: bool,
    /// The time of the request, by the receiver's clock.
    pub at: posthaste_core::Timestamp,
}

/// A receiver that logs every request.
pub type Recorder = HttpReceiver<RequestRecorder>;

/// The responder of a [`Recorder`].
#[derive(Debug)]
pub struct RequestRecorder {
    behaviour: Behaviour,
    secret: Secret,
    clock: SystemClock,
    log: Mutex<Vec<RecordedRequest>>,
}

impl Recorder {
    /// Listens on a free port. The clock must run like the sender's, because signatures have an age limit.
    pub async fn start(behaviour: Behaviour, secret: Secret, clock: SystemClock) -> io::Result<Self> {
        Self::listen(RequestRecorder { behaviour, secret, clock, log: Mutex::default() }).await
    }

    /// All requests so far.
    pub fn arrivals(&self) -> Vec<RecordedRequest> {
        lock(&self.responder().log).clone()
    }

    /// Waits until `enough` holds for the log. Returns `false` after the time `within`.
    pub async fn waits_for_arrivals(&self, within: Duration, enough: impl Fn(&[RecordedRequest]) -> bool) -> bool {
        self.waits_for(within, |recorder| enough(&lock(&recorder.log)).then_some(())).await.is_some()
    }
}

impl Responder for RequestRecorder {
    fn answer(&self, request: Request<Bytes>) -> TimedResponse {
        let field = |name| field(&request, name);
        let (message, delivery) = (field("webhook-id").to_owned(), field("posthaste-delivery").to_owned());
        let at = self.clock.now();
        let is_signed = is_signed(&self.secret, &request, at);
        let (head, body) = request.into_parts();
        let mut answer = TimedResponse::from(StatusCode::NO_CONTENT);
        if let Behaviour::Quotes { status } = self.behaviour {
            answer = status.into();
            *answer.response.body_mut() = Full::new(body.clone());
        }
        lock(&self.log).push(RecordedRequest { message, delivery, headers: head.headers, body, is_signed, at });
        answer
    }
}
