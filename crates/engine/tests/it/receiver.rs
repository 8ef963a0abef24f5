//! A receiver that follows a script, which may violate the protocol.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// One step of a receiver on a connection. At the end of its script it closes the connection.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Read,
    /// Reads no more than the first byte.
    ReadFirst,
    Write(Vec<u8>),
    /// Writes these bytes again and again until the other side has gone.
    Flood(Vec<u8>),
    /// Waits until the other side has gone.
    Hold,
    /// Neither reads nor writes any more.
    Stall,
    Reset,
    /// Answers every request with 200 until the other side has gone.
    Serve,
}

pub(crate) fn write(text: impl AsRef<[u8]>) -> Step {
    Step::Write(text.as_ref().to_vec())
}

/// Listens on loopback; its tasks end with it.
pub(crate) struct Receiver {
    address: SocketAddr,
    seen: Arc<Seen>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    requests: Mutex<Vec<String>>,
}

impl Receiver {
    /// The n-th connection gets the n-th script, and later ones the last.
    pub(crate) async fn start(scripts: Vec<Vec<Step>>) -> Self {
        Self::listen(scripts, None).await
    }

    pub(crate) async fn start_tls(scripts: Vec<Vec<Step>>, acceptor: TlsAcceptor) -> Self {
        Self::listen(scripts, Some(acceptor)).await
    }

    async fn listen(scripts: Vec<Vec<Step>>, acceptor: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port on loopback");
        let address = listener.local_addr().expect("a bound socket has an address");
        let seen = Arc::new(Seen::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, scripts, acceptor, Arc::clone(&seen)));
        Self { address, seen, _tasks: tasks }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    /// The requests read so far, as they came over the wire.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.seen.requests.lock().expect("no receiver panics").clone()
    }
}

async fn accept(listener: TcpListener, scripts: Vec<Vec<Step>>, acceptor: Option<TlsAcceptor>, seen: Arc<Seen>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let index = seen.connections.fetch_add(1, Ordering::SeqCst);
        let script = scripts[index.min(scripts.len() - 1)].clone();
        connections.spawn(play(stream, script, acceptor.clone(), Arc::clone(&seen)));
    }
}

async fn play(stream: TcpStream, script: Vec<Step>, acceptor: Option<TlsAcceptor>, seen: Arc<Seen>) {
    if matches!(script.last(), Some(Step::Reset)) {
        stream.set_zero_linger().expect("an open socket takes the option");
    }
    match acceptor {
        None => follow(stream, script, &seen).await,
        Some(acceptor) => {
            if let Ok(stream) = acceptor.accept(stream).await {
                follow(stream, script, &seen).await;
            }
        }
    }
}

async fn follow<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, script: Vec<Step>, seen: &Seen) {
    for step in script {
        let goes_on = match step {
            Step::Read => read(&mut stream, seen).await,
            Step::ReadFirst => stream.read_u8().await.is_ok(),
            Step::Write(bytes) => put(&mut stream, &bytes).await,
            Step::Flood(bytes) => {
                while put(&mut stream, &bytes).await {}
                false
            }
            Step::Hold => {
                while stream.read_u8().await.is_ok() {}
                false
            }
            Step::Stall => std::future::pending().await,
            Step::Reset => return,
            Step::Serve => {
                while read(&mut stream, seen).await && put(&mut stream, OK.as_bytes()).await {}
                false
            }
        };
        if !goes_on {
            return;
        }
    }
    let _ = stream.shutdown().await;
}

pub(crate) async fn put<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> bool {
    stream.write_all(bytes).await.is_ok() && stream.flush().await.is_ok()
}

async fn read<S: AsyncRead + Unpin>(stream: &mut S, seen: &Seen) -> bool {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => text.push(byte),
            Err(_) => return false,
        }
    }
    let head = String::from_utf8_lossy(&text).into_owned();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |digits| digits.parse().expect("a length is a number"));
    let mut body = vec![0; length];
    if stream.read_exact(&mut body).await.is_err() {
        return false;
    }
    seen.requests.lock().expect("no receiver panics").push(head + &String::from_utf8_lossy(&body));
    true
}
