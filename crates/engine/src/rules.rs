//! The rules of a tenant: what holds for all of its endpoints beside what their owner says of each. These are the
//! policies they may name, its own and the operator's, the one they go by that name none, and when engagement messages
//! may leave.
//!
//! Invariant: rules carry the number of changes that were known when they were read. What is made of older ones never
//! takes the place of what is made of newer ones; `core::queue` compares the numbers.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use posthaste_core::Policy;
use posthaste_core::id::TenantId;
use posthaste_core::id_map::IdMap;
use posthaste_core::off_peak::{OffPeak, Offsets};
use posthaste_core::policy::{DEFAULT_PRESET, PolicyDefaults, PolicySpec, UnknownPolicy};
use posthaste_core::queue::LaneSettings;
use posthaste_core::time::Timestamp;
use posthaste_store::{DocumentKind, Endpoint, ListOrder, OPERATOR, Register, StoreError};

use crate::policies::{POLICIES_MAX, StoredPolicy};
use crate::tenants::{Hours, Tenant, Terms};
use crate::zone;

/// The rules of one tenant.
#[derive(Debug, Default)]
pub struct Rules {
    /// So many changes were known of.
    number: u32,
    /// What the server says where a policy says nothing.
    defaults: Arc<PolicyDefaults>,
    /// What a name stands for beside the presets.
    policies: BTreeMap<String, Arc<Policy>>,
    /// The name that endpoints go by which name none.
    policy: Option<String>,
    /// When engagement messages may leave.
    off_peak: Option<OffPeakRule>,
}

/// A tenant's off-peak window.
#[derive(Debug)]
struct OffPeakRule {
    hours: Hours,
    /// The tenant's clock.
    offsets: Arc<Offsets>,
    /// Clocks are known from this time on.
    since: Timestamp,
}

impl OffPeakRule {
    fn of(terms: &Terms, since: Timestamp) -> Option<Self> {
        let hours = terms.off_peak?;
        Some(Self { hours, offsets: clock_of(terms.time_zone.as_deref(), since), since })
    }

    /// The window on an endpoint's clock.
    fn at(&self, endpoint: &Endpoint) -> Option<OffPeak> {
        let offsets = match &endpoint.time_zone {
            Some(own) => clock_of(Some(own), self.since),
            None => Arc::clone(&self.offsets),
        };
        OffPeak::new(self.hours.from, self.hours.to, offsets).ok()
    }
}

/// How far ahead clocks are looked up: no process runs longer.
const YEARS_AHEAD: Duration = Duration::from_secs(20 * 366 * 24 * 60 * 60);

/// A zone's clock. One that the database does not know any more reads as UTC: a message must not be stranded by it.
fn clock_of(zone: Option<&str>, since: Timestamp) -> Arc<Offsets> {
    let known = zone::offsets(zone.unwrap_or("UTC"), since, since + YEARS_AHEAD).ok();
    Arc::new(known.unwrap_or_else(|| Offsets::fixed(0).expect("UTC is no seconds from UTC")))
}

impl Rules {
    /// The policy of this name: the tenant's own, else the operator's, else the preset.
    pub fn policy(&self, name: &str) -> Result<Arc<Policy>, UnknownPolicy> {
        match self.policies.get(name) {
            Some(stored) => Ok(Arc::clone(stored)),
            None => self
                .preset(name)
                .map(Arc::new)
                .ok_or_else(|| UnknownPolicy::beside(name, self.policies.keys().map(String::as_str))),
        }
    }

    /// The name of the policy that an endpoint goes by: its own, else its tenant's.
    pub fn policy_of<'a>(&'a self, endpoint: &'a Endpoint) -> &'a str {
        endpoint.policy.as_deref().or(self.policy.as_deref()).unwrap_or(DEFAULT_PRESET)
    }

    /// What the dispatch loop needs of an endpoint. A policy that is no more reads as the default: a delivery must
    /// not be stranded by it.
    pub(crate) fn lane(&self, endpoint: &Endpoint) -> LaneSettings {
        let policy = self.policy(self.policy_of(endpoint)).or_else(|_| self.policy(DEFAULT_PRESET));
        let mut settings = LaneSettings { rules: self.number, ..endpoint.lane_by(policy.unwrap_or_default()) };
        if let Some(window) = self.off_peak.as_ref().and_then(|rule| rule.at(endpoint)) {
            settings.special.get_or_insert_default().off_peak = Some(window);
        }
        settings
    }

    /// A preset, with the server's word where it says nothing.
    fn preset(&self, name: &str) -> Option<Policy> {
        let spec = PolicySpec::preset(name)?;
        Policy::build(&spec.or(&self.defaults)).ok().or_else(|| Policy::preset(name))
    }
}

/// Tenants whose rules are kept in memory; when there are more, all are read again as they are needed.
const KEPT_MAX: usize = 16_384;

/// The rules in use.
#[derive(Debug)]
pub(crate) struct AllRules<S> {
    store: Arc<S>,
    since: Timestamp,
    /// What the server says where a policy says nothing.
    pub(crate) defaults: Arc<PolicyDefaults>,
    kept: RwLock<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    by_tenant: IdMap<TenantId, Arc<Rules>>,
    /// How often somebody changed some: what was read before may be out of date.
    changes: u32,
}

impl<S: Register> AllRules<S> {
    /// From this time on.
    pub(crate) fn new(store: Arc<S>, since: Timestamp) -> Self {
        Self { store, since, defaults: Arc::default(), kept: RwLock::default() }
    }

    /// A tenant's.
    pub(crate) async fn of(&self, tenant: TenantId) -> Result<Arc<Rules>, StoreError> {
        let changes = {
            let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(known) = kept.by_tenant.get(&tenant) {
                return Ok(Arc::clone(known));
            }
            kept.changes
        };
        let mut policies = BTreeMap::new();
        // The tenant's hide the operator's.
        for whose in [OPERATOR, tenant] {
            policies.extend(self.policies(whose).await?);
        }
        let of = self.store.document(DocumentKind::Tenant, tenant.0).await?.map(Tenant::of).transpose()?;
        let terms = of.map(|tenant| tenant.terms).unwrap_or_default();
        let off_peak = OffPeakRule::of(&terms, self.since);
        let defaults = Arc::clone(&self.defaults);
        let rules = Arc::new(Rules { number: changes, defaults, policies, policy: terms.policy, off_peak });
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if kept.changes == changes {
            if kept.by_tenant.len() >= KEPT_MAX {
                kept.by_tenant.clear();
            }
            kept.by_tenant.insert(tenant, Arc::clone(&rules));
        }
        Ok(rules)
    }

    async fn policies(&self, whose: TenantId) -> Result<Vec<(String, Arc<Policy>)>, StoreError> {
        let order = ListOrder::OldestFirst;
        let found = self.store.documents(DocumentKind::Policy, Some(whose), order, None, POLICIES_MAX).await?;
        let read = found.into_iter().map(StoredPolicy::of);
        // What no longer builds (the bounds of a newer version are others) is as if it were not there.
        read.filter_map(|stored| {
            stored
                .map(|one| Policy::build(&one.spec.or(&self.defaults)).ok().map(|built| (one.name, Arc::new(built))))
                .transpose()
        })
        .collect()
    }

    /// Forgets a tenant's rules: they have changed. The operator's are everybody's. Whatever is read from now on has
    /// the number that it gives, or a higher one.
    pub(crate) fn forget(&self, whose: TenantId) -> u32 {
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        kept.changes += 1;
        if whose == OPERATOR {
            kept.by_tenant.clear();
        } else {
            kept.by_tenant.remove(&whose);
        }
        kept.changes
    }
}
