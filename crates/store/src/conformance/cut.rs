//! Cuts: one row ends all deliveries of its scope up to an id. Sweeps: deliveries that a cut or their TTL has ended become
//! outcomes, a bounded number at a time. A delivery whose TTL is over reads as expired at once, before its row is swept.

use std::time::Duration;

use posthaste_core::{Cause, Cut, CutScope, Delivery, DeliveryId, Expiry, Key, State};

use super::fixture::{DeliveryDraft, MANY, NOW, StoreCase, TENANT, after, delivered, endpoint, lane_id};
use crate::{DeadLetterFilter, EndpointStatus, ListOrder, SWEEP_ENDS_MAX, Store, StoreError, Sweep, SweptRows};

/// The final state of a delivery that a cut of these cases covers.
fn cancelled() -> State {
    State::Cancelled { at: after(7), cause: Cause::Cancelled }
}

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

    /// A delivery with a TTL that was sent and awaits its receipt.
    async fn awaits_receipt(&self, ttl_ms: i64) -> Delivery {
        let (expiry, ack_within) = (Expiry::At(after(ttl_ms)), Some(Duration::from_secs(1)));
        let sent = self.accept_one(DeliveryDraft { expiry, ack_within, ..DeliveryDraft::to(1) }).await;
        let settlement = self.attempted(&sent, State::AwaitingAck { until: after(1_040) }, Cause::Ok);
        self.settle_done(settlement.clone()).await;
        settlement.record.delivery
    }

    /// Whether the delivery has a stored outcome, and is not merely covered by a cut or its TTL.
    async fn has_outcome(&self, id: DeliveryId) -> bool {
        self.pending(id).await.is_none() && self.state(id).await.is_terminal()
    }
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
    let scope = CutScope::Message(message.message.id);
    let ids: Vec<_> = case.put(message).await.iter().map(|delivery| delivery.id).collect();
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
    let scope = CutScope::Message(message.message.id);
    let ids: Vec<_> = case.put(message).await.iter().map(|delivery| delivery.id).collect();
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
    case.settle_done(case.attempted(&over, delivered(6), Cause::Ok)).await;
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
    let once = DeliveryDraft { expiry: Expiry::NowOrNever(after(10)), ..DeliveryDraft::to(1) };
    over.push(case.accept_one(once).await.id);
    case.awaits_receipt(5).await;
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
    let filter = DeadLetterFilter::of(TENANT);
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
        case.settle_done(case.attempted(&delivery, delivered(40), Cause::Ok)).await;
        let shown = case.shown(delivery.id, after(60)).await.delivery.state;
        case.same("an ended delivery does not expire", shown, delivered(40));
    }
}

pub(super) async fn delivery_awaiting_its_receipt_does_not_expire<S: Store>(case: &StoreCase<S>) {
    let awaiting = case.awaits_receipt(50).await;
    case.same("it awaits its receipt", case.shown(awaiting.id, after(60)).await.delivery, awaiting);
}
