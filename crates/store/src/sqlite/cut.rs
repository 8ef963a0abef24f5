//! Cuts in force: one row each, however many deliveries they end.

use posthaste_core::{Cut, CutScope, Timestamp};
use rusqlite::{Connection, Row};

use super::endpoint::Turned;
use super::{
    cause_number, endpoint, failed, get, job, key, prepare, scope_columns, stored_cause, stored_key, stored_scope,
};
use crate::StoreError;

/// Puts a cut in force, merged with the one of the same scope if there is one. Returns the endpoint
/// whose status it changed, if any.
pub(super) fn put(conn: &Connection, cut: &Cut) -> Result<Option<Turned>, StoreError> {
    let doing = failed("put a cut in force");
    match find(conn, cut.scope)? {
        Some(mut found) => {
            found.merge(cut.clone());
            write(conn, &found).map_err(&doing)?;
        }
        None => write(conn, cut).map_err(&doing)?,
    }
    if let CutScope::Message(message) = cut.scope {
        job::end_fan_out(conn, message)?;
    }
    let Some((endpoint, change)) = cut.endpoint else { return Ok(None) };
    endpoint::turn(conn, endpoint, change.into()).map_err(&doing)
}

/// Writes the row of a cut. The deliveries it spares are added to those already spared.
fn write(conn: &Connection, cut: &Cut) -> rusqlite::Result<()> {
    let (kind, scope) = scope_columns(cut.scope);
    conn.prepare_cached("INSERT OR REPLACE INTO cut (kind, scope, upto, cause, at_ms) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute((kind, scope, key(cut.upto), cause_number(cut.cause), cut.at.as_millis()))?;
    let mut spare = conn.prepare_cached("INSERT OR IGNORE INTO spared (kind, scope, delivery) VALUES (?1, ?2, ?3)")?;
    for delivery in &cut.spared {
        spare.execute((kind, scope, key(delivery.0)))?;
    }
    Ok(())
}

pub(super) fn remove(conn: &Connection, scope: CutScope) -> rusqlite::Result<()> {
    let columns = scope_columns(scope);
    conn.prepare_cached("DELETE FROM cut WHERE kind = ?1 AND scope = ?2")?.execute(columns)?;
    conn.prepare_cached("DELETE FROM spared WHERE kind = ?1 AND scope = ?2")?.execute(columns)?;
    Ok(())
}

/// Every cut, ordered by scope, without the deliveries they spared.
pub(super) fn all(conn: &Connection) -> Result<Vec<Cut>, StoreError> {
    let sql = "SELECT kind, scope, upto, cause, at_ms FROM cut ORDER BY kind, scope";
    prepare(conn, "read the cuts", sql)?.read_all([], stored)
}

/// The cut of this scope, if there is one, without the deliveries it spared.
pub(super) fn find(conn: &Connection, scope: CutScope) -> Result<Option<Cut>, StoreError> {
    let sql = "SELECT kind, scope, upto, cause, at_ms FROM cut WHERE kind = ?1 AND scope = ?2";
    prepare(conn, "read a cut", sql)?.read(scope_columns(scope), stored)
}

fn stored(row: &Row<'_>) -> Result<Cut, StoreError> {
    Ok(Cut {
        scope: stored_scope(get(row, 0)?, get(row, 1)?)?,
        upto: stored_key(get(row, 2)?)?,
        cause: stored_cause(get(row, 3)?)?,
        at: Timestamp::from_millis(get(row, 4)?),
        spared: Vec::new(),
        endpoint: None,
    })
}
