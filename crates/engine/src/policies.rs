//! Policies by name: a tenant's own, and the operator's, which every tenant may use. The names of presets are
//! reserved.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::policy::{BadPolicy, PRESETS, PolicySpec};
use posthaste_core::{EndpointId, Key, Policy, TenantId, Timestamp};
use posthaste_crypto::public_id::IdKind;
use posthaste_store::{ApiKeyRef, Document, DocumentKind, Endpoint, Filed, ListOrder, OPERATOR, Store, StoreError};

use crate::{Clock, Command, Engine, EngineStopped, Rules};

mod written;

/// The most policies of one tenant, or of the operator. All of them are in memory with the tenant's rules.
pub const POLICIES_MAX: u32 = 100;

/// Endpoints or tenants in one page of the search for users of a policy.
const PAGE: u32 = 500;

/// How often a change is tried again that met a concurrent one.
const TRIES: u32 = 5;

#[derive(Clone, Debug, PartialEq)]
pub struct StoredPolicy {
    pub id: Key,
    /// The tenant that owns it; [`OPERATOR`] for one that every tenant may use.
    pub tenant: TenantId,
    pub name: String,
    pub at: Timestamp,
    /// Its values, as they were given.
    pub spec: PolicySpec,
}

impl StoredPolicy {
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

#[derive(Debug, thiserror::Error)]
pub enum NotPut {
    #[error("{0} is a preset and cannot be changed; put your policy under a name of your own")]
    Preset(&'static str),
    /// Its values are invalid: every complaint.
    #[error("the policy is invalid")]
    Bad(Vec<BadPolicy>),
    #[error("there are {POLICIES_MAX} policies already, which is the most; delete one that is not used")]
    TooMany,
    /// A tenant or an endpoint uses it: the text names it.
    #[error("{0}; give it another policy first")]
    InUse(String),
    /// Another request changed or deleted it at the same time, on every try.
    #[error("another request changed the policy at the same time; read it again, and repeat your change")]
    Stale,
    #[error(transparent)]
    Ended(#[from] EngineStopped),
    #[error("the policy could not be made durable")]
    Store(#[from] StoreError),
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// The rules for all endpoints of a tenant; for [`OPERATOR`], those that the operator made for all tenants.
    pub async fn rules(&self, tenant: TenantId) -> Result<Arc<Rules>, StoreError> {
        self.endpoint_cache.rules.of(tenant).await
    }

    /// A tenant's own policies, or the operator's, by name.
    pub async fn policies(&self, owner: TenantId) -> Result<Vec<StoredPolicy>, StoreError> {
        let order = ListOrder::OldestFirst;
        let found = self.store.documents(DocumentKind::Policy, Some(owner), order, None, POLICIES_MAX).await?;
        let mut policies: Vec<StoredPolicy> = found.into_iter().map(StoredPolicy::of).collect::<Result<_, _>>()?;
        policies.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(policies)
    }

    /// The policy of this name among a tenant's own, or the operator's.
    pub async fn policy(&self, owner: TenantId, name: &str) -> Result<Option<StoredPolicy>, StoreError> {
        let found = self.store.document_named(DocumentKind::Policy, owner, name.to_owned()).await?;
        found.map(StoredPolicy::of).transpose()
    }

    /// Makes or replaces a policy. Pending deliveries use it from their next attempt on.
    pub async fn put_policy(
        self: &Arc<Self>,
        owner: TenantId,
        name: &str,
        spec: PolicySpec,
        by: Option<ApiKeyRef>,
    ) -> Result<StoredPolicy, NotPut> {
        refuse_preset(name)?;
        Policy::build(&spec).map_err(NotPut::Bad)?;
        for _ in 0..TRIES {
            let (id, at) = match self.policy(owner, name).await? {
                Some(before) => (before.id, before.at),
                None if self.policies(owner).await?.len() >= POLICIES_MAX as usize => return Err(NotPut::TooMany),
                None => (self.mint(1), self.clock.now()),
            };
            let policy = StoredPolicy { id, tenant: owner, name: name.to_owned(), at, spec: spec.clone() };
            let document = policy.document();
            match self.run_detached(|engine| async move { engine.policy_filed(document, by).await }).await?? {
                Filed::Done => return Ok(policy),
                // Another request has made it meanwhile.
                Filed::NameTaken | Filed::Replayed(_) | Filed::KeyReused => {}
            }
        }
        Err(NotPut::Stale)
    }

    async fn policy_filed(&self, document: Document, by: Option<ApiKeyRef>) -> Result<Filed, NotPut> {
        let owner = document.tenant;
        let filed = self.store.file(self.session, document, None, self.done_by(by)).await?;
        if filed == Filed::Done {
            self.rules_changed(owner).await?;
        }
        Ok(filed)
    }

    /// Deletes a policy that is not used; `false` when there is none. A tenant's policy may have the same name as one
    /// of the operator's: then it is deleted even if it is used, and its users get the operator's.
    pub async fn delete_policy(
        self: &Arc<Self>,
        owner: TenantId,
        name: &str,
        by: Option<ApiKeyRef>,
    ) -> Result<bool, NotPut> {
        refuse_preset(name)?;
        let Some(policy) = self.policy(owner, name).await? else { return Ok(false) };
        let hides_another = owner != OPERATOR && self.policy(OPERATOR, name).await?.is_some();
        if !hides_another && let Some(user) = self.user_of(&policy).await? {
            return Err(NotPut::InUse(user));
        }
        self.run_detached(|engine| async move { engine.policy_unfiled(owner, policy.id, by).await }).await?
    }

    async fn policy_unfiled(&self, owner: TenantId, id: Key, by: Option<ApiKeyRef>) -> Result<bool, NotPut> {
        let removed = self.store.unfile(self.session, DocumentKind::Policy, id, self.done_by(by)).await?;
        self.rules_changed(owner).await?;
        Ok(removed)
    }

    /// The rules of a tenant have changed, or for [`OPERATOR`] those of all tenants: evicts them from memory, and makes
    /// the loop read its lanes again.
    pub(crate) async fn rules_changed(&self, owner: TenantId) -> Result<(), EngineStopped> {
        let number = self.endpoint_cache.rules.forget(owner);
        let tenant = Some(owner).filter(|owner| *owner != OPERATOR);
        self.handle.ask(Command::Rules(tenant, number)).await.map(drop)
    }

    /// A tenant or an endpoint that uses a policy, as text for an error message.
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

    /// A tenant or an endpoint that uses a policy of the operator's, as text.
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
                let user = tenant.uid.unwrap_or_else(|| self.public_id(IdKind::Tenant, tenant.id.0, tenant.at));
                if tenant.terms.policy.as_deref() == Some(&policy.name) {
                    return Ok(Some(format!("the tenant {user} uses it")));
                }
                if let Some(id) = self.endpoint_using(tenant.id, &policy.name).await? {
                    return Ok(Some(format!("the endpoint {id} of the tenant {user} uses it")));
                }
            }
        }
    }

    /// The public id of an endpoint of a tenant that names this policy.
    async fn endpoint_using(&self, tenant: TenantId, name: &str) -> Result<Option<String>, StoreError> {
        let mut after: Option<EndpointId> = None;
        loop {
            let page = self.store.endpoints_after(tenant, after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(None) };
            after = Some(last.id);
            let found = page.iter().find(|endpoint| endpoint.policy.as_deref() == Some(name));
            if let Some(Endpoint { id, at, .. }) = found.map(AsRef::as_ref) {
                return Ok(Some(self.public_id(IdKind::Endpoint, id.0, *at)));
            }
        }
    }
}

fn refuse_preset(name: &str) -> Result<(), NotPut> {
    PRESETS.into_iter().find(|preset| *preset == name).map_or(Ok(()), |preset| Err(NotPut::Preset(preset)))
}
