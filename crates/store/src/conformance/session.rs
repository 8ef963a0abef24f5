//! Sessions: only the newest session may write, and it finds the pauses and breakers of the one before.

use std::time::Duration;

use posthaste_core::flow::SharedGate;
use posthaste_core::flow::breaker::Soft;
use posthaste_core::id::{CredentialId, RegionId};
use posthaste_core::scheduler::{BreakerOf, Reset, SoftBreaker};
use posthaste_core::{Cause, Cut, CutScope, OriginId, RowIndex, TenantId, WriterId};

use super::fixture::{DeliveryDraft, MANY, NOW, StoreCase, after, api_key, dead, delivered, endpoint, lane_id};
use crate::{AuditStamp, Pause, PauseScope, Query, Settled, Settlement, Store, StoreError};

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

    let ended = case.attempted(&delivery, delivered(0), Cause::Ok);
    fenced("settle", store.settle(older, vec![ended]).await.map(|_| ()));
    fenced("accept", store.accept(older, vec![case.message(&[DeliveryDraft::to(1)])]).await.map(drop));
    fenced("spill", store.spill(older, vec![delivery.id]).await);
    let scope = CutScope::Lane(lane_id(1));
    let cut = Cut::new(scope, delivery.id.0, Cause::EndpointGone, NOW);
    fenced("cut", store.cut(older, cut, None).await.map(|_| ()));
    fenced("uncut", store.uncut(older, scope, NOW).await);
    fenced("pause", store.pause(older, Pause::new(PauseScope::All, None), NOW).await);
    let breaker = BreakerOf::Lane(lane_id(1));
    fenced("reset", store.reset(older, breaker, Reset::Force, AuditStamp::at(NOW)).await);
    fenced("resume", store.resume(older, PauseScope::All, AuditStamp::at(NOW)).await);
    fenced("remember", store.remember(older, vec![soft(lane(1), 0, 30_000)]).await);
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

pub(super) async fn pauses_are_known_at_the_start<S: Store>(case: &StoreCase<S>) {
    let reason = || Some("the database is on fire".to_owned());
    let lane = Pause { reason: reason(), ..Pause::new(PauseScope::Lane(lane_id(1)), Some(after(5))) };
    let tenant = Pause::new(PauseScope::Tenant(TenantId::from_raw(1)), None);
    let all = Pause { reason: reason(), by: api_key(3), ..Pause::new(PauseScope::All, Some(after(6))) };
    // The ids of origins are hashes and need all 64 bits.
    let origins = [1, 2, u64::MAX].map(|raw| Pause {
        origin: Some(format!("https://host-{raw}.example:443")),
        ..Pause::new(PauseScope::Origin(OriginId::from_raw(raw)), None)
    });
    let [first, second, last] = &origins;
    for pause in [last, &lane, first, &all, &tenant, second] {
        case.done("pause", case.store.pause(case.session(), pause.clone(), NOW).await);
    }
    let start = case.reopen().await;
    let expected = [&all, &tenant, &lane, first, second, last].map(Clone::clone).to_vec();
    case.same("the pauses, with their reasons", start.pauses, expected);
    for scope in [all.scope, lane.scope, PauseScope::Lane(lane_id(2)), second.scope, last.scope] {
        case.done("resume", case.store.resume(start.session, scope, AuditStamp::at(NOW)).await);
    }
    case.same("what is left", case.reopen().await.pauses, vec![tenant, first.clone()]);
}

pub(super) async fn a_pause_replaces_the_one_before<S: Store>(case: &StoreCase<S>) {
    let scope = PauseScope::Lane(lane_id(1));
    for until in [None, Some(after(9))] {
        case.done("pause", case.store.pause(case.session(), Pause::new(scope, until), NOW).await);
    }
    let last = Pause { reason: Some("a second thought".to_owned()), ..Pause::new(scope, Some(after(4))) };
    case.done("pause", case.store.pause(case.session(), last.clone(), NOW).await);
    case.same("the last pause", case.reopen().await.pauses, vec![last]);
}

/// The settlement that ends the head of a lane as dead and pauses the lane.
async fn dead_head<S: Store>(case: &StoreCase<S>) -> Settlement {
    let delivery = case.accept_one(DeliveryDraft::to(1).spilled()).await;
    let mut settlement = case.attempted(&delivery, dead(0), Cause::NotFound);
    settlement.record.pauses_lane = true;
    settlement
}

pub(super) async fn a_dead_head_pauses_its_lane_with_its_settle<S: Store>(case: &StoreCase<S>) {
    let settlement = dead_head(case).await;
    case.settle_done(settlement.clone()).await;
    case.same("its end", case.state(settlement.record.delivery.id).await, dead(0));
    let expected = Pause::new(PauseScope::Lane(lane_id(1)), None);
    case.same("its lane", case.reopen().await.pauses, vec![expected]);
}

pub(super) async fn a_stale_settle_pauses_nothing<S: Store>(case: &StoreCase<S>) {
    let mut settlement = dead_head(case).await;
    settlement.record.attempts_before = 3;
    case.same("the answer", case.settle(settlement).await, Settled::Stale);
    case.check(case.reopen().await.pauses.is_empty(), "its lane goes on");
}

fn soft(of: BreakerOf, since_ms: i64, hold_ms: u64) -> SoftBreaker {
    SoftBreaker { of, soft: Soft { since: after(since_ms), hold: Duration::from_millis(hold_ms) } }
}

fn lane(n: u64) -> BreakerOf {
    BreakerOf::Lane(lane_id(n))
}

pub(super) async fn stored_breakers_are_known_at_the_start<S: Store>(case: &StoreCase<S>) {
    // The ids of origins are hashes, so they may exceed the range of a signed column.
    let origin = |raw| BreakerOf::Shared(SharedGate::Origin(OriginId::from_raw(raw)));
    let breakers = vec![
        soft(lane(1), -5, 30_000),
        soft(lane(2), 0, 0),
        soft(origin(7), 1, 45_000),
        soft(origin(u64::MAX - 1), 2, 60_000),
        soft(origin(u64::MAX), 3, 300_000),
        soft(BreakerOf::Shared(SharedGate::Region(RegionId::from_raw(7))), 4, 1),
        soft(BreakerOf::Shared(SharedGate::Credential(CredentialId::from_raw(7))), 5, 0),
        soft(BreakerOf::Shared(SharedGate::Resolver), 6, 0),
    ];
    let mut shuffled = breakers.clone();
    shuffled.reverse();
    case.done("remember", case.store.remember(case.session(), shuffled).await);
    case.same("the breakers", case.reopen().await.breakers, breakers.clone());
    case.same("to every later session too", case.reopen().await.breakers, breakers);
}

pub(super) async fn stored_breakers_replace_the_earlier_set<S: Store>(case: &StoreCase<S>) {
    let before = vec![soft(lane(1), 0, 30_000), soft(lane(2), 0, 30_000)];
    let now = vec![soft(lane(2), 0, 45_000), soft(lane(3), 9, 30_000)];
    for breakers in [before, now.clone()] {
        case.done("remember", case.store.remember(case.session(), breakers).await);
    }
    let start = case.reopen().await;
    case.same("the last set", start.breakers, now);
    case.done("remember none", case.store.remember(start.session, Vec::new()).await);
    case.check(case.reopen().await.breakers.is_empty(), "all are closed");
}
