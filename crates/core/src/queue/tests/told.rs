//! Settings that come late: from before a change, for a lane that was forgotten since.

use super::*;

fn version(version: u32, disabled: bool) -> Arc<LaneSettings> {
    Arc::new(LaneSettings { version, disabled, ..settings(LANE, Order::Fifo) })
}

#[test]
fn settings_from_before_a_change_are_not_taken_over_though_their_lane_was_forgotten() {
    let mut queue = Queue::new(Limits::default());
    queue.tell_lane(NOW, &version(1, true));
    queue.forget_idle_lane(LANE, NOW);
    assert!(!queue.knows_lane(LANE), "there is nothing to do");
    queue.set_lane(NOW, &version(0, false));
    assert_eq!(queue.admit(NOW, delivery(1), Place::Ready), Admission::Taken);
    assert!(queue.lacks_settings(LANE), "they are asked for");
    assert_eq!(queue.next(NOW, ROLL), None, "nothing is sent on a guess");
    queue.tell_lane(NOW, &version(0, false));
    assert!(queue.lacks_settings(LANE), "what was read before the change is as old");
    queue.tell_lane(NOW, &version(1, true));
    assert_eq!(queue.next(NOW, ROLL), None, "it is disabled");
    queue.tell_lane(NOW, &version(2, false));
    assert!(matches!(queue.next(NOW, ROLL), Some(Pick::Send(_))));
}

#[test]
fn the_same_holds_for_rules_that_lanes_share() {
    let mut queue = Queue::new(Limits::default());
    let ruled = |rules, disabled| Arc::new(LaneSettings { rules, ..(*version(1, disabled)).clone() });
    queue.tell_lane(NOW, &ruled(2, true));
    queue.forget_idle_lane(LANE, NOW);
    queue.set_lane(NOW, &ruled(1, false));
    assert_eq!(queue.admit(NOW, delivery(1), Place::Ready), Admission::Taken);
    assert!(queue.lacks_settings(LANE), "they are asked for");
    queue.tell_lane(NOW, &ruled(2, false));
    assert!(matches!(queue.next(NOW, ROLL), Some(Pick::Send(_))));
}

#[test]
fn rules_that_changed_are_not_brought_back_to_a_lane_that_nobody_knew() {
    let mut queue = Queue::new(Limits::default());
    let tenant = settings(LANE, Order::Fifo).tenant;
    let ruled = |rules| Arc::new(LaneSettings { rules, ..settings(LANE, Order::Fifo) });
    queue.tell_rules(NOW, Some(tenant), 2);
    queue.tell_rules(NOW, Some(TenantId::from_raw(tenant.raw() + 1)), 3);
    queue.set_lane(NOW, &ruled(1));
    assert_eq!(queue.admit(NOW, delivery(1), Place::Ready), Admission::Taken);
    assert!(queue.lacks_settings(LANE), "they are asked for");
    queue.set_lane(NOW, &ruled(2));
    assert!(!queue.lacks_settings(LANE), "another tenant's changes are none of its");
    queue.tell_rules(NOW, None, 4);
    assert!(queue.told.are_older(&ruled(3)) && !queue.told.are_older(&ruled(4)), "everybody's are");
    queue.tell_rules(NOW + seconds(300), None, 5);
    assert!(!queue.told.are_older(&ruled(5)) && queue.told.are_older(&ruled(4)));
}

#[test]
fn a_version_is_remembered_until_everything_from_before_it_has_arrived() {
    let mut queue = Queue::new(Limits::default());
    for lane in 0..100 {
        let changed = LaneSettings { version: 1, ..settings(LaneId::from_raw(lane), Order::Fifo) };
        queue.tell_lane(NOW, &Arc::new(changed));
        let never_changed = settings(LaneId::from_raw(1_000 + lane), Order::Fifo);
        queue.tell_lane(NOW, &Arc::new(never_changed));
    }
    assert_eq!(queue.told.len(), 100, "nothing is older than what was never changed");
    queue.tell_lane(NOW + seconds(299), &version(3, false));
    assert_eq!(queue.told.len(), 101);
    queue.tell_lane(NOW + seconds(300), &version(4, false));
    assert_eq!(queue.told.len(), 2);
    queue.set_lane(NOW + seconds(300), &version(2, true));
    assert_eq!(queue.admit(NOW, delivery(1), Place::Ready), Admission::Taken);
    assert!(matches!(queue.next(NOW + seconds(300), ROLL), Some(Pick::Send(_))), "the newest is in force");
}
