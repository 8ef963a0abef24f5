//! The store of a driven run: a memory store with delays before and after each call.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::scheduler::{BreakerOf, Reset, SoftBreaker};
use posthaste_core::{Cut, CutScope, DeliveryId, LaneId, LaneSettings, Timestamp};
use posthaste_store::{
    Acceptance, Accepted, ApiKeyRef, ArrivedDelivery, AuditStamp, MemoryState, Outbox, Pause, PauseScope, PendingPage,
    Query, Session, SessionStart, Settled, Settlement, StoreError, Sweep, SweptRows,
};
use tokio::time::sleep;

use super::{Shared, lock};

/// A memory store with delays.
pub(super) struct Slow(pub(super) Arc<Shared>);

impl Slow {
    async fn delay(&self) {
        let most = *lock(&self.0.store_ms);
        let wait = lock(&self.0.rng).u64(1..=most.max(1));
        sleep(Duration::from_millis(wait)).await;
    }

    /// Waits, performs the call, and waits again. A crash may come before, between or after.
    async fn slowly<T>(&self, act: impl FnOnce(&mut MemoryState) -> T) -> T {
        self.delay().await;
        let done = act(&mut lock(&self.0.disk));
        let wait = lock(&self.0.rng).u64(0..4);
        sleep(Duration::from_millis(wait)).await;
        done
    }
}

impl Outbox for Slow {
    async fn open(&self, at: Timestamp) -> Result<SessionStart, StoreError> {
        Ok(lock(&self.0.disk).open(at))
    }

    async fn accept(&self, session: Session, messages: Vec<Accepted>) -> Result<Vec<Acceptance>, StoreError> {
        self.slowly(|memory| {
            let (acceptances, arrivals) = memory.accept(session, messages)?;
            lock(&self.0.arrivals).extend(arrivals);
            self.0.arrived.notify_one();
            Ok(acceptances)
        })
        .await
    }

    async fn arrivals(&self) -> Vec<ArrivedDelivery> {
        loop {
            let arrivals: Vec<ArrivedDelivery> = lock(&self.0.arrivals).drain(..).collect();
            if !arrivals.is_empty() {
                return arrivals;
            }
            self.0.arrived.notified().await;
        }
    }

    async fn settle(&self, session: Session, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        self.slowly(|memory| memory.settle(session, settlements)).await
    }

    async fn spill(&self, session: Session, deliveries: Vec<DeliveryId>) -> Result<(), StoreError> {
        self.slowly(|memory| memory.spill(session, &deliveries)).await
    }

    async fn page(&self, query: Query, limit: u32, _now: Timestamp) -> Result<PendingPage, StoreError> {
        Ok(self.slowly(|memory| memory.page(query, limit)).await)
    }

    async fn lanes(&self, lanes: Vec<LaneId>) -> Result<Vec<Arc<LaneSettings>>, StoreError> {
        Ok(self.slowly(|memory| memory.lanes(&lanes)).await)
    }

    async fn cut(&self, session: Session, cut: Cut, by: Option<ApiKeyRef>) -> Result<u64, StoreError> {
        self.slowly(|memory| memory.cut(session, cut, by)).await
    }

    async fn sweep(&self, session: Session, sweep: Sweep, under_way: Vec<DeliveryId>) -> Result<SweptRows, StoreError> {
        self.slowly(|memory| memory.sweep(session, sweep, &under_way)).await
    }

    async fn uncut(&self, session: Session, scope: CutScope, at: Timestamp) -> Result<(), StoreError> {
        self.slowly(|memory| memory.uncut(session, scope, at)).await
    }

    async fn pause(&self, session: Session, pause: Pause, at: Timestamp) -> Result<(), StoreError> {
        let _in_order = self.0.pauses.lock().await;
        self.slowly(|memory| memory.pause(session, pause, at)).await
    }

    async fn resume(&self, session: Session, scope: PauseScope, act: AuditStamp) -> Result<(), StoreError> {
        let _in_order = self.0.pauses.lock().await;
        self.slowly(|memory| memory.resume(session, scope, act)).await
    }

    async fn reset(&self, session: Session, of: BreakerOf, how: Reset, act: AuditStamp) -> Result<(), StoreError> {
        self.slowly(|memory| memory.reset(session, of, how, act)).await
    }

    async fn remember(&self, session: Session, breakers: Vec<SoftBreaker>) -> Result<(), StoreError> {
        self.slowly(|memory| memory.remember(session, &breakers)).await
    }
}
