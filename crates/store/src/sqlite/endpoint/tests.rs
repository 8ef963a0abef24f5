//! The indexes that endpoints are found by, and the cache while endpoints change.

use std::time::Duration;

use posthaste_core::{Cause, Cut, CutScope, EndpointChange};

use super::cache::KEPT_MAX;
use super::*;
use crate::sqlite::failed;
use crate::sqlite::fixture::{fresh, plan};
use crate::{Erase, ErasureStep, ErasureTarget, Erasures, Outbox};

const TENANT: TenantId = TenantId::from_raw(1);
const OTHER: TenantId = TenantId::from_raw(2);
const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);

fn endpoint(id: u64, version: u32) -> Endpoint {
    let url = format!("https://example.com/{version}");
    Endpoint { version, ..Endpoint::new(EndpointId::from_raw(id), LaneId::from_raw(70 + id), TENANT, NOW, url) }
}

fn put(endpoint: Endpoint) -> CommittedChange {
    CommittedChange::Put { endpoint: Arc::new(endpoint), moved_from: None }
}

/// Ids and versions in the cached list of a tenant, if there is one.
fn listed(kept: &EndpointCache, tenant: TenantId) -> Option<Vec<(u64, u32)>> {
    let list = kept.tenant_list(tenant)?;
    Some(list.iter().map(|endpoint| (endpoint.id.raw(), endpoint.version)).collect())
}

#[test]
fn endpoints_are_found_by_their_indexes() {
    for (which, expected) in [
        (OF_TENANT, "SEARCH endpoint USING INDEX endpoint_tenant (tenant=? AND rowid>?)"),
        (NEWEST_OF_TENANT, "SEARCH endpoint USING INDEX endpoint_tenant (tenant=? AND rowid<?)"),
        (OLDEST, "SEARCH endpoint USING INTEGER PRIMARY KEY (rowid>?)"),
        (NEWEST, "SEARCH endpoint USING INTEGER PRIMARY KEY (rowid<?)"),
        (BY_ID, "SEARCH endpoint USING INTEGER PRIMARY KEY (rowid=?)"),
        (BY_LANE, "SEARCH endpoint USING INDEX endpoint_lane (lane=?)"),
    ] {
        assert_eq!(plan(&format!("SELECT sealed FROM endpoint WHERE {which}")), expected);
    }
    assert_eq!(plan(BY_UID), "SEARCH endpoint USING INDEX endpoint_uid (uid=?)");
}

#[test]
fn changed_endpoints_are_applied_to_the_cached_list() {
    let kept = EndpointCache::default();
    kept.keep_tenant(kept.changes(), TENANT, vec![endpoint(1, 0), endpoint(5, 0)]);
    let held = kept.tenant_list(TENANT).expect("it is kept");
    kept.apply(&[put(endpoint(3, 0)), put(endpoint(5, 1))]);
    assert_eq!(listed(&kept, TENANT), Some(vec![(1, 0), (3, 0), (5, 1)]));
    assert_eq!(held.len(), 2, "a caller's list stays as it was handed out");
    let turned = Turned { id: EndpointId::from_raw(1), tenant: TENANT, status: EndpointStatus::Deleted, version: 1 };
    kept.apply(&[CommittedChange::Turned(turned)]);
    assert_eq!(listed(&kept, TENANT), Some(vec![(3, 0), (5, 1)]));
    let moved = Endpoint { tenant: OTHER, ..endpoint(5, 2) };
    kept.apply(&[CommittedChange::Put { endpoint: Arc::new(moved), moved_from: Some(TENANT) }]);
    assert_eq!(listed(&kept, TENANT), Some(vec![(3, 0)]));
}

#[test]
fn a_read_that_began_before_a_change_does_not_bring_the_old_version_back() {
    let kept = EndpointCache::default();
    let read_at = kept.changes();
    kept.apply(&[put(endpoint(1, 1))]);
    kept.keep_tenant(read_at, TENANT, vec![endpoint(1, 0), endpoint(2, 0)]);
    assert_eq!(listed(&kept, TENANT), None);
    assert!(kept.get(EndpointId::from_raw(1)).is_none(), "nor by its id");
    assert!(kept.get(EndpointId::from_raw(2)).is_some(), "one that did not change is kept");
    kept.keep_tenant(kept.changes(), TENANT, vec![endpoint(1, 1), endpoint(2, 0)]);
    // Version 2 is committed but not applied to the cache yet; a list read meanwhile has a later version already.
    kept.keep_tenant(kept.changes(), TENANT, vec![endpoint(1, 3), endpoint(2, 0)]);
    kept.apply(&[put(endpoint(1, 2))]);
    assert_eq!(listed(&kept, TENANT), Some(vec![(1, 3), (2, 0)]));
}

#[test]
fn a_change_of_one_tenant_does_not_keep_another_tenant_s_list_from_being_cached() {
    let kept = EndpointCache::default();
    let read_at = kept.changes();
    kept.apply(&[put(endpoint(1, 0))]);
    kept.keep_tenant(read_at, OTHER, vec![Endpoint { tenant: OTHER, ..endpoint(9, 0) }]);
    assert_eq!(listed(&kept, OTHER), Some(vec![(9, 0)]));
    kept.evict_tenant(TENANT);
    assert_eq!(listed(&kept, OTHER), Some(vec![(9, 0)]));
    kept.keep_tenant(read_at, TENANT, vec![endpoint(1, 0)]);
    assert_eq!(listed(&kept, TENANT), None, "read before the erasure");
}

#[test]
fn lists_that_grow_over_the_bound_are_dropped() {
    let kept = EndpointCache::default();
    let half = KEPT_MAX as u64 / 2;
    kept.keep_tenant(kept.changes(), TENANT, (1..=half).map(|id| endpoint(id, 0)).collect());
    let theirs = (1..=half).map(|id| Endpoint { tenant: OTHER, ..endpoint(half + id, 0) });
    kept.keep_tenant(kept.changes(), OTHER, theirs.collect());
    assert!(kept.tenant_list(TENANT).is_some() && kept.tenant_list(OTHER).is_some());
    kept.apply(&[put(endpoint(3 * half, 0))]);
    assert!(kept.tenant_list(TENANT).is_none() && kept.tenant_list(OTHER).is_some());
    kept.keep_tenant(kept.changes(), TENANT, (0..=half).map(|id| endpoint(id, 0)).collect());
    assert!(kept.tenant_list(TENANT).is_some() && kept.tenant_list(OTHER).is_none(), "a longer list takes their room");
}

/// Counts in the database: endpoints with a subject, tags in endpoints' own rows, rows of tags.
async fn indexed(store: &Sqlite) -> (i64, i64, i64) {
    let count = |conn: &Connection| {
        conn.query_row(
            "SELECT (SELECT count(*) FROM endpoint WHERE subject IS NOT NULL),
                    (SELECT coalesce(sum(length(tags)), 0) / 16 FROM endpoint), (SELECT count(*) FROM endpoint_tag)",
            [],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .map_err(failed("count"))
    };
    store.readers.read(count).await.expect("it reads")
}

#[tokio::test]
async fn subjects_and_tags_leave_the_indexes_with_their_endpoint() {
    let (_folder, store, session) = fresh().await;
    let owned = |tags: &[&str]| tags.iter().map(|tag| (*tag).to_owned()).collect::<Vec<_>>();
    let put = async |endpoint: Endpoint| {
        let put = store.put_endpoint(session, endpoint, None, AuditStamp::at(NOW)).await.expect("it is put");
        assert_eq!(put, EndpointPut::Done);
    };
    let named = |id, version, subject: &str, tags: &[&str]| Endpoint {
        subject: Some(subject.to_owned()),
        tags: owned(tags),
        ..endpoint(id, version)
    };
    put(named(1, 0, "ann", &["a", "b", "b"])).await;
    put(named(2, 0, "ann", &["b"])).await;
    put(named(3, 0, "bob", &["a", "c"])).await;
    assert_eq!(indexed(&store).await, (3, 5, 5), "a tag counts once");
    put(named(1, 1, "ann", &["b", "c", "d"])).await;
    assert_eq!(indexed(&store).await, (3, 6, 6));
    let (id, lane) = (EndpointId::from_raw(3), CutScope::Lane(LaneId::from_raw(73)));
    let cut =
        Cut { endpoint: Some((id, EndpointChange::Deleted)), ..Cut::new(lane, id.0, Cause::EndpointDeleted, NOW) };
    store.cut(session, cut, None).await.expect("it is deleted");
    assert_eq!(indexed(&store).await, (2, 4, 4), "deleted");
    let erase = Erase { tenant: TENANT, whom: ErasureTarget::Subject("ann".to_owned()), at: NOW, by: None };
    let mut erasure = store.erase(session, erase).await.expect("it is erased");
    let mut now = NOW;
    while erasure.done.is_none() {
        now = now + Duration::from_secs(1);
        let step = store.erase_step(session, erasure.number, now, Vec::new()).await.expect("a step");
        let Some(ErasureStep { erasure: after, .. }) = step else { break };
        erasure = after;
    }
    assert_eq!(indexed(&store).await, (0, 0, 0), "erased");
    store.close().await;
}

#[tokio::test]
async fn a_match_reads_as_many_rows_with_many_endpoints_as_with_few() {
    let (_folder, store, session) = fresh().await;
    let mut rows = Vec::new();
    for round in 0..2_u64 {
        let of = |n: u64| Endpoint {
            subject: Some(format!("person-{n}")),
            tags: vec![format!("tag-{n}")],
            ..endpoint(n, 0)
        };
        for n in round * 100..round * 100 + 100 {
            let put = store.put_endpoint(session, of(n), None, AuditStamp::at(NOW)).await.expect("it is put");
            assert_eq!(put, EndpointPut::Done);
        }
        let before = store.shared.cache.rows_read();
        let name = round * 100 + 7;
        let tags = EndpointSelector::new(&[], &[format!("tag-{}", name + 1)]).expect("it names a tag");
        for selector in [EndpointSelector::for_subject(format!("person-{name}")), tags] {
            let found = store.endpoints_matching(TENANT, selector, None, 1_001).await.expect("it reads");
            assert_eq!((found.endpoints.len(), found.next), (1, None));
        }
        rows.push(store.shared.cache.rows_read() - before);
    }
    assert_eq!(rows, [4, 4], "for each selector a row of the index and one of the endpoint");
    let drop_index = |conn: &Connection| conn.execute_batch("DROP INDEX endpoint_subject").map_err(failed("drop"));
    store.work(session, 1, drop_index).await.expect("it is dropped");
    let before = store.shared.cache.rows_read();
    let selector = EndpointSelector::for_subject("person-55");
    store.endpoints_matching(TENANT, selector, None, 1_001).await.expect("it reads");
    assert!(store.shared.cache.rows_read() - before >= 199, "rows that SQLite scans without a match count as well");
    store.close().await;
}
