//! Interleavings of events and store calls that once went wrong, step by step over a store in memory.

use posthaste_core::flow::breaker::{BreakerState, OpenReason, Soft};
use posthaste_core::scheduler::{BreakerOf, BreakerShown, OnDead, Order, Reset, SoftBreaker};
use posthaste_core::{Class, Hold, LaneSettings, Policy, State, TenantId, Why};
use posthaste_store::{CollapseKey, MemoryStore, Retention, RetentionStep};

use rig::DispatchRig;

use super::*;

mod collapse;
mod erased;
mod lane_settings;
mod rig;
mod token;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(1_000_000 + ms)
}

fn since_start(at: Timestamp) -> i64 {
    at.as_millis() - 1_000_000
}

fn lane(order: Order, on_dead: OnDead) -> Arc<LaneSettings> {
    Arc::new(LaneSettings { order, on_dead, ..settings(7) })
}

fn fifo(n: u64) -> Arc<LaneSettings> {
    Arc::new(settings(n))
}

fn settings(lane: u64) -> LaneSettings {
    let (lane, tenant) = (LaneId::from_raw(lane), TenantId::from_raw(1));
    LaneSettings { max_in_flight: 10, ..LaneSettings::new(lane, tenant, Arc::new(Policy::default())) }
}

fn finished(delivery: DeliveryId, cause: Cause) -> Event {
    let verdict = Verdict::of(cause);
    Event::Finished(vec![Finished { delivery, verdict, took: Duration::ZERO, excerpt: None }])
}

const EVERYTHING: Pause = Pause::new(PauseScope::All, None);

#[test]
fn a_resume_under_way_does_not_undo_a_later_pause() {
    let mut rig = DispatchRig::new();
    rig.ask_and_wait(1, 1, Command::Pause(EVERYTHING));
    rig.ask(2, 2, Command::Resume(PauseScope::All, None));
    rig.ask(3, 3, Command::Pause(EVERYTHING));
    rig.every_call(4);
    assert_eq!(rig.answered.last(), Some(&(Ticket(3), CommandReply::Done)), "the pause is in force");
    rig.send(1, &lane(Order::Fifo, OnDead::Skip));
    assert_eq!(rig.sent, [], "nothing is sent while paused");
}

#[test]
fn delivery_ended_by_retention_is_not_sent_when_its_pause_ends() {
    let mut rig = DispatchRig::new();
    rig.ask_and_wait(1, 1, Command::Pause(EVERYTHING));
    rig.send(1, &fifo(7));
    let (retention, start) = (Retention::default(), RetentionStep::START);
    let later = at(2) + retention.history;
    let retained =
        rig.store.lock().retain(rig.session, retention, later, start, &[]).expect("this session owns the store");
    assert_eq!(retained.given_up.len(), 1);
    rig.ask(2, 2, Command::GivenUp(retained.given_up));
    rig.ask(3, 3, Command::Resume(PauseScope::All, None));
    rig.every_call(4);
    assert_eq!(rig.sent, []);
}

#[test]
fn a_resume_under_way_does_not_undo_a_strict_lane_s_hold() {
    let mut rig = DispatchRig::new();
    let lane = lane(Order::Strict, OnDead::Hold);
    rig.send(1, &lane);
    rig.send(10, &lane);
    rig.every_call(1);
    let scope = PauseScope::Lane(lane.lane);
    rig.ask_and_wait(2, 1, Command::Pause(Pause::new(scope, None)));
    rig.ask(3, 2, Command::Resume(scope, None));
    let head = rig.sent[0];
    rig.step(4, finished(head, Cause::NotFound));
    rig.every_call(5);
    assert_eq!(rig.sent, [head], "the lane stops behind its dead head");
}

#[test]
fn disabled_receiver_gets_nothing_until_it_is_enabled() {
    let mut rig = DispatchRig::new();
    let lane = fifo(7);
    rig.send(1, &lane);
    let first = rig.sent[0];
    rig.step(2, finished(first, Cause::DisableAsked));
    rig.every_call(3);
    rig.send(10, &lane);
    assert_eq!(rig.sent, [first], "the next one waits");
    rig.ask(4, 1, Command::Paused(vec![lane.lane]));
    let hold = Hold { why: Why::EndpointDisabled, until: None };
    assert_eq!(
        rig.answered.last(),
        Some(&(Ticket(1), CommandReply::Paused(vec![Some(LanePaused { hold, said: None })])))
    );
    rig.ask(5, 2, Command::Resume(PauseScope::Lane(lane.lane), None));
    rig.every_call(6);
    assert_eq!(rig.sent.len(), 2);
}

#[test]
fn resume_reaches_the_store_after_the_outcome_that_paused_its_lane() {
    let mut rig = DispatchRig::new();
    let lane = lane(Order::Strict, OnDead::Hold);
    rig.send(1, &lane);
    rig.send(10, &lane);
    rig.every_call(1);
    let (head, scope) = (rig.sent[0], PauseScope::Lane(lane.lane));
    rig.step(2, finished(head, Cause::NotFound));
    rig.ask(3, 1, Command::Resume(scope, None));
    rig.ask(3, 2, Command::Pause(Pause::new(scope, None)));
    rig.ask(3, 3, Command::Resume(scope, None));
    // The store may take calls that are under way at once in any order.
    rig.calls.make_contiguous().reverse();
    rig.every_call(4);
    assert_eq!(rig.answered, [1, 2, 3].map(|ticket| (Ticket(ticket), CommandReply::Done)));
    assert_eq!(rig.sent.len(), 2, "the lane goes on");
    let mut rig = rig.restart(5);
    rig.ask(6, 4, Command::Pauses(0, 10));
    assert_eq!(rig.answered, [(Ticket(4), CommandReply::Pauses(Vec::new()))], "and after a restart nothing holds it");
}

#[test]
fn enable_waits_until_the_disabling_outcome_is_durable() {
    let mut rig = DispatchRig::new();
    let lane = fifo(7);
    rig.send(1, &lane);
    rig.ask(1, 1, Command::Recorded(lane.lane));
    assert_eq!(rig.answered, [(Ticket(1), CommandReply::Done)]);
    rig.step(2, finished(rig.sent[0], Cause::DisableAsked));
    rig.ask(3, 2, Command::Recorded(lane.lane));
    assert_eq!(rig.answered.len(), 1, "it is not durable yet");
    rig.every_call(4);
    assert_eq!(rig.answered.last(), Some(&(Ticket(2), CommandReply::Done)));
}

#[test]
fn resume_under_way_does_not_enable_a_disabled_receiver() {
    let mut rig = DispatchRig::new();
    let lane = fifo(7);
    rig.send(1, &lane);
    let first = rig.sent[0];
    rig.ask(2, 1, Command::Resume(PauseScope::Lane(lane.lane), None));
    rig.step(3, finished(first, Cause::DisableAsked));
    rig.every_call(4);
    rig.send(10, &lane);
    assert_eq!(rig.sent, [first], "the next one waits");
}

#[test]
fn lane_settings_of_an_accept_do_not_replace_newer_ones() {
    let mut rig = DispatchRig::new();
    rig.send(1, &fifo(7));
    rig.send(10, &Arc::new(LaneSettings { version: 1, disabled: true, ..settings(7) }));
    rig.send(20, &fifo(7));
    assert_eq!(rig.sent.len(), 1, "it is disabled");
    rig.send(30, &Arc::new(LaneSettings { version: 2, ..settings(7) }));
    rig.every_call(40);
    assert_eq!(rig.sent.len(), 4, "and enabled");
    // The same for rules of the tenant that have changed.
    rig.send(50, &Arc::new(LaneSettings { version: 2, rules: 3, disabled: true, ..settings(7) }));
    rig.send(60, &Arc::new(LaneSettings { version: 2, rules: 2, ..settings(7) }));
    rig.every_call(70);
    assert_eq!(rig.sent.len(), 4, "older rules are not taken over");
}

#[test]
fn cancel_spares_deliveries_that_have_an_outcome() {
    let mut rig = DispatchRig::new();
    let lane = lane(Order::Fifo, OnDead::Skip);
    rig.send(1, &lane);
    rig.send(10, &lane);
    let (first, second) = (rig.sent[0], rig.sent[1]);
    rig.step(2, finished(first, Cause::Ok)); // its settle is under way
    rig.step(3, finished(second, Cause::Ok)); // waits behind it
    rig.ask(4, 1, Command::Cancel(rig.message(10), None));
    rig.first_call(5); // the first one's settle
    rig.first_call(6); // the cut
    assert!(!rig.state(second, 6).is_terminal(), "a reader does not see an end that will change");
    rig.every_call(7);
    assert!(matches!(rig.state(second, 7), State::Delivered { .. }));
}

#[test]
fn an_arrival_that_comes_after_its_cancel_was_swept_is_not_sent() {
    let mut rig = DispatchRig::new();
    let late = rig.accept(1, &lane(Order::Fifo, OnDead::Skip));
    rig.ask(1, 1, Command::Cancel(rig.message(1), None));
    rig.every_call(2);
    for ms in [1_100, 2_200, 3_300] {
        rig.step(ms, Event::Woke);
        rig.every_call(ms);
    }
    rig.step(3_400, late);
    rig.every_call(3_401);
    assert_eq!(rig.sent, [], "its cancel was answered");
}

fn end_lane(lane: LaneId) -> Command {
    let (upto, cause) = (Key::MAX, Cause::Unsubscribed);
    Command::EndLane(EndLane { lane, upto, cause, endpoint: None }, None)
}

#[test]
fn arrival_after_its_row_was_swept_is_not_sent_once_the_cut_is_deleted() {
    let mut rig = DispatchRig::new();
    let lane = lane(Order::Fifo, OnDead::Skip);
    let late = rig.accept(1, &lane);
    rig.ask(1, 1, end_lane(lane.lane));
    rig.every_call(2);
    let scope = PauseScope::Lane(lane.lane);
    rig.ask_and_wait(3, 2, Command::Pause(Pause::new(scope, None)));
    rig.step(4, late);
    for minute in 10..20 {
        rig.step(minute * 60_000, Event::Woke);
        rig.every_call(minute * 60_000);
    }
    assert_eq!(rig.store.lock().open(at(0)).cuts, [], "the cut is forgotten");
    rig.step(1_200_000, Event::Replied(StoreReply::Resumed(scope, rig.dispatch.pauses.number(scope), Ticket(3))));
    assert_eq!(rig.sent, [], "its row has ended");
}

#[test]
fn arrivals_at_a_gone_endpoint_are_not_sent() {
    let mut rig = DispatchRig::new();
    let lane = lane(Order::Fifo, OnDead::Skip);
    rig.send(1, &lane);
    let late = rig.accept(10, &lane);
    rig.step(2, finished(rig.sent[0], Cause::Gone));
    rig.step(3, late);
    rig.every_call(4);
    assert_eq!(rig.sent.len(), 1, "it was durable before the 410 and arrived after it");
    rig.send_at(5, 20, &lane);
    rig.every_call(6);
    assert_eq!(rig.sent.len(), 1, "a message that was accepted before the 410 was known");
    for seq in [10, 20] {
        let id = rig.delivery(seq);
        assert!(matches!(rig.state(id, 7), State::Dead { cause: Cause::EndpointGone, .. }), "message {seq}");
    }
}

#[test]
fn answer_410_after_a_restart_ends_rows_that_were_not_read_yet() {
    let mut rig = DispatchRig::new();
    let lane = lane(Order::Strict, OnDead::Skip);
    for seq in [1, 10] {
        rig.send(seq, &lane);
    }
    let mut rig = rig.restart(10);
    let head = rig.sent[0];
    rig.step(11, finished(head, Cause::Gone));
    rig.every_call(12);
    assert_eq!(rig.sent, [head], "the second one is behind the window, and ended with the first");
}

#[test]
fn shutdown_sets_no_timer_for_work_it_will_not_do() {
    let mut rig = DispatchRig::new();
    let lane = lane(Order::Fifo, OnDead::Skip);
    rig.send(1, &lane);
    rig.send(10, &lane);
    rig.step(2, finished(rig.sent[0], Cause::Unavailable));
    rig.every_call(2);
    rig.step(3, Event::Drain);
    rig.step(60_000, Event::Woke);
    rig.every_call(60_000);
    assert_eq!(rig.dispatch.wake_at(), None, "only the attempt under way is waited for");
    rig.step(60_001, finished(rig.sent[1], Cause::Ok));
    rig.every_call(60_002);
    assert!(rig.dispatch.is_drained());
}

#[test]
fn fault_of_this_server_spends_no_attempt_and_writes_nothing() {
    let mut rig = DispatchRig::new();
    rig.send(1, &lane(Order::Fifo, OnDead::Skip));
    let id = rig.sent[0];
    assert_eq!(Cause::StoreUnavailable.class(), Class::Ours);
    rig.step(2, finished(id, Cause::StoreUnavailable));
    assert!(rig.calls.is_empty(), "nothing is recorded");
    let wake = rig.dispatch.wake_at().expect("it is taken up again");
    rig.step(wake.as_millis() - 1_000_000, Event::Woke);
    assert_eq!(rig.sent, [id, id]);
    assert_eq!(rig.store.lock().delivery(id, wake).expect("it is pending").delivery.attempts, 0);
}

#[test]
fn receipt_is_recorded_when_its_delivery_settles_while_its_row_is_read() {
    let mut before = DispatchRig::new();
    before.accept_as(1, &lane(Order::Fifo, OnDead::Skip), Some(Duration::from_secs(300)), None);
    let id = before.delivery(1);
    let mut rig = before.restart_unread(10);
    rig.ask(11, 1, Command::Receipt(id));
    let read = rig.calls.pop_back().expect("the row is read for the receipt");
    assert!(matches!(read, StoreCall::Page(posthaste_store::Query::One(_), ..)));
    rig.every_call(12);
    assert_eq!(rig.sent, [id], "an attempt before the restart was not recorded, so it is made again");
    rig.step(13, finished(id, Cause::Ok));
    rig.first_call(14);
    assert!(!rig.dispatch.scheduler.knows(id), "it awaits its receipt outside the window");
    assert_eq!(rig.answered, [], "nothing is recorded of the receipt");
    rig.calls.push_front(read);
    rig.first_call(15);
    assert_eq!(rig.answered, [], "that row is older than the attempt");
    rig.every_call(16);
    assert!(matches!(rig.state(id, 16), State::Delivered { .. }));
    assert_eq!(rig.answered, [(Ticket(1), CommandReply::Done)]);
}

#[test]
fn breaker_open_before_a_restart_sends_one_probe_first() {
    let mut rig = DispatchRig::new();
    let lane = fifo(7);
    rig.break_lane(10, 10, &lane);
    rig.sleep_until(6_000);
    let mut rig = rig.restart(7_000);
    assert!(matches!(rig.dispatch.scheduler.standing(at(7_000), lane.lane), BreakerState::HalfOpen { .. }));
    for seq in [10, 20, 30, 40, 50] {
        rig.send_at(7_001, seq, &lane);
    }
    for probe in 0..3 {
        assert_eq!(rig.sent.len(), probe + 1, "one goes at a time");
        rig.step(7_002, finished(rig.sent[probe], Cause::Ok));
    }
    assert_eq!(rig.dispatch.scheduler.standing(at(7_002), lane.lane), BreakerState::Closed);
}

#[test]
fn closed_breakers_cause_no_write_and_no_timer() {
    let mut rig = DispatchRig::new();
    let lane = fifo(7);
    rig.sleep_until(1_000_000);
    let before = rig.dispatch.wake_at();
    for (seq, cause) in [(10, Cause::Ok), (20, Cause::NotFound), (30, Cause::Ok)] {
        rig.send_at(1_000_001, seq, &lane);
        let sent = *rig.sent.last().expect("the lane is well");
        rig.step(1_000_002, finished(sent, cause));
        rig.every_call(1_000_002);
    }
    assert_eq!(rig.dispatch.wake_at(), before);
    rig.sleep_until(2_000_000);
    assert_eq!(rig.remembered, Vec::<Vec<SoftBreaker>>::new());
}

#[test]
fn changed_breakers_are_stored_every_five_seconds_in_one_write_at_a_time() {
    let mut rig = DispatchRig::new();
    let written = |rig: &DispatchRig| {
        rig.remembered.iter().map(|set| set.iter().map(|one| one.of).collect()).collect::<Vec<Vec<_>>>()
    };
    let [first, second] = [7, 8].map(|n| BreakerOf::Lane(LaneId::from_raw(n)));
    rig.break_lane(1_000, 10, &fifo(7));
    rig.every_call(1_000);
    assert_eq!(rig.remembered, Vec::<Vec<SoftBreaker>>::new(), "they were looked at when the first attempt failed");
    assert_eq!(rig.dispatch.wake_at(), Some(at(6_000)));
    rig.step(6_000, Event::Woke);
    assert_eq!(written(&rig), [vec![first]]);
    // The write is slow.
    rig.break_lane(7_000, 1_000, &fifo(8));
    rig.step(11_000, Event::Woke);
    assert_eq!(written(&rig).len(), 1, "one is under way");
    rig.every_call(11_001);
    assert_eq!(written(&rig), [vec![first], vec![first, second]]);
    rig.sleep_until(25_000);
    assert_eq!(written(&rig).len(), 2, "nothing has changed since");
    assert_eq!(rig.left_behind(), [first, second]);
}

#[test]
fn shutdown_ends_once_changed_breakers_are_stored() {
    let mut rig = DispatchRig::new();
    rig.send_at(1_000, 10, &fifo(9));
    rig.break_lane(1_001, 1_000, &fifo(7));
    rig.every_call(1_001);
    rig.step(1_002, Event::Drain);
    rig.step(1_003, finished(rig.sent[0], Cause::Ok));
    rig.first_call(1_004);
    assert!(!rig.dispatch.is_drained(), "the breakers are being remembered");
    rig.every_call(1_005);
    assert!(rig.dispatch.is_drained());
    assert_eq!(rig.left_behind(), [BreakerOf::Lane(LaneId::from_raw(7))]);
}

#[test]
fn stored_breaker_of_a_missing_lane_is_removed_in_the_end() {
    let store = MemoryStore::default();
    let session = store.lock().open(at(0)).session;
    let soft = Soft { since: at(0), hold: Duration::from_secs(30) };
    let breaker = SoftBreaker { of: BreakerOf::Lane(LaneId::from_raw(7)), soft };
    store.lock().remember(session, &[breaker]).expect("this session owns the store");
    let mut rig = DispatchRig::over(store, 1_000);
    rig.sleep_until(3_000_000);
    assert_eq!(rig.remembered.len(), 0, "it may still be needed");
    rig.sleep_until(4_000_000);
    assert_eq!(rig.remembered, [vec![]]);
    assert_eq!(rig.left_behind(), []);
}

#[test]
fn breaker_is_listed_with_its_reason_and_reset_by_probe_or_force() {
    let mut rig = DispatchRig::new();
    let lane = fifo(7);
    let of = BreakerOf::Lane(lane.lane);
    let shown = |rig: &DispatchRig| match &rig.answered.last().expect("it was asked").1 {
        CommandReply::Breakers(shown) => shown.clone(),
        other => panic!("{other:?}"),
    };
    rig.ask(1, 1, Command::Breakers);
    assert_eq!(shown(&rig), []);
    rig.ask(1, 2, Command::Reset(of, Reset::Force, None));
    assert_eq!(rig.answered.last(), Some(&(Ticket(2), CommandReply::Nothing)), "it is closed");

    rig.break_lane(10, 10, &lane);
    for seq in [1_000, 1_010] {
        rig.send_at(11, seq, &lane);
    }
    rig.every_call(11);
    let before = rig.sent.len();
    rig.ask(12, 3, Command::Breakers);
    let [BreakerShown { standing: BreakerState::Open { since, .. }, opened, .. }] = shown(&rig)[..] else {
        panic!("it is open")
    };
    assert_eq!((since, opened), (at(10), Some(OpenReason::InARow(10))));

    rig.ask(13, 4, Command::Reset(of, Reset::Probe, None));
    assert_eq!(rig.answered.last().map(|(ticket, _)| *ticket), Some(Ticket(3)), "the journal has it first");
    rig.every_call(13);
    assert_eq!(rig.answered.last(), Some(&(Ticket(4), CommandReply::Done)));
    assert_eq!(rig.sent.len(), before + 1, "a probe goes before the end of the hold, alone");
    rig.ask(14, 5, Command::Reset(of, Reset::Force, None));
    assert_eq!(rig.dispatch.scheduler.standing(at(14), lane.lane), BreakerState::Closed);
    rig.ask(15, 6, Command::Breakers);
    assert_eq!(shown(&rig), []);
}

#[test]
fn retries_over_the_limit_are_refused() {
    let mut rig = DispatchRig::new();
    let hurry = |n| Command::Hurry(DeliveryId(Key::new(rig.session.writer, n)));
    let commands: Vec<Command> = (1..=4_097).map(hurry).collect();
    for (ticket, command) in (0..).zip(&commands) {
        rig.ask(1, ticket, command.clone());
    }
    rig.ask(1, 9_999, commands[0].clone());
    let answers: Vec<&CommandReply> = rig.answered.iter().map(|(_, answer)| answer).collect();
    assert!(answers[..4_096].iter().all(|answer| **answer == CommandReply::Done));
    assert_eq!(
        (answers[4_096], answers[4_097]),
        (&CommandReply::Nothing, &CommandReply::Done),
        "one too many, and a repetition"
    );
}
