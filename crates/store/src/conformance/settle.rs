//! Settling: a delivery's new state is recorded if the caller still owns the delivery, its attempt in any case.

use std::time::Duration;

use bytes::Bytes;
use posthaste_core::scheduler::Order;
use posthaste_core::{Cause, Compact, Delivery, DeliveryId, IdRange, RowIndex, State, Tier, Timestamp};

use super::fixture::{DeliveryDraft, MANY, NOW, StoreCase, after, attempt, dead, lane_id};
use crate::{Query, Settled, Settlement, Store};

pub(super) async fn every_end_is_read_back_with_its_attempt<S: Store>(case: &StoreCase<S>) {
    let ends = [
        (State::Delivered { at: after(1) }, Cause::Ok),
        (State::Dead { at: after(2), cause: Cause::NotFound }, Cause::NotFound),
        (State::Expired { at: after(3) }, Cause::Unavailable),
        (State::Cancelled { at: after(4), cause: Cause::Cancelled }, Cause::ConnectRefused),
    ];
    for (end, cause) in ends {
        let delivery = case.accept_one(DeliveryDraft::to(1)).await;
        let settlement = case.attempted(&delivery, end, cause);
        case.settle_done(settlement.clone()).await;
        case.check(case.pending(delivery.id).await.is_none(), "an ended delivery is not pending");
        let shown = case.shown(delivery.id, NOW).await;
        case.same("the delivery", shown.delivery, settlement.record.delivery);
        case.same("it has no pending row", shown.place, None);
        case.same("its attempt", shown.attempts, vec![attempt(1, cause)]);
    }
}

pub(super) async fn end_without_an_attempt_is_stored_without_one<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_one(DeliveryDraft::to(1)).await;
    let ended = Delivery { state: State::Cancelled { at: NOW, cause: Cause::Cancelled }, ..delivery.clone() };
    case.settle_done(case.settlement(&delivery, ended.clone())).await;
    let shown = case.shown(delivery.id, NOW).await;
    case.same("the delivery", shown.delivery, ended);
    case.check(shown.attempts.is_empty(), "it was never tried");
}

pub(super) async fn excerpt_is_stored_with_its_attempt<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_one(DeliveryDraft::to(1)).await;
    let excerpts = async |id| case.done("excerpts", case.store.excerpts(id).await);
    let [come_back, who] = [Bytes::from_static(b"come back \xff"), Bytes::from_static(b"who?")];
    let first = case.retried(&delivery, 1, Cause::Unavailable);
    let first = Settlement { excerpt: Some(come_back.clone()), ..first };
    case.settle_done(first.clone()).await;
    let tried = case.shown(delivery.id, NOW).await.delivery;
    case.same("of a retry", excerpts(delivery.id).await, vec![(1, come_back.clone())]);
    case.same("a repeated settle", case.settle(first).await, Settled::Stale);
    let last = case.attempted(&tried, dead(2), Cause::NotFound);
    case.settle_done(Settlement { excerpt: Some(who.clone()), ..last }).await;
    case.same("and of the end", excerpts(delivery.id).await, vec![(1, come_back), (2, who)]);
    let fine = case.accept_one(DeliveryDraft::to(1)).await;
    case.settle_done(case.attempted(&fine, State::Delivered { at: NOW }, Cause::Ok)).await;
    case.same("nothing of a successful attempt", excerpts(fine.id).await, Vec::new());
}

pub(super) async fn retry_keeps_all_its_fields<S: Store>(case: &StoreCase<S>) {
    let draft = DeliveryDraft { compact: Compact::Spare, tier: Tier::Engagement, ..DeliveryDraft::to(1) };
    let delivery = case.accept_one(draft).await;
    let mut settlement = case.retried(&delivery, 9_000, Cause::DnsNotFound);
    let next = &mut settlement.record.delivery;
    next.previous_wait = Some(Duration::from_micros(8_765_432));
    next.limited_in_a_row = 3;
    next.last_cause = Some(Cause::TlsCertificate);
    next.compact = Compact::InUse;
    case.settle_done(settlement.clone()).await;
    let row = case.pending(delivery.id).await.unwrap_or_else(|| case.fail("a retry stays pending"));
    case.same("the delivery", row.delivery, settlement.record.delivery);
    case.same("its attempt", case.shown(delivery.id, NOW).await.attempts, vec![attempt(1, Cause::DnsNotFound)]);
}

pub(super) async fn a_delivery_waits_for_its_receipt<S: Store>(case: &StoreCase<S>) {
    let delivery =
        case.accept_one(DeliveryDraft { ack_within: Some(Duration::from_secs(5)), ..DeliveryDraft::to(1) }).await;
    let sent = case.attempted(&delivery, State::AwaitingAck { until: after(5_000) }, Cause::Ok);
    let sent_delivery = sent.record.delivery.clone();
    case.settle_done(sent).await;
    case.same("where it is", case.state(delivery.id).await, State::AwaitingAck { until: after(5_000) });
    let late = case.ids(Query::Delayed { after: None, until: after(5_000) }, MANY).await;
    case.same("its deadline is a due time", late, vec![delivery.id]);
    let received = Delivery { state: State::Delivered { at: after(2) }, ..sent_delivery.clone() };
    case.settle_done(case.settlement(&sent_delivery, received.clone())).await;
    let shown = case.shown(delivery.id, NOW).await;
    case.same("the end", shown.delivery, received);
    case.same("the attempt that was sent", shown.attempts, vec![attempt(1, Cause::Ok)]);
}

pub(super) async fn attempts_are_shown_in_the_order_they_were_made<S: Store>(case: &StoreCase<S>) {
    let mut delivery = case.accept_one(DeliveryDraft::to(1)).await;
    let other = case.accept_one(DeliveryDraft::to(1)).await;
    for number in 1..=11 {
        let settlement = case.retried(&delivery, number.into(), Cause::Unavailable);
        delivery = settlement.record.delivery.clone();
        case.settle_done(settlement).await;
    }
    case.settle_done(case.attempted(&delivery, State::Delivered { at: NOW }, Cause::Ok)).await;
    let mut expected: Vec<_> = (1..=11).map(|number| attempt(number, Cause::Unavailable)).collect();
    expected.push(attempt(12, Cause::Ok));
    case.same("every attempt", case.shown(delivery.id, NOW).await.attempts, expected);
    case.check(case.shown(other.id, NOW).await.attempts.is_empty(), "another delivery has none of them");
}

pub(super) async fn settle_with_a_different_attempt_count_is_stale<S: Store>(case: &StoreCase<S>) {
    let first = case.accept_one(DeliveryDraft::to(1)).await;
    let retry = case.retried(&first, 1, Cause::Unknown);
    case.settle_done(retry.clone()).await;
    let ends = [State::Delivered { at: NOW }, State::Retry { due: after(77), cause: Cause::BadGateway }];
    for (end, cause) in ends.into_iter().zip([Cause::Ok, Cause::BadGateway]) {
        let stale = case.settle(case.attempted(&first, end, cause)).await;
        case.same("the answer", stale, Settled::Stale);
    }
    let shown = case.shown(first.id, NOW).await;
    case.same("nothing changed", shown.delivery, retry.record.delivery);
    let expected = vec![attempt(1, Cause::Unknown), attempt(1, Cause::Ok), attempt(1, Cause::BadGateway)];
    case.same("the attempts are history all the same", shown.attempts, expected);
}

pub(super) async fn a_settle_of_another_epoch_is_stale<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_one(DeliveryDraft::to(1)).await;
    let causes = [Cause::Ok, Cause::Unknown];
    for (epoch, cause) in [case.session().epoch - 1, case.session().epoch + 1].into_iter().zip(causes) {
        let ended = case.attempted(&delivery, State::Delivered { at: NOW }, cause);
        case.same("the answer", case.settle(Settlement { epoch, ..ended }).await, Settled::Stale);
    }
    let shown = case.shown(delivery.id, NOW).await;
    case.same("nothing changed", shown.delivery, delivery);
    case.same("the attempts are history all the same", shown.attempts, causes.map(|cause| attempt(1, cause)).to_vec());
}

pub(super) async fn repeated_settle_adds_no_attempt<S: Store>(case: &StoreCase<S>) {
    let first = case.accept_one(DeliveryDraft::to(1)).await;
    let retry = case.retried(&first, 1, Cause::Unknown);
    let ended = case.attempted(&retry.record.delivery, State::Delivered { at: NOW }, Cause::Ok);
    let early = Settlement { epoch: ended.epoch - 1, ..ended.clone() };
    case.settle_done(retry.clone()).await;
    case.same("repeated", case.settle(retry).await, Settled::Stale);
    case.same("of another epoch", case.settle(early).await, Settled::Stale);
    case.settle_done(ended.clone()).await;
    case.same("repeated", case.settle(ended).await, Settled::Stale);
    let attempts = case.shown(first.id, NOW).await.attempts;
    case.same("the attempts", attempts, vec![attempt(1, Cause::Unknown), attempt(2, Cause::Ok)]);
}

pub(super) async fn ended_delivery_keeps_its_final_state<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_one(DeliveryDraft::to(1)).await;
    case.settle_done(case.attempted(&delivery, State::Delivered { at: after(1) }, Cause::Ok)).await;
    let again = case.attempted(&delivery, dead(2), Cause::NotFound);
    case.same("a second end", case.settle(again).await, Settled::Stale);
    let retry = case.retried(&delivery, 3, Cause::Unknown);
    case.same("a retry after the end", case.settle(retry).await, Settled::Stale);
    let shown = case.shown(delivery.id, NOW).await;
    case.same("the end", shown.delivery.state, State::Delivered { at: after(1) });
    let expected = vec![attempt(1, Cause::Ok), attempt(1, Cause::NotFound), attempt(1, Cause::Unknown)];
    case.same("late attempts come after the one that ended it", shown.attempts, expected);
}

pub(super) async fn settle_of_an_unknown_delivery_is_stale<S: Store>(case: &StoreCase<S>) {
    let never = case.message(&[DeliveryDraft::to(1)]).deliveries.remove(0).delivery;
    let settled = case.settle(case.attempted(&never, State::Delivered { at: NOW }, Cause::Ok)).await;
    case.same("the answer", settled, Settled::Stale);
    case.same("it is still unknown", case.done("delivery", case.store.delivery(never.id, NOW).await), None);
}

pub(super) async fn settlements_of_one_batch_are_independent<S: Store>(case: &StoreCase<S>) {
    let mut batch = Vec::new();
    for _ in 0..3 {
        let delivery = case.accept_one(DeliveryDraft::to(1)).await;
        batch.push(case.attempted(&delivery, State::Delivered { at: NOW }, Cause::Ok));
    }
    batch[1].record.attempts_before = 5;
    let ids: Vec<DeliveryId> = batch.iter().map(|settlement| settlement.record.delivery.id).collect();
    let settled = case.done("settle", case.store.settle(case.session(), batch).await);
    case.same("the answers, in order", settled, vec![Settled::Done, Settled::Stale, Settled::Done]);
    for (id, pending) in ids.iter().zip([false, true, false]) {
        case.same("what is still pending", case.pending(*id).await.is_some(), pending);
    }
    let none = case.done("settle", case.store.settle(case.session(), Vec::new()).await);
    case.same("nothing to settle", none, Vec::new());
}

pub(super) async fn a_row_moves_to_the_place_it_is_settled_in<S: Store>(case: &StoreCase<S>) {
    let mut delivery = case.accept_one(DeliveryDraft::to(1)).await;
    for place in [RowIndex::Delayed, RowIndex::Spilled, RowIndex::Delayed, RowIndex::Ready, RowIndex::Spilled] {
        let due = i64::from(delivery.attempts) * 10;
        let mut settlement = case.retried(&delivery, due, Cause::Unknown);
        settlement.record.place = place;
        delivery = settlement.record.delivery.clone();
        case.settle_done(settlement).await;
        found_only_in(case, delivery.id, place, after(due)).await;
    }
}

pub(super) async fn spilled_rows_are_read_by_queue<S: Store>(case: &StoreCase<S>) {
    let ready = case.accept_one(DeliveryDraft::to(1)).await;
    let delayed = case.accept_one(DeliveryDraft::to(1).delayed(after(5))).await;
    let ended = case.accept_one(DeliveryDraft::to(1)).await;
    case.settle_done(case.attempted(&ended, State::Delivered { at: NOW }, Cause::Ok)).await;
    let unknown = DeliveryId::from_raw(77);
    let spilled = vec![ready.id, unknown, delayed.id, ended.id, ready.id];
    case.done("spill", case.store.spill(case.session(), spilled).await);
    let queue = Query::Spilled { lane: lane_id(1), tier: Tier::Promotional, order: Order::Fifo, span: IdRange::ALL };
    case.same("the queue", case.ids(queue, MANY).await, vec![ready.id, delayed.id]);
    let late = case.page(Query::Delayed { after: None, until: after(9) }, MANY).await;
    case.check(late.rows.is_empty(), "a spilled row is not delayed any more");
    let row = case.pending(delayed.id).await.unwrap_or_else(|| case.fail("a spilled row is gone"));
    case.same("nothing else changed", row.delivery, delayed);
    case.same("an ended delivery is not brought back", case.pending(ended.id).await, None);
}

pub(super) async fn message_lists_its_own_deliveries_pending_and_ended<S: Store>(case: &StoreCase<S>) {
    case.accept(&[DeliveryDraft::to(1), DeliveryDraft::to(2)]).await;
    let empty = case.message(&[]);
    let message =
        case.message(&[DeliveryDraft::to(1), DeliveryDraft::to(2).delayed(after(9)), DeliveryDraft::to(3).spilled()]);
    let behind = case.message(&[DeliveryDraft::to(1)]);
    let (id, empty_id) = (message.message.id, empty.message.id);
    let mut expected: Vec<Delivery> = message.deliveries.iter().map(|new| new.delivery.clone()).collect();
    case.done("accept", case.store.accept(case.session(), vec![empty, message, behind]).await);
    let settlement = case.attempted(&expected[1], State::Delivered { at: after(9) }, Cause::Ok);
    expected[1] = settlement.record.delivery.clone();
    case.settle_done(settlement).await;
    let shown = case.done("deliveries", case.store.deliveries(id, None, NOW, MANY).await);
    let attempts: Vec<usize> = shown.iter().map(|one| one.attempts.len()).collect();
    case.same("every one, by id", shown.into_iter().map(|one| one.delivery).collect(), expected);
    case.same("with their attempts", attempts, vec![0, 1, 0]);
    let none = case.done("deliveries", case.store.deliveries(empty_id, None, NOW, MANY).await);
    case.same("a message without deliveries", none, Vec::new());
}

/// Checks that a row is found by the query for its place, and by no other.
async fn found_only_in<S: Store>(case: &StoreCase<S>, id: DeliveryId, place: RowIndex, due: Timestamp) {
    let next = case.session().writer.number() + 1;
    let before = posthaste_core::WriterId::new(next).expect("a small number");
    let lane = lane_id(1);
    let places = [
        (RowIndex::Ready, Query::Left { after: None, before }),
        (RowIndex::Delayed, Query::Delayed { after: None, until: after(1_000) }),
        (RowIndex::Spilled, Query::Spilled { lane, tier: Tier::Promotional, order: Order::Fifo, span: IdRange::ALL }),
    ];
    for (queried, query) in places {
        let found =
            case.page(query, MANY).await.rows.into_iter().map(|row| (row.delivery.id, row.delivery.state.due()));
        let expected = if queried == place { vec![(id, Some(due))] } else { Vec::new() };
        case.same(&format!("{queried:?} rows, when one row is {place:?}"), found.collect(), expected);
    }
}
