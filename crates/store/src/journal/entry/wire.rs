//! An entry as bytes: its kind's number, then its fields in the order they are declared in.

use std::time::Duration;

use posthaste_core::cut::CutScope;
use posthaste_core::id::{DeliveryId, EndpointId, JobId, Key, LaneId, MessageId, TenantId};
use posthaste_core::scheduler::Reset;
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;
use posthaste_crypto::master::MasterKeyId;

use super::{ErasedTarget, JournalEntry, SpreadDelivery};
use crate::StoreError;
use crate::journal::pack::{self, Unpack, damaged};
use crate::number;
use crate::row::{ApiKeyRef, AttemptRecord, PauseScope, RetentionOverride};

impl JournalEntry {
    pub(in crate::journal) fn pack(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Opened { session, at } => {
                numbers(bytes, &[0, *session]);
                pack::time(bytes, *at);
            }
            Self::Accepted { message, tenant, at, digest, subject, correlation, deliveries } => {
                numbers(bytes, &[1, message.raw(), tenant.raw()]);
                pack::time(bytes, *at);
                bytes.extend(digest);
                bytes.push(u8::from(subject.is_some()) | u8::from(correlation.is_some()) << 1);
                for hidden in [subject, correlation].into_iter().flatten() {
                    bytes.extend(hidden.0);
                }
                pack::number(bytes, deliveries.len() as u64);
                deliveries.iter().for_each(|queue| pack_queue(bytes, *queue));
            }
            Self::Attempted { delivery, endpoint, attempt } => {
                numbers(bytes, &[2, delivery.raw(), endpoint.raw()]);
                pack_attempt(bytes, attempt);
            }
            Self::Late { delivery, endpoint, attempt } => {
                numbers(bytes, &[3, delivery.raw(), endpoint.raw()]);
                pack_attempt(bytes, attempt);
            }
            Self::Ended { delivery, message, endpoint, lane, tier, state, attempts, attempt } => {
                let (kind, at, cause) = number::split(state);
                let back = delivery.raw().wrapping_sub(message.raw());
                let cause = cause.map_or(0, |cause| u64::from(number::cause_number(cause)) + 1);
                numbers(bytes, &[4, delivery.raw(), back]);
                pack_queue(bytes, (*endpoint, *lane, *tier));
                numbers(bytes, &[kind.into(), cause, (*attempts).into()]);
                pack::time(bytes, at.unwrap_or(Timestamp::MAX));
                if let Some(attempt) = attempt {
                    pack_attempt(bytes, attempt);
                }
            }
            Self::Cut { scope, upto, cause, at, by } => {
                pack::number(bytes, 5);
                pack_scope(bytes, *scope);
                numbers(bytes, &[upto.raw(), number::cause_number(*cause).into()]);
                pack_act(bytes, *at, *by);
            }
            Self::Uncut { scope, at } => {
                pack::number(bytes, 6);
                pack_scope(bytes, *scope);
                pack::time(bytes, *at);
            }
            Self::Paused { scope, until, at, by } => {
                pack::number(bytes, 7);
                pack_pause(bytes, *scope);
                pack_act(bytes, *at, *by);
                if let Some(until) = until {
                    pack::time(bytes, *until);
                }
            }
            Self::Resumed { scope, at, by } => {
                pack::number(bytes, 8);
                pack_pause(bytes, *scope);
                pack_act(bytes, *at, *by);
            }
            Self::Hurried { delivery, message, endpoint, at, by } => {
                numbers(bytes, &[23, delivery.raw(), message.raw(), endpoint.raw()]);
                pack_act(bytes, *at, *by);
            }
            Self::Reset { of, how, at, by } => {
                let (kind, id) = number::breaker_columns(*of);
                numbers(bytes, &[20, kind.into(), id.cast_unsigned(), u64::from(*how == Reset::Force)]);
                pack_act(bytes, *at, *by);
            }
            Self::Endpoint { endpoint, tenant, deed, status, at, by } => {
                let (deed, status) = (number::deed_number(*deed).into(), number::status_number(*status).into());
                numbers(bytes, &[9, endpoint.raw(), tenant.raw(), deed, status]);
                pack_act(bytes, *at, *by);
            }
            Self::Spread { job, tenant, at, deliveries } => {
                numbers(bytes, &[10, job.raw(), tenant.raw()]);
                pack::time(bytes, *at);
                pack::number(bytes, deliveries.len() as u64);
                for SpreadDelivery { delivery, message, queue } in deliveries {
                    numbers(bytes, &[delivery.raw(), delivery.raw().wrapping_sub(message.raw())]);
                    pack_queue(bytes, *queue);
                }
            }
            Self::Job { job, tenant, state, replay, at, by } => {
                numbers(bytes, &[11, job.raw(), tenant.raw(), number::job_state_number(*state).into()]);
                pack_act(bytes, *at, *by);
                if let Some(asked) = replay {
                    pack::time(bytes, *asked);
                }
            }
            Self::Purged { tenant, upto, at, by } => {
                numbers(bytes, &[12, tenant.raw(), *upto]);
                pack_act(bytes, *at, *by);
            }
            Self::Retained { phase, upto, removed, before, at, tenant } => {
                numbers(bytes, &[13, number::phase_number(*phase).into(), *upto, *removed]);
                pack::time(bytes, *before);
                pack::time(bytes, *at);
                if let Some(tenant) = tenant {
                    pack::number(bytes, tenant.raw());
                }
            }
            Self::Agreed { tenant, own, at } => {
                numbers(bytes, &[21, tenant.raw()]);
                pack::time(bytes, *at);
                for kept in [own.payload, own.history] {
                    // 0 stands for `None`: no retention time is zero.
                    pack::number(bytes, kept.map_or(0, millis));
                }
            }
            Self::RotationBegun { to, at, by } => {
                numbers(bytes, &[14, to.raw().into()]);
                pack_act(bytes, *at, *by);
            }
            Self::RotationEnded { to, rewrapped, at } => {
                numbers(bytes, &[15, to.raw().into(), *rewrapped]);
                pack::time(bytes, *at);
            }
            Self::Erased { tenant, whom, at, by } => {
                numbers(bytes, &[16, tenant.raw()]);
                pack::time(bytes, *at);
                match whom {
                    ErasedTarget::Tenant => bytes.push(0),
                    ErasedTarget::Subject(None) => bytes.push(1),
                    ErasedTarget::Subject(Some(mark)) => {
                        bytes.push(2);
                        bytes.extend(mark.0);
                    }
                }
                pack_by(bytes, *by);
            }
            Self::Exported { tenant, subject, at, by } => {
                numbers(bytes, &[22, tenant.raw()]);
                pack::time(bytes, *at);
                pack_by(bytes, *by);
                if let Some(mark) = subject {
                    bytes.extend(mark.0);
                }
            }
            Self::ErasureDone { announced, messages, deliveries, at } => {
                numbers(bytes, &[17, *announced, *messages, *deliveries]);
                pack::time(bytes, *at);
            }
            Self::Document { kind, id, tenant, made, deed, at, by } => {
                let (kind, deed) = (number::document_number(*kind).into(), number::deed_number(*deed).into());
                numbers(bytes, &[18, kind, id.raw(), tenant.raw(), deed]);
                pack::time(bytes, *made);
                pack_act(bytes, *at, *by);
            }
            Self::Secret { endpoint, tenant, act, at, by } => {
                numbers(bytes, &[19, endpoint.raw(), tenant.raw(), number::secret_act_number(*act).into()]);
                pack_act(bytes, *at, *by);
            }
        }
    }

    pub(in crate::journal) fn unpack(bytes: &[u8]) -> Result<Self, StoreError> {
        let mut rest = Unpack(bytes);
        let entry = match rest.number()? {
            0 => Self::Opened { session: rest.number()?, at: rest.time()? },
            1 => unpack_accepted(&mut rest)?,
            2 => Self::Attempted {
                delivery: id(&mut rest)?,
                endpoint: endpoint(&mut rest)?,
                attempt: attempt(&mut rest)?,
            },
            3 => Self::Late { delivery: id(&mut rest)?, endpoint: endpoint(&mut rest)?, attempt: attempt(&mut rest)? },
            4 => unpack_ended(&mut rest)?,
            5 => Self::Cut {
                scope: scope(&mut rest)?,
                upto: Key::from_raw(rest.number()?),
                cause: number::stored_cause(rest.small()?)?,
                at: rest.time()?,
                by: by(&mut rest)?,
            },
            6 => Self::Uncut { scope: scope(&mut rest)?, at: rest.time()? },
            7 => Self::Paused {
                scope: pause(&mut rest)?,
                at: rest.time()?,
                by: by(&mut rest)?,
                until: if rest.0.is_empty() { None } else { Some(rest.time()?) },
            },
            8 => Self::Resumed { scope: pause(&mut rest)?, at: rest.time()?, by: by(&mut rest)? },
            23 => Self::Hurried {
                delivery: id(&mut rest)?,
                message: MessageId::from_raw(rest.number()?),
                endpoint: endpoint(&mut rest)?,
                at: rest.time()?,
                by: by(&mut rest)?,
            },
            20 => Self::Reset {
                of: number::stored_breaker(rest.small()?, rest.number()?.cast_signed())?,
                how: if rest.number()? == 0 { Reset::Probe } else { Reset::Force },
                at: rest.time()?,
                by: by(&mut rest)?,
            },
            9 => Self::Endpoint {
                endpoint: endpoint(&mut rest)?,
                tenant: TenantId::from_raw(rest.number()?),
                deed: number::stored_deed(rest.small()?)?,
                status: number::stored_status(rest.small()?)?,
                at: rest.time()?,
                by: by(&mut rest)?,
            },
            10 => unpack_spread(&mut rest)?,
            11 => Self::Job {
                job: JobId::from_raw(rest.number()?),
                tenant: TenantId::from_raw(rest.number()?),
                state: number::stored_job_state(rest.small()?)?,
                at: rest.time()?,
                by: by(&mut rest)?,
                replay: if rest.0.is_empty() { None } else { Some(rest.time()?) },
            },
            12 => Self::Purged {
                tenant: TenantId::from_raw(rest.number()?),
                upto: rest.number()?,
                at: rest.time()?,
                by: by(&mut rest)?,
            },
            13 => Self::Retained {
                phase: number::stored_phase(rest.small()?)?,
                upto: rest.number()?,
                removed: rest.number()?,
                before: rest.time()?,
                at: rest.time()?,
                tenant: if rest.0.is_empty() { None } else { Some(TenantId::from_raw(rest.number()?)) },
            },
            21 => Self::Agreed {
                tenant: TenantId::from_raw(rest.number()?),
                at: rest.time()?,
                own: RetentionOverride { payload: kept(&mut rest)?, history: kept(&mut rest)? },
            },
            14 => {
                Self::RotationBegun { to: MasterKeyId::from_raw(rest.small()?), at: rest.time()?, by: by(&mut rest)? }
            }
            15 => Self::RotationEnded {
                to: MasterKeyId::from_raw(rest.small()?),
                rewrapped: rest.number()?,
                at: rest.time()?,
            },
            16 => unpack_erased(&mut rest)?,
            17 => Self::ErasureDone {
                announced: rest.number()?,
                messages: rest.number()?,
                deliveries: rest.number()?,
                at: rest.time()?,
            },
            22 => Self::Exported {
                tenant: TenantId::from_raw(rest.number()?),
                at: rest.time()?,
                by: by(&mut rest)?,
                subject: if rest.0.is_empty() { None } else { Some(rest.hidden()?) },
            },
            19 => Self::Secret {
                endpoint: endpoint(&mut rest)?,
                tenant: TenantId::from_raw(rest.number()?),
                act: number::stored_secret_act(rest.small()?)?,
                at: rest.time()?,
                by: by(&mut rest)?,
            },
            18 => Self::Document {
                kind: number::stored_document(rest.small()?)?,
                id: Key::from_raw(rest.number()?),
                tenant: TenantId::from_raw(rest.number()?),
                deed: number::stored_deed(rest.small()?)?,
                made: rest.time()?,
                at: rest.time()?,
                by: by(&mut rest)?,
            },
            unknown => return Err(damaged(&format!("an entry of kind {unknown}"))),
        };
        rest.end()?;
        Ok(entry)
    }
}

fn unpack_accepted(rest: &mut Unpack<'_>) -> Result<JournalEntry, StoreError> {
    let (message, tenant) = (MessageId::from_raw(rest.number()?), TenantId::from_raw(rest.number()?));
    let (at, digest) = (rest.time()?, rest.digest()?);
    let has: u8 = rest.small()?;
    let subject = if has & 1 == 0 { None } else { Some(rest.hidden()?) };
    let correlation = if has & 2 == 0 { None } else { Some(rest.hidden()?) };
    let count = rest.number()?;
    let deliveries = (0..count).map(|_| queue(rest)).collect::<Result<_, StoreError>>()?;
    Ok(JournalEntry::Accepted { message, tenant, at, digest, subject, correlation, deliveries })
}

fn unpack_ended(rest: &mut Unpack<'_>) -> Result<JournalEntry, StoreError> {
    let delivery = id(rest)?;
    let message = MessageId::from_raw(delivery.raw().wrapping_sub(rest.number()?));
    let (endpoint, lane, tier) = queue(rest)?;
    let kind = rest.small()?;
    let cause = match rest.small::<i64>()? {
        0 => None,
        number => Some(number::stored_cause(number - 1)?),
    };
    let attempts = rest.small()?;
    let state = number::join(kind, rest.time()?.as_millis(), cause)?;
    let attempt = if rest.0.is_empty() { None } else { Some(attempt(rest)?) };
    Ok(JournalEntry::Ended { delivery, message, endpoint, lane, tier, state, attempts, attempt })
}

fn unpack_spread(rest: &mut Unpack<'_>) -> Result<JournalEntry, StoreError> {
    let (job, tenant) = (JobId::from_raw(rest.number()?), TenantId::from_raw(rest.number()?));
    let (at, count) = (rest.time()?, rest.number()?);
    let each = |_| {
        let delivery = id(rest)?;
        let message = MessageId::from_raw(delivery.raw().wrapping_sub(rest.number()?));
        Ok(SpreadDelivery { delivery, message, queue: queue(rest)? })
    };
    Ok(JournalEntry::Spread { job, tenant, at, deliveries: (0..count).map(each).collect::<Result<_, StoreError>>()? })
}

fn unpack_erased(rest: &mut Unpack<'_>) -> Result<JournalEntry, StoreError> {
    let (tenant, at) = (TenantId::from_raw(rest.number()?), rest.time()?);
    let whom = match rest.number()? {
        0 => ErasedTarget::Tenant,
        1 => ErasedTarget::Subject(None),
        2 => ErasedTarget::Subject(Some(rest.hidden()?)),
        other => return Err(damaged(&format!("an erasure of kind {other}"))),
    };
    Ok(JournalEntry::Erased { tenant, whom, at, by: by(rest)? })
}

fn numbers(bytes: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| pack::number(bytes, *number));
}

fn pack_attempt(bytes: &mut Vec<u8>, attempt: &AttemptRecord) {
    pack::number(bytes, attempt.number.into());
    pack::time(bytes, attempt.at);
    let took = u64::try_from(attempt.took.as_micros()).unwrap_or(u64::MAX);
    // 0 stands for `None`: no HTTP response has the status 0.
    let status = attempt.status.unwrap_or(0);
    numbers(bytes, &[took, number::cause_number(attempt.cause).into(), status.into()]);
}

fn attempt(rest: &mut Unpack<'_>) -> Result<AttemptRecord, StoreError> {
    Ok(AttemptRecord {
        number: rest.small()?,
        at: rest.time()?,
        took: Duration::from_micros(rest.number()?),
        cause: number::stored_cause(rest.small()?)?,
        status: Some(rest.small()?).filter(|status| *status > 0),
    })
}

fn millis(kept: Duration) -> u64 {
    u64::try_from(kept.as_millis()).unwrap_or(u64::MAX)
}

fn kept(rest: &mut Unpack<'_>) -> Result<Option<Duration>, StoreError> {
    Ok(Some(rest.number()?).filter(|millis| *millis > 0).map(Duration::from_millis))
}

fn pack_scope(bytes: &mut Vec<u8>, scope: CutScope) {
    let (kind, of) = number::scope_columns(scope);
    numbers(bytes, &[kind.into(), of.cast_unsigned()]);
}

fn scope(rest: &mut Unpack<'_>) -> Result<CutScope, StoreError> {
    number::stored_scope(rest.small()?, rest.small()?)
}

fn pack_pause(bytes: &mut Vec<u8>, scope: PauseScope) {
    let (kind, of) = number::pause_columns(scope);
    numbers(bytes, &[kind.into(), of.cast_unsigned()]);
}

fn pause(rest: &mut Unpack<'_>) -> Result<PauseScope, StoreError> {
    number::stored_pause_scope(rest.small()?, rest.number()?.cast_signed())
}

fn pack_act(bytes: &mut Vec<u8>, at: Timestamp, by: Option<ApiKeyRef>) {
    pack::time(bytes, at);
    pack_by(bytes, by);
}

fn pack_by(bytes: &mut Vec<u8>, by: Option<ApiKeyRef>) {
    bytes.push(u8::from(by.is_some()));
    if let Some(ApiKeyRef { key, made }) = by {
        pack::number(bytes, key.raw());
        pack::time(bytes, made);
    }
}

fn by(rest: &mut Unpack<'_>) -> Result<Option<ApiKeyRef>, StoreError> {
    Ok(match rest.number()? {
        0 => None,
        _ => Some(ApiKeyRef { key: Key::from_raw(rest.number()?), made: rest.time()? }),
    })
}

fn id(rest: &mut Unpack<'_>) -> Result<DeliveryId, StoreError> {
    Ok(DeliveryId::from_raw(rest.number()?))
}

fn endpoint(rest: &mut Unpack<'_>) -> Result<EndpointId, StoreError> {
    Ok(EndpointId::from_raw(rest.number()?))
}

/// Packs the lane as its distance from the endpoint. A webhook endpoint and its lane are made together, so their ids
/// are adjacent and the distance takes one byte.
fn pack_queue(bytes: &mut Vec<u8>, (endpoint, lane, tier): (EndpointId, LaneId, Tier)) {
    let distance = lane.raw().wrapping_sub(endpoint.raw());
    numbers(bytes, &[endpoint.raw(), distance, number::tier_number(tier).into()]);
}

fn queue(rest: &mut Unpack<'_>) -> Result<(EndpointId, LaneId, Tier), StoreError> {
    let endpoint = endpoint(rest)?;
    let lane = LaneId::from_raw(endpoint.raw().wrapping_add(rest.number()?));
    Ok((endpoint, lane, tier(rest)?))
}

fn tier(rest: &mut Unpack<'_>) -> Result<Tier, StoreError> {
    number::stored_tier(rest.small()?)
}
