//! What was kept for long enough is let go: a few rows a step, and then the room they took.
//!
//! Rows are met by their keys, which grow with time, from the oldest on. A step looks at a bounded number
//! of rows. Some of the oldest may have to stay (they ended late, or are due much later); a phase is over
//! when a whole look has met nothing old enough.
//!
//! Invariant: a payload that an unfinished delivery or a dead letter needs is in `message` or in `kept`.

use posthaste_core::cause::Cause;
use posthaste_core::delivery::Delivery;
use posthaste_core::state::State;
use posthaste_core::time::Timestamp;
use rusqlite::Connection;

use super::column::{delivery, delivery_columns, get, key};
use super::derived::{followed, kind_number};
use super::sealed::Names;
use super::sweep::WriteOff;
use super::{failed, idempotency, show};
use crate::journal::{Entries, Entry};
use crate::row::idempotency::Day;
use crate::row::{RETENTION_STEP_MAX, Retained, Retention, RetentionPhase, RetentionStep};
use crate::{DELIVERIES_MAX, StoreError};

/// Rows that a step looks at to find those it removes.
const LOOKED_MAX: u32 = 2_000;

const STEP: usize = RETENTION_STEP_MAX as usize;

/// Payload removed or moved by one step, for the same reason as [`RETENTION_STEP_MAX`].
const STEP_BYTES_MAX: i64 = 4 * 1024 * 1024;

/// As much of the file may be free: it is used again before the file grows.
const FREE_PART: i64 = 10;
/// Pages given back in one step: a MiB.
const PAGES_STEP: i64 = 128;

/// What a step is given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) retention: Retention,
    pub(super) now: Timestamp,
    pub(super) step: RetentionStep,
}

/// What a phase has done with one look.
struct Look {
    removed: usize,
    /// The highest row removed.
    upto: i64,
    /// Where to go on; `None` when the phase is over.
    after: Option<i64>,
}

impl Look {
    /// A look that removed so many, all it met: it is the last if there were fewer than it could.
    fn all(removed: usize, upto: i64) -> Self {
        Self { removed, upto, after: (removed >= STEP).then_some(0) }
    }
}

/// Runs one step.
pub(super) fn step(conn: &Connection, asked: Asked, entries: &mut Entries) -> Result<Retained, StoreError> {
    let Asked { retention, now, step, .. } = asked;
    let after = i64::try_from(step.after).unwrap_or(i64::MAX);
    let old = retention.old(step.phase, now);
    let look = match step.phase {
        RetentionPhase::Pending => give_up(conn, asked, after, entries)?,
        RetentionPhase::Messages => messages(conn, old, after)?,
        RetentionPhase::History => history(conn, old.as_millis(), after)?,
        RetentionPhase::Kept => kept(conn, after)?,
        RetentionPhase::Jobs => jobs(conn, old.as_millis())?,
        RetentionPhase::Keys => {
            let forgotten = idempotency::forget_before(conn, Day::of(old), RETENTION_STEP_MAX);
            Look::all(forgotten.map_err(failed("forget idempotency keys"))?, 0)
        }
        RetentionPhase::Journal => journal(conn, old)?,
        RetentionPhase::Space => space(conn)?,
    };
    let removed = look.removed as u64;
    if removed > 0 && !matches!(step.phase, RetentionPhase::Pending | RetentionPhase::Space) {
        let upto = look.upto.unsigned_abs();
        entries.push(&Entry::Retained { phase: step.phase, upto, removed, before: old, at: now });
    }
    let next = match look.after {
        Some(after) => Some(RetentionStep { phase: step.phase, after: after.unsigned_abs() }),
        None => step.next_phase(),
    };
    Ok(Retained { removed, next })
}

/// Ends what has waited for too long, unless something else has ended it already.
fn give_up(conn: &Connection, asked: Asked, after: i64, entries: &mut Entries) -> Result<Look, StoreError> {
    let doing = failed("look for what has waited too long");
    let old = asked.retention.old(RetentionPhase::Pending, asked.now);
    let mut sql = conn
        .prepare_cached(concat!(
            "SELECT ",
            delivery_columns!("due_ms"),
            " FROM delivery WHERE id > ?1 ORDER BY id LIMIT ?2"
        ))
        .map_err(&doing)?;
    let mut rows = sql.query((after, LOOKED_MAX)).map_err(&doing)?;
    let mut given_up = Vec::new();
    let mut last = None;
    let mut met_old = false;
    while let Some(row) = rows.next().map_err(&doing)? {
        let waiting = delivery(row)?;
        last = Some(key(waiting.id.0));
        if waiting.born > old {
            continue;
        }
        met_old = true;
        let is_sent = matches!(waiting.state, State::AwaitingAck { .. });
        if !is_sent && !show::state_at(conn, &waiting, asked.now)?.is_terminal() {
            let state = State::Dead { at: asked.now, cause: Cause::Retention };
            given_up.push(Delivery { state, ..waiting });
        }
        if given_up.len() == STEP {
            break;
        }
    }
    drop(rows);
    let mut write_off = WriteOff::prepare(conn).map_err(&doing)?;
    for delivery in &given_up {
        write_off.end(delivery).map_err(failed("give up what has waited too long"))?;
        entries.push(&Entry::ended(delivery, None));
    }
    Ok(Look { removed: given_up.len(), upto: 0, after: last.filter(|_| met_old) })
}

/// A message without its payload.
struct Head {
    id: i64,
    at: i64,
    names: Names,
    /// Of its payload.
    bytes: i64,
}

fn heads(conn: &Connection, table: &'static str, after: i64, limit: u32) -> Result<Vec<Head>, StoreError> {
    let doing = failed("look for old messages");
    let mut sql = conn
        .prepare_cached(&format!(
            "SELECT id, at_ms, names, length(body) FROM {table} WHERE id > ?1 ORDER BY id LIMIT ?2"
        ))
        .map_err(&doing)?;
    let mut rows = sql.query((after, limit)).map_err(&doing)?;
    let mut heads = Vec::new();
    while let Some(row) = rows.next().map_err(&doing)? {
        heads.push(Head {
            id: get(row, 0)?,
            at: get(row, 1)?,
            names: Names::stored(get::<Option<Vec<u8>>>(row, 2)?.as_deref())?,
            bytes: get(row, 3)?,
        });
    }
    Ok(heads)
}

/// Removes messages past their time, or moves them to `kept`.
fn messages(conn: &Connection, old: Timestamp, after: i64) -> Result<Look, StoreError> {
    let doing = failed("let old messages go");
    // One more, to know where the deliveries of the last one end.
    let heads = heads(conn, "message", after, RETENTION_STEP_MAX + 1)?;
    let mut look = Look { removed: 0, upto: 0, after: None };
    let mut bytes = 0;
    for (place, head) in heads.iter().enumerate().take(STEP) {
        if bytes > STEP_BYTES_MAX {
            break;
        }
        look.after = look.after.map(|_| head.id);
        if head.at > old.as_millis() {
            continue;
        }
        let next = heads.get(place + 1).map_or(i64::MAX, |next| next.id);
        if is_needed(conn, head.id, next)? {
            conn.prepare_cached(
                "INSERT INTO kept (id, tenant, at_ms, tier, event_type, names, head, compact, body)
                 SELECT id, tenant, at_ms, tier, event_type, names, head, compact, body FROM message WHERE id = ?1",
            )
            .and_then(|mut sql| sql.execute([head.id]))
            .map_err(&doing)?;
        } else {
            forget(conn, head.id, head.names)?;
        }
        conn.prepare_cached("DELETE FROM message WHERE id = ?1")
            .and_then(|mut sql| sql.execute([head.id]))
            .map_err(&doing)?;
        bytes += head.bytes;
        look.removed += 1;
        look.upto = head.id;
        look.after = Some(head.id);
    }
    Ok(look)
}

/// Removes from `kept` what nobody needs any more.
fn kept(conn: &Connection, after: i64) -> Result<Look, StoreError> {
    let doing = failed("let kept messages go");
    let heads = heads(conn, "kept", after, RETENTION_STEP_MAX)?;
    let full = heads.len() == STEP;
    let mut look = Look { removed: 0, upto: 0, after: heads.last().map(|head| head.id).filter(|_| full) };
    let mut bytes = 0;
    for head in &heads {
        if bytes > STEP_BYTES_MAX {
            look.after = Some(head.id - 1);
            break;
        }
        if is_needed(conn, head.id, i64::MAX)? {
            continue;
        }
        bytes += head.bytes;
        forget(conn, head.id, head.names)?;
        conn.prepare_cached("DELETE FROM kept WHERE id = ?1")
            .and_then(|mut sql| sql.execute([head.id]))
            .map_err(&doing)?;
        look.removed += 1;
        look.upto = head.id;
    }
    Ok(look)
}

/// Removes what leads to a message.
pub(super) fn forget(conn: &Connection, id: i64, names: Names) -> Result<(), StoreError> {
    let doing = failed("let what leads to a message go");
    for sql in ["DELETE FROM fanout_chunk WHERE message = ?1", "DELETE FROM replay_missed WHERE message = ?1"] {
        conn.prepare_cached(sql).and_then(|mut sql| sql.execute([id])).map_err(&doing)?;
    }
    let mut sql =
        conn.prepare_cached("DELETE FROM name WHERE kind = ?1 AND hidden = ?2 AND message = ?3").map_err(&doing)?;
    for (kind, hidden) in names.each() {
        sql.execute((kind_number(kind), hidden.0, id)).map_err(&doing)?;
    }
    Ok(())
}

/// Whether an unfinished delivery, a dead letter or a fan-out needs a message. Those it was accepted with
/// have the ids up to the `next` message's.
fn is_needed(conn: &Connection, message: i64, next: i64) -> Result<bool, StoreError> {
    let doing = failed("look for whoever needs a message");
    let fans_out = conn
        .prepare_cached("SELECT 1 FROM job WHERE id = ?1 AND kind = 0 AND state IN (0, 1)")
        .and_then(|mut sql| sql.exists([message]))
        .map_err(&doing)?;
    let inline = message.saturating_add(i64::try_from(DELIVERIES_MAX).unwrap_or(i64::MAX) + 1);
    if fans_out || is_range_needed(conn, message, message + 1, inline.min(next)).map_err(&doing)? {
        return Ok(true);
    }
    let mut sql = conn
        .prepare_cached("SELECT first, first + count FROM fanout_chunk WHERE message = ?1 ORDER BY first")
        .map_err(&doing)?;
    let mut rows = sql.query([message]).map_err(&doing)?;
    while let Some(row) = rows.next().map_err(&doing)? {
        if is_range_needed(conn, message, get(row, 0)?, get(row, 1)?).map_err(&doing)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_range_needed(conn: &Connection, message: i64, first: i64, end: i64) -> rusqlite::Result<bool> {
    let range = (message, first, end);
    let waits = conn
        .prepare_cached("SELECT 1 FROM delivery WHERE id >= ?2 AND id < ?3 AND back = id - ?1 LIMIT 1")?
        .exists(range)?;
    Ok(waits
        || conn
            .prepare_cached(
                "SELECT 1 FROM dead_letter WHERE delivery >= ?2 AND delivery < ?3 AND message = ?1 LIMIT 1",
            )?
            .exists(range)?)
}

/// Removes what became of deliveries that ended long ago.
fn history(conn: &Connection, old: i64, after: i64) -> Result<Look, StoreError> {
    let doing = failed("let old outcomes go");
    let mut sql = conn
        .prepare_cached("SELECT id, lane, born_ms, ended_ms FROM outcome WHERE id > ?1 ORDER BY id LIMIT ?2")
        .map_err(&doing)?;
    let mut rows = sql.query((after, LOOKED_MAX)).map_err(&doing)?;
    let mut past: Vec<(i64, i64)> = Vec::new();
    let mut last = None;
    let mut met_old = false;
    while let Some(row) = rows.next().map_err(&doing)? {
        let (id, lane, born, ended): (i64, i64, i64, i64) = (get(row, 0)?, get(row, 1)?, get(row, 2)?, get(row, 3)?);
        last = Some(id);
        met_old |= born <= old || ended <= old;
        if ended <= old {
            past.push((id, lane));
        }
        if past.len() == STEP {
            break;
        }
    }
    drop(rows);
    for (id, lane) in &past {
        let_outcome_go(conn, *id, *lane).map_err(&doing)?;
    }
    let upto = past.last().map_or(0, |(id, _)| *id);
    Ok(Look { removed: past.len(), upto, after: last.filter(|_| met_old) })
}

pub(super) fn let_outcome_go(conn: &Connection, id: i64, lane: i64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM outcome WHERE id = ?1")?.execute([id])?;
    conn.prepare_cached("DELETE FROM attempt WHERE delivery = ?1")?.execute([id])?;
    conn.prepare_cached("DELETE FROM excerpt WHERE delivery = ?1")?.execute([id])?;
    conn.prepare_cached("DELETE FROM dead_letter WHERE delivery = ?1")?.execute([id])?;
    conn.prepare_cached("DELETE FROM replay_life WHERE old = ?1")?.execute([id])?;
    conn.prepare_cached("DELETE FROM history WHERE lane = ?1 AND delivery = ?2")?.execute((lane, id)).map(drop)
}

/// Removes jobs that ended and were asked for long ago.
fn jobs(conn: &Connection, old: i64) -> Result<Look, StoreError> {
    let doing = failed("let old jobs go");
    let past: Vec<i64> = conn
        .prepare_cached("SELECT id FROM job WHERE at_ms <= ?1 AND state IN (2, 3) ORDER BY id LIMIT ?2")
        .and_then(|mut sql| sql.query_map((old, RETENTION_STEP_MAX), |row| row.get(0))?.collect())
        .map_err(&doing)?;
    for id in &past {
        for sql in ["DELETE FROM job WHERE id = ?1", "DELETE FROM replay_listed WHERE job = ?1"] {
            conn.prepare_cached(sql).and_then(|mut sql| sql.execute([id])).map_err(&doing)?;
        }
    }
    Ok(Look::all(past.len(), past.last().copied().unwrap_or(0)))
}

/// Removes old rows of the journal that everybody has followed. A row goes when the one behind it is old
/// enough, since it may not say itself when it was; so the last one stays, which the next names.
fn journal(conn: &Connection, old: Timestamp) -> Result<Look, StoreError> {
    let doing = failed("let old rows of the journal go");
    let followed = i64::try_from(followed(conn)?.followed).unwrap_or(i64::MAX);
    let past: Option<i64> = conn
        .prepare_cached(
            "SELECT max(number) FROM (SELECT number, at_ms FROM journal ORDER BY number LIMIT ?2) WHERE at_ms <= ?1",
        )
        .and_then(|mut sql| sql.query_row((old.as_millis(), RETENTION_STEP_MAX + 1), |row| row.get(0)))
        .map_err(&doing)?;
    let upto = past.map_or(0, |past| (past - 1).min(followed));
    let removed = conn
        .prepare_cached("DELETE FROM journal WHERE number <= ?1")
        .and_then(|mut sql| sql.execute([upto]))
        .map_err(&doing)?;
    conn.prepare_cached("DELETE FROM checkpoint WHERE row <= ?1")
        .and_then(|mut sql| sql.execute([upto]))
        .map_err(failed("let old checkpoints go"))?;
    // What is missing for their sake is told by rows that are gone as well.
    conn.prepare_cached("DELETE FROM erasure WHERE row <= ?1 AND done_ms IS NOT NULL")
        .and_then(|mut sql| sql.execute([upto]))
        .map_err(failed("let old erasures go"))?;
    Ok(Look::all(removed, upto))
}

/// Gives free pages back to the disk while there are more of them than are soon used again.
fn space(conn: &Connection) -> Result<Look, StoreError> {
    let doing = failed("give room back to the disk");
    let count = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).map_err(&doing);
    let (free, pages) = (count("PRAGMA freelist_count")?, count("PRAGMA page_count")?);
    if free <= PAGES_STEP || free * FREE_PART <= pages {
        return Ok(Look { removed: 0, upto: 0, after: None });
    }
    // Each row that is stepped to gives back one page.
    let mut sql = conn.prepare_cached(&format!("PRAGMA incremental_vacuum({PAGES_STEP})")).map_err(&doing)?;
    let mut rows = sql.query([]).map_err(&doing)?;
    while rows.next().map_err(&doing)?.is_some() {}
    drop(rows);
    let left = count("PRAGMA freelist_count")?;
    let given = usize::try_from(free - left).unwrap_or(0);
    Ok(Look { removed: given, upto: 0, after: (given > 0).then_some(0) })
}
