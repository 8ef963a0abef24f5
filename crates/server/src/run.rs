//! Runs the server: the dispatch loop and the connections, each a task that is owned and awaited here.
//!
//! Shutdown has an order: stop accepting connections, let requests end, then let attempts in flight end.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use posthaste_engine::clock::Clock;
use posthaste_engine::connector::System;
use posthaste_engine::engine::{Engine, Settings};
use posthaste_engine::operator_key::NoOperatorKey;
use posthaste_store::{Store, StoreError};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::api::caller::Door;
use crate::api::routes::Routes;

/// The most open connections; further ones wait to be accepted. `room` bounds the memory of their bodies.
const CONNECTIONS_MAX: usize = 1_024;
/// The most open connections of the metrics listener: enough for a few collectors.
const WATCHERS_MAX: usize = 16;
/// A connection is closed if the head of its next request has not arrived within this time.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// The read buffer of a connection. The head of a request must fit.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// How long requests may take to end during shutdown. They wait for a commit, not for a receiver.
const REQUESTS_END_WITHIN: Duration = Duration::from_secs(5);
/// How long attempts in flight may take to end during shutdown: the longest attempt, and time to record it.
const DRAIN_WITHIN: Duration = Duration::from_secs(35);
/// The longest attempt timeout: an attempt that begins just before the stop ends within `DRAIN_WITHIN`.
pub const ATTEMPT_TIMEOUT_MAX: Duration = Duration::from_secs(30);
const _: () = assert!(ATTEMPT_TIMEOUT_MAX.as_secs() < DRAIN_WITHIN.as_secs());
/// The most time that [`run`] takes to end after `stop`. A supervisor must wait longer before it kills the process.
pub const STOP_WITHIN: Duration = REQUESTS_END_WITHIN.saturating_add(DRAIN_WITHIN);
/// The wait after a failed accept, which usually means that file descriptors have run out.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Why the server ended, other than by `stop`.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The store failed: nothing more may be accepted or sent.
    #[error("the store failed; what it acknowledged is safe, restart to go on")]
    Store(#[from] StoreError),
    /// The engine's loop panicked.
    #[error("the engine's loop ended unexpectedly")]
    Loop(#[from] JoinError),
    /// Attempts in flight did not end in time. Their messages may arrive twice after the restart.
    #[error("attempts in flight did not end within {} s", DRAIN_WITHIN.as_secs())]
    Undrained,
    /// No operator key could be made, so no client could call the server.
    #[error(transparent)]
    OperatorKey(#[from] NoOperatorKey),
    /// The address of a listener cannot be read.
    #[error("cannot read the address that the server listens on")]
    Listener(#[from] io::Error),
}

/// The listeners of a server, and whether its callers need keys.
#[derive(Debug)]
pub struct Front {
    /// The listener of the API.
    pub listener: TcpListener,
    /// The listener that serves metrics without a key, if there is one.
    pub metrics: Option<TcpListener>,
    /// Whether callers of the API need a key.
    pub door: Door,
    /// The folder that the first operator key is written to; `None` writes none.
    pub data: Option<PathBuf>,
}

/// Serves until `stop` is cancelled, then shuts down in order.
pub async fn run<S: Store, C: Clock>(
    store: Arc<S>,
    clock: C,
    mut settings: Settings,
    front: Front,
    stop: CancellationToken,
) -> Result<(), RunError> {
    let Front { listener, metrics, door, data } = front;
    for own in std::iter::once(&listener).chain(&metrics) {
        settings.connector.rules.own_listen.push(own.local_addr()?);
    }
    let drain = CancellationToken::new();
    let (engine, dispatch) = Engine::start(store, clock, settings, Arc::new(System), drain.clone()).await?;
    let mut dispatch_loop = JoinSet::new();
    dispatch_loop.spawn(dispatch);
    if let (Door::Locked, Some(data)) = (door, data)
        && let Some(path) = engine.first_operator_key(&data).await?
    {
        tracing::info!(path = %path.display(), "the first operator key was written; store it elsewhere and remove the file");
    }
    let api = Arc::new(Api::new(engine, door));
    let mut connections = JoinSet::new();
    let mut watchers = JoinSet::new();
    if let Some(metrics) = metrics {
        watchers.spawn(watched(Arc::clone(&api), metrics, stop.clone()));
    }

    let failed = |error| tracing::warn!(%error, "cannot accept a connection, retrying");
    let ended_early = tokio::select! {
        biased;
        () = accept(Routes::new(&api), &listener, CONNECTIONS_MAX, &mut connections, &stop, failed) => None,
        ended = dispatch_loop.join_next() => ended,
    };
    drop(listener);
    api.stop_being_ready();
    if let Some(ended) = ended_early {
        return Ok(ended??);
    }
    let ending = async { tokio::join!(all(&mut connections), all(&mut watchers)) };
    if timeout(REQUESTS_END_WITHIN, ending).await.is_err() {
        tracing::warn!(open = connections.len(), "requests did not end in time; their connections are closed");
        connections.shutdown().await;
        watchers.shutdown().await;
    }
    drain.cancel();
    match timeout(DRAIN_WITHIN, dispatch_loop.join_next()).await {
        Ok(Some(ended)) => Ok(ended??),
        Ok(None) => Ok(()),
        Err(_) => Err(RunError::Undrained),
    }
}

/// Accepts connections until `stop`, and serves at most `most` of them at once.
async fn accept<S: Store, C: Clock>(
    routes: Routes<S, C>,
    listener: &TcpListener,
    most: usize,
    connections: &mut JoinSet<()>,
    stop: &CancellationToken,
    failed: impl Fn(io::Error),
) {
    let routes = Arc::new(routes);
    let places = Arc::new(Semaphore::new(most));
    loop {
        let accepted = async {
            // A free place first: an accepted connection is always served.
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                report(ended);
                continue;
            }
            accepted = accepted => accepted,
        };
        match accepted {
            (Ok(place), Ok((stream, _))) => {
                connections.spawn(serve(stream, Arc::clone(&routes), stop.clone(), place));
            }
            (_, Err(error)) => {
                failed(error);
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
            (Err(_), _) => break,
        }
    }
}

/// Accepts connections of the metrics listener until `stop`.
async fn watched<S: Store, C: Clock>(api: Arc<Api<S, C>>, listener: TcpListener, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    let failed = |error| tracing::warn!(%error, "cannot accept a connection for metrics, retrying");
    accept(Routes::for_watchers(&api), &listener, WATCHERS_MAX, &mut connections, &stop, failed).await;
    all(&mut connections).await;
}

/// Serves one connection. After `stop` it ends with the request under way.
async fn serve<S: Store, C: Clock>(
    stream: TcpStream,
    routes: Arc<Routes<S, C>>,
    stop: CancellationToken,
    _place: OwnedSemaphorePermit,
) {
    // Each answer is one small write: Nagle's algorithm would only delay it.
    let _ = stream.set_nodelay(true);
    let _open = routes.opened();
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let routes = Arc::clone(&routes);
        async move { Ok::<_, Infallible>(routes.answer(request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(BUFFER_BYTES_MAX);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

async fn all(connections: &mut JoinSet<()>) {
    while let Some(ended) = connections.join_next().await {
        report(ended);
    }
}

fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection's task panicked");
    }
}
