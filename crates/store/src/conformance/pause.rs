//! Pauses: somebody's word, kept until it is taken back.

use posthaste_core::cause::Cause;
use posthaste_core::id::TenantId;
use posthaste_core::state::State;

use super::fixture::{Case, Draft, NOW, after, lane_id};
use crate::Store;
use crate::row::{Pause, PauseScope, Settled};

pub(super) async fn pauses_are_known_at_the_start<S: Store>(case: &Case<S>) {
    let lane = Pause { scope: PauseScope::Lane(lane_id(1)), until: Some(after(5)) };
    let tenant = Pause { scope: PauseScope::Tenant(TenantId::from_raw(1)), until: None };
    let all = Pause { scope: PauseScope::All, until: Some(after(6)) };
    for pause in [lane, all, tenant] {
        case.done("pause", case.store.pause(case.session(), pause).await);
    }
    let start = case.reopen().await;
    case.same("the pauses", start.pauses, vec![all, tenant, lane]);
    for scope in [all.scope, lane.scope, PauseScope::Lane(lane_id(2))] {
        case.done("resume", case.store.resume(start.session, scope).await);
    }
    case.same("what is left", case.reopen().await.pauses, vec![tenant]);
}

pub(super) async fn a_pause_replaces_the_one_before<S: Store>(case: &Case<S>) {
    let scope = PauseScope::Lane(lane_id(1));
    for until in [None, Some(after(9)), Some(after(4))] {
        case.done("pause", case.store.pause(case.session(), Pause { scope, until }).await);
    }
    case.same("the last word", case.reopen().await.pauses, vec![Pause { scope, until: Some(after(4)) }]);
}

pub(super) async fn a_dead_head_pauses_its_lane_with_its_settle<S: Store>(case: &Case<S>) {
    let delivery = case.accept_one(Draft::to(1).spilled()).await;
    let dead = State::Dead { at: NOW, cause: Cause::NotFound };
    let mut settlement = case.attempted(&delivery, dead, Cause::NotFound);
    settlement.record.pauses_lane = true;
    case.settle_done(settlement).await;
    case.same("its end", case.state(delivery.id).await, dead);
    let expected = Pause { scope: PauseScope::Lane(lane_id(1)), until: None };
    case.same("its lane", case.reopen().await.pauses, vec![expected]);
}

pub(super) async fn a_stale_settle_pauses_nothing<S: Store>(case: &Case<S>) {
    let delivery = case.accept_one(Draft::to(1).spilled()).await;
    let dead = State::Dead { at: NOW, cause: Cause::NotFound };
    let mut settlement = case.attempted(&delivery, dead, Cause::NotFound);
    settlement.record.pauses_lane = true;
    settlement.record.attempts_before = 3;
    case.same("the answer", case.settle(settlement).await, Settled::Stale);
    case.check(case.reopen().await.pauses.is_empty(), "its lane goes on");
}
