//! Maps fields to columns, and columns to fields. The numbers for enums are defined in [`crate::number`].

use posthaste_core::{Delivery, DeliveryId, EndpointId, LaneId, MessageId, Timestamp};
use rusqlite::types::FromSql;
use rusqlite::{Row, Statement};

pub(super) use crate::number::*;
use crate::{AttemptRecord, StoreError};

/// The columns that `delivery` and `outcome` share, in the order [`bind_delivery`] binds and
/// [`delivery`] reads them; `{at}` is `due_ms` or `ended_ms`.
macro_rules! delivery_columns {
    ($at:literal) => {
        concat!(
            "id, back, endpoint, lane, tier, state, ",
            $at,
            ", cause, attempts, born_ms, expiry, expires_ms, previous_wait_us, limited_in_a_row, last_cause, ",
            "ack_within_us, compact"
        )
    };
}
pub(super) use delivery_columns;

/// How many columns [`bind_delivery`] binds.
pub(super) const DELIVERY_COLUMNS: usize = 17;

/// Binds a delivery to the first parameters of a statement.
pub(super) fn bind_delivery(sql: &mut Statement<'_>, delivery: &Delivery) -> rusqlite::Result<()> {
    let (state, at, cause) = split(&delivery.state);
    let (expiry, expires) = expiry_columns(delivery.expiry);
    sql.raw_bind_parameter(1, key(delivery.id.0))?;
    sql.raw_bind_parameter(2, key(delivery.id.0).wrapping_sub(key(delivery.message.0)))?;
    sql.raw_bind_parameter(3, key(delivery.endpoint.0))?;
    sql.raw_bind_parameter(4, key(delivery.lane.0))?;
    sql.raw_bind_parameter(5, tier_number(delivery.tier))?;
    sql.raw_bind_parameter(6, state)?;
    sql.raw_bind_parameter(7, at.map(Timestamp::as_millis))?;
    sql.raw_bind_parameter(8, cause.map(cause_number))?;
    sql.raw_bind_parameter(9, delivery.attempts)?;
    sql.raw_bind_parameter(10, delivery.born.as_millis())?;
    sql.raw_bind_parameter(11, expiry)?;
    sql.raw_bind_parameter(12, expires.map(Timestamp::as_millis))?;
    sql.raw_bind_parameter(13, delivery.previous_wait.map(micros))?;
    sql.raw_bind_parameter(14, delivery.limited_in_a_row)?;
    sql.raw_bind_parameter(15, delivery.last_cause.map(cause_number))?;
    sql.raw_bind_parameter(16, delivery.ack_within.map(micros))?;
    sql.raw_bind_parameter(17, compact_number(delivery.compact))
}

/// Reads the first columns of a row as a delivery.
pub(super) fn delivery(row: &Row<'_>) -> Result<Delivery, StoreError> {
    let id: i64 = get(row, 0)?;
    let message = id.wrapping_sub(get(row, 1)?);
    Ok(Delivery {
        id: DeliveryId(stored_key(id)?),
        message: MessageId(stored_key(message)?),
        endpoint: EndpointId(stored_key(get(row, 2)?)?),
        lane: LaneId(stored_key(get(row, 3)?)?),
        tier: stored_tier(get(row, 4)?)?,
        state: join(get(row, 5)?, get(row, 6)?, optional(row, 7, stored_cause)?)?,
        attempts: get(row, 8)?,
        born: Timestamp::from_millis(get(row, 9)?),
        expiry: stored_expiry(get(row, 10)?, get(row, 11)?)?,
        previous_wait: get::<Option<i64>>(row, 12)?.map(stored_micros),
        limited_in_a_row: get(row, 13)?,
        last_cause: optional(row, 14, stored_cause)?,
        ack_within: get::<Option<i64>>(row, 15)?.map(stored_micros),
        // Kept in the owner's memory only: a recorded row has it applied already.
        receipt_kept: false,
        compact: stored_compact(get(row, 16)?)?,
    })
}

/// Binds an attempt to five parameters, from `first` on; none as nulls.
pub(super) fn bind_attempt(
    sql: &mut Statement<'_>,
    first: usize,
    attempt: Option<&AttemptRecord>,
) -> rusqlite::Result<()> {
    sql.raw_bind_parameter(first, attempt.map(|attempt| attempt.number))?;
    sql.raw_bind_parameter(first + 1, attempt.map(|attempt| attempt.at.as_millis()))?;
    sql.raw_bind_parameter(first + 2, attempt.map(|attempt| micros(attempt.took)))?;
    sql.raw_bind_parameter(first + 3, attempt.map(|attempt| cause_number(attempt.cause)))?;
    sql.raw_bind_parameter(first + 4, attempt.and_then(|attempt| attempt.status))
}

pub(super) fn attempt(row: &Row<'_>, first: usize) -> Result<AttemptRecord, StoreError> {
    Ok(AttemptRecord {
        number: get(row, first)?,
        at: Timestamp::from_millis(get(row, first + 1)?),
        took: stored_micros(get(row, first + 2)?),
        cause: stored_cause(get(row, first + 3)?)?,
        status: get(row, first + 4)?,
    })
}

pub(super) fn get<T: FromSql>(row: &Row<'_>, index: usize) -> Result<T, StoreError> {
    row.get(index).map_err(|source| StoreError::Database { doing: "read a column", source })
}

/// Reads one column that may be null.
pub(super) fn optional<T>(
    row: &Row<'_>,
    index: usize,
    stored: impl FnOnce(i64) -> Result<T, StoreError>,
) -> Result<Option<T>, StoreError> {
    get::<Option<i64>>(row, index)?.map(stored).transpose()
}

/// A count as a column; at most `i64::MAX`.
pub(super) fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
