//! API keys: who may call, for which tenant, and with which scopes.
//!
//! A key is stored as its hash. Invariant: the keys in memory are those that were stored last; a revoked key
//! is refused once the revocation is answered.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use posthaste_core::{Key, TenantId, Timestamp};
use posthaste_crypto::api_key::{
    ApiKey, ApiKeyHash, ApiKeyHasher, ApiKeyScope, ApiKeyScopes, Denied, KeptApiKey, KeyClass,
};
use posthaste_crypto::digest::Digest;
use posthaste_crypto::hex;
use posthaste_crypto::public_id::IdKind;
use posthaste_store::{ApiKeyRef, AuditStamp, Document, DocumentKind, ListOrder, OPERATOR, Store, StoreError};
use serde::{Deserialize, Serialize};

use crate::{Clock, Engine, IdempotencyRequest, Made, NotDone, NotFiled};

/// An API key without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownKey {
    pub id: Key,
    /// The tenant that owns it; `None` for an operator's key.
    pub tenant: Option<TenantId>,
    pub at: Timestamp,
    /// Its first characters, so that people can tell their keys apart.
    pub public_prefix: String,
    pub scopes: ApiKeyScopes,
    pub expires: Option<Timestamp>,
    pub description: Option<String>,
}

#[derive(Clone, Debug)]
pub struct NewKey {
    /// The tenant that will own it; `None` for an operator's key.
    pub tenant: Option<TenantId>,
    /// What it may do; `None` for everything that a key of its class may do.
    pub scopes: Option<ApiKeyScopes>,
    pub expires: Option<Timestamp>,
    pub description: Option<String>,
}

/// The most that a new key may be given: no more than its maker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The most scopes, and the default.
    pub scopes: ApiKeyScopes,
    pub expires: Option<Timestamp>,
}

impl Grant {
    /// Everything that a key of this class may do, without an end.
    pub fn all(class: KeyClass) -> Self {
        Self { scopes: class.scopes(), expires: None }
    }
}

/// A new key with its secret, which is shown this once.
#[derive(Debug)]
pub struct MadeKey {
    pub known: KnownKey,
    pub public_id: String,
    pub key: ApiKey,
}

#[derive(Debug, thiserror::Error)]
pub enum NotAdmitted {
    #[error("{0}")]
    Denied(#[from] Denied),
    /// The store could not be read, so the key is neither valid nor invalid.
    #[error("the store could not be read")]
    Store(#[from] StoreError),
}

/// The body of a key's document; the document's name is the key's hash.
#[derive(Serialize, Deserialize)]
struct Body {
    is_operators: bool,
    prefix: String,
    scopes: u8,
    expires_ms: Option<i64>,
    description: Option<String>,
}

/// Keys cached in memory. When one more comes, the cache is cleared.
const KEPT_MAX: usize = 16_384;

/// Hashes presented keys, and caches those in use.
#[derive(Debug)]
pub struct Access {
    hasher: ApiKeyHasher,
    cache: RwLock<KeyCache>,
}

#[derive(Debug, Default)]
struct KeyCache {
    by_hash: HashMap<Digest, Arc<KnownKey>>,
    /// How often the cache was invalidated: a key that was read before the last time is not cached.
    changes: u64,
}

impl Access {
    pub fn new(hasher: ApiKeyHasher) -> Self {
        Self { hasher, cache: RwLock::default() }
    }

    fn known(&self, hash: &ApiKeyHash) -> (Option<Arc<KnownKey>>, u64) {
        let cache = self.cache.read().unwrap_or_else(PoisonError::into_inner);
        (cache.by_hash.get(&hash.to_bytes()).cloned(), cache.changes)
    }

    fn keep(&self, changes: u64, hash: &ApiKeyHash, known: &Arc<KnownKey>) {
        let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        if cache.changes == changes {
            if cache.by_hash.len() >= KEPT_MAX {
                cache.by_hash.clear();
            }
            cache.by_hash.insert(hash.to_bytes(), Arc::clone(known));
        }
    }

    /// Empties the cache, because some keys were deleted.
    pub(crate) fn forget(&self) {
        let mut cache = self.cache.write().unwrap_or_else(PoisonError::into_inner);
        cache.changes += 1;
        cache.by_hash.clear();
    }
}

impl KnownKey {
    pub fn allows(&self, scope: ApiKeyScope) -> Result<(), Denied> {
        if self.may().contains(scope) { Ok(()) } else { Err(Denied::ScopeMissing(scope)) }
    }

    fn may(&self) -> ApiKeyScopes {
        let class = if self.tenant.is_some() { KeyClass::Tenant } else { KeyClass::Operator };
        self.scopes.within(class.scopes())
    }

    /// What a key of this class that it makes may be given: at most its own scopes and its own end.
    pub fn grant(&self, class: KeyClass) -> Grant {
        Grant { scopes: self.may().within(class.scopes()), expires: self.expires }
    }

    fn of(document: &Document) -> Result<Self, StoreError> {
        let damaged = |found: String| StoreError::Damaged { what: "an API key", found };
        let body: Body = serde_json::from_slice(&document.body).map_err(|error| damaged(error.to_string()))?;
        let scopes = ApiKeyScopes::from_bits(body.scopes).ok_or_else(|| damaged(format!("scopes {}", body.scopes)))?;
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
    /// The key that a caller presents, if it is stored and has not expired.
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

    pub async fn make_key(
        &self,
        new: NewKey,
        once: Option<IdempotencyRequest<MadeKey>>,
        by: Option<ApiKeyRef>,
    ) -> Result<Made<MadeKey>, NotFiled> {
        let class = if new.tenant.is_some() { KeyClass::Tenant } else { KeyClass::Operator };
        self.file_key(ApiKey::generate(class), new, once, by).await
    }

    /// Stores the hash of a key that was made elsewhere.
    pub(crate) async fn file_key(
        &self,
        key: ApiKey,
        new: NewKey,
        once: Option<IdempotencyRequest<MadeKey>>,
        by: Option<ApiKeyRef>,
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
        let made = MadeKey { known, public_id: self.public_id(IdKind::Key, id, at), key };
        let once = once.map(|once| self.known_by(new.tenant.unwrap_or(OPERATOR), once, &made, at));
        self.filed(document, once, AuditStamp { at, by }, made).await
    }

    /// The keys of a tenant, or the operators' for `None`, by id and after this one.
    pub async fn keys(
        &self,
        tenant: Option<TenantId>,
        order: ListOrder,
        after: Option<Key>,
        limit: u32,
    ) -> Result<Vec<KnownKey>, StoreError> {
        let owner = Some(tenant.unwrap_or(OPERATOR));
        let page = self.store.documents(DocumentKind::ApiKey, owner, order, after, limit).await?;
        page.iter().map(KnownKey::of).collect()
    }

    /// Revokes a key of a tenant, or of the operators for `None`. Once this returns, the key is refused. `false` when
    /// there is no such key.
    pub async fn revoke_key(
        self: &Arc<Self>,
        tenant: Option<TenantId>,
        id: Key,
        by: Option<ApiKeyRef>,
    ) -> Result<bool, NotDone> {
        self.run_detached(|engine| async move { Ok(engine.revoked(tenant, id, by).await?) }).await?
    }

    async fn revoked(&self, tenant: Option<TenantId>, id: Key, by: Option<ApiKeyRef>) -> Result<bool, StoreError> {
        let known = self.store.document(DocumentKind::ApiKey, id).await?;
        if known.is_none_or(|known| known.tenant != tenant.unwrap_or(OPERATOR)) {
            return Ok(false);
        }
        let removed = self.store.unfile(self.session, DocumentKind::ApiKey, id, self.done_by(by)).await?;
        self.access.forget();
        Ok(removed)
    }
}
