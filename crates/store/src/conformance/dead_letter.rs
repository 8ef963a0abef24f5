//! Dead letters: filed with the end of a delivery, listed by every filter, purged at once however many there are.

use posthaste_core::{Cause, Delivery, State, TenantId, Tier};

use super::fixture::{
    DeliveryDraft, MANY, NOW, STRANGER, StoreCase, TENANT, after, all_pages, dead, delivered, endpoint_id,
};
use crate::{
    AuditStamp, BoundedCount, DEAD_LETTERS_LOOKED_MAX, DEAD_LETTERS_SWEPT_MAX, DeadLetter, DeadLetterFilter, ListOrder,
    Session, Settled, Store, Swept,
};

fn everything() -> DeadLetterFilter {
    DeadLetterFilter::of(TENANT)
}

impl<S: Store> StoreCase<S> {
    /// Accepts a delivery and ends it as dead some milliseconds later.
    async fn dead(&self, draft: DeliveryDraft, cause: Cause, ms: i64) -> Delivery {
        let delivery = self.accept_one(draft).await;
        self.settle_done(self.attempted(&delivery, State::Dead { at: after(ms), cause }, cause)).await;
        delivery
    }

    /// Like [`dead`](Self::dead), for a message of this tenant and event type.
    async fn typed_dead(
        &self,
        tenant: TenantId,
        event_type: &str,
        draft: DeliveryDraft,
        cause: Cause,
        ms: i64,
    ) -> Delivery {
        let accepted = self.message_with(&[draft], |message| {
            (message.tenant, message.event_type) = (tenant, Some(event_type.to_owned()));
        });
        let delivery = self.put(accepted).await.remove(0);
        self.settle_done(self.attempted(&delivery, State::Dead { at: after(ms), cause }, cause)).await;
        delivery
    }

    /// Accepts `count` deliveries and ends all of them as dead, each at the time `ms` gives for its index.
    async fn many_dead(&self, count: usize, ms: impl Fn(usize) -> i64) {
        for from in (0..count).step_by(500) {
            let drafts = vec![DeliveryDraft::to(1); (count - from).min(500)];
            let deliveries = self.put(self.message(&drafts)).await.into_iter().zip(from..);
            let ends = deliveries.map(|(delivery, place)| self.attempted(&delivery, dead(ms(place)), Cause::NotFound));
            let settled = self.done("settle", self.store.settle(self.session(), ends.collect()).await);
            self.check(settled.iter().all(|settled| *settled == Settled::Done), "all of them end");
        }
    }

    async fn listed(&self, filter: &DeadLetterFilter, order: ListOrder, limit: u32) -> Vec<DeadLetter> {
        let page = async |after| {
            let page = self.store.dead_letters(filter.clone(), order, after, limit).await;
            let page = self.done("list dead letters", page);
            self.check(page.letters.len() <= limit as usize, "a page keeps its limit");
            (page.letters, page.next)
        };
        all_pages(page).await
    }

    async fn deliveries_of(&self, filter: &DeadLetterFilter) -> Vec<u64> {
        let letters = self.listed(filter, ListOrder::OldestFirst, MANY).await;
        letters.iter().map(|letter| letter.delivery.0.seq()).collect()
    }

    async fn finds(&self, what: &str, filter: &DeadLetterFilter, expected: Vec<u64>) {
        let count = self.done("count", self.store.count_dead_letters(filter.clone()).await);
        self.same(what, count, BoundedCount::Exactly(expected.len() as u64));
        self.same(what, self.deliveries_of(filter).await, expected);
    }

    pub(super) async fn purge(&self, filter: &DeadLetterFilter) -> BoundedCount {
        let act = AuditStamp::at(NOW);
        self.done("purge", self.store.purge_dead_letters(self.session(), TENANT, filter.clone(), act).await)
    }

    async fn sweep_all(&self, session: Session) -> u64 {
        let mut removed = 0;
        loop {
            let swept = self.done("sweep", self.store.sweep_dead_letters(session).await);
            self.check(swept.removed <= DEAD_LETTERS_SWEPT_MAX as u64, "a step is small");
            removed += swept.removed;
            if !swept.more {
                return removed;
            }
        }
    }
}

pub(super) async fn only_a_dead_end_files_a_dead_letter<S: Store>(case: &StoreCase<S>) {
    let delivery = case.typed_dead(TENANT, "a.b", DeliveryDraft::to(3), Cause::Forbidden, 5).await;
    let end = case.attempted(&delivery, State::Dead { at: after(5), cause: Cause::Forbidden }, Cause::Forbidden);
    case.same("once more", case.settle(end).await, Settled::Stale);
    let cancelled = State::Cancelled { at: after(6), cause: Cause::Cancelled };
    for state in [delivered(6), State::Expired { at: after(6) }, cancelled] {
        let other = case.accept_one(DeliveryDraft::to(3)).await;
        case.settle_done(case.attempted(&other, state, Cause::Ok)).await;
    }
    let expected = DeadLetter {
        number: 1,
        delivery: delivery.id,
        message: delivery.message,
        tenant: TENANT,
        endpoint: endpoint_id(3),
        tier: Tier::Promotional,
        cause: Cause::Forbidden,
        event_type: Some("a.b".to_owned()),
        attempts: 1,
        at: after(5),
        replayed_as: None,
    };
    case.same("one letter", case.listed(&everything(), ListOrder::NewestFirst, MANY).await, vec![expected]);
    let typed = DeadLetterFilter { event_type: Some("a.b".to_owned()), ..everything() };
    case.same("by its event type", case.deliveries_of(&typed).await, vec![delivery.id.0.seq()]);
}

pub(super) async fn dead_letters_are_found_by_every_filter<S: Store>(case: &StoreCase<S>) {
    let urgent = DeliveryDraft { tier: Tier::Transactional, ..DeliveryDraft::to(2) };
    let one = case.dead(DeliveryDraft::to(1), Cause::NotFound, 30).await.id.0.seq();
    let two = case.dead(urgent, Cause::NotFound, 10).await.id.0.seq();
    let three = case.dead(DeliveryDraft::to(2), Cause::Gone, 20).await.id.0.seq();
    let to = |n| DeadLetterFilter { endpoint: Some(endpoint_id(n)), ..everything() };
    for (what, filter, expected) in [
        ("all, by time", everything(), vec![two, three, one]),
        ("another tenant's", DeadLetterFilter::of(STRANGER), vec![]),
        ("by endpoint", to(2), vec![two, three]),
        ("another's endpoint", DeadLetterFilter { tenant: Some(STRANGER), ..to(2) }, vec![]),
        ("by cause", DeadLetterFilter { cause: Some(Cause::NotFound), ..everything() }, vec![two, one]),
        ("by tier", DeadLetterFilter { tier: Some(Tier::Promotional), ..everything() }, vec![three, one]),
        ("by event type", DeadLetterFilter { event_type: Some("x".to_owned()), ..everything() }, vec![]),
        ("since", DeadLetterFilter { since: Some(after(20)), ..everything() }, vec![three, one]),
        ("until", DeadLetterFilter { until: Some(after(20)), ..everything() }, vec![two]),
        ("several", DeadLetterFilter { cause: Some(Cause::Gone), ..to(2) }, vec![three]),
    ] {
        case.finds(what, &filter, expected).await;
    }
}

pub(super) async fn dead_letters_of_all_tenants_are_found_by_every_filter<S: Store>(case: &StoreCase<S>) {
    let [first, second] = [TENANT, STRANGER];
    let one = case.typed_dead(first, "a.b", DeliveryDraft::to(1), Cause::NotFound, 30).await.id.0.seq();
    let two = case.typed_dead(second, "a.b", DeliveryDraft::to(2), Cause::NotFound, 10).await.id.0.seq();
    let urgent = DeliveryDraft { tier: Tier::Transactional, ..DeliveryDraft::to(2) };
    let three = case.typed_dead(second, "c", urgent, Cause::Gone, 20).await.id.0.seq();
    let all = DeadLetterFilter::default();
    let to = |n| DeadLetterFilter { endpoint: Some(endpoint_id(n)), ..DeadLetterFilter::default() };
    for (what, filter, expected) in [
        ("all, by time", all.clone(), vec![two, three, one]),
        ("by endpoint", to(2), vec![two, three]),
        ("by cause", DeadLetterFilter { cause: Some(Cause::NotFound), ..all.clone() }, vec![two, one]),
        ("by tier", DeadLetterFilter { tier: Some(Tier::Transactional), ..all.clone() }, vec![three]),
        ("by event type", DeadLetterFilter { event_type: Some("a.b".to_owned()), ..all.clone() }, vec![two, one]),
        ("since", DeadLetterFilter { since: Some(after(20)), ..all.clone() }, vec![three, one]),
        ("until", DeadLetterFilter { until: Some(after(20)), ..all.clone() }, vec![two]),
        ("several", DeadLetterFilter { event_type: Some("c".to_owned()), ..to(2) }, vec![three]),
    ] {
        case.finds(what, &filter, expected).await;
    }
    let tenants: Vec<TenantId> =
        case.listed(&all, ListOrder::NewestFirst, 1).await.iter().map(|letter| letter.tenant).collect();
    case.same("their tenants", tenants, vec![first, second, second]);
    case.same("a purge covers one tenant", case.purge(&all).await, BoundedCount::Exactly(1));
    case.finds("the others' stay", &all, vec![two, three]).await;
}

pub(super) async fn list_continues_after_each_page_in_both_orders<S: Store>(case: &StoreCase<S>) {
    // Several end in the same millisecond, as with a cut.
    case.many_dead(7, |place| i64::try_from(place / 3).unwrap_or(0)).await;
    let oldest = case.listed(&everything(), ListOrder::OldestFirst, MANY).await;
    case.check(oldest.is_sorted_by_key(DeadLetter::cursor), "by time, then number");
    for limit in 1..4 {
        case.same("oldest", case.listed(&everything(), ListOrder::OldestFirst, limit).await, oldest.clone());
        let mut newest = case.listed(&everything(), ListOrder::NewestFirst, limit).await;
        newest.reverse();
        case.same("newest", newest, oldest.clone());
    }
}

pub(super) async fn small_purge_is_immediate_and_spares_later_dead_letters<S: Store>(case: &StoreCase<S>) {
    let early = case.accept_one(DeliveryDraft::to(1)).await;
    case.dead(DeliveryDraft::to(1), Cause::NotFound, 1).await;
    let other = case.dead(DeliveryDraft::to(2), Cause::NotFound, 2).await;
    let to = DeadLetterFilter { endpoint: Some(endpoint_id(1)), ..everything() };
    case.same("one", case.purge(&to).await, BoundedCount::Exactly(1));
    case.same("again", case.purge(&to).await, BoundedCount::Exactly(0));
    case.same("nothing is left to sweep", case.sweep_all(case.session()).await, 0);
    case.settle_done(case.attempted(&early, dead(0), Cause::NotFound)).await;
    case.same("the later dead letter", case.deliveries_of(&to).await, vec![early.id.0.seq()]);
    case.same("others", case.deliveries_of(&everything()).await, vec![early.id.0.seq(), other.id.0.seq()]);
    case.check(case.shown(other.id, after(9)).await.attempts.len() == 1, "the history stays");
}

pub(super) async fn a_large_purge_hides_at_once_and_is_swept_in_steps<S: Store>(case: &StoreCase<S>) {
    let count = DEAD_LETTERS_LOOKED_MAX + DEAD_LETTERS_SWEPT_MAX;
    case.many_dead(count, |place| i64::from(place % 2 == 0)).await;
    let early = DeadLetterFilter { until: Some(after(1)), ..everything() };
    let half = count as u64 / 2;
    case.same("half of them", case.purge(&early).await, BoundedCount::Exactly(half));
    case.same("hidden", case.deliveries_of(&early).await, vec![]);
    case.same("the rest", case.deliveries_of(&everything()).await.len() as u64, half);
    case.same("nothing twice", case.purge(&early).await, BoundedCount::Exactly(0));
    let later = case.dead(DeliveryDraft::to(1), Cause::NotFound, 0).await.id.0.seq();
    case.same("a later dead letter is listed", case.deliveries_of(&early).await, vec![later]);
    let start = case.reopen().await;
    let swept = case.done("sweep", case.store.sweep_dead_letters(start.session).await);
    case.same("the sweep continues", swept, Swept { removed: DEAD_LETTERS_SWEPT_MAX as u64, more: true });
    case.same("each once", swept.removed + case.sweep_all(start.session).await, half);
    case.same("the later one stays", case.deliveries_of(&early).await, vec![later]);
    case.same("and the rest", case.deliveries_of(&everything()).await.len() as u64, half + 1);
}

pub(super) async fn count_stops_at_its_bound_and_says_at_least<S: Store>(case: &StoreCase<S>) {
    case.many_dead(DEAD_LETTERS_LOOKED_MAX + 1, |_| 0).await;
    let count = case.done("count", case.store.count_dead_letters(everything()).await);
    let most = BoundedCount::AtLeast(DEAD_LETTERS_LOOKED_MAX as u64);
    case.same("at least", count, most);
    case.same("a purge returns the same", case.purge(&everything()).await, most);
    case.same("and covers all", case.deliveries_of(&everything()).await, vec![]);
    case.same("every one", case.sweep_all(case.session()).await, DEAD_LETTERS_LOOKED_MAX as u64 + 1);
}
