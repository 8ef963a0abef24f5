//! Runs the demo: starts the server and the receivers, kills the server, replays dead letters, and makes the ledger.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hyper::StatusCode;
use posthaste_core::time::human;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::api::Client;
use super::frame::{Event, Row, View};
use super::ledger::{Ledger, Word};
use super::log::Log;
use super::outage;
use super::paint::Tone;
use super::plan::{Plan, Who};
use super::producer::{Desk, Promise};
use super::receiver::Receiver;
use super::report::{Counted, Deeds, Report};
use super::role::Mood;
use super::screen::Screen;
use super::server::Server;
use super::story::Story;
use crate::simulate::grouped;

/// The time between two pictures.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The most messages that are read from the server between two pictures.
const ASKED_AT_ONCE: usize = 1_000;
/// A message that has not ended this long after the last one was sent is reported as unfinished.
const ENDS_WITHIN: Duration = Duration::from_secs(30);
/// Dead letters a second, by the machine's clock: slow enough to watch.
const REPLAYED_A_SECOND: u32 = 200;

/// A running demo.
pub(super) struct Play<'a> {
    folder: &'a Path,
    story: Arc<Story>,
    began: Instant,
    server: Server,
    whereabouts: watch::Sender<Option<std::net::SocketAddr>>,
    is_up: bool,
    api: Client,
    cast: Vec<Receiver>,
    producer: Option<(Arc<Desk>, JoinSet<Result<()>>)>,
    events: Vec<Event>,
    /// The receivers' events of the plan that are still to come, the last first.
    ahead: Vec<(Duration, Tone, String)>,
    /// Breakers that are not closed, by endpoint.
    breakers: BTreeMap<String, Breaker>,
    replay: Replay,
    deeds: Deeds,
    words: BTreeMap<String, Word>,
}

#[derive(Debug, PartialEq, Eq)]
struct Breaker {
    state: String,
    holds: u64,
}

#[derive(Debug)]
enum Replay {
    Ahead,
    Runs { id: String },
    Done,
}

impl<'a> Play<'a> {
    /// Starts the server and the receivers. No message is sent yet.
    pub(super) async fn begin(plan: Plan, folder: &'a Path) -> Result<Self> {
        let began = Instant::now();
        let story = Arc::new(Story::new(plan));
        Server::prepare(folder)?;
        let server = Server::start(folder, &story).await?;
        let (whereabouts, place) = watch::channel(Some(server.address));
        let mut api = Client::new(place);
        let mut cast = Vec::new();
        for who in Who::ALL {
            let mut receiver = Receiver::start(who, &story).await?;
            let made = api.post_once("/v1/endpoints", who.name(), &receiver.as_endpoint()).await?;
            ensure!(made.status == StatusCode::CREATED, "no endpoint was made: {} {}", made.status, made.body);
            receiver.endpoint = made.text("id").context("an endpoint has no id")?.to_owned();
            cast.push(receiver);
        }
        let deeds = Deeds { kills: 0, back_after_ms: 0, waiting_at_kill: 0, repeated_calls: 0, replayed: 0, early: 0 };
        let ahead = ahead(&story.plan);
        Ok(Self {
            folder,
            story,
            began,
            server,
            whereabouts,
            is_up: true,
            api,
            cast,
            producer: None,
            events: Vec::new(),
            ahead,
            breakers: BTreeMap::new(),
            replay: Replay::Ahead,
            deeds,
            words: BTreeMap::new(),
        })
    }

    /// Runs the demo to its end.
    pub(super) async fn run(mut self, screen: &mut Screen) -> Result<Report> {
        self.story.begin();
        self.producer = Some(Desk::begin(&self.story, self.whereabouts.subscribe(), &self.cast));
        while self.is_sending().await? || !matches!(self.replay, Replay::Done) {
            self.step(screen).await?;
            screen.show(&self.view())?;
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        self.report_event(
            Tone::Plain,
            "all messages are sent; now reading the result of each from the server".to_owned(),
        );
        let until = Instant::now() + ENDS_WITHIN;
        while !self.read_results().await? && Instant::now() < until {
            self.step(screen).await?;
            screen.show(&self.view())?;
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        screen.show(&self.view())?;
        self.report().await
    }

    /// Whether messages are still being sent. An error of the producer ends the demo.
    async fn is_sending(&mut self) -> Result<bool> {
        let Some((_, tasks)) = &mut self.producer else { return Ok(false) };
        while let Some(ended) = tasks.try_join_next() {
            ended??;
        }
        Ok(!tasks.is_empty())
    }

    /// Does everything that is due.
    async fn step(&mut self, screen: &mut Screen) -> Result<()> {
        self.server.still_runs(self.folder)?;
        let now = self.story.now();
        while self.ahead.last().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, tone, text)) = self.ahead.pop() else { break };
            self.report_event(tone, text);
        }
        if self.deeds.kills == 0 && now >= self.story.plan.kill {
            self.kill(screen).await?;
        }
        self.look_at_breakers().await?;
        self.go_on_replaying().await
    }

    /// Kills the server with SIGKILL while it works, and starts a new one over the same folder.
    async fn kill(&mut self, screen: &mut Screen) -> Result<()> {
        let (accepted, taken) = (self.accepted(None), self.cast.iter().map(|one| one.log().taken()).sum());
        self.deeds.waiting_at_kill = accepted.saturating_sub(taken);
        self.whereabouts.send_replace(None);
        let killed = Instant::now();
        self.server.kill()?;
        self.is_up = false;
        self.deeds.kills += 1;
        let waiting = grouped(self.deeds.waiting_at_kill as u64);
        self.report_event(Tone::Bad, format!("kill -9 of the server, while {waiting} accepted messages wait"));
        screen.show(&self.view())?;
        self.server = Server::start(self.folder, &self.story).await?;
        self.whereabouts.send_replace(Some(self.server.address));
        self.is_up = true;
        self.api.get("/readyz").await?;
        self.deeds.back_after_ms = u64::try_from(killed.elapsed().as_millis()).unwrap_or(u64::MAX);
        let after = Duration::from_millis(self.deeds.back_after_ms).as_secs_f64();
        self.report_event(Tone::Good, format!("the server is back, {after:.1} s later, over the same file"));
        Ok(())
    }

    async fn look_at_breakers(&mut self) -> Result<()> {
        let listed = self.api.get("/v1/breakers").await?;
        let mut open = BTreeMap::new();
        for one in listed["data"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
            let Some(who) = self.cast.iter().find(|receiver| receiver.endpoint == text("id")) else { continue };
            if !self.breakers.contains_key(&who.endpoint) {
                let name = who.who.name();
                self.events.push(Event {
                    at: self.story.now(),
                    tone: Tone::Slow,
                    text: format!("{name}'s breaker opens ({}): one probe at a time", text("why")),
                });
            }
            open.insert(text("id"), Breaker { state: text("state"), holds: one["holds"].as_u64().unwrap_or(0) });
        }
        let closed: Vec<&str> = (self.cast.iter())
            .filter(|one| self.breakers.contains_key(&one.endpoint) && !open.contains_key(&one.endpoint))
            .map(|one| one.who.name())
            .collect();
        for name in closed {
            let text = format!("{name}'s breaker closes: its waiting deliveries are sent at a limited rate");
            self.events.push(Event { at: self.story.now(), tone: Tone::Good, text });
        }
        self.breakers = open;
        Ok(())
    }

    /// Begins the replay when it is due, and follows it to its end.
    async fn go_on_replaying(&mut self) -> Result<()> {
        match &self.replay {
            Replay::Ahead if self.story.now() >= self.story.plan.replay => {
                let select = json!({ "endpoint": self.receiver(Who::Erp).endpoint, "cause": "not_found" });
                let dry_run = json!({ "select": select, "dry_run": true });
                let counted = self.api.post("/v1/replays", &dry_run).await?;
                ensure!(counted.status == StatusCode::OK, "a dry run was answered {}", counted.body);
                let counted: serde_json::Value = serde_json::from_str(&counted.body)?;
                let total = counted["total"]["count"].as_u64().unwrap_or(0);
                let replay = json!({ "select": select, "per_second": REPLAYED_A_SECOND, "reason": "erp works again" });
                let made = self.api.post("/v1/replays", &replay).await?;
                ensure!(made.status == StatusCode::ACCEPTED, "no replay was made: {}", made.body);
                let id = made.text("id").context("a replay has no id")?.to_owned();
                self.report_event(
                    Tone::Plain,
                    format!("POST /v1/replays: {} dead letters of erp are sent again", grouped(total)),
                );
                self.replay = Replay::Runs { id };
            }
            Replay::Runs { id } => {
                let shown = self.api.get(&format!("/v1/replays/{id}")).await?;
                self.deeds.replayed = shown["replayed"].as_u64().unwrap_or(0);
                if shown["state"] == "done" {
                    self.report_event(
                        Tone::Good,
                        format!("the replay is done: {} sent again", grouped(self.deeds.replayed)),
                    );
                    self.replay = Replay::Done;
                }
            }
            Replay::Ahead | Replay::Done => {}
        }
        Ok(())
    }

    /// Reads the results of some messages from the server; true once every message has ended.
    async fn read_results(&mut self) -> Result<bool> {
        let open: Vec<String> = match &self.producer {
            Some((desk, _)) => (desk.promised().iter())
                .filter(|promise| self.words.get(&promise.id).is_none_or(|word| *word == Word::Pending))
                .map(|promise| promise.id.clone())
                .collect(),
            None => Vec::new(),
        };
        // Messages that were never read come first.
        let (read_before, new): (Vec<_>, Vec<_>) = open.into_iter().partition(|id| self.words.contains_key(id));
        let mut still_open = read_before.len() + new.len();
        for id in new.into_iter().chain(read_before).take(ASKED_AT_ONCE) {
            let word = Word::read(&self.api.get(&format!("/v1/messages/{id}")).await?);
            still_open -= usize::from(word != Word::Pending);
            self.words.insert(id, word);
        }
        Ok(still_open == 0)
    }

    async fn report(mut self) -> Result<Report> {
        let Some((desk, _)) = &self.producer else { anyhow::bail!("nothing was sent") };
        self.deeds.repeated_calls = desk.repeated();
        self.deeds.early = self.cast.iter().map(Receiver::early).sum();
        let promised = desk.promised().clone();
        let receivers: Vec<Counted> = self.cast.iter().map(|one| self.counted(one)).collect();
        // The server is killed so that the receivers' counts cannot change any more.
        self.server.kill()?;
        let logs: Vec<(Who, Log)> = self.cast.iter().map(|one| (one.who, std::mem::take(&mut *one.log()))).collect();
        let log = |who: Who| logs.iter().find(|(known, _)| *known == who).map(|(_, log)| log);
        let empty = Log::default();
        let ledger = Ledger::of(&promised, &self.words, |who| log(who).unwrap_or(&empty));
        let seen = log(Who::Billing).unwrap_or(&empty).seconds(self.story.plan.length);
        let story = Arc::clone(&self.story);
        // On a slow machine some messages are sent after the end of the chart.
        let in_time = |promise: &&Promise| promise.who == Who::Billing && promise.at < story.plan.length;
        let billed = promised.iter().filter(in_time).count();
        let comparing = tokio::task::spawn_blocking(move || outage::compare(&story.plan, seen, billed));
        let compared = comparing.await.context("the simulation panicked")?;
        let (ttl, took) = (self.story.plan.ttl, self.began.elapsed());
        Ok(Report { ledger, deeds: self.deeds, receivers, compared, ttl, took })
    }

    fn counted(&self, one: &Receiver) -> Counted {
        let log = one.log();
        Counted {
            name: one.who.name(),
            accepted: self.accepted(Some(one.who)),
            requests: log.requests(),
            taken: log.taken(),
            duplicates: log.duplicates(),
        }
    }

    fn report_event(&mut self, tone: Tone, text: String) {
        self.events.push(Event { at: self.story.now(), tone, text });
    }

    fn receiver(&self, who: Who) -> &Receiver {
        self.cast.iter().find(|one| one.who == who).expect("all receivers are there from the beginning")
    }

    /// The number of accepted messages, for one receiver or for all.
    fn accepted(&self, who: Option<Who>) -> usize {
        let Some((desk, _)) = &self.producer else { return 0 };
        desk.promised().iter().filter(|promise| who.is_none_or(|who| promise.who == who)).count()
    }

    fn view(&self) -> View<'_> {
        let place = format!("server: process {}, http://{}", self.server.id(), self.server.address);
        let server = match (self.is_up, self.deeds.kills) {
            (false, _) => "server: killed".to_owned(),
            (true, 0) => place,
            (true, _) => format!("{place}, killed once"),
        };
        let ended = self.words.values().filter(|word| **word != Word::Pending).count();
        let accepted = self.accepted(None);
        let (done, what) = if self.words.is_empty() {
            (accepted, "accepted, each on disk first")
        } else {
            (ended, "have ended, by the server's count")
        };
        let rows = self.cast.iter().map(|one| self.row(one)).collect();
        let of = self.story.plan.messages;
        View { now: self.story.now(), server, is_up: self.is_up, done, of, what, rows, events: &self.events }
    }

    fn row(&self, one: &Receiver) -> Row {
        let (mood, mut does) = one.does();
        if let Some(breaker) = self.breakers.get(&one.endpoint) {
            let state = if breaker.state == "open" { "breaker open" } else { "probing" };
            does += &format!("; {state}, {} wait", grouped(breaker.holds));
        }
        let mood = if self.breakers.contains_key(&one.endpoint) && mood == Mood::Well { Mood::Slow } else { mood };
        let Counted { name, accepted, requests, taken, .. } = self.counted(one);
        let load = one.log().seconds(self.story.plan.length);
        Row { name, mood, does, accepted, requests, taken, load }
    }
}

/// The events of the receivers, the last first.
fn ahead(plan: &Plan) -> Vec<(Duration, Tone, String)> {
    let mut ahead = vec![
        (plan.outage.start, Tone::Bad, "billing goes down: 502 to everything".to_owned()),
        (plan.gone, Tone::Bad, "legacy answers 410, gone for good: its pending deliveries are dead".to_owned()),
        (plan.outage.end, Tone::Good, "billing works again".to_owned()),
        (plan.mended, Tone::Good, "erp works again: no more 404".to_owned()),
    ];
    ahead.extend(plan.quiet.iter().map(|quiet| {
        let wait = human(quiet.end - quiet.start);
        (quiet.start, Tone::Slow, format!("crm throttles: 429, Retry-After up to {wait}"))
    }));
    ahead.sort_by_key(|(at, ..)| std::cmp::Reverse(*at));
    ahead
}
