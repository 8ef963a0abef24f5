//! Sweeps: a reader finds pending rows that a cut covers or whose TTL is over, and the writer turns them into outcomes.
//!
//! Invariants: one call reads at most [`SWEEP_LOOKS_MAX`] rows and ends at most [`SWEEP_ENDS_MAX`], however many are
//! pending. The writer checks each row again, and leaves alone those that have changed since. The outcome of a row is
//! the one that reads have shown since the cut.

use std::collections::{BTreeMap, BTreeSet};

use posthaste_core::{Cut, CutScope, Delivery, DeliveryId, LaneId, MessageId, State, Tier, Timestamp};
use rusqlite::{CachedStatement, Connection, Params, Row};

use super::settle::OUTCOME;
use super::{
    DELIVERY_COLUMNS, Files, bind_attempt, bind_delivery, cut, failed, get, key, page, prepare, scope_columns,
    stored_key, tier_number,
};
use crate::journal::{Entries, JournalEntry};
use crate::row::{SWEEP_ENDS_MAX, SWEEP_LOOKS_MAX};
use crate::{DELIVERIES_MAX, StoreError, Sweep, SweptRows};

// The deliveries that an accept makes have the ids that follow their message's, at most 1,000 of them. Those that jobs
// made are listed by range, and some of these may be among the 1,000 too. Each end of the range has one bound: of two
// bounds SQLite uses one, and with the cut's alone it would read to the end of the table.
const OF_MESSAGE: &str = "SELECT id FROM delivery
     WHERE id > ?1 AND id <= min(?2, ?1 + 1000) AND back = id - ?1 ORDER BY id LIMIT ?3";
const OF_CHUNKS: &str = "SELECT id FROM fanout_chunk CROSS JOIN delivery
       ON id >= max(first, ?1 + 1001) AND id <= min(first + count - 1, ?2)
     WHERE message = ?1 AND back = id - ?1 ORDER BY first, id LIMIT ?3";
const _: () = assert!(DELIVERIES_MAX == 1_000, "the queries contain the number");
const SPILLED: &str = "SELECT id FROM delivery WHERE place = 2 AND lane = ?1 AND tier = ?2 AND id <= ?3
     ORDER BY id LIMIT ?4";
const ROLL: &str = "SELECT id, lane, state, expires_ms FROM delivery WHERE id > ?1 ORDER BY id LIMIT ?2";
/// The number of the state in the column `state`.
const AWAITING_ACK: i64 = 2;

#[derive(Debug, Default)]
pub(super) struct RowsToEnd {
    rows: Vec<(DeliveryId, Why)>,
    spared: u32,
    stopped_at: Option<DeliveryId>,
}

#[derive(Clone, Copy, Debug)]
enum Why {
    Cut(CutScope),
    Over(Timestamp),
}

impl RowsToEnd {
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The result of the sweep; `ended` are the rows that the writer has ended.
    pub(super) fn swept(&self, ended: Vec<DeliveryId>) -> SweptRows {
        SweptRows { ended, spared: self.spared, stopped_at: self.stopped_at }
    }
}

/// Finds rows to end. Deliveries in `under_way` are left alone.
pub(super) fn find(conn: &Connection, sweep: Sweep, under_way: &[DeliveryId]) -> Result<RowsToEnd, StoreError> {
    let under_way: BTreeSet<DeliveryId> = under_way.iter().copied().collect();
    match sweep {
        Sweep::Cut(scope) => match cut::find(conn, scope)? {
            Some(cut) => {
                let left = under_way.union(&left_alone(conn, sweep, &cut)?).copied().collect();
                covered(conn, &cut, &left)
            }
            None => Ok(RowsToEnd::default()),
        },
        Sweep::Roll { after, now } => roll(conn, after, now, under_way),
    }
}

fn covered(conn: &Connection, cut: &Cut, under_way: &BTreeSet<DeliveryId>) -> Result<RowsToEnd, StoreError> {
    let mut found = RowsToEnd::default();
    let mut full = |ids: Vec<DeliveryId>| {
        for id in ids {
            if found.rows.len() == SWEEP_ENDS_MAX as usize {
                return true;
            }
            if under_way.contains(&id) {
                found.spared += 1;
            } else {
                found.rows.push((id, Why::Cut(cut.scope)));
            }
            found.stopped_at = Some(id);
        }
        false
    };
    // Read one row more than can be ended, to learn whether any is left; spared rows are passed over and come on top.
    let limit = SWEEP_ENDS_MAX.saturating_add(1).saturating_add(u32::try_from(under_way.len()).unwrap_or(u32::MAX));
    let is_full = match cut.scope {
        CutScope::Message(MessageId(message)) => {
            let range = (key(message), key(cut.upto), limit);
            full(ids(conn, OF_MESSAGE, range)?) || full(ids(conn, OF_CHUNKS, range)?)
        }
        CutScope::Lane(LaneId(lane)) => {
            let mut is_full = false;
            for tier in Tier::ALL {
                let tier = tier_number(tier);
                is_full = is_full || full(ids(conn, SPILLED, (key(lane), tier, key(cut.upto), limit))?);
            }
            is_full
        }
    };
    if !is_full {
        found.stopped_at = None;
    }
    Ok(found)
}

fn roll(
    conn: &Connection,
    after: Option<DeliveryId>,
    now: Timestamp,
    mut under_way: BTreeSet<DeliveryId>,
) -> Result<RowsToEnd, StoreError> {
    let cuts: BTreeMap<i64, Cut> = cut::all(conn)?
        .into_iter()
        .filter_map(|cut| match cut.scope {
            CutScope::Lane(lane) => Some((key(lane.0), cut)),
            CutScope::Message(_) => None,
        })
        .collect();
    for cut in cuts.values() {
        under_way.extend(left_alone(conn, Sweep::Roll { after, now }, cut)?);
    }
    let after = after.map_or(-1, |id| key(id.0));
    let mut sql = prepare(conn, "look through the pending deliveries", ROLL)?;
    let mut rows = sql.query((after, SWEEP_LOOKS_MAX + 1))?;
    let mut found = RowsToEnd::default();
    let mut looked = 0;
    let mut last = None;
    while let Some(row) = rows.next()? {
        if looked == SWEEP_LOOKS_MAX || found.rows.len() == SWEEP_ENDS_MAX as usize {
            found.stopped_at = last;
            return Ok(found);
        }
        looked += 1;
        let raw: i64 = get(row, 0)?;
        let id = DeliveryId(stored_key(raw)?);
        last = Some(id);
        let Some(why) = why(row, raw, &cuts, now)? else { continue };
        if under_way.contains(&id) {
            found.spared += 1;
        } else {
            found.rows.push((id, why));
        }
    }
    Ok(found)
}

fn why(row: &Row<'_>, id: i64, cuts: &BTreeMap<i64, Cut>, now: Timestamp) -> Result<Option<Why>, StoreError> {
    if !cuts.is_empty() {
        let lane: i64 = get(row, 1)?;
        if let Some(cut) = cuts.get(&lane).filter(|cut| id <= key(cut.upto)) {
            return Ok(Some(Why::Cut(cut.scope)));
        }
    }
    let expires: Option<i64> = get(row, 3)?;
    let over = expires.is_some_and(|at| at <= now.as_millis()) && get::<i64>(row, 2)? != AWAITING_ACK;
    Ok(over.then_some(Why::Over(now)))
}

/// Ends the found rows that have not changed since; returns them in the order of their ids.
pub(super) fn end(
    conn: &Connection,
    sweep: Sweep,
    found: &RowsToEnd,
    entries: &mut Entries,
) -> Result<Vec<DeliveryId>, StoreError> {
    let doing = failed("sweep deliveries");
    let mut write_off = WriteOff::prepare(conn).map_err(&doing)?;
    let mut cuts: BTreeMap<CutScope, Option<(Cut, BTreeSet<DeliveryId>)>> = BTreeMap::new();
    let mut ended = Vec::with_capacity(found.rows.len());
    for (id, why) in &found.rows {
        let Some(row) = page::one(conn, *id)? else { continue };
        let mut delivery = row.delivery;
        let end = match why {
            Why::Cut(scope) => {
                if !cuts.contains_key(scope) {
                    let cut = cut::find(conn, *scope)?;
                    let cut = cut.map(|cut| left_alone(conn, sweep, &cut).map(|left| (cut, left))).transpose()?;
                    cuts.insert(*scope, cut);
                }
                let cut = cuts.get(scope).and_then(Option::as_ref);
                cut.filter(|(cut, left)| cut.covers(&delivery) && !left.contains(id)).map(|(cut, _)| cut.end())
            }
            Why::Over(now) => over(&delivery, *now),
        };
        let Some(end) = end else { continue };
        delivery.state = end;
        write_off.end(&delivery).map_err(&doing)?;
        ended.push(delivery);
    }
    ended.sort_unstable_by_key(|delivery| delivery.id);
    ended.iter().for_each(|delivery| entries.push(&JournalEntry::ended(delivery, None)));
    Ok(ended.iter().map(|delivery| delivery.id).collect())
}

/// Turns pending rows into outcomes, without an attempt.
pub(super) struct WriteOff<'c> {
    remove: CachedStatement<'c>,
    outcome: CachedStatement<'c>,
    files: Files<'c>,
}

impl<'c> WriteOff<'c> {
    pub(super) fn prepare(conn: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            remove: conn.prepare_cached("DELETE FROM delivery WHERE id = ?1")?,
            outcome: conn.prepare_cached(OUTCOME)?,
            files: Files::prepare(conn)?,
        })
    }

    pub(super) fn end(&mut self, delivery: &Delivery) -> rusqlite::Result<()> {
        self.remove.execute([key(delivery.id.0)])?;
        bind_delivery(&mut self.outcome, delivery)?;
        bind_attempt(&mut self.outcome, DELIVERY_COLUMNS + 1, None)?;
        if self.outcome.raw_execute()? == 0 {
            return Ok(());
        }
        self.files.file(delivery)
    }
}

fn over(delivery: &Delivery, now: Timestamp) -> Option<State> {
    let sent = matches!(delivery.state, State::AwaitingAck { .. });
    delivery.expiry.at().filter(|at| *at <= now && !sent).map(|at| State::Expired { at })
}

/// The deliveries that this cut spared and the sweep must leave alone.
fn left_alone(conn: &Connection, sweep: Sweep, cut: &Cut) -> Result<BTreeSet<DeliveryId>, StoreError> {
    if !sweep.leaves_spared(cut) {
        return Ok(BTreeSet::new());
    }
    let sql = "SELECT delivery FROM spared WHERE kind = ?1 AND scope = ?2";
    Ok(ids(conn, sql, scope_columns(cut.scope))?.into_iter().collect())
}

fn ids(conn: &Connection, sql: &str, params: impl Params) -> Result<Vec<DeliveryId>, StoreError> {
    prepare(conn, "find rows to sweep", sql)?.read_all(params, |row| Ok(DeliveryId(stored_key(get(row, 0)?)?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::fixture::plan;

    #[test]
    fn deliveries_made_by_jobs_are_found_by_their_ranges() {
        let chunks = "SEARCH fanout_chunk USING PRIMARY KEY (message=?)";
        let by_key = "SEARCH delivery USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)";
        assert_eq!(plan(OF_CHUNKS), format!("{chunks}; {by_key}"));
    }
}
