//! An HTTP receiver that accepts every request at once and passes on its path and time.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// A message that has not arrived after this time is lost.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most arrivals that wait to be read by the proof.
const WAITING_MAX: usize = 1_024;

/// A message that arrived.
pub(super) struct Arrival {
    /// The number in the path of its URL.
    pub(super) lane: u64,
    pub(super) at: Instant,
}

pub(super) struct Receiver {
    address: SocketAddr,
    arrivals: mpsc::Receiver<Arrival>,
    _tasks: JoinSet<()>,
}

impl Receiver {
    pub(super) async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (came, arrivals) = mpsc::channel(WAITING_MAX);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(take(stream, came.clone()));
            }
        });
        Ok(Self { address, arrivals, _tasks: tasks })
    }

    /// The URL; endpoints append a slash and their number.
    pub(super) fn url(&self) -> String {
        format!("http://{}/to", self.address)
    }

    /// The next message; `None` if none arrives in time.
    pub(super) async fn next(&mut self) -> Option<Arrival> {
        timeout(PATIENCE, self.arrivals.recv()).await.ok().flatten()
    }
}

/// Serves the requests of a connection, one after the other. Payloads are small objects, whose closing brace marks the
/// end of a request.
async fn take(mut stream: TcpStream, came: mpsc::Sender<Arrival>) -> io::Result<()> {
    let mut request = Vec::new();
    loop {
        request.clear();
        while !request.ends_with(b"}") {
            if stream.read_buf(&mut request).await? == 0 {
                return Ok(());
            }
        }
        let at = Instant::now();
        let text = String::from_utf8_lossy(&request);
        let lane = text.strip_prefix("POST /to/").and_then(|behind| behind.split(' ').next()?.parse().ok());
        let lane = lane.ok_or_else(|| io::Error::other("a request for no endpoint of the proof"))?;
        // An error means that the proof has ended.
        let _ = came.send(Arrival { lane, at }).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
    }
}
