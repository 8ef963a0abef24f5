//! The bench's receiver: takes everything, counts it, and knows how long it was on its way.

use std::collections::HashSet;
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::part::{Stats, sent_us, wall_us};

/// What arrived since the last reset.
#[derive(Debug, Default)]
struct Tally {
    arrivals: u64,
    /// Hashes of `webhook-id`: 64 bits of a million ids collide once in 30 million runs.
    messages: HashSet<u64>,
    hasher: RandomState,
    /// How long each was on its way, in microseconds.
    took_us: Vec<u64>,
}

/// Serves until the process is ended.
pub(super) async fn serve() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let tally = Arc::new(Mutex::new(Tally::default()));
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        while connections.try_join_next().is_some() {}
        connections.spawn(connection(stream, Arc::clone(&tally)));
    }
}

async fn connection(stream: TcpStream, tally: Arc<Mutex<Tally>>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let tally = Arc::clone(&tally);
        async move { Ok::<_, Infallible>(answer(request, &tally).await) }
    });
    // The server under test may be ended in the middle of a request.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: Request<Incoming>, tally: &Mutex<Tally>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    match (&head.method, head.uri.path()) {
        (&Method::GET, "/stats") => {
            let stats = serde_json::to_vec(&tally.stats()).expect("numbers always serialise");
            return Response::new(Full::from(stats));
        }
        (&Method::POST, "/reset") => *tally = Tally::default(),
        _ => {
            tally.arrivals += 1;
            let id = head.headers.get("webhook-id").map(|id| tally.hasher.hash_one(id.as_bytes()));
            if id.is_some_and(|id| tally.messages.insert(id))
                && let Some(sent) = sent_us(&body)
            {
                tally.took_us.push(wall_us().saturating_sub(sent));
            }
        }
    }
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

impl Tally {
    fn stats(&mut self) -> Stats {
        self.took_us.sort_unstable();
        let at = |share: usize| self.took_us.get(self.took_us.len() * share / 100).copied().unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "microseconds of a run are far below 2^52")]
        let (p50_us, p99_us) = (at(50) as f64, at(99) as f64);
        Stats { arrivals: self.arrivals, distinct: self.messages.len() as u64, p50_us, p99_us }
    }
}
