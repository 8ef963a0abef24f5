//! The steps of a history, how they are drawn, and the records that both stores get from them.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::flow::SharedGate;
use posthaste_core::flow::breaker::Soft;
use posthaste_core::id::{CredentialId, RegionId};
use posthaste_core::scheduler::{BreakerOf, OnDead, Order, SoftBreaker};
use posthaste_core::{
    Cause, Compact, CutScope, Delivery, DeliveryChange, DeliveryId, Expiry, LaneId, MessageId, OriginId, RowIndex,
    Shard, State, TenantId, Tier, Timestamp,
};
use proptest::prelude::*;

use super::super::fixture::endpoint_id;
use crate::{
    AttemptRecord, CollapseKey, DeadLetterFilter, Endpoint, EndpointSelector, FirstAnswer, Idempotency, JobState,
    KeyHash, NewDelivery, PauseScope, Session, Settlement, SigningSecret, WebhookTarget,
};

/// Few lanes, so that the steps of a history affect the same ones.
pub(super) const LANES: u64 = 3;
/// The number of dead letter filters.
pub(super) const FILTERS: usize = 10;

#[derive(Clone, Debug)]
pub(super) enum HistoryStep {
    Accept(Vec<RandomDelivery>, Option<CallDraft>),
    Settle(Vec<SettleDraft>),
    Spill(Vec<usize>),
    Cut { lane: bool, of: usize, cause: Cause, spared: Vec<usize> },
    Uncut { lane: bool, of: usize },
    SweepCut { lane: bool, of: usize, under_way: Vec<usize> },
    Roll { after: Option<usize>, now: i64, under_way: Vec<usize> },
    Pause { kind: u8, of: u64, until: Option<i64> },
    Resume { kind: u8, of: u64 },
    Remember(Vec<SoftBreaker>),
    PutEndpoint { lane: u64, secrets: usize, order: Order, call: Option<CallDraft> },
    // A message whose deliveries a job makes.
    FanOut,
    // Replays dead letters that match a filter, or listed deliveries.
    Replay { filter: Option<usize>, picks: Vec<usize> },
    // The next chunk of a job, or a stale one built from another cursor.
    Chunk { of: usize, lanes: Vec<u64>, limit: u32, stale: bool },
    ChangeJob { of: usize, next: JobState },
    // Runs retention this many days later.
    Retain { days: u64 },
    // Sets the tenant's retention override, in days.
    Agree { payload: Option<u32>, history: Option<u32> },
    Purge { filter: usize },
    // Everything derived from the journal is brought up to date.
    CatchUp,
    // A new session takes over, and the old one tries to write.
    Open,
    // The process ends and another opens the folder.
    Restart,
    // The process is killed and another opens what it left.
    Crash,
}

/// An idempotency key: one of a few, for one of two requests, at some hour, so that calls often repeat.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallDraft {
    pub(super) key: u8,
    pub(super) request: u8,
    pub(super) hour: i64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct RandomDelivery {
    pub(super) lane: u64,
    pub(super) tier: Tier,
    pub(super) place: RowIndex,
    pub(super) due: i64,
    pub(super) expiry: Expiry,
    pub(super) acks: bool,
    pub(super) collapse: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SettleDraft {
    pub(super) of: usize,
    pub(super) end: SettleEnd,
    pub(super) due: i64,
    pub(super) place: RowIndex,
    /// Added to the number of attempts, to make the settlement stale.
    pub(super) attempts_off: u16,
    /// Subtracted from the epoch, to make the settlement stale.
    pub(super) epoch_off: u64,
    pub(super) pauses_lane: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum SettleEnd {
    Delivered,
    Sent,
    Retry(Cause),
    PutBack,
    Dead(Cause),
    Expired,
    Cancelled,
}

pub(super) fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(1_760_000_000_000 + ms)
}

pub(super) fn step() -> impl Strategy<Value = HistoryStep> {
    let pick = 0_usize..1_000;
    prop_oneof![
        8 => (prop::collection::vec(draft(), 0..5), call())
            .prop_map(|(drafts, call)| HistoryStep::Accept(drafts, call)),
        8 => prop::collection::vec(outcome(), 1..6).prop_map(HistoryStep::Settle),
        2 => prop::collection::vec(pick.clone(), 1..4).prop_map(HistoryStep::Spill),
        2 => (any::<bool>(), pick.clone(), cause(), prop::collection::vec(pick.clone(), 0..3))
            .prop_map(|(lane, of, cause, spared)| HistoryStep::Cut { lane, of, cause, spared }),
        1 => (any::<bool>(), pick.clone()).prop_map(|(lane, of)| HistoryStep::Uncut { lane, of }),
        1 => (any::<bool>(), pick.clone(), prop::collection::vec(pick.clone(), 0..2))
            .prop_map(|(lane, of, under_way)| HistoryStep::SweepCut { lane, of, under_way }),
        1 => (prop::option::of(pick.clone()), 0_i64..50, prop::collection::vec(pick, 0..2))
            .prop_map(|(after, now, under_way)| HistoryStep::Roll { after, now, under_way }),
        1 => (0_u8..4, 0..LANES, prop::option::of(0_i64..50))
            .prop_map(|(kind, of, until)| HistoryStep::Pause { kind, of, until }),
        1 => (0_u8..4, 0..LANES).prop_map(|(kind, of)| HistoryStep::Resume { kind, of }),
        1 => prop::collection::vec(breaker(), 0..4).prop_map(HistoryStep::Remember),
        1 => (0..LANES, 0_usize..3, order(), call())
            .prop_map(|(lane, secrets, order, call)| HistoryStep::PutEndpoint { lane, secrets, order, call }),
        1 => (0..FILTERS).prop_map(|filter| HistoryStep::Purge { filter }),
        1 => Just(HistoryStep::CatchUp),
        2 => prop::sample::select(vec![3_u64, 6, 8, 31, 60, 500]).prop_map(|days| HistoryStep::Retain { days }),
        1 => (prop::option::of(1_u32..50), prop::option::of(1_u32..90))
            .prop_map(|(payload, history)| HistoryStep::Agree { payload, history }),
        1 => Just(HistoryStep::FanOut),
        1 => (prop::option::of(0..FILTERS), prop::collection::vec(0_usize..1_000, 0..4))
            .prop_map(|(filter, picks)| HistoryStep::Replay { filter, picks }),
        4 => (0_usize..100, prop::collection::vec(0..LANES, 0..4), 1_u32..4, prop::bool::weighted(0.1))
            .prop_map(|(of, lanes, limit, stale)| HistoryStep::Chunk { of, lanes, limit, stale }),
        1 => (0_usize..100, job_state()).prop_map(|(of, next)| HistoryStep::ChangeJob { of, next }),
        1 => Just(HistoryStep::Open),
        1 => Just(HistoryStep::Restart),
        1 => Just(HistoryStep::Crash),
    ]
}

fn call() -> impl Strategy<Value = Option<CallDraft>> {
    let call = (0_u8..4, 0_u8..2, 0_i64..60).prop_map(|(key, request, hour)| CallDraft { key, request, hour });
    prop::option::of(call)
}

fn job_state() -> impl Strategy<Value = JobState> {
    prop::sample::select(vec![JobState::Running, JobState::Running, JobState::Paused, JobState::Cancelled])
}

fn draft() -> impl Strategy<Value = RandomDelivery> {
    let expiry = prop_oneof![
        Just(Expiry::Never),
        (0_i64..50).prop_map(|ms| Expiry::At(at(ms))),
        (0_i64..50).prop_map(|ms| Expiry::NowOrNever(at(ms)))
    ];
    let collapse = prop::option::of(prop_oneof![Just(0), Just(u64::MAX)]);
    (0..LANES, prop::sample::select(Tier::ALL.to_vec()), place(), 0_i64..20, expiry, any::<bool>(), collapse).prop_map(
        |(lane, tier, place, due, expiry, acks, collapse)| RandomDelivery {
            lane,
            tier,
            place,
            due,
            expiry,
            acks,
            collapse,
        },
    )
}

fn breaker() -> impl Strategy<Value = SoftBreaker> {
    let of = prop_oneof![
        (0..LANES).prop_map(|lane| BreakerOf::Lane(LaneId::from_raw(lane))),
        any::<u64>().prop_map(|origin| BreakerOf::Shared(SharedGate::Origin(OriginId::from_raw(origin)))),
        (0..LANES).prop_map(|region| BreakerOf::Shared(SharedGate::Region(RegionId::from_raw(region)))),
        (0..LANES).prop_map(|key| BreakerOf::Shared(SharedGate::Credential(CredentialId::from_raw(key)))),
    ];
    (of, 0_i64..50, 0_u64..300_000).prop_map(|(of, since, hold)| SoftBreaker {
        of,
        soft: Soft { since: at(since), hold: Duration::from_millis(hold) },
    })
}

fn outcome() -> impl Strategy<Value = SettleDraft> {
    let end = prop_oneof![
        Just(SettleEnd::Delivered),
        Just(SettleEnd::Sent),
        cause().prop_map(SettleEnd::Retry),
        Just(SettleEnd::PutBack),
        cause().prop_map(SettleEnd::Dead),
        Just(SettleEnd::Expired),
        Just(SettleEnd::Cancelled)
    ];
    let off = prop_oneof![6 => Just(0_u16), 1 => Just(1)];
    let epoch = prop_oneof![8 => Just(0_u64), 1 => Just(1)];
    (0_usize..1_000, end, 0_i64..20, place(), off, epoch, prop::bool::weighted(0.1)).prop_map(
        |(of, end, due, place, attempts_off, epoch_off, pauses_lane)| SettleDraft {
            of,
            end,
            due,
            place,
            attempts_off,
            epoch_off,
            pauses_lane,
        },
    )
}

fn place() -> impl Strategy<Value = RowIndex> {
    prop::sample::select(vec![RowIndex::Ready, RowIndex::Delayed, RowIndex::Spilled])
}

fn order() -> impl Strategy<Value = Order> {
    prop::sample::select(vec![Order::Fifo, Order::NewestFirst, Order::Strict])
}

fn cause() -> impl Strategy<Value = Cause> {
    prop::sample::select(vec![Cause::EndpointGone, Cause::Cancelled, Cause::Unavailable, Cause::Retention])
}

pub(super) fn idempotency(call: CallDraft) -> Idempotency {
    Idempotency {
        tenant: TenantId::from_raw(1),
        key: KeyHash([call.key; 16]),
        digest: [call.request; 32],
        answer: FirstAnswer { status: 202, body: format!("{call:?}").into() },
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
    let attempt = AttemptRecord { number: attempts, at: due, took, cause, status: Some(200 + attempts) };
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
        attempt: tried.then_some(attempt),
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
