//! The proof `fan-out-lookup`: the cost of a message for one subject or one tag does not depend on the number of the
//! tenant's endpoints.
//!
//! Two servers run the real binary over real sockets: one whose tenant has a thousand endpoints, and one with a
//! million. A producer posts to both in turn, so that other work of the machine affects both. Every message names a
//! subject or a tag of one endpoint. The proof measures the time to the answer, the time to the arrival at the
//! receiver, and the server's metric of rows read to find recipients.
//!
//! The negative control is a server whose database lacks both indexes: every message must miss the bar of rows.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, Request, StatusCode};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{AuditStamp, Directory, Endpoint, EndpointPut, Outbox};
use rusqlite::Connection;
use tokio::time::Instant;

use crate::fixtures::{
    ApiConnection, CROWD, Launch, Of, Posthaste, SeedShape, SeededTarget, THEN, binary, lock, quantile, runtime,
    seeded_folder,
};
use crate::prove::{CannotRun, Context, Figure, Findings, Options, count};
use crate::receivers::{HttpReceiver, Responder, TimedResponse};
use crate::{MASTER_KEY, master_key};

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
    let binary = binary()?;
    let (many, messages) = if options.quick { (MANY_QUICK, MESSAGES_QUICK) } else { (MANY, MESSAGES) };
    let folders = [FEW, many, MANY_QUICK].map(|lanes| seeded_folder(SeedShape { rows: 0, lanes, of: Of::Endpoints }));
    let [few_folder, many_folder, control_folder] = folders;
    let (few_folder, many_folder, control_folder) = (few_folder?, many_folder?, control_folder?);
    drop_indexes(control_folder.path())?;
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
    start_redirected(binary, folder, crowd, (messages + WARM_UP) as u64, &receiver.url()).await
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

impl Responder for LaneLog {
    fn answer(&self, request: Request<Bytes>) -> TimedResponse {
        let at = Instant::now();
        let Some(lane) = request.uri().path().strip_prefix("/hook/").and_then(|lane| lane.parse().ok()) else {
            return StatusCode::BAD_REQUEST.into();
        };
        lock(&self.0).push_back((lane, at));
        StatusCode::OK.into()
    }
}

/// One server and its measurements.
struct Measured {
    name: &'static str,
    crowd: Crowd,
    seen: Arrivals,
    rows_before: u64,
    rows: u64,
}

/// What was measured of the messages to one server.
#[derive(Default)]
struct Arrivals {
    accept_ms: Vec<f64>,
    arrival_ms: Vec<f64>,
    /// Answers that reported one delivery.
    single: usize,
    /// Messages that arrived at another endpoint than the one they named, or not at all.
    astray: usize,
}

impl Measured {
    fn new(name: &'static str, crowd: Crowd) -> Self {
        Self { name, crowd, seen: Arrivals::default(), rows_before: 0, rows: 0 }
    }

    async fn begin(&mut self) -> Result<(), CannotRun> {
        self.seen = Arrivals::default();
        self.rows_before = self.crowd.rows_read().await?;
        Ok(())
    }

    async fn end(&mut self) -> Result<(), CannotRun> {
        self.rows = self.crowd.rows_read().await? - self.rows_before;
        self.seen.accept_ms.sort_by(f64::total_cmp);
        self.seen.arrival_ms.sort_by(f64::total_cmp);
        eprintln!(
            "{}: accept p50 {:.2} ms, p99 {:.2} ms; arrival p50 {:.2} ms, p99 {:.2} ms; {:.1} rows a message",
            self.name,
            quantile(&self.seen.accept_ms, 0.50),
            quantile(&self.seen.accept_ms, 0.99),
            quantile(&self.seen.arrival_ms, 0.50),
            quantile(&self.seen.arrival_ms, 0.99),
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
        self.seen.accept_ms.push(ms(begun.elapsed()));
        self.seen.single += usize::from(deliveries == Some(1));
        match receiver.waits_for(PATIENCE, |log| lock(&log.0).pop_front()).await {
            Some((lane, at)) => {
                self.seen.arrival_ms.push(ms(at.saturating_duration_since(begun)));
                self.seen.astray += usize::from(lane != to.0);
            }
            None => self.seen.astray += 1,
        }
        Ok(())
    }

    fn rows_each(&self) -> f64 {
        self.rows as f64 / self.seen.accept_ms.len().max(1) as f64
    }

    /// The figures of this server, compared with one with few endpoints.
    fn figures(&self, few: &Self, options: &Options) -> Vec<Figure> {
        let posted = count(self.seen.accept_ms.len() + few.seen.accept_ms.len()).max(1.0);
        let single = 100.0 * count(self.seen.single + few.seen.single) / posted;
        let times = |of: fn(&Self) -> &[f64]| quantile(of(self), 0.99) / quantile(of(few), 0.99);
        let accept = Figure::at_most("accept_p99", times(|one| &one.seen.accept_ms), "times that of few", TIMES_MAX);
        let arrival = Figure::at_most("arrival_p99", times(|one| &one.seen.arrival_ms), "times that of few", TIMES_MAX);
        vec![
            Figure::at_least("answered_with_one_delivery", single, "%", 100.0),
            Figure::at_most("astray", count(self.seen.astray + few.seen.astray), "messages", 0.0),
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

const TENANT: [(&str, &str); 1] = [("posthaste-tenant", CROWD)];
/// The metric that counts rows read for recipients.
const ROWS_READ: &str = "posthaste_recipient_rows_read_total";

/// How a message names its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    Subject,
    Tag,
}

/// Drops the indexes of subjects and tags.
fn drop_indexes(folder: &Path) -> Result<(), CannotRun> {
    let conn = Connection::open(folder.join("data").join("posthaste.db"));
    let dropped = conn.and_then(|conn| {
        conn.execute_batch(
            "DROP INDEX endpoint_subject;
             CREATE TABLE unindexed AS SELECT tag, endpoint FROM endpoint_tag;
             DROP TABLE endpoint_tag;
             ALTER TABLE unindexed RENAME TO endpoint_tag;",
        )
    });
    dropped.context("the indexes cannot be dropped")
}

/// Changes the URL of some endpoints to this one, and starts the server.
async fn start_redirected(
    binary: &Path,
    folder: &Path,
    shape: SeedShape,
    sampled: u64,
    url: &str,
) -> Result<Crowd, CannotRun> {
    let launch = Launch::new(binary, folder).with("POSTHASTE_MASTER_KEY", MASTER_KEY);
    let apart = usize::try_from(shape.lanes / sampled.clamp(1, shape.lanes)).unwrap_or(1);
    let sample: Vec<SeededTarget> = shape.targets().step_by(apart).map(SeededTarget).collect();
    let store = Sqlite::open_folder(&launch.data(), master_key())?;
    let session = store.open(THEN).await?.session;
    let redirect = sample.iter().map(|to| {
        let endpoint = Endpoint { target: to.target(format!("{url}/{}", to.0)), version: 1, ..to.addressed() };
        store.put_endpoint(session, endpoint, None, AuditStamp::at(THEN))
    });
    for put in futures_util::future::join_all(redirect).await {
        if put? != EndpointPut::Done {
            return Err(CannotRun("an endpoint could not be changed".to_owned()));
        }
    }
    store.close().await;
    let server = launch.start()?;
    let line = ApiConnection::open(server.address).await?;
    Ok(Crowd { line, sample, _server: server })
}

/// A server whose tenant has many endpoints, some of which get messages, and a producer's connection to it.
struct Crowd {
    line: ApiConnection,
    /// The endpoints that get messages, spread evenly over all.
    sample: Vec<SeededTarget>,
    /// The server's process; it is stopped when this is dropped.
    _server: Posthaste,
}

impl Crowd {
    /// The endpoint for the message with this number.
    fn sampled(&self, number: usize) -> SeededTarget {
        self.sample[number % self.sample.len()]
    }

    /// Posts a message for one endpoint. Returns the number of deliveries in the answer.
    async fn post(&mut self, to: SeededTarget, address: Address) -> Result<Option<u64>, CannotRun> {
        let (kind, name) = match address {
            Address::Subject => ("subjects", to.subject()),
            Address::Tag => ("tags", to.tag()),
        };
        let body = format!(
            "{{\"event_type\":\"crowd.hello\",\"to\":{{\"{kind}\":[\"{name}\"]}},\"payload\":{{\"lane\":{}}}}}",
            to.0
        );
        let answer = self.line.call(Method::POST, "/v1/messages", &TENANT, body).await?.expect(StatusCode::ACCEPTED)?;
        Ok(number_behind(&answer.body, "\"deliveries\":"))
    }

    /// Posts a message for all subscribers of an event type that no endpoint subscribes to.
    async fn post_to_all(&mut self) -> Result<(), CannotRun> {
        let body = "{\"event_type\":\"other.event\",\"payload\":{}}";
        self.line.call(Method::POST, "/v1/messages", &TENANT, body).await?.expect(StatusCode::ACCEPTED).map(drop)
    }

    /// Adds an endpoint that subscribes to an event type that is never sent.
    async fn add_endpoint(&mut self) -> Result<(), CannotRun> {
        let body = "{\"url\":\"http://127.0.0.1/\",\"event_types\":[\"crowd.other\"]}";
        self.line.call(Method::POST, "/v1/endpoints", &TENANT, body).await?.expect(StatusCode::CREATED).map(drop)
    }

    /// The server's metric of rows read to find recipients.
    async fn rows_read(&mut self) -> Result<u64, CannotRun> {
        let metrics = self.line.call(Method::GET, "/metrics", &[], "").await?.expect(StatusCode::OK)?;
        let read = number_behind(&metrics.body, &format!("\n{ROWS_READ} "));
        read.context(format!("{ROWS_READ} is missing"))
    }
}

/// The number after some text.
fn number_behind(text: &str, before: &str) -> Option<u64> {
    let (_, behind) = text.split_once(before)?;
    let digits: String = behind.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}
