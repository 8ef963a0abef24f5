//! Breakers: a session finds the breakers that were not closed when they were last stored.

use std::time::Duration;

use posthaste_core::OriginId;
use posthaste_core::flow::SharedGate;
use posthaste_core::flow::breaker::Soft;
use posthaste_core::id::{CredentialId, RegionId};
use posthaste_core::scheduler::{BreakerOf, SoftBreaker};

use super::fixture::{StoreCase, after, lane_id};
use crate::Store;

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
