//! Tests of [`settle`], outcome by outcome, and the invariants of all its decisions.

use proptest::prelude::*;

use super::*;
use crate::Phase;
use crate::policy::{JitterSpec, PolicySpec};
use crate::time::seconds;

/// Long after the epoch, so that births and ends fit on both sides of it.
const NOW: Timestamp = Timestamp::from_millis(1_000_000_000);
const LOWEST: Roll = Roll(0);
const HIGHEST: Roll = Roll(u64::MAX);

/// Being sent for the first time, born now, without a TTL.
fn first_try() -> Delivery {
    let (id, message) = (DeliveryId::from_raw(2), MessageId::from_raw(1));
    let (endpoint, lane) = (EndpointId::from_raw(4), LaneId::from_raw(3));
    Delivery { state: State::Dispatching, ..Delivery::queued(id, message, endpoint, lane, Tier::Promotional, NOW) }
}

/// 10 s each time, exactly; nine attempts.
fn every_ten_seconds() -> PolicySpec {
    PolicySpec::every(seconds(10))
}

fn policy(spec: &PolicySpec) -> Policy {
    Policy::build(spec).expect("a valid policy")
}

fn answered(status: u16) -> Verdict {
    Verdict { status: Some(status), ..Verdict::of(crate::classify::status(status)) }
}

fn asking(status: u16, retry_after: Duration) -> Verdict {
    Verdict { retry_after: Some(retry_after), ..answered(status) }
}

/// Settles now, in a lane that is not strict, without a cut.
fn decide(delivery: &Delivery, verdict: &Verdict, policy: &Policy, roll: Roll) -> Decision {
    settle(delivery, verdict, &Circumstances::new(policy), NOW, roll)
}

/// Settles now, every ten seconds, with the lowest roll.
fn settled(delivery: &Delivery, verdict: &Verdict) -> Decision {
    decide(delivery, verdict, &policy(&every_ten_seconds()), LOWEST)
}

fn lane_hold(decision: &Decision) -> Option<Hold> {
    decision.hold.filter(|(scope, _)| *scope == VerdictScope::Lane).map(|(_, hold)| hold)
}

/// The wait before the next attempt.
#[track_caller]
fn wait_of(decision: &Decision) -> Duration {
    match decision.state {
        State::Retry { due, .. } => due.since(NOW),
        other => panic!("no retry, but {other:?}"),
    }
}

/// The delivery at its next attempt, after this decision.
fn next_try(delivery: &Delivery, verdict: &Verdict, decision: &Decision) -> Delivery {
    Delivery {
        attempts: decision.attempts,
        previous_wait: decision.previous_wait,
        limited_in_a_row: decision.limited_in_a_row,
        compact: decision.compact,
        last_cause: Some(verdict.cause),
        ..delivery.clone()
    }
}

#[test]
fn a_final_verdict_ends_the_delivery_and_counts_its_attempt_if_one_was_made() {
    let dead = |cause| State::Dead { at: NOW, cause };
    let cancelled = |cause| State::Cancelled { at: NOW, cause };
    for (verdict, state, made, endpoint_change) in [
        (answered(204), State::Delivered { at: NOW }, true, None),
        (answered(404), dead(Cause::NotFound), true, None),
        (answered(410), dead(Cause::EndpointGone), true, Some(EndpointChange::Gone)),
        (Verdict::of(Cause::Erased), cancelled(Cause::Erased), false, None),
        (Verdict::of(Cause::EndpointDeleted), cancelled(Cause::EndpointDeleted), false, None),
    ] {
        let decision = settled(&first_try(), &verdict);
        assert_eq!((decision.state, decision.attempts), (state, u16::from(made)), "{verdict:?}");
        assert_eq!((decision.was_made, decision.endpoint_change), (made, endpoint_change), "{verdict:?}");
    }
}

#[test]
fn a_wait_longer_than_the_backoff_was_asked_for_by_the_receiver() {
    for (verdict, asked) in [
        (asking(503, seconds(60)), true),
        (asking(429, seconds(60)), true),
        (asking(503, seconds(5)), false),
        (answered(503), false),
        // Our own rule doubles the backoff after a 429 without `Retry-After`.
        (answered(429), false),
    ] {
        let decision = settled(&first_try(), &verdict);
        let next = Delivery { state: decision.state, ..next_try(&first_try(), &verdict, &decision) };
        assert_eq!(next.waits_as_asked(NOW), asked, "{verdict:?}");
    }
    assert!(!first_try().waits_as_asked(NOW));
}

#[test]
fn a_2xx_awaits_the_receipt_where_one_is_asked_for() {
    let delivery = Delivery { ack_within: Some(seconds(300)), ..first_try() };
    assert_eq!(settled(&delivery, &answered(200)).state, State::AwaitingAck { until: NOW + seconds(300) });
}

#[test]
fn a_receipt_before_the_answer_delivers_for_every_status_and_only_gone_ends_the_endpoint() {
    let delivery = Delivery { ack_within: Some(seconds(300)), receipt_kept: true, ..first_try() };
    for status in [200, 400, 410, 413, 429, 503] {
        let decision = settled(&delivery, &answered(status));
        let endpoint_change = (status == 410).then_some(EndpointChange::Gone);
        let expected = (State::Delivered { at: NOW }, endpoint_change);
        assert_eq!((decision.state, decision.endpoint_change), expected, "status {status}");
    }
}

#[test]
fn too_large_tries_a_compact_payload_once_in_its_place() {
    let verdict = answered(413);
    let large = Delivery { compact: Compact::Spare, ..first_try() };
    let first = settled(&large, &verdict);
    assert_eq!((wait_of(&first), first.compact), (Duration::ZERO, Compact::InUse));
    let second = settled(&next_try(&large, &verdict, &first), &verdict);
    assert_eq!(second.state, State::Dead { at: NOW, cause: Cause::PayloadTooLarge });
    assert_eq!(settled(&first_try(), &verdict).state, second.state, "without one it is dead at once");
    let slowly = Verdict { least_wait: Some(seconds(60)), ..verdict };
    assert_eq!(wait_of(&settled(&large, &slowly)), seconds(60), "it waits as the channel asks");
    let expired = Delivery { expiry: Expiry::At(NOW), ..large };
    assert_eq!(settled(&expired, &verdict).state, State::Expired { at: NOW }, "it is not tried after the TTL");
}

#[test]
fn a_refused_credential_holds_the_lane_and_spends_no_attempt() {
    let decision = settled(&first_try(), &Verdict::of(Cause::CredentialRejected));
    assert_eq!((decision.state, decision.attempts), (State::Queued { due: NOW }, 0));
    assert_eq!(lane_hold(&decision), Some(Hold { why: Why::Credential, until: None }));
}

#[test]
fn our_own_fault_spends_no_attempt_and_keeps_the_counters() {
    let delivery = Delivery { attempts: 3, limited_in_a_row: 3, last_cause: Some(Cause::DnsNotFound), ..first_try() };
    let decision = settled(&delivery, &Verdict::of(Cause::StoreUnavailable));
    assert_eq!(decision.state, State::Retry { due: NOW + seconds(1), cause: Cause::DnsNotFound });
    assert_eq!((decision.attempts, decision.limited_in_a_row), (3, 3));
}

#[test]
fn a_transient_failure_is_retried_until_the_attempts_are_spent() {
    let mut delivery = first_try();
    let verdict = answered(503);
    for attempt in 1..9 {
        let decision = settled(&delivery, &verdict);
        assert_eq!((wait_of(&decision), decision.attempts), (seconds(10), attempt));
        delivery = next_try(&delivery, &verdict, &decision);
    }
    let last = settled(&delivery, &verdict);
    assert_eq!((last.state, last.attempts), (State::Dead { at: NOW, cause: Cause::Unavailable }, 9));
}

#[test]
fn a_tier_has_waits_of_its_own() {
    let waits = Tier::ALL.map(|tier| {
        let delivery = Delivery { tier, ..first_try() };
        wait_of(&decide(&delivery, &answered(500), &Policy::default(), HIGHEST))
    });
    assert_eq!(waits, [seconds(1), seconds(12), seconds(24)]);
}

#[test]
fn a_name_that_does_not_exist_is_tried_five_times_in_a_row() {
    let mut delivery = first_try();
    let missing = Verdict::of(Cause::DnsNotFound);
    for _ in 0..4 {
        let decision = settled(&delivery, &missing);
        assert_eq!(wait_of(&decision), seconds(10));
        delivery = next_try(&delivery, &missing, &decision);
    }
    assert_eq!(settled(&delivery, &missing).state, State::Dead { at: NOW, cause: Cause::DnsNotFound });

    for other in [Verdict::of(Cause::TlsCertificate), answered(502)] {
        let between = next_try(&delivery, &other, &settled(&delivery, &other));
        let decision = settled(&between, &missing);
        assert_eq!(decision.limited_in_a_row, 1, "{:?} came between", other.cause);
    }
}

#[test]
fn retry_after_is_never_early_and_at_most_a_tenth_late() {
    let verdict = asking(503, seconds(120));
    let due = |roll| decide(&first_try(), &verdict, &policy(&every_ten_seconds()), roll);
    assert_eq!([LOWEST, HIGHEST].map(|roll| wait_of(&due(roll))), [seconds(120), seconds(132)]);
}

#[test]
fn retry_after_holds_the_rest_of_the_lane_also_where_the_delivery_has_ended() {
    let short_lived = Delivery { expiry: Expiry::from_ttl(NOW, Some(seconds(60))), ..first_try() };
    let last_try = Delivery { attempts: 8, ..first_try() };
    for (delivery, phase) in [(first_try(), Phase::Retry), (short_lived, Phase::Expired), (last_try, Phase::Dead)] {
        for status in [429, 503] {
            let decision = settled(&delivery, &asking(status, seconds(120)));
            let hold = Hold { why: Why::RetryAfter, until: Some(NOW + seconds(120)) };
            assert_eq!((decision.state.phase(), lane_hold(&decision)), (phase, Some(hold)), "{status}");
            if phase == Phase::Expired {
                assert_eq!(decision.state, State::Expired { at: NOW }, "{status}");
            }
        }
    }
    assert_eq!(lane_hold(&settled(&first_try(), &answered(429))), None);
}

#[test]
fn a_retry_after_of_zero_is_ignored() {
    for status in [429, 503] {
        let decision = settled(&first_try(), &asking(status, Duration::ZERO));
        assert_eq!((wait_of(&decision), lane_hold(&decision)), (seconds(10), None), "status {status}");
    }
}

#[test]
fn a_retry_after_of_years_is_cut_to_the_longest_obeyed() {
    for asked in [seconds(30 * 86_400), seconds(u64::MAX), Duration::MAX] {
        let decision = settled(&first_try(), &asking(503, asked));
        assert_eq!(wait_of(&decision), seconds(86_400));
    }
    let hourly = PolicySpec { retry_after_max: Some(seconds(3_600)), ..every_ten_seconds() };
    let decision = decide(&first_try(), &asking(429, Duration::MAX), &policy(&hourly), HIGHEST);
    assert_eq!(wait_of(&decision), seconds(3_960));
}

#[test]
fn a_bare_429_waits_twice_as_long() {
    assert_eq!([429, 503].map(|status| wait_of(&settled(&first_try(), &answered(status)))), [20, 10].map(seconds));
}

#[test]
fn decorrelated_jitter_grows_from_the_backoff_not_from_retry_after() {
    let spec =
        PolicySpec { jitter: JitterSpec { kind: Some("decorrelated".to_owned()), share: None }, ..every_ten_seconds() };
    let policy = policy(&spec);
    for verdict in [answered(503), answered(429), asking(503, seconds(3_600))] {
        let first = decide(&first_try(), &verdict, &policy, HIGHEST);
        assert_eq!(first.previous_wait, Some(seconds(30)));
        let second = decide(&next_try(&first_try(), &verdict, &first), &answered(500), &policy, HIGHEST);
        assert_eq!(wait_of(&second), seconds(60), "three times 30 s, cut at the cap");
    }
}

#[test]
fn a_retry_at_or_after_the_ttl_expires_now() {
    let living = |ttl| Delivery { expiry: Expiry::from_ttl(NOW, Some(ttl)), ..first_try() };
    assert_eq!(settled(&living(seconds(10)), &answered(500)).state, State::Expired { at: NOW });
    let decision = settled(&living(Duration::from_millis(10_001)), &answered(500));
    assert_eq!(wait_of(&decision), seconds(10));
}

#[test]
fn now_or_never_has_no_retry() {
    let expiry = Expiry::from_ttl(NOW, Some(Duration::ZERO));
    assert_eq!(expiry, Expiry::NowOrNever(NOW + seconds(5)));
    assert!(!expiry.is_over(NOW + Duration::from_millis(4_999)));
    assert!(expiry.is_over(NOW + seconds(5)));
    let delivery = Delivery { expiry, ..first_try() };
    assert_eq!(settled(&delivery, &answered(503)).state, State::Expired { at: NOW });
    assert_eq!(settled(&delivery, &answered(200)).state, State::Delivered { at: NOW });
}

#[test]
fn the_earlier_of_window_and_ttl_decides() {
    let decide = |window, expiry| {
        let policy = policy(&PolicySpec { window: Some(seconds(window)), ..every_ten_seconds() });
        decide(&Delivery { expiry, ..first_try() }, &answered(500), &policy, LOWEST)
    };
    assert_eq!(decide(9, Expiry::Never).state, State::Dead { at: NOW, cause: Cause::InternalError });
    assert_eq!(wait_of(&decide(10, Expiry::Never)), seconds(10), "at the very end of the window it may still start");
    let phase = |window, ttl| decide(window, Expiry::At(NOW + seconds(ttl))).state.phase();
    assert_eq!([phase(3, 7), phase(3, 70)], [Phase::Dead; 2]);
    assert_eq!([phase(7, 3), phase(7, 7), phase(70, 3)], [Phase::Expired; 3]);
    assert_eq!(phase(70, 70), Phase::Retry);
}

#[test]
fn a_missing_receipt_counts_as_one_attempt() {
    let sent = Delivery {
        attempts: 2,
        state: State::AwaitingAck { until: NOW },
        ack_within: Some(seconds(300)),
        ..first_try()
    };
    let policy = policy(&every_ten_seconds());
    let decide = |delivery| ack_timeout(delivery, &Circumstances::new(&policy), NOW, LOWEST);
    let retry = State::Retry { due: NOW + seconds(10), cause: Cause::AckTimeout };
    assert_eq!((decide(&sent).state, decide(&sent).attempts), (retry, 2));
    let spent = decide(&Delivery { attempts: 9, ..sent });
    assert_eq!((spent.state.phase(), spent.attempts), (Phase::Dead, 9));
}

#[test]
fn retry_after_holds_the_scope_of_the_verdict() {
    let hold_of = |scope, credential_gate| {
        let policy = policy(&every_ten_seconds());
        let given = Circumstances { credential_gate, ..Circumstances::new(&policy) };
        let verdict = Verdict { scope, ..asking(429, seconds(60)) };
        let decision = settle(&first_try(), &verdict, &given, NOW, LOWEST);
        assert_eq!(wait_of(&decision), seconds(60), "the delivery itself always waits");
        decision.hold.map(|(scope, _)| scope)
    };
    for credential_gate in [false, true] {
        assert_eq!(hold_of(VerdictScope::Endpoint, credential_gate), None);
        assert_eq!(hold_of(VerdictScope::Lane, credential_gate), Some(VerdictScope::Lane));
    }
    assert_eq!(hold_of(VerdictScope::Credential, true), Some(VerdictScope::Credential));
    assert_eq!(hold_of(VerdictScope::Credential, false), Some(VerdictScope::Lane), "without a gate the lane is held");
}

#[test]
fn least_wait_delays_the_retry_and_holds_no_other_delivery() {
    let verdict = Verdict { least_wait: Some(seconds(900)), ..answered(500) };
    let decision = settled(&first_try(), &verdict);
    assert_eq!((wait_of(&decision), decision.hold), (seconds(900), None));
    let shorter = Verdict { least_wait: Some(seconds(1)), ..answered(500) };
    assert_eq!(wait_of(&settled(&first_try(), &shorter)), seconds(10), "the policy waits longer");
}

#[test]
fn disable_answer_disables_the_endpoint_whether_or_not_it_took_the_message() {
    for class in [Class::Delivered, Class::Dead] {
        let verdict = Verdict { class, ..Verdict::of(Cause::DisableAsked) };
        assert_eq!(settled(&first_try(), &verdict).endpoint_change, Some(EndpointChange::Disabled));
    }
}

prop_compose! {
    fn any_verdict()(
        cause in prop::sample::select(Cause::ALL.iter().map(|entry| entry.cause).collect::<Vec<_>>()),
        retry_after in
            prop_oneof![Just(None), any::<Duration>().prop_map(Some), (0_u64..200_000).prop_map(|s| Some(seconds(s)))],
        scope in prop::sample::select(vec![VerdictScope::Endpoint, VerdictScope::Lane, VerdictScope::Credential]),
        least_wait in prop::option::of((0_u64..2_000).prop_map(seconds)),
        prune in any::<bool>(),
    ) -> Verdict {
        Verdict { retry_after, scope, least_wait, prune, ..Verdict::of(cause) }
    }
}

prop_compose! {
    fn any_circumstances()(
        strict in prop::sample::select(vec![None, Some(OnDead::Skip), Some(OnDead::Hold)]),
        cut in prop::sample::select(vec![None, Some(Cause::EndpointGone), Some(Cause::Cancelled)]),
        superseded in any::<bool>(),
        tightness in prop::option::of((0_u32..=100).prop_map(|used| Tightness::of(used, 100))),
        credential_gate in any::<bool>(),
    ) -> Circumstances<'static> {
        static POLICY: std::sync::LazyLock<Policy> = std::sync::LazyLock::new(Policy::default);
        Circumstances { policy: &POLICY, strict, cut, superseded, tightness, credential_gate }
    }
}

fn any_expiry() -> impl Strategy<Value = Expiry> {
    let at = (-100_000_000_i64..100_000_000).prop_map(|ms| Timestamp::from_millis(NOW.as_millis() + ms));
    prop_oneof![Just(Expiry::Never), at.clone().prop_map(Expiry::At), at.prop_map(Expiry::NowOrNever)]
}

prop_compose! {
    fn any_delivery()(
        tier in prop::sample::select(&Tier::ALL[..]),
        attempts in prop_oneof![0_u16..12, any::<u16>()],
        age in 0_u64..200_000,
        expiry in any_expiry(),
        previous_wait in prop::option::of(any::<Duration>()),
        limited_in_a_row in any::<u8>(),
        last_cause in prop::sample::select(vec![None, Some(Cause::DnsNotFound), Some(Cause::Unavailable)]),
        ack_within in prop::option::of(any::<Duration>()),
        compact in prop::sample::select(vec![Compact::None, Compact::Spare, Compact::InUse]),
        receipt_kept in any::<bool>(),
    ) -> Delivery {
        Delivery {
            tier, attempts, expiry, previous_wait, limited_in_a_row, last_cause, ack_within, compact, receipt_kept,
            born: NOW - seconds(age),
            ..first_try()
        }
    }
}

proptest! {
    #[test]
    fn every_decision_keeps_the_invariants(
        delivery in any_delivery(), verdict in any_verdict(), roll in any::<u64>(), name in prop::sample::select(&crate::policy::PRESETS[..]),
        given in any_circumstances(),
    ) {
        let policy = Policy::preset(name).expect("a preset");
        let given = Circumstances { policy: &policy, ..given };
        let decision = settle(&delivery, &verdict, &given, NOW, Roll(roll));
        prop_assert!(Phase::Dispatching.may_become(decision.state.phase()), "{:?}", decision.state);
        prop_assert!(decision.state.due().is_none_or(|due| due >= NOW), "a due time is never in the past");
        prop_assert!(delivery.expiry != Expiry::Never || decision.state.phase() != Phase::Expired);
        // Without payload or endpoint it was not sent, unless a receipt proves that it arrived.
        let unsendable = matches!(verdict.cause, Cause::Erased | Cause::EndpointDeleted);
        let unsent = verdict.class == Class::Decided && unsendable && !delivery.receipt_kept;
        let counted = !unsent && !matches!(verdict.class, Class::Ours | Class::Credential);
        prop_assert_eq!(decision.attempts, delivery.attempts.saturating_add(u16::from(counted)));
        if let (State::Retry { due, .. }, Class::Retry | Class::Limited) = (decision.state, verdict.class) {
            prop_assert!(decision.attempts < policy.max_attempts());
            prop_assert!(!delivery.expiry.is_over(due), "scheduled after its end");
            let asked = verdict.retry_after.unwrap_or_default().min(policy.retry_after_max());
            prop_assert!(due >= NOW + asked, "earlier than the receiver asked");
            prop_assert!(due >= NOW + verdict.least_wait.unwrap_or_default(), "earlier than the channel allows");
            prop_assert_eq!(given.cut, None, "a cut ends a delivery that would be retried");
        }
        let ends = decision.state.is_terminal();
        prop_assert_eq!(decision.is_recorded, counted || ends, "only an attempt or an end is written");
        prop_assert_eq!(decision.was_made, counted || verdict.class == Class::Credential);
        let is_dead = matches!(decision.state, State::Dead { .. });
        prop_assert_eq!(decision.pauses_lane, is_dead && given.strict == Some(OnDead::Hold) && !given.superseded);
        prop_assert_eq!(decision.place == RowIndex::Spilled, given.strict.is_some());
        prop_assert_eq!(decision.endpoint_change == Some(EndpointChange::Gone), verdict.prune);
        match decision.hold.map(|(scope, _)| scope) {
            Some(VerdictScope::Endpoint) => prop_assert!(false, "an endpoint verdict holds no other delivery"),
            Some(VerdictScope::Credential) => {
                prop_assert!(given.credential_gate && verdict.scope == VerdictScope::Credential);
            }
            Some(VerdictScope::Lane) | None => {}
        }
    }
}
