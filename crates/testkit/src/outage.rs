//! What an outage does to a receiver, and what retries do to it afterwards.
//!
//! A receiver with one server and a small waiting room goes down while messages keep coming, and
//! comes back. The sender is the production dispatch loop in virtual time, over the store in memory,
//! either as it ships or as a bare list of retries. [`Scenario`] says what happens, [`Sender`] who
//! sends, [`Scenario::play`] plays it and gives the [`Outcome`].
//!
//! The parts: [`world`] moves time on, [`receiver`] answers, [`tally`] counts, [`naive`] has the
//! retries of senders that know nothing else, and [`proof`] compares it all with known figures.

pub mod naive;
pub mod proof;
pub mod receiver;
pub mod tally;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use posthaste_core::flow::Care;
use posthaste_core::id::{LaneId, OriginId, TenantId};
use posthaste_core::policy::Policy;
use posthaste_core::queue::{LaneSettings, Limits};

pub use receiver::Down;
pub use tally::{Outcome, Second};

/// How long after the recovery messages count as fresh, and the load is looked at.
pub const FRESH: Duration = Duration::from_secs(30 * 60);

/// An outage, and what surrounds it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Messages a second, as a Poisson process, from the first moment to the last.
    pub load: f64,
    /// Requests a second the receiver can serve, one after the other.
    pub capacity: f64,
    /// How long all is well before the outage: a sender learns what its receiver takes.
    pub warm_up: Duration,
    /// How long the receiver is down.
    pub outage: Duration,
    /// What a request meets while it is.
    pub down: Down,
    /// What turning a request away costs the receiver, as a share of serving it.
    pub shed_cost: f64,
    /// How long after the recovery the run goes on, whatever becomes of the messages.
    pub watch: Duration,
    /// How long after the recovery it ends, if something still waits then.
    pub horizon: Duration,
    /// The same seed is the same run.
    pub seed: u64,
}

impl Default for Scenario {
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

impl Scenario {
    /// Plays it to its end.
    pub fn play(&self, sender: &Sender) -> Outcome {
        world::play(self, sender)
    }

    /// Messages created while the receiver is down, on average.
    pub fn held(&self) -> f64 {
        self.load * self.outage.as_secs_f64()
    }

    /// How soon after the recovery they can all be delivered if no new message has to wait for them:
    /// with what the receiver can take beyond what is new. `None` if that is nothing.
    pub fn drained_at_best(&self) -> Option<Duration> {
        let to_spare = self.capacity - self.load;
        (to_spare > 0.0).then(|| Duration::from_secs_f64(self.held() / to_spare))
    }

    /// When the outage begins, counted from the first moment.
    pub fn outage_begins(&self) -> Duration {
        self.warm_up
    }

    /// When it ends.
    pub fn recovers(&self) -> Duration {
        self.warm_up + self.outage
    }
}

/// Plays scenarios side by side, on as many threads as there are processors; `done` hears of each
/// by its place in the list.
pub fn play_all(plays: &[(Scenario, Sender)], done: impl Fn(usize, &Outcome) + Sync) -> Vec<Outcome> {
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
    let mut played: Vec<(usize, Outcome)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("whoever panics is heard")).collect()
    });
    played.sort_unstable_by_key(|(index, _)| *index);
    played.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Who sends.
#[derive(Clone, Debug)]
pub struct Sender {
    /// What is set for the receiver's lane, the retry policy among it.
    pub lane: Arc<LaneSettings>,
    /// The bounds of the window, and whether receivers are treated with care.
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
        let limits =
            Limits { slots: 1_000_000, per_queue: 1_000_000, window: 4_000_000, care: Care::Off, ..Limits::default() };
        Self { lane: Arc::new(lane), limits }
    }
}

fn lane(policy: Policy) -> LaneSettings {
    LaneSettings::new(LaneId::from_raw(1), TenantId::from_raw(1), Arc::new(policy))
}
