//! Endpoints, and those of them that are kept in memory: every accept asks for its tenant's.
//!
//! Invariant: what is kept is what was committed last. A change forgets what it touched before it
//! is answered, and what was read before a change is not kept after it.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use posthaste_core::id::{EndpointId, LaneId, TenantId};
use posthaste_core::id_map::IdMap;
use posthaste_core::queue::LaneSettings;
use posthaste_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row};

use super::column::{
    get, key, micros, on_dead_number, order_number, status_number, stored_key, stored_micros, stored_on_dead,
    stored_order, stored_status,
};
use super::request::{PutEndpoint, Request};
use super::{Sqlite, failed};
use crate::row::{Acceptance, Endpoint, EndpointStatus, Idempotency, Session};
use crate::{Directory, ENDPOINTS_LISTED_MAX, StoreError};

/// Endpoints kept in memory, at about 1 KiB each; beyond it all are forgotten and read again.
const KEPT_MAX: usize = 16_384;

impl Directory for Sqlite {
    async fn put_endpoint(
        &self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
    ) -> Result<Acceptance, StoreError> {
        let acceptance = Acceptance::Fresh;
        let put = Box::new(PutEndpoint { endpoint, once, acceptance });
        self.writer.ask(|reply| Request::PutEndpoint { session, put, reply }).await
    }

    async fn endpoint(&self, id: EndpointId) -> Result<Option<Arc<Endpoint>>, StoreError> {
        if let Some(entry) = self.shared.kept.get(id) {
            return Ok(Some(entry.endpoint));
        }
        let read_at = self.shared.kept.changes();
        let read = self.readers.read(move |conn| read(conn, &[id])).await?;
        Ok(self.shared.kept.keep(read_at, read).pop().map(|entry| entry.endpoint))
    }

    async fn endpoints(&self, tenant: TenantId) -> Result<Vec<Arc<Endpoint>>, StoreError> {
        if let Some(list) = self.shared.kept.of_tenant(tenant) {
            return Ok(list);
        }
        let read_at = self.shared.kept.changes();
        let read = self.readers.read(move |conn| read_tenant(conn, tenant, None, ENDPOINTS_LISTED_MAX + 1)).await?;
        Ok(self.shared.kept.keep_tenant(read_at, tenant, read))
    }

    async fn endpoints_after(
        &self,
        tenant: TenantId,
        after: Option<EndpointId>,
        limit: u32,
    ) -> Result<Vec<Arc<Endpoint>>, StoreError> {
        let read = move |conn: &Connection| read_tenant(conn, tenant, after, limit as usize);
        Ok(self.readers.read(read).await?.into_iter().map(Arc::new).collect())
    }
}

/// Makes or changes an endpoint; says whose it was before.
pub(super) fn put(conn: &Connection, endpoint: &Endpoint) -> rusqlite::Result<Option<TenantId>> {
    let id = key(endpoint.id.0);
    let before: Option<i64> = conn
        .prepare_cached("SELECT tenant FROM endpoint WHERE id = ?1")?
        .query_row([id], |row| row.get(0))
        .optional()?;
    conn.prepare_cached(
        "INSERT OR REPLACE INTO endpoint (id, tenant, at_ms, url, policy, ttl_us, send_order, on_dead, max_in_flight, status)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    )?
    .execute((
        id,
        key(endpoint.tenant.0),
        endpoint.at.as_millis(),
        &endpoint.url,
        &endpoint.policy,
        endpoint.ttl.map(micros),
        order_number(endpoint.order),
        on_dead_number(endpoint.on_dead),
        endpoint.max_in_flight,
        status_number(endpoint.status),
    ))?;
    conn.prepare_cached("DELETE FROM endpoint_secret WHERE endpoint = ?1")?.execute([id])?;
    let mut secret = conn.prepare_cached("INSERT INTO endpoint_secret VALUES (?1, ?2, ?3)")?;
    for (place, text) in (0_i64..).zip(&endpoint.secrets) {
        secret.execute((id, place, text))?;
    }
    conn.prepare_cached("DELETE FROM endpoint_event_type WHERE endpoint = ?1")?.execute([id])?;
    let mut event_type = conn.prepare_cached("INSERT INTO endpoint_event_type VALUES (?1, ?2, ?3)")?;
    for (place, text) in (0_i64..).zip(&endpoint.event_types) {
        event_type.execute((id, place, text))?;
    }
    Ok(before.and_then(|tenant| u64::try_from(tenant).ok()).map(TenantId::from_raw))
}

/// Marks an endpoint as gone; says which of whom, if there is one.
pub(super) fn end(conn: &Connection, endpoint: EndpointId) -> rusqlite::Result<Option<(EndpointId, TenantId)>> {
    let tenant: Option<i64> = conn
        .prepare_cached("UPDATE endpoint SET status = ?2 WHERE id = ?1 RETURNING tenant")?
        .query_row((key(endpoint.0), status_number(EndpointStatus::Gone)), |row| row.get(0))
        .optional()?;
    Ok(tenant.and_then(|tenant| u64::try_from(tenant).ok()).map(|tenant| (endpoint, TenantId::from_raw(tenant))))
}

/// Those of these endpoints that exist.
pub(super) fn read(conn: &Connection, ids: &[EndpointId]) -> Result<Vec<Endpoint>, StoreError> {
    let mut found = Vec::new();
    for id in ids {
        found.extend(select(conn, "id = ?1 AND ?2 = ?2 LIMIT ?3", (key(id.0), 0, 1))?);
    }
    Ok(found)
}

const OF_TENANT: &str = "tenant = ?1 AND id > ?2 ORDER BY id LIMIT ?3";

/// A tenant's endpoints, by id, from behind one.
pub(super) fn read_tenant(
    conn: &Connection,
    tenant: TenantId,
    after: Option<EndpointId>,
    limit: usize,
) -> Result<Vec<Endpoint>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    select(conn, OF_TENANT, (key(tenant.0), after.map_or(-1, |id| key(id.0)), limit))
}

fn select(conn: &Connection, which: &'static str, params: (i64, i64, i64)) -> Result<Vec<Endpoint>, StoreError> {
    let doing = failed("read endpoints");
    let mut sql = conn
        .prepare_cached(&format!(
            "SELECT id, tenant, at_ms, url, policy, ttl_us, send_order, on_dead, max_in_flight, status
             FROM endpoint WHERE {which}"
        ))
        .map_err(&doing)?;
    let mut rows = sql.query(params).map_err(&doing)?;
    let mut endpoints = Vec::new();
    while let Some(row) = rows.next().map_err(&doing)? {
        endpoints.push(endpoint(conn, row)?);
    }
    Ok(endpoints)
}

fn endpoint(conn: &Connection, row: &Row<'_>) -> Result<Endpoint, StoreError> {
    let id: i64 = get(row, 0)?;
    Ok(Endpoint {
        id: EndpointId(stored_key(id)?),
        tenant: TenantId(stored_key(get(row, 1)?)?),
        at: Timestamp::from_millis(get(row, 2)?),
        url: get(row, 3)?,
        secrets: texts(conn, "SELECT secret FROM endpoint_secret WHERE endpoint = ?1 ORDER BY place", id)?,
        event_types: texts(conn, "SELECT event_type FROM endpoint_event_type WHERE endpoint = ?1 ORDER BY place", id)?,
        policy: get(row, 4)?,
        ttl: get::<Option<i64>>(row, 5)?.map(stored_micros),
        order: stored_order(get(row, 6)?)?,
        on_dead: stored_on_dead(get(row, 7)?)?,
        max_in_flight: get(row, 8)?,
        status: stored_status(get(row, 9)?)?,
    })
}

fn texts(conn: &Connection, sql: &str, endpoint: i64) -> Result<Vec<String>, StoreError> {
    conn.prepare_cached(sql)
        .and_then(|mut sql| sql.query_map([endpoint], |row| row.get(0))?.collect())
        .map_err(failed("read an endpoint"))
}

/// An endpoint in memory, with what the dispatch loop needs of it.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) lane: Arc<LaneSettings>,
}

/// Endpoints in memory.
#[derive(Debug, Default)]
pub(super) struct Kept(RwLock<Maps>);

#[derive(Debug, Default)]
struct Maps {
    changes: Changes,
    by_id: IdMap<EndpointId, Entry>,
    by_tenant: IdMap<TenantId, Vec<Arc<Endpoint>>>,
    /// Over all of `by_tenant`.
    listed: usize,
}

/// How many changes there were when something was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes(u64);

impl Kept {
    /// To be asked before a read whose result is to be kept.
    pub(super) fn changes(&self) -> Changes {
        self.0.read().unwrap_or_else(PoisonError::into_inner).changes
    }

    pub(super) fn get(&self, id: EndpointId) -> Option<Entry> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).by_id.get(&id).cloned()
    }

    pub(super) fn of_tenant(&self, tenant: TenantId) -> Option<Vec<Arc<Endpoint>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).by_tenant.get(&tenant).cloned()
    }

    /// The settings of these lanes that are in memory, and the endpoints to read for the others.
    pub(super) fn lanes(&self, lanes: &[LaneId]) -> (HashMap<LaneId, Arc<LaneSettings>>, Vec<EndpointId>) {
        let maps = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut found = HashMap::with_capacity(lanes.len());
        let mut missing = Vec::new();
        for lane in lanes {
            match maps.by_id.get(&lane.endpoint()) {
                Some(entry) => _ = found.insert(*lane, Arc::clone(&entry.lane)),
                None => missing.push(lane.endpoint()),
            }
        }
        (found, missing)
    }

    /// Keeps what was read, unless something changed since.
    pub(super) fn keep(&self, read_at: Changes, endpoints: Vec<Endpoint>) -> Vec<Entry> {
        let entries: Vec<Entry> = endpoints.into_iter().map(Entry::new).collect();
        let mut maps = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if maps.changes == read_at {
            maps.make_room(entries.len());
            maps.by_id.extend(entries.iter().map(|entry| (entry.endpoint.id, entry.clone())));
        }
        entries
    }

    /// Keeps a tenant's endpoints, unless something changed since they were read.
    pub(super) fn keep_tenant(
        &self,
        read_at: Changes,
        tenant: TenantId,
        endpoints: Vec<Endpoint>,
    ) -> Vec<Arc<Endpoint>> {
        let list: Vec<Arc<Endpoint>> = self.keep(read_at, endpoints).into_iter().map(|entry| entry.endpoint).collect();
        let mut maps = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if maps.changes == read_at && list.len() <= KEPT_MAX {
            maps.make_room(list.len());
            maps.unlist(tenant);
            maps.listed += list.len();
            maps.by_tenant.insert(tenant, list.clone());
        }
        list
    }

    /// Forgets what was changed. Called after the commit and before its answer.
    pub(super) fn forget(&self, changed: &[(EndpointId, TenantId)]) {
        if changed.is_empty() {
            return;
        }
        let mut maps = self.0.write().unwrap_or_else(PoisonError::into_inner);
        maps.changes.0 += 1;
        for (endpoint, tenant) in changed {
            maps.by_id.remove(endpoint);
            maps.unlist(*tenant);
        }
    }
}

impl Maps {
    fn make_room(&mut self, more: usize) {
        if self.by_id.len() + more > KEPT_MAX || self.listed + more > KEPT_MAX {
            self.by_id.clear();
            self.by_tenant.clear();
            self.listed = 0;
        }
    }

    fn unlist(&mut self, tenant: TenantId) {
        if let Some(list) = self.by_tenant.remove(&tenant) {
            self.listed -= list.len();
        }
    }
}

impl Entry {
    fn new(endpoint: Endpoint) -> Self {
        Self { lane: Arc::new(endpoint.lane_settings()), endpoint: Arc::new(endpoint) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_s_endpoints_are_walked_by_their_index() {
        let plan = crate::sqlite::page::plan(&format!("SELECT url FROM endpoint WHERE {OF_TENANT}"));
        assert_eq!(plan, "SEARCH endpoint USING INDEX endpoint_tenant (tenant=? AND rowid>?)");
    }
}
