//! [`Memory`] behind the [`Store`] trait: every call takes effect at once.

use std::collections::VecDeque;
use std::future::{Future, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use posthaste_core::cut::{Cut, Scope};
use posthaste_core::id::{DeliveryId, EndpointId, JobId, LaneId, MessageId, TenantId};
use posthaste_core::queue::{LaneSettings, SoftBreaker};
use posthaste_core::time::Timestamp;
use tokio::sync::Notify;

use crate::row::{
    Acceptance, Accepted, Arrival, Count, DeadLetterCursor, DeadLetterFilter, DeadLetterPage, Endpoint, HistoryFilter,
    HistoryPage, Hour, Idempotency, ListOrder, Message, Name, NamedPage, Page, Pause, PauseScope, Query, Session,
    Settled, Settlement, Shown, Start, Sweep, Swept, SweptRows, Tally, Waiting,
};
use crate::row::{Chunk, Chunked, Job, JobQuery, JobState, NewReplay, ReplayPage};
use crate::row::{Retained, Retention, RetentionStep};
use crate::{ENDPOINTS_LISTED_MAX, JournalRow, Store, StoreError};

use super::Memory;

/// [`Memory`] behind the [`Store`] trait.
#[derive(Debug, Default)]
pub struct MemoryStore {
    memory: Mutex<Memory>,
    arrivals: Mutex<VecDeque<Arrival>>,
    arrived: Notify,
}

impl MemoryStore {
    /// The store's content, for whoever decides when a call takes effect.
    pub fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_arrivals(&self) -> Vec<Arrival> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }
}

impl Store for MemoryStore {
    fn open(&self) -> impl Future<Output = Result<Start, StoreError>> + Send {
        ready(Ok(self.lock().open()))
    }

    fn accept(
        &self,
        session: Session,
        messages: Vec<Accepted>,
    ) -> impl Future<Output = Result<Vec<Acceptance>, StoreError>> + Send {
        // Under the lock: arrivals come in the order of their commits.
        let mut memory = self.lock();
        let accepted = memory.accept(session, messages).map(|(acceptances, arrivals)| {
            self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).extend(arrivals);
            self.arrived.notify_one();
            acceptances
        });
        ready(accepted)
    }

    async fn arrivals(&self) -> Vec<Arrival> {
        loop {
            let arrivals = self.take_arrivals();
            if !arrivals.is_empty() {
                return arrivals;
            }
            self.arrived.notified().await;
        }
    }

    fn settle(
        &self,
        session: Session,
        settlements: Vec<Settlement>,
    ) -> impl Future<Output = Result<Vec<Settled>, StoreError>> + Send {
        ready(self.lock().settle(session, settlements))
    }

    fn spill(
        &self,
        session: Session,
        deliveries: Vec<DeliveryId>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(self.lock().spill(session, &deliveries))
    }

    fn page(&self, query: Query, limit: u32) -> impl Future<Output = Result<Page, StoreError>> + Send {
        ready(Ok(self.lock().page(query, limit)))
    }

    fn lanes(&self, lanes: Vec<LaneId>) -> impl Future<Output = Result<Vec<Arc<LaneSettings>>, StoreError>> + Send {
        ready(Ok(self.lock().lanes(&lanes)))
    }

    fn message(&self, id: MessageId) -> impl Future<Output = Result<Option<Arc<Message>>, StoreError>> + Send {
        ready(Ok(self.lock().messages.get(&id).cloned()))
    }

    fn cut(&self, session: Session, cut: Cut) -> impl Future<Output = Result<u64, StoreError>> + Send {
        ready(self.lock().cut(session, cut))
    }

    fn sweep(
        &self,
        session: Session,
        sweep: Sweep,
        under_way: Vec<DeliveryId>,
    ) -> impl Future<Output = Result<SweptRows, StoreError>> + Send {
        ready(self.lock().sweep(session, sweep, &under_way))
    }

    fn uncut(&self, session: Session, scope: Scope) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(self.lock().uncut(session, scope))
    }

    fn pause(&self, session: Session, pause: Pause) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(self.lock().pause(session, pause))
    }

    fn resume(&self, session: Session, scope: PauseScope) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(self.lock().resume(session, scope))
    }

    fn remember(
        &self,
        session: Session,
        breakers: Vec<SoftBreaker>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(self.lock().remember(session, &breakers))
    }

    fn put_endpoint(
        &self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
    ) -> impl Future<Output = Result<Acceptance, StoreError>> + Send {
        ready(self.lock().put_endpoint(session, endpoint, once))
    }

    fn endpoint(&self, id: EndpointId) -> impl Future<Output = Result<Option<Arc<Endpoint>>, StoreError>> + Send {
        ready(Ok(self.lock().endpoints.get(&id).cloned()))
    }

    fn endpoints(&self, tenant: TenantId) -> impl Future<Output = Result<Vec<Arc<Endpoint>>, StoreError>> + Send {
        let memory = self.lock();
        let first = ENDPOINTS_LISTED_MAX + 1;
        ready(Ok(memory.endpoints.values().filter(|endpoint| endpoint.tenant == tenant).take(first).cloned().collect()))
    }

    fn delivery(
        &self,
        id: DeliveryId,
        now: Timestamp,
    ) -> impl Future<Output = Result<Option<Shown>, StoreError>> + Send {
        ready(Ok(self.lock().delivery(id, now)))
    }

    fn history(
        &self,
        filter: HistoryFilter,
        order: ListOrder,
        after: Option<DeliveryId>,
        limit: u32,
        now: Timestamp,
    ) -> impl Future<Output = Result<HistoryPage, StoreError>> + Send {
        ready(Ok(self.lock().history(&filter, order, after, limit, now)))
    }

    fn named(
        &self,
        tenant: TenantId,
        name: Name,
        order: ListOrder,
        after: Option<MessageId>,
        limit: u32,
    ) -> impl Future<Output = Result<NamedPage, StoreError>> + Send {
        ready(Ok(self.lock().named(tenant, &name, order, after, limit)))
    }

    fn tallies(
        &self,
        tenant: TenantId,
        since: Hour,
        until: Hour,
    ) -> impl Future<Output = Result<Vec<Tally>, StoreError>> + Send {
        ready(Ok(self.lock().tallies(tenant, since, until)))
    }

    fn waiting(&self, lane: LaneId) -> impl Future<Output = Result<Waiting, StoreError>> + Send {
        ready(Ok(self.lock().waiting(lane)))
    }

    fn journal(&self, after: u64, limit: u32) -> impl Future<Output = Result<Vec<JournalRow>, StoreError>> + Send {
        ready(Ok(self.lock().journal(after, limit)))
    }

    fn deliveries(
        &self,
        message: MessageId,
        after: Option<DeliveryId>,
        now: Timestamp,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Shown>, StoreError>> + Send {
        ready(Ok(self.lock().deliveries(message, after, now, limit)))
    }

    fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        order: ListOrder,
        after: Option<DeadLetterCursor>,
        limit: u32,
    ) -> impl Future<Output = Result<DeadLetterPage, StoreError>> + Send {
        ready(Ok(self.lock().dead_letters(&filter, order, after, limit)))
    }

    fn count_dead_letters(&self, filter: DeadLetterFilter) -> impl Future<Output = Result<Count, StoreError>> + Send {
        ready(Ok(self.lock().count_dead_letters(&filter)))
    }

    fn purge_dead_letters(
        &self,
        session: Session,
        filter: DeadLetterFilter,
    ) -> impl Future<Output = Result<Count, StoreError>> + Send {
        ready(self.lock().purge_dead_letters(session, &filter))
    }

    fn sweep_dead_letters(&self, session: Session) -> impl Future<Output = Result<Swept, StoreError>> + Send {
        ready(self.lock().sweep_dead_letters(session))
    }

    fn endpoints_after(
        &self,
        tenant: TenantId,
        after: Option<EndpointId>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Arc<Endpoint>>, StoreError>> + Send {
        ready(Ok(self.lock().endpoints_after(tenant, after, limit)))
    }

    fn start_replay(
        &self,
        session: Session,
        replay: NewReplay,
    ) -> impl Future<Output = Result<Job, StoreError>> + Send {
        ready(self.lock().start_replay(session, replay))
    }

    fn job(&self, id: JobId) -> impl Future<Output = Result<Option<Job>, StoreError>> + Send {
        ready(Ok(self.lock().job(id)))
    }

    fn jobs(
        &self,
        query: JobQuery,
        after: Option<JobId>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Job>, StoreError>> + Send {
        ready(Ok(self.lock().jobs(query, after, limit)))
    }

    fn change_job(
        &self,
        session: Session,
        id: JobId,
        next: JobState,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        ready(self.lock().change_job(session, id, next))
    }

    fn replay_page(
        &self,
        id: JobId,
        limit: u32,
    ) -> impl Future<Output = Result<Option<ReplayPage>, StoreError>> + Send {
        ready(Ok(self.lock().replay_page(id, limit)))
    }

    fn spread(&self, session: Session, chunk: Chunk) -> impl Future<Output = Result<Chunked, StoreError>> + Send {
        let spread = self.lock().spread(session, chunk).map(|(chunked, arrivals)| {
            self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).extend(arrivals);
            self.arrived.notify_one();
            chunked
        });
        ready(spread)
    }

    fn replay_of(
        &self,
        id: DeliveryId,
    ) -> impl Future<Output = Result<(Option<DeliveryId>, Option<DeliveryId>), StoreError>> + Send {
        ready(Ok(self.lock().replay_of(id)))
    }

    fn retain(
        &self,
        session: Session,
        retention: Retention,
        now: Timestamp,
        step: RetentionStep,
    ) -> impl Future<Output = Result<Retained, StoreError>> + Send {
        ready(self.lock().retain(session, retention, now, step))
    }
}
