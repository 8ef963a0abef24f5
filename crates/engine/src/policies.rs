//! Policies by name: a tenant's own, and the operator's, which every tenant may use. The presets are names that
//! nobody can take.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::id::{EndpointId, Key, TenantId};
use posthaste_core::policy::{BadPolicy, PRESETS, Policy, PolicySpec};
use posthaste_core::time::Timestamp;
use posthaste_crypto::public_id::Kind;
use posthaste_store::{By, Document, DocumentKind, Endpoint, Filed, ListOrder, OPERATOR, Store, StoreError};

use crate::clock::Clock;
use crate::dispatch::Command;
use crate::dispatch::driver::Ended;
use crate::engine::Engine;
use crate::rules::Rules;

mod written;

/// Policies that one tenant, or the operator, may have: all of them are in memory with the tenant's rules.
pub const POLICIES_MAX: u32 = 100;

/// Endpoints or tenants read at once where somebody may still use a policy.
const PAGE: u32 = 500;

/// A change that met another one is made again; so often, nobody else is that quick.
const TRIES: u32 = 5;

/// A policy with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredPolicy {
    /// Its id.
    pub id: Key,
    /// Whose; [`OPERATOR`] where it is everybody's.
    pub tenant: TenantId,
    /// What endpoints call it by.
    pub name: String,
    /// When it was made.
    pub at: Timestamp,
    /// What it says.
    pub spec: PolicySpec,
}

impl StoredPolicy {
    /// A policy as it was filed.
    pub(crate) fn of(document: Document) -> Result<Self, StoreError> {
        let damaged = |found: String| StoreError::Damaged { what: "a policy", found };
        let name = document.name.ok_or_else(|| damaged("no name".to_owned()))?;
        let spec = written::read(&document.body).map_err(|error| damaged(error.to_string()))?;
        Ok(Self { id: document.id, tenant: document.tenant, name, at: document.at, spec })
    }

    fn document(&self) -> Document {
        Document {
            kind: DocumentKind::Policy,
            id: self.id,
            tenant: self.tenant,
            name: Some(self.name.clone()),
            at: self.at,
            body: Bytes::from(written::write(&self.spec)),
        }
    }
}

/// Why a policy was not put or deleted.
#[derive(Debug, thiserror::Error)]
pub enum NotPut {
    /// Its name is a preset's.
    #[error("{0} is a preset, which nobody changes; put your policy under a name of your own")]
    Preset(&'static str),
    /// It cannot be.
    #[error("the policy cannot be")]
    Bad(Vec<BadPolicy>),
    /// There are as many as there may be.
    #[error("there are {POLICIES_MAX} policies already, and no more are kept; delete one that nobody uses")]
    TooMany,
    /// Somebody still goes by it.
    #[error("{0}; give it another policy first")]
    InUse(String),
    /// Somebody else puts or deletes it at the same time.
    #[error("the policy was changed by somebody else at the same time; look at it, and ask again")]
    Stale,
    /// The engine is going down.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The store could not take it.
    #[error("the policy could not be made durable")]
    Store(#[from] StoreError),
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// What holds for all endpoints of a tenant; for [`OPERATOR`], what the operator has made for everybody.
    pub async fn rules(&self, tenant: TenantId) -> Result<Arc<Rules>, StoreError> {
        self.destinations.rules_of(tenant).await
    }

    /// A tenant's own policies, or the operator's, by name.
    pub async fn policies(&self, whose: TenantId) -> Result<Vec<StoredPolicy>, StoreError> {
        let order = ListOrder::OldestFirst;
        let found = self.store.documents(DocumentKind::Policy, Some(whose), order, None, POLICIES_MAX).await?;
        let mut policies: Vec<StoredPolicy> = found.into_iter().map(StoredPolicy::of).collect::<Result<_, _>>()?;
        policies.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(policies)
    }

    /// The policy of this name among a tenant's own, or the operator's.
    pub async fn policy(&self, whose: TenantId, name: &str) -> Result<Option<StoredPolicy>, StoreError> {
        let found = self.store.document_named(DocumentKind::Policy, whose, name.to_owned()).await?;
        found.map(StoredPolicy::of).transpose()
    }

    /// Makes a policy, or puts another in its place. What waits goes by it from its next attempt on.
    pub async fn put_policy(
        self: &Arc<Self>,
        whose: TenantId,
        name: &str,
        spec: PolicySpec,
        by: Option<By>,
    ) -> Result<StoredPolicy, NotPut> {
        is_no_preset(name)?;
        Policy::build(&spec).map_err(NotPut::Bad)?;
        for _ in 0..TRIES {
            let (id, at) = match self.policy(whose, name).await? {
                Some(before) => (before.id, before.at),
                None if self.policies(whose).await?.len() >= POLICIES_MAX as usize => return Err(NotPut::TooMany),
                None => (self.mint(1), self.clock.now()),
            };
            let policy = StoredPolicy { id, tenant: whose, name: name.to_owned(), at, spec: spec.clone() };
            let document = policy.document();
            match self.act(|engine| async move { engine.policy_filed(document, by).await }).await?? {
                Filed::Done => return Ok(policy),
                // Somebody else has made it meanwhile.
                Filed::NameTaken | Filed::Replayed(_) | Filed::KeyReused => {}
            }
        }
        Err(NotPut::Stale)
    }

    async fn policy_filed(&self, document: Document, by: Option<By>) -> Result<Filed, NotPut> {
        let whose = document.tenant;
        let filed = self.store.file(self.session, document, None, self.done_by(by)).await?;
        if filed == Filed::Done {
            self.rules_changed(whose).await?;
        }
        Ok(filed)
    }

    /// Deletes a policy that nobody uses; `false` when there is none. A tenant's may hide the operator's: whoever
    /// uses it goes by that from then on.
    pub async fn delete_policy(self: &Arc<Self>, whose: TenantId, name: &str, by: Option<By>) -> Result<bool, NotPut> {
        is_no_preset(name)?;
        let Some(policy) = self.policy(whose, name).await? else { return Ok(false) };
        let hides_another = whose != OPERATOR && self.policy(OPERATOR, name).await?.is_some();
        if !hides_another && let Some(user) = self.user_of(&policy).await? {
            return Err(NotPut::InUse(user));
        }
        self.act(|engine| async move { engine.policy_unfiled(whose, policy.id, by).await }).await?
    }

    async fn policy_unfiled(&self, whose: TenantId, id: Key, by: Option<By>) -> Result<bool, NotPut> {
        let removed = self.store.unfile(self.session, DocumentKind::Policy, id, self.done_by(by)).await?;
        self.rules_changed(whose).await?;
        Ok(removed)
    }

    /// The rules of a tenant, or of everybody, are others now: whatever is decided from now on
    /// is read anew, and the loop reads its lanes again.
    pub(crate) async fn rules_changed(&self, whose: TenantId) -> Result<(), Ended> {
        let number = self.destinations.forget_rules(whose);
        let tenant = Some(whose).filter(|whose| *whose != OPERATOR);
        self.handle.ask(Command::Rules(tenant, number)).await.map(drop)
    }

    /// Somebody who goes by a policy, in words: a tenant or an endpoint.
    async fn user_of(&self, policy: &StoredPolicy) -> Result<Option<String>, StoreError> {
        match policy.tenant {
            OPERATOR => self.tenant_using(policy).await,
            tenant => {
                let terms = self.tenant(tenant).await?.and_then(|tenant| tenant.terms.policy.clone());
                if terms.is_some_and(|named| named == policy.name) {
                    return Ok(Some("the tenant itself uses it".to_owned()));
                }
                Ok(self.endpoint_using(tenant, &policy.name).await?.map(|id| format!("the endpoint {id} uses it")))
            }
        }
    }

    /// A tenant that uses a policy of the operator's.
    async fn tenant_using(&self, policy: &StoredPolicy) -> Result<Option<String>, StoreError> {
        let mut after = None;
        loop {
            let page = self.tenants(ListOrder::OldestFirst, after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(None) };
            after = Some(last.id);
            for tenant in page {
                if self.policy(tenant.id, &policy.name).await?.is_some() {
                    continue;
                }
                let of = tenant.uid.unwrap_or_else(|| self.public_id(Kind::Tenant, tenant.id.0, tenant.at));
                if tenant.terms.policy.as_deref() == Some(&policy.name) {
                    return Ok(Some(format!("the tenant {of} uses it")));
                }
                if let Some(id) = self.endpoint_using(tenant.id, &policy.name).await? {
                    return Ok(Some(format!("the endpoint {id} of the tenant {of} uses it")));
                }
            }
        }
    }

    /// The id of an endpoint of a tenant that names this policy.
    async fn endpoint_using(&self, tenant: TenantId, name: &str) -> Result<Option<String>, StoreError> {
        let mut after: Option<EndpointId> = None;
        loop {
            let page = self.store.endpoints_after(tenant, after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(None) };
            after = Some(last.id);
            let found = page.iter().find(|endpoint| endpoint.policy.as_deref() == Some(name));
            if let Some(Endpoint { id, at, .. }) = found.map(AsRef::as_ref) {
                return Ok(Some(self.public_id(Kind::Endpoint, id.0, *at)));
            }
        }
    }
}

fn is_no_preset(name: &str) -> Result<(), NotPut> {
    PRESETS.into_iter().find(|preset| *preset == name).map_or(Ok(()), |preset| Err(NotPut::Preset(preset)))
}
