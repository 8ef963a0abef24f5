//! Tests of fair scheduling, one rule at a time. Quick and slow destinations are tested in `speeds.rs`, any order of
//! events in `books.rs`.

mod books;
mod speeds;

use super::*;
use crate::time::seconds;

const NOW: Timestamp = Timestamp::from_millis(1_790_000_000_000);
/// No limits.
const FREE: Room = Room { cap: u32::MAX, slow: true, lowest: 0 };
/// Slow destinations may not use another slot.
const NO_SLOW: Room = Room { slow: false, ..FREE };
const USUAL: Duration = Duration::from_millis(100);
const TIER: Tier = Tier::Promotional;

fn id(tenant: u64) -> TenantId {
    TenantId::from_raw(tenant)
}

/// A tenant with lanes that wait in [`TIER`]; their numbers begin at a hundred times the tenant's.
fn with_lanes(turn: &mut Turns, tenant: u64, lanes: u32) -> u32 {
    let index = turn.tenant(id(tenant), NOW);
    let first = u32::try_from(tenant).expect("a few tenants") * 100;
    (first..first + lanes).for_each(|lane| turn.join(TIER, index, lane, Speed::Quick, NOW));
    index
}

/// Two tenants with that many lanes each.
fn two_tenants(first: u32, second: u32) -> (Turns, [u32; 2]) {
    let mut turn = Turns::default();
    let tenants = [(1, first), (2, second)].map(|(tenant, lanes)| with_lanes(&mut turn, tenant, lanes));
    (turn, tenants)
}

/// A limit of slots for each tenant.
fn capped(cap: u32) -> Room {
    Room { cap, ..FREE }
}

fn take(turn: &mut Turns) -> TakenTurn {
    turn.take(FREE, NOW).expect("a lane waits")
}

/// Starts the next attempt; it is in flight when this returns.
fn send(turn: &mut Turns, expected: Duration) -> TakenTurn {
    let taken = take(turn);
    turn.sent(taken, expected, NOW);
    taken
}

/// Starts every attempt that may start at `now`.
fn send_all(turn: &mut Turns, room: Room, now: Timestamp) -> Vec<TakenTurn> {
    let next = || turn.take(room, now).inspect(|taken| turn.sent(*taken, USUAL, NOW));
    std::iter::from_fn(next).collect()
}

/// Makes attempts one after the other; each lane waits again at once. `took` is the duration of an attempt, by tenant.
fn picks(turn: &mut Turns, count: usize, expected: Duration, took: impl Fn(u32) -> Duration) -> Vec<TakenTurn> {
    let one = |_| {
        let taken = send(turn, expected);
        turn.landed(taken, expected, took(taken.tenant));
        turn.join(taken.tier, taken.tenant, taken.lane, Speed::Quick, NOW);
        taken
    };
    (0..count).map(one).collect()
}

fn usual_picks(turn: &mut Turns, count: usize) -> Vec<TakenTurn> {
    picks(turn, count, USUAL, |_| USUAL)
}

fn by_tier(picks: &[TakenTurn]) -> [usize; 3] {
    Tier::ALL.map(|tier| picks.iter().filter(|taken| taken.tier == tier).count())
}

fn count_of_tenant(picks: &[TakenTurn], tenant: u32) -> usize {
    picks.iter().filter(|taken| taken.tenant == tenant).count()
}

// --- tiers ---

/// One tenant with a lane in each of these tiers.
fn with_tiers(tiers: &[Tier]) -> (Turns, u32) {
    let mut turn = Turns::default();
    let tenant = turn.tenant(id(1), NOW);
    for tier in tiers {
        turn.join(*tier, tenant, 0, Speed::Quick, NOW);
    }
    (turn, tenant)
}

#[test]
fn tiers_are_picked_by_weight_and_the_lowest_gets_a_twentieth() {
    let (mut turn, _) = with_tiers(&Tier::ALL);
    let picked = by_tier(&usual_picks(&mut turn, 19_000));
    assert!(picked[2] >= 19_000 / 20, "{picked:?}");
    assert!(picked[2] < 19_000 / 18, "no more than that: {picked:?}");
    assert_eq!(picked[0] / picked[1], 4, "{picked:?}");
    assert!(picked[0].abs_diff(picked[1] * 4) <= 4, "{picked:?}");
    let (mut turn, _) = with_tiers(&[Tier::Transactional, Tier::Promotional]);
    assert_eq!(by_tier(&usual_picks(&mut turn, 500)), [400, 100, 0]);
}

#[test]
fn an_idle_tier_saves_nothing_up() {
    let (mut turn, tenant) = with_tiers(&[Tier::Transactional]);
    usual_picks(&mut turn, 1_000);
    turn.join(Tier::Engagement, tenant, 1, Speed::Quick, NOW);
    let picked = by_tier(&usual_picks(&mut turn, 15));
    assert_eq!(picked, [14, 0, 1], "it gets one pick, and then waits for its weight");
}

#[test]
fn a_tier_with_new_work_is_picked_at_once() {
    let (mut turn, tenant) = with_tiers(&[Tier::Promotional, Tier::Engagement]);
    usual_picks(&mut turn, 1_000);
    turn.join(Tier::Transactional, tenant, 1, Speed::Quick, NOW);
    let first: Vec<Tier> = usual_picks(&mut turn, 3).iter().map(|taken| taken.tier).collect();
    assert!(first.contains(&Tier::Transactional), "{first:?}");
}

#[test]
fn thirty_seconds_of_waiting_double_the_weight_up_to_four_times() {
    let cases = [(0, 1), (29, 1), (30, 2), (59, 2), (60, 4), (90, 4), (180, 4), (100_000, 4)];
    for (waited, times) in cases {
        let (mut turn, _) = with_tiers(&[Tier::Promotional]);
        let taken = take(&mut turn);
        turn.sent(taken, USUAL, NOW + seconds(waited));
        assert_eq!(turn.tiers[1].passed, STRIDE / 4 / times, "{waited} s");
    }
}

#[test]
fn a_transactional_message_does_not_wait_behind_an_old_campaign() {
    let (mut turn, tenant) = with_tiers(&[Tier::Transactional]);
    (0..1_000).for_each(|lane| turn.join(Tier::Engagement, tenant, lane, Speed::Quick, NOW));
    let much_later = NOW + seconds(3_600);
    let mut urgent = 0;
    for _ in 0..400 {
        let taken = turn.take(FREE, much_later).expect("both tiers wait");
        turn.sent(taken, USUAL, much_later);
        if taken.tier == Tier::Transactional {
            turn.join(taken.tier, tenant, taken.lane, Speed::Quick, much_later);
            urgent += 1;
        }
    }
    assert!((300..=320).contains(&urgent), "three of four: {urgent}");
}

/// Makes `count` attempts with a reserve of `lowest` slots for the lowest tier; an attempt ends when `under_way` are in
/// flight.
fn with_share_of_lowest(turn: &mut Turns, lowest: u32, under_way: usize, count: usize) -> Vec<TakenTurn> {
    let (mut flying, mut sent) = (VecDeque::new(), Vec::new());
    for _ in 0..count {
        let taken = turn.take(Room { lowest, ..FREE }, NOW).expect("every tier waits");
        turn.sent(taken, USUAL, NOW);
        turn.join(taken.tier, taken.tenant, taken.lane, Speed::Quick, NOW);
        sent.push(taken);
        flying.push_back(taken);
        if flying.len() == under_way {
            let landed = flying.pop_front().expect("just counted");
            turn.landed(landed, USUAL, USUAL);
        }
    }
    flying.into_iter().for_each(|taken| turn.landed(taken, USUAL, USUAL));
    sent
}

#[test]
fn the_lowest_tier_is_first_while_it_is_below_its_share_of_the_slots() {
    let (mut turn, _) = with_tiers(&Tier::ALL);
    let sent = with_share_of_lowest(&mut turn, 3, 1_000, 40);
    assert_eq!(by_tier(&sent[..3]), [0, 0, 3]);
    assert!(by_tier(&sent[3..])[2] <= 2, "then by its weight: {:?}", by_tier(&sent[3..]));
}

#[test]
fn the_other_tiers_share_the_rest_by_their_weights() {
    let (mut turn, _) = with_tiers(&Tier::ALL);
    let [urgent, usual, lowest] = by_tier(&with_share_of_lowest(&mut turn, 20, 100, 10_000));
    assert!((2_000..2_100).contains(&lowest), "a fifth of the slots: {lowest}");
    assert!(urgent.abs_diff(usual * 4) <= 8, "{urgent} and {usual}");
}

#[test]
fn reserved_picks_cost_the_lowest_tier_at_most_one_turn() {
    let (mut turn, _) = with_tiers(&Tier::ALL);
    with_share_of_lowest(&mut turn, 50, 100, 1_000);
    assert_eq!(by_tier(&usual_picks(&mut turn, 40))[2], 2);
}

#[test]
fn the_wait_of_a_lane_counts_from_its_last_join() {
    let (mut turn, tenant) = with_tiers(&[Tier::Promotional]);
    let later = NOW + seconds(45);
    let taken = take(&mut turn);
    assert_eq!(taken.since, NOW);
    turn.join(TIER, tenant, taken.lane, Speed::Quick, later);
    assert_eq!(take(&mut turn).since, later);
}

// --- tenants ---

#[test]
fn lanes_of_a_tenant_take_turns() {
    let mut turn = Turns::default();
    with_lanes(&mut turn, 0, 3);
    let lanes: Vec<u32> = usual_picks(&mut turn, 6).iter().map(|taken| taken.lane).collect();
    assert_eq!(lanes, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_tenant_with_many_lanes_gets_no_more_than_one_with_a_single_lane() {
    let (mut turn, [many, single]) = two_tenants(50, 1);
    let picked = usual_picks(&mut turn, 100);
    assert_eq!((count_of_tenant(&picked, many), count_of_tenant(&picked, single)), (50, 50));
}

#[test]
fn tenants_get_the_same_slot_time_not_the_same_number_of_turns() {
    let (mut turn, [slow, quick]) = two_tenants(1, 1);
    let took = |tenant| if tenant == slow { seconds(1) } else { USUAL };
    // The expected duration is the same for both; the charge is corrected when an attempt has ended.
    let picked = picks(&mut turn, 1_100, USUAL, took);
    assert!(count_of_tenant(&picked, slow).abs_diff(100) <= 1, "{}", count_of_tenant(&picked, slow));
    assert!(count_of_tenant(&picked, quick).abs_diff(1_000) <= 1, "{}", count_of_tenant(&picked, quick));
}

#[test]
fn attempts_in_flight_are_charged_with_their_expected_duration() {
    let (mut turn, [slow, quick]) = two_tenants(20, 20);
    let mut sent = [0, 0];
    for _ in 0..11 {
        let taken = take(&mut turn);
        turn.sent(taken, if taken.tenant == slow { seconds(1) } else { USUAL }, NOW);
        sent[usize::from(taken.tenant == quick)] += 1;
    }
    assert_eq!(sent, [1, 10], "nothing has ended yet");
}

#[test]
fn tenants_share_by_their_weights_of_which_zero_counts_as_the_least() {
    for (weights, shares) in
        [(&[1_000, 2_000, 4_000][..], &[1_000, 2_000, 4_000][..]), (&[0, 1_000][..], &[2, 2_000][..])]
    {
        let mut turn = Turns::default();
        let with_weight = |(tenant, weight_milli): (u64, &u32)| {
            turn.set(TenantSettings { weight_milli: *weight_milli, ..TenantSettings::new(id(tenant)) }, NOW);
            with_lanes(&mut turn, tenant, 1)
        };
        let tenants: Vec<u32> = (1..).zip(weights).map(with_weight).collect();
        let picked = usual_picks(&mut turn, shares.iter().sum());
        let counts: Vec<usize> = tenants.iter().map(|tenant| count_of_tenant(&picked, *tenant)).collect();
        assert_eq!(counts, shares, "{weights:?}");
    }
}

#[test]
fn a_weight_that_changes_counts_from_then_on() {
    let (mut turn, [heavy, light]) = two_tenants(1, 1);
    usual_picks(&mut turn, 1_000);
    turn.set(TenantSettings { weight_milli: 3_000, ..TenantSettings::new(id(1)) }, NOW);
    let picked = usual_picks(&mut turn, 400);
    assert_eq!((count_of_tenant(&picked, heavy), count_of_tenant(&picked, light)), (300, 100));
}

#[test]
fn an_idle_tenant_saves_nothing_up() {
    let mut turn = Turns::default();
    let busy = with_lanes(&mut turn, 1, 1);
    usual_picks(&mut turn, 1_000);
    let late = with_lanes(&mut turn, 2, 1);
    let picked = usual_picks(&mut turn, 100);
    assert!(count_of_tenant(&picked, late).abs_diff(count_of_tenant(&picked, busy)) <= 1, "{picked:?}");
}

#[test]
fn a_new_tenant_waits_for_at_most_one_turn_of_the_others() {
    let mut turn = Turns::default();
    for tenant in 1..=5 {
        with_lanes(&mut turn, tenant, 3);
    }
    usual_picks(&mut turn, 1_003);
    let late = with_lanes(&mut turn, 6, 1);
    assert!(count_of_tenant(&usual_picks(&mut turn, 6), late) >= 1);
}

#[test]
fn slot_time_in_one_tier_does_not_count_in_another() {
    let (mut turn, tenants) = two_tenants(1, 1);
    turn.join(Tier::Transactional, tenants[0], 0, Speed::Quick, NOW);
    let picked = usual_picks(&mut turn, 500);
    let promotional: Vec<TakenTurn> = picked.into_iter().filter(|taken| taken.tier == TIER).collect();
    assert_eq!(tenants.map(|tenant| count_of_tenant(&promotional, tenant)), [50, 50]);
}

// --- how many slots a tenant may hold ---

#[test]
fn a_tenant_at_its_cap_continues_when_an_attempt_has_ended() {
    let (mut turn, tenants) = two_tenants(10, 10);
    let sent = send_all(&mut turn, capped(4), NOW);
    assert_eq!(tenants.map(|tenant| count_of_tenant(&sent, tenant)), [4, 4]);
    let held = Some(Hold { why: Why::Concurrency, until: None });
    assert_eq!([turn.holding(id(1), NOW), turn.holding(id(2), NOW)], [held, held]);

    let landed = sent.into_iter().find(|taken| taken.tenant == tenants[1]).expect("it sent four");
    turn.landed(landed, USUAL, USUAL);
    assert_eq!(turn.holding(id(2), NOW), None);
    let next = turn.take(capped(4), NOW).expect("a slot of the second is free");
    assert_eq!(next.tenant, tenants[1]);
    turn.sent(next, USUAL, NOW);
    assert_eq!(turn.take(capped(4), NOW), None);
}

#[test]
fn a_tenant_at_its_cap_does_not_keep_others_from_their_turns() {
    let (mut turn, [heavy, other]) = two_tenants(10, 10);
    turn.set(TenantSettings { weight_milli: 100_000, ..TenantSettings::new(id(1)) }, NOW);
    let mut sent = Vec::new();
    for _ in 0..6 {
        let taken = turn.take(capped(3), NOW).expect("the second has lanes and slots");
        turn.sent(taken, USUAL, NOW);
        sent.push(taken);
    }
    assert_eq!((count_of_tenant(&sent, heavy), count_of_tenant(&sent, other)), (3, 3));
}

#[test]
fn a_tenant_saves_nothing_up_while_it_is_at_its_cap() {
    let (mut turn, tenants) = two_tenants(10, 10);
    let first = send(&mut turn, USUAL);
    assert_eq!(first.tenant, tenants[0]);
    for _ in 0..1_000 {
        let taken = turn.take(capped(1), NOW).expect("nothing of the second is under way");
        assert_eq!(taken.tenant, tenants[1]);
        turn.sent(taken, USUAL, NOW);
        turn.landed(taken, USUAL, USUAL);
        turn.join(TIER, taken.tenant, taken.lane, Speed::Quick, NOW);
    }
    turn.landed(first, USUAL, USUAL);
    let picked = usual_picks(&mut turn, 100);
    assert!(count_of_tenant(&picked, tenants[0]).abs_diff(50) <= 1, "{}", count_of_tenant(&picked, tenants[0]));
}

#[test]
fn a_single_tenant_may_use_every_slot() {
    let mut turn = Turns::default();
    with_lanes(&mut turn, 1, 10);
    for _ in 0..10 {
        let taken = turn.take(capped(2), NOW).expect("there is no other tenant");
        turn.sent(taken, USUAL, NOW);
    }
}

#[test]
fn an_inactive_tenant_is_removed() {
    let mut turn = Turns::default();
    with_lanes(&mut turn, 1, 10);
    let gone = with_lanes(&mut turn, 2, 1);
    let sent = send_all(&mut turn, capped(2), NOW);
    assert_eq!(sent.len(), 3, "two of the first, one of the second");
    sent.iter().for_each(|taken| turn.landed(*taken, USUAL, USUAL));

    let mut holds = |after: Duration| {
        let more = send_all(&mut turn, capped(2), NOW + after);
        more.iter().for_each(|taken| turn.landed(*taken, USUAL, USUAL));
        more.len()
    };
    let just_there = PRESENT - Duration::from_millis(1);
    assert_eq!(holds(just_there), 2, "its last attempt was a moment ago");
    assert_eq!(holds(PRESENT), 6, "all the others of the first tenant");
    assert!(turn.tenants.get(gone).is_none());
    assert_eq!(turn.tenant(id(3), NOW), gone, "its place is free");
}

#[test]
fn a_tenant_with_work_or_an_attempt_in_flight_stays_active() {
    let mut turn = Turns::default();
    with_lanes(&mut turn, 1, 1);
    with_lanes(&mut turn, 2, 1);
    let under_way = send(&mut turn, USUAL);
    let much_later = NOW + seconds(100_000);
    let waiting = turn.take(FREE, much_later).expect("the other one waits");
    turn.join(TIER, waiting.tenant, waiting.lane, Speed::Quick, NOW);
    assert_ne!(under_way.tenant, waiting.tenant);
    assert_eq!(turn.take(capped(1), much_later).map(|taken| taken.tenant), Some(waiting.tenant));
    assert_eq!(turn.index.len(), 2);
}

// --- a tenant's rate ---

fn limited(tenant: u64, rate: Rate) -> TenantSettings {
    TenantSettings { rate: Some(rate), ..TenantSettings::new(id(tenant)) }
}

/// The first tenant has this limit.
fn with_limit(rate: Rate) -> Turns {
    let mut turn = Turns::default();
    turn.set(limited(1, rate), NOW);
    turn
}

#[test]
fn a_tenant_out_of_tokens_waits_until_it_is_woken() {
    let mut turn = with_limit(Rate::per_second(10).with_burst(2));
    with_lanes(&mut turn, 1, 5);
    send(&mut turn, USUAL);
    send(&mut turn, USUAL);
    assert_eq!(turn.take_wakes(), []);
    assert_eq!(turn.take(FREE, NOW), None);

    let then = NOW + Duration::from_millis(100);
    assert_eq!(turn.take_wakes(), [(then, id(1))]);
    assert_eq!(turn.holding(id(1), NOW), Some(Hold { why: Why::RateLimit, until: Some(then) }));
    assert_eq!(turn.take(FREE, then), None, "it has not been woken");
    turn.wake(id(1));
    let taken = turn.take(FREE, then).expect("a token is there");
    turn.sent(taken, USUAL, then);
    assert_eq!(turn.take(FREE, then), None);
    assert_eq!(turn.take_wakes(), [(then + Duration::from_millis(100), id(1))]);
}

#[test]
fn an_attempt_not_made_gives_back_its_token_slot_and_charge() {
    let mut turn = with_limit(Rate::per_second(1));
    let tenant = with_lanes(&mut turn, 1, 2);
    let had = |turn: &mut Turns| turn.tenant_mut(tenant).rings[TIER.index()].each_ref().map(|ring| ring.had);
    let before = had(&mut turn);
    let taken = send(&mut turn, USUAL);
    assert_eq!(turn.take(FREE, NOW), None, "its token is spent");

    turn.put_back(taken, USUAL, NOW);
    assert_eq!((had(&mut turn), turn.tenant_mut(tenant).in_flight), (before, 0));
    let again = turn.take(FREE, NOW).expect("its token is back");
    assert_ne!(again.lane, taken.lane, "the other lane's turn");
}

#[test]
fn a_limited_tenant_keeps_no_other_from_its_turns_and_saves_nothing_up() {
    let mut turn = with_limit(Rate::per_second(1));
    let (slow, free) = (with_lanes(&mut turn, 1, 1), with_lanes(&mut turn, 2, 1));
    let picked = usual_picks(&mut turn, 1_000);
    assert_eq!((count_of_tenant(&picked, slow), count_of_tenant(&picked, free)), (1, 999));
    turn.set(TenantSettings::new(id(1)), NOW);
    let picked = usual_picks(&mut turn, 100);
    let (slow, free) = (count_of_tenant(&picked, slow), count_of_tenant(&picked, free));
    assert!(slow.abs_diff(free) <= 2, "{slow} and {free}");
}

#[test]
fn only_the_removal_of_a_rate_limit_lets_waiting_lanes_send() {
    let mut turn = with_limit(Rate::per_second(1));
    with_lanes(&mut turn, 1, 2);
    let taken = send(&mut turn, USUAL);
    assert_eq!(turn.take(FREE, NOW), None);
    turn.landed(taken, USUAL, USUAL);
    assert_eq!(turn.take(FREE, NOW), None, "the end of an attempt gives back no token");
    turn.set(TenantSettings { weight_milli: 7, ..limited(1, Rate::per_second(1)) }, NOW);
    assert_eq!(turn.take(FREE, NOW), None, "the same limit again does not fill the bucket");
    turn.set(TenantSettings::new(id(1)), NOW);
    assert!(turn.take(FREE, NOW).is_some());
}

#[test]
fn a_tier_saves_nothing_up_while_its_tenants_are_blocked() {
    let mut turn = with_limit(Rate::per_second(1));
    let urgent = turn.tenant(id(1), NOW);
    turn.join(Tier::Transactional, urgent, 0, Speed::Quick, NOW);
    with_lanes(&mut turn, 2, 1);
    assert_eq!(by_tier(&usual_picks(&mut turn, 1_000)), [1, 999, 0]);
    turn.set(TenantSettings::new(id(1)), NOW);
    let picked = by_tier(&usual_picks(&mut turn, 100));
    assert!(picked[0].abs_diff(80) <= 1 && picked[1].abs_diff(20) <= 1, "by weight again: {picked:?}");
}

#[test]
fn a_tenant_with_a_bucket_that_is_not_full_is_not_removed() {
    let mut turn = with_limit(Rate::milli(10));
    let tenant = with_lanes(&mut turn, 1, 1);
    let taken = send(&mut turn, USUAL);
    turn.landed(taken, USUAL, USUAL);
    let token_is_back = NOW + seconds(100);
    (0..3).for_each(|_| assert_eq!(turn.take(FREE, token_is_back - Duration::from_millis(1)), None));
    assert!(turn.tenants.get(tenant).is_some(), "coming back must not fill its bucket");
    (0..3).for_each(|_| assert_eq!(turn.take(FREE, token_is_back), None));
    assert!(turn.tenants.get(tenant).is_none());
}
