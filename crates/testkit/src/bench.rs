//! Measures throughput, CPU time and latency of a server on this machine, for `posthaste bench` and the proof `bench`.
//!
//! Producer, server and receiver are processes of their own on loopback, so that the server's CPU time can be measured
//! alone; the server runs over a real file, every commit synced. Two limits are measured in turn with it, round by
//! round: the bare limit, a client without queue, store or signature that posts the same bytes over as many connections
//! to the same receiver; and the disk, a file that is appended to and synced. Other work of the machine slows all of
//! them alike, so their ratio depends on the server alone.
//!
//! [`against`] compares two builds of the server instead, and [`proof`] compares the figures with bars.

pub mod against;
mod certificate;
mod client;
mod figures;
pub mod part;
pub mod proof;
mod receiver;
mod requests;
mod scenario;
mod server;
mod svg;
mod tables;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::fixtures::SyncedFile;
use crate::prove::{CannotRun, Context};
use figures::{BenchFigures, ScenarioRounds};
pub use scenario::BenchScenario;
use server::{MeasuredServer, RoundLoad};

/// The longest warm-up: enough to open every connection and fill every cache. It is no longer than a round.
const WARM_UP_SECONDS: u64 = 2;
/// How long the bare client runs in each round.
const BARE_SECONDS: u64 = 2;
/// The size in bytes of an append to the bare file, about what a commit writes under load.
const DISK_APPENDS: usize = 64 * 1024;
/// How long the disk is measured in each round.
const DISK_LASTS: Duration = Duration::from_secs(1);
/// The journal's follower has caught up within this time after the last delivery.
const FOLLOWED_WITHIN: Duration = Duration::from_millis(500);
/// The most CPU time of the bare client for a request. With more, the machine was busy and the limit is not valid.
const BARE_CPU_US_MAX: f64 = 15.0;

/// What is measured, and for how long.
#[derive(Clone, Debug)]
pub struct BenchSettings {
    /// The `posthaste` whose server is measured. Receiver, producer and bare client are processes of it too.
    pub program: PathBuf,
    /// The scenarios; empty for the default ones.
    pub scenarios: Vec<BenchScenario>,
    /// Rounds of each scenario, in turn with the bare limit.
    pub rounds: u32,
    /// How many seconds to produce in each round.
    pub seconds: u64,
    /// The most messages in a round.
    pub messages: u64,
    /// Bytes of each payload.
    pub payload: u32,
    /// Deliveries that are pending during the scenario pending; rounded down to thousands.
    pub pending: u64,
}

impl BenchSettings {
    /// The settings of `posthaste bench` without arguments. They name no program.
    pub const DEFAULT: Self = Self {
        program: PathBuf::new(),
        scenarios: Vec::new(),
        rounds: 3,
        seconds: 5,
        messages: 1_000_000,
        payload: 600,
        pending: 1_000_000,
    };
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    cores: usize,
    payload_bytes: u32,
    scenarios: Vec<BenchFigures>,
}

impl BenchReport {
    /// The figures as tables for a terminal.
    pub fn tables(&self) -> String {
        tables::tables(self)
    }

    /// The figures as an SVG document.
    pub fn svg(&self) -> String {
        svg::render(self)
    }

    /// Warns if the machine was too busy to measure the bare limit.
    ///
    /// # Errors
    /// If a delivery was lost or came twice.
    pub fn check(&self) -> Result<(), CannotRun> {
        for figures in &self.scenarios {
            let (name, bare_us) = (figures.scenario.name(), figures.bare_client_cpu_us);
            check_exact(name, figures.lost, figures.duplicates)?;
            if bare_us > BARE_CPU_US_MAX {
                eprintln!("{name}: the bare client took {bare_us:.1} µs a request; the machine does other work");
            }
        }
        Ok(())
    }
}

fn check_exact(scenario: &str, lost: u64, duplicates: u64) -> Result<(), CannotRun> {
    match (lost, duplicates) {
        (0, 0) => Ok(()),
        (0, _) => Err(CannotRun(format!("{scenario}: {duplicates} deliveries arrived twice"))),
        (_, _) => Err(CannotRun(format!("{scenario}: {lost} accepted deliveries did not arrive"))),
    }
}

/// Measures every scenario of the settings, by default all.
///
/// # Errors
/// If a process of the bench cannot be started or fails.
pub async fn measure_all(settings: &BenchSettings) -> Result<BenchReport, CannotRun> {
    let all = BenchScenario::ALL.map(|(scenario, ..)| scenario);
    let chosen = if settings.scenarios.is_empty() { &all[..] } else { &settings.scenarios };
    let mut scenarios: Vec<BenchFigures> = Vec::new();
    for scenario in chosen {
        let single = scenarios.iter().find(|one| one.scenario == BenchScenario::Single);
        let single = single.map(|one| one.delivered_per_second);
        scenarios.push(measure(*scenario, settings, single).await.context(scenario.name())?);
    }
    Ok(BenchReport { cores: cores(), payload_bytes: settings.payload, scenarios })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Measures a scenario. `full` is the delivery rate of single messages, if it was measured.
async fn measure(
    scenario: BenchScenario,
    settings: &BenchSettings,
    full: Option<f64>,
) -> Result<BenchFigures, CannotRun> {
    let load = RoundLoad::of(settings);
    let name = scenario.name();
    let start = || MeasuredServer::start(&settings.program, &settings.program, scenario.shape());
    let server = start().await?;
    let mut empty = None;
    let pending = (scenario == BenchScenario::Pending).then_some(settings.pending);
    if let Some(pending) = pending {
        eprintln!("{name}: {pending} deliveries begin to wait");
        server.add_pending(pending).await?;
        empty = Some(warm_up(start().await?, &load).await?);
    }
    let mut server = warm_up(server, &load).await?;
    let rate = match (scenario, full) {
        (BenchScenario::HalfLoad, Some(full)) => Some(full / 2.0),
        (BenchScenario::HalfLoad, None) => Some(server.round(&load).await?.delivered_per_second / 2.0),
        _ => None,
    };
    server.reset_counts().await?;
    let load = RoundLoad { rate, ..load };

    // The bare limit, the disk and a server without pending deliveries are measured in turn with the server.
    let mut disk = SyncedFile::create(&server.folder().join("bare"))?;
    let (offered_per_second, before) = (rate, server.usage()?);
    let (rounds, bare, of_empty) = (Vec::new(), Vec::new(), Vec::new());
    let mut measured = ScenarioRounds { scenario, offered_per_second, pending, rounds, bare, empty: of_empty, before };
    for number in 1..=settings.rounds {
        disk.slice(DISK_LASTS, DISK_APPENDS)?;
        let bare = server.bare(&RoundLoad { seconds: BARE_SECONDS, ..load })?;
        if let Some(empty) = &mut empty {
            measured.empty.push(empty.round(&load).await?);
        }
        let round = server.round(&load).await?;
        let (all, delivered, limit) = (settings.rounds, round.delivered_per_second, bare.per_second());
        eprintln!("{name}: round {number} of {all}: {delivered:.0} delivered a second, {limit:.0} bare");
        measured.bare.push(bare);
        measured.rounds.push(round);
    }
    tokio::time::sleep(FOLLOWED_WITHIN).await;
    BenchFigures::of(&measured, &mut server, &disk).await
}

async fn warm_up(mut server: MeasuredServer, load: &RoundLoad) -> Result<MeasuredServer, CannotRun> {
    server.round(&RoundLoad { seconds: WARM_UP_SECONDS.min(load.seconds), ..*load }).await?;
    server.reset_counts().await?;
    Ok(server)
}

fn per_second(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64()
}
