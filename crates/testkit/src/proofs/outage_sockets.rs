//! The proof `outage-sockets`: a receiver that dies under load and returns is not flooded with retries, and everything
//! arrives (E1, E2).
//!
//! The real binary sends a steady stream to a receiver on loopback. The receiver dies: it resets new connections at
//! once, and counts them. After its return the breaker finds out by one probe at a time, and the backlog is paced
//! among fresh messages. The figures come from what the receiver saw, second by second; the server is only asked for
//! the id of its breaker. Time is real. The quick form does not wait for the breaker's own 30 s: an operator's reset
//! lets it probe at once, and the recovery is the same from there.
//!
//! The negative control is a sender that retries every message each second. It must miss the same bars.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, Request, StatusCode};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::fixtures::{ApiConnection, Launch, Posthaste, binary, call, lock, runtime};
use crate::prove::chart::{self, LoadChart, LoadSeries, Second, svg};
use crate::prove::{CannotRun, Figure, Findings, Options};
use crate::receivers::{HttpReceiver, Responder, TimedResponse, field};

/// The pause of the negative control between two attempts.
const AGAIN: Duration = Duration::from_secs(1);

/// The timing of a run.
struct Plan {
    /// Messages per second, during the whole run.
    per_second: u32,
    healthy: Duration,
    outage: Duration,
    /// How long messages are sent after the receiver has returned.
    after: Duration,
    /// The longest wait for all messages to arrive, once no more are sent.
    drained_within: Duration,
    back: Back,
}

/// How the breaker learns of the receiver's return: by its own probes, or after an operator's reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Back {
    ByItself,
    ByReset,
}

impl Plan {
    const FULL: Self = Self {
        per_second: 30,
        healthy: Duration::from_secs(15),
        outage: Duration::from_secs(60),
        after: Duration::from_secs(90),
        drained_within: Duration::from_secs(180),
        back: Back::ByItself,
    };
    const QUICK: Self = Self {
        per_second: 20,
        healthy: Duration::from_secs(3),
        outage: Duration::from_secs(6),
        after: Duration::from_secs(3),
        drained_within: Duration::from_secs(30),
        back: Back::ByReset,
    };
    const CONTROL: Self = Self { healthy: Duration::from_secs(1), after: Duration::from_secs(1), ..Self::QUICK };

    fn length(&self) -> Duration {
        self.healthy + self.outage + self.after
    }

    /// The time between two messages.
    fn pause(&self) -> Duration {
        Duration::from_secs(1) / self.per_second
    }

    /// The most connections allowed while the receiver is down: for attempts that were in flight when it died,
    /// failures that open the breaker, and probes. Without a breaker there would be one for every message and each of
    /// its retries.
    fn tries_max(&self) -> f64 {
        10.0 + 64.0 + self.outage.as_secs_f64() / 10.0
    }

    /// The figures of the load on the receiver while it was down, and of the peak after its return.
    fn bars(&self, receiver: &OutageLog) -> [Figure; 2] {
        let back = (self.healthy + self.outage).as_secs_f64();
        let peak_max = 2.0 * f64::from(self.per_second);
        [
            Figure::at_most("tries_into_outage", receiver.refused() as f64, "connections", self.tries_max()),
            Figure::at_most("peak_after_return", receiver.peak_after(back), "requests/s", peak_max),
        ]
    }
}

pub fn run(options: &Options) -> Findings {
    let binary = binary()?;
    let plan = if options.quick { Plan::QUICK } else { Plan::FULL };
    runtime()?.block_on(async {
        // At the same time: the control takes no longer than the proof, and little CPU time.
        let (figures, control) = tokio::join!(prove(&binary, &plan, options), control());
        let mut figures = figures?;
        figures.push(control?);
        Ok(figures)
    })
}

/// The control: the quick form's outage with a sender without a breaker.
async fn control() -> Result<Figure, CannotRun> {
    let (plan, receiver) = (Plan::CONTROL, MortalReceiver::listen(OutageLog::new()).await?);
    let began = Instant::now();
    tokio::join!(send_naively(&plan, receiver.address, began), outage(&plan, &receiver, began));
    let bars = plan.bars(receiver.responder());
    bars.iter().for_each(|bar| eprintln!("control, a sender without a breaker: {bar}"));
    let caught = bars.iter().filter(|bar| !bar.is_ok()).count();
    Ok(Figure::at_least("negative_controls_caught", caught as f64, "bars", bars.len() as f64))
}

/// A sender without any protection of the receiver. It retries each message every second until the receiver accepts it.
async fn send_naively(plan: &Plan, to: SocketAddr, began: Instant) {
    let mut next = began;
    let mut messages = JoinSet::new();
    while next < began + plan.length() {
        tokio::time::sleep_until(next).await;
        messages.spawn(deliver(to));
        next += plan.pause();
    }
    while messages.join_next().await.is_some() {}
}

async fn deliver(to: SocketAddr) {
    while !call(to, Method::POST, "/hook", "{}").await.is_ok_and(|answer| answer.status == StatusCode::OK) {
        tokio::time::sleep(AGAIN).await;
    }
}

async fn prove(binary: &Path, plan: &Plan, options: &Options) -> Findings {
    let folder = tempfile::tempdir()?;
    let server = Launch::new(binary, folder.path()).start()?;
    let receiver = MortalReceiver::listen(OutageLog::new()).await?;
    let endpoint = format!("{{\"url\":\"{}\"}}", receiver.url());
    call(server.address, Method::POST, "/v1/endpoints", &endpoint).await?.expect(StatusCode::CREATED)?;
    let began = Instant::now();
    let recovery = recover(plan, &receiver, &server, began);
    let (sent, back) = tokio::join!(produce(plan, &server, began), recovery);
    let (sent, back) = (sent?, back?);
    let arrived = |log: &OutageLog| (log.arrived().len() >= sent.len()).then_some(());
    let all_arrived = receiver.waits_for(plan.drained_within, arrived).await.is_some();
    let log = receiver.responder();
    let drained = began.elapsed().saturating_sub(back);
    eprintln!("{} of {} arrived, {} s after the return", log.arrived().len(), sent.len(), drained.as_secs());
    draw(plan, log, back)?;
    if !all_arrived {
        eprintln!("not everything arrived within {:?}", plan.drained_within);
    }
    Ok(figures(plan, options, log, &sent, drained))
}

/// Lets the receiver die and return at the plan's times.
async fn outage(plan: &Plan, receiver: &MortalReceiver, began: Instant) {
    tokio::time::sleep_until(began + plan.healthy).await;
    receiver.die();
    tokio::time::sleep_until(began + plan.healthy + plan.outage).await;
    receiver.come_back();
}

/// Runs the outage, and resets the breaker where the plan says so. Returns the time of the receiver's return, counted
/// from the beginning.
async fn recover(
    plan: &Plan,
    receiver: &MortalReceiver,
    server: &Posthaste,
    began: Instant,
) -> Result<Duration, CannotRun> {
    outage(plan, receiver, began).await;
    let back = began.elapsed();
    if plan.back == Back::ByReset {
        let breakers = call(server.address, Method::GET, "/v1/breakers", "").await?.expect(StatusCode::OK)?;
        let reset = format!("/v1/breakers/{}/reset", breakers.id()?);
        call(server.address, Method::POST, &reset, "{}").await?.expect(StatusCode::OK)?;
    }
    Ok(back)
}

/// Sends messages at the plan's rate. Returns the ids of the accepted messages.
async fn produce(plan: &Plan, server: &Posthaste, began: Instant) -> Result<Vec<String>, CannotRun> {
    let mut line = ApiConnection::open(server.address).await?;
    let until = began + plan.length();
    let (mut next, mut ids) = (began, Vec::new());
    while next < until {
        tokio::time::sleep_until(next).await;
        let answer = line.call(Method::POST, "/v1/messages", &[], "{\"payload\":{}}").await?;
        ids.push(answer.expect(StatusCode::ACCEPTED)?.id()?);
        next += plan.pause();
    }
    Ok(ids)
}

fn figures(plan: &Plan, options: &Options, receiver: &OutageLog, sent: &[String], drained: Duration) -> Vec<Figure> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    receiver.arrived().into_iter().for_each(|arrival| *counts.entry(arrival.message).or_default() += 1);
    let lost = sent.iter().filter(|id| !counts.contains_key(*id)).count();
    let duplicates: usize = counts.values().map(|times| times - 1).sum();
    // The backlog and the messages that are sent until it is drained share one and a half times the rate. This begins
    // at the breaker's next probe, at most a minute after the return.
    let waits = if plan.back == Back::ByItself { 66.0 } else { 2.0 };
    let physics = plan.outage.as_secs_f64() + waits;
    let [tries, peak] = plan.bars(receiver);
    vec![
        Figure::at_most("lost", lost as f64, "messages", 0.0),
        Figure::at_most("duplicates", duplicates as f64, "messages", 0.0),
        tries,
        peak,
        Figure::at_most("drained_after", drained.as_secs_f64(), "s", waits + plan.after.as_secs_f64() + physics)
            .by_the_clock(options),
        Figure::at_least("refused_seen", receiver.refused() as f64, "connections", 1.0),
    ]
}

fn draw(plan: &Plan, receiver: &OutageLog, back: Duration) -> Result<(), CannotRun> {
    let seconds = receiver.seconds();
    let length = plan.length().max(Duration::from_secs(seconds.len() as u64));
    let subtitle = format!("{} messages a second sent; the bar for a peak is twice that", plan.per_second);
    let series = vec![LoadSeries { name: "arrivals".to_owned(), notes: Vec::new(), seconds }];
    let peak_max = 2.0 * f64::from(plan.per_second);
    let picture = LoadChart::around(plan.healthy..back, length, peak_max, subtitle, series);
    eprintln!("{}", chart::terminal(&picture, chart::WIDTH));
    let file = target_folder().join("outage-sockets.svg");
    std::fs::write(&file, svg::render(&picture))?;
    eprintln!("drawn in {}", file.display());
    Ok(())
}

/// The parent of the folder of this program: cargo's target folder, if cargo built it.
fn target_folder() -> PathBuf {
    let here = std::env::current_exe().ok();
    here.and_then(|here| here.ancestors().nth(2).map(Path::to_owned)).unwrap_or_else(std::env::temp_dir)
}

type MortalReceiver = HttpReceiver<OutageLog>;

/// A message that arrived.
#[derive(Clone, Debug)]
struct MortalArrival {
    /// The request's `webhook-id`.
    message: String,
    at: Duration,
}

/// Accepts every request, and records when requests and refused connections came.
#[derive(Debug)]
struct OutageLog {
    began: Instant,
    arrived: Mutex<Vec<MortalArrival>>,
    refused: Mutex<Vec<Duration>>,
}

impl OutageLog {
    fn new() -> Self {
        Self { began: Instant::now(), arrived: Mutex::default(), refused: Mutex::default() }
    }

    fn arrived(&self) -> Vec<MortalArrival> {
        lock(&self.arrived).clone()
    }

    /// How many new connections were reset while the receiver was dead.
    fn refused(&self) -> usize {
        lock(&self.refused).len()
    }

    /// The requests and the connections that were reset, in each second.
    fn seconds(&self) -> Vec<Second> {
        let mut seconds: Vec<Second> = Vec::new();
        let arrived = self.arrived().into_iter().map(|arrival| (arrival.at, 0));
        for (at, failed) in arrived.chain(lock(&self.refused).iter().map(|at| (*at, 1))) {
            let index = usize::try_from(at.as_secs()).unwrap_or(usize::MAX).min(3_600);
            if seconds.len() <= index {
                seconds.resize(index + 1, Second::default());
            }
            seconds[index].tries += 1;
            seconds[index].failed += failed;
        }
        seconds
    }

    /// The most arrivals within one second, from this time on.
    fn peak_after(&self, seconds: f64) -> f64 {
        let times: Vec<f64> = lock(&self.arrived).iter().map(|arrival| arrival.at.as_secs_f64()).collect();
        let after: Vec<f64> = times.into_iter().filter(|at| *at >= seconds).collect();
        let within_a_second = |from: usize| after[from..].iter().take_while(|at| **at < after[from] + 1.0).count();
        (0..after.len()).map(within_a_second).max().unwrap_or(0) as f64
    }
}

impl Responder for OutageLog {
    fn answer(&self, request: Request<Bytes>) -> TimedResponse {
        let message = field(&request, "webhook-id").to_owned();
        lock(&self.arrived).push(MortalArrival { message, at: self.began.elapsed() });
        StatusCode::OK.into()
    }

    fn was_refused(&self) {
        lock(&self.refused).push(self.began.elapsed());
    }
}
