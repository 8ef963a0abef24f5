//! What was agreed with a tenant, and what comes of it.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::hold::Why;
use posthaste_core::id::DeliveryId;
use posthaste_core::queue::Explained;
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;
use posthaste_engine::engine::Sees;
use posthaste_engine::tenants::{Hours, Tenant, Terms};
use posthaste_store::MemoryStore;

use crate::running::Running;

/// The minute of the day that a clock so many hours east of UTC will show in so many more.
fn minute(now: Timestamp, east: i64, ahead: i64) -> u16 {
    let minutes = now.as_millis() / 60_000 + (east + ahead) * 60;
    u16::try_from(minutes.rem_euclid(24 * 60)).expect("a minute of a day")
}

/// Why it waits and for how many hours, while nothing was tried.
async fn waits(running: &Running, delivery: DeliveryId) -> Option<(Why, u64)> {
    let view = running.engine.delivery(Sees::All, delivery).await.expect("memory reads").expect("it is there");
    let Some(Explained::Waits(hold)) = view.explained.filter(|_| view.shown.attempts.is_empty()) else { return None };
    let hours = hold.until?.since(running.engine.now()).as_secs().div_ceil(3_600);
    Some((hold.why, hours))
}

#[tokio::test(start_paused = true)]
async fn engagement_messages_wait_for_the_window_on_the_tenants_or_the_endpoints_clock() {
    let store = Arc::new(MemoryStore::default());
    let running = Running::start(&store).await;
    let now = running.engine.now();
    // Nine hours east of UTC it opens in two hours.
    let off_peak = Some(Hours { from: minute(now, 9, 2), to: minute(now, 9, 3) });
    let terms = Terms { off_peak, time_zone: Some("Asia/Tokyo".to_owned()), ..Terms::default() };
    let ann = running.tenant_on("ann", terms.clone()).await;
    running.endpoint(ann.id, "webhook").await.expect("an endpoint");
    let campaign = running.send_as(ann.id, Tier::Engagement).await;
    assert_eq!(waits(&running, campaign).await, Some((Why::OffPeak, 2)));
    let urgent = running.send_as(ann.id, Tier::Transactional).await;
    running.wait_after(urgent, 1).await;
    assert_eq!(waits(&running, campaign).await, Some((Why::OffPeak, 2)), "others do not wait for it");
    // An endpoint's own clock counts before the tenant's.
    let bob = running.tenant_on("bob", terms).await;
    running.endpoint_in(bob.id, "webhook", Some("Etc/GMT-11")).await.expect("an endpoint");
    let inside = running.send_as(bob.id, Tier::Engagement).await;
    running.wait_after(inside, 1).await;
    assert_eq!(running.engine.now().since(now).as_secs(), 0, "eleven hours east it is open");
    // A window that is lifted holds nothing any more.
    let lifted = Tenant { terms: Terms { off_peak: None, ..ann.terms.clone() }, ..ann };
    running.engine.change_tenant(&lifted).await.expect("it is changed");
    running.wait_after(campaign, 1).await;
    assert!(running.engine.now().since(now) < Duration::from_secs(60));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_tenant_with_as_many_pending_as_it_may_have_has_room_again_once_some_ended() {
    let store = Arc::new(MemoryStore::default());
    let running = Running::start(&store).await;
    let tenant = running.tenant_on("acme", Terms { pending_max: Some(3), ..Terms::default() }).await;
    let room = async || running.engine.take_room(&tenant).await.expect("memory reads");
    running.endpoint(tenant.id, "webhook").await.expect("an endpoint");
    let mut sent = Vec::new();
    for _ in 0..3 {
        assert_eq!(room().await, Ok(()));
        sent.push(running.send(tenant.id).await);
    }
    assert_eq!(room().await, Err(3));
    let view = running.engine.delivery(Sees::All, sent[0]).await.expect("memory reads").expect("it is there");
    running.engine.cancel(Sees::All, view.shown.delivery.message).await.expect("it is cancelled");
    // Counted a moment ago, and a cut is swept in the end.
    for _ in 0..6_000 {
        tokio::time::advance(Duration::from_millis(200)).await;
        if room().await.is_ok() {
            break;
        }
    }
    assert_eq!(room().await, Err(3), "there was room for one");
    running.stop().await;
}
