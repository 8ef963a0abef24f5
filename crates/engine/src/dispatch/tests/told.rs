//! An endpoint is changed while an accept is on its way that knew it before.

use super::*;

#[test]
fn an_accept_from_before_an_endpoint_was_disabled_does_not_enable_it_again() {
    let mut rig = Rig::new();
    let old = fifo(7);
    let id = DeliveryId(rig.message(1).0.plus(1));
    let arrives = rig.accept(1, &old);
    rig.store.lock().put_lane(Arc::new(LaneSettings { version: 1, disabled: true, ..(*old).clone() }));
    rig.ask(1, 1, Command::Lane(old.lane));
    rig.every_call(1);
    rig.step(2, arrives);
    rig.every_call(2);
    assert_eq!(rig.sent, [], "it is disabled, whatever the accept brought along");
    rig.store.lock().put_lane(Arc::new(LaneSettings { version: 2, ..(*old).clone() }));
    rig.ask(3, 2, Command::Lane(old.lane));
    rig.every_call(3);
    assert_eq!(rig.sent, [id]);
}

#[test]
fn an_accept_from_before_its_tenant_had_another_policy_does_not_bring_the_old_one_back() {
    let mut rig = Rig::new();
    let old = fifo(7);
    let arrives = rig.accept(1, &old);
    let policy = Arc::new(Policy::preset("backend").expect("a preset"));
    let new = Arc::new(LaneSettings { rules: 1, policy, ..(*old).clone() });
    rig.store.lock().put_lane(Arc::clone(&new));
    rig.ask(1, 1, Command::Rules(Some(old.tenant), 1));
    rig.every_call(1);
    rig.step(2, arrives);
    assert_eq!(rig.sent, [], "the lane is read first");
    let asked = rig.calls.front();
    assert!(matches!(asked, Some(Call::Lanes(_))), "{asked:?}");
    rig.every_call(2);
    assert_eq!(rig.sent.len(), 1);
}

#[test]
fn settings_that_were_read_before_a_change_are_read_again() {
    let mut rig = Rig::new();
    let old = fifo(7);
    let (first, second) = (rig.accept(1, &old), rig.accept(3, &old));
    rig.store.lock().put_lane(Arc::new(LaneSettings { version: 1, ..(*old).clone() }));
    rig.ask(1, 1, Command::Lane(old.lane));
    rig.every_call(1);
    // Asked for, and answered as of before the change.
    rig.step(2, first);
    let asked = rig.calls.pop_front();
    assert!(matches!(asked, Some(Call::Lanes(_))), "{asked:?}");
    rig.step(3, second);
    rig.step(4, Event::Replied(Reply::Lanes(vec![old.lane], vec![Arc::clone(&old)])));
    assert_eq!(rig.sent, []);
    rig.every_call(5);
    assert_eq!(rig.sent.len(), 2);
}
