//! Runs the demo: starts the server and the receivers, kills the server, replays dead letters, and makes the ledger.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hyper::StatusCode;
use posthaste_core::time::human;
use posthaste_prove::chart::grouped;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::api::ReconnectingClient;
use super::behaviour::ReceiverHealth;
use super::frame::{DemoEvent, DemoView, ReceiverRow};
use super::ledger::{DemoLedger, MessageResult};
use super::outage;
use super::paint::Tone;
use super::plan::{DemoClock, DemoPlan, ReceiverName, SCALE};
use super::producer::{AcceptedMessage, ProducerState};
use super::receiver::{DemoReceiver, RequestLog};
use super::report::{DemoReport, ReceiverCounts, RunCounts};
use super::screen::Screen;
use super::server::DemoServer;

/// The time between two pictures.
const FRAME_EVERY: Duration = Duration::from_millis(100);
/// The most messages that are read from the server between two pictures.
const RESULTS_A_FRAME: usize = 1_000;
/// A message that has not ended this long after the last one was sent is reported as unfinished.
const ENDS_WITHIN: Duration = Duration::from_secs(30);
/// Dead letters a second, by the machine's clock: slow enough to watch.
const REPLAYED_A_SECOND: u32 = 200;

pub(super) struct DemoRun<'a> {
    folder: &'a Path,
    clock: Arc<DemoClock>,
    began: Instant,
    server: DemoServer,
    address: watch::Sender<Option<std::net::SocketAddr>>,
    is_up: bool,
    api: ReconnectingClient,
    receivers: Vec<DemoReceiver>,
    producer: Arc<ProducerState>,
    sending: JoinSet<Result<()>>,
    events: Vec<DemoEvent>,
    /// The receivers' events of the plan that are still to come, the last first.
    upcoming: Vec<DemoEvent>,
    /// Breakers that are not closed, by endpoint.
    breakers: BTreeMap<String, Breaker>,
    replay: Replay,
    counts: RunCounts,
    results: BTreeMap<String, MessageResult>,
}

#[derive(Debug, PartialEq, Eq)]
struct Breaker {
    state: String,
    holds: u64,
}

#[derive(Debug)]
enum Replay {
    Upcoming,
    Runs { id: String },
    Done,
}

impl<'a> DemoRun<'a> {
    pub(super) async fn begin(plan: DemoPlan, folder: &'a Path) -> Result<Self> {
        let began = Instant::now();
        let clock = Arc::new(DemoClock::new(plan));
        DemoServer::prepare(folder)?;
        let server = DemoServer::start(folder, &clock).await?;
        let (address, place) = watch::channel(Some(server.address));
        let mut api = ReconnectingClient::new(place);
        let mut receivers = Vec::new();
        for who in ReceiverName::ALL {
            let mut receiver = DemoReceiver::start(who, &clock).await?;
            let made = api.post_once("/v1/endpoints", who.name(), &receiver.as_endpoint()).await?;
            ensure!(made.status == StatusCode::CREATED, "no endpoint was made: {} {}", made.status, made.body);
            receiver.endpoint = made.text("id").context("an endpoint has no id")?.to_owned();
            receivers.push(receiver);
        }
        clock.begin();
        let (producer, sending) = ProducerState::begin(&clock, address.subscribe(), &receivers);
        let upcoming = upcoming(&clock.plan);
        Ok(Self {
            folder,
            clock,
            began,
            server,
            address,
            is_up: true,
            api,
            receivers,
            producer,
            sending,
            events: Vec::new(),
            upcoming,
            breakers: BTreeMap::new(),
            replay: Replay::Upcoming,
            counts: RunCounts::default(),
            results: BTreeMap::new(),
        })
    }

    pub(super) async fn run(mut self, screen: &mut Screen) -> Result<DemoReport> {
        while self.is_sending()? || !matches!(self.replay, Replay::Done) {
            self.step(screen).await?;
        }
        self.report_event(Tone::Plain, "all messages are sent; now reading the result of each from the server");
        let until = Instant::now() + ENDS_WITHIN;
        while !self.read_results().await? && Instant::now() < until {
            self.step(screen).await?;
        }
        screen.show(&self.view())?;
        self.report().await
    }

    /// Whether messages are still being sent. An error of the producer ends the demo.
    fn is_sending(&mut self) -> Result<bool> {
        while let Some(ended) = self.sending.try_join_next() {
            ended??;
        }
        Ok(!self.sending.is_empty())
    }

    async fn step(&mut self, screen: &mut Screen) -> Result<()> {
        self.server.still_runs(self.folder)?;
        let now = self.clock.now();
        while let Some(event) = self.upcoming.pop_if(|event| event.at <= now) {
            self.report_event(event.tone, event.text);
        }
        if self.counts.kills == 0 && now >= self.clock.plan.kill {
            self.kill(screen).await?;
        }
        self.update_breakers().await?;
        self.continue_replay().await?;
        screen.show(&self.view())?;
        tokio::time::sleep(FRAME_EVERY).await;
        Ok(())
    }

    /// Kills the server with SIGKILL while it works, and starts a new one over the same folder.
    async fn kill(&mut self, screen: &mut Screen) -> Result<()> {
        let (accepted, taken) = (self.accepted(None), self.receivers.iter().map(|one| one.log().taken()).sum());
        self.counts.waiting_at_kill = accepted.saturating_sub(taken);
        self.address.send_replace(None);
        let killed = Instant::now();
        self.server.kill()?;
        self.is_up = false;
        self.counts.kills += 1;
        let waiting = grouped(self.counts.waiting_at_kill as u64);
        self.report_event(Tone::Bad, format!("kill -9 of the server, while {waiting} accepted messages wait"));
        screen.show(&self.view())?;
        self.server = DemoServer::start(self.folder, &self.clock).await?;
        self.address.send_replace(Some(self.server.address));
        self.is_up = true;
        self.api.get("/readyz").await?;
        self.counts.back_after_ms = u64::try_from(killed.elapsed().as_millis()).unwrap_or(u64::MAX);
        let after = Duration::from_millis(self.counts.back_after_ms).as_secs_f64();
        self.report_event(Tone::Good, format!("the server is back, {after:.1} s later, over the same file"));
        Ok(())
    }

    async fn update_breakers(&mut self) -> Result<()> {
        let listed = self.api.get("/v1/breakers").await?;
        let mut open = BTreeMap::new();
        for one in listed["data"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
            let Some(who) = self.receivers.iter().find(|receiver| receiver.endpoint == text("id")) else { continue };
            if !self.breakers.contains_key(&who.endpoint) {
                let text = format!("{}'s breaker opens ({}): one probe at a time", who.who.name(), text("why"));
                self.events.push(DemoEvent { at: self.clock.now(), tone: Tone::Slow, text });
            }
            open.insert(text("id"), Breaker { state: text("state"), holds: one["holds"].as_u64().unwrap_or(0) });
        }
        let closed: Vec<&str> = (self.receivers.iter())
            .filter(|one| self.breakers.contains_key(&one.endpoint) && !open.contains_key(&one.endpoint))
            .map(|one| one.who.name())
            .collect();
        for name in closed {
            let text = format!("{name}'s breaker closes: its waiting deliveries are sent at a limited rate");
            self.events.push(DemoEvent { at: self.clock.now(), tone: Tone::Good, text });
        }
        self.breakers = open;
        Ok(())
    }

    /// Begins the replay when it is due, and follows it to its end.
    async fn continue_replay(&mut self) -> Result<()> {
        match &self.replay {
            Replay::Upcoming if self.clock.now() >= self.clock.plan.replay => {
                let select = json!({ "endpoint": self.receiver(ReceiverName::Erp).endpoint, "cause": "not_found" });
                let dry_run = json!({ "select": select, "dry_run": true });
                let counted = self.api.post("/v1/replays", &dry_run).await?;
                ensure!(counted.status == StatusCode::OK, "a dry run was answered {}", counted.body);
                let counted: serde_json::Value = serde_json::from_str(&counted.body)?;
                let total = counted["total"]["count"].as_u64().unwrap_or(0);
                let replay = json!({ "select": select, "per_second": REPLAYED_A_SECOND, "reason": "erp works again" });
                let made = self.api.post("/v1/replays", &replay).await?;
                ensure!(made.status == StatusCode::ACCEPTED, "no replay was made: {}", made.body);
                let id = made.text("id").context("a replay has no id")?.to_owned();
                let text = format!("POST /v1/replays: {} dead letters of erp are sent again", grouped(total));
                self.report_event(Tone::Plain, text);
                self.replay = Replay::Runs { id };
            }
            Replay::Runs { id } => {
                let shown = self.api.get(&format!("/v1/replays/{id}")).await?;
                self.counts.replayed = shown["replayed"].as_u64().unwrap_or(0);
                if shown["state"] == "done" {
                    let text = format!("the replay is done: {} sent again", grouped(self.counts.replayed));
                    self.report_event(Tone::Good, text);
                    self.replay = Replay::Done;
                }
            }
            Replay::Upcoming | Replay::Done => {}
        }
        Ok(())
    }

    /// Reads the results of some messages from the server; true once every message has ended.
    async fn read_results(&mut self) -> Result<bool> {
        let open: Vec<String> = (self.producer.accepted().iter())
            .filter(|message| self.results.get(&message.id).is_none_or(|result| *result == MessageResult::Pending))
            .map(|message| message.id.clone())
            .collect();
        // Messages that were never read come first.
        let (read_before, new): (Vec<_>, Vec<_>) = open.into_iter().partition(|id| self.results.contains_key(id));
        let mut still_open = read_before.len() + new.len();
        for id in new.into_iter().chain(read_before).take(RESULTS_A_FRAME) {
            let result = MessageResult::read(&self.api.get(&format!("/v1/messages/{id}")).await?);
            still_open -= usize::from(result != MessageResult::Pending);
            self.results.insert(id, result);
        }
        Ok(still_open == 0)
    }

    async fn report(mut self) -> Result<DemoReport> {
        self.counts.repeated_calls = self.producer.repeated();
        self.counts.early = self.receivers.iter().map(DemoReceiver::early).sum();
        let accepted = self.producer.accepted().clone();
        let receivers: Vec<ReceiverCounts> = self.receivers.iter().map(|one| self.counted(one)).collect();
        // The server is killed so that the receivers' counts cannot change any more.
        self.server.kill()?;
        let logs: BTreeMap<ReceiverName, RequestLog> =
            self.receivers.iter().map(|one| (one.who, std::mem::take(&mut *one.log()))).collect();
        let ledger = DemoLedger::of(&accepted, &self.results, |who| &logs[&who]);
        let seen = logs[&ReceiverName::Billing].seconds(self.clock.plan.length);
        let clock = Arc::clone(&self.clock);
        // On a slow machine some messages are sent after the end of the chart.
        let in_time =
            |message: &&AcceptedMessage| message.who == ReceiverName::Billing && message.at < clock.plan.length;
        let billed = accepted.iter().filter(in_time).count();
        let comparing = tokio::task::spawn_blocking(move || outage::compare(&clock.plan, seen, billed));
        let outage = comparing.await.context("the simulation panicked")?;
        let took_s = (self.began.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        let (counts, ttl) = (self.counts, self.clock.plan.ttl);
        Ok(DemoReport { scale: SCALE, took_s, ledger, counts, receivers, outage, ttl })
    }

    fn counted(&self, one: &DemoReceiver) -> ReceiverCounts {
        let log = one.log();
        ReceiverCounts {
            name: one.who.name(),
            accepted: self.accepted(Some(one.who)),
            requests: log.requests(),
            taken: log.taken(),
            duplicates: log.duplicates(),
        }
    }

    fn report_event(&mut self, tone: Tone, text: impl Into<String>) {
        self.events.push(DemoEvent { at: self.clock.now(), tone, text: text.into() });
    }

    fn receiver(&self, who: ReceiverName) -> &DemoReceiver {
        self.receivers.iter().find(|one| one.who == who).expect("all receivers are there from the beginning")
    }

    fn accepted(&self, who: Option<ReceiverName>) -> usize {
        self.producer.accepted().iter().filter(|message| who.is_none_or(|who| message.who == who)).count()
    }

    fn view(&self) -> DemoView<'_> {
        let place = format!("server: process {}, http://{}", self.server.id(), self.server.address);
        let server = match (self.is_up, self.counts.kills) {
            (false, _) => "server: killed".to_owned(),
            (true, 0) => place,
            (true, _) => format!("{place}, killed once"),
        };
        let ended = self.results.values().filter(|result| **result != MessageResult::Pending).count();
        let accepted = self.accepted(None);
        let (done, what) = if self.results.is_empty() {
            (accepted, "accepted, each on disk first")
        } else {
            (ended, "have ended, by the server's count")
        };
        let rows = self.receivers.iter().map(|one| self.row(one)).collect();
        let of = self.clock.plan.messages;
        DemoView { now: self.clock.now(), server, is_up: self.is_up, done, of, what, rows, events: &self.events }
    }

    fn row(&self, one: &DemoReceiver) -> ReceiverRow {
        let (mut health, mut does) = one.does();
        if let Some(breaker) = self.breakers.get(&one.endpoint) {
            let state = if breaker.state == "open" { "breaker open" } else { "probing" };
            does += &format!("; {state}, {} wait", grouped(breaker.holds));
            if health == ReceiverHealth::Well {
                health = ReceiverHealth::Slow;
            }
        }
        let load = one.log().seconds(self.clock.plan.length);
        ReceiverRow { counts: self.counted(one), health, does, load }
    }
}

/// The events of the receivers, the last first.
fn upcoming(plan: &DemoPlan) -> Vec<DemoEvent> {
    let event = |at: Duration, tone, text: &str| DemoEvent { at, tone, text: text.to_owned() };
    let mut upcoming = vec![
        event(plan.outage.start, Tone::Bad, "billing goes down: 502 to everything"),
        event(plan.gone, Tone::Bad, "legacy answers 410, gone for good: its pending deliveries are dead"),
        event(plan.outage.end, Tone::Good, "billing works again"),
        event(plan.mended, Tone::Good, "erp works again: no more 404"),
    ];
    upcoming.extend(plan.quiet.iter().map(|quiet| {
        let wait = human(quiet.end - quiet.start);
        event(quiet.start, Tone::Slow, &format!("crm throttles: 429, Retry-After up to {wait}"))
    }));
    upcoming.sort_by_key(|event| std::cmp::Reverse(event.at));
    upcoming
}
