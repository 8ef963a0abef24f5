//! A fresh server with its tenants, and two HTTP receivers: one that answers at once, and one that never answers.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::{Method, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::load::{self, Latencies, Noise};
use crate::fixtures::caller::Line;
use crate::fixtures::posthaste::{Launch, Posthaste};

/// Connections over which tenants are created in parallel, because each creation waits for the disk.
const CONNECTIONS: usize = 16;
/// The noisy tenant's endpoints, each with a high limit of attempts in flight.
pub(super) const TARPITS: usize = 20;
const TARPIT_IN_FLIGHT: usize = 256;

/// The server and its receivers.
pub(super) struct Field {
    server: Posthaste,
    pub(super) receiver: Receiver,
    pub(super) tarpit: Tarpit,
}

impl Field {
    pub(super) async fn start(binary: &Path, folder: &Path, noise: Noise, slots: u32) -> io::Result<Self> {
        let server = Launch::new(binary, folder).with("POSTHASTE_SLOTS", slots.to_string()).start()?;
        let (receiver, tarpit) = (Receiver::start().await?, Tarpit::start().await?);
        if noise != Noise::Off {
            make_noisy(server.address, &tarpit).await?;
        }
        let mut connections = JoinSet::new();
        for connection in 0..CONNECTIONS {
            let (address, url) = (server.address, receiver.url());
            connections.spawn(async move {
                let mut line = Line::open(address).await?;
                for number in (connection..load::TENANTS).step_by(CONNECTIONS) {
                    let uid = noise.tenant(number);
                    if noise != Noise::Unknown {
                        make(&mut line, "/v1/tenants", &[], format!("{{\"uid\":\"{uid}\"}}")).await?;
                    }
                    let event = load::quiet_event(number);
                    let body = format!("{{\"url\":\"{url}/{number}\",\"event_types\":[\"{event}\"]}}");
                    make(&mut line, "/v1/endpoints", &[("posthaste-tenant", &uid)], body).await?;
                }
                Ok::<_, io::Error>(())
            });
        }
        while let Some(ended) = connections.join_next().await {
            ended.map_err(io::Error::other)??;
        }
        Ok(Self { server, receiver, tarpit })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Kills the server: a shutdown would wait for attempts without an answer.
    pub(super) fn end(mut self) -> io::Result<()> {
        self.server.kill()
    }
}

/// Creates the noisy tenant with its endpoints.
async fn make_noisy(server: SocketAddr, tarpit: &Tarpit) -> io::Result<()> {
    let mut line = Line::open(server).await?;
    make(&mut line, "/v1/tenants", &[], format!("{{\"uid\":\"{}\"}}", load::NOISY)).await?;
    for number in 0..TARPITS {
        let body = format!(
            "{{\"url\":\"{}\",\"event_types\":[\"{}\"],\"max_in_flight\":{TARPIT_IN_FLIGHT}}}",
            tarpit.url(number),
            load::noisy_event(number)
        );
        make(&mut line, "/v1/endpoints", &[("posthaste-tenant", load::NOISY)], body).await?;
    }
    Ok(())
}

async fn make(line: &mut Line, path: &str, fields: &[(&str, &str)], body: String) -> io::Result<()> {
    line.call(Method::POST, path, fields, body).await?.expect(StatusCode::CREATED).map(drop)
}

/// A receiver that accepts every request at once, and records the latency of its message.
pub(super) struct Receiver {
    address: SocketAddr,
    seen: Arc<Seen>,
    _tasks: JoinSet<()>,
}

struct Seen {
    start: Instant,
    took: Mutex<Vec<f64>>,
    more: Notify,
}

impl Receiver {
    async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let seen = Arc::new(Seen { start: Instant::now(), took: Mutex::default(), more: Notify::new() });
        let mut tasks = JoinSet::new();
        let shared = Arc::clone(&seen);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(take(stream, Arc::clone(&shared)));
            }
        });
        Ok(Self { address, seen, _tasks: tasks })
    }

    fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// The instant from which producers count the times in their payloads.
    pub(super) fn epoch(&self) -> Instant {
        self.seen.start
    }

    pub(super) fn latencies(&self) -> Latencies {
        Latencies::of(self.seen.took.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Waits until `count` messages have arrived, but no longer than `within`.
    pub(super) async fn waits_for(&self, count: usize, within: Duration) {
        let all_arrived = async {
            loop {
                let more = self.seen.more.notified();
                if self.seen.took.lock().unwrap_or_else(PoisonError::into_inner).len() >= count {
                    return;
                }
                more.await;
            }
        };
        // On a timeout the figures show the missing messages.
        let _ = tokio::time::timeout(within, all_arrived).await;
    }
}

/// Serves the requests of a connection, one after the other. A body is `{"at":MICROSECONDS}`, whose closing brace marks
/// the end of a request.
async fn take(mut stream: TcpStream, seen: Arc<Seen>) -> io::Result<()> {
    let mut request = Vec::new();
    loop {
        request.clear();
        while !request.ends_with(b"}") {
            if stream.read_buf(&mut request).await? == 0 {
                return Ok(());
            }
        }
        let now = seen.start.elapsed();
        let text = String::from_utf8_lossy(&request);
        let at = text.rsplit_once("{\"at\":").and_then(|(_, behind)| behind.trim_end_matches('}').parse::<u64>().ok());
        let at = at.ok_or_else(|| io::Error::other("a body that is not of this proof"))?;
        let took = now.saturating_sub(Duration::from_micros(at));
        seen.took.lock().unwrap_or_else(PoisonError::into_inner).push(took.as_secs_f64() * 1_000.0);
        seen.more.notify_one();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
    }
}

/// A receiver that reads requests and never answers.
pub(super) struct Tarpit {
    address: SocketAddr,
    most: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Tarpit {
    async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let most = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        let (seen, hanging) = (Arc::clone(&most), Arc::new(AtomicUsize::new(0)));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let (seen, hanging) = (Arc::clone(&seen), Arc::clone(&hanging));
                connections.spawn(async move {
                    seen.fetch_max(hanging.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    let mut nothing = [0; 1024];
                    while stream.read(&mut nothing).await.is_ok_and(|read| read > 0) {}
                    hanging.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Ok(Self { address, most, _tasks: tasks })
    }

    fn url(&self, number: usize) -> String {
        format!("http://{}/tar/{number}", self.address)
    }

    /// The most connections that were open at once.
    pub(super) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}
