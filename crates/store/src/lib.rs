//! The promise on disk.
//!
//! [`Store`] is the contract between the engine and whatever remembers; [`Memory`] and
//! [`sqlite::Sqlite`] keep it. Every call is one transaction, but for a count in [`Store::cut`].
//! What changes a delivery carries the session's epoch and the attempts the caller counts: a caller
//! that no longer owns the delivery is told so and changes nothing but its history.
//!
//! Read [`row`] for what is kept, then [`memory`], which is the contract in its plainest form.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod derived;
mod error;
pub mod journal;
pub mod memory;
mod number;
pub mod row;
pub mod sqlite;

use std::future::Future;
use std::sync::Arc;

use posthaste_core::cut::{Cut, Scope};
use posthaste_core::id::{DeliveryId, EndpointId, JobId, LaneId, MessageId, TenantId};
use posthaste_core::queue::{LaneSettings, SoftBreaker};
use posthaste_core::time::Timestamp;

pub use error::StoreError;
pub use journal::JournalRow;
pub use memory::{Memory, MemoryStore};
pub use row::{
    Acceptance, Accepted, Arrival, Attempt, CollapseKey, Count, Counted, DeadLetter, DeadLetterCursor,
    DeadLetterFilter, DeadLetterPage, Endpoint, EndpointStatus, FirstAnswer, HISTORY_LOOKED_MAX, HistoryFilter,
    HistoryPage, Hour, Idempotency, KeyHash, ListOrder, Message, Name, NamedPage, NewDelivery, Page, Pause, PauseScope,
    Query, Row, Session, Settled, Settlement, Shown, Start, Sweep, Swept, SweptRows, Tally, Waiting,
};
pub use row::{
    Chunk, Chunked, FanOut, Job, JobCursor, JobKind, JobQuery, JobState, NewReplay, ReplayItem, ReplayPage, ReplayWhat,
    Spread,
};
pub use row::{RETENTION_STEP_MAX, Retained, Retention, RetentionPhase, RetentionStep};

/// Deliveries that an accept makes of one message at most: their ids are the next after its own. More
/// are made by a job, in chunks.
pub const DELIVERIES_MAX: u64 = 1_000;

/// Endpoints of one tenant that are listed at once, and kept in memory: about 10 MiB.
pub const ENDPOINTS_LISTED_MAX: usize = 10_000;

/// Remembers messages, deliveries and what became of them.
///
/// The futures are cancel-safe to wait for, not to drop half-way: a call that has begun is
/// carried out whether or not its answer is awaited.
pub trait Store: Send + Sync + 'static {
    /// Begins a session: takes every shard under a new epoch and a new writer. Whoever held them
    /// before can change nothing from here on.
    fn open(&self) -> impl Future<Output = Result<Start, StoreError>> + Send;

    /// Makes messages and their deliveries durable, all or none. Returning is the promise. Says of
    /// each whether it is new: one whose key is known leaves nothing and arrives nowhere.
    ///
    /// What waits in the same lane under the same collapse key ends with it, unless a cut has ended it
    /// already. Their rows come out of [`Store::arrivals`] of the same store, whether or not the caller is
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

    /// Reads pending rows; see [`Query`] for which.
    fn page(&self, query: Query, limit: u32) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// The settings of lanes, those that exist.
    fn lanes(&self, lanes: Vec<LaneId>) -> impl Future<Output = Result<Vec<Arc<LaneSettings>>, StoreError>> + Send;

    /// A message with its payload, while it is kept.
    fn message(&self, id: MessageId) -> impl Future<Output = Result<Option<Arc<Message>>, StoreError>> + Send;

    /// Puts a cut in force, merged with one of the same scope (see [`Cut::merge`]), and says how
    /// many pending deliveries have ended by it.
    ///
    /// A message's are counted as it is made. A lane's may be counted just after: what is settled
    /// in between is missing from their number, and where they cannot be counted the cut is in
    /// force all the same.
    fn cut(&self, session: Session, cut: Cut) -> impl Future<Output = Result<u64, StoreError>> + Send;

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
    fn uncut(&self, session: Session, scope: Scope) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Records a pause.
    fn pause(&self, session: Session, pause: Pause) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends a pause.
    fn resume(&self, session: Session, scope: PauseScope) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Remembers the breakers that are not closed in place of those remembered before: the next
    /// session finds them in its [`Start`], and probes first.
    fn remember(
        &self,
        session: Session,
        breakers: Vec<SoftBreaker>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Makes or changes an endpoint, unless this was done before under the same key.
    fn put_endpoint(
        &self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
    ) -> impl Future<Output = Result<Acceptance, StoreError>> + Send;

    /// One endpoint.
    fn endpoint(&self, id: EndpointId) -> impl Future<Output = Result<Option<Arc<Endpoint>>, StoreError>> + Send;

    /// A tenant's endpoints by id: the first [`ENDPOINTS_LISTED_MAX`] and one more, where there are
    /// more. Kept in memory, since every accept asks for them.
    fn endpoints(&self, tenant: TenantId) -> impl Future<Output = Result<Vec<Arc<Endpoint>>, StoreError>> + Send;

    /// One delivery as a reader sees it at `now`: pending or ended, with every attempt.
    fn delivery(
        &self,
        id: DeliveryId,
        now: Timestamp,
    ) -> impl Future<Output = Result<Option<Shown>, StoreError>> + Send;

    /// An endpoint's deliveries that match, by id. A page may be short and still have a next: one
    /// request looks at a bounded number of rows.
    fn history(
        &self,
        filter: HistoryFilter,
        order: ListOrder,
        after: Option<DeliveryId>,
        limit: u32,
        now: Timestamp,
    ) -> impl Future<Output = Result<HistoryPage, StoreError>> + Send;

    /// A tenant's messages that have this name, by id.
    fn named(
        &self,
        tenant: TenantId,
        name: Name,
        order: ListOrder,
        after: Option<MessageId>,
        limit: u32,
    ) -> impl Future<Output = Result<NamedPage, StoreError>> + Send;

    /// What happened to a tenant in these hours, the last one not included.
    fn tallies(
        &self,
        tenant: TenantId,
        since: Hour,
        until: Hour,
    ) -> impl Future<Output = Result<Vec<Tally>, StoreError>> + Send;

    /// How much is pending in a lane.
    fn waiting(&self, lane: LaneId) -> impl Future<Output = Result<Waiting, StoreError>> + Send;

    /// The journal's rows behind the `after`th, as many as `limit`.
    fn journal(&self, after: u64, limit: u32) -> impl Future<Output = Result<Vec<JournalRow>, StoreError>> + Send;

    /// A tenant's endpoints by id, from behind one: for whoever walks all of them, however many.
    fn endpoints_after(
        &self,
        tenant: TenantId,
        after: Option<EndpointId>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Arc<Endpoint>>, StoreError>> + Send;

    /// Deliveries of a message as a reader sees them at `now`, by id, from behind one. A page that is
    /// not full is the last.
    fn deliveries(
        &self,
        message: MessageId,
        after: Option<DeliveryId>,
        now: Timestamp,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Shown>, StoreError>> + Send;

    /// Begins a replay, which takes what matches and is filed by now.
    fn start_replay(&self, session: Session, replay: NewReplay)
    -> impl Future<Output = Result<Job, StoreError>> + Send;

    /// One job.
    fn job(&self, id: JobId) -> impl Future<Output = Result<Option<Job>, StoreError>> + Send;

    /// Jobs by id, from behind one.
    fn jobs(
        &self,
        query: JobQuery,
        after: Option<JobId>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Job>, StoreError>> + Send;

    /// Pauses, resumes or cancels a job; `false` when it has ended, or is in that state already.
    fn change_job(
        &self,
        session: Session,
        id: JobId,
        next: JobState,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// What a replay deals with next, behind its cursor; `None` when there is no such replay.
    fn replay_page(&self, id: JobId, limit: u32)
    -> impl Future<Output = Result<Option<ReplayPage>, StoreError>> + Send;

    /// Makes a chunk of a job's deliveries and moves its cursor, both or neither. What is no longer to
    /// be replayed is passed over: it was replayed or purged since, or its message is being cut.
    ///
    /// Their rows come out of [`Store::arrivals`] as those of an accept do.
    fn spread(&self, session: Session, chunk: Chunk) -> impl Future<Output = Result<Chunked, StoreError>> + Send;

    /// What a delivery is the next life of, and its own next life.
    fn replay_of(
        &self,
        id: DeliveryId,
    ) -> impl Future<Output = Result<(Option<DeliveryId>, Option<DeliveryId>), StoreError>> + Send;

    /// Dead letters that match, by the time of their end. A page may be short and still have a
    /// next: one request looks at a bounded number of rows.
    fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        order: ListOrder,
        after: Option<DeadLetterCursor>,
        limit: u32,
    ) -> impl Future<Output = Result<DeadLetterPage, StoreError>> + Send;

    /// How many dead letters match, as far as it is worth counting.
    fn count_dead_letters(&self, filter: DeadLetterFilter) -> impl Future<Output = Result<Count, StoreError>> + Send;

    /// Takes back every dead letter that matches and is filed by now: from the answer on it is not
    /// listed and not replayed. What became of its delivery stays in the history. Its rows go at once
    /// where they are few, otherwise by [`Store::sweep_dead_letters`].
    fn purge_dead_letters(
        &self,
        session: Session,
        filter: DeadLetterFilter,
    ) -> impl Future<Output = Result<Count, StoreError>> + Send;

    /// Removes a bounded number of rows that purges cover.
    fn sweep_dead_letters(&self, session: Session) -> impl Future<Output = Result<Swept, StoreError>> + Send;

    /// Lets go of what was kept for long enough: one small step of a run, which says what the next one
    /// is. What was pending all that time ends as dead; a payload that somebody needs stays.
    fn retain(
        &self,
        session: Session,
        retention: Retention,
        now: Timestamp,
        step: RetentionStep,
    ) -> impl Future<Output = Result<Retained, StoreError>> + Send;
}
