//! Breakers that are not closed, as the next start must know them: one row each.

use posthaste_core::flow::breaker::Soft;
use posthaste_core::queue::SoftBreaker;
use posthaste_core::time::Timestamp;
use rusqlite::Connection;

use super::column::{breaker_columns, get, micros, stored_breaker, stored_micros};
use super::failed;
use crate::StoreError;

/// Puts these in place of all there are.
pub(super) fn replace(conn: &Connection, breakers: &[SoftBreaker]) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM soft_breaker")?.execute([])?;
    let mut put = conn
        .prepare_cached("INSERT OR REPLACE INTO soft_breaker (kind, id, since_ms, hold_us) VALUES (?1, ?2, ?3, ?4)")?;
    for SoftBreaker { of, soft } in breakers {
        let (kind, id) = breaker_columns(*of);
        put.execute((kind, id, soft.since.as_millis(), micros(soft.hold)))?;
    }
    Ok(())
}

/// Every one, lanes first, then by id.
pub(super) fn all(conn: &Connection) -> Result<Vec<SoftBreaker>, StoreError> {
    let doing = failed("read the breakers");
    let mut sql = conn.prepare("SELECT kind, id, since_ms, hold_us FROM soft_breaker").map_err(&doing)?;
    let mut rows = sql.query([]).map_err(&doing)?;
    let mut breakers = Vec::new();
    while let Some(row) = rows.next().map_err(&doing)? {
        breakers.push(SoftBreaker {
            of: stored_breaker(get(row, 0)?, get(row, 1)?)?,
            soft: Soft { since: Timestamp::from_millis(get(row, 2)?), hold: stored_micros(get(row, 3)?) },
        });
    }
    // Not by the columns: the ids of origins are signed there.
    breakers.sort_unstable_by_key(|breaker| breaker.of);
    Ok(breakers)
}
