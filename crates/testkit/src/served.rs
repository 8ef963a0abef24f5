//! A real server with a receiver and producers: the fixture that the proofs on the binary share.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, StatusCode};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::caller::{Line, call};
use crate::counter::{Counter, Manners};
use crate::ledger::{Ledger, Load, Producers};
use crate::posthaste::{Launch, Posthaste};

/// If nothing has arrived for this long, the messages that are missing are lost: retries come sooner.
const STANDS_STILL: Duration = Duration::from_secs(15);
/// If the server has accepted nothing for this long, it is stuck.
const PATIENCE: Duration = Duration::from_secs(60);
/// Connections over which the server is queried about messages.
const LINES: usize = 8;
/// How long an outcome may take to be durable after the receiver's answer.
const RECORDED_AFTER: Duration = Duration::from_secs(5);

/// The runtime of a proof. A proof may block it, for example while it waits for a process to end: producers and
/// receivers have threads of their own.
///
/// # Errors
/// If its threads cannot be started.
pub fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

/// A server under load.
#[derive(Debug)]
pub struct Served {
    launch: Launch,
    server: Posthaste,
    counter: Counter,
    producers: Producers,
    /// The server's folder. The last field, so that it is removed after the server has ended.
    folder: TempDir,
}

impl Served {
    /// Starts a server with its data in this folder, a receiver with an endpoint, and producers.
    ///
    /// # Errors
    /// If one of them does not start.
    pub async fn begin(folder: TempDir, launch: Launch, manners: Manners, load: &Load) -> io::Result<Self> {
        let server = launch.start()?;
        let counter = Counter::start(manners).await?;
        subscribe(server.address, &counter).await?;
        let producers = Producers::start(load, server.address);
        Ok(Self { launch, server, counter, producers, folder })
    }

    /// The running server.
    pub fn server(&mut self) -> &mut Posthaste {
        &mut self.server
    }

    /// The settings with which the server is started.
    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    /// The receiver, which counts arrivals.
    pub fn counter(&self) -> &Counter {
        &self.counter
    }

    /// The ledger of acknowledged messages.
    pub fn ledger(&self) -> &Arc<Ledger> {
        self.producers.ledger()
    }

    /// Waits until `enough` messages have been acknowledged in all.
    ///
    /// # Errors
    /// If the server accepts nothing for a minute.
    pub async fn promises(&self, enough: usize) -> io::Result<()> {
        if self.ledger().waits_for(PATIENCE, |promised, _| promised >= enough).await {
            return Ok(());
        }
        let ledger = self.ledger();
        let (promised, refusals, surprises) = (ledger.count(), ledger.refusals(), ledger.surprises());
        Err(io::Error::other(format!("the server is stuck at {promised} accepts, {refusals:?}, {surprises:?}")))
    }

    /// Stops the server with a signal. Returns its exit status, and how long it took.
    ///
    /// # Errors
    /// If it cannot be signalled or waited for.
    pub async fn stop(&mut self) -> io::Result<(ExitStatus, Duration)> {
        let signalled = Instant::now();
        let ended = self.server.stop()?;
        let at = Instant::now();
        self.counter.sender_ended(at).await?;
        Ok((ended, at - signalled))
    }

    /// Kills the server with `SIGKILL`.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub async fn kill(&mut self) -> io::Result<()> {
        let at = Instant::now();
        self.server.kill()?;
        self.counter.sender_ended(at).await
    }

    /// Waits until the server exits by itself; `None` if it is still running after the time `within`.
    ///
    /// # Errors
    /// If its state cannot be read.
    pub async fn ends_by_itself(&mut self, within: Duration) -> io::Result<Option<ExitStatus>> {
        let began = Instant::now();
        while began.elapsed() < within {
            if let Some(ended) = self.server.ended()? {
                self.counter.sender_ended(Instant::now()).await?;
                return Ok(Some(ended));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(None)
    }

    /// Starts the server again. It must have ended.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(&mut self) -> io::Result<()> {
        self.server = self.launch.start()?;
        self.producers.look_at(self.server.address);
        Ok(())
    }

    /// Stops the producers, and waits until all acknowledged messages have arrived or are lost.
    pub async fn ends(self) -> Ended {
        let Self { server, counter, producers, folder, .. } = self;
        let ledger = Arc::clone(producers.ledger());
        let stuck = producers.stop(PATIENCE).await;
        let lost = counter.waits_for_all(&ledger.promised(), STANDS_STILL).await;
        if let Some(missing) = counter.seens().first_missing(&ledger.promised()) {
            let answer = call(server.address, Method::GET, &format!("/v1/messages/{missing}"), "").await;
            eprintln!("{missing} has not arrived; the server answers {answer:?}");
        }
        let surprises = ledger.surprises();
        surprises.iter().for_each(|surprise| eprintln!("unexpected answer: {surprise}"));
        let (promised, surprises) = (ledger.promised(), surprises.len() + stuck);
        Ended { server, counter, promised, ledger, lost, surprises, _folder: folder }
    }
}

/// A server without producers, whose deliveries should all have ended.
#[derive(Debug)]
pub struct Ended {
    /// The server, still running.
    pub server: Posthaste,
    /// The receiver, with its counts.
    pub counter: Counter,
    /// The ids of the acknowledged messages.
    pub promised: BTreeSet<String>,
    /// The ledger, with refusals and unexpected answers.
    pub ledger: Arc<Ledger>,
    /// How many of the acknowledged messages never arrived.
    pub lost: usize,
    /// The number of unexpected answers, and of producers that got no answer to their last call.
    pub surprises: usize,
    /// The server's folder. The last field, so that it is removed after the server has ended.
    _folder: TempDir,
}

impl Ended {
    /// How many acknowledged messages do not have the state `delivered` at the server.
    ///
    /// # Errors
    /// If the server does not answer.
    pub async fn unended(&self) -> io::Result<usize> {
        let ids: Vec<&String> = self.promised.iter().collect();
        let mut lines = JoinSet::new();
        for some in ids.chunks(ids.len().div_ceil(LINES).max(1)) {
            let (address, some) = (self.server.address, some.iter().map(|id| (*id).clone()).collect());
            lines.spawn(unended_of(address, some));
        }
        let mut unended = 0;
        for ended in lines.join_all().await {
            unended += ended?;
        }
        Ok(unended)
    }
}

async fn unended_of(address: SocketAddr, ids: Vec<String>) -> io::Result<usize> {
    let mut line = Line::open(address).await?;
    let mut unended = 0;
    for id in ids {
        let path = format!("/v1/messages/{id}");
        let began = Instant::now();
        loop {
            let answer = line.call(Method::GET, &path, &[], "").await?.expect(StatusCode::OK)?;
            if answer.text("state") == Some("delivered") {
                break;
            }
            if began.elapsed() > RECORDED_AFTER {
                unended += 1;
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(unended)
}

/// Creates an endpoint for the counter that receives all messages.
///
/// # Errors
/// If the server refuses.
pub async fn subscribe(server: SocketAddr, counter: &Counter) -> io::Result<()> {
    let body = format!("{{\"url\":\"{}\",\"max_in_flight\":256}}", counter.url());
    call(server, Method::POST, "/v1/endpoints", &body).await?.expect(StatusCode::CREATED).map(drop)
}

/// A folder for a proof's data, on the disk of the build: a temporary folder may be in memory.
///
/// # Errors
/// If it cannot be made.
pub fn folder() -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("served-").tempdir_in(crate::seeder::shelf()?)
}

/// A number of messages as the value of a figure.
#[expect(clippy::cast_precision_loss, reason = "a count of messages is far below 2^52")]
pub fn count(number: usize) -> f64 {
    number as f64
}
