//! Compares the server's CPU time for a delivery with that of another build.
//!
//! Producer and receiver are the same program for both, so that only the servers differ. Each measurement starts and
//! warms up a server of its own: effects of its memory layout are random, and average out over many measurements. The
//! two of a pair follow each other directly, and the order alternates from pair to pair, so that drift cancels out.

use std::path::{Path, PathBuf};

use serde::Serialize;

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

/// The CPU time of a delivery in two builds that were measured one after the other, in µs. Only the ratio counts, so that
/// a slowdown of the machine that is longer than a pair affects both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct CpuPair {
    /// In the older build.
    #[serde(rename = "before_cpu_us")]
    pub(super) before_us: f64,
    /// In the build under test.
    #[serde(rename = "now_cpu_us")]
    pub(super) now_us: f64,
}

impl CpuPair {
    /// New by old; above 1 if a delivery costs more now.
    pub(super) fn ratio(self) -> f64 {
        self.now_us / self.before_us
    }
}

/// The quartiles of a list of values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Quartiles {
    #[serde(rename = "lower_quartile")]
    pub(super) lower: f64,
    pub(super) median: f64,
    #[serde(rename = "upper_quartile")]
    pub(super) upper: f64,
}

impl Quartiles {
    /// Computes the quartiles, interpolating between neighbours. They are NaN for an empty list, or if a value is NaN.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        if values.iter().any(|value| value.is_nan()) {
            values.clear();
        }
        let at = |quarter| quantile(&values, quarter);
        Self { lower: at(1), median: at(2), upper: at(3) }
    }
}

fn quantile(sorted: &[f64], quarter: usize) -> f64 {
    let quarters = sorted.len().saturating_sub(1) * quarter;
    match (sorted.get(quarters / 4), sorted.get(quarters.div_ceil(4))) {
        (Some(low), Some(high)) => low + (high - low) * [0.0, 0.25, 0.5, 0.75][quarters % 4],
        _ => f64::NAN,
    }
}

/// The ratio over all scenarios: for each pair the geometric mean, so that no scenario weighs more because its
/// deliveries cost more. Scenarios have their pairs in the order in which they were measured; pairs that one of them
/// lacks are left out.
pub(super) fn overall(scenarios: &[ScenarioComparison]) -> Quartiles {
    let pairs = scenarios.iter().map(|one| one.pairs.len()).min().unwrap_or_default();
    let count = scenarios.len() as f64;
    let mean = |pair: usize| {
        let logarithms = scenarios.iter().filter_map(|one| one.pairs.get(pair)).map(|pair| pair.ratio().ln());
        (logarithms.sum::<f64>() / count).exp()
    };
    Quartiles::of((0..pairs).map(mean))
}

#[cfg(test)]
pub(super) mod tests {
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

    /// A scenario that was measured `pairs` times with this ratio.
    pub(in super::super) fn measured(scenario: BenchScenario, ratio: f64, pairs: usize) -> ScenarioComparison {
        let mut one = ScenarioComparison::new(scenario);
        (0..pairs).for_each(|_| one.add(CpuPair { before_us: 40.0, now_us: 40.0 * ratio }));
        one
    }

    #[test]
    fn quartiles_are_interpolated_between_neighbours_and_nan_without_values() {
        let of = |values: &[f64]| {
            let Quartiles { lower, median, upper } = Quartiles::of(values.iter().copied());
            [lower, median, upper]
        };
        assert_eq!(of(&[9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0]), [3.0, 5.0, 7.0]);
        assert_eq!((of(&[1.0, 2.0]), of(&[3.0])), ([1.25, 1.5, 1.75], [3.0; 3]));
        assert!(of(&[])[1].is_nan() && of(&[1.0, f64::NAN, 1.0])[1].is_nan());
    }

    #[test]
    fn median_ignores_a_single_disturbed_pair() {
        let mut single = measured(BenchScenario::Single, 1.0, 8);
        single.add(CpuPair { before_us: 40.0, now_us: 120.0 });
        assert_eq!(single.ratio.median, 1.0);
    }

    #[test]
    fn overall_ratio_weighs_scenarios_the_same_and_leaves_out_pairs_that_one_lacks() {
        for (scenarios, expected) in [
            (vec![(2.0, 9), (0.5, 9)], 1.0),
            (vec![(1.05, 9), (1.05, 9), (1.05, 9)], 1.05),
            (vec![(1.2, 9), (1.2, 3)], 1.2),
        ] {
            let all = scenarios.iter().map(|(ratio, pairs)| measured(BenchScenario::Single, *ratio, *pairs));
            let median = overall(&all.collect::<Vec<_>>()).median;
            assert!((median - expected).abs() < 1e-9, "{median} of {scenarios:?}");
        }
        let lacks_all = [measured(BenchScenario::Single, 1.0, 9), ScenarioComparison::new(BenchScenario::Batch)];
        assert!(overall(&lacks_all).median.is_nan() && overall(&[]).median.is_nan());
    }
}
