//! The demo's final output: the ledger, the load during the outage, and commands to try next; or one JSON object.

use std::path::Path;
use std::time::Duration;

use posthaste_core::time::human;
use posthaste_prove::chart::grouped;
use serde::Serialize;

use super::ledger::DemoLedger;
use super::outage::LoadComparison;
use super::paint::{StyledLine, Tone, wrap};

/// The column in which the explanation of a figure begins.
const WORDS_AT: usize = 31;
/// The least width of an explanation, however narrow the terminal is.
const WORDS_MIN: usize = 20;

/// The events of a run that are not in the ledger.
#[derive(Debug, Default, Serialize)]
pub(super) struct RunCounts {
    pub(super) kills: usize,
    /// The time from the kill until the new server answered.
    pub(super) back_after_ms: u64,
    /// Messages that were accepted and not yet delivered when the server was killed.
    pub(super) waiting_at_kill: usize,
    /// Calls of the producer that had no answer and were repeated with the same idempotency key.
    pub(super) repeated_calls: usize,
    /// Dead letters that were replayed.
    pub(super) replayed: u64,
    /// Requests that came before the time of a `Retry-After`.
    pub(super) early: usize,
}

/// The counts of one receiver, by its own log.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ReceiverCounts {
    pub(super) name: &'static str,
    pub(super) accepted: usize,
    pub(super) requests: usize,
    pub(super) taken: usize,
    pub(super) duplicates: usize,
}

/// The results of a run; also the JSON object that `--json` prints.
#[derive(Serialize)]
pub(super) struct DemoReport {
    pub(super) scale: u32,
    /// The length of the run by the machine's clock, with one decimal.
    pub(super) took_s: f64,
    #[serde(flatten)]
    pub(super) ledger: DemoLedger,
    #[serde(flatten)]
    pub(super) counts: RunCounts,
    pub(super) receivers: Vec<ReceiverCounts>,
    pub(super) outage: LoadComparison,
    /// The TTL of messages for the tarpit.
    #[serde(skip)]
    pub(super) ttl: Duration,
}

impl DemoReport {
    pub(super) fn ledger(&self, width: usize) -> Vec<StyledLine> {
        let ledger = &self.ledger;
        let causes: Vec<String> =
            ledger.dead.iter().map(|(cause, count)| format!("{cause} {}", count_of(*count))).collect();
        let agrees = match ledger.delivered_by_server {
            same if same == ledger.delivered => "the server agrees".to_owned(),
            other => format!("the server says {}", count_of(other)),
        };
        let closed = if ledger.complaints().is_empty() { Tone::Good } else { Tone::Bad };
        let mut rows = vec![
            (Tone::Plain, "accepted", ledger.accepted, "answered 202, each once its commit was on disk".to_owned()),
            (Tone::Plain, "delivered", ledger.delivered, format!("by the receivers' own count; {agrees}")),
            (Tone::Plain, "expired", ledger.expired, format!("no answer within their TTL of {}", human(self.ttl))),
            (Tone::Plain, "dead", ledger.dead.values().sum(), causes.join(", ")),
            (closed, "lost", ledger.lost + ledger.unfinished, "accepted = delivered + expired + dead".to_owned()),
            (Tone::Plain, "duplicates", ledger.duplicates, "sent again after the kill, or a late answer".to_owned()),
        ];
        if ledger.cancelled > 0 {
            rows.insert(4, (Tone::Plain, "cancelled", ledger.cancelled, String::new()));
        }
        let mut lines = vec![StyledLine::new(), StyledLine::new().and(Tone::Strong, "The ledger")];
        lines.extend(
            rows.iter().flat_map(|(tone, name, count, words)| row(*tone, name, &count_of(*count), words, width)),
        );
        let requests = format!("{} requests reached the receivers", count_of(ledger.attempts));
        lines.extend(row(
            Tone::Plain,
            "attempts a message",
            &format!("{:.2}", ledger.attempts_per_message),
            &requests,
            width,
        ));
        lines.extend(self.counts.lines(width));
        lines
    }

    pub(super) fn summary(&self) -> String {
        let LoadComparison { posthaste, naive, .. } = &self.outage;
        format!(
            "Requests while billing was down: {} from Posthaste, {} from naive retries.\n\
             Requests a second afterwards, at most: {:.1} and {:.1}; it can take {}.",
            grouped(posthaste.tries_into_outage),
            grouped(naive.tries_into_outage),
            posthaste.peak_10s_per_s,
            naive.peak_10s_per_s,
            self.outage.picture.capacity
        )
    }
}

impl RunCounts {
    fn lines(&self, width: usize) -> Vec<StyledLine> {
        let killed = format!(
            "with {} accepted messages waiting; back after {:.1} s; {} calls repeated",
            count_of(self.waiting_at_kill),
            Duration::from_millis(self.back_after_ms).as_secs_f64(),
            self.repeated_calls
        );
        let rows = [
            ("killed (-9)", count_of(self.kills), killed),
            ("replayed", grouped(self.replayed), "dead letters, after their receiver was repaired".to_owned()),
            ("too early", count_of(self.early), "requests before the time of a Retry-After".to_owned()),
        ];
        rows.iter().flat_map(|(name, figure, words)| row(Tone::Plain, name, figure, words, width)).collect()
    }
}

pub(super) fn next_steps(svg: Option<&Path>) -> Vec<StyledLine> {
    let mut lines = vec![StyledLine::new()];
    if let Some(path) = svg {
        let note = format!("The chart was written to {}; everything else was removed", path.display());
        lines.extend([StyledLine::new().and(Tone::Plain, note), StyledLine::new()]);
    }
    let commands = [
        ("posthaste serve --dev", "a server to try, on this machine"),
        ("posthaste policy preview webhook", "the schedule of its retries"),
        ("posthaste simulate", "an outage that you describe, compared with naive retries"),
        ("posthaste bench", "measures this machine"),
    ];
    lines.push(StyledLine::new().and(Tone::Strong, "Next"));
    for (command, does) in commands {
        lines.push(StyledLine::new().and(Tone::Plain, format!("  {command:34}")).and(Tone::Quiet, does));
    }
    lines
}

fn count_of(count: usize) -> String {
    grouped(count as u64)
}

/// A figure with its name and explanation, wrapped to the width.
fn row(tone: Tone, name: &str, figure: &str, words: &str, width: usize) -> Vec<StyledLine> {
    let mut rows = wrap(words, width.saturating_sub(WORDS_AT).max(WORDS_MIN)).into_iter();
    let first = StyledLine::new()
        .and(tone, format!("  {name:19}{figure:>7}"))
        .and(Tone::Quiet, format!("   {}", rows.next().unwrap_or_default()));
    let more = |words: String| StyledLine::new().and(Tone::Quiet, format!("{:WORDS_AT$}{words}", ""));
    std::iter::once(first).chain(rows.map(more)).collect()
}
