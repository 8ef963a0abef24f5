//! `bench --against`: whether a delivery costs the server more CPU than it cost another build of it.
//!
//! `posthaste bench --against` measures both in pairs with one producer and one receiver; here the ratios are judged.

use std::path::Path;

use serde_json::Value;

use super::comparison::{CpuPair, Quartiles, overall};
use super::{count, measured, number};
use crate::posthaste::binary;
use crate::prove::{CannotRun, Figure, Findings, Options, QUICK_SLACK};

/// The least number of pairs whose median is worth judging.
pub const PAIRS_MIN: u64 = 9;
/// More would take hours.
pub const PAIRS_MAX: u64 = 99;
/// Smaller than this, a difference between two builds of the same source is still noise.
const RATIO_MAX: f64 = 1.03;
/// The short form asks whether the comparison works, and not for a figure.
const QUICK_PAIRS: u64 = 2;
/// How much dearer the planted slowdown makes a delivery than the bar allows.
const PLANTED: f64 = 1.02;

/// Compares the build under test with another `posthaste`.
pub(super) fn run(against: &Path, options: &Options) -> Findings {
    let pairs = options.pairs.unwrap_or(if options.quick { QUICK_PAIRS } else { PAIRS_MIN });
    let (program, number) = (against.to_string_lossy(), pairs.to_string());
    let mut args = vec!["--against", &program, "--pairs", &number];
    if options.quick {
        args.extend(["--scenario", "batch", "--seconds", "1", "--messages", "10000"]);
    }
    let report = measured(&binary()?, &args)?;
    let scenarios = ComparedScenario::all_in(&report)?;
    let figures = judged(&scenarios, pairs, options);
    // Made dearer by so much that the overall ratio is just above its bar, it must fall short.
    let slower = scaled(&scenarios, ratio_max(options) * PLANTED / ratio_of(&scenarios).median);
    let caught = judged(&slower, pairs, options).iter().any(|figure| figure.name == "cpu_ratio" && !figure.is_ok());
    let control = Figure::at_least("slowdown_caught", count(usize::from(caught)), "comparisons", 1.0);
    Ok(figures.into_iter().chain([control]).collect())
}

/// A scenario as it was measured.
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
}

fn ratio_max(options: &Options) -> f64 {
    let max = options.at_most.unwrap_or(RATIO_MAX);
    if options.quick { max * QUICK_SLACK } else { max }
}

fn ratio_of(scenarios: &[ComparedScenario]) -> Quartiles {
    overall(&scenarios.iter().map(|scenario| scenario.pairs.clone()).collect::<Vec<_>>())
}

/// The overall ratio has a bar. Quartiles and the ratios of single scenarios explain it: theirs is only that they were
/// measured.
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

fn scaled(scenarios: &[ComparedScenario], factor: f64) -> Vec<ComparedScenario> {
    let dearer = |pair: &CpuPair| CpuPair { now_us: pair.now_us * factor, ..*pair };
    let scaled =
        |of: &ComparedScenario| ComparedScenario { pairs: of.pairs.iter().map(dearer).collect(), ..of.clone() };
    scenarios.iter().map(scaled).collect()
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

    /// The names of the figures that fall short.
    fn short(report: &Value, options: &Options) -> Vec<String> {
        let scenarios = ComparedScenario::all_in(report).expect("the report has scenarios");
        let figures = judged(&scenarios, PAIRS_MIN, options);
        figures.into_iter().filter(|figure| !figure.is_ok()).map(|figure| figure.name).collect()
    }

    #[test]
    fn a_ratio_above_the_bar_falls_short() {
        let options = Options::default();
        assert_eq!(short(&report(1.05, 9), &options), ["cpu_ratio"]);
        assert!(short(&report(1.02, 9), &options).is_empty());
        assert!(short(&report(0.9, 9), &options).is_empty());
    }

    #[test]
    fn another_bar_judges_the_same_ratio_otherwise() {
        let at_most = |at_most| Options { at_most: Some(at_most), ..Options::default() };
        assert!(short(&report(1.05, 9), &at_most(1.06)).is_empty());
        assert_eq!(short(&report(0.97, 9), &at_most(0.95)), ["cpu_ratio"]);
    }

    #[test]
    fn the_short_form_has_a_bar_three_times_as_wide() {
        let quick = Options { quick: true, ..Options::default() };
        assert!(short(&report(2.0, 9), &quick).is_empty());
        assert_eq!(short(&report(3.2, 9), &quick), ["cpu_ratio"]);
    }

    #[test]
    fn fewer_pairs_than_asked_for_fall_short() {
        assert_eq!(short(&report(1.0, 8), &Options::default()), ["pairs"]);
    }

    #[test]
    fn a_pair_without_a_figure_falls_short() {
        let mut report = report(1.0, 9);
        report["scenarios"][0]["pairs"][4] = serde_json::json!({});
        let short = short(&report, &Options::default());
        assert!(short.contains(&"cpu_ratio".to_owned()) && short.contains(&"single_cpu_ratio".to_owned()), "{short:?}");
    }

    #[test]
    fn a_report_without_scenarios_cannot_be_judged() {
        assert!(ComparedScenario::all_in(&serde_json::json!({"scenarios": []})).is_err());
        assert!(ComparedScenario::all_in(&serde_json::json!({})).is_err());
    }

    #[test]
    fn a_slowdown_scaled_to_just_above_the_bar_falls_short() {
        let scenarios = ComparedScenario::all_in(&report(0.8, 9)).expect("the report has scenarios");
        let slower = scaled(&scenarios, RATIO_MAX * PLANTED / ratio_of(&scenarios).median);
        let figures = judged(&slower, PAIRS_MIN, &Options::default());
        assert!(figures.iter().any(|figure| figure.name == "cpu_ratio" && !figure.is_ok()));
    }
}
