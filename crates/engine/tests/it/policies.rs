//! Policies by name, from the word of a tenant to the times of its attempts.
//!
//! No socket is opened: the resolver fails, which is tried again like any fault of the network. Time is turned by hand.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use posthaste_core::id::{DeliveryId, EndpointId, TenantId};
use posthaste_core::policy::{JitterSpec, PolicySpec};
use posthaste_core::queue::Limits;
use posthaste_core::tier::Tier;
use posthaste_crypto::LookupKey;
use posthaste_crypto::keyring::{KeyId, StoreKey};
use posthaste_crypto::public_id::IdKey;
use posthaste_engine::accept::{NewMessage, Outcome};
use posthaste_engine::clock::SystemClock;
use posthaste_engine::connector::{self, NoAnswer, Resolve, Roots};
use posthaste_engine::endpoints::{NewSigning, NotMade};
use posthaste_engine::engine::{Engine, Sees, Settings};
use posthaste_engine::policies::NotPut;
use posthaste_engine::tenants::{Made, Terms};
use posthaste_store::{Endpoint, MemoryStore, OPERATOR, Retention, StoreError};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
struct NoResolver;

impl Resolve for NoResolver {
    fn resolve<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, NoAnswer>> {
        Box::pin(async { Err(NoAnswer::Failed) })
    }
}

/// A running engine; what it knows is in the store alone.
struct Running {
    engine: Engine<MemoryStore, SystemClock>,
    stop: CancellationToken,
    task: JoinSet<Result<(), StoreError>>,
}

impl Running {
    async fn start(store: &Arc<MemoryStore>) -> Self {
        let settings = Settings {
            limits: Limits::default(),
            connector: connector::Settings::default(),
            roots: Roots::none(),
            ids: IdKey::from_bytes([7; 16]),
            lookup: LookupKey::from_bytes([8; 32]),
            api_keys: StoreKey::generate(KeyId(1)).api_keys(),
            seed: 1,
            master_key: None,
            retention: Retention::default(),
        };
        let (stop, mut task) = (CancellationToken::new(), JoinSet::new());
        let (clock, resolver) = (SystemClock::new(), Arc::new(NoResolver));
        let started = Engine::start(Arc::clone(store), clock, settings, resolver, stop.clone());
        let (engine, run) = started.await.expect("memory opens");
        task.spawn(run);
        Self { engine, stop, task }
    }

    async fn stop(mut self) {
        self.stop.cancel();
        self.task.join_next().await.expect("it runs").expect("it does not panic").expect("it ends in order");
    }

    async fn tenant(&self, uid: &str) -> TenantId {
        match self.engine.make_tenant(Some(uid.to_owned()), Terms::default(), None).await.expect("a tenant") {
            Made::Now(made) => made.tenant.id,
            Made::Before(_) => panic!("nobody gave a key"),
        }
    }

    async fn endpoint(&self, tenant: TenantId, policy: &str) -> Result<Endpoint, NotMade> {
        let bare = Endpoint::new(EndpointId::from_raw(0), tenant, self.engine.now(), "https://example.com/");
        let wished = Endpoint { policy: policy.to_owned(), ..bare };
        match self.engine.make_endpoint(wished, NewSigning::default(), None).await? {
            Made::Now(made) => Ok(made.endpoint),
            Made::Before(_) => panic!("nobody gave a key"),
        }
    }

    /// Sends a message to the tenant's only endpoint.
    async fn send(&self, tenant: TenantId) -> DeliveryId {
        let message = NewMessage::new(tenant, Bytes::from_static(b"{}"), Tier::Promotional);
        match self.engine.accept(message).await.expect("it is accepted") {
            // The first delivery's key follows the message's.
            Outcome::Promised(promise) => DeliveryId(promise.message.0.plus(1)),
            Outcome::Replayed(_) => panic!("nobody gave a key"),
        }
    }

    /// Turns time until so many attempts were made, and gives the wait behind the last of them, in seconds.
    async fn wait_after(&self, delivery: DeliveryId, attempts: usize) -> u64 {
        for _ in 0..100_000 {
            let view = self.engine.delivery(Sees::All, delivery).await.expect("memory reads").expect("it is there");
            let (made, state) = (&view.shown.attempts, view.shown.delivery.state);
            if made.len() >= attempts
                && let Some(due) = state.due()
            {
                assert_eq!(made.len(), attempts, "no attempt came early");
                return due.since(made[attempts - 1].at).as_secs();
            }
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        panic!("{attempts} attempts were not made");
    }
}

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
    first.engine.put_policy(tenant, "slow", every(100)).await.expect("a policy");
    first.endpoint(tenant, "slow").await.expect("an endpoint");
    let delivery = first.send(tenant).await;
    assert_eq!(first.wait_after(delivery, 1).await, 100);
    // What waits keeps its time; the next decision is the new policy's.
    first.engine.put_policy(tenant, "slow", every(33)).await.expect("a policy");
    assert_eq!(first.wait_after(delivery, 2).await, 33);
    assert_eq!(first.wait_after(delivery, 3).await, 33);
    first.stop().await;
    let second = Running::start(&store).await;
    assert_eq!(second.wait_after(delivery, 4).await, 33);
    second.engine.put_policy(tenant, "slow", every(55)).await.expect("a policy");
    assert_eq!(second.wait_after(delivery, 5).await, 55);
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_tenants_policy_hides_the_operators_until_it_is_deleted() {
    let store = Arc::new(MemoryStore::default());
    let running = Running::start(&store).await;
    let (ann, bob) = (running.tenant("ann").await, running.tenant("bob").await);
    running.engine.put_policy(OPERATOR, "house", every(40)).await.expect("a policy");
    running.engine.put_policy(ann, "house", every(70)).await.expect("a policy");
    let mut deliveries = Vec::new();
    for (tenant, wait) in [(ann, 70), (bob, 40)] {
        running.endpoint(tenant, "house").await.expect("an endpoint");
        let delivery = running.send(tenant).await;
        assert_eq!(running.wait_after(delivery, 1).await, wait);
        deliveries.push(delivery);
    }
    assert!(running.engine.delete_policy(ann, "house").await.expect("the operator's takes its place"));
    assert_eq!(running.wait_after(deliveries[0], 2).await, 40);
    running.engine.put_policy(OPERATOR, "house", every(50)).await.expect("a policy");
    assert_eq!(running.wait_after(deliveries[0], 3).await, 50);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_somebody_uses_is_not_deleted() {
    let store = Arc::new(MemoryStore::default());
    let running = Running::start(&store).await;
    let (ann, bob) = (running.tenant("ann").await, running.tenant("bob").await);
    running.engine.put_policy(OPERATOR, "house", every(40)).await.expect("a policy");
    running.engine.put_policy(ann, "own", every(40)).await.expect("a policy");
    let endpoint = running.endpoint(ann, "own").await.expect("an endpoint");
    let in_use = |told: Result<bool, NotPut>| match told {
        Err(NotPut::InUse(user)) => user,
        other => panic!("{other:?}"),
    };
    assert!(in_use(running.engine.delete_policy(ann, "own").await).starts_with("the endpoint ep_"));
    let house = running.endpoint(bob, "house").await.expect("an endpoint");
    let told = in_use(running.engine.delete_policy(OPERATOR, "house").await);
    assert!(told.ends_with("of the tenant bob uses it"), "{told}");
    for endpoint in [&endpoint, &house] {
        running.engine.delete_endpoint(endpoint).await.expect("it is deleted");
    }
    assert!(running.engine.delete_policy(ann, "own").await.expect("nobody uses it"));
    assert!(running.engine.delete_policy(OPERATOR, "house").await.expect("nobody uses it"));
    assert!(!running.engine.delete_policy(OPERATOR, "house").await.expect("there is none"));
    let unknown = running.endpoint(ann, "owm").await.expect_err("no policy");
    assert!(unknown.to_string().starts_with("policy: there is no policy \"owm\"; the nearest is apns"), "{unknown}");
    running.stop().await;
}
