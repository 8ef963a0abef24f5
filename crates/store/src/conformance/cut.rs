//! Cuts: one row ends all deliveries of its scope up to an id.

use posthaste_core::{Cause, Cut, CutScope, Key, State};

use super::fixture::{DeliveryDraft, NOW, StoreCase, after, endpoint, lane_id};
use crate::Store;
use crate::row::EndpointStatus;

/// The final state of a delivery that a cut of these cases covers.
fn cancelled() -> State {
    State::Cancelled { at: after(7), cause: Cause::Cancelled }
}

pub(super) async fn lane_cut_ends_deliveries_up_to_its_id<S: Store>(case: &StoreCase<S>) {
    let ready = case.accept_one(DeliveryDraft::to(1)).await.id;
    let delayed = case.accept_one(DeliveryDraft::to(1).delayed(after(9))).await.id;
    let other = case.accept_one(DeliveryDraft::to(2)).await.id;
    let spilled = case.accept_one(DeliveryDraft::to(1).spilled()).await.id;
    let later = case.accept_one(DeliveryDraft::to(1)).await.id;
    let ended = case.cut(CutScope::Lane(lane_id(1)), spilled.0, Cause::Cancelled, &[]).await;
    case.same("how many it ended", ended, 3);
    for id in [ready, delayed, spilled] {
        case.same("ended at once", case.state(id).await, cancelled());
        case.check(case.pending(id).await.is_some(), "its row waits for the sweep");
    }
    for id in [other, later] {
        case.same("not covered", case.state(id).await, State::Queued { due: NOW });
    }
}

pub(super) async fn message_cut_ends_only_its_deliveries<S: Store>(case: &StoreCase<S>) {
    let before = case.accept(&[DeliveryDraft::to(1), DeliveryDraft::to(2)]).await;
    let message = case.message(&[DeliveryDraft::to(1), DeliveryDraft::to(2), DeliveryDraft::to(3).spilled()]);
    let ids: Vec<_> = message.deliveries.iter().map(|new| new.delivery.id).collect();
    let scope = CutScope::Message(message.message.id);
    case.done("accept", case.store.accept(case.session(), vec![message]).await);
    let behind = case.accept(&[DeliveryDraft::to(1), DeliveryDraft::to(2)]).await;
    case.same("how many it ended", case.cut(scope, behind[1].0, Cause::Cancelled, &[]).await, 3);
    for id in &ids {
        case.same("ended at once", case.state(*id).await, cancelled());
    }
    for id in before.iter().chain(&behind) {
        case.same("another message's", case.state(*id).await, State::Queued { due: NOW });
    }
}

pub(super) async fn deliveries_in_flight_are_spared_until_the_next_start<S: Store>(case: &StoreCase<S>) {
    let waiting = case.accept_one(DeliveryDraft::to(1)).await;
    let flying = case.accept_one(DeliveryDraft::to(1)).await;
    let scope = CutScope::Lane(lane_id(1));
    let ended = case.cut(scope, flying.id.0, Cause::Cancelled, &[flying.id]).await;
    case.same("how many it ended", ended, 1);
    case.same("the waiting delivery", case.state(waiting.id).await, cancelled());
    case.same("the delivery in flight", case.state(flying.id).await, flying.state);
    let start = case.reopen().await;
    case.same("after a start", case.state(flying.id).await, cancelled());
    case.check(start.cuts.iter().all(|cut| cut.spared.is_empty()), "the start names none of them");
}

pub(super) async fn spared_delivery_that_ended_does_not_lower_the_count<S: Store>(case: &StoreCase<S>) {
    let message = case.message(&[DeliveryDraft::to(1), DeliveryDraft::to(2)]);
    let flying = message.deliveries[0].delivery.clone();
    let upto = message.deliveries[1].delivery.id.0;
    let message_s = CutScope::Message(message.message.id);
    case.done("accept", case.store.accept(case.session(), vec![message]).await);
    case.accept_one(DeliveryDraft::to(1)).await;
    let last = case.accept_one(DeliveryDraft::to(1)).await;
    case.settle_done(case.attempted(&flying, State::Delivered { at: NOW }, Cause::Ok)).await;
    for (scope, upto, expected) in [(message_s, upto, 1), (CutScope::Lane(lane_id(1)), last.id.0, 2)] {
        let ended = case.cut(scope, upto, Cause::Cancelled, &[flying.id]).await;
        case.same("how many it ended", ended, expected);
    }
}

pub(super) async fn second_cut_extends_the_first_with_its_own_cause_and_time<S: Store>(case: &StoreCase<S>) {
    let first = case.accept_one(DeliveryDraft::to(1)).await.id;
    let second = case.accept_one(DeliveryDraft::to(1)).await.id;
    let third = case.accept_one(DeliveryDraft::to(1)).await.id;
    let scope = CutScope::Lane(lane_id(1));
    let unsubscribed = |upto, at, spared| Cut { scope, upto, cause: Cause::Unsubscribed, at, spared, endpoint: None };
    case.cut(scope, first.0, Cause::Cancelled, &[]).await;
    let further = case.store.cut(case.session(), unsubscribed(second.0, after(8), vec![second]), None).await;
    case.same("what both cover, without the spared delivery", case.done("cut", further), 1);
    case.same("spared by the second", case.state(second).await, State::Queued { due: NOW });
    let shorter = case.store.cut(case.session(), unsubscribed(first.0, after(9), Vec::new()), None).await;
    case.same("the count without the delivery that the second spared", case.done("cut", shorter), 1);
    case.same("still spared", case.state(second).await, State::Queued { due: NOW });
    case.same("above both", case.state(third).await, State::Queued { due: NOW });
    let start = case.reopen().await;
    case.same("the cut in force", start.cuts, vec![unsubscribed(second.0, after(9), Vec::new())]);
    let ended = State::Cancelled { at: after(9), cause: Cause::Unsubscribed };
    case.same("covered", (case.state(first).await, case.state(second).await), (ended, ended));
}

pub(super) async fn gone_endpoint_overrides_the_cause_of_an_earlier_lane_cut<S: Store>(case: &StoreCase<S>) {
    let waiting = case.accept_one(DeliveryDraft::to(1)).await;
    let scope = CutScope::Lane(lane_id(1));
    case.cut(scope, waiting.id.0, Cause::Cancelled, &[]).await;
    case.cut(scope, waiting.id.0, Cause::EndpointGone, &[]).await;
    let dead = State::Dead { at: after(7), cause: Cause::EndpointGone };
    case.same("the waiting delivery", case.state(waiting.id).await, dead);
}

pub(super) async fn removed_cut_ends_nothing<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_one(DeliveryDraft::to(1)).await;
    let scope = CutScope::Lane(lane_id(1));
    case.cut(scope, delivery.id.0, Cause::Cancelled, &[]).await;
    case.done("uncut", case.store.uncut(case.session(), scope, NOW).await);
    case.same("it waits again", case.state(delivery.id).await, delivery.state);
    case.done("uncut", case.store.uncut(case.session(), scope, NOW).await);
    case.check(case.reopen().await.cuts.is_empty(), "the next session does not get it");
}

pub(super) async fn a_gone_endpoint_is_marked_by_its_cut<S: Store>(case: &StoreCase<S>) {
    for n in [1, 2] {
        case.put_endpoint(endpoint(n)).await;
        // Read before the change too, so that a stale cache would show.
        case.done("endpoint", case.store.endpoint(endpoint(n).id).await);
        case.done("endpoints", case.store.endpoints(endpoint(n).tenant).await);
    }
    let waiting = case.accept_one(DeliveryDraft::to(1)).await;
    case.cut(CutScope::Lane(lane_id(1)), waiting.id.0, Cause::EndpointGone, &[]).await;
    case.cut(CutScope::Lane(lane_id(2)), waiting.id.0, Cause::Cancelled, &[]).await;
    case.cut(CutScope::Lane(lane_id(3)), waiting.id.0, Cause::EndpointGone, &[]).await;
    let dead = State::Dead { at: after(7), cause: Cause::EndpointGone };
    case.same("the waiting delivery", case.state(waiting.id).await, dead);
    for (n, status) in [(1, EndpointStatus::Gone), (2, EndpointStatus::Active)] {
        let found = case.done("endpoint", case.store.endpoint(endpoint(n).id).await);
        case.same("its status", found.map(|endpoint| endpoint.status), Some(status));
    }
    let listed = case.done("endpoints", case.store.endpoints(endpoint(1).tenant).await);
    let statuses: Vec<_> = listed.iter().map(|endpoint| endpoint.status).collect();
    case.same("in the tenant's list", statuses, vec![EndpointStatus::Gone, EndpointStatus::Active]);
}

pub(super) async fn cuts_are_known_at_the_start<S: Store>(case: &StoreCase<S>) {
    let message = case.message(&[DeliveryDraft::to(2)]);
    let scopes = [CutScope::Lane(lane_id(5)), CutScope::Message(message.message.id), CutScope::Lane(lane_id(4))];
    for scope in scopes {
        case.cut(scope, Key::from_raw(99), Cause::Unsubscribed, &[]).await;
    }
    let found: Vec<CutScope> = case.reopen().await.cuts.iter().map(|cut| cut.scope).collect();
    let mut expected = scopes.to_vec();
    expected.sort_unstable();
    case.same("the cuts", found, expected);
}
