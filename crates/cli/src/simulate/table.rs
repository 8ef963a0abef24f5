//! What came of it, in figures and in words.

use std::time::Duration;

use posthaste_core::time::human;
use posthaste_testkit::outage::{Down, Outcome, Scenario};
use serde::Serialize;

use super::Row;

/// What is simulated.
pub(super) fn title(scenario: &Scenario) -> String {
    format!(
        "A receiver that takes {} requests a second is down for {}; {} messages a second keep coming.",
        scenario.capacity,
        human(scenario.outage),
        scenario.load
    )
}

/// And how.
pub(super) fn subtitle(scenario: &Scenario) -> String {
    let down = match scenario.down {
        Down::Refuses => "It refuses connections while it is down",
        Down::Unavailable => "It answers 503 while it is down",
        Down::Silent => "It gives no answer while it is down",
    };
    let shed = match scenario.shed_cost {
        0.0 => String::new(),
        cost => format!(" and spends {:.0} % of a request on each it turns away", cost * 100.0),
    };
    format!("{down}, has room for two seconds of work{shed}. Seed {}.", scenario.seed)
}

const HEAD: [[&str; 8]; 2] = [
    ["tries into", "peak", "mean", "", "held all", "fresh", "tries a", ""],
    ["the outage", "/s", "/s", "503s", "delivered", "p99", "message", "lost"],
];

/// The figures, a line for each sender.
pub(super) fn text(rows: &[Row]) -> String {
    let name = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    let mut lines: Vec<(String, [String; 8])> = HEAD.map(|cells| (String::new(), cells.map(str::to_owned))).to_vec();
    lines.extend(rows.iter().map(|row| (row.name.clone(), cells(&row.outcome))));
    let width = |column: usize| lines.iter().map(|(_, cells)| cells[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..8).map(width).collect();
    lines.iter().fold(String::new(), |text, (first, cells)| {
        let cells: String = cells.iter().zip(&widths).map(|(cell, width)| format!("  {cell:>width$}")).collect();
        text + format!("{first:name$}{cells}").trim_end() + "\n"
    })
}

fn cells(outcome: &Outcome) -> [String; 8] {
    let drained = match outcome.drained {
        Some(after) => format!("+{}", human(after)),
        None => format!("{} wait", grouped(outcome.waiting)),
    };
    [
        grouped(outcome.tries_into_outage),
        outcome.peak.to_string(),
        format!("{:.0}", outcome.mean),
        grouped(outcome.shed),
        drained,
        outcome.fresh_p99.map_or("–".to_owned(), human),
        format!("{:.2}", outcome.tries_a_message),
        grouped(outcome.lost),
    ]
}

/// What a chart says of its sender.
pub(super) fn notes(outcome: &Outcome) -> Vec<String> {
    vec![
        format!("{} tries into the outage", grouped(outcome.tries_into_outage)),
        format!("peak {}/s", outcome.peak),
    ]
}

/// Two lines that say what one sees.
pub(super) fn words(_scenario: &Scenario, _rows: &[Row]) -> String {
    String::new()
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).expect("digits are ASCII"))
        .collect();
    groups.join(",")
}

/// Everything, for programs. Times are in seconds, counted from the recovery.
#[derive(Debug, Serialize)]
pub(super) struct Json {
    load_per_second: f64,
}

pub(super) fn json(scenario: &Scenario, _rows: &[Row]) -> Json {
    Json { load_per_second: scenario.load }
}
