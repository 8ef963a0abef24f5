//! A simulation of many clients that change one row: the textbook model for comparing backoff and jitter.
//!
//! Each client reads the row's version and then tries a write, which fails if the version has changed. A client whose
//! write failed waits by its policy and reads again. Every trip over the network takes about 10 ms. The waits come from
//! the policies that the engine uses, with their random rolls.
//!
//! The model's figures are known ([`REFERENCE`]), so that a wrong jitter shows as a wrong figure.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use posthaste_core::policy::{JitterSpec, PolicySpec};
use posthaste_core::{Policy, Roll, Tier};

/// A way of waiting after a failed write.
pub(crate) struct Contender {
    /// The policy of the waits; with `None` clients read again at once.
    policy: Option<Policy>,
}

/// The results of a run, or the averages of many.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ContentionOutcome {
    /// Writes tried by all clients.
    pub(crate) calls: f64,
    /// The time until the last client knew that its write had succeeded, in milliseconds.
    pub(crate) millis: f64,
}

/// The names of the contenders, and their known averages with 100 clients, fewest calls first.
pub(crate) const REFERENCE: [(&str, ContentionOutcome); 6] = [
    ("full", ContentionOutcome { calls: 796.0, millis: 4_920.0 }),
    ("equal", ContentionOutcome { calls: 813.0, millis: 6_605.0 }),
    ("spread", ContentionOutcome { calls: 837.0, millis: 9_358.0 }),
    ("decorrelated", ContentionOutcome { calls: 1_003.0, millis: 4_633.0 }),
    ("exponential", ContentionOutcome { calls: 1_858.0, millis: 63_697.0 }),
    ("none", ContentionOutcome { calls: 2_426.0, millis: 2_031.0 }),
];

impl Contender {
    /// The six contenders of [`REFERENCE`], in its order. Their base is 5 ms, doubled from the first retry on; their
    /// cap is 2 s.
    pub(crate) fn all() -> [Self; 6] {
        let doubled = Duration::from_millis(10);
        [
            Self::new("full", doubled),
            Self::new("equal", doubled),
            Self::new("spread", doubled),
            Self::new("decorrelated", Duration::from_millis(5)),
            Self::new("none", doubled),
            Self { policy: None },
        ]
    }

    fn new(jitter: &str, base: Duration) -> Self {
        let spec = PolicySpec {
            base: Some(base),
            cap: Some(Duration::from_secs(2)),
            jitter: JitterSpec { kind: Some(jitter.to_owned()), share: None },
            max_attempts: Some(1_000),
            ..PolicySpec::default()
        };
        Self { policy: Some(Policy::build(&spec).expect("a valid policy")) }
    }

    /// Runs this many clients with the random numbers of this seed.
    pub(crate) fn run(&self, clients: usize, seed: u64) -> ContentionOutcome {
        let mut dice = fastrand::Rng::with_seed(seed);
        let mut crowd = vec![Client::default(); clients];
        let mut version = 0;
        let (mut calls, mut took) = (0_u64, Duration::ZERO);
        // Ties are broken by the client's number, so that a seed always gives the same run.
        let mut arrivals: BinaryHeap<Reverse<(Duration, usize, Arrival)>> =
            (0..clients).map(|client| Reverse((leg(&mut dice), client, Arrival::Read))).collect();
        while let Some(Reverse((now, number, arrival))) = arrivals.pop() {
            let client = &mut crowd[number];
            match arrival {
                Arrival::Read => {
                    client.read = version;
                    let write_at = now + leg(&mut dice) + leg(&mut dice);
                    arrivals.push(Reverse((write_at, number, Arrival::Write)));
                }
                Arrival::Write => {
                    calls += 1;
                    let answered = now + leg(&mut dice);
                    if client.read == version {
                        version += 1;
                        took = took.max(answered);
                        continue;
                    }
                    let again = answered + self.wait(client, &mut dice) + leg(&mut dice);
                    arrivals.push(Reverse((again, number, Arrival::Read)));
                }
            }
        }
        ContentionOutcome { calls: calls as f64, millis: took.as_secs_f64() * 1e3 }
    }

    /// The average of this many runs with successive seeds.
    pub(crate) fn average(&self, clients: usize, runs: u32, first_seed: u64) -> ContentionOutcome {
        let (mut calls, mut millis) = (0.0, 0.0);
        for run in 0..runs {
            let outcome = self.run(clients, first_seed.wrapping_add(u64::from(run)));
            (calls, millis) = (calls + outcome.calls, millis + outcome.millis);
        }
        ContentionOutcome { calls: calls / f64::from(runs), millis: millis / f64::from(runs) }
    }

    fn wait(&self, client: &mut Client, dice: &mut fastrand::Rng) -> Duration {
        let Some(policy) = &self.policy else {
            return Duration::ZERO;
        };
        client.lost += 1;
        // In the promotional tier waits are unchanged.
        let wait = policy
            .wait(client.lost, Tier::Promotional, client.previous, Roll(dice.u64(..)))
            .expect("no client fails a thousand times");
        client.previous = Some(wait);
        wait
    }
}

/// The orderings between contenders that do not hold for these averages, which are in the order of [`REFERENCE`]. With
/// some fifty clients or more all of them must hold.
pub(crate) fn broken_orderings(averages: &[ContentionOutcome; 6]) -> Vec<String> {
    let [full, equal, spread, decorrelated, exponential, none] = averages;
    let orderings = [
        ("calls: full < equal", full.calls < equal.calls),
        ("calls: equal < spread", equal.calls < spread.calls),
        ("calls: spread < decorrelated", spread.calls < decorrelated.calls),
        ("calls: decorrelated < exponential", decorrelated.calls < exponential.calls),
        ("calls: exponential < none", exponential.calls < none.calls),
        ("time: none < decorrelated", none.millis < decorrelated.millis),
        ("time: none < full", none.millis < full.millis),
        ("time: decorrelated about full", (1.0 / 1.5..1.5).contains(&(decorrelated.millis / full.millis))),
        ("time: decorrelated < equal", decorrelated.millis < equal.millis),
        ("time: full < equal", full.millis < equal.millis),
        ("time: equal < spread", equal.millis < spread.millis),
        ("time: spread far below exponential", 3.0 * spread.millis < exponential.millis),
    ];
    orderings.into_iter().filter(|(_, holds)| !holds).map(|(ordering, _)| ordering.to_owned()).collect()
}

/// A request that reaches the server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Arrival {
    Read,
    Write,
}

#[derive(Clone, Default)]
struct Client {
    read: u64,
    lost: u16,
    previous: Option<Duration>,
}

/// The time of one trip over the network: normally distributed, 10 ms with a deviation of 2 ms.
fn leg(dice: &mut fastrand::Rng) -> Duration {
    let radius = (-2.0 * (1.0 - dice.f64()).ln()).sqrt();
    let normal = radius * (std::f64::consts::TAU * dice.f64()).cos();
    Duration::from_secs_f64((0.010 + 0.002 * normal).abs())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn single_client_writes_once_without_waiting() {
        for (contender, (name, _)) in Contender::all().iter().zip(&REFERENCE) {
            let outcome = contender.run(1, 7);
            assert_eq!(outcome.calls, 1.0, "{name}");
            assert!((20.0..60.0).contains(&outcome.millis), "four legs took {} ms", outcome.millis);
        }
    }

    #[test]
    fn same_seed_gives_the_same_run() {
        let [full, ..] = Contender::all();
        assert_eq!(full.run(50, 3), full.run(50, 3));
        assert_ne!(full.run(50, 3), full.run(50, 4));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        #[test]
        fn orderings_hold_for_every_seed(first_seed in any::<u64>()) {
            let averages = Contender::all().map(|contender| contender.average(50, 60, first_seed));
            prop_assert_eq!(broken_orderings(&averages), Vec::<String>::new(), "{:?}", averages);
        }
    }
}
