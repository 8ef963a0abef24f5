//! Draws the state of the demo as lines for a terminal of a given size.

use std::time::Duration;

use posthaste_prove::chart::Second;
use posthaste_prove::chart::{bar, grouped};

use super::behaviour::ReceiverHealth;
use super::paint::{StyledLine, Tone, cut};
use super::plan::{SCALE, minutes_and_seconds};
use super::report::ReceiverCounts;

/// The width of the column of names, with two spaces before it.
const NAME: usize = 10;
const NUMBER: usize = 9;
const NUMBERS: usize = 3;
/// The least and the largest width of the column that shows a receiver's behaviour.
const DOES_MIN: usize = 10;
const DOES_MAX: usize = 36;
/// The least and the largest width of the load chart; with less room it is left out.
const LOAD_MIN: usize = 8;
const LOAD_MAX: usize = 60;
const PROGRESS: usize = 30;
/// The lines of the head, the server, the progress and the table.
const LINES: usize = 13;
const EVENTS_MAX: usize = 12;

#[derive(Clone, Debug)]
pub(super) struct DemoEvent {
    pub(super) at: Duration,
    pub(super) tone: Tone,
    pub(super) text: String,
}

#[derive(Debug)]
pub(super) struct ReceiverRow {
    pub(super) counts: ReceiverCounts,
    pub(super) health: ReceiverHealth,
    pub(super) does: String,
    pub(super) load: Vec<Second>,
}

#[derive(Debug)]
pub(super) struct DemoView<'a> {
    pub(super) now: Duration,
    /// The server's process and address, or that it was killed.
    pub(super) server: String,
    pub(super) is_up: bool,
    pub(super) done: usize,
    pub(super) of: usize,
    /// What `done` counts.
    pub(super) what: &'static str,
    pub(super) rows: Vec<ReceiverRow>,
    pub(super) events: &'a [DemoEvent],
}

/// Draws the state. At most `height - 1` lines, so that the terminal does not scroll.
pub(super) fn frame(view: &DemoView<'_>, width: usize, height: usize) -> Vec<StyledLine> {
    let mut lines = vec![
        StyledLine::new()
            .and(Tone::Strong, "posthaste demo")
            .and(Tone::Slow, format!("   time runs {SCALE} times as fast"))
            .and(Tone::Quiet, ": a second here is a minute"),
        StyledLine::new(),
        server(view),
        progress(view),
        StyledLine::new(),
        head(width),
    ];
    lines.extend(view.rows.iter().map(|row| receiver(row, width)));
    lines.push(StyledLine::new());
    let events = height.saturating_sub(LINES + 1).min(EVENTS_MAX);
    lines.extend(view.events.iter().skip(view.events.len().saturating_sub(events)).map(event));
    lines.truncate(height.saturating_sub(1).max(1));
    lines
}

pub(super) fn event(event: &DemoEvent) -> StyledLine {
    StyledLine::new()
        .and(Tone::Quiet, format!("  {}  ", minutes_and_seconds(event.at)))
        .and(event.tone, event.text.clone())
}

pub(super) fn summary(view: &DemoView<'_>) -> String {
    let taken: Vec<String> =
        view.rows.iter().map(|row| format!("{} {}", row.counts.name, grouped(row.counts.taken as u64))).collect();
    let (done, of) = (grouped(view.done as u64), grouped(view.of as u64));
    format!("{done} of {of} {}; taken: {}", view.what, taken.join(", "))
}

fn server(view: &DemoView<'_>) -> StyledLine {
    let tone = if view.is_up { Tone::Plain } else { Tone::Bad };
    StyledLine::new()
        .and(Tone::Strong, format!("  {}", minutes_and_seconds(view.now)))
        .and(tone, format!("   {}", view.server))
}

fn progress(view: &DemoView<'_>) -> StyledLine {
    let filled = (view.done * PROGRESS).checked_div(view.of).unwrap_or(0).min(PROGRESS);
    let words = format!("   {} of {} {}", grouped(view.done as u64), grouped(view.of as u64), view.what);
    StyledLine::new()
        .and(Tone::Good, format!("  {}", "━".repeat(filled)))
        .and(Tone::Quiet, "─".repeat(PROGRESS - filled))
        .and(Tone::Plain, words)
}

/// The widths of the columns that depend on the terminal: a receiver's behaviour, and its load.
fn widths(width: usize) -> (usize, usize) {
    let left = width.saturating_sub(NAME + NUMBER * NUMBERS + 2);
    let does = left.saturating_sub(LOAD_MIN).clamp(DOES_MIN, DOES_MAX);
    let load = left.saturating_sub(does).min(LOAD_MAX);
    (does, if load < LOAD_MIN { 0 } else { load })
}

fn head(width: usize) -> StyledLine {
    let (does, load) = widths(width);
    let load = if load > 0 { "  load" } else { "" };
    let text =
        format!("{:NAME$}{:does$}{:>NUMBER$}{:>NUMBER$}{:>NUMBER$}{load}", "", "", "accepted", "requests", "taken");
    StyledLine::new().and(Tone::Quiet, text)
}

fn receiver(row: &ReceiverRow, width: usize) -> StyledLine {
    let (does, load) = widths(width);
    let tone = match row.health {
        ReceiverHealth::Well => Tone::Good,
        ReceiverHealth::Slow => Tone::Slow,
        ReceiverHealth::Ill => Tone::Bad,
    };
    let ReceiverCounts { name, accepted, requests, taken, .. } = row.counts;
    let numbers: String =
        [accepted, requests, taken].iter().map(|number| format!("{:>NUMBER$}", grouped(*number as u64))).collect();
    StyledLine::new()
        .and(Tone::Strong, format!("  {name:width$}", width = NAME - 2))
        .and(tone, format!("{:does$}", cut(&row.does, does)))
        .and(Tone::Plain, numbers)
        .and(Tone::Quiet, format!("  {}", sparks(&row.load, load)))
}

/// The load over the whole demo; each receiver has its own scale.
fn sparks(load: &[Second], columns: usize) -> String {
    let tries = |column: usize| -> u32 {
        let (from, to) = (column * load.len() / columns, (column + 1) * load.len() / columns);
        load[from..to].iter().map(|second| second.tries).sum()
    };
    let columns: Vec<u32> = (0..columns).map(tries).collect();
    let most = columns.iter().copied().max().unwrap_or(0).max(1);
    columns.iter().map(|tries| bar(f64::from(*tries) / f64::from(most))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(width: usize, height: usize) -> Vec<String> {
        let mut load = vec![Second { tries: 1, failed: 0 }; 450];
        load.extend(vec![Second::default(); 450]);
        let row = |name, does: &str| ReceiverRow {
            counts: ReceiverCounts { name, accepted: 2_400, requests: 31, taken: 1_024, duplicates: 0 },
            health: ReceiverHealth::Ill,
            does: does.to_owned(),
            load: load.clone(),
        };
        let event = DemoEvent { at: Duration::from_secs(61), tone: Tone::Bad, text: "kill -9".to_owned() };
        let view = DemoView {
            now: Duration::from_secs(252),
            server: "server, process 4711".to_owned(),
            is_up: true,
            done: 3_000,
            of: 6_000,
            what: "messages accepted",
            rows: (0..6).map(|_| row("billing", "down: 502; breaker open, 1,024 wait")).collect(),
            events: &vec![event; 20],
        };
        frame(&view, width, height).iter().map(|line| line.painted(width, false)).collect()
    }

    #[test]
    fn everything_fits_a_small_terminal() {
        let lines = drawn(80, 24);
        assert_eq!(lines.len(), 23);
        assert_eq!(lines[2], "  04:12   server, process 4711");
        assert_eq!(lines[3], "  ━━━━━━━━━━━━━━━───────────────   3,000 of 6,000 messages accepted");
        assert_eq!(lines[5], format!("{:44}accepted requests    taken  load", ""));
        assert_eq!(lines[6], "  billing down: 502; breaker open, 1,024 w…    2,400       31    1,024  ████");
        assert_eq!(lines[22], "  01:01  kill -9");
    }

    #[test]
    fn every_terminal_size_is_respected() {
        for (width, height) in [(0, 0), (1, 1), (10, 3), (20, 10), (40, 12), (60, 15), (300, 100)] {
            let lines = drawn(width, height);
            assert!(lines.len() <= height.saturating_sub(1).max(1), "{width} × {height}");
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{lines:#?}");
        }
        assert!(drawn(300, 100).iter().any(|line| line.contains("1,024 wait ")));
    }
}
