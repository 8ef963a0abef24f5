//! The cache of endpoints: every accept needs the endpoints of its tenant.
//!
//! Invariant: a cached endpoint is the version committed last. A change is applied to the cache before it is answered,
//! and the result of a read that began before a change is not cached after it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use posthaste_core::change_stamps::{ChangeStamps, ReadStamp};
use posthaste_core::{EndpointId, IdMap, LaneId, LaneSettings, TenantId};

use super::{Turned, listed};
use crate::row::Endpoint;

/// The most endpoints cached by id, and the most in the lists of tenants, at about 1 KiB each; large endpoints are not
/// cached. When one of the two would grow over it, all its entries are evicted.
pub(super) const KEPT_MAX: usize = 16_384;

/// A cached endpoint, with its settings for the dispatch loop.
#[derive(Clone, Debug)]
pub(in crate::sqlite) struct CachedEndpoint {
    pub(in crate::sqlite) endpoint: Arc<Endpoint>,
    pub(in crate::sqlite) lane: Arc<LaneSettings>,
}

/// A committed change of an endpoint.
pub(in crate::sqlite) enum CommittedChange {
    /// It was created, or replaced by another version.
    Put {
        endpoint: Arc<Endpoint>,
        /// The tenant it belonged to before, if that was another.
        moved_from: Option<TenantId>,
    },
    /// Only its status changed.
    Turned(Turned),
}

#[derive(Default)]
pub(in crate::sqlite) struct EndpointCache {
    maps: RwLock<Maps>,
    /// Rows read since the store was opened to find the endpoints of messages.
    rows: AtomicU64,
}

#[derive(Default)]
struct Maps {
    /// The stamps of changes, by the ids of endpoints and of tenants, which share one sequence.
    stamps: ChangeStamps,
    by_id: IdMap<EndpointId, CachedEndpoint>,
    /// Never out of date, since an endpoint keeps its lane. May name endpoints that are not in `by_id`; both are
    /// cleared together.
    by_lane: IdMap<LaneId, EndpointId>,
    by_tenant: IdMap<TenantId, Arc<Vec<Arc<Endpoint>>>>,
    /// The number of endpoints in all lists of `by_tenant`.
    listed: usize,
}

impl EndpointCache {
    fn read(&self) -> RwLockReadGuard<'_, Maps> {
        self.maps.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Maps> {
        self.maps.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count_rows(&self, rows: usize) {
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Rows of indexes and of endpoints that were read to find the endpoints of messages.
    pub(in crate::sqlite) fn rows_read(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// The stamp to take before a read whose result is to be cached.
    pub(in crate::sqlite) fn changes(&self) -> ReadStamp {
        self.read().stamps.now()
    }

    pub(in crate::sqlite) fn get(&self, id: EndpointId) -> Option<CachedEndpoint> {
        self.read().by_id.get(&id).cloned()
    }

    pub(in crate::sqlite) fn tenant_list(&self, tenant: TenantId) -> Option<Arc<Vec<Arc<Endpoint>>>> {
        self.read().by_tenant.get(&tenant).cloned()
    }

    /// Splits endpoints into those that are cached, and the ids of the others.
    pub(super) fn some(&self, ids: &[EndpointId]) -> (Vec<Arc<Endpoint>>, Vec<EndpointId>) {
        let maps = self.read();
        let (mut known, mut missing) = (Vec::with_capacity(ids.len()), Vec::new());
        for id in ids {
            match maps.by_id.get(id) {
                Some(entry) => known.push(Arc::clone(&entry.endpoint)),
                None => missing.push(*id),
            }
        }
        (known, missing)
    }

    /// The cached endpoints of these lanes, and the lanes whose endpoints are not cached.
    pub(in crate::sqlite) fn by_lanes(&self, lanes: &[LaneId]) -> (Vec<CachedEndpoint>, Vec<LaneId>) {
        let maps = self.read();
        let (mut found, mut missing) = (Vec::with_capacity(lanes.len()), Vec::new());
        for lane in lanes {
            match maps.by_lane.get(lane).and_then(|endpoint| maps.by_id.get(endpoint)) {
                Some(entry) => found.push(entry.clone()),
                None => missing.push(*lane),
            }
        }
        (found, missing)
    }

    /// Caches endpoints that were read, except those that changed since `read_at`.
    pub(in crate::sqlite) fn keep(&self, read_at: ReadStamp, endpoints: Vec<Endpoint>) -> Vec<CachedEndpoint> {
        let entries: Vec<CachedEndpoint> = endpoints.into_iter().map(CachedEndpoint::new).collect();
        let mut maps = self.write();
        if maps.by_id.len().max(maps.by_lane.len()) + entries.len() > KEPT_MAX {
            maps.by_id.clear();
            maps.by_lane.clear();
        }
        for entry in &entries {
            if !entry.endpoint.is_large() && maps.stamps.is_current(entry.endpoint.id.raw(), read_at) {
                maps.by_lane.insert(entry.endpoint.lane, entry.endpoint.id);
                maps.by_id.insert(entry.endpoint.id, entry.clone());
            }
        }
        entries
    }

    /// Caches the list of a tenant's endpoints, unless one of them changed since `read_at`.
    pub(in crate::sqlite) fn keep_tenant(
        &self,
        read_at: ReadStamp,
        tenant: TenantId,
        endpoints: Vec<Endpoint>,
    ) -> Arc<Vec<Arc<Endpoint>>> {
        let list = self.keep(read_at, endpoints).into_iter().map(|entry| entry.endpoint).collect();
        let list: Arc<Vec<Arc<Endpoint>>> = Arc::new(list);
        let mut maps = self.write();
        let is_small = list.len() <= KEPT_MAX && !list.iter().any(|endpoint| endpoint.is_large());
        if is_small && maps.stamps.is_current(tenant.raw(), read_at) {
            maps.unlist(tenant);
            if maps.listed + list.len() > KEPT_MAX {
                maps.by_tenant.clear();
                maps.listed = 0;
            }
            maps.listed += list.len();
            maps.by_tenant.insert(tenant, Arc::clone(&list));
        }
        list
    }

    /// Evicts all endpoints of a tenant: the tenant, or one of its subjects, was erased.
    pub(in crate::sqlite) fn evict_tenant(&self, tenant: TenantId) {
        let mut maps = self.write();
        maps.stamps.change_all();
        maps.unlist(tenant);
        maps.by_id.retain(|_, entry| entry.endpoint.tenant != tenant);
    }

    /// Applies changes, in the order in which they were made. Called after the commit and before its answer.
    pub(in crate::sqlite) fn apply(&self, changes: &[CommittedChange]) {
        if changes.is_empty() {
            return;
        }
        let mut maps = self.write();
        for change in changes {
            match change {
                CommittedChange::Put { endpoint, moved_from } => {
                    if let Some(tenant) = moved_from {
                        maps.changed(endpoint.id, *tenant, |list| listed::remove(list, endpoint.id));
                    }
                    maps.changed(endpoint.id, endpoint.tenant, |list| listed::put(list, endpoint));
                }
                CommittedChange::Turned(Turned { id, tenant, status, version }) => {
                    maps.changed(*id, *tenant, |list| listed::turn(list, *id, *status, *version));
                }
            }
        }
    }
}

impl Maps {
    /// Evicts one endpoint by id, and changes its entry in its tenant's list; the list is evicted if `change` cannot
    /// keep it exact, or the lists grew too long.
    fn changed(
        &mut self,
        id: EndpointId,
        tenant: TenantId,
        change: impl FnOnce(&mut Vec<Arc<Endpoint>>) -> listed::After,
    ) {
        self.stamps.change(id.raw());
        self.stamps.change(tenant.raw());
        self.by_id.remove(&id);
        let Some(list) = self.by_tenant.get_mut(&tenant) else { return };
        let before = list.len();
        let after = change(Arc::make_mut(list));
        self.listed = self.listed - before + list.len();
        if after == listed::After::Unknown || self.listed > KEPT_MAX {
            self.unlist(tenant);
        }
    }

    fn unlist(&mut self, tenant: TenantId) {
        if let Some(list) = self.by_tenant.remove(&tenant) {
            self.listed -= list.len();
        }
    }
}

impl CachedEndpoint {
    fn new(endpoint: Endpoint) -> Self {
        Self { lane: Arc::new(endpoint.lane_settings()), endpoint: Arc::new(endpoint) }
    }
}
