//! Collapse keys: accepting a delivery ends the pending deliveries of its lane with the same key. Rows
//! without a key are not in the index and cost nothing more.

use posthaste_core::{Delivery, LaneId, Timestamp};
use rusqlite::Connection;

use super::column::{DELIVERY_COLUMNS, bind_attempt, bind_delivery, delivery, delivery_columns, key};
use super::{failed, show};
use crate::StoreError;
use crate::row::collapse::{CollapseKey, superseded};

const WAITING: &str =
    concat!("SELECT ", delivery_columns!("due_ms"), " FROM delivery WHERE lane = ?1 AND collapse = ?2 ORDER BY id");

/// Ends the pending deliveries with this key, and returns them; those that a cut covers are left to its sweep.
pub(super) fn supersede(
    conn: &Connection,
    lane: LaneId,
    collapse: CollapseKey,
    at: Timestamp,
) -> Result<Vec<Delivery>, StoreError> {
    let doing = failed("end superseded deliveries");
    let mut sql = conn.prepare_cached(WAITING).map_err(&doing)?;
    let mut rows = sql.query((key(lane.0), column(collapse))).map_err(&doing)?;
    let mut waiting = Vec::new();
    while let Some(row) = rows.next().map_err(&doing)? {
        waiting.push(delivery(row)?);
    }
    let mut ended = Vec::new();
    for mut delivery in waiting {
        if show::cut_end(conn, &delivery)?.is_some() {
            continue;
        }
        delivery.state = superseded(&delivery, at);
        conn.prepare_cached("DELETE FROM delivery WHERE id = ?1")
            .and_then(|mut remove| remove.execute([key(delivery.id.0)]))
            .map_err(&doing)?;
        let mut outcome = conn.prepare_cached(super::settle::OUTCOME).map_err(&doing)?;
        bind_delivery(&mut outcome, &delivery)
            .and_then(|()| bind_attempt(&mut outcome, DELIVERY_COLUMNS + 1, None))
            .and_then(|()| outcome.raw_execute())
            .map_err(&doing)?;
        ended.push(delivery);
    }
    Ok(ended)
}

/// The key as a column: all its 64 bits.
pub(super) fn column(collapse: CollapseKey) -> i64 {
    collapse.0.cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_deliveries_of_a_collapse_key_are_found_by_index() {
        let conn = Connection::open_in_memory().expect("memory is there");
        conn.execute_batch(include_str!("migrations/0001_first.sql")).expect("the schema is valid");
        let mut sql = conn.prepare(&format!("EXPLAIN QUERY PLAN {WAITING}")).expect("the query is valid");
        let steps: Vec<String> = sql.query_map((0, 0), |row| row.get(3)).and_then(Iterator::collect).expect("a plan");
        assert_eq!(steps, ["SEARCH delivery USING INDEX delivery_collapse (lane=? AND collapse=?)"]);
    }
}
