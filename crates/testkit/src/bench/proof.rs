//! The proof `bench`: compares the figures of [`measure_all`] on this machine with bars.
//!
//! Figures that depend on the machine are judged as ratios to a baseline from the same rounds on the same machine: a
//! bare client with the same receiver, a file that is appended to and synced, a server without a backlog.
//!
//! With `--against` it checks instead whether a delivery costs the server more CPU than in another build of it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::against::{CpuPair, Quartiles, ScenarioComparison, compare, overall};
use super::figures::BenchFigures;
use super::{BARE_CPU_US_MAX, BenchReport, BenchScenario, BenchSettings, measure_all};
use crate::fixtures::{binary, block_on};
use crate::proofs::idle;
use crate::prove::command_line::PAIRS_MIN;
use crate::prove::{CannotRun, Figure, Findings, Options, QUICK_SLACK};

/// The default bar of a comparison: a smaller difference is noise, and occurs between two builds of the same source.
const RATIO_MAX: f64 = 1.03;
/// The pairs of the quick form and of the control, which only check that the comparison works.
const QUICK_PAIRS: u64 = 2;
/// The time that may be added to the disk's own time, where this allows more than the factor does.
const ADDED_MS: f64 = 3.0;

/// Scenarios with their bars: CPU in µs per delivery, and throughput as a share of the bare client's.
const COSTS: [(BenchScenario, Option<f64>, f64); 4] = [
    (BenchScenario::Single, Some(66.0), 0.25),
    (BenchScenario::Batch, Some(44.0), 0.40),
    (BenchScenario::FanOut, Some(38.0), 0.45),
    (BenchScenario::Https, None, 0.35),
];

/// Makes a figure worse, for a control.
type Worsen = fn(&mut BenchFigures);

/// The controls: a worse value in the first scenario, and the figure that must then miss its bar.
const CONTROLS: [(Worsen, &str); 4] = [
    (|figures| figures.lost = 1, "lost"),
    (|figures| figures.duplicates = 1, "duplicates"),
    (|figures| figures.server_cpu_us = 1e6, "single_cpu"),
    (|figures| figures.delivered_per_bare = 0.0, "single_of_bare"),
];

/// Runs the proof.
pub fn run(options: &Options) -> Findings {
    if let Some(other) = &options.against {
        return judge_against(other, options);
    }
    let full = BenchSettings { program: binary()?, ..BenchSettings::DEFAULT };
    let short = vec![BenchScenario::Single, BenchScenario::Batch];
    let settings = if options.quick { BenchSettings { scenarios: short, rounds: 1, seconds: 4, ..full } } else { full };
    let report = block_on(measure_all(&settings))?;
    let figures = judged(&report, options);
    let bare = figures.iter().find(|figure| figure.name == "bare_client_cpu");
    if !options.quick && bare.is_some_and(|bare| !bare.is_ok()) {
        let bare = bare.map_or(f64::NAN, |bare| bare.value);
        let why = format!("the bare client took {bare:.1} µs a request instead of {BARE_CPU_US_MAX}: run it alone");
        return Err(CannotRun(why));
    }
    let caught = CONTROLS.iter().filter(|(worsen, figure)| is_caught(&report, worsen, figure, options)).count();
    let control = Figure::at_least("control_caught", caught as f64, "reports", CONTROLS.len() as f64);
    // The proof `idle` measures CPU and memory of an idle server, and of one with ten million pending deliveries.
    let idle = if options.quick { Vec::new() } else { idle::run(options)? };
    // To check that a comparison works, the build is compared with itself.
    let compared = if options.quick { judge_against(&binary()?, options)? } else { Vec::new() };
    let compared =
        compared.into_iter().map(|figure| Figure { name: format!("against_itself_{}", figure.name), ..figure });
    Ok(figures.into_iter().chain([control]).chain(idle).chain(compared).collect())
}

fn judged(report: &BenchReport, options: &Options) -> Vec<Figure> {
    let scenarios = &report.scenarios;
    let find = |scenario| scenarios.iter().find(|one| one.scenario == scenario);
    let sum = |part: fn(&BenchFigures) -> u64| scenarios.iter().map(part).sum::<u64>() as f64;
    let bare = scenarios.iter().filter(|one| one.scenario != BenchScenario::Https).map(|one| one.bare_client_cpu_us);
    let mut figures = vec![
        Figure::at_least("scenarios", scenarios.len() as f64, "scenarios", if options.quick { 2.0 } else { 8.0 }),
        Figure::at_most("lost", sum(|one| one.lost), "deliveries", 0.0),
        Figure::at_most("duplicates", sum(|one| one.duplicates), "deliveries", 0.0),
        Figure::at_most("bare_client_cpu", bare.fold(0.0, f64::max), "µs", BARE_CPU_US_MAX).by_the_clock(options),
    ];
    for (scenario, cpu_us_max, share_min) in COSTS {
        let Some(one) = find(scenario) else { continue };
        let name = scenario.name().replace('-', "_");
        if let Some(max) = cpu_us_max {
            let cpu = Figure::at_most(&format!("{name}_cpu"), one.server_cpu_us, "µs", max);
            figures.push(cpu.by_the_clock(options));
        }
        let share = Figure::at_least(&format!("{name}_of_bare"), one.delivered_per_bare, "share", share_min);
        figures.push(share.by_the_clock(options));
    }
    if let Some(half) = find(BenchScenario::HalfLoad) {
        let times =
            [("p50", 2.0, half.disk.p50_ms, half.arrival.p50_ms), ("p99", 4.0, half.disk.p99_ms, half.arrival.p99_ms)];
        for (percentile, factor, disk, arrival) in times {
            let bar = (disk * factor).max(disk + ADDED_MS);
            figures.push(Figure::at_most(&format!("half_load_{percentile}"), arrival, "ms", bar).by_the_clock(options));
        }
    }
    if let Some(pending) = find(BenchScenario::Pending) {
        let share = pending.delivered_per_empty.unwrap_or(f64::NAN);
        figures.push(Figure::at_least("pending_of_empty", share, "share", 0.9).by_the_clock(options));
    }
    figures
}

fn is_caught(report: &BenchReport, worsen: &Worsen, figure: &str, options: &Options) -> bool {
    let mut report = report.clone();
    report.scenarios.first_mut().into_iter().for_each(worsen);
    judged(&report, options).iter().any(|judged| judged.name == *figure && !judged.is_ok())
}

/// Compares the build under test with another `posthaste`.
fn judge_against(against: &Path, options: &Options) -> Findings {
    let pairs = options.pairs.unwrap_or(if options.quick { QUICK_PAIRS } else { PAIRS_MIN });
    let full = BenchSettings { program: binary()?, ..BenchSettings::DEFAULT };
    let settings = if options.quick { quick_comparison()? } else { full };
    let scenarios = compared(against, pairs, &settings)?;
    let mut figures = judged_ratios(&scenarios, pairs, options);
    figures.push(negative_control()?);
    Ok(figures)
}

fn quick_comparison() -> Result<BenchSettings, CannotRun> {
    let (program, scenarios) = (binary()?, vec![BenchScenario::Batch]);
    Ok(BenchSettings { program, scenarios, seconds: 1, messages: 10_000, ..BenchSettings::DEFAULT })
}

fn compared(against: &Path, pairs: u64, settings: &BenchSettings) -> Result<Vec<ScenarioComparison>, CannotRun> {
    let pairs = u32::try_from(pairs).unwrap_or(u32::MAX);
    Ok(block_on(compare(settings, against, pairs))?.scenarios)
}

/// The control: compares with a server that wastes CPU. The roles are swapped, so that the wasteful server counts as
/// the new build, and the ratio must be above the bar.
fn negative_control() -> Result<Figure, CannotRun> {
    let folder = tempfile::tempdir()?;
    let slower = slower_program(folder.path(), &binary()?)?;
    let mut scenarios = compared(&slower, QUICK_PAIRS, &quick_comparison()?)?;
    scenarios.iter_mut().for_each(swap_roles);
    let figures = judged_ratios(&scenarios, QUICK_PAIRS, &Options::default());
    let caught = figures.iter().filter(|figure| figure.name == "cpu_ratio" && !figure.is_ok());
    let caught = caught.inspect(|figure| eprintln!("control, a server that wastes CPU: {figure}")).count();
    Ok(Figure::at_least("slowdown_caught", caught as f64, "comparisons", 1.0))
}

/// A program that starts the same server with an option that makes it waste CPU.
fn slower_program(folder: &Path, binary: &Path) -> Result<PathBuf, CannotRun> {
    let program = folder.join("slower");
    fs::write(&program, format!("#!/bin/sh\nexec '{}' \"$@\" --burns\n", binary.display()))?;
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    Ok(program)
}

fn swap_roles(scenario: &mut ScenarioComparison) {
    for pair in &mut scenario.pairs {
        *pair = CpuPair { before_us: pair.now_us, now_us: pair.before_us };
    }
}

fn ratio_max(options: &Options) -> f64 {
    let max = options.at_most.unwrap_or(RATIO_MAX);
    if options.quick { max * QUICK_SLACK } else { max }
}

/// The figures of a comparison. Only the overall ratio has a bar; quartiles and the ratios of single scenarios are
/// shown to explain it, and need only exist.
fn judged_ratios(scenarios: &[ScenarioComparison], pairs: u64, options: &Options) -> Vec<Figure> {
    let sum = |part: fn(&ScenarioComparison) -> u64| scenarios.iter().map(part).sum::<u64>() as f64;
    let measured = scenarios.iter().map(|scenario| scenario.pairs.len()).min().unwrap_or_default();
    let ratio = overall(scenarios);
    let measured_ratio = |name: &str, value| Figure::at_least(name, value, "ratio", 0.0);
    let mut figures = vec![
        Figure::at_least("pairs", measured as f64, "pairs", pairs as f64),
        Figure::at_most("lost", sum(|one| one.lost), "deliveries", 0.0),
        Figure::at_most("duplicates", sum(|one| one.duplicates), "deliveries", 0.0),
        Figure::at_most("cpu_ratio", ratio.median, "ratio", ratio_max(options)),
        measured_ratio("cpu_ratio_lower_quartile", ratio.lower),
        measured_ratio("cpu_ratio_upper_quartile", ratio.upper),
    ];
    for one in scenarios {
        let ratio = Quartiles::of(one.pairs.iter().map(|pair| pair.ratio()));
        figures.push(measured_ratio(&format!("{}_cpu_ratio", one.scenario.name().replace('-', "_")), ratio.median));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::super::against::tests::measured;
    use super::*;

    fn scenarios(ratio: f64, pairs: usize) -> Vec<ScenarioComparison> {
        [BenchScenario::Single, BenchScenario::FanOut].map(|scenario| measured(scenario, ratio, pairs)).to_vec()
    }

    /// The names of the figures that miss their bars.
    fn short(scenarios: &[ScenarioComparison], options: &Options) -> Vec<String> {
        let figures = judged_ratios(scenarios, PAIRS_MIN, options);
        figures.into_iter().filter(|figure| !figure.is_ok()).map(|figure| figure.name).collect()
    }

    #[test]
    fn comparison_falls_short_above_its_bar_and_with_fewer_pairs_than_requested() {
        let at_most = |at_most| Options { at_most: Some(at_most), ..Options::default() };
        // In the quick form the bar is three times as wide.
        let quick = || Options { quick: true, ..Options::default() };
        let cases: [(f64, usize, Options, &[&str]); 8] = [
            (1.05, 9, Options::default(), &["cpu_ratio"]),
            (1.02, 9, Options::default(), &[]),
            (0.9, 9, Options::default(), &[]),
            (1.05, 9, at_most(1.06), &[]),
            (0.97, 9, at_most(0.95), &["cpu_ratio"]),
            (2.0, 9, quick(), &[]),
            (3.2, 9, quick(), &["cpu_ratio"]),
            (1.0, 8, Options::default(), &["pairs"]),
        ];
        for (ratio, pairs, options, expected) in cases {
            assert_eq!(short(&scenarios(ratio, pairs), &options), expected, "{ratio} in {pairs} pairs, {options:?}");
        }
    }

    #[test]
    fn comparison_without_a_figure_or_without_scenarios_falls_short() {
        let mut nan = scenarios(1.0, 9);
        nan[0].pairs[4] = CpuPair { before_us: f64::NAN, now_us: f64::NAN };
        for (scenarios, missed) in [(nan, ["cpu_ratio", "single_cpu_ratio"]), (Vec::new(), ["pairs", "cpu_ratio"])] {
            let short = short(&scenarios, &Options::default());
            assert!(missed.iter().all(|name| short.iter().any(|one| one == name)), "{missed:?} in {short:?}");
        }
    }

    #[test]
    fn swapped_roles_turn_a_saving_into_a_loss() {
        let mut scenarios = scenarios(0.8, 9);
        scenarios.iter_mut().for_each(swap_roles);
        assert!(short(&scenarios, &Options::default()).contains(&"cpu_ratio".to_owned()));
    }
}
