//! Sweeps: deliveries that a cut or their TTL has ended become outcomes, a bounded number at a time. A delivery whose TTL
//! is over reads as expired at once, before its row is swept.

use std::time::Duration;

use posthaste_core::{Cause, CutScope, DeliveryId, Expiry, Key, State, TenantId};

use super::fixture::{DeliveryDraft, MANY, NOW, StoreCase, after, lane_id};
use crate::row::{DeadLetterFilter, ListOrder, SWEEP_ENDS_MAX, Sweep, SweptRows};
use crate::{Store, StoreError};

impl<S: Store> StoreCase<S> {
    async fn sweep(&self, sweep: Sweep, under_way: &[DeliveryId]) -> SweptRows {
        self.done("sweep", self.store.sweep(self.session(), sweep, under_way.to_vec()).await)
    }

    /// A roll over all rows, which must be complete in one call.
    async fn roll(&self, ms: i64) -> Vec<DeliveryId> {
        let swept = self.sweep(Sweep::Roll { after: None, now: after(ms) }, &[]).await;
        self.same("it reads everything", swept.stopped_at, None);
        swept.ended
    }

    /// Whether the delivery has a stored outcome, and is not merely covered by a cut or its TTL.
    async fn has_outcome(&self, id: DeliveryId) -> bool {
        self.pending(id).await.is_none() && self.state(id).await.is_terminal()
    }
}

pub(super) async fn rows_of_a_lane_are_swept_in_any_place<S: Store>(case: &StoreCase<S>) {
    let mut mine = Vec::new();
    let mut others = Vec::new();
    for draft in [DeliveryDraft::to(1), DeliveryDraft::to(1).spilled(), DeliveryDraft::to(1).delayed(after(1))] {
        mine.push(case.accept_one(draft).await.id);
        others.push(case.accept_one(DeliveryDraft { lane: lane_id(2), ..draft }).await.id);
    }
    let spared = case.accept_one(DeliveryDraft::to(1).spilled()).await.id;
    let later = case.accept_one(DeliveryDraft::to(1).spilled()).await.id;
    let scope = CutScope::Lane(lane_id(1));
    case.same("nothing without a cut", case.sweep(Sweep::Cut(scope), &[]).await, SweptRows::default());
    case.cut(scope, spared.0, Cause::Cancelled, &[spared]).await;
    let spilled = case.sweep(Sweep::Cut(scope), &[spared]).await;
    case.same("an index finds spilled rows", spilled, SweptRows { ended: vec![mine[1]], spared: 1, stopped_at: None });
    let rest = case.sweep(Sweep::Roll { after: None, now: NOW }, &[spared]).await;
    case.same("the rest", rest, SweptRows { ended: vec![mine[0], mine[2]], spared: 1, stopped_at: None });
    for id in mine {
        case.check(case.has_outcome(id).await, "it has ended");
        case.same("its state", case.state(id).await, State::Cancelled { at: after(7), cause: Cause::Cancelled });
    }
    for id in others.into_iter().chain([spared, later]) {
        let row = case.pending(id).await.map(|row| row.delivery.state);
        case.same("left alone", Some(case.state(id).await), row);
    }
    // This sweep was requested before the cut was made, so the spared delivery may have been sent in between.
    let early = case.sweep(Sweep::Roll { after: None, now: after(7) }, &[]).await;
    case.same("spared since the request", (early.ended, early.spared), (Vec::new(), 1));
    let swept = case.sweep(Sweep::Roll { after: None, now: after(8) }, &[]).await.ended;
    case.same("the spared delivery, once it is no longer in flight", swept, vec![spared]);
    case.same("the index has no more", case.sweep(Sweep::Cut(scope), &[]).await.ended, Vec::new());
}

pub(super) async fn rows_of_a_message_are_swept_by_its_key<S: Store>(case: &StoreCase<S>) {
    let before = case.accept(&[DeliveryDraft::to(1)]).await;
    let message =
        case.message(&[DeliveryDraft::to(1), DeliveryDraft::to(2).spilled(), DeliveryDraft::to(3).delayed(after(9))]);
    let ids: Vec<_> = message.deliveries.iter().map(|new| new.delivery.id).collect();
    let scope = CutScope::Message(message.message.id);
    case.done("accept", case.store.accept(case.session(), vec![message]).await);
    let behind = case.accept(&[DeliveryDraft::to(1)]).await;
    case.cut(scope, Key::MAX, Cause::Cancelled, &[]).await;
    case.same("a roll does not end them", case.roll(0).await, Vec::new());
    case.same("its rows", case.sweep(Sweep::Cut(scope), &[]).await.ended, ids.clone());
    for id in ids {
        case.check(case.has_outcome(id).await, "it has ended");
    }
    for id in before.iter().chain(&behind) {
        case.same("another message's", case.state(*id).await, State::Queued { due: NOW });
    }
}

pub(super) async fn deliveries_in_flight_are_not_swept<S: Store>(case: &StoreCase<S>) {
    let over = case.accept_one(DeliveryDraft { expiry: Expiry::At(after(5)), ..DeliveryDraft::to(1) }).await;
    let cut = case.accept_one(DeliveryDraft::to(2).spilled()).await;
    let scope = CutScope::Lane(lane_id(2));
    case.cut(scope, cut.id.0, Cause::Cancelled, &[]).await;
    let under_way = [over.id, cut.id];
    for sweep in [Sweep::Cut(scope), Sweep::Roll { after: None, now: after(9) }] {
        let swept = case.sweep(sweep, &under_way).await;
        case.same("nothing", swept.ended, Vec::new());
        case.check(swept.spared > 0, "it counts the skipped delivery");
    }
    case.settle_done(case.attempted(&over, State::Delivered { at: after(6) }, Cause::Ok)).await;
    case.same("the cut delivery only", case.roll(9).await, vec![cut.id]);
}

pub(super) async fn rows_past_their_ttl_are_swept<S: Store>(case: &StoreCase<S>) {
    let mut over = Vec::new();
    for (draft, ms) in
        [(DeliveryDraft::to(1), 10), (DeliveryDraft::to(2).spilled(), 8), (DeliveryDraft::to(1).delayed(after(99)), 10)]
    {
        over.push(case.accept_one(DeliveryDraft { expiry: Expiry::At(after(ms)), ..draft }).await.id);
        case.accept_one(draft).await;
        case.accept_one(DeliveryDraft { expiry: Expiry::At(after(11)), ..draft }).await;
    }
    over.push(
        case.accept_one(DeliveryDraft { expiry: Expiry::NowOrNever(after(10)), ..DeliveryDraft::to(1) }).await.id,
    );
    let draft = DeliveryDraft {
        expiry: Expiry::At(after(5)),
        ack_within: Some(Duration::from_secs(1)),
        ..DeliveryDraft::to(1)
    };
    let sent = case.accept_one(draft).await;
    case.settle_done(case.attempted(&sent, State::AwaitingAck { until: after(1_040) }, Cause::Ok)).await;
    case.same("none before", case.roll(7).await, Vec::new());
    case.same("by id, without the delivery that awaits its receipt", case.roll(10).await, over.clone());
    for (id, ms) in over.iter().zip([10, 8, 10, 10]) {
        case.check(case.has_outcome(*id).await, "it has ended");
        case.same("at the end of its TTL", case.state(*id).await, State::Expired { at: after(ms) });
    }
    case.same("only once", case.roll(10).await, Vec::new());
}

pub(super) async fn sweep_ends_a_bounded_number_and_continues<S: Store>(case: &StoreCase<S>) {
    let many = SWEEP_ENDS_MAX as usize + 100;
    let (own, lane) = (case.message(&vec![DeliveryDraft::to(1); many]), CutScope::Lane(lane_id(2)));
    let message = CutScope::Message(own.message.id);
    let other = case.message(&vec![DeliveryDraft::to(2).spilled(); many]);
    case.done("accept", case.store.accept(case.session(), vec![own, other]).await);
    case.accept_one(DeliveryDraft::to(3)).await;
    for scope in [message, lane] {
        case.cut(scope, Key::MAX, Cause::Cancelled, &[]).await;
        let first = case.sweep(Sweep::Cut(scope), &[]).await;
        case.same("the first ones", (first.ended.len(), first.stopped_at), (many - 100, first.ended.last().copied()));
        let rest = case.sweep(Sweep::Cut(scope), &[]).await;
        case.same("the rest", (rest.ended.len(), rest.stopped_at), (100, None));
    }
    let last = case.message(&vec![DeliveryDraft { expiry: Expiry::At(after(1)), ..DeliveryDraft::to(4) }; many]);
    case.done("accept", case.store.accept(case.session(), vec![last]).await);
    let first = case.sweep(Sweep::Roll { after: None, now: after(1) }, &[]).await;
    case.same("the first ones", (first.ended.len(), first.stopped_at), (many - 100, first.ended.last().copied()));
    let rest = case.sweep(Sweep::Roll { after: first.stopped_at, now: after(1) }, &[]).await;
    case.same("the rest", (rest.ended.len(), rest.stopped_at), (100, None));
}

pub(super) async fn sweep_of_a_gone_endpoint_files_dead_letters<S: Store>(case: &StoreCase<S>) {
    let waiting = case.accept_one(DeliveryDraft::to(1).spilled()).await;
    let scope = CutScope::Lane(lane_id(1));
    case.cut(scope, Key::MAX, Cause::EndpointGone, &[]).await;
    case.same("it has ended", case.sweep(Sweep::Cut(scope), &[]).await.ended, vec![waiting.id]);
    let filter = DeadLetterFilter::of(TenantId::from_raw(9));
    let page = case.done("list", case.store.dead_letters(filter, ListOrder::OldestFirst, None, MANY).await);
    let filed: Vec<_> = page.letters.iter().map(|letter| (letter.delivery, letter.cause, letter.at)).collect();
    case.same("a dead letter", filed, vec![(waiting.id, Cause::EndpointGone, after(7))]);
}

pub(super) async fn a_fenced_sweep_ends_nothing<S: Store>(case: &StoreCase<S>) {
    let waiting = case.accept_one(DeliveryDraft::to(1).spilled()).await;
    let scope = CutScope::Lane(lane_id(1));
    case.cut(scope, Key::MAX, Cause::Cancelled, &[]).await;
    let older = case.session();
    case.reopen().await;
    let swept = case.store.sweep(older, Sweep::Cut(scope), Vec::new()).await;
    case.check(matches!(swept, Err(StoreError::Fenced { .. })), "it is refused");
    case.check(case.pending(waiting.id).await.is_some(), "its row is unchanged");
}

pub(super) async fn a_delivery_past_its_ttl_reads_as_expired_at_once<S: Store>(case: &StoreCase<S>) {
    for expiry in [Expiry::At(after(50)), Expiry::NowOrNever(after(50))] {
        let delivery = case.accept_one(DeliveryDraft { expiry, ..DeliveryDraft::to(1) }).await;
        case.same("before", case.shown(delivery.id, after(49)).await.delivery, delivery.clone());
        for now in [50, 51] {
            let shown = case.shown(delivery.id, after(now)).await;
            case.same("after", shown.delivery.state, State::Expired { at: after(50) });
        }
        let row = case.pending(delivery.id).await;
        case.same("its row waits for the sweep", row.map(|row| row.delivery.state), Some(delivery.state));
        case.settle_done(case.attempted(&delivery, State::Delivered { at: after(40) }, Cause::Ok)).await;
        let shown = case.shown(delivery.id, after(60)).await.delivery.state;
        case.same("an ended delivery does not expire", shown, State::Delivered { at: after(40) });
    }
}

pub(super) async fn delivery_awaiting_its_receipt_does_not_expire<S: Store>(case: &StoreCase<S>) {
    let draft = DeliveryDraft {
        expiry: Expiry::At(after(50)),
        ack_within: Some(Duration::from_secs(1)),
        ..DeliveryDraft::to(1)
    };
    let delivery = case.accept_one(draft).await;
    let awaits = State::AwaitingAck { until: after(1_040) };
    case.settle_done(case.attempted(&delivery, awaits, Cause::Ok)).await;
    case.same("it awaits its receipt", case.shown(delivery.id, after(60)).await.delivery.state, awaits);
}
