//! Compares the server's CPU time for a delivery with that of another build.
//!
//! Producer and receiver are the same program for both, so that only the servers differ. Each measurement starts and
//! warms up a server of its own: effects of its memory layout are random, and average out over many measurements. The
//! two of a pair follow each other directly, and the order alternates from pair to pair, so that drift cancels out.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::comparison::{CpuPair, Quartiles, overall};
use super::scenario::BenchScenario;
use super::server::{MeasuredServer, RoundLoad};
use super::{BenchSettings, FOLLOWED_WITHIN, check_exact, tables, warm_up};
use crate::prove::chart::aligned;
use crate::prove::{CannotRun, Context};

/// The default scenarios: those with a CPU limit in docs/performance.md.
const DEFAULT: [BenchScenario; 3] = [BenchScenario::Single, BenchScenario::Batch, BenchScenario::FanOut];

/// The results of a comparison.
#[derive(Debug, Serialize)]
pub struct ComparisonReport {
    cores: usize,
    payload_bytes: u32,
    against: PathBuf,
    /// The ratio of this build's CPU time to the other's, over all scenarios.
    overall: Quartiles,
    pub(super) scenarios: Vec<ScenarioComparison>,
}

/// The CPU time for a delivery in a scenario, of both servers.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ScenarioComparison {
    pub(super) scenario: BenchScenario,
    before_cpu_us: f64,
    now_cpu_us: f64,
    pub(super) ratio: Quartiles,
    pub(super) pairs: Vec<CpuPair>,
    pub(super) lost: u64,
    pub(super) duplicates: u64,
}

/// Measures every pair of every scenario with the servers of `settings.program` and of `against`.
///
/// # Errors
/// If a scenario has no CPU time to compare, or a process of the bench cannot be started or fails.
pub async fn compare(settings: &BenchSettings, against: &Path, pairs: u32) -> Result<ComparisonReport, CannotRun> {
    let now = &settings.program;
    let chosen = if settings.scenarios.is_empty() { &DEFAULT[..] } else { &settings.scenarios };
    let has_one_load = |scenario| !matches!(scenario, BenchScenario::Pending | BenchScenario::HalfLoad);
    if !chosen.iter().copied().all(has_one_load) {
        return Err(CannotRun("pending and half-load have no CPU to compare: leave them out".to_owned()));
    }
    let mut scenarios: Vec<_> = chosen.iter().map(|scenario| ScenarioComparison::new(*scenario)).collect();
    for pair in 1..=pairs {
        for one in &mut scenarios {
            let (before_us, now_us) = if pair % 2 == 1 {
                let before = one.measure(against, settings).await?;
                (before, one.measure(now, settings).await?)
            } else {
                let now = one.measure(now, settings).await?;
                (one.measure(against, settings).await?, now)
            };
            let measured = CpuPair { before_us, now_us };
            let (name, ratio) = (one.scenario.name(), measured.ratio());
            eprintln!("{name}: pair {pair} of {pairs}: {before_us:.1} µs before, {now_us:.1} µs now, ratio {ratio:.3}");
            one.add(measured);
        }
    }
    let overall = overall(&scenarios);
    Ok(ComparisonReport {
        cores: super::cores(),
        payload_bytes: settings.payload,
        against: against.into(),
        overall,
        scenarios,
    })
}

impl ScenarioComparison {
    pub(super) fn new(scenario: BenchScenario) -> Self {
        let (before_cpu_us, now_cpu_us, ratio) = (f64::NAN, f64::NAN, Quartiles::of([]));
        Self { scenario, before_cpu_us, now_cpu_us, ratio, pairs: Vec::new(), lost: 0, duplicates: 0 }
    }

    pub(super) fn add(&mut self, pair: CpuPair) {
        self.pairs.push(pair);
        self.before_cpu_us = Quartiles::of(self.pairs.iter().map(|pair| pair.before_us)).median;
        self.now_cpu_us = Quartiles::of(self.pairs.iter().map(|pair| pair.now_us)).median;
        self.ratio = Quartiles::of(self.pairs.iter().map(|pair| pair.ratio()));
    }

    /// Starts a server of `posthaste`, warms it, and measures its CPU time for a delivery for one round, in µs.
    async fn measure(&mut self, posthaste: &Path, settings: &BenchSettings) -> Result<f64, CannotRun> {
        let measured = self.round(posthaste, settings).await;
        let (name, posthaste) = (self.scenario.name(), posthaste.display());
        measured.context(format!(
            "{name} with the server of {posthaste}, which must be a `posthaste` with the command `bench`"
        ))
    }

    async fn round(&mut self, posthaste: &Path, settings: &BenchSettings) -> Result<f64, CannotRun> {
        let load = RoundLoad::of(settings);
        let server = MeasuredServer::start(posthaste, &settings.program, self.scenario.shape()).await?;
        let mut server = warm_up(server, &load).await?;
        let before = server.cpu()?;
        server.round(&load).await?;
        tokio::time::sleep(FOLLOWED_WITHIN).await;
        let spent = server.cpu()?.saturating_sub(before);
        let (arrived, expected) = server.arrived().await?;
        self.lost += expected.saturating_sub(arrived.distinct);
        self.duplicates += arrived.taken.saturating_sub(arrived.distinct);
        Ok(spent.as_secs_f64() * 1e6 / arrived.distinct as f64)
    }
}

impl AsRef<[CpuPair]> for ScenarioComparison {
    fn as_ref(&self) -> &[CpuPair] {
        &self.pairs
    }
}

impl ComparisonReport {
    /// The comparison as a table for a terminal.
    pub fn table(&self) -> String {
        let ratio = |of: Quartiles| [of.median, of.lower, of.upper].map(|value| format!("{value:.3}")).into_iter();
        let heads = ["before", "now", "ratio", "lower quartile", "upper quartile"].map(str::to_owned);
        let mut rows = vec![tables::row("", heads.into_iter())];
        for one in &self.scenarios {
            let cpu = [one.before_cpu_us, one.now_cpu_us].map(|cpu_us| format!("{cpu_us:.1} µs"));
            rows.push(tables::row(one.scenario.name(), cpu.into_iter().chain(ratio(one.ratio))));
        }
        rows.push(tables::row("overall", [String::new(), String::new()].into_iter().chain(ratio(self.overall))));
        format!("server CPU for each delivery, now and in {}\n{}", self.against.display(), aligned("  ", &rows))
    }

    /// # Errors
    /// If a delivery was lost or came twice.
    pub fn check(&self) -> Result<(), CannotRun> {
        self.scenarios.iter().try_for_each(|one| check_exact(one.scenario.name(), one.lost, one.duplicates))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_is_a_table_of_medians_and_quartiles() {
        let mut single = ScenarioComparison::new(BenchScenario::Single);
        [40.0, 48.0, 44.0].into_iter().for_each(|now_us| single.add(CpuPair { before_us: 40.0, now_us }));
        let (against, overall) = (PathBuf::from("old/posthaste"), overall(std::slice::from_ref(&single)));
        let report = ComparisonReport { cores: 2, payload_bytes: 600, against, overall, scenarios: vec![single] };
        let expected = "\
server CPU for each delivery, now and in old/posthaste
            before      now  ratio  lower quartile  upper quartile
  single   40.0 µs  44.0 µs  1.100           1.050           1.150
  overall                    1.100           1.050           1.150
";
        assert_eq!(report.table(), expected);
    }
}
