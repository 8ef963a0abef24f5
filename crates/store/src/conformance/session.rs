//! Sessions: only the newest session may write.

use std::time::Duration;

use posthaste_core::flow::breaker::Soft;
use posthaste_core::scheduler::{BreakerOf, Reset, SoftBreaker};
use posthaste_core::{Cause, Cut, CutScope, RowIndex, State, WriterId};

use super::fixture::{DeliveryDraft, MANY, NOW, StoreCase, endpoint, lane_id};
use crate::row::{AuditStamp, Pause, PauseScope, Query};
use crate::{Store, StoreError};

pub(super) async fn a_new_store_is_empty<S: Store>(case: &StoreCase<S>) {
    let start = &case.start;
    case.check(start.cuts.is_empty() && start.pauses.is_empty() && start.spilled.is_empty(), "it starts empty");
    case.check(start.breakers.is_empty(), "every breaker is closed");
    let before = WriterId::new(100).expect("a small number");
    case.same("no rows", case.page(Query::Left { after: None, before }, MANY).await.rows, Vec::new());
}

pub(super) async fn each_session_has_higher_numbers_than_the_last<S: Store>(case: &StoreCase<S>) {
    let mut last = case.session();
    for _ in 0..3 {
        let next = case.reopen().await.session;
        case.check(next.id > last.id, "a later session has a higher number");
        case.check(next.epoch > last.epoch, "a later session has a higher epoch");
        case.check(next.writer > last.writer, "a later session mints higher keys");
        last = next;
    }
}

pub(super) async fn a_newer_session_fences_the_older<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_one(DeliveryDraft::to(1)).await;
    case.put_endpoint(endpoint(1)).await;
    let older = case.session();
    let newer = case.reopen().await.session;
    let store = &case.store;
    let fenced = |verb: &str, result: Result<(), StoreError>| match result {
        Err(StoreError::Fenced { session }) => case.same("the session it names", session, older.id),
        Err(error) => case.fail(&format!("{verb} fails with another error: {error}")),
        Ok(()) => case.fail(&format!("{verb} is not fenced")),
    };

    let ended = case.attempted(&delivery, State::Delivered { at: NOW }, Cause::Ok);
    fenced("settle", store.settle(older, vec![ended]).await.map(|_| ()));
    fenced("accept", store.accept(older, vec![case.message(&[DeliveryDraft::to(1)])]).await.map(drop));
    fenced("spill", store.spill(older, vec![delivery.id]).await);
    let scope = CutScope::Lane(lane_id(1));
    let cut =
        Cut { scope, upto: delivery.id.0, cause: Cause::EndpointGone, at: NOW, spared: Vec::new(), endpoint: None };
    fenced("cut", store.cut(older, cut, None).await.map(|_| ()));
    fenced("uncut", store.uncut(older, scope, NOW).await);
    fenced("pause", store.pause(older, Pause::new(PauseScope::All, None), NOW).await);
    let breaker = BreakerOf::Lane(lane_id(1));
    fenced("reset", store.reset(older, breaker, Reset::Force, AuditStamp::at(NOW)).await);
    fenced("resume", store.resume(older, PauseScope::All, AuditStamp::at(NOW)).await);
    let soft = Soft { since: NOW, hold: Duration::from_secs(30) };
    let breaker = SoftBreaker { of: BreakerOf::Lane(lane_id(1)), soft };
    fenced("remember", store.remember(older, vec![breaker]).await);
    fenced("put_endpoint", store.put_endpoint(older, endpoint(2), None, AuditStamp::at(NOW)).await.map(drop));

    let row = case.pending(delivery.id).await.unwrap_or_else(|| case.fail("the delivery is gone"));
    case.same("the row is untouched", (row.delivery, row.place), (delivery.clone(), RowIndex::Ready));
    let shown = case.shown(delivery.id, NOW).await;
    case.check(shown.attempts.is_empty(), "a fenced session leaves no attempt");
    case.same("its state is unchanged", shown.delivery.state, delivery.state);
    case.same("no endpoint was made", case.done("endpoint", store.endpoint(endpoint(2).id).await), None);
    let start = case.reopen().await;
    case.check(start.pauses.is_empty() && start.cuts.is_empty(), "neither pause nor cut");
    case.check(start.breakers.is_empty(), "nor breaker");
    case.check(start.session.id > newer.id, "the newer session was in force");
}
