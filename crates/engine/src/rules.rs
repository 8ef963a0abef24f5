//! The rules of a tenant: what holds for all of its endpoints beside what their owner says of each. These are the
//! policies they may name, its own and the operator's.
//!
//! Invariant: rules carry the number of changes that were known when they were read. What is made of older ones never
//! takes the place of what is made of newer ones; `core::queue` compares the numbers.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use posthaste_core::Policy;
use posthaste_core::id::TenantId;
use posthaste_core::id_map::IdMap;
use posthaste_core::policy::UnknownPolicy;
use posthaste_core::queue::LaneSettings;
use posthaste_store::{DocumentKind, Endpoint, ListOrder, OPERATOR, Register, StoreError};

use crate::policies::{POLICIES_MAX, StoredPolicy};

/// The rules of one tenant.
#[derive(Debug, Default)]
pub struct Rules {
    /// So many changes were known of.
    number: u64,
    /// What a name stands for beside the presets.
    policies: BTreeMap<String, Arc<Policy>>,
}

impl Rules {
    /// The policy of this name: the tenant's own, else the operator's, else the preset.
    pub fn policy(&self, name: &str) -> Result<Arc<Policy>, UnknownPolicy> {
        match self.policies.get(name) {
            Some(stored) => Ok(Arc::clone(stored)),
            None => Policy::preset(name)
                .map(Arc::new)
                .ok_or_else(|| UnknownPolicy::beside(name, self.policies.keys().map(String::as_str))),
        }
    }

    /// What the dispatch loop needs of an endpoint. A policy that is no more reads as the default: a delivery must
    /// not be stranded by it.
    pub(crate) fn lane(&self, endpoint: &Endpoint) -> LaneSettings {
        let settings = LaneSettings { rules: self.number, ..endpoint.lane_settings() };
        match self.policies.get(&endpoint.policy) {
            Some(stored) => LaneSettings { policy: Arc::clone(stored), ..settings },
            None => settings,
        }
    }
}

/// Tenants whose rules are kept in memory; when there are more, all are read again as they are needed.
const KEPT_MAX: usize = 16_384;

/// The rules in use.
#[derive(Debug)]
pub(crate) struct AllRules<S> {
    store: Arc<S>,
    kept: RwLock<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    by_tenant: IdMap<TenantId, Arc<Rules>>,
    /// How often somebody changed some: what was read before may be out of date.
    changes: u64,
}

impl<S: Register> AllRules<S> {
    pub(crate) fn new(store: Arc<S>) -> Self {
        Self { store, kept: RwLock::default() }
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
        let rules = Arc::new(Rules { number: changes, policies });
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
            stored.map(|one| Policy::build(&one.spec).ok().map(|built| (one.name, Arc::new(built)))).transpose()
        })
        .collect()
    }

    /// Forgets a tenant's rules: they have changed. The operator's are everybody's.
    pub(crate) fn forget(&self, whose: TenantId) {
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        kept.changes += 1;
        if whose == OPERATOR {
            kept.by_tenant.clear();
        } else {
            kept.by_tenant.remove(&whose);
        }
    }
}
