//! The rules of a tenant: what holds for all of its endpoints. These are the policies that they may name, which are the
//! tenant's own and the operator's, the policy of endpoints that name none, and when engagement messages may be sent.
//!
//! Invariant: rules carry the number of changes that were known when they were read. Lane settings made from older
//! rules never replace those made from newer ones; `core::scheduler` compares the numbers.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use posthaste_core::off_peak::{OffPeak, Offsets};
use posthaste_core::policy::{DEFAULT_PRESET, PolicyDefaults, PolicySpec, UnknownPolicy};
use posthaste_core::{IdMap, LaneSettings, Policy, TenantId, Timestamp};
use posthaste_store::{DocumentKind, Endpoint, ListOrder, OPERATOR, Register, StoreError};

use crate::policies::POLICIES_MAX;
use crate::{Hours, StoredPolicy, Tenant, TenantTerms, zone};

#[derive(Debug, Default)]
pub struct Rules {
    /// How many changes of rules were known when these were read.
    number: u32,
    /// The server's values for what a policy leaves out.
    defaults: Arc<PolicyDefaults>,
    /// The stored policies by name; presets are not among them.
    policies: BTreeMap<String, Arc<Policy>>,
    policy: Option<String>,
    /// When engagement messages may be sent.
    off_peak: Option<OffPeakRule>,
}

#[derive(Debug)]
struct OffPeakRule {
    hours: Hours,
    /// The UTC offsets of the tenant's time zone.
    offsets: Arc<Offsets>,
    /// Offsets are known from this time on.
    since: Timestamp,
}

impl OffPeakRule {
    fn of(terms: &TenantTerms, since: Timestamp) -> Option<Self> {
        let hours = terms.off_peak?;
        Some(Self { hours, offsets: offsets_of(terms.time_zone.as_deref(), since), since })
    }

    fn at(&self, endpoint: &Endpoint) -> Option<OffPeak> {
        let offsets = match &endpoint.time_zone {
            Some(own) => offsets_of(Some(own), self.since),
            None => Arc::clone(&self.offsets),
        };
        OffPeak::new(self.hours.from, self.hours.to, offsets).ok()
    }
}

/// How far ahead offsets are looked up: longer than any process runs.
const YEARS_AHEAD: Duration = Duration::from_secs(20 * 366 * 24 * 60 * 60);

/// The UTC offsets of a time zone. One that the database no longer has reads as UTC, so that its messages are still
/// sent.
fn offsets_of(zone: Option<&str>, since: Timestamp) -> Arc<Offsets> {
    let known = zone::offsets(zone.unwrap_or("UTC"), since, since + YEARS_AHEAD).ok();
    Arc::new(known.unwrap_or_else(|| Offsets::fixed(0).expect("UTC is no seconds from UTC")))
}

impl Rules {
    /// The policy with this name: the tenant's own, else the operator's, else the preset.
    pub fn policy(&self, name: &str) -> Result<Arc<Policy>, UnknownPolicy> {
        if let Some(stored) = self.policies.get(name) {
            return Ok(Arc::clone(stored));
        }
        let known = || self.policies.keys().map(String::as_str);
        self.preset(name).map(Arc::new).ok_or_else(|| UnknownPolicy::beside(name, known()))
    }

    /// The name of the policy in force for an endpoint: its own, else its tenant's, else the default preset.
    pub fn policy_of<'a>(&'a self, endpoint: &'a Endpoint) -> &'a str {
        endpoint.policy.as_deref().or(self.policy.as_deref()).unwrap_or(DEFAULT_PRESET)
    }

    /// What the dispatch loop needs of an endpoint. A policy that no longer exists reads as the default, so that
    /// deliveries are still sent.
    pub(crate) fn lane(&self, endpoint: &Endpoint) -> LaneSettings {
        let policy = self.policy(self.policy_of(endpoint)).or_else(|_| self.policy(DEFAULT_PRESET));
        let mut settings = LaneSettings { rules: self.number, ..endpoint.lane_by(policy.unwrap_or_default()) };
        if let Some(window) = self.off_peak.as_ref().and_then(|rule| rule.at(endpoint)) {
            settings.special.get_or_insert_default().off_peak = Some(window);
        }
        settings
    }

    /// A preset, with the server's values for what it leaves out.
    fn preset(&self, name: &str) -> Option<Policy> {
        let spec = PolicySpec::preset(name)?;
        Policy::build(&spec.or(&self.defaults)).ok().or_else(|| Policy::preset(name))
    }
}

/// The most tenants with rules in the cache. When one more comes, the cache is cleared.
const KEPT_MAX: usize = 16_384;

#[derive(Debug)]
pub(crate) struct AllRules<S> {
    store: Arc<S>,
    since: Timestamp,
    /// The server's values for what a policy leaves out.
    pub(crate) defaults: Arc<PolicyDefaults>,
    cache: RwLock<RulesCache>,
}

#[derive(Debug, Default)]
struct RulesCache {
    by_tenant: IdMap<TenantId, Arc<Rules>>,
    /// How often rules were changed: those that were read before the last change are not cached.
    changes: u32,
}

impl<S: Register> AllRules<S> {
    /// An empty cache; time zones are looked up from `since` on.
    pub(crate) fn new(store: Arc<S>, since: Timestamp) -> Self {
        Self { store, since, defaults: Arc::default(), cache: RwLock::default() }
    }

    pub(crate) async fn of(&self, tenant: TenantId) -> Result<Arc<Rules>, StoreError> {
        let changes = {
            let cache = self.cache.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(known) = cache.by_tenant.get(&tenant) {
                return Ok(Arc::clone(known));
            }
            cache.changes
        };
        let mut policies = BTreeMap::new();
        // A tenant's own policy hides the operator's of the same name.
        for owner in [OPERATOR, tenant] {
            policies.extend(self.policies(owner).await?);
        }
        let stored = self.store.document(DocumentKind::Tenant, tenant.0).await?.map(Tenant::of).transpose()?;
        let terms = stored.map(|tenant| tenant.terms).unwrap_or_default();
        let off_peak = OffPeakRule::of(&terms, self.since);
        let defaults = Arc::clone(&self.defaults);
        let rules = Arc::new(Rules { number: changes, defaults, policies, policy: terms.policy, off_peak });
        let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        if cache.changes == changes {
            if cache.by_tenant.len() >= KEPT_MAX {
                cache.by_tenant.clear();
            }
            cache.by_tenant.insert(tenant, Arc::clone(&rules));
        }
        Ok(rules)
    }

    async fn policies(&self, owner: TenantId) -> Result<Vec<(String, Arc<Policy>)>, StoreError> {
        let order = ListOrder::OldestFirst;
        let found = self.store.documents(DocumentKind::Policy, Some(owner), order, None, POLICIES_MAX).await?;
        let read = found.into_iter().map(StoredPolicy::of);
        // A stored policy that is no longer valid, because a newer version has other bounds, is left out.
        read.filter_map(|stored| {
            stored
                .map(|one| Policy::build(&one.spec.or(&self.defaults)).ok().map(|built| (one.name, Arc::new(built))))
                .transpose()
        })
        .collect()
    }

    /// Evicts a tenant's rules, or all rules for [`OPERATOR`], because they have changed. Rules that are read from now
    /// on have the returned number or a higher one.
    pub(crate) fn forget(&self, owner: TenantId) -> u32 {
        let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        cache.changes += 1;
        if owner == OPERATOR {
            cache.by_tenant.clear();
        } else {
            cache.by_tenant.remove(&owner);
        }
        cache.changes
    }
}
