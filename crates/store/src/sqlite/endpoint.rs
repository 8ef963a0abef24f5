//! Writes endpoints, and finds them by id, lane, uid, tenant, subject and tag, from memory where possible.

mod cache;
mod matching;

use std::sync::Arc;

use posthaste_core::{EndpointId, Key, LaneId, TenantId, Timestamp};
use posthaste_crypto::digest::Digest;
use rusqlite::{Connection, OptionalExtension, Row};

use super::request::PutEndpoint;
use super::sealed::endpoint::{EndpointNames, NAME_BYTES, SealedEndpoint};
use super::{
    Sqlite, Vault, WriteRequest, get, key, micros, on_dead_number, order_number, prepare, sealed, status_number,
    stored_key, stored_micros, stored_on_dead, stored_order, stored_status, vault,
};
use crate::{
    AuditStamp, Directory, DisabledBy, ENDPOINTS_LISTED_MAX, Endpoint, EndpointPut, EndpointSelector, EndpointStatus,
    Idempotency, ListOrder, MatchedEndpoints, SecretAct, Session, StoreError, journal,
};

pub(super) use cache::{CommittedChange, EndpointCache};

impl Directory for Sqlite {
    async fn put_endpoint(
        &self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
        act: AuditStamp,
    ) -> Result<EndpointPut, StoreError> {
        self.put(session, endpoint, once, act, None).await
    }

    async fn rotate_secret(
        &self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
        act: AuditStamp,
    ) -> Result<EndpointPut, StoreError> {
        let note = journal::JournalEntry::secret(endpoint.id, endpoint.tenant, SecretAct::Rotated, act);
        self.put(session, endpoint, once, act, Some(note)).await
    }

    async fn note_secret_shown(
        &self,
        session: Session,
        endpoint: EndpointId,
        tenant: TenantId,
        act: AuditStamp,
    ) -> Result<(), StoreError> {
        let note = journal::JournalEntry::secret(endpoint, tenant, SecretAct::Shown, act);
        self.asked_work(session, 1, move |_, entries| {
            entries.push(&note);
            Ok(())
        })
        .await
    }

    async fn endpoint(&self, id: EndpointId) -> Result<Option<Arc<Endpoint>>, StoreError> {
        if let Some(entry) = self.shared.cache.get(id) {
            return Ok(Some(entry.endpoint));
        }
        let read_at = self.shared.cache.changes();
        let read = self.read(move |conn, vault| read(conn, vault, BY_ID, [id.0])).await?;
        Ok(self.shared.cache.keep(read_at, read).pop().map(|entry| entry.endpoint))
    }

    async fn endpoint_of_lane(&self, lane: LaneId) -> Result<Option<Arc<Endpoint>>, StoreError> {
        let (mut found, _) = self.shared.cache.by_lanes(&[lane]);
        if let Some(entry) = found.pop() {
            return Ok(Some(entry.endpoint));
        }
        let read_at = self.shared.cache.changes();
        let read = self.read(move |conn, vault| read(conn, vault, BY_LANE, [lane.0])).await?;
        Ok(self.shared.cache.keep(read_at, read).pop().map(|entry| entry.endpoint))
    }

    async fn endpoint_named(&self, tenant: TenantId, uid: String) -> Result<Option<EndpointId>, StoreError> {
        let hidden = sealed::endpoint::hide_uid(&self.shared.vault.lookups, tenant, &uid);
        self.read(move |conn, vault| {
            let found = prepare(conn, "look for an endpoint by its uid", BY_UID)?.columns([hidden])?;
            let Some((id, sealed)): Option<(i64, Vec<u8>)> = found else { return Ok(None) };
            // Its tenant or subject may have been erased; such an endpoint counts as missing.
            Ok(if vault.is_there(conn, &sealed)? { Some(EndpointId(stored_key(id)?)) } else { None })
        })
        .await
    }

    async fn endpoints(&self, tenant: TenantId) -> Result<Arc<Vec<Arc<Endpoint>>>, StoreError> {
        if let Some(list) = self.shared.cache.tenant_list(tenant) {
            return Ok(list);
        }
        let read_at = self.shared.cache.changes();
        let all = ENDPOINTS_LISTED_MAX + 1;
        let read = self.read(move |conn, vault| read_tenant(conn, vault, tenant, None, all)).await?;
        self.shared.cache.count_rows(read.len());
        Ok(self.shared.cache.keep_tenant(read_at, tenant, read))
    }

    async fn endpoints_matching(
        &self,
        tenant: TenantId,
        selector: EndpointSelector,
        after: Option<EndpointId>,
        limit: u32,
    ) -> Result<MatchedEndpoints, StoreError> {
        let (shared, read_at) = (Arc::clone(&self.shared), self.shared.cache.changes());
        let (keys, limit) = (matching::LookupHashes::of(&shared.vault.lookups, tenant, &selector), limit as usize);
        let read = move |conn: &Connection| matching::read(conn, &shared, &keys, after, limit);
        let matching::Candidates { mut known, read, next, rows } = self.readers.read(read).await?;
        self.shared.cache.count_rows(rows);
        // A walk over many pages is not cached: it would evict endpoints that are in use.
        if after.is_none() && next.is_none() {
            known.extend(self.shared.cache.keep(read_at, read).into_iter().map(|entry| entry.endpoint));
        } else {
            known.extend(read.into_iter().map(Arc::new));
        }
        // Check each endpoint itself: the index may have been altered, and the cached version may be newer than the
        // index.
        let is_selected = |endpoint: &Arc<Endpoint>| {
            endpoint.tenant == tenant && endpoint.status != EndpointStatus::Deleted && selector.matches(endpoint)
        };
        known.retain(is_selected);
        known.sort_unstable_by_key(|endpoint| endpoint.id);
        Ok(MatchedEndpoints { endpoints: known, next })
    }

    async fn list_endpoints(
        &self,
        tenant: Option<TenantId>,
        order: ListOrder,
        after: Option<EndpointId>,
        limit: u32,
    ) -> Result<Vec<Arc<Endpoint>>, StoreError> {
        let newest_first = order == ListOrder::NewestFirst;
        let which = match tenant {
            Some(_) if newest_first => NEWEST_OF_TENANT,
            Some(_) => OF_TENANT,
            None if newest_first => NEWEST,
            None => OLDEST,
        };
        let from = super::derived::beyond(order, after.map(|id| key(id.0)));
        let tenant = tenant.map_or(0, |tenant| key(tenant.0));
        let found = self.read(move |conn, vault| select(conn, vault, which, (tenant, from), limit as usize)).await?;
        Ok(found.into_iter().map(Arc::new).collect())
    }

    async fn endpoints_after(
        &self,
        tenant: TenantId,
        after: Option<EndpointId>,
        limit: u32,
    ) -> Result<Vec<Arc<Endpoint>>, StoreError> {
        let found = self.read(move |conn, vault| read_tenant(conn, vault, tenant, after, limit as usize)).await?;
        Ok(found.into_iter().map(Arc::new).collect())
    }
}

impl Sqlite {
    /// Creates or changes an endpoint; `note` is a further entry for the journal.
    async fn put(
        &self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
        act: AuditStamp,
        note: Option<journal::JournalEntry>,
    ) -> Result<EndpointPut, StoreError> {
        let vault = &self.shared.vault;
        let keyed = once.as_ref().map(|call| (call.tenant, call.key));
        let key = self.key_of(sealed::endpoint::whose(vault, &endpoint)).await?;
        let put = PutEndpoint {
            sealed: SealedEndpoint::new(vault, &endpoint, &key, once.as_ref()),
            names: EndpointNames::new(&vault.lookups, &endpoint),
            endpoint: Arc::new(endpoint),
            once,
            act,
            note,
            put: EndpointPut::Done,
        };
        let put = self.writer.ask(|reply| WriteRequest::PutEndpoint { session, put: Box::new(put), reply }).await?;
        match (put, keyed) {
            (EndpointPut::Replayed(answer), Some(keyed)) => {
                Ok(EndpointPut::Replayed(self.open_answer(keyed, answer).await?))
            }
            (put, _) => Ok(put),
        }
    }
}

/// The stored row of an endpoint that is about to be changed.
pub(super) struct EndpointBefore {
    pub(super) tenant: TenantId,
    version: u32,
    is_deleted: bool,
    tags: Vec<u8>,
    /// Empty once the endpoint is deleted.
    sealed: Vec<u8>,
}

pub(super) fn before(conn: &Connection, id: EndpointId) -> rusqlite::Result<Option<EndpointBefore>> {
    conn.prepare_cached("SELECT tenant, version, status, tags, sealed FROM endpoint WHERE id = ?1")?
        .query_row([key(id.0)], |row| {
            let tenant = TenantId::from_raw(row.get::<_, i64>(0)?.unsigned_abs());
            let is_deleted = row.get::<_, u8>(2)? == status_number(EndpointStatus::Deleted);
            let tags = row.get::<_, Option<Vec<u8>>>(3)?.unwrap_or_default();
            Ok(EndpointBefore { tenant, version: row.get(1)?, is_deleted, tags, sealed: row.get(4)? })
        })
        .optional()
}

/// Whether this is the next version of the stored endpoint, and no other endpoint has its uid. An endpoint whose tenant
/// or subject was erased counts as missing, although its row may still exist: it is never changed, and its uid is free.
pub(super) fn may_put(
    conn: &Connection,
    endpoint: &Endpoint,
    before: Option<&EndpointBefore>,
    uid: Option<&Digest>,
) -> Result<EndpointPut, StoreError> {
    let next = before.map_or(0, |before| before.version + 1);
    if endpoint.version != next || before.is_some_and(|before| before.is_deleted) {
        return Ok(EndpointPut::Stale);
    }
    if let Some(before) = before
        && !vault::can_open(conn, &before.sealed)?
    {
        return Ok(EndpointPut::Stale);
    }
    let Some(uid) = uid else { return Ok(EndpointPut::Done) };
    let doing = "look up an endpoint's uid";
    let holder: Option<(i64, Vec<u8>)> = prepare(conn, doing, BY_UID)?.columns([uid])?;
    match holder {
        Some((id, sealed)) if id != key(endpoint.id.0) => {
            if vault::can_open(conn, &sealed)? {
                return Ok(EndpointPut::UidTaken);
            }
            prepare(conn, doing, "UPDATE endpoint SET uid = NULL WHERE id = ?1")?.execute([id])?;
            Ok(EndpointPut::Done)
        }
        _ => Ok(EndpointPut::Done),
    }
}

/// Writes an endpoint's row, and its rows of tags.
pub(super) fn put(
    conn: &Connection,
    endpoint: &Endpoint,
    names: &EndpointNames,
    before: Option<&EndpointBefore>,
    sealed: &[u8],
) -> rusqlite::Result<()> {
    let tags = names.tags.as_flattened();
    retag(conn, key(endpoint.id.0), before.map_or(&[], |before| &before.tags), tags)?;
    conn.prepare_cached(
        // An endpoint keeps its lane for life, and a lane or uid that another endpoint has is an error.
        "INSERT INTO endpoint
           (id, lane, tenant, at_ms, version, uid, sealed, ttl_us, send_order, on_dead, max_in_flight, status, subject,
            tags)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
         ON CONFLICT (id) DO UPDATE SET
           tenant = ?3, at_ms = ?4, version = ?5, uid = ?6, sealed = ?7, ttl_us = ?8, send_order = ?9, on_dead = ?10,
           max_in_flight = ?11, status = ?12, subject = ?13, tags = ?14",
    )?
    .execute((
        key(endpoint.id.0),
        key(endpoint.lane.0),
        key(endpoint.tenant.0),
        endpoint.at.as_millis(),
        endpoint.version,
        names.uid,
        sealed,
        endpoint.ttl.map(micros),
        order_number(endpoint.order),
        on_dead_number(endpoint.on_dead),
        endpoint.max_in_flight,
        status_number(endpoint.status),
        names.subject,
        (!tags.is_empty()).then_some(tags),
    ))
    .map(drop)
}

/// Changes an endpoint's rows of tags from `from` to `to`, both concatenated hashes.
pub(super) fn retag(conn: &Connection, endpoint: i64, from: &[u8], to: &[u8]) -> rusqlite::Result<()> {
    let (had, has) = (from.as_chunks::<NAME_BYTES>().0, to.as_chunks::<NAME_BYTES>().0);
    for tag in had.iter().filter(|tag| !has.contains(tag)) {
        conn.prepare_cached("DELETE FROM endpoint_tag WHERE tag = ?1 AND endpoint = ?2")?.execute((tag, endpoint))?;
    }
    for tag in has.iter().filter(|tag| !had.contains(tag)) {
        conn.prepare_cached("INSERT INTO endpoint_tag (tag, endpoint) VALUES (?1, ?2)")?.execute((tag, endpoint))?;
    }
    Ok(())
}

/// A change of an endpoint's status, and the version it made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turned {
    pub(super) id: EndpointId,
    pub(super) tenant: TenantId,
    pub(super) status: EndpointStatus,
    version: u32,
}

/// Gives an endpoint another status, unless it is deleted. Deleting one clears everything its owner set, so that it is
/// no longer found by uid, subject or tag.
pub(super) fn turn(conn: &Connection, id: EndpointId, status: EndpointStatus) -> rusqlite::Result<Option<Turned>> {
    let cleared = match status {
        EndpointStatus::Deleted => {
            let before = before(conn, id)?;
            retag(conn, key(id.0), before.as_ref().map_or(&[], |before| &before.tags), &[])?;
            ", uid = NULL, subject = NULL, tags = NULL, sealed = x''"
        }
        _ => "",
    };
    let sql = format!(
        "UPDATE endpoint SET status = ?2, version = version + 1{cleared} WHERE id = ?1 AND status <> 3
         RETURNING tenant, version"
    );
    conn.prepare_cached(&sql)?
        .query_row((key(id.0), status_number(status)), |row| {
            let tenant = TenantId::from_raw(row.get::<_, i64>(0)?.unsigned_abs());
            Ok(Turned { id, tenant, status, version: row.get(1)? })
        })
        .optional()
}

/// Disables an endpoint whose receiver asked for it, if it is active.
pub(super) fn disable(conn: &Connection, endpoint: EndpointId) -> rusqlite::Result<Option<Turned>> {
    let is_active: bool = conn
        .prepare_cached("SELECT 1 FROM endpoint WHERE id = ?1 AND status = ?2")?
        .exists((key(endpoint.0), status_number(EndpointStatus::Active)))?;
    if is_active { turn(conn, endpoint, EndpointStatus::Disabled(DisabledBy::Receiver)) } else { Ok(None) }
}

/// The endpoints with these ids (`BY_ID`) or of these lanes (`BY_LANE`).
pub(super) fn read(
    conn: &Connection,
    vault: &Vault,
    which: &'static str,
    keys: impl IntoIterator<Item = Key>,
) -> Result<Vec<Endpoint>, StoreError> {
    let mut found = Vec::new();
    for each in keys {
        found.extend(select(conn, vault, which, (key(each), 0), 1)?);
    }
    Ok(found)
}

const BY_ID: &str = "id = ?1 AND ?2 = ?2";
pub(super) const BY_LANE: &str = "lane = ?1 AND ?2 = ?2";
const OF_TENANT: &str = "tenant = ?1 AND status <> 3 AND id > ?2 ORDER BY id";
const NEWEST_OF_TENANT: &str = "tenant = ?1 AND status <> 3 AND id < ?2 ORDER BY id DESC";
const OLDEST: &str = "?1 = 0 AND status <> 3 AND id > ?2 ORDER BY id";
const NEWEST: &str = "?1 = 0 AND status <> 3 AND id < ?2 ORDER BY id DESC";
const BY_UID: &str = "SELECT id, sealed FROM endpoint WHERE uid = ?1";

/// A tenant's endpoints, ordered by id, after `after`.
pub(super) fn read_tenant(
    conn: &Connection,
    vault: &Vault,
    tenant: TenantId,
    after: Option<EndpointId>,
    limit: usize,
) -> Result<Vec<Endpoint>, StoreError> {
    select(conn, vault, OF_TENANT, (key(tenant.0), after.map_or(-1, |id| key(id.0))), limit)
}

/// The first endpoints that can be opened, at most `limit`. The limit is not in the SQL: rows of an erased subject stay
/// until the erasure deletes them, and if SQL counted them, a page could be short and be taken for the last one.
fn select(
    conn: &Connection,
    vault: &Vault,
    which: &'static str,
    params: (i64, i64),
    limit: usize,
) -> Result<Vec<Endpoint>, StoreError> {
    let sql = format!(
        "SELECT id, tenant, at_ms, sealed, ttl_us, send_order, on_dead, max_in_flight, status, version, lane
         FROM endpoint WHERE {which}"
    );
    prepare(conn, "read endpoints", &sql)?.read_some(params, limit, |row| endpoint(conn, vault, row))
}

/// Opens an endpoint's row; `None` when the key it is sealed under is destroyed.
fn endpoint(conn: &Connection, vault: &Vault, row: &Row<'_>) -> Result<Option<Endpoint>, StoreError> {
    let (id, tenant) = (EndpointId(stored_key(get(row, 0)?)?), TenantId(stored_key(get(row, 1)?)?));
    let lane = LaneId(stored_key(get(row, 10)?)?);
    let unsealed = Endpoint {
        version: get(row, 9)?,
        ttl: get::<Option<i64>>(row, 4)?.map(stored_micros),
        order: stored_order(get(row, 5)?)?,
        on_dead: stored_on_dead(get(row, 6)?)?,
        max_in_flight: get(row, 7)?,
        status: stored_status(get(row, 8)?)?,
        ..Endpoint::new(id, lane, tenant, Timestamp::from_millis(get(row, 2)?), "")
    };
    if unsealed.status == EndpointStatus::Deleted {
        return Ok(Some(unsealed.tombstone()));
    }
    let sealed: Vec<u8> = get(row, 3)?;
    let Some(key) = vault.by_id(conn, sealed::key_of(&sealed)?)? else { return Ok(None) };
    sealed::endpoint::open(&unsealed, &key, &sealed).map(Some)
}

#[cfg(test)]
mod tests;
