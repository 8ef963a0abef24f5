//! Compares range, mean and standard deviation of many drawn waits with the formula of the jitter, for every strategy,
//! jitter and tier, and the first retries.

use std::time::Duration;

use posthaste_core::policy::{JitterSpec, PolicySpec};
use posthaste_core::{Policy, Roll, Tier};

const STRATEGIES: [&str; 4] = ["fixed", "linear", "exponential", "list"];
const JITTERS: [&str; 6] = ["none", "full", "equal", "decorrelated", "spread", "add"];
const RETRIES: u16 = 4;
const SHARE: f64 = 0.3;
/// The base in seconds. Above 2 s, so that half of it is not below the first second of the transactional tier.
const BASE: f64 = 4.0;
const LIST: [f64; 4] = [4.0, 5.0, 40.0, 900.0];
/// The cap in seconds, which cuts some waits and not others. For decorrelated jitter it is so high that no wait reaches
/// it; that case is in `capped_decorrelated`.
const CAP: f64 = 30.0;
const CAP_DECORRELATED: f64 = 86_400.0;

/// A way to draw waits, and their expected distribution.
pub(super) struct SpreadCase {
    /// A description of the waits.
    pub(super) name: String,
    draw: Box<dyn Fn(&mut fastrand::Rng) -> Duration>,
    expected: Expected,
}

/// The distribution of waits according to a formula, in seconds.
#[derive(Clone, Copy, Debug)]
struct Expected {
    low: f64,
    high: f64,
    mean: f64,
    /// The mean of the squares, from which the deviation follows.
    mean_square: f64,
}

/// The difference between drawn waits and their expected distribution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deviation {
    /// The number of waits outside the range.
    pub(super) outside: u64,
    pub(super) mean_percent: f64,
    /// The error of the standard deviation.
    pub(super) sd_percent: f64,
}

impl Deviation {
    /// Whether no wait is outside the range, and the errors of mean and deviation are at most this large.
    pub(super) fn is_within(&self, percent: f64) -> bool {
        self.outside == 0 && self.mean_percent <= percent && self.sd_percent <= percent
    }
}

/// Every combination, and decorrelated jitter with a cap.
pub(super) fn cases() -> Vec<SpreadCase> {
    let mut cases = Vec::new();
    for strategy in STRATEGIES {
        for jitter in JITTERS {
            let policy = Policy::build(&spec(strategy, jitter)).expect("a valid policy");
            for tier in Tier::ALL {
                cases.extend((1..=RETRIES).map(|retry| combination(&policy, strategy, jitter, tier, retry)));
            }
        }
    }
    cases.extend([3.0, 9.0, 25.0].map(capped_decorrelated));
    cases
}

/// The controls: wrong jitters, each of which must be detected.
pub(super) fn controls() -> Vec<SpreadCase> {
    const E: f64 = 10.0;
    const LOW: f64 = E * (1.0 - SHARE);
    const HIGH: f64 = E * (1.0 + SHARE);
    let control = |name: &str, expected, draw: fn(&mut fastrand::Rng) -> f64| SpreadCase {
        name: name.to_owned(),
        draw: Box::new(move |dice| seconds(draw(dice))),
        expected,
    };
    let spread = Expected::even(LOW, HIGH);
    vec![
        control("full, over half its range", Expected::even(0.0, E), |dice| dice.f64() * E / 2.0),
        control("spread, cut at the cap after the roll", spread, |dice| {
            (E * (1.0 - SHARE + 2.0 * SHARE * dice.f64())).min(E)
        }),
        control("spread, only to its two ends", spread, |dice| if dice.bool() { LOW } else { HIGH }),
        control("add, to the other side", Expected::even(E, HIGH), |dice| E * (1.0 - SHARE * dice.f64())),
    ]
}

impl SpreadCase {
    /// Draws this many waits, always from the same seed, and compares them.
    pub(super) fn measure(&self, draws: u32) -> Deviation {
        let Expected { low, high, mean, mean_square } = self.expected;
        // The core counts in whole microseconds.
        let rounding = 2e-6;
        let mut dice = fastrand::Rng::with_seed(9);
        let (mut outside, mut sum, mut sum_square) = (0, 0.0, 0.0);
        for _ in 0..draws {
            let wait = (self.draw)(&mut dice).as_secs_f64();
            outside += u64::from(wait < low - rounding || wait > high + rounding);
            // Relative to the expected mean, for numerical precision.
            sum += wait - mean;
            sum_square += (wait - mean) * (wait - mean);
        }
        let offset = sum / f64::from(draws);
        let sd = (sum_square / f64::from(draws) - offset * offset).max(0.0).sqrt();
        let expected_sd = (mean_square - mean * mean).max(0.0).sqrt();
        // If the expected deviation is zero, its error is relative to the mean.
        let scale = if high - low > rounding { expected_sd } else { mean };
        Deviation {
            outside,
            mean_percent: offset.abs() / mean * 100.0,
            sd_percent: (sd - expected_sd).abs() / scale * 100.0,
        }
    }
}

impl Expected {
    /// The uniform distribution between two values.
    fn even(low: f64, high: f64) -> Self {
        Self { low, high, mean: (low + high) / 2.0, mean_square: (low * low + low * high + high * high) / 3.0 }
    }

    /// The uniform distribution between `base` and three times a value that is distributed as `self`.
    fn tripled(self, base: f64) -> Self {
        Self {
            low: base,
            high: 3.0 * self.high,
            mean: (base + 3.0 * self.mean) / 2.0,
            mean_square: (base * base + 3.0 * base * self.mean + 9.0 * self.mean_square) / 3.0,
        }
    }

    /// The uniform distribution between two values, with values above the cap replaced by it.
    fn cut(low: f64, high: f64, cap: f64) -> Self {
        if high <= cap {
            return Self::even(low, high);
        }
        let (below, above) = ((cap - low) / (high - low), (high - cap) / (high - low));
        let uncut = Self::even(low, cap);
        Self {
            low,
            high: cap,
            mean: below * uncut.mean + above * cap,
            mean_square: below * uncut.mean_square + above * cap * cap,
        }
    }
}

fn spec(strategy: &str, jitter: &str) -> PolicySpec {
    let cap = if jitter == "decorrelated" { CAP_DECORRELATED } else { CAP };
    PolicySpec {
        strategy: Some(strategy.to_owned()),
        base: Some(seconds(BASE)),
        step: Some(seconds(BASE)),
        delays: Some(LIST.map(seconds).to_vec()),
        cap: Some(seconds(cap)),
        jitter: JitterSpec { kind: Some(jitter.to_owned()), share: Some(SHARE) },
        ..PolicySpec::default()
    }
}

fn combination(policy: &Policy, strategy: &str, jitter: &str, tier: Tier, retry: u16) -> SpreadCase {
    let policy = policy.clone();
    let draw = move |dice: &mut fastrand::Rng| {
        let mut wait = None;
        // Only decorrelated jitter depends on the previous wait.
        for number in 1..=retry {
            wait = policy.wait(number, tier, wait, Roll(dice.u64(..)));
        }
        wait.expect("attempts are left")
    };
    SpreadCase {
        name: format!("{strategy}, {jitter}, {}, retry {retry}", tier.name()),
        draw: Box::new(draw),
        expected: expected(strategy, jitter, tier, retry),
    }
}

/// The formulas, written independently of the core.
fn expected(strategy: &str, jitter: &str, tier: Tier, retry: u16) -> Expected {
    let n = f64::from(retry);
    let written = match strategy {
        "fixed" => BASE,
        "linear" => BASE * n,
        "exponential" => BASE * 2_f64.powf(n - 1.0),
        _ => LIST[usize::from(retry) - 1],
    };
    let scale = [0.5, 1.0, 2.0][tier.index()];
    if tier == Tier::Transactional && retry == 1 {
        let shortest = match jitter {
            "none" => 1.0,
            "full" => 0.0,
            "equal" => 0.5,
            "decorrelated" => 1.0 / 3.0,
            _ => 1.0 - SHARE,
        };
        return Expected::even(shortest, 1.0);
    }
    let e = (scale * written).min(CAP);
    match jitter {
        "none" => Expected::even(e, e),
        "full" => Expected::even(0.0, e),
        "equal" => Expected::even(e / 2.0, e),
        "spread" => Expected::even(e * (1.0 - SHARE), e * (1.0 + SHARE)),
        "add" => Expected::even(e, e * (1.0 + SHARE)),
        _ => {
            let base = scale * BASE;
            // The first retry of the transactional tier comes early, and growth starts from the base after it.
            let grown = if tier == Tier::Transactional { retry - 1 } else { retry };
            (0..grown).fold(Expected::even(base, base), |before, _| before.tripled(base))
        }
    }
}

/// A draw of decorrelated jitter after a wait of this many seconds, with a cap that cuts some of the waits.
fn capped_decorrelated(previous: f64) -> SpreadCase {
    let (base, cap) = (2.0, 20.0);
    let policy = Policy::build(&PolicySpec {
        base: Some(seconds(base)),
        cap: Some(seconds(cap)),
        jitter: JitterSpec { kind: Some("decorrelated".to_owned()), share: None },
        ..PolicySpec::default()
    })
    .expect("a valid policy");
    let draw = move |dice: &mut fastrand::Rng| {
        let wait = policy.wait(3, Tier::Promotional, Some(seconds(previous)), Roll(dice.u64(..)));
        wait.expect("attempts are left")
    };
    SpreadCase {
        name: format!("decorrelated after {previous} s, cut at {cap} s"),
        draw: Box::new(draw),
        expected: Expected::cut(base, 3.0 * previous, cap),
    }
}

fn seconds(count: f64) -> Duration {
    Duration::from_secs_f64(count)
}
