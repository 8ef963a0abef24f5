//! Pending rows, read the way [`Query`] asks for them.
//!
//! Each query walks the primary key or a partial index in its own order and stops at the limit. Ready rows that a
//! crash left behind are in no index: they are found by a scan of every row from the low-water mark on (see `low`), a
//! bounded part at a time.

use posthaste_core::scheduler::Order;
use posthaste_core::{CutScope, DeliveryId, IdRange, Key, LaneId, MessageId, Tier, Timestamp, WriterId};
use rusqlite::{Connection, Params};

use super::token::Check;
use super::{
    DELIVERY_COLUMNS, cut, delivery, delivery_columns, derived, failed, get, key, prepare, stored_key, stored_place,
    stored_tier, tier_number,
};
use crate::row::SWEEP_LOOKS_MAX;
use crate::{DELIVERIES_MAX, PendingPage, PendingRow, Query, StoreError, Token};

/// The number of the place in the column `place`.
const READY: i64 = 0;

macro_rules! select {
    ($($rest:literal)*) => {
        concat!("SELECT ", delivery_columns!("due_ms"), ", place, mac FROM delivery WHERE ", $($rest),*)
    };
}

// Every row that may be ready: for a row that is not, only its place is read.
const LEFT: &str =
    select!("id > max(?1, (SELECT value - 1 FROM meta WHERE key = 'low')) AND id < ?2 ORDER BY id LIMIT ?3");
const DELAYED: &str = select!("place = 1 AND due_ms > ?1 AND due_ms <= ?2 ORDER BY due_ms, id LIMIT ?3");
const DELAYED_TWINS: &str = select!("place = 1 AND due_ms = ?1 AND id > ?2 ORDER BY id LIMIT ?3");
const NEXT_DUE: &str = "SELECT min(due_ms) FROM delivery WHERE place = 1 AND due_ms > ?1";
const OLDEST_SPILLED: &str =
    select!("place = 2 AND lane = ?1 AND tier = ?2 AND id >= ?3 AND id < ?4 ORDER BY id LIMIT ?5");
const NEWEST_SPILLED: &str =
    select!("place = 2 AND lane = ?1 AND tier = ?2 AND id >= ?3 AND id < ?4 ORDER BY id DESC LIMIT ?5");
const NEXT_QUEUE: &str = "SELECT lane, tier FROM delivery WHERE place = 2 AND (lane, tier) > (?1, ?2)
                          ORDER BY lane, tier LIMIT 1";
// The deliveries that an accept makes have the ids that follow their message's, at most 1,000 of them.
const _: () = assert!(DELIVERIES_MAX == 1_000 && SWEEP_LOOKS_MAX == 20_000, "the queries contain the numbers");
// Those that jobs made are listed by range; some of these may be among the 1,000 too. Each end of the range has one
// bound: of two bounds SQLite uses one, and with the cut's alone it would read to the end of the table. The count has a
// limit, since the writer makes it and all other writes wait meanwhile.
const COUNT_CHUNKS: &str = "SELECT count(*) FROM (
     SELECT 1 FROM fanout_chunk CROSS JOIN delivery
       ON id >= max(first, ?1 + 1001) AND id <= min(first + count - 1, ?2)
     WHERE message = ?1 AND id - back = ?1
       AND id NOT IN (SELECT delivery FROM spared WHERE kind = 0 AND scope = ?1) LIMIT 20000)";
const COUNT_MESSAGE: &str = "SELECT count(*) FROM delivery WHERE id > ?1 AND id <= min(?2, ?1 + 1000)
     AND back = id - ?1
     AND id NOT IN (SELECT delivery FROM spared WHERE kind = 0 AND scope = ?1)";
// Pending rows that a lane's cut does not end: those that came after it, which are few, and those it spared. If there
// are many rows after it, because the cut covers only low ids, the scan has a limit: rows after it count as ended.
const LEFT_BY_CUT: &str = "SELECT
     (SELECT count(*) FROM (SELECT lane FROM delivery WHERE id > ?2 ORDER BY id LIMIT 20000) WHERE lane = ?1)
     + (SELECT count(*) FROM spared WHERE kind = 1 AND scope = ?1 AND delivery <= ?2
        AND EXISTS (SELECT 1 FROM delivery WHERE id = spared.delivery))";
const ONE: &str = select!("id = ?1");

/// Reads a page for the dispatch loop; `check` decides which of its rows may be sent.
pub(super) fn read(conn: &Connection, check: &Check<'_>, query: Query, limit: u32) -> Result<PendingPage, StoreError> {
    let check = Some(check);
    let mut next_due = None;
    let rows = match query {
        Query::Left { after, before } => return left(conn, check, after, before, limit).map(|(page, _)| page),
        Query::Delayed { after, until } => {
            next_due = due_after(conn, until)?;
            delayed(conn, check, after, until, limit)?
        }
        Query::Spilled { lane, tier, order, span } => spilled(conn, check, (lane, tier, order), span, limit)?,
        Query::One(id) => rows(conn, check, ONE, [key(id.0)])?,
    };
    Ok(PendingPage { more: rows.len() == limit as usize, rows, looked: None, next_due })
}

/// The queues with spilled rows; takes one step in the index for each.
pub(super) fn spilled_queues(conn: &Connection) -> Result<Vec<(LaneId, Tier)>, StoreError> {
    let mut sql = prepare(conn, "read the spilled queues", NEXT_QUEUE)?;
    let mut queues = Vec::new();
    let mut last = (-1_i64, -1_i64);
    while let Some(next) = sql.columns(last)? {
        last = next;
        queues.push((LaneId(stored_key(last.0)?), stored_tier(last.1)?));
    }
    Ok(queues)
}

/// How many pending deliveries a cut ends, without those it spared.
pub(super) fn count_ended(conn: &Connection, scope: CutScope) -> Result<u64, StoreError> {
    let Some(cut) = cut::find(conn, scope)? else { return Ok(0) };
    let count = |sql: &str, of: Key| -> Result<u64, StoreError> {
        Ok(prepare(conn, "count what a cut ends", sql)?.value::<i64>((key(of), key(cut.upto)))?.unsigned_abs())
    };
    match scope {
        CutScope::Message(MessageId(message)) => Ok(count(COUNT_MESSAGE, message)? + count(COUNT_CHUNKS, message)?),
        // The counts derived from the journal give the number of pending deliveries without reading them.
        CutScope::Lane(lane) => {
            let waiting = derived::waiting(conn, lane)?.total();
            Ok(waiting.saturating_sub(count(LEFT_BY_CUT, lane.0)?))
        }
    }
}

/// Ready rows of earlier sessions, and how many rows were read to find them.
pub(super) fn left(
    conn: &Connection,
    check: Option<&Check<'_>>,
    after: Option<DeliveryId>,
    before: WriterId,
    limit: u32,
) -> Result<(PendingPage, u32), StoreError> {
    let after = after.map_or(-1, |id| key(id.0));
    let mut sql = prepare(conn, "read the rows of earlier sessions", LEFT)?;
    let mut rows = sql.query((after, key(Key::new(before, 0)), SWEEP_LOOKS_MAX))?;
    let mut page = PendingPage::default();
    let (mut looked, mut last) = (0, None);
    while page.rows.len() < limit as usize
        && let Some(row) = rows.next()?
    {
        looked += 1;
        last = Some(stored_key(get(row, 0)?)?);
        if get::<i64>(row, DELIVERY_COLUMNS)? == READY {
            page.rows.push(read_row(conn, check, row)?);
        }
    }
    page.more = page.rows.len() == limit as usize || looked == SWEEP_LOOKS_MAX;
    page.looked = last.map(DeliveryId).filter(|_| page.more);
    Ok((page, looked))
}

fn delayed(
    conn: &Connection,
    check: Option<&Check<'_>>,
    after: Option<(Timestamp, DeliveryId)>,
    until: Timestamp,
    limit: u32,
) -> Result<Vec<PendingRow>, StoreError> {
    let Some((due, id)) = after else {
        return rows(conn, check, DELAYED, (i64::MIN, until.as_millis(), limit));
    };
    // First the rest of the same millisecond: one range over both columns would read every row of that
    // millisecond again, and the rows of a campaign are all due at once.
    let twins = if due <= until { limit } else { 0 };
    let mut page = rows(conn, check, DELAYED_TWINS, (due.as_millis(), key(id.0), twins))?;
    let rest = u32::try_from(page.len()).map_or(0, |read| limit.saturating_sub(read));
    if rest > 0 {
        page.extend(rows(conn, check, DELAYED, (due.as_millis(), until.as_millis(), rest))?);
    }
    Ok(page)
}

fn due_after(conn: &Connection, until: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    let due: Option<i64> = prepare(conn, "read the next due time", NEXT_DUE)?.value([until.as_millis()])?;
    Ok(due.map(Timestamp::from_millis))
}

fn spilled(
    conn: &Connection,
    check: Option<&Check<'_>>,
    (lane, tier, order): (LaneId, Tier, Order),
    span: IdRange,
    limit: u32,
) -> Result<Vec<PendingRow>, StoreError> {
    let (from, below) = (key(span.from.0), key(span.below.0));
    let queue = |sql, tier| rows(conn, check, sql, (key(lane.0), tier_number(tier), from, below, limit));
    match order {
        Order::Fifo => queue(OLDEST_SPILLED, tier),
        Order::NewestFirst => queue(NEWEST_SPILLED, tier),
        Order::Strict => {
            let mut page = Vec::new();
            for tier in Tier::ALL {
                page.extend(queue(OLDEST_SPILLED, tier)?);
            }
            page.sort_unstable_by_key(|row| row.delivery.id);
            page.truncate(limit as usize);
            Ok(page)
        }
    }
}

fn rows(
    conn: &Connection,
    check: Option<&Check<'_>>,
    sql: &str,
    params: impl Params,
) -> Result<Vec<PendingRow>, StoreError> {
    prepare(conn, "read pending deliveries", sql)?.read_all(params, |row| read_row(conn, check, row))
}

/// Reads one row. `check` is `None` for rows that are not sent, only shown or ended.
fn read_row(conn: &Connection, check: Option<&Check<'_>>, row: &rusqlite::Row<'_>) -> Result<PendingRow, StoreError> {
    let delivery = delivery(row)?;
    let mac = row.get_ref(DELIVERY_COLUMNS + 1).map_err(failed("read a row's MAC"))?;
    let mac = mac.as_blob().unwrap_or_default();
    let token = check.map_or(Ok(Token::Valid), |check| check.token(conn, &delivery, mac))?;
    Ok(PendingRow { delivery, place: stored_place(get(row, DELIVERY_COLUMNS)?)?, token })
}

/// One pending row, to be shown or ended; its MAC is not checked.
pub(super) fn one(conn: &Connection, id: DeliveryId) -> Result<Option<PendingRow>, StoreError> {
    Ok(rows(conn, None, ONE, [key(id.0)])?.pop())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::fixture::plan;

    #[test]
    fn every_query_walks_the_key_or_an_index_in_its_own_order() {
        let by_key = "SEARCH delivery USING INTEGER PRIMARY KEY";
        let late = "SEARCH delivery USING INDEX delivery_late";
        let spill = "SEARCH delivery USING INDEX delivery_spill";
        for (sql, expected) in [
            (LEFT, format!("{by_key} (rowid>? AND rowid<?); SCALAR SUBQUERY 1; SEARCH meta USING PRIMARY KEY (key=?)")),
            (DELAYED, format!("{late} (due_ms>? AND due_ms<?)")),
            (DELAYED_TWINS, format!("{late} (due_ms=? AND rowid>?)")),
            (NEXT_DUE, "SEARCH delivery USING COVERING INDEX delivery_late (due_ms>?)".to_owned()),
            (OLDEST_SPILLED, format!("{spill} (lane=? AND tier=? AND rowid>? AND rowid<?)")),
            (NEWEST_SPILLED, format!("{spill} (lane=? AND tier=? AND rowid>? AND rowid<?)")),
            (NEXT_QUEUE, "SEARCH delivery USING COVERING INDEX delivery_spill ((lane,tier)>(?,?))".to_owned()),
            (ONE, format!("{by_key} (rowid=?)")),
        ] {
            assert_eq!(plan(sql), expected, "{sql}");
        }
        assert!(plan(COUNT_MESSAGE).starts_with(&format!("{by_key} (rowid>? AND rowid<?)")), "{}", plan(COUNT_MESSAGE));
        let chunks = "SEARCH fanout_chunk USING PRIMARY KEY (message=?)";
        assert!(plan(COUNT_CHUNKS).contains(&format!("{chunks}; {by_key}")), "{}", plan(COUNT_CHUNKS));
    }
}
