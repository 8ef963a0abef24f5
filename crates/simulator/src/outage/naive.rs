//! Retry policies without any protection of the receiver, for comparison. None of them gives up: they are compared by
//! their load, not by what they lose.

use std::time::Duration;

use posthaste_core::Policy;
use posthaste_core::policy::{ATTEMPTS_MAX, JitterSpec, PolicySpec};

/// A naive retry policy.
#[derive(Clone, Copy, Debug)]
pub struct Naive {
    /// Its name on the command line.
    pub name: &'static str,
    /// A short description.
    pub does: &'static str,
    spec: fn() -> PolicySpec,
}

/// Every 60 seconds.
pub const FIXED: Naive = Naive { name: "naive-fixed", does: "every 60 s", spec: fixed };
/// Doubling from 10 seconds to an hour.
pub const EXPONENTIAL: Naive = Naive { name: "naive-exponential", does: "10 s doubling to 1 h", spec: exponential };
/// [`EXPONENTIAL`] with jitter.
pub const SPREAD: Naive = Naive { name: "naive-spread", does: "10 s doubling to 1 h, ±20 %", spec: spread };
/// The waits of the preset `webhook`.
pub const SCHEDULE: Naive =
    Naive { name: "naive-schedule", does: "10 s, 30 s, 2 min … 24 h, ±20 %", spec: schedule };

pub const ALL: [Naive; 4] = [FIXED, EXPONENTIAL, SPREAD, SCHEDULE];

impl Naive {
    pub fn named(name: &str) -> Option<Self> {
        ALL.into_iter().find(|naive| naive.name == name)
    }

    /// The policy as the core uses it.
    pub fn policy(self) -> Policy {
        let spec = PolicySpec { max_attempts: Some(u64::from(ATTEMPTS_MAX)), ..(self.spec)() };
        Policy::build(&spec).expect("naive policies are valid: a test builds each of them")
    }
}

fn fixed() -> PolicySpec {
    PolicySpec {
        strategy: Some("fixed".to_owned()),
        base: Some(Duration::from_secs(60)),
        jitter: jitter("none"),
        ..PolicySpec::default()
    }
}

fn exponential() -> PolicySpec {
    PolicySpec {
        strategy: Some("exponential".to_owned()),
        base: Some(Duration::from_secs(10)),
        cap: Some(Duration::from_secs(3_600)),
        jitter: jitter("none"),
        ..PolicySpec::default()
    }
}

fn spread() -> PolicySpec {
    PolicySpec { jitter: JitterSpec::default(), ..exponential() }
}

fn schedule() -> PolicySpec {
    PolicySpec::preset("webhook").expect("the preset is there")
}

fn jitter(kind: &str) -> JitterSpec {
    JitterSpec { kind: Some(kind.to_owned()), share: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_core::{Roll, Tier};

    #[test]
    fn naive_policies_wait_as_described_and_never_give_up() {
        let waits = |naive: Naive, roll| {
            let policy = naive.policy();
            [1, 2, 3, 10, 999].map(|retry| {
                let wait = policy.wait(retry, Tier::Promotional, None, Roll(roll));
                wait.expect("there is always another try").as_secs()
            })
        };
        assert_eq!(waits(FIXED, 0), [60; 5]);
        assert_eq!(waits(EXPONENTIAL, 0), [10, 20, 40, 3_600, 3_600]);
        assert_eq!(waits(SPREAD, 0), [8, 16, 32, 2_880, 2_880]);
        assert_eq!(waits(SPREAD, u64::MAX), [12, 24, 48, 4_320, 4_320]);
        assert_eq!(waits(SCHEDULE, 0), [8, 24, 96, 69_120, 69_120]);
        for naive in ALL {
            assert_eq!(Naive::named(naive.name).map(|found| found.name), Some(naive.name));
        }
    }
}
