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

/// Checks the promises that are broken after a change to the good history, without repetitions.
fn check(case: &str, promises: &[&str], tamper: impl FnOnce(&mut History)) {
    let mut history = good();
    tamper(&mut history);
    let mut broken: Vec<&str> = judge(&plan(), &history).iter().map(|found| found.promise).collect();
    broken.dedup();
    assert_eq!(broken, promises, "{case}");
}

fn asked(what: What, at: Ms) -> ApiCall {
    ApiCall { what, called_at: at, answered_at: Some(at), done: true }
}

fn look(at: Ms, until: Ms) -> PendingSnapshot {
    PendingSnapshot { at, stamped: at, life: 1, delivery: 10, attempts: 1, why: "backoff", until: Some(until) }
}

#[test]
fn good_history_breaks_no_promise() {
    check("nothing is changed", &[], |_| ());
}

#[test]
fn missing_delivery_is_reported_as_lost_if_it_was_acknowledged() {
    const LOST: &[&str] = &["nothing accepted is lost"];
    check("no ending", LOST, |it| drop(it.endings.remove(2)));
    check("an ending as missing", LOST, |it| it.endings[2].state = "missing");
    check("not acknowledged", &[], |it| {
        it.sent[2].acked_at = None;
        it.endings.remove(2);
    });
}

#[test]
fn run_without_a_proper_end_is_reported() {
    check("a pending delivery", &["everything ends"], |it| it.endings[0].state = "retry");
    check("given up", &["everything ends"], |it| it.gave_up_at = Some(99_000));
}

#[test]
fn refused_state_change_is_reported() {
    check("a refused state change", &["only moves of the table happen"], |it| it.refused_moves = 1);
}

#[test]
fn end_is_reported_only_without_a_reason() {
    const WITHOUT: &[&str] = &["every end has its reason"];
    for state in ["dead", "expired", "cancelled"] {
        check(state, WITHOUT, |it| it.endings[2].state = state);
    }
    check("delivered without a 2xx", WITHOUT, |it| it.requests[2].status = Some(500));
    check("refused by the receiver", &[], |it| {
        it.requests[2].status = Some(404);
        it.endings[2].state = "dead";
    });
    check("cancelled by a call", &[], |it| {
        it.asked.push(asked(What::Cancel(3), 5_000));
        it.endings[2].state = "cancelled";
    });
}

#[test]
fn attempts_that_differ_from_wire_or_history_are_reported() {
    const MISCOUNTED: &[&str] = &["attempts are counted right"];
    check("1 instead of 2", MISCOUNTED, |it| it.endings[0].attempts = 1);
    check("3 instead of 2", MISCOUNTED, |it| it.endings[0].attempts = 3);
    check("one missing in the history", MISCOUNTED, |it| it.endings[0].numbers = vec![1]);
    let left_out = ["attempts are counted right", "an attempt is on record before the next"];
    check("one is left out", &left_out, |it| it.requests[3].attempt = 3);
}

#[test]
fn attempt_above_the_policy_is_reported() {
    check("four attempts", &["attempts stay within the policy"], |it| {
        it.requests.push(request(10, 101, 20_000, 3, 503));
        it.requests.push(request(10, 101, 30_000, 4, 503));
        it.endings[0] = delivered(10, 4);
    });
}

#[test]
fn repeated_attempt_without_a_crash_is_reported() {
    const REPEATED: &[&str] = &["duplicates ≤ in flight at a crash"];
    let repeated = |it: &mut History| it.requests.push(request(30, 102, 3_000, 1, 200));
    check("no crash", REPEATED, repeated);
    for (unsettled, promises) in [(30, &[][..]), (20, REPEATED)] {
        check(&format!("a crash with delivery {unsettled} in flight"), promises, |it| {
            repeated(it);
            it.crashes.push(Crash { at: 2_105, unsettled: vec![unsettled] });
        });
    }
}

#[test]
fn attempt_outside_its_time_is_reported() {
    let over_at = |at: Ms| move |it: &mut History| it.sent[0].deliveries[0].expires_at = Some(at);
    check("at the end of the TTL", &["no attempt starts after the TTL"], over_at(9_000));
    check("before the end of the TTL", &[], over_at(9_001));
    check("a second one of now or never", &["now or never is one attempt"], |it| {
        it.sent[0].now_or_never = true;
        it.sent[0].deliveries[0].expires_at = Some(8_000);
    });
    let early = &["nothing is sent before deliver_at"];
    check("before deliver_at", early, |it| it.sent[0].deliver_at = Some(1_101));
    check("at deliver_at", &[], |it| it.sent[0].deliver_at = Some(1_100));
}

#[test]
fn request_during_a_pause_is_reported() {
    for (kind, id) in [(0, 0), (1, 1), (2, 101)] {
        let paused = |it: &mut History| it.asked.push(asked(What::Pause(kind, id), 8_000));
        check(&format!("kind {kind}"), &["nothing is sent while paused"], paused);
        check(&format!("kind {kind}, resumed"), &[], |it| {
            paused(it);
            it.asked.push(asked(What::Resume(kind, id), 9_000));
        });
    }
    for (kind, id) in [(1, 2), (2, 102)] {
        let others = |it: &mut History| it.asked.push(asked(What::Pause(kind, id), 8_000));
        check(&format!("kind {kind} of another id"), &[], others);
    }
}

#[test]
fn request_after_a_cut_is_reported() {
    for cut in [What::Cancel(1), What::EndLane(101, 10)] {
        let answered = asked(cut, 8_000);
        let unanswered = ApiCall { answered_at: None, ..answered.clone() };
        let late = &["nothing is sent after a cut was answered"];
        check(&format!("{cut:?}"), late, |it| it.asked.push(answered));
        check(&format!("{cut:?} without an answer"), &[], |it| it.asked.push(unanswered));
    }
    check("born after the cut", &[], |it| it.asked.push(asked(What::EndLane(101, 9), 8_000)));
}

#[test]
fn request_after_an_erasure_is_reported() {
    const PROMISE: &[&str] = &["nothing is sent about an erased subject"];
    let erased = |whom: Option<u64>, at: Ms| {
        move |it: &mut History| {
            it.sent[0].subject = Some(7);
            it.asked.push(asked(What::Erase(whom), at));
        }
    };
    check("its subject was erased", PROMISE, erased(Some(7), 8_000));
    check("the whole tenant was erased", PROMISE, erased(None, 8_000));
    check("another subject was erased", &[], erased(Some(8), 8_000));
    check("a message after the erasure is new", &[], erased(Some(7), 900));
    let gone = |it: &mut History| {
        erased(Some(7), 9_500)(it);
        it.endings[0].state = "missing";
    };
    check("it was erased after it had arrived", &[], gone);
    check("a message about another subject is missing", &["nothing accepted is lost"], |it| {
        gone(it);
        it.endings[1].state = "missing";
    });
}

#[test]
fn erasure_reports_what_may_still_arrive() {
    let in_flight = |it: &mut History| {
        it.sent[0].subject = Some(7);
        it.asked.push(asked(What::Erase(Some(7)), 9_005));
    };
    check("one in flight is not reported", &["an erasure reports what may still arrive"], in_flight);
    check("one in flight is reported", &[], |it| {
        in_flight(it);
        it.in_flight.insert(9_005, 1);
    });
}

#[test]
fn request_to_an_endpoint_that_is_gone_is_reported() {
    const PROMISE: &[&str] = &["nothing is sent to an endpoint that is gone"];
    let gone = |it: &mut History| it.requests[0].status = Some(410);
    check("the same delivery", PROMISE, gone);
    check("the answer was lost in a crash", &[], |it| {
        gone(it);
        it.crashes.push(Crash { at: 2_000, unsettled: vec![10] });
    });
    let later_message = |called_at: Ms| {
        move |it: &mut History| {
            it.requests[3].status = Some(410);
            it.endings[0] = Ending { state: "dead", cause: "endpoint_gone", ..delivered(10, 2) };
            it.sent.push(sent(4, 101, called_at));
            it.requests.push(request(40, 101, called_at + 20, 1, 200));
            it.endings.push(delivered(40, 1));
        }
    };
    check("its producer may not know yet", PROMISE, later_message(9_020));
    check("the endpoint may exist again", &[], later_message(609_020));
}

#[test]
fn retry_after_applies_to_the_delivery_and_its_lane() {
    const PROMISE: &[&str] = &["Retry-After is obeyed"];
    let with_retry_after = |wait: Ms| move |it: &mut History| it.requests[0].retry_after = Some(wait);
    check("a retry before it", PROMISE, with_retry_after(8_000));
    check("a retry after it", &[], with_retry_after(7_890));
    let by_a_lane_mate = |it: &mut History| {
        it.requests[0].retry_after = Some(7_000);
        it.sent.push(sent(4, 101, 1_500));
        it.requests.insert(3, request(40, 101, 5_000, 1, 200));
        it.endings.push(delivered(40, 1));
    };
    check("another delivery of the lane before it", PROMISE, by_a_lane_mate);
    let crash = Crash { at: 4_000, unsettled: Vec::new() };
    check("the lane's hold is lost in a crash", &[], |it| {
        by_a_lane_mate(it);
        it.crashes.push(crash.clone());
    });
    check("the delivery's own wait survives a crash", PROMISE, |it| {
        it.requests[0].retry_after = Some(8_000);
        it.crashes.push(crash);
    });
    check("it was for one delivery alone", &[], |it| {
        by_a_lane_mate(it);
        it.requests[0].asks_lane = false;
    });
    check("it was for this delivery alone", PROMISE, |it| {
        it.requests[0].retry_after = Some(8_000);
        it.requests[0].asks_lane = false;
    });
}

#[test]
fn overtaking_in_a_strict_lane_is_reported() {
    let overtaken = |it: &mut History| {
        it.requests[1].status = Some(503);
        it.requests.push(request(20, 102, 4_000, 2, 200));
        it.endings[1] = delivered(20, 2);
    };
    check("in a strict lane", &["strict order is kept"], overtaken);
    let mut history = good();
    overtaken(&mut history);
    let mut plan = plan();
    plan.lanes.remove(STRICT);
    assert_eq!(judge(&plan, &history), [], "other lanes may overtake");
}

#[test]
fn expired_hold_that_does_not_end_is_reported() {
    check("it does not change", &["every hold ends"], |it| {
        it.looks = vec![look(2_000, 3_000), look(4_000, 3_000), look(94_001, 3_000)];
    });
    check("it has a new end", &[], |it| {
        it.looks = vec![look(4_000, 3_000), look(94_000, 95_500), look(95_001, 95_500)];
    });
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
    check("after the answer", &["nothing is sent after its replacement was acknowledged"], replace);
    check("before the answer", &[], |it| {
        replace(it);
        it.requests[3].left_at = 5_010;
    });
    check("another key", &[], |it| {
        replace(it);
        it.sent[3].collapse = Some(8);
    });
}

#[test]
fn superseded_delivery_without_a_newer_message_is_reported() {
    let ended = |it: &mut History| {
        replace(it);
        it.requests.remove(3);
        it.endings[0] = Ending { delivery: 10, state: "cancelled", cause: "superseded", attempts: 0, numbers: vec![1] };
    };
    check("the attempt in flight is in its history and not counted", &[], ended);
    check("no newer message", &["every end has its reason", "attempts are counted right"], |it| {
        ended(it);
        it.sent[3].collapse = None;
    });
}
