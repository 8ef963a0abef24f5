//! Deletes the rows that an erasure covers: found by the subject's name, or by a scan of a table, and deleted with all
//! index rows that lead to them.
//!
//! Invariants: a step reads and deletes a bounded number of rows; the commit that deletes a pending delivery's row
//! records its end in the journal; a message is deleted after all its deliveries, so that the next step finds those
//! that are left.

use std::collections::BTreeSet;

use posthaste_core::{Cause, Cut, CutScope, Delivery, DeliveryId, EndpointId, Key, LaneId, State};
use rusqlite::{Connection, Params};

use super::{Open, Phase, one};
use crate::journal::{Entries, Hidden, JournalEntry};
use crate::sqlite::{
    NameHashes, cut, delivery, delivery_columns, endpoint, failed, get, key, pause, prepare, retention, stored_key,
    vault,
};
use crate::{DELIVERIES_MAX, ERASURE_STEP_MAX, EndpointStatus, PauseScope, StoreError};

const LOOKED: u32 = 1_000;
/// Bytes of payload that a step deletes, for the same reason as [`ERASURE_STEP_MAX`].
const BYTES_MAX: i64 = 4 * 1024 * 1024;

const STEP: usize = ERASURE_STEP_MAX as usize;

/// The result of a step: lanes whose endpoints were deleted, and whether the erasure waits for deliveries in flight.
type Said = (Vec<LaneId>, bool);

pub(super) fn step(
    conn: &Connection,
    number: u64,
    under_way: &BTreeSet<DeliveryId>,
    entries: &mut Entries,
) -> Result<Said, StoreError> {
    let Some(open) = one(conn, number)? else { return Ok((Vec::new(), false)) };
    let done = match open.phase {
        Phase::Keys => keys(conn, open).map(|done| (Vec::new(), done)),
        Phase::Endpoints => return endpoints(conn, open, under_way),
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

/// Deletes keys of a tenant's subjects, which its destroyed key wrapped; returns whether all are deleted.
fn keys(conn: &Connection, open: Open) -> Result<bool, StoreError> {
    // The tenant may have a new key by now, with keys of new subjects under it: those have higher numbers.
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

fn endpoints(conn: &Connection, open: Open, under_way: &BTreeSet<DeliveryId>) -> Result<Said, StoreError> {
    let doing = "find a tenant's endpoints";
    if open.erasure.is_tenant {
        // Rows of deleted endpoints contain no data of the tenant, only that they existed.
        let deleted = "DELETE FROM endpoint WHERE id IN
                         (SELECT id FROM endpoint WHERE tenant = ?1 AND status = 3 LIMIT ?2)";
        if execute(conn, deleted, (key(open.erasure.tenant.0), ERASURE_STEP_MAX))? == STEP {
            return Ok((Vec::new(), false));
        }
    }
    let sql = "SELECT id, lane, sealed, tags FROM endpoint
               WHERE tenant = ?1 AND status <> 3 AND id > ?2 ORDER BY id LIMIT ?3";
    let page = (key(open.erasure.tenant.0), open.cursor, ERASURE_STEP_MAX);
    let found: Vec<StoredEndpoint> = prepare(conn, doing, sql)?.all(page)?;
    let mut lanes = Vec::new();
    for (id, lane, sealed, tags) in &found {
        if !vault::can_open(conn, sealed)? {
            let lane = LaneId(stored_key(*lane)?);
            if open.erasure.is_tenant {
                endpoint::retag(conn, *id, tags.as_deref().unwrap_or_default(), &[]).map_err(failed(doing))?;
                execute(conn, "DELETE FROM endpoint WHERE id = ?1", [id])?;
            } else {
                // Deliveries to this endpoint may belong to messages of other subjects, and their tenant is read from
                // the endpoint's row: keep the row, cleared. The cut ends what waits for it also when the process is
                // killed before the dispatch loop makes a cut of its own.
                endpoint::turn(conn, EndpointId(stored_key(*id)?), EndpointStatus::Deleted).map_err(failed(doing))?;
                let spared = spared_in_lane(conn, lane, under_way).map_err(failed(doing))?;
                let cut = Cut::new(CutScope::Lane(lane), Key::MAX, Cause::Erased, open.erasure.at);
                cut::put(conn, &Cut { spared, ..cut })?;
            }
            pause::remove(conn, PauseScope::Lane(lane)).map_err(failed(doing))?;
            lanes.push(lane);
        }
    }
    match found.last() {
        Some((last, ..)) if found.len() == STEP => Open { cursor: *last, ..open }.write(conn)?,
        _ => open.turn(conn)?,
    }
    Ok((lanes, false))
}

/// The pending deliveries of a lane among those that are in flight: their own outcome ends them.
fn spared_in_lane(
    conn: &Connection,
    lane: LaneId,
    under_way: &BTreeSet<DeliveryId>,
) -> rusqlite::Result<Vec<DeliveryId>> {
    let mut sql = conn.prepare_cached("SELECT 1 FROM delivery WHERE id = ?1 AND lane = ?2")?;
    let mut found = Vec::new();
    for id in under_way {
        if sql.exists((key(id.0), key(lane.0)))? {
            found.push(*id);
        }
    }
    Ok(found)
}

/// Deletes a tenant's jobs that were requested before the erasure; returns whether all are deleted.
fn jobs(conn: &Connection, open: Open) -> Result<bool, StoreError> {
    let sql = "SELECT id FROM job WHERE tenant = ?1 AND at_ms <= ?2 LIMIT 10";
    let before = (key(open.erasure.tenant.0), open.erasure.at.as_millis());
    let past: Vec<(i64,)> = prepare(conn, "find a tenant's jobs", sql)?.all(before)?;
    for (id,) in &past {
        execute(conn, "DELETE FROM replay_listed WHERE job = ?1", [id])?;
        execute(conn, "DELETE FROM job WHERE id = ?1", [id])?;
    }
    Ok(past.len() < 10)
}

/// Deletes a tenant's documents that are sealed under a destroyed key; returns whether all are deleted.
fn documents(conn: &Connection, open: Open) -> Result<bool, StoreError> {
    let sql = "SELECT kind, id, sealed FROM document WHERE kind IN (0, 1, 2) AND tenant = ?1";
    let found: Vec<(i64, i64, Vec<u8>)> =
        prepare(conn, "find a tenant's documents", sql)?.all([key(open.erasure.tenant.0)])?;
    let mut deleted = 0;
    for (kind, id, sealed) in found {
        if deleted == STEP {
            return Ok(false);
        }
        if !vault::can_open(conn, &sealed)? {
            execute(conn, "DELETE FROM document WHERE kind = ?1 AND id = ?2", (kind, id))?;
            deleted += 1;
        }
    }
    Ok(true)
}

struct Found {
    id: i64,
    /// The hashes it is found by; `None` when only a row of `name` is left of it.
    names: Option<NameHashes>,
    bytes: i64,
}

struct Look {
    found: Vec<Found>,
    /// The id after which the next page begins.
    last: i64,
    /// Whether there may be a next page.
    full: bool,
}

fn messages(
    conn: &Connection,
    open: Open,
    under_way: &BTreeSet<DeliveryId>,
    entries: &mut Entries,
) -> Result<Said, StoreError> {
    let look = match (open.erasure.is_tenant, open.mark, open.phase) {
        (false, Some(mark), _) => subject_messages(conn, open, mark)?,
        (false, None, _) => Look { found: Vec::new(), last: 0, full: false },
        (true, _, Phase::Kept) => tenant_messages(conn, open, "kept")?,
        (true, ..) => tenant_messages(conn, open, "message")?,
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
        // Deliveries were in flight: start over from the first message.
        (open.cursor, open.left) = (0, 0);
        open.write(conn)?;
        return Ok((Vec::new(), true));
    } else {
        open.turn(conn)?;
    }
    Ok((Vec::new(), false))
}

/// Messages of a subject, found by its keyed hash.
fn subject_messages(conn: &Connection, open: Open, mark: Hidden) -> Result<Look, StoreError> {
    let doing = "find a subject's messages";
    let sql = "SELECT message FROM name WHERE kind = 0 AND hidden = ?1 AND message > ?2 ORDER BY message LIMIT ?3";
    let ids: Vec<(i64,)> = prepare(conn, doing, sql)?.all((mark.0, open.cursor, ERASURE_STEP_MAX))?;
    let sql = "SELECT names, length(body) FROM message WHERE id = ?1
               UNION ALL SELECT names, length(body) FROM kept WHERE id = ?1";
    let mut message = prepare(conn, doing, sql)?;
    let mut found = Vec::new();
    for (id,) in ids {
        let row: Option<(Option<Vec<u8>>, i64)> = message.columns([id])?;
        let names = row.as_ref().map(|(names, _)| NameHashes::stored(names.as_deref())).transpose()?;
        found.push(Found { id, names, bytes: row.map_or(0, |(_, bytes)| bytes) });
    }
    Ok(Look { last: found.last().map_or(0, |last| last.id), full: found.len() == STEP, found })
}

/// Messages of a tenant that are sealed under a destroyed key.
fn tenant_messages(conn: &Connection, open: Open, table: &'static str) -> Result<Look, StoreError> {
    let sql = format!("SELECT id, tenant, names, head, length(body) FROM {table} WHERE id > ?1 ORDER BY id LIMIT ?2");
    let mut sql = prepare(conn, "find a tenant's messages", &sql)?;
    let mut rows = sql.query((open.cursor, LOOKED))?;
    let (mut look, mut looked) = (Look { found: Vec::new(), last: open.cursor, full: false }, 0);
    while let Some(row) = rows.next()? {
        (look.last, looked) = (get(row, 0)?, looked + 1);
        if get::<i64>(row, 1)? != key(open.erasure.tenant.0) || vault::can_open(conn, &get::<Vec<u8>>(row, 3)?)? {
            continue;
        }
        let names = Some(NameHashes::stored(get::<Option<Vec<u8>>>(row, 2)?.as_deref())?);
        look.found.push(Found { id: look.last, names, bytes: get(row, 4)? });
    }
    look.full = looked == LOOKED;
    Ok(look)
}

/// Deletes messages with their deliveries and index rows.
struct Removal<'a> {
    conn: &'a Connection,
    open: Open,
    under_way: &'a BTreeSet<DeliveryId>,
    entries: &'a mut Entries,
    /// Rows that this step may still delete.
    left: usize,
    /// Whether a delivery of the current message is in flight.
    spared: bool,
}

impl Removal<'_> {
    /// Deletes a message; `false` when it has more deliveries than the step may delete.
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
        // End its fan-out, which would make more deliveries.
        execute(conn, "DELETE FROM job WHERE id = ?1 AND kind = 0", [found.id])?;
        let deleted = execute(conn, "DELETE FROM message WHERE id = ?1", [found.id])?
            + execute(conn, "DELETE FROM kept WHERE id = ?1", [found.id])?;
        self.open.erasure.messages += u64::from(deleted > 0);
        self.left = self.left.saturating_sub(1);
        Ok(true)
    }

    /// The ranges of ids of a message's deliveries that jobs made.
    fn chunks(&self, message: i64) -> Result<Vec<(i64, i64)>, StoreError> {
        let sql = "SELECT first, first + count FROM fanout_chunk WHERE message = ?1 ORDER BY first";
        prepare(self.conn, "find the deliveries of a message", sql)?.all([message])
    }

    /// Deletes deliveries of a message in a range of ids; `false` when there are more than the step may delete.
    fn deliveries(&mut self, message: i64, (from, below): (i64, i64)) -> Result<bool, StoreError> {
        // Read one row more than may be deleted, to learn whether any is left; those in flight are passed over and come
        // on top.
        let limit = |some: usize| i64::try_from(some).unwrap_or(i64::MAX);
        for pending in self.pending((message, from, below, limit(self.left + self.under_way.len() + 1)))? {
            if self.under_way.contains(&pending.id) {
                self.spared = true;
            } else if self.left == 0 {
                return Ok(false);
            } else {
                let state = State::Cancelled { at: self.open.erasure.at, cause: Cause::Erased };
                let ended = Delivery { state, ..pending };
                self.entries.push(&JournalEntry::ended(&ended, None));
                execute(self.conn, "DELETE FROM delivery WHERE id = ?1", [key(ended.id.0)])?;
                self.gone(key(ended.id.0), key(ended.endpoint.0))?;
            }
        }
        for (id, endpoint) in self.ended((message, from, below, limit(self.left + self.under_way.len() + 1)))? {
            if self.under_way.contains(&DeliveryId(stored_key(id)?)) {
                // It was superseded while it was in flight.
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
        let columns = delivery_columns!("due_ms");
        let rest = "FROM delivery WHERE id >= ?2 AND id < ?3 AND back = id - ?1 ORDER BY id LIMIT ?4";
        let sql = format!("SELECT {columns} {rest}");
        prepare(self.conn, "find the deliveries of a message", &sql)?.read_all(params, delivery)
    }

    fn ended(&self, params: (i64, i64, i64, i64)) -> Result<Vec<(i64, i64)>, StoreError> {
        let sql = "SELECT id, endpoint FROM outcome WHERE id >= ?2 AND id < ?3 AND back = id - ?1 ORDER BY id LIMIT ?4";
        prepare(self.conn, "find the outcomes of a message", sql)?.all(params)
    }

    /// Deletes the outcome of a delivery, and everything stored with it.
    fn gone(&mut self, id: i64, endpoint: i64) -> Result<(), StoreError> {
        retention::let_outcome_go(self.conn, id, endpoint).map_err(failed("remove a delivery"))?;
        execute(self.conn, "DELETE FROM replay_life WHERE new = ?1", [id])?;
        self.open.erasure.deliveries += 1;
        self.left = self.left.saturating_sub(1);
        Ok(())
    }
}

fn execute(conn: &Connection, sql: &str, params: impl Params) -> Result<usize, StoreError> {
    prepare(conn, "erase rows", sql)?.execute(params)
}
