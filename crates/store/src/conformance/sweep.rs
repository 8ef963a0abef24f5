//! Writing off: what has ended by definition becomes an outcome, a bounded number at a time.

use std::time::Duration;

use posthaste_core::cause::Cause;
use posthaste_core::cut::Scope;
use posthaste_core::delivery::Expiry;
use posthaste_core::id::{DeliveryId, Key, TenantId};
use posthaste_core::state::State;

use super::fixture::{Case, Draft, MANY, NOW, after, lane_id};
use crate::row::{DeadLetterFilter, ListOrder, SWEEP_ENDS_MAX, Sweep, SweptRows};
use crate::{Store, StoreError};

impl<S: Store> Case<S> {
    async fn sweep(&self, sweep: Sweep, under_way: &[DeliveryId]) -> SweptRows {
        self.done("sweep", self.store.sweep(self.session(), sweep, under_way.to_vec()).await)
    }

    /// Looks at every row, and expects one look to be enough.
    async fn roll(&self, ms: i64) -> Vec<DeliveryId> {
        let swept = self.sweep(Sweep::Roll { after: None, now: after(ms) }, &[]).await;
        self.same("it sees everything", swept.stopped_at, None);
        swept.ended
    }

    /// Whether it has ended with an outcome of its own, and not because something covers it.
    async fn is_written_off(&self, id: DeliveryId) -> bool {
        self.pending(id).await.is_none() && self.state(id).await.is_terminal()
    }
}

pub(super) async fn a_lane_s_rows_are_swept_wherever_they_are<S: Store>(case: &Case<S>) {
    let mut mine = Vec::new();
    let mut others = Vec::new();
    for draft in [Draft::to(1), Draft::to(1).spilled(), Draft::to(1).delayed(after(1))] {
        mine.push(case.accept_one(draft).await.id);
        others.push(case.accept_one(Draft { lane: lane_id(2), ..draft }).await.id);
    }
    let spared = case.accept_one(Draft::to(1).spilled()).await.id;
    let later = case.accept_one(Draft::to(1).spilled()).await.id;
    let scope = Scope::Lane(lane_id(1));
    case.same("nothing without a cut", case.sweep(Sweep::Cut(scope), &[]).await, SweptRows::default());
    case.cut(scope, spared.0, Cause::Cancelled, &[spared]).await;
    let spilled = case.sweep(Sweep::Cut(scope), &[spared]).await;
    case.same(
        "an index finds what is spilled",
        spilled,
        SweptRows { ended: vec![mine[1]], spared: 1, stopped_at: None },
    );
    let rest = case.sweep(Sweep::Roll { after: None, now: NOW }, &[spared]).await;
    case.same("the rest", rest, SweptRows { ended: vec![mine[0], mine[2]], spared: 1, stopped_at: None });
    for id in mine {
        case.check(case.is_written_off(id).await, "it has ended");
        case.same("as it was read", case.state(id).await, State::Cancelled { at: after(7), cause: Cause::Cancelled });
    }
    for id in others.into_iter().chain([spared, later]) {
        let row = case.pending(id).await.map(|row| row.delivery.state);
        case.same("left alone", Some(case.state(id).await), row);
    }
    // Asked for before the cut was made: it may have been sent in between.
    let early = case.sweep(Sweep::Roll { after: None, now: after(7) }, &[]).await;
    case.same("what was spared since", (early.ended, early.spared), (Vec::new(), 1));
    let swept = case.sweep(Sweep::Roll { after: None, now: after(8) }, &[]).await.ended;
    case.same("what was spared, once it is under way no more", swept, vec![spared]);
    case.same("the index has no more", case.sweep(Sweep::Cut(scope), &[]).await.ended, Vec::new());
}

pub(super) async fn a_message_s_rows_are_swept_by_its_key<S: Store>(case: &Case<S>) {
    let before = case.accept(&[Draft::to(1)]).await;
    let message = case.message(&[Draft::to(1), Draft::to(2).spilled(), Draft::to(3).delayed(after(9))]);
    let ids: Vec<_> = message.deliveries.iter().map(|new| new.delivery.id).collect();
    let scope = Scope::Message(message.message.id);
    case.done("accept", case.store.accept(case.session(), vec![message]).await);
    let behind = case.accept(&[Draft::to(1)]).await;
    case.cut(scope, Key::MAX, Cause::Cancelled, &[]).await;
    case.same("no look at every row ends it", case.roll(0).await, Vec::new());
    case.same("its rows", case.sweep(Sweep::Cut(scope), &[]).await.ended, ids.clone());
    for id in ids {
        case.check(case.is_written_off(id).await, "it has ended");
    }
    for id in before.iter().chain(&behind) {
        case.same("another message's", case.state(*id).await, State::Queued { due: NOW });
    }
}

pub(super) async fn what_its_owner_has_under_way_is_left<S: Store>(case: &Case<S>) {
    let over = case.accept_one(Draft { expiry: Expiry::At(after(5)), ..Draft::to(1) }).await;
    let cut = case.accept_one(Draft::to(2).spilled()).await;
    let scope = Scope::Lane(lane_id(2));
    case.cut(scope, cut.id.0, Cause::Cancelled, &[]).await;
    let under_way = [over.id, cut.id];
    for sweep in [Sweep::Cut(scope), Sweep::Roll { after: None, now: after(9) }] {
        let swept = case.sweep(sweep, &under_way).await;
        case.same("nothing", swept.ended, Vec::new());
        case.check(swept.spared > 0, "it says that something is left");
    }
    case.settle_done(case.attempted(&over, State::Delivered { at: after(6) }, Cause::Ok)).await;
    case.same("by then", case.roll(9).await, vec![cut.id]);
}

pub(super) async fn rows_past_their_ttl_are_swept<S: Store>(case: &Case<S>) {
    let mut over = Vec::new();
    for (draft, ms) in [(Draft::to(1), 10), (Draft::to(2).spilled(), 8), (Draft::to(1).delayed(after(99)), 10)] {
        over.push(case.accept_one(Draft { expiry: Expiry::At(after(ms)), ..draft }).await.id);
        case.accept_one(draft).await;
        case.accept_one(Draft { expiry: Expiry::At(after(11)), ..draft }).await;
    }
    over.push(case.accept_one(Draft { expiry: Expiry::NowOrNever(after(10)), ..Draft::to(1) }).await.id);
    let draft = Draft { expiry: Expiry::At(after(5)), ack_within: Some(Duration::from_secs(1)), ..Draft::to(1) };
    let sent = case.accept_one(draft).await;
    case.settle_done(case.attempted(&sent, State::AwaitingAck { until: after(1_040) }, Cause::Ok)).await;
    case.same("none before", case.roll(7).await, Vec::new());
    case.same("by id, and nothing that was sent", case.roll(10).await, over.clone());
    for (id, ms) in over.iter().zip([10, 8, 10, 10]) {
        case.check(case.is_written_off(*id).await, "it has ended");
        case.same("when its time was over", case.state(*id).await, State::Expired { at: after(ms) });
    }
    case.same("only once", case.roll(10).await, Vec::new());
}

pub(super) async fn a_sweep_ends_a_bounded_number_and_goes_on<S: Store>(case: &Case<S>) {
    let many = SWEEP_ENDS_MAX as usize + 100;
    let (own, lane) = (case.message(&vec![Draft::to(1); many]), Scope::Lane(lane_id(2)));
    let message = Scope::Message(own.message.id);
    let other = case.message(&vec![Draft::to(2).spilled(); many]);
    case.done("accept", case.store.accept(case.session(), vec![own, other]).await);
    case.accept_one(Draft::to(3)).await;
    for scope in [message, lane] {
        case.cut(scope, Key::MAX, Cause::Cancelled, &[]).await;
        let first = case.sweep(Sweep::Cut(scope), &[]).await;
        case.same("the first ones", (first.ended.len(), first.stopped_at), (many - 100, first.ended.last().copied()));
        let rest = case.sweep(Sweep::Cut(scope), &[]).await;
        case.same("the rest", (rest.ended.len(), rest.stopped_at), (100, None));
    }
    let last = case.message(&vec![Draft { expiry: Expiry::At(after(1)), ..Draft::to(4) }; many]);
    case.done("accept", case.store.accept(case.session(), vec![last]).await);
    let first = case.sweep(Sweep::Roll { after: None, now: after(1) }, &[]).await;
    case.same("the first ones", (first.ended.len(), first.stopped_at), (many - 100, first.ended.last().copied()));
    let rest = case.sweep(Sweep::Roll { after: first.stopped_at, now: after(1) }, &[]).await;
    case.same("the rest", (rest.ended.len(), rest.stopped_at), (100, None));
}

pub(super) async fn the_end_of_an_endpoint_is_filed_with_its_rows<S: Store>(case: &Case<S>) {
    let waiting = case.accept_one(Draft::to(1).spilled()).await;
    let scope = Scope::Lane(lane_id(1));
    case.cut(scope, Key::MAX, Cause::EndpointGone, &[]).await;
    case.same("it has ended", case.sweep(Sweep::Cut(scope), &[]).await.ended, vec![waiting.id]);
    let filter = DeadLetterFilter::of(TenantId::from_raw(9));
    let page = case.done("list", case.store.dead_letters(filter, ListOrder::OldestFirst, None, MANY).await);
    let filed: Vec<_> = page.letters.iter().map(|letter| (letter.delivery, letter.cause, letter.at)).collect();
    case.same("a dead letter", filed, vec![(waiting.id, Cause::EndpointGone, after(7))]);
}

pub(super) async fn a_fenced_sweep_ends_nothing<S: Store>(case: &Case<S>) {
    let waiting = case.accept_one(Draft::to(1).spilled()).await;
    let scope = Scope::Lane(lane_id(1));
    case.cut(scope, Key::MAX, Cause::Cancelled, &[]).await;
    let older = case.session();
    case.reopen().await;
    let swept = case.store.sweep(older, Sweep::Cut(scope), Vec::new()).await;
    case.check(matches!(swept, Err(StoreError::Fenced { .. })), "it is refused");
    case.check(case.pending(waiting.id).await.is_some(), "its row is as it was");
}
