//! Accepting: messages are written all or none, their deliveries arrive exactly once, and a newer delivery supersedes
//! the one that waits under its collapse key.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::{
    Audience, Cause, Compact, CutScope, Delivery, DeliveryId, Expiry, MessageId, RowIndex, State, Tier,
};

use super::fixture::{DeliveryDraft, MANY, NOW, StoreCase, after, call, lane_id};
use crate::{Acceptance, Accepted, CollapseKey, Details, Query, Settled, Store, StoreError};

/// Far longer than any disk takes: a call without a result by then is stuck.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);

const SUPERSEDED: State = State::Cancelled { at: NOW, cause: Cause::Superseded };

impl DeliveryDraft {
    fn under(self, key: u64) -> Self {
        Self { collapse: Some(CollapseKey(key)), ..self }
    }
}

impl<S: Store> StoreCase<S> {
    /// Accepts a message; the call must not get stuck.
    pub(super) async fn accept_in_time(&self, accepted: Accepted, what: &str) {
        let answer = tokio::time::timeout(ANSWERED_WITHIN, self.store.accept(self.session(), vec![accepted])).await;
        self.done("accept", answer.unwrap_or_else(|_| self.fail(&format!("{what} is never answered"))));
    }

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

pub(super) async fn a_message_comes_back_byte_for_byte<S: Store>(case: &StoreCase<S>) {
    let every_byte: Vec<u8> = (0..=u8::MAX).cycle().take(70_000).collect();
    let bodies = [Vec::new(), b"{\"a\": 1}\r\n\0".to_vec(), every_byte];
    for (body, compact) in bodies.iter().zip([None, Some(Bytes::new()), Some(Bytes::from_static(&[0, 255, 10]))]) {
        let accepted = case.message_with(&[DeliveryDraft::to(1)], |message| {
            message.event_type = compact.is_some().then(|| "rechnung.bezahlt é 漢\0".to_owned());
            message.correlation_id = Some("it's \"quoted\"; DROP TABLE message;".to_owned());
            message.subject = compact.is_some().then(|| "user-42 é".to_owned());
            message.body = Bytes::copy_from_slice(body);
            message.tier = Tier::Engagement;
            message.details = compact.as_ref().map(|_| Box::new(details()));
            message.compact = compact;
        });
        let message = Arc::clone(&accepted.message);
        case.put(accepted).await;
        let found = case.done("message", case.store.message(message.id).await);
        let at = case.done("accepted_at", case.store.accepted_at(vec![MessageId::from_raw(77), message.id]).await);
        case.same("when it was accepted", at, vec![None, Some(message.at)]);
        case.same("the message", found, Some(message));
    }
    let none = case.done("message", case.store.message(MessageId::from_raw(77)).await);
    case.same("an unknown message", none, None);
}

pub(super) async fn a_delivery_comes_back_as_it_was_accepted<S: Store>(case: &StoreCase<S>) {
    let expiries = [Expiry::Never, Expiry::At(after(5)), Expiry::NowOrNever(after(6))];
    let places = [RowIndex::Ready, RowIndex::Delayed, RowIndex::Spilled];
    let compacts = [Compact::None, Compact::Spare, Compact::InUse];
    for (index, tier) in Tier::ALL.into_iter().enumerate() {
        let draft = DeliveryDraft {
            tier,
            place: places[index],
            due: after(3),
            expiry: expiries[index],
            ack_within: (index > 0).then(|| Duration::from_millis(1_500)),
            compact: compacts[index],
            ..DeliveryDraft::to(4)
        };
        let delivery = case.accept_one(draft).await;
        let row = case.pending(delivery.id).await.unwrap_or_else(|| case.fail("it is not pending"));
        case.same("its place", row.place, places[index]);
        case.same("the delivery", row.delivery, delivery.clone());
        let shown = case.shown(delivery.id, NOW).await;
        case.same("as a reader sees it", (shown.delivery, shown.place), (delivery, Some(places[index])));
    }
    let unknown = case.store.delivery(DeliveryId::from_raw(77), NOW).await;
    case.same("an unknown delivery", case.done("delivery", unknown), None);
}

pub(super) async fn accepted_deliveries_arrive_once_in_commit_order<S: Store>(case: &StoreCase<S>) {
    let mut expected = Vec::new();
    for _ in 0..3 {
        let batch = vec![
            case.message(&[DeliveryDraft::to(1), DeliveryDraft::to(2).spilled()]),
            case.message(&[DeliveryDraft::to(3)]),
        ];
        for accepted in &batch {
            let each = accepted.deliveries.iter();
            expected.extend(each.map(|new| (new.delivery.clone(), new.place, accepted.message.id)));
        }
        case.done("accept", case.store.accept(case.session(), batch).await);
    }
    let mut found = Vec::new();
    while found.len() < expected.len() {
        for arrival in case.store.arrivals().await {
            case.same("it includes its lane", arrival.new.lane.lane, arrival.new.delivery.lane);
            found.push((arrival.new.delivery, arrival.new.place, arrival.message.id));
        }
    }
    case.same("what arrived", found, expected);
    let last = case.accept(&[DeliveryDraft::to(1)]).await;
    case.same("nothing arrives twice", case.arrived().await, last);
}

pub(super) async fn accept_whose_caller_has_gone_still_arrives<S: Store>(case: &StoreCase<S>) {
    // The first accept of a tenant may have to make the tenant's key before it is queued.
    case.accept(&[DeliveryDraft::to(2)]).await;
    case.arrived().await;
    let accepted = case.message(&[DeliveryDraft::to(1)]);
    let id = accepted.deliveries[0].delivery.id;
    tokio::select! {
        biased;
        _ = case.store.accept(case.session(), vec![accepted]) => {}
        () = std::future::ready(()) => {}
    }
    case.same("what arrived", case.arrived().await, vec![id]);
    case.check(case.pending(id).await.is_some(), "it is durable when it arrives");
}

pub(super) async fn a_fenced_accept_leaves_nothing<S: Store>(case: &StoreCase<S>) {
    let newer = case.reopen().await.session;
    let batch = vec![case.message(&[DeliveryDraft::to(1)]), case.message(&[DeliveryDraft::to(2)])];
    let refused = case.store.accept(case.session(), batch.clone()).await;
    case.check(matches!(refused, Err(StoreError::Fenced { .. })), "it is refused");
    for accepted in &batch {
        let found = case.done("message", case.store.message(accepted.message.id).await);
        case.same("no message", found, None);
        case.check(case.pending(accepted.deliveries[0].delivery.id).await.is_none(), "no delivery");
    }
    case.done("accept", case.store.accept(newer, vec![batch[1].clone()]).await);
    case.same("only what was accepted arrives", case.arrived().await, vec![batch[1].deliveries[0].delivery.id]);
}

pub(super) async fn message_without_deliveries_is_stored_and_yields_no_arrival<S: Store>(case: &StoreCase<S>) {
    let alone = case.message(&[]);
    case.put(alone.clone()).await;
    let found = case.done("message", case.store.message(alone.message.id).await);
    case.same("it is kept", found, Some(alone.message));
    let ids = case.accept(&[DeliveryDraft::to(1)]).await;
    case.same("what arrived", case.arrived().await, ids);
}

pub(super) async fn large_messages_without_deliveries_do_not_fill_the_arrival_queue<S: Store>(case: &StoreCase<S>) {
    let body = Bytes::from(vec![b'x'; 1 << 20]);
    for n in 0..70 {
        let accepted = case.message_with(&[], |message| message.body = body.clone());
        case.accept_in_time(accepted, &format!("message {n}")).await;
    }
}

/// All optional fields a producer can set.
fn details() -> Details {
    let text = |text: &str| text.to_owned();
    Details {
        labels: vec![(text("purpose"), text("billing é")), (text("empty"), String::new())],
        region: Some(text("eu")),
        cost_center: Some(text("growth")),
        audience: Audience {
            subjects: vec![text("user-42")],
            tags: vec![text("beta"), text("a")],
            all: true,
            named: true,
        },
        deliver_at: Some(after(5)),
        ttl: Some(Duration::from_secs(9)),
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
    let retry = case.retried(&first, 50, Cause::Unavailable);
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
    let keyed = || Accepted { idempotency: Some(call(1, NOW, "")), ..case.message(&[DeliveryDraft::to(1).under(5)]) };
    let first = case.put(keyed()).await.remove(0);
    let again = case.done("accept", case.store.accept(case.session(), vec![keyed()]).await);
    case.check(matches!(again[..], [Acceptance::Replayed(_)]), "it is a duplicate");
    case.same("the first waits", case.state(first.id).await, State::Queued { due: NOW });
}
