//! Lane settings that arrive late: older than a change, for a lane that has been dropped since.

use super::*;

fn version(version: u32, disabled: bool) -> Arc<LaneSettings> {
    Arc::new(LaneSettings { version, disabled, ..settings(LANE, Order::Fifo) })
}

#[test]
fn settings_of_an_older_version_or_older_rules_are_ignored_after_their_lane_was_dropped() {
    let ruled = |rules, disabled| Arc::new(LaneSettings { rules, ..(*version(1, disabled)).clone() });
    for settings in [&version as &dyn Fn(u32, bool) -> Arc<LaneSettings>, &ruled] {
        let mut queue = Scheduler::new(Limits::default());
        queue.tell_lane(NOW, &settings(1, true));
        queue.forget_idle_lane(LANE, NOW);
        assert!(!queue.knows_lane(LANE), "an idle lane is dropped");
        queue.set_lane(NOW, &settings(0, false));
        assert_eq!(queue.admit(NOW, delivery(1), RowIndex::Ready), Admission::Taken);
        assert!(queue.lacks_settings(LANE), "they must be read from the store");
        assert_eq!(queue.next(NOW, ROLL), None, "nothing is sent without settings");
        queue.tell_lane(NOW, &settings(0, false));
        assert!(queue.lacks_settings(LANE), "a read from before the change is as old");
        queue.tell_lane(NOW, &settings(1, true));
        assert_eq!(queue.next(NOW, ROLL), None, "it is disabled");
        queue.tell_lane(NOW, &settings(2, false));
        assert!(matches!(queue.next(NOW, ROLL), Some(Pick::Send(_))));
    }
}

#[test]
fn settings_with_older_rules_are_ignored_for_a_lane_not_in_memory() {
    let mut queue = Scheduler::new(Limits::default());
    let tenant = settings(LANE, Order::Fifo).tenant;
    let ruled = |rules| Arc::new(LaneSettings { rules, ..settings(LANE, Order::Fifo) });
    queue.tell_rules(NOW, Some(tenant), 2);
    queue.tell_rules(NOW, Some(TenantId::from_raw(tenant.raw() + 1)), 3);
    queue.set_lane(NOW, &ruled(1));
    assert_eq!(queue.admit(NOW, delivery(1), RowIndex::Ready), Admission::Taken);
    assert!(queue.lacks_settings(LANE), "they must be read from the store");
    queue.set_lane(NOW, &ruled(2));
    assert!(!queue.lacks_settings(LANE), "another tenant's changes do not count");
    queue.tell_rules(NOW, None, 4);
    let versions = &queue.lanes.versions;
    assert!(versions.are_older(&ruled(3)) && !versions.are_older(&ruled(4)), "changes for all tenants count");
    queue.tell_rules(NOW + seconds(300), None, 5);
    let versions = &queue.lanes.versions;
    assert!(!versions.are_older(&ruled(5)) && versions.are_older(&ruled(4)));
}

#[test]
fn a_version_is_kept_for_five_minutes() {
    let mut queue = Scheduler::new(Limits::default());
    for lane in 0..100 {
        let changed = LaneSettings { version: 1, ..settings(LaneId::from_raw(lane), Order::Fifo) };
        queue.tell_lane(NOW, &Arc::new(changed));
        let never_changed = settings(LaneId::from_raw(1_000 + lane), Order::Fifo);
        queue.tell_lane(NOW, &Arc::new(never_changed));
    }
    assert_eq!(queue.lanes.versions.len(), 100, "settings that never changed are not kept");
    queue.tell_lane(NOW + seconds(299), &version(3, false));
    assert_eq!(queue.lanes.versions.len(), 101);
    queue.tell_lane(NOW + seconds(300), &version(4, false));
    assert_eq!(queue.lanes.versions.len(), 2);
    queue.set_lane(NOW + seconds(300), &version(2, true));
    assert_eq!(queue.admit(NOW, delivery(1), RowIndex::Ready), Admission::Taken);
    assert!(matches!(queue.next(NOW + seconds(300), ROLL), Some(Pick::Send(_))), "the newest is in force");
}
