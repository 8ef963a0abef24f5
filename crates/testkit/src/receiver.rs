//! Receivers on real sockets that behave as they are told and keep a log of what arrived: what a
//! sender claims is compared with this log, not with the sender's own counts.

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

/// How a receiver answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Takes everything.
    Healthy,
    /// Fails its first requests, then takes everything.
    FailsFirst {
        /// How many.
        times: usize,
        /// With what.
        status: StatusCode,
    },
    /// Takes nothing, and repeats in its answer what it was sent.
    Quotes {
        /// With what.
        status: StatusCode,
    },
}

/// One request that arrived.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// `webhook-id`.
    pub message: String,
    /// `posthaste-delivery`.
    pub delivery: String,
    /// Every field.
    pub headers: HeaderMap,
    /// The body as it came.
    pub body: Bytes,
    /// Whether its signature was good and recent.
    pub is_signed: bool,
    /// When, by the receiver's clock.
    pub at: posthaste_core::Timestamp,
    /// What was answered.
    pub answered: StatusCode,
}

/// A receiver on a loopback port, until it is dropped.
#[derive(Debug)]
pub struct Receiver {
    address: SocketAddr,
    desk: Arc<Desk>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Desk {
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
    /// Listens on a free port. The clock must run as the sender's does: signatures grow old.
    pub async fn start(behaviour: Behaviour, secret: Secret, clock: SystemClock) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let desk = Desk { behaviour, secret, clock, log: Mutex::default(), changed: Notify::new() };
        let desk = Arc::new(desk);
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(listener, Arc::clone(&desk)));
        Ok(Self { address, desk, _tasks: tasks })
    }

    /// Where it can be reached.
    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// Everything that arrived so far.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.desk.log().arrivals.clone()
    }

    /// Waits until the log is as `enough` wants it; false when that took longer than `within`.
    pub async fn waits_for(&self, within: Duration, enough: impl Fn(&[Arrival]) -> bool) -> bool {
        let waiting = async {
            loop {
                let changed = self.desk.changed.notified();
                if enough(&self.desk.log().arrivals) {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(within, waiting).await.is_ok()
    }
}

impl Desk {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let mut response = Response::new(Full::default());
        let Ok(body) = body.collect().await else {
            // Half a request is no arrival: its sender knows that it did not end.
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

    /// What it says to its `nth` request.
    fn status(&self, nth: usize) -> StatusCode {
        match self.behaviour {
            Behaviour::FailsFirst { times, status } if nth <= times => status,
            Behaviour::Quotes { status } => status,
            _ => StatusCode::NO_CONTENT,
        }
    }
}

async fn listen(listener: TcpListener, desk: Arc<Desk>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(serve(stream, Arc::clone(&desk)));
    }
}

async fn serve(stream: TcpStream, desk: Arc<Desk>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let desk = Arc::clone(&desk);
        async move { Ok::<_, Infallible>(desk.answer(request).await) }
    });
    // A sender that dies in the middle is what some proofs are about.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}
