//! The rows of whom an erasure is of: found by their names, or by looking through a table, and removed with
//! everything that leads to them.
//!
//! Invariants: a step looks at and removes a bounded number of rows; what is pending is told of as ended by the
//! commit that removes it; a message goes after all its deliveries, so that a step finds what the one before left.

use std::collections::BTreeSet;

use posthaste_core::cause::Cause;
use posthaste_core::cut::{Cut, Scope};
use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, EndpointId, Key, LaneId};
use posthaste_core::state::State;
use rusqlite::{Connection, OptionalExtension, Params};

use super::{Open, Phase, one};
use crate::journal::{Entries, Entry, Hidden};
use crate::row::{EndpointStatus, PauseScope};
use crate::sqlite::column::{delivery, delivery_columns, get, key, stored_key};
use crate::sqlite::sealed::Names;
use crate::sqlite::{cut, endpoint, failed, pause, retention, vault};
use crate::{DELIVERIES_MAX, ERASURE_STEP_MAX, StoreError};

/// Rows that a step looks at.
const LOOKED: u32 = 1_000;
/// Payload that a step removes, for the same reason as [`ERASURE_STEP_MAX`].
const BYTES_MAX: i64 = 4 * 1024 * 1024;

const STEP: usize = ERASURE_STEP_MAX as usize;

/// What a step says: lanes whose endpoints are gone, and whether it waits for something.
type Said = (Vec<LaneId>, bool);

/// One step of whatever phase it is in.
pub(super) fn step(
    conn: &Connection,
    number: u64,
    under_way: &BTreeSet<DeliveryId>,
    entries: &mut Entries,
) -> Result<Said, StoreError> {
    let Some(open) = one(conn, number)? else { return Ok((Vec::new(), false)) };
    let done = match open.phase {
        Phase::Keys => keys(conn, open).map(|done| (Vec::new(), done)),
        Phase::Endpoints => return endpoints(conn, open),
        Phase::Jobs => jobs(conn, open).and_then(|done| Ok((Vec::new(), documents(conn, open)? && done))),
        Phase::Messages | Phase::Kept => return messages(conn, open, under_way, entries),
        _ => return Ok((Vec::new(), false)),
    };
    let (lanes, done) = done?;
    if done {
        open.turn(conn)?;
    }
    Ok((lanes, false))
}

/// The keys of a tenant's subjects, which its own key wrapped; whether all are gone.
fn keys(conn: &Connection, open: Open) -> Result<bool, StoreError> {
    // The tenant may have a new key by now, and new subjects.
    let removed = execute(
        conn,
        "DELETE FROM data_key WHERE id IN
           (SELECT id FROM data_key WHERE tenant = ?1 AND subject <> x''
              AND id < coalesce((SELECT id FROM data_key WHERE tenant = ?1 AND subject = x''), 1 << 40) LIMIT ?2)",
        (key(open.erasure.tenant.0), ERASURE_STEP_MAX),
    )?;
    Ok(removed < STEP)
}

/// An endpoint's id, lane, sealed value and hashes of tags.
type StoredEndpoint = (i64, i64, Vec<u8>, Option<Vec<u8>>);

fn endpoints(conn: &Connection, open: Open) -> Result<Said, StoreError> {
    let doing = failed("look for a tenant's endpoints");
    if open.erasure.is_tenant {
        // Nothing of anybody's is in them, but for how many there were.
        let deleted = "DELETE FROM endpoint WHERE id IN
                         (SELECT id FROM endpoint WHERE tenant = ?1 AND status = 3 LIMIT ?2)";
        if execute(conn, deleted, (key(open.erasure.tenant.0), ERASURE_STEP_MAX))? == STEP {
            return Ok((Vec::new(), false));
        }
    }
    let found: Vec<StoredEndpoint> = conn
        .prepare_cached(
            "SELECT id, lane, sealed, tags FROM endpoint
             WHERE tenant = ?1 AND status <> 3 AND id > ?2 ORDER BY id LIMIT ?3",
        )
        .and_then(|mut sql| {
            let params = (key(open.erasure.tenant.0), open.cursor, ERASURE_STEP_MAX);
            sql.query_map(params, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?.collect()
        })
        .map_err(&doing)?;
    let mut lanes = Vec::new();
    for (id, lane, sealed, tags) in &found {
        if !vault::can_open(conn, sealed)? {
            let lane = LaneId(stored_key(*lane)?);
            if open.erasure.is_tenant {
                endpoint::retag(conn, *id, tags.as_deref().unwrap_or_default(), &[]).map_err(&doing)?;
                execute(conn, "DELETE FROM endpoint WHERE id = ?1", [id])?;
            } else {
                // Deliveries to the endpoint may be about other subjects: their tenant is read from its row, so the row
                // stays. The cut ends them also when the process is killed before the dispatch loop makes its own.
                endpoint::turn(conn, EndpointId(stored_key(*id)?), EndpointStatus::Deleted).map_err(&doing)?;
                cut::put(conn, &Cut::new(Scope::Lane(lane), Key::MAX, Cause::Erased, open.erasure.at))?;
            }
            pause::remove(conn, PauseScope::Lane(lane)).map_err(&doing)?;
            lanes.push(lane);
        }
    }
    match found.last() {
        Some((last, ..)) if found.len() == STEP => Open { cursor: *last, ..open }.write(conn)?,
        _ => open.turn(conn)?,
    }
    Ok((lanes, false))
}

/// A tenant's jobs that were asked for before; whether all are gone.
fn jobs(conn: &Connection, open: Open) -> Result<bool, StoreError> {
    let past: Vec<i64> = conn
        .prepare_cached("SELECT id FROM job WHERE tenant = ?1 AND at_ms <= ?2 LIMIT 10")
        .and_then(|mut sql| {
            sql.query_map((key(open.erasure.tenant.0), open.erasure.at.as_millis()), |row| row.get(0))?.collect()
        })
        .map_err(failed("look for a tenant's jobs"))?;
    for id in &past {
        execute(conn, "DELETE FROM replay_listed WHERE job = ?1", [id])?;
        execute(conn, "DELETE FROM job WHERE id = ?1", [id])?;
    }
    Ok(past.len() < 10)
}

/// A tenant's documents that nobody can open any more; whether all are gone.
fn documents(conn: &Connection, open: Open) -> Result<bool, StoreError> {
    let found: Vec<(i64, i64, Vec<u8>)> = conn
        .prepare_cached("SELECT kind, id, sealed FROM document WHERE kind IN (0, 1, 2) AND tenant = ?1")
        .and_then(|mut sql| {
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
            sql.query_map([key(open.erasure.tenant.0)], read)?.collect()
        })
        .map_err(failed("look for a tenant's documents"))?;
    let mut gone = 0;
    for (kind, id, sealed) in found {
        if gone == STEP {
            return Ok(false);
        }
        if !vault::can_open(conn, &sealed)? {
            execute(conn, "DELETE FROM document WHERE kind = ?1 AND id = ?2", (kind, id))?;
            gone += 1;
        }
    }
    Ok(true)
}

/// A message to remove.
struct Found {
    id: i64,
    /// What it is found by; none when only a name is left of it.
    names: Option<Names>,
    bytes: i64,
}

/// What a look for messages came to.
struct Look {
    found: Vec<Found>,
    /// Where the next goes on.
    last: i64,
    full: bool,
}

fn messages(
    conn: &Connection,
    open: Open,
    under_way: &BTreeSet<DeliveryId>,
    entries: &mut Entries,
) -> Result<Said, StoreError> {
    let look = match (open.erasure.is_tenant, open.mark, open.phase) {
        (false, Some(mark), _) => named(conn, open, mark)?,
        (false, None, _) => Look { found: Vec::new(), last: 0, full: false },
        (true, _, Phase::Kept) => of_tenant(conn, open, "kept")?,
        (true, ..) => of_tenant(conn, open, "message")?,
    };
    let mut removal = Removal { conn, open, under_way, entries, left: STEP, spared: false };
    let (mut bytes, mut stopped) = (0, false);
    for found in &look.found {
        if removal.left == 0 || bytes > BYTES_MAX {
            stopped = true;
            break;
        }
        if !removal.message(found)? {
            stopped = true;
            break;
        }
        bytes += found.bytes;
        removal.open.cursor = found.id;
    }
    let mut open = removal.open;
    if stopped {
        open.write(conn)?;
    } else if look.full {
        open.cursor = look.last;
        open.write(conn)?;
    } else if open.left > 0 {
        // Something was under way: once more from the beginning.
        (open.cursor, open.left) = (0, 0);
        open.write(conn)?;
        return Ok((Vec::new(), true));
    } else {
        open.turn(conn)?;
    }
    Ok((Vec::new(), false))
}

/// Messages with a subject's mark.
fn named(conn: &Connection, open: Open, mark: Hidden) -> Result<Look, StoreError> {
    let doing = failed("look for a subject's messages");
    let ids: Vec<i64> = conn
        .prepare_cached(
            "SELECT message FROM name WHERE kind = 0 AND hidden = ?1 AND message > ?2 ORDER BY message LIMIT ?3",
        )
        .and_then(|mut sql| sql.query_map((mark.0, open.cursor, ERASURE_STEP_MAX), |row| row.get(0))?.collect())
        .map_err(&doing)?;
    let mut found = Vec::new();
    for id in &ids {
        let row: Option<(Option<Vec<u8>>, i64)> = conn
            .prepare_cached(
                "SELECT names, length(body) FROM message WHERE id = ?1
                 UNION ALL SELECT names, length(body) FROM kept WHERE id = ?1",
            )
            .and_then(|mut sql| sql.query_row([id], |row| Ok((row.get(0)?, row.get(1)?))).optional())
            .map_err(&doing)?;
        let names = row.as_ref().map(|(names, _)| Names::stored(names.as_deref())).transpose()?;
        found.push(Found { id: *id, names, bytes: row.map_or(0, |(_, bytes)| bytes) });
    }
    Ok(Look { last: ids.last().copied().unwrap_or(0), full: ids.len() == STEP, found })
}

/// Messages of a tenant that nobody can open any more.
fn of_tenant(conn: &Connection, open: Open, table: &'static str) -> Result<Look, StoreError> {
    let doing = failed("look for a tenant's messages");
    let mut sql = conn
        .prepare_cached(&format!(
            "SELECT id, tenant, names, head, length(body) FROM {table} WHERE id > ?1 ORDER BY id LIMIT ?2"
        ))
        .map_err(&doing)?;
    let mut rows = sql.query((open.cursor, LOOKED)).map_err(&doing)?;
    let (mut look, mut looked) = (Look { found: Vec::new(), last: open.cursor, full: false }, 0);
    while let Some(row) = rows.next().map_err(&doing)? {
        (look.last, looked) = (get(row, 0)?, looked + 1);
        if get::<i64>(row, 1)? != key(open.erasure.tenant.0) || vault::can_open(conn, &get::<Vec<u8>>(row, 3)?)? {
            continue;
        }
        let names = Some(Names::stored(get::<Option<Vec<u8>>>(row, 2)?.as_deref())?);
        look.found.push(Found { id: look.last, names, bytes: get(row, 4)? });
    }
    look.full = looked == LOOKED;
    Ok(look)
}

/// Removes messages with all that hangs on them.
struct Removal<'a> {
    conn: &'a Connection,
    open: Open,
    under_way: &'a BTreeSet<DeliveryId>,
    entries: &'a mut Entries,
    /// Rows that may still be removed.
    left: usize,
    /// Whether some delivery of the message at hand is under way.
    spared: bool,
}

impl Removal<'_> {
    /// Removes a message; `false` when it has more deliveries than a step may remove.
    fn message(&mut self, found: &Found) -> Result<bool, StoreError> {
        let inline = found.id.saturating_add(i64::try_from(DELIVERIES_MAX).unwrap_or(i64::MAX) + 1);
        let mut ranges = vec![(found.id + 1, inline)];
        ranges.extend(self.chunks(found.id)?);
        self.spared = false;
        for range in ranges {
            if !self.deliveries(found.id, range)? {
                return Ok(false);
            }
        }
        if self.spared {
            self.open.left += 1;
            return Ok(true);
        }
        let conn = self.conn;
        match found.names {
            Some(names) => retention::forget(conn, found.id, names)?,
            None => {
                let mark = self.open.mark.map(|mark| mark.0);
                execute(conn, "DELETE FROM name WHERE kind = 0 AND hidden = ?1 AND message = ?2", (mark, found.id))?;
            }
        }
        // It makes no more deliveries.
        execute(conn, "DELETE FROM job WHERE id = ?1 AND kind = 0", [found.id])?;
        let gone = execute(conn, "DELETE FROM message WHERE id = ?1", [found.id])?
            + execute(conn, "DELETE FROM kept WHERE id = ?1", [found.id])?;
        self.open.erasure.messages += u64::from(gone > 0);
        self.left = self.left.saturating_sub(1);
        Ok(true)
    }

    /// Where deliveries of a message are that jobs made.
    fn chunks(&self, message: i64) -> Result<Vec<(i64, i64)>, StoreError> {
        self.conn
            .prepare_cached("SELECT first, first + count FROM fanout_chunk WHERE message = ?1 ORDER BY first")
            .and_then(|mut sql| sql.query_map([message], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
            .map_err(failed("look for the deliveries of a message"))
    }

    /// Removes deliveries of a message in a range of ids; `false` when there are more than a step may remove.
    fn deliveries(&mut self, message: i64, (from, below): (i64, i64)) -> Result<bool, StoreError> {
        // One more than may go tells whether anything is left; what is under way is passed over.
        let limit = |some: usize| i64::try_from(some).unwrap_or(i64::MAX);
        for pending in self.pending((message, from, below, limit(self.left + self.under_way.len() + 1)))? {
            if self.under_way.contains(&pending.id) {
                self.spared = true;
            } else if self.left == 0 {
                return Ok(false);
            } else {
                let state = State::Cancelled { at: self.open.erasure.at, cause: Cause::Erased };
                let ended = Delivery { state, ..pending };
                self.entries.push(&Entry::ended(&ended, None));
                execute(self.conn, "DELETE FROM delivery WHERE id = ?1", [key(ended.id.0)])?;
                self.gone(key(ended.id.0), key(ended.endpoint.0))?;
            }
        }
        for (id, endpoint) in self.ended((message, from, below, limit(self.left + self.under_way.len() + 1)))? {
            if self.under_way.contains(&DeliveryId(stored_key(id)?)) {
                // Something newer took its place while it was being sent.
                self.spared = true;
            } else if self.left == 0 {
                return Ok(false);
            } else {
                self.gone(id, endpoint)?;
            }
        }
        Ok(true)
    }

    fn pending(&self, params: (i64, i64, i64, i64)) -> Result<Vec<Delivery>, StoreError> {
        let doing = failed("look for the deliveries of a message");
        let mut sql = self
            .conn
            .prepare_cached(concat!(
                "SELECT ",
                delivery_columns!("due_ms"),
                " FROM delivery WHERE id >= ?2 AND id < ?3 AND back = id - ?1 ORDER BY id LIMIT ?4"
            ))
            .map_err(&doing)?;
        let mut rows = sql.query(params).map_err(&doing)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(&doing)? {
            found.push(delivery(row)?);
        }
        Ok(found)
    }

    fn ended(&self, params: (i64, i64, i64, i64)) -> Result<Vec<(i64, i64)>, StoreError> {
        self.conn
            .prepare_cached(
                "SELECT id, endpoint FROM outcome WHERE id >= ?2 AND id < ?3 AND back = id - ?1 ORDER BY id LIMIT ?4",
            )
            .and_then(|mut sql| sql.query_map(params, |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
            .map_err(failed("look for the outcomes of a message"))
    }

    /// Removes what is left of a delivery.
    fn gone(&mut self, id: i64, endpoint: i64) -> Result<(), StoreError> {
        retention::let_outcome_go(self.conn, id, endpoint).map_err(failed("remove a delivery"))?;
        execute(self.conn, "DELETE FROM replay_life WHERE new = ?1", [id])?;
        self.open.erasure.deliveries += 1;
        self.left = self.left.saturating_sub(1);
        Ok(())
    }
}

fn execute(conn: &Connection, sql: &str, params: impl Params) -> Result<usize, StoreError> {
    conn.prepare_cached(sql).and_then(|mut sql| sql.execute(params)).map_err(failed("erase rows"))
}
