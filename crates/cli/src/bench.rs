//! `posthaste bench`: measures throughput, CPU time and latency of a server on this machine.
//!
//! Producer, server and receiver are processes of their own on loopback, so that the server's CPU time can be measured
//! alone; the server runs over a real file, every commit synced. Two limits are measured in turn with it, round by
//! round: the bare limit, a client without queue, store or signature that posts the same bytes over as many connections
//! to the same receiver; and the disk, a file that is appended to and synced. Other work of the machine slows all of
//! them alike, so their ratio depends on the server alone.
//!
//! With `--against` it compares two builds of the server instead ([`against`]).

mod against;
mod certificate;
mod child;
mod disk;
mod figures;
mod hammer;
pub(crate) mod part;
mod receiver;
mod rig;
mod scenario;
mod show;
mod svg;
mod tally;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::say::say;
use disk::Disk;
use figures::{Figures, Measured};
use rig::{Effort, Rig};
use scenario::Scenario;

/// The longest warm-up: enough to open every connection and fill every cache. It is no longer than a round.
const WARM_UP_SECONDS: u64 = 2;
/// How long the bare client runs in each round.
const BARE_SECONDS: u64 = 2;
/// How long the disk is measured in each round.
const DISK_LASTS: Duration = Duration::from_secs(1);
/// The journal's follower has caught up within this time after the last delivery.
const FOLLOWED_WITHIN: Duration = Duration::from_millis(500);
/// The most CPU time of the bare client for a request. With more, the machine was busy and the limit is not valid.
const BARE_CPU_US_MAX: f64 = 15.0;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Measure only this scenario; can be given several times [default: all]
    #[arg(long, value_enum)]
    scenario: Vec<Scenario>,
    /// Rounds of each scenario, in turn with the bare limit
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,
    /// How many seconds to produce in each round
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=300))]
    seconds: u64,
    /// The most messages in a round
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    messages: u64,
    /// Bytes of each payload
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(64..=1_000_000))]
    payload: u32,
    /// Deliveries that are pending during the scenario pending; rounded down to thousands
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=20_000_000))]
    pending: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write the figures to this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Compare the server's CPU time for a delivery with that of another `posthaste` [default scenarios: single, batch
    /// and fan-out]
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["rounds", "pending", "svg"])]
    against: Option<PathBuf>,
    /// Pairs of measurements in a comparison
    #[arg(long, default_value_t = 9, requires = "against", value_parser = clap::value_parser!(u32).range(1..=99))]
    pairs: u32,
}

/// The results of a run.
#[derive(Debug, Serialize)]
struct Report {
    cores: usize,
    payload_bytes: u32,
    scenarios: Vec<Figures>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(program) = &args.against {
        return compare(program, args);
    }
    let report = until_interrupted(measure_all(args))?;
    if let Some(file) = &args.svg {
        std::fs::write(file, svg::render(&report)).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("figures written to {}", file.display());
    }
    if args.json {
        say!("{}", serde_json::to_string(&report)?)?;
    } else {
        say!("{}", show::tables(&report))?;
    }
    for figures in &report.scenarios {
        let Figures { scenario, lost, duplicates, bare_client_cpu_us, .. } = figures;
        ensure_exact(scenario, *lost, *duplicates)?;
        if *bare_client_cpu_us > BARE_CPU_US_MAX {
            eprintln!(
                "{scenario}: the bare client took {bare_client_cpu_us:.1} µs a request; the machine does other work"
            );
        }
    }
    Ok(())
}

fn compare(program: &Path, args: &Args) -> Result<()> {
    let report = until_interrupted(against::compare(program, args))?;
    if args.json {
        say!("{}", serde_json::to_string(&report)?)?;
    } else {
        say!("{}", against::table(&report))?;
    }
    report.scenarios.iter().try_for_each(|one| ensure_exact(&one.scenario, one.lost, one.duplicates))
}

fn until_interrupted<T>(measuring: impl Future<Output = Result<T>>) -> Result<T> {
    crate::serve::runtime()?.block_on(async {
        // Ctrl-C reaches the child processes too; dropping their handles here ends those that are left.
        let mut interrupted = signal(SignalKind::interrupt())?;
        tokio::select! {
            biased;
            _ = interrupted.recv() => bail!("interrupted"),
            report = measuring => report,
        }
    })
}

fn ensure_exact(scenario: &str, lost: u64, duplicates: u64) -> Result<()> {
    ensure!(lost == 0, "{scenario}: {lost} accepted deliveries did not arrive");
    ensure!(duplicates == 0, "{scenario}: {duplicates} deliveries arrived twice");
    Ok(())
}

async fn measure_all(args: &Args) -> Result<Report> {
    let chosen = if args.scenario.is_empty() { Scenario::value_variants() } else { &args.scenario };
    let mut scenarios: Vec<Figures> = Vec::new();
    for scenario in chosen {
        let full = scenarios.iter().find(|one| one.scenario == Scenario::Single.name());
        let full = full.map(|one| one.delivered_per_second);
        scenarios.push(measure(*scenario, args, full).await.with_context(|| scenario.name())?);
    }
    Ok(Report { cores: cores(), payload_bytes: args.payload, scenarios })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Measures a scenario. `full` is the delivery rate of single messages, if it was measured.
async fn measure(scenario: Scenario, args: &Args, full: Option<f64>) -> Result<Figures> {
    let effort = Effort::of(args);
    let name = scenario.name();
    let rig = Rig::start(scenario.shape()).await?;
    let mut empty = None;
    let pending = (scenario == Scenario::Pending).then_some(args.pending);
    if let Some(pending) = pending {
        eprintln!("{name}: {pending} deliveries begin to wait");
        rig.hold(pending).await?;
        empty = Some(warmed(Rig::start(scenario.shape()).await?, &effort).await?);
    }
    let mut rig = warmed(rig, &effort).await?;
    let rate = match (scenario, full) {
        (Scenario::HalfLoad, Some(full)) => Some(full / 2.0),
        (Scenario::HalfLoad, None) => Some(rig.round(&effort).await?.delivered_per_second / 2.0),
        _ => None,
    };
    rig.forget().await?;
    let measured = rounds(&name, args, &Effort { rate, ..effort }, &mut rig, empty.as_mut()).await?;
    Ok(Figures::of(name, rate, pending, &measured))
}

async fn warmed(mut rig: Rig, effort: &Effort) -> Result<Rig> {
    rig.round(&Effort { seconds: WARM_UP_SECONDS.min(effort.seconds), ..*effort }).await?;
    rig.forget().await?;
    Ok(rig)
}

/// Measures round by round, in turn with the bare limit, the disk, and a server without pending deliveries.
async fn rounds(
    name: &str,
    args: &Args,
    effort: &Effort,
    rig: &mut Rig,
    mut empty: Option<&mut Rig>,
) -> Result<Measured> {
    let mut disk = Disk::start(rig.folder())?;
    let (mut rounds, mut bare, mut of_empty) = (Vec::new(), Vec::new(), Vec::new());
    let before = rig.used()?;
    for number in 1..=args.rounds {
        disk.slice(DISK_LASTS)?;
        bare.push(rig.bare(&Effort { seconds: BARE_SECONDS, ..*effort })?);
        if let Some(empty) = &mut empty {
            of_empty.push(empty.round(effort).await?);
        }
        let round = rig.round(effort).await?;
        let limit = bare.last().map_or(f64::NAN, |bare| bare.per_second);
        let delivered = round.delivered_per_second;
        eprintln!("{name}: round {number} of {}: {delivered:.0} delivered a second, {limit:.0} bare", args.rounds);
        rounds.push(round);
    }
    tokio::time::sleep(FOLLOWED_WITHIN).await;
    let after = rig.used()?;
    let (arrived, expected) = rig.arrived().await?;
    let (memory, arrival, disk) = (rig.memory()?, rig.arrival().await?, disk.syncs());
    Ok(Measured { rounds, bare, empty: of_empty, before, after, memory, arrived, expected, arrival, disk })
}
