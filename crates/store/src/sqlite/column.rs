//! How fields stand in columns. The numbers here are on people's disks: a number, once released,
//! keeps its meaning. What is read is checked: a number nobody wrote is [`StoreError::Damaged`].

use std::time::Duration;

use posthaste_core::cause::Cause;
use posthaste_core::cut::Scope;
use posthaste_core::delivery::{Compact, Delivery, Expiry};
use posthaste_core::flow::SharedGate;
use posthaste_core::id::{CredentialId, DeliveryId, Key, LaneId, MessageId, OriginId, RegionId, TenantId};
use posthaste_core::queue::{BreakerOf, OnDead, Order, Place};
use posthaste_core::state::State;
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;
use rusqlite::types::FromSql;
use rusqlite::{Row, Statement};

use crate::StoreError;
use crate::row::{Attempt, EndpointStatus, PauseScope};

/// The columns that `delivery` and `outcome` share, in the order [`bind_delivery`] binds and
/// [`delivery`] reads them; `{at}` is `due_ms` or `ended_ms`.
macro_rules! delivery_columns {
    ($at:literal) => {
        concat!(
            "id, back, lane, tier, state, ",
            $at,
            ", cause, attempts, born_ms, expiry, expires_ms, previous_wait_us, limited_in_a_row, last_cause, ",
            "ack_within_us, compact"
        )
    };
}
pub(super) use delivery_columns;

/// How many columns [`bind_delivery`] binds.
pub(super) const DELIVERY_COLUMNS: usize = 16;

/// Binds a delivery to the first parameters of a statement.
pub(super) fn bind_delivery(sql: &mut Statement<'_>, delivery: &Delivery) -> rusqlite::Result<()> {
    let (state, at, cause) = split(&delivery.state);
    let (expiry, expires) = expiry_columns(delivery.expiry);
    sql.raw_bind_parameter(1, key(delivery.id.0))?;
    sql.raw_bind_parameter(2, key(delivery.id.0).wrapping_sub(key(delivery.message.0)))?;
    sql.raw_bind_parameter(3, key(delivery.lane.0))?;
    sql.raw_bind_parameter(4, tier_number(delivery.tier))?;
    sql.raw_bind_parameter(5, state)?;
    sql.raw_bind_parameter(6, at.map(Timestamp::as_millis))?;
    sql.raw_bind_parameter(7, cause.map(cause_number))?;
    sql.raw_bind_parameter(8, delivery.attempts)?;
    sql.raw_bind_parameter(9, delivery.born.as_millis())?;
    sql.raw_bind_parameter(10, expiry)?;
    sql.raw_bind_parameter(11, expires.map(Timestamp::as_millis))?;
    sql.raw_bind_parameter(12, delivery.previous_wait.map(micros))?;
    sql.raw_bind_parameter(13, delivery.limited_in_a_row)?;
    sql.raw_bind_parameter(14, delivery.last_cause.map(cause_number))?;
    sql.raw_bind_parameter(15, delivery.ack_within.map(micros))?;
    sql.raw_bind_parameter(16, compact_number(delivery.compact))
}

/// Reads the first columns of a row as a delivery.
pub(super) fn delivery(row: &Row<'_>) -> Result<Delivery, StoreError> {
    let id: i64 = get(row, 0)?;
    let message = id.wrapping_sub(get(row, 1)?);
    Ok(Delivery {
        id: DeliveryId(stored_key(id)?),
        message: MessageId(stored_key(message)?),
        lane: LaneId(stored_key(get(row, 2)?)?),
        tier: stored_tier(get(row, 3)?)?,
        state: join(get(row, 4)?, get(row, 5)?, optional_cause(row, 6)?)?,
        attempts: get(row, 7)?,
        born: Timestamp::from_millis(get(row, 8)?),
        expiry: stored_expiry(get(row, 9)?, get(row, 10)?)?,
        previous_wait: get::<Option<i64>>(row, 11)?.map(stored_micros),
        limited_in_a_row: get(row, 12)?,
        last_cause: optional_cause(row, 13)?,
        ack_within: get::<Option<i64>>(row, 14)?.map(stored_micros),
        // Known to the owner's memory only: what is recorded has already applied it.
        receipt_kept: false,
        compact: one_of("compact", get(row, 15)?, &COMPACTS)?,
    })
}

/// Binds an attempt to five parameters, from `first` on; none as nulls.
pub(super) fn bind_attempt(sql: &mut Statement<'_>, first: usize, attempt: Option<&Attempt>) -> rusqlite::Result<()> {
    sql.raw_bind_parameter(first, attempt.map(|attempt| attempt.number))?;
    sql.raw_bind_parameter(first + 1, attempt.map(|attempt| attempt.at.as_millis()))?;
    sql.raw_bind_parameter(first + 2, attempt.map(|attempt| micros(attempt.took)))?;
    sql.raw_bind_parameter(first + 3, attempt.map(|attempt| cause_number(attempt.cause)))?;
    sql.raw_bind_parameter(first + 4, attempt.and_then(|attempt| attempt.status))
}

/// Reads five columns as an attempt.
pub(super) fn attempt(row: &Row<'_>, first: usize) -> Result<Attempt, StoreError> {
    Ok(Attempt {
        number: get(row, first)?,
        at: Timestamp::from_millis(get(row, first + 1)?),
        took: stored_micros(get(row, first + 2)?),
        cause: stored_cause(get(row, first + 3)?)?,
        status: get(row, first + 4)?,
    })
}

/// Reads one column.
pub(super) fn get<T: FromSql>(row: &Row<'_>, index: usize) -> Result<T, StoreError> {
    row.get(index).map_err(|source| StoreError::Database { doing: "read a column", source })
}

/// A key as a signed column. Keys above the signed range are never minted; in a question they
/// mean "everything".
pub(super) fn key(key: Key) -> i64 {
    i64::try_from(key.raw()).unwrap_or(i64::MAX)
}

/// The key in a column.
pub(super) fn stored_key(column: i64) -> Result<Key, StoreError> {
    u64::try_from(column).map(Key::from_raw).map_err(|_| damaged("a key", column))
}

/// A duration in whole microseconds, as fine as waits are drawn.
pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// The duration in a column.
pub(super) fn stored_micros(column: i64) -> Duration {
    Duration::from_micros(u64::try_from(column).unwrap_or(0))
}

/// The number of a state that a row can be in, its time and its cause.
fn split(state: &State) -> (u8, Option<Timestamp>, Option<Cause>) {
    match *state {
        State::Queued { due } => (0, Some(due), None),
        State::Retry { due, cause } => (1, Some(due), Some(cause)),
        State::AwaitingAck { until } => (2, Some(until), None),
        State::Delivered { at } => (3, Some(at), None),
        State::Dead { at, cause } => (4, Some(at), Some(cause)),
        State::Expired { at } => (5, Some(at), None),
        State::Cancelled { at, cause } => (6, Some(at), Some(cause)),
        // No row is ever in this state; the schema refuses the number.
        State::Dispatching => (255, None, None),
    }
}

fn join(number: i64, at: i64, cause: Option<Cause>) -> Result<State, StoreError> {
    let at = Timestamp::from_millis(at);
    Ok(match (number, cause) {
        (0, None) => State::Queued { due: at },
        (1, Some(cause)) => State::Retry { due: at, cause },
        (2, None) => State::AwaitingAck { until: at },
        (3, None) => State::Delivered { at },
        (4, Some(cause)) => State::Dead { at, cause },
        (5, None) => State::Expired { at },
        (6, Some(cause)) => State::Cancelled { at, cause },
        _ => return Err(damaged("state", number)),
    })
}

fn expiry_columns(expiry: Expiry) -> (u8, Option<Timestamp>) {
    match expiry {
        Expiry::Never => (0, None),
        Expiry::At(at) => (1, Some(at)),
        Expiry::NowOrNever(at) => (2, Some(at)),
    }
}

fn stored_expiry(number: i64, at: Option<i64>) -> Result<Expiry, StoreError> {
    match (number, at.map(Timestamp::from_millis)) {
        (0, None) => Ok(Expiry::Never),
        (1, Some(at)) => Ok(Expiry::At(at)),
        (2, Some(at)) => Ok(Expiry::NowOrNever(at)),
        _ => Err(damaged("expiry", number)),
    }
}

const COMPACTS: [Compact; 3] = [Compact::None, Compact::Spare, Compact::InUse];

fn compact_number(compact: Compact) -> u8 {
    match compact {
        Compact::None => 0,
        Compact::Spare => 1,
        Compact::InUse => 2,
    }
}

/// The number of a place. Queries write it out, so that the partial indexes are used.
pub(super) fn place_number(place: Place) -> u8 {
    match place {
        Place::Ready => 0,
        Place::Delayed => 1,
        Place::Spilled => 2,
    }
}

/// The place in a column.
pub(super) fn stored_place(number: i64) -> Result<Place, StoreError> {
    one_of("place", number, &[Place::Ready, Place::Delayed, Place::Spilled])
}

/// The number of an order.
pub(super) fn order_number(order: Order) -> u8 {
    match order {
        Order::Fifo => 0,
        Order::NewestFirst => 1,
        Order::Strict => 2,
    }
}

/// The order in a column.
pub(super) fn stored_order(number: i64) -> Result<Order, StoreError> {
    one_of("send_order", number, &[Order::Fifo, Order::NewestFirst, Order::Strict])
}

/// The number of what a strict lane does behind a dead head.
pub(super) fn on_dead_number(on_dead: OnDead) -> u8 {
    match on_dead {
        OnDead::Skip => 0,
        OnDead::Hold => 1,
    }
}

/// What a strict lane does, in a column.
pub(super) fn stored_on_dead(number: i64) -> Result<OnDead, StoreError> {
    one_of("on_dead", number, &[OnDead::Skip, OnDead::Hold])
}

/// The number of an endpoint's status.
pub(super) fn status_number(status: EndpointStatus) -> u8 {
    match status {
        EndpointStatus::Active => 0,
        EndpointStatus::Gone => 1,
    }
}

/// The endpoint's status in a column.
pub(super) fn stored_status(number: i64) -> Result<EndpointStatus, StoreError> {
    one_of("status", number, &[EndpointStatus::Active, EndpointStatus::Gone])
}

/// The number of a tier.
pub(super) fn tier_number(tier: Tier) -> u8 {
    match tier {
        Tier::Transactional => 0,
        Tier::Promotional => 1,
        Tier::Engagement => 2,
    }
}

/// The tier in a column.
pub(super) fn stored_tier(number: i64) -> Result<Tier, StoreError> {
    one_of("tier", number, &[Tier::Transactional, Tier::Promotional, Tier::Engagement])
}

/// What a cut ends, as two columns.
pub(super) fn scope_columns(scope: Scope) -> (u8, i64) {
    match scope {
        Scope::Message(message) => (0, key(message.0)),
        Scope::Lane(lane) => (1, key(lane.0)),
    }
}

/// What a cut ends, in two columns.
pub(super) fn stored_scope(kind: i64, scope: i64) -> Result<Scope, StoreError> {
    let scope = stored_key(scope)?;
    match kind {
        0 => Ok(Scope::Message(MessageId(scope))),
        1 => Ok(Scope::Lane(LaneId(scope))),
        _ => Err(damaged("a cut's kind", kind)),
    }
}

/// What is paused, as two columns.
pub(super) fn pause_columns(scope: PauseScope) -> (u8, i64) {
    match scope {
        PauseScope::All => (0, 0),
        PauseScope::Tenant(tenant) => (1, key(tenant.0)),
        PauseScope::Lane(lane) => (2, key(lane.0)),
    }
}

/// What is paused, in two columns.
pub(super) fn stored_pause_scope(kind: i64, scope: i64) -> Result<PauseScope, StoreError> {
    let scope = stored_key(scope)?;
    match kind {
        0 => Ok(PauseScope::All),
        1 => Ok(PauseScope::Tenant(TenantId(scope))),
        2 => Ok(PauseScope::Lane(LaneId(scope))),
        _ => Err(damaged("a pause's kind", kind)),
    }
}

/// Whose breaker it is, as two columns. Origins are known by a hash that needs all 64 bits, which
/// [`key`] would cut.
pub(super) fn breaker_columns(of: BreakerOf) -> (u8, i64) {
    match of {
        BreakerOf::Lane(lane) => (0, lane.raw().cast_signed()),
        BreakerOf::Shared(SharedGate::Origin(origin)) => (1, origin.raw().cast_signed()),
        BreakerOf::Shared(SharedGate::Region(region)) => (2, region.raw().cast_signed()),
        BreakerOf::Shared(SharedGate::Credential(credential)) => (3, credential.raw().cast_signed()),
    }
}

/// Whose breaker it is, in two columns.
pub(super) fn stored_breaker(kind: i64, id: i64) -> Result<BreakerOf, StoreError> {
    let id = Key::from_raw(id.cast_unsigned());
    match kind {
        0 => Ok(BreakerOf::Lane(LaneId(id))),
        1 => Ok(BreakerOf::Shared(SharedGate::Origin(OriginId(id)))),
        2 => Ok(BreakerOf::Shared(SharedGate::Region(RegionId(id)))),
        3 => Ok(BreakerOf::Shared(SharedGate::Credential(CredentialId(id)))),
        _ => Err(damaged("a breaker's kind", kind)),
    }
}

/// Causes by their number. New ones go to the end; none ever moves or leaves.
const CAUSES: [Cause; Cause::ALL.len()] = [
    Cause::Ok,
    Cause::RequestTimeout,
    Cause::TooManyRequests,
    Cause::InternalError,
    Cause::BadGateway,
    Cause::Unavailable,
    Cause::GatewayTimeout,
    Cause::ServerError,
    Cause::ConnectRefused,
    Cause::ConnectReset,
    Cause::ConnectTimeout,
    Cause::TlsHandshake,
    Cause::ClosedEarly,
    Cause::Unknown,
    Cause::ProtocolError,
    Cause::ResponseHeadTooLarge,
    Cause::AckTimeout,
    Cause::DnsFailed,
    Cause::DnsNotFound,
    Cause::TlsCertificate,
    Cause::BadRequest,
    Cause::Unauthorized,
    Cause::Forbidden,
    Cause::NotFound,
    Cause::MethodNotAllowed,
    Cause::NotAcceptable,
    Cause::Conflict,
    Cause::LengthRequired,
    Cause::UriTooLong,
    Cause::UnsupportedMediaType,
    Cause::Unprocessable,
    Cause::TooEarly,
    Cause::ClientError,
    Cause::RedirectNotFollowed,
    Cause::AddressRefused,
    Cause::PayloadTooLarge,
    Cause::Gone,
    Cause::CredentialRejected,
    Cause::StoreUnavailable,
    Cause::EndpointGone,
    Cause::TtlExpired,
    Cause::Cancelled,
    Cause::Unsubscribed,
    Cause::Superseded,
    Cause::Poison,
    Cause::TokenRejected,
    Cause::Retention,
    Cause::NotStarted,
    Cause::Unsendable,
];

/// Numbers by cause: [`CAUSES`] turned round, which also proves that every cause stands in it.
const CAUSE_NUMBERS: [u8; CAUSES.len()] = {
    let mut numbers = [u8::MAX; CAUSES.len()];
    let mut number = 0;
    while number < CAUSES.len() {
        let cause = CAUSES[number] as usize;
        assert!(numbers[cause] == u8::MAX, "a cause stands twice in the list");
        #[expect(clippy::cast_possible_truncation, reason = "a cause is a u8 itself")]
        {
            numbers[cause] = number as u8;
        }
        number += 1;
    }
    numbers
};

/// The number of a cause.
pub(super) fn cause_number(cause: Cause) -> u8 {
    CAUSE_NUMBERS[cause as usize]
}

/// The cause in a column.
pub(super) fn stored_cause(number: i64) -> Result<Cause, StoreError> {
    one_of("cause", number, &CAUSES)
}

fn optional_cause(row: &Row<'_>, index: usize) -> Result<Option<Cause>, StoreError> {
    get::<Option<i64>>(row, index)?.map(stored_cause).transpose()
}

fn one_of<T: Copy>(what: &'static str, number: i64, all: &[T]) -> Result<T, StoreError> {
    let known = usize::try_from(number).ok().and_then(|number| all.get(number));
    known.copied().ok_or_else(|| damaged(what, number))
}

fn damaged(what: &'static str, found: i64) -> StoreError {
    StoreError::Damaged { what, found: found.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_keeps_its_number_for_ever() {
        let codes: Vec<&str> = CAUSES.iter().map(|cause| cause.code()).collect();
        assert_eq!(
            codes.join(" "),
            "ok request_timeout too_many_requests internal_error bad_gateway unavailable gateway_timeout server_error \
             connect_refused connect_reset connect_timeout tls_handshake closed_early unknown protocol_error \
             response_head_too_large ack_timeout dns_failed dns_not_found tls_certificate bad_request unauthorized \
             forbidden not_found method_not_allowed not_acceptable conflict length_required uri_too_long \
             unsupported_media_type unprocessable too_early client_error redirect_not_followed address_refused \
             payload_too_large gone credential_rejected store_unavailable endpoint_gone ttl_expired cancelled \
             unsubscribed superseded poison token_rejected retention not_started unsendable"
        );
    }

    #[test]
    fn every_cause_comes_back_as_it_was_stored() {
        for entry in Cause::ALL {
            let stored = stored_cause(i64::from(cause_number(entry.cause))).expect("its own number");
            assert_eq!(stored, entry.cause);
        }
    }

    #[test]
    fn a_number_nobody_wrote_is_damage_and_says_where() {
        let damage = stored_cause(200).expect_err("there are not that many causes");
        assert_eq!(damage.to_string(), "cause holds 200: the file is damaged or from another program");
        assert!(stored_place(-1).is_err());
        assert!(join(4, 0, None).is_err(), "dead needs a cause");
        assert!(stored_key(-1).is_err());
        assert!(stored_breaker(4, 0).is_err());
    }
}
