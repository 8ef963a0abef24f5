//! Tenants: the owners of messages and endpoints, and the settings that an operator gives each.
//!
//! Invariant: a tenant in memory is as it was stored last. One process stores tenants, and it evicts
//! from memory each one that it changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::flow::bucket::{Bucket, Rate};
use posthaste_core::scheduler::TenantSettings;
use posthaste_core::{TenantId, Timestamp};
use posthaste_crypto::api_key::ScopeNotAllowed;
use posthaste_crypto::public_id::IdKind;
use posthaste_store::{
    ApiKeyRef, AuditStamp, Document, DocumentKind, Filed, FirstAnswer, Idempotency, ListOrder, OPERATOR,
    RetentionOverride, Store, StoreError,
};
use serde::{Deserialize, Serialize};

use crate::{Clock, Command, DispatchHandle, Engine, EngineStopped, IdempotencyRequest};

/// The uid of the tenant that a server without keys uses by default.
pub const DEFAULT_TENANT: &str = "default";

#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    pub id: TenantId,
    pub at: Timestamp,
    pub uid: Option<String>,
    pub terms: TenantTerms,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TenantTerms {
    /// Its share of the slots: a tenant of weight 2 gets twice the slot-time of one of weight 1.
    pub weight: f64,
    /// The rate at which its messages are accepted; `None` for no limit.
    pub quota: Option<Quota>,
    /// At this many pending deliveries its messages are refused; `None` for no limit.
    pub pending_max: Option<u64>,
    pub policy: Option<String>,
    /// The time zone of its off-peak window, for endpoints without one of their own; `None` for UTC.
    pub time_zone: Option<String>,
    /// When engagement messages may be sent; `None` for any time.
    pub off_peak: Option<Hours>,
    /// The region of its data: kept and shown, and without effect.
    pub region: Option<String>,
    /// How long its messages are kept with their payload; `None` for the server's default.
    pub payload_kept: Option<Duration>,
    /// How long the outcomes of its deliveries are kept; `None` for the server's default.
    pub history_kept: Option<Duration>,
}

impl TenantTerms {
    pub(crate) fn retention(&self) -> RetentionOverride {
        RetentionOverride { payload: self.payload_kept, history: self.history_kept }
    }
}

/// A part of every day, in minutes of the local clock. It spans midnight when it ends at an earlier minute than it
/// begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hours {
    pub from: u16,
    /// The minute at which it ends, which is not part of it.
    pub to: u16,
}

impl Default for TenantTerms {
    fn default() -> Self {
        Self {
            weight: 1.0,
            quota: None,
            pending_max: None,
            policy: None,
            time_zone: None,
            off_peak: None,
            region: None,
            payload_kept: None,
            history_kept: None,
        }
    }
}

/// A rate limit for accepting messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    pub per_second: u32,
    /// Messages at once, after a pause.
    pub burst: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    pub quota: Quota,
    /// How many messages it may send now.
    pub left: u64,
    /// How long until the whole burst is available again, if nothing is sent.
    pub whole_in: Duration,
}

/// The least and the greatest weight of a tenant: the scheduler counts in thousandths.
pub const WEIGHTS: std::ops::RangeInclusive<f64> = 0.001..=1_000.0;

impl Tenant {
    pub(crate) fn of(document: Document) -> Result<Self, StoreError> {
        let terms = serde_json::from_slice(&document.body).map_err(|error| damaged(&error))?;
        Ok(Self { id: document.tenant, at: document.at, uid: document.name, terms })
    }

    pub(crate) fn document(&self) -> Document {
        let body = serde_json::to_vec(&self.terms).expect("numbers and texts always serialise");
        Document {
            kind: DocumentKind::Tenant,
            id: self.id.0,
            tenant: self.id,
            name: self.uid.clone(),
            at: self.at,
            body: Bytes::from(body),
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it lies between two small numbers")]
    fn settings(&self) -> TenantSettings {
        let weight = self.terms.weight.clamp(*WEIGHTS.start(), *WEIGHTS.end());
        TenantSettings { weight_milli: (weight * 1_000.0) as u32, ..TenantSettings::new(self.id) }
    }
}

fn damaged(error: &serde_json::Error) -> StoreError {
    StoreError::Damaged { what: "a tenant", found: error.to_string() }
}

/// Why a tenant or an API key was not made or changed.
#[derive(Debug, thiserror::Error)]
pub enum NotFiled {
    #[error("another one has this uid; choose another uid, or change the one that has it")]
    NameTaken,
    /// It was changed or deleted since it was read.
    #[error("another request changed it at the same time; read it again, and repeat your change")]
    Stale,
    #[error("this key was used for another request within the last 24 hours; use a new one")]
    KeyReused,
    #[error(transparent)]
    Scope(#[from] ScopeNotAllowed),
    #[error(transparent)]
    Ended(#[from] EngineStopped),
    #[error("it could not be made durable")]
    Store(#[from] StoreError),
}

/// The result of making something with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made<T> {
    Now(T),
    /// It was made by an earlier request with the same key, which got this answer.
    Before(FirstAnswer),
}

/// Tenants cached in memory. When one more comes, the cache is cleared.
const KEPT_MAX: usize = 16_384;

/// A cache of the tenants in use, and what each has left of its quota.
#[derive(Debug, Default)]
pub struct Tenants {
    cache: Mutex<TenantCache>,
    /// Held while a tenant is changed or erased: a change is checked against the stored tenant before it is written.
    pub(crate) changing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct TenantCache {
    by_id: HashMap<TenantId, Arc<Tenant>>,
    by_uid: HashMap<String, TenantId>,
    buckets: HashMap<TenantId, Bucket>,
    /// How often a tenant was evicted: one that was read before the last time is not cached.
    changes: u64,
}

impl Tenants {
    fn lock(&self) -> MutexGuard<'_, TenantCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Evicts a tenant from the cache, because it has changed or was erased.
    pub(crate) fn forget(&self, id: TenantId) {
        let mut cache = self.lock();
        cache.changes += 1;
        cache.buckets.remove(&id);
        if let Some(uid) = cache.by_id.remove(&id).and_then(|known| known.uid.clone()) {
            cache.by_uid.remove(&uid);
        }
    }

    fn keep(&self, changes: u64, tenant: &Arc<Tenant>) {
        let mut cache = self.lock();
        if cache.changes != changes {
            return;
        }
        if cache.by_id.len() >= KEPT_MAX {
            cache.by_id.clear();
            cache.by_uid.clear();
        }
        cache.by_uid.extend(tenant.uid.clone().map(|uid| (uid, tenant.id)));
        cache.by_id.insert(tenant.id, Arc::clone(tenant));
    }
}

impl<S: Store, C: Clock> Engine<S, C> {
    pub async fn tenant(&self, id: TenantId) -> Result<Option<Arc<Tenant>>, StoreError> {
        let changes = {
            let cache = self.tenants.lock();
            if let Some(known) = cache.by_id.get(&id) {
                return Ok(Some(Arc::clone(known)));
            }
            cache.changes
        };
        let Some(document) = self.store.document(DocumentKind::Tenant, id.0).await? else { return Ok(None) };
        let tenant = Arc::new(Tenant::of(document)?);
        self.tenants.keep(changes, &tenant);
        Ok(Some(tenant))
    }

    pub async fn tenant_public_id(&self, id: TenantId) -> Result<Option<String>, StoreError> {
        Ok(self.tenant(id).await?.map(|tenant| self.public_id(IdKind::Tenant, tenant.id.0, tenant.at)))
    }

    pub async fn tenant_named(&self, uid: &str) -> Result<Option<Arc<Tenant>>, StoreError> {
        let known = self.tenants.lock().by_uid.get(uid).copied();
        if let Some(id) = known {
            return self.tenant(id).await;
        }
        let found = self.store.document_named(DocumentKind::Tenant, OPERATOR, uid.to_owned()).await?;
        let Some(document) = found else { return Ok(None) };
        self.tenant(document.tenant).await
    }

    pub async fn tenants(
        &self,
        order: ListOrder,
        after: Option<TenantId>,
        limit: u32,
    ) -> Result<Vec<Tenant>, StoreError> {
        let page = self.store.documents(DocumentKind::Tenant, None, order, after.map(|id| id.0), limit).await?;
        page.into_iter().map(Tenant::of).collect()
    }

    pub async fn make_tenant(
        self: &Arc<Self>,
        uid: Option<String>,
        terms: TenantTerms,
        once: Option<IdempotencyRequest<MadeTenant>>,
        by: Option<ApiKeyRef>,
    ) -> Result<Made<MadeTenant>, NotFiled> {
        let (id, at) = (TenantId(self.mint(1)), self.clock.now());
        let tenant = Tenant { id, at, uid, terms };
        let made = MadeTenant { public_id: self.public_id(IdKind::Tenant, id.0, at), tenant };
        let once = once.map(|once| self.known_by(OPERATOR, once, &made, at));
        self.run_detached(|engine| async move { engine.tenant_made(made, once, AuditStamp { at, by }).await }).await?
    }

    async fn tenant_made(
        &self,
        made: MadeTenant,
        once: Option<Idempotency>,
        act: AuditStamp,
    ) -> Result<Made<MadeTenant>, NotFiled> {
        let made = self.filed(made.tenant.document(), once, act, made).await?;
        if let Made::Now(made) = &made {
            if made.tenant.terms.retention() != RetentionOverride::default() {
                self.override_sync.changed();
            }
            self.apply_to_loop(&made.tenant).await?;
        }
        Ok(made)
    }

    /// Changes a tenant's settings or uid. `before` is the tenant as the caller read it: of two concurrent changes one
    /// is refused as [`NotFiled::Stale`].
    pub async fn change_tenant(
        self: &Arc<Self>,
        before: &Tenant,
        after: &Tenant,
        by: Option<ApiKeyRef>,
    ) -> Result<(), NotFiled> {
        let (before, after) = (before.clone(), after.clone());
        self.run_detached(|engine| async move { engine.tenant_changed(&before, &after, by).await }).await?
    }

    async fn tenant_changed(&self, before: &Tenant, tenant: &Tenant, by: Option<ApiKeyRef>) -> Result<(), NotFiled> {
        {
            let _alone = self.tenants.changing.lock().await;
            let stored = self.store.document(DocumentKind::Tenant, tenant.id.0).await?.map(Tenant::of).transpose()?;
            if stored.as_ref() != Some(before) {
                return Err(NotFiled::Stale);
            }
            self.filed(tenant.document(), None, self.done_by(by), ()).await?;
        }
        if before.terms.retention() != tenant.terms.retention() {
            self.override_sync.changed();
        }
        self.tenants.forget(tenant.id);
        self.pending.forget(tenant.id);
        self.rules_changed(tenant.id).await?;
        Ok(self.apply_to_loop(tenant).await?)
    }

    /// The tenant of requests without one of their own on a server without keys; made when it is first needed.
    pub async fn default_tenant(self: &Arc<Self>) -> Result<Arc<Tenant>, NotFiled> {
        if let Some(known) = self.tenant_named(DEFAULT_TENANT).await? {
            return Ok(known);
        }
        match self.make_tenant(Some(DEFAULT_TENANT.to_owned()), TenantTerms::default(), None, None).await {
            Ok(Made::Now(made)) => Ok(Arc::new(made.tenant)),
            // Another request has made it meanwhile.
            Ok(Made::Before(_)) | Err(NotFiled::NameTaken) => {
                self.tenant_named(DEFAULT_TENANT).await?.ok_or(NotFiled::NameTaken)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes a message from a tenant's quota and returns what is left, or `None` without a quota. When nothing is left,
    /// the error is the time of the next message.
    pub fn take_from_quota(&self, tenant: &Tenant) -> Result<Option<Allowance>, Timestamp> {
        let Some(quota) = tenant.terms.quota else { return Ok(None) };
        let (rate, now) = (Rate::per_second(quota.per_second).with_burst(quota.burst), self.clock.now());
        let mut cache = self.tenants.lock();
        let bucket = cache.buckets.entry(tenant.id).or_insert_with(|| Bucket::full(&rate, now));
        bucket.take(&rate, now)?;
        Ok(Some(Allowance { quota, left: bucket.tokens(&rate, now), whole_in: bucket.full_in(&rate, now) }))
    }

    async fn apply_to_loop(&self, tenant: &Tenant) -> Result<(), EngineStopped> {
        self.handle.ask(Command::Tenant(tenant.settings())).await.map(drop)
    }

    /// Stores a document, and returns `made` if it is new.
    pub(crate) async fn filed<T>(
        &self,
        document: Document,
        once: Option<Idempotency>,
        act: AuditStamp,
        made: T,
    ) -> Result<Made<T>, NotFiled> {
        match self.store.file(self.session, document, once, act).await? {
            Filed::Done => Ok(Made::Now(made)),
            Filed::NameTaken => Err(NotFiled::NameTaken),
            Filed::KeyReused => Err(NotFiled::KeyReused),
            Filed::Replayed(answer) => Ok(Made::Before(answer)),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct MadeTenant {
    pub tenant: Tenant,
    pub public_id: String,
}

/// Tenants read at a time when their settings are passed to the loop.
const PAGE: u32 = 500;

/// Passes every tenant's settings to the loop, which uses the defaults for tenants that it does not know.
pub(crate) async fn tell_of_all<S: Store>(store: &S, handle: &DispatchHandle) -> Result<(), StoreError> {
    let mut after = None;
    loop {
        let page = store.documents(DocumentKind::Tenant, None, ListOrder::OldestFirst, after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(last.id);
        for document in page {
            let settings = Tenant::of(document)?.settings();
            if settings != TenantSettings::new(settings.tenant) && handle.ask(Command::Tenant(settings)).await.is_err()
            {
                return Ok(());
            }
        }
    }
}
