//! Endpoints, and the lanes behind them.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::id::{EndpointId, LaneId, TenantId};
use posthaste_core::policy::Policy;
use posthaste_core::queue::{LaneSettings, OnDead, Order};

use super::fixture::{Case, after, endpoint, lane_id};
use crate::Store;
use crate::row::{Endpoint, EndpointStatus};

pub(super) async fn an_endpoint_comes_back_with_every_field<S: Store>(case: &Case<S>) {
    let full = endpoint(1);
    let bare = Endpoint {
        secrets: Vec::new(),
        event_types: Vec::new(),
        ttl: None,
        order: Order::Strict,
        on_dead: OnDead::Hold,
        max_in_flight: u16::MAX,
        status: EndpointStatus::Gone,
        ..endpoint(2)
    };
    let newest_first = Endpoint { order: Order::NewestFirst, ttl: Some(Duration::ZERO), ..endpoint(3) };
    for expected in [full, bare, newest_first] {
        case.put_endpoint(expected.clone()).await;
        let found = case.done("endpoint", case.store.endpoint(expected.id).await);
        case.same("the endpoint", found.map(|found| (*found).clone()), Some(expected));
    }
    let none = case.done("endpoint", case.store.endpoint(EndpointId::from_raw(77)).await);
    case.same("an endpoint nobody made", none, None);
}

pub(super) async fn a_changed_endpoint_is_seen_at_once<S: Store>(case: &Case<S>) {
    let mut changing = endpoint(1);
    for round in 1..=3 {
        changing.url = format!("https://example.com/round/{round}");
        changing.secrets = vec![format!("whsec_{round}"); usize::from(4 - round)];
        changing.event_types = vec!["a".to_owned(); usize::from(3 - round)];
        changing.max_in_flight = round;
        changing.at = after(round.into());
        case.put_endpoint(changing.clone()).await;
        // Twice: the second may come from memory.
        for _ in 0..2 {
            let found = case.done("endpoint", case.store.endpoint(changing.id).await);
            case.same("by its id", found.as_deref(), Some(&changing));
            let listed = case.done("endpoints", case.store.endpoints(changing.tenant).await);
            case.same("by its tenant", listed, vec![Arc::new(changing.clone())]);
            let lanes = case.done("lanes", case.store.lanes(vec![changing.id.into()]).await);
            case.same("as a lane", lanes, vec![Arc::new(changing.lane_settings())]);
        }
    }
}

pub(super) async fn a_tenant_s_endpoints_come_by_id<S: Store>(case: &Case<S>) {
    let stranger = TenantId::from_raw(8);
    let nobody = TenantId::from_raw(7);
    for n in [3, 1, 2] {
        case.same("before", case.done("endpoints", case.store.endpoints(nobody).await), Vec::new());
        case.put_endpoint(endpoint(n)).await;
        case.put_endpoint(Endpoint { tenant: stranger, ..endpoint(n + 10) }).await;
    }
    for (tenant, expected) in [(endpoint(1).tenant, [1, 2, 3]), (stranger, [11, 12, 13])] {
        let found = case.done("endpoints", case.store.endpoints(tenant).await);
        let ids: Vec<u64> = found.iter().map(|endpoint| endpoint.id.raw()).collect();
        case.same("the tenant's", ids, expected.to_vec());
        case.check(found.iter().all(|endpoint| endpoint.tenant == tenant), "nobody else's");
    }
    case.put_endpoint(Endpoint { tenant: stranger, ..endpoint(2) }).await;
    let left = case.done("endpoints", case.store.endpoints(endpoint(1).tenant).await);
    case.same("without one that moved", left.len(), 2);
}

pub(super) async fn lanes_come_in_the_order_they_are_asked_for<S: Store>(case: &Case<S>) {
    let strict = Endpoint { order: Order::Strict, on_dead: OnDead::Hold, max_in_flight: 1, ..endpoint(2) };
    for endpoint in [endpoint(1), strict.clone(), endpoint(3)] {
        case.put_endpoint(endpoint).await;
    }
    let asked: Vec<LaneId> = [3, 77, 2, 1].map(lane_id).to_vec();
    let expected = vec![
        Arc::new(endpoint(3).lane_settings()),
        Arc::new(strict.lane_settings()),
        Arc::new(endpoint(1).lane_settings()),
    ];
    for _ in 0..2 {
        case.same("those that exist", case.done("lanes", case.store.lanes(asked.clone()).await), expected.clone());
    }
    case.same("of nothing", case.done("lanes", case.store.lanes(Vec::new()).await), Vec::<Arc<LaneSettings>>::new());
}

pub(super) async fn an_unknown_policy_reads_as_the_default<S: Store>(case: &Case<S>) {
    let newer = Endpoint { policy: "from a newer version".to_owned(), ..endpoint(1) };
    case.put_endpoint(newer.clone()).await;
    let lanes = case.done("lanes", case.store.lanes(vec![newer.id.into()]).await);
    let policies: Vec<&Policy> = lanes.iter().map(|lane| &*lane.policy).collect();
    case.same("the policy", policies, vec![&Policy::default()]);
    let found = case.done("endpoint", case.store.endpoint(newer.id).await);
    case.same("its name is kept", found.map(|found| found.policy.clone()), Some(newer.policy));
}
