//! Idempotency keys of calls that create something: of the request a keyed hash is stored, of the answer to the first
//! call a sealed copy.
//!
//! Invariant: the answer is sealed under a key that exists; otherwise a repeated call would be taken for a new one.
//!
//! The writer looks a key up and inserts it in one transaction: of several calls with the same key in one group the
//! first is fresh, and the others see its row. The primary key begins with the day, so that deleting one day's keys
//! touches no other's.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::{TenantId, Timestamp};
use posthaste_crypto::seal::SealingKey;
use posthaste_crypto::seal_context::{SealContext, SealOwner, SealedField, SealedObject};
use rusqlite::{Connection, OptionalExtension, Row};

use super::{Vault, failed, key, prepare, sealed, vault};
use crate::StoreError;
use crate::row::idempotency::{EarlierCall, FirstAnswer, Idempotency, KeyHash, UtcDay};

const KNOWN: &str = "SELECT digest, status, answer, at_ms FROM idempotency WHERE day = ?1 AND tenant = ?2 AND key = ?3";
const FORGET: &str = "DELETE FROM idempotency WHERE (day, tenant, key) IN
                        (SELECT day, tenant, key FROM idempotency WHERE day < ?1 ORDER BY day, tenant, key LIMIT ?2)";

/// What is known of an earlier call with the same key. A key whose answer was erased counts as unknown, and is removed.
pub(super) fn known(
    conn: &Connection,
    vault: &Vault,
    once: Option<&SealedCall>,
) -> Result<Option<EarlierCall>, StoreError> {
    let Some(SealedCall { sealed: call, .. }) = once else { return Ok(None) };
    let doing = failed("look up an idempotency key");
    for near in UtcDay::of(call.at).near() {
        let Some(known) = find(conn, near, call.tenant, call.key).map_err(&doing)? else { continue };
        let Some(before) = call.after(&known) else { continue };
        if vault.is_there(conn, &known.answer.body)? {
            return Ok(Some(before));
        }
        remove(conn, near, call.tenant, call.key).map_err(&doing)?;
    }
    Ok(None)
}

/// Inserts the key of a call with its sealed answer.
pub(super) fn remember(conn: &Connection, call: Option<&Idempotency>) -> rusqlite::Result<()> {
    let Some(call) = call else { return Ok(()) };
    conn.prepare_cached(
        "INSERT INTO idempotency (day, tenant, key, digest, status, answer, at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute((
        UtcDay::of(call.at).0,
        key(call.tenant.0),
        call.key.0,
        call.digest,
        call.answer.status,
        &*call.answer.body,
        call.at.as_millis(),
    ))
    .map(drop)
}

pub(super) fn remove(conn: &Connection, day: UtcDay, tenant: TenantId, hash: KeyHash) -> rusqlite::Result<usize> {
    conn.prepare_cached("DELETE FROM idempotency WHERE day = ?1 AND tenant = ?2 AND key = ?3")?.execute((
        day.0,
        key(tenant.0),
        hash.0,
    ))
}

/// A cursor over a tenant's keys: the day, and the last key read of it.
pub(super) type Behind = (i64, [u8; 16]);
/// The keys found, and where to continue; `None` at the end.
type Looked = (Vec<(UtcDay, KeyHash)>, Option<Behind>);

/// Finds a tenant's keys whose answers are sealed under a destroyed key. Reads at most `limit` keys after the cursor.
pub(super) fn erased(
    conn: &Connection,
    tenant: TenantId,
    (day, behind): Behind,
    limit: u32,
) -> Result<Looked, StoreError> {
    let doing = "look for erased answers";
    let sql = "SELECT key, answer FROM idempotency WHERE day = ?1 AND tenant = ?2 AND key > ?3 ORDER BY key LIMIT ?4";
    let looked = prepare(conn, doing, sql)?.read_all((day, key(tenant.0), behind, limit), |row| {
        let (hash, sealed): (_, Vec<u8>) = row.try_into().map_err(failed(doing))?;
        Ok((hash, vault::is_on_disk(conn, sealed::key_of(&sealed)?).map_err(failed(doing))?))
    })?;
    let last = looked.last().map_or(behind, |(hash, _)| *hash);
    let is_full = looked.len() == limit as usize;
    let erased = looked.into_iter().filter(|(_, is_there)| !is_there);
    let found = erased.map(|(hash, _)| (UtcDay(day), KeyHash(hash))).collect();
    if is_full {
        return Ok((found, Some((day, last))));
    }
    let sql = "SELECT min(day) FROM idempotency WHERE day > ?1";
    let next: Option<i64> = prepare(conn, doing, sql)?.value([day])?;
    Ok((found, next.map(|day| (day, [0; 16]))))
}

/// Deletes at most `limit` keys of days before this one; returns how many.
pub(super) fn forget_before(conn: &Connection, day: UtcDay, limit: u32) -> rusqlite::Result<usize> {
    conn.prepare_cached(FORGET)?.execute((day.0, limit))
}

fn find(conn: &Connection, day: UtcDay, tenant: TenantId, hash: KeyHash) -> rusqlite::Result<Option<Idempotency>> {
    let read = |row: &Row<'_>| {
        let answer = FirstAnswer { status: row.get(1)?, body: Bytes::from(row.get::<_, Vec<u8>>(2)?) };
        let at = Timestamp::from_millis(row.get(3)?);
        Ok(Idempotency { tenant, key: hash, digest: row.get(0)?, answer, at })
    };
    conn.prepare_cached(KNOWN)?.query_row((day.0, key(tenant.0), hash.0), read).optional()
}

/// A call with an idempotency key: in clear text, and sealed for its row.
pub(super) struct SealedCall {
    call: Idempotency,
    pub(super) sealed: Idempotency,
    /// The key that the answer is sealed under. Holding it here keeps it from being evicted before it is written.
    key: Arc<SealingKey>,
}

impl SealedCall {
    pub(super) fn known_by(&self) -> (TenantId, KeyHash) {
        (self.call.tenant, self.call.key)
    }
}

impl Vault {
    /// Hashes the request, and seals the answer.
    pub(super) fn seal_once(&self, call: &Idempotency, key: &Arc<SealingKey>) -> SealedCall {
        let body = Bytes::from(key.seal(&answer_context(call.tenant, call.key), &call.answer.body));
        let sealed = Idempotency {
            digest: self.requests.hash("request", call.tenant.raw(), &call.digest),
            answer: FirstAnswer { status: call.answer.status, body },
            ..*call
        };
        SealedCall { call: call.clone(), sealed, key: Arc::clone(key) }
    }

    /// Seals a call in the writer, under the key that its tenant has now: it may have changed since `once` was sealed.
    pub(super) fn seal_once_as_of_now(&self, conn: &Connection, once: &SealedCall) -> Result<Idempotency, StoreError> {
        let own = self.own_on_disk(conn, once.call.tenant)?;
        let is_same = own.id() == once.key.id();
        Ok(if is_same { once.sealed.clone() } else { self.seal_once(&once.call, &own).sealed })
    }

    /// Opens the answer to the first call. Returns [`StoreError::Busy`] if it was erased since it was found: a retry
    /// then counts as the first call.
    pub(super) fn open_answer(
        &self,
        conn: &Connection,
        (tenant, key): (TenantId, KeyHash),
        answer: &FirstAnswer,
    ) -> Result<FirstAnswer, StoreError> {
        let sealing = self.by_id(conn, sealed::key_of(&answer.body)?)?.ok_or(StoreError::Busy)?;
        let body = sealed::opened(&sealing, &answer_context(tenant, key), &answer.body, "a first answer")?;
        Ok(FirstAnswer { status: answer.status, body: Bytes::from(body) })
    }
}

fn answer_context(tenant: TenantId, key: KeyHash) -> SealContext {
    let mut hash = [0; 32];
    hash[..16].copy_from_slice(&key.0);
    SealContext::new(SealOwner::Tenant(tenant.raw()), SealedField::IdempotencyAnswer, SealedObject::Hashed(hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::fixture::{database, plan};

    const DAY_MS: i64 = 86_400_000;

    fn call(day: i64, n: u8) -> Idempotency {
        Idempotency {
            tenant: TenantId::from_raw(1),
            key: KeyHash([n; 16]),
            digest: [0; 32],
            answer: FirstAnswer { status: 202, body: Bytes::new() },
            at: Timestamp::from_millis(day * DAY_MS),
        }
    }

    #[test]
    fn keys_of_past_days_are_deleted_a_few_at_a_time() {
        let conn = database();
        for day in 10..13 {
            for n in 0..3 {
                remember(&conn, Some(&call(day, n))).expect("the table is there");
            }
        }
        let forget = |limit| forget_before(&conn, UtcDay(12), limit).expect("the table is there");
        assert_eq!([forget(4), forget(4), forget(4)], [4, 2, 0]);
        let left: i64 = conn.query_row("SELECT count(*) FROM idempotency", [], |row| row.get(0)).expect("a count");
        assert_eq!(left, 3, "the day itself stays");
    }

    #[test]
    fn deleting_old_keys_walks_the_primary_key_from_its_beginning() {
        let plan = plan(FORGET);
        assert!(!plan.split("; ").any(|step| step.starts_with("SCAN idempotency")), "{plan}");
    }
}
