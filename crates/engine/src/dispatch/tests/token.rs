//! Rows that Posthaste did not write.

use posthaste_store::Token;

use super::*;

/// Answers the first page with all of its rows rejected, as if another program had written them.
fn forge(rig: &mut DispatchRig, ms: i64) {
    let StoreReply::Paged(query, as_of, mut page) = rig.perform_first() else {
        panic!("the first call reads a page");
    };
    page.rows.iter_mut().for_each(|row| row.token = Token::Rejected);
    rig.step(ms, Event::Replied(StoreReply::Paged(query, as_of, page)));
}

#[test]
fn forged_row_ends_as_dead_and_is_never_sent() {
    let mut before = DispatchRig::new();
    before.accept_as(1, &lane(Order::Fifo, OnDead::Skip), None, None);
    let id = before.delivery(1);
    let mut rig = before.restart_unread(10);
    forge(&mut rig, 11);
    rig.every_call(12);
    assert_eq!(rig.sent, []);
    assert_eq!(rig.state(id, 13), State::Dead { at: at(11), cause: Cause::TokenRejected });
    assert!(!rig.dispatch.scheduler.knows(id));
    assert_eq!(rig.dispatch.scheduler.refused_moves(), 0);
}

#[test]
fn receipt_for_a_forged_row_is_answered_with_nothing() {
    let mut before = DispatchRig::new();
    before.accept_as(1, &lane(Order::Fifo, OnDead::Skip), Some(Duration::from_secs(300)), None);
    let id = before.delivery(1);
    let mut rig = before.restart(5);
    rig.step(6, finished(id, Cause::Ok));
    rig.every_call(7);
    assert!(matches!(rig.state(id, 8), State::AwaitingAck { .. }));
    rig.ask(11, 1, Command::Receipt(id));
    forge(&mut rig, 12);
    rig.every_call(13);
    assert_eq!(rig.answered, [(Ticket(1), CommandReply::Nothing)]);
    assert_eq!(rig.state(id, 13), State::Dead { at: at(12), cause: Cause::TokenRejected });
}
