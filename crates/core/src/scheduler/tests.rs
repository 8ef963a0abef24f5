//! A comparison of the scheduler with a slow model, and tests of single rules.

mod gates;
mod model;
mod receipts;
mod room;
mod settings_versions;
mod shared_gates;
mod stuck;
mod turns;

use proptest::prelude::*;

use super::timer::ASK_AGAIN;
use super::*;
use crate::cut;
use crate::flow::breaker::BreakerState;
use crate::flow::{Protection, SharedGate};
use crate::id::CredentialId;
use crate::policy::PolicySpec;
use crate::time::seconds;
use crate::{
    Cause, Compact, CutScope, Delivery, EndpointId, Expiry, Hold, Key, LaneId, OriginId, Policy, TenantId, Why,
};
use model::{LANES, SchedulerModel};

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const LANE: LaneId = LaneId::from_raw(7);
const ENDPOINT: EndpointId = EndpointId::from_raw(70);
const ROLL: Roll = Roll(1);
const ROW: DeliveryId = DeliveryId::from_raw(1);
const CREDENTIAL: CredentialId = CredentialId::from_raw(9);
const OK: Verdict = Verdict::of(Cause::Ok);
const REFUSED: Verdict = Verdict::of(Cause::ConnectRefused);
const REJECTED: Verdict = Verdict::of(Cause::CredentialRejected);

fn at(seconds_in: u64) -> Timestamp {
    NOW + seconds(seconds_in)
}

/// Due now, without a TTL.
fn delivery(id: u64) -> Delivery {
    Delivery::queued(DeliveryId::from_raw(id), MessageId::from_raw(id), ENDPOINT, LANE, Tier::Promotional, NOW)
}

/// A delivery to the only endpoint of this lane.
fn delivery_in(lane: LaneId, id: u64) -> Delivery {
    Delivery { lane, endpoint: EndpointId::from_raw(lane.raw() * 10), ..delivery(id) }
}

/// At most four attempts in flight, retries after two seconds.
fn settings(lane: LaneId, order: Order) -> LaneSettings {
    let policy = Arc::new(Policy::build(&PolicySpec::every(seconds(2))).expect("a valid policy"));
    LaneSettings { order, max_in_flight: 4, ..LaneSettings::new(lane, TenantId::from_raw(lane.raw() % 2), policy) }
}

fn asking(wait: Duration) -> Verdict {
    Verdict { status: Some(503), retry_after: Some(wait), ..Verdict::of(Cause::Unavailable) }
}

// --- comparison with the model ---

/// A call or an event. Numbers choose among the rows that exist at the time.
#[derive(Clone, Debug)]
enum Op {
    Arrive { lane: usize, tier: Tier, due_in: Duration, ttl: Option<Duration>, ack: bool, known: bool },
    Settle(usize, Verdict),
    PutBack(usize, Duration),
    Recorded(usize),
    Refused(usize),
    Receipt(usize),
    EndRow(usize),
    Cancel(usize),
    CutLane(usize),
    Sweep,
    Pause(Whom, Option<Duration>),
    Resume(Whom),
    Set { lane: usize, order: Order, on_dead: OnDead, max_in_flight: u16 },
    Wait(Duration),
    Page,
    Paged(usize),
    Evicted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Whom {
    All,
    Tenant(usize),
    Lane(usize),
}

fn a_wait() -> impl Strategy<Value = Duration> {
    prop::sample::select(vec![0, 1, 400, 1_000, 2_000, 7_000, 31_000]).prop_map(Duration::from_millis)
}

fn a_tier() -> impl Strategy<Value = Tier> {
    prop::sample::select(Tier::ALL.to_vec())
}

prop_compose! {
    fn an_arrival()(
        lane in 0..LANES,
        tier in a_tier(),
        due_in in prop_oneof![5 => Just(Duration::ZERO), 1 => a_wait()],
        ttl in prop_oneof![4 => Just(None), 1 => a_wait().prop_map(Some)],
        (ack, known) in (prop::bool::weighted(0.2), prop::bool::weighted(0.9)),
    ) -> Op {
        Op::Arrive { lane, tier, due_in, ttl, ack, known }
    }
}

fn a_verdict() -> impl Strategy<Value = Verdict> {
    use Cause::{DnsNotFound, InternalError, NotFound, PayloadTooLarge, StoreUnavailable};
    let causes = vec![InternalError, DnsNotFound, NotFound, PayloadTooLarge, StoreUnavailable];
    prop_oneof![
        6 => Just(OK),
        4 => prop::sample::select(causes).prop_map(Verdict::of),
        2 => a_wait().prop_map(asking),
        1 => Just(Verdict::of(Cause::Gone)),
    ]
}

fn pause_target() -> impl Strategy<Value = Whom> {
    prop_oneof![Just(Whom::All), (0..2_usize).prop_map(Whom::Tenant), (0..LANES).prop_map(Whom::Lane)]
}

prop_compose! {
    fn new_settings()(
        lane in 0..LANES,
        order in prop::sample::select(vec![Order::Fifo, Order::NewestFirst, Order::Strict]),
        on_dead in prop::sample::select(vec![OnDead::Skip, OnDead::Hold]),
        max_in_flight in 1..4_u16,
    ) -> Op {
        Op::Set { lane, order, on_dead, max_in_flight }
    }
}

fn an_op() -> impl Strategy<Value = Op> {
    let nth = || 0..64_usize;
    prop_oneof![
        30 => an_arrival(),
        20 => (nth(), a_verdict()).prop_map(|(nth, verdict)| Op::Settle(nth, verdict)),
        3 => (nth(), a_wait()).prop_map(|(nth, after)| Op::PutBack(nth, after)),
        24 => nth().prop_map(Op::Recorded),
        1 => nth().prop_map(Op::Refused),
        4 => nth().prop_map(Op::Receipt),
        3 => nth().prop_map(Op::EndRow),
        2 => nth().prop_map(Op::Cancel),
        1 => (0..LANES).prop_map(Op::CutLane),
        3 => Just(Op::Sweep),
        3 => (pause_target(), prop::option::weighted(0.7, a_wait())).prop_map(|(whom, lasts)| Op::Pause(whom, lasts)),
        4 => pause_target().prop_map(Op::Resume),
        4 => new_settings(),
        12 => a_wait().prop_map(Op::Wait),
        8 => Just(Op::Page),
        8 => nth().prop_map(Op::Paged),
        3 => Just(Op::Evicted),
    ]
}

prop_compose! {
    fn some_limits()(slots in 1..6_u32, per_queue in 1..6_u32, window in 4..24_usize) -> Limits {
        Limits { slots, per_queue, window, protection: Protection::Off, ..Limits::default() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_follows_the_slow_model_and_leaves_no_work_undone(
        limits in some_limits(),
        steps in prop::collection::vec((an_op(), prop::bool::weighted(0.8)), 1..200),
    ) {
        let mut model = SchedulerModel::new(limits);
        for (op, then_ask) in &steps {
            model.step(op);
            if *then_ask {
                model.ask();
            }
        }
        model.wind_down();
    }
}

// --- single rules ---

/// A scheduler that knows one lane.
fn queue(order: Order) -> Scheduler {
    knowing([settings(LANE, order)])
}

fn knowing(lanes: impl IntoIterator<Item = LaneSettings>) -> Scheduler {
    let mut queue = Scheduler::new(Limits::default());
    lanes.into_iter().for_each(|lane| set(&mut queue, lane));
    queue
}

fn with_limits(order: Order, limits: Limits) -> Scheduler {
    let mut queue = Scheduler::new(limits);
    set(&mut queue, settings(LANE, order));
    queue
}

fn set(queue: &mut Scheduler, settings: LaneSettings) {
    queue.set_lane(NOW, &Arc::new(settings));
}

fn at_origin(lane: LaneId, origin: OriginId) -> LaneSettings {
    LaneSettings { origin: Some(origin), ..settings(lane, Order::Fifo) }
}

fn with_credential(lane: LaneId, credential: CredentialId) -> LaneSettings {
    settings(lane, Order::Fifo).with(Special { credential: Some(credential), ..Special::default() })
}

fn admit(queue: &mut Scheduler, delivery: &Delivery) -> Admission {
    queue.admit(NOW, delivery.clone(), RowIndex::Ready)
}

/// Deliveries to [`LANE`] with these ids.
fn admit_all(queue: &mut Scheduler, ids: impl IntoIterator<Item = u64>) {
    for id in ids {
        admit(queue, &delivery(id));
    }
}

/// What is sent now; `None` when there is nothing to send or to record.
fn send(queue: &mut Scheduler, now: Timestamp) -> Option<u64> {
    match queue.next(now, ROLL)? {
        Pick::Send(start) => Some(start.delivery.raw()),
        Pick::Record(record) => panic!("{record:?} instead of a send"),
    }
}

fn settle(queue: &mut Scheduler, now: Timestamp, id: u64, verdict: &Verdict) -> DeliveryChange {
    queue.settle(now, ROLL, DeliveryId::from_raw(id), verdict, false).expect("it is in flight")
}

/// Settles a delivery in flight, and notes that its outcome is durable.
fn finish(queue: &mut Scheduler, now: Timestamp, id: u64, verdict: &Verdict) {
    settle(queue, now, id, verdict);
    queue.recorded(now, DeliveryId::from_raw(id));
}

/// Sends and settles all that can be sent now. `verdict` gets the number of the attempt, from 1 on, and the delivery.
/// Returns how many attempts there were.
fn answer_all(queue: &mut Scheduler, verdict: impl Fn(u64, u64) -> Verdict) -> u64 {
    let mut answered = 0;
    while let Some(id) = send(queue, NOW) {
        answered += 1;
        finish(queue, NOW, id, &verdict(answered, id));
    }
    answered
}

/// Sends and settles deliveries with this verdict, until nothing more can be sent at this time or `most` were.
fn exchange(queue: &mut Scheduler, now: Timestamp, verdict: &Verdict, most: usize) -> Vec<u64> {
    let mut sent = Vec::new();
    while sent.len() < most {
        let Some(id) = send(queue, now) else { break };
        sent.push(id);
        if queue.settle(now, ROLL, DeliveryId::from_raw(id), verdict, false).is_some() {
            queue.recorded(now, DeliveryId::from_raw(id));
        }
    }
    sent
}

/// What a delivery waits for that is queued and due.
#[track_caller]
fn hold_of(queue: &Scheduler, now: Timestamp, lane: LaneId, id: u64) -> Hold {
    match queue.explain(now, DeliveryId::from_raw(id), lane, State::Queued { due: NOW }) {
        Explained::Waits(hold) => hold,
        Explained::UnderWay => panic!("{id} is under way"),
    }
}

#[test]
fn a_change_of_spilling_is_reported_once_and_its_end_in_every_tier_that_is_paged_together() {
    for (order, ends) in [(Order::Fifo, &[Tier::Engagement][..]), (Order::Strict, &Tier::ALL[..])] {
        let mut queue = queue(order);
        queue.spilled(LANE, Tier::Engagement, ROW);
        queue.spilled(LANE, Tier::Engagement, ROW);
        assert_eq!(queue.take_spilling_changes(), [(LANE, Tier::Engagement, true)], "{order:?}");
        let wanted = queue.next_page(NOW).expect("rows are behind the window");
        queue.paged(NOW, LANE, wanted.tier, IdRange::ALL, false);
        let ended: Vec<_> = ends.iter().map(|tier| (LANE, *tier, false)).collect();
        assert_eq!(queue.take_spilling_changes(), ended, "{order:?}");
        assert_eq!(queue.take_spilling_changes(), []);
    }
}

#[test]
fn rows_of_every_tier_are_found_after_a_strict_lane_stops_being_strict() {
    let mut queue = queue(Order::Strict);
    queue.spilled(LANE, Tier::Engagement, ROW);
    let old = queue.next_page(NOW).expect("the head is behind the window");
    queue.spilled(LANE, Tier::Engagement, ROW);
    set(&mut queue, settings(LANE, Order::Fifo));
    queue.paged(NOW, LANE, old.tier, IdRange::ALL, false);
    let tiers: Vec<Tier> = std::iter::from_fn(|| queue.next_page(NOW)).map(|wanted| wanted.tier).collect();
    assert_eq!(tiers, Tier::ALL, "a page of the old order does not count for the new queues");
}

#[test]
fn a_strict_lane_continues_after_a_cut_only_once_it_is_durable() {
    let covered = delivery(1);
    for (order, waits) in [(Order::Strict, true), (Order::Fifo, false)] {
        for scope in [CutScope::Lane(LANE), CutScope::Message(covered.message)] {
            let mut queue = queue(order);
            queue.spilled(LANE, Tier::Promotional, ROW);
            // Made twice before either is durable.
            queue.cut(scope, Key::from_raw(1), Cause::Cancelled);
            queue.cut(scope, Key::from_raw(1), Cause::Cancelled);
            assert_eq!(queue.may_pass(&covered), !waits, "{order:?} {scope:?}");
            queue.cut_recorded(scope);
            assert_eq!(queue.next_page(NOW).is_none(), waits, "{order:?} {scope:?}");
            queue.cut_recorded(scope);
            assert!(queue.may_pass(&covered), "{order:?} {scope:?}");
            assert_eq!(queue.next_page(NOW).is_some(), waits, "{order:?} {scope:?}: it is read on, once");
        }
    }
}

#[test]
fn rows_covered_by_a_cut_are_not_paged_in() {
    let mut queue = queue(Order::Fifo);
    let upto = Key::from_raw(100);
    queue.cut(CutScope::Lane(LANE), upto, Cause::Unsubscribed);
    queue.cut_recorded(CutScope::Lane(LANE));
    queue.spilled(LANE, Tier::Engagement, ROW);
    let wanted = queue.next_page(NOW).expect("later rows may be behind the window");
    assert_eq!(wanted.span, IdRange { from: DeliveryId(upto.plus(1)), ..IdRange::ALL });
    queue.paged(NOW, LANE, wanted.tier, wanted.span, false);
    set(&mut queue, settings(LANE, Order::Fifo));
    queue.cut(CutScope::Lane(LANE), IdRange::ALL.below.0, Cause::Unsubscribed);
    queue.spilled(LANE, Tier::Engagement, ROW);
    assert_eq!(queue.next_page(NOW), None, "no row can be above this cut");
    assert!(!queue.is_spilling(LANE, Tier::Engagement), "no row waits behind the window");
}

/// Pages the queue until it rests, with pages full of rows that a cut covers. Returns the first id of each page.
fn passed_over(queue: &mut Scheduler, upto: u64) -> Vec<u64> {
    let pages = std::iter::from_fn(|| {
        let wanted = queue.next_page(NOW)?;
        queue.pass_over(LANE, wanted.tier, wanted.span, DeliveryId::from_raw(upto));
        queue.paged(NOW, LANE, wanted.tier, wanted.span, true);
        Some(wanted.span.from.raw())
    });
    pages.take(10).collect()
}

#[test]
fn paging_past_rows_of_a_cut_continues_at_the_pace_of_the_sweep() {
    let mut queue = queue(Order::Fifo);
    queue.spilled(LANE, Tier::Engagement, ROW);
    assert_eq!(passed_over(&mut queue, 100), [0]);
    queue.spilled(LANE, Tier::Engagement, DeliveryId::from_raw(500));
    assert_eq!(passed_over(&mut queue, 200), [], "it rests although another row was spilled");
    queue.read_on();
    assert_eq!(passed_over(&mut queue, 200), [101]);
    queue.spilled(LANE, Tier::Engagement, DeliveryId::from_raw(150));
    assert_eq!(passed_over(&mut queue, 200), [0], "a row that became durable late is not lost");
    queue.all_read_on();
    let wanted = queue.next_page(NOW).expect("rows are behind the window");
    queue.paged(NOW, LANE, wanted.tier, wanted.span, false);
    assert!(!queue.is_spilling(LANE, Tier::Engagement));
}

#[test]
fn putting_a_delivery_back_spends_no_attempt() {
    let mut queue = queue(Order::Fifo);
    admit(&mut queue, &delivery(1));
    for _ in 0..20 {
        let Some(Pick::Send(start)) = queue.next(NOW, ROLL) else { panic!("it is due") };
        assert_eq!(start.attempt, 1);
        queue.put_back(NOW, start.delivery, NOW);
    }
    assert_eq!((queue.in_flight(), queue.len()), (0, 1));
}

#[test]
fn our_own_fault_does_not_hide_why_the_receiver_failed() {
    let mut queue = queue(Order::Fifo);
    admit(&mut queue, &Delivery { attempts: 1, last_cause: Some(Cause::DnsNotFound), ..delivery(1) });
    send(&mut queue, NOW);
    let own_fault = Verdict::of(Cause::StoreUnavailable);
    assert_eq!(queue.settle(NOW, ROLL, DeliveryId::from_raw(1), &own_fault, false), None, "no attempt was spent");
    let later = NOW + seconds(2);
    send(&mut queue, later);
    let record = settle(&mut queue, later, 1, &Verdict::of(Cause::DnsNotFound));
    assert_eq!((record.attempts_before, record.delivery.last_cause), (1, Some(Cause::DnsNotFound)));
}

#[test]
fn a_dead_delivery_pauses_only_a_strict_lane_set_to_hold() {
    for (order, on_dead, pauses) in
        [(Order::Strict, OnDead::Hold, true), (Order::Strict, OnDead::Skip, false), (Order::Fifo, OnDead::Hold, false)]
    {
        let mut queue = knowing([LaneSettings { on_dead, ..settings(LANE, order) }]);
        queue.admit(NOW, delivery(1), RowIndex::Spilled);
        send(&mut queue, NOW);
        let record = settle(&mut queue, NOW, 1, &Verdict::of(Cause::NotFound));
        assert_eq!(record.pauses_lane, pauses, "{order:?} {on_dead:?}");
    }
}

#[test]
fn the_longer_of_two_retry_afters_holds_the_lane() {
    for (first, second) in [(60, 10), (10, 60)] {
        let mut queue = queue(Order::Fifo);
        admit_all(&mut queue, 1..=3);
        assert_eq!((send(&mut queue, NOW), send(&mut queue, NOW)), (Some(1), Some(2)));
        queue.put_back(NOW, DeliveryId::from_raw(1), NOW);
        send(&mut queue, NOW);
        settle(&mut queue, NOW, 1, &asking(seconds(first)));
        settle(&mut queue, NOW, 2, &asking(seconds(second)));
        assert_eq!(send(&mut queue, NOW + seconds(59)), None, "{first} then {second}");
        assert_eq!(send(&mut queue, NOW + seconds(67)), Some(3), "a tenth longer at most");
    }
}

#[test]
fn a_wait_for_retry_after_is_explained_as_such() {
    let mut queue = queue(Order::Fifo);
    admit(&mut queue, &delivery(1));
    assert_eq!(send(&mut queue, NOW), Some(1));
    let record = settle(&mut queue, NOW, 1, &asking(seconds(3_600)));
    queue.recorded(NOW, record.delivery.id);
    let why = |due| {
        let state = State::Retry { due, cause: Cause::Unavailable };
        let Explained::Waits(hold) = queue.explain(NOW, DeliveryId::from_raw(9), LANE, state) else {
            panic!("it waits")
        };
        assert!(hold.until.is_some_and(|until| until >= due), "{hold:?}");
        hold.why
    };
    assert_eq!(why(NOW), Why::RetryAfter, "it is due, and its lane is held");
    assert_eq!(why(NOW + seconds(5)), Why::RetryAfter, "it will be due before its lane is free");
    assert_eq!(why(NOW + seconds(7_200)), Why::Backoff, "by then its lane is free");
}

#[test]
fn a_delivery_is_admitted_only_once() {
    let mut queue = queue(Order::Fifo);
    assert_eq!(admit(&mut queue, &delivery(1)), Admission::Taken);
    assert_eq!(admit(&mut queue, &delivery(1)), Admission::Known);
    assert_eq!(send(&mut queue, NOW), Some(1));
    assert_eq!(admit(&mut queue, &delivery(1)), Admission::Known, "it is in flight");
    assert_eq!(send(&mut queue, NOW), None);
    settle(&mut queue, NOW, 1, &Verdict::of(Cause::InternalError));
    assert_eq!(admit(&mut queue, &delivery(1)), Admission::Known, "its outcome is being written");
}

#[test]
fn tiers_are_sent_by_weight_as_long_as_all_have_work() {
    let mut queue = with_limits(Order::Fifo, Limits { slots: 1, per_queue: 1_000, ..Limits::default() });
    for id in 0..1_000 {
        for tier in Tier::ALL {
            admit(&mut queue, &Delivery { tier, ..delivery(id * 3 + tier.index() as u64) });
        }
    }
    let mut sent = [0; 3];
    for _ in 0..1_050 {
        let id = send(&mut queue, NOW).expect("there is work in every tier");
        sent[usize::try_from(id % 3).expect("below 3")] += 1;
        finish(&mut queue, NOW, id, &OK);
    }
    assert_eq!(sent, [795, 199, 56], "16 : 4 : 1, and the lowest tier has its twentieth");
}

#[test]
fn deliveries_that_ended_in_the_queue_cost_their_lane_no_turn() {
    let mut queue = with_limits(Order::Fifo, Limits { slots: 1, ..Limits::default() });
    let other = LaneId::from_raw(8);
    set(&mut queue, settings(other, Order::Fifo));
    for id in 1..=20 {
        admit(&mut queue, &delivery(id));
        admit(&mut queue, &Delivery { lane: other, ..delivery(100 + id) });
    }
    for id in 1..=19 {
        let ended = State::Cancelled { at: NOW, cause: Cause::Cancelled };
        queue.end_row(delivery(id), RowIndex::Ready, ended).expect("it waits");
        queue.recorded(NOW, DeliveryId::from_raw(id));
    }
    assert_eq!(send(&mut queue, NOW), Some(20));
}

#[test]
fn a_hold_that_has_ended_does_not_return_when_the_clock_is_set_back() {
    let mut queue = with_limits(Order::Fifo, Limits { slots: 1, ..Limits::default() });
    admit_all(&mut queue, 1..=2);
    assert_eq!(send(&mut queue, NOW), Some(1));
    queue.pause_lane(LANE, Hold { why: Why::Paused, until: Some(NOW + seconds(5)) });
    queue.pause_all(Hold { why: Why::Paused, until: Some(NOW + seconds(5)) });
    queue.pause_tenant(TenantId::from_raw(1), Hold { why: Why::Paused, until: Some(NOW + seconds(5)) });
    assert_eq!(send(&mut queue, NOW + seconds(5)), None, "no slot is free");
    settle(&mut queue, NOW, 1, &OK);
    assert_eq!(send(&mut queue, NOW), Some(2), "no timer would end the holds again");
}

#[test]
fn a_lane_is_dropped_after_its_pause() {
    let mut queue = Scheduler::new(Limits::default());
    queue.pause_lane(LANE, Hold { why: Why::Paused, until: Some(NOW + seconds(1)) });
    queue.pause_lane(LaneId::from_raw(8), Hold { why: Why::Paused, until: None });
    queue.next(NOW + seconds(1), ROLL);
    queue.resume_lane(LaneId::from_raw(8), NOW + seconds(1));
    assert!(queue.lanes.slots.len() == 0, "{queue:?}");
}

#[test]
fn timers_of_long_ttls_are_removed_after_their_deliveries_ended() {
    let mut queue = queue(Order::Fifo);
    for id in 1..=50_000 {
        admit(&mut queue, &Delivery { expiry: Expiry::At(NOW + seconds(86_400)), ..delivery(id) });
        send(&mut queue, NOW);
        finish(&mut queue, NOW, id, &OK);
        set(&mut queue, settings(LANE, Order::Fifo));
    }
    assert!(queue.timers.len() < 5_000, "{} timers of ended deliveries", queue.timers.len());
}
