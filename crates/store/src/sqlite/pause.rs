//! Pauses in force: one row each.

use posthaste_core::time::Timestamp;
use rusqlite::Connection;

use super::column::{get, pause_columns, stored_pause_scope};
use super::failed;
use crate::StoreError;
use crate::row::{Pause, PauseScope};

pub(super) fn put(conn: &Connection, pause: Pause) -> rusqlite::Result<()> {
    let (kind, scope) = pause_columns(pause.scope);
    conn.prepare_cached("INSERT OR REPLACE INTO pause (kind, scope, until_ms) VALUES (?1, ?2, ?3)")?.execute((
        kind,
        scope,
        pause.until.map(Timestamp::as_millis),
    ))?;
    Ok(())
}

pub(super) fn remove(conn: &Connection, scope: PauseScope) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM pause WHERE kind = ?1 AND scope = ?2")?.execute(pause_columns(scope))?;
    Ok(())
}

/// Every pause, in the order of what they pause.
pub(super) fn all(conn: &Connection) -> Result<Vec<Pause>, StoreError> {
    let doing = failed("read the pauses");
    let mut sql = conn.prepare("SELECT kind, scope, until_ms FROM pause ORDER BY kind, scope").map_err(&doing)?;
    let mut rows = sql.query([]).map_err(&doing)?;
    let mut pauses = Vec::new();
    while let Some(row) = rows.next().map_err(&doing)? {
        pauses.push(Pause {
            scope: stored_pause_scope(get(row, 0)?, get(row, 1)?)?,
            until: get::<Option<i64>>(row, 2)?.map(Timestamp::from_millis),
        });
    }
    Ok(pauses)
}
