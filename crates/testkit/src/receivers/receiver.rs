//! HTTP receivers on real sockets with a given behaviour, which verify signatures and log every request. Proofs use
//! this log and not the sender's own counts.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use posthaste_crypto::signature::{Received, Secret, TOLERANCE, verify};
use posthaste_engine::clock::{Clock, SystemClock};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// The behaviour of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Accepts every request.
    Healthy,
    /// Refuses its first requests, then accepts every request.
    FailsFirst {
        /// The number of requests to refuse.
        times: usize,
        /// The status of the refusals.
        status: StatusCode,
    },
    /// Refuses every request, with the request's body in its answer.
    Quotes {
        /// The status of the refusals.
        status: StatusCode,
    },
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The header `webhook-id`.
    pub message: String,
    /// The header `posthaste-delivery`.
    pub delivery: String,
    /// All headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// Whether its signature was valid and recent.
    pub is_signed: bool,
    /// The time of the request, by the receiver's clock.
    pub at: posthaste_core::Timestamp,
    /// The status of the answer.
    pub answered: StatusCode,
}

/// A receiver on a loopback port, until it is dropped.
#[derive(Debug)]
pub struct Receiver {
    address: SocketAddr,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct State {
    behaviour: Behaviour,
    secret: Secret,
    clock: SystemClock,
    log: Mutex<Log>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Log {
    arrivals: Vec<Arrival>,
}

impl Receiver {
    /// Listens on a free port. The clock must run like the sender's, because signatures have an age limit.
    pub async fn start(behaviour: Behaviour, secret: Secret, clock: SystemClock) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let state = State { behaviour, secret, clock, log: Mutex::default(), changed: Notify::new() };
        let state = Arc::new(state);
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(listener, Arc::clone(&state)));
        Ok(Self { address, state, _tasks: tasks })
    }

    /// The URL for an endpoint.
    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// All requests so far.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.state.log().arrivals.clone()
    }

    /// Waits until `enough` holds for the log. Returns `false` after the time `within`.
    pub async fn waits_for(&self, within: Duration, enough: impl Fn(&[Arrival]) -> bool) -> bool {
        let waiting = async {
            loop {
                let changed = self.state.changed.notified();
                if enough(&self.state.log().arrivals) {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(within, waiting).await.is_ok()
    }
}

impl State {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let mut response = Response::new(Full::default());
        let Ok(body) = body.collect().await else {
            // An incomplete request is no arrival: its sender knows that it did not complete.
            *response.status_mut() = StatusCode::BAD_REQUEST;
            return response;
        };
        let body = body.to_bytes();
        let field = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (message, delivery) = (field("webhook-id").to_owned(), field("posthaste-delivery").to_owned());
        let received = Received {
            id: &message,
            timestamp: field("webhook-timestamp"),
            signature: field("webhook-signature"),
            body: &body,
        };
        let at = self.clock.now();
        let secrets = std::slice::from_ref(&self.secret);
        let is_signed = verify(secrets, &received, at.as_millis() / 1_000, TOLERANCE).is_ok();
        let mut log = self.log();
        let answered = self.status(log.arrivals.len() + 1);
        *response.status_mut() = answered;
        if let Behaviour::Quotes { .. } = self.behaviour {
            *response.body_mut() = Full::new(body.clone());
        }
        log.arrivals.push(Arrival { message, delivery, headers: head.headers, body, is_signed, at, answered });
        self.changed.notify_waiters();
        response
    }

    /// The status of the answer to the `nth` request.
    fn status(&self, nth: usize) -> StatusCode {
        match self.behaviour {
            Behaviour::FailsFirst { times, status } if nth <= times => status,
            Behaviour::Quotes { status } => status,
            _ => StatusCode::NO_CONTENT,
        }
    }
}

async fn listen(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(stream, Arc::clone(&state)));
    }
}

async fn serve(stream: TcpStream, state: Arc<State>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let state = Arc::clone(&state);
        async move { Ok::<_, Infallible>(state.answer(request).await) }
    });
    // An error is expected here: some proofs kill the sender.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}
