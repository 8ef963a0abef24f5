//! The proof `fan-out-lookup`: the cost of a message for one subject or one tag does not depend on the number of the
//! tenant's endpoints.
//!
//! Two servers run the real binary over real sockets: one whose tenant has a thousand endpoints, and one with a
//! million. A producer posts to both in turn, so that other work of the machine affects both. Every message names a
//! subject or a tag of one endpoint. The proof measures the time to the answer, the time to the arrival at the
//! receiver, and the server's metric of rows read to find recipients.
//!
//! The negative control is a server whose database lacks both indexes: every message must miss the bar of rows.

mod crowd;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, StatusCode};
use tokio::time::Instant;

use crate::fixtures::posthaste;
use crate::fixtures::seeder::{Of, SeedShape};
use crate::fixtures::served::{runtime, seeded_folder};
use crate::fixtures::statistics::quantile;
use crate::prove::{CannotRun, Figure, Findings, Options, count};
use crate::receivers::{HttpReceiver, Responder, TimedResponse};
use crowd::{Address, Crowd};

const FEW: u64 = 1_000;
const MANY: u64 = 1_000_000;
const MANY_QUICK: u64 = 50_000;
/// Messages to each server; every second one names a tag.
const MESSAGES: usize = 3_000;
const MESSAGES_QUICK: usize = 400;
/// Messages to the server without the indexes, each of which reads every endpoint.
const MESSAGES_CONTROL: usize = 20;
/// A message that has not arrived after this time is lost.
const PATIENCE: Duration = Duration::from_secs(10);
/// Messages before the measurement, to open connections and fill caches.
const WARM_UP: usize = 50;

const TIMES_MAX: f64 = 2.0;
const ROWS_MAX: f64 = 10.0;

pub fn run(options: &Options) -> Findings {
    let binary = posthaste::binary()?;
    let (many, messages) = if options.quick { (MANY_QUICK, MESSAGES_QUICK) } else { (MANY, MESSAGES) };
    let folders = [FEW, many, MANY_QUICK].map(|lanes| seeded_folder(SeedShape { rows: 0, lanes, of: Of::Endpoints }));
    let [few_folder, many_folder, control_folder] = folders;
    let (few_folder, many_folder, control_folder) = (few_folder?, many_folder?, control_folder?);
    crowd::drop_indexes(control_folder.path())?;
    runtime()?.block_on(async {
        let receiver = LaneReceiver::listen(LaneLog::default()).await?;
        let few = start(&binary, few_folder.path(), FEW, messages, &receiver).await?;
        let mut few = Measured::new("few", few);
        let many = start(&binary, many_folder.path(), many, messages, &receiver).await?;
        let mut many = Measured::new("many", many);
        take_turns(&mut few, &mut many, &receiver, messages).await?;
        let mut figures = many.figures(&few, options);
        figures.push(added_in_place(&mut few.crowd).await?);
        drop(many);
        let control = start(&binary, control_folder.path(), MANY_QUICK, MESSAGES_CONTROL, &receiver).await?;
        let mut control = Measured::new("without indexes", control);
        take_turns(&mut few, &mut control, &receiver, MESSAGES_CONTROL).await?;
        // A message that reads fewer rows than this has used an index after all.
        let all = 0.9 * MANY_QUICK as f64;
        figures.push(Figure::at_least("negative_control_rows_read", control.rows_each(), "rows/message", all));
        Ok(figures)
    })
}

async fn start(
    binary: &Path,
    folder: &Path,
    lanes: u64,
    messages: usize,
    receiver: &LaneReceiver,
) -> Result<Crowd, CannotRun> {
    let crowd = SeedShape { rows: 0, lanes, of: Of::Endpoints };
    crowd::start(binary, folder, crowd, (messages + WARM_UP) as u64, &receiver.url()).await
}

/// Posts to both servers in turn. Only messages after the warm-up are measured.
async fn take_turns(
    one: &mut Measured,
    other: &mut Measured,
    receiver: &LaneReceiver,
    messages: usize,
) -> Result<(), CannotRun> {
    for number in 0..WARM_UP.min(messages) {
        one.post(number, receiver).await?;
        other.post(number, receiver).await?;
    }
    one.begin().await?;
    other.begin().await?;
    for number in 0..messages {
        one.post(WARM_UP + number, receiver).await?;
        other.post(WARM_UP + number, receiver).await?;
    }
    one.end().await?;
    other.end().await
}

type LaneReceiver = HttpReceiver<LaneLog>;

/// Accepts every request at once, and keeps the number in its path and its time until the proof reads them.
#[derive(Debug, Default)]
struct LaneLog(Mutex<VecDeque<(u64, Instant)>>);

impl LaneLog {
    fn next(&self) -> Option<(u64, Instant)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl Responder for LaneLog {
    fn answer(&self, request: Request<Bytes>) -> TimedResponse {
        let at = Instant::now();
        let Some(lane) = request.uri().path().strip_prefix("/hook/").and_then(|lane| lane.parse().ok()) else {
            return StatusCode::BAD_REQUEST.into();
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back((lane, at));
        StatusCode::OK.into()
    }
}

/// The measurements of one server.
struct Measured {
    name: &'static str,
    crowd: Crowd,
    accept_ms: Vec<f64>,
    arrival_ms: Vec<f64>,
    /// Answers that reported one delivery.
    single: usize,
    /// Messages that arrived at another endpoint than the one they named, or not at all.
    astray: usize,
    rows_before: u64,
    rows: u64,
}

impl Measured {
    fn new(name: &'static str, crowd: Crowd) -> Self {
        Self {
            name,
            crowd,
            accept_ms: Vec::new(),
            arrival_ms: Vec::new(),
            single: 0,
            astray: 0,
            rows_before: 0,
            rows: 0,
        }
    }

    async fn begin(&mut self) -> Result<(), CannotRun> {
        (self.accept_ms, self.arrival_ms, self.single, self.astray) = (Vec::new(), Vec::new(), 0, 0);
        self.rows_before = self.crowd.rows_read().await?;
        Ok(())
    }

    async fn end(&mut self) -> Result<(), CannotRun> {
        self.rows = self.crowd.rows_read().await? - self.rows_before;
        self.accept_ms.sort_by(f64::total_cmp);
        self.arrival_ms.sort_by(f64::total_cmp);
        eprintln!(
            "{}: accept p50 {:.2} ms, p99 {:.2} ms; arrival p50 {:.2} ms, p99 {:.2} ms; {:.1} rows a message",
            self.name,
            quantile(&self.accept_ms, 0.50),
            quantile(&self.accept_ms, 0.99),
            quantile(&self.arrival_ms, 0.50),
            quantile(&self.arrival_ms, 0.99),
            self.rows_each()
        );
        Ok(())
    }

    /// Posts the message of a number and waits until it has arrived.
    async fn post(&mut self, number: usize, receiver: &LaneReceiver) -> Result<(), CannotRun> {
        let to = self.crowd.sampled(number);
        let address = if number.is_multiple_of(2) { Address::Subject } else { Address::Tag };
        let begun = Instant::now();
        let deliveries = self.crowd.post(to, address).await?;
        self.accept_ms.push(ms(begun.elapsed()));
        self.single += usize::from(deliveries == Some(1));
        match receiver.waits_for(PATIENCE, LaneLog::next).await {
            Some((lane, at)) => {
                self.arrival_ms.push(ms(at.saturating_duration_since(begun)));
                self.astray += usize::from(lane != to.0);
            }
            None => self.astray += 1,
        }
        Ok(())
    }

    fn rows_each(&self) -> f64 {
        self.rows as f64 / self.accept_ms.len().max(1) as f64
    }

    /// The figures of this server, compared with one with few endpoints.
    fn figures(&self, few: &Self, options: &Options) -> Vec<Figure> {
        let posted = count(self.accept_ms.len() + few.accept_ms.len()).max(1.0);
        let single = 100.0 * count(self.single + few.single) / posted;
        let times = |of: fn(&Self) -> &[f64]| quantile(of(self), 0.99) / quantile(of(few), 0.99);
        let accept =
            Figure::at_most("accept_p99", times(|measured| &measured.accept_ms), "times that of few", TIMES_MAX);
        let arrival =
            Figure::at_most("arrival_p99", times(|measured| &measured.arrival_ms), "times that of few", TIMES_MAX);
        vec![
            Figure::at_least("answered_with_one_delivery", single, "%", 100.0),
            Figure::at_most("astray", count(self.astray + few.astray), "messages", 0.0),
            accept.by_the_clock(options),
            arrival.by_the_clock(options),
            Figure::at_most("rows_read", self.rows_each().max(few.rows_each()), "rows/message", ROWS_MAX),
        ]
    }
}

/// The figure of rows read for a message to all endpoints after one was added. The tenant's list is in memory, and
/// adding an endpoint must not make the server read it again.
async fn added_in_place(crowd: &mut Crowd) -> Result<Figure, CannotRun> {
    crowd.post_to_all().await?;
    let before = crowd.rows_read().await?;
    crowd.add_endpoint().await?;
    crowd.post_to_all().await?;
    let rows = crowd.rows_read().await? - before;
    Ok(Figure::at_most("rows_read_after_adding_an_endpoint", rows as f64, "rows", ROWS_MAX))
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}
