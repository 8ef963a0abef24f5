//! Where messages go: endpoints made ready to send to, kept in memory by their users.

use std::sync::{Arc, PoisonError, RwLock};

use posthaste_channels::Channel;
use posthaste_core::change_stamps::{ChangeStamps, ReadStamp};
use posthaste_core::fanout::Candidate;
use posthaste_core::id::{EndpointId, LaneId, TenantId};
use posthaste_core::id_map::IdMap;
use posthaste_core::pattern::Pattern;
use posthaste_core::policy::PolicyDefaults;
use posthaste_core::queue::LaneSettings;
use posthaste_core::time::Timestamp;
use posthaste_store::{
    Directory, ENDPOINTS_LISTED_MAX, Endpoint, EndpointSelector, EndpointTarget, EndpointTls, Register, StoreError,
    WebhookTarget,
};

use crate::channels::{self, ChannelRegistry};
use crate::connector::{BadIdentity, Identity, IdentityPem};
use crate::rules::{AllRules, Rules};
use crate::target::{Target, TargetRules};

/// An endpoint with everything a send needs, parsed once.
#[derive(Debug)]
pub struct Destination {
    /// The endpoint as it is stored.
    pub endpoint: Arc<Endpoint>,
    /// Its lane.
    pub lane: Arc<LaneSettings>,
    /// What its lane was made by.
    rules: Arc<Rules>,
    /// Where to; `None` when today's rules refuse the stored URL.
    pub target: Option<Arc<Target>>,
    /// How TLS is spoken with it, if not as with everybody.
    pub identity: Option<Arc<Identity>>,
    /// What it wants.
    pub event_types: Vec<Pattern>,
    /// Makes its requests, and judges its answers.
    pub channel: Box<dyn Channel>,
}

impl Destination {
    /// Makes an endpoint ready. What was stored was checked when it was made; what no longer
    /// passes (rules change) is left out here and told as a cause of each attempt.
    fn ready(endpoint: Arc<Endpoint>, rules: Arc<Rules>, targets: &TargetRules, channels: ChannelRegistry) -> Self {
        let identity = identity(&endpoint.target);
        // Without what its owner asked for it is not spoken to at all.
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

    /// Whether it is what would be made of an endpoint and rules now.
    fn is_of(&self, endpoint: &Arc<Endpoint>, rules: &Arc<Rules>) -> bool {
        let is_same = Arc::ptr_eq(&self.endpoint, endpoint) || self.endpoint == *endpoint;
        is_same && Arc::ptr_eq(&self.rules, rules)
    }

    /// Whether it still gets messages.
    pub fn takes_messages(&self) -> bool {
        self.endpoint.takes_messages()
    }

    /// As the fan-out sees it.
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

/// What an endpoint's own texts say of TLS; `None` where they say nothing.
pub(crate) fn identity(target: &EndpointTarget) -> Result<Option<Arc<Identity>>, BadIdentity> {
    let EndpointTarget::Webhook(WebhookTarget { tls, .. }) = target;
    if *tls == EndpointTls::default() {
        return Ok(None);
    }
    let EndpointTls { ca, client_cert, client_key } = tls;
    let pem = IdentityPem { ca: ca.as_deref(), client_cert: client_cert.as_deref(), client_key: client_key.as_deref() };
    Identity::parse(pem).map(|identity| Some(Arc::new(identity)))
}

/// Endpoints kept ready; when there are more, all are made ready again as they are needed.
const KEPT_MAX: usize = 16_384;

/// The endpoints in use. The store says which there are; what was made of them is reused for as
/// long as the store's record and their tenant's rules are the same ones.
#[derive(Debug)]
pub struct Destinations<S> {
    store: Arc<S>,
    targets: TargetRules,
    rules: AllRules<S>,
    channels: ChannelRegistry,
    kept: RwLock<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    by_id: IdMap<EndpointId, Arc<Destination>>,
    /// By endpoint: what was read before one was forgotten may be out of date.
    stamps: ChangeStamps,
}

impl<S: Directory + Register> Destinations<S> {
    /// Reads endpoints from this store, under these rules, from now on.
    pub fn new(store: Arc<S>, targets: TargetRules, now: Timestamp) -> Self {
        let rules = AllRules::new(Arc::clone(&store), now);
        Self { rules, store, targets, channels: channels::registered, kept: RwLock::default() }
    }

    /// The same, spoken to by these channels.
    #[must_use]
    pub fn with_channels(self, channels: ChannelRegistry) -> Self {
        Self { channels, ..self }
    }

    /// The same, with the server's word where a policy says nothing.
    #[must_use]
    pub fn with_defaults(mut self, defaults: PolicyDefaults) -> Self {
        self.rules.defaults = Arc::new(defaults);
        self
    }

    /// The rules targets are held to.
    pub fn targets(&self) -> &TargetRules {
        &self.targets
    }

    /// What holds for all of a tenant's.
    pub(crate) async fn rules_of(&self, tenant: TenantId) -> Result<Arc<Rules>, StoreError> {
        self.rules.of(tenant).await
    }

    /// Forgets what holds for all of a tenant's, or of everybody's: it has changed. What is read from now on has this
    /// number, or a higher one.
    pub(crate) fn forget_rules(&self, whose: TenantId) -> u32 {
        self.rules.forget(whose)
    }

    /// One as it was last seen, without asking the store.
    pub fn last_seen(&self, id: EndpointId) -> Option<Arc<Destination>> {
        self.kept.read().unwrap_or_else(PoisonError::into_inner).by_id.get(&id).cloned()
    }

    /// To be asked before a read of which something is to be kept.
    fn changes(&self) -> ReadStamp {
        self.kept.read().unwrap_or_else(PoisonError::into_inner).stamps.now()
    }

    /// One as it is.
    pub async fn load(&self, id: EndpointId) -> Result<Option<Arc<Destination>>, StoreError> {
        let read_at = self.changes();
        let Some(endpoint) = self.store.endpoint(id).await? else { return Ok(None) };
        let rules = self.rules.of(endpoint.tenant).await?;
        Ok(Some(self.ready(read_at, endpoint, &rules)))
    }

    /// What the loop needs of one, without making ready the rest of it.
    pub(crate) async fn lane(&self, lane: LaneId) -> Result<Option<Arc<LaneSettings>>, StoreError> {
        let Some(endpoint) = self.store.endpoint_of_lane(lane).await? else { return Ok(None) };
        let rules = self.rules.of(endpoint.tenant).await?;
        let known = self.last_seen(endpoint.id).filter(|known| known.is_of(&endpoint, &rules));
        Ok(Some(known.map_or_else(|| Arc::new(rules.lane(&endpoint)), |known| Arc::clone(&known.lane))))
    }

    /// Those of a tenant that take messages; `None` when it has too many to look at all of them here.
    pub async fn of_tenant(&self, tenant: TenantId) -> Result<Option<Vec<Arc<Destination>>>, StoreError> {
        let read_at = self.changes();
        let endpoints = self.store.endpoints(tenant).await?;
        if endpoints.len() > ENDPOINTS_LISTED_MAX {
            return Ok(None);
        }
        let rules = self.rules.of(tenant).await?;
        let taking = endpoints.iter().filter(|endpoint| endpoint.takes_messages());
        Ok(Some(taking.map(|endpoint| self.ready(read_at, Arc::clone(endpoint), &rules)).collect()))
    }

    /// A page of those of a tenant that a selector means and that take messages; and behind which one the next page
    /// begins, if there is one. Kept ready where the page has all there are.
    pub(crate) async fn matching(
        &self,
        tenant: TenantId,
        selector: &EndpointSelector,
        after: Option<EndpointId>,
        limit: u32,
    ) -> Result<(Vec<Arc<Destination>>, Option<EndpointId>), StoreError> {
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

    /// Forgets what an endpoint looked like: it has ended or changed.
    pub fn forget(&self, id: EndpointId) {
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        kept.stamps.change(id.raw());
        kept.by_id.remove(&id);
    }

    /// Forgets a tenant's: it, or somebody it knows, was erased.
    pub fn forget_tenant(&self, tenant: TenantId) {
        self.rules.forget(tenant);
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        kept.stamps.change_all();
        kept.by_id.retain(|_, known| known.endpoint.tenant != tenant);
    }

    /// Makes some of a tenant's ready that are not kept: whoever walks all of them must not drive out those in use.
    pub async fn made_ready(
        &self,
        tenant: TenantId,
        endpoints: Vec<Arc<Endpoint>>,
    ) -> Result<Vec<Arc<Destination>>, StoreError> {
        let rules = self.rules.of(tenant).await?;
        let made = endpoints.into_iter().map(|endpoint| {
            let known = self.last_seen(endpoint.id).filter(|known| known.is_of(&endpoint, &rules));
            known.unwrap_or_else(|| {
                Arc::new(Destination::ready(endpoint, Arc::clone(&rules), &self.targets, self.channels))
            })
        });
        Ok(made.collect())
    }

    /// Makes an endpoint ready, and keeps it unless it may be out of date: somebody may have changed it since it was
    /// read, and be done.
    fn ready(&self, read_at: ReadStamp, endpoint: Arc<Endpoint>, rules: &Arc<Rules>) -> Arc<Destination> {
        if let Some(known) = self.last_seen(endpoint.id).filter(|known| known.is_of(&endpoint, rules)) {
            return known;
        }
        let id = endpoint.id;
        let ready = Arc::new(Destination::ready(endpoint, Arc::clone(rules), &self.targets, self.channels));
        if ready.endpoint.is_large() {
            return ready;
        }
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        let is_newer = |known: &Arc<Destination>| known.endpoint.version > ready.endpoint.version;
        if !kept.stamps.is_current(id.raw(), read_at) || kept.by_id.get(&id).is_some_and(is_newer) {
            return ready;
        }
        if kept.by_id.len() >= KEPT_MAX {
            kept.by_id.clear();
        }
        kept.by_id.insert(id, Arc::clone(&ready));
        ready
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use posthaste_channels::Answer;
    use posthaste_store::MemoryStore;

    use super::*;

    fn ready(endpoint: Endpoint) -> Destination {
        Destination::ready(Arc::new(endpoint), Arc::default(), &TargetRules::default(), channels::registered)
    }

    fn bare() -> Endpoint {
        let (id, lane, tenant) = (EndpointId::from_raw(1), LaneId::from_raw(2), TenantId::from_raw(1));
        Endpoint::new(id, lane, tenant, Timestamp::default(), "https://example.com/")
    }

    #[test]
    fn what_was_read_before_a_change_is_not_kept_after_it() {
        let destinations =
            Destinations::new(Arc::<MemoryStore>::default(), TargetRules::default(), Timestamp::default());
        let version = |version| Arc::new(Endpoint { version, ..bare() });
        let kept = || destinations.last_seen(bare().id).map(|known| known.endpoint.version);
        let (rules, read_at) = (Arc::default(), destinations.changes());
        destinations.ready(read_at, version(1), &rules);
        destinations.ready(read_at, version(2), &rules);
        assert_eq!(kept(), Some(2));
        // Two read, and the one who read first is done last.
        destinations.ready(read_at, version(1), &rules);
        assert_eq!(kept(), Some(2));
        // The same, and the change is forgotten in between.
        destinations.forget(bare().id);
        destinations.ready(read_at, version(2), &rules);
        assert_eq!(kept(), None);
        destinations.ready(destinations.changes(), version(3), &rules);
        assert_eq!(kept(), Some(3));
    }

    #[test]
    fn an_owner_s_status_override_reaches_the_channel() {
        let overrides = vec![("404".to_owned(), "retry".to_owned())];
        let webhook =
            WebhookTarget { status_overrides: overrides, ..WebhookTarget::signing("https://example.com/", vec![]) };
        let ready = ready(Endpoint { target: webhook.into(), ..bare() });
        let answer = Answer { status: 404, headers: &HeaderMap::new(), excerpt: b"" };
        assert_eq!(ready.channel.judge(&answer, Timestamp::default()).class, posthaste_core::Class::Retry);
        assert!(ready.target.is_some() && ready.identity.is_none());
    }

    #[test]
    fn an_endpoint_whose_certificates_cannot_be_used_is_not_spoken_to_without_them() {
        let tls = EndpointTls { ca: Some("no certificate".to_owned()), ..EndpointTls::default() };
        let webhook = WebhookTarget { tls, ..WebhookTarget::signing("https://example.com/", vec![]) };
        assert!(ready(Endpoint { target: webhook.into(), ..bare() }).target.is_none());
    }
}
