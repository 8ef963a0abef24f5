//! Work that is too large for one call: large fan-outs and replays, made in chunks that survive a restart.

use posthaste_core::{DeliveryId, JobId};

use crate::{
    ApiKeyRef, AuditStamp, Begun, Chunk, Chunked, DeliveryJob, Idempotency, JobCursor, JobQuery, JobState, Lives,
    NewReplay, ReplayPage, Session, StoreFuture,
};

/// Stores jobs and their progress. A large fan-out begins with [`Outbox::accept`](crate::Outbox::accept).
///
/// A [`Chunk`] names the cursor position it was built from. If two chunks were built from the same position, one is
/// applied and the other is [`Chunked::Stale`].
pub trait Jobs: Send + Sync + 'static {
    /// Begins a replay of what matches now; deliveries that end later are not part of it. `by` is the API key that
    /// asked for it.
    fn start_replay(&self, session: Session, replay: NewReplay, by: Option<ApiKeyRef>)
    -> impl StoreFuture<DeliveryJob>;

    /// Like [`start_replay`](Self::start_replay), unless the replay was begun before under the same idempotency key.
    fn start_replay_once(
        &self,
        session: Session,
        replay: NewReplay,
        once: Idempotency,
        by: Option<ApiKeyRef>,
    ) -> impl StoreFuture<Begun>;

    fn job(&self, id: JobId) -> impl StoreFuture<Option<DeliveryJob>>;

    /// Jobs that match the query, by id, after `after`.
    fn jobs(&self, query: JobQuery, after: Option<JobId>, limit: u32) -> impl StoreFuture<Vec<DeliveryJob>>;

    /// Pauses, resumes or cancels a job; `false` if it has ended or is in that state already.
    fn change_job(&self, session: Session, id: JobId, next: JobState, act: AuditStamp) -> impl StoreFuture<bool>;

    /// The next items of a replay, after its cursor; `None` if there is no such replay.
    fn replay_page(&self, id: JobId, limit: u32) -> impl StoreFuture<Option<ReplayPage>>;

    /// The items a replay would process after `from` if it were begun now. For dry runs.
    fn would_replay(&self, replay: NewReplay, from: JobCursor, limit: u32) -> impl StoreFuture<ReplayPage>;

    /// Creates a chunk of a job's deliveries and advances its cursor in one transaction. Items that can no longer be
    /// replayed are skipped: they were replayed or purged since, or a cut covers their message.
    ///
    /// The new deliveries come out of [`Outbox::arrivals`](crate::Outbox::arrivals), like those of an accept.
    fn spread(&self, session: Session, chunk: Chunk) -> impl StoreFuture<Chunked>;

    /// The replay links of these deliveries, one [`Lives`] each, in the given order.
    fn lives(&self, ids: Vec<DeliveryId>) -> impl StoreFuture<Vec<Lives>>;
}
