//! Retention overrides of tenants, and the progress of retention for each retention time in use.
//!
//! Tenants with the same retention time share one walk, and so do all tenants without an override. Each walk has a
//! place in the file: up to there it has deleted everything, and it never goes back by itself. So when a tenant changes
//! over to another time, the place of the walk it joins is moved back to the place of the walk it leaves, if that is
//! lower.
//!
//! Invariant: a tenant has no row for its walk to delete at or before the place of that walk.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use posthaste_core::{EndpointId, TenantId, Timestamp};
use rusqlite::{Connection, Row};

use crate::journal::{Entries, JournalEntry};
use crate::sqlite::{derived, get, key, phase_number, prepare, stored_key};
use crate::{RETENTION_STEP_MAX, RetentionOverride, RetentionOverrides, RetentionPhase, StoreError};

const READ_OVERRIDES: &str = "read retention overrides";

/// The deletion of one kind of data of all tenants with the same retention time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RetentionWalk {
    pub(super) phase: RetentionPhase,
    /// The retention time; 0 for tenants without an override.
    kept_ms: i64,
}

impl RetentionWalk {
    pub(super) fn new(phase: RetentionPhase, kept: Option<Duration>) -> Self {
        Self { phase, kept_ms: kept.map_or(0, millis) }
    }

    /// The retention override of its tenants; `None` for those without one.
    pub(super) fn kept(self) -> Option<Duration> {
        stored(Some(self.kept_ms).filter(|kept| *kept > 0))
    }

    /// The row up to which it has deleted everything.
    pub(super) fn place(self, conn: &Connection) -> Result<i64, StoreError> {
        let sql = "SELECT upto FROM retention_walk WHERE phase = ?1 AND kept_ms = ?2";
        let mut sql = prepare(conn, "read the progress of retention", sql)?;
        Ok(sql.find((phase_number(self.phase), self.kept_ms))?.unwrap_or(0))
    }

    pub(super) fn has_come(self, conn: &Connection, upto: i64) -> Result<(), StoreError> {
        if upto == self.place(conn)? {
            return Ok(());
        }
        let sql = "INSERT OR REPLACE INTO retention_walk (phase, kept_ms, upto) VALUES (?1, ?2, ?3)";
        let mut sql = prepare(conn, "store the progress of retention", sql)?;
        sql.execute((phase_number(self.phase), self.kept_ms, upto)).map(drop)
    }

    /// The walk of the same phase with the next longer retention time.
    pub(super) fn next(self, conn: &Connection) -> Result<Option<Self>, StoreError> {
        let Some(column) = column(self.phase) else { return Ok(None) };
        let sql = format!("SELECT min({column}) FROM own_retention WHERE {column} > ?1");
        let kept: Option<i64> = prepare(conn, READ_OVERRIDES, &sql)?.value([self.kept_ms])?;
        Ok(kept.map(|kept_ms| Self { kept_ms, ..self }))
    }

    /// Moves its place back for a tenant that joins from another walk; a new walk begins at that place.
    fn join_from(self, conn: &Connection, other: Self) -> Result<(), StoreError> {
        let upto = other.place(conn)?;
        // A walk of an override may be new. Then no other tenant belongs to it, so it may begin at that place.
        let may_be_new = self.kept_ms > 0;
        let sql = if may_be_new {
            "INSERT INTO retention_walk (phase, kept_ms, upto) VALUES (?1, ?2, ?3)
             ON CONFLICT DO UPDATE SET upto = min(upto, excluded.upto)"
        } else {
            "UPDATE retention_walk SET upto = min(upto, ?3) WHERE phase = ?1 AND kept_ms = ?2"
        };
        let mut sql = prepare(conn, "move retention back", sql)?;
        sql.execute((phase_number(self.phase), self.kept_ms, upto)).map(drop)
    }

    /// Deletes its place if no tenant belongs to it any more.
    fn delete_if_unused(self, conn: &Connection) -> Result<(), StoreError> {
        let Some(column) = column(self.phase).filter(|_| self.kept_ms > 0) else { return Ok(()) };
        let sql = format!(
            "DELETE FROM retention_walk WHERE phase = ?1 AND kept_ms = ?2
               AND NOT EXISTS (SELECT 1 FROM own_retention WHERE {column} = ?2)"
        );
        let mut sql = prepare(conn, "delete an unused retention time", &sql)?;
        sql.execute((phase_number(self.phase), self.kept_ms)).map(drop)
    }
}

/// The column with the override that applies to a phase; `None` for phases without a walk for each retention time.
fn column(phase: RetentionPhase) -> Option<&'static str> {
    match phase {
        RetentionPhase::Messages => Some("payload_ms"),
        RetentionPhase::Pending | RetentionPhase::History => Some("history_ms"),
        RetentionPhase::Kept
        | RetentionPhase::Jobs
        | RetentionPhase::Keys
        | RetentionPhase::Journal
        | RetentionPhase::Space => None,
    }
}

/// Applies retention overrides, and returns how many tenants changed; see [`crate::Archive::set_retention_overrides`].
pub(in crate::sqlite) fn set_retention_overrides(
    conn: &Connection,
    overrides: &RetentionOverrides,
    now: Timestamp,
    entries: &mut Entries,
) -> Result<u64, StoreError> {
    let before = read(conn, overrides)?;
    let after: BTreeMap<TenantId, RetentionOverride> =
        overrides.own.iter().copied().filter(|(_, own)| *own != RetentionOverride::default()).collect();
    let tenants: BTreeSet<TenantId> = before.keys().chain(after.keys()).copied().collect();
    let mut changed = 0;
    for tenant in tenants {
        let old = before.get(&tenant).copied().unwrap_or_default();
        let new = after.get(&tenant).copied().unwrap_or_default();
        if old == new {
            continue;
        }
        changed += 1;
        write(conn, tenant, new, now)?;
        entries.push(&JournalEntry::Agreed { tenant, own: new, at: now });
        for (phase, old, new) in [
            (RetentionPhase::Pending, old.history, new.history),
            (RetentionPhase::Messages, old.payload, new.payload),
            (RetentionPhase::History, old.history, new.history),
        ] {
            let (old, new) = (RetentionWalk::new(phase, old), RetentionWalk::new(phase, new));
            if old != new {
                new.join_from(conn, old)?;
                old.delete_if_unused(conn)?;
            }
        }
    }
    Ok(changed)
}

fn read(
    conn: &Connection,
    overrides: &RetentionOverrides,
) -> Result<BTreeMap<TenantId, RetentionOverride>, StoreError> {
    let after = overrides.after.map_or(-1, |tenant| key(tenant.0));
    let upto = overrides.upto.map_or(i64::MAX, |tenant| key(tenant.0));
    let sql = "SELECT tenant, payload_ms, history_ms FROM own_retention WHERE tenant > ?1 AND tenant <= ?2";
    Ok(prepare(conn, READ_OVERRIDES, sql)?.read_all((after, upto), stored_override)?.into_iter().collect())
}

fn stored_override(row: &Row<'_>) -> Result<(TenantId, RetentionOverride), StoreError> {
    let own = RetentionOverride { payload: stored(get(row, 1)?), history: stored(get(row, 2)?) };
    Ok((TenantId(stored_key(get(row, 0)?)?), own))
}

fn write(conn: &Connection, tenant: TenantId, own: RetentionOverride, now: Timestamp) -> Result<(), StoreError> {
    let doing = "write a retention override";
    if own == RetentionOverride::default() {
        prepare(conn, doing, "DELETE FROM own_retention WHERE tenant = ?1")?.execute([key(tenant.0)])?;
    } else {
        let sql =
            "INSERT OR REPLACE INTO own_retention (tenant, payload_ms, history_ms, told_ms) VALUES (?1, ?2, ?3, ?4)";
        let columns = (key(tenant.0), own.payload.map(millis), own.history.map(millis), now.as_millis());
        prepare(conn, doing, sql)?.execute(columns)?;
    }
    Ok(())
}

/// Writes overrides to the journal again whose entries are in rows about to be deleted, since an audit needs them.
/// Returns how many.
pub(super) fn tell_again(
    conn: &Connection,
    old: Timestamp,
    now: Timestamp,
    entries: &mut Entries,
) -> Result<usize, StoreError> {
    let sql = "SELECT tenant, payload_ms, history_ms FROM own_retention WHERE told_ms <= ?1 LIMIT ?2";
    let mut sql = prepare(conn, "repeat retention overrides in the journal", sql)?;
    let repeated = sql.read_all((old.as_millis(), RETENTION_STEP_MAX), stored_override)?;
    for (tenant, own) in &repeated {
        write(conn, *tenant, *own, now)?;
        entries.push(&JournalEntry::Agreed { tenant: *tenant, own: *own, at: now });
    }
    Ok(repeated.len())
}

pub(super) fn longest_history(conn: &Connection) -> Result<Option<Duration>, StoreError> {
    prepare(conn, READ_OVERRIDES, "SELECT max(history_ms) FROM own_retention")?.value([]).map(stored)
}

/// The row of the journal up to which the outcomes of all tenants are deleted.
pub(super) fn walked(conn: &Connection) -> Result<i64, StoreError> {
    let mut walk = Some(RetentionWalk::new(RetentionPhase::History, None));
    let mut least = i64::MAX;
    while let Some(this) = walk {
        least = least.min(this.place(conn)?);
        walk = this.next(conn)?;
    }
    Ok(least)
}

/// A cache of the tenants of endpoints and their retention overrides.
pub(super) struct Owners<'c> {
    conn: &'c Connection,
    /// Whether no tenant has an override.
    has_none: bool,
    endpoints: BTreeMap<EndpointId, TenantId>,
    own: BTreeMap<TenantId, RetentionOverride>,
}

impl<'c> Owners<'c> {
    pub(super) fn new(conn: &'c Connection) -> Result<Self, StoreError> {
        let any = prepare(conn, READ_OVERRIDES, "SELECT 1 FROM own_retention LIMIT 1")?.exists([])?;
        Ok(Self { conn, has_none: !any, endpoints: BTreeMap::new(), own: BTreeMap::new() })
    }

    pub(super) fn own(&mut self, tenant: TenantId) -> Result<RetentionOverride, StoreError> {
        if self.has_none {
            return Ok(RetentionOverride::default());
        }
        if let Some(known) = self.own.get(&tenant) {
            return Ok(*known);
        }
        let sql = "SELECT payload_ms, history_ms FROM own_retention WHERE tenant = ?1";
        let found: Option<(_, _)> = prepare(self.conn, READ_OVERRIDES, sql)?.columns([key(tenant.0)])?;
        let (payload, history) = found.unwrap_or_default();
        let own = RetentionOverride { payload: stored(payload), history: stored(history) };
        self.own.insert(tenant, own);
        Ok(own)
    }

    /// The tenant of an endpoint; `None` if no tenant has an override, so that it does not matter.
    pub(super) fn of(&mut self, endpoint: EndpointId) -> Result<Option<TenantId>, StoreError> {
        if self.has_none {
            return Ok(None);
        }
        derived::owner(self.conn, &mut self.endpoints, endpoint).map(Some)
    }

    /// Whether deliveries of an endpoint belong to a walk that deletes by the retention of histories.
    pub(super) fn belongs(&mut self, endpoint: EndpointId, walk: RetentionWalk) -> Result<bool, StoreError> {
        let own = match self.of(endpoint)? {
            Some(tenant) => self.own(tenant)?,
            None => RetentionOverride::default(),
        };
        Ok(own.history == walk.kept())
    }
}

fn millis(kept: Duration) -> i64 {
    i64::try_from(kept.as_millis()).unwrap_or(i64::MAX)
}

fn stored(kept_ms: Option<i64>) -> Option<Duration> {
    kept_ms.and_then(|kept| u64::try_from(kept).ok()).map(Duration::from_millis)
}
