//! Snapshots of the preview's tables, sentences and notes.

use super::super::{JitterSpec, PolicySpec, preset};
use super::*;

fn webhook(tier: Tier, ttl: Option<u64>) -> Preview {
    Policy::default().preview(tier, ttl.map(Duration::from_secs))
}

fn jittered(kind: &str) -> PolicySpec {
    PolicySpec { jitter: preset::plain(kind), ..PolicySpec::default() }
}

fn preview(spec: &PolicySpec) -> Preview {
    Policy::build(spec).expect("a valid policy").preview(Tier::Promotional, None)
}

#[test]
fn the_table_is_readable() {
    insta::assert_snapshot!(webhook(Tier::Promotional, None).table(), @r"
    retry  wait  earliest  latest  since accept
        1   10s        8s     12s           10s
        2   30s       24s     36s           40s
        3    2m    1m 36s  2m 24s        2m 40s
        4   10m        8m     12m       12m 40s
        5   30m       24m     36m       42m 40s
        6    2h    1h 36m  2h 24m        2h 42m
        7    8h    6h 24m  9h 36m       10h 42m
        8    1d   19h 12m   1d 4h        1d 10h
    largest wait: 1d 4h
    survives for certain: 1d 3h
    ");
    insta::assert_snapshot!(webhook(Tier::Transactional, Some(86_400)).table(), @r"
    retry  wait  earliest   latest  since accept
        1    1s     800ms       1s            1s
        2   15s       12s      18s           16s
        3    1m       48s   1m 12s        1m 16s
        4    5m        4m       6m        6m 16s
        5   15m       12m      18m       21m 16s
        6    1h       48m   1h 12m        1h 21m
        7    4h    3h 12m   4h 48m        5h 21m
        8   12h    9h 36m  14h 24m       17h 21m
    largest wait: 14h 24m
    survives for certain: 13h 53m
    note: transactional: the first retry comes within 1s; jitter only shortens it
    ");
}

#[test]
fn the_text_describes_every_kind_of_policy() {
    insta::assert_snapshot!(webhook(Tier::Promotional, None).text, @"Tries 9 times over about 1d 10h: at once, then after 10s, 30s, 2m, 10m, 30m, 2h, 8h and 1d, each give or take 20%. Survives an outage of up to 1d 3h; a message still not delivered then becomes a dead letter.");
    insta::assert_snapshot!(webhook(Tier::Transactional, None).text, @"Tries 9 times over about 17h 21m: at once, then within 1s, then after 15s, 1m, 5m, 15m, 1h, 4h and 12h, each give or take 20%. Survives an outage of up to 13h 53m; a message still not delivered then becomes a dead letter.");
    insta::assert_snapshot!(webhook(Tier::Engagement, None).text, @"Tries 9 times over about 2d 21h: at once, then after 20s, 1m, 4m, 20m, 1h, 4h, 16h and 2d, each give or take 20%. Survives an outage of up to 2d 7h; a message still not delivered then becomes a dead letter.");
    insta::assert_snapshot!(Policy::preset("fixed").expect("a preset").preview(Tier::Promotional, None).text, @"Tries 5 times over about 4m: at once, then after 4 × 1m. Survives an outage of up to 4m; a message still not delivered then becomes a dead letter.");
    insta::assert_snapshot!(preview(&jittered("full")).text, @"Tries 9 times over about 2m 1s: at once, then after 2s, 4s, 8s, 16s, 32s and 3 × 1m, each cut at random to anything below. Survives no outage for certain, since jitter may make every wait next to nothing; a message still not delivered then becomes a dead letter.");
    insta::assert_snapshot!(preview(&jittered("decorrelated")).text, @"Tries 9 times over about 3m 52s: at once, then after 4s, 7s, 11s, 18s, 28s, 43s, 1m and 1m, each drawn at random, up to three times the one before and never above 1m. Survives an outage of up to 16s; a message still not delivered then becomes a dead letter.");
    insta::assert_snapshot!(preview(&PolicySpec { max_attempts: Some(1), ..PolicySpec::default() }).text, @"Tries once; there is no retry. Survives no outage; a message that fails becomes a dead letter.");
}

#[test]
fn a_ttl_shortens_the_schedule_and_is_named_in_the_text() {
    insta::assert_snapshot!(webhook(Tier::Promotional, Some(0)).text, @"Tries once, within 5s of accept, or never. Survives no outage; a message that fails expires.");
    insta::assert_snapshot!(webhook(Tier::Promotional, Some(1)).text, @"Tries once; no retry fits into its TTL of 1s. Survives no outage; a message that fails expires.");
    insta::assert_snapshot!(webhook(Tier::Promotional, Some(3_600)).text, @"Tries 6 times over about 42m 40s, within its TTL of 1h: at once, then after 10s, 30s, 2m, 10m and 30m, each give or take 20%. Survives an outage of up to 34m 8s; a message still not delivered then expires.");
    insta::assert_snapshot!(webhook(Tier::Promotional, Some(125_000)).text, @"Tries 8 to 9 times over about 1d 10h, within its TTL of 1d 10h: at once, then after 10s, 30s, 2m, 10m, 30m, 2h, 8h and 1d, each give or take 20%. Survives an outage of up to 8h 34m; a message still not delivered then becomes a dead letter or expires.");
    insta::assert_snapshot!(webhook(Tier::Promotional, Some(3_600)).notes.join("\n"), @"the policy outlasts the TTL of 1h: its last retry would come 1d 10h after accept; what is not delivered by the TTL expires");
    assert_eq!(webhook(Tier::Promotional, Some(7 * 86_400)), webhook(Tier::Promotional, None));
}

#[test]
fn a_window_shortens_the_schedule_and_is_named_in_the_text() {
    let spec = PolicySpec { window: Some(Duration::from_secs(100)), ..PolicySpec::default() };
    let preview = preview(&spec);
    insta::assert_snapshot!(preview.text, @"Tries 6 to 7 times over about 1m 40s, within a window of 1m 40s: at once, then after 2s, 4s, 8s, 16s, 32s and 1m, each give or take 20%. Survives an outage of up to 49s; a message still not delivered then becomes a dead letter.");
    insta::assert_snapshot!(preview.notes.join("\n"), @"the window of 1m 40s ends before the attempts do: the last retry would come 4m 2s after accept");
}

#[test]
fn a_long_schedule_is_abbreviated() {
    let spec = PolicySpec {
        strategy: Some("linear".to_owned()),
        cap: Some(Duration::from_secs(86_400)),
        max_attempts: Some(1_000),
        ..PolicySpec::default()
    };
    insta::assert_snapshot!(preview(&spec).text, @"Tries 1000 times over about 11d 13h: at once, then after 2s, 4s, 6s, 8s, 10s, 12s, … and 33m 18s, each give or take 20%. Survives an outage of up to 9d 6h; a message still not delivered then becomes a dead letter.");
    assert_eq!(preview(&spec).waits.len(), 999);
}

#[test]
fn the_largest_wait_is_the_cap_plus_jitter() {
    let largest = |kind| preview(&jittered(kind)).largest_wait;
    let second = Duration::from_secs;
    assert_eq!(["none", "full", "equal", "decorrelated"].map(largest), [second(60); 4]);
    assert_eq!(["spread", "add"].map(largest), [second(72); 2]);
}

#[test]
fn risky_and_unused_fields_are_noted() {
    let spec = PolicySpec {
        strategy: Some("list".to_owned()),
        delays: Some(vec![Duration::from_secs(5), Duration::from_secs(50)]),
        base: Some(Duration::from_secs(1)),
        max_attempts: Some(6),
        jitter: JitterSpec { kind: Some("none".to_owned()), share: Some(0.5) },
        ..PolicySpec::default()
    };
    insta::assert_snapshot!(preview(&spec).notes.join("\n"), @r"
    no jitter: deliveries that fail together are retried together
    the last of the 2 delays repeats up to 5 retries
    base is set but has no effect with strategy list
    jitter.share is set but has no effect with jitter none
    ");
    insta::assert_snapshot!(preview(&PolicySpec { max_attempts: Some(2), ..spec.clone() }).notes.join("\n"), @r"
    no jitter: deliveries that fail together are retried together
    only 1 of the 2 delays used: max_attempts allows no more
    base is set but has no effect with strategy list
    jitter.share is set but has no effect with jitter none
    ");
    let decorrelated = PolicySpec { jitter: jittered("decorrelated").jitter, ..spec };
    insta::assert_snapshot!(preview(&decorrelated).notes.join("\n"), @r"
    decorrelated jitter is cut at the cap of 50s: many late retries wait exactly that long
    decorrelated jitter uses only the first of the delays and grows from it
    base is set but has no effect with strategy list
    ");
    let stuck = PolicySpec { base: Some(Duration::from_secs(60)), ..jittered("decorrelated") };
    insta::assert_snapshot!(preview(&stuck).notes.join("\n"), @"decorrelated jitter is cut at the cap of 1m, which leaves no jitter here: raise the cap above the first wait");
}

#[test]
fn a_policy_outlasts_a_ttl_that_may_cut_its_last_retry() {
    let policy = Policy::default();
    let latest = Duration::from_secs(124_960 * 12 / 10);
    assert!(policy.outlasts(Tier::Promotional, latest));
    assert!(!policy.outlasts(Tier::Promotional, latest + Duration::from_secs(1)));
    assert!(!policy.outlasts(Tier::Promotional, Duration::ZERO), "a TTL of zero asks for one attempt");
    let windowed = Policy::preset("web-push").expect("a preset");
    assert!(!windowed.outlasts(Tier::Engagement, Duration::from_secs(86_400)));
}
