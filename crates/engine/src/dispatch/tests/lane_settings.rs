//! An endpoint is changed while an accept with its old settings is on its way to the loop.

use super::*;

#[test]
fn older_accept_does_not_enable_a_disabled_endpoint() {
    let mut rig = DispatchRig::new();
    let old = fifo(7);
    let id = rig.delivery(1);
    let arrives = rig.accept(1, &old);
    rig.store.lock().put_lane(Arc::new(LaneSettings { version: 1, disabled: true, ..(*old).clone() }));
    rig.ask_and_wait(1, 1, Command::Lane(old.lane));
    rig.step(2, arrives);
    rig.every_call(2);
    assert_eq!(rig.sent, [], "it is disabled: the settings of the accept are older");
    rig.store.lock().put_lane(Arc::new(LaneSettings { version: 2, ..(*old).clone() }));
    rig.ask_and_wait(3, 2, Command::Lane(old.lane));
    assert_eq!(rig.sent, [id]);
}

#[test]
fn older_accept_does_not_bring_back_an_old_policy() {
    let mut rig = DispatchRig::new();
    let old = fifo(7);
    let arrives = rig.accept(1, &old);
    let policy = Arc::new(Policy::preset("backend").expect("a preset"));
    let new = Arc::new(LaneSettings { rules: 1, policy, ..(*old).clone() });
    rig.store.lock().put_lane(Arc::clone(&new));
    rig.ask_and_wait(1, 1, Command::Rules(Some(old.tenant), 1));
    rig.step(2, arrives);
    assert_eq!(rig.sent, [], "the lane is read first");
    let call = rig.calls.front();
    assert!(matches!(call, Some(StoreCall::Lanes(_))), "{call:?}");
    rig.every_call(2);
    assert_eq!(rig.sent.len(), 1);
}

#[test]
fn lane_settings_read_before_a_change_are_read_again() {
    let mut rig = DispatchRig::new();
    let old = fifo(7);
    let (first, second) = (rig.accept(1, &old), rig.accept(3, &old));
    rig.store.lock().put_lane(Arc::new(LaneSettings { version: 1, ..(*old).clone() }));
    rig.ask_and_wait(1, 1, Command::Lane(old.lane));
    // The settings are read, and the answer is from before the change.
    rig.step(2, first);
    let call = rig.calls.pop_front();
    assert!(matches!(call, Some(StoreCall::Lanes(_))), "{call:?}");
    rig.step(3, second);
    rig.step(4, Event::Replied(StoreReply::Lanes(vec![old.lane], vec![Arc::clone(&old)])));
    assert_eq!(rig.sent, []);
    rig.every_call(5);
    assert_eq!(rig.sent.len(), 2);
}
