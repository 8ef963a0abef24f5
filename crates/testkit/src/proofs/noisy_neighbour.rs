//! The proof `noisy-neighbour`: a tenant whose receivers never answer does not slow down the others (G3).
//!
//! A hundred quiet tenants send ten messages per second each to a receiver that answers at once; one noisy tenant sends
//! two hundred per second to receivers that read requests and never answer. The proof runs the real binary over real
//! sockets. It measures the time from the moment at which a producer should send a message to its arrival, with and
//! without the noise, each time on a fresh server. The two take turns, so that other work of the machine affects both.
//!
//! With few slots the noisy tenant would take all of them. It must get half of them at most, and the others must not
//! be affected. The negative control is the same with all endpoints in one tenant, which the server cannot treat
//! fairly: it must miss the bar.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, Request, StatusCode};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::fixtures::{ApiConnection, Launch, Posthaste, binary, lock, quantile, runtime, statistics};
use crate::prove::{CannotRun, Figure, Findings, Options};
use crate::receivers::{HttpReceiver, Responder, TimedResponse};

/// Pairs of a quiet and a noisy phase; the median counts.
const PAIRS: usize = 3;
const PHASE: Duration = Duration::from_secs(10);
const PHASE_QUICK: Duration = Duration::from_secs(2);
/// The longest wait after a phase for the last messages to arrive.
const GRACE: Duration = Duration::from_secs(2);
/// The latency of quiet tenants may grow by this much, or by half.
const ADDED_MS_MAX: f64 = 10.0;
/// The least share of accepted messages that must arrive, in percent.
const ARRIVED_MIN: f64 = 99.0;
/// Attempts under way at once: the default of the settings, and fewer than the noisy tenant could use.
const SLOTS: u32 = 1_024;
const SLOTS_TIGHT: u32 = 64;

pub fn run(options: &Options) -> Findings {
    let binary = binary()?;
    let length = if options.quick { PHASE_QUICK } else { PHASE };
    let runtime = runtime()?;
    let mut pairs = Vec::new();
    for number in 1..=PAIRS {
        let quiet = runtime.block_on(phase(&binary, length, Noise::Off, SLOTS))?;
        eprintln!("pair {number}, quiet: {quiet}");
        let noisy = runtime.block_on(phase(&binary, length, Noise::On, SLOTS))?;
        eprintln!("pair {number}, noisy: {noisy}");
        pairs.push((quiet, noisy));
    }
    let mut figures = figures(&pairs, options);
    let tight = runtime.block_on(phase(&binary, length, Noise::On, SLOTS_TIGHT))?;
    eprintln!("{SLOTS_TIGHT} slots, noisy: {tight}");
    figures.push(Figure::at_least("throughput_when_tight", tight.arrived(), "%", ARRIVED_MIN));
    let unknown = runtime.block_on(phase(&binary, length, Noise::Unknown, SLOTS_TIGHT))?;
    eprintln!("{SLOTS_TIGHT} slots, one tenant: {unknown}");
    let control = Figure::at_least("throughput_when_tight", unknown.arrived(), "%", ARRIVED_MIN);
    eprintln!("control, all in one tenant: {control}");
    let caught = u32::from(!control.is_ok());
    figures.push(Figure::at_least("negative_control_caught", f64::from(caught), "bars", 1.0));
    Ok(figures)
}

struct Phase {
    /// The latencies of messages that arrived, in milliseconds, ascending.
    latencies: Vec<f64>,
    /// Messages of quiet tenants that were accepted.
    accepted: usize,
    /// Accepted messages of the noisy tenant per second.
    noise: f64,
    /// The most attempts that waited for the tarpit's answer at once.
    hanging: usize,
}

impl Phase {
    /// The share of accepted messages that arrived, in percent.
    fn arrived(&self) -> f64 {
        100.0 * self.latencies.len() as f64 / self.accepted.max(1) as f64
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} of {} arrived, p50 {:.1} ms, p99 {:.1} ms; noise {:.0}/s, {} hang",
            self.latencies.len(),
            self.accepted,
            quantile(&self.latencies, 0.50),
            quantile(&self.latencies, 0.99),
            self.noise,
            self.hanging
        )
    }
}

async fn phase(binary: &Path, length: Duration, noise: Noise, slots: u32) -> Result<Phase, CannotRun> {
    let folder = tempfile::tempdir()?;
    let mut field = NoisySetup::start(binary, folder.path(), noise, slots).await?;
    let sent = produce(&field, length, noise).await?;
    // On a timeout the figures show the missing messages.
    let _ = field.receiver.waits_for(GRACE, |log| (lock(&log.took_ms).len() >= sent.accepted).then_some(())).await;
    let phase = Phase {
        latencies: field.receiver.responder().latencies(),
        accepted: sent.accepted,
        noise: sent.noise as f64 / length.as_secs_f64(),
        hanging: field.tarpit.most_open(),
    };
    // A shutdown would wait for attempts without an answer.
    field.server.kill()?;
    Ok(phase)
}

fn figures(pairs: &[(Phase, Phase)], options: &Options) -> Vec<Figure> {
    let p99 = |phase: &Phase| quantile(&phase.latencies, 0.99);
    let base = median(pairs.iter().map(|(quiet, _)| p99(quiet)));
    let added = median(pairs.iter().map(|(quiet, noisy)| p99(noisy) - p99(quiet)));
    let throughput = median(pairs.iter().map(|(_, noisy)| noisy.arrived()));
    let quiet_rate =
        median(pairs.iter().map(|(quiet, noisy)| 100.0 * noisy.accepted as f64 / quiet.accepted.max(1) as f64));
    let noise = median(pairs.iter().map(|(_, noisy)| noisy.noise));
    let hanging = pairs.iter().map(|(_, noisy)| noisy.hanging).max().unwrap_or(0);
    vec![
        Figure::at_most("quiet_p99_added", added, "ms", ADDED_MS_MAX.max(base / 2.0)).by_the_clock(options),
        Figure::at_least("throughput", throughput, "%", ARRIVED_MIN),
        Figure::at_least("accepted_beside_noise", quiet_rate, "%", 99.0),
        Figure::at_least("noise", noise, "messages/s", 0.9 * NOISE_PER_SECOND as f64).by_the_clock(options),
        // The noise must be real: attempts must wait for an answer.
        Figure::at_least("hanging", hanging as f64, "attempts", 20.0),
    ]
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    statistics::median(&mut values.collect::<Vec<_>>())
}

/// The number of quiet tenants, and the rate of each.
const TENANTS: usize = 100;
const QUIET_PER_SECOND: u32 = 10;
/// The rate of the noisy tenant, and the number of its connections.
const NOISE_PER_SECOND: u32 = 200;
const NOISY_LINES: u32 = 10;
const NOISY: &str = "noisy";

/// Whether there is a noisy tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Noise {
    Off,
    On,
    /// There is one, and all quiet producers use the same tenant, so that the server cannot distinguish them.
    Unknown,
}

impl Noise {
    /// The tenant of a quiet producer.
    fn tenant(self, number: usize) -> String {
        if self == Self::Unknown { NOISY.to_owned() } else { format!("quiet-{number}") }
    }
}

/// The event type of a quiet producer's messages, to which only its endpoint subscribes.
fn quiet_event(number: usize) -> String {
    format!("quiet.{number}")
}

/// The event type of the noisy tenant's messages for this tarpit.
fn noisy_event(number: usize) -> String {
    format!("tar.{number}")
}

/// How many messages of quiet producers and of the noisy one were accepted.
struct NoisySent {
    accepted: usize,
    noise: usize,
}

/// Runs all producers for this long.
async fn produce(field: &NoisySetup, length: Duration, noise: Noise) -> Result<NoisySent, CannotRun> {
    let (mut quiet, mut noisy) = (JoinSet::new(), JoinSet::new());
    let begins = Instant::now() + Duration::from_millis(100);
    let (epoch, until) = (field.receiver.responder().epoch, begins + length);
    for number in 0..TENANTS {
        // Spreads tenants over the time between two messages of one of them.
        let pause = Duration::from_secs(1) / QUIET_PER_SECOND;
        let offset = pause * u32::try_from(number).unwrap_or(0) / u32::try_from(TENANTS).unwrap_or(1);
        let (tenant, events, first) = (noise.tenant(number), vec![quiet_event(number)], begins + offset);
        let line = ApiConnection::open(field.server.address).await?;
        quiet.spawn(Producer { line, tenant, events, epoch, first, pause, until }.run());
    }
    let lines = if noise == Noise::Off { 0 } else { NOISY_LINES };
    for number in 0..lines {
        let pause = Duration::from_secs(1) * NOISY_LINES / NOISE_PER_SECOND;
        let (tenant, events) = (NOISY.to_owned(), (0..TARPITS).map(noisy_event).collect());
        let (line, first) = (ApiConnection::open(field.server.address).await?, begins + pause * number / NOISY_LINES);
        noisy.spawn(Producer { line, tenant, events, epoch, first, pause, until }.run());
    }
    Ok(NoisySent { accepted: total(quiet).await?, noise: total(noisy).await? })
}

async fn total(mut producers: JoinSet<Result<usize, CannotRun>>) -> Result<usize, CannotRun> {
    let mut sum = 0;
    while let Some(ended) = producers.join_next().await {
        sum += ended??;
    }
    Ok(sum)
}

struct Producer {
    line: ApiConnection,
    tenant: String,
    /// The event types of its messages, in turn.
    events: Vec<String>,
    epoch: Instant,
    /// When it sends its first message.
    first: Instant,
    pause: Duration,
    until: Instant,
}

impl Producer {
    /// Sends messages at the given rate. The payload has the time at which a message should be sent: if the server
    /// makes the producer wait, that counts for the latency of the next messages.
    async fn run(mut self) -> Result<usize, CannotRun> {
        let (mut next, mut accepted) = (self.first, 0);
        while next < self.until {
            tokio::time::sleep_until(next).await;
            let at = next.saturating_duration_since(self.epoch).as_micros();
            let event = &self.events[accepted % self.events.len()];
            let body = format!("{{\"event_type\":\"{event}\",\"payload\":{{\"at\":{at}}}}}");
            let fields = [("posthaste-tenant", self.tenant.as_str())];
            let answer = self.line.call(Method::POST, "/v1/messages", &fields, body).await?;
            answer.expect(StatusCode::ACCEPTED)?;
            accepted += 1;
            next += self.pause;
        }
        Ok(accepted)
    }
}

/// Connections over which tenants are created in parallel, because each creation waits for the disk.
const CONNECTIONS: usize = 16;
/// The noisy tenant's endpoints, each with a high limit of attempts in flight.
const TARPITS: usize = 20;
const TARPIT_IN_FLIGHT: usize = 256;

/// The server and its receivers.
struct NoisySetup {
    server: Posthaste,
    receiver: HttpReceiver<LatencyLog>,
    tarpit: HttpReceiver<Tarpit>,
}

impl NoisySetup {
    async fn start(binary: &Path, folder: &Path, noise: Noise, slots: u32) -> Result<Self, CannotRun> {
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
                for number in (connection..TENANTS).step_by(CONNECTIONS) {
                    let uid = noise.tenant(number);
                    if noise != Noise::Unknown {
                        make(&mut line, "/v1/tenants", &[], format!("{{\"uid\":\"{uid}\"}}")).await?;
                    }
                    let event = quiet_event(number);
                    let body = format!("{{\"url\":\"{url}/{number}\",\"event_types\":[\"{event}\"]}}");
                    make(&mut line, "/v1/endpoints", &[("posthaste-tenant", &uid)], body).await?;
                }
                Ok::<_, CannotRun>(())
            });
        }
        while let Some(ended) = connections.join_next().await {
            ended??;
        }
        Ok(Self { server, receiver, tarpit })
    }
}

/// Creates the noisy tenant with its endpoints.
async fn make_noisy(server: SocketAddr, tarpit: &HttpReceiver<Tarpit>) -> Result<(), CannotRun> {
    let mut line = ApiConnection::open(server).await?;
    make(&mut line, "/v1/tenants", &[], format!("{{\"uid\":\"{NOISY}\"}}")).await?;
    for number in 0..TARPITS {
        let body = format!(
            "{{\"url\":\"{}/{number}\",\"event_types\":[\"{}\"],\"max_in_flight\":{TARPIT_IN_FLIGHT}}}",
            tarpit.url(),
            noisy_event(number)
        );
        make(&mut line, "/v1/endpoints", &[("posthaste-tenant", NOISY)], body).await?;
    }
    Ok(())
}

async fn make(line: &mut ApiConnection, path: &str, fields: &[(&str, &str)], body: String) -> Result<(), CannotRun> {
    line.call(Method::POST, path, fields, body).await?.expect(StatusCode::CREATED).map(drop)
}

/// Accepts every request at once, and records the latency of its message. A body is `{"at":MICROSECONDS}`.
#[derive(Debug)]
struct LatencyLog {
    /// The instant from which producers count the times in their payloads.
    epoch: Instant,
    took_ms: Mutex<Vec<f64>>,
}

impl LatencyLog {
    /// All latencies so far, ascending.
    fn latencies(&self) -> Vec<f64> {
        let mut took = lock(&self.took_ms).clone();
        took.sort_by(f64::total_cmp);
        took
    }
}

impl Responder for LatencyLog {
    fn answer(&self, request: Request<Bytes>) -> TimedResponse {
        let now = self.epoch.elapsed();
        let text = String::from_utf8_lossy(request.body());
        let at = text.strip_prefix("{\"at\":").and_then(|behind| behind.trim_end_matches('}').parse::<u64>().ok());
        let Some(at) = at else { return StatusCode::BAD_REQUEST.into() };
        let took = now.saturating_sub(Duration::from_micros(at));
        lock(&self.took_ms).push(took.as_secs_f64() * 1_000.0);
        StatusCode::OK.into()
    }
}

/// Reads requests and never answers.
#[derive(Debug)]
struct Tarpit;

impl Responder for Tarpit {
    fn answer(&self, _: Request<Bytes>) -> TimedResponse {
        TimedResponse { after: Duration::MAX, ..StatusCode::OK.into() }
    }
}
