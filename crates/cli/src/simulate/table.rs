//! The results of a simulation as a table, as text and as JSON.

use std::time::Duration;

use posthaste_core::time::human;
use posthaste_prove::chart::{ChartNote, aligned, grouped};
use posthaste_simulator::outage::{Down, OutageOutcome, OutageScenario};
use serde::Serialize;

use super::Row;

pub(super) fn subtitle(scenario: &OutageScenario) -> String {
    let down = match scenario.down {
        Down::Refuses => "refuses connections",
        Down::Unavailable => "answers 503",
        Down::Silent => "does not answer",
    };
    let shed = match scenario.shed_cost {
        0.0 => String::new(),
        cost => format!("; each 503 costs it {:.0} % of a request", cost * 100.0),
    };
    format!(
        "{} messages a second for a receiver that takes {}. While down it {down}{shed}. Seed {}.",
        scenario.load, scenario.capacity, scenario.seed
    )
}

const HEAD: [[&str; 8]; 2] = [
    ["tries into", "peak", "mean", "", "held all", "fresh", "tries a", ""],
    ["the outage", "/s", "/s", "503s", "delivered", "p99", "message", "lost"],
];

pub(super) fn text(rows: &[Row]) -> String {
    let line = |first: &str, cells: [String; 8]| [vec![first.to_owned()], cells.to_vec()].concat();
    let mut lines = HEAD.map(|cells| line("", cells.map(str::to_owned))).to_vec();
    lines.extend(rows.iter().map(|row| line(&row.label, cells(&row.outcome))));
    aligned("", &lines)
}

fn cells(outcome: &OutageOutcome) -> [String; 8] {
    let drained = match outcome.drained {
        Some(after) => format!("+{}", human(after)),
        None => format!("{} wait", grouped(outcome.waiting)),
    };
    [
        grouped(outcome.tries_into_outage),
        grouped(u64::from(outcome.peak)),
        format!("{:.0}", outcome.mean),
        grouped(outcome.shed),
        drained,
        waited(outcome),
        format!("{:.2}", outcome.tries_a_message),
        grouped(outcome.lost),
    ]
}

/// The 99th percentile of the fresh messages' delivery times; a dash if they were not delivered.
fn waited(outcome: &OutageOutcome) -> String {
    outcome.fresh_p99.map_or("–".to_owned(), human)
}

pub(super) fn notes(outcome: &OutageOutcome) -> Vec<ChartNote> {
    vec![
        ChartNote { figure: grouped(outcome.tries_into_outage), of: "tries into the outage" },
        ChartNote { figure: format!("{}/s", grouped(u64::from(outcome.peak))), of: "at the peak after it" },
        ChartNote { figure: grouped(outcome.shed), of: "turned away with 503" },
        ChartNote { figure: waited(outcome), of: "fresh messages, p99" },
    ]
}

/// Two lines of text: the load, and its effect on messages. With several senders they compare those with the highest
/// and the lowest peak.
pub(super) fn words(scenario: &OutageScenario, rows: &[Row]) -> String {
    let by_peak = |row: &&Row| row.outcome.peak;
    let (Some(calm), Some(wild)) = (rows.iter().min_by_key(by_peak), rows.iter().max_by_key(by_peak)) else {
        return String::new();
    };
    let mut load = format!(
        "{} sends {} requests into the outage and up to {} a second after it{}",
        wild.name,
        grouped(wild.outcome.tries_into_outage),
        grouped(u64::from(wild.outcome.peak)),
        beyond(wild.outcome.peak, scenario.capacity)
    );
    let mut fresh = format!("1 in 100 new messages {}", waits(&wild.outcome));
    let mut held = format!("what was held is delivered {}", delivered(&wild.outcome, scenario));
    if rows.len() > 1 {
        let tries = grouped(calm.outcome.tries_into_outage);
        load += &format!("; {} sends {tries}, then up to {}", calm.name, grouped(u64::from(calm.outcome.peak)));
        fresh += &format!(" with {} and {} with {}", wild.name, waits(&calm.outcome), calm.name);
        held += &format!(" and {}", delivered(&calm.outcome, scenario));
    }
    let best = scenario.drained_at_best().map_or(String::new(), |best| {
        format!("; if nothing new had to wait, it would take {}", human(Duration::from_secs(best.as_secs())))
    });
    format!("{load}.\n{fresh}; {held}{best}.")
}

/// How far a peak is above the receiver's capacity; empty below 1.5 times.
fn beyond(peak: u32, capacity: f64) -> String {
    let times = f64::from(peak) / capacity;
    match times {
        ..1.5 => String::new(),
        1.5..10.0 => format!(", {times:.1} times what the receiver can take"),
        _ => format!(", {times:.0} times what the receiver can take"),
    }
}

fn waits(outcome: &OutageOutcome) -> String {
    outcome.fresh_p99.map_or("still waits at the end".to_owned(), |wait| format!("waits {} or longer", human(wait)))
}

fn delivered(outcome: &OutageOutcome, scenario: &OutageScenario) -> String {
    match outcome.drained {
        Some(after) => format!("after {}", human(after)),
        None => format!("not within {}", human(scenario.horizon)),
    }
}

/// The results as JSON. Times are in seconds; those that end in `_after_s` count from the recovery. `null` means that
/// the simulation ended before.
#[derive(Debug, Serialize)]
pub(super) struct SimulationJson {
    load_per_s: f64,
    capacity_per_s: f64,
    outage_s: f64,
    shed_cost: f64,
    seed: u64,
    drained_at_best_after_s: Option<f64>,
    senders: Vec<JsonSender>,
}

#[derive(Debug, Serialize)]
struct JsonSender {
    name: String,
    messages: u64,
    tries_into_outage: u64,
    tries_after: u64,
    shed_after: u64,
    peak_per_s: u32,
    peak_10s_per_s: f64,
    mean_30m_per_s: f64,
    delivered_30m_per_s: f64,
    drained_after_s: Option<f64>,
    drained_99_percent_after_s: Option<f64>,
    detected_after_s: Option<f64>,
    fresh_p50_s: Option<f64>,
    fresh_p99_s: Option<f64>,
    tries_per_message: f64,
    tries_per_held_message: f64,
    lost: u64,
    waiting: u64,
    /// Requests that reached the receiver in each second, from two minutes before the outage.
    tries_by_second: Vec<u32>,
    /// Failed requests in each of these seconds.
    failed_by_second: Vec<u32>,
}

pub(super) fn json(scenario: &OutageScenario, rows: &[Row]) -> SimulationJson {
    SimulationJson {
        load_per_s: scenario.load,
        capacity_per_s: scenario.capacity,
        outage_s: scenario.outage.as_secs_f64(),
        shed_cost: scenario.shed_cost,
        seed: scenario.seed,
        drained_at_best_after_s: seconds(scenario.drained_at_best()),
        senders: rows.iter().map(json_sender).collect(),
    }
}

fn json_sender(row: &Row) -> JsonSender {
    let outcome = &row.outcome;
    JsonSender {
        name: row.name.clone(),
        messages: outcome.messages,
        tries_into_outage: outcome.tries_into_outage,
        tries_after: outcome.tries_after,
        shed_after: outcome.shed,
        peak_per_s: outcome.peak,
        peak_10s_per_s: outcome.peak_10s,
        mean_30m_per_s: outcome.mean,
        delivered_30m_per_s: outcome.goodput,
        drained_after_s: seconds(outcome.drained),
        drained_99_percent_after_s: seconds(outcome.drained_99),
        detected_after_s: seconds(outcome.detection_lag),
        fresh_p50_s: seconds(outcome.fresh_p50),
        fresh_p99_s: seconds(outcome.fresh_p99),
        tries_per_message: outcome.tries_a_message,
        tries_per_held_message: outcome.tries_a_held_message,
        lost: outcome.lost,
        waiting: outcome.waiting,
        tries_by_second: outcome.seconds.iter().map(|second| second.tries).collect(),
        failed_by_second: outcome.seconds.iter().map(|second| second.failed).collect(),
    }
}

fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(peak: u32, drained: Option<u64>) -> OutageOutcome {
        OutageOutcome {
            messages: 90_000,
            tries_into_outage: 376_060,
            tries_after: 600_000,
            shed: 510_489,
            peak,
            peak_10s: 640.0,
            mean: 333.3,
            goodput: 49.7,
            drained: drained.map(Duration::from_secs),
            drained_99: None,
            fresh_p50: Some(Duration::from_secs(2)),
            fresh_p99: drained.map(|_| Duration::from_secs(1_382)),
            after_close_p99: None,
            tries_a_message: 10.887,
            tries_a_held_message: 21.1,
            detection_lag: Some(Duration::ZERO),
            lost: 0,
            waiting: 1_234,
            seconds: Vec::new(),
        }
    }

    fn row(name: &str, outcome: OutageOutcome) -> Row {
        Row { name: name.to_owned(), label: format!("who is called {name}"), outcome }
    }

    #[test]
    fn the_table_is_aligned_and_shows_how_many_messages_still_wait() {
        let text = text(&[row("a", outcome(688, Some(1_860))), row("b", outcome(54, None))]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "                 tries into  peak  mean             held all   fresh  tries a",
                "                 the outage    /s    /s     503s   delivered     p99  message  lost",
                "who is called a     376,060   688   333  510,489        +31m  23m 2s    10.89     0",
                "who is called b     376,060    54   333  510,489  1,234 wait       –    10.89     0",
            ]
        );
    }

    #[test]
    fn the_text_compares_the_highest_with_the_lowest_peak() {
        let scenario = OutageScenario::default();
        let rows = [row("a", outcome(688, None)), row("b", outcome(54, Some(1_980))), row("c", outcome(99, None))];
        let words = words(&scenario, &rows);
        assert_eq!(
            words,
            "a sends 376,060 requests into the outage and up to 688 a second after it, 14 times what the receiver can \
             take; b sends 376,060, then up to 54.\n1 in 100 new messages still waits at the end with a \
             and waits 23m 2s or longer with b; what was held is delivered not within 4h and after 33m; if nothing new had \
             to wait, it would take 30m."
        );
    }

    #[test]
    fn the_text_of_a_single_sender_has_no_comparison() {
        let words = words(&OutageScenario::default(), &[row("b", outcome(54, Some(1_980)))]);
        assert!(
            words.starts_with("b sends 376,060 requests into the outage and up to 54 a second after it.\n"),
            "{words}"
        );
        assert!(!words.contains(" with "), "{words}");
    }
}
