//! A receiver that takes every request at once and says where it came and when.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// A message that has not come by then is lost.
const PATIENCE: Duration = Duration::from_secs(10);
/// Arrivals that nobody has asked for yet.
const WAITING_MAX: usize = 1_024;

/// A message that came.
pub(super) struct Arrival {
    /// The number in the path it was sent to.
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

    /// Requests go to a number below it.
    pub(super) fn url(&self) -> String {
        format!("http://{}/to", self.address)
    }

    /// The next message; `None` when none comes.
    pub(super) async fn next(&mut self) -> Option<Arrival> {
        timeout(PATIENCE, self.arrivals.recv()).await.ok().flatten()
    }
}

/// One request after the other: the payload is small, an object, and ends with its brace.
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
        // Whoever measures has left when this fails.
        let _ = came.send(Arrival { lane, at }).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
    }
}
