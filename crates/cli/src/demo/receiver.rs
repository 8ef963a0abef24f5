//! A receiver of the demo: a real socket with a role and a log.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::RETRY_AFTER;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use posthaste_crypto::signature::{Received, Secret, TOLERANCE, verify};
use posthaste_engine::clock::Clock;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::log::{Entry, Log};
use super::plan::{SCALE, Who};
use super::role::{Mood, Role};
use super::story::Story;

/// A receiver that listens on loopback until it is dropped.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) who: Who,
    /// The id of its endpoint; empty until that is created.
    pub(super) endpoint: String,
    address: SocketAddr,
    desk: Arc<Desk>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Desk {
    story: Arc<Story>,
    secret: Secret,
    role: Mutex<Role>,
    log: Mutex<Log>,
}

impl Receiver {
    /// Listens on a free port.
    pub(super) async fn start(who: Who, story: &Arc<Story>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen on this machine")?;
        let address = listener.local_addr()?;
        let (role, log) = (Mutex::new(Role::of(who, &story.plan)), Mutex::default());
        let desk = Arc::new(Desk { story: Arc::clone(story), secret: Secret::generate(), role, log });
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(listener, Arc::clone(&desk)));
        Ok(Self { who, endpoint: String::new(), address, desk, _tasks: tasks })
    }

    /// The body that creates its endpoint.
    pub(super) fn as_endpoint(&self) -> serde_json::Value {
        let secret = self.desk.secret.reveal();
        let ttl = (self.who == Who::Partner).then(|| self.desk.story.plan.ttl.as_secs());
        serde_json::json!({
            "url": format!("http://{}/{}", self.address, self.who.name()),
            "ttl": ttl,
            "signing": { "secret": secret.as_str() },
        })
    }

    pub(super) fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.desk.log)
    }

    /// Its health and behaviour now, for the display.
    pub(super) fn does(&self) -> (Mood, String) {
        lock(&self.desk.role).does(self.desk.story.now())
    }

    /// The number of requests that came before the time of a `Retry-After`.
    pub(super) fn early(&self) -> usize {
        lock(&self.desk.role).early()
    }
}

impl Desk {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let now = self.story.now();
        let entry = lock(&self.log).arrived(now);
        let (head, body) = request.into_parts();
        let Ok(body) = body.collect().await else { return refused() };
        let field = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let received = Received {
            id: field("webhook-id"),
            timestamp: field("webhook-timestamp"),
            signature: field("webhook-signature"),
            body: &body.to_bytes(),
        };
        let at = self.story.clock.now().as_millis() / 1_000;
        if verify(std::slice::from_ref(&self.secret), &received, at, TOLERANCE).is_err() {
            lock(&self.log).forged += 1;
            return refused();
        }
        self.reply(entry, received.id).await
    }

    async fn reply(&self, entry: Entry, message: &str) -> Response<Full<Bytes>> {
        let reply = lock(&self.role).answer(self.story.now());
        let Some(status) = reply.status else {
            // This future is dropped with the connection when the sender times out.
            return std::future::pending().await;
        };
        if !reply.after.is_zero() {
            tokio::time::sleep(reply.after / SCALE).await;
        }
        lock(&self.log).answered(entry, message, status);
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if let Some(seconds) = reply.retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// The answer to an incomplete request and to one without a valid signature.
fn refused() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}

fn lock<T>(one: &Mutex<T>) -> MutexGuard<'_, T> {
    one.lock().unwrap_or_else(PoisonError::into_inner)
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
    // A sender that is killed ends its connections with an error, as the demo intends.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}
