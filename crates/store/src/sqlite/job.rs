//! Jobs (large fan-outs and replays): their rows, and the chunks of deliveries they make.
//!
//! Invariants: a chunk's deliveries, the ranges they are found by and the job's cursor are written in one transaction,
//! which requires that the cursor is where the chunk begins; a delivery is replayed at most once.

use std::sync::Arc;

use posthaste_core::{CutScope, Delivery, DeliveryId, EndpointId, JobId, MessageId, TenantId, Timestamp};
use posthaste_crypto::row_mac::RowMac;
use rusqlite::{Connection, Params, Row};

use super::accept::Accept;
use super::{
    Sqlite, Vault, WriteRequest, arrivals, cause_number, cut, dead_letter, failed, get, idempotency, job_state_number,
    key, micros, number, optional, prepare, replay, stored_cause, stored_job_state, stored_key, stored_micros,
    stored_tier, tier_number, token,
};
use crate::journal::{Entries, JournalEntry};
use crate::row::REPLAY_LISTED_MAX;
use crate::{
    ApiKeyRef, AuditStamp, Begun, BoundedCount, Chunk, ChunkDelivery, Chunked, DeadLetterFilter, DeliveryJob, FanOut,
    Idempotency, JobCursor, JobKind, JobQuery, JobState, Jobs, ListOrder, Lives, Missing, NewReplay, ReplayPage,
    ReplayWhat, Replayable, Session, Skip, Skips, StoreError,
};

const COLUMNS: &str = "id, tenant, at_ms, kind, state, cursor_ms, cursor_number, made, total, counted,
  per_second, tier, deliver_at_ms, ttl_us, endpoint, cause, event_type, since_ms, until_ms, upto, reason";

impl Jobs for Sqlite {
    async fn start_replay(
        &self,
        session: Session,
        replay: NewReplay,
        by: Option<ApiKeyRef>,
    ) -> Result<DeliveryJob, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        let run = move |conn: &Connection, entries: &mut Entries| {
            has_room(conn, &replay)?;
            begin(conn, &vault, &replay, by, entries)
        };
        self.asked_work(session, REPLAY_LISTED_MAX / 2, run).await
    }

    async fn start_replay_once(
        &self,
        session: Session,
        replay: NewReplay,
        once: Idempotency,
        by: Option<ApiKeyRef>,
    ) -> Result<Begun, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        let once = vault.seal_once(&once, &self.key_of((once.tenant, None)).await?);
        let keyed = once.known_by();
        let run = move |conn: &Connection, entries: &mut Entries| match idempotency::known(conn, &vault, Some(&once))? {
            Some(before) => Ok(before.into()),
            None => {
                has_room(conn, &replay)?;
                let once = vault.seal_once_as_of_now(conn, &once)?;
                idempotency::remember(conn, Some(&once)).map_err(failed("store an idempotency key"))?;
                begin(conn, &vault, &replay, by, entries).map(|job| Begun::Now(Box::new(job)))
            }
        };
        match self.asked_work(session, REPLAY_LISTED_MAX / 2, run).await? {
            Begun::Before(answer) => Ok(Begun::Before(self.open_answer(keyed, answer).await?)),
            begun => Ok(begun),
        }
    }

    async fn job(&self, id: JobId) -> Result<Option<DeliveryJob>, StoreError> {
        self.read(move |conn, vault| one(conn, id)?.map(|job| opened(conn, vault, job)).transpose()).await
    }

    async fn jobs(&self, query: JobQuery, after: Option<JobId>, limit: u32) -> Result<Vec<DeliveryJob>, StoreError> {
        self.read(move |conn, vault| {
            list(conn, query, after, limit)?.into_iter().map(|job| opened(conn, vault, job)).collect()
        })
        .await
    }

    async fn change_job(
        &self,
        session: Session,
        id: JobId,
        next: JobState,
        act: AuditStamp,
    ) -> Result<bool, StoreError> {
        let run = move |conn: &Connection, entries: &mut Entries| {
            let changed = change(conn, id, next)?;
            changed.iter().for_each(|job| entries.push(&JournalEntry::job(job, next, act)));
            Ok(changed.is_some())
        };
        self.asked_work(session, 1, run).await
    }

    async fn replay_page(&self, id: JobId, limit: u32) -> Result<Option<ReplayPage>, StoreError> {
        self.read(move |conn, vault| match one(conn, id)? {
            Some(job) => replay::page(conn, vault, &job, None, limit),
            None => Ok(None),
        })
        .await
    }

    async fn would_replay(&self, replay: NewReplay, from: JobCursor, limit: u32) -> Result<ReplayPage, StoreError> {
        self.read(move |conn, vault| {
            let replay = sealed(conn, vault, &replay)?;
            let job = DeliveryJob { cursor: from, ..replay.job(dead_letter::last(conn)?)? };
            let listed = if let ReplayWhat::Listed(ids) = &replay.what { Some(ids.as_slice()) } else { None };
            let page = replay::page(conn, vault, &job, listed, limit)?;
            page.ok_or_else(|| super::vault::damaged("a replay"))
        })
        .await
    }

    async fn spread(&self, session: Session, chunk: Chunk) -> Result<Chunked, StoreError> {
        let room = arrivals::room_of_chunk(&chunk);
        let key = &self.shared.vault.row_macs;
        let mac = |spread: &ChunkDelivery| (spread.new.delivery.id, token::make(key, &spread.new.delivery));
        let macs = chunk.deliveries.iter().map(mac).collect();
        let permit = self.shared.arrivals.make_room(room).await?;
        self.writer
            .ask(|reply| {
                permit.forget();
                WriteRequest::Spread { session, chunk: Box::new(chunk), macs, chunked: Chunked::Stale, room, reply }
            })
            .await
    }

    async fn lives(&self, ids: Vec<DeliveryId>) -> Result<Vec<Lives>, StoreError> {
        self.readers.read(move |conn| ids.into_iter().map(|id| replay::lives(conn, id)).collect()).await
    }
}

/// Opens the sealed event type and reason of a stored job.
fn opened(conn: &Connection, vault: &Vault, mut job: DeliveryJob) -> Result<DeliveryJob, StoreError> {
    if let JobKind::ReplayFound { filter, .. } | JobKind::ReplayEnded { filter, .. } = &mut job.kind {
        dead_letter::open(conn, vault, job.tenant, &mut filter.event_type)?;
    }
    if let Some(reason) = job.reason.take() {
        job.reason = vault.open_reason(conn, (job.tenant, job.id), &reason)?;
    }
    Ok(job)
}

pub(super) fn put(conn: &Connection, job: &DeliveryJob) -> rusqlite::Result<()> {
    let (fan_out, filter, upto) = match &job.kind {
        JobKind::FanOut(fan_out) => (Some(fan_out), None, None),
        JobKind::ReplayFound { filter, upto } => (None, Some(filter.clone()), Some(*upto)),
        JobKind::ReplayListed => (None, None, None),
        JobKind::ReplayEnded { filter, dead } => (None, Some(filter.clone()), Some((*dead).into())),
        JobKind::ReplayMissing(Missing { endpoint, since, until }) => {
            let (endpoint, since, until) = (Some(*endpoint), *since, *until);
            (None, Some(DeadLetterFilter { endpoint, since, until, ..DeadLetterFilter::of(job.tenant) }), None)
        }
    };
    let filter = filter.as_ref();
    let tier = fan_out.map(|fan_out| fan_out.tier).or(filter.and_then(|filter| filter.tier));
    let (total, counted) = match job.total {
        None => (None, None),
        Some(BoundedCount::Exactly(total)) => (Some(number(total)), Some(0)),
        Some(BoundedCount::AtLeast(total)) => (Some(number(total)), Some(1)),
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
    sql.raw_bind_parameter(9, total)?;
    sql.raw_bind_parameter(10, counted)?;
    sql.raw_bind_parameter(11, job.per_second)?;
    sql.raw_bind_parameter(12, tier.map(tier_number))?;
    sql.raw_bind_parameter(13, fan_out.and_then(|fan_out| fan_out.deliver_at).map(Timestamp::as_millis))?;
    sql.raw_bind_parameter(14, fan_out.and_then(|fan_out| fan_out.ttl).map(micros))?;
    sql.raw_bind_parameter(15, filter.and_then(|filter| filter.endpoint).map(|endpoint| key(endpoint.0)))?;
    sql.raw_bind_parameter(16, filter.and_then(|filter| filter.cause).map(cause_number))?;
    sql.raw_bind_parameter(17, filter.and_then(|filter| filter.event_type.as_deref()))?;
    sql.raw_bind_parameter(18, filter.and_then(|filter| filter.since).map(Timestamp::as_millis))?;
    sql.raw_bind_parameter(19, filter.and_then(|filter| filter.until).map(Timestamp::as_millis))?;
    sql.raw_bind_parameter(20, upto.map(number))?;
    sql.raw_bind_parameter(21, job.reason.as_deref())?;
    sql.raw_execute().map(drop)
}

/// A replay with the event type of its filter sealed, as rows have it, and without its reason.
fn sealed(conn: &Connection, vault: &Vault, replay: &NewReplay) -> Result<NewReplay, StoreError> {
    let mut replay = NewReplay { reason: None, ..replay.clone() };
    if let ReplayWhat::Found(filter) | ReplayWhat::Ended { filter, .. } = &mut replay.what {
        *filter = dead_letter::sealed(conn, vault, &filter.within(replay.tenant))?;
    }
    Ok(replay)
}

/// Refuses a replay if its tenant has as many running already as it may have.
fn has_room(conn: &Connection, replay: &NewReplay) -> Result<(), StoreError> {
    let Some(most) = replay.running_max else { return Ok(()) };
    replay.has_room(list(conn, JobQuery::ReplaysOf(replay.tenant), None, most)?.len())
}

fn begin(
    conn: &Connection,
    vault: &Vault,
    replay: &NewReplay,
    by: Option<ApiKeyRef>,
    entries: &mut Entries,
) -> Result<DeliveryJob, StoreError> {
    let own = vault.own_on_disk(conn, replay.tenant)?;
    let reason = replay.reason.as_deref().map(|reason| vault.seal_reason((replay.tenant, replay.id), &own, reason));
    let replay = NewReplay { reason, ..sealed(conn, vault, replay)? };
    let job = start_replay(conn, &replay)?;
    entries.push(&JournalEntry::job(&job, job.state, AuditStamp { at: job.at, by }));
    opened(conn, vault, job)
}

fn start_replay(conn: &Connection, replay: &NewReplay) -> Result<DeliveryJob, StoreError> {
    let mut job = replay.job(dead_letter::last(conn)?)?;
    match &replay.what {
        ReplayWhat::Found(filter) => {
            let page = dead_letter::list(conn, filter, ListOrder::OldestFirst, None, u32::MAX)?;
            job.total = Some(NewReplay::counted(&page));
        }
        ReplayWhat::Listed(ids) => {
            let mut sql = prepare(conn, "begin a replay", "INSERT INTO replay_listed VALUES (?1, ?2, ?3)")?;
            for (place, id) in (1_i64..).zip(ids) {
                sql.execute((key(job.id.0), place, key(id.0)))?;
            }
        }
        ReplayWhat::Ended { .. } | ReplayWhat::Missing(_) => {}
    }
    put(conn, &job).map_err(failed("begin a replay"))?;
    Ok(job)
}

pub(super) fn one(conn: &Connection, id: JobId) -> Result<Option<DeliveryJob>, StoreError> {
    Ok(read(conn, "id = ?1", [key(id.0)])?.pop())
}

const RUNNING: &str = "state = 0 AND id > ?1 ORDER BY id LIMIT ?2";
const FAN_OUTS: &str = "kind = 0 AND state = 0 AND id > ?1 ORDER BY id LIMIT ?2";
const RUNNING_REPLAYS: &str = "tenant = ?2 AND state = 0 AND kind > 0 AND id > ?1 ORDER BY id LIMIT ?3";
const REPLAYS: &str = "id > ?1 AND tenant = ?2 AND kind > 0 ORDER BY id LIMIT ?3";
const NEWEST_REPLAYS: &str = "id < ?1 AND tenant = ?2 AND kind > 0 ORDER BY id DESC LIMIT ?3";
const EVERY_REPLAY: &str = "id > ?1 AND kind > 0 ORDER BY id LIMIT ?2";
const EVERY_NEWEST_REPLAY: &str = "id < ?1 AND kind > 0 ORDER BY id DESC LIMIT ?2";

/// A page of jobs, ordered by id.
pub(super) fn list(
    conn: &Connection,
    query: JobQuery,
    after: Option<JobId>,
    limit: u32,
) -> Result<Vec<DeliveryJob>, StoreError> {
    let after = after.map(|id| key(id.0));
    let (before, after) = (after.unwrap_or(i64::MAX), after.unwrap_or(-1));
    match query {
        JobQuery::Running => read(conn, RUNNING, (after, limit)),
        JobQuery::FanOuts => read(conn, FAN_OUTS, (after, limit)),
        JobQuery::ReplaysOf(tenant) => read(conn, RUNNING_REPLAYS, (after, key(tenant.0), limit)),
        JobQuery::Replays(tenant, ListOrder::OldestFirst) => read(conn, REPLAYS, (after, key(tenant.0), limit)),
        JobQuery::Replays(tenant, ListOrder::NewestFirst) => read(conn, NEWEST_REPLAYS, (before, key(tenant.0), limit)),
        JobQuery::EveryReplay(ListOrder::OldestFirst) => read(conn, EVERY_REPLAY, (after, limit)),
        JobQuery::EveryReplay(ListOrder::NewestFirst) => read(conn, EVERY_NEWEST_REPLAY, (before, limit)),
    }
}

/// Changes a job's state if that is allowed; returns the job as it was before, or `None`.
pub(super) fn change(conn: &Connection, id: JobId, next: JobState) -> Result<Option<DeliveryJob>, StoreError> {
    let job = one(conn, id)?.filter(|job| job.state.may_become(next));
    if job.is_some() {
        let mut sql = prepare(conn, "change a job", "UPDATE job SET state = ?2 WHERE id = ?1")?;
        sql.execute((key(id.0), job_state_number(next)))?;
    }
    Ok(job)
}

/// Cancels the fan-out of a message that was cut. No journal entry: that of the cut implies it.
pub(super) fn end_fan_out(conn: &Connection, message: MessageId) -> Result<(), StoreError> {
    change(conn, JobId(message.0), JobState::Cancelled).map(drop)
}

/// Makes a chunk of deliveries, all or nothing. Deliveries that are passed over are removed from `chunk` only at the
/// end, since a chunk that fails half-way may be run again.
pub(super) fn spread(
    conn: &Connection,
    accept: &mut Accept<'_>,
    chunk: &mut Chunk,
    macs: &[(DeliveryId, RowMac)],
    entries: &mut Entries,
) -> Result<Chunked, StoreError> {
    let doing = failed("make a chunk of deliveries");
    let Some(job) = one(conn, chunk.job)?.filter(|job| job.takes(chunk)) else { return Ok(Chunked::Stale) };
    let look = replay::ReplaySelector::begin(conn, &job.kind)?;
    let mut passed_over = Vec::new();
    let mut skipped = chunk.skipped;
    for spread in &chunk.deliveries {
        let delivery = &spread.new.delivery;
        let skip = match (spread.replays, &job.kind) {
            (None, JobKind::FanOut(_)) => None,
            _ if cut::find(conn, CutScope::Message(delivery.message))?.is_some() => Some(Skip::Cancelled),
            (Some(old), _) => match look.at(old)? {
                Replayable::Not(why) => Some(why),
                _ => link(conn, chunk, old, delivery.id).map(|()| None).map_err(&doing)?,
            },
            (None, _) => look.catch_up(chunk, delivery)?,
        };
        if let Some(why) = skip {
            passed_over.push(delivery.id);
            skipped.add(why, 1);
            continue;
        }
        let mac = macs.binary_search_by_key(&delivery.id, |(id, _)| *id).map(|at| macs[at].1);
        let mac = mac.map_err(|_| super::vault::damaged("a chunk's row MACs"))?;
        // Deliveries made by a job have no collapse key, so they supersede none.
        _ = accept.put_delivery(&spread.new, &mac, chunk.at)?;
    }
    let made = |id| passed_over.binary_search(&id).is_err();
    let deliveries = chunk.deliveries.iter().map(|spread| &spread.new.delivery);
    list_ranges(conn, deliveries.filter(|delivery| made(delivery.id))).map_err(&doing)?;
    let count = (chunk.deliveries.len() - passed_over.len()) as u64;
    move_on(conn, chunk, count, skipped).map_err(&doing)?;
    chunk.deliveries.retain(|spread| made(spread.new.delivery.id));
    chunk.skipped = skipped;
    if count > 0 {
        entries.push(&JournalEntry::spread(
            job.id,
            job.tenant,
            chunk.at,
            chunk.deliveries.iter().map(|spread| &spread.new.delivery),
        ));
    }
    if chunk.last {
        entries.push(&JournalEntry::job(&job, JobState::Done, AuditStamp::at(chunk.at)));
    }
    Ok(Chunked::Done(count))
}

/// Moves the job's cursor to the end of a chunk.
fn move_on(conn: &Connection, chunk: &Chunk, made: u64, skipped: Skips) -> rusqlite::Result<()> {
    let state = if chunk.last { JobState::Done } else { JobState::Running };
    let (at, passed) = (chunk.to.at.as_millis(), number(chunk.to.number));
    conn.prepare_cached(
        "UPDATE job SET cursor_ms = ?2, cursor_number = ?3, made = made + ?4, state = ?5 WHERE id = ?1",
    )?
    .execute((key(chunk.job.0), at, passed, number(made), job_state_number(state)))?;
    let mut skip = conn.prepare_cached(
        "INSERT INTO job_skip (job, why, count) VALUES (?1, ?2, ?3)
         ON CONFLICT DO UPDATE SET count = count + excluded.count",
    )?;
    for (why, count) in skipped.each() {
        skip.execute((key(chunk.job.0), skip_number(why), number(count)))?;
    }
    if chunk.last {
        conn.prepare_cached("DELETE FROM replay_listed WHERE job = ?1")?.execute([key(chunk.job.0)])?;
    }
    Ok(())
}

fn link(conn: &Connection, chunk: &Chunk, old: DeliveryId, new: DeliveryId) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT INTO replay_life (old, new, job, at_ms) VALUES (?1, ?2, ?3, ?4)")?.execute((
        key(old.0),
        key(new.0),
        key(chunk.job.0),
        chunk.at.as_millis(),
    ))?;
    conn.prepare_cached("UPDATE dead_letter SET replayed_as = ?2 WHERE delivery = ?1")?
        .execute((key(old.0), key(new.0)))
        .map(drop)
}

/// Writes the ranges of ids by which deliveries are found from their messages: one row for each run of ids.
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
                // The run may continue the last range of an earlier chunk.
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

fn read(conn: &Connection, which: &str, params: impl Params) -> Result<Vec<DeliveryJob>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM job WHERE {which}");
    let mut jobs = prepare(conn, "read jobs", &sql)?.read_all(params, stored)?;
    for job in &mut jobs {
        job.skipped = skipped(conn, job.id)?;
    }
    Ok(jobs)
}

/// How many items a job passed over, by reason.
fn skipped(conn: &Connection, id: JobId) -> Result<Skips, StoreError> {
    let mut sql = prepare(conn, "read what a job passed over", "SELECT why, count FROM job_skip WHERE job = ?1")?;
    let mut rows = sql.query([key(id.0)])?;
    let mut skips = Skips::default();
    while let Some(row) = rows.next()? {
        skips.add(stored_skip(get(row, 0)?)?, get::<i64>(row, 1)?.unsigned_abs());
    }
    Ok(skips)
}

/// A job without the items it passed over.
fn stored(row: &Row<'_>) -> Result<DeliveryJob, StoreError> {
    let id = stored_key(get(row, 0)?)?;
    let tenant = TenantId(stored_key(get(row, 1)?)?);
    let time = |index| Ok(get::<Option<i64>>(row, index)?.map(Timestamp::from_millis));
    let tier = optional(row, 11, stored_tier)?;
    let endpoint = optional(row, 14, |column| stored_key(column).map(EndpointId))?;
    let (since, until) = (time(17)?, time(18)?);
    let upto = get::<Option<i64>>(row, 19)?.unwrap_or(0).unsigned_abs();
    let filter = || -> Result<DeadLetterFilter, StoreError> {
        let (cause, event_type) = (optional(row, 15, stored_cause)?, get(row, 16)?);
        Ok(DeadLetterFilter { tenant: Some(tenant), endpoint, cause, event_type, tier, since, until })
    };
    let kind = match (get::<i64>(row, 3)?, endpoint) {
        (0, _) => JobKind::FanOut(FanOut {
            message: MessageId(id),
            tier: tier.unwrap_or_default(),
            deliver_at: time(12)?,
            ttl: get::<Option<i64>>(row, 13)?.map(stored_micros),
        }),
        (1, _) => JobKind::ReplayFound { filter: filter()?, upto },
        (2, _) => JobKind::ReplayListed,
        (3, _) => JobKind::ReplayEnded { filter: filter()?, dead: upto > 0 },
        (4, Some(endpoint)) => JobKind::ReplayMissing(Missing { endpoint, since, until }),
        (other, _) => return Err(StoreError::Damaged { what: "a job's kind", found: other.to_string() }),
    };
    let total: Option<i64> = get(row, 8)?;
    let at_least = get::<Option<i64>>(row, 9)? == Some(1);
    let count = |total: i64| {
        let total = total.unsigned_abs();
        if at_least { BoundedCount::AtLeast(total) } else { BoundedCount::Exactly(total) }
    };
    Ok(DeliveryJob {
        id: JobId(id),
        tenant,
        at: Timestamp::from_millis(get(row, 2)?),
        kind,
        state: stored_job_state(get(row, 4)?)?,
        cursor: JobCursor { at: Timestamp::from_millis(get(row, 5)?), number: get::<i64>(row, 6)?.unsigned_abs() },
        made: get::<i64>(row, 7)?.unsigned_abs(),
        skipped: Skips::default(),
        total: total.map(count),
        per_second: get(row, 10)?,
        reason: get(row, 20)?,
    })
}

fn kind_number(kind: &JobKind) -> u8 {
    match kind {
        JobKind::FanOut(_) => 0,
        JobKind::ReplayFound { .. } => 1,
        JobKind::ReplayListed => 2,
        JobKind::ReplayEnded { .. } => 3,
        JobKind::ReplayMissing(_) => 4,
    }
}

fn skip_number(why: Skip) -> i64 {
    match why {
        Skip::PayloadGone => 0,
        Skip::EndpointGone => 1,
        Skip::ReplayedBefore => 2,
        Skip::Purged => 3,
        Skip::Quarantined => 4,
        Skip::NotEnded => 5,
        Skip::Delivered => 6,
        Skip::Cancelled => 7,
        Skip::NotFound => 8,
    }
}

fn stored_skip(number: i64) -> Result<Skip, StoreError> {
    let found = Skip::ALL.into_iter().find(|why| skip_number(*why) == number);
    found.ok_or_else(|| StoreError::Damaged { what: "a job's skip reason", found: number.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::fixture::plan;

    #[test]
    fn jobs_are_listed_by_an_index() {
        for (which, expected) in [
            (RUNNING, "job_running (state=? AND rowid>?)"),
            (FAN_OUTS, "job_fan_out (kind=? AND state=? AND rowid>?)"),
            (RUNNING_REPLAYS, "job_replaying (tenant=? AND state=? AND rowid>?)"),
            (REPLAYS, "job_tenant (tenant=? AND rowid>?)"),
            (NEWEST_REPLAYS, "job_tenant (tenant=? AND rowid<?)"),
            (EVERY_REPLAY, "job_replay (id>?)"),
            (EVERY_NEWEST_REPLAY, "job_replay (id<?)"),
        ] {
            let plan = plan(&format!("SELECT {COLUMNS} FROM job WHERE {which}"));
            assert_eq!(plan, format!("SEARCH job USING INDEX {expected}"), "{which}");
        }
    }
}
