//! The cache of endpoints: every accept needs the endpoints of its tenant.
//!
//! Invariant: a cached endpoint is the version committed last. A change is applied to the cache before it is answered,
//! and the result of a read that began before a change is not cached after it. A cached list has its tenant's first
//! endpoints by id, at most one more than [`ENDPOINTS_LISTED_MAX`]; the tenant of a list of that length may have further
//! endpoints.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use posthaste_core::change_stamps::{ChangeStamps, ReadStamp};
use posthaste_core::{EndpointId, IdMap, LaneId, LaneSettings, TenantId};

use super::Turned;
use crate::{ENDPOINTS_LISTED_MAX, Endpoint, EndpointStatus};

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
                        maps.changed(endpoint.id, *tenant, |list| remove_from(list, endpoint.id));
                    }
                    maps.changed(endpoint.id, endpoint.tenant, |list| put_in(list, endpoint));
                }
                CommittedChange::Turned(Turned { id, tenant, status, version }) => {
                    maps.changed(*id, *tenant, |list| turn_in(list, *id, *status, *version));
                }
            }
        }
    }
}

impl Maps {
    /// Evicts one endpoint by id, and changes its entry in its tenant's list; the list is evicted if `change` cannot
    /// keep it exact, or the lists grew too long.
    fn changed(&mut self, id: EndpointId, tenant: TenantId, change: impl FnOnce(&mut Vec<Arc<Endpoint>>) -> After) {
        self.stamps.change(id.raw());
        self.stamps.change(tenant.raw());
        self.by_id.remove(&id);
        let Some(list) = self.by_tenant.get_mut(&tenant) else { return };
        let before = list.len();
        let after = change(Arc::make_mut(list));
        self.listed = self.listed - before + list.len();
        if after == After::Unknown || self.listed > KEPT_MAX {
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

/// Whether a list still equals the database after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Exact,
    /// Unknown: the list must be read again.
    Unknown,
}

/// Adds an endpoint, or replaces its earlier version.
fn put_in(list: &mut Vec<Arc<Endpoint>>, endpoint: &Arc<Endpoint>) -> After {
    if endpoint.status == EndpointStatus::Deleted {
        return remove_from(list, endpoint.id);
    }
    match position(list, endpoint.id) {
        // Large endpoints are not cached, nor are lists with one.
        _ if endpoint.is_large() => return After::Unknown,
        Ok(at) if list[at].version < endpoint.version => list[at] = Arc::clone(endpoint),
        Ok(_) => {}
        Err(at) => {
            list.insert(at, Arc::clone(endpoint));
            list.truncate(ENDPOINTS_LISTED_MAX + 1);
        }
    }
    After::Exact
}

/// Gives an endpoint another status, with the version of that change.
fn turn_in(list: &mut Vec<Arc<Endpoint>>, id: EndpointId, status: EndpointStatus, version: u32) -> After {
    if status == EndpointStatus::Deleted {
        return remove_from(list, id);
    }
    match position(list, id) {
        Ok(at) if list[at].version >= version => After::Exact,
        Ok(at) if list[at].version + 1 == version => {
            list[at] = Arc::new(Endpoint { status, version, ..(*list[at]).clone() });
            After::Exact
        }
        Err(at) if at > ENDPOINTS_LISTED_MAX => After::Exact,
        _ => After::Unknown,
    }
}

fn remove_from(list: &mut Vec<Arc<Endpoint>>, id: EndpointId) -> After {
    match position(list, id) {
        // The endpoint after the last one moves up, and is not known here.
        Ok(_) if list.len() > ENDPOINTS_LISTED_MAX => After::Unknown,
        Ok(at) => {
            list.remove(at);
            After::Exact
        }
        Err(_) => After::Exact,
    }
}

fn position(list: &[Arc<Endpoint>], id: EndpointId) -> Result<usize, usize> {
    list.binary_search_by_key(&id, |endpoint| endpoint.id)
}

#[cfg(test)]
mod tests {
    use posthaste_core::{LaneId, TenantId, Timestamp};

    use super::*;
    use crate::{DisabledBy, WebhookTarget};

    fn endpoint(id: u64, version: u32) -> Arc<Endpoint> {
        let (id, tenant) = (EndpointId::from_raw(id), TenantId::from_raw(1));
        Arc::new(Endpoint {
            version,
            ..Endpoint::new(id, LaneId(id.0), tenant, Timestamp::default(), "https://example.com/")
        })
    }

    fn list(ids: impl IntoIterator<Item = u64>) -> Vec<Arc<Endpoint>> {
        ids.into_iter().map(|id| endpoint(id, 0)).collect()
    }

    fn versions(list: &[Arc<Endpoint>]) -> Vec<(u64, u32)> {
        list.iter().map(|endpoint| (endpoint.id.raw(), endpoint.version)).collect()
    }

    #[test]
    fn a_put_endpoint_is_inserted_by_id_or_replaces_an_earlier_version() {
        let mut list = list([1, 5]);
        for (id, version) in [(3, 0), (7, 0), (5, 1), (5, 0)] {
            assert_eq!(put_in(&mut list, &endpoint(id, version)), After::Exact);
        }
        assert_eq!(versions(&list), [(1, 0), (3, 0), (5, 1), (7, 0)]);
    }

    #[test]
    fn a_status_change_keeps_the_order_and_a_deletion_removes_the_entry() {
        let mut list = list([1, 5]);
        let disabled = EndpointStatus::Disabled(DisabledBy::Receiver);
        assert_eq!(turn_in(&mut list, EndpointId::from_raw(5), disabled, 1), After::Exact);
        assert_eq!((versions(&list), list[1].status), (vec![(1, 0), (5, 1)], disabled));
        // A version that the list has already, from a read after the commit, changes nothing.
        assert_eq!(turn_in(&mut list, EndpointId::from_raw(5), EndpointStatus::Gone, 1), After::Exact);
        assert_eq!(list[1].status, disabled);
        assert_eq!(turn_in(&mut list, EndpointId::from_raw(1), EndpointStatus::Deleted, 1), After::Exact);
        assert_eq!(versions(&list), [(5, 1)]);
    }

    #[test]
    fn a_change_of_a_version_that_is_not_listed_makes_the_list_unknown() {
        let mut list = list([1]);
        assert_eq!(turn_in(&mut list, EndpointId::from_raw(1), EndpointStatus::Gone, 2), After::Unknown);
        assert_eq!(turn_in(&mut list, EndpointId::from_raw(2), EndpointStatus::Gone, 1), After::Unknown);
    }

    #[test]
    fn a_list_at_its_bound_keeps_the_first_endpoints_of_its_tenant() {
        let full = ENDPOINTS_LISTED_MAX as u64 + 1;
        let mut list = list((1..=full).map(|id| id * 2));
        assert_eq!(put_in(&mut list, &endpoint(full * 2 + 1, 0)), After::Exact);
        assert_eq!(list.last().map(|last| last.id.raw()), Some(full * 2), "an endpoint after the last is not listed");
        assert_eq!(turn_in(&mut list, EndpointId::from_raw(full * 2 + 1), EndpointStatus::Gone, 1), After::Exact);
        assert_eq!(put_in(&mut list, &endpoint(1, 0)), After::Exact);
        assert_eq!((list.len() as u64, list[0].id.raw()), (full, 1));
        assert_eq!(list.last().map(|last| last.id.raw()), Some(full * 2 - 2), "the last one made room");
        assert_eq!(remove_from(&mut list, EndpointId::from_raw(1)), After::Unknown, "an unknown endpoint moves up");
    }

    #[test]
    fn a_list_with_a_large_endpoint_is_not_kept() {
        let headers = vec![("x".to_owned(), "v".repeat(20_000))];
        let target = WebhookTarget { headers, ..WebhookTarget::default() }.into();
        let large = Endpoint { target, ..(*endpoint(2, 0)).clone() };
        assert_eq!(put_in(&mut list([1]), &Arc::new(large)), After::Unknown);
    }
}
