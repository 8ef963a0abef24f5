//! Invariants of every valid policy and of the errors for invalid ones.

use proptest::option::of;
use proptest::prelude::{Strategy, *};

use super::*;

/// Plausible durations, and some extreme ones.
fn any_wait() -> impl Strategy<Value = Duration> {
    prop_oneof![
        8 => (1_u64..3_600_000).prop_map(Duration::from_millis),
        1 => (0_u64..u64::MAX).prop_map(Duration::from_micros),
        1 => prop::sample::select(vec![Duration::ZERO, WAIT_MIN, WAIT_MAX, Duration::MAX]),
    ]
}

fn any_number(sensible: std::ops::Range<f64>) -> impl Strategy<Value = f64> {
    prop_oneof![9 => sensible, 1 => any::<f64>()]
}

fn any_name(names: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop_oneof![19 => prop::sample::select(names).prop_map(str::to_owned), 1 => ".{0,60}"]
}

fn any_tier_spec() -> impl Strategy<Value = TierSpec> {
    (of(any_number(0.01..4.0)), of(any_wait())).prop_map(|(scale, first)| TierSpec { scale, first })
}

fn any_count() -> impl Strategy<Value = Option<u64>> {
    of(prop_oneof![9 => 1_u64..40, 1 => any::<u64>()])
}

prop_compose! {
    fn any_breaker()(
        failure_rate in of(any_number(0.01..1.0)),
        min_volume in any_count(),
        consecutive in any_count(),
        open_for in of(prop_oneof![9 => (1_u64..=300).prop_map(Duration::from_secs), 1 => any_wait()]),
    ) -> BreakerSpec {
        BreakerSpec { failure_rate, min_volume, consecutive, open_for }
    }
}

prop_compose! {
    fn any_spec()(
        (strategy, kind) in (of(any_name(&strategy::Strategy::NAMES)), of(any_name(&Jitter::NAMES))),
        (multiplier, share) in (of(any_number(1.0..4.0)), of(any_number(0.0..1.0))),
        [base, cap, step, window, retry_after_max] in prop::array::uniform5(of(any_wait())),
        delays in of(prop::collection::vec(any_wait(), 0..12)),
        max_attempts in any_count(),
        [transactional, promotional, engagement] in prop::array::uniform3(any_tier_spec()),
        breaker in any_breaker(),
    ) -> PolicySpec {
        let (jitter, tiers) = (JitterSpec { kind, share }, TiersSpec { transactional, promotional, engagement });
        PolicySpec {
            strategy, base, multiplier, cap, step, delays, jitter, max_attempts, window, retry_after_max, tiers, breaker,
        }
    }
}

fn any_policy() -> impl Strategy<Value = Policy> {
    any_spec().prop_filter_map("a bad policy", |spec| Policy::build(&spec).ok())
}

fn any_tier() -> impl Strategy<Value = Tier> {
    prop::sample::select(&Tier::ALL[..])
}

/// Rolls that reach both ends more often than random ones would.
fn any_roll() -> impl Strategy<Value = Roll> {
    prop_oneof![Just(0), Just(u64::MAX), any::<u64>()].prop_map(Roll)
}

/// The starts of every retry, as `settle` schedules them.
fn starts(policy: &Policy, tier: Tier, rolls: &[Roll]) -> Vec<Duration> {
    let (mut starts, mut previous, mut at) = (Vec::new(), None, Duration::ZERO);
    for (retry, roll) in (1..).zip(rolls.iter().cycle()) {
        let Some(wait) = policy.wait(retry, tier, previous, *roll) else { break };
        at += wait;
        previous = Some(wait);
        starts.push(at);
    }
    starts
}

proptest! {
    #[test]
    fn any_spec_either_builds_or_reports_an_error(spec in any_spec()) {
        match Policy::build(&spec) {
            Ok(policy) => prop_assert!(policy.max_attempts() >= 1),
            Err(wrong) => {
                prop_assert!(!wrong.is_empty());
                prop_assert!(wrong.iter().all(|bad| !bad.field.is_empty() && !bad.reason.is_empty()));
            }
        }
    }

    #[test]
    fn a_wait_exists_exactly_while_attempts_are_left(
        policy in any_policy(), retry in any::<u16>(), tier in any_tier(), previous in of(any::<Duration>()), roll in any_roll(),
    ) {
        let wait = policy.wait(retry, tier, previous, roll);
        prop_assert_eq!(wait.is_some(), retry < policy.max_attempts());
        prop_assert!(wait.unwrap_or_default() <= WAIT_MAX * 2, "a wait is at most the cap plus jitter");
    }

    #[test]
    fn every_wait_is_in_the_range_that_preview_shows(
        policy in any_policy(), tier in any_tier(), rolls in prop::collection::vec(any_roll(), 1..40),
    ) {
        let policy = Policy { window: None, ..policy };
        let preview = policy.preview(tier, None);
        let mut before = Duration::ZERO;
        for (wait, start) in preview.waits.iter().zip(starts(&policy, tier, &rolls)) {
            let drawn = start - before;
            prop_assert!(wait.earliest <= drawn && drawn <= wait.latest, "{drawn:?} is not within {wait:?}");
            prop_assert!(drawn <= preview.largest_wait);
            before = start;
        }
        prop_assert_eq!(preview.waits.len(), usize::from(policy.max_attempts()) - 1);
    }

    #[test]
    fn an_outage_that_preview_says_is_survived_is_survived(
        policy in any_policy(), tier in any_tier(), ttl in of(any_wait()), rolls in prop::collection::vec(any_roll(), 1..40),
    ) {
        let survives = policy.preview(tier, ttl).survives;
        let in_time = |start: &Duration| {
            ttl.is_none_or(|ttl| *start < ttl) && policy.window().is_none_or(|window| *start <= window)
        };
        let last = starts(&policy, tier, &rolls).into_iter().take_while(in_time).last().unwrap_or_default();
        // Due times are whole milliseconds, and so are the figures of a preview with a TTL.
        prop_assert!(last + Duration::from_millis(1) >= survives, "last at {last:?}, preview says {survives:?}");
    }

    #[test]
    fn a_bounded_first_retry_is_never_late(policy in any_policy(), previous in of(any::<Duration>()), roll in any_roll()) {
        let written = policy.strategy.delay(1);
        for tier in Tier::ALL {
            let Some(first) = policy.variant(tier).first else { continue };
            let wait = policy.wait(1, tier, previous, roll).unwrap_or_default();
            prop_assert!(wait <= first && wait <= written);
        }
    }

    #[test]
    fn a_capped_wait_is_still_spread(policy in any_policy(), retry in 2_u16..40, tier in any_tier()) {
        let Jitter::Spread(share) = policy.jitter else { return Ok(()) };
        if share.of(policy.cap).is_zero() || retry >= policy.max_attempts() {
            return Ok(());
        }
        let ends = [Roll(0), Roll(u64::MAX)].map(|roll| policy.wait(retry, tier, None, roll));
        prop_assert!(share.of(policy.aim(retry, tier)).is_zero() || ends[0] < ends[1], "no spread is left at {ends:?}");
    }
}

#[test]
fn the_survived_outage_is_the_worst_case() {
    // 10 s ± 20 %, nine retries at most, within 30 s: 8 + 8 + 8 s can be all there is before a wait
    // of 12 s misses the window, but 18 s + 12.000001 s misses it as well.
    let fixed = PolicySpec::every(Duration::from_secs(10));
    let window = Some(Duration::from_secs(30));
    let spec = PolicySpec { window, jitter: JitterSpec::default(), ..fixed };
    let policy = Policy::build(&spec).expect("a valid policy");
    assert_eq!(policy.preview(Tier::Promotional, None).survives, Duration::from_secs(18));
}

#[test]
fn transactional_halves_engagement_doubles_and_the_cap_holds_for_both() {
    let spec = PolicySpec {
        base: Some(Duration::from_secs(20)),
        jitter: preset::plain("none"),
        max_attempts: Some(5),
        ..PolicySpec::default()
    };
    let policy = Policy::build(&spec).expect("a valid policy");
    let waits = |tier| {
        (1..5).map(|retry| policy.wait(retry, tier, None, Roll(0)).map(|wait| wait.as_secs())).collect::<Vec<_>>()
    };
    assert_eq!(waits(Tier::Transactional), [Some(1), Some(20), Some(40), Some(60)]);
    assert_eq!(waits(Tier::Promotional), [Some(20), Some(40), Some(60), Some(60)]);
    assert_eq!(waits(Tier::Engagement), [Some(40), Some(60), Some(60), Some(60)]);
}

#[test]
fn a_policy_may_set_the_waits_of_each_tier() {
    let spec = PolicySpec {
        jitter: preset::plain("none"),
        tiers: TiersSpec {
            transactional: TierSpec { scale: Some(1.0), first: Some(Duration::from_millis(250)) },
            promotional: TierSpec { scale: Some(3.0), first: None },
            engagement: TierSpec { scale: None, first: Some(Duration::from_secs(3)) },
        },
        ..PolicySpec::default()
    };
    let policy = Policy::build(&spec).expect("a valid policy");
    let waits =
        |tier| [1, 2].map(|retry| policy.wait(retry, tier, None, Roll(0)).expect("attempts are left").as_millis());
    assert_eq!(Tier::ALL.map(waits), [[250, 4_000], [6_000, 12_000], [2_000, 8_000]]);
}
