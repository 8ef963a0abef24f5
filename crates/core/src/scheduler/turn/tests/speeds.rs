//! Tests of quick and slow destinations: which lanes are skipped, which take turns, and that none saves up credit.

use super::*;

/// A tenant with slow lanes that wait in [`TIER`].
fn with_slow_lanes(turn: &mut Turns, tenant: u64, lanes: u32) -> u32 {
    let index = turn.tenant(id(tenant), NOW);
    let first = u32::try_from(tenant).expect("a few tenants") * 100 + 50;
    (first..first + lanes).for_each(|lane| turn.join(TIER, index, lane, Speed::Slow, NOW));
    index
}

fn speed_of(lane: u32) -> Speed {
    if lane % 100 >= 50 { Speed::Slow } else { Speed::Quick }
}

/// Makes one attempt that ends at once; its lane waits again.
fn exchange(turn: &mut Turns, room: Room) -> Option<TakenTurn> {
    let taken = turn.take(room, NOW)?;
    let took = if speed_of(taken.lane) == Speed::Slow { seconds(10) } else { USUAL };
    turn.sent(taken, took, NOW);
    turn.landed(taken, took, took);
    turn.join(taken.tier, taken.tenant, taken.lane, speed_of(taken.lane), NOW);
    Some(taken)
}

/// Slow destinations may use a slot only once after every 200 quick attempts.
fn crowded(turn: &mut Turns, rounds: usize) -> Vec<TakenTurn> {
    let mut sent = Vec::new();
    for _ in 0..rounds {
        sent.extend((0..200).filter_map(|_| exchange(turn, NO_SLOW)));
        sent.extend(exchange(turn, FREE));
    }
    sent
}

#[test]
fn slow_lanes_are_skipped_while_they_may_use_no_slot() {
    let mut turn = Turns::default();
    let slow = with_slow_lanes(&mut turn, 1, 3);
    assert_eq!(turn.take(NO_SLOW, NOW), None, "only slow lanes wait");
    let quick = with_lanes(&mut turn, 2, 1);
    let sent: Vec<TakenTurn> = (0..50).filter_map(|_| exchange(&mut turn, NO_SLOW)).collect();
    assert_eq!((count_of_tenant(&sent, slow), count_of_tenant(&sent, quick)), (0, 50));
    assert_eq!(take(&mut turn).tenant, slow, "with a slot for slow ones, the tenant with less slot-time is next");
}

#[test]
fn tenants_with_slow_lanes_take_turns_with_any_number_of_lanes() {
    let mut turn = Turns::default();
    let tenants = [(1, 40), (2, 1), (3, 7)].map(|(tenant, lanes)| with_slow_lanes(&mut turn, tenant, lanes));
    with_lanes(&mut turn, 4, 5);
    let sent = crowded(&mut turn, 300);
    assert_eq!(tenants.map(|tenant| count_of_tenant(&sent, tenant)), [100, 100, 100]);
}

#[test]
fn slow_tenants_get_the_same_slot_time_as_quick_ones_and_save_nothing_up_while_they_are_skipped() {
    let mut turn = Turns::default();
    let (slow, quick) = (with_slow_lanes(&mut turn, 1, 3), with_lanes(&mut turn, 2, 3));
    let sent: Vec<TakenTurn> = (0..1_010).filter_map(|_| exchange(&mut turn, FREE)).collect();
    assert!(count_of_tenant(&sent, slow).abs_diff(10) <= 1, "{}", count_of_tenant(&sent, slow));
    assert!(count_of_tenant(&sent, quick).abs_diff(1_000) <= 1, "{}", count_of_tenant(&sent, quick));

    (0..10_000).for_each(|_| assert!(exchange(&mut turn, NO_SLOW).is_some()));
    let sent: Vec<TakenTurn> = (0..202).filter_map(|_| exchange(&mut turn, FREE)).collect();
    assert!(count_of_tenant(&sent, slow).abs_diff(2) <= 1, "{}", count_of_tenant(&sent, slow));
    assert!(count_of_tenant(&sent, quick) >= 199);
}

#[test]
fn quick_and_slow_lanes_of_a_tenant_take_turns() {
    let mut turn = Turns::default();
    let tenant = turn.tenant(id(1), NOW);
    for (lane, speed) in [(1, Speed::Slow), (2, Speed::Quick), (3, Speed::Quick), (4, Speed::Slow)] {
        turn.join(TIER, tenant, lane, speed, NOW);
    }
    let lanes: Vec<u32> = (0..4).map(|_| send(&mut turn, USUAL).lane).collect();
    assert_eq!(lanes, [1, 2, 3, 4]);
}

#[test]
fn a_tenants_quick_lanes_do_not_keep_its_slow_ones_waiting() {
    let mut turn = Turns::default();
    let both = with_lanes(&mut turn, 1, 5);
    with_slow_lanes(&mut turn, 1, 1);
    let slow = with_slow_lanes(&mut turn, 2, 1);
    let sent = crowded(&mut turn, 200);
    let slow_sent: Vec<TakenTurn> = sent.into_iter().filter(|taken| speed_of(taken.lane) == Speed::Slow).collect();
    assert_eq!([both, slow].map(|tenant| count_of_tenant(&slow_sent, tenant)), [100, 100]);
}

#[test]
fn a_new_tenant_starts_at_the_position_of_its_line() {
    let mut turn = Turns::default();
    let slow = [1, 2].map(|tenant| with_slow_lanes(&mut turn, tenant, 2));
    let quick = with_lanes(&mut turn, 3, 2);
    crowded(&mut turn, 100);
    let late = [with_slow_lanes(&mut turn, 4, 1), with_lanes(&mut turn, 5, 1)];
    let sent = crowded(&mut turn, 30);
    assert_eq!([slow[0], slow[1], late[0]].map(|tenant| count_of_tenant(&sent, tenant)), [10, 10, 10]);
    let (old, new) = (count_of_tenant(&sent, quick), count_of_tenant(&sent, late[1]));
    assert!(old.abs_diff(new) <= 1, "{old} and {new}");
}

#[test]
fn a_tier_saves_nothing_up_while_all_its_lanes_are_skipped() {
    let mut turn = Turns::default();
    let tenant = with_lanes(&mut turn, 1, 1);
    turn.join(Tier::Transactional, tenant, 50, Speed::Slow, NOW);
    (0..1_000).for_each(|_| assert_eq!(exchange(&mut turn, NO_SLOW).map(|taken| taken.tier), Some(TIER)));
    let sent: Vec<TakenTurn> = (0..100).filter_map(|_| exchange(&mut turn, FREE)).collect();
    assert!(by_tier(&sent)[0].abs_diff(80) <= 1, "by weight: {:?}", by_tier(&sent));
}

#[test]
fn a_lane_that_became_slow_keeps_the_time_it_has_waited() {
    let mut turn = Turns::default();
    let tenant = turn.tenant(id(1), NOW);
    let joins = [(50, Speed::Slow), (1, Speed::Quick), (51, Speed::Slow)];
    for (after, (lane, speed)) in (0..).zip(joins) {
        turn.join(TIER, tenant, lane, speed, NOW + seconds(after));
    }
    let taken = turn.take(NO_SLOW, NOW).expect("a quick one waits");
    assert_eq!((taken.lane, taken.open_to_slow), (1, false));
    turn.join_slow(taken);
    assert_eq!(turn.take(NO_SLOW, NOW), None, "it is not taken again as a quick one");
    let again: Vec<(u32, Timestamp)> = (0..3).map(|_| take(&mut turn)).map(|taken| (taken.lane, taken.since)).collect();
    assert_eq!(again, [(50, NOW), (1, NOW + seconds(1)), (51, NOW + seconds(2))]);
}

#[test]
fn the_order_of_waiting_survives_a_clock_set_back_and_a_counter_overflow() {
    let mut turn = Turns { joined: u32::MAX - 2, ..Turns::default() };
    let tenant = turn.tenant(id(1), NOW);
    for lane in 0..6 {
        let speed = if lane % 2 == 0 { Speed::Quick } else { Speed::Slow };
        turn.join(TIER, tenant, lane, speed, NOW - seconds(lane.into()));
    }
    let lanes: Vec<u32> = (0..6).map(|_| take(&mut turn).lane).collect();
    assert_eq!(lanes, [0, 1, 2, 3, 4, 5]);
}
