//! Pauses: stored until they are resumed.

use posthaste_core::{Cause, OriginId, State, TenantId};

use super::fixture::{DeliveryDraft, NOW, StoreCase, after, api_key, lane_id};
use crate::Store;
use crate::row::{AuditStamp, Pause, PauseScope, Settled};

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

pub(super) async fn a_dead_head_pauses_its_lane_with_its_settle<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_one(DeliveryDraft::to(1).spilled()).await;
    let dead = State::Dead { at: NOW, cause: Cause::NotFound };
    let mut settlement = case.attempted(&delivery, dead, Cause::NotFound);
    settlement.record.pauses_lane = true;
    case.settle_done(settlement).await;
    case.same("its end", case.state(delivery.id).await, dead);
    let expected = Pause::new(PauseScope::Lane(lane_id(1)), None);
    case.same("its lane", case.reopen().await.pauses, vec![expected]);
}

pub(super) async fn a_stale_settle_pauses_nothing<S: Store>(case: &StoreCase<S>) {
    let delivery = case.accept_one(DeliveryDraft::to(1).spilled()).await;
    let dead = State::Dead { at: NOW, cause: Cause::NotFound };
    let mut settlement = case.attempted(&delivery, dead, Cause::NotFound);
    settlement.record.pauses_lane = true;
    settlement.record.attempts_before = 3;
    case.same("the answer", case.settle(settlement).await, Settled::Stale);
    case.check(case.reopen().await.pauses.is_empty(), "its lane goes on");
}
