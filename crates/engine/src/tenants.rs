//! Tenants: whose messages they are, and on which terms an operator has them.
//!
//! Invariant: what is in memory is what was filed last. There is one process that files, and what it
//! changes it forgets.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::flow::bucket::{Bucket, Rate};
use posthaste_core::id::TenantId;
use posthaste_core::queue::TenantSettings;
use posthaste_core::time::Timestamp;
use posthaste_crypto::api_key::ScopeNotAllowed;
use posthaste_crypto::public_id::Kind;
use posthaste_store::{
    Act, By, Document, DocumentKind, Filed, FirstAnswer, Idempotency, ListOrder, OPERATOR, OwnRetention, Store,
    StoreError,
};
use serde::{Deserialize, Serialize};

use crate::accept::Once;
use crate::clock::Clock;
use crate::dispatch::Command;
use crate::dispatch::driver::{Ended, Handle};
use crate::engine::Engine;

/// The tenant that a server without keys falls back to.
pub const DEFAULT_TENANT: &str = "default";

/// A tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// Its id.
    pub id: TenantId,
    /// When it was made.
    pub at: Timestamp,
    /// What its operator calls it by.
    pub uid: Option<String>,
    /// What was agreed with it.
    pub terms: Terms,
}

/// What was agreed with a tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// Its share of the slots beside others': 2 gets twice the time of 1.
    pub weight: f64,
    /// How fast its messages are taken in; as fast as they come where nothing is said.
    pub quota: Option<Quota>,
    /// While so many of its deliveries are pending, no message is taken in.
    pub pending_max: Option<u64>,
    /// The policy of endpoints that name none.
    pub policy: Option<String>,
    /// Whose clock its off-peak window goes by, where an endpoint does not say; UTC where nobody does.
    pub time_zone: Option<String>,
    /// When engagement messages may leave; at any time where nothing is said.
    pub off_peak: Option<Hours>,
    /// Where its data is at home.
    pub region: Option<String>,
    /// How long its messages are kept with their payload; as long as everybody's where nothing is said.
    pub payload_kept: Option<Duration>,
    /// How long what became of its deliveries is kept; the same.
    pub history_kept: Option<Duration>,
}

impl Terms {
    /// How long its things are kept, as the store takes it.
    pub(crate) fn retention(&self) -> OwnRetention {
        OwnRetention { payload: self.payload_kept, history: self.history_kept }
    }
}

/// A part of every day, in minutes of the local clock. It spans midnight when it ends at an earlier minute than it
/// begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hours {
    /// From this minute on.
    pub from: u16,
    /// Until this one.
    pub to: u16,
}

impl Default for Terms {
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

/// How fast messages are taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// On average.
    pub per_second: u32,
    /// At once, after a rest.
    pub burst: u32,
}

/// What a tenant may still send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Of this quota.
    pub quota: Quota,
    /// So many at once.
    pub left: u64,
    /// In so long all of it, if nothing is sent.
    pub whole_in: Duration,
}

/// The least and the most a tenant may weigh: the queue counts in thousandths.
pub const WEIGHTS: std::ops::RangeInclusive<f64> = 0.001..=1_000.0;

impl Tenant {
    /// A tenant as it was filed.
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

    /// What the dispatch loop needs of it.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it lies between two small numbers")]
    fn settings(&self) -> TenantSettings {
        let weight = self.terms.weight.clamp(*WEIGHTS.start(), *WEIGHTS.end());
        TenantSettings { weight_milli: (weight * 1_000.0) as u32, ..TenantSettings::new(self.id) }
    }
}

fn damaged(error: &serde_json::Error) -> StoreError {
    StoreError::Damaged { what: "a tenant", found: error.to_string() }
}

/// Why a tenant was not made or changed.
#[derive(Debug, thiserror::Error)]
pub enum NotFiled {
    /// Another one is called so.
    #[error("another one has this uid; choose another, or change that one")]
    NameTaken,
    /// It has changed since it was read, or is no more.
    #[error("it was changed by somebody else at the same time; look at it, and ask again")]
    Stale,
    /// Its key stands for another request.
    #[error("this key was used for another request within the last 24 hours; use a new one")]
    KeyReused,
    /// A key of its class cannot do this.
    #[error(transparent)]
    Scope(#[from] ScopeNotAllowed),
    /// The loop is going down.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// The store could not take it.
    #[error("it could not be made durable")]
    Store(#[from] StoreError),
}

/// Whether something was made just now, or under the same key before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made<T> {
    /// Just now.
    Now(T),
    /// Before: this was the answer.
    Before(FirstAnswer),
}

/// Tenants kept in memory; when there are more, all are read again as they are needed.
const KEPT_MAX: usize = 16_384;

/// The tenants in use, and how much of its quota each has left.
#[derive(Debug, Default)]
pub struct Tenants {
    kept: Mutex<Kept>,
    /// One is changed, or erased, at a time: what is filed is made of what is there.
    pub(crate) changing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Kept {
    by_id: HashMap<TenantId, Arc<Tenant>>,
    by_uid: HashMap<String, TenantId>,
    buckets: HashMap<TenantId, Bucket>,
    /// How often something was forgotten: what was read before may be out of date.
    changes: u64,
}

impl Tenants {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a message from a tenant's quota, if it has one, and says what is left; else when there will be room for
    /// the next.
    pub fn take(&self, tenant: &Tenant, now: Timestamp) -> Result<Option<Allowance>, Timestamp> {
        let Some(quota) = tenant.terms.quota else { return Ok(None) };
        let rate = Rate::per_second(quota.per_second).with_burst(quota.burst);
        let mut kept = self.lock();
        let bucket = kept.buckets.entry(tenant.id).or_insert_with(|| Bucket::full(&rate, now));
        bucket.take(&rate, now)?;
        Ok(Some(Allowance { quota, left: bucket.tokens(&rate, now), whole_in: bucket.full_in(&rate, now) }))
    }

    /// Forgets what a tenant was: it has changed, or is no more.
    pub(crate) fn forget(&self, id: TenantId) {
        let mut kept = self.lock();
        kept.changes += 1;
        kept.buckets.remove(&id);
        if let Some(uid) = kept.by_id.remove(&id).and_then(|known| known.uid.clone()) {
            kept.by_uid.remove(&uid);
        }
    }

    fn keep(&self, changes: u64, tenant: &Arc<Tenant>) {
        let mut kept = self.lock();
        if kept.changes != changes {
            return;
        }
        if kept.by_id.len() >= KEPT_MAX {
            kept.by_id.clear();
            kept.by_uid.clear();
        }
        kept.by_uid.extend(tenant.uid.clone().map(|uid| (uid, tenant.id)));
        kept.by_id.insert(tenant.id, Arc::clone(tenant));
    }
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// A tenant.
    pub async fn tenant(&self, id: TenantId) -> Result<Option<Arc<Tenant>>, StoreError> {
        let changes = {
            let kept = self.tenants.lock();
            if let Some(known) = kept.by_id.get(&id) {
                return Ok(Some(Arc::clone(known)));
            }
            kept.changes
        };
        let Some(document) = self.store.document(DocumentKind::Tenant, id.0).await? else { return Ok(None) };
        let tenant = Arc::new(Tenant::of(document)?);
        self.tenants.keep(changes, &tenant);
        Ok(Some(tenant))
    }

    /// The id the world knows a tenant by, while there is such a tenant.
    pub async fn tenant_public_id(&self, id: TenantId) -> Result<Option<String>, StoreError> {
        Ok(self.tenant(id).await?.map(|tenant| self.public_id(Kind::Tenant, tenant.id.0, tenant.at)))
    }

    /// The tenant that its operator calls so.
    pub async fn tenant_named(&self, uid: &str) -> Result<Option<Arc<Tenant>>, StoreError> {
        let known = self.tenants.lock().by_uid.get(uid).copied();
        if let Some(id) = known {
            return self.tenant(id).await;
        }
        let found = self.store.document_named(DocumentKind::Tenant, OPERATOR, uid.to_owned()).await?;
        match found {
            Some(document) => self.tenant(document.tenant).await,
            None => Ok(None),
        }
    }

    /// Tenants by id, from behind one.
    pub async fn tenants(
        &self,
        order: ListOrder,
        after: Option<TenantId>,
        limit: u32,
    ) -> Result<Vec<Tenant>, StoreError> {
        let page = self.store.documents(DocumentKind::Tenant, None, order, after.map(|id| id.0), limit).await?;
        page.into_iter().map(Tenant::of).collect()
    }

    /// Makes a tenant.
    pub async fn make_tenant(
        self: &Arc<Self>,
        uid: Option<String>,
        terms: Terms,
        once: Option<Once<MadeTenant>>,
        by: Option<By>,
    ) -> Result<Made<MadeTenant>, NotFiled> {
        let (id, at) = (TenantId(self.mint(1)), self.clock.now());
        let tenant = Tenant { id, at, uid, terms };
        let made = MadeTenant { public_id: self.public_id(Kind::Tenant, id.0, at), tenant };
        let once = once.map(|once| self.known_by(OPERATOR, once, &made, at));
        self.act(|engine| async move { engine.tenant_made(made, once, Act { at, by }).await }).await?
    }

    async fn tenant_made(
        &self,
        made: MadeTenant,
        once: Option<Idempotency>,
        act: Act,
    ) -> Result<Made<MadeTenant>, NotFiled> {
        let made = self.filed(made.tenant.document(), once, act, made).await?;
        if let Made::Now(made) = &made {
            if made.tenant.terms.retention() != OwnRetention::default() {
                self.agreements.changed();
            }
            self.tell_of_tenant(&made.tenant).await?;
        }
        Ok(made)
    }

    /// Changes what was agreed with a tenant, or what it is called, from what somebody read: of two at the same time
    /// one is told that it came late.
    pub async fn change_tenant(
        self: &Arc<Self>,
        before: &Tenant,
        wished: &Tenant,
        by: Option<By>,
    ) -> Result<(), NotFiled> {
        let (before, wished) = (before.clone(), wished.clone());
        self.act(|engine| async move { engine.tenant_changed(&before, &wished, by).await }).await?
    }

    async fn tenant_changed(&self, before: &Tenant, tenant: &Tenant, by: Option<By>) -> Result<(), NotFiled> {
        {
            let _alone = self.tenants.changing.lock().await;
            let is = self.store.document(DocumentKind::Tenant, tenant.id.0).await?.map(Tenant::of).transpose()?;
            if is.as_ref() != Some(before) {
                return Err(NotFiled::Stale);
            }
            self.filed(tenant.document(), None, self.done_by(by), ()).await?;
        }
        if before.terms.retention() != tenant.terms.retention() {
            self.agreements.changed();
        }
        self.tenants.forget(tenant.id);
        self.pending.forget(tenant.id);
        self.rules_changed(tenant.id).await?;
        Ok(self.tell_of_tenant(tenant).await?)
    }

    /// The tenant that a server without keys falls back to; made when it is first needed.
    pub async fn default_tenant(self: &Arc<Self>) -> Result<Arc<Tenant>, NotFiled> {
        if let Some(known) = self.tenant_named(DEFAULT_TENANT).await? {
            return Ok(known);
        }
        match self.make_tenant(Some(DEFAULT_TENANT.to_owned()), Terms::default(), None, None).await {
            Ok(Made::Now(made)) => Ok(Arc::new(made.tenant)),
            // Somebody else has made it meanwhile.
            Ok(Made::Before(_)) | Err(NotFiled::NameTaken) => {
                self.tenant_named(DEFAULT_TENANT).await?.ok_or(NotFiled::NameTaken)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a tenant may send one more message now, and what it may send after it; else when.
    pub fn take_from_quota(&self, tenant: &Tenant) -> Result<Option<Allowance>, Timestamp> {
        self.tenants.take(tenant, self.clock.now())
    }

    async fn tell_of_tenant(&self, tenant: &Tenant) -> Result<(), Ended> {
        self.handle.ask(Command::Tenant(tenant.settings())).await.map(drop)
    }

    /// Files a document, and says what was made of it.
    pub(crate) async fn filed<T>(
        &self,
        document: Document,
        once: Option<Idempotency>,
        act: Act,
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

/// A tenant that was made.
#[derive(Clone, Debug, PartialEq)]
pub struct MadeTenant {
    /// The tenant.
    pub tenant: Tenant,
    /// The id the world knows it by.
    pub public_id: String,
}

/// Tenants read at a time when the loop is told of all of them.
const PAGE: u32 = 500;

/// Tells the loop on which terms each tenant is: those it does not know of are equals.
pub(crate) async fn tell_of_all<S: Store>(store: &S, handle: &Handle) -> Result<(), StoreError> {
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
