//! Policies by name, from a tenant's settings to the times of its attempts.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::policy::{JitterSpec, PolicySpec};
use posthaste_engine::{NotPut, Tenant, TenantTerms};
use posthaste_store::{MemoryStore, OPERATOR};

use crate::running::Running;

fn every(seconds: u64) -> PolicySpec {
    let base = Some(Duration::from_secs(seconds));
    PolicySpec {
        strategy: Some("fixed".to_owned()),
        base,
        cap: base,
        jitter: JitterSpec { kind: Some("none".to_owned()), share: None },
        max_attempts: Some(50),
        ..PolicySpec::default()
    }
}

#[tokio::test(start_paused = true)]
async fn waits_follow_a_stored_policy_its_changes_and_a_restart() {
    let store = Arc::new(MemoryStore::default());
    let first = Running::start(&store).await;
    let tenant = first.tenant("acme").await;
    first.engine.put_policy(tenant, "slow", every(100), None).await.expect("a policy");
    first.endpoint(tenant, "slow").await.expect("an endpoint");
    let delivery = first.send(tenant).await;
    assert_eq!(first.wait_after(delivery, 1).await, 100);
    // A pending retry keeps its time; the next decision uses the new policy.
    first.engine.put_policy(tenant, "slow", every(33), None).await.expect("a policy");
    assert_eq!(first.wait_after(delivery, 2).await, 33);
    assert_eq!(first.wait_after(delivery, 3).await, 33);
    first.stop().await;
    let second = Running::start(&store).await;
    assert_eq!(second.wait_after(delivery, 4).await, 33);
    second.engine.put_policy(tenant, "slow", every(55), None).await.expect("a policy");
    assert_eq!(second.wait_after(delivery, 5).await, 55);
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_without_a_policy_follow_their_tenants_also_for_pending_deliveries() {
    let store = Arc::new(MemoryStore::default());
    let first = Running::start(&store).await;
    let [slow, quick] =
        ["slow", "quick"].map(|name| TenantTerms { policy: Some(name.to_owned()), ..TenantTerms::default() });
    for (name, seconds) in [("slow", 100), ("quick", 20), ("own", 60)] {
        first.engine.put_policy(OPERATOR, name, every(seconds), None).await.expect("a policy");
    }
    let follows = first.tenant_on("follows", slow.clone()).await;
    let has_own = first.tenant_on("has-own", slow).await;
    first.endpoint(follows.id, "").await.expect("an endpoint");
    first.endpoint(has_own.id, "own").await.expect("an endpoint");
    let (waits, other) = (first.send(follows.id).await, first.send(has_own.id).await);
    assert_eq!((first.wait_after(waits, 1).await, first.wait_after(other, 1).await), (100, 60));
    for tenant in [&follows, &has_own] {
        let changed = Tenant { terms: quick.clone(), ..tenant.clone() };
        first.engine.change_tenant(tenant, &changed, None).await.expect("it is changed");
    }
    assert_eq!(first.wait_after(waits, 2).await, 20, "a pending delivery follows the new policy");
    let fresh = first.send(has_own.id).await;
    assert_eq!(first.wait_after(fresh, 1).await, 60, "an endpoint that names a policy keeps it");
    first.stop().await;
    let second = Running::start(&store).await;
    assert_eq!(second.wait_after(waits, 3).await, 20, "after a restart too");
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_tenants_policy_hides_the_operators_until_it_is_deleted() {
    let running = Running::start(&Arc::default()).await;
    let (ann, bob) = (running.tenant("ann").await, running.tenant("bob").await);
    running.engine.put_policy(OPERATOR, "house", every(40), None).await.expect("a policy");
    running.engine.put_policy(ann, "house", every(70), None).await.expect("a policy");
    let mut deliveries = Vec::new();
    for (tenant, wait) in [(ann, 70), (bob, 40)] {
        running.endpoint(tenant, "house").await.expect("an endpoint");
        let delivery = running.send(tenant).await;
        assert_eq!(running.wait_after(delivery, 1).await, wait);
        deliveries.push(delivery);
    }
    assert!(running.engine.delete_policy(ann, "house", None).await.expect("the operator's takes its place"));
    assert_eq!(running.wait_after(deliveries[0], 2).await, 40);
    running.engine.put_policy(OPERATOR, "house", every(50), None).await.expect("a policy");
    assert_eq!(running.wait_after(deliveries[0], 3).await, 50);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn policy_in_use_is_not_deleted() {
    let running = Running::start(&Arc::default()).await;
    let (ann, bob) = (running.tenant("ann").await, running.tenant("bob").await);
    running.engine.put_policy(OPERATOR, "house", every(40), None).await.expect("a policy");
    running.engine.put_policy(ann, "own", every(40), None).await.expect("a policy");
    let endpoint = running.endpoint(ann, "own").await.expect("an endpoint");
    let in_use = |result: Result<bool, NotPut>| match result {
        Err(NotPut::InUse(user)) => user,
        other => panic!("{other:?}"),
    };
    assert!(in_use(running.engine.delete_policy(ann, "own", None).await).starts_with("the endpoint ep_"));
    let house = running.endpoint(bob, "house").await.expect("an endpoint");
    let user = in_use(running.engine.delete_policy(OPERATOR, "house", None).await);
    assert!(user.ends_with("of the tenant bob uses it"), "{user}");
    for endpoint in [&endpoint, &house] {
        running.engine.delete_endpoint(endpoint, None).await.expect("it is deleted");
    }
    assert!(running.engine.delete_policy(ann, "own", None).await.expect("it is not in use"));
    assert!(running.engine.delete_policy(OPERATOR, "house", None).await.expect("it is not in use"));
    assert!(!running.engine.delete_policy(OPERATOR, "house", None).await.expect("there is none"));
    let unknown = running.endpoint(ann, "owm").await.expect_err("no policy");
    assert!(unknown.to_string().starts_with("policy: there is no policy \"owm\"; the presets are"), "{unknown}");
    running.stop().await;
}
