//! The figures of a scenario, computed from its measurements.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::against::Quartiles;
use super::part::ClientResult;
use super::receiver::ArrivalTimes;
use super::scenario::BenchScenario;
use super::server::{MeasuredRound, MeasuredServer, ServerUsage};
use crate::fixtures::SyncedFile;
use crate::prove::CannotRun;

/// The figures of a scenario. A rate is the median over the rounds, a ratio of rates the median of the rounds' ratios,
/// and a figure for each delivery covers all rounds together.
#[derive(Clone, Debug, Serialize)]
pub(super) struct BenchFigures {
    pub(super) scenario: BenchScenario,
    pub(super) rounds: usize,
    pub(super) accepted: u64,
    pub(super) delivered: u64,
    pub(super) lost: u64,
    pub(super) duplicates: u64,
    pub(super) refused_by_receivers: u64,
    /// The rate that the producer was given, if it was given one.
    pub(super) offered_per_second: Option<f64>,
    pub(super) accepted_per_second: f64,
    pub(super) delivered_per_second: f64,
    pub(super) bare_per_second: f64,
    pub(super) delivered_per_bare: f64,
    pub(super) bare_client_cpu_us: f64,
    pub(super) server_cpu_us: f64,
    /// The server's CPU time by thread.
    pub(super) server_cpu_us_by_thread: BTreeMap<String, f64>,
    pub(super) producer_cpu_us: f64,
    pub(super) receiver_cpu_us: f64,
    /// The time from the producer's request to the receiver.
    pub(super) arrival: ArrivalTimes,
    pub(super) rss_mib: f64,
    pub(super) rss_peak_mib: f64,
    pub(super) written_bytes: f64,
    pub(super) syncs: f64,
    /// The disk alone, measured between the rounds.
    pub(super) disk: DiskSyncs,
    /// The number of pending deliveries during the scenario.
    pub(super) pending: Option<u64>,
    /// The delivery rate as a ratio to that of a server without pending deliveries.
    pub(super) delivered_per_empty: Option<f64>,
}

/// The rate and latency of the disk's syncs.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct DiskSyncs {
    pub(super) per_second: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

/// The measurements of a scenario.
#[derive(Debug)]
pub(super) struct ScenarioRounds {
    pub(super) scenario: BenchScenario,
    pub(super) offered_per_second: Option<f64>,
    pub(super) pending: Option<u64>,
    pub(super) rounds: Vec<MeasuredRound>,
    pub(super) bare: Vec<ClientResult>,
    /// The rounds of a server without pending deliveries.
    pub(super) empty: Vec<MeasuredRound>,
    /// What the server had used before the first round.
    pub(super) before: ServerUsage,
}

impl BenchFigures {
    /// The figures after the last round of a server.
    pub(super) async fn of(
        of: &ScenarioRounds,
        server: &mut MeasuredServer,
        disk: &SyncedFile,
    ) -> Result<Self, CannotRun> {
        let (after, memory, arrival) = (server.usage()?, server.memory()?, server.arrival().await?);
        let (arrived, expected) = server.arrived().await?;
        let delivered = arrived.distinct;
        let each = |cpu: Duration| share(cpu, delivered);
        let cpu = after.cpu.since(&of.before.cpu);
        let rates = |rate: fn(&MeasuredRound) -> f64| median(of.rounds.iter().map(rate));
        let sum = |part: fn(&MeasuredRound) -> Duration| of.rounds.iter().map(part).sum::<Duration>();
        let delivered_rates = || of.rounds.iter().map(|round| round.delivered_per_second);
        let per_bare = delivered_rates().zip(&of.bare).map(|(rate, bare)| rate / bare.per_second());
        let per_empty = delivered_rates().zip(&of.empty).map(|(rate, empty)| rate / empty.delivered_per_second);
        Ok(Self {
            scenario: of.scenario,
            rounds: of.rounds.len(),
            accepted: of.rounds.iter().map(|round| round.produced.answered).sum(),
            delivered,
            lost: expected.saturating_sub(delivered),
            duplicates: arrived.taken.saturating_sub(delivered),
            refused_by_receivers: arrived.refused,
            offered_per_second: of.offered_per_second,
            accepted_per_second: rates(|round| round.produced.per_second()),
            delivered_per_second: median(delivered_rates()),
            bare_per_second: median(of.bare.iter().map(ClientResult::per_second)),
            delivered_per_bare: median(per_bare),
            bare_client_cpu_us: share(
                of.bare.iter().map(|bare| bare.cpu).sum(),
                of.bare.iter().map(|bare| bare.answered).sum(),
            ),
            server_cpu_us: each(cpu.all()),
            server_cpu_us_by_thread: cpu.by_name().map(|(name, spent)| (name.to_owned(), each(spent))).collect(),
            producer_cpu_us: each(sum(|round| round.produced.cpu)),
            receiver_cpu_us: each(sum(|round| round.receiver_cpu)),
            arrival,
            rss_mib: memory.now_mib,
            rss_peak_mib: memory.peak_mib,
            written_bytes: ratio(after.written_bytes - of.before.written_bytes, delivered),
            syncs: ratio(after.commits - of.before.commits, delivered),
            disk: DiskSyncs { per_second: disk.per_second(), p50_ms: disk.within_ms(50), p99_ms: disk.within_ms(99) },
            pending: of.pending,
            delivered_per_empty: (!of.empty.is_empty()).then(|| median(per_empty)),
        })
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    Quartiles::of(values).median
}

/// Microseconds for each of `count`.
fn share(cpu: Duration, count: u64) -> f64 {
    cpu.as_secs_f64() * 1e6 / count as f64
}

fn ratio(part: u64, count: u64) -> f64 {
    part as f64 / count as f64
}
