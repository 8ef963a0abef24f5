//! What people write of a policy, and what is wrong with it: all of it at once, each complaint with
//! the field and the way out.
//!
//! Everything may be left out; the defaults are the constants below. A field that has no part in the
//! chosen strategy or jitter is not an error, but preview says that nothing comes of it.

use std::fmt;
use std::time::Duration;

use crate::flow::breaker::{HOLD_MAX, Rule};
use crate::tier::Tier;
use crate::time::human;

use super::jitter::Jitter;
use super::ratio::Ratio;
use super::strategy::Strategy;
use super::{Policy, Variant};

/// The first delay, where none is given.
const BASE: Duration = Duration::from_secs(2);
/// The longest delay before jitter, where delays are computed. A list is taken as written.
const CAP: Duration = Duration::from_secs(60);
/// Attempts in all, where delays are computed. A list makes one more than it has delays.
const ATTEMPTS: u16 = 9;
const MULTIPLIER: f64 = 2.0;
const SHARE: f64 = 0.2;
const RETRY_AFTER: Duration = DAY;

const DAY: Duration = Duration::from_secs(86_400);

/// A shorter wait would hammer a receiver that has just failed.
pub const WAIT_MIN: Duration = Duration::from_millis(1);
/// As long as the longest TTL and the default retention: nothing is left to retry after it.
pub const WAIT_MAX: Duration = Duration::from_secs(30 * 86_400);
/// More attempts than this are a loop, not a policy.
pub const ATTEMPTS_MAX: u16 = 1_000;
/// As many as the attempts can use.
pub const DELAYS_MAX: usize = 1_000;
/// A `Retry-After` has whole seconds: below one, none would be obeyed.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
/// How often a wait may grow at most from one retry to the next.
const MULTIPLIER_MAX: u32 = 1_000;
/// More answers than this are not waited for: a window has half a minute.
const BREAKER_ANSWERS_MAX: u16 = 10_000;
/// A shorter hold would be no rest.
const OPEN_FOR_MIN: Duration = Duration::from_secs(1);
/// How much of what was written is said back.
const ECHO_CHARS_MAX: usize = 40;

/// A policy as it is written. The names are those of the API.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicySpec {
    /// `fixed`, `linear`, `exponential` or `list`; left out, `delays` make a list, a `step` makes it
    /// linear, and otherwise it is exponential.
    pub strategy: Option<String>,
    /// The first delay of fixed and exponential: 2 s.
    pub base: Option<Duration>,
    /// How exponential grows: 2.
    pub multiplier: Option<f64>,
    /// The longest delay before jitter: 60 s; a list has none unless it is set.
    pub cap: Option<Duration>,
    /// What linear grows by: `base` where that is set, else 2 s.
    pub step: Option<Duration>,
    /// The waits of a list. Where there are more attempts, the last one repeats.
    pub delays: Option<Vec<Duration>>,
    /// How waits are spread: ±20 %.
    pub jitter: JitterSpec,
    /// Attempts in all, the first included: 9; a list makes one more than it has delays.
    pub max_attempts: Option<u64>,
    /// How long after its birth a delivery is retried: without limit.
    pub window: Option<Duration>,
    /// The longest `Retry-After` that is obeyed in full: 24 h.
    pub retry_after_max: Option<Duration>,
    /// What each tier makes of it.
    pub tiers: TiersSpec,
    /// When the endpoint's own breaker opens.
    pub breaker: BreakerSpec,
}

/// How waits are spread, as it is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JitterSpec {
    /// `none`, `full`, `equal`, `decorrelated`, `spread` or `add`: spread.
    pub kind: Option<String>,
    /// How far spread and add go: 0.2.
    pub share: Option<f64>,
}

/// What each tier makes of a policy, as it is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TiersSpec {
    /// Left out: half the waits, the first within 1 s.
    pub transactional: TierSpec,
    /// Left out: the waits as written.
    pub promotional: TierSpec,
    /// Left out: twice the waits.
    pub engagement: TierSpec,
}

/// What one tier makes of a policy, as it is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TierSpec {
    /// What its waits are multiplied by.
    pub scale: Option<f64>,
    /// The first retry comes within this time, or sooner where the policy says so.
    pub first: Option<Duration>,
}

/// When an endpoint's breaker opens, as it is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BreakerSpec {
    /// The share of failures that opens it: 0.5.
    pub failure_rate: Option<f64>,
    /// Among at least this many answers in 30 s: 20.
    pub min_volume: Option<u64>,
    /// This many failures in a row open it as well: 10.
    pub consecutive: Option<u64>,
    /// How long it stays open at first: 30 s.
    pub open_for: Option<Duration>,
}

/// One thing that is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPolicy {
    /// Where: `base`, `delays[3]`, `tiers.engagement.scale`.
    pub field: String,
    /// What, and the way out.
    pub reason: String,
}

impl fmt::Display for BadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

impl std::error::Error for BadPolicy {}

/// Reads the whole spec, complaining as it goes and carrying on with the default.
pub(super) fn build(spec: &PolicySpec) -> Result<Policy, Vec<BadPolicy>> {
    let mut reader = Reader { spec, wrong: Vec::new(), unused: Vec::new() };
    let strategy = reader.strategy();
    let jitter = reader.jitter();
    let mut policy = Policy {
        cap: reader.cap(&strategy, jitter),
        max_attempts: reader.max_attempts(&strategy),
        window: spec.window.map(|window| reader.bounded("window", window)),
        retry_after_max: reader.retry_after_max(),
        tiers: reader.tiers(),
        breaker: reader.breaker(),
        strategy,
        jitter,
        reach: [Duration::ZERO; 3],
        unused: reader.unused,
    };
    if !reader.wrong.is_empty() {
        return Err(reader.wrong);
    }
    policy.reach = Tier::ALL.map(|tier| policy.latest_start(tier));
    Ok(policy)
}

struct Reader<'a> {
    spec: &'a PolicySpec,
    wrong: Vec<BadPolicy>,
    unused: Vec<&'static str>,
}

impl Reader<'_> {
    fn strategy(&mut self) -> Strategy {
        let spec = self.spec;
        let base = self.bounded("base", spec.base.unwrap_or(BASE));
        let step = spec.step.map_or(base, |step| self.bounded("step", step));
        let multiplier = spec.multiplier.unwrap_or(MULTIPLIER);
        let multiplier = Ratio::within(multiplier, 1, MULTIPLIER_MAX).unwrap_or_else(|| {
            let reason = format!("{multiplier:?} is not from 1 to {MULTIPLIER_MAX}; 2 doubles each wait, 1 keeps it");
            self.complain("multiplier", reason);
            Ratio::ONE
        });
        let implied = match spec {
            PolicySpec { delays: Some(_), .. } => "list",
            PolicySpec { step: Some(_), .. } => "linear",
            _ => "exponential",
        };
        let strategy = match spec.strategy.as_deref().unwrap_or(implied) {
            "fixed" => Strategy::Fixed { base },
            "linear" => Strategy::Linear { step },
            "exponential" => Strategy::Exponential { base, multiplier },
            "list" => Strategy::List { delays: self.delays() },
            unknown => {
                self.complain("strategy", none_of(unknown, &Strategy::NAMES));
                return Strategy::Fixed { base };
            }
        };
        let takes_base = match strategy {
            Strategy::Fixed { .. } | Strategy::Exponential { .. } => true,
            Strategy::Linear { .. } => spec.step.is_none(),
            Strategy::List { .. } => false,
        };
        self.name_unused(&[
            ("base", spec.base.is_some() && !takes_base),
            ("multiplier", spec.multiplier.is_some() && strategy.name() != "exponential"),
            ("step", spec.step.is_some() && strategy.name() != "linear"),
            ("delays", spec.delays.is_some() && strategy.name() != "list"),
        ]);
        strategy
    }

    fn delays(&mut self) -> Vec<Duration> {
        let delays = self.spec.delays.as_deref().unwrap_or_default();
        if delays.is_empty() {
            let way_out = r#"a list needs at least one wait; give some, such as ["10s", "2m"], or another strategy"#;
            self.complain("delays", way_out.to_owned());
            return vec![BASE];
        }
        if delays.len() > DELAYS_MAX {
            let reason = format!(
                "{} are too many; give at most {DELAYS_MAX}, the last one repeats up to max_attempts",
                delays.len()
            );
            self.complain("delays", reason);
            return vec![BASE];
        }
        // One complaint stands for all of them: a thousand lines help nobody.
        if let Some(first_bad) = delays.iter().position(|delay| !(WAIT_MIN..=WAIT_MAX).contains(delay)) {
            self.bounded(&format!("delays[{first_bad}]"), delays[first_bad]);
        }
        delays.to_vec()
    }

    fn jitter(&mut self) -> Jitter {
        let spec = &self.spec.jitter;
        let written = spec.share.unwrap_or(SHARE);
        let share = Ratio::within(written, 0, 1).unwrap_or_else(|| {
            self.complain("jitter.share", format!("{written:?} is not from 0 to 1; 0.2 means 20%"));
            Ratio::ONE
        });
        let jitter = match spec.kind.as_deref().unwrap_or("spread") {
            "none" => Jitter::None,
            "full" => Jitter::Full,
            "equal" => Jitter::Equal,
            "decorrelated" => Jitter::Decorrelated,
            "spread" => Jitter::Spread(share),
            "add" => Jitter::Add(share),
            unknown => {
                self.complain("jitter.kind", none_of(unknown, &Jitter::NAMES));
                return Jitter::None;
            }
        };
        let takes_share = matches!(jitter, Jitter::Spread(_) | Jitter::Add(_));
        self.name_unused(&[("jitter.share", spec.share.is_some() && !takes_share)]);
        jitter
    }

    fn cap(&mut self, strategy: &Strategy, jitter: Jitter) -> Duration {
        let default = match strategy {
            // Decorrelated has to end somewhere: at the longest wait that was written.
            Strategy::List { delays } if jitter == Jitter::Decorrelated => delays.iter().copied().max().unwrap_or(CAP),
            Strategy::List { .. } => WAIT_MAX,
            _ => CAP,
        };
        let cap = self.bounded("cap", self.spec.cap.unwrap_or(default));
        let first = strategy.delay(1);
        let is_list = matches!(strategy, Strategy::List { .. });
        let parts = ["strategy", "base", "step", "cap"];
        let parts_are_right = self.wrong.iter().all(|bad| !parts.contains(&bad.field.as_str()));
        if first > cap && !is_list && parts_are_right {
            let (cap, first) = (human(cap), human(first));
            self.complain("cap", format!("{cap} is below the first wait of {first}; set cap to {first} or more"));
        }
        cap
    }

    fn max_attempts(&mut self, strategy: &Strategy) -> u16 {
        let default = match strategy {
            Strategy::List { delays } => u16::try_from(delays.len() + 1).unwrap_or(ATTEMPTS_MAX).min(ATTEMPTS_MAX),
            _ => ATTEMPTS,
        };
        let Some(written) = self.spec.max_attempts else {
            return default;
        };
        match u16::try_from(written) {
            Ok(attempts @ 1..=ATTEMPTS_MAX) => attempts,
            _ => {
                let reason = format!("{written} is not from 1 to {ATTEMPTS_MAX}; 1 means one attempt and no retry");
                self.complain("max_attempts", reason);
                default
            }
        }
    }

    fn retry_after_max(&mut self) -> Duration {
        let written = self.spec.retry_after_max.unwrap_or(RETRY_AFTER);
        if !(RETRY_AFTER_MIN..=WAIT_MAX).contains(&written) {
            let (low, high) = (human(RETRY_AFTER_MIN), human(WAIT_MAX));
            let reason =
                format!("{} is not from {low} to {high}; a receiver's Retry-After is always obeyed", human(written));
            self.complain("retry_after_max", reason);
        }
        written
    }

    fn tiers(&mut self) -> [Variant; 3] {
        Tier::ALL.map(|tier| {
            let (spec, scale, first) = match tier {
                Tier::Transactional => (&self.spec.tiers.transactional, 0.5, Some(Duration::from_secs(1))),
                Tier::Promotional => (&self.spec.tiers.promotional, 1.0, None),
                Tier::Engagement => (&self.spec.tiers.engagement, 2.0, None),
            };
            let written = spec.scale.unwrap_or(scale);
            // To the millionth, a smaller positive scale than this would be none.
            let scale = Ratio::within(written, 0, 100).filter(|_| written >= 0.01).unwrap_or_else(|| {
                let reason = format!("{written:?} is not from 0.01 to 100; 2 doubles each wait, 0.5 halves it");
                self.complain(&format!("tiers.{}.scale", tier.name()), reason);
                Ratio::ONE
            });
            let field = format!("tiers.{}.first", tier.name());
            let first = spec.first.or(first).map(|first| self.bounded(&field, first));
            Variant { scale, first }
        })
    }

    fn breaker(&mut self) -> Rule {
        let (spec, default) = (&self.spec.breaker, Rule::ENDPOINT);
        let share_milli = spec.failure_rate.map_or(default.share_milli, |written| self.failure_rate(written));
        let volume = spec.min_volume.map(|written| self.answers("breaker.min_volume", written).into());
        let in_a_row = spec.consecutive.map(|written| self.answers("breaker.consecutive", written));
        let open_for = spec.open_for.unwrap_or(default.open_for);
        if !(OPEN_FOR_MIN..=HOLD_MAX).contains(&open_for) {
            let (low, high) = (human(OPEN_FOR_MIN), human(HOLD_MAX));
            let reason = format!("{} is not from {low} to {high}; it grows by itself", human(open_for));
            self.complain("breaker.open_for", reason);
        }
        Rule {
            share_milli,
            volume: volume.unwrap_or(default.volume),
            in_a_row: in_a_row.unwrap_or(default.in_a_row),
            open_for,
            ..default
        }
    }

    /// To the thousandth.
    fn failure_rate(&mut self, written: f64) -> u16 {
        // Below a hundredth, the failures of a healthy endpoint would open it.
        if !(0.01..=1.0).contains(&written) {
            self.complain("breaker.failure_rate", format!("{written:?} is not from 0.01 to 1; 0.5 means 50%"));
            return Rule::ENDPOINT.share_milli;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 10 to 1000")]
        let milli = (written * 1e3).round() as u16;
        milli
    }

    fn answers(&mut self, field: &str, written: u64) -> u16 {
        match u16::try_from(written) {
            Ok(answers @ 1..=BREAKER_ANSWERS_MAX) => answers,
            _ => {
                let reason = format!("{written} is not from 1 to {BREAKER_ANSWERS_MAX}; leave it out for the default");
                self.complain(field, reason);
                1
            }
        }
    }

    /// The wait, or the nearest that may be and a complaint.
    fn bounded(&mut self, field: &str, written: Duration) -> Duration {
        let (low, high) = (human(WAIT_MIN), human(WAIT_MAX));
        if written < WAIT_MIN {
            self.complain(field, format!("{} is too short; give {low} or more", human(written)));
        }
        if written > WAIT_MAX {
            self.complain(field, format!("{} is too long; give {high} or less", human(written)));
        }
        written.clamp(WAIT_MIN, WAIT_MAX)
    }

    fn complain(&mut self, field: &str, reason: String) {
        self.wrong.push(BadPolicy { field: field.to_owned(), reason });
    }

    fn name_unused(&mut self, fields: &[(&'static str, bool)]) {
        self.unused.extend(fields.iter().filter(|(_, unused)| *unused).map(|(field, _)| field));
    }
}

fn none_of(written: &str, names: &[&str]) -> String {
    format!("{:?} is none of {}", echo(written), names.join(", "))
}

/// What somebody wrote, as far as it is said back.
pub(super) fn echo(written: &str) -> String {
    let mut echo: String = written.chars().take(ECHO_CHARS_MAX).collect();
    if echo.len() < written.len() {
        echo.push('…');
    }
    echo
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(spec: &PolicySpec) -> String {
        let wrong = Policy::build(spec).expect_err("a bad policy");
        wrong.iter().map(|bad| format!("{bad}\n")).collect()
    }

    fn named(strategy: &str) -> PolicySpec {
        PolicySpec { strategy: Some(strategy.to_owned()), ..PolicySpec::default() }
    }

    fn listed(seconds: &[u64]) -> PolicySpec {
        PolicySpec { delays: Some(seconds.iter().copied().map(Duration::from_secs).collect()), ..PolicySpec::default() }
    }

    /// The waits as written, in seconds.
    fn waits(spec: &PolicySpec) -> Vec<u64> {
        let policy = Policy::build(spec).expect("a valid policy");
        policy.preview(Tier::Promotional, None).waits.iter().map(|wait| wait.after.as_secs()).collect()
    }

    #[test]
    fn an_empty_policy_is_the_documented_default() {
        let policy = Policy::build(&PolicySpec::default()).expect("defaults are valid");
        assert_eq!(waits(&PolicySpec::default()), [2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(policy.jitter, Jitter::Spread(Ratio::within(0.2, 0, 1).expect("a share")));
        assert_eq!((policy.max_attempts, policy.window, policy.retry_after_max), (9, None, DAY));
    }

    #[test]
    fn the_strategy_follows_from_what_is_written() {
        assert_eq!(waits(&listed(&[7, 5])), [7, 5]);
        let linear = PolicySpec { step: Some(Duration::from_secs(20)), ..PolicySpec::default() };
        assert_eq!(waits(&linear), [20, 40, 60, 60, 60, 60, 60, 60]);
        let based = PolicySpec { base: Some(Duration::from_secs(20)), ..named("linear") };
        assert_eq!(waits(&based), [20, 40, 60, 60, 60, 60, 60, 60]);
        assert_eq!(waits(&named("fixed")), [2; 8]);
    }

    #[test]
    fn a_list_is_taken_as_written_unless_it_sets_a_cap() {
        assert_eq!(waits(&listed(&[10, 86_400])), [10, 86_400]);
        let capped = PolicySpec { cap: Some(Duration::from_secs(60)), ..listed(&[10, 86_400]) };
        assert_eq!(waits(&capped), [10, 60]);
        let repeated = PolicySpec { max_attempts: Some(5), ..listed(&[10, 20]) };
        assert_eq!(waits(&repeated), [10, 20, 20, 20]);
    }

    #[test]
    fn everything_wrong_is_said_at_once_with_the_way_out() {
        let tier = TierSpec { scale: Some(0.0), first: Some(Duration::ZERO) };
        let spec = PolicySpec {
            strategy: Some("expo".to_owned()),
            base: Some(Duration::ZERO),
            multiplier: Some(f64::NAN),
            cap: Some(Duration::MAX),
            step: Some(Duration::from_micros(999)),
            delays: None,
            jitter: JitterSpec { kind: Some("some".to_owned()), share: Some(1.5) },
            max_attempts: Some(0),
            window: Some(Duration::ZERO),
            retry_after_max: Some(Duration::ZERO),
            tiers: TiersSpec { engagement: tier, ..TiersSpec::default() },
            breaker: BreakerSpec {
                failure_rate: Some(0.009),
                min_volume: Some(0),
                consecutive: Some(10_001),
                open_for: Some(Duration::from_secs(301)),
            },
        };
        insta::assert_snapshot!(complaints(&spec), @r#"
        base: 0s is too short; give 1ms or more
        step: 0s is too short; give 1ms or more
        multiplier: NaN is not from 1 to 1000; 2 doubles each wait, 1 keeps it
        strategy: "expo" is none of fixed, linear, exponential, list
        jitter.share: 1.5 is not from 0 to 1; 0.2 means 20%
        jitter.kind: "some" is none of none, full, equal, decorrelated, spread, add
        cap: 213503982334601d 7h is too long; give 30d or less
        max_attempts: 0 is not from 1 to 1000; 1 means one attempt and no retry
        window: 0s is too short; give 1ms or more
        retry_after_max: 0s is not from 1s to 30d; a receiver's Retry-After is always obeyed
        tiers.engagement.scale: 0.0 is not from 0.01 to 100; 2 doubles each wait, 0.5 halves it
        tiers.engagement.first: 0s is too short; give 1ms or more
        breaker.failure_rate: 0.009 is not from 0.01 to 1; 0.5 means 50%
        breaker.min_volume: 0 is not from 1 to 10000; leave it out for the default
        breaker.consecutive: 10001 is not from 1 to 10000; leave it out for the default
        breaker.open_for: 5m 1s is not from 1s to 5m; it grows by itself
        "#);
    }

    #[test]
    fn a_breaker_is_the_endpoints_default_where_nothing_else_is_written() {
        let rule = |breaker| Policy::build(&PolicySpec { breaker, ..PolicySpec::default() }).expect("valid").breaker();
        assert_eq!(rule(BreakerSpec::default()), Rule::ENDPOINT);
        let written = BreakerSpec {
            failure_rate: Some(0.255),
            min_volume: Some(10_000),
            consecutive: Some(1),
            open_for: Some(Duration::from_secs(300)),
        };
        let expected =
            Rule { in_a_row: 1, share_milli: 255, volume: 10_000, endpoints: 1, open_for: Duration::from_secs(300) };
        assert_eq!(rule(written), expected);
        let share = |failure_rate| rule(BreakerSpec { failure_rate: Some(failure_rate), ..BreakerSpec::default() });
        assert_eq!((share(0.01).share_milli, share(1.0).share_milli), (10, 1_000));
    }

    #[test]
    fn a_list_needs_waits_and_not_too_many() {
        insta::assert_snapshot!(complaints(&named("list")), @r#"delays: a list needs at least one wait; give some, such as ["10s", "2m"], or another strategy"#);
        insta::assert_snapshot!(complaints(&listed(&[])), @r#"delays: a list needs at least one wait; give some, such as ["10s", "2m"], or another strategy"#);
        insta::assert_snapshot!(complaints(&listed(&[1; 1_001])), @"delays: 1001 are too many; give at most 1000, the last one repeats up to max_attempts");
        insta::assert_snapshot!(complaints(&listed(&[1, 2, 0, 0])), @"delays[2]: 0s is too short; give 1ms or more");
        let longest = listed(&[1; DELAYS_MAX]);
        assert_eq!(Policy::build(&longest).expect("a valid policy").max_attempts, ATTEMPTS_MAX);
    }

    #[test]
    fn a_cap_below_the_first_wait_is_refused_not_applied() {
        let slow = PolicySpec { base: Some(Duration::from_secs(300)), ..PolicySpec::default() };
        insta::assert_snapshot!(complaints(&slow), @"cap: 1m is below the first wait of 5m; set cap to 5m or more");
    }

    #[test]
    fn a_multiplier_that_shrinks_waits_is_refused() {
        for multiplier in [0.0, 0.999, -2.0, 1_000.1, f64::INFINITY, f64::NAN, 1e300] {
            let spec = PolicySpec { multiplier: Some(multiplier), ..PolicySpec::default() };
            assert!(complaints(&spec).starts_with("multiplier: "), "{multiplier}");
        }
    }

    #[test]
    fn a_long_name_is_not_said_back_in_full() {
        let said = complaints(&named(&"é".repeat(1_000_000)));
        assert!(said.chars().count() < 120, "{said}");
    }
}
