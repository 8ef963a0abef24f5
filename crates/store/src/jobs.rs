//! Work that is too large for one call: large fan-outs and replays, made in chunks that survive a restart.

use std::future::Future;

use posthaste_core::id::{DeliveryId, JobId};

use crate::StoreError;
use crate::row::{
    Act, Begun, By, Chunk, Chunked, Idempotency, Job, JobCursor, JobQuery, JobState, Lives, NewReplay, ReplayPage,
    Session,
};

/// Remembers jobs and how far they are. A large fan-out begins by [`Outbox::accept`](crate::Outbox::accept).
///
/// A [`Chunk`] names where its job's cursor stood: of two made from the same place one is taken, the other is
/// [`Chunked::Stale`].
pub trait Jobs: Send + Sync + 'static {
    /// Begins a replay by somebody's word, which takes what matches and is filed by now.
    fn start_replay(
        &self,
        session: Session,
        replay: NewReplay,
        by: Option<By>,
    ) -> impl Future<Output = Result<Job, StoreError>> + Send;

    /// The same under a key, unless this was begun before under it.
    fn start_replay_once(
        &self,
        session: Session,
        replay: NewReplay,
        once: Idempotency,
        by: Option<By>,
    ) -> impl Future<Output = Result<Begun, StoreError>> + Send;

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
        act: Act,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// What a replay deals with next, behind its cursor; `None` when there is no such replay.
    fn replay_page(&self, id: JobId, limit: u32)
    -> impl Future<Output = Result<Option<ReplayPage>, StoreError>> + Send;

    /// What a replay would deal with from there on, were it begun now.
    fn would_replay(
        &self,
        replay: NewReplay,
        from: JobCursor,
        limit: u32,
    ) -> impl Future<Output = Result<ReplayPage, StoreError>> + Send;

    /// Makes a chunk of a job's deliveries and moves its cursor, both or neither. What is no longer to
    /// be replayed is passed over: it was replayed or purged since, or its message is being cut.
    ///
    /// Their rows come out of [`Outbox::arrivals`](crate::Outbox::arrivals) as those of an accept do.
    fn spread(&self, session: Session, chunk: Chunk) -> impl Future<Output = Result<Chunked, StoreError>> + Send;

    /// The lives before and after these deliveries, one answer for each.
    fn lives(&self, ids: Vec<DeliveryId>) -> impl Future<Output = Result<Vec<Lives>, StoreError>> + Send;
}
