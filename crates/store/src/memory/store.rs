//! The store around [`MemoryState`], and its [`Outbox`]: every call takes effect at once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use posthaste_core::scheduler::{BreakerOf, Reset, SoftBreaker};
use posthaste_core::{Cut, CutScope, DeliveryId, LaneId, LaneSettings, Timestamp};
use tokio::sync::Notify;

use super::MemoryState;
use crate::{
    Acceptance, Accepted, ApiKeyRef, ArrivedDelivery, AuditStamp, Condition, Outbox, Pause, PauseScope, PendingPage,
    Query, Session, SessionStart, Settled, Settlement, StoreError, Sweep, SweptRows, Watchable,
};

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

    pub(super) fn arrive(&self, arrivals: Vec<ArrivedDelivery>) {
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

impl Watchable for MemoryStore {
    fn condition(&self) -> Condition {
        Condition::default()
    }
}
