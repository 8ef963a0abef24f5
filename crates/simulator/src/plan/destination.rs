//! Draws destinations from a seed: their tenants, the hosts that they share, and their behaviour.
//!
//! A few lanes are hot and get most of the messages, so that breakers open and backlogs grow. Lanes share hosts, some
//! across tenants, and a host's behaviour is that of most lanes on it. One tenant is quiet: it has few messages, to
//! receivers that are fast and healthy, so that only other tenants can delay it.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use posthaste_core::flow::bucket::Rate;
use posthaste_core::scheduler::{OnDead, Order, Special};
use posthaste_core::{LaneId, LaneSettings, OriginId, Policy, TenantId};

use super::{BEGIN, LanePlan, Mode};
use crate::history::Ms;

/// Presets that give up within days, with the attempts that each allows (waits plus one).
const POLICIES: [(&str, u16); 7] =
    [("backend", 8), ("apns", 4), ("web-push", 6), ("gethook", 5), ("fixed", 5), ("exponential", 9), ("webhook", 9)];

/// The most behaviours of a receiver.
const MODES_MAX: usize = 40;

pub(super) struct PlannedDestinations {
    pub(super) lanes: Vec<LanePlan>,
    hot: Vec<usize>,
    /// The share of messages that go to a hot lane, in percent.
    heat: u32,
}

/// An origin with a behaviour of its own.
struct Host {
    origin: OriginId,
    modes: Vec<(Ms, Mode)>,
}

impl PlannedDestinations {
    pub(super) fn make(rng: &mut Rng, count: usize, healed_at: Ms) -> Self {
        let tenants = rng.u64(3..=5);
        let hosts: Vec<Host> = (0..=count / 4)
            .map(|number| Host {
                origin: OriginId::of(&format!("https://host-{number}.example:443")),
                modes: script(rng, healed_at, Pace::Brisk),
            })
            .collect();
        let hot: Vec<usize> = (0..rng.usize(1..=3)).map(|_| rng.usize(1..count)).collect();
        let lanes = (0..count)
            .map(|index| match index {
                0 => quiet_lane(rng, tenants),
                _ => {
                    let tenant = 1 + index as u64 % (tenants - 1);
                    let pace = if hot.contains(&index) { Pace::Brisk } else { Pace::Slow };
                    let own = script(rng, healed_at, pace);
                    let host = (rng.u32(..3) > 0).then(|| &hosts[rng.usize(..hosts.len())]);
                    lane(rng, 1_000 + index as u64, tenant, own, host)
                }
            })
            .collect();
        Self { lanes, hot, heat: rng.u32(20..95) }
    }

    /// A random destination.
    pub(super) fn pick(&self, rng: &mut Rng) -> usize {
        if rng.u32(..100) < self.heat { self.hot[rng.usize(..self.hot.len())] } else { rng.usize(..self.lanes.len()) }
    }
}

fn lane(rng: &mut Rng, id: u64, tenant: u64, own: Vec<(Ms, Mode)>, host: Option<&Host>) -> LanePlan {
    let (policy, max_attempts) = POLICIES[rng.usize(..POLICIES.len())];
    // One lane in three on a host has a behaviour of its own instead of the host's.
    let modes = host.filter(|_| rng.u32(..3) > 0).map_or(own, |host| host.modes.clone());
    let rate = (rng.u32(..3) == 0).then(|| (rng.u32(1..=10), rng.u32(1..=6)));
    let policy_of_lane = Arc::new(Policy::preset(policy).expect("the list names presets"));
    let settings = LaneSettings {
        order: match rng.u32(..5) {
            0 => Order::NewestFirst,
            1 => Order::Strict,
            _ => Order::Fifo,
        },
        on_dead: if rng.u32(..3) == 0 { OnDead::Hold } else { OnDead::Skip },
        max_in_flight: rng.u16(1..=20),
        origin: host.map(|host| host.origin),
        ..LaneSettings::new(LaneId::from_raw(id), TenantId::from_raw(tenant), policy_of_lane)
    };
    let limit = |(a_second, burst)| Rate::per_second(a_second).with_burst(burst);
    let settings = settings.with(Special { rate: rate.map(limit), ..Special::default() });
    let ttl = (rng.u32(..10) == 0).then(|| Duration::from_secs(rng.u64(1..7_200)));
    let window = (policy == "web-push").then_some(86_400_000);
    LanePlan { settings: Arc::new(settings), max_attempts, window, modes, ttl, rate }
}

/// The quiet tenant's only lane: always healthy and fast.
fn quiet_lane(rng: &mut Rng, tenant: u64) -> LanePlan {
    let quick = vec![(Ms::MAX, Mode::Healthy(rng.u64(1..40)))];
    lane(rng, 1_000, tenant, quick, None)
}

/// How often a receiver changes its behaviour.
#[derive(Clone, Copy)]
enum Pace {
    /// Within a minute or two, so that faults begin and end while messages come.
    Brisk,
    /// A few times in a run.
    Slow,
}

fn script(rng: &mut Rng, healed_at: Ms, pace: Pace) -> Vec<(Ms, Mode)> {
    let longest = match pace {
        Pace::Brisk => 100_000,
        Pace::Slow => (healed_at - BEGIN).max(2_000),
    };
    let mut modes = Vec::new();
    let mut until = BEGIN;
    while until < healed_at && modes.len() < MODES_MAX {
        until += rng.i64(1_000..longest);
        modes.push((until.min(healed_at), mode(rng)));
    }
    modes
}

fn mode(rng: &mut Rng) -> Mode {
    let after = |rng: &mut Rng| match rng.u32(..4) {
        0 => None,
        1 => Some(rng.u64(1..5)),
        2 => Some(rng.u64(5..300)),
        _ => Some(rng.u64(300..200_000)),
    };
    match rng.u32(..30) {
        0..=5 => Mode::Healthy(rng.u64(1..500)),
        6..=8 => Mode::Healthy(rng.u64(500..2_000)),
        9 | 10 => Mode::Queue,
        11..=13 => Mode::Brownout(rng.f64()),
        14 => Mode::Tarpit,
        15 | 16 => Mode::Throttle(after(rng)),
        17 | 18 => Mode::Unavailable(after(rng)),
        19..=21 => Mode::Down,
        22 => Mode::Breaks,
        23 => Mode::Lies,
        24 => Mode::Status([400, 404, 422, 301, 500, 410][rng.usize(..6)]),
        25..=28 => Mode::Split,
        _ => Mode::NoName,
    }
}
