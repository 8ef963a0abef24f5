//! Collapse keys: the newer delivery supersedes the one that waits.

use posthaste_core::{Cause, CutScope, Delivery, DeliveryId, Expiry, RowIndex, State};

use super::fixture::{DeliveryDraft, MANY, NOW, StoreCase, after, lane_id};
use crate::Store;
use crate::row::{Acceptance, Accepted, CollapseKey, FirstAnswer, Idempotency, KeyHash, Query, Settled};

const SUPERSEDED: State = State::Cancelled { at: NOW, cause: Cause::Superseded };

impl DeliveryDraft {
    fn under(self, key: u64) -> Self {
        Self { collapse: Some(CollapseKey(key)), ..self }
    }
}

impl<S: Store> StoreCase<S> {
    /// The next `count` arrivals, each with the deliveries it superseded.
    async fn arrived_superseding(&self, count: usize) -> Vec<(DeliveryId, Vec<DeliveryId>)> {
        let mut arrived = Vec::new();
        while arrived.len() < count {
            let more = self.store.arrivals().await;
            arrived.extend(more.into_iter().map(|arrival| (arrival.new.delivery.id, arrival.superseded)));
        }
        arrived
    }
}

pub(super) async fn newer_delivery_supersedes_the_waiting_one_in_any_place<S: Store>(case: &StoreCase<S>) {
    let drafts = [DeliveryDraft::to(1), DeliveryDraft::to(1).delayed(after(9)), DeliveryDraft::to(1).spilled()];
    for (key, draft) in [0, 7, u64::MAX].into_iter().zip(drafts) {
        let old = case.accept_one(draft.under(key)).await.id;
        let new = case.accept_one(DeliveryDraft::to(1).under(key)).await.id;
        let arrived = case.arrived_superseding(2).await;
        case.same("it arrives with what it superseded", arrived, vec![(old, vec![]), (new, vec![old])]);
        case.same("the older has ended", case.state(old).await, SUPERSEDED);
        let shown = case.shown(old, NOW).await;
        case.check(shown.place.is_none() && shown.attempts.is_empty(), "it is an outcome without an attempt");
        case.check(case.pending(old).await.is_none(), "its row is gone");
        case.same("the newer waits", case.state(new).await, State::Queued { due: NOW });
        case.check(case.ids(Query::Delayed { after: None, until: after(99) }, MANY).await.is_empty(), "no page has it");
    }
}

pub(super) async fn deliveries_of_other_lanes_and_keys_are_not_superseded<S: Store>(case: &StoreCase<S>) {
    let mut alone = Vec::new();
    for draft in [DeliveryDraft::to(1).under(1), DeliveryDraft::to(2).under(2), DeliveryDraft::to(1)] {
        alone.push(case.accept_one(draft).await.id);
    }
    let new = case.accept_one(DeliveryDraft::to(1).under(2)).await.id;
    case.same("nothing was superseded", case.arrived_superseding(4).await.pop(), Some((new, vec![])));
    for id in alone {
        case.same("it waits", case.state(id).await, State::Queued { due: NOW });
    }
}

pub(super) async fn last_of_several_in_one_accept_supersedes_the_others<S: Store>(case: &StoreCase<S>) {
    let draft = DeliveryDraft::to(1).under(5);
    let batch = vec![case.message(&[draft, draft]), case.message(&[draft])];
    let ids: Vec<DeliveryId> =
        batch.iter().flat_map(|accepted| &accepted.deliveries).map(|new| new.delivery.id).collect();
    case.done("accept", case.store.accept(case.session(), batch).await);
    let expected = vec![(ids[0], vec![]), (ids[1], vec![ids[0]]), (ids[2], vec![ids[1]])];
    case.same("each supersedes the one before", case.arrived_superseding(3).await, expected);
    for id in &ids[..2] {
        case.same("superseded", case.state(*id).await, SUPERSEDED);
    }
    case.same("the last", case.state(ids[2]).await, State::Queued { due: NOW });
}

pub(super) async fn superseded_delivery_keeps_its_attempts_and_a_late_settle_is_stale<S: Store>(case: &StoreCase<S>) {
    let first = case.accept_one(DeliveryDraft::to(1).under(5)).await;
    let retry = case.attempted(&first, State::Retry { due: after(50), cause: Cause::Unavailable }, Cause::Unavailable);
    let waiting = retry.record.delivery.clone();
    case.settle_done(retry).await;
    let flying = case.attempted(&waiting, State::Delivered { at: after(60) }, Cause::Ok);
    case.accept_one(DeliveryDraft::to(1).under(5)).await;
    case.same("it has ended with its attempt", case.shown(first.id, NOW).await.attempts.len(), 1);
    case.same("the attempt in flight comes too late", case.settle(flying).await, Settled::Stale);
    let shown = case.shown(first.id, NOW).await;
    case.same("and is in the history", (shown.delivery.state, shown.attempts.len()), (SUPERSEDED, 2));
}

pub(super) async fn ended_delivery_is_not_superseded<S: Store>(case: &StoreCase<S>) {
    let delivered = case.accept_one(DeliveryDraft::to(1).under(1)).await;
    case.settle_done(case.attempted(&delivered, State::Delivered { at: after(1) }, Cause::Ok)).await;
    let expired = case.accept_one(DeliveryDraft { expiry: Expiry::At(NOW), ..DeliveryDraft::to(1).under(2) }).await.id;
    let cut = case.accept_one(DeliveryDraft::to(2).under(3)).await.id;
    case.cut(CutScope::Lane(lane_id(2)), cut.0, Cause::Cancelled, &[]).await;
    for draft in [DeliveryDraft::to(1).under(1), DeliveryDraft::to(1).under(2), DeliveryDraft::to(2).under(3)] {
        case.accept_one(draft).await;
    }
    case.same("delivered", case.state(delivered.id).await, State::Delivered { at: after(1) });
    case.same("over its time to live", case.state(expired).await, State::Expired { at: NOW });
    case.same("cut", case.state(cut).await, State::Cancelled { at: after(7), cause: Cause::Cancelled });
    case.check(case.pending(cut).await.is_some(), "its row waits for the sweep");
    let superseded = case.arrived_superseding(6).await.into_iter().flat_map(|(_, old)| old).collect::<Vec<_>>();
    case.same("only the delivery with a row to end is reported", superseded, vec![expired]);
}

pub(super) async fn delivery_that_was_put_back_can_still_be_superseded<S: Store>(case: &StoreCase<S>) {
    let first = case.accept_one(DeliveryDraft::to(1).under(5)).await;
    let put_back = Delivery { state: State::Queued { due: after(3) }, ..first.clone() };
    case.settle_done(case.settlement(&first, put_back)).await;
    case.done("spill", case.store.spill(case.session(), vec![first.id]).await);
    let row = case.pending(first.id).await.map(|row| row.place);
    case.same("it is spilled", row, Some(RowIndex::Spilled));
    case.accept_one(DeliveryDraft::to(1).under(5)).await;
    case.same("superseded", case.state(first.id).await, SUPERSEDED);
}

pub(super) async fn duplicate_request_supersedes_nothing<S: Store>(case: &StoreCase<S>) {
    let once = Idempotency {
        tenant: posthaste_core::TenantId::from_raw(9),
        key: KeyHash([1; 16]),
        digest: [1; 32],
        answer: FirstAnswer { status: 202, body: bytes::Bytes::new() },
        at: NOW,
    };
    let keyed = || Accepted { idempotency: Some(once.clone()), ..case.message(&[DeliveryDraft::to(1).under(5)]) };
    let first = keyed();
    case.done("accept", case.store.accept(case.session(), vec![first.clone()]).await);
    let again = case.done("accept", case.store.accept(case.session(), vec![keyed()]).await);
    case.check(matches!(again[..], [Acceptance::Replayed(_)]), "it is a duplicate");
    case.same("the first waits", case.state(first.deliveries[0].delivery.id).await, State::Queued { due: NOW });
}
