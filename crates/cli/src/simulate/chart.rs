//! The load on a receiver over time as text: one small chart for each sender, all on one scale.
//!
//! What goes up with time is drawn by columns, each the mean of its seconds. `svg.rs` draws the same
//! [`Picture`] with more room.

use std::fmt::Write;
use std::ops::Range;

use posthaste_core::time::human;
use posthaste_testkit::outage::Second;
use std::time::Duration;

/// What is drawn.
pub(crate) struct Picture {
    /// What it shows, in one line.
    pub(crate) title: String,
    /// The circumstances, in one line.
    pub(crate) subtitle: String,
    /// Requests a second the receiver can take.
    pub(crate) capacity: f64,
    /// When it is down, in seconds from the first.
    pub(crate) outage: Range<usize>,
    /// How many seconds are drawn.
    pub(crate) length: usize,
    /// One chart for each.
    pub(crate) series: Vec<Series>,
}

/// The load on a receiver under one sender.
pub(crate) struct Series {
    /// Who sends.
    pub(crate) name: String,
    /// What it did, in a few words each.
    pub(crate) notes: Vec<String>,
    /// What reached the receiver, second by second.
    pub(crate) seconds: Vec<Second>,
}

/// Requests a second, as the mean of some seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// All of them.
    pub(crate) tries: f64,
    /// Those the receiver took.
    pub(crate) taken: f64,
}

impl Series {
    /// The first `length` seconds as `columns` means.
    pub(crate) fn columns(&self, length: usize, columns: usize) -> Vec<Load> {
        let column = |index: usize| {
            let (from, to) = (index * length / columns, (index + 1) * length / columns);
            let seconds = self.seconds.get(from..to.max(from + 1).min(self.seconds.len())).unwrap_or_default();
            let count = seconds.len().max(1) as f64;
            let tries = seconds.iter().map(|second| f64::from(second.tries)).sum::<f64>() / count;
            let failed = seconds.iter().map(|second| f64::from(second.failed)).sum::<f64>() / count;
            Load { tries, taken: tries - failed }
        };
        (0..columns).map(column).collect()
    }
}

/// With the axis and its labels, a line is 100 wide.
const COLUMNS: usize = 90;
const ROWS: usize = 8;
/// Rows up to the receiver's capacity: what is above it by more than the rest is cut.
const ROWS_TO_CAPACITY: usize = 2;
/// Where the first column stands.
const MARGIN: usize = 9;
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws it for a terminal of 100 columns.
pub(crate) fn terminal(picture: &Picture) -> String {
    let mut text = String::new();
    for series in &picture.series {
        let _ = writeln!(text, "{:MARGIN$}{}: {}", "", series.name, series.notes.join(", "));
        text += &small(picture, &series.columns(picture.length, COLUMNS));
    }
    text += &time_axis(picture);
    let _ = writeln!(text, "{:MARGIN$}requests a second: █ taken, ░ failed, ╌ what the receiver can take, ▲ more than fits", "");
    text
}

/// One chart, without the time below it.
fn small(picture: &Picture, columns: &[Load]) -> String {
    let row_height = picture.capacity / ROWS_TO_CAPACITY as f64;
    let mut text = String::new();
    for row in (0..ROWS).rev() {
        let label = match row {
            row if row + 1 == ROWS => format!("{:.0}", row_height * ROWS as f64),
            row if row + 1 == ROWS_TO_CAPACITY => format!("{:.0}", picture.capacity),
            _ => String::new(),
        };
        let cells: String = columns.iter().map(|load| cell(*load, row, row_height)).collect();
        let _ = writeln!(text, "{label:>7} │{}", cells.trim_end());
    }
    let base: String = (0..COLUMNS)
        .map(|column| {
            let second = column * picture.length / COLUMNS;
            if picture.outage.contains(&second) { '━' } else { '─' }
        })
        .collect();
    let _ = writeln!(text, "{:>7} └{base}", 0);
    text
}

/// One character: the bottom of a cell is `row` rows above zero.
fn cell(load: Load, row: usize, row_height: f64) -> char {
    let rows = |rate: f64| rate / row_height;
    let (tries, taken) = (rows(load.tries) - row as f64, rows(load.taken) - row as f64);
    let is_top = row + 1 == ROWS;
    let empty = if row + 1 == ROWS_TO_CAPACITY { '╌' } else { ' ' };
    match () {
        () if is_top && tries > 1.0 => '▲',
        () if tries - taken > 0.5 && taken < 0.5 && tries >= 0.5 => '░',
        () if taken >= 0.5 && tries - taken > 0.5 => '█',
        () => {
            let eighths = eighths(tries);
            if eighths == 0 { empty } else { EIGHTHS[eighths] }
        }
    }
}

/// How many eighths of a cell are filled.
fn eighths(cells: f64) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to eight")]
    let eighths = (cells.clamp(0.0, 1.0) * 8.0).round() as usize;
    eighths
}

/// Times below the last chart, counted from the beginning of the outage.
fn time_axis(picture: &Picture) -> String {
    let mut ticks = vec![' '; MARGIN + COLUMNS + 10];
    let mut put = |second: usize, words: &str| {
        let at = MARGIN + (second * COLUMNS).div_ceil(picture.length);
        if at + words.chars().count() <= MARGIN + COLUMNS {
            ticks.splice(at..at + words.chars().count(), words.chars());
        }
    };
    put(picture.outage.start, "▲ down");
    put(picture.outage.end, "▲ back");
    for (second, label) in times(picture, 4) {
        put(second, &format!("▲ {label}"));
    }
    ticks.into_iter().collect::<String>().trim_end().to_owned() + "\n"
}

/// Round times after the recovery, about as many as asked for, with their place.
pub(crate) fn times(picture: &Picture, about: usize) -> Vec<(usize, String)> {
    let after = picture.length - picture.outage.end;
    let steps = [10, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400];
    let step = steps.into_iter().find(|step| after / step <= about).unwrap_or(28_800);
    let label = |second: usize| format!("+{}", human(Duration::from_secs(second as u64)));
    (1..=after / step).map(|tick| (picture.outage.end + tick * step, label(tick * step))).collect()
}
