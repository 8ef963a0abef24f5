//! Formats the figures as tables for a terminal.

use std::fmt::Write;

use super::BenchReport;
use super::figures::BenchFigures;
use crate::prove::chart::aligned;

/// A column: its two lines of heading, and the text of a cell.
type Column = (&'static str, &'static str, fn(&BenchFigures) -> String);

const COLUMNS: &[Column] = &[
    ("accepted", "a second", |of| format!("{:.0}", of.accepted_per_second)),
    ("delivered", "a second", |of| format!("{:.0}", of.delivered_per_second)),
    ("of the", "bare limit", |of| format!("{:.2}", of.delivered_per_bare)),
    ("server", "CPU", |of| format!("{:.1} µs", of.server_cpu_us)),
    ("arrival", "p50", |of| format!("{:.1} ms", of.arrival.p50_ms)),
    ("arrival", "p99", |of| format!("{:.1} ms", of.arrival.p99_ms)),
    ("arrival", "p99.9", |of| format!("{:.1} ms", of.arrival.p999_ms)),
    ("memory", "at most", |of| format!("{:.0} MiB", of.rss_peak_mib)),
    ("written", "bytes", |of| format!("{:.0}", of.written_bytes)),
    ("syncs", "", |of| format!("{:.3}", of.syncs)),
];

/// The report as text.
pub(super) fn tables(report: &BenchReport) -> String {
    let mut text = format!(
        "{} cores for producer, server and receiver; payloads of {} bytes; every commit synced\n",
        report.cores, report.payload_bytes
    );
    let mut rows = vec![
        row("", COLUMNS.iter().map(|(first, _, _)| (*first).to_owned())),
        row("", COLUMNS.iter().map(|(_, second, _)| (*second).to_owned())),
    ];
    for figures in &report.scenarios {
        rows.push(row(figures.scenario.name(), COLUMNS.iter().map(|(_, _, value)| value(figures))));
    }
    text += &aligned("  ", &rows);
    text += "\nCPU, bytes and syncs are for each delivery. Where the server's CPU goes, in µs by its threads:\n";
    text += &aligned("  ", &threads(report));
    text += "\nBeside it, in the same rounds:\n";
    for figures in &report.scenarios {
        let _ = writeln!(text, "  {:16}{}", figures.scenario.name(), beside(figures));
    }
    text
}

fn threads(report: &BenchReport) -> Vec<Vec<String>> {
    let mut names: Vec<&String> =
        report.scenarios.iter().flat_map(|figures| figures.server_cpu_us_by_thread.keys()).collect();
    names.sort();
    names.dedup();
    let mut rows = vec![row("", names.iter().map(ToString::to_string))];
    for figures in &report.scenarios {
        let spent = |name: &&String| figures.server_cpu_us_by_thread.get(*name).copied().unwrap_or_default();
        rows.push(row(figures.scenario.name(), names.iter().map(|name| format!("{:.1}", spent(name)))));
    }
    rows
}

fn beside(figures: &BenchFigures) -> String {
    let mut text = format!(
        "bare limit {:.0} a second at {:.1} µs a request; disk {:.0} syncs a second, p50 {:.1} ms, p99 {:.1} ms",
        figures.bare_per_second,
        figures.bare_client_cpu_us,
        figures.disk.per_second,
        figures.disk.p50_ms,
        figures.disk.p99_ms
    );
    if let Some(offered) = figures.offered_per_second {
        let _ = write!(text, "; {offered:.0} messages a second offered");
    }
    if let (Some(pending), Some(share)) = (figures.pending, figures.delivered_per_empty) {
        let _ = write!(text, "; {pending} waiting, {share:.2} of what a server without them delivers");
    }
    if figures.refused_by_receivers > 0 {
        let _ = write!(text, "; {} attempts refused", figures.refused_by_receivers);
    }
    text
}

pub(super) fn row(name: &str, cells: impl Iterator<Item = String>) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(cells).collect()
}
