//! From a seed to a scenario: lanes, receivers, messages, commands, faults.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use posthaste_core::id::{LaneId, TenantId};
use posthaste_core::policy::Policy;
use posthaste_core::queue::{LaneSettings, Limits, OnDead, Order};
use posthaste_core::tier::Tier;

use super::history::Ms;

/// Where virtual time begins.
pub const BEGIN: Ms = 1_700_000_000_000;
/// Deliveries in a run.
pub const DELIVERIES: usize = 500;

/// How a receiver behaves for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Answers 2xx in about this many milliseconds.
    Healthy(u64),
    /// One server, 20 ms a request, a waiting room of two seconds, then 503.
    Queue,
    /// Fails this share of requests with 500, slowly.
    Brownout(f64),
    /// Never answers.
    Tarpit,
    /// 429, with a Retry-After of so many seconds where there is one.
    Throttle(Option<u64>),
    /// 503, with a Retry-After of so many seconds where there is one.
    Unavailable(Option<u64>),
    /// Nothing listens.
    Down,
    /// The connection breaks after the request was written.
    Breaks,
    /// Does the work and says 500.
    Lies,
    /// Always this status.
    Status(u16),
    /// The name does not exist.
    NoName,
}

/// One destination.
#[derive(Clone, Debug)]
pub struct LanePlan {
    /// What the engine knows of it.
    pub settings: Arc<LaneSettings>,
    /// Attempts its policy allows, written down here by hand.
    pub max_attempts: u16,
    /// The window its policy sets, written down here by hand.
    pub window: Option<Ms>,
    /// Behaviours and when each ends; healthy afterwards.
    pub modes: Vec<(Ms, Mode)>,
    /// The endpoint's own TTL.
    pub ttl: Option<Duration>,
}

impl LanePlan {
    /// How it behaves at a time.
    pub fn mode(&self, at: Ms) -> Mode {
        self.modes.iter().find(|(until, _)| at < *until).map_or(Mode::Healthy(20), |(_, mode)| *mode)
    }
}

/// A message to send.
#[derive(Clone, Debug)]
pub struct MessagePlan {
    /// To which lanes.
    pub lanes: Vec<usize>,
    /// How urgent.
    pub tier: Tier,
    /// Its TTL.
    pub ttl: Option<Duration>,
    /// How long after the call it may be sent at the earliest.
    pub deliver_after: Option<Duration>,
    /// Whether a receipt is required.
    pub wants_receipt: bool,
}

/// Something that happens from outside.
#[derive(Clone, Debug)]
pub enum Happening {
    /// A producer sends a message.
    Send(MessagePlan),
    /// Somebody cancels the message sent so many messages ago.
    Cancel(usize),
    /// Somebody ends a lane.
    EndLane(usize),
    /// Somebody pauses for so long: 0 everything, 1 a tenant, 2 a lane.
    Pause(u8, usize, Duration),
    /// The node dies and is back after a while.
    Crash(Duration),
    /// Store calls take this long, for so long.
    Stall(Duration, Duration),
    /// Store calls fail, half of them after taking effect, for so long.
    Fail(Duration),
    /// The wall clock jumps.
    Jump(Ms),
}

/// A fault of the world around the engine that the oracle must see: the negative control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Producers are told "accepted" before the store has it.
    AckBeforeDurable,
}

/// A whole scenario.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its seed.
    pub seed: u64,
    /// The window's bounds: small, so that everything overflows.
    pub limits: Limits,
    /// The destinations.
    pub lanes: Vec<LanePlan>,
    /// What happens, in the order of time.
    pub happenings: Vec<(Ms, Happening)>,
    /// When the last fault is over.
    pub healed_at: Ms,
    /// Crash at the so-manyth place where one could be.
    pub crash_at_point: Option<u64>,
    /// Whether the wall clock ever jumps.
    pub clock_jumps: bool,
    /// Something the oracle must complain about.
    pub sabotage: Option<Sabotage>,
}

/// Presets that end within days, and how many attempts each allows (waits plus one).
const POLICIES: [(&str, u16); 7] =
    [("backend", 8), ("apns", 4), ("web-push", 6), ("gethook", 5), ("fixed", 5), ("exponential", 9), ("webhook", 9)];

impl Plan {
    /// The scenario of a seed.
    pub fn from_seed(seed: u64) -> Self {
        Self::sized(seed, DELIVERIES)
    }

    /// A small scenario, for trying every crash there could be.
    pub fn small(seed: u64) -> Self {
        let mut plan = Self::sized(seed, 8);
        plan.happenings.retain(|(_, happening)| !matches!(happening, Happening::Crash(_) | Happening::Jump(_)));
        plan.clock_jumps = false;
        plan
    }

    fn sized(seed: u64, deliveries: usize) -> Self {
        let mut rng = Rng::with_seed(seed);
        let busy_ms = rng.i64(60_000..1_200_000) * i64::try_from(deliveries).unwrap_or(1) / 500 + 20_000;
        let healed_at = BEGIN + busy_ms * 2;
        let lane_count = rng.usize(2..=if deliveries > 100 { 24 } else { 4 });
        let lanes = (0..lane_count).map(|index| lane(&mut rng, index, healed_at)).collect();
        let limits = Limits {
            slots: rng.u32(2..=64),
            per_queue: rng.u32(2..=24),
            window: rng.usize(24..=256),
            ..Limits::default()
        };
        let mut plan = Self {
            seed,
            limits,
            lanes,
            happenings: Vec::new(),
            healed_at,
            crash_at_point: None,
            clock_jumps: false,
            sabotage: None,
        };
        plan.sends(&mut rng, deliveries, busy_ms);
        plan.faults(&mut rng, busy_ms);
        plan.happenings.sort_by_key(|(at, _)| *at);
        plan
    }

    fn sends(&mut self, rng: &mut Rng, deliveries: usize, busy_ms: Ms) {
        let lane_count = self.lanes.len();
        let favourite = rng.usize(..lane_count);
        let mut made = 0;
        while made < deliveries {
            let at = BEGIN + rng.i64(0..busy_ms);
            // Bursts: several messages at the same instant to the same lane.
            let burst = if rng.u32(..10) == 0 { rng.usize(1..30) } else { 1 };
            for _ in 0..burst.min(deliveries - made) {
                let fan_out = if rng.u32(..8) == 0 { rng.usize(1..=4).min(deliveries - made) } else { 1 };
                let lanes: Vec<usize> =
                    (0..fan_out).map(|_| if rng.u32(..4) == 0 { favourite } else { rng.usize(..lane_count) }).collect();
                made += lanes.len();
                self.happenings.push((at, Happening::Send(message(rng, lanes))));
                if made >= deliveries {
                    break;
                }
            }
        }
    }

    fn faults(&mut self, rng: &mut Rng, busy_ms: Ms) {
        let when = |rng: &mut Rng| BEGIN + rng.i64(0..busy_ms);
        let seconds = |rng: &mut Rng, most: u64| Duration::from_millis(rng.u64(1..=most * 1_000));
        for _ in 0..rng.u32(..6) {
            self.happenings.push((when(rng), Happening::Cancel(rng.usize(..30))));
        }
        for _ in 0..rng.u32(..4) {
            let lane = rng.usize(..self.lanes.len());
            self.happenings.push((when(rng), Happening::Pause(rng.u8(..3), lane, seconds(rng, 120))));
        }
        for _ in 0..rng.u32(..2) {
            self.happenings.push((when(rng), Happening::EndLane(rng.usize(..self.lanes.len()))));
        }
        for _ in 0..rng.u32(..4) {
            self.happenings.push((when(rng), Happening::Crash(seconds(rng, 30))));
        }
        for _ in 0..rng.u32(..3) {
            self.happenings.push((when(rng), Happening::Stall(seconds(rng, 20), seconds(rng, 60))));
        }
        for _ in 0..rng.u32(..2) {
            self.happenings.push((when(rng), Happening::Fail(seconds(rng, 20))));
        }
        if rng.u32(..4) == 0 {
            self.clock_jumps = true;
            for _ in 0..rng.u32(1..4) {
                let at = when(rng);
                self.happenings.push((at, Happening::Jump(rng.i64(-3_600_000..=3_600_000))));
            }
        }
    }
}

fn lane(rng: &mut Rng, index: usize, healed_at: Ms) -> LanePlan {
    let (policy, max_attempts) = POLICIES[rng.usize(..POLICIES.len())];
    let order = match rng.u32(..5) {
        0 => Order::NewestFirst,
        1 => Order::Strict,
        _ => Order::Fifo,
    };
    let policy_of_lane = Arc::new(Policy::preset(policy).expect("the list names presets"));
    let (id, tenant) = (LaneId::from_raw(1_000 + index as u64), TenantId::from_raw(1 + index as u64 % 3));
    let settings = LaneSettings {
        order,
        on_dead: if rng.u32(..3) == 0 { OnDead::Hold } else { OnDead::Skip },
        max_in_flight: rng.u16(1..=20),
        ..LaneSettings::new(id, tenant, policy_of_lane)
    };
    let mut modes = Vec::new();
    let mut until = BEGIN;
    while until < healed_at && modes.len() < 12 {
        until += rng.i64(1_000..(healed_at - BEGIN).max(2_000));
        modes.push((until.min(healed_at), mode(rng)));
    }
    let ttl = (rng.u32(..10) == 0).then(|| Duration::from_secs(rng.u64(1..7_200)));
    let window = (policy == "web-push").then_some(86_400_000);
    LanePlan { settings: Arc::new(settings), max_attempts, window, modes, ttl }
}

fn mode(rng: &mut Rng) -> Mode {
    let after = |rng: &mut Rng| match rng.u32(..4) {
        0 => None,
        1 => Some(rng.u64(1..5)),
        2 => Some(rng.u64(5..300)),
        _ => Some(rng.u64(300..200_000)),
    };
    match rng.u32(..24) {
        0..=7 => Mode::Healthy(rng.u64(1..500)),
        8 | 9 => Mode::Queue,
        10..=12 => Mode::Brownout(rng.f64()),
        13 => Mode::Tarpit,
        14 | 15 => Mode::Throttle(after(rng)),
        16 | 17 => Mode::Unavailable(after(rng)),
        18 | 19 => Mode::Down,
        20 => Mode::Breaks,
        21 => Mode::Lies,
        22 => Mode::Status([400, 404, 422, 301, 500, 410][rng.usize(..6)]),
        _ => Mode::NoName,
    }
}

fn message(rng: &mut Rng, lanes: Vec<usize>) -> MessagePlan {
    MessagePlan {
        lanes,
        tier: Tier::ALL[rng.usize(..3)],
        ttl: match rng.u32(..10) {
            0 => Some(Duration::ZERO),
            1 | 2 => Some(Duration::from_millis(rng.u64(1..600_000))),
            _ => None,
        },
        deliver_after: (rng.u32(..10) == 0).then(|| Duration::from_millis(rng.u64(1..900_000))),
        wants_receipt: rng.u32(..12) == 0,
    }
}
