//! Posts over many connections at once, as fast as it is answered or at a given rate.
//!
//! All connections are futures of one task, without a pool or channels, so that the client itself costs little.

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
use posthaste_testkit::fixtures::caller::ApiConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Barrier, Semaphore};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::part::wall_us;
use super::tally::Count;

/// The time between two reads of the receiver's count.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How much to post.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) target: SocketAddr,
    /// The TLS settings for the target; `None` posts without TLS.
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) connections: u16,
    pub(super) lasts: Duration,
    pub(super) messages: u64,
    /// Messages in each request.
    pub(super) batch: u64,
    /// Messages a second; `None` posts as fast as requests are answered.
    pub(super) rate: Option<f64>,
    /// The bound on messages under way, if there is one.
    pub(super) lead: Option<Lead>,
}

/// The most messages under way. Without it a producer that is faster than deliveries would measure a growing backlog.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lead {
    /// The receiver that counts arrived deliveries.
    pub(super) receiver: SocketAddr,
    pub(super) messages: u64,
    /// The number of deliveries of each message.
    pub(super) fan: u64,
}

/// The requests to post, and the answers that they must get.
pub(super) trait Post {
    /// The request with the messages from number `first` on. Its payloads contain the send time, in microseconds.
    fn request(&self, first: u64, sent_us: u64) -> Request<Full<Bytes>>;

    /// Whether an answer means that every message of the request was taken.
    fn is_taken(&self, status: StatusCode, body: &[u8]) -> bool;
}

/// Opens every connection, then posts until the time is over or all messages are sent. Returns how many were taken and
/// how long that took. Fails on the first answer that does not take every message.
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
    /// Makes connections wait until all are open, so that no message waits for a connection to open.
    open: Barrier,
    /// When the last connection was open.
    began: Cell<Instant>,
    begun: Cell<u64>,
    taken: Cell<u64>,
    /// One permit for each request that may begin.
    free: Semaphore,
}

impl<P: Post> Run<'_, P> {
    /// Adds permits for requests as deliveries arrive.
    async fn keep_lead(&self) -> Result<Infallible> {
        let Some(lead) = self.load.lead else { return std::future::pending().await };
        let mut receiver = ApiConnection::open(lead.receiver).await.context("cannot call the receiver")?;
        let (mut before, mut permitted) = (None, 0);
        loop {
            let answer = receiver.call(Method::GET, "/count", &[], "").await.context("cannot call the receiver")?;
            let distinct = serde_json::from_str::<Count>(&answer.body)?.distinct;
            let arrived = (distinct - *before.get_or_insert(distinct)) / lead.fan;
            let allowed = (arrived + lead.messages).div_ceil(self.load.batch);
            self.free.add_permits(usize::try_from(allowed.saturating_sub(permitted)).unwrap_or_default());
            permitted = allowed.max(permitted);
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
                let stream = connector.connect(name, stream).await.context("the TLS handshake failed")?;
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
            // Closes the connection, and so ends the connection's future.
            drop(sender);
            Ok(())
        };
        let (posted, _) = tokio::join!(posting, connection);
        posted
    }

    /// The first message of the next request and its send time, once that has come; `None` at the end of the run.
    async fn next(&self) -> Option<(u64, u64)> {
        if self.load.lead.is_some() {
            // Permits are not returned: `keep_lead` adds new ones as deliveries arrive. The semaphore is never closed.
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
        // A request that is late for want of a free connection has waited, which its send time must show. A timer that
        // fires late is the bench's own delay, and must not count.
        let waited = u64::try_from(due.elapsed().as_micros()).unwrap_or_default();
        if waited == 0 {
            tokio::time::sleep_until(due).await;
        }
        Some((first, wall_us().saturating_sub(waited)))
    }
}
