//! A server with its receiver and endpoints, set up for one scenario.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hyper::Method;
use posthaste_testkit::fixtures::caller::{ApiAnswer, call};
use posthaste_testkit::fixtures::cpu::Cpu;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::time::Instant;

use super::child::{Child, Memory};
use super::part::{Work, Worked};
use super::scenario::Shape;
use super::tally::{Arrival, Count};
use super::{Args, certificate, child};

/// A delivery that has not arrived this long after the last accept counts as lost. A retry comes within a second.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);
/// The time between two reads of the receiver's count.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The most deliveries that the producer is ahead of the receiver: four times the number of slots, so that the server
/// is never idle and never has a backlog.
const DELIVERIES_UNDER_WAY: u64 = 4_096;
/// The number of paused endpoints that each held message goes to.
const HELD_ENDPOINTS: u64 = 1_000;

/// A server and its receiver.
#[derive(Debug)]
pub(super) struct Rig {
    server: Child,
    receiver: Child,
    endpoints: Vec<String>,
    shape: Shape,
    /// Deliveries that must have arrived.
    expected: u64,
    // The last field, so that it is removed after the processes have ended.
    folder: TempDir,
}

/// How much to post in a round, and how fast.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) seconds: u64,
    pub(super) messages: u64,
    pub(super) payload: usize,
    pub(super) rate: Option<f64>,
}

impl Effort {
    /// The effort that the command line asks for, without a rate limit.
    pub(super) fn of(args: &Args) -> Self {
        let payload = usize::try_from(args.payload).unwrap_or(usize::MAX);
        Self { seconds: args.seconds, messages: args.messages, payload, rate: None }
    }
}

/// The results of one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) accepted_per_second: f64,
    pub(super) delivered_per_second: f64,
    pub(super) accepted: u64,
    pub(super) producer_cpu: Duration,
    pub(super) receiver_cpu: Duration,
}

/// The results of the bare client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bare {
    pub(super) per_second: f64,
    pub(super) requests: u64,
    pub(super) cpu: Duration,
}

/// The resources that a server has used since its start.
#[derive(Clone, Debug)]
pub(super) struct Used {
    pub(super) cpu: Cpu,
    pub(super) written_bytes: u64,
    pub(super) commits: u64,
}

impl Rig {
    pub(super) async fn start(shape: Shape) -> Result<Self> {
        Self::with_server_of(&child::this_program()?, shape).await
    }

    /// Starts the server of `program`; receiver, producer and bare client are those of this program.
    pub(super) async fn with_server_of(program: &Path, shape: Shape) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("posthaste-bench-").tempdir();
        let folder = folder.context("cannot make a folder for the data")?;
        let path = |path: &Path| path.to_str().map(str::to_owned).context("the temporary folder's name is not UTF-8");
        let (here, data) = (path(folder.path())?, path(&folder.path().join("data"))?);
        let failing = shape.failing_percent.to_string();
        let mut args = vec!["bench-part", "receiver", "--failing-percent", &failing];
        if shape.tls {
            certificate::make(folder.path())?;
            args.extend(["--tls", &here]);
        }
        let receiver = Child::start(&child::this_program()?, "receiver", &args, &[])?;
        let authority = certificate::file(folder.path());
        // The server trusts the system's certificates, which here are the receiver's alone.
        let roots = [("SSL_CERT_FILE", authority.as_os_str())];
        let roots = if shape.tls { &roots[..] } else { &[] };
        let server = Child::start(program, "server", &["bench-part", "server", &data], roots)?;
        let mut rig = Self { server, receiver, endpoints: Vec::new(), shape, expected: 0, folder };
        for number in 0..shape.endpoints {
            let endpoint = rig.make_endpoint(&format!("hook/{number}")).await?;
            rig.endpoints.push(endpoint);
        }
        Ok(rig)
    }

    /// The folder of its data.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Posts for a while, and waits until everything has arrived.
    pub(super) async fn round(&mut self, effort: &Effort) -> Result<Round> {
        let (before, receiver_before) = (self.count().await?, self.receiver.cpu()?);
        let produced = self.work("producer", self.server.address, self.shape.connections, effort)?;
        // Only deliveries that arrive while the producer works count for the rate, which could then go on for ever.
        let in_time = self.count().await?.distinct - before.distinct;
        let took = Duration::from_micros(produced.took_us);
        self.expected += produced.answered * self.shape.fan as u64;
        self.drained().await?;
        Ok(Round {
            accepted_per_second: per_second(produced.answered, took),
            delivered_per_second: per_second(in_time, took),
            accepted: produced.answered,
            producer_cpu: Duration::from_micros(produced.cpu_us),
            receiver_cpu: self.receiver.cpu()?.since(&receiver_before).all(),
        })
    }

    /// Posts the same bytes directly to the receiver.
    pub(super) fn bare(&self, effort: &Effort) -> Result<Bare> {
        let effort = Effort { rate: None, ..*effort };
        let worked = self.work("bare", self.receiver.address, Shape::BARE_CONNECTIONS, &effort)?;
        Ok(Bare {
            per_second: per_second(worked.answered, Duration::from_micros(worked.took_us)),
            requests: worked.answered,
            cpu: Duration::from_micros(worked.cpu_us),
        })
    }

    /// Fills the server with deliveries that wait for paused endpoints.
    pub(super) async fn hold(&self, pending: u64) -> Result<()> {
        let mut held = Vec::new();
        for number in 0..HELD_ENDPOINTS.min(pending) {
            let id = self.make_endpoint(&format!("held/{number}")).await?;
            self.post(self.server.address, &format!("/v1/endpoints/{id}/pause"), "{}").await?;
            held.push(format!("\"{id}\""));
        }
        let body =
            format!("{{\"event_type\":\"bench.held\",\"payload\":{{}},\"to\":{{\"endpoints\":[{}]}}}}", held.join(","));
        for _ in 0..pending / HELD_ENDPOINTS {
            self.post(self.server.address, "/v1/messages", &body).await?;
        }
        Ok(())
    }

    /// Resets the counts of arrived and expected deliveries.
    pub(super) async fn forget(&mut self) -> Result<()> {
        self.expected = 0;
        self.post(self.receiver.address, "/reset", "").await.map(drop)
    }

    /// The resources that the server has used so far.
    pub(super) fn used(&mut self) -> Result<Used> {
        let commits = self.server.ask()?;
        let commits = commits.trim().parse().with_context(|| format!("the server printed {commits:?}"))?;
        Ok(Used { cpu: self.server.cpu()?, written_bytes: self.server.written_bytes()?, commits })
    }

    /// The server's CPU time so far, of all its threads.
    pub(super) fn cpu(&self) -> Result<Duration> {
        Ok(self.server.cpu()?.all())
    }

    pub(super) fn memory(&self) -> Result<Memory> {
        self.server.memory()
    }

    /// The deliveries that have arrived, and the number that should have.
    pub(super) async fn arrived(&self) -> Result<(Count, u64)> {
        Ok((self.count().await?, self.expected))
    }

    pub(super) async fn arrival(&self) -> Result<Arrival> {
        self.read_receiver("/arrival").await
    }

    async fn count(&self) -> Result<Count> {
        self.read_receiver("/count").await
    }

    async fn read_receiver<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let answer = call(self.receiver.address, Method::GET, path, "").await.context("cannot call the receiver")?;
        serde_json::from_str(&answer.body).with_context(|| format!("the receiver answered {:?}", answer.body))
    }

    /// Waits until all deliveries have arrived, for [`DRAINED_WITHIN`] at most.
    async fn drained(&self) -> Result<()> {
        let began = Instant::now();
        while self.count().await?.distinct < self.expected && began.elapsed() < DRAINED_WITHIN {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }

    async fn make_endpoint(&self, path: &str) -> Result<String> {
        let scheme = if self.shape.tls { "https" } else { "http" };
        let url = format!("{scheme}://{}/{path}", self.receiver.address);
        let body = format!("{{\"url\":\"{url}\",\"max_in_flight\":256}}");
        let made = self.post(self.server.address, "/v1/endpoints", &body).await?;
        Ok(made.text("id").context("the server's answer has no id")?.to_owned())
    }

    async fn post(&self, address: SocketAddr, path: &str, body: &str) -> Result<ApiAnswer> {
        let answer = call(address, Method::POST, path, body).await.with_context(|| format!("cannot call {path}"))?;
        ensure!(answer.status.is_success(), "{path} answered {}: {}", answer.status, answer.body);
        Ok(answer)
    }

    /// Runs a producer or a bare client to its end, and returns its results.
    fn work(&self, part: &str, target: SocketAddr, connections: u16, effort: &Effort) -> Result<Worked> {
        let is_bare = part == "bare";
        let work = Work {
            target,
            seconds: effort.seconds,
            messages: effort.messages,
            connections,
            payload: effort.payload,
            batch: if is_bare { 0 } else { self.shape.batch },
            fan: self.shape.fan,
            rate: effort.rate,
            lead_over: (!is_bare && effort.rate.is_none()).then_some(self.receiver.address),
            lead: DELIVERIES_UNDER_WAY / self.shape.fan as u64,
            certificate: (is_bare && self.shape.tls).then(|| certificate::file(self.folder.path())),
            endpoints: self.endpoints.clone(),
        };
        let args = work.to_args();
        let args: Vec<&str> = ["bench-part", part].into_iter().chain(args.iter().map(String::as_str)).collect();
        let worked = child::output(part, &args)?;
        serde_json::from_str(&worked).with_context(|| format!("the {part} printed {worked:?}"))
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of messages is far below 2^52")]
fn per_second(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}
