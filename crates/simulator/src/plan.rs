//! Draws a scenario from a seed: messages, calls, faults. Destinations are in `destination.rs`.

mod destination;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use posthaste_core::scheduler::Limits;
use posthaste_core::{EndpointId, LaneSettings, Tier};

use super::history::Ms;
use destination::PlannedDestinations;

/// Where virtual time begins.
pub const BEGIN: Ms = 1_700_000_000_000;
/// Deliveries in a run.
pub const DELIVERIES: usize = 500;

/// The behaviour of a receiver for some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Answers 2xx in about this many milliseconds.
    Healthy(u64),
    /// One server that takes 20 ms a request, with a queue of two seconds; beyond that it answers 503.
    Queue,
    /// Answers slowly, this share of requests with 500.
    Brownout(f64),
    /// Two machines behind one name: most requests reach one that refuses connections, the others one that needs nearly
    /// the whole timeout.
    Split,
    /// Never answers.
    Tarpit,
    /// Answers 429, perhaps with a Retry-After in seconds.
    Throttle(Option<u64>),
    /// Answers 503, perhaps with a Retry-After in seconds.
    Unavailable(Option<u64>),
    /// Refuses connections.
    Down,
    /// The connection breaks after the request was written.
    Breaks,
    /// Processes the request but answers 500.
    Lies,
    /// Always answers this status.
    Status(u16),
    /// The name does not exist.
    NoName,
}

#[derive(Clone, Debug)]
pub struct LanePlan {
    /// Its settings, as the engine has them.
    pub settings: Arc<LaneSettings>,
    /// The attempts that its policy allows, written by hand for the oracle.
    pub max_attempts: u16,
    /// The window of its policy, written by hand for the oracle.
    pub window: Option<Ms>,
    /// Its behaviours, with the time at which each ends; afterwards it is healthy.
    pub modes: Vec<(Ms, Mode)>,
    /// The endpoint's own TTL.
    pub ttl: Option<Duration>,
    /// Its rate limit: requests per second and burst, written by hand for the oracle.
    pub rate: Option<(u32, u32)>,
}

impl LanePlan {
    /// The endpoint of the lane. Its number differs from the lane's, so that a mix-up of the two in the engine shows.
    pub fn endpoint(&self) -> EndpointId {
        EndpointId(self.settings.lane.0.plus(1_000_000))
    }

    pub fn mode(&self, at: Ms) -> Mode {
        self.modes.iter().find(|(until, _)| at < *until).map_or(Mode::Healthy(20), |(_, mode)| *mode)
    }
}

#[derive(Clone, Debug)]
pub struct MessagePlan {
    /// The lanes that it is sent to, as indices into [`RunPlan::lanes`].
    pub lanes: Vec<usize>,
    pub tier: Tier,
    pub ttl: Option<Duration>,
    /// The least time between the call and the first attempt.
    pub deliver_after: Option<Duration>,
    pub wants_receipt: bool,
    /// Its collapse key, one of a few.
    pub collapse: Option<u64>,
    /// Its subject, one of a few.
    pub subject: Option<u64>,
}

/// An event from outside the node.
#[derive(Clone, Debug)]
pub enum Happening {
    /// A producer sends a message.
    Send(MessagePlan),
    /// A producer cancels a message, counted back from the last one.
    Cancel(usize),
    /// An owner ends a lane.
    EndLane(usize),
    /// An operator pauses a scope and resumes it later: its kind (0 everything, 1 a tenant, 2 a lane), a lane in it,
    /// and the length of the pause.
    Pause(u8, usize, Duration),
    /// An operator erases a subject, or with `None` the whole tenant.
    Erase(Option<u64>),
    /// The node crashes, and restarts after this time.
    Crash(Duration),
    /// Store calls take up to the first time, for the length of the second.
    Stall(Duration, Duration),
    /// Store calls fail during this time, half of them after taking effect.
    Fail(Duration),
    /// The wall clock jumps by this much.
    Jump(Ms),
}

#[derive(Clone, Debug)]
pub struct RunPlan {
    pub seed: u64,
    /// The bounds of the window: small, so that they are reached.
    pub limits: Limits,
    pub lanes: Vec<LanePlan>,
    /// The events, in order of time.
    pub happenings: Vec<(Ms, Happening)>,
    /// When the last fault is over.
    pub healed_at: Ms,
    /// The number of the crash point at which to crash, counted from 1.
    pub crash_at_point: Option<u64>,
    /// Whether the wall clock ever jumps.
    pub clock_jumps: bool,
    /// The share of attempts, in thousandths, that a local fault prevents until all faults are over.
    pub not_started_milli: u32,
    /// The negative control, a fault of the world around the engine that the oracle must detect: producers get
    /// "accepted" before the message is in the store.
    pub acks_early: bool,
}

impl RunPlan {
    pub fn from_seed(seed: u64) -> Self {
        Self::sized(seed, DELIVERIES)
    }

    /// A small scenario, for trying every crash point.
    pub fn small(seed: u64) -> Self {
        let mut plan = Self::sized(seed, 8);
        plan.happenings.retain(|(_, happening)| !matches!(happening, Happening::Crash(_) | Happening::Jump(_)));
        plan.clock_jumps = false;
        plan
    }

    fn sized(seed: u64, deliveries: usize) -> Self {
        let mut rng = Rng::with_seed(seed);
        let busy_ms = busy_ms(&mut rng) * i64::try_from(deliveries).unwrap_or(1) / 500 + 4_000;
        let healed_at = BEGIN + busy_ms * 2 + 30_000;
        let lane_count = rng.usize(2..=if deliveries > 100 { 24 } else { 4 });
        let destinations = PlannedDestinations::make(&mut rng, lane_count, healed_at);
        // With few slots deliveries wait for their turn; with many they do not.
        let limits = Limits {
            slots: if rng.bool() { rng.u32(2..=5) } else { rng.u32(4..=64) },
            per_queue: rng.u32(2..=24),
            window: rng.usize(24..=256),
            ..Limits::default()
        };
        let mut plan = Self {
            seed,
            limits,
            lanes: Vec::new(),
            happenings: Vec::new(),
            healed_at,
            crash_at_point: None,
            clock_jumps: false,
            not_started_milli: if rng.bool() { rng.u32(1..400) } else { 0 },
            acks_early: false,
        };
        plan.sends(&mut rng, &destinations, deliveries, busy_ms);
        plan.collapses();
        plan.erasures(busy_ms);
        plan.faults(&mut rng, &destinations, busy_ms);
        plan.happenings.sort_by_key(|(at, _)| *at);
        plan.lanes = destinations.lanes;
        plan
    }

    fn sends(&mut self, rng: &mut Rng, to: &PlannedDestinations, deliveries: usize, busy_ms: Ms) {
        let mut made = 0;
        while made < deliveries {
            let mut at = BEGIN + rng.i64(0..busy_ms);
            let favourite = to.pick(rng);
            // Bursts come at one instant, trains at even intervals; both go mostly to one lane.
            let (count, apart) = match rng.u32(..12) {
                0 => (rng.usize(2..50), 0),
                1 => (rng.usize(2..40), rng.i64(20..600)),
                _ => (1, 0),
            };
            for _ in 0..count {
                let mut lanes = vec![favourite];
                if rng.u32(..8) == 0 {
                    lanes.extend((0..rng.usize(0..4)).map(|_| to.pick(rng)));
                }
                lanes.truncate(deliveries - made);
                made += lanes.len();
                self.happenings.push((at, Happening::Send(message(rng, lanes))));
                if made >= deliveries {
                    break;
                }
                at += apart;
            }
        }
    }

    /// In a third of all scenarios most messages have a collapse key. Drawn from a generator of its own, so that the
    /// rest of a seed's scenario does not depend on it.
    fn collapses(&mut self) {
        let mut rng = Rng::with_seed(self.seed ^ 0x43_4F_4C_4C);
        if rng.u32(..3) != 0 {
            return;
        }
        let keys = rng.u64(1..=8);
        for (_, happening) in &mut self.happenings {
            if let Happening::Send(message) = happening {
                message.collapse = (rng.u32(..4) > 0).then(|| rng.u64(..keys));
            }
        }
    }

    /// In a third of all scenarios most messages have a subject, and some subjects are erased. Drawn from a generator
    /// of its own too.
    fn erasures(&mut self, busy_ms: Ms) {
        let mut rng = Rng::with_seed(self.seed ^ 0x45_52_41_53);
        if rng.u32(..3) != 0 {
            return;
        }
        let subjects = rng.u64(1..=6);
        for (_, happening) in &mut self.happenings {
            if let Happening::Send(message) = happening {
                message.subject = (rng.u32(..4) > 0).then(|| rng.u64(..subjects));
            }
        }
        for _ in 0..rng.u32(1..6) {
            let whom = (rng.u32(..8) > 0).then(|| rng.u64(..subjects));
            self.happenings.push((BEGIN + rng.i64(0..busy_ms * 3 / 2), Happening::Erase(whom)));
        }
    }

    fn faults(&mut self, rng: &mut Rng, to: &PlannedDestinations, busy_ms: Ms) {
        let when = |rng: &mut Rng| BEGIN + rng.i64(0..busy_ms);
        for _ in 0..rng.u32(..8) {
            self.happenings.push((when(rng), Happening::Cancel(rng.usize(..30))));
        }
        for _ in 0..rng.u32(..4) {
            let (at, kind, lane, wait) = (when(rng), rng.u8(..3), to.pick(rng), seconds(rng, 120));
            self.happenings.push((at, Happening::Pause(kind, lane, wait)));
            if rng.bool() {
                // A second pause, made while the resume of the first may still be under way.
                let again = at + i64::try_from(wait.as_millis()).unwrap_or(0) + (rng.i64(1..4_000) >> rng.u32(..12));
                self.happenings.push((again, Happening::Pause(kind, lane, seconds(rng, 120))));
            }
        }
        for _ in 0..rng.u32(..3) {
            self.happenings.push((when(rng), Happening::EndLane(to.pick(rng))));
        }
        for _ in 0..rng.u32(..4) {
            // Down only for a small part of the time, because a node that is down accepts no messages.
            let down = rng.i64(1..=(busy_ms / 12).min(30_000)).unsigned_abs();
            self.happenings.push((when(rng), Happening::Crash(Duration::from_millis(down))));
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

/// The time over which 500 deliveries are spread: seconds, minutes, or up to twenty minutes.
fn busy_ms(rng: &mut Rng) -> Ms {
    match rng.u32(..3) {
        0 => rng.i64(1_000..40_000),
        1 => rng.i64(40_000..300_000),
        _ => rng.i64(300_000..1_200_000),
    }
}

fn seconds(rng: &mut Rng, most: u64) -> Duration {
    Duration::from_millis(rng.u64(1..=most * 1_000))
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
        collapse: None,
        subject: None,
    }
}
