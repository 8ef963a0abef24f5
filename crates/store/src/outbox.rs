//! What the accept path and the dispatch loop ask of a store: the two durable writes in the life of a
//! delivery, and what is in force around them.

use std::future::Future;
use std::sync::Arc;

use posthaste_core::cut::{Cut, Scope};
use posthaste_core::id::{DeliveryId, LaneId};
use posthaste_core::queue::{BreakerOf, LaneSettings, Reset, SoftBreaker};
use posthaste_core::time::Timestamp;

use crate::StoreError;
use crate::row::{
    Acceptance, Accepted, Act, Arrival, By, Page, Pause, PauseScope, Query, Session, Settled, Settlement, Start, Sweep,
    SweptRows,
};

/// Remembers what is to be sent and what became of it.
///
/// No store reads a clock: whatever goes into the journal says when it was done.
///
/// The guards are in what a call carries. Every write names its [`Session`]: one of an older session
/// is refused and changes nothing. A [`Settlement`] names the epoch and the attempts its caller
/// counted: one that counts otherwise is [`Settled::Stale`]. An [`Accepted`] may name a key: what is
/// known under it is [`Acceptance::Replayed`]. A sweep names what its caller has under way.
pub trait Outbox: Send + Sync + 'static {
    /// Begins a session: takes every shard under a new epoch and a new writer. Whoever held them
    /// before can change nothing from here on.
    fn open(&self, at: Timestamp) -> impl Future<Output = Result<Start, StoreError>> + Send;

    /// Makes messages and their deliveries durable, all or none. Returning is the promise. Says of
    /// each, in their order, whether it is new: one whose key is known leaves nothing and arrives nowhere. Where the
    /// first answer of such a one cannot be read it is [`Acceptance::Unanswered`], and the others are accepted.
    ///
    /// What waits in the same lane under the same collapse key ends with it, unless a cut has ended it
    /// already. Their rows come out of [`Outbox::arrivals`] of the same store, whether or not the caller is
    /// still there to hear the answer.
    fn accept(
        &self,
        session: Session,
        messages: Vec<Accepted>,
    ) -> impl Future<Output = Result<Vec<Acceptance>, StoreError>> + Send;

    /// What was accepted since the last call, in the order of its commits. Waits for something; an
    /// empty answer means that the store has stopped and nothing will come. Whatever an accept has
    /// answered for is there without waiting.
    fn arrivals(&self) -> impl Future<Output = Vec<Arrival>> + Send;

    /// Records what became of deliveries; each is done or stale, on its own.
    fn settle(
        &self,
        session: Session,
        settlements: Vec<Settlement>,
    ) -> impl Future<Output = Result<Vec<Settled>, StoreError>> + Send;

    /// Moves waiting rows behind the window of their queues.
    fn spill(
        &self,
        session: Session,
        deliveries: Vec<DeliveryId>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Reads pending rows at `now`; see [`Query`] for which. Each row says by its
    /// [`Token`](crate::Token) whether it may be sent.
    fn page(&self, query: Query, limit: u32, now: Timestamp) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// The settings of lanes, those that exist.
    fn lanes(&self, lanes: Vec<LaneId>) -> impl Future<Output = Result<Vec<Arc<LaneSettings>>, StoreError>> + Send;

    /// Puts a cut in force, by somebody's word or by the loop's own, merged with one of the same scope (see
    /// [`Cut::merge`]), and says how many pending deliveries have ended by it.
    ///
    /// A message's are counted as it is made. A lane's may be counted just after: what is settled
    /// in between is missing from their number, and where they cannot be counted the cut is in
    /// force all the same and says 0. Of what jobs made of a message, counting stops at 20,000.
    fn cut(&self, session: Session, cut: Cut, by: Option<By>) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Ends rows that a cut covers or whose time to live is over, as readers have seen them since:
    /// a bounded number of them, whatever waits. Those that the caller has `under_way` are left: they
    /// end by themselves. What a cut spared is ended once its owner has it under way no more.
    fn sweep(
        &self,
        session: Session,
        sweep: Sweep,
        under_way: Vec<DeliveryId>,
    ) -> impl Future<Output = Result<SweptRows, StoreError>> + Send;

    /// Forgets a cut whose rows are all swept.
    fn uncut(
        &self,
        session: Session,
        scope: Scope,
        at: Timestamp,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Records a pause that begins now.
    fn pause(
        &self,
        session: Session,
        pause: Pause,
        at: Timestamp,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends a pause, by somebody's word.
    fn resume(
        &self,
        session: Session,
        scope: PauseScope,
        act: Act,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Says in the journal that somebody reset a breaker: what holds and what does not is in its owner's memory.
    fn reset(
        &self,
        session: Session,
        of: BreakerOf,
        how: Reset,
        act: Act,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Remembers the breakers that are not closed in place of those remembered before: the next
    /// session finds them in its [`Start`], and probes first.
    fn remember(
        &self,
        session: Session,
        breakers: Vec<SoftBreaker>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}
