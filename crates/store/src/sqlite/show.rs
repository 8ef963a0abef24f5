//! Reads one delivery or message as callers of the API see it: a delivery that a cut covers or whose TTL is over is
//! shown as ended, also before a sweep has written its outcome.

use std::sync::Arc;

use posthaste_core::cut;
use posthaste_core::{Delivery, DeliveryId, MessageId, State, TenantId, Timestamp};
use rusqlite::Connection;

use super::{
    DELIVERY_COLUMNS, Vault, attempt, delivery, delivery_columns, erasure, get, key, page, prepare, stored_cause,
    stored_key,
};
use crate::{AttemptRecord, DELIVERIES_MAX, DeliveryRecord, ListOrder, Message, StoreError};

/// A delivery with its attempts, as of `now`.
pub(super) fn read(conn: &Connection, id: DeliveryId, now: Timestamp) -> Result<Option<DeliveryRecord>, StoreError> {
    let Some(mut row) = page::one(conn, id)? else { return ended(conn, id) };
    row.delivery.state = state_at(conn, &row.delivery, now)?;
    Ok(Some(DeliveryRecord { delivery: row.delivery, place: Some(row.place), attempts: attempts(conn, id)?.0 }))
}

// The deliveries that an accept makes have the ids that follow their message's; those that jobs made are listed by
// range.
const RANGE: &str = "SELECT id FROM delivery WHERE id >= ?2 AND id < ?3 AND back = id - ?1
     UNION SELECT id FROM outcome WHERE id >= ?2 AND id < ?3 AND back = id - ?1 ORDER BY id LIMIT ?4";
const RANGE_BACK: &str = "SELECT id FROM delivery WHERE id >= ?2 AND id < ?3 AND back = id - ?1
     UNION SELECT id FROM outcome WHERE id >= ?2 AND id < ?3 AND back = id - ?1 ORDER BY id DESC LIMIT ?4";
const CHUNKS: &str = "SELECT first, first + count FROM fanout_chunk WHERE message = ?1 AND first >= coalesce(
     (SELECT max(first) FROM fanout_chunk WHERE message = ?1 AND first <= ?2), 0) ORDER BY first";
const CHUNKS_BACK: &str =
    "SELECT first, first + count FROM fanout_chunk WHERE message = ?1 AND first < ?2 ORDER BY first DESC";

const READ_DELIVERIES: &str = "read the deliveries of a message";

/// Deliveries of a message as of `now`, ordered by id, after `after`.
pub(super) fn deliveries_of_message(
    conn: &Connection,
    message: MessageId,
    after: Option<DeliveryId>,
    now: Timestamp,
    limit: u32,
) -> Result<Vec<DeliveryRecord>, StoreError> {
    let mut found = Vec::new();
    for id in ids_of_message(conn, message, ListOrder::OldestFirst, after, limit)? {
        found.extend(read(conn, id, now)?);
    }
    Ok(found)
}

/// The ids of a message's deliveries, after `after` in the given order.
pub(super) fn ids_of_message(
    conn: &Connection,
    message: MessageId,
    order: ListOrder,
    after: Option<DeliveryId>,
    limit: u32,
) -> Result<Vec<DeliveryId>, StoreError> {
    let of = key(message.0);
    // Ranges of jobs may overlap this one: their ids below its end are not listed again.
    let inline = (of + 1, key(message.0.plus(DELIVERIES_MAX)) + 1);
    let (from, below, chunks) = match order {
        ListOrder::OldestFirst => (after.map_or(of, |id| key(id.0).max(of)) + 1, i64::MAX, CHUNKS),
        ListOrder::NewestFirst => (of + 1, after.map_or(i64::MAX, |id| key(id.0)), CHUNKS_BACK),
    };
    let mut ids = Vec::new();
    let add = |(first, end): (i64, i64), ids: &mut Vec<i64>| {
        range(conn, of, (first.max(from), end.min(below)), (order, limit), ids)
    };
    if order == ListOrder::OldestFirst {
        add(inline, &mut ids)?;
    }
    let mut sql = prepare(conn, READ_DELIVERIES, chunks)?;
    let beyond = if order == ListOrder::OldestFirst { from } else { below };
    let mut rows = sql.query((of, beyond))?;
    while ids.len() < limit as usize
        && let Some(row) = rows.next()?
    {
        let (first, end): (i64, i64) = (get(row, 0)?, get(row, 1)?);
        add((first.max(inline.1), end), &mut ids)?;
    }
    if order == ListOrder::NewestFirst {
        add(inline, &mut ids)?;
    }
    ids.into_iter().map(|id| stored_key(id).map(DeliveryId)).collect()
}

/// Adds the ids of a message's deliveries in a range to `ids`, until there are `limit`.
fn range(
    conn: &Connection,
    of: i64,
    (from, below): (i64, i64),
    (order, limit): (ListOrder, u32),
    ids: &mut Vec<i64>,
) -> Result<(), StoreError> {
    let sql = if order == ListOrder::OldestFirst { RANGE } else { RANGE_BACK };
    let rest = i64::from(limit) - i64::try_from(ids.len()).unwrap_or(i64::MAX);
    let range = (of, from, below, rest);
    ids.extend(prepare(conn, READ_DELIVERIES, sql)?.read_all(range, |row| get::<i64>(row, 0))?);
    Ok(())
}

/// A delivery that has an outcome, without its attempts.
pub(super) fn ended_delivery(conn: &Connection, id: DeliveryId) -> Result<Option<Delivery>, StoreError> {
    let sql = concat!("SELECT ", delivery_columns!("ended_ms"), " FROM outcome WHERE id = ?1");
    prepare(conn, "read an outcome", sql)?.read([key(id.0)], delivery)
}

/// A message with its payload; none when the key it was sealed under is destroyed.
pub(super) fn message(conn: &Connection, vault: &Vault, id: MessageId) -> Result<Option<Arc<Message>>, StoreError> {
    let sql = "SELECT tenant, head, compact, body FROM message WHERE id = ?1
               UNION ALL
               SELECT tenant, head, compact, body FROM kept WHERE id = ?1";
    let opened = prepare(conn, "read a message", sql)?.read([key(id.0)], |row| {
        let tenant = TenantId(stored_key(get(row, 0)?)?);
        let (head, compact, body): (Vec<u8>, Option<Vec<u8>>, Vec<u8>) = (get(row, 1)?, get(row, 2)?, get(row, 3)?);
        vault.open_message(conn, (tenant, id), &head, compact.as_deref(), &body)
    })?;
    Ok(opened.flatten().map(Arc::new))
}

/// When a message was accepted; `None` if its payload is not kept any more.
pub(super) fn accepted_at(conn: &Connection, id: MessageId) -> Result<Option<Timestamp>, StoreError> {
    let sql = "SELECT at_ms FROM message WHERE id = ?1 UNION ALL SELECT at_ms FROM kept WHERE id = ?1";
    let at = prepare(conn, "read when a message was accepted", sql)?.find([key(id.0)])?;
    Ok(at.map(Timestamp::from_millis))
}

/// The state of a pending delivery as of `now`: ended if a cut or an erasure covers it or its TTL is over, although its
/// row is not updated yet.
pub(super) fn state_at(conn: &Connection, delivery: &Delivery, now: Timestamp) -> Result<State, StoreError> {
    if let Some(end) = cut_end(conn, delivery)? {
        return Ok(end);
    }
    if let Some(end) = erasure::end_of(conn, delivery)? {
        return Ok(end);
    }
    let sent = matches!(delivery.state, State::AwaitingAck { .. });
    Ok(match delivery.expiry.at() {
        Some(at) if now >= at && !sent => State::Expired { at },
        _ => delivery.state,
    })
}

/// How a cut has ended a pending delivery, if one covers it.
pub(super) fn cut_end(conn: &Connection, delivery: &Delivery) -> Result<Option<State>, StoreError> {
    let sql = "SELECT cause, at_ms FROM cut
               WHERE (kind = 0 AND scope = ?1 OR kind = 1 AND scope = ?2) AND upto >= ?3
                 AND NOT EXISTS (SELECT 1 FROM spared WHERE kind = cut.kind AND scope = cut.scope AND delivery = ?3)
               ORDER BY kind LIMIT 1";
    let params = (key(delivery.message.0), key(delivery.lane.0), key(delivery.id.0));
    let Some((cause, at)) = prepare(conn, "read the cuts of a delivery", sql)?.columns(params)? else {
        return Ok(None);
    };
    Ok(Some(cut::ended(stored_cause(cause)?, Timestamp::from_millis(at))))
}

/// An outcome and its last attempt.
pub(super) const OUTCOME: &str = concat!(
    "SELECT ",
    delivery_columns!("ended_ms"),
    ", number, at_ms, took_us, attempt_cause, status FROM outcome WHERE id = ?1"
);

fn ended(conn: &Connection, id: DeliveryId) -> Result<Option<DeliveryRecord>, StoreError> {
    prepare(conn, "read an outcome", OUTCOME)?.read([key(id.0)], |row| {
        let (mut all, late) = attempts(conn, id)?;
        if get::<Option<i64>>(row, DELIVERY_COLUMNS)?.is_some() {
            let last = attempt(row, DELIVERY_COLUMNS)?;
            // The same attempt may be recorded already, by a settle that was stale because of its epoch.
            if !all.contains(&last) {
                all.push(last);
            }
        }
        all.extend(late);
        Ok(DeliveryRecord { delivery: delivery(row)?, place: None, attempts: all })
    })
}

/// Attempts recorded while the delivery was pending, and those recorded after its end.
fn attempts(conn: &Connection, id: DeliveryId) -> Result<(Vec<AttemptRecord>, Vec<AttemptRecord>), StoreError> {
    let sql =
        "SELECT late, number, at_ms, took_us, cause, status FROM attempt WHERE delivery = ?1 ORDER BY late, place";
    let mut sql = prepare(conn, "read the attempts of a delivery", sql)?;
    let mut rows = sql.query([key(id.0)])?;
    let (mut pending, mut late) = (Vec::new(), Vec::new());
    while let Some(row) = rows.next()? {
        let list = if get(row, 0)? { &mut late } else { &mut pending };
        list.push(attempt(row, 1)?);
    }
    Ok((pending, late))
}
