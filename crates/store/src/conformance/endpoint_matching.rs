//! Endpoints by subject and tag, and a tenant's cached list while endpoints change.

use std::sync::Arc;

use posthaste_core::{Cause, CutScope, EndpointChange, State, TenantId};

use super::fixture::{DeliveryDraft, MANY, StoreCase, after, endpoint, endpoint_id, lane_id, number_of};
use crate::Store;
use crate::row::{Endpoint, EndpointSelector, EndpointStatus, Erase, ErasureTarget};

const STRANGER: TenantId = TenantId::from_raw(8);

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
        let (tenant, after) = (endpoint(1).tenant, after.map(endpoint_id));
        let Some(selector) = EndpointSelector::new(&owned(subjects), &owned(tags)) else {
            self.fail("a selector names something")
        };
        let page = self.done("match", self.store.endpoints_matching(tenant, selector, after, limit).await);
        let ids = page.endpoints.iter().map(|endpoint| number_of(endpoint.id)).collect();
        (ids, page.next.map(number_of))
    }

    async fn matching(&self, subjects: &[&str], tags: &[&str]) -> Vec<u64> {
        self.page_matching((subjects, tags), None, MANY).await.0
    }

    async fn statuses_listed(&self, tenant: TenantId) -> Vec<(u64, u32, EndpointStatus)> {
        let list = self.done("endpoints", self.store.endpoints(tenant).await);
        list.iter().map(|endpoint| (number_of(endpoint.id), endpoint.version, endpoint.status)).collect()
    }
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
    let tenant = endpoint(1).tenant;
    for n in [1, 2, 3] {
        case.put_endpoint(tagged(n, Some("ann"), &["a"])).await;
    }
    case.put_endpoint(tagged(4, Some("bob"), &["a"])).await;
    case.matching(&["ann"], &[]).await;
    case.cut(CutScope::Lane(lane_id(2)), endpoint(2).id.0, Cause::EndpointDeleted, &[]).await;
    case.same("deleted", case.matching(&["ann"], &[]).await, vec![1, 3]);
    case.same("nor by its tag", case.matching(&[], &["a"]).await, vec![1, 3, 4]);
    let erase = Erase { tenant, whom: ErasureTarget::Subject("ann".to_owned()), at: after(1), by: None };
    case.done("erase", case.store.erase(case.session(), erase).await);
    case.same("erased", case.matching(&["ann"], &[]).await, vec![]);
    case.same("nor by their tag", case.matching(&[], &["a"]).await, vec![4]);
    case.put_endpoint(tagged(5, Some("ann"), &["a"])).await;
    case.same("made after that", case.matching(&["ann"], &["a"]).await, vec![5]);
}

pub(super) async fn cached_list_includes_later_changes<S: Store>(case: &StoreCase<S>) {
    let (own, active) = (endpoint(1).tenant, EndpointStatus::Active);
    case.put_endpoint(endpoint(3)).await;
    case.put_endpoint(Endpoint { tenant: STRANGER, ..endpoint(20) }).await;
    case.same("read", case.statuses_listed(own).await, vec![(3, 0, active)]);
    case.same("another's", case.statuses_listed(STRANGER).await, vec![(20, 0, active)]);
    case.put_endpoint(endpoint(1)).await;
    case.put_endpoint(endpoint(7)).await;
    case.same("two more", case.statuses_listed(own).await, vec![(1, 0, active), (3, 0, active), (7, 0, active)]);
    case.put_endpoint(Endpoint { version: 1, max_in_flight: 3, ..endpoint(3) }).await;
    let list = case.done("endpoints", case.store.endpoints(own).await);
    case.same("changed", (list[1].version, list[1].max_in_flight), (1, 3));
    let delivery = case.accept_one(DeliveryDraft::to(7)).await;
    let dead = State::Dead { at: after(2), cause: Cause::DisableAsked };
    let mut settlement = case.attempted(&delivery, dead, Cause::DisableAsked);
    settlement.record.endpoint_change = Some(EndpointChange::Disabled);
    case.settle(settlement).await;
    case.cut(CutScope::Lane(lane_id(3)), endpoint(3).id.0, Cause::EndpointGone, &[]).await;
    let disabled = EndpointStatus::Disabled(crate::row::DisabledBy::Receiver);
    let expected = vec![(1, 0, active), (3, 2, EndpointStatus::Gone), (7, 1, disabled)];
    case.same("gone and disabled", case.statuses_listed(own).await, expected);
    case.cut(CutScope::Lane(lane_id(1)), endpoint(1).id.0, Cause::EndpointDeleted, &[]).await;
    case.put_endpoint(Endpoint { tenant: STRANGER, version: 2, ..endpoint(7) }).await;
    case.same("deleted and moved", case.statuses_listed(own).await, vec![(3, 2, EndpointStatus::Gone)]);
    case.same("its new tenant's", case.statuses_listed(STRANGER).await, vec![(7, 2, active), (20, 0, active)]);
}
