//! Calls with an idempotency key: what was asked for is hidden, what was answered is under seal.
//!
//! Invariant: a call is remembered under a key that is there, or its repeat would be taken for the first.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::id::TenantId;
use posthaste_crypto::seal::SealingKey;
use posthaste_crypto::spot::{Field, Object, Spot, Whose};
use rusqlite::Connection;

use super::{key_of, opened};
use crate::StoreError;
use crate::row::{FirstAnswer, Idempotency, KeyHash};
use crate::sqlite::vault::Vault;

/// A call with an idempotency key, as it came and as it is written.
pub(in crate::sqlite) struct Once {
    call: Idempotency,
    pub(in crate::sqlite) sealed: Idempotency,
    /// What the answer is sealed under: it is in hand as long as this is.
    key: Arc<SealingKey>,
}

impl Once {
    /// The tenant and the key it is known by.
    pub(in crate::sqlite) fn known_by(&self) -> (TenantId, KeyHash) {
        (self.call.tenant, self.call.key)
    }
}

impl Vault {
    /// Hides what was asked for, and seals what was answered.
    pub(in crate::sqlite) fn seal_once(&self, call: &Idempotency, key: &Arc<SealingKey>) -> Once {
        let body = Bytes::from(key.seal(&spot(call.tenant, call.key), &call.answer.body));
        let sealed = Idempotency {
            digest: self.requests().hash("request", call.tenant.raw(), &call.digest),
            answer: FirstAnswer { status: call.answer.status, body },
            ..*call
        };
        Once { call: call.clone(), sealed, key: Arc::clone(key) }
    }

    /// A call whose answer is its tenant's, for the writer: under the key that the tenant has now.
    pub(in crate::sqlite) fn seal_once_as_of_now(
        &self,
        conn: &Connection,
        once: &Once,
    ) -> Result<Idempotency, StoreError> {
        let own = self.own_on_disk(conn, once.call.tenant)?;
        let is_same = own.id() == once.key.id();
        Ok(if is_same { once.sealed.clone() } else { self.seal_once(&once.call, &own).sealed })
    }

    /// Opens what the first caller was answered. Busy where it was erased since it was found: whoever asks again is
    /// the first.
    pub(in crate::sqlite) fn open_answer(
        &self,
        conn: &Connection,
        (tenant, key): (TenantId, KeyHash),
        answer: &FirstAnswer,
    ) -> Result<FirstAnswer, StoreError> {
        let sealing = self.by_id(conn, key_of(&answer.body)?)?.ok_or(StoreError::Busy)?;
        let body = opened(&sealing, &spot(tenant, key), &answer.body, "a first answer")?;
        Ok(FirstAnswer { status: answer.status, body: Bytes::from(body) })
    }
}

fn spot(tenant: TenantId, key: KeyHash) -> Spot {
    let mut hash = [0; 32];
    hash[..16].copy_from_slice(&key.0);
    Spot::new(Whose::Tenant(tenant.raw()), Field::IdempotencyAnswer, Object::Hashed(hash))
}
