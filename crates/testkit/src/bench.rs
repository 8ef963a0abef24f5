//! The proof `bench`: compares the figures of `posthaste bench` on this machine with bars.
//!
//! The binary measures in processes of its own and prints its figures as one JSON object; this module only judges
//! them. Figures that depend on the machine are judged as ratios to a baseline from the same rounds on the same
//! machine: a bare client with the same receiver, a file that is appended to and synced, a server without a backlog.
//!
//! With `--against` it checks instead whether a delivery costs more CPU than in another build ([`against`]).

pub mod against;
pub mod comparison;

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::fixtures::posthaste::binary;
use crate::proofs::idle;
use crate::prove::{CannotRun, Figure, Findings, Options};

/// The most CPU time of the bare client, in µs per request: above it the machine is too busy to measure.
const BARE_CPU_US_MAX: f64 = 15.0;
/// The time that may be added to the disk's own time, where this allows more than the factor does.
const ADDED_MS: f64 = 3.0;

/// Scenarios with their bars: CPU in µs per delivery, and throughput as a share of the bare client's.
const COSTS: &[(&str, Option<f64>, f64)] =
    &[("single", Some(66.0), 0.25), ("batch", Some(44.0), 0.40), ("fan-out", Some(38.0), 0.45), ("https", None, 0.35)];

/// Runs the proof.
pub fn run(options: &Options) -> Findings {
    if let Some(other) = &options.against {
        return against::run(other, options);
    }
    let short = ["--scenario", "single", "--scenario", "batch", "--rounds", "1", "--seconds", "4"];
    let args = if options.quick { &short[..] } else { &[] };
    let report = measured(&binary()?, args)?;
    let figures = judged(&report, options);
    let bare = figures.iter().find(|figure| figure.name == "bare_client_cpu");
    if !options.quick && bare.is_some_and(|bare| !bare.is_ok()) {
        let bare = bare.map_or(f64::NAN, |bare| bare.value);
        let why = format!("the bare client took {bare:.1} µs a request instead of {BARE_CPU_US_MAX}: run it alone");
        return Err(CannotRun(why));
    }
    let caught = CONTROLS.iter().filter(|control| is_caught(&report, control, options)).count();
    let control = Figure::at_least("control_caught", count(caught), "reports", count(CONTROLS.len()));
    // The proof `idle` measures CPU and memory of an idle server, and of one with ten million pending deliveries.
    let idle = if options.quick { Vec::new() } else { idle::run(options)? };
    // To check that a comparison works, the build is compared with itself.
    let compared = if options.quick { against::run(&binary()?, options)? } else { Vec::new() };
    let compared =
        compared.into_iter().map(|figure| Figure { name: format!("against_itself_{}", figure.name), ..figure });
    Ok(figures.into_iter().chain([control]).chain(idle).chain(compared).collect())
}

fn measured(binary: &Path, args: &[&str]) -> Result<Value, CannotRun> {
    let mut bench = Command::new(binary);
    bench.args(["bench", "--json"]).args(args).stdin(Stdio::null()).stdout(Stdio::piped());
    let output = bench.spawn()?.wait_with_output()?;
    // The exit status is not checked: it is an error too if deliveries were lost, which the figures show.
    serde_json::from_slice(&output.stdout)
        .map_err(|error| CannotRun(format!("the bench ended with {} and printed no figures: {error}", output.status)))
}

fn judged(report: &Value, options: &Options) -> Vec<Figure> {
    let scenarios = report["scenarios"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of = |name: &str| scenarios.iter().find(|one| one["scenario"] == name);
    let sum = |name: &str| scenarios.iter().map(|one| number(one, name)).sum::<f64>();
    let bare = scenarios.iter().filter(|one| one["scenario"] != "https").map(|one| number(one, "bare_client_cpu_us"));
    let mut figures = vec![
        Figure::at_least("scenarios", count(scenarios.len()), "scenarios", if options.quick { 2.0 } else { 8.0 }),
        Figure::at_most("lost", sum("lost"), "deliveries", 0.0),
        Figure::at_most("duplicates", sum("duplicates"), "deliveries", 0.0),
        Figure::at_most("bare_client_cpu", bare.fold(0.0, f64::max), "µs", BARE_CPU_US_MAX).by_the_clock(options),
    ];
    for (name, cpu_us_max, share_min) in COSTS {
        let Some(one) = of(name) else { continue };
        let name = name.replace('-', "_");
        if let Some(max) = cpu_us_max {
            let cpu = Figure::at_most(&format!("{name}_cpu"), number(one, "server_cpu_us"), "µs", *max);
            figures.push(cpu.by_the_clock(options));
        }
        let share = number(one, "delivered_per_bare");
        figures.push(Figure::at_least(&format!("{name}_of_bare"), share, "share", *share_min).by_the_clock(options));
    }
    if let Some(half) = of("half-load") {
        for (percentile, factor) in [("p50", 2.0), ("p99", 4.0)] {
            let name = format!("{percentile}_ms");
            let disk = number(&half["disk"], &name);
            let bar = (disk * factor).max(disk + ADDED_MS);
            let arrival = number(&half["arrival"], &name);
            figures.push(Figure::at_most(&format!("half_load_{percentile}"), arrival, "ms", bar).by_the_clock(options));
        }
    }
    if let Some(pending) = of("pending") {
        let share = number(pending, "delivered_per_empty");
        figures.push(Figure::at_least("pending_of_empty", share, "share", 0.9).by_the_clock(options));
    }
    figures
}

/// The controls: a field of the first scenario, a worse value, and the figure that must then miss its bar.
const CONTROLS: &[(&str, f64, &str)] = &[
    ("lost", 1.0, "lost"),
    ("duplicates", 1.0, "duplicates"),
    ("server_cpu_us", 1e6, "single_cpu"),
    ("delivered_per_bare", 0.0, "single_of_bare"),
];

fn is_caught(report: &Value, (field, worse, figure): &(&str, f64, &str), options: &Options) -> bool {
    let mut report = report.clone();
    report["scenarios"][0][field] = (*worse).into();
    judged(&report, options).iter().any(|judged| judged.name == *figure && !judged.is_ok())
}

/// A figure of the report. A missing one is NaN, and never passes.
fn number(of: &Value, name: &str) -> f64 {
    of[name].as_f64().unwrap_or(f64::NAN)
}

#[expect(clippy::cast_precision_loss, reason = "a handful")]
fn count(number: usize) -> f64 {
    number as f64
}
