//! Every metric: its name, its kind, its meaning, and how all of them are written for Prometheus, in the
//! text format of OpenMetrics.
//!
//! Nothing is counted here. Each component counts its own work in plain numbers, which are collected when
//! metrics are read. So there is no registry, and counting costs a message no more than an addition.
//! No label ever holds a tenant, an endpoint, a URL or a subject: each takes its values from a short list in
//! the code (L7). `docs/metrics.md` has the same list; a test compares the two.

use std::fmt::Write;

use crate::dispatch::counts::{BUCKETS_MS, DurationHistogram};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows; begins at zero with the process.
    Counter,
    Gauge,
    /// Counts of durations by bucket.
    Histogram,
    /// Percentiles of durations.
    Summary,
}

impl MetricKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name; a counter's samples end in `_total`.
    pub name: &'static str,
    pub kind: MetricKind,
    pub label: Option<&'static str>,
    pub help: &'static str,
}

macro_rules! metrics {
    ($($constant:ident $name:literal $kind:ident $([$label:literal])? $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: Metric =
                Metric { name: $name, kind: MetricKind::$kind, label: label!($($label)?), help: $help };
        )*

        /// Every metric, in the order of the documentation.
        pub const ALL: &[Metric] = &[$($constant,)*];
    };
}

macro_rules! label {
    () => {
        None
    };
    ($label:literal) => {
        Some($label)
    };
}

metrics! {
    ACCEPTED "posthaste_messages_accepted" Counter "messages that were accepted and are durable";
    ARRIVED "posthaste_deliveries_accepted" Counter "deliveries that became durable and reached the dispatch loop";
    DEPTH "posthaste_queue_depth" Gauge ["tier"] "deliveries that have not ended, by tier, in memory or on disk only";
    PENDING "posthaste_pending" Gauge ["state"] "deliveries that have not ended, by whether they were tried before: tried ones wait for a retry or a receipt, or are under way again";
    WINDOW "posthaste_window" Gauge ["state"] "deliveries in memory, by state; the others are on disk only";
    SPILLING "posthaste_queues_spilling" Gauge "queues (an endpoint's deliveries of one tier) with deliveries on disk that are not in memory";
    READY "posthaste_ready" Gauge "deliveries in memory that are due and not under way";
    OLDEST_DUE "posthaste_oldest_due_seconds" Gauge "time since the oldest ready delivery was due, held or not";
    OVERDUE "posthaste_overdue_seconds" Gauge "time since the oldest ready delivery that is not held was due: how far behind the server is";
    BACKLOG "posthaste_backlog_seconds" Gauge "time to send all ready deliveries that are not held, at the rate since metrics were last read; for scaling";
    IN_FLIGHT "posthaste_in_flight" Gauge "attempts under way";
    UNSETTLED "posthaste_unsettled" Gauge "outcomes that are decided and not yet durable";
    LATENCY "posthaste_dispatch_latency_seconds" Histogram "time from an attempt's due time to its start";
    TOOK "posthaste_attempt_duration_seconds" Histogram "duration of attempts, from their start to the end of the answer";
    ATTEMPTS "posthaste_attempts" Counter ["class"] "attempts that ended, by the class of their result";
    DELIVERED "posthaste_delivered" Counter "deliveries that were delivered";
    CANCELLED "posthaste_cancelled" Counter "deliveries that were cancelled, superseded or erased while they were in memory";
    DEAD_LETTERS "posthaste_dead_letters" Counter ["cause"] "deliveries that ended as dead letters, by cause";
    TTL_PURGES "posthaste_ttl_expired_purge" Counter "deliveries that expired because their TTL was over";
    SWEPT "posthaste_swept" Counter "deliveries on disk only whose end was recorded: cut, erased, or past their TTL";
    TRIPS "posthaste_breaker_trips" Counter ["scope"] "breakers that opened";
    OPEN "posthaste_breakers_open" Gauge ["scope"] "breakers that are not closed";
    PAUSED "posthaste_paused" Gauge ["scope"] "pauses in force: of everything, of tenants, and of origins";
    TOKENS_REJECTED "posthaste_retry_tokens_rejected" Counter "retry tokens that were forged or altered; their deliveries are never sent";
    TOKENS_RENEWED "posthaste_retry_tokens_renewed" Counter "retry tokens that were too old, and were renewed after another check";
    ILLEGAL "posthaste_illegal_transitions" Counter "state changes that were refused because no delivery makes them: anything but zero is a bug";
    RECIPIENT_ROWS "posthaste_recipient_rows_read" Counter "rows of the store read to find the endpoints of accepted messages, by subject or tag or as a tenant's list";
    COMMITS "posthaste_commits" Counter "transactions that became durable";
    COMMIT_ROWS "posthaste_commit_rows" Counter "deliveries that these transactions accepted or settled";
    COMMIT_SECONDS "posthaste_commit_seconds" Summary "duration of transactions, including the fsync, since the start";
    STORE "posthaste_store_state" Gauge ["state"] "1 for the current state of the store";
    CONNECTIONS_OUT "posthaste_connections_out" Gauge "open connections to receivers";
    CONNECTIONS_IN "posthaste_connections_in" Gauge "open connections of API callers";
    REQUESTS "posthaste_requests" Counter "API requests that were answered";
    REFUSALS "posthaste_refusals" Counter ["code"] "API requests that were refused, by error code";
}

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug, Default)]
pub struct MetricsPage(String);

impl MetricsPage {
    pub fn one(&mut self, metric: &Metric, value: u64) {
        self.head(metric);
        let suffix = suffix(metric);
        self.line(format_args!("{}{suffix} {value}", metric.name));
    }

    /// Writes a metric that is a duration in seconds.
    pub fn seconds(&mut self, metric: &Metric, seconds: f64) {
        self.head(metric);
        self.line(format_args!("{} {seconds}", metric.name));
    }

    /// Writes a number for each value of the metric's label.
    pub fn each<'v>(&mut self, metric: &Metric, values: impl IntoIterator<Item = (&'v str, u64)>) {
        self.head(metric);
        let (suffix, label) = (suffix(metric), metric.label.unwrap_or("kind"));
        for (value, number) in values {
            self.line(format_args!("{}{suffix}{{{label}=\"{value}\"}} {number}", metric.name));
        }
    }

    pub fn spread(&mut self, metric: &Metric, spread: &DurationHistogram) {
        self.head(metric);
        let mut so_far = 0;
        let uppers = BUCKETS_MS.iter().map(|ms| format!("{}", *ms as f64 / 1_000.0)).chain(["+Inf".to_owned()]);
        for (count, upper) in spread.buckets.iter().zip(uppers) {
            so_far += count;
            self.line(format_args!("{}_bucket{{le=\"{upper}\"}} {so_far}", metric.name));
        }
        self.line(format_args!("{}_sum {}", metric.name, spread.sum_ms as f64 / 1_000.0));
        self.line(format_args!("{}_count {so_far}", metric.name));
    }

    /// Writes percentiles in seconds, and the number of durations.
    pub fn percentiles(&mut self, metric: &Metric, percentiles: &[(f64, f64)], count: u64) {
        self.head(metric);
        for (share, seconds) in percentiles {
            self.line(format_args!("{}{{quantile=\"{share}\"}} {seconds}", metric.name));
        }
        self.line(format_args!("{}_count {count}", metric.name));
    }

    pub fn finish(mut self) -> String {
        self.line(format_args!("# EOF"));
        self.0
    }

    fn head(&mut self, metric: &Metric) {
        self.line(format_args!("# TYPE {} {}", metric.name, metric.kind.name()));
        self.line(format_args!("# HELP {} {}", metric.name, metric.help));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("a text takes every line");
    }
}

fn suffix(metric: &Metric) -> &'static str {
    if metric.kind == MetricKind::Counter { "_total" } else { "" }
}

/// The table of `docs/metrics.md`.
#[cfg(test)]
fn markdown() -> String {
    let mut table = "| metric | kind | label | meaning |\n|---|---|---|---|\n".to_owned();
    for metric in ALL {
        let (suffix, kind) = (suffix(metric), metric.kind.name());
        let label = metric.label.map(|label| format!("`{label}`")).unwrap_or_default();
        writeln!(table, "| `{}{suffix}` | {kind} | {label} | {} |", metric.name, metric.help).expect("a text takes it");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_page_lists_every_metric() {
        let page = include_str!("../../../docs/metrics.md");
        assert!(page.contains(&markdown()), "docs/metrics.md must have this table:\n{}", markdown());
    }

    #[test]
    fn names_are_ours_and_differ() {
        let mut names: Vec<_> = ALL.iter().map(|metric| metric.name).collect();
        assert!(names.iter().all(|name| name.starts_with("posthaste_") && !name.ends_with("_total")), "{names:?}");
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn metrics_text_has_types_labels_and_buckets() {
        let mut page = MetricsPage::default();
        page.one(&DELIVERED, 3);
        page.each(&DEPTH, [("transactional", 1), ("promotional", 2)]);
        let mut spread = DurationHistogram::default();
        spread.buckets[0] = 2;
        spread.buckets[14] = 1;
        spread.sum_ms = 1_500;
        page.spread(&LATENCY, &spread);
        page.percentiles(&COMMIT_SECONDS, &[(0.5, 0.004)], 7);
        let text = page.finish();
        for line in [
            "# TYPE posthaste_delivered counter",
            "posthaste_delivered_total 3",
            "posthaste_queue_depth{tier=\"promotional\"} 2",
            "posthaste_dispatch_latency_seconds_bucket{le=\"0.001\"} 2",
            "posthaste_dispatch_latency_seconds_bucket{le=\"+Inf\"} 3",
            "posthaste_dispatch_latency_seconds_sum 1.5",
            "posthaste_dispatch_latency_seconds_count 3",
            "posthaste_commit_seconds{quantile=\"0.5\"} 0.004",
            "posthaste_commit_seconds_count 7",
        ] {
            assert!(text.lines().any(|written| written == line), "{line} is missing from\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
