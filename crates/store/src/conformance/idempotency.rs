//! Idempotency keys: of any number of calls with one key, one is fresh and the others get its answer.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::{TenantId, Timestamp};

use super::fixture::{DeliveryDraft, NOW, StoreCase, after, call, endpoint};
use crate::{Acceptance, Accepted, AuditStamp, EndpointPut, Idempotency, Store, StoreError};

const DAY_MS: i64 = 86_400_000;

fn replayed(text: &'static str) -> Acceptance {
    Acceptance::Replayed(call(0, NOW, text).answer)
}

impl<S: Store> StoreCase<S> {
    /// A message with one delivery under a key, not accepted yet.
    fn keyed(&self, idempotency: Idempotency) -> Accepted {
        let accepted = self.message_with(&[DeliveryDraft::to(1)], |message| message.tenant = idempotency.tenant);
        Accepted { idempotency: Some(idempotency), ..accepted }
    }

    async fn call(&self, idempotency: Idempotency) -> Acceptance {
        let accepted = self.keyed(idempotency);
        let mut acceptances = self.done("accept", self.store.accept(self.session(), vec![accepted]).await);
        self.same("one result for one message", acceptances.len(), 1);
        acceptances.remove(0)
    }

    async fn is_kept(&self, accepted: &Accepted) -> bool {
        let message = self.done("message", self.store.message(accepted.message.id).await).is_some();
        let row = self.pending(accepted.deliveries[0].delivery.id).await.is_some();
        self.check(message == row, "a message and its delivery are kept together");
        message
    }
}

pub(super) async fn repeated_key_gets_the_first_answer_and_stores_nothing<S: Store>(case: &StoreCase<S>) {
    let first = case.keyed(call(1, NOW, "first"));
    let again = case.keyed(call(1, after(5), "again"));
    let other = case.keyed(call(2, after(5), "other"));
    for (accepted, expected) in [
        (&first, Acceptance::Fresh),
        (&again, replayed("first")),
        (&other, Acceptance::Fresh),
        (&again, replayed("first")),
    ] {
        let found = case.done("accept", case.store.accept(case.session(), vec![accepted.clone()]).await);
        case.same("the result", found, vec![expected]);
    }
    case.check(case.is_kept(&first).await && case.is_kept(&other).await, "new ones are kept");
    case.check(!case.is_kept(&again).await, "the duplicate is not stored");
    let mut arrived = Vec::new();
    while arrived.len() < 2 {
        arrived.extend(case.arrived().await);
    }
    let expected = vec![first.deliveries[0].delivery.id, other.deliveries[0].delivery.id];
    case.same("what arrived", arrived, expected);
}

pub(super) async fn first_of_equal_keys_in_one_accept_is_fresh<S: Store>(case: &StoreCase<S>) {
    let batch = vec![
        case.keyed(call(1, NOW, "first")),
        case.message(&[DeliveryDraft::to(1)]),
        case.keyed(call(1, NOW, "second")),
        case.keyed(Idempotency { digest: [2; 32], ..call(1, NOW, "third") }),
        case.message(&[DeliveryDraft::to(1)]),
    ];
    let found = case.done("accept", case.store.accept(case.session(), batch.clone()).await);
    let expected = [Acceptance::Fresh, Acceptance::Fresh, replayed("first"), Acceptance::KeyReused, Acceptance::Fresh];
    case.same("the results", found, expected.to_vec());
    for (accepted, fresh) in batch.iter().zip([true, true, false, false, true]) {
        case.same("what is kept", case.is_kept(accepted).await, fresh);
    }
}

pub(super) async fn exactly_one_of_concurrent_calls_with_one_key_is_fresh<S: Store>(case: &StoreCase<S>) {
    for n in 0..50 {
        let twins = ["a", "b", "c", "d"].map(|text| case.keyed(call(n, NOW, text)));
        let accept = |twin: usize| case.store.accept(case.session(), vec![twins[twin].clone()]);
        let (a, b, c, d) = tokio::join!(accept(0), accept(1), accept(2), accept(3));
        let found = [a, b, c, d].map(|twin| case.done("accept", twin).remove(0));
        let fresh: Vec<usize> = (0..4).filter(|twin| found[*twin] == Acceptance::Fresh).collect();
        case.same("how many are new", fresh.len(), 1);
        let first = replayed(["a", "b", "c", "d"][fresh[0]]);
        case.same("the others' answer", found.iter().filter(|twin| **twin == first).count(), 3);
        for (twin, accepted) in twins.iter().enumerate() {
            case.same("what is kept", case.is_kept(accepted).await, twin == fresh[0]);
        }
    }
}

pub(super) async fn a_key_for_another_request_is_refused<S: Store>(case: &StoreCase<S>) {
    case.same("the first", case.call(call(1, NOW, "first")).await, Acceptance::Fresh);
    let other = case.keyed(Idempotency { digest: [2; 32], ..call(1, after(1), "other") });
    let found = case.done("accept", case.store.accept(case.session(), vec![other.clone()]).await);
    case.same("another request", found, vec![Acceptance::KeyReused]);
    case.check(!case.is_kept(&other).await, "it is not stored");
    case.same("the first is still known", case.call(call(1, after(2), "again")).await, replayed("first"));
}

pub(super) async fn key_is_remembered_for_a_day_across_midnight<S: Store>(case: &StoreCase<S>) {
    for (n, hour) in (0..).zip([0, 1, 12, 23]) {
        let first = Timestamp::from_millis(20_000 * DAY_MS + hour * 3_600_000);
        let later = |ms: i64| Timestamp::from_millis(first.as_millis() + ms);
        case.same("the first", case.call(call(n, first, "first")).await, Acceptance::Fresh);
        case.same("just before", case.call(call(n, later(DAY_MS - 1), "b")).await, replayed("first"));
        case.same("by a clock set back", case.call(call(n, later(-3_600_000), "c")).await, replayed("first"));
        case.same("a day later", case.call(call(n, later(DAY_MS), "second")).await, Acceptance::Fresh);
        case.same("the later one stands", case.call(call(n, later(DAY_MS + 1), "d")).await, replayed("second"));
    }
}

pub(super) async fn same_key_of_two_tenants_is_two_keys<S: Store>(case: &StoreCase<S>) {
    case.same("one", case.call(call(1, NOW, "first")).await, Acceptance::Fresh);
    let stranger = Idempotency { tenant: TenantId::from_raw(10), digest: [2; 32], ..call(1, NOW, "theirs") };
    case.same("another's", case.call(stranger).await, Acceptance::Fresh);
    case.same("one again", case.call(call(1, NOW, "again")).await, replayed("first"));
}

pub(super) async fn key_outlives_its_session_and_a_refused_call_stores_none<S: Store>(case: &StoreCase<S>) {
    case.same("the first", case.call(call(1, NOW, "first")).await, Acceptance::Fresh);
    let newer = case.reopen().await.session;
    let fenced = case.store.accept(case.session(), vec![case.keyed(call(2, NOW, "fenced"))]).await;
    case.check(matches!(fenced, Err(StoreError::Fenced { .. })), "the older session is refused");
    for (n, expected) in [(1, replayed("first")), (2, Acceptance::Fresh)] {
        let accepted = case.keyed(call(n, NOW, "newer"));
        let found = case.done("accept", case.store.accept(newer, vec![accepted]).await);
        case.same("in the newer session", found, vec![expected]);
    }
}

pub(super) async fn large_duplicates_do_not_fill_the_arrival_queue<S: Store>(case: &StoreCase<S>) {
    let body = Bytes::from(vec![b'x'; 1 << 20]);
    for n in 0..70 {
        let mut accepted = case.keyed(call(1, NOW, "first"));
        Arc::make_mut(&mut accepted.message).body = body.clone();
        case.accept_in_time(accepted, &format!("duplicate {n}")).await;
    }
}

pub(super) async fn an_endpoint_is_made_once_under_one_key<S: Store>(case: &StoreCase<S>) {
    let put = async |n, once| {
        let put = case.store.put_endpoint(case.session(), endpoint(n), Some(once), AuditStamp::at(NOW)).await;
        (case.done("put_endpoint", put), case.done("endpoint", case.store.endpoint(endpoint(n).id).await).is_some())
    };
    case.same("the first", put(1, call(1, NOW, "first")).await, (EndpointPut::Done, true));
    let first = EndpointPut::Replayed(call(1, NOW, "first").answer);
    case.same("again", put(2, call(1, NOW, "again")).await, (first, false));
    let other = Idempotency { digest: [2; 32], ..call(1, NOW, "other") };
    case.same("another", put(3, other).await, (EndpointPut::KeyReused, false));
    case.same("a message under that key", case.call(call(1, NOW, "message")).await, replayed("first"));
}
