//! Dead letters: filed by the settle that ends a delivery as dead, listed by the index that fits the filter best,
//! purged by one row that a sweep carries out.
//!
//! Invariants: every call reads at most [`DEAD_LETTERS_LOOKED_MAX`] rows; dead letters that a purge covers are not
//! listed from its commit on. Each index ends with the time and the number, so that a span of time is a range of each
//! index. Rows of one millisecond are read by a query of their own, since a mass end files all its rows in the same
//! one.

use std::ops::ControlFlow;
use std::sync::Arc;

use posthaste_core::{Delivery, DeliveryId, EndpointId, MessageId, State, TenantId, Timestamp};
use rusqlite::types::{Null, ToSqlOutput};
use rusqlite::{CachedStatement, Connection, Row};

use super::list::EventType;
use super::{
    Sqlite, Vault, cause_number, get, key, number, optional, prepare, stored_cause, stored_key, stored_tier,
    tier_number,
};
use crate::journal::{Entries, JournalEntry};
use crate::row::{DEAD_LETTERS_LOOKED_MAX, DEAD_LETTERS_SWEPT_MAX, LetterIndex, PURGES_MAX, Purge};
use crate::{
    AuditStamp, BoundedCount, DeadLetter, DeadLetterCursor, DeadLetterFilter, DeadLetterPage, DeadLetters, ListOrder,
    Session, StoreError, Swept,
};

impl DeadLetters for Sqlite {
    async fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        order: ListOrder,
        after: Option<DeadLetterCursor>,
        limit: u32,
    ) -> Result<DeadLetterPage, StoreError> {
        self.read(move |conn, vault| {
            let mut page = found(conn, vault, &filter, order, after, limit)?;
            page.letters.iter_mut().try_for_each(|letter| open(conn, vault, letter.tenant, &mut letter.event_type))?;
            Ok(page)
        })
        .await
    }

    async fn count_dead_letters(&self, filter: DeadLetterFilter) -> Result<BoundedCount, StoreError> {
        self.read(move |conn, vault| {
            found(conn, vault, &filter, ListOrder::OldestFirst, None, u32::MAX).map(|page| counted(&page))
        })
        .await
    }

    async fn purge_dead_letters(
        &self,
        session: Session,
        tenant: TenantId,
        filter: DeadLetterFilter,
        act: AuditStamp,
    ) -> Result<BoundedCount, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        let run = move |conn: &Connection, entries: &mut Entries| {
            vault.own_on_disk(conn, tenant)?;
            let filter = sealed(conn, &vault, &filter.within(tenant))?;
            purge(conn, tenant, &filter, act, entries)
        };
        self.asked_work(session, DEAD_LETTERS_SWEPT_MAX, run).await
    }

    async fn sweep_dead_letters(&self, session: Session) -> Result<Swept, StoreError> {
        self.work(session, DEAD_LETTERS_SWEPT_MAX, sweep).await
    }
}

/// A page of dead letters that match a filter, of one tenant or of all.
fn found(
    conn: &Connection,
    vault: &Vault,
    filter: &DeadLetterFilter,
    order: ListOrder,
    after: Option<DeadLetterCursor>,
    limit: u32,
) -> Result<DeadLetterPage, StoreError> {
    if filter.tenant.is_some() {
        return list(conn, &sealed(conn, vault, filter)?, order, after, limit);
    }
    // The same event type is sealed differently for each tenant, so SQL cannot compare it.
    let mut event_type = EventType::asked(conn, vault, filter.event_type.as_deref());
    let rest = DeadLetterFilter { event_type: None, ..filter.clone() };
    list_if(conn, &rest, order, after, limit, |letter| event_type.is(letter.tenant, letter.event_type.as_deref()))
}

/// A tenant's filter with its event type sealed, as the rows have it.
pub(super) fn sealed(
    conn: &Connection,
    vault: &Vault,
    filter: &DeadLetterFilter,
) -> Result<DeadLetterFilter, StoreError> {
    let event_type = filter.tenant.zip(filter.event_type.as_deref());
    let event_type = event_type.map(|(tenant, text)| vault.seal_event_type(conn, tenant, text)).transpose()?;
    // A tenant without a key has no rows: an empty event type matches none.
    Ok(DeadLetterFilter { event_type: event_type.map(Option::unwrap_or_default), ..filter.clone() })
}

pub(super) fn open(
    conn: &Connection,
    vault: &Vault,
    tenant: TenantId,
    event_type: &mut Option<String>,
) -> Result<(), StoreError> {
    if let Some(text) = event_type.take() {
        *event_type = vault.open_event_type(conn, tenant, &text)?;
    }
    Ok(())
}

pub(super) struct Files<'c> {
    insert: CachedStatement<'c>,
}

impl<'c> Files<'c> {
    pub(super) fn prepare(conn: &'c Connection) -> rusqlite::Result<Self> {
        // The message of an unfinished delivery always exists, in `message` or in `kept`.
        let insert = conn.prepare_cached(
            "INSERT INTO dead_letter (delivery, message, tenant, endpoint, tier, cause, event_type, attempts, at_ms)
             SELECT ?1, ?2, tenant, ?3, ?4, ?5, event_type, ?6, ?7 FROM message WHERE id = ?2
             UNION ALL
             SELECT ?1, ?2, tenant, ?3, ?4, ?5, event_type, ?6, ?7 FROM kept WHERE id = ?2",
        )?;
        Ok(Self { insert })
    }

    pub(super) fn file(&mut self, delivery: &Delivery) -> rusqlite::Result<()> {
        let State::Dead { at, cause } = delivery.state else { return Ok(()) };
        self.insert.raw_bind_parameter(1, key(delivery.id.0))?;
        self.insert.raw_bind_parameter(2, key(delivery.message.0))?;
        self.insert.raw_bind_parameter(3, key(delivery.endpoint.0))?;
        self.insert.raw_bind_parameter(4, tier_number(delivery.tier))?;
        self.insert.raw_bind_parameter(5, cause_number(cause))?;
        self.insert.raw_bind_parameter(6, delivery.attempts)?;
        self.insert.raw_bind_parameter(7, at.as_millis())?;
        self.insert.raw_execute().map(drop)
    }
}

/// A page of dead letters that match a filter and are not purged.
pub(super) fn list(
    conn: &Connection,
    filter: &DeadLetterFilter,
    order: ListOrder,
    after: Option<DeadLetterCursor>,
    limit: u32,
) -> Result<DeadLetterPage, StoreError> {
    list_if(conn, filter, order, after, limit, |_| Ok(true))
}

fn list_if(
    conn: &Connection,
    filter: &DeadLetterFilter,
    order: ListOrder,
    after: Option<DeadLetterCursor>,
    limit: u32,
    mut also_matches: impl FnMut(&DeadLetter) -> Result<bool, StoreError>,
) -> Result<DeadLetterPage, StoreError> {
    let purges = purges(conn)?;
    let mut letters = Vec::new();
    let next = walk(conn, filter, order, after, |letter| {
        let is_purged = || purges.iter().any(|(_, purge)| purge.covers(&letter));
        if filter.matches(&letter) && also_matches(&letter)? && !is_purged() {
            letters.push(letter);
        }
        Ok(if letters.len() == limit as usize { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(DeadLetterPage { letters, next })
}

fn counted(page: &DeadLetterPage) -> BoundedCount {
    let count = page.letters.len() as u64;
    if page.next.is_some() { BoundedCount::AtLeast(count) } else { BoundedCount::Exactly(count) }
}

/// Purges the dead letters that match: at once if they are few, otherwise by one row that a sweep carries out.
pub(super) fn purge(
    conn: &Connection,
    tenant: TenantId,
    filter: &DeadLetterFilter,
    AuditStamp { at, by }: AuditStamp,
    entries: &mut Entries,
) -> Result<BoundedCount, StoreError> {
    let upto = last(conn)?;
    let page = list(conn, filter, ListOrder::OldestFirst, None, u32::MAX)?;
    if page.next.is_none() && page.letters.len() <= DEAD_LETTERS_SWEPT_MAX {
        remove(conn, page.letters.iter().map(|letter| letter.number))?;
        entries.push(&JournalEntry::Purged { tenant, upto, at, by });
        return Ok(counted(&page));
    }
    if purges(conn)?.len() >= PURGES_MAX {
        return Err(StoreError::TooMany { what: "purges", limit: PURGES_MAX });
    }
    entries.push(&JournalEntry::Purged { tenant, upto, at, by });
    let sql = "INSERT INTO dead_cut (tenant, endpoint, cause, event_type, tier, since_ms, until_ms, upto)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    prepare(conn, "purge dead letters", sql)?.execute((
        key(tenant.0),
        filter.endpoint.map(|endpoint| key(endpoint.0)),
        filter.cause.map(cause_number),
        &filter.event_type,
        filter.tier.map(tier_number),
        filter.since.map(Timestamp::as_millis),
        filter.until.map(Timestamp::as_millis),
        number(upto),
    ))?;
    Ok(counted(&page))
}

/// One step of removing the dead letters that the oldest purge covers.
pub(super) fn sweep(conn: &Connection) -> Result<Swept, StoreError> {
    let doing = "sweep dead letters";
    let mut purges = purges(conn)?;
    if purges.is_empty() {
        return Ok(Swept::default());
    }
    let (id, purge) = purges.remove(0);
    let mut covered = Vec::new();
    let next = walk(conn, &purge.filter, ListOrder::OldestFirst, purge.swept, |letter| {
        if purge.covers(&letter) {
            covered.push(letter.number);
        }
        Ok(if covered.len() == DEAD_LETTERS_SWEPT_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    let removed = covered.len() as u64;
    remove(conn, covered.into_iter())?;
    match next {
        Some(next) => prepare(conn, doing, "UPDATE dead_cut SET swept_ms = ?2, swept_number = ?3 WHERE id = ?1")?
            .execute((id, next.at.as_millis(), number(next.number)))?,
        None => prepare(conn, doing, "DELETE FROM dead_cut WHERE id = ?1")?.execute([id])?,
    };
    Ok(Swept { removed, more: next.is_some() || !purges.is_empty() })
}

fn remove(conn: &Connection, numbers: impl Iterator<Item = u64>) -> Result<(), StoreError> {
    let mut sql = prepare(conn, "remove dead letters", "DELETE FROM dead_letter WHERE number = ?1")?;
    for letter in numbers {
        sql.execute([number(letter)])?;
    }
    Ok(())
}

/// Purges under way, the oldest first.
pub(super) fn purges(conn: &Connection) -> Result<Vec<(i64, Purge)>, StoreError> {
    let sql = "SELECT id, tenant, endpoint, cause, event_type, tier, since_ms, until_ms, upto, swept_ms, swept_number
                 FROM dead_cut ORDER BY id";
    prepare(conn, "read the purges", sql)?.read_all([], |row| {
        let filter = DeadLetterFilter {
            tenant: Some(TenantId(stored_key(get(row, 1)?)?)),
            endpoint: optional(row, 2, |column| stored_key(column).map(EndpointId))?,
            cause: optional(row, 3, stored_cause)?,
            event_type: get(row, 4)?,
            tier: optional(row, 5, stored_tier)?,
            since: get::<Option<i64>>(row, 6)?.map(Timestamp::from_millis),
            until: get::<Option<i64>>(row, 7)?.map(Timestamp::from_millis),
        };
        let swept = get::<Option<i64>>(row, 9)?.zip(get::<Option<i64>>(row, 10)?);
        let cursor = |(at, number): (i64, i64)| DeadLetterCursor {
            at: Timestamp::from_millis(at),
            number: number.unsigned_abs(),
        };
        let upto = get::<i64>(row, 8)?.unsigned_abs();
        Ok((get(row, 0)?, Purge { filter, upto, swept: swept.map(cursor) }))
    })
}

/// Whether a delivery is listed as a dead letter: filed, and not purged.
pub(super) fn is_filed(conn: &Connection, purges: &[(i64, Purge)], delivery: DeliveryId) -> Result<bool, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM dead_letter WHERE delivery = ?1");
    let letter = prepare(conn, "read a dead letter", &sql)?.read([key(delivery.0)], stored)?;
    Ok(letter.is_some_and(|letter| !purges.iter().any(|(_, purge)| purge.covers(&letter))))
}

/// The highest number filed so far.
pub(super) fn last(conn: &Connection) -> Result<u64, StoreError> {
    // The last row may be deleted already; `sqlite_sequence` still has its number.
    let sql = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'dead_letter'), 0)";
    Ok(prepare(conn, "read the last dead letter", sql)?.value::<i64>([])?.unsigned_abs())
}

const COLUMNS: &str =
    "number, delivery, message, tenant, endpoint, tier, cause, event_type, attempts, at_ms, replayed_as";

/// The rows that a query walks: those of one millisecond (`Twins`), or of a span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Twins,
    Span,
}

/// Calls `look` for the rows of the filter's index after `after`; returns where it stopped, or `None` at the end.
fn walk(
    conn: &Connection,
    filter: &DeadLetterFilter,
    order: ListOrder,
    after: Option<DeadLetterCursor>,
    mut look: impl FnMut(DeadLetter) -> Result<ControlFlow<()>, StoreError>,
) -> Result<Option<DeadLetterCursor>, StoreError> {
    let mut from = filter.since.map_or(i64::MIN, Timestamp::as_millis);
    let mut below = filter.until.map_or(i64::MAX, Timestamp::as_millis);
    let mut parts = vec![(Part::Span, 0, 0)];
    if let Some(after) = after {
        let at = after.at.as_millis();
        match order {
            ListOrder::NewestFirst => below = below.min(at),
            ListOrder::OldestFirst => from = from.max(at.saturating_add(1)),
        }
        if filter.has_time(after.at) {
            parts.insert(0, (Part::Twins, at, number(after.number)));
        }
    }
    let mut looked = 0;
    for (part, at, passed) in parts {
        let (first, second) = if part == Part::Twins { (at, passed) } else { (from, below) };
        let (column, other) = columns(filter.walk());
        let mut sql = prepare(conn, "read dead letters", &query(filter.walk(), order, part))?;
        let mut rows = sql.query((column, other, first, second))?;
        while let Some(row) = rows.next()? {
            let letter = stored(row)?;
            let cursor = letter.cursor();
            looked += 1;
            if look(letter)?.is_break() || looked == DEAD_LETTERS_LOOKED_MAX {
                return Ok(Some(cursor));
            }
        }
    }
    Ok(None)
}

/// The query of a walk. Its first two parameters are the columns that the index begins with.
fn query(walk: LetterIndex<'_>, order: ListOrder, part: Part) -> String {
    // Name the index: the planner has no statistics on how the rows are distributed.
    let (index, begins) = match walk {
        LetterIndex::Endpoint(_) => ("dead_letter_endpoint", "endpoint = ?1"),
        LetterIndex::Cause(..) => ("dead_letter_cause", "tenant = ?1 AND cause = ?2"),
        LetterIndex::EventType(..) => ("dead_letter_event_type", "tenant = ?1 AND event_type = ?2"),
        LetterIndex::Tier(..) => ("dead_letter_tier", "tenant = ?1 AND tier = ?2"),
        LetterIndex::Tenant(_) => ("dead_letter_tenant", "tenant = ?1"),
        LetterIndex::AllTenants => ("dead_letter_time", "TRUE"),
    };
    let range = match (part, order) {
        (Part::Span, ListOrder::NewestFirst) => "at_ms >= ?3 AND at_ms < ?4 ORDER BY at_ms DESC, number DESC",
        (Part::Span, ListOrder::OldestFirst) => "at_ms >= ?3 AND at_ms < ?4 ORDER BY at_ms, number",
        (Part::Twins, ListOrder::NewestFirst) => "at_ms = ?3 AND number < ?4 ORDER BY number DESC",
        (Part::Twins, ListOrder::OldestFirst) => "at_ms = ?3 AND number > ?4 ORDER BY number",
    };
    format!("SELECT {COLUMNS} FROM dead_letter INDEXED BY {index} WHERE {begins} AND {range}")
}

/// The values of the columns that the index begins with; nulls are not used.
fn columns(walk: LetterIndex<'_>) -> (Option<i64>, ToSqlOutput<'_>) {
    match walk {
        LetterIndex::Endpoint(endpoint) => (Some(key(endpoint.0)), Null.into()),
        LetterIndex::Cause(tenant, cause) => (Some(key(tenant.0)), cause_number(cause).into()),
        LetterIndex::EventType(tenant, event_type) => (Some(key(tenant.0)), event_type.into()),
        LetterIndex::Tier(tenant, tier) => (Some(key(tenant.0)), tier_number(tier).into()),
        LetterIndex::Tenant(tenant) => (Some(key(tenant.0)), Null.into()),
        LetterIndex::AllTenants => (None, Null.into()),
    }
}

fn stored(row: &Row<'_>) -> Result<DeadLetter, StoreError> {
    Ok(DeadLetter {
        number: get::<i64>(row, 0)?.unsigned_abs(),
        delivery: DeliveryId(stored_key(get(row, 1)?)?),
        message: MessageId(stored_key(get(row, 2)?)?),
        tenant: TenantId(stored_key(get(row, 3)?)?),
        endpoint: EndpointId(stored_key(get(row, 4)?)?),
        tier: stored_tier(get(row, 5)?)?,
        cause: stored_cause(get(row, 6)?)?,
        event_type: get(row, 7)?,
        attempts: get(row, 8)?,
        at: Timestamp::from_millis(get(row, 9)?),
        replayed_as: optional(row, 10, |column| stored_key(column).map(DeliveryId))?,
    })
}

#[cfg(test)]
mod tests {
    use posthaste_core::{Cause, Tier};

    use super::*;
    use crate::sqlite::fixture::plan;

    #[test]
    fn every_list_walks_the_index_of_its_filter_in_its_own_order() {
        let tenant = TenantId::from_raw(1);
        let walks = [
            (LetterIndex::Endpoint(EndpointId::from_raw(1)), "endpoint", "endpoint=? AND "),
            (LetterIndex::Cause(tenant, Cause::Gone), "cause", "tenant=? AND cause=? AND "),
            (LetterIndex::EventType(tenant, "a"), "event_type", "tenant=? AND event_type=? AND "),
            (LetterIndex::Tier(tenant, Tier::Promotional), "tier", "tenant=? AND tier=? AND "),
            (LetterIndex::Tenant(tenant), "tenant", "tenant=? AND "),
            (LetterIndex::AllTenants, "time", ""),
        ];
        for (walk, index, begins) in walks {
            for (order, passed) in [(ListOrder::NewestFirst, "rowid<?"), (ListOrder::OldestFirst, "rowid>?")] {
                for (part, range) in
                    [(Part::Span, "at_ms>? AND at_ms<?".to_owned()), (Part::Twins, format!("at_ms=? AND {passed}"))]
                {
                    let expected = format!("SEARCH dead_letter USING INDEX dead_letter_{index} ({begins}{range})");
                    assert_eq!(plan(&query(walk, order, part)), expected);
                }
            }
        }
    }
}
