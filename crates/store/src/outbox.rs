//! The part of the store that the accept path and the dispatch loop use: the two durable writes in the life of a
//! delivery, and the cuts, pauses and breakers in force.

use std::future::Future;
use std::sync::Arc;

use posthaste_core::scheduler::{BreakerOf, Reset, SoftBreaker};
use posthaste_core::{Cut, CutScope, DeliveryId, LaneId, LaneSettings, Timestamp};

use crate::{
    Acceptance, Accepted, ApiKeyRef, ArrivedDelivery, AuditStamp, Pause, PauseScope, PendingPage, Query, Session,
    SessionStart, Settled, Settlement, StoreFuture, Sweep, SweptRows,
};

/// Stores pending deliveries and records their outcomes.
///
/// A store reads no clock: the caller passes the time of every change that goes into the journal.
///
/// Each write carries the data it is checked against:
/// - Every write names its [`Session`]. A write from an older session is refused and changes nothing.
/// - A [`Settlement`] names the caller's epoch and the attempts it has counted. If either does not match the store,
///   the result is [`Settled::Stale`].
/// - An [`Accepted`] may name an idempotency key. If the key is known, the result is [`Acceptance::Replayed`].
/// - A sweep names the deliveries its caller has in flight.
pub trait Outbox: Send + Sync + 'static {
    /// Begins a session: takes every shard under a new epoch and a new writer. From then on, writes of earlier sessions
    /// are refused.
    fn open(&self, at: Timestamp) -> impl StoreFuture<SessionStart>;

    /// Writes messages and their deliveries in one transaction, all or none. They are durable when the call returns.
    /// The result has one [`Acceptance`] per message, in the given order. A message whose idempotency key is known is
    /// not stored and yields no arrival; if its first answer cannot be read, it gets [`Acceptance::Unanswered`] and the
    /// other messages are still accepted.
    ///
    /// A delivery that waits in the same lane under the same collapse key is superseded in the same transaction, unless
    /// a cut has already ended it. The new deliveries come out of [`Outbox::arrivals`] of the same store, even if the
    /// caller has stopped waiting for the result.
    fn accept(&self, session: Session, messages: Vec<Accepted>) -> impl StoreFuture<Vec<Acceptance>>;

    /// The deliveries accepted since the last call, in commit order. Waits until there is at least one; an empty result
    /// means that the store has stopped and no more will come. Deliveries of an accept that has returned are available
    /// without waiting.
    fn arrivals(&self) -> impl Future<Output = Vec<ArrivedDelivery>> + Send;

    /// Records the results of attempts. Each settlement is applied or reported as stale independently of the others.
    fn settle(&self, session: Session, settlements: Vec<Settlement>) -> impl StoreFuture<Vec<Settled>>;

    /// Marks waiting deliveries as spilled: they leave the window and are read again by queue.
    fn spill(&self, session: Session, deliveries: Vec<DeliveryId>) -> impl StoreFuture<()>;

    /// Reads the pending rows that [`Query`] selects, as of `now`. Each row's [`Token`](crate::Token) says whether it
    /// may be sent.
    fn page(&self, query: Query, limit: u32, now: Timestamp) -> impl StoreFuture<PendingPage>;

    /// The settings of these lanes; lanes that do not exist are left out.
    fn lanes(&self, lanes: Vec<LaneId>) -> impl StoreFuture<Vec<Arc<LaneSettings>>>;

    /// Puts a cut in force and returns how many pending deliveries it ends. A cut of the same scope is merged with it
    /// (see [`Cut::merge`]). `by` is the API key that asked for the cut, `None` if the dispatch loop made it.
    ///
    /// Deliveries of a message are counted in the same transaction. Those of a lane may be counted just after it:
    /// deliveries settled in between are not counted, and if counting fails the cut is in force and the result is 0.
    /// For deliveries that jobs made of a message, counting stops at 20,000.
    fn cut(&self, session: Session, cut: Cut, by: Option<ApiKeyRef>) -> impl StoreFuture<u64>;

    /// Records the end of a bounded number of deliveries that a cut covers or whose TTL is over; readers already see
    /// them as ended. Deliveries in `under_way` are skipped because their attempt will settle them. Deliveries that a
    /// cut spared are ended once their owner no longer has them in flight.
    fn sweep(&self, session: Session, sweep: Sweep, under_way: Vec<DeliveryId>) -> impl StoreFuture<SweptRows>;

    /// Removes a cut whose rows are all swept.
    fn uncut(&self, session: Session, scope: CutScope, at: Timestamp) -> impl StoreFuture<()>;

    fn pause(&self, session: Session, pause: Pause, at: Timestamp) -> impl StoreFuture<()>;

    /// Ends a pause; `act` says when and with which API key.
    fn resume(&self, session: Session, scope: PauseScope, act: AuditStamp) -> impl StoreFuture<()>;

    /// Records in the journal that an operator reset a breaker. The breaker's state itself is only in its owner's
    /// memory.
    fn reset(&self, session: Session, of: BreakerOf, how: Reset, act: AuditStamp) -> impl StoreFuture<()>;

    /// Replaces the stored set of breakers that are not closed. The next session gets them in its [`SessionStart`] and
    /// probes before it sends.
    fn remember(&self, session: Session, breakers: Vec<SoftBreaker>) -> impl StoreFuture<()>;
}
