//! Reads the next items of a replay: dead letters, listed deliveries, ended deliveries, or messages that an endpoint is
//! missing. Each kind is walked in an order of its own, a bounded part at a time; a page says where the next one
//! continues.

use std::collections::{BTreeMap, BTreeSet};

use posthaste_core::{CutScope, Delivery, DeliveryId, EndpointId, JobId, MessageId, TenantId, Timestamp};
use rusqlite::{Connection, Params};

use super::list::{ReadBudget, WHOLE_LOOKS};
use super::{
    Vault, cut, dead_letter, delivery, delivery_columns, derived, get, key, number, optional, prepare, show, stored_key,
};
use crate::row::{Purge, ReplayCandidate};
use crate::{
    Chunk, DELIVERIES_MAX, DeadLetterFilter, DeliveryJob, JobCursor, JobKind, LISTED_LOOKED_MAX, ListOrder, Lives,
    MadeBy, Missing, ReplayItem, ReplayPage, Replayable, Skip, StoreError,
};

/// The next page after a replay's cursor; `None` for a fan-out. `list` is the list of a replay that is not stored yet.
pub(super) fn page(
    conn: &Connection,
    vault: &Vault,
    job: &DeliveryJob,
    list: Option<&[DeliveryId]>,
    limit: u32,
) -> Result<Option<ReplayPage>, StoreError> {
    let look = ReplaySelector::begin(conn, &job.kind)?;
    let met = match &job.kind {
        JobKind::FanOut(_) => return Ok(None),
        JobKind::ReplayEnded { filter, dead } => return look.ended(job, filter, *dead, limit).map(Some),
        JobKind::ReplayMissing(missing) => return look.missing(vault, job, *missing, limit).map(Some),
        JobKind::ReplayFound { filter, upto } => {
            let page = dead_letter::list(conn, filter, ListOrder::OldestFirst, job.cursor.letter(), limit)?;
            job.meets_letters(*upto, &page)
        }
        JobKind::ReplayListed => {
            let listed = match list {
                Some(list) => listed_in(list, job.cursor, limit),
                None => listed(conn, job.id, job.cursor, limit)?,
            };
            job.meets_listed(listed, limit)
        }
    };
    let item = |(id, cursor)| Ok(ReplayItem { found: look.at(id)?, cursor });
    let items = met.found.into_iter().map(item).collect::<Result<_, StoreError>>()?;
    Ok(Some(ReplayPage { items, next: met.next, last: met.last }))
}

fn listed_in(list: &[DeliveryId], cursor: JobCursor, limit: u32) -> Vec<(DeliveryId, JobCursor)> {
    let places = (1..).zip(list).skip_while(|(place, _)| *place <= cursor.number);
    places.take(limit as usize).map(|(place, id)| (*id, JobCursor::behind(place))).collect()
}

fn listed(
    conn: &Connection,
    id: JobId,
    cursor: JobCursor,
    limit: u32,
) -> Result<Vec<(DeliveryId, JobCursor)>, StoreError> {
    let sql = "SELECT delivery, place FROM replay_listed WHERE job = ?1 AND place > ?2 ORDER BY place LIMIT ?3";
    let mut sql = prepare(conn, "read the list of a replay", sql)?;
    sql.read_all((key(id.0), number(cursor.number), limit), |row| {
        let cursor = JobCursor::behind(get::<i64>(row, 1)?.unsigned_abs());
        Ok((DeliveryId(stored_key(get(row, 0)?)?), cursor))
    })
}

const ENDED: &str =
    concat!("SELECT ", delivery_columns!("ended_ms"), " FROM outcome WHERE id > ?1 AND id < ?2 ORDER BY id LIMIT ?3");
const MESSAGES: &str = "SELECT id, tenant, at_ms, head FROM message WHERE id > ?1 AND id < ?2
     UNION ALL SELECT id, tenant, at_ms, head FROM kept WHERE id > ?1 AND id < ?2 ORDER BY id LIMIT ?3";

/// Decides which deliveries and messages a replay can select.
pub(super) struct ReplaySelector<'a> {
    conn: &'a Connection,
    kind: &'a JobKind,
    purges: Vec<(i64, Purge)>,
}

impl<'a> ReplaySelector<'a> {
    pub(super) fn begin(conn: &'a Connection, kind: &'a JobKind) -> Result<Self, StoreError> {
        Ok(Self { conn, kind, purges: dead_letter::purges(conn)? })
    }

    /// Whether a delivery can be replayed, or why not.
    pub(super) fn at(&self, id: DeliveryId) -> Result<Replayable, StoreError> {
        let ended = show::ended_delivery(self.conn, id)?;
        let message = ended.as_ref().map(|ended| ended.message);
        let known = ReplayCandidate {
            is_pending: ended.is_none() && self.has("SELECT 1 FROM delivery WHERE id = ?1", [key(id.0)])?,
            was_replayed: self.has("SELECT 1 FROM replay_life WHERE old = ?1", [key(id.0)])?,
            is_filed: dead_letter::is_filed(self.conn, &self.purges, id)?,
            has_payload: message.map_or(Ok(false), |message| self.has_payload(message))?,
            ended,
        };
        Ok(self.kind.judge(known))
    }

    /// Records that an endpoint gets a message it was missing; returns the reason if it must be passed over.
    pub(super) fn catch_up(&self, chunk: &Chunk, new: &Delivery) -> Result<Option<Skip>, StoreError> {
        if !self.has_payload(new.message)? {
            return Ok(Some(Skip::PayloadGone));
        }
        let sql =
            "INSERT OR IGNORE INTO replay_missed (message, endpoint, delivery, job, at_ms) VALUES (?1, ?2, ?3, ?4, ?5)";
        let row = (key(new.message.0), key(new.endpoint.0), key(new.id.0), key(chunk.job.0), chunk.at.as_millis());
        let noted = prepare(self.conn, "record a missing message", sql)?.execute(row)?;
        Ok((noted == 0).then_some(Skip::ReplayedBefore))
    }

    /// The ended deliveries that match, by id.
    fn ended(
        &self,
        job: &DeliveryJob,
        filter: &DeadLetterFilter,
        dead: bool,
        limit: u32,
    ) -> Result<ReplayPage, StoreError> {
        let mut sql = prepare(self.conn, "find ended deliveries", ENDED)?;
        let mut rows = sql.query((number(job.cursor.number), key(job.id.0), LISTED_LOOKED_MAX + 1))?;
        let mut page = ReplayPage { items: Vec::new(), next: job.cursor, last: false };
        let (mut owners, mut budget) = (BTreeMap::new(), ReadBudget::new());
        while let Some(row) = rows.next()? {
            if budget.is_spent() || page.items.len() == limit as usize {
                return Ok(page);
            }
            budget.looks += 1;
            let ended = delivery(row)?;
            page.next = JobCursor::behind(ended.id.raw());
            let is_met = job.meets_ended(filter, dead, &ended)
                && derived::owner(self.conn, &mut owners, ended.endpoint)? == job.tenant
                && self.has_event_type(ended.message, filter.event_type.as_deref())?;
            if !is_met {
                continue;
            }
            budget.looks += WHOLE_LOOKS;
            match self.at(ended.id)? {
                // These are not selected, so they do not count as passed over.
                Replayable::Not(Skip::ReplayedBefore | Skip::Purged) => {}
                found => page.items.push(ReplayItem { found, cursor: page.next }),
            }
        }
        page.last = true;
        Ok(page)
    }

    fn has_event_type(&self, message: MessageId, wanted: Option<&str>) -> Result<bool, StoreError> {
        let Some(wanted) = wanted else { return Ok(true) };
        let sql = "SELECT event_type FROM message WHERE id = ?1 UNION ALL SELECT event_type FROM kept WHERE id = ?1";
        let stored: Option<Option<String>> = prepare(self.conn, "read an event type", sql)?.find([key(message.0)])?;
        Ok(stored.flatten().as_deref() == Some(wanted))
    }

    /// Messages that have no delivery for an endpoint, by id.
    fn missing(
        &self,
        vault: &Vault,
        job: &DeliveryJob,
        missing: Missing,
        limit: u32,
    ) -> Result<ReplayPage, StoreError> {
        let mut sql = prepare(self.conn, "find the messages that an endpoint is missing", MESSAGES)?;
        let mut rows = sql.query((number(job.cursor.number), key(job.id.0), LISTED_LOOKED_MAX + 1))?;
        let mut page = ReplayPage { items: Vec::new(), next: job.cursor, last: false };
        let mut had = Had { look: self, endpoint: missing.endpoint, tail: None };
        let mut budget = ReadBudget::new();
        while let Some(row) = rows.next()? {
            if budget.is_spent() || page.items.len() == limit as usize {
                return Ok(page);
            }
            budget.looks += 1;
            let id = MessageId(stored_key(get(row, 0)?)?);
            let tenant = TenantId(stored_key(get(row, 1)?)?);
            page.next = JobCursor::behind(id.raw());
            if tenant != job.tenant || !missing.has_time(Timestamp::from_millis(get(row, 2)?)) {
                continue;
            }
            budget.looks += WHOLE_LOOKS;
            if had.has(id)? || cut::find(self.conn, CutScope::Message(id))?.is_some() {
                continue;
            }
            if let Some(message) = vault.open_listed(self.conn, (tenant, id), &get::<Vec<u8>>(row, 3)?)? {
                page.items.push(ReplayItem { found: Replayable::Missing(Box::new(message)), cursor: page.next });
            }
        }
        page.last = true;
        Ok(page)
    }

    fn has_payload(&self, message: MessageId) -> Result<bool, StoreError> {
        let sql = "SELECT 1 FROM message WHERE id = ?1 UNION ALL SELECT 1 FROM kept WHERE id = ?1";
        self.has(sql, [key(message.0)])
    }

    fn has(&self, sql: &str, params: impl Params) -> Result<bool, StoreError> {
        prepare(self.conn, "check what can be replayed", sql)?.exists(params)
    }
}

const NEXT: &str = "SELECT new FROM replay_life WHERE old = ?1";
const FORMER: &str = "SELECT old, job, at_ms, (SELECT at_ms FROM job WHERE id = replay_life.job) FROM replay_life
     WHERE new = ?1";
const CAUGHT_UP: &str = "SELECT NULL, job, at_ms, (SELECT at_ms FROM job WHERE id = missed.job)
     FROM (SELECT id, id - back AS message, endpoint FROM delivery WHERE id = ?1
           UNION ALL SELECT id, id - back, endpoint FROM outcome WHERE id = ?1) made
     JOIN replay_missed missed ON missed.message = made.message AND missed.endpoint = made.endpoint AND missed.delivery = made.id";

/// How a delivery is linked to others by replays.
pub(super) fn lives(conn: &Connection, id: DeliveryId) -> Result<Lives, StoreError> {
    let doing = "read the lives of a delivery";
    let next: Option<i64> = prepare(conn, doing, NEXT)?.find([key(id.0)])?;
    let mut lives = Lives { next: next.map(stored_key).transpose()?.map(DeliveryId), ..Lives::default() };
    for sql in [FORMER, CAUGHT_UP] {
        let found = prepare(conn, doing, sql)?.read([key(id.0)], |row| {
            let (job, at) = (JobId(stored_key(get(row, 1)?)?), Timestamp::from_millis(get(row, 2)?));
            let asked = get::<Option<i64>>(row, 3)?.map(Timestamp::from_millis);
            Ok((optional(row, 0, stored_key)?.map(DeliveryId), MadeBy { job, asked, at }))
        })?;
        if let Some((before, made)) = found {
            (lives.before, lives.made) = (before, Some(made));
            break;
        }
    }
    Ok(lives)
}

/// Finds out whether an endpoint has, or is about to get, a delivery of a message.
struct Had<'l, 'a> {
    look: &'l ReplaySelector<'a>,
    endpoint: EndpointId,
    /// The endpoint's deliveries that are not in the table `history` yet.
    tail: Option<BTreeSet<i64>>,
}

impl Had<'_, '_> {
    fn has(&mut self, message: MessageId) -> Result<bool, StoreError> {
        let (look, of, endpoint) = (self.look, key(message.0), key(self.endpoint.0));
        // A fan-out under way may still reach the endpoint.
        Ok(look.has("SELECT 1 FROM job WHERE id = ?1 AND kind = 0 AND state IN (0, 1)", [of])?
            || look.has("SELECT 1 FROM replay_missed WHERE message = ?1 AND endpoint = ?2", (of, endpoint))?
            || self.by_accept(of, endpoint)?
            || self.by_fan_out(of, endpoint)?)
    }

    /// Deliveries made by the accept: their ids are below the next message's.
    fn by_accept(&self, of: i64, endpoint: i64) -> Result<bool, StoreError> {
        let inline = of.saturating_add(i64::try_from(DELIVERIES_MAX).unwrap_or(i64::MAX) + 1);
        let sql = "SELECT min(id) FROM message WHERE id > ?1";
        let next: Option<i64> = prepare(self.look.conn, "look for the next message", sql)?.value([of])?;
        let range = (of, inline.min(next.unwrap_or(i64::MAX)), endpoint);
        let pending = "SELECT 1 FROM delivery WHERE id > ?1 AND id < ?2 AND endpoint = ?3 AND back = id - ?1";
        let ended = "SELECT 1 FROM outcome WHERE id > ?1 AND id < ?2 AND endpoint = ?3 AND back = id - ?1";
        Ok(self.look.has(pending, range)? || self.look.has(ended, range)?)
    }

    /// Deliveries made by jobs: too many to read, so their ranges of ids are looked up in the endpoint's history.
    fn by_fan_out(&mut self, of: i64, endpoint: i64) -> Result<bool, StoreError> {
        let conn = self.look.conn;
        let sql = "SELECT first, first + count FROM fanout_chunk WHERE message = ?1";
        let mut sql = prepare(conn, "find the deliveries of a fan-out", sql)?;
        let mut rows = sql.query([of])?;
        while let Some(row) = rows.next()? {
            let (first, end): (i64, i64) = (get(row, 0)?, get(row, 1)?);
            let tail = match &mut self.tail {
                Some(tail) => tail,
                none => none.insert(derived::unfollowed(conn, self.endpoint)?),
            };
            let known = "SELECT 1 FROM history WHERE endpoint = ?1 AND delivery >= ?2 AND delivery < ?3";
            if tail.range(first..end).next().is_some() || self.look.has(known, (endpoint, first, end))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::fixture::plan;

    #[test]
    fn replays_walk_the_primary_keys_without_sorting() {
        for sql in [ENDED, MESSAGES, NEXT, FORMER] {
            let plan = plan(sql);
            assert!(!plan.contains("TEMP B-TREE") && !plan.contains("SCAN"), "{plan}");
        }
    }
}
