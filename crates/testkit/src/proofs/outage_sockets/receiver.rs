//! An HTTP receiver that can die and return on the same port, and records the requests and connections that reached it.

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

/// A message that arrived.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    /// The request's `webhook-id`.
    pub(super) message: String,
    at: Duration,
}

/// The receiver. It listens on loopback until it is dropped.
pub(super) struct Receiver {
    address: SocketAddr,
    state: Arc<State>,
    _tasks: JoinSet<()>,
}

struct State {
    began: Instant,
    is_dead: AtomicBool,
    /// Counts deaths. A change closes open connections.
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
        let state = Arc::new(State {
            began: Instant::now(),
            is_dead: AtomicBool::new(false),
            deaths: watch::Sender::new(0),
            log: Mutex::default(),
            more: Notify::new(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(listener, Arc::clone(&state)));
        Ok(Self { address, state, _tasks: tasks })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// Closes open connections and, from now on, resets new ones.
    pub(super) fn die(&self) {
        self.state.is_dead.store(true, Ordering::SeqCst);
        self.state.deaths.send_modify(|deaths| *deaths += 1);
    }

    pub(super) fn come_back(&self) {
        self.state.is_dead.store(false, Ordering::SeqCst);
    }

    pub(super) fn arrived(&self) -> Vec<Arrival> {
        self.state.log().arrived.clone()
    }

    /// How many new connections were reset while the receiver was dead.
    pub(super) fn refused(&self) -> usize {
        self.state.log().refused.len()
    }

    /// Waits until `count` messages have arrived. Returns `false` after the time `within`.
    pub(super) async fn waits_for(&self, count: usize, within: Duration) -> bool {
        let all_arrived = async {
            loop {
                let more = self.state.more.notified();
                if self.state.log().arrived.len() >= count {
                    return;
                }
                more.await;
            }
        };
        tokio::time::timeout(within, all_arrived).await.is_ok()
    }

    /// Arrivals in each second.
    pub(super) fn per_second(&self) -> Vec<u32> {
        per_second(self.state.log().arrived.iter().map(|arrival| arrival.at))
    }

    /// Connections reset in each second.
    pub(super) fn refused_per_second(&self) -> Vec<u32> {
        per_second(self.state.log().refused.iter().copied())
    }

    /// The most arrivals within one second, from this time on.
    pub(super) fn peak_after(&self, seconds: f64) -> f64 {
        let times: Vec<f64> = self.state.log().arrived.iter().map(|arrival| arrival.at.as_secs_f64()).collect();
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

impl State {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn listen(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        if state.is_dead.load(Ordering::SeqCst) {
            state.log().refused.push(state.began.elapsed());
            // Closes with a reset instead of a FIN.
            let _ = stream.set_zero_linger();
            continue;
        }
        let state = Arc::clone(&state);
        connections.spawn(async move {
            let mut deaths = state.deaths.subscribe();
            tokio::select! {
                biased;
                _ = deaths.changed() => {}
                _ = serve(stream, &state) => {}
            }
        });
    }
}

/// Serves the requests of a connection, one after the other. Every request body is `{}`, which marks its end.
async fn serve(mut stream: TcpStream, state: &State) -> io::Result<()> {
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
        // Counted after the answer: a receiver that dies before it answers has accepted nothing.
        state.log().arrived.push(Arrival { message: id, at: state.began.elapsed() });
        state.more.notify_one();
    }
}
