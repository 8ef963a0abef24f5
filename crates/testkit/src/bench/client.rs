//! Posts over many connections at once, as fast as it is answered or at a given rate.
//!
//! All connections are futures of one task, without a pool or channels, so that the client itself costs little.

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use http_body_util::BodyExt;
use hyper::Method;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Barrier, Semaphore};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::certificate;
use super::part::ClientLoad;
use super::receiver::ArrivalCount;
use super::requests::{Post, wall_us};
use crate::fixtures::ApiConnection;
use crate::prove::{CannotRun, Context};

/// The time between two reads of the receiver's count.
const POLL_EVERY: Duration = Duration::from_millis(10);

/// Opens every connection, then posts until the time is over or all messages are sent. Returns how many were taken and
/// how long that took. Fails on the first answer that does not take every message.
pub(super) async fn post_all(load: &ClientLoad, post: &impl Post) -> Result<(u64, Duration), CannotRun> {
    let run = Posting {
        load,
        post,
        tls: load.certificate.as_deref().map(certificate::trusted).transpose()?,
        batch: load.batch.max(1),
        lasts: Duration::from_secs(load.seconds),
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

struct Posting<'a, P> {
    load: &'a ClientLoad,
    post: &'a P,
    tls: Option<Arc<ClientConfig>>,
    /// Messages in each request.
    batch: u64,
    lasts: Duration,
    /// Makes connections wait until all are open, so that no message waits for a connection to open.
    open: Barrier,
    /// When the last connection was open.
    began: Cell<Instant>,
    begun: Cell<u64>,
    taken: Cell<u64>,
    /// One permit for each request that may begin.
    free: Semaphore,
}

impl<P: Post> Posting<'_, P> {
    /// Adds permits for requests as deliveries arrive.
    async fn keep_lead(&self) -> Result<Infallible, CannotRun> {
        let Some(lead) = self.load.lead else { return std::future::pending().await };
        let mut receiver = ApiConnection::open(lead.receiver).await.context("cannot call the receiver")?;
        let (mut before, mut permitted) = (None, 0);
        loop {
            let answer = receiver.call(Method::GET, "/count", &[], "").await.context("cannot call the receiver")?;
            let distinct = serde_json::from_str::<ArrivalCount>(&answer.body)?.distinct;
            let arrived = (distinct - *before.get_or_insert(distinct)) / self.load.fan as u64;
            let allowed = (arrived + lead.messages).div_ceil(self.batch);
            self.free.add_permits(usize::try_from(allowed.saturating_sub(permitted)).unwrap_or_default());
            permitted = allowed.max(permitted);
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    async fn connection(&self) -> Result<(), CannotRun> {
        let stream = TcpStream::connect(self.load.target).await.context("cannot connect")?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => self.post_over(stream).await,
            Some(config) => {
                let name = ServerName::from(self.load.target.ip());
                let connector = TlsConnector::from(Arc::clone(config));
                let stream = connector.connect(name, stream).await.context("the TLS handshake failed")?;
                self.post_over(stream).await
            }
        }
    }

    async fn post_over(&self, stream: impl AsyncRead + AsyncWrite + Unpin) -> Result<(), CannotRun> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        if self.open.wait().await.is_leader() {
            self.began.set(Instant::now());
        }
        let posting = async {
            while let Some((first, sent_us)) = self.next().await {
                let response = sender.send_request(self.post.request(first, sent_us)).await?;
                let status = response.status();
                let body = response.into_body().collect().await?.to_bytes();
                if !self.post.is_taken(status, &body) {
                    return Err(CannotRun(format!("answered {status}: {}", String::from_utf8_lossy(&body))));
                }
                self.taken.set(self.taken.get() + self.batch);
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
        if self.began.get().elapsed() >= self.lasts || first >= self.load.messages {
            return None;
        }
        self.begun.set(first + self.batch);
        let Some(rate) = self.load.rate else { return Some((first, wall_us())) };
        #[expect(clippy::cast_precision_loss, reason = "a count of messages is far below 2^52")]
        let after = Duration::from_secs_f64(first as f64 / rate);
        if after >= self.lasts {
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
