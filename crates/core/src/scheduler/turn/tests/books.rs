//! Invariants of the accounting under any order of events: lines and rings agree, and no lane is lost.

use proptest::prelude::*;

use super::*;

/// An event. Numbers choose among the attempts that exist at the time.
#[derive(Clone, Copy, Debug)]
enum Op {
    Join { tenant: u64, tier: Tier, speed: Speed },
    Send { room: Room, expected: Duration },
    // A lane that was taken as a quick one has become slow.
    Slow,
    Pass,
    Land(usize, Duration),
    PutBack(usize),
    Set { tenant: u64, weight_milli: u32, rate: Option<Rate> },
    Wake(u64),
    Wait(Duration),
}

const TENANTS: std::ops::Range<u64> = 0..5;

fn an_op() -> impl Strategy<Value = Op> {
    let tier = prop::sample::select(Tier::ALL.to_vec());
    let speed = prop::sample::select(Speed::ALL.to_vec());
    let room = (1..6u32, any::<bool>(), 0..3u32).prop_map(|(cap, slow, lowest)| Room { cap, slow, lowest });
    let time = prop::sample::select(vec![0, 1, 40, 100, 3_000, 61_000]).prop_map(Duration::from_millis);
    let rate = prop::option::of((0..5_000u64, 1..5u32).prop_map(|(milli, burst)| Rate::milli(milli).with_burst(burst)));
    prop_oneof![
        8 => (TENANTS, tier, speed).prop_map(|(tenant, tier, speed)| Op::Join { tenant, tier, speed }),
        8 => (room, time.clone()).prop_map(|(room, expected)| Op::Send { room, expected }),
        1 => Just(Op::Slow),
        1 => Just(Op::Pass),
        6 => (0..100usize, time.clone()).prop_map(|(which, took)| Op::Land(which, took)),
        1 => (0..100usize).prop_map(Op::PutBack),
        1 => (TENANTS, 0..5_000u32, rate)
            .prop_map(|(tenant, weight_milli, rate)| Op::Set { tenant, weight_milli, rate }),
        1 => TENANTS.prop_map(Op::Wake),
        2 => time.prop_map(Op::Wait),
    ]
}

/// The expected state: lanes that wait, and attempts in flight.
#[derive(Default)]
struct Seen {
    waits: Vec<(Tier, u32, Speed)>,
    under_way: Vec<(TakenTurn, Duration)>,
    lanes: u32,
}

impl Seen {
    fn leaves(&mut self, taken: TakenTurn) -> (Tier, u32, Speed) {
        let lane = self.waits.iter().position(|(tier, lane, _)| (*tier, *lane) == (taken.tier, taken.lane));
        self.waits.swap_remove(lane.expect("only waiting lanes are taken"))
    }
}

fn happen(turn: &mut Turns, seen: &mut Seen, now: &mut Timestamp, op: Op) {
    match op {
        Op::Join { tenant, tier, speed } => {
            let index = turn.tenant(id(tenant), *now);
            turn.join(tier, index, seen.lanes, speed, *now);
            seen.waits.push((tier, seen.lanes, speed));
            seen.lanes += 1;
        }
        Op::Send { room, expected } => {
            let alone = turn.index.len() == 1;
            if let Some(taken) = turn.take(room, *now) {
                let (.., speed) = seen.leaves(taken);
                assert!(room.slow || speed == Speed::Quick, "a slow lane took a slot reserved for quick ones");
                turn.sent(taken, expected, *now);
                seen.under_way.push((taken, expected));
                let holds = seen.under_way.iter().filter(|(flight, _)| flight.tenant == taken.tenant).count();
                // The other tenants may just have been removed as inactive.
                let cap = room.cap as usize;
                assert!(alone || turn.index.len() == 1 || holds <= cap, "{holds} of {cap} slots");
            }
        }
        Op::Slow => {
            if let Some(taken) = turn.take(NO_SLOW, *now) {
                let (tier, lane, _) = seen.leaves(taken);
                turn.join_slow(taken);
                seen.waits.push((tier, lane, Speed::Slow));
            }
        }
        // A lane is taken and turns out to be blocked: it leaves the ring.
        Op::Pass => {
            if let Some(taken) = turn.take(FREE, *now) {
                seen.leaves(taken);
            }
        }
        Op::Land(which, took) => {
            if !seen.under_way.is_empty() {
                let (taken, expected) = seen.under_way.swap_remove(which % seen.under_way.len());
                turn.landed(taken, expected, took);
            }
        }
        Op::PutBack(which) => {
            if !seen.under_way.is_empty() {
                let (taken, expected) = seen.under_way.swap_remove(which % seen.under_way.len());
                turn.put_back(taken, expected, *now);
            }
        }
        Op::Set { tenant, weight_milli, rate } => {
            turn.set(TenantSettings { tenant: id(tenant), weight_milli, rate }, *now);
        }
        Op::Wake(tenant) => turn.wake(id(tenant)),
        Op::Wait(time) => *now = *now + time,
    }
}

/// Whether a tenant is in a line if and only if it has a lane there and is not blocked, with the slot-time it has used.
fn lines_are_right(turn: &Turns) -> bool {
    let places = |tier: Tier, speed: Speed| {
        let tenants = (0..turn.tenants.bound()).filter_map(|index| Some((index, turn.tenants.get(index)?)));
        let free = tenants.filter(|(_, tenant)| tenant.blocked.is_none());
        let rings = free.map(move |(index, tenant)| (&tenant.rings[tier.index()][speed.index()], index));
        rings.filter(|(ring, _)| !ring.lanes.is_empty()).map(|(ring, index)| (ring.had, index)).collect()
    };
    Tier::ALL.into_iter().all(|tier| {
        let lines = &turn.tiers[tier.index()].lines;
        Speed::ALL.into_iter().all(|speed| lines[speed.index()].order == places(tier, speed))
    })
}

/// Whether every attempt in flight is counted for its tenant and its tier.
fn slots_are_right(turn: &Turns, seen: &Seen) -> bool {
    let count = |of: &dyn Fn(&TakenTurn) -> bool| seen.under_way.iter().filter(|(taken, _)| of(taken)).count();
    let tiers = |tier: Tier| turn.tiers[tier.index()].in_flight as usize == count(&|taken| taken.tier == tier);
    let tenants = |index: u32| {
        let held = turn.tenants.get(index).map_or(0, |tenant| tenant.in_flight);
        held as usize == count(&|taken| taken.tenant == index)
    };
    Tier::ALL.into_iter().all(tiers) && (0..turn.tenants.bound()).all(tenants)
}

proptest! {
    #[test]
    fn no_lane_is_lost_and_none_is_taken_twice(ops in prop::collection::vec(an_op(), 1..200)) {
        let (mut turn, mut seen, mut now) = (Turns::default(), Seen::default(), NOW);
        for op in ops {
            happen(&mut turn, &mut seen, &mut now, op);
            prop_assert!(lines_are_right(&turn) && slots_are_right(&turn, &seen), "{turn:?}");
        }
        // Without limits every waiting lane is taken, and exactly once.
        for (taken, expected) in std::mem::take(&mut seen.under_way) {
            turn.landed(taken, expected, expected);
        }
        TENANTS.for_each(|tenant| turn.set(TenantSettings::new(id(tenant)), now));
        for _ in 0..seen.waits.len() {
            happen(&mut turn, &mut seen, &mut now, Op::Pass);
        }
        prop_assert_eq!(&seen.waits, &[]);
        prop_assert_eq!(turn.take(FREE, now), None);
    }
}
