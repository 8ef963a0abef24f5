//! The bench's receiver: takes everything or refuses a share, counts it, and knows how long it was on its way.

use std::collections::HashSet;
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::certificate;
use super::part::{BARE, DELIVERY, sent_us, wall_us};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Speak TLS with the certificate and key in this folder
    #[arg(long)]
    tls: Option<PathBuf>,
    /// Refuse so many of a hundred first attempts
    #[arg(long, default_value_t = 0)]
    failing_percent: u64,
}

/// What arrived.
#[derive(Debug, Default)]
struct Tally {
    taken: u64,
    refused: u64,
    /// Hashes of deliveries' ids: 64 bits of a million ids collide once in 30 million runs.
    deliveries: HashSet<u64>,
    /// How long each was on its way, in microseconds.
    took_us: Vec<u64>,
}

/// How much has arrived.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Count {
    /// Deliveries, each once.
    pub(super) distinct: u64,
    /// What was answered with success: a delivery that came twice counts twice.
    pub(super) taken: u64,
    /// What was answered with a failure.
    pub(super) refused: u64,
}

/// How long deliveries were on their way, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Arrival {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) p999_ms: f64,
}

#[derive(Debug, Default)]
struct Receiver {
    hasher: RandomState,
    failing_percent: u64,
    deliveries: Mutex<Tally>,
    bare: Mutex<Tally>,
}

/// Serves until the process is ended.
pub(super) async fn serve(args: &Args) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let tls = args.tls.as_deref().map(certificate::presented).transpose()?.map(TlsAcceptor::from);
    println!("listening on http://{}", listener.local_addr()?);
    let receiver = Arc::new(Receiver { failing_percent: args.failing_percent, ..Receiver::default() });
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        while connections.try_join_next().is_some() {}
        connections.spawn(connection(stream, tls.clone(), Arc::clone(&receiver)));
    }
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, receiver: Arc<Receiver>) {
    let _ = stream.set_nodelay(true);
    // The bench itself asks in the clear, also where deliveries come by TLS.
    let mut first = [0];
    let is_tls = stream.peek(&mut first).await.is_ok() && first[0] == TLS_HANDSHAKE;
    match tls.filter(|_| is_tls) {
        None => answer_over(stream, &receiver).await,
        Some(tls) => {
            if let Ok(stream) = tls.accept(stream).await {
                answer_over(stream, &receiver).await;
            }
        }
    }
}

/// What a TLS connection begins with.
const TLS_HANDSHAKE: u8 = 22;

async fn answer_over(stream: impl AsyncRead + AsyncWrite + Unpin, receiver: &Arc<Receiver>) {
    let service = service_fn(|request| {
        let receiver = Arc::clone(receiver);
        async move { Ok::<_, Infallible>(receiver.answer(request).await) }
    });
    // The server under test may be ended in the middle of a request.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

impl Receiver {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let lock = |tally| Mutex::lock(tally).unwrap_or_else(PoisonError::into_inner);
        match (&head.method, head.uri.path()) {
            (&Method::GET, "/count") => json(&lock(&self.deliveries).count()),
            (&Method::GET, "/arrival") => json(&lock(&self.deliveries).arrival()),
            (&Method::POST, "/reset") => {
                *lock(&self.deliveries) = Tally::default();
                status(StatusCode::NO_CONTENT)
            }
            (_, BARE) => status(lock(&self.bare).take(self.hash(&head.headers), false, &body)),
            _ => {
                let id = self.hash(&head.headers);
                let is_first = head.headers.get("posthaste-attempt").is_some_and(|attempt| attempt == "1");
                let fails = is_first && id.is_some_and(|id| id % 100 < self.failing_percent);
                status(lock(&self.deliveries).take(id, fails, &body))
            }
        }
    }

    fn hash(&self, fields: &HeaderMap) -> Option<u64> {
        fields.get(DELIVERY).map(|id| self.hasher.hash_one(id.as_bytes()))
    }
}

impl Tally {
    fn take(&mut self, id: Option<u64>, fails: bool, body: &[u8]) -> StatusCode {
        if fails {
            self.refused += 1;
            return StatusCode::INTERNAL_SERVER_ERROR;
        }
        self.taken += 1;
        if id.is_some_and(|id| self.deliveries.insert(id))
            && let Some(sent) = sent_us(body)
        {
            self.took_us.push(wall_us().saturating_sub(sent));
        }
        StatusCode::NO_CONTENT
    }

    fn count(&self) -> Count {
        Count { distinct: self.deliveries.len() as u64, taken: self.taken, refused: self.refused }
    }

    fn arrival(&mut self) -> Arrival {
        self.took_us.sort_unstable();
        let at = |of_thousand: usize| {
            let took = self.took_us.get(self.took_us.len() * of_thousand / 1_000).copied().unwrap_or_default();
            #[expect(clippy::cast_precision_loss, reason = "microseconds of a run are far below 2^52")]
            let took = took as f64 / 1_000.0;
            took
        };
        Arrival { p50_ms: at(500), p99_ms: at(990), p999_ms: at(999) }
    }
}

fn json(of: &impl Serialize) -> Response<Full<Bytes>> {
    Response::new(Full::from(serde_json::to_vec(of).expect("numbers always serialise")))
}

fn status(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_that_comes_twice_is_counted_once_and_told() {
        let mut tally = Tally::default();
        for (id, fails) in [(1, true), (1, false), (2, false), (2, false)] {
            tally.take(Some(id), fails, b"{}");
        }
        let count = tally.count();
        assert_eq!((count.distinct, count.taken, count.refused), (2, 3, 1));
    }

    #[test]
    fn percentiles_are_of_what_arrived() {
        let mut tally = Tally { took_us: (1..=1_000).rev().map(|ms| ms * 1_000).collect(), ..Tally::default() };
        let arrival = tally.arrival();
        assert_eq!((arrival.p50_ms, arrival.p99_ms, arrival.p999_ms), (501.0, 991.0, 1_000.0));
        assert_eq!(Tally::default().arrival().p99_ms, 0.0);
    }
}
