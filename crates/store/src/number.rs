//! The numbers that stand for states, causes, tiers and the like on disk. A number, once released, keeps its meaning.
//! Reading checks them: a number that this program does not write is [`StoreError::Damaged`].

use std::time::Duration;

use posthaste_core::flow::SharedGate;
use posthaste_core::id::{CredentialId, RegionId};
use posthaste_core::scheduler::{BreakerOf, OnDead, Order};
use posthaste_core::{
    Cause, Compact, CutScope, Expiry, Key, LaneId, MessageId, OriginId, RowIndex, State, TenantId, Tier, Timestamp,
};

use crate::StoreError;
use crate::row::{
    ChangeKind, CountedEvent, DisabledBy, DocumentKind, EndpointStatus, JobState, PauseScope, RetentionPhase, SecretAct,
};

/// A key as a signed column. Keys above the signed range are never minted; as the upper bound of a query they mean
/// "everything".
pub(crate) fn key(key: Key) -> i64 {
    i64::try_from(key.raw()).unwrap_or(i64::MAX)
}

pub(crate) fn stored_key(column: i64) -> Result<Key, StoreError> {
    u64::try_from(column).map(Key::from_raw).map_err(|_| damaged("a key", column))
}

/// A duration in whole microseconds, the resolution of retry waits.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

pub(crate) fn stored_micros(column: i64) -> Duration {
    Duration::from_micros(u64::try_from(column).unwrap_or(0))
}

/// The number of a state that a row can be in, its time and its cause.
pub(crate) fn split(state: &State) -> (u8, Option<Timestamp>, Option<Cause>) {
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

pub(crate) fn join(number: i64, at: i64, cause: Option<Cause>) -> Result<State, StoreError> {
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

/// When a delivery stops being worth sending, as two columns.
pub(crate) fn expiry_columns(expiry: Expiry) -> (u8, Option<Timestamp>) {
    match expiry {
        Expiry::Never => (0, None),
        Expiry::At(at) => (1, Some(at)),
        Expiry::NowOrNever(at) => (2, Some(at)),
    }
}

/// When a delivery stops being worth sending, in two columns.
pub(crate) fn stored_expiry(number: i64, at: Option<i64>) -> Result<Expiry, StoreError> {
    match (number, at.map(Timestamp::from_millis)) {
        (0, None) => Ok(Expiry::Never),
        (1, Some(at)) => Ok(Expiry::At(at)),
        (2, Some(at)) => Ok(Expiry::NowOrNever(at)),
        _ => Err(damaged("expiry", number)),
    }
}

/// Makes the functions that write and read an enum as a number. Each number stands next to its variant, once.
macro_rules! numbered {
    ($(
        $(#[$doc:meta])*
        ($write:ident, $read:ident): $type:ident, $what:literal: $($variant:ident $(($of:path))? = $number:literal),+;
    )+) => {$(
        $(#[$doc])*
        pub(crate) fn $write(value: $type) -> u8 {
            match value {
                $($type::$variant $(($of))? => $number,)+
            }
        }

        pub(crate) fn $read(number: i64) -> Result<$type, StoreError> {
            match number {
                $($number => Ok($type::$variant $(($of))?),)+
                _ => Err(damaged($what, number)),
            }
        }
    )+};
}

numbered! {
    /// Whether there is a compact payload and whether it is in use.
    (compact_number, stored_compact): Compact, "compact": None = 0, Spare = 1, InUse = 2;
    /// Queries write these out, so that the partial indexes are used.
    (place_number, stored_place): RowIndex, "place": Ready = 0, Delayed = 1, Spilled = 2;
    (order_number, stored_order): Order, "send_order": Fifo = 0, NewestFirst = 1, Strict = 2;
    /// What a strict lane does behind a dead head.
    (on_dead_number, stored_on_dead): OnDead, "on_dead": Skip = 0, Hold = 1;
    (status_number, stored_status): EndpointStatus, "status":
        Active = 0, Gone = 1, Disabled(DisabledBy::Receiver) = 2, Deleted = 3;
    (secret_act_number, stored_secret_act): SecretAct, "what was done with a secret": Shown = 0, Rotated = 1;
    (deed_number, stored_deed): ChangeKind, "what was done": Made = 0, Changed = 1, Removed = 2;
    (document_number, stored_document): DocumentKind, "a document's kind": Tenant = 0, ApiKey = 1, Policy = 2;
    (tier_number, stored_tier): Tier, "tier": Transactional = 0, Promotional = 1, Engagement = 2;
    (counted_number, stored_counted): CountedEvent, "counted":
        Messages = 0, Deliveries = 1, Attempts = 2, Delivered = 3, Dead = 4, Expired = 5, Cancelled = 6;
    (phase_number, stored_phase): RetentionPhase, "a phase":
        Pending = 0, Messages = 1, History = 2, Kept = 3, Jobs = 4, Keys = 5, Journal = 6, Space = 7;
    (job_state_number, stored_job_state): JobState, "a job's state": Running = 0, Paused = 1, Done = 2, Cancelled = 3;
}

/// The scope of a cut, as two columns.
pub(crate) fn scope_columns(scope: CutScope) -> (u8, i64) {
    match scope {
        CutScope::Message(message) => (0, key(message.0)),
        CutScope::Lane(lane) => (1, key(lane.0)),
    }
}

/// The scope of a cut, in two columns.
pub(crate) fn stored_scope(kind: i64, scope: i64) -> Result<CutScope, StoreError> {
    let scope = stored_key(scope)?;
    match kind {
        0 => Ok(CutScope::Message(MessageId(scope))),
        1 => Ok(CutScope::Lane(LaneId(scope))),
        _ => Err(damaged("a cut's kind", kind)),
    }
}

pub(crate) fn pause_columns(scope: PauseScope) -> (u8, i64) {
    match scope {
        PauseScope::All => (0, 0),
        PauseScope::Tenant(tenant) => (1, key(tenant.0)),
        PauseScope::Lane(lane) => (2, key(lane.0)),
        // The id is a hash and needs all 64 bits, which `key` would clamp.
        PauseScope::Origin(origin) => (3, origin.raw().cast_signed()),
    }
}

/// The scope of a pause, in two columns.
pub(crate) fn stored_pause_scope(kind: i64, scope: i64) -> Result<PauseScope, StoreError> {
    match kind {
        0 => Ok(PauseScope::All),
        1 => Ok(PauseScope::Tenant(TenantId(stored_key(scope)?))),
        2 => Ok(PauseScope::Lane(LaneId(stored_key(scope)?))),
        3 => Ok(PauseScope::Origin(OriginId::from_raw(scope.cast_unsigned()))),
        _ => Err(damaged("a pause's kind", kind)),
    }
}

/// The lane or shared gate of a breaker, as two columns. The id of an origin is a hash and needs all 64 bits, which
/// [`key`] would clamp.
pub(crate) fn breaker_columns(of: BreakerOf) -> (u8, i64) {
    match of {
        BreakerOf::Lane(lane) => (0, lane.raw().cast_signed()),
        BreakerOf::Shared(SharedGate::Origin(origin)) => (1, origin.raw().cast_signed()),
        BreakerOf::Shared(SharedGate::Region(region)) => (2, region.raw().cast_signed()),
        BreakerOf::Shared(SharedGate::Credential(credential)) => (3, credential.raw().cast_signed()),
        BreakerOf::Shared(SharedGate::Resolver) => (4, 0),
    }
}

/// The lane or shared gate of a breaker, in two columns.
pub(crate) fn stored_breaker(kind: i64, id: i64) -> Result<BreakerOf, StoreError> {
    let id = Key::from_raw(id.cast_unsigned());
    match kind {
        0 => Ok(BreakerOf::Lane(LaneId(id))),
        1 => Ok(BreakerOf::Shared(SharedGate::Origin(OriginId::from_raw(id.raw())))),
        2 => Ok(BreakerOf::Shared(SharedGate::Region(RegionId(id)))),
        3 => Ok(BreakerOf::Shared(SharedGate::Credential(CredentialId(id)))),
        4 => Ok(BreakerOf::Shared(SharedGate::Resolver)),
        _ => Err(damaged("a breaker's kind", kind)),
    }
}

/// Causes by their number. New causes are added at the end; no cause is ever moved or removed.
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
    Cause::Erased,
    Cause::EndpointDeleted,
    Cause::Aborted,
    Cause::DisableAsked,
];

/// Numbers by cause: the inverse of [`CAUSES`]. Building it also checks at compile time that each cause is listed once.
const CAUSE_NUMBERS: [u8; CAUSES.len()] = {
    let mut numbers = [u8::MAX; CAUSES.len()];
    let mut number = 0;
    while number < CAUSES.len() {
        let cause = CAUSES[number] as usize;
        assert!(numbers[cause] == u8::MAX, "a cause is listed twice");
        #[expect(clippy::cast_possible_truncation, reason = "a cause is a u8 itself")]
        {
            numbers[cause] = number as u8;
        }
        number += 1;
    }
    numbers
};

pub(crate) fn cause_number(cause: Cause) -> u8 {
    CAUSE_NUMBERS[cause as usize]
}

pub(crate) fn stored_cause(number: i64) -> Result<Cause, StoreError> {
    decode_listed("cause", number, &CAUSES)
}

pub(crate) fn decode_listed<T: Copy>(what: &'static str, number: i64, all: &[T]) -> Result<T, StoreError> {
    let known = usize::try_from(number).ok().and_then(|number| all.get(number));
    known.copied().ok_or_else(|| damaged(what, number))
}

pub(crate) fn damaged(what: &'static str, found: i64) -> StoreError {
    StoreError::Damaged { what, found: found.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_numbers_never_change() {
        let codes: Vec<&str> = CAUSES.iter().map(|cause| cause.code()).collect();
        assert_eq!(
            codes.join(" "),
            "ok request_timeout too_many_requests internal_error bad_gateway unavailable gateway_timeout server_error \
             connect_refused connect_reset connect_timeout tls_handshake closed_early unknown protocol_error \
             response_head_too_large ack_timeout dns_failed dns_not_found tls_certificate bad_request unauthorized \
             forbidden not_found method_not_allowed not_acceptable conflict length_required uri_too_long \
             unsupported_media_type unprocessable too_early client_error redirect_not_followed address_refused \
             payload_too_large gone credential_rejected store_unavailable endpoint_gone ttl_expired cancelled \
             unsubscribed superseded poison token_rejected retention not_started unsendable erased \
             endpoint_deleted aborted disable_asked"
        );
    }

    #[test]
    fn every_cause_survives_a_round_trip() {
        for entry in Cause::ALL {
            let stored = stored_cause(i64::from(cause_number(entry.cause))).expect("its own number");
            assert_eq!(stored, entry.cause);
        }
    }

    #[test]
    fn unknown_number_is_reported_as_damage_with_its_column() {
        let damage = stored_cause(200).expect_err("there are not that many causes");
        assert_eq!(damage.to_string(), "cause holds 200: the file is damaged or from another program");
        assert!(stored_place(-1).is_err());
        assert!(join(4, 0, None).is_err(), "dead needs a cause");
        assert!(stored_key(-1).is_err());
        assert!(stored_breaker(5, 0).is_err());
    }
}
