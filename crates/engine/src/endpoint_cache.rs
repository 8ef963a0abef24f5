//! Destinations: endpoints with everything parsed that a send needs, cached in memory.

use std::sync::{Arc, PoisonError, RwLock};

use posthaste_channels::Channel;
use posthaste_core::change_stamps::{ChangeStamps, ReadStamp};
use posthaste_core::pattern::Pattern;
use posthaste_core::{Candidate, EndpointId, IdMap, LaneId, LaneSettings, TenantId, Timestamp};
use posthaste_store::{
    Directory, ENDPOINTS_LISTED_MAX, Endpoint, EndpointSelector, EndpointTarget, EndpointTls, Register, StoreError,
    WebhookTarget,
};

use crate::rules::AllRules;
use crate::{BadIdentity, ChannelRegistry, Identity, IdentityPem, Rules, Target, TargetRules, channels};

/// An endpoint with everything a send needs, parsed once.
#[derive(Debug)]
pub struct ParsedEndpoint {
    pub endpoint: Arc<Endpoint>,
    pub lane: Arc<LaneSettings>,
    /// The rules that its lane was made with.
    rules: Arc<Rules>,
    /// The parsed URL; `None` when today's target rules refuse the stored URL, or its TLS settings cannot be used.
    pub target: Option<Arc<Target>>,
    /// Its own TLS settings; `None` for the defaults.
    pub identity: Option<Arc<Identity>>,
    pub event_types: Vec<Pattern>,
    /// Makes its requests and judges its answers.
    pub channel: Box<dyn Channel>,
}

impl ParsedEndpoint {
    /// Parses an endpoint. It was checked when it was stored; a value that no longer passes, because target rules
    /// have changed, is left out here, and each attempt fails with its cause.
    fn ready(endpoint: Arc<Endpoint>, rules: Arc<Rules>, targets: &TargetRules, channels: ChannelRegistry) -> Self {
        let identity = identity(&endpoint.target);
        // An endpoint whose own TLS settings cannot be used gets nothing.
        let target = Target::parse(endpoint.target.url(), targets).ok().filter(|_| identity.is_ok()).map(Arc::new);
        Self {
            lane: Arc::new(rules.lane(&endpoint)),
            rules,
            target,
            identity: identity.ok().flatten(),
            event_types: endpoint.event_types.iter().filter_map(|text| Pattern::parse(text).ok()).collect(),
            channel: channels(&endpoint),
            endpoint,
        }
    }

    fn is_of(&self, endpoint: &Arc<Endpoint>, rules: &Arc<Rules>) -> bool {
        let is_same = Arc::ptr_eq(&self.endpoint, endpoint) || self.endpoint == *endpoint;
        is_same && Arc::ptr_eq(&self.rules, rules)
    }

    /// The form in which the fan-out takes it.
    pub fn candidate(&self) -> Candidate<'_> {
        Candidate {
            endpoint: self.endpoint.id,
            lane: &self.lane,
            event_types: &self.event_types,
            subject: self.endpoint.subject.as_deref(),
            tags: &self.endpoint.tags,
            ttl: self.endpoint.ttl,
        }
    }
}

/// Parses an endpoint's own TLS settings; `None` if it has none.
pub(crate) fn identity(target: &EndpointTarget) -> Result<Option<Arc<Identity>>, BadIdentity> {
    let EndpointTarget::Webhook(WebhookTarget { tls, .. }) = target;
    if *tls == EndpointTls::default() {
        return Ok(None);
    }
    let EndpointTls { ca, client_cert, client_key } = tls;
    let pem = IdentityPem { ca: ca.as_deref(), client_cert: client_cert.as_deref(), client_key: client_key.as_deref() };
    Identity::parse(pem).map(|identity| Some(Arc::new(identity)))
}

/// Endpoints cached in memory. When one more comes, the cache is cleared.
const KEPT_MAX: usize = 16_384;

/// A cache of the endpoints in use. The store is asked for an endpoint's record; the parsed form is reused for as
/// long as that record and the tenant's rules are the same.
#[derive(Debug)]
pub struct ParsedEndpointCache<S> {
    store: Arc<S>,
    pub(crate) targets: TargetRules,
    pub(crate) rules: AllRules<S>,
    pub(crate) channels: ChannelRegistry,
    cache: RwLock<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    by_id: IdMap<EndpointId, Arc<ParsedEndpoint>>,
    /// When each endpoint was last evicted: a record that was read before that is not cached.
    stamps: ChangeStamps,
}

impl<S: Directory + Register> ParsedEndpointCache<S> {
    /// An empty cache over this store; URLs are checked by these target rules, and time zones known from `now` on.
    pub fn new(store: Arc<S>, targets: TargetRules, now: Timestamp) -> Self {
        let rules = AllRules::new(Arc::clone(&store), now);
        Self { rules, store, targets, channels: channels::registered, cache: RwLock::default() }
    }

    /// The cached endpoint, without a look at the store; it may be out of date.
    pub fn last_seen(&self, id: EndpointId) -> Option<Arc<ParsedEndpoint>> {
        self.cache.read().unwrap_or_else(PoisonError::into_inner).by_id.get(&id).cloned()
    }

    /// The stamp to take before a read whose result may be cached.
    fn changes(&self) -> ReadStamp {
        self.cache.read().unwrap_or_else(PoisonError::into_inner).stamps.now()
    }

    /// The endpoint as it is now in the store.
    pub async fn load(&self, id: EndpointId) -> Result<Option<Arc<ParsedEndpoint>>, StoreError> {
        let read_at = self.changes();
        let Some(endpoint) = self.store.endpoint(id).await? else { return Ok(None) };
        let rules = self.rules.of(endpoint.tenant).await?;
        Ok(Some(self.ready(read_at, endpoint, &rules)))
    }

    /// The lane settings of an endpoint, without parsing the rest of it.
    async fn lane(&self, lane: LaneId) -> Result<Option<Arc<LaneSettings>>, StoreError> {
        let Some(endpoint) = self.store.endpoint_of_lane(lane).await? else { return Ok(None) };
        let rules = self.rules.of(endpoint.tenant).await?;
        let known = self.last_seen(endpoint.id).filter(|known| known.is_of(&endpoint, &rules));
        Ok(Some(known.map_or_else(|| Arc::new(rules.lane(&endpoint)), |known| Arc::clone(&known.lane))))
    }

    /// Lane settings that were just read from the store, with the rules of their tenants. The look-ups find their
    /// endpoints in the store's memory.
    pub(crate) async fn with_rules(
        &self,
        mut found: Vec<Arc<LaneSettings>>,
    ) -> Result<Vec<Arc<LaneSettings>>, StoreError> {
        for settings in &mut found {
            if let Some(ruled) = self.lane(settings.lane).await? {
                *settings = ruled;
            }
        }
        Ok(found)
    }

    /// The tenant's endpoints that take messages; `None` when the tenant has more than [`ENDPOINTS_LISTED_MAX`].
    pub async fn tenant_endpoints(&self, tenant: TenantId) -> Result<Option<Vec<Arc<ParsedEndpoint>>>, StoreError> {
        let read_at = self.changes();
        let endpoints = self.store.endpoints(tenant).await?;
        if endpoints.len() > ENDPOINTS_LISTED_MAX {
            return Ok(None);
        }
        let rules = self.rules.of(tenant).await?;
        let taking = endpoints.iter().filter(|endpoint| endpoint.takes_messages());
        Ok(Some(taking.map(|endpoint| self.ready(read_at, Arc::clone(endpoint), &rules)).collect()))
    }

    /// A page of the tenant's endpoints that a selector matches and that take messages, and the id after which the next
    /// page begins, if there is one. The endpoints are cached only if one page has all of them.
    pub(crate) async fn matching(
        &self,
        tenant: TenantId,
        selector: &EndpointSelector,
        after: Option<EndpointId>,
        limit: u32,
    ) -> Result<(Vec<Arc<ParsedEndpoint>>, Option<EndpointId>), StoreError> {
        let read_at = self.changes();
        let page = self.store.endpoints_matching(tenant, selector.clone(), after, limit).await?;
        let taking = page.endpoints.into_iter().filter(|endpoint| endpoint.takes_messages());
        let ready = if after.is_none() && page.next.is_none() {
            let rules = self.rules.of(tenant).await?;
            taking.map(|endpoint| self.ready(read_at, endpoint, &rules)).collect()
        } else {
            self.made_ready(tenant, taking.collect()).await?
        };
        Ok((ready, page.next))
    }

    /// Evicts an endpoint from the cache, because it has ended or changed.
    pub fn forget(&self, id: EndpointId) {
        let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        cache.stamps.change(id.raw());
        cache.by_id.remove(&id);
    }

    /// Evicts a tenant's endpoints and rules, because the tenant or a subject of it was erased.
    pub fn forget_tenant(&self, tenant: TenantId) {
        self.rules.forget(tenant);
        let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        cache.stamps.change_all();
        cache.by_id.retain(|_, known| known.endpoint.tenant != tenant);
    }

    /// Parses endpoints of a tenant without caching them, so that a walk over all of them does not evict those in use.
    pub async fn made_ready(
        &self,
        tenant: TenantId,
        endpoints: Vec<Arc<Endpoint>>,
    ) -> Result<Vec<Arc<ParsedEndpoint>>, StoreError> {
        let rules = self.rules.of(tenant).await?;
        let made = endpoints.into_iter().map(|endpoint| {
            let known = self.last_seen(endpoint.id).filter(|known| known.is_of(&endpoint, &rules));
            known.unwrap_or_else(|| {
                Arc::new(ParsedEndpoint::ready(endpoint, Arc::clone(&rules), &self.targets, self.channels))
            })
        });
        Ok(made.collect())
    }

    /// Parses an endpoint, and caches it unless it was changed since `read_at`.
    fn ready(&self, read_at: ReadStamp, endpoint: Arc<Endpoint>, rules: &Arc<Rules>) -> Arc<ParsedEndpoint> {
        if let Some(known) = self.last_seen(endpoint.id).filter(|known| known.is_of(&endpoint, rules)) {
            return known;
        }
        let id = endpoint.id;
        let ready = Arc::new(ParsedEndpoint::ready(endpoint, Arc::clone(rules), &self.targets, self.channels));
        if ready.endpoint.is_large() {
            return ready;
        }
        let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        let is_newer = |known: &Arc<ParsedEndpoint>| known.endpoint.version > ready.endpoint.version;
        if !cache.stamps.is_current(id.raw(), read_at) || cache.by_id.get(&id).is_some_and(is_newer) {
            return ready;
        }
        if cache.by_id.len() >= KEPT_MAX {
            cache.by_id.clear();
        }
        cache.by_id.insert(id, Arc::clone(&ready));
        ready
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use posthaste_channels::ResponseView;
    use posthaste_store::MemoryStore;

    use super::*;

    fn ready(endpoint: Endpoint) -> ParsedEndpoint {
        ParsedEndpoint::ready(Arc::new(endpoint), Arc::default(), &TargetRules::default(), channels::registered)
    }

    fn bare() -> Endpoint {
        let (id, lane, tenant) = (EndpointId::from_raw(1), LaneId::from_raw(2), TenantId::from_raw(1));
        Endpoint::new(id, lane, tenant, Timestamp::default(), "https://example.com/")
    }

    #[test]
    fn endpoint_read_before_a_change_is_not_cached_after_it() {
        let endpoint_cache =
            ParsedEndpointCache::new(Arc::<MemoryStore>::default(), TargetRules::default(), Timestamp::default());
        let version = |version| Arc::new(Endpoint { version, ..bare() });
        let cached = || endpoint_cache.last_seen(bare().id).map(|known| known.endpoint.version);
        let (rules, read_at) = (Arc::default(), endpoint_cache.changes());
        endpoint_cache.ready(read_at, version(1), &rules);
        endpoint_cache.ready(read_at, version(2), &rules);
        assert_eq!(cached(), Some(2));
        // Of two readers, the one that read first finishes last.
        endpoint_cache.ready(read_at, version(1), &rules);
        assert_eq!(cached(), Some(2));
        // The same, and the endpoint is evicted in between.
        endpoint_cache.forget(bare().id);
        endpoint_cache.ready(read_at, version(2), &rules);
        assert_eq!(cached(), None);
        endpoint_cache.ready(endpoint_cache.changes(), version(3), &rules);
        assert_eq!(cached(), Some(3));
    }

    #[test]
    fn an_owner_s_status_override_reaches_the_channel() {
        let overrides = vec![("404".to_owned(), "retry".to_owned())];
        let webhook =
            WebhookTarget { status_overrides: overrides, ..WebhookTarget::signing("https://example.com/", vec![]) };
        let ready = ready(Endpoint { target: webhook.into(), ..bare() });
        let answer = ResponseView { status: 404, headers: &HeaderMap::new(), excerpt: b"" };
        assert_eq!(ready.channel.judge(&answer, Timestamp::default()).class, posthaste_core::Class::Retry);
        assert!(ready.target.is_some() && ready.identity.is_none());
    }

    #[test]
    fn endpoint_with_unusable_certificates_gets_nothing() {
        let tls = EndpointTls { ca: Some("no certificate".to_owned()), ..EndpointTls::default() };
        let webhook = WebhookTarget { tls, ..WebhookTarget::signing("https://example.com/", vec![]) };
        assert!(ready(Endpoint { target: webhook.into(), ..bare() }).target.is_none());
    }
}
