//! Retention: deletes expired data, a few rows a step, and then gives the free space back to the disk.
//!
//! Rows are walked by their ids, which grow with time, from the place that the walk reached last; outcomes are walked
//! by the journal, in the order in which deliveries ended. A step reads a bounded number of rows. Some of them may have
//! to stay (they are still needed, or belong to a tenant that keeps them for longer); a walk is over when a whole step
//! has met no expired row. Read next: `overrides`.
//!
//! Invariant: a payload that an unfinished delivery or a dead letter needs is in `message` or in `kept`.

pub(super) mod overrides;

use std::collections::{BTreeMap, BTreeSet};

use posthaste_core::{Cause, Delivery, DeliveryId, State, TenantId, Timestamp};
use rusqlite::Connection;

use super::derived::{followed, kind_number};
use super::{
    NameHashes, Then, WriteOff, delivery, delivery_columns, failed, get, idempotency, key, prepare, show, stored_key,
};
use crate::journal::{Entries, JournalEntry};
use crate::row::idempotency::UtcDay;
use crate::row::retention::before;
use crate::{
    DELIVERIES_MAX, RETENTION_STEP_MAX, Retained, Retention, RetentionOverride, RetentionPhase, RetentionStep,
    StoreError,
};
use overrides::{Owners, RetentionWalk};

/// Rows that a step reads to find those it removes.
const LOOKED_MAX: u32 = 2_000;

const STEP: usize = RETENTION_STEP_MAX as usize;

/// Payload removed or moved by one step, for the same reason as [`RETENTION_STEP_MAX`].
const STEP_BYTES_MAX: i64 = 4 * 1024 * 1024;

/// One page in so many may stay free: SQLite uses free pages again before the file grows.
const FREE_PART: i64 = 10;
/// Pages given back to the disk in one step: a MiB.
const PAGES_STEP: i64 = 128;

#[derive(Clone, Copy, Debug)]
pub(super) struct RetentionRequest {
    pub(super) retention: Retention,
    pub(super) now: Timestamp,
    pub(super) step: RetentionStep,
}

impl RetentionRequest {
    fn walk(&self) -> RetentionWalk {
        RetentionWalk::new(self.step.phase, self.step.kept)
    }

    /// The retention limit of this walk: rows with this time or an earlier one have expired.
    fn old(&self) -> Timestamp {
        let own = RetentionOverride { payload: self.step.kept, history: self.step.kept };
        self.retention.with(own).old(self.step.phase, self.now)
    }

    /// The row after which the step begins.
    fn from(&self, conn: &Connection) -> Result<i64, StoreError> {
        let after = i64::try_from(self.step.after).unwrap_or(i64::MAX);
        Ok(self.walk().place(conn)?.max(after))
    }
}

/// The result of one step of a phase.
#[derive(Default)]
struct Look {
    removed: usize,
    /// The highest row removed.
    upto: i64,
    /// The row after which the next step begins; `None` when the walk is over.
    after: Option<i64>,
    given_up: Vec<DeliveryId>,
}

impl Look {
    /// The result of a step that removed every row it met: it is the last one if it removed fewer than a step may.
    fn all(removed: usize, upto: i64) -> Self {
        Self { removed, upto, after: (removed >= STEP).then_some(0), ..Self::default() }
    }
}

/// Tracks the row up to which a walk has nothing left to delete.
struct Done {
    upto: i64,
    is_whole: bool,
}

impl Done {
    /// For a step that begins after `from`. If that is beyond the walk's place, an earlier step of the same run met a
    /// row that stays, and the place must not move past it.
    fn new(place: i64, from: i64) -> Self {
        Self { upto: place, is_whole: from == place }
    }

    /// Notes a row; `stays` if the walk must come to it again.
    fn met(&mut self, row: i64, stays: bool) {
        self.is_whole &= !stays;
        if self.is_whole {
            self.upto = row;
        }
    }
}

/// Runs one step. Deliveries in `under_way` are not given up.
pub(super) fn step(
    conn: &Connection,
    request: RetentionRequest,
    under_way: &BTreeSet<DeliveryId>,
    entries: &mut Entries,
) -> Result<Retained, StoreError> {
    let RetentionRequest { now, step, .. } = request;
    let look = match step.phase {
        RetentionPhase::Pending => give_up(conn, request, under_way, entries)?,
        RetentionPhase::Messages => messages(conn, request)?,
        RetentionPhase::History => history(conn, request, entries)?,
        RetentionPhase::Kept => kept(conn, request)?,
        RetentionPhase::Jobs => jobs(conn, request)?,
        RetentionPhase::Keys => {
            let deleted = idempotency::forget_before(conn, UtcDay::of(request.old()), RETENTION_STEP_MAX);
            Look::all(deleted.map_err(failed("delete idempotency keys"))?, 0)
        }
        RetentionPhase::Journal => journal(conn, request, entries)?,
        RetentionPhase::Space => space(conn)?,
    };
    let removed = look.removed as u64;
    // Deliveries given up and outcomes have entries of their own; free pages need none.
    let needs_entry = !matches!(step.phase, RetentionPhase::Pending | RetentionPhase::History | RetentionPhase::Space);
    if removed > 0 && needs_entry {
        let upto = look.upto.unsigned_abs();
        let before = request.old();
        entries.push(&JournalEntry::Retained { phase: step.phase, upto, removed, before, at: now, tenant: None });
    }
    let next = match look.after {
        Some(after) => Some(RetentionStep { after: after.unsigned_abs(), ..step }),
        None => match request.walk().next(conn)? {
            Some(walk) => Some(RetentionStep { kept: walk.kept(), ..RetentionStep::of(step.phase) }),
            None => step.next_phase(),
        },
    };
    Ok(Retained { removed, given_up: look.given_up, next })
}

/// Ends deliveries that have been pending for too long, as dead, unless they have ended already by a cut or a TTL.
fn give_up(
    conn: &Connection,
    request: RetentionRequest,
    under_way: &BTreeSet<DeliveryId>,
    entries: &mut Entries,
) -> Result<Look, StoreError> {
    let doing = "find deliveries that waited too long";
    let (walk, old, from) = (request.walk(), request.old(), request.from(conn)?);
    let (mut owners, mut done) = (Owners::new(conn)?, Done::new(walk.place(conn)?, from));
    let sql = concat!("SELECT ", delivery_columns!("due_ms"), " FROM delivery WHERE id > ?1 ORDER BY id LIMIT ?2");
    let mut sql = prepare(conn, doing, sql)?;
    let mut rows = sql.query((from, LOOKED_MAX))?;
    let mut given_up = Vec::new();
    let mut last = None;
    let mut met_old = false;
    while let Some(row) = rows.next()? {
        let waiting = delivery(row)?;
        let id = key(waiting.id.0);
        last = Some(id);
        if waiting.born > old {
            done.met(id, true);
            continue;
        }
        met_old = true;
        if !owners.belongs(waiting.endpoint, walk)? {
            done.met(id, false);
            continue;
        }
        let is_sent = matches!(waiting.state, State::AwaitingAck { .. }) || under_way.contains(&waiting.id);
        let ends = !is_sent && !show::state_at(conn, &waiting, request.now)?.is_terminal();
        done.met(id, !ends);
        if ends {
            let state = State::Dead { at: request.now, cause: Cause::Retention };
            given_up.push(Delivery { state, ..waiting });
        }
        if given_up.len() == STEP {
            break;
        }
    }
    drop(rows);
    let mut write_off = WriteOff::prepare(conn).map_err(failed(doing))?;
    for delivery in &given_up {
        write_off.end(delivery).map_err(failed("give up deliveries that waited too long"))?;
        entries.push(&JournalEntry::ended(delivery, None));
    }
    walk.has_come(conn, done.upto)?;
    let given_up: Vec<DeliveryId> = given_up.into_iter().map(|delivery| delivery.id).collect();
    Ok(Look { removed: given_up.len(), upto: 0, after: last.filter(|_| met_old), given_up })
}

/// A message without its payload.
struct Head {
    id: i64,
    tenant: TenantId,
    at: Timestamp,
    names: NameHashes,
    bytes: i64,
}

fn heads(conn: &Connection, table: &'static str, after: i64, limit: u32) -> Result<Vec<Head>, StoreError> {
    let sql = format!("SELECT id, tenant, at_ms, names, length(body) FROM {table} WHERE id > ?1 ORDER BY id LIMIT ?2");
    prepare(conn, "find expired messages", &sql)?.read_all((after, limit), |row| {
        Ok(Head {
            id: get(row, 0)?,
            tenant: TenantId(stored_key(get(row, 1)?)?),
            at: Timestamp::from_millis(get(row, 2)?),
            names: NameHashes::stored(get::<Option<Vec<u8>>>(row, 3)?.as_deref())?,
            bytes: get(row, 4)?,
        })
    })
}

/// Removes expired messages, or moves them to `kept` if they are still needed.
fn messages(conn: &Connection, request: RetentionRequest) -> Result<Look, StoreError> {
    let doing = "delete expired messages";
    let (walk, old, from) = (request.walk(), request.old(), request.from(conn)?);
    let (mut owners, mut done) = (Owners::new(conn)?, Done::new(walk.place(conn)?, from));
    // Read one more: the deliveries of a message have ids below the next message's.
    let heads = heads(conn, "message", from, RETENTION_STEP_MAX + 1)?;
    let mut look = Look::default();
    let mut bytes = 0;
    for (place, head) in heads.iter().enumerate().take(STEP) {
        if bytes > STEP_BYTES_MAX {
            break;
        }
        look.after = look.after.map(|_| head.id);
        done.met(head.id, head.at > old);
        if head.at > old {
            continue;
        }
        look.after = Some(head.id);
        if owners.own(head.tenant)?.payload != walk.kept() {
            continue;
        }
        let next = heads.get(place + 1).map_or(i64::MAX, |next| next.id);
        if is_needed(conn, head.id, next)? {
            let sql = "INSERT INTO kept (id, tenant, at_ms, tier, event_type, names, head, compact, body)
                 SELECT id, tenant, at_ms, tier, event_type, names, head, compact, body FROM message WHERE id = ?1";
            prepare(conn, doing, sql)?.execute([head.id])?;
        } else {
            forget(conn, head.id, head.names)?;
        }
        prepare(conn, doing, "DELETE FROM message WHERE id = ?1")?.execute([head.id])?;
        bytes += head.bytes;
        look.removed += 1;
        look.upto = head.id;
    }
    walk.has_come(conn, done.upto)?;
    Ok(look)
}

/// Removes messages from `kept` that are no longer needed. They stay if their tenant's retention was extended
/// meanwhile.
fn kept(conn: &Connection, request: RetentionRequest) -> Result<Look, StoreError> {
    let mut owners = Owners::new(conn)?;
    let heads = heads(conn, "kept", request.from(conn)?, RETENTION_STEP_MAX)?;
    let full = heads.len() == STEP;
    let mut look = Look { after: heads.last().map(|head| head.id).filter(|_| full), ..Look::default() };
    let mut bytes = 0;
    for head in &heads {
        if bytes > STEP_BYTES_MAX {
            look.after = Some(head.id - 1);
            break;
        }
        let times = request.retention.with(owners.own(head.tenant)?);
        if head.at > times.old(RetentionPhase::Messages, request.now) || is_needed(conn, head.id, i64::MAX)? {
            continue;
        }
        bytes += head.bytes;
        forget(conn, head.id, head.names)?;
        prepare(conn, "delete kept messages", "DELETE FROM kept WHERE id = ?1")?.execute([head.id])?;
        look.removed += 1;
        look.upto = head.id;
    }
    Ok(look)
}

/// Removes the rows by which a message and its deliveries are found.
pub(super) fn forget(conn: &Connection, id: i64, names: NameHashes) -> Result<(), StoreError> {
    let doing = "delete the index rows of a message";
    for sql in ["DELETE FROM fanout_chunk WHERE message = ?1", "DELETE FROM replay_missed WHERE message = ?1"] {
        prepare(conn, doing, sql)?.execute([id])?;
    }
    let mut sql = prepare(conn, doing, "DELETE FROM name WHERE kind = ?1 AND hidden = ?2 AND message = ?3")?;
    for (kind, hidden) in names.each() {
        sql.execute((kind_number(kind), hidden.0, id))?;
    }
    Ok(())
}

const CHECK_NEED: &str = "check whether a message is needed";

/// Whether an unfinished delivery, a dead letter or a fan-out needs a message. The deliveries made by its accept have
/// ids below the `next` message's.
fn is_needed(conn: &Connection, message: i64, next: i64) -> Result<bool, StoreError> {
    let fans_out = "SELECT 1 FROM job WHERE id = ?1 AND kind = 0 AND state IN (0, 1)";
    let inline = message.saturating_add(i64::try_from(DELIVERIES_MAX).unwrap_or(i64::MAX) + 1);
    if prepare(conn, CHECK_NEED, fans_out)?.exists([message])?
        || is_range_needed(conn, message, message + 1, inline.min(next))?
    {
        return Ok(true);
    }
    let sql = "SELECT first, first + count FROM fanout_chunk WHERE message = ?1 ORDER BY first";
    let mut sql = prepare(conn, CHECK_NEED, sql)?;
    let mut rows = sql.query([message])?;
    while let Some(row) = rows.next()? {
        if is_range_needed(conn, message, get(row, 0)?, get(row, 1)?)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_range_needed(conn: &Connection, message: i64, first: i64, end: i64) -> Result<bool, StoreError> {
    let waits = "SELECT 1 FROM delivery WHERE id >= ?2 AND id < ?3 AND back = id - ?1 LIMIT 1";
    let is_dead = "SELECT 1 FROM dead_letter WHERE delivery >= ?2 AND delivery < ?3 AND message = ?1 LIMIT 1";
    let has_row = |sql| prepare(conn, CHECK_NEED, sql)?.exists((message, first, end));
    Ok(has_row(waits)? || has_row(is_dead)?)
}

/// Removes expired outcomes with their attempts and dead letters. Adds one entry to the journal, or one for each tenant
/// if the tenants of this walk have a retention override.
fn history(conn: &Connection, request: RetentionRequest, entries: &mut Entries) -> Result<Look, StoreError> {
    let doing = failed("delete expired outcomes");
    let (walk, old, from) = (request.walk(), request.old(), request.from(conn)?);
    let (mut owners, mut done) = (Owners::new(conn)?, Done::new(walk.place(conn)?, from));
    let (mut look, mut looked) = (Look::default(), 0);
    let mut gone: BTreeMap<Option<TenantId>, u64> = BTreeMap::new();
    super::journal::each(conn, from.unsigned_abs(), |row| {
        let (mut stays, mut is_old) = (false, row.at <= old);
        for entry in row.entries() {
            looked += 1;
            let entry = entry?;
            let JournalEntry::Ended { delivery, endpoint, .. } = entry else { continue };
            if entry.at() > old {
                stays = true;
                continue;
            }
            is_old = true;
            if !owners.belongs(endpoint, walk)? {
                continue;
            }
            // The next step continues with the rest of a large row.
            if look.removed == STEP {
                look.after = Some(row.number.cast_signed() - 1);
                return Ok(Then::Stop);
            }
            if let_outcome_go(conn, key(delivery.0), key(endpoint.0)).map_err(&doing)? {
                look.removed += 1;
                look.upto = look.upto.max(key(delivery.0));
                *gone.entry(walk.kept().and(owners.of(endpoint)?)).or_default() += 1;
            }
        }
        let number = row.number.cast_signed();
        done.met(number, stays);
        if is_old || look.after.is_some() {
            look.after = Some(number);
        }
        Ok(if looked >= LOOKED_MAX { Then::Stop } else { Then::GoOn })
    })?;
    walk.has_come(conn, done.upto)?;
    let (phase, upto) = (RetentionPhase::History, look.upto.unsigned_abs());
    for (tenant, removed) in gone {
        entries.push(&JournalEntry::Retained { phase, upto, removed, before: old, at: request.now, tenant });
    }
    Ok(look)
}

/// Removes the outcome of a delivery and everything stored with it; returns whether there was an outcome.
pub(super) fn let_outcome_go(conn: &Connection, id: i64, endpoint: i64) -> rusqlite::Result<bool> {
    let gone = conn.prepare_cached("DELETE FROM outcome WHERE id = ?1")?.execute([id])?;
    conn.prepare_cached("DELETE FROM attempt WHERE delivery = ?1")?.execute([id])?;
    conn.prepare_cached("DELETE FROM excerpt WHERE delivery = ?1")?.execute([id])?;
    conn.prepare_cached("DELETE FROM dead_letter WHERE delivery = ?1")?.execute([id])?;
    conn.prepare_cached("DELETE FROM replay_life WHERE old = ?1")?.execute([id])?;
    conn.prepare_cached("DELETE FROM history WHERE endpoint = ?1 AND delivery = ?2")?.execute((endpoint, id))?;
    Ok(gone > 0)
}

/// Removes jobs that have ended and were requested longer ago than the retention of the history.
fn jobs(conn: &Connection, request: RetentionRequest) -> Result<Look, StoreError> {
    let doing = "delete expired jobs";
    let history = before(Timestamp::from_millis(0), request.retention.history);
    let sql = "SELECT id FROM job LEFT JOIN own_retention USING (tenant)
               WHERE at_ms <= ?1 + coalesce(-history_ms, ?2) AND state IN (2, 3) ORDER BY id LIMIT ?3";
    let bounds = (request.now.as_millis(), history.as_millis(), RETENTION_STEP_MAX);
    let past: Vec<(i64,)> = prepare(conn, doing, sql)?.all(bounds)?;
    for id in &past {
        for sql in ["DELETE FROM job WHERE id = ?1", "DELETE FROM replay_listed WHERE job = ?1"] {
            prepare(conn, doing, sql)?.execute(*id)?;
        }
    }
    Ok(Look::all(past.len(), past.last().map_or(0, |(last,)| *last)))
}

/// Removes expired rows of the journal that the follower is past, and by which no outcome is found any more. A row is
/// removed only when the next one has expired too; so the last expired row stays, whose hash the next row contains. A
/// row without a time does not expire by itself.
fn journal(conn: &Connection, request: RetentionRequest, entries: &mut Entries) -> Result<Look, StoreError> {
    let doing = "delete expired rows of the journal";
    let longest = overrides::longest_history(conn)?.unwrap_or_default();
    let old = request.old().min(before(request.now, longest));
    let sql = "SELECT min(number), max(number) FILTER (WHERE at_ms > 0 AND at_ms <= ?1)
               FROM (SELECT number, at_ms FROM journal ORDER BY number LIMIT ?2)";
    let ends: Option<(Option<i64>, Option<i64>)> =
        prepare(conn, doing, sql)?.columns((old.as_millis(), RETENTION_STEP_MAX + 1))?;
    let (first, past) = ends.unwrap_or_default();
    let followed = i64::try_from(followed(conn)?.followed).unwrap_or(i64::MAX);
    let upto = past.map_or(0, |past| past - 1).min(followed).min(overrides::walked(conn)?);
    if first.is_none_or(|first| upto < first) {
        return Ok(Look::default());
    }
    if overrides::tell_again(conn, old, request.now, entries)? > 0 {
        return Ok(Look { after: Some(0), ..Look::default() });
    }
    let removed = prepare(conn, doing, "DELETE FROM journal WHERE number <= ?1")?.execute([upto])?;
    prepare(conn, "delete expired checkpoints", "DELETE FROM checkpoint WHERE row <= ?1")?.execute([upto])?;
    // A finished erasure explains outcomes missing from the journal; the rows that would show them are removed too.
    let sql = "DELETE FROM erasure WHERE row <= ?1 AND done_ms IS NOT NULL";
    prepare(conn, "delete expired erasures", sql)?.execute([upto])?;
    Ok(Look::all(removed, upto))
}

/// Gives free pages back to the disk while there are more of them than are soon used again.
fn space(conn: &Connection) -> Result<Look, StoreError> {
    let doing = "give space back to the disk";
    let count = |sql| prepare(conn, doing, sql)?.value::<i64>([]);
    let (free, pages) = (count("PRAGMA freelist_count")?, count("PRAGMA page_count")?);
    if free <= PAGES_STEP || free * FREE_PART <= pages {
        return Ok(Look::default());
    }
    // SQLite gives back one page for each row that is fetched.
    prepare(conn, doing, &format!("PRAGMA incremental_vacuum({PAGES_STEP})"))?.read_all([], |_| Ok(()))?;
    let left = count("PRAGMA freelist_count")?;
    let given = usize::try_from(free - left).unwrap_or(0);
    Ok(Look { removed: given, after: (given > 0).then_some(0), ..Look::default() })
}
