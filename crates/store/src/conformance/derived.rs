//! Derived data is up to date at once, whether or not the follower has processed the journal yet.

use posthaste_core::{Cause, Delivery, DeliveryId, EndpointId, MessageId, Phase, State, Tier};

use super::fixture::{
    DeliveryDraft, MANY, NOW, STRANGER, StoreCase, TENANT, after, all_pages, dead, delivered, endpoint, lane_id,
};
use crate::{
    CountedEvent, Endpoint, HistoryFilter, HistoryOf, ListOrder, ListedMessage, MessageFilter, Name, PendingCounts,
    Store, UtcHour,
};

const ENDPOINT: EndpointId = EndpointId::from_raw(7_001);

impl<S: Store> StoreCase<S> {
    /// Checks the deliveries of a history in both orders, page by page.
    async fn lists(&self, filter: HistoryFilter, limit: u32, oldest_first: &[DeliveryId]) {
        for order in [ListOrder::OldestFirst, ListOrder::NewestFirst] {
            let page = async |from| {
                let page = self.done("history", self.store.history(filter, order, from, limit, NOW).await);
                self.check(page.deliveries.len() <= limit as usize, "no more than asked for");
                (page.deliveries.iter().map(|shown| shown.delivery.id).collect(), page.next)
            };
            self.same(&format!("{filter:?}"), in_order(order, all_pages(page).await), oldest_first.to_vec());
        }
    }
}

/// A list that was read in this order, oldest first.
fn in_order<T>(order: ListOrder, mut list: Vec<T>) -> Vec<T> {
    if order == ListOrder::NewestFirst {
        list.reverse();
    }
    list
}

pub(super) async fn an_endpoint_s_history_comes_newest_first_in_pages<S: Store>(case: &StoreCase<S>) {
    let mut mine = Vec::new();
    for _ in 0..7 {
        let ids = case.accept(&[DeliveryDraft::to(2), DeliveryDraft::to(1).spilled(), DeliveryDraft::to(1)]).await;
        mine.extend_from_slice(&ids[1..]);
    }
    case.lists(HistoryFilter::of(ENDPOINT), 4, &mine).await;
}

pub(super) async fn history_shows_states_and_can_be_filtered<S: Store>(case: &StoreCase<S>) {
    let (first, second) = (case.accept_one(DeliveryDraft::to(1)).await, case.accept_one(DeliveryDraft::to(1)).await);
    let third = case.accept_one(DeliveryDraft { tier: Tier::Engagement, ..DeliveryDraft::to(1) }).await;
    let fourth = case.accept_one(DeliveryDraft::to(1)).await;
    case.settle_done(case.attempted(&first, delivered(5), Cause::Ok)).await;
    case.settle_done(case.attempted(&fourth, State::Expired { at: after(7) }, Cause::Unavailable)).await;
    case.settle_done(case.attempted(&second, dead(6), Cause::NotFound)).await;
    let of = HistoryFilter::of(ENDPOINT);
    for (filter, expected) in [
        (of, vec![fourth.id, third.id, second.id, first.id]),
        (HistoryFilter { phase: Some(Phase::Dead), ..of }, vec![second.id]),
        (HistoryFilter { cause: Some(Cause::NotFound), ..of }, vec![second.id]),
        (HistoryFilter { cause: Some(Cause::TtlExpired), ..of }, vec![fourth.id]),
        (HistoryFilter { cause: Some(Cause::Unavailable), ..of }, vec![]),
        (HistoryFilter { tier: Some(Tier::Engagement), ..of }, vec![third.id]),
        (HistoryFilter { since: Some(after(1)), ..of }, vec![]),
        (HistoryFilter { until: Some(after(1)), ..of }, vec![fourth.id, third.id, second.id, first.id]),
    ] {
        let page = case.done("history", case.store.history(filter, ListOrder::NewestFirst, None, MANY, NOW).await);
        let ids = page.deliveries.iter().map(|shown| shown.delivery.id).collect::<Vec<_>>();
        case.same(&format!("{filter:?}"), ids, expected);
    }
}

pub(super) async fn messages_are_found_by_subject_and_correlation<S: Store>(case: &StoreCase<S>) {
    let mut sent = Vec::new();
    for (subject, correlation) in [(Some("ann"), "order-1"), (Some("bob"), "order-1"), (Some("ann"), "order-2")] {
        sent.push(send(case, subject, Some(correlation)).await);
    }
    send(case, None, Some("ann")).await;
    send(case, None, None).await;
    for (name, expected) in [
        (Name::Subject("ann".to_owned()), vec![sent[2], sent[0]]),
        (Name::Subject("order-1".to_owned()), vec![]),
        (Name::Correlation("order-1".to_owned()), vec![sent[1], sent[0]]),
    ] {
        let all = case.store.named(TENANT, name.clone(), ListOrder::NewestFirst, None, MANY).await;
        case.same("all of that name", case.done("named", all).messages, expected.clone());
        let one = case.done("named", case.store.named(TENANT, name.clone(), ListOrder::NewestFirst, None, 1).await);
        case.same("one of them", one.messages.clone(), expected.iter().copied().take(1).collect());
        case.same("where to go on", one.next, (expected.len() > 1).then(|| expected[0]));
        let other = case.store.named(STRANGER, name, ListOrder::NewestFirst, None, MANY).await;
        case.same("nothing of another tenant's", case.done("named", other).messages, vec![]);
    }
}

pub(super) async fn messages_are_listed_by_every_filter_in_pages<S: Store>(case: &StoreCase<S>) {
    let mut sent = Vec::new();
    for (ms, tenant, event_type, tier, subject) in [
        (0, TENANT, Some("a.b"), Tier::Promotional, None),
        (1, STRANGER, Some("a.b"), Tier::Promotional, None),
        (2, TENANT, None, Tier::Transactional, None),
        (3, TENANT, Some("a.c"), Tier::Transactional, Some("ann")),
    ] {
        let accepted = case.message_with(&[], |message| {
            (message.at, message.tenant, message.tier) = (after(ms), tenant, tier);
            message.event_type = event_type.map(str::to_owned);
            message.subject = subject.map(str::to_owned);
        });
        sent.push(accepted.message.id);
        case.put(accepted).await;
    }
    let mine = MessageFilter { tenant: Some(TENANT), ..MessageFilter::default() };
    let at = |n: i64| Some(after(n));
    for (filter, expected) in [
        (MessageFilter::default(), vec![0, 1, 2, 3]),
        (mine.clone(), vec![0, 2, 3]),
        (MessageFilter { event_type: Some("a.b".to_owned()), ..MessageFilter::default() }, vec![0, 1]),
        (MessageFilter { event_type: Some("a.b".to_owned()), ..mine.clone() }, vec![0]),
        (MessageFilter { event_type: Some("x".to_owned()), ..mine.clone() }, vec![]),
        (MessageFilter { tier: Some(Tier::Transactional), ..mine.clone() }, vec![2, 3]),
        (MessageFilter { since: at(1), until: at(3), ..mine.clone() }, vec![2]),
        (MessageFilter { name: Some(Name::Subject("ann".to_owned())), ..mine.clone() }, vec![3]),
        (MessageFilter { name: Some(Name::Subject("bob".to_owned())), ..mine.clone() }, vec![]),
    ] {
        for order in [ListOrder::OldestFirst, ListOrder::NewestFirst] {
            let page = async |from| {
                let page = case.done("messages", case.store.messages(filter.clone(), order, from, 2).await);
                case.check(page.messages.len() <= 2, "no more than asked for");
                (page.messages.iter().map(|message| message.id).collect(), page.next)
            };
            let found = in_order(order, all_pages(page).await);
            case.same(&format!("{filter:?}"), found, expected.iter().map(|n| sent[*n]).collect());
        }
    }
    let listed = case.done("messages", case.store.messages(mine, ListOrder::NewestFirst, None, 1).await).messages;
    let whole = case.done("message", case.store.message(sent[3]).await);
    case.same("with the message's fields", listed.first().cloned(), whole.map(|message| ListedMessage::of(&message)));
}

pub(super) async fn deliveries_are_listed_by_message_by_tenant_and_for_all_tenants<S: Store>(case: &StoreCase<S>) {
    case.put_endpoint(endpoint(1)).await;
    case.put_endpoint(Endpoint { tenant: STRANGER, ..endpoint(2) }).await;
    let ids = case.accept(&[DeliveryDraft::to(1), DeliveryDraft::to(2), DeliveryDraft::to(1)]).await;
    let (last, sent) = (case.accept_one(DeliveryDraft::to(1)).await, case.message(&[]).message.id);
    case.settle_done(case.attempted(&last, delivered(5), Cause::Ok)).await;
    let message = case.done("delivery", case.store.delivery(ids[0], NOW).await).map(|shown| shown.delivery.message);
    let of = |of| HistoryFilter::all(of);
    let arrived = HistoryFilter { phase: Some(Phase::Delivered), ..of(HistoryOf::AllTenants) };
    let sending = HistoryFilter { phase: Some(Phase::Dispatching), ..of(HistoryOf::AllTenants) };
    for (filter, expected) in [
        (of(HistoryOf::AllTenants), vec![ids[0], ids[1], ids[2], last.id]),
        (of(HistoryOf::Tenant(STRANGER)), vec![ids[1]]),
        (of(HistoryOf::Tenant(TENANT)), vec![ids[0], ids[2], last.id]),
        (of(HistoryOf::Message(message.unwrap_or(sent))), ids.clone()),
        (of(HistoryOf::Message(sent)), vec![]),
        (arrived, vec![last.id]),
        (sending, ids.clone()),
    ] {
        case.lists(filter, 2, &expected).await;
    }
}

pub(super) async fn events_are_counted_by_tenant_and_hour<S: Store>(case: &StoreCase<S>) {
    case.put_endpoint(endpoint(1)).await;
    let first = case.accept_one(DeliveryDraft::to(1)).await;
    let second = case.accept_one(DeliveryDraft::to(1)).await;
    case.settle_done(case.attempted(&first, delivered(5), Cause::Ok)).await;
    let later = State::Cancelled { at: after(7_200_000), cause: Cause::Cancelled };
    case.settle_done(case.settlement(&second, Delivery { state: later, ..second.clone() })).await;
    let hour = UtcHour::of(NOW);
    let tallies = case.done("tallies", case.store.tallies(TENANT, hour, UtcHour(hour.0 + 3)).await);
    let found: Vec<_> = tallies.iter().map(|tally| (tally.hour.0 - hour.0, tally.counted, tally.count)).collect();
    let expected = vec![
        (0, CountedEvent::Messages, 2),
        (0, CountedEvent::Deliveries, 2),
        (0, CountedEvent::Attempts, 1),
        (0, CountedEvent::Delivered, 1),
        (2, CountedEvent::Cancelled, 1),
    ];
    case.same("what was counted", found, expected);
    let none = case.store.tallies(TENANT, UtcHour(hour.0 + 1), UtcHour(hour.0 + 2)).await;
    case.same("an hour in which nothing happened", case.done("tallies", none), vec![]);
}

pub(super) async fn lane_reports_its_pending_deliveries<S: Store>(case: &StoreCase<S>) {
    let first = case.accept_one(DeliveryDraft::to(1)).await;
    case.accept(&[
        DeliveryDraft::to(1).spilled(),
        DeliveryDraft { tier: Tier::Transactional, ..DeliveryDraft::to(1) },
        DeliveryDraft::to(2),
    ])
    .await;
    case.settle_done(case.attempted(&first, delivered(5), Cause::Ok)).await;
    let tried = case.accept_one(DeliveryDraft::to(2)).await;
    case.settle_done(case.retried(&tried, 9, Cause::Unavailable)).await;
    let waiting = |lane| async move { case.done("waiting", case.store.waiting(lane_id(lane)).await) };
    case.same("by tier", waiting(1).await.by_tier, [1, 1, 0]);
    case.same("in all", waiting(2).await.total(), 2);
    case.same("of an unknown lane", waiting(3).await.total(), 0);
    let all = PendingCounts { by_tier: [1, 3, 0], untried: 3 };
    case.same("in all lanes", case.done("pending", case.store.pending().await), all);
    case.reopen().await;
    case.same("and after a restart", case.done("pending", case.store.pending().await), all);
}

async fn send<S: Store>(case: &StoreCase<S>, subject: Option<&str>, correlation: Option<&str>) -> MessageId {
    let accepted = case.message_with(&[DeliveryDraft::to(1)], |message| {
        message.subject = subject.map(str::to_owned);
        message.correlation_id = correlation.map(str::to_owned);
    });
    case.put(accepted).await[0].message
}
