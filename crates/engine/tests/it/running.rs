//! A running engine over a store in memory, without receivers.
//!
//! No socket is opened: the resolver fails, which is retried like any network error. Tests advance the clock.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::{DeliveryId, TenantId, Tier};
use posthaste_engine::{ExplainedDelivery, NewMessage, NewSigning, NotMade, Tenant, TenantTerms, Visibility};
use posthaste_store::{Endpoint, MemoryStore};

pub(crate) use crate::harness::Running;
use crate::harness::{NoResolver, made, new_endpoint, settings};

impl Running<MemoryStore> {
    /// All state of the engine is in the store.
    pub(crate) async fn start(store: &Arc<MemoryStore>) -> Self {
        Self::over(store, settings(), Arc::new(NoResolver)).await
    }

    pub(crate) async fn tenant(&self, uid: &str) -> TenantId {
        self.tenant_on(uid, TenantTerms::default()).await.id
    }

    pub(crate) async fn tenant_on(&self, uid: &str, terms: TenantTerms) -> Tenant {
        made(self.engine.make_tenant(Some(uid.to_owned()), terms, None, None).await.expect("a tenant")).tenant
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
        let policy = Some(policy.to_owned()).filter(|name| !name.is_empty());
        let time_zone = time_zone.map(str::to_owned);
        let new = Endpoint { policy, time_zone, ..new_endpoint(self, tenant, "https://example.com/") };
        Ok(made(self.engine.make_endpoint(new, NewSigning::default(), None, None).await?).endpoint)
    }

    /// Sends a message to the tenant's only endpoint.
    pub(crate) async fn send(&self, tenant: TenantId) -> DeliveryId {
        self.send_as(tenant, Tier::Promotional).await
    }

    pub(crate) async fn send_as(&self, tenant: TenantId, tier: Tier) -> DeliveryId {
        let message = NewMessage::new(tenant, Bytes::from_static(b"{}"), tier);
        // The first delivery's key follows the message's.
        DeliveryId(made(self.engine.accept(message).await.expect("it is accepted")).message.0.plus(1))
    }

    pub(crate) async fn view(&self, delivery: DeliveryId) -> ExplainedDelivery {
        self.engine.delivery(Visibility::All, delivery).await.expect("memory reads").expect("it is there")
    }

    /// Advances the clock until this many attempts were made; returns the wait after the last of them, in seconds.
    pub(crate) async fn wait_after(&self, delivery: DeliveryId, attempts: usize) -> u64 {
        for _ in 0..100_000 {
            let view = self.view(delivery).await;
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
