//! API keys: who may call, for whom, and what for.
//!
//! A key is known by its hash. Invariant: what is in memory is what was filed last; a key that is revoked
//! admits nobody once the revocation is answered.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use posthaste_core::id::{Key, TenantId};
use posthaste_core::time::Timestamp;
use posthaste_crypto::api_key::{ApiKey, ApiKeyHash, ApiKeyHasher, Denied, KeptApiKey, KeyClass, Scope, Scopes};
use posthaste_crypto::digest::Digest;
use posthaste_crypto::hex;
use posthaste_crypto::public_id::Kind;
use posthaste_store::{Act, By, Document, DocumentKind, ListOrder, OPERATOR, Store, StoreError};
use serde::{Deserialize, Serialize};

use crate::accept::Once;
use crate::clock::Clock;
use crate::engine::{Engine, NotDone};
use crate::tenants::{Made, NotFiled};

/// A key as lists show it: never the key itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownKey {
    /// Its id.
    pub id: Key,
    /// Whose; nobody's is an operator's.
    pub tenant: Option<TenantId>,
    /// When it was made.
    pub at: Timestamp,
    /// What it begins with, by which people tell their keys apart.
    pub public_prefix: String,
    /// What it may do.
    pub scopes: Scopes,
    /// When it ends.
    pub expires: Option<Timestamp>,
    /// What its owner says it is for.
    pub description: Option<String>,
}

/// A key to make.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// Whose; nobody's is an operator's.
    pub tenant: Option<TenantId>,
    /// What it may do; everything that a key of its class may where nothing is said.
    pub scopes: Option<Scopes>,
    /// When it ends.
    pub expires: Option<Timestamp>,
    /// What it is for.
    pub description: Option<String>,
}

/// The most that a new key may have: nobody gives more than they have themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// What it may do at most, and does where nothing is said.
    pub scopes: Scopes,
    /// When it ends at the latest, and does where nothing is said.
    pub expires: Option<Timestamp>,
}

impl Grant {
    /// Everything that a key of this class may do, for ever.
    pub fn all(class: KeyClass) -> Self {
        Self { scopes: class.scopes(), expires: None }
    }
}

/// A key that was made: the only time that it is seen.
#[derive(Debug)]
pub struct MadeKey {
    /// What is kept of it.
    pub known: KnownKey,
    /// The id the world knows it by.
    pub public_id: String,
    /// The key.
    pub key: ApiKey,
}

/// Why a caller is not let in.
#[derive(Debug, thiserror::Error)]
pub enum NotAdmitted {
    /// The key is none of ours, or its time is over.
    #[error("{0}")]
    Denied(#[from] Denied),
    /// The store could not be asked.
    #[error("the store could not be read")]
    Store(#[from] StoreError),
}

/// What of a key is filed beside its name, which is its hash.
#[derive(Serialize, Deserialize)]
struct Body {
    is_operators: bool,
    prefix: String,
    scopes: u8,
    expires_ms: Option<i64>,
    description: Option<String>,
}

/// Keys kept in memory; when there are more, all are read again as they are needed.
const KEPT_MAX: usize = 16_384;

/// What checks keys, and those in use.
#[derive(Debug)]
pub struct Access {
    hasher: ApiKeyHasher,
    kept: RwLock<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    by_hash: HashMap<Digest, Arc<KnownKey>>,
    /// How often keys were forgotten: what was read before may be out of date.
    changes: u64,
}

impl Access {
    /// Checks keys by their hashes.
    pub fn new(hasher: ApiKeyHasher) -> Self {
        Self { hasher, kept: RwLock::default() }
    }

    fn known(&self, hash: &ApiKeyHash) -> (Option<Arc<KnownKey>>, u64) {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        (kept.by_hash.get(&hash.to_bytes()).cloned(), kept.changes)
    }

    fn keep(&self, changes: u64, hash: &ApiKeyHash, known: &Arc<KnownKey>) {
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if kept.changes == changes {
            if kept.by_hash.len() >= KEPT_MAX {
                kept.by_hash.clear();
            }
            kept.by_hash.insert(hash.to_bytes(), Arc::clone(known));
        }
    }

    /// Forgets all keys: some are no more.
    pub(crate) fn forget(&self) {
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        kept.changes += 1;
        kept.by_hash.clear();
    }
}

impl KnownKey {
    /// Whether it may do this.
    pub fn allows(&self, scope: Scope) -> Result<(), Denied> {
        if self.may().contains(scope) { Ok(()) } else { Err(Denied::ScopeMissing(scope)) }
    }

    fn may(&self) -> Scopes {
        let class = if self.tenant.is_some() { KeyClass::Tenant } else { KeyClass::Operator };
        self.scopes.within(class.scopes())
    }

    /// What it may give to a key of this class that it makes: what it may do itself, and for as long.
    pub fn grant(&self, class: KeyClass) -> Grant {
        Grant { scopes: self.may().within(class.scopes()), expires: self.expires }
    }

    fn of(document: &Document) -> Result<Self, StoreError> {
        let damaged = |found: String| StoreError::Damaged { what: "an API key", found };
        let body: Body = serde_json::from_slice(&document.body).map_err(|error| damaged(error.to_string()))?;
        let scopes = Scopes::from_bits(body.scopes).ok_or_else(|| damaged(format!("scopes {}", body.scopes)))?;
        Ok(Self {
            id: document.id,
            tenant: (!body.is_operators).then_some(document.tenant),
            at: document.at,
            public_prefix: body.prefix,
            scopes,
            expires: body.expires_ms.map(Timestamp::from_millis),
            description: body.description,
        })
    }

    fn document(&self, kept: &KeptApiKey) -> Document {
        let body = Body {
            is_operators: self.tenant.is_none(),
            prefix: self.public_prefix.clone(),
            scopes: self.scopes.bits(),
            expires_ms: kept.expires_ms,
            description: self.description.clone(),
        };
        let body = serde_json::to_vec(&body).expect("numbers and texts always serialise");
        Document {
            kind: DocumentKind::ApiKey,
            id: self.id,
            tenant: self.tenant.unwrap_or(OPERATOR),
            name: Some(hex::write(&kept.hash.to_bytes())),
            at: self.at,
            body: Bytes::from(body),
        }
    }
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// Who presents this key, if it is one of ours and its time is not over.
    pub async fn admit(&self, presented: &str) -> Result<Arc<KnownKey>, NotAdmitted> {
        let key = ApiKey::parse(presented).map_err(|_| Denied::Wrong)?;
        let hash = self.access.hasher.hash(&key);
        let known = match self.access.known(&hash) {
            (Some(known), _) => known,
            (None, changes) => {
                let found =
                    self.store.document_named(DocumentKind::ApiKey, OPERATOR, hex::write(&hash.to_bytes())).await?;
                let known = Arc::new(KnownKey::of(&found.ok_or(Denied::Wrong)?)?);
                self.access.keep(changes, &hash, &known);
                known
            }
        };
        if known.expires.is_some_and(|expires| self.clock.now() >= expires) {
            return Err(Denied::Expired.into());
        }
        Ok(known)
    }

    /// Makes a key.
    pub async fn make_key(
        &self,
        new: NewKey,
        once: Option<Once<MadeKey>>,
        by: Option<By>,
    ) -> Result<Made<MadeKey>, NotFiled> {
        let class = if new.tenant.is_some() { KeyClass::Tenant } else { KeyClass::Operator };
        self.file_key(ApiKey::generate(class), new, once, by).await
    }

    /// Makes a key known that was made elsewhere.
    pub(crate) async fn file_key(
        &self,
        key: ApiKey,
        new: NewKey,
        once: Option<Once<MadeKey>>,
        by: Option<By>,
    ) -> Result<Made<MadeKey>, NotFiled> {
        let scopes = new.scopes.unwrap_or_else(|| key.class().scopes());
        let expires_ms = new.expires.map(Timestamp::as_millis);
        let kept = self.access.hasher.keep(&key, scopes, expires_ms)?;
        let (id, at) = (self.mint(1), self.clock.now());
        let known = KnownKey {
            id,
            tenant: new.tenant,
            at,
            public_prefix: kept.public_prefix.clone(),
            scopes,
            expires: new.expires,
            description: new.description,
        };
        let document = known.document(&kept);
        let made = MadeKey { known, public_id: self.public_id(Kind::Key, id, at), key };
        let once = once.map(|once| self.known_by(new.tenant.unwrap_or(OPERATOR), once, &made, at));
        self.filed(document, once, Act { at, by }, made).await
    }

    /// Keys by id, from behind one: a tenant's, or the operators'.
    pub async fn keys(
        &self,
        tenant: Option<TenantId>,
        order: ListOrder,
        after: Option<Key>,
        limit: u32,
    ) -> Result<Vec<KnownKey>, StoreError> {
        let whose = Some(tenant.unwrap_or(OPERATOR));
        let page = self.store.documents(DocumentKind::ApiKey, whose, order, after, limit).await?;
        page.iter().map(KnownKey::of).collect()
    }

    /// Revokes a key of a tenant, or of the operators: it admits nobody once this returns. `false` when there
    /// is none.
    pub async fn revoke_key(
        self: &Arc<Self>,
        tenant: Option<TenantId>,
        id: Key,
        by: Option<By>,
    ) -> Result<bool, NotDone> {
        self.act(|engine| async move { Ok(engine.revoked(tenant, id, by).await?) }).await?
    }

    async fn revoked(&self, tenant: Option<TenantId>, id: Key, by: Option<By>) -> Result<bool, StoreError> {
        let known = self.store.document(DocumentKind::ApiKey, id).await?;
        if known.is_none_or(|known| known.tenant != tenant.unwrap_or(OPERATOR)) {
            return Ok(false);
        }
        let removed = self.store.unfile(self.session, DocumentKind::ApiKey, id, self.done_by(by)).await?;
        self.access.forget();
        Ok(removed)
    }
}
