//! Breakers that are not closed, kept for the next start: one row each.

use posthaste_core::Timestamp;
use posthaste_core::flow::breaker::Soft;
use posthaste_core::scheduler::SoftBreaker;
use rusqlite::Connection;

use super::{breaker_columns, get, micros, prepare, stored_breaker, stored_micros};
use crate::StoreError;

/// Replaces all stored breakers with these.
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

/// Every stored breaker, lanes first, then by id.
pub(super) fn all(conn: &Connection) -> Result<Vec<SoftBreaker>, StoreError> {
    let sql = "SELECT kind, id, since_ms, hold_us FROM soft_breaker";
    let mut breakers = prepare(conn, "read the breakers", sql)?.read_all([], |row| {
        let soft = Soft { since: Timestamp::from_millis(get(row, 2)?), hold: stored_micros(get(row, 3)?) };
        Ok(SoftBreaker { of: stored_breaker(get(row, 0)?, get(row, 1)?)?, soft })
    })?;
    // SQL cannot order them: the ids of origins are signed integers in the column.
    breakers.sort_unstable_by_key(|breaker| breaker.of);
    Ok(breakers)
}
