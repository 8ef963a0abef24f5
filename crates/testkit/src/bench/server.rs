//! A server with its receiver and endpoints, set up for one scenario.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use hyper::Method;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::time::Instant;

use super::part::{BenchPart, ClientLoad, ClientResult, MessageLead};
use super::receiver::{ArrivalCount, ArrivalTimes, ReceiverSettings};
use super::scenario::ScenarioShape;
use super::{BenchSettings, certificate};
use crate::fixtures::{ApiAnswer, ChildProcess, Cpu, address_in, call, rss};
use crate::prove::{CannotRun, Context};

/// A delivery that has not arrived this long after the last accept counts as lost. A retry comes within a second.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);
/// The time between two reads of the receiver's count.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// The most deliveries that the producer is ahead of the receiver: four times the number of slots, so that the server
/// is never idle and never has a backlog.
const DELIVERIES_UNDER_WAY: u64 = 4_096;
/// The number of paused endpoints that each held message goes to.
const HELD_ENDPOINTS: u64 = 1_000;
/// The connections of the bare client, in every scenario.
const BARE_CONNECTIONS: u16 = 256;

/// A server and its receiver.
#[derive(Debug)]
pub(super) struct MeasuredServer {
    server: ListeningProcess,
    receiver: ListeningProcess,
    /// The program of receiver, producer and bare client.
    program: PathBuf,
    endpoints: Vec<String>,
    shape: ScenarioShape,
    /// Deliveries that must have arrived.
    expected: u64,
    // The last field, so that it is removed after the processes have ended.
    folder: TempDir,
}

/// How much to post in a round, and how fast.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundLoad {
    pub(super) seconds: u64,
    pub(super) messages: u64,
    pub(super) payload: usize,
    pub(super) rate: Option<f64>,
}

impl RoundLoad {
    /// The load that the settings ask for, without a rate limit.
    pub(super) fn of(settings: &BenchSettings) -> Self {
        let payload = usize::try_from(settings.payload).unwrap_or(usize::MAX);
        Self { seconds: settings.seconds, messages: settings.messages, payload, rate: None }
    }
}

/// The results of one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredRound {
    pub(super) produced: ClientResult,
    pub(super) delivered_per_second: f64,
    pub(super) receiver_cpu: Duration,
}

/// The resources that a server has used since its start.
#[derive(Clone, Debug)]
pub(super) struct ServerUsage {
    pub(super) cpu: Cpu,
    pub(super) written_bytes: u64,
    pub(super) commits: u64,
}

impl MeasuredServer {
    /// Starts the server of `posthaste`; receiver, producer and bare client are those of `program`.
    pub(super) async fn start(posthaste: &Path, program: &Path, shape: ScenarioShape) -> Result<Self, CannotRun> {
        let folder = tempfile::Builder::new().prefix("posthaste-bench-").tempdir();
        let folder = folder.context("cannot make a folder for the data")?;
        let here = folder.path();
        let mut server = Command::new(posthaste);
        // Other builds know these arguments too: `--against` starts their servers.
        server.args(["bench-part", "server"]).arg(here.join("data"));
        if shape.tls {
            certificate::make(here)?;
            // The server trusts the system's certificates, which here are the receiver's alone.
            server.env("SSL_CERT_FILE", certificate::file(here));
        }
        let tls = shape.tls.then(|| here.to_owned());
        let receiver = BenchPart::Receiver(ReceiverSettings { tls, failing_percent: shape.failing_percent });
        let receiver = ListeningProcess::start("receiver", &mut receiver.command(program)?)?;
        let server = ListeningProcess::start("server", &mut server)?;
        let (program, endpoints) = (program.to_owned(), Vec::new());
        let mut started = Self { server, receiver, program, endpoints, shape, expected: 0, folder };
        for number in 0..shape.endpoints {
            let endpoint = started.make_endpoint(&format!("hook/{number}")).await?;
            started.endpoints.push(endpoint);
        }
        Ok(started)
    }

    /// The folder of its data.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Posts for a while, and waits until everything has arrived.
    pub(super) async fn round(&mut self, load: &RoundLoad) -> Result<MeasuredRound, CannotRun> {
        let (before, receiver_before) = (self.count().await?, self.receiver.cpu()?);
        let lead =
            MessageLead { receiver: self.receiver.address, messages: DELIVERIES_UNDER_WAY / self.shape.fan as u64 };
        let ScenarioShape { connections, batch, .. } = self.shape;
        let lead = load.rate.is_none().then_some(lead);
        let producer = BenchPart::Producer(ClientLoad { connections, batch, lead, ..self.load(load) });
        let produced = run(&producer, &self.program)?;
        // Only deliveries that arrive while the producer works count for the rate, which could then go on for ever.
        let in_time = self.count().await?.distinct - before.distinct;
        self.expected += produced.answered * self.shape.fan as u64;
        self.wait_until_drained().await?;
        Ok(MeasuredRound {
            produced,
            delivered_per_second: super::per_second(in_time, produced.took),
            receiver_cpu: self.receiver.cpu()?.since(&receiver_before).all(),
        })
    }

    /// Posts the same bytes directly to the receiver.
    pub(super) fn bare(&self, load: &RoundLoad) -> Result<ClientResult, CannotRun> {
        let certificate = self.shape.tls.then(|| certificate::file(self.folder.path()));
        let (target, rate) = (self.receiver.address, None);
        run(&BenchPart::Bare(ClientLoad { target, rate, certificate, ..self.load(load) }), &self.program)
    }

    /// The load of a client that posts single messages to the server.
    fn load(&self, load: &RoundLoad) -> ClientLoad {
        ClientLoad {
            target: self.server.address,
            seconds: load.seconds,
            messages: load.messages,
            connections: BARE_CONNECTIONS,
            payload: load.payload,
            batch: 0,
            fan: self.shape.fan,
            rate: load.rate,
            lead: None,
            certificate: None,
            endpoints: self.endpoints.clone(),
        }
    }

    /// Fills the server with deliveries that wait for paused endpoints.
    pub(super) async fn add_pending(&self, pending: u64) -> Result<(), CannotRun> {
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
    pub(super) async fn reset_counts(&mut self) -> Result<(), CannotRun> {
        self.expected = 0;
        self.post(self.receiver.address, "/reset", "").await.map(drop)
    }

    /// The resources that the server has used so far.
    pub(super) fn usage(&mut self) -> Result<ServerUsage, CannotRun> {
        let commits = self.server.ask()?;
        let commits = commits.trim().parse().context(format!("the server printed {commits:?}"))?;
        Ok(ServerUsage { cpu: self.server.cpu()?, written_bytes: self.server.written_bytes()?, commits })
    }

    /// The server's CPU time so far, of all its threads.
    pub(super) fn cpu(&self) -> Result<Duration, CannotRun> {
        Ok(self.server.cpu()?.all())
    }

    pub(super) fn memory(&self) -> Result<ProcessMemory, CannotRun> {
        self.server.memory()
    }

    /// The deliveries that have arrived, and the number that should have.
    pub(super) async fn arrived(&self) -> Result<(ArrivalCount, u64), CannotRun> {
        Ok((self.count().await?, self.expected))
    }

    pub(super) async fn arrival(&self) -> Result<ArrivalTimes, CannotRun> {
        self.read_receiver("/arrival").await
    }

    async fn count(&self) -> Result<ArrivalCount, CannotRun> {
        self.read_receiver("/count").await
    }

    async fn read_receiver<T: DeserializeOwned>(&self, path: &str) -> Result<T, CannotRun> {
        let answer = call(self.receiver.address, Method::GET, path, "").await.context("cannot call the receiver")?;
        serde_json::from_str(&answer.body).context(format!("the receiver answered {:?}", answer.body))
    }

    /// Waits until all deliveries have arrived, for [`DRAINED_WITHIN`] at most.
    async fn wait_until_drained(&self) -> Result<(), CannotRun> {
        let began = Instant::now();
        while self.count().await?.distinct < self.expected && began.elapsed() < DRAINED_WITHIN {
            tokio::time::sleep(POLL_EVERY).await;
        }
        Ok(())
    }

    async fn make_endpoint(&self, path: &str) -> Result<String, CannotRun> {
        let scheme = if self.shape.tls { "https" } else { "http" };
        let url = format!("{scheme}://{}/{path}", self.receiver.address);
        let body = format!("{{\"url\":\"{url}\",\"max_in_flight\":256}}");
        self.post(self.server.address, "/v1/endpoints", &body).await?.id()
    }

    async fn post(&self, address: SocketAddr, path: &str, body: &str) -> Result<ApiAnswer, CannotRun> {
        let answer = call(address, Method::POST, path, body).await.context(format!("cannot call {path}"))?;
        if answer.status.is_success() {
            return Ok(answer);
        }
        Err(CannotRun(format!("{path} answered {}: {}", answer.status, answer.body)))
    }
}

/// Runs a producer or a bare client to its end.
fn run(part: &BenchPart, program: &Path) -> Result<ClientResult, CannotRun> {
    let mut command = part.command(program)?;
    let ended = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    let (name, printed) = (part.name(), String::from_utf8_lossy(&ended.stdout));
    if !ended.status.success() {
        return Err(CannotRun(format!("the {name} ended with {}", ended.status)));
    }
    serde_json::from_str(&printed).context(format!("the {name} printed {printed:?}"))
}

/// A child process that listens. It ends when this is dropped, or when this process ends, which closes its input.
#[derive(Debug)]
pub(super) struct ListeningProcess {
    part: ChildProcess,
    pub(super) address: SocketAddr,
}

/// The resident memory of a process, in MiB.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessMemory {
    pub(super) now_mib: f64,
    pub(super) peak_mib: f64,
}

impl ListeningProcess {
    /// Starts a `posthaste`, which is this program or another build of it, and waits until it prints its address.
    pub(super) fn start(name: &str, command: &mut Command) -> Result<Self, CannotRun> {
        let mut part = ChildProcess::spawn(command).context(name)?;
        let line = part.line().context(format!("cannot read the output of the {name}"))?;
        let address = address_in(&line).context(format!("the {name} printed {line:?} instead of its address"))?;
        Ok(Self { part, address })
    }

    /// Sends an empty line to the process, and returns the line that it prints in reply.
    pub(super) fn ask(&mut self) -> Result<String, CannotRun> {
        self.part.tell("").context("a process of the bench has ended")?;
        self.part.line()
    }

    /// The CPU time of each of its threads.
    pub(super) fn cpu(&self) -> Result<Cpu, CannotRun> {
        Cpu::for_process(self.part.id())
    }

    /// The number of bytes that it has written to disk.
    pub(super) fn written_bytes(&self) -> Result<u64, CannotRun> {
        let path = format!("/proc/{}/io", self.part.id());
        let io = std::fs::read_to_string(path).context("cannot read what a process has written")?;
        let field = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        field.and_then(|bytes| bytes.parse().ok()).context("/proc does not have the bytes that a process has written")
    }

    pub(super) fn memory(&self) -> Result<ProcessMemory, CannotRun> {
        let mib = |kib: u64| kib as f64 / 1_024.0;
        let pid = self.part.id();
        Ok(ProcessMemory { now_mib: mib(rss::of(pid)?), peak_mib: mib(rss::peak_of(pid)?) })
    }
}
