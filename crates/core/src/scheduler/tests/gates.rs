//! Tests of a destination's gates: breakers, recovery, limits, budgets, windows.

use super::*;
use crate::flow::bucket::Rate;
use crate::off_peak::{OffPeak, Offsets};

/// A scheduler whose lane's breaker has just opened, with this many more deliveries waiting.
fn broken(waiting: u64) -> Scheduler {
    let mut queue = queue(Order::Fifo);
    for id in 1..=10 + waiting {
        queue.seen(NOW, DeliveryId::from_raw(id));
        admit(&mut queue, &delivery(id));
    }
    assert_eq!(exchange(&mut queue, NOW, &REFUSED, 10).len(), 10);
    queue
}

fn why(queue: &Scheduler, now: Timestamp, id: u64) -> Hold {
    hold_of(queue, now, LANE, id)
}

/// Ten sends a second to [`LANE`].
fn ten_a_second() -> LaneSettings {
    settings(LANE, Order::Fifo).with(Special { rate: Some(Rate::per_second(10)), ..Special::default() })
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
    assert_eq!(queue.standing(until, LANE), BreakerState::Closed);
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
        assert_eq!(queue.standing(until + seconds(60), LANE), BreakerState::Closed);
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
    assert_eq!(queue.standing(closed, LANE), BreakerState::Closed);
    for id in 1_001..=1_020 {
        queue.seen(closed, DeliveryId::from_raw(id));
        let fresh = Delivery { born: closed, state: State::Queued { due: closed }, ..delivery(id) };
        assert_eq!(queue.admit(closed, fresh, RowIndex::Ready), Admission::Taken);
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
    let spill = |queue: &mut Scheduler, now, id| {
        queue.seen(now, DeliveryId::from_raw(id));
        queue.spilled(LANE, Tier::Promotional, DeliveryId::from_raw(id));
    };
    (11..=20).for_each(|id| spill(&mut queue, at(5), id));
    assert_eq!(queue.next_page(at(20)), None, "nothing is read for a lane that is held");
    (21..=30).for_each(|id| spill(&mut queue, at(80), id));
    let closed = at(100);
    let probes = exchange(&mut queue, closed, &OK, 3);
    assert_eq!(probes, [1, 2, 3]);
    let all: Vec<IdRange> = std::iter::from_fn(|| queue.next_page(closed)).map(|wanted| wanted.span).collect();
    let holds = |id: u64| all.iter().position(|span| span.contains(DeliveryId::from_raw(id)));
    assert!(holds(25) < holds(15), "younger rows are read before the backlog: {all:?}");
    assert!(!all.iter().any(|span| span.contains(DeliveryId::from_raw(15)) && span.contains(DeliveryId::from_raw(25))));
}

#[test]
fn an_answer_from_before_the_breaker_opened_changes_nothing() {
    let mut queue = queue(Order::Fifo);
    admit_all(&mut queue, 1..=20);
    let late: Vec<u64> = (0..4).filter_map(|_| send(&mut queue, NOW)).collect();
    assert_eq!(late.len(), 4);
    settle(&mut queue, NOW, late[0], &REFUSED);
    assert_eq!(exchange(&mut queue, NOW, &REFUSED, 9).len(), 9);
    assert!(matches!(queue.standing(NOW, LANE), BreakerState::Open { .. }));
    for id in &late[1..] {
        settle(&mut queue, at(1), *id, &OK);
    }
    assert!(matches!(queue.standing(at(1), LANE), BreakerState::Open { .. }), "late successes do not close it");
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
    assert_eq!(queue.standing(at(1), LANE), BreakerState::Closed);
    assert!(!queue.reset(at(1), BreakerOf::Lane(LANE), Reset::Force), "a closed one needs no reset");
    assert!(queue.recovery(at(1), LANE, 50).is_some_and(|recovery| recovery.drained_at.is_some()));
}

#[test]
fn an_open_breaker_is_half_open_after_a_restart() {
    let soft = broken(0).soft_breakers();
    assert_eq!(soft.len(), 1);
    let mut queue = Scheduler::new(Limits::default());
    queue.restore_breakers(NOW, &soft);
    set(&mut queue, settings(LANE, Order::Fifo));
    admit_all(&mut queue, 1..=20);
    assert_eq!(send(&mut queue, NOW), Some(1));
    assert_eq!(send(&mut queue, NOW), None, "never the full rate");
}

#[test]
fn a_reset_before_a_lane_s_settings_are_known_does_not_divide_a_strict_lane() {
    for order in [Order::Strict, Order::NewestFirst] {
        let soft = broken(0).soft_breakers();
        let mut queue = Scheduler::new(Limits::default());
        queue.restore_breakers(NOW, &soft);
        queue.seen(NOW, DeliveryId::from_raw(20));
        queue.spilled(LANE, Tier::Promotional, DeliveryId::from_raw(0));
        assert!(queue.reset(NOW, BreakerOf::Lane(LANE), Reset::Force));
        set(&mut queue, settings(LANE, order));
        let wanted = queue.next_page(NOW).expect("rows are behind the window");
        assert_eq!(wanted.span, IdRange::ALL, "{order:?}: the first of all rows, not of a part of them");
    }
}

#[test]
fn a_lane_keeps_its_rate_although_sends_are_put_back() {
    let mut queue = knowing([ten_a_second()]);
    admit_all(&mut queue, 0..100);
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
fn a_token_given_back_late_is_lost() {
    let mut queue = knowing([ten_a_second()]);
    admit_all(&mut queue, 0..10);
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
    admit_all(&mut queue, 0..400);
    let too_much = Verdict { status: Some(503), ..Verdict::of(Cause::Unavailable) };
    let first = exchange(&mut queue, NOW, &too_much, 100);
    assert!(first.len() <= 4, "{first:?}");
    let mut sent = 0;
    for ms in (0..5_000).step_by(10) {
        sent += exchange(&mut queue, NOW + Duration::from_millis(ms), &too_much, 100).len();
    }
    assert!((4..=20).contains(&sent), "{sent}");
    assert_eq!(queue.standing(at(5), LANE), BreakerState::Closed);
}

#[test]
fn retries_of_a_failing_destination_are_limited_and_fresh_messages_are_not() {
    let mut queue = queue(Order::Fifo);
    let policy = Arc::new(Policy::build(&PolicySpec::every(seconds(1))).expect("a valid policy"));
    set(&mut queue, LaneSettings { policy, ..settings(LANE, Order::Fifo) });
    let (mut firsts, mut retries, mut id) = (0, 0, 0);
    for second in 0..60 {
        for _ in 0..10 {
            id += 1;
            let fresh = Delivery { born: at(second), state: State::Queued { due: at(second) }, ..delivery(id) };
            assert_eq!(queue.admit(at(second), fresh, RowIndex::Ready), Admission::Taken);
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
            finish(&mut queue, at(second), start.delivery.raw(), &verdict);
        }
    }
    assert_eq!(queue.standing(at(60), LANE), BreakerState::Closed);
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
        assert_eq!(queue.admit(noon, born, RowIndex::Ready), Admission::Taken);
    }
    assert_eq!(exchange(&mut queue, noon, &OK, 10).len(), 2);
    let evening = midnight + seconds(20 * 3_600);
    assert_eq!(why(&queue, noon, 2), Hold { why: Why::OffPeak, until: Some(evening) });
    assert!(queue.wake_at().is_some_and(|wake| wake <= evening));
    assert_eq!(exchange(&mut queue, evening, &OK, 10), [2]);
}

#[test]
fn a_shared_rate_is_kept_over_all_its_lanes() {
    let mut queue = Scheduler::new(Limits::default());
    let origin = OriginId::of("https://push.example.com");
    queue.set_shared(NOW, SharedGate::Origin(origin), SharedSettings { rate: Some(Rate::per_second(5)), rule: None });
    for lane in 1..=4 {
        let lane = LaneId::from_raw(lane);
        set(&mut queue, at_origin(lane, origin));
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
