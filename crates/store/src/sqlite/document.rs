//! Documents: sealed, found by id or by a keyed hash of their name.
//!
//! Invariant: of two documents with one name the second is not written; a unique index holds that, and the
//! look before it makes an answer of it.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::id::{Key, TenantId};
use posthaste_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row};

use super::column::{get, key, stored_key};
use super::sealed;
use super::vault::{NewKey, Vault};
use super::{Sqlite, derived, failed, idempotency};
use crate::journal::{Entries, Entry};
use crate::number::{document_number, stored_document};
use crate::row::{Acceptance, Document, DocumentKind, Filed, Idempotency, ListOrder, Session};
use crate::{Register, StoreError};

/// What a name is looked up by.
type HiddenName = [u8; 32];

/// A document as it is written.
struct Sealed {
    document: Document,
    name: Option<HiddenName>,
    sealed: Vec<u8>,
    keys: Vec<NewKey>,
}

impl Register for Sqlite {
    async fn file(
        &self,
        session: Session,
        document: Document,
        mut once: Option<Idempotency>,
    ) -> Result<Filed, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        let whose = [document.tenant].into_iter().chain(once.as_ref().map(|call| call.tenant));
        let whose: Vec<TenantId> = whose.collect();
        let keyed = once.as_ref().map(|call| (call.tenant, call.key));
        let keys = self
            .readers
            .read(move |conn| whose.iter().map(|tenant| vault.find_or_make(conn, *tenant, None)).collect())
            .await;
        let keys: Vec<_> = keys?;
        let vault = &self.shared.vault;
        let mut unwritten = vault.unwritten(document.tenant, keys[0].id());
        if let (Some(call), Some(own)) = (&mut once, keys.get(1)) {
            unwritten.extend(vault.unwritten(call.tenant, own.id()));
            vault.seal_answer(call, own);
        }
        let name = document.name.as_deref().map(|name| hide(vault, document.kind, document.tenant, name));
        let sealed = Sealed { name, sealed: sealed::seal_document(&document, &keys[0]), keys: unwritten, document };
        let vault = Arc::clone(vault);
        let run = move |conn: &Connection, entries: &mut Entries| file(conn, &vault, &sealed, once.as_ref(), entries);
        let filed = self.noted_work(session, 1, run).await?;
        match (filed, keyed) {
            (Filed::Replayed(answer), Some(keyed)) => {
                let opened = self.open_answers(vec![Acceptance::Replayed(answer)], vec![Some(keyed)]).await?;
                match opened.into_iter().next() {
                    Some(Acceptance::Replayed(answer)) => Ok(Filed::Replayed(answer)),
                    _ => Err(StoreError::Stopped),
                }
            }
            (filed, _) => Ok(filed),
        }
    }

    async fn unfile(&self, session: Session, kind: DocumentKind, id: Key) -> Result<bool, StoreError> {
        self.noted_work(session, 1, move |conn, entries| {
            let removed = remove(conn, kind, id).map_err(failed("remove a document"))?;
            if let Some(tenant) = removed {
                entries.push(&Entry::unfiled(kind, id, tenant));
            }
            Ok(removed.is_some())
        })
        .await
    }

    async fn document(&self, kind: DocumentKind, id: Key) -> Result<Option<Document>, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        let read = move |conn: &Connection| {
            let found = select(conn, &vault, BY_ID, (document_number(kind), key(id)))?;
            Ok(found.into_iter().next())
        };
        self.readers.read(read).await
    }

    async fn document_named(
        &self,
        kind: DocumentKind,
        tenant: TenantId,
        name: String,
    ) -> Result<Option<Document>, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        let read = move |conn: &Connection| {
            let hidden = hide(&vault, kind, tenant, &name);
            let found = select(conn, &vault, BY_NAME, (hidden,))?;
            Ok(found.into_iter().next())
        };
        self.readers.read(read).await
    }

    async fn documents(
        &self,
        kind: DocumentKind,
        tenant: Option<TenantId>,
        order: ListOrder,
        after: Option<Key>,
        limit: u32,
    ) -> Result<Vec<Document>, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        let (kind, from) = (document_number(kind), derived::beyond(order, after.map(key)));
        let newest_first = order == ListOrder::NewestFirst;
        let read = move |conn: &Connection| match tenant {
            None if newest_first => select(conn, &vault, NEWEST_OF_KIND, (kind, from, limit)),
            None => select(conn, &vault, OF_KIND, (kind, from, limit)),
            Some(tenant) if newest_first => select(conn, &vault, NEWEST_OF_TENANT, (kind, from, limit, key(tenant.0))),
            Some(tenant) => select(conn, &vault, OF_TENANT, (kind, from, limit, key(tenant.0))),
        };
        self.readers.read(read).await
    }
}

const OF_KIND: &str = "document WHERE kind = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
const NEWEST_OF_KIND: &str = "document WHERE kind = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3";
// By itself SQLite would walk everybody's.
const OF_TENANT: &str =
    "document INDEXED BY document_tenant WHERE kind = ?1 AND tenant = ?4 AND id > ?2 ORDER BY id LIMIT ?3";
const NEWEST_OF_TENANT: &str =
    "document INDEXED BY document_tenant WHERE kind = ?1 AND tenant = ?4 AND id < ?2 ORDER BY id DESC LIMIT ?3";
const BY_ID: &str = "document WHERE kind = ?1 AND id = ?2";
const BY_NAME: &str = "document WHERE name = ?1";

fn hide(vault: &Vault, kind: DocumentKind, tenant: TenantId, name: &str) -> HiddenName {
    let of = match kind {
        DocumentKind::Tenant => "tenant's name",
        DocumentKind::ApiKey => "API key",
        DocumentKind::Policy => "policy's name",
    };
    vault.lookups().hash(of, kind.namespace(tenant).raw(), name.as_bytes())
}

fn file(
    conn: &Connection,
    vault: &Vault,
    new: &Sealed,
    once: Option<&Idempotency>,
    entries: &mut Entries,
) -> Result<Filed, StoreError> {
    if let Some(before) = idempotency::known(conn, vault, once)? {
        return Ok(before.into());
    }
    let doing = failed("file a document");
    if !vault.is_destroyed(new.document.tenant, sealed::key_of(&new.sealed)?) {
        return put(conn, vault, new, &new.sealed, &new.keys, once, entries).map_err(&doing);
    }
    // Its tenant was erased since: it is the first of what the tenant has from now on.
    let own = vault.find_or_make(conn, new.document.tenant, None)?;
    let (sealed, keys) = (sealed::seal_document(&new.document, &own), vault.unwritten(new.document.tenant, own.id()));
    put(conn, vault, new, &sealed, &keys, once, entries).map_err(&doing)
}

fn put(
    conn: &Connection,
    vault: &Vault,
    Sealed { document, name, .. }: &Sealed,
    sealed: &[u8],
    keys: &[NewKey],
    once: Option<&Idempotency>,
    entries: &mut Entries,
) -> rusqlite::Result<Filed> {
    let (kind, id) = (document_number(document.kind), key(document.id));
    if let Some(name) = name {
        let holder: Option<i64> = conn
            .prepare_cached("SELECT id FROM document WHERE name = ?1")?
            .query_row([name], |row| row.get(0))
            .optional()?;
        if holder.is_some_and(|holder| holder != id) {
            return Ok(Filed::NameTaken);
        }
    }
    idempotency::remember(conn, once)?;
    let mut keys = keys.iter().filter(|new| !vault.is_destroyed(new.tenant, new.id));
    keys.try_for_each(|new| vault.put(conn, new))?;
    conn.prepare_cached(
        "INSERT OR REPLACE INTO document (kind, id, tenant, name, at_ms, sealed) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute((kind, id, key(document.tenant.0), name, document.at.as_millis(), sealed))?;
    entries.push(&Entry::filed(document));
    Ok(Filed::Done)
}

fn remove(conn: &Connection, kind: DocumentKind, id: Key) -> rusqlite::Result<Option<TenantId>> {
    let tenant: Option<i64> = conn
        .prepare_cached("DELETE FROM document WHERE kind = ?1 AND id = ?2 RETURNING tenant")?
        .query_row((document_number(kind), key(id)), |row| row.get(0))
        .optional()?;
    Ok(tenant.and_then(|tenant| u64::try_from(tenant).ok()).map(TenantId::from_raw))
}

fn select(
    conn: &Connection,
    vault: &Vault,
    which: &'static str,
    params: impl rusqlite::Params,
) -> Result<Vec<Document>, StoreError> {
    let doing = failed("read documents");
    let mut sql =
        conn.prepare_cached(&format!("SELECT kind, id, tenant, at_ms, sealed FROM {which}")).map_err(&doing)?;
    let mut rows = sql.query(params).map_err(&doing)?;
    let mut documents = Vec::new();
    while let Some(row) = rows.next().map_err(&doing)? {
        documents.extend(document(conn, vault, row)?);
    }
    Ok(documents)
}

/// One as it was read; none when the key it was sealed under is destroyed.
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
            let plan = crate::sqlite::page::plan(&format!("SELECT sealed FROM {which}"));
            assert_eq!(plan, expected);
        }
    }
}
