//! The settings of a tenant, and their effects.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::scheduler::Explained;
use posthaste_core::{DeliveryId, MessageId, Tier, Timestamp, Why};
use posthaste_engine::{Hours, NewMessage, NotAccepted, Tenant, TenantTerms, Visibility};
use posthaste_store::MemoryStore;

use crate::harness::{Running, made};

/// The minute of the day, `ahead` hours from now, in a time zone `east` hours ahead of UTC.
fn minute(now: Timestamp, east: i64, ahead: i64) -> u16 {
    let minutes = now.as_millis() / 60_000 + (east + ahead) * 60;
    u16::try_from(minutes.rem_euclid(24 * 60)).expect("a minute of a day")
}

/// Why a delivery waits and for how many hours; `None` once an attempt was made.
async fn waits(running: &Running<MemoryStore>, delivery: DeliveryId) -> Option<(Why, u64)> {
    let view = running.view(delivery).await;
    let Some(Explained::Waits(hold)) = view.explained.filter(|_| view.shown.attempts.is_empty()) else { return None };
    let hours = hold.until?.since(running.engine.now()).as_secs().div_ceil(3_600);
    Some((hold.why, hours))
}

#[tokio::test(start_paused = true)]
async fn engagement_messages_wait_for_the_window_in_the_tenants_or_endpoints_time_zone() {
    let running = Running::start(&Arc::default()).await;
    let now = running.engine.now();
    // Nine hours east of UTC it opens in two hours.
    let off_peak = Some(Hours { from: minute(now, 9, 2), to: minute(now, 9, 3) });
    let terms = TenantTerms { off_peak, time_zone: Some("Asia/Tokyo".to_owned()), ..TenantTerms::default() };
    let ann = running.tenant_on("ann", terms.clone()).await;
    running.endpoint(ann.id, "webhook").await.expect("an endpoint");
    let campaign = running.send_as(ann.id, Tier::Engagement).await;
    assert_eq!(waits(&running, campaign).await, Some((Why::OffPeak, 2)));
    let urgent = running.send_as(ann.id, Tier::Transactional).await;
    running.wait_after(urgent, 1).await;
    assert_eq!(waits(&running, campaign).await, Some((Why::OffPeak, 2)), "other tiers do not wait");
    // An endpoint's own time zone overrides the tenant's.
    let bob = running.tenant_on("bob", terms).await;
    running.endpoint_in(bob.id, "webhook", Some("Etc/GMT-11")).await.expect("an endpoint");
    let inside = running.send_as(bob.id, Tier::Engagement).await;
    running.wait_after(inside, 1).await;
    assert_eq!(running.engine.now().since(now).as_secs(), 0, "eleven hours east it is open");
    // A window that is removed holds nothing any more.
    let lifted = Tenant { terms: TenantTerms { off_peak: None, ..ann.terms.clone() }, ..ann.clone() };
    running.engine.change_tenant(&ann, &lifted, None).await.expect("it is changed");
    running.wait_after(campaign, 1).await;
    assert!(running.engine.now().since(now) < Duration::from_secs(60));
    running.stop().await;
}

/// Sends a batch under a limit of pending deliveries: the messages accepted, and the count in the refusal of others.
async fn send_below(running: &Running<MemoryStore>, tenant: &Tenant, count: usize) -> (Vec<MessageId>, Option<u64>) {
    let new = NewMessage::new(tenant.id, Bytes::from_static(b"{}"), Tier::Promotional);
    let limited = NewMessage { pending_max: tenant.terms.pending_max, ..new };
    let (mut taken, mut refused_at) = (Vec::new(), None);
    for outcome in running.engine.accept_all(vec![limited; count]).await {
        match outcome {
            Ok(outcome) => taken.push(made(outcome).message),
            Err(NotAccepted::NoRoom { pending }) => refused_at = Some(pending),
            Err(other) => panic!("{other}"),
        }
    }
    (taken, refused_at)
}

#[tokio::test(start_paused = true)]
async fn tenant_at_its_pending_limit_has_room_again_once_some_ended() {
    let running = Running::start(&Arc::default()).await;
    let tenant = running.tenant_on("acme", TenantTerms { pending_max: Some(3), ..TenantTerms::default() }).await;
    let (taken, refused_at) = send_below(&running, &tenant, 10).await;
    assert_eq!((taken.len(), refused_at), (10, None), "no endpoint wants them, so none is pending");
    running.endpoint(tenant.id, "webhook").await.expect("an endpoint");
    let (taken, refused_at) = send_below(&running, &tenant, 5).await;
    assert_eq!((taken.len(), refused_at), (3, Some(3)));
    assert_eq!(send_below(&running, &tenant, 1).await, (Vec::new(), Some(3)));
    running.engine.cancel(Visibility::All, taken[0], None).await.expect("it is cancelled");
    // The room is free once the cut is swept.
    for _ in 0..6_000 {
        tokio::time::advance(Duration::from_millis(200)).await;
        if running.engine.pending().await.expect("memory reads").by_tier.iter().sum::<u64>() == 2 {
            break;
        }
    }
    let (taken, refused_at) = send_below(&running, &tenant, 2).await;
    assert_eq!((taken.len(), refused_at), (1, Some(3)), "there is room for one");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn messages_on_their_way_to_the_store_count_as_pending() {
    let running = Running::start(&Arc::default()).await;
    let tenant = running.tenant_on("acme", TenantTerms { pending_max: Some(2), ..TenantTerms::default() }).await;
    running.endpoint(tenant.id, "webhook").await.expect("an endpoint");
    let all = futures_util::future::join_all((0..8).map(|_| send_below(&running, &tenant, 1))).await;
    assert_eq!(all.iter().map(|(taken, _)| taken.len()).sum::<usize>(), 2, "{all:?}");
    running.stop().await;
}
