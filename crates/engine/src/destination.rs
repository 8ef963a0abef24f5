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
use posthaste_store::{Directory, ENDPOINTS_LISTED_MAX, Endpoint, StoreError};

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
            secrets: endpoint.secrets.iter().filter_map(|secret| Secret::parse(&secret.text).ok()).collect(),
            event_types: endpoint.event_types.iter().filter_map(|text| Pattern::parse(text).ok()).collect(),
            headers: CustomHeaders::default(),
            overrides: Overrides::default(),
            endpoint,
        }
    }

    /// Whether it still gets messages.
    pub fn takes_messages(&self) -> bool {
        self.endpoint.takes_messages()
    }

    /// As the fan-out sees it.
    pub fn candidate(&self) -> Candidate<'_> {
        Candidate {
            lane: &self.lane,
            event_types: &self.event_types,
            subject: self.endpoint.subject.as_deref(),
            tags: &self.endpoint.tags,
            ttl: self.endpoint.ttl,
        }
    }
}

/// Endpoints kept ready; when there are more, all are made ready again as they are needed.
const KEPT_MAX: usize = 16_384;

/// The endpoints in use. The store says which there are; what was made of them is reused for as
/// long as the store's record is the same one.
#[derive(Debug)]
pub struct Destinations<S> {
    store: Arc<S>,
    rules: TargetRules,
    kept: RwLock<IdMap<EndpointId, Arc<Destination>>>,
}

impl<S: Directory> Destinations<S> {
    /// Reads endpoints from this store, under these rules.
    pub fn new(store: Arc<S>, rules: TargetRules) -> Self {
        Self { store, rules, kept: RwLock::default() }
    }

    /// The rules targets are held to.
    pub fn rules(&self) -> &TargetRules {
        &self.rules
    }

    /// One as it was last seen, without asking the store.
    pub fn last_seen(&self, id: EndpointId) -> Option<Arc<Destination>> {
        self.kept.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// One as it is.
    pub async fn load(&self, id: EndpointId) -> Result<Option<Arc<Destination>>, StoreError> {
        Ok(self.store.endpoint(id).await?.map(|endpoint| self.ready(endpoint)))
    }

    /// Those of a tenant that take messages; `None` when it has too many to look at all of them here.
    pub async fn of_tenant(&self, tenant: TenantId) -> Result<Option<Vec<Arc<Destination>>>, StoreError> {
        let endpoints = self.store.endpoints(tenant).await?;
        if endpoints.len() > ENDPOINTS_LISTED_MAX {
            return Ok(None);
        }
        let taking = endpoints.into_iter().filter(|endpoint| endpoint.takes_messages());
        Ok(Some(taking.map(|endpoint| self.ready(endpoint)).collect()))
    }

    /// Forgets what an endpoint looked like: it has ended or changed.
    pub fn forget(&self, id: EndpointId) {
        self.kept.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Forgets a tenant's: it, or somebody it knows, was erased.
    pub fn forget_tenant(&self, tenant: TenantId) {
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, known| known.endpoint.tenant != tenant);
    }

    /// Makes one ready that is not kept: whoever walks all of them must not drive out those in use.
    pub fn made_ready(&self, endpoint: Arc<Endpoint>) -> Arc<Destination> {
        let known = self.last_seen(endpoint.id).filter(|known| known.endpoint == endpoint);
        known.unwrap_or_else(|| Arc::new(Destination::ready(endpoint, &self.rules)))
    }

    fn ready(&self, endpoint: Arc<Endpoint>) -> Arc<Destination> {
        let same = |known: &Arc<Destination>| Arc::ptr_eq(&known.endpoint, &endpoint) || known.endpoint == endpoint;
        if let Some(known) = self.last_seen(endpoint.id).filter(same) {
            return known;
        }
        let id = endpoint.id;
        let ready = Arc::new(Destination::ready(endpoint, &self.rules));
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(id, Arc::clone(&ready));
        ready
    }
}
