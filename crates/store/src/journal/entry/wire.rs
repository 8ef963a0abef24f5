//! An entry as bytes: the number of its kind, then its fields.

use std::time::Duration;

use posthaste_core::scheduler::{BreakerOf, Reset};
use posthaste_core::{
    Cause, CutScope, DeliveryId, EndpointId, JobId, Key, LaneId, MessageId, State, TenantId, Tier, Timestamp,
};
use posthaste_crypto::digest::Digest;
use posthaste_crypto::master::MasterKeyId;

use super::{ErasedTarget, JournalEntry, SpreadDelivery};
use crate::journal::Hidden;
use crate::journal::pack::{self, Unpack, damaged};
use crate::number;
use crate::{
    ApiKeyRef, AttemptRecord, ChangeKind, DocumentKind, EndpointStatus, JobState, PauseScope, RetentionOverride,
    RetentionPhase, SecretAct, StoreError,
};

/// A field of an entry as bytes.
trait Wire: Sized {
    fn pack(&self, bytes: &mut Vec<u8>);
    fn unpack(rest: &mut Unpack<'_>) -> Result<Self, StoreError>;
}

/// The kinds of entries, each with its number, the name that the API uses for it, and its fields in the order of their
/// bytes. Where the bytes are not just the fields, the two functions that follow `by` pack and unpack them.
macro_rules! entries {
    ($($number:literal $name:literal $kind:ident($($field:ident)+) $(by $pack:ident $unpack:ident)?;)+) => {
        /// A kind of [`JournalEntry`]: each is explained at the entry's variant of the same name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum EntryKind {
            $($kind,)+
        }

        // The numbers from 0 on, each once: a number that two kinds had would make stored entries unreadable.
        const _: () = {
            let numbers: [usize; EntryKind::ALL.len()] = [$($number),+];
            let mut taken = [false; EntryKind::ALL.len()];
            let mut at = 0;
            while at < numbers.len() {
                assert!(!taken[numbers[at]]);
                taken[numbers[at]] = true;
                at += 1;
            }
        };

        impl EntryKind {
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$kind),+];

            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }

            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|kind| kind.name() == name)
            }
        }

        impl JournalEntry {
            pub const fn kind(&self) -> EntryKind {
                match self {
                    $(Self::$kind { .. } => EntryKind::$kind,)+
                }
            }

            pub(in crate::journal) fn pack(&self, bytes: &mut Vec<u8>) {
                match self {
                    $(Self::$kind { $($field),+ } => {
                        pack::number(bytes, $number);
                        entries!(@pack bytes, $($field)+ $(, $pack)?);
                    })+
                }
            }

            pub(in crate::journal) fn unpack(bytes: &[u8]) -> Result<Self, StoreError> {
                let mut rest = Unpack(bytes);
                let entry = match rest.number()? {
                    $($number => entries!(@unpack rest, $kind $($field)+ $(, $unpack)?),)+
                    unknown => return Err(damaged(&format!("an entry of kind {unknown}"))),
                };
                rest.end()?;
                Ok(entry)
            }
        }
    };
    (@pack $bytes:ident, $($field:ident)+) => { $($field.pack($bytes);)+ };
    (@pack $bytes:ident, $($field:ident)+, $pack:ident) => { $pack($bytes, ($($field),+)) };
    (@unpack $rest:ident, $kind:ident $($field:ident)+) => {
        Self::$kind { $($field: Wire::unpack(&mut $rest)?),+ }
    };
    (@unpack $rest:ident, $kind:ident $($field:ident)+, $unpack:ident) => { $unpack(&mut $rest)? };
}

// In the order of the API. A new kind gets the number of kinds so far.
//
// A field after `by` is an optional one that ends the entry.
entries! {
    0 "opened" Opened(session at);
    1 "accepted" Accepted(message tenant at digest subject correlation deliveries) by pack_accepted unpack_accepted;
    2 "attempted" Attempted(delivery endpoint attempt);
    3 "late" Late(delivery endpoint attempt);
    4 "ended" Ended(delivery message endpoint lane tier state attempts attempt) by pack_ended unpack_ended;
    5 "cut" Cut(scope upto cause at by);
    6 "uncut" Uncut(scope at);
    7 "paused" Paused(scope at by until);
    8 "resumed" Resumed(scope at by);
    23 "hurried" Hurried(delivery message endpoint at by);
    20 "breaker_reset" Reset(of how at by);
    9 "endpoint" Endpoint(endpoint tenant deed status at by);
    19 "secret" Secret(endpoint tenant act at by);
    10 "spread" Spread(job tenant at deliveries);
    11 "job" Job(job tenant state at by replay);
    12 "purged" Purged(tenant upto at by);
    13 "retained" Retained(phase upto removed before at tenant);
    21 "agreed" Agreed(tenant at own);
    18 "document" Document(kind id tenant deed made at by);
    16 "erased" Erased(tenant at whom by);
    17 "erasure_done" ErasureDone(announced messages deliveries at);
    22 "exported" Exported(tenant at by subject);
    14 "rotation_begun" RotationBegun(to at by);
    15 "rotation_ended" RotationEnded(to rewrapped at);
}

type AcceptedFields<'e> =
    (&'e MessageId, &'e TenantId, &'e Timestamp, &'e Digest, &'e Option<Hidden>, &'e Option<Hidden>, &'e Vec<Queue>);

fn pack_accepted(
    bytes: &mut Vec<u8>,
    (message, tenant, at, digest, subject, correlation, deliveries): AcceptedFields<'_>,
) {
    message.pack(bytes);
    tenant.pack(bytes);
    at.pack(bytes);
    bytes.extend(digest);
    bytes.push(u8::from(subject.is_some()) | u8::from(correlation.is_some()) << 1);
    for hidden in [subject, correlation].into_iter().flatten() {
        bytes.extend(hidden.0);
    }
    deliveries.pack(bytes);
}

fn unpack_accepted(rest: &mut Unpack<'_>) -> Result<JournalEntry, StoreError> {
    let (message, tenant) = (Wire::unpack(rest)?, Wire::unpack(rest)?);
    let (at, digest) = (rest.time()?, rest.digest()?);
    let has: u8 = rest.small()?;
    let subject = if has & 1 == 0 { None } else { Some(rest.hidden()?) };
    let correlation = if has & 2 == 0 { None } else { Some(rest.hidden()?) };
    let deliveries = Wire::unpack(rest)?;
    Ok(JournalEntry::Accepted { message, tenant, at, digest, subject, correlation, deliveries })
}

type EndedFields<'e> = (
    &'e DeliveryId,
    &'e MessageId,
    &'e EndpointId,
    &'e LaneId,
    &'e Tier,
    &'e State,
    &'e u16,
    &'e Option<AttemptRecord>,
);

fn pack_ended(
    bytes: &mut Vec<u8>,
    (delivery, message, endpoint, lane, tier, state, attempts, attempt): EndedFields<'_>,
) {
    let (kind, at, cause) = number::split(state);
    let back = delivery.raw().wrapping_sub(message.raw());
    let cause = cause.map_or(0, |cause| u64::from(number::cause_number(cause)) + 1);
    numbers(bytes, &[delivery.raw(), back]);
    (*endpoint, *lane, *tier).pack(bytes);
    numbers(bytes, &[kind.into(), cause, (*attempts).into()]);
    pack::time(bytes, at.unwrap_or(Timestamp::MAX));
    attempt.pack(bytes);
}

fn unpack_ended(rest: &mut Unpack<'_>) -> Result<JournalEntry, StoreError> {
    let delivery = DeliveryId::unpack(rest)?;
    let message = MessageId::from_raw(delivery.raw().wrapping_sub(rest.number()?));
    let (endpoint, lane, tier) = Wire::unpack(rest)?;
    let kind = rest.small()?;
    let cause = match rest.small::<i64>()? {
        0 => None,
        number => Some(number::stored_cause(number - 1)?),
    };
    let attempts = rest.small()?;
    let state = number::join(kind, rest.time()?.as_millis(), cause)?;
    Ok(JournalEntry::Ended { delivery, message, endpoint, lane, tier, state, attempts, attempt: Wire::unpack(rest)? })
}

fn numbers(bytes: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| pack::number(bytes, *number));
}

/// Types that are packed as one number.
macro_rules! one_number {
    ($($type:ty: |$value:ident| $write:expr, |$rest:ident| $read:expr;)+) => {$(
        impl Wire for $type {
            fn pack(&self, bytes: &mut Vec<u8>) {
                let $value = *self;
                pack::number(bytes, $write);
            }

            fn unpack($rest: &mut Unpack<'_>) -> Result<Self, StoreError> {
                $read
            }
        }
    )+};
}

one_number! {
    u64: |number| number, |rest| rest.number();
    Key: |key| key.raw(), |rest| Ok(Self::from_raw(rest.number()?));
    MessageId: |id| id.raw(), |rest| Ok(Self::from_raw(rest.number()?));
    DeliveryId: |id| id.raw(), |rest| Ok(Self::from_raw(rest.number()?));
    EndpointId: |id| id.raw(), |rest| Ok(Self::from_raw(rest.number()?));
    TenantId: |id| id.raw(), |rest| Ok(Self::from_raw(rest.number()?));
    JobId: |id| id.raw(), |rest| Ok(Self::from_raw(rest.number()?));
    MasterKeyId: |id| id.raw().into(), |rest| Ok(Self::from_raw(rest.small()?));
    Timestamp: |at| at.as_millis().cast_unsigned(), |rest| rest.time();
    Cause: |cause| number::cause_number(cause).into(), |rest| number::stored_cause(rest.small()?);
    ChangeKind: |deed| number::deed_number(deed).into(), |rest| number::stored_deed(rest.small()?);
    DocumentKind: |kind| number::document_number(kind).into(), |rest| number::stored_document(rest.small()?);
    EndpointStatus: |status| number::status_number(status).into(), |rest| number::stored_status(rest.small()?);
    JobState: |state| number::job_state_number(state).into(), |rest| number::stored_job_state(rest.small()?);
    RetentionPhase: |phase| number::phase_number(phase).into(), |rest| number::stored_phase(rest.small()?);
    SecretAct: |act| number::secret_act_number(act).into(), |rest| number::stored_secret_act(rest.small()?);
    Reset: |how| u64::from(how == Self::Force), |rest| Ok(if rest.number()? == 0 { Self::Probe } else { Self::Force });
}

/// Types that are packed as two numbers.
macro_rules! two_numbers {
    ($($type:ty: $write:path, |$rest:ident| $read:expr;)+) => {$(
        impl Wire for $type {
            fn pack(&self, bytes: &mut Vec<u8>) {
                let (kind, of) = $write(*self);
                numbers(bytes, &[kind.into(), of.cast_unsigned()]);
            }

            fn unpack($rest: &mut Unpack<'_>) -> Result<Self, StoreError> {
                $read
            }
        }
    )+};
}

two_numbers! {
    CutScope: number::scope_columns, |rest| number::stored_scope(rest.small()?, rest.small()?);
    PauseScope: number::pause_columns,
        |rest| number::stored_pause_scope(rest.small()?, rest.number()?.cast_signed());
    BreakerOf: number::breaker_columns, |rest| number::stored_breaker(rest.small()?, rest.number()?.cast_signed());
}

/// Optional fields at the end of an entry: absent if no bytes are left.
macro_rules! at_the_end {
    ($($type:ty)+) => {$(
        impl Wire for Option<$type> {
            fn pack(&self, bytes: &mut Vec<u8>) {
                self.iter().for_each(|field| field.pack(bytes));
            }

            fn unpack(rest: &mut Unpack<'_>) -> Result<Self, StoreError> {
                if rest.0.is_empty() { Ok(None) } else { Wire::unpack(rest).map(Some) }
            }
        }
    )+};
}

at_the_end! { Timestamp TenantId Hidden AttemptRecord }

impl Wire for Hidden {
    fn pack(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.0);
    }

    fn unpack(rest: &mut Unpack<'_>) -> Result<Self, StoreError> {
        rest.hidden()
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn pack(&self, bytes: &mut Vec<u8>) {
        pack::number(bytes, self.len() as u64);
        self.iter().for_each(|one| one.pack(bytes));
    }

    fn unpack(rest: &mut Unpack<'_>) -> Result<Self, StoreError> {
        (0..rest.number()?).map(|_| T::unpack(rest)).collect()
    }
}

impl Wire for Option<ApiKeyRef> {
    fn pack(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(self.is_some()));
        if let Some(ApiKeyRef { key, made }) = self {
            key.pack(bytes);
            made.pack(bytes);
        }
    }

    fn unpack(rest: &mut Unpack<'_>) -> Result<Self, StoreError> {
        Ok(match rest.number()? {
            0 => None,
            _ => Some(ApiKeyRef { key: Wire::unpack(rest)?, made: rest.time()? }),
        })
    }
}

impl Wire for AttemptRecord {
    fn pack(&self, bytes: &mut Vec<u8>) {
        pack::number(bytes, self.number.into());
        pack::time(bytes, self.at);
        let took = u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX);
        // 0 stands for `None`: no HTTP response has the status 0.
        numbers(bytes, &[took, number::cause_number(self.cause).into(), self.status.unwrap_or(0).into()]);
    }

    fn unpack(rest: &mut Unpack<'_>) -> Result<Self, StoreError> {
        Ok(Self {
            number: rest.small()?,
            at: rest.time()?,
            took: Duration::from_micros(rest.number()?),
            cause: Wire::unpack(rest)?,
            status: Some(rest.small()?).filter(|status| *status > 0),
        })
    }
}

impl Wire for RetentionOverride {
    fn pack(&self, bytes: &mut Vec<u8>) {
        for kept in [self.payload, self.history] {
            // 0 stands for `None`: no retention time is zero.
            let millis = kept.map_or(0, |kept| u64::try_from(kept.as_millis()).unwrap_or(u64::MAX));
            pack::number(bytes, millis);
        }
    }

    fn unpack(rest: &mut Unpack<'_>) -> Result<Self, StoreError> {
        let mut kept = || -> Result<_, StoreError> {
            Ok(Some(rest.number()?).filter(|millis| *millis > 0).map(Duration::from_millis))
        };
        Ok(Self { payload: kept()?, history: kept()? })
    }
}

impl Wire for ErasedTarget {
    fn pack(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Tenant => bytes.push(0),
            Self::Subject(None) => bytes.push(1),
            Self::Subject(Some(mark)) => {
                bytes.push(2);
                mark.pack(bytes);
            }
        }
    }

    fn unpack(rest: &mut Unpack<'_>) -> Result<Self, StoreError> {
        match rest.number()? {
            0 => Ok(Self::Tenant),
            1 => Ok(Self::Subject(None)),
            2 => Ok(Self::Subject(Some(rest.hidden()?))),
            other => Err(damaged(&format!("an erasure of kind {other}"))),
        }
    }
}

impl Wire for SpreadDelivery {
    fn pack(&self, bytes: &mut Vec<u8>) {
        numbers(bytes, &[self.delivery.raw(), self.delivery.raw().wrapping_sub(self.message.raw())]);
        self.queue.pack(bytes);
    }

    fn unpack(rest: &mut Unpack<'_>) -> Result<Self, StoreError> {
        let delivery = DeliveryId::unpack(rest)?;
        let message = MessageId::from_raw(delivery.raw().wrapping_sub(rest.number()?));
        Ok(Self { delivery, message, queue: Wire::unpack(rest)? })
    }
}

type Queue = (EndpointId, LaneId, Tier);

/// The lane is packed as its distance from the endpoint. A webhook endpoint and its lane are made together, so their
/// ids are adjacent and the distance takes one byte.
impl Wire for Queue {
    fn pack(&self, bytes: &mut Vec<u8>) {
        let (endpoint, lane, tier) = self;
        let distance = lane.raw().wrapping_sub(endpoint.raw());
        numbers(bytes, &[endpoint.raw(), distance, number::tier_number(*tier).into()]);
    }

    fn unpack(rest: &mut Unpack<'_>) -> Result<Self, StoreError> {
        let endpoint = EndpointId::unpack(rest)?;
        let lane = LaneId::from_raw(endpoint.raw().wrapping_add(rest.number()?));
        Ok((endpoint, lane, number::stored_tier(rest.small()?)?))
    }
}
