//! Tests of fair scheduling through the scheduler's interface: slow destinations, and the lowest tier's slots.

use std::collections::VecDeque;

use super::*;

fn know(queue: &mut Scheduler, lane: u64) {
    let settings = settings(LaneId::from_raw(lane), Order::Fifo);
    queue.set_lane(NOW, &Arc::new(LaneSettings { tenant: TenantId::from_raw(lane), ..settings }));
}

fn arrive(queue: &mut Scheduler, lane: u64, nth: u64) {
    let delivery = delivery_in(LaneId::from_raw(lane), lane * 1_000 + nth);
    assert_eq!(admit(queue, &delivery), Admission::Taken);
}

fn lane_of(id: u64) -> usize {
    usize::try_from(id / 1_000).expect("a few lanes")
}

/// Sends every delivery that can be sent now.
fn send_all(queue: &mut Scheduler, now: Timestamp) -> Vec<u64> {
    std::iter::from_fn(|| send(queue, now)).collect()
}

/// When the lanes of [`with_slow`] are known to be slow.
const KNOWN: Timestamp = Timestamp::from_millis(1_002_000);

/// A scheduler of ten slots with this many lanes, each of a tenant of its own, whose first attempt took two seconds;
/// `waiting` more deliveries wait in each.
fn with_slow(lanes: u64, waiting: u64) -> Scheduler {
    let mut queue = Scheduler::new(Limits { slots: 10, ..Limits::default() });
    for lane in 1..=lanes {
        know(&mut queue, lane);
        arrive(&mut queue, lane, 0);
    }
    for id in send_all(&mut queue, NOW) {
        finish(&mut queue, KNOWN, id, &OK);
    }
    (1..=lanes).for_each(|lane| (1..=waiting).for_each(|nth| arrive(&mut queue, lane, nth)));
    queue
}

fn waits_for_slow_ones(queue: &Scheduler, now: Timestamp, id: u64) -> bool {
    let lane = LaneId::from_raw(id / 1_000);
    let hold = Hold { why: Why::Concurrency, until: None };
    queue.explain(now, DeliveryId::from_raw(id), lane, State::Queued { due: NOW }) == Explained::Waits(hold)
}

#[test]
fn a_tenth_of_the_slots_is_reserved_for_quick_destinations() {
    let mut queue = with_slow(10, 3);
    assert_eq!(send_all(&mut queue, KNOWN).len(), 9);
    assert!(waits_for_slow_ones(&queue, KNOWN, 10_003));
    know(&mut queue, 20);
    arrive(&mut queue, 20, 0);
    assert_eq!(send_all(&mut queue, KNOWN), [20_000], "a new destination is not slow");
}

#[test]
fn slow_lanes_take_turns_as_their_attempts_end() {
    let mut queue = with_slow(10, 20);
    let mut under_way: VecDeque<u64> = send_all(&mut queue, KNOWN).into();
    let mut sent = [0; 11];
    for landing in 1..=100 {
        let now = KNOWN + seconds(2 * landing);
        let landed = under_way.pop_front().expect("nine are under way");
        finish(&mut queue, now, landed, &OK);
        for id in send_all(&mut queue, now) {
            sent[lane_of(id)] += 1;
            under_way.push_back(id);
        }
    }
    assert!(sent[1..].iter().all(|sent| (9..=11).contains(sent)), "ten each: {sent:?}");
}

#[test]
fn a_lane_that_becomes_slow_while_it_waits_is_skipped_like_other_slow_lanes() {
    let mut queue = with_slow(9, 1);
    let slow = send_all(&mut queue, KNOWN);
    assert_eq!(slow.len(), 9);
    know(&mut queue, 20);
    (0..3).for_each(|nth| arrive(&mut queue, 20, nth));
    assert_eq!(send_all(&mut queue, KNOWN), [20_000], "the last slot");

    let later = KNOWN + seconds(2);
    finish(&mut queue, later, 20_000, &OK);
    assert_eq!(send_all(&mut queue, later), [], "the free slot is reserved for quick destinations");
    assert!(waits_for_slow_ones(&queue, later, 20_001));
    finish(&mut queue, later, slow[0], &OK);
    assert_eq!(send_all(&mut queue, later), [20_001]);
}

#[test]
fn the_lowest_tier_has_a_reserved_slot_only_from_twenty_slots_on() {
    for (slots, first) in [(1, Tier::Transactional), (19, Tier::Transactional), (20, Tier::Engagement)] {
        let mut queue = with_limits(Order::Fifo, Limits { slots, ..Limits::default() });
        for tier in Tier::ALL {
            admit(&mut queue, &Delivery { tier, ..delivery(tier.index() as u64) });
        }
        assert_eq!(send(&mut queue, NOW), Some(first.index() as u64), "{slots} slots");
    }
}
