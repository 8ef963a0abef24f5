//! Endpoints: stored, listed and matched by subject and tag, and the lanes behind them.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::scheduler::{OnDead, Order};
use posthaste_core::{Cause, CutScope, EndpointChange, EndpointId, LaneId, LaneSettings, Policy, State, TenantId};

use super::fixture::{
    DeliveryDraft, MANY, NOW, STRANGER, StoreCase, TENANT, after, api_key, call, endpoint, endpoint_id, lane_id,
    number_of, webhook,
};
use crate::journal::JournalEntry;
use crate::{
    AuditStamp, DisabledBy, Endpoint, EndpointPut, EndpointSelector, EndpointStatus, FirstAnswer, Idempotency,
    ListOrder, SecretAct, Settlement, SigningSecret, Store, WebhookTarget,
};

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn tagged(n: u64, subject: Option<&str>, tags: &[&str]) -> Endpoint {
    Endpoint { subject: subject.map(str::to_owned), tags: owned(tags), ..endpoint(n) }
}

impl<S: Store> StoreCase<S> {
    /// A page of the fixture tenant's endpoints: their numbers, and the number after which the next page begins.
    async fn page_matching(
        &self,
        (subjects, tags): (&[&str], &[&str]),
        after: Option<u64>,
        limit: u32,
    ) -> (Vec<u64>, Option<u64>) {
        let after = after.map(endpoint_id);
        let Some(selector) = EndpointSelector::new(&owned(subjects), &owned(tags)) else {
            self.fail("a selector names something")
        };
        let page = self.done("match", self.store.endpoints_matching(TENANT, selector, after, limit).await);
        let ids = page.endpoints.iter().map(|endpoint| number_of(endpoint.id)).collect();
        (ids, page.next.map(number_of))
    }

    async fn try_put(&self, endpoint: Endpoint) -> EndpointPut {
        self.done("put", self.store.put_endpoint(self.session(), endpoint, None, AuditStamp::at(NOW)).await)
    }

    /// The settlement of a new delivery to the `n`th endpoint, whose receiver asks to be disabled.
    async fn disabling(&self, n: u64) -> Settlement {
        let delivery = self.accept_one(DeliveryDraft::to(n)).await;
        let dead = State::Dead { at: after(2), cause: Cause::DisableAsked };
        let mut settlement = self.attempted(&delivery, dead, Cause::DisableAsked);
        settlement.record.endpoint_change = Some(EndpointChange::Disabled);
        settlement
    }

    async fn matching(&self, subjects: &[&str], tags: &[&str]) -> Vec<u64> {
        self.page_matching((subjects, tags), None, MANY).await.0
    }

    async fn statuses_listed(&self, tenant: TenantId) -> Vec<(u64, u32, EndpointStatus)> {
        let list = self.done("endpoints", self.store.endpoints(tenant).await);
        list.iter().map(|endpoint| (number_of(endpoint.id), endpoint.version, endpoint.status)).collect()
    }
}

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
    let put = async |endpoint| case.try_put(endpoint).await;
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
    let put = async |endpoint| case.try_put(endpoint).await;
    let uid = Some("laptop".to_owned());
    let of = |n, version, subject: &str| Endpoint { version, uid: uid.clone(), ..tagged(n, Some(subject), &[]) };
    case.put_endpoint(of(1, 0, "ann")).await;
    let erasure = case.erase_subject("ann").await;
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
    let settlement = case.disabling(1).await;
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
    let first = FirstAnswer { status: 200, body: "{}".into() };
    let once = Idempotency { answer: first.clone(), ..call(7, after(1), "") };
    let put = case.store.rotate_secret(case.session(), rotated.clone(), Some(once.clone()), again).await;
    case.same("rotated", case.done("rotate", put), EndpointPut::Done);
    let put = case.store.rotate_secret(case.session(), rotated.clone(), None, AuditStamp::at(NOW)).await;
    case.same("rotated by another caller since", case.done("rotate", put), EndpointPut::Stale);
    let put = case.store.rotate_secret(case.session(), rotated, Some(once), AuditStamp::at(NOW)).await;
    case.same("under its key, as before", case.done("rotate", put), EndpointPut::Replayed(first));
    let noted = case.entries_that(|entry| matches!(entry, JournalEntry::Secret { .. })).await;
    let entry = |act, stamp| JournalEntry::secret(id, tenant, act, stamp);
    case.same("both", noted, vec![entry(SecretAct::Shown, shown), entry(SecretAct::Rotated, again)]);
}

pub(super) async fn endpoints_of_one_or_all_tenants_are_listed_in_both_orders<S: Store>(case: &StoreCase<S>) {
    for n in [1, 2, 3] {
        case.put_endpoint(endpoint(n)).await;
        case.put_endpoint(Endpoint { tenant: STRANGER, ..endpoint(n + 10) }).await;
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
    let put = async |endpoint| case.try_put(endpoint).await;
    let crm = |n| Endpoint { uid: Some("crm".to_owned()), ..endpoint(n) };
    case.put_endpoint(crm(1)).await;
    case.put_endpoint(Endpoint { tenant: STRANGER, ..crm(2) }).await;
    case.put_endpoint(Endpoint { uid: None, ..endpoint(3) }).await;
    case.put_endpoint(Endpoint { uid: None, ..endpoint(4) }).await;
    case.same("the tenant's own", named(TENANT, "crm").await, Some(endpoint(1).id));
    case.same("another tenant's", named(STRANGER, "crm").await, Some(endpoint(2).id));
    case.same("an unknown uid", named(TENANT, "CRM").await, None);
    case.same("it is taken", put(Endpoint { version: 1, ..crm(3) }).await, EndpointPut::UidTaken);
    case.put_endpoint(Endpoint { version: 1, uid: Some("erp".to_owned()), ..endpoint(1) }).await;
    case.same("its old one is free", named(TENANT, "crm").await, None);
    case.put_endpoint(Endpoint { version: 1, ..crm(3) }).await;
    case.same("and found again", named(TENANT, "crm").await, Some(endpoint(3).id));
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
    case.same("it cannot be changed", case.try_put(again).await, EndpointPut::Stale);
    case.cut(CutScope::Lane(lane_id(1)), waiting.id.0, Cause::EndpointGone, &[]).await;
    let left = case.done("endpoint", case.store.endpoint(expected.id).await);
    case.same("nor turned into anything else", left.as_deref(), Some(&expected));
    case.put_endpoint(Endpoint { uid: Some("endpoint-1".to_owned()), ..endpoint(3) }).await;
}

pub(super) async fn a_tenant_s_endpoints_come_by_id<S: Store>(case: &StoreCase<S>) {
    let empty = TenantId::from_raw(7);
    for n in [3, 1, 2] {
        case.same("before", case.done("endpoints", case.store.endpoints(empty).await), Arc::default());
        case.put_endpoint(endpoint(n)).await;
        case.put_endpoint(Endpoint { tenant: STRANGER, ..endpoint(n + 10) }).await;
    }
    for (tenant, expected) in [(endpoint(1).tenant, [1, 2, 3]), (STRANGER, [11, 12, 13])] {
        let found = case.done("endpoints", case.store.endpoints(tenant).await);
        let ids: Vec<EndpointId> = found.iter().map(|endpoint| endpoint.id).collect();
        case.same("the tenant's", ids, expected.map(endpoint_id).to_vec());
        case.check(found.iter().all(|endpoint| endpoint.tenant == tenant), "no other tenant's");
    }
    case.put_endpoint(Endpoint { tenant: STRANGER, version: 1, ..endpoint(2) }).await;
    let left = case.done("endpoints", case.store.endpoints(endpoint(1).tenant).await);
    case.same("without one that moved", left.len(), 2);
}

pub(super) async fn lanes_come_in_the_order_they_are_asked_for<S: Store>(case: &StoreCase<S>) {
    let strict = Endpoint { order: Order::Strict, on_dead: OnDead::Hold, max_in_flight: 1, ..endpoint(2) };
    for endpoint in [endpoint(1), strict.clone(), endpoint(3)] {
        case.put_endpoint(endpoint).await;
    }
    let requested: Vec<LaneId> = [3, 77, 2, 1].map(lane_id).to_vec();
    let expected = [endpoint(3), strict, endpoint(1)].map(|endpoint| Arc::new(endpoint.lane_settings())).to_vec();
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

pub(super) async fn endpoints_match_by_subject_by_tag_and_by_both<S: Store>(case: &StoreCase<S>) {
    for endpoint in [
        tagged(1, Some("ann"), &["eu", "beta"]),
        tagged(2, Some("bob"), &["eu"]),
        tagged(3, None, &["us", "beta"]),
        tagged(4, Some("ann"), &[]),
        Endpoint { tenant: STRANGER, ..tagged(5, Some("ann"), &["eu"]) },
    ] {
        case.put_endpoint(endpoint).await;
    }
    // Read twice, because the second result may come from a cache.
    for _ in 0..2 {
        case.same("a subject's", case.matching(&["ann"], &[]).await, vec![1, 4]);
        case.same("of two subjects", case.matching(&["bob", "ann", "eve"], &[]).await, vec![1, 2, 4]);
        case.same("with a tag", case.matching(&[], &["eu"]).await, vec![1, 2]);
        case.same("each once", case.matching(&[], &["beta", "eu", "us", "eu"]).await, vec![1, 2, 3]);
        case.same("both", case.matching(&["ann", "bob"], &["beta", "us"]).await, vec![1]);
        case.same("a subject is no tag", case.matching(&["eu"], &[]).await, vec![]);
        case.same("a tag is no subject", case.matching(&[], &["ann"]).await, vec![]);
        case.same("unknown", case.matching(&["Ann"], &["beta"]).await, vec![]);
    }
    let found = case.store.endpoints_matching(STRANGER, EndpointSelector::for_subject("ann"), None, MANY).await;
    let found = case.done("match", found).endpoints;
    case.same("whole", found, vec![Arc::new(Endpoint { tenant: STRANGER, ..tagged(5, Some("ann"), &["eu"]) })]);
}

pub(super) async fn matches_come_by_id_in_pages<S: Store>(case: &StoreCase<S>) {
    for n in [5, 3, 1, 4, 2, 6] {
        let subject = if n % 2 == 0 { "ann" } else { "bob" };
        case.put_endpoint(tagged(n, Some(subject), if n < 4 { &["a", "b"] } else { &["b"] })).await;
    }
    let both: (&[&str], &[&str]) = (&["ann", "bob"], &[]);
    case.same("first", case.page_matching(both, None, 2).await, (vec![1, 2], Some(2)));
    case.same("next", case.page_matching(both, Some(2), 3).await, (vec![3, 4, 5], Some(5)));
    case.same("last", case.page_matching(both, Some(5), 3).await, (vec![6], None));
    case.same("exactly full", case.page_matching(both, Some(4), 2).await, (vec![5, 6], None));
    case.same("behind all", case.page_matching(both, Some(6), 2).await, (vec![], None));
    case.same("tags", case.page_matching((&[], &["b", "a"]), Some(1), 2).await, (vec![2, 3], Some(3)));
    // The page reads two of the subject's endpoints, and one of them has the tag.
    case.same("filtered", case.page_matching((&["ann"], &["a"]), None, 2).await, (vec![2], Some(4)));
    case.same("emptied", case.page_matching((&["ann"], &["a"]), Some(4), 2).await, (vec![], None));
    case.same("nothing asked for", case.page_matching(both, Some(3), 0).await, (vec![], Some(3)));
}

pub(super) async fn changed_endpoint_matches_by_its_new_fields<S: Store>(case: &StoreCase<S>) {
    case.put_endpoint(tagged(1, Some("ann"), &["a", "b"])).await;
    case.matching(&["ann"], &["a"]).await;
    case.put_endpoint(Endpoint { version: 1, ..tagged(1, Some("bob"), &["b", "c", "c"]) }).await;
    case.same("its old subject", case.matching(&["ann"], &[]).await, vec![]);
    case.same("its old tag", case.matching(&[], &["a"]).await, vec![]);
    case.same("its new subject", case.matching(&["bob"], &[]).await, vec![1]);
    case.same("a tag it keeps", case.matching(&[], &["b"]).await, vec![1]);
    case.same("its new tag", case.matching(&[], &["c"]).await, vec![1]);
    case.put_endpoint(Endpoint { version: 2, ..tagged(1, None, &[]) }).await;
    case.same("no subject any more", case.matching(&["bob"], &[]).await, vec![]);
    case.same("no tags any more", case.matching(&[], &["a", "b", "c"]).await, vec![]);
    case.put_endpoint(Endpoint { version: 3, ..tagged(1, Some("ann"), &["a"]) }).await;
    case.cut(CutScope::Lane(lane_id(1)), endpoint(1).id.0, Cause::EndpointGone, &[]).await;
    case.same("gone, and still its subject's", case.matching(&["ann"], &["a"]).await, vec![1]);
    case.put_endpoint(Endpoint { tenant: STRANGER, version: 5, ..tagged(1, Some("ann"), &["a"]) }).await;
    case.same("another tenant's now", case.matching(&["ann"], &[]).await, vec![]);
    case.same("with its tags", case.matching(&[], &["a"]).await, vec![]);
    case.reopen().await;
    let found = case.store.endpoints_matching(STRANGER, EndpointSelector::for_subject("ann"), None, MANY).await;
    case.same("found there", case.done("match", found).endpoints.len(), 1);
}

pub(super) async fn an_endpoint_that_was_deleted_or_erased_matches_nothing<S: Store>(case: &StoreCase<S>) {
    for n in [1, 2, 3] {
        case.put_endpoint(tagged(n, Some("ann"), &["a"])).await;
    }
    case.put_endpoint(tagged(4, Some("bob"), &["a"])).await;
    case.matching(&["ann"], &[]).await;
    case.cut(CutScope::Lane(lane_id(2)), endpoint(2).id.0, Cause::EndpointDeleted, &[]).await;
    case.same("deleted", case.matching(&["ann"], &[]).await, vec![1, 3]);
    case.same("nor by its tag", case.matching(&[], &["a"]).await, vec![1, 3, 4]);
    case.erase_subject("ann").await;
    case.same("erased", case.matching(&["ann"], &[]).await, vec![]);
    case.same("nor by their tag", case.matching(&[], &["a"]).await, vec![4]);
    case.put_endpoint(tagged(5, Some("ann"), &["a"])).await;
    case.same("made after that", case.matching(&["ann"], &["a"]).await, vec![5]);
}

pub(super) async fn cached_list_includes_later_changes<S: Store>(case: &StoreCase<S>) {
    let active = EndpointStatus::Active;
    case.put_endpoint(endpoint(3)).await;
    case.put_endpoint(Endpoint { tenant: STRANGER, ..endpoint(20) }).await;
    case.same("read", case.statuses_listed(TENANT).await, vec![(3, 0, active)]);
    case.same("another's", case.statuses_listed(STRANGER).await, vec![(20, 0, active)]);
    case.put_endpoint(endpoint(1)).await;
    case.put_endpoint(endpoint(7)).await;
    case.same("two more", case.statuses_listed(TENANT).await, vec![(1, 0, active), (3, 0, active), (7, 0, active)]);
    case.put_endpoint(Endpoint { version: 1, max_in_flight: 3, ..endpoint(3) }).await;
    let list = case.done("endpoints", case.store.endpoints(TENANT).await);
    case.same("changed", (list[1].version, list[1].max_in_flight), (1, 3));
    case.settle(case.disabling(7).await).await;
    case.cut(CutScope::Lane(lane_id(3)), endpoint(3).id.0, Cause::EndpointGone, &[]).await;
    let disabled = EndpointStatus::Disabled(DisabledBy::Receiver);
    let expected = vec![(1, 0, active), (3, 2, EndpointStatus::Gone), (7, 1, disabled)];
    case.same("gone and disabled", case.statuses_listed(TENANT).await, expected);
    case.cut(CutScope::Lane(lane_id(1)), endpoint(1).id.0, Cause::EndpointDeleted, &[]).await;
    case.put_endpoint(Endpoint { tenant: STRANGER, version: 2, ..endpoint(7) }).await;
    case.same("deleted and moved", case.statuses_listed(TENANT).await, vec![(3, 2, EndpointStatus::Gone)]);
    case.same("its new tenant's", case.statuses_listed(STRANGER).await, vec![(7, 2, active), (20, 0, active)]);
}
