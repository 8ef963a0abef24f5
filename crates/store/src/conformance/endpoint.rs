//! Endpoints, and the lanes behind them.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::scheduler::{OnDead, Order};
use posthaste_core::{Cause, CutScope, EndpointChange, EndpointId, LaneId, LaneSettings, Policy, State, TenantId};

use super::fixture::{
    DeliveryDraft, MANY, NOW, StoreCase, after, api_key, endpoint, endpoint_id, lane_id, number_of, webhook,
};
use crate::Store;
use crate::journal::JournalEntry;
use crate::row::{
    AuditStamp, DisabledBy, Endpoint, EndpointPut, EndpointStatus, Erase, ErasureTarget, FirstAnswer, Idempotency,
    KeyHash, ListOrder, SecretAct, SigningSecret, WebhookTarget,
};

pub(super) async fn an_endpoint_comes_back_with_every_field<S: Store>(case: &StoreCase<S>) {
    let full = endpoint(1);
    let bare = Endpoint {
        order: Order::Strict,
        on_dead: OnDead::Hold,
        max_in_flight: u16::MAX,
        status: EndpointStatus::Gone,
        ..Endpoint::new(endpoint(2).id, endpoint(2).lane, endpoint(2).tenant, after(1), "https://example.com/2")
    };
    let with_subject = Endpoint {
        subject: Some("ann é".to_owned()),
        status: EndpointStatus::Disabled(DisabledBy::Receiver),
        ..endpoint(4)
    };
    let newest_first = Endpoint { order: Order::NewestFirst, ttl: Some(Duration::ZERO), ..endpoint(3) };
    for expected in [full, bare, newest_first, with_subject] {
        case.put_endpoint(expected.clone()).await;
        let found = case.done("endpoint", case.store.endpoint(expected.id).await);
        case.same("the endpoint", found.map(|found| (*found).clone()), Some(expected));
    }
    let none = case.done("endpoint", case.store.endpoint(endpoint_id(77)).await);
    case.same("an endpoint that was never made", none, None);
    let none = case.done("endpoint_of_lane", case.store.endpoint_of_lane(lane_id(77)).await);
    case.same("a lane that no endpoint has", none, None);
}

pub(super) async fn a_changed_endpoint_is_seen_at_once<S: Store>(case: &StoreCase<S>) {
    let mut changing = endpoint(1);
    for round in 1..=3 {
        let url = format!("https://example.com/round/{round}");
        let secrets = vec![SigningSecret::lasting(format!("whsec_{round}")); usize::from(4 - round)];
        changing.target = WebhookTarget { url, secrets, ..webhook(1) }.into();
        changing.version = u32::from(round) - 1;
        changing.uid = Some(format!("round-{round}"));
        changing.event_types = vec!["a".to_owned(); usize::from(3 - round)];
        changing.max_in_flight = round;
        changing.at = after(round.into());
        case.put_endpoint(changing.clone()).await;
        // Read twice, because the second result may come from a cache.
        for _ in 0..2 {
            let found = case.done("endpoint", case.store.endpoint(changing.id).await);
            case.same("by its id", found.as_deref(), Some(&changing));
            let listed = case.done("endpoints", case.store.endpoints(changing.tenant).await);
            case.same("by its tenant", listed, Arc::new(vec![Arc::new(changing.clone())]));
            let lanes = case.done("lanes", case.store.lanes(vec![changing.lane]).await);
            case.same("as a lane", lanes, vec![Arc::new(changing.lane_settings())]);
            let found = case.done("endpoint_of_lane", case.store.endpoint_of_lane(changing.lane).await);
            case.same("by its lane", found.as_deref(), Some(&changing));
        }
    }
}

pub(super) async fn change_of_an_outdated_version_is_refused<S: Store>(case: &StoreCase<S>) {
    let put = async |endpoint| {
        case.done("put", case.store.put_endpoint(case.session(), endpoint, None, AuditStamp::at(NOW)).await)
    };
    case.same("unknown endpoint", put(Endpoint { version: 1, ..endpoint(1) }).await, EndpointPut::Stale);
    case.put_endpoint(endpoint(1)).await;
    case.same("made twice", put(endpoint(1)).await, EndpointPut::Stale);
    case.put_endpoint(Endpoint { version: 1, max_in_flight: 3, ..endpoint(1) }).await;
    case.same("an older version", put(Endpoint { version: 1, ..endpoint(1) }).await, EndpointPut::Stale);
    case.same("a version too high", put(Endpoint { version: 3, ..endpoint(1) }).await, EndpointPut::Stale);
    let found = case.done("endpoint", case.store.endpoint(endpoint(1).id).await);
    case.same("nothing was written", found.map(|found| (found.version, found.max_in_flight)), Some((1, 3)));
    case.cut(CutScope::Lane(lane_id(1)), endpoint(1).id.0, Cause::EndpointGone, &[]).await;
    case.same("gone since", put(Endpoint { version: 2, ..endpoint(1) }).await, EndpointPut::Stale);
    case.put_endpoint(Endpoint { version: 3, ..endpoint(1) }).await;
}

/// A change that was prepared before its endpoint's subject was erased does not bring the endpoint back.
pub(super) async fn change_of_an_endpoint_whose_subject_was_erased_is_stale<S: Store>(case: &StoreCase<S>) {
    let put = async |endpoint| {
        case.done("put", case.store.put_endpoint(case.session(), endpoint, None, AuditStamp::at(NOW)).await)
    };
    let uid = Some("laptop".to_owned());
    let of = |n, version, subject: &str| Endpoint {
        version,
        subject: Some(subject.to_owned()),
        uid: uid.clone(),
        ..endpoint(n)
    };
    case.put_endpoint(of(1, 0, "ann")).await;
    let erase =
        Erase { tenant: endpoint(1).tenant, whom: ErasureTarget::Subject("ann".to_owned()), at: after(1), by: None };
    let erasure = case.done("erase", case.store.erase(case.session(), erase).await);
    case.same("the same subject's", put(of(1, 1, "ann")).await, EndpointPut::Stale);
    case.same("another subject's", put(of(1, 1, "bob")).await, EndpointPut::Stale);
    case.same("the uid is free", put(of(2, 0, "bob")).await, EndpointPut::Done);
    case.same("and taken", put(of(3, 0, "bob")).await, EndpointPut::UidTaken);
    case.finish(erasure, &[]).await;
    for version in [1, 2] {
        case.same("nor once all is erased", put(of(1, version, "ann")).await, EndpointPut::Stale);
    }
    let found = case.done("named", case.store.endpoint_named(endpoint(1).tenant, "laptop".to_owned()).await);
    case.same("by its uid", found, Some(endpoint(2).id));
}

pub(super) async fn an_endpoint_is_disabled_by_the_answer_that_asks_for_it<S: Store>(case: &StoreCase<S>) {
    case.put_endpoint(endpoint(1)).await;
    case.done("endpoint", case.store.endpoint(endpoint(1).id).await);
    let delivery = case.accept_one(DeliveryDraft::to(1)).await;
    let dead = State::Dead { at: after(2), cause: Cause::DisableAsked };
    let mut settlement = case.attempted(&delivery, dead, Cause::DisableAsked);
    settlement.record.endpoint_change = Some(EndpointChange::Disabled);
    case.settle(settlement.clone()).await;
    // The caller retries, as if its result had been lost.
    case.settle(settlement).await;
    let found = case.done("endpoint", case.store.endpoint(endpoint(1).id).await);
    let disabled = EndpointStatus::Disabled(DisabledBy::Receiver);
    case.same("once", found.map(|found| (found.version, found.status)), Some((1, disabled)));
    let lanes = case.done("lanes", case.store.lanes(vec![lane_id(1)]).await);
    let lanes: Vec<_> = lanes.iter().map(|lane| (lane.version, lane.disabled)).collect();
    case.same("its lane", lanes, vec![(1, true)]);
}

pub(super) async fn secret_display_and_rotation_are_in_the_journal<S: Store>(case: &StoreCase<S>) {
    case.put_endpoint(endpoint(1)).await;
    let (id, tenant) = (endpoint(1).id, endpoint(1).tenant);
    let (shown, again) = (AuditStamp { at: after(1), by: api_key(1) }, AuditStamp { at: after(2), by: api_key(2) });
    case.done("shown", case.store.note_secret_shown(case.session(), id, tenant, shown).await);
    let rotated = Endpoint {
        version: 1,
        target: WebhookTarget { secrets: vec![SigningSecret::lasting("whsec_newer")], ..webhook(1) }.into(),
        ..endpoint(1)
    };
    let first = FirstAnswer { status: 200, body: bytes::Bytes::from_static(b"{}") };
    let once = Idempotency { tenant, key: KeyHash([7; 16]), digest: [1; 32], answer: first.clone(), at: after(1) };
    let put = case.store.rotate_secret(case.session(), rotated.clone(), Some(once.clone()), again).await;
    case.same("rotated", case.done("rotate", put), EndpointPut::Done);
    let put = case.store.rotate_secret(case.session(), rotated.clone(), None, AuditStamp::at(NOW)).await;
    case.same("rotated by another caller since", case.done("rotate", put), EndpointPut::Stale);
    let put = case.store.rotate_secret(case.session(), rotated, Some(once), AuditStamp::at(NOW)).await;
    case.same("under its key, as before", case.done("rotate", put), EndpointPut::Replayed(first));
    let entries = case.journal_entries().await.into_iter().map(|(_, entry)| entry);
    let noted: Vec<JournalEntry> = entries.filter(|entry| matches!(entry, JournalEntry::Secret { .. })).collect();
    case.same(
        "both",
        noted,
        vec![
            JournalEntry::secret(id, tenant, SecretAct::Shown, shown),
            JournalEntry::secret(id, tenant, SecretAct::Rotated, again),
        ],
    );
}

pub(super) async fn endpoints_of_one_or_all_tenants_are_listed_in_both_orders<S: Store>(case: &StoreCase<S>) {
    let stranger = TenantId::from_raw(8);
    for n in [1, 2, 3] {
        case.put_endpoint(endpoint(n)).await;
        case.put_endpoint(Endpoint { tenant: stranger, ..endpoint(n + 10) }).await;
    }
    case.cut(CutScope::Lane(lane_id(12)), endpoint(12).id.0, Cause::EndpointDeleted, &[]).await;
    let list = async |tenant, order, after: Option<u64>, limit| {
        let after = after.map(endpoint_id);
        let found = case.done("list", case.store.list_endpoints(tenant, order, after, limit).await);
        found.iter().map(|endpoint| number_of(endpoint.id)).collect::<Vec<_>>()
    };
    let (own, newest, oldest) = (Some(endpoint(1).tenant), ListOrder::NewestFirst, ListOrder::OldestFirst);
    case.same("newest first", list(own, newest, None, 2).await, vec![3, 2]);
    case.same("and on", list(own, newest, Some(2), 2).await, vec![1]);
    case.same("oldest first", list(own, oldest, Some(1), MANY).await, vec![2, 3]);
    case.same("all tenants'", list(None, newest, None, MANY).await, vec![13, 11, 3, 2, 1]);
    case.same("the other way", list(None, oldest, Some(3), MANY).await, vec![11, 13]);
}

pub(super) async fn uid_is_unique_within_its_tenant<S: Store>(case: &StoreCase<S>) {
    let named = async |tenant: TenantId, uid: &str| {
        case.done("by uid", case.store.endpoint_named(tenant, uid.to_owned()).await)
    };
    let put = async |endpoint| {
        case.done("put", case.store.put_endpoint(case.session(), endpoint, None, AuditStamp::at(NOW)).await)
    };
    let (own, stranger) = (endpoint(1).tenant, TenantId::from_raw(8));
    let crm = |n| Endpoint { uid: Some("crm".to_owned()), ..endpoint(n) };
    case.put_endpoint(crm(1)).await;
    case.put_endpoint(Endpoint { tenant: stranger, ..crm(2) }).await;
    case.put_endpoint(Endpoint { uid: None, ..endpoint(3) }).await;
    case.put_endpoint(Endpoint { uid: None, ..endpoint(4) }).await;
    case.same("the tenant's own", named(own, "crm").await, Some(endpoint(1).id));
    case.same("another tenant's", named(stranger, "crm").await, Some(endpoint(2).id));
    case.same("an unknown uid", named(own, "CRM").await, None);
    case.same("it is taken", put(Endpoint { version: 1, ..crm(3) }).await, EndpointPut::UidTaken);
    case.put_endpoint(Endpoint { version: 1, uid: Some("erp".to_owned()), ..endpoint(1) }).await;
    case.same("its old one is free", named(own, "crm").await, None);
    case.put_endpoint(Endpoint { version: 1, ..crm(3) }).await;
    case.same("and found again", named(own, "crm").await, Some(endpoint(3).id));
}

pub(super) async fn tombstone_of_a_deleted_endpoint_keeps_its_tenant<S: Store>(case: &StoreCase<S>) {
    let deleted = Endpoint { subject: Some("ann".to_owned()), order: Order::Strict, ..endpoint(1) };
    case.put_endpoint(deleted.clone()).await;
    case.put_endpoint(endpoint(2)).await;
    let waiting = case.accept_one(DeliveryDraft::to(1)).await;
    case.cut(CutScope::Lane(lane_id(1)), waiting.id.0, Cause::EndpointDeleted, &[]).await;
    let cancelled = State::Cancelled { at: after(7), cause: Cause::EndpointDeleted };
    case.same("what waited for it", case.state(waiting.id).await, cancelled);
    let left = case.done("endpoint", case.store.endpoint(deleted.id).await);
    let expected = Endpoint {
        version: 1,
        order: Order::Strict,
        max_in_flight: deleted.max_in_flight,
        status: EndpointStatus::Deleted,
        ..Endpoint::new(deleted.id, deleted.lane, deleted.tenant, deleted.at, "")
    };
    case.same("what is left", left.as_deref(), Some(&expected));
    let listed = case.done("endpoints", case.store.endpoints(deleted.tenant).await);
    case.same("its tenant has the other one", listed, Arc::new(vec![Arc::new(endpoint(2))]));
    let walked = case.done("walk", case.store.endpoints_after(deleted.tenant, None, MANY).await);
    case.same("pages of all endpoints lack it too", walked.len(), 1);
    let again = Endpoint { version: 2, ..deleted };
    let put = case.done("put", case.store.put_endpoint(case.session(), again, None, AuditStamp::at(NOW)).await);
    case.same("it cannot be changed", put, EndpointPut::Stale);
    case.cut(CutScope::Lane(lane_id(1)), waiting.id.0, Cause::EndpointGone, &[]).await;
    let left = case.done("endpoint", case.store.endpoint(expected.id).await);
    case.same("nor turned into anything else", left.as_deref(), Some(&expected));
    case.put_endpoint(Endpoint { uid: Some("endpoint-1".to_owned()), ..endpoint(3) }).await;
}

pub(super) async fn a_tenant_s_endpoints_come_by_id<S: Store>(case: &StoreCase<S>) {
    let stranger = TenantId::from_raw(8);
    let empty = TenantId::from_raw(7);
    for n in [3, 1, 2] {
        case.same("before", case.done("endpoints", case.store.endpoints(empty).await), Arc::default());
        case.put_endpoint(endpoint(n)).await;
        case.put_endpoint(Endpoint { tenant: stranger, ..endpoint(n + 10) }).await;
    }
    for (tenant, expected) in [(endpoint(1).tenant, [1, 2, 3]), (stranger, [11, 12, 13])] {
        let found = case.done("endpoints", case.store.endpoints(tenant).await);
        let ids: Vec<EndpointId> = found.iter().map(|endpoint| endpoint.id).collect();
        case.same("the tenant's", ids, expected.map(endpoint_id).to_vec());
        case.check(found.iter().all(|endpoint| endpoint.tenant == tenant), "no other tenant's");
    }
    case.put_endpoint(Endpoint { tenant: stranger, version: 1, ..endpoint(2) }).await;
    let left = case.done("endpoints", case.store.endpoints(endpoint(1).tenant).await);
    case.same("without one that moved", left.len(), 2);
}

pub(super) async fn lanes_come_in_the_order_they_are_asked_for<S: Store>(case: &StoreCase<S>) {
    let strict = Endpoint { order: Order::Strict, on_dead: OnDead::Hold, max_in_flight: 1, ..endpoint(2) };
    for endpoint in [endpoint(1), strict.clone(), endpoint(3)] {
        case.put_endpoint(endpoint).await;
    }
    let requested: Vec<LaneId> = [3, 77, 2, 1].map(lane_id).to_vec();
    let expected = vec![
        Arc::new(endpoint(3).lane_settings()),
        Arc::new(strict.lane_settings()),
        Arc::new(endpoint(1).lane_settings()),
    ];
    for _ in 0..2 {
        case.same("those that exist", case.done("lanes", case.store.lanes(requested.clone()).await), expected.clone());
    }
    case.same("of nothing", case.done("lanes", case.store.lanes(Vec::new()).await), Vec::<Arc<LaneSettings>>::new());
}

pub(super) async fn an_unknown_policy_reads_as_the_default<S: Store>(case: &StoreCase<S>) {
    let newer = Endpoint { policy: Some("from a newer version".to_owned()), ..endpoint(1) };
    case.put_endpoint(newer.clone()).await;
    let lanes = case.done("lanes", case.store.lanes(vec![newer.lane]).await);
    let policies: Vec<&Policy> = lanes.iter().map(|lane| &*lane.policy).collect();
    case.same("the policy", policies, vec![&Policy::default()]);
    let found = case.done("endpoint", case.store.endpoint(newer.id).await);
    case.same("its name is kept", found.and_then(|found| found.policy.clone()), newer.policy);
}
