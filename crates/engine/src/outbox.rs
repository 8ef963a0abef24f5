//! The store as the dispatch loop sees it: every call is passed through, except that lane settings also include the
//! rules of their tenants.

use std::sync::Arc;

use posthaste_core::cut::{Cut, CutScope};
use posthaste_core::id::{DeliveryId, LaneId};
use posthaste_core::scheduler::{BreakerOf, LaneSettings, Reset, SoftBreaker};
use posthaste_core::time::Timestamp;
use posthaste_store::{
    Acceptance, Accepted, ApiKeyRef, ArrivedDelivery, AuditStamp, Directory, Outbox, Pause, PauseScope, PendingPage,
    Query, Register, Session, SessionStart, Settled, Settlement, StoreError, Sweep, SweptRows,
};

use crate::endpoint_cache::ParsedEndpointCache;

/// A store whose lane settings include the rules of their tenants.
#[derive(Debug)]
pub(crate) struct StoreWithRules<S> {
    pub(crate) store: Arc<S>,
    pub(crate) endpoint_cache: Arc<ParsedEndpointCache<S>>,
}

impl<S: Outbox + Directory + Register> Outbox for StoreWithRules<S> {
    async fn lanes(&self, lanes: Vec<LaneId>) -> Result<Vec<Arc<LaneSettings>>, StoreError> {
        // One read for all lanes; the look-ups below then find their endpoints in the store's memory.
        let mut found = self.store.lanes(lanes).await?;
        for settings in &mut found {
            if let Some(ruled) = self.endpoint_cache.lane(settings.lane).await? {
                *settings = ruled;
            }
        }
        Ok(found)
    }

    async fn open(&self, at: Timestamp) -> Result<SessionStart, StoreError> {
        self.store.open(at).await
    }

    async fn accept(&self, session: Session, messages: Vec<Accepted>) -> Result<Vec<Acceptance>, StoreError> {
        self.store.accept(session, messages).await
    }

    async fn arrivals(&self) -> Vec<ArrivedDelivery> {
        self.store.arrivals().await
    }

    async fn settle(&self, session: Session, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        self.store.settle(session, settlements).await
    }

    async fn spill(&self, session: Session, deliveries: Vec<DeliveryId>) -> Result<(), StoreError> {
        self.store.spill(session, deliveries).await
    }

    async fn page(&self, query: Query, limit: u32, now: Timestamp) -> Result<PendingPage, StoreError> {
        self.store.page(query, limit, now).await
    }

    async fn cut(&self, session: Session, cut: Cut, by: Option<ApiKeyRef>) -> Result<u64, StoreError> {
        self.store.cut(session, cut, by).await
    }

    async fn sweep(&self, session: Session, sweep: Sweep, under_way: Vec<DeliveryId>) -> Result<SweptRows, StoreError> {
        self.store.sweep(session, sweep, under_way).await
    }

    async fn uncut(&self, session: Session, scope: CutScope, at: Timestamp) -> Result<(), StoreError> {
        self.store.uncut(session, scope, at).await
    }

    async fn pause(&self, session: Session, pause: Pause, at: Timestamp) -> Result<(), StoreError> {
        self.store.pause(session, pause, at).await
    }

    async fn resume(&self, session: Session, scope: PauseScope, act: AuditStamp) -> Result<(), StoreError> {
        self.store.resume(session, scope, act).await
    }

    async fn reset(&self, session: Session, of: BreakerOf, how: Reset, act: AuditStamp) -> Result<(), StoreError> {
        self.store.reset(session, of, how, act).await
    }

    async fn remember(&self, session: Session, breakers: Vec<SoftBreaker>) -> Result<(), StoreError> {
        self.store.remember(session, breakers).await
    }
}
