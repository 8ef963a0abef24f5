//! Tests of the limit after each kind of outcome, and a simulation: on receivers of unknown capacity the limit comes
//! close to the best fixed one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::*;
use crate::Roll;

const MOST: u16 = 64;
const QUICK: Duration = Duration::from_millis(20);

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

/// `count` successes of a destination with as many attempts in flight as its limit allows.
fn succeed(limit: &mut Concurrency, count: u32, now: i64, took: Duration) {
    for _ in 0..count {
        let in_flight = limit.limit(MOST);
        limit.succeeded(at(now), took, in_flight, MOST);
    }
}

/// A destination whose limit has grown to `wanted`.
fn grown_to(wanted: u16) -> Concurrency {
    let mut limit = Concurrency::default();
    while limit.limit(MOST) < wanted {
        succeed(&mut limit, 1, 0, QUICK);
    }
    limit
}

#[test]
fn a_limit_begins_at_four_and_a_round_of_successes_raises_it_by_one_if_it_was_used() {
    let mut limit = Concurrency::default();
    assert_eq!((limit.limit(MOST), limit.latency(), limit.is_slow()), (4, Duration::from_millis(100), false));
    (0..1_000).for_each(|_| limit.succeeded(at(0), QUICK, 1, MOST));
    assert_eq!(limit.limit(MOST), 4, "it was not used");
    succeed(&mut limit, 3, 0, QUICK);
    assert_eq!(limit.limit(MOST), 4);
    succeed(&mut limit, 1, 0, QUICK);
    assert_eq!(limit.limit(MOST), 5);
    succeed(&mut limit, 5, 0, QUICK);
    assert_eq!(limit.limit(MOST), 6);
}

#[test]
fn the_limit_stays_within_what_the_endpoint_allows() {
    let mut limit = grown_to(20);
    assert_eq!((limit.limit(8), limit.limit(1), limit.limit(0)), (8, 1, 1));
    (0..1_000).for_each(|_| limit.succeeded(at(0), QUICK, 8, 8));
    assert_eq!(limit.limit(8), 8);
    assert_eq!(limit.limit(MOST), 8, "a limit that was not used has to grow again");
    let mut limit = Concurrency::default();
    limit.succeeded(at(0), DRAWN_OUT, 0, 1);
    assert_eq!(limit.limit(u16::MAX), 1, "also after a success that took long");
}

#[test]
fn an_overload_halves_the_limit_once() {
    let mut limit = grown_to(32);
    limit.overloaded(at(1_000));
    (1_001..1_100).for_each(|now| limit.overloaded(at(now)));
    assert_eq!(limit.limit(MOST), 16);
    limit.overloaded(at(1_100));
    assert_eq!(limit.limit(MOST), 8);
    (2..20).for_each(|n| limit.overloaded(at(n * 1_000)));
    assert_eq!(limit.limit(MOST), 1);

    let mut limit = Concurrency::default();
    limit.overloaded(at(3_600_000));
    limit.overloaded(at(0));
    assert_eq!(limit.limit(MOST), 1, "a clock set back does not put off the next cut");
}

#[test]
fn cuts_are_a_latency_apart_but_no_longer_than_half_a_minute() {
    for (took, apart) in [(3, 3_000), (40, 30_000)] {
        let mut limit = Concurrency::default();
        limit.timed_out(at(0), Duration::from_secs(took));
        limit.overloaded(at(apart - 1));
        assert_eq!(limit.limit(MOST), 2, "{took} s");
        limit.overloaded(at(apart));
        assert_eq!(limit.limit(MOST), 1, "{took} s");
    }
}

#[test]
fn an_answer_that_took_twenty_seconds_counts_as_an_overload_and_a_quicker_failure_changes_nothing() {
    let drip = Duration::from_millis(29_999);
    let mut succeeds = grown_to(8);
    succeeds.succeeded(at(0), drip, 8, MOST);
    assert_eq!(succeeds.limit(MOST), 4);
    let mut fails = grown_to(8);
    let before = fails;
    fails.failed(at(0), Duration::from_secs(19));
    assert_eq!(fails, before);
    fails.failed(at(0), drip);
    assert_eq!(fails.limit(MOST), 4);
    for n in 1..10 {
        succeeds.succeeded(at(n * 30_000), drip, 1, MOST);
    }
    assert_eq!(succeeds.limit(MOST), 1);
    assert!(succeeds.is_slow());
}

#[test]
fn a_destination_that_only_times_out_is_slow() {
    let mut limit = Concurrency::default();
    limit.timed_out(at(0), Duration::from_secs(15));
    assert!(limit.is_slow());
    assert_eq!(limit.latency(), Duration::from_secs(15));
}

#[test]
fn the_limit_does_not_grow_while_latency_is_much_higher_than_before() {
    let mut limit = grown_to(20);
    succeed(&mut limit, 100, 0, 3 * QUICK);
    let held = limit.limit(MOST);
    assert!(!limit.latency_holds());
    succeed(&mut limit, 1_000, 0, 3 * QUICK);
    assert_eq!(limit.limit(MOST), held);
}

#[test]
fn the_limit_grows_again_minutes_after_latency_rose_for_good() {
    // In the second round the clock has been set back by an hour.
    for start in [0, -3_600_000] {
        let mut limit = grown_to(20);
        let held_for = (1..600).find(|seconds| {
            succeed(&mut limit, 20, start + seconds * 1_000, 100 * QUICK);
            *seconds > 10 && limit.latency_holds()
        });
        let held_for = held_for.expect("not for ever");
        assert!((60..240).contains(&held_for), "{held_for} s");
        succeed(&mut limit, 1_000, start + held_for * 1_000, 100 * QUICK);
        assert!(limit.limit(MOST) > 30);
    }
}

#[test]
fn the_limit_of_the_last_overload_is_tried_again_after_many_rounds() {
    let mut limit = grown_to(8);
    limit.overloaded(at(0));
    succeed(&mut limit, 4 + 5 + 6, 0, QUICK);
    assert_eq!(limit.limit(MOST), 7);
    succeed(&mut limit, 7 * 64 - 1, 0, QUICK);
    assert_eq!(limit.limit(MOST), 7);
    succeed(&mut limit, 1, 0, QUICK);
    assert_eq!(limit.limit(MOST), 8);
    succeed(&mut limit, 8, 0, QUICK);
    assert_eq!(limit.limit(MOST), 9, "once it caused no overload, the limit grows normally again");
}

#[derive(Clone, Debug)]
enum Outcome {
    Succeeded { in_flight: u16, most: u16 },
    Failed,
    TimedOut,
    Overloaded,
}

fn outcomes() -> impl Strategy<Value = Vec<(i64, u64, Outcome)>> {
    let outcome = prop_oneof![
        (any::<u16>(), any::<u16>()).prop_map(|(in_flight, most)| Outcome::Succeeded { in_flight, most }),
        Just(Outcome::Succeeded { in_flight: u16::MAX, most: u16::MAX }),
        Just(Outcome::Failed),
        Just(Outcome::TimedOut),
        Just(Outcome::Overloaded),
    ];
    let time = prop_oneof![any::<i64>(), 0..100_000i64];
    let took = prop_oneof![any::<u64>(), 0..100_000u64];
    prop::collection::vec((time, took, outcome), 1..60)
}

proptest! {
    #[test]
    fn no_sequence_of_outcomes_overflows_or_leaves_the_bounds(outcomes in outcomes()) {
        let mut limit = Concurrency::default();
        for (now, took, outcome) in outcomes {
            let (now, took) = (at(now), Duration::from_micros(took));
            match outcome {
                Outcome::Succeeded { in_flight, most } => {
                    limit.succeeded(now, took, in_flight, most);
                    prop_assert!(limit.limit(u16::MAX) <= most.max(1));
                }
                Outcome::Failed => limit.failed(now, took),
                Outcome::TimedOut => limit.timed_out(now, took),
                Outcome::Overloaded => limit.overloaded(now),
            }
            prop_assert!((1..=3).contains(&limit.limit(3)));
            prop_assert!(limit.latency() > Duration::ZERO);
        }
    }
}

/// A receiver with a number of workers, each busy with one request at a time.
struct Receiver {
    name: &'static str,
    service: Duration,
    workers: usize,
    /// How many requests may wait for a worker; the receiver answers 503 to others.
    room: usize,
}

const ENDLESS: usize = usize::MAX / 2;

const RECEIVERS: [Receiver; 5] = [
    Receiver { name: "10 ms, no room", service: Duration::from_millis(10), workers: 8, room: 0 },
    Receiver { name: "50 ms, no room", service: Duration::from_millis(50), workers: 40, room: 0 },
    Receiver { name: "200 ms, slows down", service: Duration::from_millis(200), workers: 4, room: ENDLESS },
    Receiver { name: "1 s, a little room", service: Duration::from_secs(1), workers: 16, room: 4 },
    Receiver { name: "5 s, slows down", service: Duration::from_secs(5), workers: 3, room: ENDLESS },
];

const TIMEOUT: Duration = Duration::from_secs(30);

/// The limit under test: fixed or adaptive.
enum Decides {
    Fixed(u16),
    Learning(Concurrency),
}

impl Decides {
    fn limit(&self) -> u16 {
        match self {
            Self::Fixed(limit) => *limit,
            Self::Learning(learning) => learning.limit(MOST),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Served,
    TurnedAway,
    Nothing,
}

/// How many requests a receiver served in time, and how many it refused or let time out, when there is
/// always more to send.
fn goodput(receiver: &Receiver, mut decides: Decides) -> (u32, u32) {
    let horizon = receiver.service * 1_000;
    let refusal = receiver.service / 4;
    let mut free_at: BinaryHeap<Reverse<Duration>> = vec![Reverse(Duration::ZERO); receiver.workers].into();
    // When the receiver has finished each request it accepted, also after our timeout.
    let mut taken: BinaryHeap<Reverse<Duration>> = BinaryHeap::new();
    let mut answers: BinaryHeap<Reverse<(Duration, Answer, Duration)>> = BinaryHeap::new();
    let (mut now, mut sent, mut served, mut lost) = (Duration::ZERO, 0, 0, 0);
    while now < horizon {
        while answers.len() < usize::from(decides.limit()) {
            sent += 1;
            while taken.peek().is_some_and(|Reverse(until)| *until <= now) {
                taken.pop();
            }
            if taken.len() >= receiver.workers.saturating_add(receiver.room) {
                answers.push(Reverse((now + refusal, Answer::TurnedAway, refusal)));
                continue;
            }
            let Reverse(free) = free_at.pop().expect("one for each worker");
            let work = Roll(1).fork(sent).between(receiver.service / 2, receiver.service * 3 / 2);
            let done = free.max(now) + work;
            free_at.push(Reverse(done));
            taken.push(Reverse(done));
            let took = done - now;
            let (took, answer) = if took > TIMEOUT { (TIMEOUT, Answer::Nothing) } else { (took, Answer::Served) };
            answers.push(Reverse((now + took, answer, took)));
        }
        let in_flight = u16::try_from(answers.len()).expect("never above 64 by much");
        let Reverse((when, answer, took)) = answers.pop().expect("the limit is at least one");
        now = when;
        match answer {
            Answer::Served => served += 1,
            Answer::TurnedAway | Answer::Nothing => lost += 1,
        }
        if let Decides::Learning(learning) = &mut decides {
            let now = Timestamp::default() + now;
            match answer {
                Answer::Served => learning.succeeded(now, took, in_flight, MOST),
                Answer::TurnedAway => learning.overloaded(now),
                Answer::Nothing => learning.timed_out(now, took),
            }
        }
    }
    (served, lost)
}

#[test]
fn goodput_is_within_a_tenth_of_the_best_fixed_limit_with_few_refusals() {
    for receiver in &RECEIVERS {
        let (best, limit) = (1..=MOST)
            .map(|limit| (goodput(receiver, Decides::Fixed(limit)).0, limit))
            .max_by_key(|(served, limit)| (*served, Reverse(*limit)))
            .expect("sixty-four limits");
        let (served, lost) = goodput(receiver, Decides::Learning(Concurrency::default()));
        let name = receiver.name;
        assert!(served * 10 >= best * 9, "{name}: {served} of {best}, which a limit of {limit} gets");
        assert!(lost * 100 <= served, "{name}: {lost} lost of {served}");
    }
}
