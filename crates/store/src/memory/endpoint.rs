//! Endpoints in memory.

use std::sync::Arc;

use posthaste_core::{EndpointId, LaneId, TenantId, Timestamp};

use super::{MemoryState, MemoryStore};
use crate::journal::JournalEntry;
use crate::{
    AuditStamp, Directory, DisabledBy, ENDPOINTS_LISTED_MAX, Endpoint, EndpointPut, EndpointSelector, EndpointStatus,
    Idempotency, ListOrder, MatchedEndpoints, SecretAct, Session, StoreError,
};

impl Directory for MemoryStore {
    async fn put_endpoint(
        &self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
        act: AuditStamp,
    ) -> Result<EndpointPut, StoreError> {
        let memory = &mut *self.lock();
        memory.put_noted(session, endpoint, once, act, None)
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
        let memory = &mut *self.lock();
        let note = JournalEntry::secret(endpoint.id, endpoint.tenant, SecretAct::Rotated, act);
        memory.put_noted(session, endpoint, once, act, Some(note))
    }

    async fn note_secret_shown(
        &self,
        session: Session,
        endpoint: EndpointId,
        tenant: TenantId,
        act: AuditStamp,
    ) -> Result<(), StoreError> {
        let memory = &mut *self.lock();
        memory.guard(session)?;
        memory.note([JournalEntry::secret(endpoint, tenant, SecretAct::Shown, act)]);
        Ok(())
    }

    async fn list_endpoints(
        &self,
        tenant: Option<TenantId>,
        order: ListOrder,
        after: Option<EndpointId>,
        limit: u32,
    ) -> Result<Vec<Arc<Endpoint>>, StoreError> {
        let memory = self.lock();
        let is_among = |endpoint: &&Arc<Endpoint>| {
            tenant.is_none_or(|tenant| endpoint.tenant == tenant)
                && endpoint.status != EndpointStatus::Deleted
                && order.is_behind(endpoint.id, after)
        };
        let all = memory.endpoints.values().filter(is_among).cloned();
        Ok(match order {
            ListOrder::OldestFirst => all.take(limit as usize).collect(),
            ListOrder::NewestFirst => all.rev().take(limit as usize).collect(),
        })
    }

    async fn endpoint_of_lane(&self, lane: LaneId) -> Result<Option<Arc<Endpoint>>, StoreError> {
        Ok(self.lock().endpoints.values().find(|endpoint| endpoint.lane == lane).cloned())
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
        let limit = limit as usize;
        let memory = self.lock();
        let counted = match selector.subjects() {
            [] => selector.clone(),
            subjects => EndpointSelector::new(subjects, &[]).unwrap_or_else(|| selector.clone()),
        };
        let theirs = memory.endpoints_after(tenant, after, usize::MAX).into_iter();
        let mut endpoints: Vec<Arc<Endpoint>> =
            theirs.filter(|endpoint| counted.matches(endpoint)).take(limit + 1).collect();
        let next = if endpoints.len() > limit {
            endpoints.truncate(limit);
            endpoints.last().map(|endpoint| endpoint.id).or(after)
        } else {
            None
        };
        endpoints.retain(|endpoint| selector.matches(endpoint));
        Ok(MatchedEndpoints { endpoints, next })
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

impl MemoryState {
    fn put_noted(
        &mut self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
        act: AuditStamp,
        note: Option<JournalEntry>,
    ) -> Result<EndpointPut, StoreError> {
        self.guard(session)?;
        if let Some(before) = self.known(once.as_ref()) {
            return Ok(before.into());
        }
        let before = self.endpoints.get(&endpoint.id);
        let is_next = match before {
            None => endpoint.version == 0,
            Some(before) => before.version + 1 == endpoint.version && before.status != EndpointStatus::Deleted,
        };
        if !is_next {
            return Ok(EndpointPut::Stale);
        }
        let holder = endpoint.uid.as_deref().and_then(|uid| self.endpoint_named(endpoint.tenant, uid));
        if holder.is_some_and(|holder| holder != endpoint.id) {
            return Ok(EndpointPut::UidTaken);
        }
        self.remember_call(once, Some(endpoint.id.0));
        self.note([JournalEntry::endpoint(&endpoint, act)].into_iter().chain(note));
        self.put_lane(Arc::new(endpoint.lane_settings()));
        self.endpoints.insert(endpoint.id, Arc::new(endpoint));
        Ok(EndpointPut::Done)
    }

    pub fn endpoint_named(&self, tenant: TenantId, uid: &str) -> Option<EndpointId> {
        let mut theirs = self.endpoints.values().filter(|endpoint| endpoint.tenant == tenant);
        theirs.find(|endpoint| endpoint.uid.as_deref() == Some(uid)).map(|endpoint| endpoint.id)
    }

    pub fn endpoints_after(&self, tenant: TenantId, after: Option<EndpointId>, limit: usize) -> Vec<Arc<Endpoint>> {
        let theirs = self.endpoints.values().filter(|endpoint| endpoint.tenant == tenant);
        theirs
            .filter(|endpoint| endpoint.status != EndpointStatus::Deleted)
            .filter(|endpoint| after.is_none_or(|after| endpoint.id > after))
            .take(limit)
            .cloned()
            .collect()
    }

    /// Disables an endpoint at its receiver's request, if it is active. Returns the journal entry.
    pub(super) fn disable_endpoint(&mut self, id: EndpointId, at: Timestamp) -> Option<JournalEntry> {
        let is_active = self.endpoints.get(&id)?.status == EndpointStatus::Active;
        let disabled = EndpointStatus::Disabled(DisabledBy::Receiver);
        is_active.then(|| self.turn_endpoint(id, disabled, AuditStamp::at(at))).flatten()
    }

    /// Changes an endpoint's status and returns the journal entry; `None` if the endpoint is deleted or unknown.
    pub(super) fn turn_endpoint(
        &mut self,
        id: EndpointId,
        status: EndpointStatus,
        act: AuditStamp,
    ) -> Option<JournalEntry> {
        let endpoint = self.endpoints.get_mut(&id).filter(|endpoint| endpoint.status != EndpointStatus::Deleted)?;
        let turned = Arc::make_mut(endpoint);
        turned.version += 1;
        turned.status = status;
        if status == EndpointStatus::Deleted {
            *turned = turned.tombstone();
        }
        let (entry, lane) = (JournalEntry::endpoint(turned, act), turned.lane_settings());
        self.put_lane(Arc::new(lane));
        Some(entry)
    }
}
