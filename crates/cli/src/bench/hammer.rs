//! Posts over many connections at once: as fast as it is answered, or so many messages a second.
//! hyper's connection, inline in one task: no pool, no channel, no task besides.

use std::cell::Cell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use posthaste_testkit::caller::Line;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Barrier, Semaphore};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::part::wall_us;
use super::tally::Count;

/// How often the receiver is asked what has arrived.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How much to post.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) target: SocketAddr,
    /// How to trust the target, where it speaks TLS.
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) connections: u16,
    pub(super) lasts: Duration,
    pub(super) messages: u64,
    /// Messages of one request.
    pub(super) batch: u64,
    /// Messages a second; as fast as they are answered where there is none.
    pub(super) rate: Option<f64>,
    /// How far ahead of its receivers the producer may be.
    pub(super) lead: Option<Lead>,
}

/// How many messages may be under way: who accepts faster than is delivered for ever measures a backlog.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lead {
    /// Who knows what has arrived.
    pub(super) receiver: SocketAddr,
    pub(super) messages: u64,
    /// Deliveries of each message.
    pub(super) fan: u64,
}

/// What is posted, and what must come back.
pub(super) trait Post {
    /// The request with the messages from this number on, which says that it was sent then, in microseconds.
    fn request(&self, first: u64, sent_us: u64) -> Request<Full<Bytes>>;

    /// Whether everything in a request was taken.
    fn is_taken(&self, status: StatusCode, body: &[u8]) -> bool;
}

/// Opens every connection, then posts until the time is over or the messages are spent; gives how many were taken, and
/// how long that took. An answer that does not take everything ends the run with an error.
pub(super) async fn hammer(load: &Load, post: &impl Post) -> Result<(u64, Duration)> {
    let run = Run {
        load,
        post,
        open: Barrier::new(usize::from(load.connections)),
        began: Cell::new(Instant::now()),
        begun: Cell::new(0),
        taken: Cell::new(0),
        free: Semaphore::new(0),
    };
    let mut connections: FuturesUnordered<_> = (0..load.connections).map(|_| run.connection()).collect();
    let posting = async {
        while let Some(ended) = connections.next().await {
            ended?;
        }
        Ok((run.taken.get(), run.began.get().elapsed()))
    };
    tokio::select! {
        posted = posting => posted,
        failed = run.keep_lead() => failed.map(|never| match never {}),
    }
}

struct Run<'a, P> {
    load: &'a Load,
    post: &'a P,
    /// Where connections wait for each other: a message waits for nobody else's to be opened.
    open: Barrier,
    /// When the last of them was open.
    began: Cell<Instant>,
    begun: Cell<u64>,
    taken: Cell<u64>,
    /// A place for each request that may begin.
    free: Semaphore,
}

impl<P: Post> Run<'_, P> {
    /// Lets requests begin as deliveries arrive.
    async fn keep_lead(&self) -> Result<Infallible> {
        let Some(lead) = self.load.lead else { return std::future::pending().await };
        let mut receiver = Line::open(lead.receiver).await.context("cannot ask the receiver")?;
        let (mut before, mut let_in) = (None, 0);
        loop {
            let said = receiver.call(Method::GET, "/count", &[], "").await.context("cannot ask the receiver")?;
            let distinct = serde_json::from_str::<Count>(&said.body)?.distinct;
            let arrived = (distinct - *before.get_or_insert(distinct)) / lead.fan;
            let allowed = (arrived + lead.messages).div_ceil(self.load.batch);
            self.free.add_permits(usize::try_from(allowed.saturating_sub(let_in)).unwrap_or_default());
            let_in = allowed.max(let_in);
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    async fn connection(&self) -> Result<()> {
        let stream = TcpStream::connect(self.load.target).await.context("cannot connect")?;
        stream.set_nodelay(true)?;
        match &self.load.tls {
            None => self.post_over(stream).await,
            Some(config) => {
                let name = ServerName::from(self.load.target.ip());
                let connector = TlsConnector::from(Arc::clone(config));
                let stream = connector.connect(name, stream).await.context("cannot speak TLS")?;
                self.post_over(stream).await
            }
        }
    }

    async fn post_over(&self, stream: impl AsyncRead + AsyncWrite + Unpin) -> Result<()> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        if self.open.wait().await.is_leader() {
            self.began.set(Instant::now());
        }
        let posting = async {
            while let Some((first, sent_us)) = self.next().await {
                let response = sender.send_request(self.post.request(first, sent_us)).await?;
                let status = response.status();
                let body = response.into_body().collect().await?.to_bytes();
                ensure!(self.post.is_taken(status, &body), "answered {status}: {}", String::from_utf8_lossy(&body));
                self.taken.set(self.taken.get() + self.load.batch);
            }
            // Ends the connection, and with it the future beside this one.
            drop(sender);
            Ok(())
        };
        let (posted, _) = tokio::join!(posting, connection);
        posted
    }

    /// The first message of the next request and when it is sent, once that has come; nothing at the end.
    async fn next(&self) -> Option<(u64, u64)> {
        if self.load.lead.is_some() {
            // Never closed, and given back by nobody: what has arrived lets the next one in.
            self.free.acquire().await.ok()?.forget();
        }
        let first = self.begun.get();
        if self.began.get().elapsed() >= self.load.lasts || first >= self.load.messages {
            return None;
        }
        self.begun.set(first + self.load.batch);
        let Some(rate) = self.load.rate else { return Some((first, wall_us())) };
        #[expect(clippy::cast_precision_loss, reason = "a count of messages is far below 2^52")]
        let after = Duration::from_secs_f64(first as f64 / rate);
        if after >= self.load.lasts {
            return None;
        }
        let due = self.began.get() + after;
        // For want of a free connection it is late: that is waiting. A timer that rings late is nobody's wait.
        let waited = u64::try_from(due.elapsed().as_micros()).unwrap_or_default();
        if waited == 0 {
            tokio::time::sleep_until(due).await;
        }
        Some((first, wall_us().saturating_sub(waited)))
    }
}
