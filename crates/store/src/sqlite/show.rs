//! One delivery or message as a reader sees it.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::cut;
use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, MessageId, TenantId};
use posthaste_core::state::State;
use posthaste_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension};

use super::column::{DELIVERY_COLUMNS, attempt, delivery, delivery_columns, get, key, stored_cause, stored_key};
use super::{failed, page};
use crate::row::{Attempt, Message, Shown};
use crate::{DELIVERIES_MAX, StoreError};

/// A delivery at `now`.
pub(super) fn read(conn: &Connection, id: DeliveryId, now: Timestamp) -> Result<Option<Shown>, StoreError> {
    let Some(mut row) = page::one(conn, id)? else { return ended(conn, id) };
    row.delivery.state = state_at(conn, &row.delivery, now)?;
    Ok(Some(Shown { delivery: row.delivery, place: Some(row.place), attempts: attempts(conn, id)?.0 }))
}

// A message's deliveries have the ids that follow its own.
const OF_MESSAGE: &str = "SELECT id FROM delivery WHERE id > ?1 AND id <= ?2 AND back = id - ?1
     UNION SELECT id FROM outcome WHERE id > ?1 AND id <= ?2 AND back = id - ?1 ORDER BY id";

/// Every delivery of a message at `now`, by id.
pub(super) fn of_message(conn: &Connection, message: MessageId, now: Timestamp) -> Result<Vec<Shown>, StoreError> {
    let doing = failed("read the deliveries of a message");
    let mut sql = conn.prepare_cached(OF_MESSAGE).map_err(&doing)?;
    let mut rows = sql.query((key(message.0), key(message.0.plus(DELIVERIES_MAX)))).map_err(&doing)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(&doing)? {
        found.extend(read(conn, DeliveryId(stored_key(get(row, 0)?)?), now)?);
    }
    Ok(found)
}

/// A message with its payload.
pub(super) fn message(conn: &Connection, id: MessageId) -> Result<Option<Arc<Message>>, StoreError> {
    let doing = failed("read a message");
    let mut sql = conn
        .prepare_cached(
            "SELECT tenant, at_ms, event_type, correlation_id, subject, compact, body FROM message WHERE id = ?1
             UNION ALL
             SELECT tenant, at_ms, event_type, correlation_id, subject, compact, body FROM kept WHERE id = ?1",
        )
        .map_err(&doing)?;
    let mut rows = sql.query([key(id.0)]).map_err(&doing)?;
    let Some(row) = rows.next().map_err(&doing)? else { return Ok(None) };
    Ok(Some(Arc::new(Message {
        id,
        tenant: TenantId(stored_key(get(row, 0)?)?),
        at: Timestamp::from_millis(get(row, 1)?),
        event_type: get(row, 2)?,
        correlation_id: get(row, 3)?,
        subject: get(row, 4)?,
        compact: get::<Option<Vec<u8>>>(row, 5)?.map(Bytes::from),
        body: Bytes::from(get::<Vec<u8>>(row, 6)?),
    })))
}

/// What a cut or a TTL makes of a pending delivery's state, before its row says so.
fn state_at(conn: &Connection, delivery: &Delivery, now: Timestamp) -> Result<State, StoreError> {
    if let Some(end) = cut_end(conn, delivery)? {
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
    let found: Option<(i64, i64)> = conn
        .prepare_cached(
            "SELECT cause, at_ms FROM cut
             WHERE (kind = 0 AND scope = ?1 OR kind = 1 AND scope = ?2) AND upto >= ?3
               AND NOT EXISTS (SELECT 1 FROM spared
                               WHERE kind = cut.kind AND scope = cut.scope AND delivery = ?3)
             ORDER BY kind LIMIT 1",
        )
        .and_then(|mut sql| {
            let params = (key(delivery.message.0), key(delivery.lane.0), key(delivery.id.0));
            sql.query_row(params, |row| Ok((row.get(0)?, row.get(1)?))).optional()
        })
        .map_err(failed("read the cuts of a delivery"))?;
    let Some((cause, at)) = found else { return Ok(None) };
    Ok(Some(cut::ended(stored_cause(cause)?, Timestamp::from_millis(at))))
}

fn ended(conn: &Connection, id: DeliveryId) -> Result<Option<Shown>, StoreError> {
    let doing = failed("read an outcome");
    let mut sql = conn
        .prepare_cached(concat!(
            "SELECT ",
            delivery_columns!("ended_ms"),
            ", number, at_ms, took_us, attempt_cause, status FROM outcome WHERE id = ?1"
        ))
        .map_err(&doing)?;
    let mut rows = sql.query([key(id.0)]).map_err(&doing)?;
    let Some(row) = rows.next().map_err(&doing)? else { return Ok(None) };
    let (mut all, late) = attempts(conn, id)?;
    if get::<Option<i64>>(row, DELIVERY_COLUMNS)?.is_some() {
        let last = attempt(row, DELIVERY_COLUMNS)?;
        // It may have come before, in a settle that was stale for its epoch.
        if !all.contains(&last) {
            all.push(last);
        }
    }
    all.extend(late);
    Ok(Some(Shown { delivery: delivery(row)?, place: None, attempts: all }))
}

/// Attempts recorded while the delivery was pending, and those that came after its end.
fn attempts(conn: &Connection, id: DeliveryId) -> Result<(Vec<Attempt>, Vec<Attempt>), StoreError> {
    let doing = failed("read the attempts of a delivery");
    let mut sql = conn
        .prepare_cached(
            "SELECT late, number, at_ms, took_us, cause, status FROM attempt
             WHERE delivery = ?1 ORDER BY late, place",
        )
        .map_err(&doing)?;
    let mut rows = sql.query([key(id.0)]).map_err(&doing)?;
    let (mut pending, mut late) = (Vec::new(), Vec::new());
    while let Some(row) = rows.next().map_err(&doing)? {
        let list = if get(row, 0)? { &mut late } else { &mut pending };
        list.push(attempt(row, 1)?);
    }
    Ok((pending, late))
}
