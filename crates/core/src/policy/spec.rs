//! The fields of a policy as users write them, and their validation: every invalid field is reported at once, with
//! its name and a remedy.
//!
//! Every field is optional; the defaults are the constants below. A field that has no effect with the
//! chosen strategy or jitter is not an error; the preview notes it.

use std::fmt;
use std::time::Duration;

use crate::Tier;
use crate::flow::breaker::{BreakerRule, HOLD_MAX};
use crate::time::human;

use super::jitter::Jitter;
use super::ratio::Ratio;
use super::strategy::Strategy;
use super::{Policy, Variant};

const BASE: Duration = Duration::from_secs(2);
/// The default of `cap` where delays are computed. A list has no cap by default.
const CAP: Duration = Duration::from_secs(60);
/// The default of `max_attempts` where delays are computed. A list makes one more attempt than it has delays.
const ATTEMPTS: u16 = 9;
const MULTIPLIER: f64 = 2.0;
const SHARE: f64 = 0.2;
const RETRY_AFTER: Duration = DAY;

const DAY: Duration = Duration::from_secs(86_400);

/// The shortest wait: a receiver that has just failed must not be tried again at once.
pub const WAIT_MIN: Duration = Duration::from_millis(1);
/// The longest wait: as long as the longest TTL and the default retention, after which no payload is left to send.
pub const WAIT_MAX: Duration = Duration::from_secs(30 * 86_400);
pub const ATTEMPTS_MAX: u16 = 1_000;
/// The most delays in a list: as many as the attempts can use.
pub const DELAYS_MAX: usize = 1_000;
/// The lowest `retry_after_max`. A `Retry-After` has whole seconds, so that with less none would be obeyed.
const RETRY_AFTER_MIN: Duration = Duration::from_secs(1);
const MULTIPLIER_MAX: u32 = 1_000;
/// The highest `min_volume` and `consecutive`: a breaker's window is 30 s and rarely has more answers.
const BREAKER_ANSWERS_MAX: u16 = 10_000;
/// The shortest `open_for`: a shorter hold would not relieve the receiver.
const OPEN_FOR_MIN: Duration = Duration::from_secs(1);
/// How many characters of an invalid value an error repeats.
const ECHO_CHARS_MAX: usize = 40;

/// The fields of a policy, not yet checked. The names are those of the API.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicySpec {
    /// `fixed`, `linear`, `exponential` or `list`. Default: `list` if `delays` is set, else `linear` if `step` is
    /// set, else `exponential`.
    pub strategy: Option<String>,
    /// The first delay of fixed and exponential. Default: 2 s.
    pub base: Option<Duration>,
    /// The factor by which exponential grows. Default: 2.
    pub multiplier: Option<f64>,
    /// The longest delay before jitter. Default: 60 s; for a list none.
    pub cap: Option<Duration>,
    /// The amount by which linear grows. Default: `base` where that is set, else 2 s.
    pub step: Option<Duration>,
    /// The delays of a list. If there are more retries than delays, the last one repeats.
    pub delays: Option<Vec<Duration>>,
    /// How waits are spread. Default: ±20 %.
    pub jitter: JitterSpec,
    /// Attempts in all, the first included. Default: 9; for a list one more than it has delays.
    pub max_attempts: Option<u64>,
    /// How long after its birth a delivery is retried. Default: without limit.
    pub window: Option<Duration>,
    /// The longest `Retry-After` that is obeyed in full. Default: 24 h.
    pub retry_after_max: Option<Duration>,
    pub tiers: TiersSpec,
    pub breaker: BreakerSpec,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct JitterSpec {
    /// `none`, `full`, `equal`, `decorrelated`, `spread` or `add`. Default: `spread`.
    pub kind: Option<String>,
    /// The width of spread and add, as a share of the delay. Default: 0.2.
    pub share: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct TiersSpec {
    /// Default: half the waits, the first retry within 1 s.
    pub transactional: TierSpec,
    /// Default: the waits unchanged.
    pub promotional: TierSpec,
    /// Default: twice the waits.
    pub engagement: TierSpec,
}

/// How one tier changes the waits of a policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TierSpec {
    /// The factor by which waits are multiplied.
    pub scale: Option<f64>,
    /// An upper bound of the first wait, jitter included.
    pub first: Option<Duration>,
}

/// When an endpoint's breaker opens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BreakerSpec {
    /// The share of failures that opens it. Default: 0.5.
    pub failure_rate: Option<f64>,
    /// The least number of answers in 30 s for `failure_rate` to apply. Default: 20.
    pub min_volume: Option<u64>,
    /// The number of failures in a row that opens it as well. Default: 10.
    pub consecutive: Option<u64>,
    /// How long it stays open at first. Default: 30 s.
    pub open_for: Option<Duration>,
}

/// Defaults that the server's settings give for fields of a policy. A field that they leave out keeps the built-in
/// default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyDefaults {
    /// The longest `Retry-After` that is obeyed in full.
    pub retry_after_max: Option<Duration>,
    /// When the breaker of an endpoint opens; also of an origin, except for `consecutive`.
    pub breaker: BreakerSpec,
}

impl PolicyDefaults {
    /// When the breaker of an origin opens. No policy sets it, since one origin may have endpoints with many policies.
    pub fn origin(&self) -> BreakerRule {
        let defaults = Policy::build(&PolicySpec::default().or(self));
        defaults.map_or(BreakerRule::ORIGIN, |policy| policy.breaker().for_origin())
    }
}

impl PolicySpec {
    /// Fills in the server's defaults for fields that are not set.
    #[must_use]
    pub fn or(mut self, defaults: &PolicyDefaults) -> Self {
        let BreakerSpec { failure_rate, min_volume, consecutive, open_for } = &defaults.breaker;
        self.retry_after_max = self.retry_after_max.or(defaults.retry_after_max);
        self.breaker.failure_rate = self.breaker.failure_rate.or(*failure_rate);
        self.breaker.min_volume = self.breaker.min_volume.or(*min_volume);
        self.breaker.consecutive = self.breaker.consecutive.or(*consecutive);
        self.breaker.open_for = self.breaker.open_for.or(*open_for);
        self
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPolicy {
    /// The field's path, such as `base`, `delays[3]` or `tiers.engagement.scale`.
    pub field: String,
    /// What is wrong, and how to correct it.
    pub reason: String,
}

impl fmt::Display for BadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

impl std::error::Error for BadPolicy {}

impl Policy {
    /// Checks a spec; the error lists every invalid field.
    pub fn build(spec: &PolicySpec) -> Result<Self, Vec<BadPolicy>> {
        // After an invalid field the reader continues with a default, so that all errors are collected.
        let mut reader = Reader { spec, wrong: Vec::new(), unused: Vec::new() };
        let strategy = reader.strategy();
        let jitter = reader.jitter();
        let mut policy = Self {
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
        let count = delays.len();
        if !(1..=DELAYS_MAX).contains(&count) {
            let none = r#"a list needs at least one wait; give some, such as ["10s", "2m"], or another strategy"#;
            let many =
                format!("{count} are too many; give at most {DELAYS_MAX}, the last one repeats up to max_attempts");
            self.complain("delays", if count == 0 { none.to_owned() } else { many });
            return vec![BASE];
        }
        // Only the first invalid delay is reported: there may be a thousand.
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
            // Decorrelated needs a bound: the longest listed delay.
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
        let remedy = "1 means one attempt and no retry";
        let written = self.spec.max_attempts;
        written.map_or(default, |written| self.count("max_attempts", written, ATTEMPTS_MAX, remedy))
    }

    fn retry_after_max(&mut self) -> Duration {
        let written = self.spec.retry_after_max.unwrap_or(RETRY_AFTER);
        let remedy = "a receiver's Retry-After is always obeyed";
        self.within("retry_after_max", written, RETRY_AFTER_MIN, WAIT_MAX, remedy)
    }

    fn tiers(&mut self) -> [Variant; 3] {
        Tier::ALL.map(|tier| {
            let (spec, scale, first) = match tier {
                Tier::Transactional => (&self.spec.tiers.transactional, 0.5, Some(Duration::from_secs(1))),
                Tier::Promotional => (&self.spec.tiers.promotional, 1.0, None),
                Tier::Engagement => (&self.spec.tiers.engagement, 2.0, None),
            };
            let written = spec.scale.unwrap_or(scale);
            // A much smaller scale would round to zero, since ratios are exact to the millionth.
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

    fn breaker(&mut self) -> BreakerRule {
        let (spec, default) = (&self.spec.breaker, BreakerRule::ENDPOINT);
        let share_milli = spec.failure_rate.map_or(default.share_milli, |written| self.failure_rate(written));
        let mut answers =
            |field, written| self.count(field, written, BREAKER_ANSWERS_MAX, "leave it out for the default");
        let volume = spec.min_volume.map(|written| answers("breaker.min_volume", written).into());
        let in_a_row = spec.consecutive.map(|written| answers("breaker.consecutive", written));
        let (open_for, remedy) = (spec.open_for.unwrap_or(default.open_for), "it grows with each failed probe");
        let open_for = self.within("breaker.open_for", open_for, OPEN_FOR_MIN, HOLD_MAX, remedy);
        BreakerRule {
            share_milli,
            volume: volume.unwrap_or(default.volume),
            in_a_row: in_a_row.unwrap_or(default.in_a_row),
            open_for,
            ..default
        }
    }

    /// In thousandths.
    fn failure_rate(&mut self, written: f64) -> u16 {
        // Below a hundredth, the failures of a healthy endpoint would open it.
        if !(0.01..=1.0).contains(&written) {
            self.complain("breaker.failure_rate", format!("{written:?} is not from 0.01 to 1; 0.5 means 50%"));
            return BreakerRule::ENDPOINT.share_milli;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 10 to 1000")]
        let milli = (written * 1e3).round() as u16;
        milli
    }

    /// A number from 1 to `most`, or 1 after reporting an error.
    fn count(&mut self, field: &str, written: u64, most: u16, remedy: &str) -> u16 {
        let count = u16::try_from(written).ok().filter(|count| (1..=most).contains(count));
        if count.is_none() {
            self.complain(field, format!("{written} is not from 1 to {most}; {remedy}"));
        }
        count.unwrap_or(1)
    }

    /// The duration as it was written; if it is out of bounds, an error is reported.
    fn within(&mut self, field: &str, written: Duration, low: Duration, high: Duration, remedy: &str) -> Duration {
        if !(low..=high).contains(&written) {
            let [given, low, high] = [written, low, high].map(human);
            self.complain(field, format!("{given} is not from {low} to {high}; {remedy}"));
        }
        written
    }

    /// The wait, or the nearest allowed one after reporting an error.
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

/// The beginning of an invalid value, for an error message.
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

    /// The waits before jitter, in seconds.
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
    fn the_default_strategy_follows_from_the_fields_set() {
        assert_eq!(waits(&listed(&[7, 5])), [7, 5]);
        let linear = PolicySpec { step: Some(Duration::from_secs(20)), ..PolicySpec::default() };
        assert_eq!(waits(&linear), [20, 40, 60, 60, 60, 60, 60, 60]);
        let based = PolicySpec { base: Some(Duration::from_secs(20)), ..named("linear") };
        assert_eq!(waits(&based), [20, 40, 60, 60, 60, 60, 60, 60]);
        assert_eq!(waits(&named("fixed")), [2; 8]);
    }

    #[test]
    fn a_list_is_not_capped_unless_it_sets_a_cap() {
        assert_eq!(waits(&listed(&[10, 86_400])), [10, 86_400]);
        let capped = PolicySpec { cap: Some(Duration::from_secs(60)), ..listed(&[10, 86_400]) };
        assert_eq!(waits(&capped), [10, 60]);
        let repeated = PolicySpec { max_attempts: Some(5), ..listed(&[10, 20]) };
        assert_eq!(waits(&repeated), [10, 20, 20, 20]);
    }

    #[test]
    fn all_invalid_fields_are_reported_at_once_with_a_remedy() {
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
        breaker.open_for: 5m 1s is not from 1s to 5m; it grows with each failed probe
        "#);
    }

    #[test]
    fn unset_breaker_fields_have_the_endpoint_defaults() {
        let rule = |breaker| Policy::build(&PolicySpec { breaker, ..PolicySpec::default() }).expect("valid").breaker();
        assert_eq!(rule(BreakerSpec::default()), BreakerRule::ENDPOINT);
        let written = BreakerSpec {
            failure_rate: Some(0.255),
            min_volume: Some(10_000),
            consecutive: Some(1),
            open_for: Some(Duration::from_secs(300)),
        };
        let expected = BreakerRule {
            in_a_row: 1,
            share_milli: 255,
            volume: 10_000,
            endpoints: 1,
            open_for: Duration::from_secs(300),
        };
        assert_eq!(rule(written), expected);
        let share = |failure_rate| rule(BreakerSpec { failure_rate: Some(failure_rate), ..BreakerSpec::default() });
        assert_eq!((share(0.01).share_milli, share(1.0).share_milli), (10, 1_000));
    }

    #[test]
    fn an_empty_list_and_one_with_too_many_delays_are_refused() {
        insta::assert_snapshot!(complaints(&named("list")), @r#"delays: a list needs at least one wait; give some, such as ["10s", "2m"], or another strategy"#);
        insta::assert_snapshot!(complaints(&listed(&[])), @r#"delays: a list needs at least one wait; give some, such as ["10s", "2m"], or another strategy"#);
        insta::assert_snapshot!(complaints(&listed(&[1; 1_001])), @"delays: 1001 are too many; give at most 1000, the last one repeats up to max_attempts");
        insta::assert_snapshot!(complaints(&listed(&[1, 2, 0, 0])), @"delays[2]: 0s is too short; give 1ms or more");
        let longest = listed(&[1; DELAYS_MAX]);
        assert_eq!(Policy::build(&longest).expect("a valid policy").max_attempts, ATTEMPTS_MAX);
    }

    #[test]
    fn a_cap_below_the_first_wait_and_a_multiplier_that_shrinks_waits_are_refused() {
        let slow = PolicySpec { base: Some(Duration::from_secs(300)), ..PolicySpec::default() };
        insta::assert_snapshot!(complaints(&slow), @"cap: 1m is below the first wait of 5m; set cap to 5m or more");
        for multiplier in [0.0, 0.999, -2.0, 1_000.1, f64::INFINITY, f64::NAN, 1e300] {
            let spec = PolicySpec { multiplier: Some(multiplier), ..PolicySpec::default() };
            assert!(complaints(&spec).starts_with("multiplier: "), "{multiplier}");
        }
    }

    #[test]
    fn an_error_abbreviates_a_long_name() {
        let error = complaints(&named(&"é".repeat(1_000_000)));
        assert!(error.chars().count() < 120, "{error}");
    }

    #[test]
    fn a_policy_overrides_each_server_default_by_itself() {
        let hour = Duration::from_secs(3_600);
        let defaults = PolicyDefaults {
            retry_after_max: Some(hour),
            breaker: BreakerSpec { consecutive: Some(5), min_volume: Some(50), ..BreakerSpec::default() },
        };
        let written = BreakerSpec { consecutive: Some(3), ..BreakerSpec::default() };
        let spec = PolicySpec { breaker: written, ..PolicySpec::default() };
        let policy = Policy::build(&spec.clone().or(&defaults)).expect("a valid policy");
        let rule = policy.breaker();
        assert_eq!((rule.in_a_row, rule.volume, rule.share_milli, policy.retry_after_max()), (3, 50, 500, hour));
        let own = PolicySpec { retry_after_max: Some(2 * hour), ..spec }.or(&defaults);
        assert_eq!(Policy::build(&own).expect("a valid policy").retry_after_max(), 2 * hour);
    }

    #[test]
    fn server_defaults_apply_to_origin_breakers_except_failures_in_a_row() {
        assert_eq!(PolicyDefaults::default().origin(), BreakerRule::ORIGIN);
        let breaker = BreakerSpec {
            failure_rate: Some(0.25),
            min_volume: Some(8),
            consecutive: Some(3),
            open_for: Some(Duration::from_secs(5)),
        };
        let rule = PolicyDefaults { breaker, ..PolicyDefaults::default() }.origin();
        let open_for = Duration::from_secs(5);
        assert_eq!(rule, BreakerRule { share_milli: 250, volume: 8, open_for, ..BreakerRule::ORIGIN });
    }
}
