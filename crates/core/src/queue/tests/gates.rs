//! Tests of a destination's gates: breakers, recovery, limits, budgets, windows.

use super::*;
use crate::flow::SharedGate;
use crate::flow::breaker::{Rule, Standing};
use crate::flow::bucket::Rate;
use crate::id::{CredentialId, OriginId, RegionId, TenantId};
use crate::off_peak::{OffPeak, Offsets};

pub(super) const REFUSED: Verdict = Verdict::of(Cause::ConnectRefused);
pub(super) const OK: Verdict = Verdict::of(Cause::Ok);

pub(super) fn at(seconds_in: u64) -> Timestamp {
    NOW + seconds(seconds_in)
}

pub(super) fn set(queue: &mut Queue, settings: LaneSettings) {
    queue.set_lane(NOW, &Arc::new(settings));
}

/// Sends and settles deliveries with this verdict, until nothing more can be sent at this time or `most` were.
pub(super) fn exchange(queue: &mut Queue, now: Timestamp, verdict: &Verdict, most: usize) -> Vec<u64> {
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

/// A queue whose lane's breaker has just opened, with this many more deliveries waiting.
fn broken(waiting: u64) -> Queue {
    let mut queue = queue(Order::Fifo);
    for id in 1..=10 + waiting {
        queue.seen(NOW, DeliveryId::from_raw(id));
        admit(&mut queue, &delivery(id));
    }
    assert_eq!(exchange(&mut queue, NOW, &REFUSED, 10).len(), 10);
    queue
}

fn why(queue: &Queue, now: Timestamp, id: u64) -> Hold {
    let state = State::Queued { due: NOW };
    match queue.explain(now, DeliveryId::from_raw(id), LANE, state) {
        Explained::Waits(hold) => hold,
        Explained::UnderWay => panic!("{id} is under way"),
    }
}

#[test]
fn ten_failures_in_a_row_stop_a_lane_and_cost_the_others_no_attempt() {
    let mut queue = broken(5);
    assert_eq!(send(&mut queue, NOW), None);
    let hold = why(&queue, NOW, 11);
    assert_eq!(hold.why, Why::BreakerOpen);
    let until = hold.until.expect("a breaker says until when");
    assert!((at(27)..=at(33)).contains(&until), "{until}");
    assert_eq!(send(&mut queue, until - Duration::from_millis(1)), None);
    assert!(queue.wake_at().is_some_and(|wake| wake <= until));
    assert_eq!(send(&mut queue, until), Some(1), "the oldest due delivery is the probe");
    assert_eq!(send(&mut queue, until), None, "one probe at a time");
    assert_eq!(why(&queue, until, 11), Hold { why: Why::BreakerOpen, until: None });
}

#[test]
fn three_good_probes_close_the_breaker_and_waiting_deliveries_are_paced() {
    let mut queue = broken(100);
    let until = at(33);
    let sent = exchange(&mut queue, until, &OK, 1_000);
    // Three probes, and the first sends of the pace.
    assert_eq!(queue.standing(until, LANE), Standing::Closed);
    assert!((4..=8).contains(&sent.len()), "{sent:?}");
    let mut gone = sent.len();
    let mut a_second = Vec::new();
    for second in 0..20_u64 {
        let before = gone;
        for ms in (0..1_000).step_by(10) {
            let now = until + seconds(second) + Duration::from_millis(ms);
            gone += exchange(&mut queue, now, &OK, 1_000).len();
        }
        a_second.push(gone - before);
    }
    assert!(a_second[0] <= 8 && a_second[10] > a_second[0], "it ramps up: {a_second:?}");
    assert_eq!(gone, 110, "retries were made due as well: {a_second:?}");
}

#[test]
fn recovery_does_not_shorten_a_wait_that_an_endpoint_asked_for_itself() {
    let own_waits = [
        Verdict {
            retry_after: Some(seconds(3_600)),
            scope: VerdictScope::Endpoint,
            ..Verdict::of(Cause::TooManyRequests)
        },
        Verdict { least_wait: Some(seconds(3_600)), ..Verdict::of(Cause::AckTimeout) },
    ];
    for verdict in own_waits {
        let mut queue = broken(100);
        let until = at(33);
        let throttled = exchange(&mut queue, until, &verdict, 1);
        assert_eq!(throttled.len(), 1, "a probe goes");
        let mut sent = Vec::new();
        for second in 0..60 {
            sent.extend(exchange(&mut queue, until + seconds(second), &OK, 1_000));
        }
        assert_eq!(queue.standing(until + seconds(60), LANE), Standing::Closed);
        assert!(sent.len() > 10 && !sent.contains(&throttled[0]), "{verdict:?}: {sent:?}");
    }
}

#[test]
fn a_failed_probe_opens_the_breaker_for_longer() {
    let mut queue = broken(100);
    let first = why(&queue, NOW, 11).until.expect("it is open");
    assert_eq!(exchange(&mut queue, first, &REFUSED, 10).len(), 1);
    let second = why(&queue, first, 11).until.expect("it is open again");
    assert!(second.since(first) > first.since(NOW), "{first} then {second}");
    assert!(second.since(first) <= seconds(60));
}

#[test]
fn fresh_messages_do_not_queue_behind_a_backlog() {
    let mut queue = broken(200);
    let closed = at(100);
    exchange(&mut queue, closed, &OK, 3);
    assert_eq!(queue.standing(closed, LANE), Standing::Closed);
    for id in 1_001..=1_020 {
        queue.seen(closed, DeliveryId::from_raw(id));
        let fresh = Delivery { born: closed, state: State::Queued { due: closed }, ..delivery(id) };
        assert_eq!(queue.admit(closed, fresh, Place::Ready), Admission::Taken);
    }
    let mut sent = Vec::new();
    for tenth in 1..100 {
        sent.extend(exchange(&mut queue, closed + Duration::from_millis(tenth * 100), &OK, 1_000));
    }
    let last_fresh = sent.iter().rposition(|id| *id > 1_000).expect("they were sent");
    let old = sent[..last_fresh].iter().filter(|id| **id < 1_000).count();
    assert!((4..=7).contains(&old), "four of five are fresh where both wait: {sent:?}");
    let fresh: Vec<u64> = sent.iter().copied().filter(|id| *id > 1_000).collect();
    assert!(fresh.is_sorted(), "first in, first out among the fresh");
    let old: Vec<u64> = sent.iter().copied().filter(|id| *id < 1_000).collect();
    assert!(old.is_sorted(), "and among the backlog: {old:?}");
}

#[test]
fn rows_behind_the_window_are_paged_in_by_the_part_they_belong_to() {
    let mut queue = broken(0);
    for id in 11..=20 {
        queue.seen(at(5), DeliveryId::from_raw(id));
        queue.spilled(LANE, Tier::Promotional, DeliveryId::from_raw(id));
    }
    assert_eq!(queue.next_page(at(20)), None, "nothing is read for a lane that is held");
    for id in 21..=30 {
        queue.seen(at(80), DeliveryId::from_raw(id));
        queue.spilled(LANE, Tier::Promotional, DeliveryId::from_raw(id));
    }
    let closed = at(100);
    let probes = exchange(&mut queue, closed, &OK, 3);
    assert_eq!(probes, [1, 2, 3]);
    let old = queue.next_page(closed);
    let spans: Vec<Span> = std::iter::from_fn(|| queue.next_page(closed)).map(|wanted| wanted.span).collect();
    let all: Vec<Span> = old.map(|wanted| wanted.span).into_iter().chain(spans).collect();
    let holds = |id: u64| all.iter().position(|span| span.contains(DeliveryId::from_raw(id)));
    assert!(holds(25) < holds(15), "younger rows are read before the backlog: {all:?}");
    assert!(!all.iter().any(|span| span.contains(DeliveryId::from_raw(15)) && span.contains(DeliveryId::from_raw(25))));
}

#[test]
fn an_answer_from_before_the_breaker_opened_changes_nothing() {
    let mut queue = queue(Order::Fifo);
    for id in 1..=20 {
        admit(&mut queue, &delivery(id));
    }
    let late: Vec<u64> = (0..4).filter_map(|_| send(&mut queue, NOW)).collect();
    assert_eq!(late.len(), 4);
    settle(&mut queue, NOW, late[0], &REFUSED);
    assert_eq!(exchange(&mut queue, NOW, &REFUSED, 9).len(), 9);
    assert!(matches!(queue.standing(NOW, LANE), Standing::Open { .. }));
    for id in &late[1..] {
        settle(&mut queue, at(1), *id, &OK);
    }
    assert!(matches!(queue.standing(at(1), LANE), Standing::Open { .. }), "late successes do not close it");
}

#[test]
fn a_breaker_that_an_operator_resets_probes_first() {
    let mut queue = broken(50);
    let breakers = queue.breakers(NOW);
    assert_eq!(breakers.len(), 1);
    assert_eq!(breakers[0].of, BreakerOf::Lane(LANE));
    assert_eq!(breakers[0].opened.map(|why| why.to_string()), Some("10 failures in a row".to_owned()));
    assert!(queue.reset(at(1), BreakerOf::Lane(LANE), Reset::Probe));
    assert!(send(&mut queue, at(1)).is_some());
    assert_eq!(send(&mut queue, at(1)), None, "one probe at a time");
    assert!(queue.reset(at(1), BreakerOf::Lane(LANE), Reset::Force));
    assert_eq!(queue.standing(at(1), LANE), Standing::Closed);
    assert!(!queue.reset(at(1), BreakerOf::Lane(LANE), Reset::Force), "a closed one needs no reset");
    assert!(queue.recovery(at(1), LANE, 50).is_some_and(|recovery| recovery.drained_at.is_some()));
}

#[test]
fn an_open_breaker_is_half_open_after_a_restart() {
    let soft = broken(0).soft_breakers();
    assert_eq!(soft.len(), 1);
    let mut queue = Queue::new(Limits::default());
    queue.restore_breakers(NOW, &soft);
    set(&mut queue, settings(LANE, Order::Fifo));
    for id in 1..=20 {
        admit(&mut queue, &delivery(id));
    }
    assert_eq!(send(&mut queue, NOW), Some(1));
    assert_eq!(send(&mut queue, NOW), None, "never the full rate");
}

#[test]
fn a_reset_before_a_lane_s_settings_are_known_does_not_divide_a_strict_lane() {
    for order in [Order::Strict, Order::NewestFirst] {
        let soft = broken(0).soft_breakers();
        let mut queue = Queue::new(Limits::default());
        queue.restore_breakers(NOW, &soft);
        queue.seen(NOW, DeliveryId::from_raw(20));
        queue.spilled(LANE, Tier::Promotional, DeliveryId::from_raw(0));
        assert!(queue.reset(NOW, BreakerOf::Lane(LANE), Reset::Force));
        set(&mut queue, settings(LANE, order));
        let wanted = queue.next_page(NOW).expect("rows are behind the window");
        assert_eq!(wanted.span, Span::ALL, "{order:?}: the first of all rows, not of a part of them");
    }
}

#[test]
fn endpoints_of_one_host_stop_together_once_two_of_them_failed() {
    let mut queue = Queue::new(Limits::default());
    let lanes: Vec<LaneId> = (1..=3).map(LaneId::from_raw).collect();
    for lane in &lanes {
        set(
            &mut queue,
            LaneSettings { origin: Some(OriginId::of("https://example.com")), ..settings(*lane, Order::Fifo) },
        );
    }
    for id in 0..60 {
        admit(&mut queue, &delivery_in(lanes[usize::try_from(id % 2).expect("0 or 1")], id));
    }
    // Every other answer is good: no lane fails ten times in a row.
    let mut answered = 0;
    while let Some(id) = send(&mut queue, NOW) {
        answered += 1;
        let verdict = if answered % 2 == 0 && answered > 2 { OK } else { REFUSED };
        settle(&mut queue, NOW, id, &verdict);
    }
    assert!((20..=24).contains(&answered), "{answered}");
    let third = delivery_in(lanes[2], 1_000);
    assert_eq!(admit(&mut queue, &third), Admission::NoRoom, "the third lane has the same host");
    queue.spilled(lanes[2], third.tier, third.id);
    set(
        &mut queue,
        LaneSettings { origin: Some(OriginId::of("https://example.com")), ..settings(lanes[2], Order::Fifo) },
    );
    let Explained::Waits(hold) = queue.explain(NOW, DeliveryId::from_raw(1_000), lanes[2], State::Queued { due: NOW })
    else {
        panic!("it waits")
    };
    assert_eq!(hold.why, Why::BreakerOpen);
    let until = hold.until.expect("until a probe");
    assert!(send(&mut queue, until).is_some());
    assert_eq!(send(&mut queue, until), None, "one probe for all of them");
}

/// How many attempts a lane of one provider makes before the provider's breaker opens; `None` if it stays closed.
/// The deliveries go to this many endpoints in turn, and every fourth attempt fails.
fn attempts_before_region_opens(endpoints: u64) -> Option<u32> {
    let provider = RegionId::from_raw(9);
    let mut queue = Queue::new(Limits::default());
    let special = Special { region: Some(provider), ..Special::default() };
    set(&mut queue, LaneSettings { max_in_flight: 1, ..settings(LANE, Order::Fifo).with(special) });
    for (id, attempts) in (0..400).zip(1..) {
        admit(&mut queue, &Delivery { endpoint: EndpointId::from_raw(1 + id % endpoints), ..delivery(id) });
        let sent = send(&mut queue, NOW)?;
        settle(&mut queue, NOW, sent, if id % 4 == 0 { &REFUSED } else { &OK });
        if queue.breakers(NOW).iter().any(|breaker| breaker.of == BreakerOf::Shared(SharedGate::Region(provider))) {
            return Some(attempts);
        }
    }
    None
}

#[test]
fn region_breaker_counts_failing_endpoints_of_one_shared_lane() {
    // A region's share applies from 200 answers within the window on.
    assert_eq!(attempts_before_region_opens(20 * 4 + 1), Some(201));
    assert_eq!(attempts_before_region_opens(1), None, "one failing endpoint does not count against its provider");
}

#[test]
fn an_origin_breaker_follows_the_operator_s_share_volume_and_time() {
    let open_for = seconds(5);
    let origin = Rule { share_milli: 250, volume: 8, open_for, ..Rule::ORIGIN };
    let mut queue = Queue::new(Limits { origin, ..Limits::default() });
    let there = OriginId::of("https://example.com");
    for id in 0..40 {
        let lane = LaneId::from_raw(1 + id % 2);
        set(&mut queue, LaneSettings { origin: Some(there), ..settings(lane, Order::Fifo) });
        admit(&mut queue, &delivery_in(lane, id));
    }
    // The first of each lane fails, and every third one from then on.
    let mut answered = 0;
    while let Some(id) = send(&mut queue, NOW) {
        answered += 1;
        let verdict = if answered <= 2 || answered % 3 == 0 { REFUSED } else { OK };
        settle(&mut queue, NOW, id, &verdict);
    }
    assert!((8..=12).contains(&answered), "{answered}");
    let breakers = queue.breakers(NOW);
    let Standing::Open { until: Some(until), .. } = breakers[0].standing else { panic!("{breakers:?}") };
    assert_eq!((breakers.len(), breakers[0].of), (1, BreakerOf::Shared(SharedGate::Origin(there))), "{breakers:?}");
    let through = |origin: &str| queue.lanes_through(SharedGate::Origin(OriginId::of(origin)));
    let lanes: Vec<LaneId> = through("https://example.com").iter().map(|(lane, _)| *lane).collect();
    assert_eq!(lanes, [LaneId::from_raw(1), LaneId::from_raw(2)]);
    assert!(through("https://elsewhere.example.com").is_empty());
    let ends = NOW + open_for - open_for / 10..=NOW + open_for + open_for / 10;
    assert!(ends.contains(&until), "{until}");
}

#[test]
fn a_paused_origin_holds_all_its_lanes_until_the_pause_ends() {
    let mut queue = Queue::new(Limits::default());
    let (there, elsewhere) = (OriginId::of("https://example.com:443"), OriginId::of("https://example.com:8443"));
    for (lane, origin) in [(1, there), (2, there), (3, elsewhere)] {
        let lane = LaneId::from_raw(lane);
        set(&mut queue, LaneSettings { origin: Some(origin), ..settings(lane, Order::Fifo) });
        admit(&mut queue, &delivery_in(lane, lane.raw()));
    }
    let until = at(60);
    queue.pause_origin(there, Hold { why: Why::Paused, until: Some(until) });
    assert_eq!((send(&mut queue, NOW), send(&mut queue, NOW)), (Some(3), None), "the other origin is not held");
    let lane = LaneId::from_raw(1);
    let explained = queue.explain(NOW, DeliveryId::from_raw(1), lane, State::Queued { due: NOW });
    assert_eq!(explained, Explained::Waits(Hold { why: Why::Paused, until: Some(until) }));
    assert_eq!(queue.paused_by(lane, NOW), Some(PausedBy::Origin(there)));
    assert_eq!(queue.figures(NOW).paused_origins, 1);
    // An endpoint that is moved to another origin is no longer held.
    set(&mut queue, LaneSettings { origin: Some(elsewhere), version: 1, ..settings(lane, Order::Fifo) });
    assert_eq!((send(&mut queue, NOW), send(&mut queue, NOW)), (Some(1), None));
    assert_eq!(send(&mut queue, until), Some(2), "the pause has ended");
    assert_eq!((queue.paused_by(LaneId::from_raw(2), until), queue.figures(until).paused_origins), (None, 0));
}

#[test]
fn a_resumed_origin_is_sent_to_again() {
    let mut queue = queue(Order::Fifo);
    let there = OriginId::of("https://example.com:443");
    set(&mut queue, LaneSettings { origin: Some(there), ..settings(LANE, Order::Fifo) });
    admit(&mut queue, &delivery(1));
    queue.pause_origin(there, Hold { why: Why::Paused, until: None });
    assert_eq!(send(&mut queue, NOW), None);
    queue.resume_origin(there, at(1));
    assert_eq!(send(&mut queue, at(1)), Some(1));
}

#[test]
fn a_refused_credential_holds_all_its_lanes_until_it_is_replaced() {
    let mut queue = Queue::new(Limits::default());
    let credential = CredentialId::from_raw(9);
    for lane in 1..=2 {
        let lane = LaneId::from_raw(lane);
        set(
            &mut queue,
            settings(lane, Order::Fifo).with(Special { credential: Some(credential), ..Special::default() }),
        );
        admit(&mut queue, &delivery_in(lane, lane.raw()));
    }
    let first = send(&mut queue, NOW).expect("both may be sent");
    assert!(
        queue.settle(NOW, ROLL, DeliveryId::from_raw(first), &Verdict::of(Cause::CredentialRejected), false).is_none()
    );
    assert_eq!(send(&mut queue, at(86_400)), None, "no further attempt is made with it");
    assert_eq!(queue.breakers(at(1)).len(), 1);
    queue.replaced(at(86_400), credential);
    let mut sent = exchange(&mut queue, at(86_400), &OK, 10);
    sent.sort_unstable();
    assert_eq!(sent, [1, 2]);
}

#[test]
fn a_lane_keeps_its_rate_although_sends_are_put_back() {
    let mut queue = queue(Order::Fifo);
    set(
        &mut queue,
        settings(LANE, Order::Fifo).with(Special { rate: Some(Rate::per_second(10)), ..Special::default() }),
    );
    for id in 0..100 {
        admit(&mut queue, &delivery(id));
    }
    let mut times = Vec::new();
    let mut now = NOW;
    while now < at(5) {
        while let Some(id) = send(&mut queue, now) {
            if id % 3 == 0 && now.as_millis() % 2 == 0 {
                queue.put_back(now, DeliveryId::from_raw(id), now + Duration::from_millis(1));
                break;
            }
            times.push(now);
            settle(&mut queue, now, id, &OK);
        }
        now = now + Duration::from_millis(1);
    }
    assert!((45..=51).contains(&times.len()), "{}", times.len());
    let crowded = times.windows(11).any(|run| run[10].since(run[0]) < seconds(1));
    assert!(!crowded, "never more than ten in a second: {times:?}");
    assert_eq!(why(&queue, now, 99).why, Why::RateLimit);
}

#[test]
fn retry_after_of_credential_scope_holds_every_lane_of_the_credential() {
    let credential = CredentialId::from_raw(9);
    let mut queue = Queue::new(Limits::default());
    let settings_of = |lane: LaneId| {
        let special = Special { credential: Some(credential).filter(|_| lane.raw() < 3), ..Special::default() };
        settings(lane, Order::Fifo).with(special)
    };
    for lane in [1, 2, 3] {
        set(&mut queue, settings_of(LaneId::from_raw(lane)));
    }
    admit(&mut queue, &delivery_in(LaneId::from_raw(1), 10));
    let first = send(&mut queue, NOW).expect("nothing holds it");
    let asked = Verdict { scope: VerdictScope::Credential, ..asking(seconds(60)) };
    settle(&mut queue, NOW, first, &asked);
    let explained = |queue: &Queue, id, lane| {
        queue.explain(NOW, DeliveryId::from_raw(id), LaneId::from_raw(lane), State::Queued { due: NOW })
    };
    for lane in [1, 2] {
        let row = delivery_in(LaneId::from_raw(lane), 20 + lane);
        assert_eq!(admit(&mut queue, &row), Admission::NoRoom, "lane {lane} waits behind the credential");
        queue.spilled(row.lane, row.tier, row.id);
        set(&mut queue, settings_of(row.lane));
        let Explained::Waits(hold) = explained(&queue, 20 + lane, lane) else { panic!("it waits") };
        assert_eq!(hold.why, Why::Credential);
        assert!(hold.until.is_some_and(|until| until >= NOW + seconds(60)), "{hold:?}");
    }
    admit(&mut queue, &delivery_in(LaneId::from_raw(3), 30));
    assert_eq!(send(&mut queue, NOW), Some(30), "a lane without the credential is not held");
}

#[test]
fn later_retry_after_never_shortens_the_hold_of_a_credential() {
    let with_credential = Special { credential: Some(CredentialId::from_raw(9)), ..Special::default() };
    let asked = |wait| Verdict { scope: VerdictScope::Credential, ..asking(seconds(wait)) };
    let refused = Verdict::of(Cause::CredentialRejected);
    for (first, second) in [(refused, asked(5)), (asked(600), asked(5))] {
        let mut queue = Queue::new(Limits::default());
        set(&mut queue, settings(LANE, Order::Fifo).with(with_credential.clone()));
        for id in [1, 2] {
            admit(&mut queue, &delivery(id));
        }
        let flights = [send(&mut queue, NOW), send(&mut queue, NOW)].map(|sent| sent.expect("nothing holds them"));
        for (id, verdict) in flights.iter().zip([first, second]) {
            queue.settle(NOW, ROLL, DeliveryId::from_raw(*id), &verdict, false);
        }
        assert_eq!(send(&mut queue, at(300)), None, "{first:?} holds for longer than {second:?}");
    }
}

#[test]
fn restart_probes_after_a_credentials_retry_after_and_keeps_a_refused_credential_held() {
    let credential = CredentialId::from_raw(9);
    let with_credential = Special { credential: Some(credential), ..Special::default() };
    let asked = Verdict { scope: VerdictScope::Credential, ..asking(seconds(60)) };
    for (verdict, goes_on) in [(asked, true), (Verdict::of(Cause::CredentialRejected), false)] {
        let mut before = Queue::new(Limits::default());
        set(&mut before, settings(LANE, Order::Fifo).with(with_credential.clone()));
        admit(&mut before, &delivery(1));
        send(&mut before, NOW).expect("nothing holds it");
        before.settle(NOW, ROLL, DeliveryId::from_raw(1), &verdict, false);

        let mut after = Queue::new(Limits::default());
        after.restore_breakers(NOW, &before.soft_breakers());
        set(&mut after, settings(LANE, Order::Fifo).with(with_credential.clone()));
        admit(&mut after, &delivery(1));
        assert_eq!(send(&mut after, at(120)).is_some(), goes_on, "{verdict:?}");
    }
}

#[test]
fn a_token_given_back_late_is_lost() {
    let mut queue = queue(Order::Fifo);
    set(
        &mut queue,
        settings(LANE, Order::Fifo).with(Special { rate: Some(Rate::per_second(10)), ..Special::default() }),
    );
    for id in 0..10 {
        admit(&mut queue, &delivery(id));
    }
    let unsent = send(&mut queue, NOW).expect("the first may be sent");
    let later = NOW + Duration::from_millis(100);
    let sent = send(&mut queue, later).expect("a new token has come");
    queue.put_back(later, DeliveryId::from_raw(unsent), at(9));
    assert_eq!(send(&mut queue, later), None, "the new token is spent");
    settle(&mut queue, later, sent, &OK);
    assert!(send(&mut queue, later + Duration::from_millis(100)).is_some());
}

#[test]
fn an_overloaded_receiver_is_slowed_down_and_not_cut_off() {
    let mut queue = queue(Order::Fifo);
    for id in 0..400 {
        admit(&mut queue, &delivery(id));
    }
    let too_much = Verdict { status: Some(503), ..Verdict::of(Cause::Unavailable) };
    let first = exchange(&mut queue, NOW, &too_much, 100);
    assert!(first.len() <= 4, "{first:?}");
    let mut sent = 0;
    for ms in (0..5_000).step_by(10) {
        sent += exchange(&mut queue, NOW + Duration::from_millis(ms), &too_much, 100).len();
    }
    assert!((4..=20).contains(&sent), "{sent}");
    assert_eq!(queue.standing(at(5), LANE), Standing::Closed);
}

#[test]
fn retries_of_a_failing_destination_are_limited_and_fresh_messages_are_not() {
    let mut queue = queue(Order::Fifo);
    let policy = PolicySpec {
        strategy: Some("fixed".to_owned()),
        base: Some(seconds(1)),
        jitter: JitterSpec { kind: Some("none".to_owned()), share: None },
        ..PolicySpec::default()
    };
    let policy = Arc::new(Policy::build(&policy).expect("a valid policy"));
    set(&mut queue, LaneSettings { policy, ..settings(LANE, Order::Fifo) });
    let (mut firsts, mut retries, mut id) = (0, 0, 0);
    for second in 0..60 {
        for _ in 0..10 {
            id += 1;
            let fresh = Delivery { born: at(second), state: State::Queued { due: at(second) }, ..delivery(id) };
            assert_eq!(queue.admit(at(second), fresh, Place::Ready), Admission::Taken);
        }
        let mut good = false;
        while let Some(Pick::Send(start)) = queue.next(at(second), ROLL) {
            if start.attempt == 1 {
                firsts += 1;
            } else {
                retries += 1;
            }
            // Four of ten fail: too few to open a breaker.
            good = !good || start.delivery.raw() % 5 == 0;
            let verdict = if good { OK } else { REFUSED };
            settle(&mut queue, at(second), start.delivery.raw(), &verdict);
            queue.recorded(at(second), start.delivery);
        }
    }
    assert_eq!(queue.standing(at(60), LANE), Standing::Closed);
    assert_eq!(firsts, 600, "fresh messages are not held");
    assert!(retries <= 10 + 60 + firsts / 5, "{retries}");
    assert!(retries > 60, "postponed, not dropped: {retries}");
}

#[test]
fn only_engagement_messages_wait_for_the_off_peak_window() {
    let mut queue = queue(Order::Fifo);
    let midnight = Timestamp::from_millis(NOW.as_millis() / 86_400_000 * 86_400_000);
    let noon = midnight + seconds(12 * 3_600);
    let offsets = Arc::new(Offsets::fixed(0).expect("UTC is an offset"));
    let window = OffPeak::new(20 * 60, 7 * 60, offsets).expect("a window over midnight");
    set(&mut queue, settings(LANE, Order::Fifo).with(Special { off_peak: Some(window), ..Special::default() }));
    for (id, tier) in Tier::ALL.into_iter().enumerate() {
        let born = Delivery { tier, state: State::Queued { due: noon }, ..delivery(id as u64) };
        assert_eq!(queue.admit(noon, born, Place::Ready), Admission::Taken);
    }
    assert_eq!(exchange(&mut queue, noon, &OK, 10).len(), 2);
    let evening = midnight + seconds(20 * 3_600);
    assert_eq!(why(&queue, noon, 2), Hold { why: Why::OffPeak, until: Some(evening) });
    assert!(queue.wake_at().is_some_and(|wake| wake <= evening));
    assert_eq!(exchange(&mut queue, evening, &OK, 10), [2]);
}

#[test]
fn a_shared_rate_is_kept_over_all_its_lanes() {
    let mut queue = Queue::new(Limits::default());
    let origin = OriginId::of("https://push.example.com");
    queue.set_shared(NOW, SharedGate::Origin(origin), SharedSettings { rate: Some(Rate::per_second(5)), rule: None });
    for lane in 1..=4 {
        let lane = LaneId::from_raw(lane);
        set(&mut queue, LaneSettings { origin: Some(origin), ..settings(lane, Order::Fifo) });
        for id in 0..20 {
            admit(&mut queue, &delivery_in(lane, lane.raw() * 100 + id));
        }
    }
    let sent: usize = (0..4_000).map(|ms| exchange(&mut queue, NOW + Duration::from_millis(ms), &OK, 10).len()).sum();
    assert_eq!(sent, 20);
}

#[test]
fn a_healthy_destination_is_dropped_after_a_quiet_time() {
    let mut queue = queue(Order::Fifo);
    admit(&mut queue, &delivery(1));
    assert_eq!(exchange(&mut queue, NOW, &OK, 10), [1]);
    assert!(queue.knows_lane(LANE));
    let wake = queue.wake_at().expect("a timer checks it again");
    assert_eq!(send(&mut queue, wake), None);
    assert!(!queue.knows_lane(LANE) && queue.wake_at().is_none());
}

/// A queue with this many lanes, each with a host of its own, of this many tenants in turn, and this many messages in
/// each lane. Those of lane 3 have the ids from 300 on.
fn with_tenants(lanes: u64, tenants: u64, messages: u64) -> Queue {
    let mut queue = Queue::new(Limits::default());
    for number in 1..=lanes {
        let lane = LaneId::from_raw(number);
        let origin = Some(OriginId::of(&format!("https://host-{number}.example.com")));
        let tenant = TenantId::from_raw(1 + number % tenants);
        set(&mut queue, LaneSettings { origin, tenant, ..settings(lane, Order::Fifo) });
        for id in 0..messages {
            admit(&mut queue, &delivery_in(lane, number * 100 + id));
        }
    }
    queue
}

#[test]
fn a_resolver_that_fails_for_many_hosts_holds_every_lane() {
    let no_names = Verdict::of(Cause::DnsFailed);
    for tenants in [1, 2] {
        let mut queue = with_tenants(10, tenants, 6);
        let tried = exchange(&mut queue, NOW, &no_names, 100);
        assert_eq!(tried.len(), 20, "with {tenants} tenants");
        let lane = LaneId::from_raw(7);
        let held = queue.explain(at(1), DeliveryId::from_raw(705), lane, State::Queued { due: NOW });
        assert!(matches!(held, Explained::Waits(Hold { why: Why::BreakerOpen, until: Some(_) })), "{held:?}");
        assert!(exchange(&mut queue, at(26), &OK, 100).is_empty());
        // Probes show that the resolver works again, and every delivery is sent.
        let sent: usize = (27..240).map(|second| exchange(&mut queue, at(second), &OK, 100).len()).sum();
        assert_eq!(sent, 60);
    }
}

#[test]
fn broken_names_of_one_tenant_do_not_hold_the_others() {
    let no_names = Verdict::of(Cause::DnsFailed);
    // Lanes with an even number belong to the first tenant, whose names fail; the other tenant's names work.
    let mut queue = with_tenants(20, 2, 10);
    let mut well = 0;
    while let Some(id) = send(&mut queue, NOW) {
        let fails = (id / 100) % 2 == 0;
        well += usize::from(!fails);
        settle(&mut queue, NOW, id, if fails { &no_names } else { &OK });
        queue.recorded(NOW, DeliveryId::from_raw(id));
    }
    assert_eq!(well, 100);
}
