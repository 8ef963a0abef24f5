//! The oracle must report violations: each test changes one thing in a good history.

use super::*;
use crate::history::{ApiCall, Crash};

const STRICT: usize = 1;

/// Two lanes, the second one strict, of different tenants; three attempts each; no clock jumps.
fn plan() -> RunPlan {
    let mut plan = RunPlan::small(1);
    let template = plan.lanes.remove(0);
    plan.lanes = [Order::Fifo, Order::Strict]
        .into_iter()
        .zip(1_u64..)
        .map(|(order, number)| {
            let mut lane = template.clone();
            let mut settings = posthaste_core::LaneSettings::clone(&lane.settings);
            settings.lane = posthaste_core::LaneId::from_raw(100 + number);
            settings.tenant = posthaste_core::TenantId::from_raw(number);
            settings.order = order;
            lane.settings = settings.into();
            lane.max_attempts = 3;
            lane.window = None;
            lane
        })
        .collect();
    plan
}

fn sent(message: u64, lane: u64, called_at: Ms) -> SentMessage {
    SentMessage {
        called_at,
        acked_at: Some(called_at + 10),
        message,
        deliveries: vec![SentDelivery { id: message * 10, lane, expires_at: None }],
        deliver_at: None,
        now_or_never: false,
        wants_receipt: false,
        tier: 1,
        collapse: None,
        subject: None,
    }
}

fn request(delivery: u64, lane: u64, left_at: Ms, attempt: u16, status: u16) -> SentRequest {
    SentRequest {
        left_at,
        stamped: left_at,
        delivery,
        lane,
        attempt,
        recorded: attempt - 1,
        answered_at: Some(left_at + 10),
        cause: "ok",
        status: Some(status),
        retry_after: None,
        asks_lane: true,
    }
}

fn delivered(delivery: u64, attempts: u16) -> Ending {
    Ending { delivery, state: "delivered", cause: "", attempts, numbers: (1..=attempts).collect() }
}

/// A history without violations. Delivery 10 took two attempts; 20 and 30 went to the strict lane, one after the other.
fn good() -> History {
    History {
        sent: vec![sent(1, 101, 1_000), sent(2, 102, 1_000), sent(3, 102, 2_000)],
        requests: vec![
            request(10, 101, 1_100, 1, 503),
            request(20, 102, 1_100, 1, 200),
            request(30, 102, 2_100, 1, 200),
            request(10, 101, 9_000, 2, 200),
        ],
        endings: vec![delivered(10, 2), delivered(20, 1), delivered(30, 1)],
        ..History::default()
    }
}

/// The promises that are broken after a change to the good history, without repetitions.
fn broken(tamper: impl FnOnce(&mut History)) -> Vec<&'static str> {
    let mut history = good();
    tamper(&mut history);
    let mut broken: Vec<&'static str> = judge(&plan(), &history).iter().map(|found| found.promise).collect();
    broken.dedup();
    broken
}

fn asked(what: What, at: Ms) -> ApiCall {
    ApiCall { what, called_at: at, answered_at: Some(at), done: true }
}

fn look(at: Ms, until: Ms) -> PendingSnapshot {
    PendingSnapshot {
        at,
        stamped: at,
        life: 1,
        delivery: 10,
        state: "retry",
        attempts: 1,
        why: "backoff",
        until: Some(until),
    }
}

#[test]
fn good_history_breaks_no_promise() {
    assert_eq!(broken(|_| ()), [""; 0]);
}

#[test]
fn missing_delivery_is_reported_as_lost() {
    assert_eq!(broken(|it| drop(it.endings.remove(2))), ["nothing accepted is lost"]);
    let missing = |it: &mut History| it.endings[2].state = "missing";
    assert_eq!(broken(missing), ["nothing accepted is lost"]);
}

#[test]
fn unacknowledged_message_may_be_missing() {
    let never_acked = |it: &mut History| {
        it.sent[2].acked_at = None;
        it.endings.remove(2);
    };
    assert_eq!(broken(never_acked), [""; 0]);
}

#[test]
fn pending_delivery_at_the_end_is_reported() {
    assert_eq!(broken(|it| it.endings[0].state = "retry"), ["everything ends"]);
}

#[test]
fn run_that_was_given_up_is_reported() {
    assert_eq!(broken(|it| it.gave_up_at = Some(99_000)), ["everything ends"]);
}

#[test]
fn refused_state_change_is_reported() {
    assert_eq!(broken(|it| it.refused_moves = 1), ["only moves of the table happen"]);
}

#[test]
fn end_without_a_reason_is_reported() {
    for state in ["dead", "expired", "cancelled"] {
        assert_eq!(broken(|it| it.endings[2].state = state), ["every end has its reason"], "{state}");
    }
    let delivered_without_a_2xx = |it: &mut History| it.requests[2].status = Some(500);
    assert_eq!(broken(delivered_without_a_2xx), ["every end has its reason"]);
}

#[test]
fn end_with_a_reason_is_accepted() {
    let refused = |it: &mut History| {
        it.requests[2].status = Some(404);
        it.endings[2].state = "dead";
    };
    assert_eq!(broken(refused), [""; 0]);
    let cancelled = |it: &mut History| {
        it.asked.push(asked(What::Cancel(3), 5_000));
        it.endings[2].state = "cancelled";
    };
    assert_eq!(broken(cancelled), [""; 0]);
}

#[test]
fn attempts_that_differ_from_wire_or_history_are_reported() {
    for attempts in [1, 3] {
        let miscounted = |it: &mut History| it.endings[0].attempts = attempts;
        assert_eq!(broken(miscounted), ["attempts are counted right"], "{attempts} instead of 2");
    }
    assert_eq!(broken(|it| it.endings[0].numbers = vec![1]), ["attempts are counted right"]);
    let left_out = ["attempts are counted right", "an attempt is on record before the next"];
    assert_eq!(broken(|it| it.requests[3].attempt = 3), left_out, "one is left out");
}

#[test]
fn attempt_above_the_policy_is_reported() {
    let four = |it: &mut History| {
        it.requests.push(request(10, 101, 20_000, 3, 503));
        it.requests.push(request(10, 101, 30_000, 4, 503));
        it.endings[0] = delivered(10, 4);
    };
    assert_eq!(broken(four), ["attempts stay within the policy"]);
}

#[test]
fn repeated_attempt_without_a_crash_is_reported() {
    let repeated = |it: &mut History| it.requests.push(request(30, 102, 3_000, 1, 200));
    assert_eq!(broken(repeated), ["duplicates ≤ in flight at a crash"]);
    let after_a_crash = |it: &mut History| {
        repeated(it);
        it.crashes.push(Crash { at: 2_105, unsettled: vec![30] });
    };
    assert_eq!(broken(after_a_crash), [""; 0]);
    let of_another = |it: &mut History| {
        repeated(it);
        it.crashes.push(Crash { at: 2_105, unsettled: vec![20] });
    };
    assert_eq!(broken(of_another), ["duplicates ≤ in flight at a crash"]);
}

#[test]
fn attempt_after_the_ttl_is_reported() {
    let over_at = |at: Ms| move |it: &mut History| it.sent[0].deliveries[0].expires_at = Some(at);
    assert_eq!(broken(over_at(9_000)), ["no attempt starts after the TTL"]);
    assert_eq!(broken(over_at(9_001)), [""; 0]);
}

#[test]
fn second_attempt_of_now_or_never_is_reported() {
    let now_or_never = |it: &mut History| {
        it.sent[0].now_or_never = true;
        it.sent[0].deliveries[0].expires_at = Some(8_000);
    };
    assert_eq!(broken(now_or_never), ["now or never is one attempt"]);
}

#[test]
fn attempt_before_deliver_at_is_reported() {
    assert_eq!(broken(|it| it.sent[0].deliver_at = Some(1_101)), ["nothing is sent before deliver_at"]);
    assert_eq!(broken(|it| it.sent[0].deliver_at = Some(1_100)), [""; 0]);
}

#[test]
fn request_during_a_pause_is_reported() {
    for (kind, id) in [(0, 0), (1, 1), (2, 101)] {
        let paused = |it: &mut History| it.asked.push(asked(What::Pause(kind, id), 8_000));
        assert_eq!(broken(paused), ["nothing is sent while paused"], "kind {kind}");
        let resumed = |it: &mut History| {
            paused(it);
            it.asked.push(asked(What::Resume(kind, id), 9_000));
        };
        assert_eq!(broken(resumed), [""; 0], "kind {kind}");
    }
    for (kind, id) in [(1, 2), (2, 102)] {
        let others = |it: &mut History| it.asked.push(asked(What::Pause(kind, id), 8_000));
        assert_eq!(broken(others), [""; 0], "kind {kind} of another id");
    }
}

#[test]
fn request_after_a_cut_is_reported() {
    for cut in [What::Cancel(1), What::EndLane(101, 10)] {
        let late = |it: &mut History| it.asked.push(asked(cut, 8_000));
        assert_eq!(broken(late), ["nothing is sent after a cut was answered"], "{cut:?}");
        let unanswered = |it: &mut History| it.asked.push(ApiCall { answered_at: None, ..asked(cut, 8_000) });
        assert_eq!(broken(unanswered), [""; 0], "{cut:?} was not answered");
    }
    assert_eq!(broken(|it| it.asked.push(asked(What::EndLane(101, 9), 8_000))), [""; 0], "born after the cut");
}

#[test]
fn request_after_an_erasure_is_reported() {
    const PROMISE: &str = "nothing is sent about an erased subject";
    let about = |it: &mut History| it.sent[0].subject = Some(7);
    let erased = |whom: Option<u64>, at: Ms| {
        move |it: &mut History| {
            about(it);
            it.asked.push(asked(What::Erase(whom), at));
        }
    };
    assert_eq!(broken(erased(Some(7), 8_000)), [PROMISE]);
    assert_eq!(broken(erased(None, 8_000)), [PROMISE], "the whole tenant was erased");
    assert_eq!(broken(erased(Some(8), 8_000)), [""; 0], "another subject was erased");
    assert_eq!(broken(erased(Some(7), 900)), [""; 0], "a message after the erasure is new");
    let gone = |it: &mut History| {
        erased(Some(7), 9_500)(it);
        it.endings[0].state = "missing";
    };
    assert_eq!(broken(gone), [""; 0], "it was erased after it had arrived");
    let others = |it: &mut History| {
        gone(it);
        it.endings[1].state = "missing";
    };
    assert_eq!(broken(others), ["nothing accepted is lost"], "a message about another subject is missing");
}

#[test]
fn erasure_that_does_not_report_messages_in_flight_is_reported() {
    let in_flight = |it: &mut History| {
        it.sent[0].subject = Some(7);
        it.asked.push(asked(What::Erase(Some(7)), 9_005));
    };
    assert_eq!(broken(in_flight), ["an erasure reports what may still arrive"]);
    let reported = |it: &mut History| {
        in_flight(it);
        it.in_flight.insert(9_005, 1);
    };
    assert_eq!(broken(reported), [""; 0]);
}

#[test]
fn request_to_an_endpoint_that_is_gone_is_reported() {
    const PROMISE: &str = "nothing is sent to an endpoint that is gone";
    let gone = |it: &mut History| it.requests[0].status = Some(410);
    assert_eq!(broken(gone), [PROMISE]);
    let crashed = |it: &mut History| {
        gone(it);
        it.crashes.push(Crash { at: 2_000, unsettled: vec![10] });
    };
    assert_eq!(broken(crashed), [""; 0], "the answer was lost in a crash");
    let later_message = |called_at: Ms| {
        move |it: &mut History| {
            it.requests[3].status = Some(410);
            it.endings[0] = Ending { state: "dead", cause: "endpoint_gone", ..delivered(10, 2) };
            it.sent.push(sent(4, 101, called_at));
            it.requests.push(request(40, 101, called_at + 20, 1, 200));
            it.endings.push(delivered(40, 1));
        }
    };
    assert_eq!(broken(later_message(9_020)), [PROMISE], "its producer may not know yet");
    assert_eq!(broken(later_message(609_020)), [""; 0], "the endpoint may exist again");
}

#[test]
fn retry_after_applies_to_the_delivery_and_its_lane() {
    let with_retry_after = |wait: Ms| move |it: &mut History| it.requests[0].retry_after = Some(wait);
    assert_eq!(broken(with_retry_after(8_000)), ["Retry-After is obeyed"]);
    assert_eq!(broken(with_retry_after(7_890)), [""; 0]);
    let by_a_lane_mate = |it: &mut History| {
        it.requests[0].retry_after = Some(7_000);
        it.sent.push(sent(4, 101, 1_500));
        it.requests.insert(3, request(40, 101, 5_000, 1, 200));
        it.endings.push(delivered(40, 1));
    };
    assert_eq!(broken(by_a_lane_mate), ["Retry-After is obeyed"]);
    let after_a_crash = |it: &mut History| {
        by_a_lane_mate(it);
        it.crashes.push(Crash { at: 4_000, unsettled: Vec::new() });
    };
    assert_eq!(broken(after_a_crash), [""; 0], "the lane's hold is lost in a crash");
    let not_of_the_lane = |it: &mut History| {
        by_a_lane_mate(it);
        it.requests[0].asks_lane = false;
    };
    assert_eq!(broken(not_of_the_lane), [""; 0], "the Retry-After was for one delivery alone");
    let nor_by_itself = |it: &mut History| {
        it.requests[0].retry_after = Some(8_000);
        it.requests[0].asks_lane = false;
    };
    assert_eq!(broken(nor_by_itself), ["Retry-After is obeyed"]);
}

#[test]
fn retry_after_of_a_delivery_survives_a_crash() {
    let crashed = |it: &mut History| {
        it.requests[0].retry_after = Some(8_000);
        it.crashes.push(Crash { at: 4_000, unsettled: Vec::new() });
    };
    assert_eq!(broken(crashed), ["Retry-After is obeyed"]);
}

#[test]
fn overtaking_in_a_strict_lane_is_reported() {
    let overtaken = |it: &mut History| {
        it.requests[1].status = Some(503);
        it.requests.push(request(20, 102, 4_000, 2, 200));
        it.endings[1] = delivered(20, 2);
    };
    assert_eq!(broken(overtaken), ["strict order is kept"]);
    let mut history = good();
    overtaken(&mut history);
    let mut plan = plan();
    plan.lanes.remove(STRICT);
    assert_eq!(judge(&plan, &history), [], "other lanes may overtake");
}

#[test]
fn expired_hold_that_does_not_end_is_reported() {
    let stuck = |it: &mut History| it.looks = vec![look(2_000, 3_000), look(4_000, 3_000), look(94_001, 3_000)];
    assert_eq!(broken(stuck), ["every hold ends"]);
    let moved_on = |it: &mut History| it.looks = vec![look(4_000, 3_000), look(94_000, 95_500), look(95_001, 95_500)];
    assert_eq!(broken(moved_on), [""; 0]);
}

/// Message 4 supersedes message 1.
fn replace(it: &mut History) {
    it.sent.push(sent(4, 101, 5_000));
    for index in [0, 3] {
        it.sent[index].collapse = Some(7);
    }
    it.requests.push(request(40, 101, 9_100, 1, 200));
    it.endings.push(delivered(40, 1));
}

#[test]
fn request_of_a_superseded_delivery_is_reported() {
    assert_eq!(broken(replace), ["nothing is sent after its replacement was acknowledged"]);
    let spared = |it: &mut History| {
        replace(it);
        it.requests[3].left_at = 5_010;
    };
    assert_eq!(broken(spared), [""; 0], "a request before the answer is allowed");
    let other_key = |it: &mut History| {
        replace(it);
        it.sent[3].collapse = Some(8);
    };
    assert_eq!(broken(other_key), [""; 0]);
}

#[test]
fn superseded_delivery_without_a_newer_message_is_reported() {
    let ended = |it: &mut History| {
        replace(it);
        it.requests.remove(3);
        it.endings[0] = Ending { delivery: 10, state: "cancelled", cause: "superseded", attempts: 0, numbers: vec![1] };
    };
    assert_eq!(broken(ended), [""; 0], "the attempt in flight is in its history and not counted");
    let alone = |it: &mut History| {
        ended(it);
        it.sent[3].collapse = None;
    };
    assert_eq!(broken(alone), ["every end has its reason", "attempts are counted right"]);
}
