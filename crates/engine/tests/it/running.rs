//! A running engine over a store in memory, without receivers.
//!
//! No socket is opened: the resolver fails, which is retried like any network error. Tests advance the clock.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use posthaste_core::id::{DeliveryId, EndpointId, LaneId, TenantId};
use posthaste_core::tier::Tier;
use posthaste_crypto::LookupKey;
use posthaste_crypto::keyring::{KeyId, StoreKey};
use posthaste_crypto::public_id::IdKey;
use posthaste_engine::accept::{AcceptOutcome, NewMessage};
use posthaste_engine::clock::SystemClock;
use posthaste_engine::connector::{NoAnswer, Resolve};
use posthaste_engine::endpoints::{NewSigning, NotMade};
use posthaste_engine::engine::{Engine, Sees, Settings};
use posthaste_engine::tenants::{Made, Tenant, Terms};
use posthaste_store::{Endpoint, MemoryStore, StoreError};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
struct NoResolver;

impl Resolve for NoResolver {
    fn resolve<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, NoAnswer>> {
        Box::pin(async { Err(NoAnswer::Failed) })
    }
}

/// A running engine; all of its state is in the store.
pub(crate) struct Running {
    pub(crate) engine: Arc<Engine<MemoryStore, SystemClock>>,
    stop: CancellationToken,
    task: JoinSet<Result<(), StoreError>>,
}

impl Running {
    pub(crate) async fn start(store: &Arc<MemoryStore>) -> Self {
        let settings = Settings::new(
            IdKey::from_bytes([7; 16]),
            LookupKey::from_bytes([8; 32]),
            StoreKey::generate(KeyId(1)).api_keys(),
        );
        let (stop, mut task) = (CancellationToken::new(), JoinSet::new());
        let (clock, resolver) = (SystemClock::new(), Arc::new(NoResolver));
        let started = Engine::start(Arc::clone(store), clock, settings, resolver, stop.clone());
        let (engine, run) = started.await.expect("memory opens");
        task.spawn(run);
        Self { engine, stop, task }
    }

    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        self.task.join_next().await.expect("it runs").expect("it does not panic").expect("it ends in order");
    }

    pub(crate) async fn tenant(&self, uid: &str) -> TenantId {
        self.tenant_on(uid, Terms::default()).await.id
    }

    pub(crate) async fn tenant_on(&self, uid: &str, terms: Terms) -> Tenant {
        match self.engine.make_tenant(Some(uid.to_owned()), terms, None, None).await.expect("a tenant") {
            Made::Now(made) => made.tenant,
            Made::Before(_) => panic!("the request has no idempotency key"),
        }
    }

    pub(crate) async fn endpoint(&self, tenant: TenantId, policy: &str) -> Result<Endpoint, NotMade> {
        self.endpoint_in(tenant, policy, None).await
    }

    pub(crate) async fn endpoint_in(
        &self,
        tenant: TenantId,
        policy: &str,
        time_zone: Option<&str>,
    ) -> Result<Endpoint, NotMade> {
        let bare = Endpoint::new(
            EndpointId::from_raw(0),
            LaneId::from_raw(0),
            tenant,
            self.engine.now(),
            "https://example.com/",
        );
        let policy = Some(policy.to_owned()).filter(|name| !name.is_empty());
        let new = Endpoint { policy, time_zone: time_zone.map(str::to_owned), ..bare };
        match self.engine.make_endpoint(new, NewSigning::default(), None, None).await? {
            Made::Now(made) => Ok(made.endpoint),
            Made::Before(_) => panic!("the request has no idempotency key"),
        }
    }

    /// Sends a message to the tenant's only endpoint.
    pub(crate) async fn send(&self, tenant: TenantId) -> DeliveryId {
        self.send_as(tenant, Tier::Promotional).await
    }

    pub(crate) async fn send_as(&self, tenant: TenantId, tier: Tier) -> DeliveryId {
        let message = NewMessage::new(tenant, Bytes::from_static(b"{}"), tier);
        match self.engine.accept(message).await.expect("it is accepted") {
            // The first delivery's key follows the message's.
            AcceptOutcome::Promised(promise) => DeliveryId(promise.message.0.plus(1)),
            AcceptOutcome::Replayed(_) => panic!("the request has no idempotency key"),
        }
    }

    /// Advances the clock until this many attempts were made; returns the wait after the last of them, in seconds.
    pub(crate) async fn wait_after(&self, delivery: DeliveryId, attempts: usize) -> u64 {
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
