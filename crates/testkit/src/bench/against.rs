//! `bench --against`: whether a delivery costs the server more CPU than in another build of it.
//!
//! `posthaste bench --against` measures both builds in pairs, with one producer and one receiver; this module judges
//! the ratios.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::comparison::{CpuPair, Quartiles, overall};
use super::{count, measured, number};
use crate::fixtures::posthaste::binary;
use crate::prove::command_line::PAIRS_MIN;
use crate::prove::{CannotRun, Figure, Findings, Options, QUICK_SLACK};

/// The default bar: a smaller difference is noise, and occurs between two builds of the same source.
const RATIO_MAX: f64 = 1.03;
/// The pairs of the quick form and of the control, which only check that the comparison works.
const QUICK_PAIRS: u64 = 2;
const QUICK_ARGS: [&str; 6] = ["--scenario", "batch", "--seconds", "1", "--messages", "10000"];

/// Compares the build under test with another `posthaste`.
pub(super) fn run(against: &Path, options: &Options) -> Findings {
    let pairs = options.pairs.unwrap_or(if options.quick { QUICK_PAIRS } else { PAIRS_MIN });
    let scenarios = compared(against, pairs, if options.quick { &QUICK_ARGS } else { &[] })?;
    let mut figures = judged(&scenarios, pairs, options);
    figures.push(negative_control()?);
    Ok(figures)
}

fn compared(against: &Path, pairs: u64, more: &[&str]) -> Result<Vec<ComparedScenario>, CannotRun> {
    let (program, pairs) = (against.to_string_lossy(), pairs.to_string());
    let args = [&["--against", &program, "--pairs", &pairs], more].concat();
    ComparedScenario::all_in(&measured(&binary()?, &args)?)
}

/// The control: compares with a server that wastes CPU. The roles are swapped, so that the wasteful server counts as
/// the new build, and the ratio must be above the bar.
fn negative_control() -> Result<Figure, CannotRun> {
    let folder = tempfile::tempdir()?;
    let slower = slower_program(folder.path(), &binary()?)?;
    let mut scenarios = compared(&slower, QUICK_PAIRS, &QUICK_ARGS)?;
    scenarios.iter_mut().for_each(ComparedScenario::swap_roles);
    let figures = judged(&scenarios, QUICK_PAIRS, &Options::default());
    let caught = figures.iter().filter(|figure| figure.name == "cpu_ratio" && !figure.is_ok());
    let caught = caught.inspect(|figure| eprintln!("control, a server that wastes CPU: {figure}")).count();
    Ok(Figure::at_least("slowdown_caught", count(caught), "comparisons", 1.0))
}

/// A program that starts the same server with an option that makes it waste CPU.
fn slower_program(folder: &Path, binary: &Path) -> Result<PathBuf, CannotRun> {
    let program = folder.join("slower");
    fs::write(&program, format!("#!/bin/sh\nexec '{}' \"$@\" --burns\n", binary.display()))?;
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    Ok(program)
}

/// The measurements of a scenario.
#[derive(Clone, Debug)]
struct ComparedScenario {
    name: String,
    pairs: Vec<CpuPair>,
    lost: f64,
    duplicates: f64,
}

impl ComparedScenario {
    fn all_in(report: &Value) -> Result<Vec<Self>, CannotRun> {
        let scenarios = report["scenarios"].as_array().filter(|scenarios| !scenarios.is_empty());
        let scenarios = scenarios.ok_or_else(|| CannotRun("the bench has compared no scenario".to_owned()))?;
        Ok(scenarios.iter().map(Self::read).collect())
    }

    fn read(of: &Value) -> Self {
        let pairs = of["pairs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let pair =
            |pair: &Value| CpuPair { before_us: number(pair, "before_cpu_us"), now_us: number(pair, "now_cpu_us") };
        Self {
            name: of["scenario"].as_str().unwrap_or_default().replace('-', "_"),
            pairs: pairs.iter().map(pair).collect(),
            lost: number(of, "lost"),
            duplicates: number(of, "duplicates"),
        }
    }

    fn swap_roles(&mut self) {
        for pair in &mut self.pairs {
            *pair = CpuPair { before_us: pair.now_us, now_us: pair.before_us };
        }
    }
}

fn ratio_max(options: &Options) -> f64 {
    let max = options.at_most.unwrap_or(RATIO_MAX);
    if options.quick { max * QUICK_SLACK } else { max }
}

fn ratio_of(scenarios: &[ComparedScenario]) -> Quartiles {
    overall(&scenarios.iter().map(|scenario| scenario.pairs.clone()).collect::<Vec<_>>())
}

/// The figures of a comparison. Only the overall ratio has a bar; quartiles and the ratios of single scenarios are
/// shown to explain it, and need only exist.
fn judged(scenarios: &[ComparedScenario], pairs: u64, options: &Options) -> Vec<Figure> {
    let sum = |part: fn(&ComparedScenario) -> f64| scenarios.iter().map(part).sum::<f64>();
    let measured = scenarios.iter().map(|scenario| scenario.pairs.len()).min().unwrap_or_default();
    let ratio = ratio_of(scenarios);
    let measured_ratio = |name: &str, value| Figure::at_least(name, value, "ratio", 0.0);
    let mut figures = vec![
        Figure::at_least("pairs", count(measured), "pairs", count(usize::try_from(pairs).unwrap_or(usize::MAX))),
        Figure::at_most("lost", sum(|one| one.lost), "deliveries", 0.0),
        Figure::at_most("duplicates", sum(|one| one.duplicates), "deliveries", 0.0),
        Figure::at_most("cpu_ratio", ratio.median, "ratio", ratio_max(options)),
        measured_ratio("cpu_ratio_lower_quartile", ratio.lower),
        measured_ratio("cpu_ratio_upper_quartile", ratio.upper),
    ];
    for scenario in scenarios {
        let ratio = Quartiles::of(scenario.pairs.iter().map(|pair| pair.ratio()));
        figures.push(measured_ratio(&format!("{}_cpu_ratio", scenario.name), ratio.median));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ratio: f64, pairs: usize) -> Value {
        let pair = serde_json::json!({"before_cpu_us": 40.0, "now_cpu_us": 40.0 * ratio});
        let scenario = |name: &str| {
            let pairs = vec![pair.clone(); pairs];
            serde_json::json!({"scenario": name, "pairs": pairs, "lost": 0, "duplicates": 0})
        };
        serde_json::json!({"scenarios": [scenario("single"), scenario("fan-out")]})
    }

    /// The names of the figures that miss their bars.
    fn short(report: &Value, options: &Options) -> Vec<String> {
        let scenarios = ComparedScenario::all_in(report).expect("the report has scenarios");
        let figures = judged(&scenarios, PAIRS_MIN, options);
        figures.into_iter().filter(|figure| !figure.is_ok()).map(|figure| figure.name).collect()
    }

    #[test]
    fn ratio_above_the_bar_falls_short() {
        let options = Options::default();
        assert_eq!(short(&report(1.05, 9), &options), ["cpu_ratio"]);
        assert!(short(&report(1.02, 9), &options).is_empty());
        assert!(short(&report(0.9, 9), &options).is_empty());
    }

    #[test]
    fn bar_of_the_command_line_replaces_the_default() {
        let at_most = |at_most| Options { at_most: Some(at_most), ..Options::default() };
        assert!(short(&report(1.05, 9), &at_most(1.06)).is_empty());
        assert_eq!(short(&report(0.97, 9), &at_most(0.95)), ["cpu_ratio"]);
    }

    #[test]
    fn quick_form_has_a_bar_three_times_as_wide() {
        let quick = Options { quick: true, ..Options::default() };
        assert!(short(&report(2.0, 9), &quick).is_empty());
        assert_eq!(short(&report(3.2, 9), &quick), ["cpu_ratio"]);
    }

    #[test]
    fn fewer_pairs_than_requested_fall_short() {
        assert_eq!(short(&report(1.0, 8), &Options::default()), ["pairs"]);
    }

    #[test]
    fn pair_without_a_figure_falls_short() {
        let mut report = report(1.0, 9);
        report["scenarios"][0]["pairs"][4] = serde_json::json!({});
        let short = short(&report, &Options::default());
        assert!(short.contains(&"cpu_ratio".to_owned()) && short.contains(&"single_cpu_ratio".to_owned()), "{short:?}");
    }

    #[test]
    fn report_without_scenarios_cannot_be_judged() {
        assert!(ComparedScenario::all_in(&serde_json::json!({"scenarios": []})).is_err());
        assert!(ComparedScenario::all_in(&serde_json::json!({})).is_err());
    }

    #[test]
    fn swapped_roles_turn_a_saving_into_a_loss() {
        let mut scenarios = ComparedScenario::all_in(&report(0.8, 9)).expect("the report has scenarios");
        scenarios.iter_mut().for_each(ComparedScenario::swap_roles);
        let figures = judged(&scenarios, PAIRS_MIN, &Options::default());
        assert!(figures.iter().any(|figure| figure.name == "cpu_ratio" && !figure.is_ok()));
    }
}
