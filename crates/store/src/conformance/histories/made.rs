//! Builds the records that both stores get from a drawn step.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::scheduler::{OnDead, Order};
use posthaste_core::{
    Cause, Compact, CutScope, Delivery, DeliveryChange, DeliveryId, LaneId, MessageId, OriginId, Shard, State,
    TenantId, Tier,
};

use super::super::fixture::endpoint_id;
use super::step::{CallDraft, RandomDelivery, SettleDraft, SettleEnd, at};
use crate::row::{SigningSecret, WebhookTarget};
use crate::{
    AttemptRecord, CollapseKey, DeadLetterFilter, Endpoint, EndpointSelector, FirstAnswer, Idempotency, KeyHash,
    NewDelivery, PauseScope, Session, Settlement,
};

pub(super) fn idempotency(call: CallDraft) -> Idempotency {
    Idempotency {
        tenant: TenantId::from_raw(1),
        key: KeyHash([call.key; 16]),
        digest: [call.request; 32],
        answer: FirstAnswer { status: 202, body: Bytes::from(format!("{call:?}")) },
        at: at(call.hour * 3_600_000),
    }
}

pub(super) fn new_delivery(message: MessageId, n: u64, draft: &RandomDelivery) -> NewDelivery {
    let lane = LaneId::from_raw(draft.lane);
    let delivery = Delivery {
        state: State::Queued { due: at(draft.due) },
        expiry: draft.expiry,
        ack_within: draft.acks.then(|| Duration::from_secs(1)),
        compact: if draft.acks { Compact::Spare } else { Compact::None },
        ..Delivery::queued(DeliveryId(message.0.plus(n)), message, endpoint_id(draft.lane), lane, draft.tier, at(0))
    };
    let lane = Arc::new(endpoint(draft.lane, 1, Order::Fifo).lane_settings());
    NewDelivery { delivery, place: draft.place, lane, collapse: draft.collapse.map(CollapseKey) }
}

/// The settlement of an owner whose last known state is `row`. If the delivery has ended since, it is stale.
pub(super) fn settlement(row: &Delivery, outcome: &SettleDraft, session: Session) -> Settlement {
    let due = at(outcome.due);
    let tried = !matches!(outcome.end, SettleEnd::PutBack | SettleEnd::Expired | SettleEnd::Cancelled);
    let attempts = row.attempts + u16::from(tried);
    let (state, cause) = match outcome.end {
        SettleEnd::Delivered => (State::Delivered { at: due }, Cause::Ok),
        SettleEnd::Sent if row.ack_within.is_some() => (State::AwaitingAck { until: due }, Cause::Ok),
        SettleEnd::Sent => (State::Delivered { at: due }, Cause::Ok),
        SettleEnd::Retry(cause) => (State::Retry { due, cause }, cause),
        SettleEnd::PutBack if row.attempts == 0 => (State::Queued { due }, Cause::Ok),
        SettleEnd::PutBack => (State::Retry { due, cause: Cause::Unknown }, Cause::Ok),
        SettleEnd::Dead(cause) => (State::Dead { at: due, cause }, cause),
        SettleEnd::Expired => (State::Expired { at: due }, Cause::Ok),
        SettleEnd::Cancelled => (State::Cancelled { at: due, cause: Cause::Cancelled }, Cause::Ok),
    };
    let mut delivery = Delivery { state, attempts, ..row.clone() };
    if let SettleEnd::Retry(cause) = outcome.end {
        delivery.last_cause = Some(cause);
        delivery.previous_wait = Some(Duration::from_micros(u64::from(attempts) * 1_234_567));
        delivery.limited_in_a_row = row.limited_in_a_row.wrapping_add(1);
        delivery.compact = Compact::InUse;
    }
    let took = Duration::from_micros(777);
    Settlement {
        record: DeliveryChange {
            attempts_before: row.attempts + outcome.attempts_off,
            place: outcome.place,
            shard: Shard::of(row.lane),
            pauses_lane: outcome.pauses_lane,
            endpoint_change: None,
            delivery,
        },
        epoch: session.epoch - outcome.epoch_off,
        excerpt: None,
        attempt: tried.then_some(AttemptRecord {
            number: attempts,
            at: due,
            took,
            cause,
            status: Some(200 + attempts),
        }),
    }
}

pub(super) fn dead_letters(filter: usize) -> DeadLetterFilter {
    let all = DeadLetterFilter::of(TenantId::from_raw(1));
    match filter {
        0 => all,
        1 => DeadLetterFilter { endpoint: Some(endpoint_id(1)), ..all },
        2 => DeadLetterFilter { cause: Some(Cause::Unavailable), ..all },
        3 => DeadLetterFilter { event_type: Some("a.b".to_owned()), ..all },
        4 => DeadLetterFilter { tier: Some(Tier::Promotional), ..all },
        5 => DeadLetterFilter { since: Some(at(7)), until: Some(at(13)), ..all },
        6 => DeadLetterFilter { endpoint: Some(endpoint_id(0)), until: Some(at(9)), ..all },
        7 => DeadLetterFilter::of(TenantId::from_raw(2)),
        8 => DeadLetterFilter { event_type: Some("a.b".to_owned()), ..DeadLetterFilter::default() },
        _ => DeadLetterFilter::default(),
    }
}

pub(super) fn scope(lane: bool, delivery: &Delivery) -> CutScope {
    if lane { CutScope::Lane(delivery.lane) } else { CutScope::Message(delivery.message) }
}

pub(super) fn pause_scope(kind: u8, of: u64) -> PauseScope {
    match kind {
        0 => PauseScope::All,
        1 => PauseScope::Tenant(TenantId::from_raw(of)),
        2 => PauseScope::Lane(LaneId::from_raw(of)),
        _ => PauseScope::Origin(OriginId::from_raw(u64::MAX - of)),
    }
}

/// Selectors with subjects, with tags, and with both.
pub(super) fn selectors() -> Vec<EndpointSelector> {
    let subjects: [&[&str]; 4] = [&[], &["ann"], &["bob"], &["ann", "bob"]];
    let tags: [&[&str]; 4] = [&[], &["a"], &["b"], &["c", "a"]];
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let every = subjects.iter().flat_map(|subjects| tags.iter().map(move |tags| (owned(subjects), owned(tags))));
    every.filter_map(|(subjects, tags)| EndpointSelector::new(&subjects, &tags)).collect()
}

/// An endpoint whose subject and tags depend on `secrets` and `order`, so that a change of those changes them too.
pub(super) fn endpoint(lane: u64, secrets: usize, order: Order) -> Endpoint {
    let tags: &[&str] = match order {
        Order::Fifo => &["a", "b"],
        Order::NewestFirst => &["b", "c"],
        Order::Strict => &[],
    };
    let subject = [None, Some("ann"), Some("bob")].get(secrets).copied().flatten().map(str::to_owned);
    let secrets = vec![SigningSecret::lasting("whsec_a"); secrets];
    Endpoint {
        subject,
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        order,
        on_dead: OnDead::Hold,
        max_in_flight: 4,
        ..Endpoint::new(
            endpoint_id(lane),
            LaneId::from_raw(lane),
            TenantId::from_raw(1),
            at(0),
            WebhookTarget::signing(format!("https://example.com/{lane}"), secrets),
        )
    }
}
