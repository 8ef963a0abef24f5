//! What was agreed with tenants on how long their things are kept, and how far retention has come for each of the times
//! that are in use.
//!
//! Tenants with the same time are walked together, and all with whom none was agreed. Each walk has a place on the disk:
//! up to there it has let everything go, and it never looks back. So whoever changes over to another time takes that
//! walk's place back to where the walk he leaves has come.
//!
//! Invariant: of a tenant, nothing that a walk lets go lies at or before the place of the walk it belongs to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension};

use crate::StoreError;
use crate::journal::{Entries, Entry};
use crate::number::phase_number;
use crate::row::{Agreed, OwnRetention, RETENTION_STEP_MAX, RetentionPhase};
use crate::sqlite::column::{get, key, stored_key};
use crate::sqlite::{derived, failed};

/// Everything of tenants with one time, and one thing that is let go of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Walk {
    pub(super) phase: RetentionPhase,
    /// 0 for all with whom no time was agreed.
    kept_ms: i64,
}

impl Walk {
    pub(super) fn new(phase: RetentionPhase, kept: Option<Duration>) -> Self {
        Self { phase, kept_ms: kept.map_or(0, millis) }
    }

    /// The time that was agreed.
    pub(super) fn kept(self) -> Option<Duration> {
        stored(Some(self.kept_ms).filter(|kept| *kept > 0))
    }

    /// Up to where it has let everything go.
    pub(super) fn place(self, conn: &Connection) -> Result<i64, StoreError> {
        let found = conn
            .prepare_cached("SELECT upto FROM retention_walk WHERE phase = ?1 AND kept_ms = ?2")
            .and_then(|mut sql| sql.query_row((phase_number(self.phase), self.kept_ms), |row| row.get(0)).optional())
            .map_err(failed("read how far retention is"))?;
        Ok(found.unwrap_or(0))
    }

    /// It has come so far.
    pub(super) fn has_come(self, conn: &Connection, upto: i64) -> Result<(), StoreError> {
        if upto == self.place(conn)? {
            return Ok(());
        }
        conn.prepare_cached("INSERT OR REPLACE INTO retention_walk (phase, kept_ms, upto) VALUES (?1, ?2, ?3)")
            .and_then(|mut sql| sql.execute((phase_number(self.phase), self.kept_ms, upto)))
            .map(drop)
            .map_err(failed("note how far retention is"))
    }

    /// The walk of the same kind with the next longer time.
    pub(super) fn next(self, conn: &Connection) -> Result<Option<Self>, StoreError> {
        let Some(column) = column(self.phase) else { return Ok(None) };
        let kept: Option<i64> = conn
            .prepare_cached(&format!("SELECT min({column}) FROM own_retention WHERE {column} > ?1"))
            .and_then(|mut sql| sql.query_row([self.kept_ms], |row| row.get(0)))
            .map_err(failed("read which times were agreed"))?;
        Ok(kept.map(|kept_ms| Self { kept_ms, ..self }))
    }

    /// Takes it back for a tenant that comes from another one, or has it begin there.
    fn is_joined_from(self, conn: &Connection, other: Self) -> Result<(), StoreError> {
        let upto = other.place(conn)?;
        // Nobody has belonged to it: nothing before that place is its own.
        let begins = self.kept_ms > 0;
        let sql = if begins {
            "INSERT INTO retention_walk (phase, kept_ms, upto) VALUES (?1, ?2, ?3)
             ON CONFLICT DO UPDATE SET upto = min(upto, excluded.upto)"
        } else {
            "UPDATE retention_walk SET upto = min(upto, ?3) WHERE phase = ?1 AND kept_ms = ?2"
        };
        conn.prepare_cached(sql)
            .and_then(|mut sql| sql.execute((phase_number(self.phase), self.kept_ms, upto)))
            .map(drop)
            .map_err(failed("take retention back"))
    }

    /// Forgets it when nobody belongs to it any more.
    fn is_left(self, conn: &Connection) -> Result<(), StoreError> {
        let Some(column) = column(self.phase).filter(|_| self.kept_ms > 0) else { return Ok(()) };
        conn.prepare_cached(&format!(
            "DELETE FROM retention_walk WHERE phase = ?1 AND kept_ms = ?2
               AND NOT EXISTS (SELECT 1 FROM own_retention WHERE {column} = ?2)"
        ))
        .and_then(|mut sql| sql.execute((phase_number(self.phase), self.kept_ms)))
        .map(drop)
        .map_err(failed("forget a time that nobody has"))
    }
}

/// By which of the times a phase goes, where it has a walk for each.
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

/// Takes over what was agreed; see [`crate::Archive::agree`].
pub(in crate::sqlite) fn agree(
    conn: &Connection,
    agreed: &Agreed,
    now: Timestamp,
    entries: &mut Entries,
) -> Result<u64, StoreError> {
    let before = read(conn, agreed)?;
    let after: BTreeMap<TenantId, OwnRetention> =
        agreed.own.iter().copied().filter(|(_, own)| *own != OwnRetention::default()).collect();
    let tenants: BTreeSet<TenantId> = before.keys().chain(after.keys()).copied().collect();
    let mut changed = 0;
    for tenant in tenants {
        let was = before.get(&tenant).copied().unwrap_or_default();
        let is = after.get(&tenant).copied().unwrap_or_default();
        if was == is {
            continue;
        }
        changed += 1;
        write(conn, tenant, is, now)?;
        entries.push(&Entry::Agreed { tenant, own: is, at: now });
        for (phase, was, is) in [
            (RetentionPhase::Pending, was.history, is.history),
            (RetentionPhase::Messages, was.payload, is.payload),
            (RetentionPhase::History, was.history, is.history),
        ] {
            let (was, is) = (Walk::new(phase, was), Walk::new(phase, is));
            if was != is {
                is.is_joined_from(conn, was)?;
                was.is_left(conn)?;
            }
        }
    }
    Ok(changed)
}

fn read(conn: &Connection, agreed: &Agreed) -> Result<BTreeMap<TenantId, OwnRetention>, StoreError> {
    let doing = failed("read what was agreed");
    let after = agreed.after.map_or(-1, |tenant| key(tenant.0));
    let upto = agreed.upto.map_or(i64::MAX, |tenant| key(tenant.0));
    let mut sql = conn
        .prepare_cached("SELECT tenant, payload_ms, history_ms FROM own_retention WHERE tenant > ?1 AND tenant <= ?2")
        .map_err(&doing)?;
    let mut rows = sql.query((after, upto)).map_err(&doing)?;
    let mut found = BTreeMap::new();
    while let Some(row) = rows.next().map_err(&doing)? {
        let own = OwnRetention { payload: stored(get(row, 1)?), history: stored(get(row, 2)?) };
        found.insert(TenantId(stored_key(get(row, 0)?)?), own);
    }
    Ok(found)
}

fn write(conn: &Connection, tenant: TenantId, own: OwnRetention, now: Timestamp) -> Result<(), StoreError> {
    let written = if own == OwnRetention::default() {
        conn.prepare_cached("DELETE FROM own_retention WHERE tenant = ?1")
            .and_then(|mut sql| sql.execute([key(tenant.0)]))
    } else {
        conn.prepare_cached(
            "INSERT OR REPLACE INTO own_retention (tenant, payload_ms, history_ms, told_ms) VALUES (?1, ?2, ?3, ?4)",
        )
        .and_then(|mut sql| {
            sql.execute((key(tenant.0), own.payload.map(millis), own.history.map(millis), now.as_millis()))
        })
    };
    written.map(drop).map_err(failed("write what was agreed"))
}

/// Tells the journal again what rows told that are about to go: an audit must find it. Says how much that was.
pub(super) fn tell_again(
    conn: &Connection,
    old: Timestamp,
    now: Timestamp,
    entries: &mut Entries,
) -> Result<usize, StoreError> {
    let doing = failed("tell again what was agreed");
    let mut sql = conn
        .prepare_cached("SELECT tenant, payload_ms, history_ms FROM own_retention WHERE told_ms <= ?1 LIMIT ?2")
        .map_err(&doing)?;
    let mut rows = sql.query((old.as_millis(), RETENTION_STEP_MAX)).map_err(&doing)?;
    let mut told = Vec::new();
    while let Some(row) = rows.next().map_err(&doing)? {
        let own = OwnRetention { payload: stored(get(row, 1)?), history: stored(get(row, 2)?) };
        told.push((TenantId(stored_key(get(row, 0)?)?), own));
    }
    drop(rows);
    for (tenant, own) in &told {
        write(conn, *tenant, *own, now)?;
        entries.push(&Entry::Agreed { tenant: *tenant, own: *own, at: now });
    }
    Ok(told.len())
}

/// The longest time that histories are kept for by agreement.
pub(super) fn longest_history(conn: &Connection) -> Result<Option<Duration>, StoreError> {
    conn.prepare_cached("SELECT max(history_ms) FROM own_retention")
        .and_then(|mut sql| sql.query_row([], |row| row.get(0)))
        .map(stored)
        .map_err(failed("read which times were agreed"))
}

/// Up to which row of the journal nobody's history is looked for any more.
pub(super) fn walked(conn: &Connection) -> Result<i64, StoreError> {
    let mut walk = Some(Walk::new(RetentionPhase::History, None));
    let mut least = i64::MAX;
    while let Some(this) = walk {
        least = least.min(this.place(conn)?);
        walk = this.next(conn)?;
    }
    Ok(least)
}

/// Who owns endpoints, and what was agreed with them.
pub(super) struct Owners<'c> {
    conn: &'c Connection,
    /// Whether nothing was agreed with anybody.
    are_equals: bool,
    endpoints: BTreeMap<EndpointId, TenantId>,
    own: BTreeMap<TenantId, OwnRetention>,
}

impl<'c> Owners<'c> {
    pub(super) fn new(conn: &'c Connection) -> Result<Self, StoreError> {
        let any = conn
            .prepare_cached("SELECT 1 FROM own_retention LIMIT 1")
            .and_then(|mut sql| sql.exists([]))
            .map_err(failed("read what was agreed"))?;
        Ok(Self { conn, are_equals: !any, endpoints: BTreeMap::new(), own: BTreeMap::new() })
    }

    /// What was agreed with a tenant.
    pub(super) fn own(&mut self, tenant: TenantId) -> Result<OwnRetention, StoreError> {
        if self.are_equals {
            return Ok(OwnRetention::default());
        }
        if let Some(known) = self.own.get(&tenant) {
            return Ok(*known);
        }
        let own = self
            .conn
            .prepare_cached("SELECT payload_ms, history_ms FROM own_retention WHERE tenant = ?1")
            .and_then(|mut sql| {
                let own = |row: &rusqlite::Row<'_>| {
                    Ok(OwnRetention { payload: stored(row.get(0)?), history: stored(row.get(1)?) })
                };
                sql.query_row([key(tenant.0)], own).optional()
            })
            .map_err(failed("read what was agreed"))?
            .unwrap_or_default();
        self.own.insert(tenant, own);
        Ok(own)
    }

    /// The tenant of an endpoint, where that matters.
    pub(super) fn of(&mut self, endpoint: EndpointId) -> Result<Option<TenantId>, StoreError> {
        if self.are_equals {
            return Ok(None);
        }
        derived::owner(self.conn, &mut self.endpoints, endpoint).map(Some)
    }

    /// Whether what goes to an endpoint belongs to a walk by how long histories are kept.
    pub(super) fn belongs(&mut self, endpoint: EndpointId, walk: Walk) -> Result<bool, StoreError> {
        let own = match self.of(endpoint)? {
            Some(tenant) => self.own(tenant)?,
            None => OwnRetention::default(),
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
