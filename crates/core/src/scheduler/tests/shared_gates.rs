//! Tests of the gates that lanes share: breakers of origins, regions, credentials and resolvers, and paused origins.

use super::*;
use crate::flow::breaker::BreakerRule;
use crate::id::RegionId;

#[test]
fn endpoints_of_one_host_stop_together_once_two_of_them_failed() {
    let (lanes, host) = ([1, 2, 3].map(LaneId::from_raw), OriginId::of("https://example.com"));
    let mut queue = knowing(lanes.map(|lane| at_origin(lane, host)));
    for id in 0..60 {
        admit(&mut queue, &delivery_in(lanes[usize::try_from(id % 2).expect("0 or 1")], id));
    }
    // Every other answer is good: no lane fails ten times in a row.
    let answered = answer_all(&mut queue, |nth, _| if nth % 2 == 0 && nth > 2 { OK } else { REFUSED });
    assert!((20..=24).contains(&answered), "{answered}");
    let third = delivery_in(lanes[2], 1_000);
    assert_eq!(admit(&mut queue, &third), Admission::NoRoom, "the third lane has the same host");
    queue.spilled(lanes[2], third.tier, third.id);
    set(&mut queue, at_origin(lanes[2], host));
    let hold = hold_of(&queue, NOW, lanes[2], 1_000);
    assert_eq!(hold.why, Why::BreakerOpen);
    let until = hold.until.expect("until a probe");
    assert!(send(&mut queue, until).is_some());
    assert_eq!(send(&mut queue, until), None, "one probe for all of them");
}

/// How many attempts a lane of one provider makes before the provider's breaker opens; `None` if it stays closed.
/// The deliveries go to this many endpoints in turn, and every fourth attempt fails.
fn attempts_before_region_opens(endpoints: u64) -> Option<u32> {
    let provider = RegionId::from_raw(9);
    let mut queue = Scheduler::new(Limits::default());
    let special = Special { region: Some(provider), ..Special::default() };
    set(&mut queue, LaneSettings { max_in_flight: 1, ..settings(LANE, Order::Fifo).with(special) });
    for (id, attempts) in (0..400).zip(1..) {
        admit(&mut queue, &Delivery { endpoint: EndpointId::from_raw(1 + id % endpoints), ..delivery(id) });
        let sent = send(&mut queue, NOW)?;
        settle(&mut queue, NOW, sent, if id % 4 == 0 { &REFUSED } else { &OK });
        if queue.breakers(NOW).iter().any(|breaker| breaker.of == BreakerOf::Shared(SharedGate::Region(provider))) {
            return Some(attempts);
        }
    }
    None
}

#[test]
fn region_breaker_counts_failing_endpoints_of_one_shared_lane() {
    // A region's share applies from 200 answers within the window on.
    assert_eq!(attempts_before_region_opens(20 * 4 + 1), Some(201));
    assert_eq!(attempts_before_region_opens(1), None, "one failing endpoint does not count against its provider");
}

#[test]
fn an_origin_breaker_follows_the_operator_s_share_volume_and_time() {
    let open_for = seconds(5);
    let origin = BreakerRule { share_milli: 250, volume: 8, open_for, ..BreakerRule::ORIGIN };
    let mut queue = Scheduler::new(Limits { origin, ..Limits::default() });
    let there = OriginId::of("https://example.com");
    for id in 0..40 {
        let lane = LaneId::from_raw(1 + id % 2);
        set(&mut queue, at_origin(lane, there));
        admit(&mut queue, &delivery_in(lane, id));
    }
    // The first of each lane fails, and every third one from then on.
    let answered = answer_all(&mut queue, |nth, _| if nth <= 2 || nth % 3 == 0 { REFUSED } else { OK });
    assert!((8..=12).contains(&answered), "{answered}");
    let breakers = queue.breakers(NOW);
    let BreakerState::Open { until: Some(until), .. } = breakers[0].standing else { panic!("{breakers:?}") };
    assert_eq!((breakers.len(), breakers[0].of), (1, BreakerOf::Shared(SharedGate::Origin(there))), "{breakers:?}");
    let through = |origin: &str| queue.lanes_through(SharedGate::Origin(OriginId::of(origin)));
    let lanes: Vec<LaneId> = through("https://example.com").iter().map(|(lane, _)| *lane).collect();
    assert_eq!(lanes, [LaneId::from_raw(1), LaneId::from_raw(2)]);
    assert!(through("https://elsewhere.example.com").is_empty());
    let ends = NOW + open_for - open_for / 10..=NOW + open_for + open_for / 10;
    assert!(ends.contains(&until), "{until}");
}

#[test]
fn a_paused_origin_holds_all_its_lanes_until_the_pause_ends() {
    let mut queue = Scheduler::new(Limits::default());
    let (there, elsewhere) = (OriginId::of("https://example.com:443"), OriginId::of("https://example.com:8443"));
    for (lane, origin) in [(1, there), (2, there), (3, elsewhere)] {
        let lane = LaneId::from_raw(lane);
        set(&mut queue, at_origin(lane, origin));
        admit(&mut queue, &delivery_in(lane, lane.raw()));
    }
    let until = at(60);
    queue.pause_origin(there, Hold { why: Why::Paused, until: Some(until) });
    assert_eq!((send(&mut queue, NOW), send(&mut queue, NOW)), (Some(3), None), "the other origin is not held");
    let lane = LaneId::from_raw(1);
    assert_eq!(hold_of(&queue, NOW, lane, 1), Hold { why: Why::Paused, until: Some(until) });
    assert_eq!(queue.paused_by(lane, NOW), Some(PausedBy::Origin(there)));
    assert_eq!(queue.figures(NOW).paused_origins, 1);
    // An endpoint that is moved to another origin is no longer held.
    set(&mut queue, LaneSettings { version: 1, ..at_origin(lane, elsewhere) });
    assert_eq!((send(&mut queue, NOW), send(&mut queue, NOW)), (Some(1), None));
    assert_eq!(send(&mut queue, until), Some(2), "the pause has ended");
    assert_eq!((queue.paused_by(LaneId::from_raw(2), until), queue.figures(until).paused_origins), (None, 0));
}

#[test]
fn a_resumed_origin_is_sent_to_again() {
    let mut queue = queue(Order::Fifo);
    let there = OriginId::of("https://example.com:443");
    set(&mut queue, at_origin(LANE, there));
    admit(&mut queue, &delivery(1));
    queue.pause_origin(there, Hold { why: Why::Paused, until: None });
    assert_eq!(send(&mut queue, NOW), None);
    queue.resume_origin(there, at(1));
    assert_eq!(send(&mut queue, at(1)), Some(1));
}

#[test]
fn a_refused_credential_holds_all_its_lanes_until_it_is_replaced() {
    let mut queue = Scheduler::new(Limits::default());
    for lane in (1..=2).map(LaneId::from_raw) {
        set(&mut queue, with_credential(lane, CREDENTIAL));
        admit(&mut queue, &delivery_in(lane, lane.raw()));
    }
    let first = send(&mut queue, NOW).expect("both may be sent");
    assert!(queue.settle(NOW, ROLL, DeliveryId::from_raw(first), &REJECTED, false).is_none());
    assert_eq!(send(&mut queue, at(86_400)), None, "no further attempt is made with it");
    assert_eq!(queue.breakers(at(1)).len(), 1);
    queue.replaced(at(86_400), CREDENTIAL);
    let mut sent = exchange(&mut queue, at(86_400), &OK, 10);
    sent.sort_unstable();
    assert_eq!(sent, [1, 2]);
}

#[test]
fn retry_after_of_credential_scope_holds_every_lane_of_the_credential() {
    let mut queue = knowing([1, 2].map(|lane| with_credential(LaneId::from_raw(lane), CREDENTIAL)));
    set(&mut queue, settings(LaneId::from_raw(3), Order::Fifo));
    admit(&mut queue, &delivery_in(LaneId::from_raw(1), 10));
    let first = send(&mut queue, NOW).expect("nothing holds it");
    let asked = Verdict { scope: VerdictScope::Credential, ..asking(seconds(60)) };
    settle(&mut queue, NOW, first, &asked);
    for lane in [1, 2] {
        let row = delivery_in(LaneId::from_raw(lane), 20 + lane);
        assert_eq!(admit(&mut queue, &row), Admission::NoRoom, "lane {lane} waits behind the credential");
        queue.spilled(row.lane, row.tier, row.id);
        set(&mut queue, with_credential(row.lane, CREDENTIAL));
        let hold = hold_of(&queue, NOW, row.lane, 20 + lane);
        assert_eq!(hold.why, Why::Credential);
        assert!(hold.until.is_some_and(|until| until >= NOW + seconds(60)), "{hold:?}");
    }
    admit(&mut queue, &delivery_in(LaneId::from_raw(3), 30));
    assert_eq!(send(&mut queue, NOW), Some(30), "a lane without the credential is not held");
}

#[test]
fn retry_after_holds_the_credential_that_was_used_not_the_one_that_replaced_it() {
    let mut queue = knowing([with_credential(LANE, CREDENTIAL)]);
    admit(&mut queue, &delivery(1));
    let first = send(&mut queue, NOW).expect("nothing holds it");
    set(&mut queue, with_credential(LANE, CredentialId::from_raw(10)));
    let asked = Verdict { scope: VerdictScope::Credential, ..asking(seconds(60)) };
    settle(&mut queue, NOW, first, &asked);
    let held: Vec<BreakerOf> = queue.breakers(NOW).iter().map(|breaker| breaker.of).collect();
    assert_eq!(held, [BreakerOf::Shared(SharedGate::Credential(CREDENTIAL))]);
    admit(&mut queue, &delivery(2));
    assert_eq!(send(&mut queue, NOW), Some(2), "nothing holds the new credential");
}

/// How many of 400 lanes with one credential are tried before a gate of their host or provider opens, if each answer is
/// an overload of this scope.
fn tried_before_host_stops(scope: VerdictScope) -> usize {
    let region = Some(RegionId::from_raw(9));
    let special = Special { credential: Some(CREDENTIAL), region, ..Special::default() };
    let origin = OriginId::of("https://push.example.com");
    let mut queue = Scheduler::new(Limits::default());
    for id in 1..=400 {
        let lane = LaneId::from_raw(id);
        set(&mut queue, at_origin(lane, origin).with(special.clone()));
        admit(&mut queue, &delivery_in(lane, id));
    }
    exchange(&mut queue, NOW, &Verdict { scope, ..Verdict::of(Cause::TooManyRequests) }, 400).len()
}

#[test]
fn overload_of_one_credential_does_not_count_against_its_host_or_provider() {
    assert_eq!(tried_before_host_stops(VerdictScope::Lane), 21, "the first failure of a host is not counted");
    for scope in [VerdictScope::Credential, VerdictScope::Endpoint] {
        assert_eq!(tried_before_host_stops(scope), 400, "{scope:?}");
    }
}

#[test]
fn later_retry_after_never_shortens_the_hold_of_a_credential() {
    let asked = |wait| Verdict { scope: VerdictScope::Credential, ..asking(seconds(wait)) };
    for (first, second) in [(REJECTED, asked(5)), (asked(600), asked(5))] {
        let mut queue = knowing([with_credential(LANE, CREDENTIAL)]);
        admit_all(&mut queue, [1, 2]);
        let flights = [send(&mut queue, NOW), send(&mut queue, NOW)].map(|sent| sent.expect("nothing holds them"));
        for (id, verdict) in flights.iter().zip([first, second]) {
            queue.settle(NOW, ROLL, DeliveryId::from_raw(*id), &verdict, false);
        }
        assert_eq!(send(&mut queue, at(300)), None, "{first:?} holds for longer than {second:?}");
    }
}

#[test]
fn probes_that_are_asked_to_slow_down_do_not_end_the_hold_of_a_credential() {
    let mut queue = Scheduler::new(Limits::default());
    for id in 1..=6 {
        let lane = LaneId::from_raw(id);
        set(&mut queue, with_credential(lane, CREDENTIAL));
        admit(&mut queue, &delivery_in(lane, id));
    }
    let asked = Verdict { scope: VerdictScope::Credential, ..asking(seconds(60)) };
    assert_eq!(exchange(&mut queue, NOW, &asked, 10).len(), 1);
    let slower = Verdict { scope: VerdictScope::Credential, ..Verdict::of(Cause::TooManyRequests) };
    assert_eq!(exchange(&mut queue, at(70), &slower, 4).len(), 4);
    assert_eq!(queue.breakers(at(70)).len(), 1, "its breaker is not closed");
}

#[test]
fn restart_probes_after_a_credentials_retry_after_and_keeps_a_refused_credential_held() {
    let asked = Verdict { scope: VerdictScope::Credential, ..asking(seconds(60)) };
    for (verdict, goes_on) in [(asked, true), (REJECTED, false)] {
        let mut before = knowing([with_credential(LANE, CREDENTIAL)]);
        admit(&mut before, &delivery(1));
        send(&mut before, NOW).expect("nothing holds it");
        before.settle(NOW, ROLL, DeliveryId::from_raw(1), &verdict, false);

        let mut after = Scheduler::new(Limits::default());
        after.restore_breakers(NOW, &before.soft_breakers());
        set(&mut after, with_credential(LANE, CREDENTIAL));
        admit(&mut after, &delivery(1));
        assert_eq!(send(&mut after, at(120)).is_some(), goes_on, "{verdict:?}");
    }
}

/// A scheduler with this many lanes, each with a host of its own, of this many tenants in turn, and this many messages
/// in each lane. Those of lane 3 have the ids from 300 on.
fn with_tenants(lanes: u64, tenants: u64, messages: u64) -> Scheduler {
    let mut queue = Scheduler::new(Limits::default());
    for number in 1..=lanes {
        let lane = LaneId::from_raw(number);
        let origin = OriginId::of(&format!("https://host-{number}.example.com"));
        let tenant = TenantId::from_raw(1 + number % tenants);
        set(&mut queue, LaneSettings { tenant, ..at_origin(lane, origin) });
        for id in 0..messages {
            admit(&mut queue, &delivery_in(lane, number * 100 + id));
        }
    }
    queue
}

#[test]
fn a_resolver_that_fails_for_many_hosts_holds_every_lane() {
    let no_names = Verdict::of(Cause::DnsFailed);
    for tenants in [1, 2] {
        let mut queue = with_tenants(10, tenants, 6);
        let tried = exchange(&mut queue, NOW, &no_names, 100);
        assert_eq!(tried.len(), 20, "with {tenants} tenants");
        let lane = LaneId::from_raw(7);
        let held = hold_of(&queue, at(1), lane, 705);
        assert!(matches!(held, Hold { why: Why::BreakerOpen, until: Some(_) }), "{held:?}");
        assert!(exchange(&mut queue, at(26), &OK, 100).is_empty());
        // Probes show that the resolver works again, and every delivery is sent.
        let sent: usize = (27..240).map(|second| exchange(&mut queue, at(second), &OK, 100).len()).sum();
        assert_eq!(sent, 60);
    }
}

#[test]
fn broken_names_of_one_tenant_do_not_hold_the_others() {
    let no_names = Verdict::of(Cause::DnsFailed);
    // Lanes with an even number belong to the first tenant, whose names fail; the other tenant's names work.
    let mut queue = with_tenants(20, 2, 10);
    let mut well = 0;
    while let Some(id) = send(&mut queue, NOW) {
        let fails = (id / 100) % 2 == 0;
        well += usize::from(!fails);
        finish(&mut queue, NOW, id, if fails { &no_names } else { &OK });
    }
    assert_eq!(well, 100);
}
