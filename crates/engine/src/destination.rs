//! Where messages go: endpoints made ready to send to, kept in memory by their users.

use std::sync::{Arc, PoisonError, RwLock};

use http::Uri;
use posthaste_channels::custom_headers::CustomHeaders;
use posthaste_core::classify::Overrides;
use posthaste_core::fanout::Candidate;
use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::id_map::IdMap;
use posthaste_core::pattern::Pattern;
use posthaste_core::queue::LaneSettings;
use posthaste_crypto::signature::Secret;
use posthaste_store::{Endpoint, EndpointStatus, Store, StoreError};

use crate::target::{Target, TargetRules};

/// An endpoint with everything a send needs, parsed once.
#[derive(Debug)]
pub struct Destination {
    /// The endpoint as it is stored.
    pub endpoint: Arc<Endpoint>,
    /// Its lane.
    pub lane: Arc<LaneSettings>,
    /// Where to; `None` when today's rules refuse the stored URL.
    pub target: Option<Arc<Target>>,
    /// The same as a URL, for the request's own use.
    pub url: Uri,
    /// What signs, newest first.
    pub secrets: Vec<Secret>,
    /// What it wants.
    pub event_types: Vec<Pattern>,
    /// Its own headers.
    pub headers: CustomHeaders,
    /// Its word on status codes.
    pub overrides: Overrides,
}

impl Destination {
    /// Makes an endpoint ready. What was stored was checked when it was made; what no longer
    /// passes (rules change) is left out here and told as a cause of each attempt.
    fn ready(endpoint: Arc<Endpoint>, rules: &TargetRules) -> Self {
        let target = Target::parse(&endpoint.url, rules).ok().map(Arc::new);
        Self {
            lane: Arc::new(endpoint.lane_settings()),
            url: target.as_ref().map_or_else(Uri::default, |target| target.url()),
            target,
            secrets: endpoint.secrets.iter().filter_map(|secret| Secret::parse(secret).ok()).collect(),
            event_types: endpoint.event_types.iter().filter_map(|text| Pattern::parse(text).ok()).collect(),
            headers: CustomHeaders::default(),
            overrides: Overrides::default(),
            endpoint,
        }
    }

    /// Whether it still gets messages.
    pub fn takes_messages(&self) -> bool {
        self.endpoint.status == EndpointStatus::Active
    }

    /// As the fan-out sees it.
    pub fn candidate(&self) -> Candidate<'_> {
        Candidate { lane: &self.lane, event_types: &self.event_types, ttl: self.endpoint.ttl }
    }
}

/// The endpoints in use, by id and by tenant.
#[derive(Debug)]
pub struct Destinations<S> {
    store: Arc<S>,
    rules: TargetRules,
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    by_id: IdMap<EndpointId, Arc<Destination>>,
    by_tenant: IdMap<TenantId, Arc<[Arc<Destination>]>>,
}

impl<S: Store> Destinations<S> {
    /// Reads endpoints from this store, under these rules.
    pub fn new(store: Arc<S>, rules: TargetRules) -> Self {
        Self { store, rules, known: RwLock::default() }
    }

    /// The rules targets are held to.
    pub fn rules(&self) -> &TargetRules {
        &self.rules
    }

    /// One, if it is in memory.
    pub fn get(&self, id: EndpointId) -> Option<Arc<Destination>> {
        self.read().by_id.get(&id).cloned()
    }

    /// One, from memory or the store.
    pub async fn load(&self, id: EndpointId) -> Result<Option<Arc<Destination>>, StoreError> {
        if let Some(known) = self.get(id) {
            return Ok(Some(known));
        }
        let Some(endpoint) = self.store.endpoint(id).await? else { return Ok(None) };
        let ready = Arc::new(Destination::ready(endpoint, &self.rules));
        self.write().by_id.insert(id, Arc::clone(&ready));
        Ok(Some(ready))
    }

    /// Those of a tenant that take messages.
    pub async fn of_tenant(&self, tenant: TenantId) -> Result<Arc<[Arc<Destination>]>, StoreError> {
        if let Some(known) = self.read().by_tenant.get(&tenant) {
            return Ok(Arc::clone(known));
        }
        let mut ready: Vec<Arc<Destination>> = Vec::new();
        for endpoint in self.store.endpoints(tenant).await? {
            if endpoint.status == EndpointStatus::Active {
                let known = self.get(endpoint.id);
                ready.push(known.unwrap_or_else(|| Arc::new(Destination::ready(endpoint, &self.rules))));
            }
        }
        let ready: Arc<[Arc<Destination>]> = ready.into();
        let mut known = self.write();
        for destination in ready.iter() {
            known.by_id.insert(destination.endpoint.id, Arc::clone(destination));
        }
        known.by_tenant.insert(tenant, Arc::clone(&ready));
        Ok(ready)
    }

    /// Forgets what an endpoint looked like: it was made, changed or ended.
    pub fn changed(&self, id: EndpointId, tenant: TenantId) {
        let mut known = self.write();
        known.by_id.remove(&id);
        known.by_tenant.remove(&tenant);
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(PoisonError::into_inner)
    }
}
