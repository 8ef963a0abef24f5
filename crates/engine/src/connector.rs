//! Outgoing connections: the only module that opens sockets to other machines.
//!
//! [`Connector::send`] takes a job and returns at once; its result comes back on one bounded channel
//! that the dispatch loop drains in batches. In between a connection's own task resolves the name, checks
//! every address, connects to an address it checked, writes the request and reads a bounded
//! answer. It follows no redirect, keeps no cookies, reads no proxy from the environment, asks for no
//! compression.
//!
//! Connections are kept per origin and [`Identity`]. Each is one task that drives its own HTTP state
//! and takes attempts from its origin's queue, one at a time over HTTP/1.1 and many at once over HTTP/2:
//! no task is made for an attempt.
//!
//! Invariants: every job taken ends in exactly one [`Done`]; no socket is opened to an address
//! that [`check_addresses`](crate::target::check_addresses) did not let pass for that connection.
//! Read next: `pool` (which connection carries an attempt), `connection` (the life of a connection), `exchange`
//! (one request and its answer), `http1` (the format of HTTP/1.1), `streams` (HTTP/2), `fault` (errors as causes).

mod alarm;
mod attempt;
mod bounds;
mod connection;
mod exchange;
mod fault;
mod flood;
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

use crate::{Refusal, Target, TargetRules};

pub use bounds::{BODY_BYTES_READ_MAX, HEAD_BYTES_MAX, INTERIM_ANSWERS_MAX};
pub use identity::{BadIdentity, CERTIFICATES_MAX, Identity, IdentityPem, PEM_BYTES_MAX};
pub use open::{Dial, Tcp};
pub use posthaste_channels::{ChannelRequest, Fields};
pub use resolve::{NoAnswer, Resolve, System};
pub use trust::{Roots, TrustError};

use attempt::RunningAttempt;
use open::Opener;
use pool::{Offer, Pools, Seat};

#[derive(Clone, Debug)]
pub struct Settings {
    pub rules: TargetRules,
    /// The longest time for resolving a name.
    pub dns_timeout: Duration,
    /// The longest time for connecting, for all addresses of a name together.
    pub connect_timeout: Duration,
    pub tls_timeout: Duration,
    /// The longest time for an attempt, from [`Connector::send`] to the end of the answer.
    pub attempt_timeout: Duration,
    /// How long a connection waits for its next request.
    pub idle_timeout: Duration,
    /// The address of a kept connection is checked again before its use if the last check is older than this.
    pub recheck_after: Duration,
    /// An HTTP/2 connection that receives nothing for this long, while an answer is awaited, is sent a
    /// ping, and is closed if nothing comes within half of this time. Well below `attempt_timeout`, so
    /// that further attempts do not go to a dead connection.
    pub ping_after: Duration,
    /// How many connections one origin may have; further jobs queue. By default as many as there are
    /// slots, since a delivery that queues here cannot be paused, cancelled or expired any more.
    pub connections_per_origin_max: usize,
    /// How many attempts one connection may carry at once over HTTP/2, even if its receiver allows more:
    /// when the connection is lost, it is not known whether they arrived.
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

#[derive(Debug)]
pub struct ConnectorJob {
    /// The caller's own number; it comes back in [`Done`].
    pub token: u64,
    pub target: Arc<Target>,
    /// The endpoint's own TLS settings, if any; jobs with different identities share no connection.
    pub identity: Option<Arc<Identity>>,
    pub request: ChannelRequest,
    /// When the attempt ends at the latest; `attempt_timeout` applies as well.
    pub deadline: Instant,
}

#[derive(Debug)]
pub struct Done {
    pub token: u64,
    pub result: Result<ReceivedResponse, ConnectionFault>,
    /// The time from [`Connector::send`] to the end, including the wait for a connection.
    pub took: Duration,
}

/// A receiver's answer; a channel judges it.
#[derive(Debug)]
pub struct ReceivedResponse {
    /// The status, from 200 to 599.
    pub status: StatusCode,
    /// Its headers; over HTTP/1.1 only those that are used.
    pub headers: HeaderMap,
    /// The beginning of its body; empty for 2xx.
    pub excerpt: Bytes,
    /// Whether its body ended early, or was not read to its end because it is too long.
    pub cut: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionFault {
    pub cause: Cause,
    /// A stable code with more detail than the cause; for `address_refused` that of the refusal.
    pub detail: Option<&'static str>,
}

/// Why a job was not taken; it has no result.
#[derive(Debug, thiserror::Error)]
pub enum NotTaken {
    #[error("more jobs under way than jobs_max allows; settle some first or raise it")]
    Full,
    /// [`Connector::close`] was called, or the receiver of results was dropped.
    #[error("the connector is closing and takes no further job")]
    Closed,
}

/// Makes attempts over outgoing connections. See the module's documentation.
#[derive(Debug)]
pub struct Connector {
    carriers: Arc<Carriers>,
    results: mpsc::Sender<Done>,
}

/// What connections share: each may open another one for an attempt that it hands back.
struct Carriers {
    opener: Opener,
    pools: Arc<Pools>,
    tasks: Mutex<JoinSet<()>>,
}

impl std::fmt::Debug for Carriers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Carriers").field("settings", &self.opener.settings).finish_non_exhaustive()
    }
}

impl Connector {
    pub fn new(settings: Settings, resolver: Arc<dyn Resolve>, roots: Roots) -> (Self, mpsc::Receiver<Done>) {
        Self::with_dial(settings, resolver, Arc::new(Tcp), roots)
    }

    /// The same with another way to open sockets, by which tests observe the contacted addresses.
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

    /// Starts an attempt. Never blocks; its result arrives as one [`Done`].
    pub fn send(&self, job: ConnectorJob) -> Result<(), NotTaken> {
        let reply = self.results.clone().try_reserve_owned().map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NotTaken::Full,
            mpsc::error::TrySendError::Closed(_) => NotTaken::Closed,
        })?;
        let timeout = self.carriers.opener.settings.attempt_timeout;
        let attempt = RunningAttempt::new(job, reply, Instant::now(), timeout);
        match self.carriers.pools.offer(attempt) {
            Offer::Taken => {}
            Offer::Grow(seat, attempt) => self.carriers.spawn(seat, attempt),
            Offer::Closed(attempt) => {
                attempt.withdraw();
                return Err(NotTaken::Closed);
            }
        }
        Ok(())
    }

    /// Resolves a target's name and checks its addresses, without contacting it.
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
        // A connection that ends may have opened another for an attempt that it handed back.
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
    /// Connection tasks share ownership of [`Carriers`] and would outlive the connector.
    fn drop(&mut self) {
        self.carriers.tasks().abort_all();
    }
}

impl Carriers {
    /// Offers an attempt that no connection has begun to one with room, or to a new one.
    fn pass_on(self: &Arc<Self>, attempt: RunningAttempt) {
        if let Offer::Grow(seat, attempt) = self.pools.pass_on(attempt) {
            self.spawn(seat, attempt);
        }
    }

    /// Offers an attempt again that a connection handed back with this fault. The second time it ends with the fault.
    fn repeat(self: &Arc<Self>, mut attempt: RunningAttempt, fault: ConnectionFault) {
        if attempt.repeat() {
            self.pass_on(attempt);
        } else {
            attempt.finish(Err(fault));
        }
    }

    /// Starts a connection's task, which is owned here and awaited by [`Connector::close`].
    fn spawn(self: &Arc<Self>, seat: Seat, attempt: RunningAttempt) {
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

/// Logs a panic of a connection's task. Its attempt was answered during the unwinding.
fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "connection task panicked; its attempts were settled as unknown");
    }
}
