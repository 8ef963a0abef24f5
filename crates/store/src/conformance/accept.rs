//! Accepting: messages are written all or none, and their deliveries arrive exactly once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::{Audience, Compact, DeliveryId, Expiry, MessageId, RowIndex, Tier};

use super::fixture::{DeliveryDraft, NOW, StoreCase, after};
use crate::row::{Accepted, Details, Message};
use crate::{Store, StoreError};

/// Far longer than any disk takes: a call without a result by then is stuck.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);

pub(super) async fn a_message_comes_back_byte_for_byte<S: Store>(case: &StoreCase<S>) {
    let every_byte: Vec<u8> = (0..=u8::MAX).cycle().take(70_000).collect();
    let bodies = [Vec::new(), b"{\"a\": 1}\r\n\0".to_vec(), every_byte];
    for (body, compact) in bodies.iter().zip([None, Some(Bytes::new()), Some(Bytes::from_static(&[0, 255, 10]))]) {
        let base = case.message(&[DeliveryDraft::to(1)]);
        let message = Arc::new(Message {
            event_type: compact.is_some().then(|| "rechnung.bezahlt é 漢\0".to_owned()),
            correlation_id: Some("it's \"quoted\"; DROP TABLE message;".to_owned()),
            subject: compact.is_some().then(|| "user-42 é".to_owned()),
            body: Bytes::copy_from_slice(body),
            tier: Tier::Engagement,
            details: compact.as_ref().map(|_| Box::new(details())),
            compact,
            ..(*base.message).clone()
        });
        let accepted = Accepted { message: Arc::clone(&message), ..base };
        case.done("accept", case.store.accept(case.session(), vec![accepted]).await);
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
    let next: Vec<DeliveryId> = case.store.arrivals().await.iter().map(|arrival| arrival.new.delivery.id).collect();
    case.same("nothing arrives twice", next, last);
}

pub(super) async fn accept_whose_caller_has_gone_still_arrives<S: Store>(case: &StoreCase<S>) {
    // The first accept of a tenant may have to make the tenant's key before it is queued.
    case.done("accept", case.store.accept(case.session(), vec![case.message(&[DeliveryDraft::to(2)])]).await);
    case.store.arrivals().await;
    let accepted = case.message(&[DeliveryDraft::to(1)]);
    let id = accepted.deliveries[0].delivery.id;
    tokio::select! {
        biased;
        _ = case.store.accept(case.session(), vec![accepted]) => {}
        () = std::future::ready(()) => {}
    }
    let arrived: Vec<DeliveryId> = case.store.arrivals().await.iter().map(|arrival| arrival.new.delivery.id).collect();
    case.same("what arrived", arrived, vec![id]);
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
    let arrived: Vec<DeliveryId> = case.store.arrivals().await.iter().map(|arrival| arrival.new.delivery.id).collect();
    case.same("only what was accepted arrives", arrived, vec![batch[1].deliveries[0].delivery.id]);
}

pub(super) async fn message_without_deliveries_is_stored_and_yields_no_arrival<S: Store>(case: &StoreCase<S>) {
    let alone = case.message(&[]);
    case.done("accept", case.store.accept(case.session(), vec![alone.clone()]).await);
    let found = case.done("message", case.store.message(alone.message.id).await);
    case.same("it is kept", found, Some(alone.message));
    let ids = case.accept(&[DeliveryDraft::to(1)]).await;
    let arrived: Vec<DeliveryId> = case.store.arrivals().await.iter().map(|arrival| arrival.new.delivery.id).collect();
    case.same("what arrived", arrived, ids);
}

pub(super) async fn large_messages_without_deliveries_do_not_fill_the_arrival_queue<S: Store>(case: &StoreCase<S>) {
    let body = Bytes::from(vec![b'x'; 1 << 20]);
    for n in 0..70 {
        let alone = case.message(&[]);
        let message = Message { body: body.clone(), ..(*alone.message).clone() };
        let accepted = Accepted { message: Arc::new(message), ..alone };
        let answer = tokio::time::timeout(ANSWERED_WITHIN, case.store.accept(case.session(), vec![accepted])).await;
        case.done("accept", answer.unwrap_or_else(|_| case.fail(&format!("message {n} is never answered"))));
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
        ttl: Some(std::time::Duration::from_secs(9)),
    }
}
