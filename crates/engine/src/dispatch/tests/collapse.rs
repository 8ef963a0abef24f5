//! A delivery whose place another one took, at every stage of its way.

use super::*;

const KEY: Option<CollapseKey> = Some(CollapseKey(9));

/// What has ended, and that its replacement went out once.
fn check(rig: &mut Rig, old: DeliveryId, sends: &[DeliveryId]) {
    rig.sleep_until(200_000_000);
    let new = DeliveryId(rig.message(100).0.plus(1));
    let sent: Vec<DeliveryId> = sends.iter().copied().chain([new]).collect();
    assert_eq!(rig.sent, sent);
    let ended = State::Cancelled { at: at(0), cause: Cause::Superseded };
    assert_eq!(rig.state(old, 200_000_000), ended);
    assert_eq!(rig.dispatch.refused_moves(), 0);
}

fn old(rig: &Rig) -> DeliveryId {
    DeliveryId(rig.message(1).0.plus(1))
}

#[test]
fn what_waits_in_the_window_makes_room_for_its_replacement() {
    let mut rig = Rig::new();
    rig.ask(1, 1, Command::Pause(EVERYTHING));
    rig.every_call(1);
    let arrived = rig.accept_under(KEY, 1, &fifo(7));
    rig.step(2, arrived);
    let replaced = rig.accept_under(KEY, 100, &fifo(7));
    rig.step(3, replaced);
    rig.ask(4, 2, Command::Resume(PauseScope::All, None));
    rig.every_call(4);
    let old = old(&rig);
    check(&mut rig, old, &[]);
}

#[test]
fn what_is_in_flight_is_spared_and_not_tried_again() {
    for cause in [Cause::Unavailable, Cause::Ok, Cause::StoreUnavailable] {
        let mut rig = Rig::new();
        let arrived = rig.accept_under(KEY, 1, &fifo(7));
        rig.step(1, arrived);
        let replaced = rig.accept_under(KEY, 100, &fifo(7));
        rig.step(2, replaced);
        let old = old(&rig);
        rig.step(3, finished(old, cause));
        rig.every_call(3);
        check(&mut rig, old, &[old]);
    }
}

#[test]
fn a_retry_that_was_recorded_just_before_is_not_made() {
    let mut rig = Rig::new();
    let arrived = rig.accept_under(KEY, 1, &fifo(7));
    rig.step(1, arrived);
    let old = old(&rig);
    rig.step(2, finished(old, Cause::Unavailable));
    let call = rig.calls.pop_front().expect("the settle is under way");
    let reply = perform(&rig.store, rig.session, call).now_or_never().expect("memory answers at once");
    // The settle has taken effect; its answer comes after the replacement.
    let replaced = rig.accept_under(KEY, 100, &fifo(7));
    rig.step(3, replaced);
    rig.step(4, Event::Replied(reply.expect("this session owns the store")));
    rig.every_call(4);
    check(&mut rig, old, &[old]);
}

#[test]
fn a_page_from_before_does_not_bring_it_back() {
    let mut rig = Rig::new();
    let strict = lane(Order::Strict, OnDead::Skip);
    rig.ask(1, 1, Command::Pause(EVERYTHING));
    rig.every_call(1);
    let arrived = rig.accept_under(KEY, 1, &strict);
    rig.step(2, arrived);
    rig.ask(3, 2, Command::Resume(PauseScope::All, None));
    rig.first_call(3);
    let page = rig.calls.pop_front().expect("the head of the queue is asked for");
    let page = perform(&rig.store, rig.session, page).now_or_never().expect("memory answers at once");
    let replaced = rig.accept_under(KEY, 100, &strict);
    rig.step(4, replaced);
    rig.step(5, Event::Replied(page.expect("this session owns the store")));
    rig.every_call(5);
    let old = old(&rig);
    check(&mut rig, old, &[]);
}
