//! Jobs: their rows, and the chunks of deliveries they make.
//!
//! Invariants: a chunk's deliveries, the ranges they are found by and the job's cursor are one
//! transaction, guarded by where the cursor stood; nothing is given another life twice.

use std::sync::Arc;

use posthaste_core::cut::Scope;
use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, EndpointId, JobId, MessageId, TenantId};
use posthaste_core::state::State;
use posthaste_core::time::Timestamp;
use posthaste_crypto::row_mac::RowMac;
use rusqlite::{Connection, OptionalExtension, Row};

use super::accept::Accept;
use super::column::{
    cause_number, get, job_state_number, key, micros, stored_cause, stored_job_state, stored_key, stored_micros,
    stored_tier, tier_number,
};
use super::dead_letter::{self, number, optional};
use super::request::Request;
use super::vault::Vault;
use super::{Sqlite, arrivals, cut, failed, idempotency, show, token};
use crate::journal::{Entries, Entry};
use crate::row::{
    Acceptance, Begun, Chunk, Chunked, Count, DeadLetterFilter, FanOut, Idempotency, Job, JobCursor, JobKind, JobQuery,
    JobState, ListOrder, NewReplay, REPLAY_LISTED_MAX, ReplayItem, ReplayPage, ReplayWhat, Session, Spread,
};
use crate::{Jobs, StoreError};

const COLUMNS: &str = "id, tenant, at_ms, kind, state, cursor_ms, cursor_number, made, skipped, total, counted,
  per_second, tier, deliver_at_ms, ttl_us, endpoint, cause, event_type, since_ms, until_ms, upto";

impl Jobs for Sqlite {
    async fn start_replay(&self, session: Session, replay: NewReplay) -> Result<Job, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        let run = move |conn: &Connection, entries: &mut Entries| begin(conn, &vault, &replay, entries);
        self.noted_work(session, REPLAY_LISTED_MAX / 2, run).await
    }

    async fn start_replay_once(
        &self,
        session: Session,
        replay: NewReplay,
        mut once: Idempotency,
    ) -> Result<Begun, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        let (tenant, keyed) = (once.tenant, Some((once.tenant, once.key)));
        let own = self.readers.read(move |conn| vault.find_or_make(conn, tenant, None)).await?;
        self.shared.vault.seal_answer(&mut once, &own);
        let vault = Arc::clone(&self.shared.vault);
        let run = move |conn: &Connection, entries: &mut Entries| match idempotency::known(conn, &vault, Some(&once))? {
            Some(Acceptance::Replayed(answer)) => Ok(Begun::Before(answer)),
            Some(Acceptance::KeyReused) => Ok(Begun::KeyReused),
            Some(Acceptance::Fresh) | None => {
                vault.write_down(conn, once.tenant).map_err(failed("begin a replay"))?;
                idempotency::remember(conn, Some(&once)).map_err(failed("remember a call"))?;
                begin(conn, &vault, &replay, entries).map(Begun::Now)
            }
        };
        match self.noted_work(session, REPLAY_LISTED_MAX / 2, run).await? {
            Begun::Before(answer) => {
                let mut opened = self.open_answers(vec![Acceptance::Replayed(answer)], vec![keyed]).await?;
                match opened.pop() {
                    Some(Acceptance::Replayed(answer)) => Ok(Begun::Before(answer)),
                    _ => Err(StoreError::Stopped),
                }
            }
            begun => Ok(begun),
        }
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        self.readers.read(move |conn| one(conn, id)?.map(|job| opened(conn, &vault, job)).transpose()).await
    }

    async fn jobs(&self, query: JobQuery, after: Option<JobId>, limit: u32) -> Result<Vec<Job>, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        let read = move |conn: &Connection| {
            list(conn, query, after, limit)?.into_iter().map(|job| opened(conn, &vault, job)).collect()
        };
        self.readers.read(read).await
    }

    async fn change_job(&self, session: Session, id: JobId, next: JobState) -> Result<bool, StoreError> {
        self.noted_work(session, 1, move |conn, entries| change(conn, id, next, entries)).await
    }

    async fn replay_page(&self, id: JobId, limit: u32) -> Result<Option<ReplayPage>, StoreError> {
        self.readers.read(move |conn| replay_page(conn, id, limit)).await
    }

    async fn spread(&self, session: Session, chunk: Chunk) -> Result<Chunked, StoreError> {
        let room = arrivals::room_of_chunk(&chunk);
        let key = self.shared.vault.row_macs();
        let mac = |spread: &Spread| (spread.new.delivery.id, token::make(key, &spread.new.delivery));
        let macs = chunk.deliveries.iter().map(mac).collect();
        let permit = self.shared.arrivals.make_room(room).await?;
        self.writer
            .ask(|reply| {
                permit.forget();
                Request::Spread { session, chunk: Box::new(chunk), macs, chunked: Chunked::Stale, room, reply }
            })
            .await
    }

    async fn replay_of(&self, id: DeliveryId) -> Result<(Option<DeliveryId>, Option<DeliveryId>), StoreError> {
        self.readers.read(move |conn| replay_of(conn, id)).await
    }
}

/// A job as it was asked for: its filter is kept under seal.
fn opened(conn: &Connection, vault: &Vault, mut job: Job) -> Result<Job, StoreError> {
    if let JobKind::ReplayFound { filter, .. } = &mut job.kind {
        dead_letter::open(conn, vault, job.tenant, &mut filter.event_type)?;
    }
    Ok(job)
}

/// Writes a new job.
pub(super) fn put(conn: &Connection, job: &Job) -> rusqlite::Result<()> {
    let (fan_out, found) = match &job.kind {
        JobKind::FanOut(fan_out) => (Some(fan_out), None),
        JobKind::ReplayFound { filter, upto } => (None, Some((filter, *upto))),
        JobKind::ReplayListed => (None, None),
    };
    let filter = found.map(|(filter, _)| filter);
    let tier = fan_out.map(|fan_out| fan_out.tier).or(filter.and_then(|filter| filter.tier));
    let (total, counted) = match job.total {
        None => (None, None),
        Some(Count::Exactly(total)) => (Some(number(total)), Some(0)),
        Some(Count::AtLeast(total)) => (Some(number(total)), Some(1)),
    };
    let mut sql = conn.prepare_cached(&format!(
        "INSERT INTO job ({COLUMNS}) VALUES
         (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)"
    ))?;
    sql.raw_bind_parameter(1, key(job.id.0))?;
    sql.raw_bind_parameter(2, key(job.tenant.0))?;
    sql.raw_bind_parameter(3, job.at.as_millis())?;
    sql.raw_bind_parameter(4, kind_number(&job.kind))?;
    sql.raw_bind_parameter(5, job_state_number(job.state))?;
    sql.raw_bind_parameter(6, job.cursor.at.as_millis())?;
    sql.raw_bind_parameter(7, number(job.cursor.number))?;
    sql.raw_bind_parameter(8, number(job.made))?;
    sql.raw_bind_parameter(9, number(job.skipped))?;
    sql.raw_bind_parameter(10, total)?;
    sql.raw_bind_parameter(11, counted)?;
    sql.raw_bind_parameter(12, job.per_second)?;
    sql.raw_bind_parameter(13, tier.map(tier_number))?;
    sql.raw_bind_parameter(14, fan_out.and_then(|fan_out| fan_out.deliver_at).map(Timestamp::as_millis))?;
    sql.raw_bind_parameter(15, fan_out.and_then(|fan_out| fan_out.ttl).map(micros))?;
    sql.raw_bind_parameter(16, filter.and_then(|filter| filter.endpoint).map(|endpoint| key(endpoint.0)))?;
    sql.raw_bind_parameter(17, filter.and_then(|filter| filter.cause).map(cause_number))?;
    sql.raw_bind_parameter(18, filter.and_then(|filter| filter.event_type.as_deref()))?;
    sql.raw_bind_parameter(19, filter.and_then(|filter| filter.since).map(Timestamp::as_millis))?;
    sql.raw_bind_parameter(20, filter.and_then(|filter| filter.until).map(Timestamp::as_millis))?;
    sql.raw_bind_parameter(21, found.map(|(_, upto)| number(upto)))?;
    sql.raw_execute().map(drop)
}

/// Begins a replay, whose filter is written sealed.
fn begin(conn: &Connection, vault: &Vault, replay: &NewReplay, entries: &mut Entries) -> Result<Job, StoreError> {
    let mut replay = replay.clone();
    if let ReplayWhat::Found(filter) = &mut replay.what {
        let asked = DeadLetterFilter { tenant: replay.tenant, ..filter.clone() };
        *filter = dead_letter::sealed(conn, vault, &asked)?;
        vault.write_down(conn, replay.tenant).map_err(failed("begin a replay"))?;
    }
    opened(conn, vault, start_replay(conn, &replay, entries)?)
}

/// Begins a replay.
pub(super) fn start_replay(conn: &Connection, replay: &NewReplay, entries: &mut Entries) -> Result<Job, StoreError> {
    let doing = failed("begin a replay");
    let job = match &replay.what {
        ReplayWhat::Found(filter) => {
            let filter = replay.filter(filter);
            let page = dead_letter::list(conn, &filter, ListOrder::OldestFirst, None, u32::MAX)?;
            replay.of_found(filter, dead_letter::last(conn)?, &page)
        }
        ReplayWhat::Listed(ids) => {
            let job = replay.of_listed(ids)?;
            let mut sql = conn.prepare_cached("INSERT INTO replay_listed VALUES (?1, ?2, ?3)").map_err(&doing)?;
            for (place, id) in (1_i64..).zip(ids) {
                sql.execute((key(job.id.0), place, key(id.0))).map_err(&doing)?;
            }
            job
        }
    };
    put(conn, &job).map_err(&doing)?;
    entries.push(&Entry::Job { job: job.id, tenant: job.tenant, state: job.state });
    Ok(job)
}

/// One job.
pub(super) fn one(conn: &Connection, id: JobId) -> Result<Option<Job>, StoreError> {
    Ok(read(conn, "id = ?1 AND ?2 = ?2 LIMIT ?3", (key(id.0), 0, 1))?.pop())
}

const RUNNING: &str = "state = 0 AND id > ?1 AND ?2 = ?2 ORDER BY id LIMIT ?3";
const REPLAYS: &str = "id > ?1 AND tenant = ?2 AND kind > 0 ORDER BY id LIMIT ?3";
const NEWEST_REPLAYS: &str = "id < ?1 AND tenant = ?2 AND kind > 0 ORDER BY id DESC LIMIT ?3";
const OF_TENANT: &str = "id > ?1 AND tenant = ?2 ORDER BY id LIMIT ?3";

/// Jobs by id.
pub(super) fn list(
    conn: &Connection,
    query: JobQuery,
    after: Option<JobId>,
    limit: u32,
) -> Result<Vec<Job>, StoreError> {
    let after = after.map_or(-1, |id| key(id.0));
    match query {
        JobQuery::Running => read(conn, RUNNING, (after, 0, limit)),
        JobQuery::Of(tenant) => read(conn, OF_TENANT, (after, key(tenant.0), limit)),
        JobQuery::Replays(tenant, ListOrder::OldestFirst) => read(conn, REPLAYS, (after, key(tenant.0), limit)),
        JobQuery::Replays(tenant, ListOrder::NewestFirst) => {
            let before = if after < 0 { i64::MAX } else { after };
            read(conn, NEWEST_REPLAYS, (before, key(tenant.0), limit))
        }
    }
}

/// Changes a job's state, where that is allowed.
pub(super) fn change(conn: &Connection, id: JobId, next: JobState, entries: &mut Entries) -> Result<bool, StoreError> {
    let job = one(conn, id)?.filter(|job| job.state.may_become(next));
    if let Some(job) = &job {
        entries.push(&Entry::Job { job: id, tenant: job.tenant, state: next });
        conn.prepare_cached("UPDATE job SET state = ?2 WHERE id = ?1")
            .and_then(|mut sql| sql.execute((key(id.0), job_state_number(next))))
            .map_err(failed("change a job"))?;
    }
    Ok(job.is_some())
}

/// A message that is cut gets no more deliveries: the cut's own entry says so.
pub(super) fn end_fan_out(conn: &Connection, message: MessageId) -> Result<(), StoreError> {
    change(conn, JobId(message.0), JobState::Cancelled, &mut Entries::default()).map(drop)
}

/// What a replay deals with next.
pub(super) fn replay_page(conn: &Connection, id: JobId, limit: u32) -> Result<Option<ReplayPage>, StoreError> {
    let Some(job) = one(conn, id)? else { return Ok(None) };
    let met = match &job.kind {
        JobKind::FanOut(_) => return Ok(None),
        JobKind::ReplayFound { filter, upto } => {
            let page = dead_letter::list(conn, filter, ListOrder::OldestFirst, job.cursor.letter(), limit)?;
            job.meets_letters(*upto, &page)
        }
        JobKind::ReplayListed => job.meets_listed(listed(conn, id, job.cursor, limit)?, limit),
    };
    let replayable = Replayable::begin(conn)?;
    let ended = |id| Ok(replayable.find(id)?.filter(|ended| job.kind.replays(ended)));
    let item = |(id, cursor)| Ok(ReplayItem { ended: ended(id)?, cursor });
    let items = met.found.into_iter().map(item).collect::<Result<_, StoreError>>()?;
    Ok(Some(ReplayPage { items, next: met.next, last: met.last }))
}

fn listed(
    conn: &Connection,
    id: JobId,
    cursor: JobCursor,
    limit: u32,
) -> Result<Vec<(DeliveryId, JobCursor)>, StoreError> {
    let doing = failed("read what a replay lists");
    let mut sql = conn
        .prepare_cached(
            "SELECT delivery, place FROM replay_listed WHERE job = ?1 AND place > ?2 ORDER BY place LIMIT ?3",
        )
        .map_err(&doing)?;
    let mut rows = sql.query((key(id.0), number(cursor.number), limit)).map_err(&doing)?;
    let mut ids = Vec::new();
    while let Some(row) = rows.next().map_err(&doing)? {
        let cursor = JobCursor::behind(get::<i64>(row, 1)?.unsigned_abs());
        ids.push((DeliveryId(stored_key(get(row, 0)?)?), cursor));
    }
    Ok(ids)
}

/// Tells what can be given another life: dead or expired, not replayed, not purged, with its payload.
struct Replayable<'c> {
    conn: &'c Connection,
    purges: dead_letter::Purges,
}

impl<'c> Replayable<'c> {
    fn begin(conn: &'c Connection) -> Result<Self, StoreError> {
        Ok(Self { conn, purges: dead_letter::Purges::read(conn)? })
    }

    fn find(&self, id: DeliveryId) -> Result<Option<Delivery>, StoreError> {
        let Some(delivery) = show::ended_delivery(self.conn, id)? else { return Ok(None) };
        let takes = match delivery.state {
            State::Dead { .. } => dead_letter::is_open(self.conn, &self.purges, id)?,
            State::Expired { .. } => true,
            _ => false,
        };
        let is_new = !self.exists("SELECT 1 FROM replay_life WHERE old = ?1", key(id.0))?;
        let message = key(delivery.message.0);
        let has_payload = self.exists("SELECT 1 FROM message WHERE id = ?1", message)?
            || self.exists("SELECT 1 FROM kept WHERE id = ?1", message)?;
        Ok((takes && is_new && has_payload).then_some(delivery))
    }

    fn exists(&self, sql: &str, id: i64) -> Result<bool, StoreError> {
        self.conn
            .prepare_cached(sql)
            .and_then(|mut sql| sql.exists([id]))
            .map_err(failed("look for what can be replayed"))
    }
}

/// Makes a chunk, or nothing of it. What is passed over is taken out of it once all went well: a chunk
/// that fails half-way may be run again.
pub(super) fn spread(
    conn: &Connection,
    accept: &mut Accept<'_>,
    chunk: &mut Chunk,
    macs: &[(DeliveryId, RowMac)],
    entries: &mut Entries,
) -> Result<Chunked, StoreError> {
    let doing = failed("make a chunk of deliveries");
    let Some(job) = one(conn, chunk.job)?.filter(|job| job.takes(chunk)) else { return Ok(Chunked::Stale) };
    let replayable = Replayable::begin(conn)?;
    let mut passed_over = Vec::new();
    for spread in &chunk.deliveries {
        let delivery = &spread.new.delivery;
        if let Some(old) = spread.replays {
            if cut::find(conn, Scope::Message(delivery.message))?.is_some() || replayable.find(old)?.is_none() {
                passed_over.push(delivery.id);
                continue;
            }
            link(conn, chunk.job, old, delivery.id).map_err(&doing)?;
        }
        let mac = macs.binary_search_by_key(&delivery.id, |(id, _)| *id).map(|at| macs[at].1);
        let mac = mac.map_err(|_| super::vault::damaged("a chunk's row MACs"))?;
        // What a job makes has no collapse key: it takes nobody's place.
        _ = accept.put_delivery(&spread.new, &mac, chunk.at)?;
    }
    let made = |id| passed_over.binary_search(&id).is_err();
    let deliveries = chunk.deliveries.iter().map(|spread| &spread.new.delivery);
    list_ranges(conn, deliveries.filter(|delivery| made(delivery.id))).map_err(&doing)?;
    let count = (chunk.deliveries.len() - passed_over.len()) as u64;
    move_on(conn, chunk, count, chunk.skipped + passed_over.len() as u64).map_err(&doing)?;
    chunk.deliveries.retain(|spread| made(spread.new.delivery.id));
    chunk.skipped += passed_over.len() as u64;
    if count > 0 {
        entries.push(&Entry::spread(
            job.id,
            job.tenant,
            chunk.at,
            chunk.deliveries.iter().map(|spread| &spread.new.delivery),
        ));
    }
    if chunk.last {
        entries.push(&Entry::Job { job: job.id, tenant: job.tenant, state: JobState::Done });
    }
    Ok(Chunked::Done(count))
}

/// Moves the job's cursor behind a chunk.
fn move_on(conn: &Connection, chunk: &Chunk, made: u64, skipped: u64) -> rusqlite::Result<()> {
    let state = if chunk.last { JobState::Done } else { JobState::Running };
    let (at, passed) = (chunk.to.at.as_millis(), number(chunk.to.number));
    conn.prepare_cached(
        "UPDATE job SET cursor_ms = ?2, cursor_number = ?3, made = made + ?4, skipped = skipped + ?5, state = ?6
         WHERE id = ?1",
    )?
    .execute((key(chunk.job.0), at, passed, number(made), number(skipped), job_state_number(state)))?;
    if chunk.last {
        conn.prepare_cached("DELETE FROM replay_listed WHERE job = ?1")?.execute([key(chunk.job.0)])?;
    }
    Ok(())
}

fn link(conn: &Connection, job: JobId, old: DeliveryId, new: DeliveryId) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT INTO replay_life (old, new, job) VALUES (?1, ?2, ?3)")?.execute((
        key(old.0),
        key(new.0),
        key(job.0),
    ))?;
    conn.prepare_cached("UPDATE dead_letter SET replayed_as = ?2 WHERE delivery = ?1")?
        .execute((key(old.0), key(new.0)))
        .map(drop)
}

/// Lists deliveries so that their messages find them: one row for each run of ids.
fn list_ranges<'d>(conn: &Connection, deliveries: impl Iterator<Item = &'d Delivery>) -> rusqlite::Result<()> {
    let mut grow = conn.prepare_cached(
        "UPDATE fanout_chunk SET count = count + 1 WHERE message = ?1 AND first + count = ?2
           AND first = (SELECT max(first) FROM fanout_chunk WHERE message = ?1 AND first <= ?2)",
    )?;
    let mut begin = conn.prepare_cached("INSERT INTO fanout_chunk (message, first, count) VALUES (?1, ?2, ?3)")?;
    let mut run: Option<(i64, i64, i64)> = None;
    for delivery in deliveries {
        let (message, id) = (key(delivery.message.0), key(delivery.id.0));
        match &mut run {
            Some((of, first, count)) if *of == message && *first + *count == id => *count += 1,
            _ => {
                if let Some(run) = run.take() {
                    begin.execute(run)?;
                }
                // It may follow what an earlier chunk ended with.
                if grow.execute((message, id))? == 0 {
                    run = Some((message, id, 1));
                }
            }
        }
    }
    if let Some(run) = run {
        begin.execute(run)?;
    }
    Ok(())
}

/// What a delivery is the next life of, and its own.
pub(super) fn replay_of(
    conn: &Connection,
    id: DeliveryId,
) -> Result<(Option<DeliveryId>, Option<DeliveryId>), StoreError> {
    let find = |sql| -> Result<Option<DeliveryId>, StoreError> {
        let found: Option<i64> = conn
            .prepare_cached(sql)
            .and_then(|mut sql| sql.query_row([key(id.0)], |row| row.get(0)).optional())
            .map_err(failed("read the lives of a delivery"))?;
        found.map(|found| stored_key(found).map(DeliveryId)).transpose()
    };
    Ok((find("SELECT old FROM replay_life WHERE new = ?1")?, find("SELECT new FROM replay_life WHERE old = ?1")?))
}

fn read(conn: &Connection, which: &str, params: (i64, i64, u32)) -> Result<Vec<Job>, StoreError> {
    let doing = failed("read jobs");
    let mut sql = conn.prepare_cached(&format!("SELECT {COLUMNS} FROM job WHERE {which}")).map_err(&doing)?;
    let mut rows = sql.query(params).map_err(&doing)?;
    let mut jobs = Vec::new();
    while let Some(row) = rows.next().map_err(&doing)? {
        jobs.push(stored(row)?);
    }
    Ok(jobs)
}

fn stored(row: &Row<'_>) -> Result<Job, StoreError> {
    let id = stored_key(get(row, 0)?)?;
    let tenant = TenantId(stored_key(get(row, 1)?)?);
    let time = |index| Ok(get::<Option<i64>>(row, index)?.map(Timestamp::from_millis));
    let tier = optional(row, 12, stored_tier)?;
    let kind = match get::<i64>(row, 3)? {
        0 => JobKind::FanOut(FanOut {
            message: MessageId(id),
            tier: tier.unwrap_or_default(),
            deliver_at: time(13)?,
            ttl: get::<Option<i64>>(row, 14)?.map(stored_micros),
        }),
        1 => JobKind::ReplayFound {
            filter: DeadLetterFilter {
                tenant,
                endpoint: optional(row, 15, |column| stored_key(column).map(EndpointId))?,
                cause: optional(row, 16, stored_cause)?,
                event_type: get(row, 17)?,
                tier,
                since: time(18)?,
                until: time(19)?,
            },
            upto: get::<Option<i64>>(row, 20)?.unwrap_or(0).unsigned_abs(),
        },
        2 => JobKind::ReplayListed,
        other => return Err(StoreError::Damaged { what: "a job's kind", found: other.to_string() }),
    };
    let total: Option<i64> = get(row, 9)?;
    let at_least = get::<Option<i64>>(row, 10)? == Some(1);
    let count = |total: i64| {
        let total = total.unsigned_abs();
        if at_least { Count::AtLeast(total) } else { Count::Exactly(total) }
    };
    Ok(Job {
        id: JobId(id),
        tenant,
        at: Timestamp::from_millis(get(row, 2)?),
        kind,
        state: stored_job_state(get(row, 4)?)?,
        cursor: JobCursor { at: Timestamp::from_millis(get(row, 5)?), number: get::<i64>(row, 6)?.unsigned_abs() },
        made: get::<i64>(row, 7)?.unsigned_abs(),
        skipped: get::<i64>(row, 8)?.unsigned_abs(),
        total: total.map(count),
        per_second: get(row, 11)?,
    })
}

fn kind_number(kind: &JobKind) -> u8 {
    match kind {
        JobKind::FanOut(_) => 0,
        JobKind::ReplayFound { .. } => 1,
        JobKind::ReplayListed => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::page::plan;

    #[test]
    fn jobs_are_listed_by_an_index() {
        let sql = |which| format!("SELECT {COLUMNS} FROM job WHERE {which}");
        assert_eq!(plan(&sql(RUNNING)), "SEARCH job USING INDEX job_running (state=? AND rowid>?)");
        for which in [OF_TENANT, REPLAYS] {
            assert_eq!(plan(&sql(which)), "SEARCH job USING INDEX job_tenant (tenant=? AND rowid>?)");
        }
        assert_eq!(plan(&sql(NEWEST_REPLAYS)), "SEARCH job USING INDEX job_tenant (tenant=? AND rowid<?)");
    }
}
