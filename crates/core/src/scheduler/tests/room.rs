//! Tests of evicting deliveries from a full window: which ones, and how often the lanes are searched.

use super::*;

#[test]
fn only_deliveries_of_held_lanes_are_evicted() {
    let mut queue = with_limits(Order::Fifo, Limits { window: 8, ..Limits::default() });
    let held = LaneId::from_raw(8);
    set(&mut queue, settings(held, Order::Fifo));
    for id in 0..4 {
        admit(&mut queue, &delivery(id));
        admit(&mut queue, &Delivery { lane: held, ..delivery(10 + id) });
    }
    assert_eq!(queue.evict(NOW), [], "nothing is held");
    queue.pause_lane(held, Hold { why: Why::Paused, until: None });
    let evicted: Vec<u64> = queue.evict(NOW).iter().map(|evicted| evicted.delivery.raw()).collect();
    assert_eq!(evicted, [10, 11, 12, 13]);
    assert_eq!(queue.len(), 4);
    assert!((0..4).all(|id| queue.knows(DeliveryId::from_raw(id))), "deliveries that can be sent stay");
    assert_eq!(queue.evict(NOW), [], "there is room now");
}

/// A window full of deliveries that can be sent, with one delivery of another lane.
fn nearly_full() -> (Scheduler, LaneId) {
    let mut queue = with_limits(Order::Fifo, Limits { window: 8, ..Limits::default() });
    let other = LaneId::from_raw(8);
    set(&mut queue, settings(other, Order::Fifo));
    (0..7).for_each(|id| assert_eq!(admit(&mut queue, &delivery(id)), Admission::Taken));
    admit(&mut queue, &Delivery { lane: other, ..delivery(10) });
    (queue, other)
}

#[test]
fn a_search_that_frees_too_little_room_is_not_repeated_within_a_second() {
    let (mut queue, other) = nearly_full();
    assert_eq!(queue.evict(NOW), []);
    assert_eq!(queue.wake_at(), Some(NOW + seconds(1)), "a timer repeats the search");
    // A hold that is set past the scheduler's methods, so that it does not trigger a search.
    let index = queue.lanes.ensure(other);
    queue.lanes[index].holds_mut().paused = Some(Hold { why: Why::Paused, until: None });
    assert_eq!(queue.evict(NOW + Duration::from_millis(999)), []);
    assert_eq!(queue.evict(NOW + seconds(1)).len(), 1);
}

#[test]
fn a_new_hold_triggers_a_search_at_once() {
    let holds: [fn(&mut Scheduler, LaneId, Hold); 4] = [
        |queue, _, hold| queue.pause_all(hold),
        |queue, _, hold| queue.pause_tenant(TenantId::from_raw(0), hold),
        |queue, lane, hold| queue.pause_lane(lane, hold),
        |queue, lane, hold| queue.hold(lane, hold),
    ];
    for hold in holds {
        let (mut queue, other) = nearly_full();
        assert_eq!(queue.evict(NOW), [], "nothing is held");
        hold(&mut queue, other, Hold { why: Why::Paused, until: None });
        assert_ne!(queue.evict(NOW), []);
    }
}

#[test]
fn a_search_in_the_future_does_not_delay_the_next_one() {
    let (mut queue, other) = nearly_full();
    assert_eq!(queue.evict(NOW + seconds(3_600)), []);
    let index = queue.lanes.ensure(other);
    queue.lanes[index].holds_mut().paused = Some(Hold { why: Why::Paused, until: None });
    assert_eq!(queue.evict(NOW).len(), 1);
}
