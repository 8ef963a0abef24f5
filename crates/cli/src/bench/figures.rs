//! The figures of a scenario, computed from its measurements.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste_testkit::bench::comparison::Quartiles;
use serde::Serialize;

use super::child::Memory;
use super::disk::Syncs;
use super::rig::{Bare, Round, Used};
use super::tally::{Arrival, Count};

/// The figures of a scenario. A rate is the median over the rounds, a ratio of rates the median of the rounds' ratios,
/// and a figure for each delivery covers all rounds together.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    pub(super) scenario: String,
    pub(super) rounds: usize,
    pub(super) accepted: u64,
    pub(super) delivered: u64,
    pub(super) lost: u64,
    pub(super) duplicates: u64,
    pub(super) refused_by_receivers: u64,
    /// The rate that the producer was given, if it was given one.
    pub(super) offered_per_second: Option<f64>,
    pub(super) accepted_per_second: f64,
    pub(super) delivered_per_second: f64,
    pub(super) bare_per_second: f64,
    pub(super) delivered_per_bare: f64,
    pub(super) bare_client_cpu_us: f64,
    pub(super) server_cpu_us: f64,
    /// The server's CPU time by thread.
    pub(super) server_cpu_us_by_thread: BTreeMap<String, f64>,
    pub(super) producer_cpu_us: f64,
    pub(super) receiver_cpu_us: f64,
    /// The time from the producer's request to the receiver.
    pub(super) arrival: Arrival,
    pub(super) rss_mib: f64,
    pub(super) rss_peak_mib: f64,
    pub(super) written_bytes: f64,
    pub(super) syncs: f64,
    /// The disk alone, measured between the rounds.
    pub(super) disk: Syncs,
    /// The number of pending deliveries during the scenario.
    pub(super) pending: Option<u64>,
    /// The delivery rate as a ratio to that of a server without pending deliveries.
    pub(super) delivered_per_empty: Option<f64>,
}

/// The measurements of a scenario.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) rounds: Vec<Round>,
    pub(super) bare: Vec<Bare>,
    /// The rounds of a server without pending deliveries.
    pub(super) empty: Vec<Round>,
    pub(super) before: Used,
    pub(super) after: Used,
    pub(super) memory: Memory,
    pub(super) arrived: Count,
    pub(super) expected: u64,
    pub(super) arrival: Arrival,
    pub(super) disk: Syncs,
}

impl Figures {
    pub(super) fn of(scenario: String, offered_per_second: Option<f64>, pending: Option<u64>, of: &Measured) -> Self {
        let delivered = of.arrived.distinct;
        let each = |cpu: Duration| share(cpu, delivered);
        let cpu = of.after.cpu.since(&of.before.cpu);
        let rates = |rate: fn(&Round) -> f64| median(of.rounds.iter().map(rate));
        let sum = |part: fn(&Round) -> Duration| of.rounds.iter().map(part).sum::<Duration>();
        let per_bare = of.rounds.iter().zip(&of.bare).map(|(round, bare)| round.delivered_per_second / bare.per_second);
        let per_empty = of
            .rounds
            .iter()
            .zip(&of.empty)
            .map(|(round, empty)| round.delivered_per_second / empty.delivered_per_second);
        Self {
            scenario,
            rounds: of.rounds.len(),
            accepted: of.rounds.iter().map(|round| round.accepted).sum(),
            delivered,
            lost: of.expected.saturating_sub(delivered),
            duplicates: of.arrived.taken.saturating_sub(delivered),
            refused_by_receivers: of.arrived.refused,
            offered_per_second,
            accepted_per_second: rates(|round| round.accepted_per_second),
            delivered_per_second: rates(|round| round.delivered_per_second),
            bare_per_second: median(of.bare.iter().map(|bare| bare.per_second)),
            delivered_per_bare: median(per_bare),
            bare_client_cpu_us: share(
                of.bare.iter().map(|bare| bare.cpu).sum(),
                of.bare.iter().map(|bare| bare.requests).sum(),
            ),
            server_cpu_us: each(cpu.all()),
            server_cpu_us_by_thread: cpu.by_name().map(|(name, spent)| (name.to_owned(), each(spent))).collect(),
            producer_cpu_us: each(sum(|round| round.producer_cpu)),
            receiver_cpu_us: each(sum(|round| round.receiver_cpu)),
            arrival: of.arrival,
            rss_mib: of.memory.now_mib,
            rss_peak_mib: of.memory.peak_mib,
            written_bytes: ratio(of.after.written_bytes - of.before.written_bytes, delivered),
            syncs: ratio(of.after.commits - of.before.commits, delivered),
            disk: of.disk,
            pending,
            delivered_per_empty: (!of.empty.is_empty()).then(|| median(per_empty)),
        }
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    Quartiles::of(values).median
}

/// Microseconds for each of `count`.
fn share(cpu: Duration, count: u64) -> f64 {
    cpu.as_secs_f64() * 1e6 / float(count)
}

fn ratio(part: u64, count: u64) -> f64 {
    float(part) / float(count)
}

#[expect(clippy::cast_precision_loss, reason = "a count of messages or bytes of a run is far below 2^52")]
fn float(count: u64) -> f64 {
    count as f64
}
