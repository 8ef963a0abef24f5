//! The steps of a history, and how they are drawn.

use std::time::Duration;

use posthaste_core::flow::SharedGate;
use posthaste_core::flow::breaker::Soft;
use posthaste_core::id::{CredentialId, RegionId};
use posthaste_core::scheduler::{BreakerOf, Order, SoftBreaker};
use posthaste_core::{Cause, Expiry, LaneId, OriginId, RowIndex, Tier, Timestamp};
use proptest::prelude::*;

use crate::JobState;

/// Few lanes, so that the steps of a history affect the same ones.
pub(super) const LANES: u64 = 3;
/// The number of dead letter filters.
pub(super) const FILTERS: usize = 10;

#[derive(Clone, Debug)]
pub(super) enum HistoryStep {
    Accept(Vec<RandomDelivery>, Option<CallDraft>),
    Settle(Vec<SettleDraft>),
    Spill(Vec<usize>),
    Cut {
        lane: bool,
        of: usize,
        cause: Cause,
        spared: Vec<usize>,
    },
    Uncut {
        lane: bool,
        of: usize,
    },
    SweepCut {
        lane: bool,
        of: usize,
        under_way: Vec<usize>,
    },
    Roll {
        after: Option<usize>,
        now: i64,
        under_way: Vec<usize>,
    },
    Pause {
        kind: u8,
        of: u64,
        until: Option<i64>,
    },
    Resume {
        kind: u8,
        of: u64,
    },
    Remember(Vec<SoftBreaker>),
    PutEndpoint {
        lane: u64,
        secrets: usize,
        order: Order,
        call: Option<CallDraft>,
    },
    /// A message whose deliveries a job makes.
    FanOut,
    /// Replays dead letters that match a filter, or listed deliveries.
    Replay {
        filter: Option<usize>,
        picks: Vec<usize>,
    },
    /// The next chunk of a job, or a stale one built from another cursor.
    Chunk {
        of: usize,
        lanes: Vec<u64>,
        limit: u32,
        stale: bool,
    },
    ChangeJob {
        of: usize,
        next: JobState,
    },
    /// Runs retention this many days later.
    Retain {
        days: u64,
    },
    /// Sets the tenant's retention override, in days.
    Agree {
        payload: Option<u32>,
        history: Option<u32>,
    },
    Purge {
        filter: usize,
    },
    /// Everything derived from the journal is brought up to date.
    CatchUp,
    /// A new session takes over, and the old one tries to write.
    Open,
    /// The process ends and another opens the folder.
    Restart,
    /// The process is killed and another opens what it left.
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
