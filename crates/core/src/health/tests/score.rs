//! Tests of an endpoint's score (E5).

use super::*;

#[test]
fn a_score_covers_the_last_day() {
    let mut story = Story::new();
    for _ in 0..999 {
        story.tries(&OK);
    }
    story.health.tripped(story.now);
    story.pass(MINUTE).tries(&DOWN);
    let score = story.health.score(story.now);
    assert_eq!((score.success_share_milli, score.tried, score.trips), (Some(999), 1_000, 1));
    assert_eq!(score.last_cause, Some(Cause::ConnectRefused));
    assert_eq!((score.last_success_at, score.failing_since), (Some(START), Some(story.now)));
    assert_eq!((score.standing, score.probe_at), (EndpointStanding::Healthy, None));
    let (p50, p99) = (score.latency_p50.expect("answers"), score.latency_p99.expect("answers"));
    assert!(Duration::from_millis(32) <= p50 && p50 <= p99 && p99 <= Duration::from_millis(64), "{p50:?} {p99:?}");

    story.pass(DAY + HOUR);
    let faded = story.health.score(story.now);
    assert_eq!((faded.success_share_milli, faded.tried, faded.trips), (None, 0, 0));
}

#[test]
fn a_refused_connection_has_no_latency() {
    let mut story = Story::new();
    story.tries(&DOWN);
    assert_eq!(story.health.score(story.now).latency_p50, None);
    story.tries(&Verdict { status: Some(500), ..Verdict::of(Cause::InternalError) });
    assert!(story.health.score(story.now).latency_p50.is_some());
}

#[test]
fn points_follow_the_documented_rule() {
    let points = |story: &Story| story.health.score(story.now).points;
    let mut story = Story::new();
    assert_eq!(points(&story), 100, "without attempts");
    for _ in 0..95 {
        story.tries(&OK);
    }
    for _ in 0..5 {
        story.tries(&DOWN);
    }
    assert_eq!(points(&story), 95, "the success share");
    story.health.tripped(story.now);
    assert_eq!(points(&story), 93, "two less for a trip");
    for _ in 0..100 {
        story.health.tripped(story.now);
    }
    assert_eq!(points(&story), 75, "trips cost at most twenty");
    for _ in 0..1_900 {
        story.health.attempted(story.now, &OK, Duration::from_secs(9));
    }
    assert_eq!(points(&story), 99 - 20 - 10, "slow answers cost ten");
    assert_eq!(story.tries(&DOWN).pass(HOUR).looks(0), [HealthStep::Warn]);
    assert_eq!(points(&story), 20, "at most twenty while failing");
    assert_eq!(points(&Story::disabled()), 0, "nothing when disabled");
}

#[test]
fn points_never_fall_below_zero() {
    let mut story = Story::new();
    story.tries(&DOWN);
    story.health.tripped(story.now);
    assert_eq!(story.health.score(story.now).points, 0);
}
