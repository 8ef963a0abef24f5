//! A model of an outage: the load on a receiver during it, and the load of retries after it.
//!
//! A receiver with one server and a short queue goes down while messages keep coming, and comes back. The sender is the
//! production dispatch loop in virtual time over a memory store, either as it ships or with bare retries.
//! [`OutageScenario`] describes the outage, [`Sender`] the sender; [`OutageScenario::play`] runs them and returns the
//! [`OutageOutcome`].
//!
//! The parts: [`world`] runs virtual time, [`receiver`] answers, [`tally`] counts, [`naive`] has naive retry policies,
//! and [`proof`] compares the results with known figures.

pub mod naive;
pub mod proof;
pub mod receiver;
pub mod tally;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use posthaste_core::flow::Protection;
use posthaste_core::scheduler::Limits;
use posthaste_core::{LaneId, LaneSettings, OriginId, Policy, TenantId};

pub use receiver::Down;
pub use tally::OutageOutcome;

/// How long after the recovery messages count as fresh, and the load is averaged.
pub const FRESH: Duration = Duration::from_secs(30 * 60);

/// An outage, and the load before, during and after it.
#[derive(Clone, Debug, PartialEq)]
pub struct OutageScenario {
    /// Messages per second, as a Poisson process, during the whole run.
    pub load: f64,
    /// Requests per second that the receiver can serve, one after the other.
    pub capacity: f64,
    /// The time before the outage, in which a sender learns the receiver's capacity.
    pub warm_up: Duration,
    /// How long the receiver is down.
    pub outage: Duration,
    /// How the receiver fails while it is down.
    pub down: Down,
    /// The receiver's time for a `503` of a full queue, as a share of its time to serve a request.
    pub shed_cost: f64,
    /// The least time that the run goes on after the recovery.
    pub watch: Duration,
    /// The longest time that the run goes on after the recovery, if messages are still pending.
    pub horizon: Duration,
    /// The seed; the same seed gives the same run.
    pub seed: u64,
}

impl Default for OutageScenario {
    /// Twenty minutes at 30 messages a second, for a receiver that takes 50.
    fn default() -> Self {
        Self {
            load: 30.0,
            capacity: 50.0,
            warm_up: Duration::from_secs(120),
            outage: Duration::from_secs(20 * 60),
            down: Down::Refuses,
            shed_cost: 0.0,
            watch: FRESH,
            horizon: Duration::from_secs(4 * 3_600),
            seed: 1,
        }
    }
}

impl OutageScenario {
    /// Runs the scenario to its end.
    pub fn play(&self, sender: &Sender) -> OutageOutcome {
        world::play(self, sender)
    }

    /// Messages created while the receiver is down, on average.
    pub fn held(&self) -> f64 {
        self.load * self.outage.as_secs_f64()
    }

    /// The shortest time after the recovery in which all held messages can be delivered without delaying new ones, with
    /// the receiver's capacity beyond the load. `None` if there is none.
    pub fn drained_at_best(&self) -> Option<Duration> {
        let to_spare = self.capacity - self.load;
        (to_spare > 0.0).then(|| Duration::from_secs_f64(self.held() / to_spare))
    }

    /// When the outage begins, counted from the start of the run.
    pub fn outage_begins(&self) -> Duration {
        self.warm_up
    }

    /// When the outage ends, counted from the start of the run.
    pub fn recovers(&self) -> Duration {
        self.warm_up + self.outage
    }
}

/// Runs scenarios in parallel, on as many threads as there are processors. `done` is called for each with its index in
/// the list.
pub fn play_all(plays: &[(OutageScenario, Sender)], done: impl Fn(usize, &OutageOutcome) + Sync) -> Vec<OutageOutcome> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(plays.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut played = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((scenario, sender)) = plays.get(index) else { return played };
            let outcome = scenario.play(sender);
            done(index, &outcome);
            played.push((index, outcome));
        }
    };
    let mut played: Vec<(usize, OutageOutcome)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no run panics")).collect()
    });
    played.sort_unstable_by_key(|(index, _)| *index);
    played.into_iter().map(|(_, outcome)| outcome).collect()
}

#[derive(Clone, Debug)]
pub struct Sender {
    /// The settings of the receiver's lane, with the retry policy.
    pub lane: Arc<LaneSettings>,
    /// The bounds of the window, and whether breakers and pacing protect the receiver.
    pub limits: Limits,
}

impl Sender {
    /// Posthaste as it ships, with this policy.
    pub fn posthaste(policy: Policy) -> Self {
        let lane = LaneSettings { origin: Some(OriginId::of("https://receiver.example")), ..lane(policy) };
        Self { lane: Arc::new(lane), limits: Limits::default() }
    }

    /// Bare retries: nothing but this policy decides when a message is sent.
    pub fn bare(policy: Policy) -> Self {
        let lane = LaneSettings { max_in_flight: u16::MAX, ..lane(policy) };
        let limits = Limits {
            slots: 1_000_000,
            per_queue: 1_000_000,
            window: 4_000_000,
            protection: Protection::Off,
            ..Limits::default()
        };
        Self { lane: Arc::new(lane), limits }
    }
}

fn lane(policy: Policy) -> LaneSettings {
    LaneSettings::new(LaneId::from_raw(1), TenantId::from_raw(1), Arc::new(policy))
}
