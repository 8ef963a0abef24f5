//! A receiver of HTTP/2 over TLS whose behaviour, correct or not, a test defines.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::receiver::{OK, put};

/// What a flood writes at most: several times what the connector takes, with the buffers of the sockets.
const FLOOD_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The behaviour on an HTTP/2 connection; over HTTP/1.1 it always answers 200.
#[derive(Clone, Debug)]
pub(crate) enum Manner {
    /// Answers requests by a list: the n-th request of all gets the n-th answer, and later ones the last answer.
    Serve(ServeTerms),
    /// Writes the first frames, reads until this many requests have come, writes the second frames, and waits.
    Raw(Vec<u8>, usize, Vec<u8>),
    /// Writes the first frames once a request has come, and then the second ones again and again until writing fails.
    Flood { before: Vec<u8>, flood: Vec<u8> },
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ServeTerms {
    pub(crate) streams_max: Option<u32>,
    pub(crate) window: Option<u32>,
    /// Sends `GOAWAY` after this many requests of a connection.
    pub(crate) requests_max: Option<usize>,
    pub(crate) answers: Vec<Reply>,
}

#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Ok,
    /// Answers 200 once the semaphore has a permit.
    Held(Arc<Semaphore>),
    Never,
    Reset(Reason),
    /// Answers with this many fields of this many bytes each.
    Fields(usize, usize),
    /// Answers with this status and a body of this many bytes.
    Body(u16, usize),
    /// Sends this many interim answers first.
    Interim(usize),
}

pub(crate) fn serve(answers: &[Reply]) -> Manner {
    Manner::Serve(ServeTerms { answers: answers.to_vec(), ..ServeTerms::default() })
}

/// Listens on loopback; its tasks end with it.
pub(crate) struct Multiplexer {
    address: SocketAddr,
    pub(crate) seen: Arc<Seen>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) connections: AtomicUsize,
    pub(crate) requests: AtomicUsize,
    /// The most requests under way on one connection at once.
    pub(crate) at_once_max: AtomicUsize,
    pub(crate) over_http1: AtomicUsize,
    pub(crate) last: Mutex<String>,
    /// How many bytes of a flood were written until the connection was closed.
    flooded: watch::Sender<Option<usize>>,
}

impl Seen {
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.connections.load(Ordering::SeqCst), self.requests.load(Ordering::SeqCst))
    }

    /// Checks that a flood has ended early.
    pub(crate) async fn check_flood(&self, name: &str) {
        let mut flooded = self.flooded.subscribe();
        let written = flooded.wait_for(Option::is_some).await.expect("the sender is here").expect("some");
        assert!(written < FLOOD_BYTES_MAX, "{name}: {written} bytes were taken");
    }
}

impl Multiplexer {
    /// The n-th connection gets the n-th behaviour, and later ones the last.
    pub(crate) async fn start(acceptor: TlsAcceptor, manners: Vec<Manner>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
        let address = listener.local_addr().expect("a bound socket has an address");
        let seen = Arc::new(Seen::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, acceptor, manners, Arc::clone(&seen)));
        Self { address, seen, _tasks: tasks }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) async fn until_requests(&self, count: usize) {
        while self.seen.counts().1 < count {
            tokio::task::yield_now().await;
        }
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, manners: Vec<Manner>, seen: Arc<Seen>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let index = seen.connections.fetch_add(1, Ordering::SeqCst);
        let manner = manners[index.min(manners.len() - 1)].clone();
        connections.spawn(play(stream, acceptor.clone(), manner, Arc::clone(&seen)));
    }
}

async fn play(stream: TcpStream, acceptor: TlsAcceptor, manner: Manner, seen: Arc<Seen>) {
    let Ok(mut stream) = acceptor.accept(stream).await else { return };
    if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        seen.over_http1.fetch_add(1, Ordering::SeqCst);
        return serve_http1(&mut stream).await;
    }
    match manner {
        Manner::Serve(terms) => serve_http2(stream, terms, seen).await,
        // It ends with an error once the other side has gone.
        Manner::Raw(first, requests, then) => _ = raw(stream, &first, requests, &then, &seen).await,
        Manner::Flood { before, flood } => {
            let written = flooded(stream, &before, &flood).await;
            seen.flooded.send_replace(Some(written));
        }
    }
}

/// Small requests without pipelining: each comes in one read.
async fn serve_http1<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
    let mut request = [0; 4096];
    while stream.read(&mut request).await.is_ok_and(|length| length > 0) && put(stream, OK.as_bytes()).await {}
}

async fn serve_http2<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    terms: ServeTerms,
    seen: Arc<Seen>,
) {
    let mut builder = h2::server::Builder::new();
    if let Some(max) = terms.streams_max {
        builder.max_concurrent_streams(max);
    }
    if let Some(bytes) = terms.window {
        builder.initial_window_size(bytes);
    }
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else { return };
    let (mut answers, at_once) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
    let mut requests = 0;
    while let Some(Ok((request, respond))) = connection.accept().await {
        let index = seen.requests.fetch_add(1, Ordering::SeqCst);
        let reply = terms.answers[index.min(terms.answers.len() - 1)].clone();
        answers.spawn(answer(request, respond, reply, Arc::clone(&at_once), Arc::clone(&seen)));
        requests += 1;
        if terms.requests_max == Some(requests) {
            connection.graceful_shutdown();
        }
    }
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    reply: Reply,
    at_once: Arc<AtomicUsize>,
    seen: Arc<Seen>,
) {
    let now = at_once.fetch_add(1, Ordering::SeqCst) + 1;
    seen.at_once_max.fetch_max(now, Ordering::SeqCst);
    let (head, mut body) = request.into_parts();
    let mut bytes = Vec::new();
    while let Some(Ok(data)) = body.data().await {
        _ = body.flow_control().release_capacity(data.len());
        bytes.extend_from_slice(&data);
    }
    let mut fields: Vec<String> = head.headers.iter().map(|(name, value)| format!("{name}: {value:?}")).collect();
    fields.sort();
    let text = format!("{} {} {fields:?} {}", head.method, head.uri, String::from_utf8_lossy(&bytes));
    *seen.last.lock().expect("no receiver panics") = text;
    at_once.fetch_sub(1, Ordering::SeqCst);
    let response = Response::builder();
    match reply {
        Reply::Ok => {}
        Reply::Held(gate) => {
            at_once.fetch_add(1, Ordering::SeqCst);
            gate.acquire().await.expect("the semaphore stays open").forget();
            at_once.fetch_sub(1, Ordering::SeqCst);
        }
        Reply::Never => std::future::pending().await,
        Reply::Reset(reason) => return respond.send_reset(reason),
        Reply::Fields(count, bytes) => {
            let name = |number| format!("x-{number}");
            let response =
                (0..count).fold(response, |response, number| response.header(name(number), "a".repeat(bytes)));
            _ = respond.send_response(response.body(()).expect("a response"), true);
            return;
        }
        Reply::Body(status, bytes) => {
            let head = response.status(status).body(()).expect("a response");
            if let Ok(mut stream) = respond.send_response(head, false) {
                _ = stream.send_data(Bytes::from(vec![b'x'; bytes]), true);
            }
            return;
        }
        Reply::Interim(count) => {
            for _ in 0..count {
                let hint = Response::builder().status(103).body(()).expect("a response");
                _ = respond.send_informational(hint);
            }
        }
    }
    _ = respond.send_response(Response::new(()), true);
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a small frame").to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

pub(crate) fn settings_frame() -> Vec<u8> {
    frame(4, 0, 0, &[])
}

/// A `SETTINGS` frame with the limit of streams.
pub(crate) fn streams_frame(max: u32) -> Vec<u8> {
    frame(4, 0, 0, &[&[0, 3][..], &max.to_be_bytes()].concat())
}

pub(crate) fn goaway_frame(last: u32, reason: u32) -> Vec<u8> {
    frame(7, 0, 0, &[last.to_be_bytes(), reason.to_be_bytes()].concat())
}

/// A head with `:status: 200` that ends its stream.
pub(crate) fn ok_frame(stream: u32) -> Vec<u8> {
    frame(1, 0x5, stream, &[0x88])
}

async fn raw<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    first: &[u8],
    requests: usize,
    then: &[u8],
    seen: &Seen,
) -> io::Result<()> {
    stream.write_all(first).await?;
    stream.flush().await?;
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await?;
    let mut heads = 0;
    loop {
        if heads == requests {
            stream.write_all(then).await?;
            stream.flush().await?;
            heads += 1;
        }
        if read_frame(&mut stream).await? == 1 {
            seen.requests.fetch_add(1, Ordering::SeqCst);
            heads += 1;
        }
    }
}

/// Returns how many bytes of the flood were written.
async fn flooded<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, before: &[u8], flood: &[u8]) -> usize {
    if stream.write_all(&settings_frame()).await.is_err() || read_until_request(&mut stream).await.is_err() {
        return 0;
    }
    let (mut reading, mut writing) = tokio::io::split(stream);
    let flooding = async {
        let block = flood.repeat(64 * 1024 / flood.len());
        let mut written = 0;
        if writing.write_all(before).await.is_err() {
            return 0;
        }
        while written < FLOOD_BYTES_MAX && writing.write_all(&block).await.is_ok() {
            written += block.len();
        }
        written
    };
    // The client's answers are read as they come, so that it can go on.
    let sink = async {
        let mut rest = vec![0; 64 * 1024];
        while reading.read(&mut rest).await.is_ok_and(|length| length > 0) {}
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        written = flooding => written,
        () = sink => 0,
    }
}

async fn read_until_request<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<()> {
    stream.read_exact(&mut [0; 24]).await?;
    while read_frame(stream).await? != 1 {}
    Ok(())
}

/// Reads a frame and returns its type.
async fn read_frame<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<u8> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await?;
    let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
    stream.read_exact(&mut vec![0; length]).await?;
    Ok(head[3])
}
