//! A server, its receiver and its producers: what the proofs on the real binary have in common.

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

/// What has not come by then, with nothing else coming either, is not on its way: retries come sooner.
const STANDS_STILL: Duration = Duration::from_secs(15);
/// A server that takes nothing for so long is not going to.
const PATIENCE: Duration = Duration::from_secs(60);
/// Lines over which the server is asked about messages.
const LINES: usize = 8;
/// An outcome is durable a moment after its receiver answered.
const RECORDED_AFTER: Duration = Duration::from_secs(5);

/// The proofs' runtime. What a proof waits for without it, such as the end of a process, holds up nobody:
/// producers and receivers have threads of their own.
///
/// # Errors
/// When there are no threads.
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
    /// Behind the server, which it must outlive.
    folder: TempDir,
}

impl Served {
    /// Starts a server with its data in this folder and one endpoint, and producers who call it.
    ///
    /// # Errors
    /// When one of them does not start.
    pub async fn begin(folder: TempDir, launch: Launch, manners: Manners, load: &Load) -> io::Result<Self> {
        let server = launch.start()?;
        let counter = Counter::start(manners).await?;
        subscribe(server.address, &counter).await?;
        let producers = Producers::start(load, server.address);
        Ok(Self { launch, server, counter, producers, folder })
    }

    /// The server as it is now.
    pub fn server(&mut self) -> &mut Posthaste {
        &mut self.server
    }

    /// How it is started.
    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    /// What came.
    pub fn counter(&self) -> &Counter {
        &self.counter
    }

    /// What was promised.
    pub fn ledger(&self) -> &Arc<Ledger> {
        self.producers.ledger()
    }

    /// Waits until so much is promised in all.
    ///
    /// # Errors
    /// When the server takes nothing any more.
    pub async fn promises(&self, enough: usize) -> io::Result<()> {
        if self.ledger().waits_for(PATIENCE, |promised, _| promised >= enough).await {
            return Ok(());
        }
        let ledger = self.ledger();
        let (promised, refusals, surprises) = (ledger.count(), ledger.refusals(), ledger.surprises());
        Err(io::Error::other(format!("the server stands still at {promised} promises, {refusals:?}, {surprises:?}")))
    }

    /// Asks the server to stop; gives how it ended, and after how long.
    ///
    /// # Errors
    /// When it cannot be asked or waited for.
    pub async fn stop(&mut self) -> io::Result<(ExitStatus, Duration)> {
        let asked = Instant::now();
        let ended = self.server.stop()?;
        let at = Instant::now();
        self.counter.sender_ended(at).await?;
        Ok((ended, at - asked))
    }

    /// Kills the server.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn kill(&mut self) -> io::Result<()> {
        let at = Instant::now();
        self.server.kill()?;
        self.counter.sender_ended(at).await
    }

    /// Waits until the server ends by itself; nothing when it goes on for so long.
    ///
    /// # Errors
    /// When it cannot be looked at.
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

    /// Starts the server again, which must have ended.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(&mut self) -> io::Result<()> {
        self.server = self.launch.start()?;
        self.producers.look_at(self.server.address);
        Ok(())
    }

    /// Lets the producers end, and everything promised arrive.
    pub async fn ends(self) -> Ended {
        let Self { server, counter, producers, folder, .. } = self;
        let ledger = Arc::clone(producers.ledger());
        let stuck = producers.stop(PATIENCE).await;
        let lost = counter.waits_for_all(&ledger.promised(), STANDS_STILL).await;
        if let Some(missing) = counter.seens().first_missing(&ledger.promised()) {
            let told = call(server.address, Method::GET, &format!("/v1/messages/{missing}"), "").await;
            eprintln!("{missing} has not come; the server says {told:?}");
        }
        let surprises = ledger.surprises();
        surprises.iter().for_each(|surprise| eprintln!("nobody expects: {surprise}"));
        let (promised, surprises) = (ledger.promised(), surprises.len() + stuck);
        Ended { server, counter, promised, ledger, lost, surprises, _folder: folder }
    }
}

/// A server whose producers have left and whose queue should be empty.
#[derive(Debug)]
pub struct Ended {
    /// Still there, to be asked.
    pub server: Posthaste,
    /// What came.
    pub counter: Counter,
    /// What was promised.
    pub promised: BTreeSet<String>,
    /// The rest of what producers have to tell.
    pub ledger: Arc<Ledger>,
    /// How many of the promises never came.
    pub lost: usize,
    /// Answers that nobody expects, and producers that got none.
    pub surprises: usize,
    /// Behind the server, which it must outlive.
    _folder: TempDir,
}

impl Ended {
    /// How many messages the server itself does not call delivered.
    ///
    /// # Errors
    /// When it does not answer.
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
            let shown = line.call(Method::GET, &path, &[], "").await?.expect(StatusCode::OK)?;
            if shown.text("state") == Some("delivered") {
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

/// Makes the endpoint that sends everything to the counter.
///
/// # Errors
/// When the server refuses.
pub async fn subscribe(server: SocketAddr, counter: &Counter) -> io::Result<()> {
    let body = format!("{{\"url\":\"{}\",\"max_in_flight\":256}}", counter.url());
    call(server, Method::POST, "/v1/endpoints", &body).await?.expect(StatusCode::CREATED).map(drop)
}

/// A folder for a proof's data, on the same disk as the build: what is measured is a disk and no memory.
///
/// # Errors
/// When it cannot be made.
pub fn folder() -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("served-").tempdir_in(crate::seeder::shelf()?)
}

/// A number of messages as a figure.
#[expect(clippy::cast_precision_loss, reason = "a count of messages is far below 2^52")]
pub fn count(number: usize) -> f64 {
    number as f64
}
