//! Collapse keys: accepting a delivery ends the pending deliveries of its lane with the same key. Rows
//! without a key are not in the index and cost nothing more.

use posthaste_core::{Delivery, LaneId, Timestamp};
use rusqlite::Connection;

use super::column::{delivery, delivery_columns, key};
use super::statement::prepare;
use super::sweep::WriteOff;
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
    let doing = "end superseded deliveries";
    let params = (key(lane.0), column(collapse));
    let waiting = prepare(conn, doing, WAITING)?.read_all(params, delivery)?;
    let mut ended = Vec::new();
    for mut delivery in waiting {
        if show::cut_end(conn, &delivery)?.is_some() {
            continue;
        }
        delivery.state = superseded(&delivery, at);
        WriteOff::prepare(conn).and_then(|mut write_off| write_off.end(&delivery)).map_err(failed(doing))?;
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
        let expected = "SEARCH delivery USING INDEX delivery_collapse (lane=? AND collapse=?)";
        assert_eq!(crate::sqlite::fixture::plan(WAITING), expected);
    }
}
