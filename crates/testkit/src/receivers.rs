//! The HTTP receiver on a real socket that all proofs use. What it answers and what it records is its [`Responder`].

pub mod counter;
pub mod recorder;

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use posthaste_core::Timestamp;
use posthaste_crypto::signature::{Received, Secret, TOLERANCE, verify};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

pub use counter::{Counter, Manners};
pub use recorder::{Behaviour, RecordedRequest, Recorder};

/// An answer, and how long it takes.
#[derive(Debug)]
pub struct TimedResponse {
    pub response: Response<Full<Bytes>>,
    pub after: Duration,
}

impl From<StatusCode> for TimedResponse {
    fn from(status: StatusCode) -> Self {
        let mut response = Response::new(Full::default());
        *response.status_mut() = status;
        Self { response, after: Duration::ZERO }
    }
}

/// The behaviour of a receiver, with its records.
pub trait Responder: Send + Sync + 'static {
    /// Answers a complete request. The sender of an incomplete one knows that it did not complete.
    fn answer(&self, request: Request<Bytes>) -> TimedResponse;

    /// An answer is sent now, after its delay. One whose connection has closed meanwhile is not sent.
    fn is_answering(&self, _response: &Response<Full<Bytes>>) {}

    /// A connection was reset while the receiver was dead.
    fn was_refused(&self) {}
}

/// A receiver on a loopback port, until it is dropped.
#[derive(Debug)]
pub struct HttpReceiver<R> {
    pub address: SocketAddr,
    shared: Arc<Shared<R>>,
    _tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Shared<R> {
    responder: R,
    /// Notified after each request.
    changed: Notify,
    open: watch::Sender<usize>,
    most_open: AtomicUsize,
    /// Counts deaths and returns: odd while the receiver is dead. A change closes open connections.
    lives: watch::Sender<u32>,
}

impl<R: Responder> HttpReceiver<R> {
    /// Listens on a free port.
    pub async fn listen(responder: R) -> io::Result<Self> {
        Self::listen_over(responder, async |stream| Ok(stream)).await
    }

    /// Listens on a free port, and serves what `open` makes of each connection, such as TLS.
    pub async fn listen_over<S, F>(
        responder: R,
        open: impl Fn(TcpStream) -> F + Send + Sync + 'static,
    ) -> io::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = io::Result<S>> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            responder,
            changed: Notify::new(),
            open: watch::Sender::new(0),
            most_open: AtomicUsize::new(0),
            lives: watch::Sender::new(0),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, Arc::clone(&shared), open));
        Ok(Self { address, shared, _tasks: tasks })
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub fn responder(&self) -> &R {
        &self.shared.responder
    }

    pub fn open(&self) -> watch::Receiver<usize> {
        self.shared.open.subscribe()
    }

    /// The most connections that were open at once.
    pub fn most_open(&self) -> usize {
        self.shared.most_open.load(Ordering::SeqCst)
    }

    /// Closes open connections and, from now on, resets new ones.
    pub fn die(&self) {
        self.shared.lives.send_modify(|lives| *lives += 1);
    }

    /// Accepts connections again, after [`HttpReceiver::die`].
    pub fn come_back(&self) {
        self.shared.lives.send_modify(|lives| *lives += 1);
    }

    /// Waits until `enough` returns something, and looks after each request. Returns `None` after the time `within`.
    pub async fn waits_for<T>(&self, within: Duration, mut enough: impl FnMut(&R) -> Option<T>) -> Option<T> {
        let waiting = async {
            loop {
                let changed = self.shared.changed.notified();
                if let Some(found) = enough(&self.shared.responder) {
                    return found;
                }
                changed.await;
            }
        };
        tokio::time::timeout(within, waiting).await.ok()
    }
}

async fn accept<R: Responder, S, F>(listener: TcpListener, shared: Arc<Shared<R>>, open: impl Fn(TcpStream) -> F)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = io::Result<S>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let mut lives = shared.lives.subscribe();
        if !lives.borrow().is_multiple_of(2) {
            shared.responder.was_refused();
            // Closes with a reset instead of a FIN.
            let _ = stream.set_zero_linger();
            continue;
        }
        let _ = stream.set_nodelay(true);
        let opened = open(stream);
        let shared = Arc::clone(&shared);
        shared.open.send_modify(|open| *open += 1);
        shared.most_open.fetch_max(*shared.open.borrow(), Ordering::SeqCst);
        connections.spawn(async move {
            tokio::select! {
                biased;
                _ = lives.changed() => {}
                () = serve(opened, &shared) => {}
            }
            shared.open.send_modify(|open| *open -= 1);
        });
    }
}

async fn serve<R: Responder, S: AsyncRead + AsyncWrite + Unpin>(
    opened: impl Future<Output = io::Result<S>>,
    shared: &Shared<R>,
) {
    let Ok(stream) = opened.await else { return };
    let service = service_fn(|request| async { Ok::<_, Infallible>(answer(shared, request).await) });
    // An error is expected here: some proofs kill the sender.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer<R: Responder>(shared: &Shared<R>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return TimedResponse::from(StatusCode::BAD_REQUEST).response;
    };
    let answer = shared.responder.answer(Request::from_parts(head, body.to_bytes()));
    shared.changed.notify_waiters();
    if answer.after > Duration::ZERO {
        tokio::time::sleep(answer.after).await;
    }
    shared.responder.is_answering(&answer.response);
    answer.response
}

/// Whether a webhook was signed with this secret, recently before `at`.
pub fn is_signed(secret: &Secret, request: &Request<Bytes>, at: Timestamp) -> bool {
    let received = Received {
        id: field(request, "webhook-id"),
        timestamp: field(request, "webhook-timestamp"),
        signature: field(request, "webhook-signature"),
        body: request.body(),
    };
    verify(std::slice::from_ref(secret), &received, at.as_millis() / 1_000, TOLERANCE).is_ok()
}

/// A header of a request, or nothing if it is missing.
pub fn field<'a>(request: &'a Request<Bytes>, name: &str) -> &'a str {
    request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}
