//! Endpoints in memory.

use std::sync::Arc;

use posthaste_core::id::{EndpointId, TenantId};

use super::Memory;
use crate::StoreError;
use crate::journal::Entry;
use crate::row::{Endpoint, EndpointPut, EndpointStatus, Idempotency, Session};

impl Memory {
    /// See [`crate::Directory::put_endpoint`].
    pub fn put_endpoint(
        &mut self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
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
        self.note([Entry::endpoint(&endpoint)]);
        self.put_lane(Arc::new(endpoint.lane_settings()));
        self.endpoints.insert(endpoint.id, Arc::new(endpoint));
        Ok(EndpointPut::Done)
    }

    /// See [`crate::Directory::endpoint_named`].
    pub fn endpoint_named(&self, tenant: TenantId, uid: &str) -> Option<EndpointId> {
        let mut theirs = self.endpoints.values().filter(|endpoint| endpoint.tenant == tenant);
        theirs.find(|endpoint| endpoint.uid.as_deref() == Some(uid)).map(|endpoint| endpoint.id)
    }

    /// See [`crate::Directory::endpoints_after`].
    pub fn endpoints_after(&self, tenant: TenantId, after: Option<EndpointId>, limit: usize) -> Vec<Arc<Endpoint>> {
        let theirs = self.endpoints.values().filter(|endpoint| endpoint.tenant == tenant);
        theirs
            .filter(|endpoint| endpoint.status != EndpointStatus::Deleted)
            .filter(|endpoint| after.is_none_or(|after| endpoint.id > after))
            .take(limit)
            .cloned()
            .collect()
    }

    /// Gives an endpoint another status; says what the journal has of it.
    pub(super) fn turn_endpoint(&mut self, id: EndpointId, status: EndpointStatus) -> Option<Entry> {
        let endpoint = self.endpoints.get_mut(&id).filter(|endpoint| endpoint.status != EndpointStatus::Deleted)?;
        let turned = Arc::make_mut(endpoint);
        turned.version += 1;
        turned.status = status;
        if status == EndpointStatus::Deleted {
            *turned = turned.tombstone();
        }
        let (entry, lane) = (Entry::endpoint(turned), turned.lane_settings());
        self.put_lane(Arc::new(lane));
        Some(entry)
    }
}
