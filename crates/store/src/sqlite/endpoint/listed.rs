//! The cached list of a tenant's endpoints, changed one entry at a time.
//!
//! Invariant: a list has the tenant's first endpoints by id, at most one more than [`ENDPOINTS_LISTED_MAX`]. The tenant
//! of a list of that length may have further endpoints.

use std::sync::Arc;

use posthaste_core::EndpointId;

use crate::ENDPOINTS_LISTED_MAX;
use crate::row::{Endpoint, EndpointStatus};

/// Whether a list still equals the database after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Exact,
    /// Unknown: the list must be read again.
    Unknown,
}

/// Adds an endpoint, or replaces its earlier version.
pub(super) fn put(list: &mut Vec<Arc<Endpoint>>, endpoint: &Arc<Endpoint>) -> After {
    if endpoint.status == EndpointStatus::Deleted {
        return remove(list, endpoint.id);
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
pub(super) fn turn(list: &mut Vec<Arc<Endpoint>>, id: EndpointId, status: EndpointStatus, version: u32) -> After {
    if status == EndpointStatus::Deleted {
        return remove(list, id);
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

pub(super) fn remove(list: &mut Vec<Arc<Endpoint>>, id: EndpointId) -> After {
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
    use crate::row::{DisabledBy, WebhookTarget};

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
            assert_eq!(put(&mut list, &endpoint(id, version)), After::Exact);
        }
        assert_eq!(versions(&list), [(1, 0), (3, 0), (5, 1), (7, 0)]);
    }

    #[test]
    fn a_status_change_keeps_the_order_and_a_deletion_removes_the_entry() {
        let mut list = list([1, 5]);
        let disabled = EndpointStatus::Disabled(DisabledBy::Receiver);
        assert_eq!(turn(&mut list, EndpointId::from_raw(5), disabled, 1), After::Exact);
        assert_eq!((versions(&list), list[1].status), (vec![(1, 0), (5, 1)], disabled));
        // A version that the list has already, from a read after the commit, changes nothing.
        assert_eq!(turn(&mut list, EndpointId::from_raw(5), EndpointStatus::Gone, 1), After::Exact);
        assert_eq!(list[1].status, disabled);
        assert_eq!(turn(&mut list, EndpointId::from_raw(1), EndpointStatus::Deleted, 1), After::Exact);
        assert_eq!(versions(&list), [(5, 1)]);
    }

    #[test]
    fn a_change_of_a_version_that_is_not_listed_makes_the_list_unknown() {
        let mut list = list([1]);
        assert_eq!(turn(&mut list, EndpointId::from_raw(1), EndpointStatus::Gone, 2), After::Unknown);
        assert_eq!(turn(&mut list, EndpointId::from_raw(2), EndpointStatus::Gone, 1), After::Unknown);
    }

    #[test]
    fn a_list_at_its_bound_keeps_the_first_endpoints_of_its_tenant() {
        let full = ENDPOINTS_LISTED_MAX as u64 + 1;
        let mut list = list((1..=full).map(|id| id * 2));
        assert_eq!(put(&mut list, &endpoint(full * 2 + 1, 0)), After::Exact);
        assert_eq!(list.last().map(|last| last.id.raw()), Some(full * 2), "an endpoint after the last is not listed");
        assert_eq!(turn(&mut list, EndpointId::from_raw(full * 2 + 1), EndpointStatus::Gone, 1), After::Exact);
        assert_eq!(put(&mut list, &endpoint(1, 0)), After::Exact);
        assert_eq!((list.len() as u64, list[0].id.raw()), (full, 1));
        assert_eq!(list.last().map(|last| last.id.raw()), Some(full * 2 - 2), "the last one made room");
        assert_eq!(remove(&mut list, EndpointId::from_raw(1)), After::Unknown, "an unknown endpoint moves up");
    }

    #[test]
    fn a_list_with_a_large_endpoint_is_not_kept() {
        let headers = vec![("x".to_owned(), "v".repeat(20_000))];
        let target = WebhookTarget { headers, ..WebhookTarget::default() }.into();
        let large = Endpoint { target, ..(*endpoint(2, 0)).clone() };
        assert_eq!(put(&mut list([1]), &Arc::new(large)), After::Unknown);
    }
}
