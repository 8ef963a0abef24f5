//! `posthaste bench`: what this machine can do, in figures that can be compared.
//!
//! Producer, server and receiver are processes of their own on loopback, so that the server's CPU
//! is the server's alone: `serve --dev` over a real file, every commit synced. The bare limit
//! stands beside it: a client without queue, store or signature that posts the same bytes over as
//! many connections to the same receiver.

mod child;
mod hammer;
pub(crate) mod part;
mod tally;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hyper::Method;
use posthaste_engine::clock::{Clock, SystemClock};
use posthaste_testkit::caller::{Answer, call};
use serde::Serialize;

use crate::say::say;
use child::Child;
use part::{Stats, Worked};

/// Long enough to open every connection and fill every cache.
const WARM_UP_SECONDS: u64 = 2;
/// Everything accepted arrives within this time after the last accept, or something is wrong.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);
/// How often the receiver is asked whether everything has arrived.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long to produce
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=300))]
    seconds: u64,
    /// End after so many messages, if that comes first
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    messages: u64,
    /// Connections of the producer, and of the bare client
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// Endpoints the messages go to in turn
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1000))]
    endpoints: u16,
    /// Bytes of each payload
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(64..=1_000_000))]
    payload: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What was measured.
#[derive(Debug, Serialize)]
struct Figures {
    accepted: u64,
    delivered: u64,
    duplicates: u64,
    accepted_per_second: f64,
    delivered_per_second: f64,
    server_cpu_us_per_delivery: f64,
    /// From the producer's POST to the receiver's hand, under this load.
    post_to_arrival_p50_ms: f64,
    post_to_arrival_p99_ms: f64,
    bare_requests_per_second: f64,
    bare_client_cpu_us_per_request: f64,
    delivered_per_bare_request: f64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let figures = crate::serve::runtime()?.block_on(measure(args))?;
    if args.json {
        say!("{}", serde_json::to_string(&figures)?)?;
    } else {
        say!("{}", table(args, &figures))?;
    }
    ensure!(
        figures.delivered >= figures.accepted,
        "{} accepted messages did not arrive",
        figures.accepted - figures.delivered
    );
    Ok(())
}

async fn measure(args: &Args) -> Result<Figures> {
    let folder = tempfile::tempdir().context("cannot make a folder for the data")?;
    let receiver = Child::start(&["bench-part", "receiver"], "receiver")?;
    let data = folder.path().join("data");
    let data = data.to_str().context("the temporary folder's name is not UTF-8")?;
    let server = Child::start(&["serve", "--dev", "--listen", "127.0.0.1:0", "--data", data], "server")?;
    let endpoints = make_endpoints(server.address, receiver.address, args.endpoints).await?;

    let clock = SystemClock::new();
    let producer = |seconds: u64| work("producer", server.address, args, seconds, &endpoints);
    let warm = producer(WARM_UP_SECONDS)?;
    drained(receiver.address, warm.answered).await?;
    post(receiver.address, "/reset", "").await?;

    let (cpu_before, began) = (server.cpu()?, clock.now());
    let produced = producer(args.seconds)?;
    let stats = drained(receiver.address, produced.answered).await?;
    let took = clock.now().since(began);
    let cpu = server.cpu()? - cpu_before;
    drop(server);

    post(receiver.address, "/reset", "").await?;
    let bare = work("bare", receiver.address, args, args.seconds.min(5), &endpoints)?;
    Ok(figures(&produced, &stats, took, cpu, &bare))
}

fn figures(produced: &Worked, stats: &Stats, took: Duration, cpu: Duration, bare: &Worked) -> Figures {
    let delivered_per_second = per_second(stats.distinct, took);
    let bare_per_second = per_second(bare.answered, Duration::from_micros(bare.took_us));
    Figures {
        accepted: produced.answered,
        delivered: stats.distinct,
        duplicates: stats.arrivals.saturating_sub(stats.distinct),
        accepted_per_second: per_second(produced.answered, Duration::from_micros(produced.took_us)),
        delivered_per_second,
        server_cpu_us_per_delivery: share(cpu, stats.distinct),
        post_to_arrival_p50_ms: stats.p50_us / 1_000.0,
        post_to_arrival_p99_ms: stats.p99_us / 1_000.0,
        bare_requests_per_second: bare_per_second,
        bare_client_cpu_us_per_request: share(Duration::from_micros(bare.cpu_us), bare.answered),
        delivered_per_bare_request: delivered_per_second / bare_per_second,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of messages is far below 2^52")]
fn per_second(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "a count of messages is far below 2^52")]
fn share(cpu: Duration, count: u64) -> f64 {
    cpu.as_secs_f64() * 1e6 / count as f64
}

async fn make_endpoints(server: SocketAddr, receiver: SocketAddr, count: u16) -> Result<Vec<String>> {
    let mut ids = Vec::new();
    for number in 0..count {
        let body = format!("{{\"url\":\"http://{receiver}/hook/{number}\",\"max_in_flight\":256}}");
        let made = post(server, "/v1/endpoints", &body).await?;
        ids.push(made.text("id").context("the server's answer has no id")?.to_owned());
    }
    Ok(ids)
}

async fn post(address: SocketAddr, path: &str, body: &str) -> Result<Answer> {
    let answer = call(address, Method::POST, path, body).await.with_context(|| format!("cannot call {path}"))?;
    ensure!(answer.status.is_success(), "{path} answered {}: {}", answer.status, answer.body);
    Ok(answer)
}

/// Runs a part that works for some seconds and tells what it did.
fn work(part: &str, target: SocketAddr, args: &Args, seconds: u64, endpoints: &[String]) -> Result<Worked> {
    let numbers =
        [seconds, args.messages, args.connections.into(), args.payload.into()].map(|number| number.to_string());
    let [seconds, messages, connections, payload] = &numbers;
    let (target, endpoints) = (target.to_string(), endpoints.join(","));
    let args = [
        ["--target", &target],
        ["--seconds", seconds],
        ["--messages", messages],
        ["--connections", connections],
        ["--payload", payload],
        ["--endpoints", &endpoints],
    ];
    let worked = child::output(&[&["bench-part", part], args.as_flattened()].concat(), part)?;
    serde_json::from_str(&worked).with_context(|| format!("the {part} said {worked:?}"))
}

/// Waits until as many distinct messages arrived as were accepted.
async fn drained(receiver: SocketAddr, accepted: u64) -> Result<Stats> {
    let waiting = async {
        loop {
            let answer = call(receiver, Method::GET, "/stats", "").await?;
            let stats: Stats = serde_json::from_str(&answer.body)?;
            if stats.distinct >= accepted {
                return Ok(stats);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    tokio::time::timeout(DRAINED_WITHIN, waiting)
        .await
        .with_context(|| format!("not all of {accepted} messages arrived within {} s", DRAINED_WITHIN.as_secs()))?
}

fn table(args: &Args, figures: &Figures) -> String {
    let rows = [
        ("messages accepted", figures.accepted.to_string()),
        ("accepted a second", format!("{:.0}", figures.accepted_per_second)),
        ("delivered a second", format!("{:.0}", figures.delivered_per_second)),
        ("server CPU a delivery", format!("{:.1} µs", figures.server_cpu_us_per_delivery)),
        ("POST to arrival, p50", format!("{:.1} ms", figures.post_to_arrival_p50_ms)),
        ("POST to arrival, p99", format!("{:.1} ms", figures.post_to_arrival_p99_ms)),
        ("duplicates", figures.duplicates.to_string()),
        ("bare requests a second", format!("{:.0}", figures.bare_requests_per_second)),
        ("bare client CPU a request", format!("{:.1} µs", figures.bare_client_cpu_us_per_request)),
        ("delivered for each bare request", format!("{:.2}", figures.delivered_per_bare_request)),
    ];
    let table: String = rows.iter().map(|(name, value)| format!("\n  {name:32}{value:>12}")).collect();
    format!(
        "{} s, {} connections, {} endpoints, payloads of {} bytes, every commit synced\n{table}",
        args.seconds, args.connections, args.endpoints, args.payload
    )
}
