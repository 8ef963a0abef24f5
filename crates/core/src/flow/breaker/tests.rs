//! Tests of single transitions, and at the end the invariants for any order of calls. The proof `breakers` compares
//! with a slow model of the same rules.

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
/// A middle roll: a hold has exactly the length of the rule.
const MIDDLE: Roll = Roll(u64::MAX / 2);

/// A breaker with a clock of its own.
struct Bench {
    breaker: Breaker,
    rule: BreakerRule,
    now: Timestamp,
    roll: Roll,
    endpoint: u64,
    messages_wait: bool,
    retry_after: Option<Duration>,
}

impl Bench {
    fn new(rule: BreakerRule) -> Self {
        Self {
            breaker: Breaker::default(),
            rule,
            now: Timestamp::from_millis(1_000_000),
            roll: MIDDLE,
            endpoint: 1,
            messages_wait: true,
            retry_after: None,
        }
    }

    /// A breaker that ten failures in a row have opened.
    fn opened() -> Self {
        let mut bench = Self::new(BreakerRule::ENDPOINT);
        assert_eq!(bench.answers(9, Signal::Failure).send(Signal::Failure), Some(BreakerChange::Opened));
        bench
    }

    /// The next answers are of this endpoint.
    fn for_endpoint(&mut self, endpoint: u64) -> &mut Self {
        self.endpoint = endpoint;
        self
    }

    fn wait(&mut self, time: Duration) -> &mut Self {
        self.now = self.now + time;
        self
    }

    fn wait_for_the_hold(&mut self) -> &mut Self {
        match self.breaker.lets_through(self.now) {
            LetsThrough::Nothing { until: Some(until) } => self.now = until,
            other => panic!("no hold with an end: {other:?}"),
        }
        self
    }

    fn start(&mut self) -> u32 {
        self.breaker.start(self.now).generation
    }

    fn answer(&mut self, generation: u32, signal: Signal) -> Option<BreakerChange> {
        let answer = BreakerAnswer {
            generation,
            endpoint: EndpointId::from_raw(self.endpoint),
            signal,
            messages_wait: self.messages_wait,
            retry_after: self.retry_after,
        };
        self.breaker.answered(self.now, self.roll, &self.rule, answer)
    }

    fn send(&mut self, signal: Signal) -> Option<BreakerChange> {
        let generation = self.start();
        self.answer(generation, signal)
    }

    /// That many answers that change nothing.
    #[track_caller]
    fn answers(&mut self, count: u32, signal: Signal) -> &mut Self {
        for nth in 1..=count {
            assert_eq!(self.send(signal), None, "answer {nth} of {count}");
        }
        self
    }

    fn standing(&self) -> BreakerState {
        self.breaker.standing(self.now)
    }

    /// How much of the hold is left.
    #[track_caller]
    fn left(&self) -> Duration {
        match self.standing() {
            BreakerState::Open { until: Some(until), .. } => until.since(self.now),
            standing => panic!("not open with an end: {standing:?}"),
        }
    }
}

const HALF_OPEN: BreakerState = BreakerState::HalfOpen { successes: 0, probing: false };

#[test]
fn the_whole_table_of_transitions() {
    use Signal::{Failure, Neutral, Overload, Success};
    let half = |successes| BreakerState::HalfOpen { successes, probing: false };
    let mut bench = Bench::opened();
    let since = bench.now;
    let open = |bench: &Bench, seconds| BreakerState::Open { until: Some(bench.now + SECOND * seconds), since };
    assert_eq!(bench.standing(), open(&bench, 30));
    // The probe's signal, the transition it causes, and the successes counted after it (`None`: open).
    let probes = [
        (Success, None, Some(1)),
        (Failure, Some(BreakerChange::Reopened), None),
        (Success, None, Some(1)),
        (Success, None, Some(2)),
        (Overload, Some(BreakerChange::Reopened), None),
        (Neutral, None, Some(0)),
        (Success, None, Some(1)),
        (Neutral, None, Some(1)),
        (Success, None, Some(2)),
    ];
    let mut holds = [45, 60].into_iter();
    for (signal, change, successes) in probes {
        if bench.breaker.lets_through(bench.now) != LetsThrough::Probe {
            bench.wait_for_the_hold();
        }
        assert_eq!(bench.send(signal), change, "{signal:?}");
        let expected = match successes {
            Some(successes) => half(successes),
            None => open(&bench, holds.next().expect("a hold for each failed probe")),
        };
        assert_eq!(bench.standing(), expected, "{signal:?}");
    }
    assert_eq!(bench.send(Success), Some(BreakerChange::Closed));
    assert_eq!((bench.standing(), bench.breaker.lets_through(bench.now)), (BreakerState::Closed, LetsThrough::All));
}

#[test]
fn ten_failures_in_a_row_open_an_endpoint_at_any_distance() {
    let mut bench = Bench::new(BreakerRule::ENDPOINT);
    bench.answers(9, Signal::Failure).answers(1, Signal::Success);
    for _ in 0..9 {
        bench.wait(SECOND * 3_600).answers(1, Signal::Failure);
    }
    bench.answers(5, Signal::Neutral).answers(5, Signal::Overload);
    assert_eq!(bench.send(Signal::Failure), Some(BreakerChange::Opened));
    assert_eq!(bench.breaker.reason(), Some(OpenReason::InARow(10)));
}

#[test]
fn half_of_twenty_opens_and_a_success_never_does() {
    let mut bench = Bench::new(BreakerRule::ENDPOINT);
    bench.answers(9, Signal::Failure).answers(9, Signal::Success).answers(1, Signal::Failure);
    assert_eq!(bench.answers(1, Signal::Success).send(Signal::Failure), Some(BreakerChange::Opened));
    let why = bench.breaker.reason().expect("it is open");
    assert_eq!(why, OpenReason::Share { milli: 523, of: 21 });
    assert_eq!(why.to_string(), "52.3% of 21 answers were failures");
}

#[test]
fn below_the_share_or_the_volume_it_stays_closed() {
    let mut bench = Bench::new(BreakerRule::ENDPOINT);
    // 9 of 29 at most, then 18 of 38.
    bench.answers(9, Signal::Failure).answers(20, Signal::Success).answers(9, Signal::Failure);
    assert_eq!(bench.standing(), BreakerState::Closed);
}

#[test]
fn answers_older_than_the_window_do_not_count() {
    let mut bench = Bench::new(BreakerRule::ENDPOINT);
    bench.answers(9, Signal::Failure).answers(9, Signal::Success).wait(SECOND * 29);
    assert_eq!(bench.breaker.window.at(bench.now).answers(), 18);
    bench.wait(SECOND);
    assert_eq!(bench.breaker.window.at(bench.now).answers(), 0);
    bench.answers(9, Signal::Failure);
}

#[test]
fn overload_opens_only_at_nine_tenths_of_enough_answers() {
    let mut bench = Bench::new(BreakerRule::ENDPOINT);
    assert_eq!(bench.answers(19, Signal::Overload).send(Signal::Overload), Some(BreakerChange::Opened));
    let why = bench.breaker.reason().expect("it is open");
    assert_eq!(why.to_string(), "100% of 20 answers were 429 or 503");

    let mut bench = Bench::new(BreakerRule::ENDPOINT);
    bench.answers(3, Signal::Success).answers(26, Signal::Overload);
    assert_eq!(bench.send(Signal::Overload), Some(BreakerChange::Opened), "27 of 30");

    let mut region = Bench::new(BreakerRule { endpoints: 1, ..BreakerRule::REGION });
    assert_eq!(region.answers(199, Signal::Overload).send(Signal::Overload), Some(BreakerChange::Opened));
}

#[test]
fn overload_is_neither_success_nor_failure_for_the_share() {
    let mut bench = Bench::new(BreakerRule { in_a_row: 0, ..BreakerRule::ENDPOINT });
    bench.answers(19, Signal::Overload).answers(19, Signal::Failure);
    assert_eq!(bench.send(Signal::Failure), Some(BreakerChange::Opened));
    assert_eq!(bench.breaker.reason(), Some(OpenReason::Share { milli: 1_000, of: 20 }));
}

#[test]
fn failures_of_a_single_endpoint_do_not_open_an_origin() {
    for signal in [Signal::Failure, Signal::Overload] {
        let mut bench = Bench::new(BreakerRule::ORIGIN);
        let change = bench.answers(1_000, signal).for_endpoint(2).send(signal);
        assert_eq!(change, Some(BreakerChange::Opened), "{signal:?}");
    }
}

#[test]
fn overload_of_another_endpoint_does_not_count_as_its_failure() {
    let mut bench = Bench::new(BreakerRule::ORIGIN);
    bench.for_endpoint(2).answers(1, Signal::Overload).for_endpoint(1).answers(40, Signal::Failure);
}

#[test]
fn a_region_opens_at_a_small_share_of_failures_from_five_endpoints() {
    let mut bench = Bench::new(BreakerRule::REGION);
    bench.answers(195, Signal::Success);
    for endpoint in [1, 2, 3, 4, 4, 3, 2, 1, 1] {
        bench.for_endpoint(endpoint).answers(1, Signal::Failure);
    }
    assert_eq!(bench.for_endpoint(5).send(Signal::Failure), None, "10 of 205 are 4.8%");
    assert_eq!(bench.send(Signal::Failure), Some(BreakerChange::Opened), "11 of 206 are 5.3%");
}

#[test]
fn an_endpoint_that_failed_before_the_window_is_not_counted() {
    let mut bench = Bench::new(BreakerRule::ORIGIN);
    bench.answers(30, Signal::Failure).wait(SECOND * 30);
    bench.for_endpoint(2).answers(30, Signal::Failure).wait(SECOND * 29).for_endpoint(1);
    assert_eq!(bench.send(Signal::Failure), Some(BreakerChange::Opened), "both within 30 s");
}

#[test]
fn a_late_answer_from_before_a_transition_changes_nothing() {
    let mut bench = Bench::new(BreakerRule::ENDPOINT);
    let closed = bench.start();
    assert_eq!(bench.answers(9, Signal::Failure).send(Signal::Failure), Some(BreakerChange::Opened));
    let open = bench.standing();
    assert_eq!((bench.answer(closed, Signal::Success), bench.standing()), (None, open));
    bench.wait_for_the_hold();
    let old_probe = bench.start();
    assert_eq!(bench.answer(closed, Signal::Failure), None);
    assert_eq!(bench.standing(), BreakerState::HalfOpen { successes: 0, probing: true });
    bench.breaker.reset();
    let probe = bench.start();
    assert_eq!((bench.answer(old_probe, Signal::Failure), bench.answer(probe, Signal::Success)), (None, None));
    assert_eq!(bench.answers(1, Signal::Success).send(Signal::Success), Some(BreakerChange::Closed));
    for late in [closed, old_probe, probe] {
        for _ in 0..10 {
            assert_eq!(bench.answer(late, Signal::Failure), None);
        }
    }
    assert_eq!(bench.breaker.window.at(bench.now).answers(), 0);
}

#[test]
fn a_half_open_breaker_allows_one_probe_until_it_is_answered_or_put_back() {
    let mut bench = Bench::opened();
    assert!(matches!(bench.breaker.lets_through(bench.now), LetsThrough::Nothing { until: Some(_) }));
    bench.wait_for_the_hold();
    assert_eq!(bench.breaker.lets_through(bench.now), LetsThrough::Probe);
    let probe = bench.breaker.start(bench.now);
    assert!(probe.probe);
    assert_eq!(bench.breaker.lets_through(bench.now), LetsThrough::Nothing { until: None });
    bench.breaker.put_back(probe.generation.wrapping_sub(1));
    assert_eq!(bench.breaker.lets_through(bench.now), LetsThrough::Nothing { until: None }, "another generation");
    bench.breaker.put_back(probe.generation);
    assert_eq!(bench.breaker.lets_through(bench.now), LetsThrough::Probe);
}

#[test]
fn requests_sent_past_an_open_breaker_are_not_counted() {
    let mut bench = Bench::opened();
    let open = bench.standing();
    assert_eq!((bench.send(Signal::Success), bench.standing()), (None, open));
    bench.wait_for_the_hold();
    let probe = bench.start();
    assert_eq!(bench.send(Signal::Failure), None);
    bench.breaker.put_back(Pass::UNCOUNTED.generation);
    assert_eq!(bench.standing(), BreakerState::HalfOpen { successes: 0, probing: true });
    assert_eq!(bench.answer(probe, Signal::Failure), Some(BreakerChange::Reopened));
}

#[test]
fn a_hold_is_spread_by_a_tenth_and_then_bounded() {
    let held = |open_for: u64, roll, messages_wait| {
        let rule = BreakerRule { in_a_row: 1, open_for: Duration::from_secs(open_for), ..BreakerRule::ENDPOINT };
        let mut bench = Bench { roll: Roll(roll), messages_wait, ..Bench::new(rule) };
        bench.send(Signal::Failure);
        bench.left().as_secs()
    };
    assert_eq!((held(30, 0, true), held(30, u64::MAX, true)), (27, 33));
    assert_eq!((held(60, 0, true), held(60, u64::MAX, true)), (54, 60));
    assert_eq!((held(300, 0, true), held(300, 0, false), held(300, u64::MAX, false)), (60, 270, 300));
}

#[test]
fn a_hold_grows_by_half_with_each_failed_probe_up_to_its_bound() {
    let mut bench = Bench::opened();
    let mut holds = vec![bench.left().as_secs()];
    for messages_wait in [true, true, true, false, false, false, false, false, true] {
        bench.messages_wait = messages_wait;
        bench.wait_for_the_hold().send(Signal::Failure);
        holds.push(bench.left().as_secs());
    }
    assert_eq!(holds, [30, 45, 60, 60, 90, 135, 202, 300, 300, 60]);
}

#[test]
fn a_retry_after_on_the_probe_lengthens_the_hold_and_never_shortens_it() {
    let mut bench = Bench::opened();
    bench.retry_after = Some(SECOND * 10);
    bench.wait_for_the_hold().send(Signal::Overload);
    assert_eq!(bench.left(), SECOND * 45);
    bench.retry_after = Some(SECOND * 600);
    bench.wait_for_the_hold().send(Signal::Overload);
    assert_eq!(bench.left(), SECOND * 600);
    bench.retry_after = None;
    bench.wait_for_the_hold().send(Signal::Overload);
    assert_eq!(bench.left(), SECOND * 60);
}

#[test]
fn a_hold_continues_to_grow_after_a_minute_or_less_and_starts_anew_later() {
    for (well_for, hold) in [(60, 45), (61, 30)] {
        let mut bench = Bench::opened();
        bench.wait_for_the_hold().answers(2, Signal::Success);
        assert_eq!(bench.send(Signal::Success), Some(BreakerChange::Closed));
        bench.wait(SECOND * well_for).answers(9, Signal::Failure);
        assert_eq!(bench.send(Signal::Failure), Some(BreakerChange::Opened));
        assert_eq!(bench.left(), SECOND * hold, "after {well_for} s");
    }
}

#[test]
fn a_reset_probes_first_and_force_closes_at_once() {
    let mut bench = Bench::opened();
    bench.breaker.reset();
    assert_eq!((bench.standing(), bench.breaker.lets_through(bench.now)), (HALF_OPEN, LetsThrough::Probe));
    assert_eq!(bench.breaker.reason(), Some(OpenReason::InARow(10)));
    bench.breaker.force_close(bench.now);
    assert_eq!((bench.standing(), bench.breaker.reason()), (BreakerState::Closed, None));
    bench.breaker.reset();
    assert_eq!(bench.standing(), BreakerState::Closed, "there is nothing to reset");
}

#[test]
fn a_breaker_tripped_without_an_end_stays_open_until_it_is_reset() {
    let mut bench = Bench::new(BreakerRule::ENDPOINT);
    let since = bench.now;
    bench.breaker.trip(bench.now, None);
    assert_eq!(bench.wait(Duration::from_secs(86_400 * 365)).standing(), BreakerState::Open { until: None, since });
    assert_eq!(bench.breaker.lets_through(bench.now), LetsThrough::Nothing { until: None });
    bench.breaker.reset();
    assert_eq!(bench.send(Signal::Failure), Some(BreakerChange::Reopened));
    assert_eq!(bench.left(), SECOND * 30, "a first hold of its own");

    let until = bench.now + SECOND * 600;
    bench.breaker.trip(bench.now, Some(until));
    assert_eq!(bench.standing(), BreakerState::Open { until: Some(until), since });
    assert_eq!(bench.wait(SECOND * 600).standing(), HALF_OPEN);
}

#[test]
fn a_restored_breaker_is_half_open() {
    let mut bench = Bench::opened();
    bench.wait_for_the_hold().send(Signal::Failure);
    let soft = bench.breaker.soft().expect("it is open");
    assert_eq!(soft, Soft { since: Timestamp::from_millis(1_000_000), hold: SECOND * 45 });
    bench.breaker = Breaker::restore(soft);
    assert_eq!((bench.standing(), bench.breaker.reason()), (HALF_OPEN, Some(OpenReason::BeforeRestart)));
    assert_eq!(bench.answer(Pass::FIRST.generation, Signal::Failure), None, "sent before the breaker existed");
    assert_eq!(bench.send(Signal::Failure), Some(BreakerChange::Reopened));
    assert_eq!(bench.left(), SECOND * 60);
    bench.breaker.force_close(bench.now);
    assert_eq!(bench.breaker.soft(), None);
}

#[test]
fn successes_are_averaged_over_whole_seconds() {
    let mut bench = Bench::new(BreakerRule::ENDPOINT);
    assert_eq!(bench.breaker.successes_per_second(bench.now), 0);
    bench.answers(7, Signal::Success);
    assert_eq!(bench.breaker.successes_per_second(bench.now), 7_000, "no whole second yet");
    bench.wait(SECOND).answers(100, Signal::Success);
    assert_eq!(bench.breaker.successes_per_second(bench.now), 7_000, "this second is not over");
    bench.wait(SECOND).answers(3, Signal::Overload);
    assert_eq!(bench.breaker.successes_per_second(bench.now), 53_500);
    bench.wait(SECOND * 8);
    assert_eq!(bench.breaker.successes_per_second(bench.now), 10_700);
    bench.wait(SECOND * 20);
    assert_eq!(bench.breaker.successes_per_second(bench.now), 3_448, "100 in 29 s: the first 7 are too old");
    bench.wait(SECOND);
    assert_eq!(bench.breaker.successes_per_second(bench.now), 0);
}

#[test]
fn a_destination_is_failing_from_five_failures_and_a_tenth_on() {
    let mut bench = Bench::new(BreakerRule::ENDPOINT);
    bench.answers(2, Signal::Failure).answers(2, Signal::Overload);
    assert!(!bench.breaker.is_failing(bench.now));
    bench.answers(1, Signal::Failure);
    assert!(bench.breaker.is_failing(bench.now));
    bench.answers(45, Signal::Success);
    assert!(bench.breaker.is_failing(bench.now), "5 of 50");
    bench.answers(1, Signal::Success);
    assert!(!bench.breaker.is_failing(bench.now), "5 of 51");
    bench.answers(1, Signal::Overload).wait(SECOND * 30);
    assert!(!bench.breaker.is_failing(bench.now), "long ago");
}

#[test]
fn a_breaker_is_as_new_once_window_row_and_hold_are_empty() {
    let mut bench = Bench::new(BreakerRule::ENDPOINT);
    assert!(bench.breaker.is_as_new(bench.now));
    bench.answers(1, Signal::Neutral);
    assert!(bench.breaker.is_as_new(bench.now));
    bench.answers(1, Signal::Success);
    assert!(!bench.breaker.is_as_new(bench.now));
    bench.wait(SECOND * 30);
    assert!(bench.breaker.is_as_new(bench.now));
    bench.answers(1, Signal::Failure).wait(SECOND * 30);
    assert!(!bench.breaker.is_as_new(bench.now), "only a success ends a row of failures");

    let mut bench = Bench::opened();
    bench.wait(SECOND * 600);
    assert!(!bench.breaker.is_as_new(bench.now));
    bench.breaker.force_close(bench.now);
    bench.wait(SECOND * 60);
    assert!(!bench.breaker.is_as_new(bench.now), "it may flap");
    bench.wait(SECOND);
    assert!(bench.breaker.is_as_new(bench.now));
}

#[test]
fn a_clock_set_back_does_not_lengthen_a_hold() {
    let year = Duration::from_secs(86_400 * 365);
    let mut bench = Bench::new(BreakerRule::ENDPOINT);
    let real = bench.now;
    bench.wait(year).answers(9, Signal::Failure);
    bench.send(Signal::Failure);
    assert!(matches!(bench.standing(), BreakerState::Open { .. }));
    bench.now = bench.now - SECOND * 20;
    assert!(matches!(bench.standing(), BreakerState::Open { .. }), "a small step back only lengthens the hold");
    bench.now = real;
    assert_eq!(bench.standing(), HALF_OPEN, "it does not hold for a year");

    let mut bench = Bench::new(BreakerRule { in_a_row: 0, ..BreakerRule::ENDPOINT });
    bench.wait(year).answers(19, Signal::Failure);
    bench.now = bench.now - SECOND * 30;
    assert_eq!(bench.breaker.window.at(bench.now).failures, 19, "as if no time had passed");
    bench.now = bench.now - SECOND;
    bench.answers(19, Signal::Failure);
    assert_eq!(bench.breaker.window.at(bench.now).failures, 19, "the window began anew");
}

#[test]
fn counts_of_a_second_saturate() {
    let mut bench = Bench::new(BreakerRule::ORIGIN);
    bench.answers(70_000, Signal::Success).answers(66_000, Signal::Failure);
    let seen = bench.breaker.window.at(bench.now);
    assert_eq!((seen.successes, seen.failures), (65_535, 65_535));
    bench.for_endpoint(2);
    bench.send(Signal::Failure);
    assert_eq!(bench.breaker.reason(), Some(OpenReason::Share { milli: 500, of: 65_535 }));
}

#[test]
fn generations_wrap_around_without_zero() {
    let mut bench = Bench::opened();
    bench.breaker.generation = u32::MAX;
    bench.breaker.reset();
    let pass = bench.breaker.start(bench.now);
    assert_eq!(pass, Pass { generation: 1, probe: true });
    assert_eq!(bench.send(Signal::Success), None, "0 is no generation of a breaker");
    assert_eq!(bench.standing(), BreakerState::HalfOpen { successes: 0, probing: true });
}

/// Any call of a breaker.
#[derive(Clone, Debug)]
enum Call {
    Start,
    PutBack(u32),
    Answered(u32, Signal, BreakerRule, bool, Option<Duration>),
    Reset,
    ForceClose,
    Trip(Option<i64>),
    Restore(i64, Duration),
}

prop_compose! {
    fn any_rule()(
        in_a_row in 0_u16..4,
        share_milli in any::<u16>(),
        volume in prop_oneof![0_u32..5, any::<u32>()],
        endpoints in any::<u8>(),
        open_for in any_duration(),
    ) -> BreakerRule {
        BreakerRule { in_a_row, share_milli, volume, endpoints, open_for }
    }
}

fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![(0_u64..400_000).prop_map(Duration::from_millis), Just(Duration::ZERO), Just(Duration::MAX)]
}

fn any_call() -> impl Strategy<Value = Call> {
    let signals = vec![Signal::Success, Signal::Failure, Signal::Overload, Signal::Neutral];
    let generation = || prop_oneof![0_u32..8, any::<u32>()];
    let answered = (generation(), prop::sample::select(signals), any_rule(), any::<bool>());
    prop_oneof![
        4 => Just(Call::Start),
        1 => generation().prop_map(Call::PutBack),
        8 => (answered, proptest::option::of(any_duration()))
            .prop_map(|((generation, signal, rule, wait), after)| Call::Answered(generation, signal, rule, wait, after)),
        1 => Just(Call::Reset),
        1 => Just(Call::ForceClose),
        1 => proptest::option::of(any::<i64>()).prop_map(Call::Trip),
        1 => (any::<i64>(), any_duration()).prop_map(|(since, hold)| Call::Restore(since, hold)),
    ]
}

fn any_time() -> impl Strategy<Value = i64> {
    prop_oneof![4 => -100_000_i64..400_000, 1 => any::<i64>(), 1 => Just(i64::MIN), 1 => Just(i64::MAX)]
}

proptest! {
    #[test]
    fn any_order_of_calls_and_any_clock_keeps_the_invariants(
        calls in prop::collection::vec((any_time(), any::<u64>(), any_call()), 1..80),
    ) {
        let mut breaker = Breaker::default();
        for (now, roll, call) in calls {
            let (now, roll) = (Timestamp::from_millis(now), Roll(roll));
            match call {
                Call::Start => {
                    let lets_through = breaker.lets_through(now);
                    prop_assert_eq!(breaker.start(now).probe, lets_through == LetsThrough::Probe);
                }
                Call::PutBack(generation) => breaker.put_back(generation),
                Call::Answered(generation, signal, rule, messages_wait, retry_after) => {
                    let endpoint = EndpointId::from_raw(u64::from(generation % 7));
                    let answer = BreakerAnswer { generation, endpoint, signal, messages_wait, retry_after };
                    let before = breaker.generation;
                    let change = breaker.answered(now, roll, &rule, answer);
                    prop_assert_eq!(change.is_some(), breaker.generation != before);
                    if change == Some(BreakerChange::Opened) && messages_wait {
                        prop_assert!(breaker.until.since(now) <= HOLD_MAX_WAITED);
                    }
                }
                Call::Reset => breaker.reset(),
                Call::ForceClose => breaker.force_close(now),
                Call::Trip(until) => breaker.trip(now, until.map(Timestamp::from_millis)),
                Call::Restore(since, hold) => {
                    breaker = Breaker::restore(Soft { since: Timestamp::from_millis(since), hold });
                }
            }
            let closed = breaker.standing(now) == BreakerState::Closed;
            prop_assert_eq!(closed, breaker.lets_through(now) == LetsThrough::All);
            prop_assert_eq!(closed, breaker.soft().is_none() && breaker.reason().is_none());
            prop_assert!(closed || !breaker.is_as_new(now));
            breaker.is_failing(now);
            breaker.successes_per_second(now);
        }
    }
}
