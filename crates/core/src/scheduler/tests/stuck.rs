//! No waiting delivery is forgotten: a held lane is always checked again, also if its gate, its settings or its budget
//! change meanwhile. Each test is a regression test of a way to wait for ever.

use super::*;

/// Wakes the scheduler whenever it asks for it, and settles every attempt with this verdict. Returns the deliveries
/// sent, and how often the scheduler was woken.
fn run(queue: &mut Scheduler, from: Timestamp, end: Timestamp, verdict: &Verdict) -> (Vec<u64>, usize) {
    let (mut sent, mut wakes, mut now) = (Vec::new(), 0, from);
    loop {
        sent.extend(exchange(queue, now, verdict, 100_000));
        match queue.wake_at() {
            Some(wake) if wake <= end => {
                now = now.max(wake);
                wakes += 1;
            }
            _ => return (sent, wakes),
        }
    }
}

fn every(wait: u64, attempts: Option<u64>) -> Arc<Policy> {
    let cap = Some(seconds(wait.max(60)));
    let spec = PolicySpec { cap, max_attempts: attempts, ..PolicySpec::every(seconds(wait)) };
    Arc::new(Policy::build(&spec).expect("a valid policy"))
}

/// Two lanes of one host, 60 deliveries, and answers that open the host's breaker and no lane's.
fn broken_host() -> (Scheduler, LaneSettings) {
    let third = at_origin(LaneId::from_raw(3), OriginId::of("https://example.com"));
    let mut queue = knowing((1..=3).map(|lane| LaneSettings { lane: LaneId::from_raw(lane), ..third.clone() }));
    for id in 0..60 {
        admit(&mut queue, &delivery_in(LaneId::from_raw(1 + id % 2), id));
    }
    answer_all(&mut queue, |nth, _| if nth % 2 == 0 && nth > 2 { OK } else { REFUSED });
    (queue, third)
}

/// A lane of which two of five attempts fail: too few for the breaker to open, enough for the retry budget to apply.
fn failing() -> Scheduler {
    let mut queue = queue(Order::Fifo);
    admit_all(&mut queue, 1..=200);
    answer_all(&mut queue, |nth, _| if nth % 5 < 2 { REFUSED } else { OK });
    assert_eq!((queue.standing(NOW, LANE), queue.len()), (BreakerState::Closed, 80));
    queue
}

#[test]
fn rows_behind_the_window_are_read_once_their_host_has_recovered() {
    let (mut queue, third) = broken_host();
    let row = delivery_in(third.lane, 1_000);
    assert_eq!(admit(&mut queue, &row), Admission::NoRoom);
    queue.spilled(row.lane, row.tier, row.id);
    set(&mut queue, third);
    assert_eq!(queue.next_page(NOW), None, "its host is held");
    run(&mut queue, NOW, at(7_200), &OK);
    assert!(queue.breakers(at(7_200)).is_empty());
    assert!(queue.next_page(at(7_200)).is_some());
}

#[test]
fn rows_behind_the_window_are_read_once_their_credential_is_replaced() {
    let mut queue = Scheduler::new(Limits::default());
    let (one, two) = (LaneId::from_raw(1), LaneId::from_raw(2));
    set(&mut queue, with_credential(one, CREDENTIAL));
    admit(&mut queue, &Delivery { lane: one, ..delivery(1) });
    assert_eq!(exchange(&mut queue, NOW, &REJECTED, 1), [1]);
    queue.spilled(two, Tier::Promotional, DeliveryId::from_raw(2));
    set(&mut queue, with_credential(two, CREDENTIAL));
    assert_eq!(queue.next_page(at(1)), None);
    queue.replaced(at(2), CREDENTIAL);
    assert_eq!(run(&mut queue, at(2), at(3_600), &OK).0, [1]);
    assert!(queue.next_page(at(3_600)).is_some());
}

#[test]
fn every_retry_over_the_budget_is_sent_in_the_end() {
    let mut queue = failing();
    let (sent, _) = run(&mut queue, at(2), at(86_400), &OK);
    assert_eq!((sent.len(), queue.len()), (80, 0));
}

#[test]
fn retries_over_the_budget_survive_a_change_of_order() {
    let mut queue = failing();
    exchange(&mut queue, at(3), &OK, 100);
    assert!(!queue.is_empty(), "some are postponed");
    queue.set_lane(at(3), &Arc::new(settings(LANE, Order::NewestFirst)));
    run(&mut queue, at(3), at(86_400), &OK);
    assert!(queue.is_empty());
}

#[test]
fn a_probe_is_counted_although_its_endpoint_moved_to_another_host() {
    let (mut queue, third) = broken_host();
    let probe = send(&mut queue, at(40)).expect("a probe");
    let elsewhere = Some(OriginId::of("https://elsewhere.example.com"));
    let moved = LaneSettings { lane: LaneId::from_raw(1 + probe % 2), origin: elsewhere, ..third };
    queue.set_lane(at(40), &Arc::new(moved));
    finish(&mut queue, at(41), probe, &OK);
    run(&mut queue, at(41), at(86_400), &OK);
    assert!(queue.is_empty(), "{:?}", queue.breakers(at(86_400)));
}

#[test]
fn retries_that_wait_do_not_keep_fresh_messages_out() {
    let mut queue = knowing([LaneSettings { policy: every(1_800, None), ..settings(LANE, Order::Fifo) }]);
    for id in 1..=2_000 {
        assert_eq!(admit(&mut queue, &delivery(id)), Admission::Taken, "{} in the window", queue.len());
        if let Some(sent) = send(&mut queue, NOW) {
            finish(&mut queue, NOW, sent, if id % 5 < 2 { &REFUSED } else { &OK });
        }
    }
}

#[test]
fn a_recovery_with_nothing_left_to_send_is_dropped_and_sets_no_timers() {
    let mut queue = knowing([LaneSettings { policy: every(2, Some(1)), ..settings(LANE, Order::Fifo) }]);
    admit_all(&mut queue, 1..=13);
    assert_eq!(exchange(&mut queue, NOW, &REFUSED, 10).len(), 10);
    let (sent, wakes) = run(&mut queue, NOW, at(86_400), &OK);
    assert_eq!((sent.len(), queue.len()), (3, 0));
    assert!(!queue.knows_lane(LANE) && wakes < 20, "{wakes} wakes in a day");
}

#[test]
fn a_credential_that_an_operator_resets_is_probed_and_sends_again() {
    let mut queue = Scheduler::new(Limits::default());
    for lane in (1..=2).map(LaneId::from_raw) {
        set(&mut queue, with_credential(lane, CREDENTIAL));
        for n in 0..5 {
            admit(&mut queue, &delivery_in(lane, lane.raw() * 10 + n));
        }
    }
    assert_eq!(exchange(&mut queue, NOW, &REJECTED, 1).len(), 1);
    assert!(queue.reset(at(1), BreakerOf::Shared(SharedGate::Credential(CREDENTIAL)), Reset::Probe));
    assert_eq!(run(&mut queue, at(1), at(86_400), &OK).0.len(), 10);
}

#[test]
fn a_late_refusal_does_not_hold_a_credential_that_was_replaced_since() {
    let mut queue = knowing([with_credential(LANE, CREDENTIAL)]);
    admit_all(&mut queue, 1..=5);
    let both = [send(&mut queue, NOW), send(&mut queue, NOW)].map(|id| DeliveryId::from_raw(id.expect("both are due")));
    queue.settle(at(1), ROLL, both[0], &REJECTED, false);
    queue.replaced(at(2), CREDENTIAL);
    queue.settle(at(3), ROLL, both[1], &REJECTED, false);
    assert_eq!(run(&mut queue, at(3), at(86_400), &OK).0.len(), 5);
}

#[test]
fn without_gates_a_refused_credential_still_holds_its_lane() {
    let mut queue = Scheduler::new(Limits { protection: Protection::Off, ..Limits::default() });
    set(&mut queue, with_credential(LANE, CREDENTIAL));
    admit(&mut queue, &delivery(1));
    assert_eq!(exchange(&mut queue, NOW, &REJECTED, 1_000).len(), 1);
}
