//! Documents (tenants, API keys and policies): sealed, found by id or by a keyed hash of their name.
//!
//! Invariant: of two documents with the same name the second is not written. A unique index enforces this; a lookup
//! before the write turns the conflict into an answer.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::{Key, TenantId, Timestamp};
use posthaste_crypto::seal::SealingKey;
use rusqlite::{Connection, OptionalExtension, Row};

use super::{
    SealedCall, Sqlite, Vault, derived, document_number, failed, get, idempotency, key, prepare, sealed,
    stored_document, stored_key,
};
use crate::journal::{Entries, JournalEntry};
use crate::{
    AuditStamp, ChangeKind, Document, DocumentKind, Filed, Idempotency, ListOrder, Register, Session, StoreError,
};

/// The keyed hash by which a name is looked up.
type HiddenName = [u8; 32];

/// A document, and its encrypted columns.
struct Sealed {
    document: Document,
    name: Option<HiddenName>,
    sealed: Vec<u8>,
    /// The key it is sealed under. Holding it here keeps it from being evicted before it is written.
    key: Arc<SealingKey>,
    /// The time of the change, and the API key behind it.
    act: AuditStamp,
}

impl Register for Sqlite {
    async fn file(
        &self,
        session: Session,
        document: Document,
        once: Option<Idempotency>,
        act: AuditStamp,
    ) -> Result<Filed, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        let own = self.key_of((document.tenant, None)).await?;
        let once = match once {
            Some(call) => Some(vault.seal_once(&call, &self.key_of((call.tenant, None)).await?)),
            None => None,
        };
        let keyed = once.as_ref().map(SealedCall::known_by);
        let name = document.name.as_deref().map(|name| hide(&vault, document.kind, document.tenant, name));
        let sealed = Sealed { name, sealed: sealed::seal_document(&document, &own), key: own, act, document };
        let run = move |conn: &Connection, entries: &mut Entries| file(conn, &vault, &sealed, once.as_ref(), entries);
        match (self.asked_work(session, 1, run).await?, keyed) {
            (Filed::Replayed(answer), Some(keyed)) => Ok(Filed::Replayed(self.open_answer(keyed, answer).await?)),
            (filed, _) => Ok(filed),
        }
    }

    async fn unfile(&self, session: Session, kind: DocumentKind, id: Key, act: AuditStamp) -> Result<bool, StoreError> {
        self.asked_work(session, 1, move |conn, entries| {
            let removed = remove(conn, kind, id).map_err(failed("remove a document"))?;
            if let Some((tenant, made)) = removed {
                let AuditStamp { at, by } = act;
                entries.push(&JournalEntry::Document { kind, id, tenant, made, deed: ChangeKind::Removed, at, by });
            }
            Ok(removed.is_some())
        })
        .await
    }

    async fn document(&self, kind: DocumentKind, id: Key) -> Result<Option<Document>, StoreError> {
        let id = (document_number(kind), key(id));
        Ok(self.read(move |conn, vault| select(conn, vault, BY_ID, id, 1)).await?.pop())
    }

    async fn document_named(
        &self,
        kind: DocumentKind,
        tenant: TenantId,
        name: String,
    ) -> Result<Option<Document>, StoreError> {
        let hidden = hide(&self.shared.vault, kind, tenant, &name);
        Ok(self.read(move |conn, vault| select(conn, vault, BY_NAME, (hidden,), 1)).await?.pop())
    }

    async fn documents(
        &self,
        kind: DocumentKind,
        tenant: Option<TenantId>,
        order: ListOrder,
        after: Option<Key>,
        limit: u32,
    ) -> Result<Vec<Document>, StoreError> {
        let (kind, from) = (document_number(kind), derived::beyond(order, after.map(key)));
        let limit = limit as usize;
        let newest_first = order == ListOrder::NewestFirst;
        self.read(move |conn, vault| match tenant {
            None if newest_first => select(conn, vault, NEWEST_OF_KIND, (kind, from), limit),
            None => select(conn, vault, OF_KIND, (kind, from), limit),
            Some(tenant) if newest_first => select(conn, vault, NEWEST_OF_TENANT, (kind, from, key(tenant.0)), limit),
            Some(tenant) => select(conn, vault, OF_TENANT, (kind, from, key(tenant.0)), limit),
        })
        .await
    }
}

const OF_KIND: &str = "document WHERE kind = ?1 AND id > ?2 ORDER BY id";
const NEWEST_OF_KIND: &str = "document WHERE kind = ?1 AND id < ?2 ORDER BY id DESC";
// Without the name of the index, SQLite would walk the documents of all tenants.
const OF_TENANT: &str = "document INDEXED BY document_tenant WHERE kind = ?1 AND tenant = ?3 AND id > ?2 ORDER BY id";
const NEWEST_OF_TENANT: &str =
    "document INDEXED BY document_tenant WHERE kind = ?1 AND tenant = ?3 AND id < ?2 ORDER BY id DESC";
const BY_ID: &str = "document WHERE kind = ?1 AND id = ?2";
const BY_NAME: &str = "document WHERE name = ?1";

fn hide(vault: &Vault, kind: DocumentKind, tenant: TenantId, name: &str) -> HiddenName {
    let of = match kind {
        DocumentKind::Tenant => "tenant's name",
        DocumentKind::ApiKey => "API key",
        DocumentKind::Policy => "policy's name",
    };
    vault.lookups.hash(of, kind.namespace(tenant).raw(), name.as_bytes())
}

fn file(
    conn: &Connection,
    vault: &Vault,
    new: &Sealed,
    once: Option<&SealedCall>,
    entries: &mut Entries,
) -> Result<Filed, StoreError> {
    if let Some(before) = idempotency::known(conn, vault, once)? {
        return Ok(before.into());
    }
    let Sealed { document, name, .. } = new;
    let doing = failed("file a document");
    if is_taken(conn, name.as_ref(), key(document.id)).map_err(&doing)? {
        return Ok(Filed::NameTaken);
    }
    let once = once.map(|once| vault.seal_once_as_of_now(conn, once)).transpose()?;
    idempotency::remember(conn, once.as_ref()).map_err(&doing)?;
    let own = vault.own_on_disk(conn, document.tenant)?;
    // If the tenant was erased since the document was sealed, it has another key now: seal the document again.
    let anew = (own.id() != new.key.id()).then(|| sealed::seal_document(document, &own));
    let deed = put(conn, document, name.as_ref(), anew.as_ref().unwrap_or(&new.sealed)).map_err(&doing)?;
    entries.push(&JournalEntry::document(document, deed, new.act));
    Ok(Filed::Done)
}

fn is_taken(conn: &Connection, name: Option<&HiddenName>, id: i64) -> rusqlite::Result<bool> {
    let Some(name) = name else { return Ok(false) };
    let holder: Option<i64> = conn
        .prepare_cached("SELECT id FROM document WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()?;
    Ok(holder.is_some_and(|holder| holder != id))
}

/// Writes a document; returns whether it was created or changed.
fn put(
    conn: &Connection,
    document: &Document,
    name: Option<&HiddenName>,
    sealed: &[u8],
) -> rusqlite::Result<ChangeKind> {
    let (kind, id) = (document_number(document.kind), key(document.id));
    let is_there = conn.prepare_cached("SELECT 1 FROM document WHERE kind = ?1 AND id = ?2")?.exists((kind, id))?;
    conn.prepare_cached(
        "INSERT OR REPLACE INTO document (kind, id, tenant, name, at_ms, sealed) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute((kind, id, key(document.tenant.0), name, document.at.as_millis(), sealed))?;
    Ok(if is_there { ChangeKind::Changed } else { ChangeKind::Made })
}

/// Removes a document; returns its tenant and when it was created.
fn remove(conn: &Connection, kind: DocumentKind, id: Key) -> rusqlite::Result<Option<(TenantId, Timestamp)>> {
    let removed: Option<(i64, i64)> = conn
        .prepare_cached("DELETE FROM document WHERE kind = ?1 AND id = ?2 RETURNING tenant, at_ms")?
        .query_row((document_number(kind), key(id)), |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let read = |(tenant, at)| Some((TenantId::from_raw(u64::try_from(tenant).ok()?), Timestamp::from_millis(at)));
    Ok(removed.and_then(read))
}

/// The first documents that can be opened, at most `limit`. The limit is not in the SQL, for the same reason as that of
/// endpoints.
fn select(
    conn: &Connection,
    vault: &Vault,
    which: &'static str,
    params: impl rusqlite::Params,
    limit: usize,
) -> Result<Vec<Document>, StoreError> {
    let sql = format!("SELECT kind, id, tenant, at_ms, sealed FROM {which}");
    prepare(conn, "read documents", &sql)?.read_some(params, limit, |row| document(conn, vault, row))
}

/// Opens a document's row; `None` when the key it is sealed under is destroyed.
fn document(conn: &Connection, vault: &Vault, row: &Row<'_>) -> Result<Option<Document>, StoreError> {
    let sealed: Vec<u8> = get(row, 4)?;
    let Some(own) = vault.by_id(conn, sealed::key_of(&sealed)?)? else { return Ok(None) };
    let (kind, id) = (stored_document(get(row, 0)?)?, stored_key(get(row, 1)?)?);
    let tenant = TenantId(stored_key(get(row, 2)?)?);
    let (name, body) = sealed::open_document(tenant, kind, id, &own, &sealed)?;
    let at = Timestamp::from_millis(get(row, 3)?);
    Ok(Some(Document { kind, id, tenant, name, at, body: Bytes::from(body) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::fixture::{fresh, plan};
    use crate::{Erase, ErasureTarget, Erasures, FirstAnswer, KeyHash};

    #[tokio::test]
    async fn a_document_of_a_tenant_erased_before_its_commit_is_sealed_again_with_its_answer() {
        let (_folder, store, session) = fresh().await;
        let (tenant, at, body) = (TenantId::from_raw(7), Timestamp::from_millis(1), Bytes::from_static(b"{}"));
        let (kind, id) = (DocumentKind::Policy, Key::from_raw(5));
        let document = Document { kind, id, tenant, name: Some("slow".to_owned()), at, body };
        let answer = FirstAnswer { status: 201, body: Bytes::from_static(b"it is filed") };
        let call = Idempotency { tenant, key: KeyHash([7; 16]), digest: [1; 32], answer: answer.clone(), at };

        let vault = Arc::clone(&store.shared.vault);
        let key = store.key_of((tenant, None)).await.expect("a key");
        let once = vault.seal_once(&call, &key);
        let name = document.name.as_deref().map(|name| hide(&vault, kind, tenant, name));
        let (sealed, act) = (sealed::seal_document(&document, &key), AuditStamp::at(at));
        let new = Sealed { name, sealed, key, act, document: document.clone() };
        let erase = Erase { tenant, whom: ErasureTarget::Tenant, at, by: None };
        store.erase(session, erase).await.expect("it is erased");
        let run = move |conn: &Connection, entries: &mut Entries| file(conn, &vault, &new, Some(&once), entries);
        assert_eq!(store.noted_work(session, 1, run).await.expect("it is filed"), Filed::Done);

        assert_eq!(store.document(kind, id).await.expect("it reads"), Some(document.clone()));
        let again = store.file(session, document, Some(call), act).await.expect("it is known");
        assert_eq!(again, Filed::Replayed(answer));
        store.close().await;
    }

    #[test]
    fn documents_are_found_by_their_indexes() {
        for (which, expected) in [
            (OF_KIND, "SEARCH document USING PRIMARY KEY (kind=? AND id>?)"),
            (OF_TENANT, "SEARCH document USING INDEX document_tenant (kind=? AND tenant=? AND id>?)"),
            (NEWEST_OF_KIND, "SEARCH document USING PRIMARY KEY (kind=? AND id<?)"),
            (NEWEST_OF_TENANT, "SEARCH document USING INDEX document_tenant (kind=? AND tenant=? AND id<?)"),
            (BY_ID, "SEARCH document USING PRIMARY KEY (kind=? AND id=?)"),
            (BY_NAME, "SEARCH document USING INDEX document_name (name=?)"),
        ] {
            assert_eq!(plan(&format!("SELECT sealed FROM {which}")), expected);
        }
    }
}
