//! Implements the traits of a [`Store`](crate::Store) for [`MemoryState`]: every call takes effect at once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use posthaste_core::cut::{Cut, CutScope};
use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, EndpointId, JobId, Key, LaneId, MessageId, TenantId};
use posthaste_core::scheduler::{BreakerOf, LaneSettings, Reset, SoftBreaker};
use posthaste_core::time::Timestamp;
use posthaste_crypto::checkpoint::PublicKey;
use posthaste_crypto::master::MasterKey;
use tokio::sync::Notify;

use crate::row::{
    Acceptance, Accepted, ApiKeyRef, ArrivedDelivery, AuditStamp, BoundedCount, DeadLetterCursor, DeadLetterFilter,
    DeadLetterPage, DeliveryRecord, Document, DocumentKind, Endpoint, EndpointPut, Filed, HistoryFilter, HistoryPage,
    HourlyCount, Idempotency, LaneBacklog, ListOrder, Message, MessageFilter, MessagePage, Name, NamedPage, Pause,
    PauseScope, PendingPage, Query, Session, SessionStart, Settled, Settlement, Sweep, Swept, SweptRows, UtcHour,
};
use crate::row::{Begun, Chunk, Chunked, DeliveryJob, JobCursor, JobQuery, JobState, Lives, NewReplay, ReplayPage};
use crate::row::{EndpointSelector, MatchedEndpoints};
use crate::row::{Erase, Erasure, ErasureStep, ExportRequest};
use crate::row::{PendingCounts, Retained, Retention, RetentionOverrides, RetentionStep};
use crate::{
    Archive, Checkpoints, Condition, DeadLetters, Directory, ENDPOINTS_LISTED_MAX, Erasures, Jobs, JournalRow,
    MasterKeys, Outbox, Register, Rotation, Signed, StoreError, Watchable,
};

use super::MemoryState;

/// A [`Store`](crate::Store) that keeps everything in memory.
#[derive(Debug, Default)]
pub struct MemoryStore {
    memory: Mutex<MemoryState>,
    arrivals: Mutex<VecDeque<ArrivedDelivery>>,
    arrived: Notify,
}

impl MemoryStore {
    /// Locks the store's content, for callers that use [`MemoryState`] directly.
    pub fn lock(&self) -> MutexGuard<'_, MemoryState> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrive(&self, arrivals: Vec<ArrivedDelivery>) {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).extend(arrivals);
        self.arrived.notify_one();
    }

    fn take_arrivals(&self) -> Vec<ArrivedDelivery> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }
}

impl Outbox for MemoryStore {
    async fn open(&self, at: Timestamp) -> Result<SessionStart, StoreError> {
        Ok(self.lock().open(at))
    }

    async fn accept(&self, session: Session, messages: Vec<Accepted>) -> Result<Vec<Acceptance>, StoreError> {
        // The lock is held until the arrivals are queued, so that they come in commit order.
        let mut memory = self.lock();
        let (acceptances, arrivals) = memory.accept(session, messages)?;
        self.arrive(arrivals);
        Ok(acceptances)
    }

    async fn arrivals(&self) -> Vec<ArrivedDelivery> {
        loop {
            let arrivals = self.take_arrivals();
            if !arrivals.is_empty() {
                return arrivals;
            }
            self.arrived.notified().await;
        }
    }

    async fn settle(&self, session: Session, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        self.lock().settle(session, settlements)
    }

    async fn spill(&self, session: Session, deliveries: Vec<DeliveryId>) -> Result<(), StoreError> {
        self.lock().spill(session, &deliveries)
    }

    async fn page(&self, query: Query, limit: u32, _now: Timestamp) -> Result<PendingPage, StoreError> {
        Ok(self.lock().page(query, limit))
    }

    async fn lanes(&self, lanes: Vec<LaneId>) -> Result<Vec<Arc<LaneSettings>>, StoreError> {
        Ok(self.lock().lanes(&lanes))
    }

    async fn cut(&self, session: Session, cut: Cut, by: Option<ApiKeyRef>) -> Result<u64, StoreError> {
        self.lock().cut(session, cut, by)
    }

    async fn sweep(&self, session: Session, sweep: Sweep, under_way: Vec<DeliveryId>) -> Result<SweptRows, StoreError> {
        self.lock().sweep(session, sweep, &under_way)
    }

    async fn uncut(&self, session: Session, scope: CutScope, at: Timestamp) -> Result<(), StoreError> {
        self.lock().uncut(session, scope, at)
    }

    async fn pause(&self, session: Session, pause: Pause, at: Timestamp) -> Result<(), StoreError> {
        self.lock().pause(session, pause, at)
    }

    async fn resume(&self, session: Session, scope: PauseScope, act: AuditStamp) -> Result<(), StoreError> {
        self.lock().resume(session, scope, act)
    }

    async fn reset(&self, session: Session, of: BreakerOf, how: Reset, act: AuditStamp) -> Result<(), StoreError> {
        self.lock().reset(session, of, how, act)
    }

    async fn remember(&self, session: Session, breakers: Vec<SoftBreaker>) -> Result<(), StoreError> {
        self.lock().remember(session, &breakers)
    }
}

impl Directory for MemoryStore {
    async fn put_endpoint(
        &self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
        act: AuditStamp,
    ) -> Result<EndpointPut, StoreError> {
        self.lock().put_endpoint(session, endpoint, once, act)
    }

    async fn endpoint(&self, id: EndpointId) -> Result<Option<Arc<Endpoint>>, StoreError> {
        Ok(self.lock().endpoints.get(&id).cloned())
    }

    async fn rotate_secret(
        &self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
        act: AuditStamp,
    ) -> Result<EndpointPut, StoreError> {
        self.lock().rotate_secret(session, endpoint, once, act)
    }

    async fn note_secret_shown(
        &self,
        session: Session,
        endpoint: EndpointId,
        tenant: TenantId,
        act: AuditStamp,
    ) -> Result<(), StoreError> {
        self.lock().note_secret_shown(session, endpoint, tenant, act)
    }

    async fn list_endpoints(
        &self,
        tenant: Option<TenantId>,
        order: ListOrder,
        after: Option<EndpointId>,
        limit: u32,
    ) -> Result<Vec<Arc<Endpoint>>, StoreError> {
        Ok(self.lock().list_endpoints(tenant, order, after, limit))
    }

    async fn endpoint_of_lane(&self, lane: LaneId) -> Result<Option<Arc<Endpoint>>, StoreError> {
        Ok(self.lock().endpoint_of_lane(lane))
    }

    async fn endpoint_named(&self, tenant: TenantId, uid: String) -> Result<Option<EndpointId>, StoreError> {
        Ok(self.lock().endpoint_named(tenant, &uid))
    }

    async fn endpoints(&self, tenant: TenantId) -> Result<Arc<Vec<Arc<Endpoint>>>, StoreError> {
        Ok(Arc::new(self.lock().endpoints_after(tenant, None, ENDPOINTS_LISTED_MAX + 1)))
    }

    async fn endpoints_matching(
        &self,
        tenant: TenantId,
        selector: EndpointSelector,
        after: Option<EndpointId>,
        limit: u32,
    ) -> Result<MatchedEndpoints, StoreError> {
        Ok(self.lock().endpoints_matching(tenant, &selector, after, limit as usize))
    }

    async fn endpoints_after(
        &self,
        tenant: TenantId,
        after: Option<EndpointId>,
        limit: u32,
    ) -> Result<Vec<Arc<Endpoint>>, StoreError> {
        Ok(self.lock().endpoints_after(tenant, after, limit as usize))
    }
}

impl Register for MemoryStore {
    async fn file(
        &self,
        session: Session,
        document: Document,
        once: Option<Idempotency>,
        act: AuditStamp,
    ) -> Result<Filed, StoreError> {
        self.lock().file_document(session, document, once, act)
    }

    async fn unfile(&self, session: Session, kind: DocumentKind, id: Key, act: AuditStamp) -> Result<bool, StoreError> {
        self.lock().unfile(session, kind, id, act)
    }

    async fn document(&self, kind: DocumentKind, id: Key) -> Result<Option<Document>, StoreError> {
        Ok(self.lock().documents.get(&(kind, id)).cloned())
    }

    async fn document_named(
        &self,
        kind: DocumentKind,
        tenant: TenantId,
        name: String,
    ) -> Result<Option<Document>, StoreError> {
        Ok(self.lock().document_named(kind, tenant, &name).cloned())
    }

    async fn documents(
        &self,
        kind: DocumentKind,
        tenant: Option<TenantId>,
        order: ListOrder,
        after: Option<Key>,
        limit: u32,
    ) -> Result<Vec<Document>, StoreError> {
        Ok(self.lock().documents(kind, tenant, order, after, limit))
    }
}

impl Jobs for MemoryStore {
    async fn start_replay(
        &self,
        session: Session,
        replay: NewReplay,
        by: Option<ApiKeyRef>,
    ) -> Result<DeliveryJob, StoreError> {
        self.lock().start_replay(session, &replay, by)
    }

    async fn start_replay_once(
        &self,
        session: Session,
        replay: NewReplay,
        once: Idempotency,
        by: Option<ApiKeyRef>,
    ) -> Result<Begun, StoreError> {
        self.lock().start_replay_once(session, &replay, once, by)
    }

    async fn job(&self, id: JobId) -> Result<Option<DeliveryJob>, StoreError> {
        Ok(self.lock().job(id))
    }

    async fn jobs(&self, query: JobQuery, after: Option<JobId>, limit: u32) -> Result<Vec<DeliveryJob>, StoreError> {
        Ok(self.lock().jobs(query, after, limit))
    }

    async fn change_job(
        &self,
        session: Session,
        id: JobId,
        next: JobState,
        act: AuditStamp,
    ) -> Result<bool, StoreError> {
        self.lock().change_job(session, id, next, act)
    }

    async fn replay_page(&self, id: JobId, limit: u32) -> Result<Option<ReplayPage>, StoreError> {
        Ok(self.lock().replay_page(id, limit))
    }

    async fn would_replay(&self, replay: NewReplay, from: JobCursor, limit: u32) -> Result<ReplayPage, StoreError> {
        self.lock().would_replay(&replay, from, limit)
    }

    async fn spread(&self, session: Session, chunk: Chunk) -> Result<Chunked, StoreError> {
        let mut memory = self.lock();
        let (chunked, arrivals) = memory.spread(session, chunk)?;
        self.arrive(arrivals);
        Ok(chunked)
    }

    async fn lives(&self, ids: Vec<DeliveryId>) -> Result<Vec<Lives>, StoreError> {
        let memory = self.lock();
        Ok(ids.into_iter().map(|id| memory.lives(id)).collect())
    }
}

impl Archive for MemoryStore {
    async fn message(&self, id: MessageId) -> Result<Option<Arc<Message>>, StoreError> {
        Ok(self.lock().messages.get(&id).cloned())
    }

    async fn accepted_at(&self, messages: Vec<MessageId>) -> Result<Vec<Option<Timestamp>>, StoreError> {
        let memory = self.lock();
        Ok(messages.iter().map(|id| memory.messages.get(id).map(|message| message.at)).collect())
    }

    async fn delivery(&self, id: DeliveryId, now: Timestamp) -> Result<Option<DeliveryRecord>, StoreError> {
        Ok(self.lock().delivery(id, now))
    }

    async fn excerpts(&self, id: DeliveryId) -> Result<Vec<(u16, Bytes)>, StoreError> {
        Ok(self.lock().excerpts(id))
    }

    async fn deliveries(
        &self,
        message: MessageId,
        after: Option<DeliveryId>,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<DeliveryRecord>, StoreError> {
        Ok(self.lock().deliveries(message, after, now, limit))
    }

    async fn messages(
        &self,
        filter: MessageFilter,
        order: ListOrder,
        after: Option<MessageId>,
        limit: u32,
    ) -> Result<MessagePage, StoreError> {
        Ok(self.lock().listed_messages(&filter, order, after, limit))
    }

    async fn history(
        &self,
        filter: HistoryFilter,
        order: ListOrder,
        after: Option<DeliveryId>,
        limit: u32,
        now: Timestamp,
    ) -> Result<HistoryPage, StoreError> {
        Ok(self.lock().history(&filter, order, after, limit, now))
    }

    async fn named(
        &self,
        tenant: TenantId,
        name: Name,
        order: ListOrder,
        after: Option<MessageId>,
        limit: u32,
    ) -> Result<NamedPage, StoreError> {
        Ok(self.lock().named(tenant, &name, order, after, limit))
    }

    async fn tallies(&self, tenant: TenantId, since: UtcHour, until: UtcHour) -> Result<Vec<HourlyCount>, StoreError> {
        Ok(self.lock().tallies(tenant, since, until))
    }

    async fn pending(&self) -> Result<PendingCounts, StoreError> {
        Ok(self.lock().all_pending())
    }

    async fn waiting(&self, lane: LaneId) -> Result<LaneBacklog, StoreError> {
        Ok(self.lock().waiting(lane))
    }

    async fn journal(&self, after: u64, limit: u32) -> Result<Vec<JournalRow>, StoreError> {
        Ok(self.lock().journal(after, limit))
    }

    async fn note_retry_now(&self, session: Session, delivery: &Delivery, act: AuditStamp) -> Result<(), StoreError> {
        self.lock().note_retry_now(session, delivery, act)
    }

    async fn set_retention_overrides(
        &self,
        session: Session,
        overrides: RetentionOverrides,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        self.lock().set_retention_overrides(session, &overrides, now)
    }

    async fn retain(
        &self,
        session: Session,
        retention: Retention,
        now: Timestamp,
        step: RetentionStep,
        under_way: Vec<DeliveryId>,
    ) -> Result<Retained, StoreError> {
        self.lock().retain(session, retention, now, step, &under_way)
    }
}

impl DeadLetters for MemoryStore {
    async fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        order: ListOrder,
        after: Option<DeadLetterCursor>,
        limit: u32,
    ) -> Result<DeadLetterPage, StoreError> {
        Ok(self.lock().dead_letters(&filter, order, after, limit))
    }

    async fn count_dead_letters(&self, filter: DeadLetterFilter) -> Result<BoundedCount, StoreError> {
        Ok(self.lock().count_dead_letters(&filter))
    }

    async fn purge_dead_letters(
        &self,
        session: Session,
        tenant: TenantId,
        filter: DeadLetterFilter,
        act: AuditStamp,
    ) -> Result<BoundedCount, StoreError> {
        self.lock().purge_dead_letters(session, tenant, &filter, act)
    }

    async fn sweep_dead_letters(&self, session: Session) -> Result<Swept, StoreError> {
        self.lock().sweep_dead_letters(session)
    }
}

impl Checkpoints for MemoryStore {
    fn public_key(&self) -> PublicKey {
        self.lock().public_key()
    }

    async fn sign(&self, session: Session, grown: u64, at: Timestamp) -> Result<Option<Signed>, StoreError> {
        self.lock().sign(session, grown, at)
    }

    async fn last_checkpoint(&self) -> Result<Option<Signed>, StoreError> {
        Ok(self.lock().last_checkpoint())
    }

    async fn checkpoints(&self, after: u64, limit: u32) -> Result<Vec<Signed>, StoreError> {
        Ok(self.lock().checkpoints(after, limit))
    }
}

impl Erasures for MemoryStore {
    async fn erase(&self, session: Session, erase: Erase) -> Result<Erasure, StoreError> {
        self.lock().erase(session, &erase)
    }

    async fn erase_step(
        &self,
        session: Session,
        number: u64,
        now: Timestamp,
        under_way: Vec<DeliveryId>,
    ) -> Result<Option<ErasureStep>, StoreError> {
        self.lock().erase_step(session, number, now, &under_way)
    }

    async fn erasure(&self, number: u64) -> Result<Option<Erasure>, StoreError> {
        Ok(self.lock().erasure(number))
    }

    async fn unfinished_erasures(&self, limit: u32) -> Result<Vec<Erasure>, StoreError> {
        Ok(self.lock().unfinished_erasures(limit))
    }

    async fn note_export(&self, session: Session, asked: ExportRequest) -> Result<(), StoreError> {
        self.lock().note_export(session, &asked)
    }

    async fn count_erased(&self, messages: Vec<MessageId>) -> Result<u64, StoreError> {
        Ok(self.lock().count_erased(&messages))
    }
}

impl Watchable for MemoryStore {
    fn condition(&self) -> Condition {
        Condition::default()
    }
}

impl MasterKeys for MemoryStore {
    fn offer(&self, newer: MasterKey, by: Option<ApiKeyRef>) {
        self.lock().offer(newer.id(), by);
    }

    async fn rotate(&self, session: Session, at: Timestamp) -> Result<Rotation, StoreError> {
        self.lock().rotate(session, at)
    }

    async fn rotation(&self) -> Result<Rotation, StoreError> {
        Ok(self.lock().rotation())
    }
}
