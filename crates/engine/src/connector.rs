//! The only way out of the process.
//!
//! [`Connector::send`] takes a job and returns at once; its end comes back on one bounded channel
//! that the dispatch loop drains in batches. In between a connection's own task resolves, checks
//! every address, connects to an address it checked, writes the request and reads a bounded
//! answer. It follows nothing, keeps no cookies, reads no proxy from the environment, asks for no
//! compression.
//!
//! Connections are kept per origin and [`Identity`]. Each is one task that drives its own HTTP state
//! and takes attempts from its origin's queue, one at a time over HTTP/1.1 and many at once over HTTP/2:
//! no task is made for an attempt.
//!
//! Invariants: every job taken ends in exactly one [`Done`]; no socket is opened to an address
//! that [`check_addresses`](crate::target::check_addresses) did not let pass for that connection.
//! Read next: `pool` (who carries which attempt), `connection` (a connection's life), `exchange`
//! (one request and its answer), `http1` (what its bytes mean), `streams` (many at once), `fault` (what an error means).

mod alarm;
mod attempt;
mod bounds;
mod connection;
mod exchange;
mod fault;
mod http1;
mod identity;
mod open;
mod pool;
mod protocol;
mod resolve;
mod stream;
mod streams;
mod trust;
mod wire;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use posthaste_core::Cause;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::target::{Refusal, Target, TargetRules};

pub use bounds::{BODY_BYTES_READ_MAX, HEAD_BYTES_MAX, INTERIM_ANSWERS_MAX};
pub use identity::{BadIdentity, CERTIFICATES_MAX, Identity, IdentityPem, PEM_BYTES_MAX};
pub use open::{Dial, Tcp};
pub use posthaste_channels::{Fields, Request};
pub use resolve::{NoAnswer, Resolve, System};
pub use trust::{Roots, TrustError};

use attempt::Attempt;
use open::Opener;
use pool::{Offer, Pools, Seat};

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
    /// A receiver over HTTP/2 that says nothing for so long, while an answer is waited for, is asked for
    /// a sign of life, and has half as long to give one. Well below `attempt_timeout`: a connection
    /// that is dead should not take the next attempts with it.
    pub ping_after: Duration,
    /// How many connections one origin may have; further jobs queue. As many as there are slots by
    /// default: whoever waits here could no longer be paused, cancelled or expired.
    pub connections_per_origin_max: usize,
    /// How many attempts one connection may carry at once over HTTP/2, whatever its receiver allows:
    /// when it is lost, nobody knows whether they arrived.
    pub streams_per_connection_max: usize,
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
            ping_after: Duration::from_secs(10),
            connections_per_origin_max: 1024,
            streams_per_connection_max: 128,
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
    /// Where to: it decides the request's path and `Host`.
    pub target: Arc<Target>,
    /// How TLS is spoken with it, if not as with everybody; jobs with another share no connection.
    pub identity: Option<Arc<Identity>>,
    /// Fields and body.
    pub request: Request,
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
    carriers: Arc<Carriers>,
    results: mpsc::Sender<Done>,
}

/// What connections share: they may need another one for what they give back.
#[derive(Debug)]
struct Carriers {
    opener: Opener,
    pools: Arc<Pools>,
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
        let opener = Opener::new(settings, resolver, dial, roots);
        (Self { carriers: Arc::new(Carriers { opener, pools, tasks: Mutex::default() }), results }, receiver)
    }

    /// Starts an attempt. Never blocks; its end arrives as one [`Done`].
    pub fn send(&self, job: Job) -> Result<(), NotTaken> {
        let reply = match self.results.clone().try_reserve_owned() {
            Ok(permit) => permit,
            Err(mpsc::error::TrySendError::Full(_)) => return Err(NotTaken::Full(Box::new(job))),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(NotTaken::Closed(Box::new(job))),
        };
        let timeout = self.carriers.opener.settings.attempt_timeout;
        let attempt = Attempt::new(job, reply, Instant::now(), timeout);
        match self.carriers.pools.offer(attempt) {
            Offer::Taken => {}
            Offer::Grow(seat, attempt) => self.carriers.spawn(seat, attempt),
            Offer::Closed(attempt) => return Err(NotTaken::Closed(Box::new(attempt.into_job()))),
        }
        Ok(())
    }

    /// Resolves a target's name and checks what it finds, without contacting it.
    pub async fn check(&self, target: &Target) -> Result<(), Refusal> {
        let deadline = Instant::now() + self.carriers.opener.settings.dns_timeout;
        self.carriers.opener.check(target.origin(), deadline).await.map(|_| ())
    }

    /// How many connections are open or being opened.
    pub fn connections(&self) -> usize {
        self.carriers.pools.connections()
    }

    /// Takes no further job, ends idle connections, and waits until every job taken has ended by
    /// its own deadline. Their results are then all in the channel.
    pub async fn close(&self) {
        self.carriers.pools.close();
        // A connection that ends may have made another for what it gave back.
        loop {
            let mut tasks = std::mem::take(&mut *self.carriers.tasks());
            if tasks.is_empty() {
                return;
            }
            while let Some(ended) = tasks.join_next().await {
                report(ended);
            }
        }
    }
}

impl Drop for Connector {
    /// Connections know each other by what they share, and would outlive us.
    fn drop(&mut self) {
        self.carriers.tasks().abort_all();
    }
}

impl Carriers {
    /// An attempt that no connection has touched goes to whichever has room, or to a new one.
    fn pass_on(self: &Arc<Self>, attempt: Attempt) {
        if let Offer::Grow(seat, attempt) = self.pools.pass_on(attempt) {
            self.spawn(seat, attempt);
        }
    }

    /// The same for one that a connection gave back with this fault. That happens to it once.
    fn repeat(self: &Arc<Self>, mut attempt: Attempt, fault: Fault) {
        if attempt.repeat() {
            self.pass_on(attempt);
        } else {
            attempt.finish(Err(fault));
        }
    }

    /// A connection's task: owned here, awaited by [`Connector::close`].
    fn spawn(self: &Arc<Self>, seat: Seat, attempt: Attempt) {
        let mut tasks = self.tasks();
        while let Some(ended) = tasks.try_join_next() {
            report(ended);
        }
        tasks.spawn(connection::run(Arc::clone(self), seat, attempt));
    }

    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
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
