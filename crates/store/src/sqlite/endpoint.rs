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
use posthaste_crypto::digest::Digest;
use rusqlite::{Connection, OptionalExtension, Row};

use super::column::{
    get, key, micros, on_dead_number, order_number, status_number, stored_key, stored_micros, stored_on_dead,
    stored_order, stored_status,
};
use super::request::{PutEndpoint, Request};
use super::sealed::{self, endpoint::SealedEndpoint};
use super::vault::Vault;
use super::{Sqlite, failed};
use crate::journal;
use crate::row::{Act, DisabledBy, Endpoint, EndpointPut, EndpointStatus, Idempotency, ListOrder, SecretAct, Session};
use crate::{Directory, ENDPOINTS_LISTED_MAX, StoreError};

/// Endpoints kept in memory, at about 1 KiB each, and none that is large; beyond it all are forgotten and read again.
const KEPT_MAX: usize = 16_384;

impl Directory for Sqlite {
    async fn put_endpoint(
        &self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
        act: Act,
    ) -> Result<EndpointPut, StoreError> {
        self.put(session, endpoint, once, act, None).await
    }

    async fn rotate_secret(
        &self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
        act: Act,
    ) -> Result<EndpointPut, StoreError> {
        let note = journal::Entry::secret(endpoint.id, endpoint.tenant, SecretAct::Rotated, act);
        self.put(session, endpoint, once, act, Some(note)).await
    }

    async fn note_secret_shown(
        &self,
        session: Session,
        endpoint: EndpointId,
        tenant: TenantId,
        act: Act,
    ) -> Result<(), StoreError> {
        let note = journal::Entry::secret(endpoint, tenant, SecretAct::Shown, act);
        self.asked_work(session, 1, move |_, entries| {
            entries.push(&note);
            Ok(())
        })
        .await
    }

    async fn endpoint(&self, id: EndpointId) -> Result<Option<Arc<Endpoint>>, StoreError> {
        if let Some(entry) = self.shared.kept.get(id) {
            return Ok(Some(entry.endpoint));
        }
        let read_at = self.shared.kept.changes();
        let vault = Arc::clone(&self.shared.vault);
        let read = self.readers.read(move |conn| read(conn, &vault, &[id])).await?;
        Ok(self.shared.kept.keep(read_at, read).pop().map(|entry| entry.endpoint))
    }

    async fn endpoint_named(&self, tenant: TenantId, uid: String) -> Result<Option<EndpointId>, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        let read = move |conn: &Connection| {
            let hidden = sealed::endpoint::hide_uid(vault.lookups(), tenant, &uid);
            let found: Option<(i64, Vec<u8>)> = conn
                .prepare_cached(BY_UID)
                .and_then(|mut sql| sql.query_row([hidden], |row| Ok((row.get(0)?, row.get(1)?))).optional())
                .map_err(failed("look for an endpoint by its uid"))?;
            let Some((id, sealed)) = found else { return Ok(None) };
            // Of somebody who was erased: nobody finds it any more.
            Ok(if vault.is_there(conn, &sealed)? { Some(EndpointId(stored_key(id)?)) } else { None })
        };
        self.readers.read(read).await
    }

    async fn endpoints(&self, tenant: TenantId) -> Result<Vec<Arc<Endpoint>>, StoreError> {
        if let Some(list) = self.shared.kept.of_tenant(tenant) {
            return Ok(list);
        }
        let read_at = self.shared.kept.changes();
        let vault = Arc::clone(&self.shared.vault);
        let read = move |conn: &Connection| read_tenant(conn, &vault, tenant, None, ENDPOINTS_LISTED_MAX + 1);
        let read = self.readers.read(read).await?;
        Ok(self.shared.kept.keep_tenant(read_at, tenant, read))
    }

    async fn list_endpoints(
        &self,
        tenant: Option<TenantId>,
        order: ListOrder,
        after: Option<EndpointId>,
        limit: u32,
    ) -> Result<Vec<Arc<Endpoint>>, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        let newest_first = order == ListOrder::NewestFirst;
        let which = match tenant {
            Some(_) if newest_first => NEWEST_OF_TENANT,
            Some(_) => OF_TENANT,
            None if newest_first => NEWEST,
            None => OLDEST,
        };
        let from = super::derived::beyond(order, after.map(|id| key(id.0)));
        let tenant = tenant.map_or(0, |tenant| key(tenant.0));
        let read = move |conn: &Connection| select(conn, &vault, which, (tenant, from, limit.into()));
        Ok(self.readers.read(read).await?.into_iter().map(Arc::new).collect())
    }

    async fn endpoints_after(
        &self,
        tenant: TenantId,
        after: Option<EndpointId>,
        limit: u32,
    ) -> Result<Vec<Arc<Endpoint>>, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        let read = move |conn: &Connection| read_tenant(conn, &vault, tenant, after, limit as usize);
        Ok(self.readers.read(read).await?.into_iter().map(Arc::new).collect())
    }
}

impl Sqlite {
    /// Makes or changes an endpoint; a note goes along into the journal.
    async fn put(
        &self,
        session: Session,
        endpoint: Endpoint,
        once: Option<Idempotency>,
        act: Act,
        note: Option<journal::Entry>,
    ) -> Result<EndpointPut, StoreError> {
        let vault = &self.shared.vault;
        let keyed = once.as_ref().map(|call| (call.tenant, call.key));
        let key = self.key_of(sealed::endpoint::whose(vault, &endpoint)).await?;
        let put = PutEndpoint {
            sealed: SealedEndpoint::new(vault, &endpoint, &key, once.as_ref()),
            uid: endpoint.uid.as_deref().map(|uid| sealed::endpoint::hide_uid(vault.lookups(), endpoint.tenant, uid)),
            endpoint,
            once,
            act,
            note,
            put: EndpointPut::Done,
        };
        let put = self.writer.ask(|reply| Request::PutEndpoint { session, put: Box::new(put), reply }).await?;
        match (put, keyed) {
            (EndpointPut::Replayed(answer), Some(keyed)) => {
                Ok(EndpointPut::Replayed(self.open_answer(keyed, answer).await?))
            }
            (put, _) => Ok(put),
        }
    }
}

/// What there is of an endpoint before it is changed.
pub(super) struct Before {
    pub(super) tenant: TenantId,
    version: u32,
    is_deleted: bool,
}

pub(super) fn before(conn: &Connection, id: EndpointId) -> rusqlite::Result<Option<Before>> {
    conn.prepare_cached("SELECT tenant, version, status FROM endpoint WHERE id = ?1")?
        .query_row([key(id.0)], |row| {
            let tenant = TenantId::from_raw(row.get::<_, i64>(0)?.unsigned_abs());
            let is_deleted = row.get::<_, u8>(2)? == status_number(EndpointStatus::Deleted);
            Ok(Before { tenant, version: row.get(1)?, is_deleted })
        })
        .optional()
}

/// Whether this is the next version of what is there, and nobody else has its uid.
pub(super) fn may_put(
    conn: &Connection,
    endpoint: &Endpoint,
    before: Option<&Before>,
    uid: Option<&Digest>,
) -> rusqlite::Result<EndpointPut> {
    let next = before.map_or(0, |before| before.version + 1);
    if endpoint.version != next || before.is_some_and(|before| before.is_deleted) {
        return Ok(EndpointPut::Stale);
    }
    let Some(uid) = uid else { return Ok(EndpointPut::Done) };
    let holder: Option<i64> =
        conn.prepare_cached("SELECT id FROM endpoint WHERE uid = ?1")?.query_row([uid], |row| row.get(0)).optional()?;
    let is_taken = holder.is_some_and(|holder| holder != key(endpoint.id.0));
    Ok(if is_taken { EndpointPut::UidTaken } else { EndpointPut::Done })
}

/// Makes or changes an endpoint.
pub(super) fn put(conn: &Connection, endpoint: &Endpoint, uid: Option<&Digest>, sealed: &[u8]) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT OR REPLACE INTO endpoint
           (id, tenant, at_ms, version, uid, sealed, ttl_us, send_order, on_dead, max_in_flight, status)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?
    .execute((
        key(endpoint.id.0),
        key(endpoint.tenant.0),
        endpoint.at.as_millis(),
        endpoint.version,
        uid,
        sealed,
        endpoint.ttl.map(micros),
        order_number(endpoint.order),
        on_dead_number(endpoint.on_dead),
        endpoint.max_in_flight,
        status_number(endpoint.status),
    ))
    .map(drop)
}

/// Gives an endpoint another status, unless it is deleted; says whose it is. One that is deleted keeps nothing
/// that anybody chose.
pub(super) fn turn(
    conn: &Connection,
    endpoint: EndpointId,
    status: EndpointStatus,
) -> rusqlite::Result<Option<(EndpointId, TenantId)>> {
    let keeps = match status {
        EndpointStatus::Deleted => ", uid = NULL, sealed = x''",
        _ => "",
    };
    let tenant: Option<i64> = conn
        .prepare_cached(&format!(
            "UPDATE endpoint SET status = ?2, version = version + 1{keeps} WHERE id = ?1 AND status <> 3 RETURNING tenant"
        ))?
        .query_row((key(endpoint.0), status_number(status)), |row| row.get(0))
        .optional()?;
    Ok(tenant.and_then(|tenant| u64::try_from(tenant).ok()).map(|tenant| (endpoint, TenantId::from_raw(tenant))))
}

/// Disables an endpoint whose receiver asked for it, if it is active; says whose it is.
pub(super) fn disable(conn: &Connection, endpoint: EndpointId) -> rusqlite::Result<Option<(EndpointId, TenantId)>> {
    let is_active: bool = conn
        .prepare_cached("SELECT 1 FROM endpoint WHERE id = ?1 AND status = ?2")?
        .exists((key(endpoint.0), status_number(EndpointStatus::Active)))?;
    if is_active { turn(conn, endpoint, EndpointStatus::Disabled(DisabledBy::Receiver)) } else { Ok(None) }
}

/// Those of these endpoints that exist.
pub(super) fn read(conn: &Connection, vault: &Vault, ids: &[EndpointId]) -> Result<Vec<Endpoint>, StoreError> {
    let mut found = Vec::new();
    for id in ids {
        found.extend(select(conn, vault, "id = ?1 AND ?2 = ?2 LIMIT ?3", (key(id.0), 0, 1))?);
    }
    Ok(found)
}

const OF_TENANT: &str = "tenant = ?1 AND status <> 3 AND id > ?2 ORDER BY id LIMIT ?3";
const NEWEST_OF_TENANT: &str = "tenant = ?1 AND status <> 3 AND id < ?2 ORDER BY id DESC LIMIT ?3";
const OLDEST: &str = "?1 = 0 AND status <> 3 AND id > ?2 ORDER BY id LIMIT ?3";
const NEWEST: &str = "?1 = 0 AND status <> 3 AND id < ?2 ORDER BY id DESC LIMIT ?3";
const BY_UID: &str = "SELECT id, sealed FROM endpoint WHERE uid = ?1";

/// A tenant's endpoints, by id, from behind one.
pub(super) fn read_tenant(
    conn: &Connection,
    vault: &Vault,
    tenant: TenantId,
    after: Option<EndpointId>,
    limit: usize,
) -> Result<Vec<Endpoint>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    select(conn, vault, OF_TENANT, (key(tenant.0), after.map_or(-1, |id| key(id.0)), limit))
}

fn select(
    conn: &Connection,
    vault: &Vault,
    which: &'static str,
    params: (i64, i64, i64),
) -> Result<Vec<Endpoint>, StoreError> {
    let doing = failed("read endpoints");
    let mut sql = conn
        .prepare_cached(&format!(
            "SELECT id, tenant, at_ms, sealed, ttl_us, send_order, on_dead, max_in_flight, status, version
             FROM endpoint WHERE {which}"
        ))
        .map_err(&doing)?;
    let mut rows = sql.query(params).map_err(&doing)?;
    let mut endpoints = Vec::new();
    while let Some(row) = rows.next().map_err(&doing)? {
        endpoints.extend(endpoint(conn, vault, row)?);
    }
    Ok(endpoints)
}

/// One as it was read; none when the key it was sealed under is destroyed.
fn endpoint(conn: &Connection, vault: &Vault, row: &Row<'_>) -> Result<Option<Endpoint>, StoreError> {
    let (id, tenant) = (EndpointId(stored_key(get(row, 0)?)?), TenantId(stored_key(get(row, 1)?)?));
    let in_the_open = Endpoint {
        version: get(row, 9)?,
        ttl: get::<Option<i64>>(row, 4)?.map(stored_micros),
        order: stored_order(get(row, 5)?)?,
        on_dead: stored_on_dead(get(row, 6)?)?,
        max_in_flight: get(row, 7)?,
        status: stored_status(get(row, 8)?)?,
        ..Endpoint::new(id, tenant, Timestamp::from_millis(get(row, 2)?), "")
    };
    if in_the_open.status == EndpointStatus::Deleted {
        return Ok(Some(in_the_open.tombstone()));
    }
    let sealed: Vec<u8> = get(row, 3)?;
    let Some(key) = vault.by_id(conn, sealed::key_of(&sealed)?)? else { return Ok(None) };
    sealed::endpoint::open(&in_the_open, &key, &sealed).map(Some)
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
            let small = entries.iter().filter(|entry| !entry.endpoint.is_large());
            maps.by_id.extend(small.map(|entry| (entry.endpoint.id, entry.clone())));
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
        let is_small = list.len() <= KEPT_MAX && !list.iter().any(|endpoint| endpoint.is_large());
        if maps.changes == read_at && is_small {
            maps.make_room(list.len());
            maps.unlist(tenant);
            maps.listed += list.len();
            maps.by_tenant.insert(tenant, list.clone());
        }
        list
    }

    /// Forgets a tenant's: it, or somebody it knows, was erased.
    pub(super) fn forget_tenant(&self, tenant: TenantId) {
        let mut maps = self.0.write().unwrap_or_else(PoisonError::into_inner);
        maps.changes.0 += 1;
        maps.unlist(tenant);
        maps.by_id.retain(|_, entry| entry.endpoint.tenant != tenant);
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
    fn endpoints_are_found_by_their_indexes() {
        for (which, expected) in [
            (OF_TENANT, "SEARCH endpoint USING INDEX endpoint_tenant (tenant=? AND rowid>?)"),
            (NEWEST_OF_TENANT, "SEARCH endpoint USING INDEX endpoint_tenant (tenant=? AND rowid<?)"),
            (OLDEST, "SEARCH endpoint USING INTEGER PRIMARY KEY (rowid>?)"),
            (NEWEST, "SEARCH endpoint USING INTEGER PRIMARY KEY (rowid<?)"),
        ] {
            let plan = crate::sqlite::page::plan(&format!("SELECT sealed FROM endpoint WHERE {which}"));
            assert_eq!(plan, expected);
        }
        assert_eq!(crate::sqlite::page::plan(BY_UID), "SEARCH endpoint USING INDEX endpoint_uid (uid=?)");
    }
}
