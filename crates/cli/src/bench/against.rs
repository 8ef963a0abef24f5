//! `posthaste bench --against PROGRAM`: compares the server's CPU time for a delivery with that of another build.
//!
//! Producer and receiver are this program's for both, so that only the servers differ. Each measurement starts and
//! warms up a server of its own: effects of its memory layout are random, and average out over many measurements. The
//! two of a pair follow each other directly, and the order alternates from pair to pair, so that drift cancels out.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use posthaste_testkit::bench::comparison::{CpuPair, Quartiles, overall};
use serde::Serialize;

use super::rig::{Effort, Rig};
use super::scenario::Scenario;
use super::{Args, FOLLOWED_WITHIN, child, show, warmed};

/// The default scenarios: those with a CPU limit in docs/performance.md.
const DEFAULT: [Scenario; 3] = [Scenario::Single, Scenario::Batch, Scenario::FanOut];

/// The results of a comparison.
#[derive(Debug, Serialize)]
pub(super) struct ComparisonReport {
    cores: usize,
    payload_bytes: u32,
    against: PathBuf,
    /// The ratio of all scenarios together.
    overall: Ratio,
    pub(super) scenarios: Vec<ScenarioComparison>,
}

/// The CPU time for a delivery in a scenario, of both servers.
#[derive(Debug, Serialize)]
pub(super) struct ScenarioComparison {
    pub(super) scenario: String,
    before_cpu_us: f64,
    now_cpu_us: f64,
    ratio: Ratio,
    pairs: Vec<PairFigures>,
    pub(super) lost: u64,
    pub(super) duplicates: u64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct PairFigures {
    before_cpu_us: f64,
    now_cpu_us: f64,
}

/// The ratio of this build's CPU time to the other's.
#[derive(Clone, Copy, Debug, Serialize)]
struct Ratio {
    lower_quartile: f64,
    median: f64,
    upper_quartile: f64,
}

/// A scenario while it is measured.
struct Measurements {
    scenario: Scenario,
    pairs: Vec<CpuPair>,
    lost: u64,
    duplicates: u64,
}

/// Measures every pair of every scenario.
pub(super) async fn compare(against: &Path, args: &Args) -> Result<ComparisonReport> {
    let now = child::this_program()?;
    let chosen = if args.scenario.is_empty() { &DEFAULT[..] } else { &args.scenario };
    let has_one_load = |scenario: &Scenario| !matches!(scenario, Scenario::Pending | Scenario::HalfLoad);
    ensure!(chosen.iter().all(has_one_load), "pending and half-load have no CPU to compare: leave them out");
    let mut measured: Vec<_> = chosen.iter().map(|scenario| Measurements::of(*scenario)).collect();
    for pair in 1..=args.pairs {
        for one in &mut measured {
            let [before, now] = if pair % 2 == 1 {
                let before = one.cpu_us(against, args).await?;
                [before, one.cpu_us(&now, args).await?]
            } else {
                let now = one.cpu_us(&now, args).await?;
                [one.cpu_us(against, args).await?, now]
            };
            let measured = CpuPair { before_us: before, now_us: now };
            let (name, all, ratio) = (one.scenario.name(), args.pairs, measured.ratio());
            eprintln!("{name}: pair {pair} of {all}: {before:.1} µs before, {now:.1} µs now, ratio {ratio:.3}");
            one.pairs.push(measured);
        }
    }
    Ok(ComparisonReport {
        cores: super::cores(),
        payload_bytes: args.payload,
        against: against.to_owned(),
        overall: overall(&measured.iter().map(|one| one.pairs.clone()).collect::<Vec<_>>()).into(),
        scenarios: measured.into_iter().map(Measurements::summed_up).collect(),
    })
}

impl Measurements {
    fn of(scenario: Scenario) -> Self {
        Self { scenario, pairs: Vec::new(), lost: 0, duplicates: 0 }
    }

    /// Starts a server of `program`, warms it, and measures it for one round.
    async fn cpu_us(&mut self, program: &Path, args: &Args) -> Result<f64> {
        let (cpu_us, lost, duplicates) = self.round(program, args).await.with_context(|| {
            let (scenario, program) = (self.scenario.name(), program.display());
            format!("{scenario} with the server of {program}, which must be a `posthaste` with the command `bench`")
        })?;
        self.lost += lost;
        self.duplicates += duplicates;
        Ok(cpu_us)
    }

    async fn round(&self, program: &Path, args: &Args) -> Result<(f64, u64, u64)> {
        let effort = Effort::of(args);
        let mut rig = warmed(Rig::with_server_of(program, self.scenario.shape()).await?, &effort).await?;
        let before = rig.cpu()?;
        rig.round(&effort).await?;
        tokio::time::sleep(FOLLOWED_WITHIN).await;
        let spent = rig.cpu()?.saturating_sub(before);
        let (arrived, expected) = rig.arrived().await?;
        #[expect(clippy::cast_precision_loss, reason = "a count of messages is far below 2^52")]
        let cpu_us = spent.as_secs_f64() * 1e6 / arrived.distinct as f64;
        let duplicates = arrived.taken.saturating_sub(arrived.distinct);
        Ok((cpu_us, expected.saturating_sub(arrived.distinct), duplicates))
    }

    fn summed_up(self) -> ScenarioComparison {
        let Self { scenario, pairs, lost, duplicates } = self;
        let figures = |pair: &CpuPair| PairFigures { before_cpu_us: pair.before_us, now_cpu_us: pair.now_us };
        ScenarioComparison {
            scenario: scenario.name(),
            before_cpu_us: Quartiles::of(pairs.iter().map(|pair| pair.before_us)).median,
            now_cpu_us: Quartiles::of(pairs.iter().map(|pair| pair.now_us)).median,
            ratio: Quartiles::of(pairs.iter().map(|pair| pair.ratio())).into(),
            pairs: pairs.iter().map(figures).collect(),
            lost,
            duplicates,
        }
    }
}

impl From<Quartiles> for Ratio {
    fn from(of: Quartiles) -> Self {
        Self { lower_quartile: of.lower, median: of.median, upper_quartile: of.upper }
    }
}

/// The comparison as a table for a terminal.
pub(super) fn table(report: &ComparisonReport) -> String {
    let ratio =
        |of: Ratio| [of.median, of.lower_quartile, of.upper_quartile].map(|value| format!("{value:.3}")).into_iter();
    let heads = ["before", "now", "ratio", "lower quartile", "upper quartile"].map(str::to_owned);
    let mut rows = vec![show::row("", heads.into_iter())];
    for one in &report.scenarios {
        let cpu = [one.before_cpu_us, one.now_cpu_us].map(|cpu_us| format!("{cpu_us:.1} µs"));
        rows.push(show::row(&one.scenario, cpu.into_iter().chain(ratio(one.ratio))));
    }
    rows.push(show::row("overall", [String::new(), String::new()].into_iter().chain(ratio(report.overall))));
    format!("server CPU for each delivery, now and in {}\n{}", report.against.display(), show::aligned(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_is_a_table_of_medians_and_quartiles() {
        let pairs = [40.0, 48.0, 44.0].map(|now_us| CpuPair { before_us: 40.0, now_us }).to_vec();
        let overall = overall(std::slice::from_ref(&pairs)).into();
        let single = Measurements { scenario: Scenario::Single, pairs, lost: 0, duplicates: 0 }.summed_up();
        let against = PathBuf::from("old/posthaste");
        let report = ComparisonReport { cores: 2, payload_bytes: 600, against, overall, scenarios: vec![single] };
        let expected = "\
server CPU for each delivery, now and in old/posthaste
            before      now  ratio  lower quartile  upper quartile
  single   40.0 µs  44.0 µs  1.100           1.050           1.150
  overall                    1.100           1.050           1.150
";
        assert_eq!(table(&report), expected);
    }
}
