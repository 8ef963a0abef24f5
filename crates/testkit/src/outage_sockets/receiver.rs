//! A receiver that dies and returns on the same port, and notes what reached it and when.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// One message that arrived.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    /// `webhook-id`.
    pub(super) message: String,
    at: Duration,
}

/// Listens on loopback until it is dropped.
pub(super) struct Receiver {
    address: SocketAddr,
    desk: Arc<Desk>,
    _tasks: JoinSet<()>,
}

struct Desk {
    began: Instant,
    is_dead: AtomicBool,
    /// Tells open connections that they die.
    deaths: watch::Sender<u32>,
    log: Mutex<Log>,
    more: Notify,
}

#[derive(Default)]
struct Log {
    arrived: Vec<Arrival>,
    refused: Vec<Duration>,
}

impl Receiver {
    pub(super) async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let desk = Arc::new(Desk {
            began: Instant::now(),
            is_dead: AtomicBool::new(false),
            deaths: watch::Sender::new(0),
            log: Mutex::default(),
            more: Notify::new(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(listener, Arc::clone(&desk)));
        Ok(Self { address, desk, _tasks: tasks })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// From now on whoever connects is reset, and every open connection is.
    pub(super) fn die(&self) {
        self.desk.is_dead.store(true, Ordering::SeqCst);
        self.desk.deaths.send_modify(|deaths| *deaths += 1);
    }

    pub(super) fn come_back(&self) {
        self.desk.is_dead.store(false, Ordering::SeqCst);
    }

    pub(super) fn arrived(&self) -> Vec<Arrival> {
        self.desk.log().arrived.clone()
    }

    /// How many connections were reset while it was dead.
    pub(super) fn refused(&self) -> usize {
        self.desk.log().refused.len()
    }

    /// Waits until so many have arrived; false when that took longer than this.
    pub(super) async fn waits_for(&self, count: usize, within: Duration) -> bool {
        let all_here = async {
            loop {
                let more = self.desk.more.notified();
                if self.desk.log().arrived.len() >= count {
                    return;
                }
                more.await;
            }
        };
        tokio::time::timeout(within, all_here).await.is_ok()
    }

    /// Arrivals in each second.
    pub(super) fn per_second(&self) -> Vec<u32> {
        per_second(self.desk.log().arrived.iter().map(|arrival| arrival.at))
    }

    /// Connections reset in each second.
    pub(super) fn refused_per_second(&self) -> Vec<u32> {
        per_second(self.desk.log().refused.iter().copied())
    }

    /// The most that arrived in any second after this one.
    pub(super) fn peak_after(&self, seconds: f64) -> f64 {
        let times: Vec<f64> = self.desk.log().arrived.iter().map(|arrival| arrival.at.as_secs_f64()).collect();
        let after: Vec<f64> = times.into_iter().filter(|at| *at >= seconds).collect();
        let within_a_second = |from: usize| after[from..].iter().take_while(|at| **at < after[from] + 1.0).count();
        (0..after.len()).map(within_a_second).max().unwrap_or(0) as f64
    }
}

fn per_second(times: impl Iterator<Item = Duration>) -> Vec<u32> {
    let mut seconds: Vec<u32> = Vec::new();
    for at in times {
        let index = usize::try_from(at.as_secs()).unwrap_or(usize::MAX).min(3_600);
        if seconds.len() <= index {
            seconds.resize(index + 1, 0);
        }
        seconds[index] += 1;
    }
    seconds
}

impl Desk {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn listen(listener: TcpListener, desk: Arc<Desk>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        if desk.is_dead.load(Ordering::SeqCst) {
            desk.log().refused.push(desk.began.elapsed());
            // Closed with a reset: nothing lingers.
            let _ = stream.set_zero_linger();
            continue;
        }
        let desk = Arc::clone(&desk);
        connections.spawn(async move {
            let mut deaths = desk.deaths.subscribe();
            tokio::select! {
                biased;
                _ = deaths.changed() => {}
                _ = serve(stream, &desk) => {}
            }
        });
    }
}

/// One request after the other. The body is `{}` and ends it.
async fn serve(mut stream: TcpStream, desk: &Desk) -> io::Result<()> {
    let mut request = Vec::new();
    loop {
        request.clear();
        while !request.ends_with(b"{}") {
            if stream.read_buf(&mut request).await? == 0 {
                return Ok(());
            }
        }
        let text = String::from_utf8_lossy(&request);
        let id = text.lines().find_map(|line| line.strip_prefix("webhook-id: ")).unwrap_or_default().to_owned();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
        // One that died before it could answer took nothing.
        desk.log().arrived.push(Arrival { message: id, at: desk.began.elapsed() });
        desk.more.notify_one();
    }
}
