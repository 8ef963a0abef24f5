//! Pages of pending rows: their content, order and length.

use posthaste_core::scheduler::Order;
use posthaste_core::{Cause, DeliveryId, IdRange, State, Tier, WriterId};

use super::fixture::{DeliveryDraft, MANY, NOW, StoreCase, after, lane_id};
use crate::{PendingPage, Query, Store};

pub(super) async fn left_rows_are_ready_ones_of_earlier_writers_by_id<S: Store>(case: &StoreCase<S>) {
    let mut ready = Vec::new();
    for _ in 0..3 {
        ready.push(case.accept_one(DeliveryDraft::to(1)).await.id);
        case.accept_one(DeliveryDraft::to(1).spilled()).await;
        case.accept_one(DeliveryDraft::to(1).delayed(NOW)).await;
    }
    let own = case.session().writer;
    case.same("none of its own", case.page(Query::Left { after: None, before: own }, MANY).await.rows, Vec::new());
    let before = WriterId::new(own.number() + 1).expect("a small number");
    let first = case.page(Query::Left { after: None, before }, 2).await;
    case.same("the first page", ids(&first), ready[..2].to_vec());
    case.check(first.more, "a full page may have more behind it");
    case.same("how far it read", first.looked, Some(ready[1]));
    let rest = case.page(Query::Left { after: first.looked, before }, 2).await;
    case.same("the rest", ids(&rest), ready[2..].to_vec());
    case.check(!rest.more && rest.looked.is_none(), "it read everything");
    case.same("no due time", rest.next_due, None);
}

pub(super) async fn delayed_rows_come_by_due_time_then_id<S: Store>(case: &StoreCase<S>) {
    let late = case.accept_one(DeliveryDraft::to(1).delayed(after(20))).await.id;
    let twins = [
        case.accept_one(DeliveryDraft::to(2).delayed(after(10))).await.id,
        case.accept_one(DeliveryDraft::to(1).delayed(after(10))).await.id,
        case.accept_one(DeliveryDraft::to(3).delayed(after(10))).await.id,
    ];
    let soon = case.accept_one(DeliveryDraft::to(1).delayed(after(5))).await.id;
    case.accept_one(DeliveryDraft { due: after(5), ..DeliveryDraft::to(1) }.spilled()).await;
    case.accept_one(DeliveryDraft { due: after(5), ..DeliveryDraft::to(1) }).await;
    let expected = [soon, twins[0], twins[1], twins[2], late];
    let until = after(20);
    case.same("all", case.ids(Query::Delayed { after: None, until }, MANY).await, expected.to_vec());
    // One row per page, including pages that end between rows of one due time.
    let mut last = None;
    for id in expected {
        let page = case.page(Query::Delayed { after: last, until }, 1).await;
        case.same("the next one", ids(&page), vec![id]);
        case.check(page.more, "a full page may have more behind it");
        last = page.rows[0].delivery.state.due().map(|due| (due, id));
    }
    let end = case.page(Query::Delayed { after: last, until }, 1).await;
    case.check(end.rows.is_empty() && !end.more, "nothing after the last");
    let across = case.page(Query::Delayed { after: Some((after(10), twins[1])), until }, MANY).await;
    case.same("from within one due time", ids(&across), vec![twins[2], late]);
    let short = case.page(Query::Delayed { after: Some((after(10), twins[0])), until }, 3).await;
    case.same("a page across due times", (ids(&short), short.more), (vec![twins[1], twins[2], late], true));
    let over = case.page(Query::Delayed { after: Some((after(20), late)), until: after(10) }, MANY).await;
    case.check(over.rows.is_empty(), "nothing when the cursor is beyond the end");
}

pub(super) async fn next_due_time_is_after_the_requested_time<S: Store>(case: &StoreCase<S>) {
    let until = after(10);
    let query = Query::Delayed { after: None, until };
    case.same("of an empty store", case.page(query, MANY).await, PendingPage::default());
    case.accept_one(DeliveryDraft::to(1).delayed(after(30))).await;
    case.accept_one(DeliveryDraft::to(1).delayed(after(11))).await;
    let due = case.accept_one(DeliveryDraft::to(1).delayed(after(10))).await.id;
    case.accept_one(DeliveryDraft { due: after(11), ..DeliveryDraft::to(1) }.spilled()).await;
    let page = case.page(query, MANY).await;
    case.same("the due row", ids(&page), vec![due]);
    case.same("the next due time", page.next_due, Some(after(11)));
    let last = Query::Delayed { after: None, until: after(30) };
    case.same("nothing beyond the last", case.page(last, 1).await.next_due, None);
}

pub(super) async fn spilled_rows_come_oldest_first<S: Store>(case: &StoreCase<S>) {
    let queue = backlog(case).await;
    let query = backlog_in(Order::Fifo);
    case.same("the queue", case.ids(query, MANY).await, queue.to_vec());
    let first = case.page(query, 2).await;
    case.same("the first ones", (ids(&first), first.more), (queue[..2].to_vec(), true));
}

pub(super) async fn spilled_rows_come_newest_first_on_request<S: Store>(case: &StoreCase<S>) {
    let mut queue = backlog(case).await;
    queue.reverse();
    let query = backlog_in(Order::NewestFirst);
    case.same("the queue", case.ids(query, MANY).await, queue.to_vec());
    case.same("the first ones", case.ids(query, 2).await, queue[..2].to_vec());
}

pub(super) async fn a_strict_lane_is_one_queue_over_all_tiers<S: Store>(case: &StoreCase<S>) {
    let mut queue = Vec::new();
    for tier in [Tier::Engagement, Tier::Promotional, Tier::Transactional, Tier::Promotional, Tier::Engagement] {
        queue.push(case.accept_one(DeliveryDraft { tier, ..DeliveryDraft::to(1).spilled() }).await.id);
        case.accept_one(DeliveryDraft { tier, ..DeliveryDraft::to(2).spilled() }).await;
    }
    for tier in Tier::ALL {
        let query = Query::Spilled { lane: lane_id(1), tier, order: Order::Strict, span: IdRange::ALL };
        case.same("the queue, by id", case.ids(query, MANY).await, queue.clone());
        let first = case.page(query, 3).await;
        case.same("the first ones", (ids(&first), first.more), (queue[..3].to_vec(), true));
    }
}

pub(super) async fn row_is_found_by_id_while_pending<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_one(DeliveryDraft::to(1).spilled()).await;
    case.same("it", case.ids(Query::One(delivery.id), 1).await, vec![delivery.id]);
    case.settle_done(case.attempted(&delivery, State::Delivered { at: NOW }, Cause::Ok)).await;
    case.same("after its end", case.ids(Query::One(delivery.id), 1).await, Vec::new());
}

pub(super) async fn spilled_queues_are_known_at_the_start<S: Store>(case: &StoreCase<S>) {
    let (urgent, usual) = (Tier::Transactional, Tier::Engagement);
    for (lane, tier) in [(7, usual), (3, urgent), (7, urgent), (7, usual), (5, urgent)] {
        case.accept_one(DeliveryDraft { tier, ..DeliveryDraft::to(lane).spilled() }).await;
    }
    case.accept_one(DeliveryDraft::to(8)).await;
    case.accept_one(DeliveryDraft::to(9).delayed(after(1))).await;
    let expected = vec![(lane_id(3), urgent), (lane_id(5), urgent), (lane_id(7), urgent), (lane_id(7), usual)];
    case.same("the queues", case.reopen().await.spilled, expected);
}

fn backlog_in(order: Order) -> Query {
    Query::Spilled { lane: lane_id(1), tier: Tier::Promotional, order, span: IdRange::ALL }
}

/// Three spilled rows of lane 1, tier promotional, with others between them.
async fn backlog<S: Store>(case: &StoreCase<S>) -> [DeliveryId; 3] {
    let mut queue = Vec::new();
    for _ in 0..3 {
        queue.push(case.accept_one(DeliveryDraft::to(1).spilled()).await.id);
        case.accept_one(DeliveryDraft::to(1)).await;
        case.accept_one(DeliveryDraft::to(2).spilled()).await;
        case.accept_one(DeliveryDraft { tier: Tier::Transactional, ..DeliveryDraft::to(1).spilled() }).await;
    }
    [queue[0], queue[1], queue[2]]
}

fn ids(page: &PendingPage) -> Vec<DeliveryId> {
    page.rows.iter().map(|row| row.delivery.id).collect()
}
