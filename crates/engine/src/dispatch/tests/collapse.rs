//! A delivery is superseded by a newer one with the same collapse key, at every stage of its life.

use super::*;

const KEY: Option<CollapseKey> = Some(CollapseKey(9));

/// Checks that the old delivery has ended as superseded, and that its replacement was sent once.
fn check(rig: &mut DispatchRig, old: DeliveryId, sends: &[DeliveryId]) {
    rig.sleep_until(200_000_000);
    let new = rig.delivery(100);
    let sent: Vec<DeliveryId> = sends.iter().copied().chain([new]).collect();
    assert_eq!(rig.sent, sent);
    let ended = State::Cancelled { at: at(0), cause: Cause::Superseded };
    assert_eq!(rig.state(old, 200_000_000), ended);
    assert_eq!(rig.dispatch.scheduler.refused_moves(), 0);
}

#[test]
fn waiting_delivery_in_the_window_is_superseded() {
    let mut rig = DispatchRig::new();
    rig.ask_and_wait(1, 1, Command::Pause(EVERYTHING));
    rig.send_under(2, KEY, 1, &fifo(7));
    rig.send_under(3, KEY, 100, &fifo(7));
    rig.ask_and_wait(4, 2, Command::Resume(PauseScope::All, None));
    let old = rig.delivery(1);
    check(&mut rig, old, &[]);
}

#[test]
fn superseded_delivery_in_flight_is_not_retried() {
    for cause in [Cause::Unavailable, Cause::Ok, Cause::StoreUnavailable] {
        let mut rig = DispatchRig::new();
        rig.send_under(1, KEY, 1, &fifo(7));
        rig.send_under(2, KEY, 100, &fifo(7));
        let old = rig.delivery(1);
        rig.step(3, finished(old, cause));
        rig.every_call(3);
        check(&mut rig, old, &[old]);
    }
}

#[test]
fn recorded_retry_of_a_superseded_delivery_is_not_made() {
    let mut rig = DispatchRig::new();
    rig.send_under(1, KEY, 1, &fifo(7));
    let old = rig.delivery(1);
    rig.step(2, finished(old, Cause::Unavailable));
    let reply = rig.perform_first();
    // The settle has taken effect; its answer comes after the replacement.
    rig.send_under(3, KEY, 100, &fifo(7));
    rig.step(4, Event::Replied(reply));
    rig.every_call(4);
    check(&mut rig, old, &[old]);
}

#[test]
fn older_page_does_not_bring_back_a_superseded_delivery() {
    let mut rig = DispatchRig::new();
    let strict = lane(Order::Strict, OnDead::Skip);
    rig.ask_and_wait(1, 1, Command::Pause(EVERYTHING));
    rig.send_under(2, KEY, 1, &strict);
    rig.ask(3, 2, Command::Resume(PauseScope::All, None));
    rig.first_call(3);
    let page = rig.perform_first();
    rig.send_under(4, KEY, 100, &strict);
    rig.step(5, Event::Replied(page));
    rig.every_call(5);
    let old = rig.delivery(1);
    check(&mut rig, old, &[]);
}
