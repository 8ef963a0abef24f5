//! Tests of each clause of E4 and of the score (E5). The invariants are tested in `model`.

mod model;

use super::*;

const START: Timestamp = Timestamp::from_millis(1_790_000_000_000);
const SECOND: Duration = Duration::from_secs(1);
const MIDDLE: Roll = Roll(u64::MAX / 2);
const OK: Verdict = Verdict::of(Cause::Ok);
const DOWN: Verdict = Verdict::of(Cause::ConnectRefused);
const BAD_REQUEST: Verdict = Verdict::of(Cause::BadRequest);

/// One endpoint, with a clock that the test sets.
struct Story {
    health: EndpointHealth,
    now: Timestamp,
}

impl Story {
    fn new() -> Self {
        Self { health: EndpointHealth::default(), now: START }
    }

    /// An endpoint with a failed attempt every hour for this long, the last one now; due steps are taken.
    fn failing_for(time: Duration) -> Self {
        let mut story = Self::new();
        story.fail_for(time);
        story
    }

    fn fail_for(&mut self, time: Duration) -> &mut Self {
        let end = self.now + time;
        self.tries(&DOWN);
        while self.now + HOUR < end {
            let _ = self.pass(HOUR).tries(&DOWN).looks(0);
        }
        self.now = end;
        self.tries(&DOWN)
    }

    fn pass(&mut self, time: Duration) -> &mut Self {
        self.now = self.now + time;
        self
    }

    fn tries(&mut self, verdict: &Verdict) -> &mut Self {
        self.health.attempted(self.now, verdict, Duration::from_millis(40));
        self
    }

    fn ends(&mut self, count: u64, cause: Cause) -> &mut Self {
        (0..count).for_each(|_| self.health.ended(self.now, cause));
        self
    }

    fn probes(&mut self, verdict: &Verdict) -> Option<HealthStep> {
        self.health.probed(self.now, MIDDLE, verdict)
    }

    /// Every step due by now.
    fn looks(&mut self, waiting: u64) -> Vec<HealthStep> {
        std::iter::from_fn(|| self.health.look(self.now, waiting, MIDDLE)).take(9).collect()
    }

    fn disabled() -> Self {
        let mut story = Self::failing_for(DAY);
        assert_eq!(story.looks(10), [HealthStep::Disable(Reason::DayOfHarm)]);
        story
    }
}

// Warned.

#[test]
fn an_owner_is_warned_once_after_an_hour_of_failures_and_hears_once_of_the_recovery() {
    let mut story = Story::new();
    assert_eq!(story.tries(&DOWN).pass(HOUR - Duration::from_millis(1)).looks(0), []);
    assert_eq!(story.health.standing(), EndpointStanding::Healthy);
    assert_eq!(story.pass(Duration::from_millis(1)).looks(0), [HealthStep::Warn]);
    assert_eq!(story.health.standing(), EndpointStanding::Failing { since: START });
    assert_eq!(story.pass(HOUR).tries(&DOWN).looks(0), [], "a failing period has one warning");
    assert_eq!(story.tries(&OK).looks(0), [HealthStep::Recovered]);
    assert_eq!(story.health.standing(), EndpointStanding::Healthy);
    assert_eq!(story.tries(&OK).looks(0), []);
}

#[test]
fn the_hour_counts_from_the_first_failure_not_from_the_last_success() {
    let mut story = Story::new();
    assert_eq!(story.pass(DAY * 30).looks(1_000), [], "it was never tried");
    story.tries(&OK).pass(DAY).tries(&DOWN).pass(HOUR - SECOND);
    assert_eq!(story.looks(0), [], "it was idle for a day, not failing");
}

#[test]
fn a_success_in_between_begins_the_hour_anew_and_is_not_reported_without_a_warning() {
    let mut story = Story::failing_for(HOUR - SECOND);
    assert_eq!(story.looks(0), []);
    assert_eq!(story.tries(&OK).looks(0), []);
    assert_eq!(story.tries(&DOWN).pass(HOUR - SECOND).looks(0), []);
    assert_eq!(story.pass(SECOND).looks(0), [HealthStep::Warn]);
}

#[test]
fn our_own_faults_and_refused_credentials_are_not_counted() {
    for cause in [Cause::StoreUnavailable, Cause::NotStarted, Cause::CredentialRejected, Cause::TtlExpired] {
        let mut story = Story::new();
        story.tries(&Verdict::of(cause)).pass(DAY * 6).tries(&Verdict::of(cause));
        assert_eq!(story.looks(1_000), [], "{cause:?}");
        assert_eq!(story.health.score(story.now).tried, 0);
    }
}

#[test]
fn a_second_failing_period_is_warned_of_after_the_recovery_is_reported() {
    let mut story = Story::failing_for(HOUR);
    assert_eq!(story.looks(0), [HealthStep::Warn]);
    assert_eq!(story.tries(&OK).tries(&DOWN).pass(HOUR).looks(0), [HealthStep::Recovered, HealthStep::Warn]);
}

// Disabled after a day.

#[test]
fn a_day_of_failures_disables_with_ten_deliveries_dead_or_waiting_not_with_nine() {
    for (dead, waiting, disables) in
        [(0, 9, false), (0, 10, true), (9, 0, false), (10, 0, true), (4, 5, false), (4, 6, true)]
    {
        let mut story = Story::failing_for(DAY);
        let steps = story.ends(dead, Cause::Unavailable).looks(waiting);
        let disabled = EndpointStanding::Disabled { since: story.now, reason: Reason::DayOfHarm };
        assert_eq!(steps == [HealthStep::Disable(Reason::DayOfHarm)], disables, "{dead} dead, {waiting} waiting");
        assert_eq!(story.health.standing() == disabled, disables, "{dead} dead, {waiting} waiting");
        assert_eq!(steps.is_empty(), !disables, "{steps:?}");
    }
}

#[test]
fn an_endpoint_is_disabled_a_day_after_its_last_success_and_no_second_before() {
    let mut story = Story::failing_for(DAY - SECOND);
    assert_eq!(story.ends(100, Cause::NotFound).looks(100), []);
    assert_eq!(story.tries(&OK).looks(100), [HealthStep::Recovered]);
    assert_eq!(story.fail_for(DAY - SECOND).looks(100), [], "the day begins anew");
    assert_eq!(story.pass(SECOND).looks(100), [HealthStep::Disable(Reason::DayOfHarm)]);
}

#[test]
fn only_deaths_by_a_fault_of_the_endpoint_count() {
    let counted = |cause| {
        let mut story = Story::failing_for(DAY);
        story.ends(10, cause);
        !story.looks(0).is_empty()
    };
    let theirs: Vec<_> = Cause::ALL.iter().filter(|entry| counted(entry.cause)).map(|entry| entry.code).collect();
    insta::assert_snapshot!(theirs.join("\n"), @r"
    request_timeout
    too_many_requests
    internal_error
    bad_gateway
    unavailable
    gateway_timeout
    server_error
    connect_refused
    connect_reset
    connect_timeout
    tls_handshake
    closed_early
    unknown
    protocol_error
    response_head_too_large
    ack_timeout
    dns_failed
    dns_not_found
    tls_certificate
    unauthorized
    forbidden
    not_found
    method_not_allowed
    redirect_not_followed
    ");
}

#[test]
fn rejected_messages_disable_the_endpoint_only_after_five_days() {
    let mut story = Story::new();
    for _ in 0..24 {
        story.tries(&BAD_REQUEST).ends(100, Cause::BadRequest).pass(HOUR);
    }
    assert_eq!(story.tries(&BAD_REQUEST).looks(0), [HealthStep::Warn]);
    let five_days = [HealthStep::Disable(Reason::FiveDays)];
    assert_eq!(story.pass(DAY * 4).tries(&BAD_REQUEST).looks(0), five_days, "nothing succeeded");
}

#[test]
fn an_endpoint_without_attempts_for_a_day_is_not_disabled() {
    let mut story = Story::failing_for(DAY);
    assert_eq!(story.pass(DAY).looks(1_000), [], "the last attempt is a day old");
    assert_eq!(story.tries(&DOWN).looks(1_000), [HealthStep::Disable(Reason::DayOfHarm)]);
}

#[test]
fn deaths_of_the_day_before_are_forgotten() {
    let mut story = Story::new();
    story.tries(&DOWN).ends(9, Cause::NotFound).fail_for(DAY + HOUR).ends(9, Cause::NotFound);
    assert_eq!(story.looks(0), [], "nine today and nine the day before");
    assert_eq!(story.ends(1, Cause::NotFound).looks(0), [HealthStep::Disable(Reason::DayOfHarm)]);
}

#[test]
fn three_failures_in_a_week_do_not_disable_a_quiet_endpoint() {
    let mut story = Story::new();
    story.tries(&OK);
    for _ in 0..3 {
        story.tries(&DOWN).ends(1, Cause::ConnectRefused).pass(DAY * 2);
    }
    assert_eq!(story.looks(3), [HealthStep::Warn]);
}

#[test]
fn a_late_look_warns_before_it_disables() {
    let mut story = Story::new();
    story.tries(&DOWN).pass(DAY).tries(&DOWN);
    assert_eq!(story.looks(10), [HealthStep::Warn, HealthStep::Disable(Reason::DayOfHarm)]);
}

// Disabled after five days.

#[test]
fn five_days_without_success_disable_any_endpoint() {
    let mut story = Story::failing_for(DAY * 5 - SECOND);
    assert_eq!(story.looks(0), []);
    assert_eq!(story.tries(&OK).looks(0), [HealthStep::Recovered]);
    assert_eq!(story.fail_for(DAY * 5 - SECOND).looks(0), [], "the five days begin anew");
    assert_eq!(story.pass(SECOND).looks(0), [HealthStep::Disable(Reason::FiveDays)]);
}

#[test]
fn five_days_without_a_recent_attempt_do_not_disable() {
    let mut story = Story::new();
    assert_eq!(story.tries(&DOWN).pass(DAY * 6).looks(0), [HealthStep::Warn]);
    assert_eq!(story.tries(&DOWN).looks(0), [HealthStep::Disable(Reason::FiveDays)]);
}

// Probed and enabled.

#[test]
fn probe_waits_double_from_a_minute_to_an_hour() {
    for (roll, percent) in [(Roll(0), 90), (MIDDLE, 100), (Roll(u64::MAX), 110)] {
        let mut health = Story::failing_for(DAY).health;
        let mut now = START + DAY;
        assert_eq!(health.probe_at(), None);
        assert_eq!(health.look(now, 10, roll), Some(HealthStep::Disable(Reason::DayOfHarm)));
        for minutes in [1, 2, 4, 8, 16, 32].into_iter().chain([60; 300]) {
            let due = health.probe_at().expect("a disabled endpoint is probed");
            let wait = Duration::from_millis(minutes * 600 * percent);
            assert!(due.since(now).abs_diff(wait) <= Duration::from_millis(1), "{minutes} min at {percent} %");
            now = due;
            assert_eq!(health.probed(now, roll, &DOWN), None);
        }
    }
}

#[test]
fn a_probe_that_succeeds_enables_it() {
    let mut story = Story::disabled();
    story.pass(MINUTE);
    let before = story.health.score(story.now);
    assert_eq!(story.probes(&Verdict::of(Cause::BadGateway)), None);
    let after = story.health.score(story.now);
    assert_eq!((after.tried, after.last_cause), (before.tried + 1, Some(Cause::BadGateway)), "a probe is an attempt");
    assert_eq!(story.pass(MINUTE * 2).probes(&OK), Some(HealthStep::Enable));
    assert_eq!((story.health.standing(), story.health.probe_at()), (EndpointStanding::Healthy, None));
    assert_eq!(story.health.score(story.now).last_success_at, Some(story.now));
    assert_eq!(story.looks(100), [], "enabling needs no further step");
}

#[test]
fn a_probe_that_failed_by_our_own_fault_is_repeated_after_the_same_wait() {
    let mut story = Story::disabled();
    assert_eq!(story.probes(&Verdict::of(Cause::NotStarted)), None);
    let wait = story.health.probe_at().expect("still disabled").since(story.now);
    assert!(wait.abs_diff(MINUTE) <= Duration::from_millis(1), "{wait:?}");
}

#[test]
fn a_probe_obeys_retry_after_up_to_a_day() {
    for (asked, waits) in [(HOUR * 5, HOUR * 5), (DAY * 400, DAY), (Duration::MAX, DAY)] {
        let mut story = Story::disabled();
        let busy = Verdict { retry_after: Some(asked), ..Verdict::of(Cause::Unavailable) };
        assert_eq!(story.probes(&busy), None);
        assert_eq!(story.health.probe_at(), Some(story.now + waits));
    }
}

#[test]
fn late_attempts_cause_no_step_of_a_disabled_endpoint() {
    let mut story = Story::disabled();
    let standing = story.health.standing();
    assert_eq!(story.tries(&OK).tries(&DOWN).pass(DAY * 6).looks(1_000), [], "attempts from before do not count");
    assert_eq!(story.health.standing(), standing);
}

#[test]
fn enabling_by_the_owner_forgets_earlier_failures() {
    let mut story = Story::new();
    assert_eq!(story.tries(&OK).fail_for(DAY).looks(10), [HealthStep::Disable(Reason::DayOfHarm)]);
    story.health.enabled();
    let score = story.health.score(story.now);
    assert_eq!((score.standing, score.points, score.tried), (EndpointStanding::Healthy, 100, 0));
    assert_eq!((score.last_success_at, score.last_cause), (Some(START), Some(Cause::ConnectRefused)), "facts stay");
    assert_eq!(story.pass(HOUR).fail_for(HOUR - SECOND).looks(1_000), []);
    assert_eq!(story.pass(SECOND).looks(1_000), [HealthStep::Warn]);
    assert_eq!(story.fail_for(DAY - HOUR - SECOND).looks(1_000), []);
    assert_eq!(story.pass(SECOND).looks(1_000), [HealthStep::Disable(Reason::DayOfHarm)]);
}

#[test]
fn a_probe_that_ends_after_enabling_is_ignored() {
    for verdict in [OK, DOWN] {
        let mut story = Story::disabled();
        story.health.enabled();
        let before = story.health.clone();
        assert_eq!(story.probes(&verdict), None);
        assert_eq!(story.health, before);
    }
}

// After a restart.

#[test]
fn a_restart_keeps_the_clocks_of_a_failing_endpoint() {
    let mut story = Story::failing_for(DAY * 5 - HOUR);
    story.health = EndpointHealth::restored(story.health.standing(), story.now, MIDDLE);
    assert_eq!(story.pass(HOUR).looks(10), [], "not tried since");
    assert_eq!(story.tries(&DOWN).looks(0), [HealthStep::Disable(Reason::FiveDays)]);

    let mut story = Story::failing_for(HOUR * 2);
    story.health = EndpointHealth::restored(story.health.standing(), story.now, MIDDLE);
    assert_eq!(story.tries(&OK).looks(0), [HealthStep::Recovered]);
}

#[test]
fn a_restart_keeps_a_disabled_endpoint_disabled_and_probes_it_soon() {
    let mut story = Story::disabled();
    let standing = story.health.standing();
    story.pass(HOUR * 5);
    story.health = EndpointHealth::restored(standing, story.now, MIDDLE);
    assert_eq!((story.health.standing(), story.looks(100)), (standing, vec![]));
    let wait = story.health.probe_at().expect("it is disabled").since(story.now);
    assert!(wait.abs_diff(MINUTE) <= Duration::from_millis(1), "{wait:?}");
    assert_eq!(story.probes(&OK), Some(HealthStep::Enable));
}

// The clock.

#[test]
fn a_clock_set_back_neither_advances_nor_prevents_a_step() {
    let mut story = Story::new();
    story.pass(DAY * 400).tries(&DOWN);
    story.now = START;
    assert_eq!(story.tries(&DOWN).looks(100), []);
    assert_eq!(story.pass(HOUR - SECOND).looks(100), []);
    assert_eq!(story.pass(SECOND).looks(100), [HealthStep::Warn]);
    assert_eq!(story.health.score(story.now).tried, 1, "counts from the far future are dropped");
}

#[test]
fn a_clock_set_back_by_hours_keeps_the_counts() {
    let mut story = Story::new();
    story.pass(HOUR * 3).tries(&OK);
    story.now = START;
    story.tries(&OK);
    assert_eq!(story.health.score(story.now).tried, 2);
}

// The score.

#[test]
fn a_score_covers_the_last_day() {
    let mut story = Story::new();
    (0..999).for_each(|_| _ = story.tries(&OK));
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
    (0..95).for_each(|_| _ = story.tries(&OK));
    (0..5).for_each(|_| _ = story.tries(&DOWN));
    assert_eq!(points(&story), 95, "the success share");
    story.health.tripped(story.now);
    assert_eq!(points(&story), 93, "two less for a trip");
    (0..100).for_each(|_| story.health.tripped(story.now));
    assert_eq!(points(&story), 75, "trips cost at most twenty");
    (0..1_900).for_each(|_| story.health.attempted(story.now, &OK, Duration::from_secs(9)));
    assert_eq!(points(&story), 99 - 20 - 10, "slow answers cost ten");
    assert_eq!(story.tries(&DOWN).pass(HOUR).looks(0), [HealthStep::Warn]);
    assert_eq!(points(&story), 20, "at most twenty while failing");
    assert_eq!(points(&Story::disabled()), 0, "nothing when disabled");
    let mut tripped = Story::new();
    tripped.tries(&DOWN).health.tripped(START);
    assert_eq!(points(&tripped), 0, "never below zero");
}
