//! A tenant or subject is erased while the loop has its payloads in memory.

use super::*;

#[test]
fn erased_payloads_leave_memory_and_late_arrivals_are_read_first() {
    let mut rig = DispatchRig::new();
    let lane = lane(Order::Fifo, OnDead::Skip);
    let other =
        Arc::new(LaneSettings { tenant: TenantId::from_raw(77), lane: LaneId::from_raw(78), ..(*lane).clone() });
    let (arrives, others, late) = (rig.accept(1, &lane), rig.accept(3, &other), rig.accept(5, &lane));
    rig.step(1, arrives);
    rig.step(1, others);
    let [first, theirs, second, third] = [1, 3, 5, 7].map(|seq| rig.delivery(seq));
    assert!(rig.dispatch.inline_payloads.contains_key(&first));
    rig.ask(2, 2, Command::Erased(lane.tenant, None));
    let in_flight = vec![rig.message(1), rig.message(3)];
    assert_eq!(rig.answered, [(Ticket(2), CommandReply::InFlight(in_flight))], "those of every tenant");
    assert!(!rig.dispatch.inline_payloads.contains_key(&first));
    rig.step(3, late);
    assert!(!rig.dispatch.inline_payloads.contains_key(&second), "it may have been erased on its way");
    assert!(rig.dispatch.inline_payloads.contains_key(&theirs), "another tenant's payload stays in memory");
    let new = rig.accept(7, &lane);
    rig.step(61_000, new);
    assert!(rig.dispatch.inline_payloads.contains_key(&third), "a minute later everything has arrived");
}

#[test]
fn attempt_without_a_payload_is_cancelled_as_erased_and_not_counted() {
    let mut rig = DispatchRig::new();
    let arrives = rig.accept(1, &lane(Order::Fifo, OnDead::Skip));
    let id = rig.delivery(1);
    rig.step(1, arrives);
    assert_eq!(rig.sent, [id]);
    rig.ask(2, 1, Command::Erased(TenantId::from_raw(77), None));
    assert_eq!(rig.answered, [(Ticket(1), CommandReply::InFlight(vec![rig.message(1)]))]);
    rig.ask(2, 2, Command::UnderWay);
    assert_eq!(rig.answered.last(), Some(&(Ticket(2), CommandReply::UnderWay(vec![id]))));
    rig.step(3, finished(id, Cause::Erased));
    rig.every_call(3);
    assert_eq!(rig.state(id, 4), State::Cancelled { at: at(3), cause: Cause::Erased });
    let shown = rig.store.lock().delivery(id, at(4)).expect("it is known");
    assert_eq!((shown.attempts, shown.delivery.attempts), (Vec::new(), 0));
    assert_eq!(rig.dispatch.scheduler.refused_moves(), 0);
}
