//! The only way out of the process.
//!
//! [`Connector::send`] takes a job and returns at once; its end comes back on one bounded channel
//! that the dispatch loop drains in batches. In between a connection's own task resolves, checks
//! every address, connects to an address it checked, writes the request and reads a bounded
//! answer. It follows nothing, keeps no cookies, reads no proxy from the environment, asks for no
//! compression.
//!
//! Connections are kept per origin and [`Identity`]. Each is one task that drives its own HTTP state and takes the
//! next attempt from its origin's queue: no task is made for an attempt on the hot path.
//!
//! Invariants: every job taken ends in exactly one [`Done`]; no socket is opened to an address
//! that [`check_addresses`](crate::target::check_addresses) did not let pass for that connection.
//! Read next: `pool` (who carries which attempt), `connection` (a connection's life), `exchange`
//! (one request and its answer), `fault` (what an error means).

mod alarm;
mod attempt;
mod connection;
mod exchange;
mod fault;
mod identity;
mod open;
mod pool;
mod resolve;
mod trust;
mod wire;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::Full;
use posthaste_core::Cause;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::target::{Refusal, Target, TargetRules};

pub use exchange::{BODY_BYTES_READ_MAX, EXCERPT_BYTES_MAX, HEAD_BYTES_MAX, INTERIM_ANSWERS_MAX};
pub use identity::{BadIdentity, CERTIFICATES_MAX, Identity, IdentityPem, PEM_BYTES_MAX};
pub use open::{Dial, Tcp};
pub use resolve::{NoAnswer, Resolve, System};
pub use trust::{Roots, TrustError};

use attempt::Attempt;
use open::Opener;
use pool::{Offer, Pools};

/// What bounds the way out.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which targets may be contacted.
    pub rules: TargetRules,
    /// For a look-up of a name.
    pub dns_timeout: Duration,
    /// For a TCP connection, all addresses of a name together.
    pub connect_timeout: Duration,
    /// For a TLS handshake.
    pub tls_timeout: Duration,
    /// For everything, from [`Connector::send`] to the end of the answer.
    pub attempt_timeout: Duration,
    /// How long a connection waits for its next request.
    pub idle_timeout: Duration,
    /// A kept connection whose address was checked longer ago is checked again before its use.
    pub recheck_after: Duration,
    /// How many connections one origin may have; further jobs queue. As many as there are slots by
    /// default: whoever waits here could no longer be paused, cancelled or expired.
    pub connections_per_origin_max: usize,
    /// How many connections of all origins may wait idle; a further one is closed.
    pub idle_connections_max: usize,
    /// How many jobs may be under way: at least as many as the caller has slots.
    pub jobs_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rules: TargetRules::default(),
            dns_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(10),
            tls_timeout: Duration::from_secs(10),
            attempt_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(30),
            recheck_after: Duration::from_secs(60),
            connections_per_origin_max: 1024,
            idle_connections_max: 1024,
            jobs_max: 4096,
        }
    }
}

/// One attempt to make.
#[derive(Debug)]
pub struct Job {
    /// The caller's own; it comes back in [`Done`].
    pub token: u64,
    /// Where to: it decides the request's path and `Host`, whatever the request says.
    pub target: Arc<Target>,
    /// How TLS is spoken with it, if not as with everybody; jobs with another share no connection.
    pub identity: Option<Arc<Identity>>,
    /// Method, fields and body; the fields that frame the body are ours.
    pub request: Request<Full<Bytes>>,
    /// When it must have ended; never later than `attempt_timeout` from now.
    pub deadline: Instant,
}

/// How a job ended.
#[derive(Debug)]
pub struct Done {
    /// The job's.
    pub token: u64,
    /// What the receiver answered, or why it did not.
    pub result: Result<Answer, Fault>,
    /// From [`Connector::send`] to the end, the wait for a connection included.
    pub took: Duration,
}

/// A receiver's answer; a channel judges it.
#[derive(Debug)]
pub struct Answer {
    /// From 200 to 599.
    pub status: StatusCode,
    /// Its fields.
    pub headers: HeaderMap,
    /// The beginning of its body; empty for 2xx.
    pub excerpt: Bytes,
    /// Whether its body was longer than we read, or ended early.
    pub cut: bool,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its cause.
    pub cause: Cause,
    /// A stable code that says more than the cause; for `address_refused` the refusal's.
    pub detail: Option<&'static str>,
}

/// A job that was not taken; it comes back unharmed.
#[derive(Debug, thiserror::Error)]
pub enum NotTaken {
    /// The caller has more slots than `jobs_max`.
    #[error("more jobs under way than jobs_max allows; settle some first or raise it")]
    Full(Box<Job>),
    /// [`Connector::close`] was called, or nobody receives results any more.
    #[error("the connector is closing and takes no further job")]
    Closed(Box<Job>),
}

/// The only way out of the process. See the module's documentation.
#[derive(Debug)]
pub struct Connector {
    opener: Arc<Opener>,
    pools: Arc<Pools>,
    results: mpsc::Sender<Done>,
    tasks: Mutex<JoinSet<()>>,
}

impl Connector {
    /// A connector and the channel its results come back on.
    pub fn new(settings: Settings, resolver: Arc<dyn Resolve>, roots: Roots) -> (Self, mpsc::Receiver<Done>) {
        Self::with_dial(settings, resolver, Arc::new(Tcp), roots)
    }

    /// The same with another way to open sockets: tests witness with it what is contacted.
    pub fn with_dial(
        settings: Settings,
        resolver: Arc<dyn Resolve>,
        dial: Arc<dyn Dial>,
        roots: Roots,
    ) -> (Self, mpsc::Receiver<Done>) {
        let (results, receiver) = mpsc::channel(settings.jobs_max);
        let pools = Arc::new(Pools::new(settings.connections_per_origin_max, settings.idle_connections_max));
        let opener = Arc::new(Opener::new(settings, resolver, dial, roots));
        (Self { opener, pools, results, tasks: Mutex::default() }, receiver)
    }

    /// Starts an attempt. Never blocks; its end arrives as one [`Done`].
    pub fn send(&self, job: Job) -> Result<(), NotTaken> {
        let reply = match self.results.clone().try_reserve_owned() {
            Ok(permit) => permit,
            Err(mpsc::error::TrySendError::Full(_)) => return Err(NotTaken::Full(Box::new(job))),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(NotTaken::Closed(Box::new(job))),
        };
        let attempt = Box::new(Attempt::new(job, reply, Instant::now(), self.opener.settings.attempt_timeout));
        match self.pools.offer(attempt) {
            Offer::Taken => {}
            Offer::Grow(seat, attempt) => {
                let opener = Arc::clone(&self.opener);
                self.spawn(connection::run(opener, seat, attempt));
            }
            Offer::Closed(attempt) => return Err(NotTaken::Closed(Box::new(attempt.into_job()))),
        }
        Ok(())
    }

    /// Resolves a target's name and checks what it finds, without contacting it.
    pub async fn check(&self, target: &Target) -> Result<(), Refusal> {
        let deadline = Instant::now() + self.opener.settings.dns_timeout;
        self.opener.check(target.origin(), deadline).await.map(|_| ())
    }

    /// How many connections are open or being opened.
    pub fn connections(&self) -> usize {
        self.pools.connections()
    }

    /// Takes no further job, ends idle connections, and waits until every job taken has ended by
    /// its own deadline. Their results are then all in the channel.
    pub async fn close(&self) {
        self.pools.close();
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        while let Some(ended) = tasks.join_next().await {
            report(ended);
        }
    }

    /// A connection's task: owned here, awaited by [`Connector::close`].
    fn spawn(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(ended) = tasks.try_join_next() {
            report(ended);
        }
        tasks.spawn(connection);
    }
}

/// A panic is ours to hear; its attempt was answered when it unwound.
fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a connection's task panicked; its attempt was settled as unknown");
    }
}
