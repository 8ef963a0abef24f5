//! Calls with an idempotency key: of the request a keyed hash is stored, of the answer a sealed copy.
//!
//! Invariant: the answer is sealed under a key that exists; otherwise a repeated call would be taken for a new one.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::TenantId;
use posthaste_crypto::seal::SealingKey;
use posthaste_crypto::seal_context::{SealContext, SealOwner, SealedField, SealedObject};
use rusqlite::Connection;

use super::{key_of, opened};
use crate::StoreError;
use crate::row::{FirstAnswer, Idempotency, KeyHash};
use crate::sqlite::vault::Vault;

/// A call with an idempotency key: in clear text, and sealed for its row.
pub(in crate::sqlite) struct SealedCall {
    call: Idempotency,
    pub(in crate::sqlite) sealed: Idempotency,
    /// The key that the answer is sealed under. Holding it here keeps it from being evicted before it is written.
    key: Arc<SealingKey>,
}

impl SealedCall {
    pub(in crate::sqlite) fn known_by(&self) -> (TenantId, KeyHash) {
        (self.call.tenant, self.call.key)
    }
}

impl Vault {
    /// Hashes the request, and seals the answer.
    pub(in crate::sqlite) fn seal_once(&self, call: &Idempotency, key: &Arc<SealingKey>) -> SealedCall {
        let body = Bytes::from(key.seal(&context(call.tenant, call.key), &call.answer.body));
        let sealed = Idempotency {
            digest: self.requests.hash("request", call.tenant.raw(), &call.digest),
            answer: FirstAnswer { status: call.answer.status, body },
            ..*call
        };
        SealedCall { call: call.clone(), sealed, key: Arc::clone(key) }
    }

    /// Seals a call in the writer, under the key that its tenant has now: it may have changed since `once` was sealed.
    pub(in crate::sqlite) fn seal_once_as_of_now(
        &self,
        conn: &Connection,
        once: &SealedCall,
    ) -> Result<Idempotency, StoreError> {
        let own = self.own_on_disk(conn, once.call.tenant)?;
        let is_same = own.id() == once.key.id();
        Ok(if is_same { once.sealed.clone() } else { self.seal_once(&once.call, &own).sealed })
    }

    /// Opens the answer to the first call. Returns [`StoreError::Busy`] if it was erased since it was found: a retry
    /// then counts as the first call.
    pub(in crate::sqlite) fn open_answer(
        &self,
        conn: &Connection,
        (tenant, key): (TenantId, KeyHash),
        answer: &FirstAnswer,
    ) -> Result<FirstAnswer, StoreError> {
        let sealing = self.by_id(conn, key_of(&answer.body)?)?.ok_or(StoreError::Busy)?;
        let body = opened(&sealing, &context(tenant, key), &answer.body, "a first answer")?;
        Ok(FirstAnswer { status: answer.status, body: Bytes::from(body) })
    }
}

fn context(tenant: TenantId, key: KeyHash) -> SealContext {
    let mut hash = [0; 32];
    hash[..16].copy_from_slice(&key.0);
    SealContext::new(SealOwner::Tenant(tenant.raw()), SealedField::IdempotencyAnswer, SealedObject::Hashed(hash))
}
