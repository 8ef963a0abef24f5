//! A fresh server with its tenants, and two HTTP receivers: one that answers at once, and one that never answers.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, Request, StatusCode};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::load::{self, Latencies, Noise};
use crate::fixtures::caller::ApiConnection;
use crate::fixtures::posthaste::{Launch, Posthaste};
use crate::receivers::{HttpReceiver, Responder, TimedResponse};

/// Connections over which tenants are created in parallel, because each creation waits for the disk.
const CONNECTIONS: usize = 16;
/// The noisy tenant's endpoints, each with a high limit of attempts in flight.
pub(super) const TARPITS: usize = 20;
const TARPIT_IN_FLIGHT: usize = 256;

/// The server and its receivers.
pub(super) struct NoisySetup {
    server: Posthaste,
    pub(super) receiver: HttpReceiver<LatencyLog>,
    pub(super) tarpit: HttpReceiver<Tarpit>,
}

impl NoisySetup {
    pub(super) async fn start(binary: &Path, folder: &Path, noise: Noise, slots: u32) -> io::Result<Self> {
        let server = Launch::new(binary, folder).with("POSTHASTE_SLOTS", slots.to_string()).start()?;
        let log = LatencyLog { epoch: Instant::now(), took_ms: Mutex::default() };
        let (receiver, tarpit) = (HttpReceiver::listen(log).await?, HttpReceiver::listen(Tarpit).await?);
        if noise != Noise::Off {
            make_noisy(server.address, &tarpit).await?;
        }
        let mut connections = JoinSet::new();
        for connection in 0..CONNECTIONS {
            let (address, url) = (server.address, receiver.url());
            connections.spawn(async move {
                let mut line = ApiConnection::open(address).await?;
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
async fn make_noisy(server: SocketAddr, tarpit: &HttpReceiver<Tarpit>) -> io::Result<()> {
    let mut line = ApiConnection::open(server).await?;
    make(&mut line, "/v1/tenants", &[], format!("{{\"uid\":\"{}\"}}", load::NOISY)).await?;
    for number in 0..TARPITS {
        let body = format!(
            "{{\"url\":\"{}/{number}\",\"event_types\":[\"{}\"],\"max_in_flight\":{TARPIT_IN_FLIGHT}}}",
            tarpit.url(),
            load::noisy_event(number)
        );
        make(&mut line, "/v1/endpoints", &[("posthaste-tenant", load::NOISY)], body).await?;
    }
    Ok(())
}

async fn make(line: &mut ApiConnection, path: &str, fields: &[(&str, &str)], body: String) -> io::Result<()> {
    line.call(Method::POST, path, fields, body).await?.expect(StatusCode::CREATED).map(drop)
}

/// Accepts every request at once, and records the latency of its message. A body is `{"at":MICROSECONDS}`.
#[derive(Debug)]
pub(super) struct LatencyLog {
    /// The instant from which producers count the times in their payloads.
    pub(super) epoch: Instant,
    took_ms: Mutex<Vec<f64>>,
}

impl LatencyLog {
    pub(super) fn latencies(&self) -> Latencies {
        Latencies::of(self.took_ms().clone())
    }

    pub(super) fn count(&self) -> usize {
        self.took_ms().len()
    }

    fn took_ms(&self) -> MutexGuard<'_, Vec<f64>> {
        self.took_ms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Responder for LatencyLog {
    fn answer(&self, request: Request<Bytes>) -> TimedResponse {
        let now = self.epoch.elapsed();
        let text = String::from_utf8_lossy(request.body());
        let at = text.strip_prefix("{\"at\":").and_then(|behind| behind.trim_end_matches('}').parse::<u64>().ok());
        let Some(at) = at else { return StatusCode::BAD_REQUEST.into() };
        let took = now.saturating_sub(Duration::from_micros(at));
        self.took_ms().push(took.as_secs_f64() * 1_000.0);
        StatusCode::OK.into()
    }
}

/// Reads requests and never answers.
#[derive(Debug)]
pub(super) struct Tarpit;

impl Responder for Tarpit {
    fn answer(&self, _: Request<Bytes>) -> TimedResponse {
        TimedResponse { after: Duration::MAX, ..StatusCode::OK.into() }
    }
}
