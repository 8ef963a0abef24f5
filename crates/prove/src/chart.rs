//! The charts and tables of `demo`, `bench` and `simulate`: the load on a receiver over time, as text and as
//! [`svg`], and figures in aligned columns.
//!
//! A chart of the load is one small chart for each sender, all on one scale. A column is the mean of its seconds. Loads
//! far above the receiver's capacity are cut and marked, since they would flatten the rest.

pub mod svg;

use std::ops::Range;
use std::time::Duration;

use posthaste_core::time::human;

/// What reached the receiver in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// Requests, and attempts to connect while it is down.
    pub tries: u32,
    /// Those of them that it did not take.
    pub failed: u32,
}

/// The data of a chart, for text and SVG.
pub struct LoadChart {
    /// The subject, in one line.
    pub title: String,
    /// The parameters of the run, in one line.
    pub subtitle: String,
    /// Requests a second the receiver can take.
    pub capacity: f64,
    /// The receiver's outage, in seconds from the beginning.
    pub outage: Range<usize>,
    /// The number of seconds drawn.
    pub length: usize,
    /// The senders, each of which has a chart of its own.
    pub series: Vec<LoadSeries>,
}

impl LoadChart {
    /// The load around an outage. Times are counted from the beginning.
    pub fn around(
        outage: Range<Duration>,
        length: Duration,
        capacity: f64,
        subtitle: String,
        series: Vec<LoadSeries>,
    ) -> Self {
        let seconds = |time: Duration| usize::try_from(time.as_secs()).unwrap_or(usize::MAX);
        let title = format!("The load on a receiver that was down for {}", human(outage.end - outage.start));
        let (outage, length) = (seconds(outage.start)..seconds(outage.end), seconds(length));
        Self { title, subtitle, capacity, outage, length, series }
    }
}

/// The load on the receiver under one sender.
pub struct LoadSeries {
    /// The sender's name.
    pub name: String,
    /// The sender's figures, the most important first.
    pub notes: Vec<ChartNote>,
    /// The requests that reached the receiver in each second.
    pub seconds: Vec<Second>,
}

/// A figure beside a chart.
pub struct ChartNote {
    /// The value, such as `376,060`.
    pub figure: String,
    /// The explanation, such as `tries into the outage`.
    pub of: &'static str,
}

/// Requests a second, as the mean over some seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct MeanLoad {
    /// All requests.
    tries: f64,
    /// Requests that the receiver took.
    taken: f64,
}

impl LoadSeries {
    /// The first `length` seconds as `count` means.
    fn loads(&self, length: usize, count: usize) -> Vec<MeanLoad> {
        let load = |index: usize| {
            let (from, to) = (index * length / count, (index + 1) * length / count);
            let seconds = self.seconds.get(from..to.max(from + 1).min(self.seconds.len())).unwrap_or_default();
            let mean = |rate: fn(&Second) -> u32| {
                seconds.iter().map(|second| f64::from(rate(second))).sum::<f64>() / seconds.len().max(1) as f64
            };
            MeanLoad { tries: mean(|second| second.tries), taken: mean(|second| second.tries - second.failed) }
        };
        (0..count).map(load).collect()
    }
}

/// The largest width of a chart, and the width without a terminal.
pub const WIDTH: usize = 100;
/// The smallest width of a chart; it wraps in a narrower terminal.
const WIDTH_MIN: usize = 40;
/// The column in which the chart begins.
const MARGIN: usize = 9;
/// The number of rows up to the receiver's capacity.
const ROWS_TO_CAPACITY: usize = 2;
const ROWS_MIN: usize = 3;
const ROWS_MAX: usize = 8;
/// The most notes above a chart.
const NOTES: usize = 2;
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const LEGEND: [&str; 4] = ["█ taken", "░ refused or turned away", "╌ what the receiver can take", "▲ more than fits"];

/// Draws the charts for a terminal of this width.
pub fn terminal(picture: &LoadChart, width: usize) -> String {
    let width = width.clamp(WIDTH_MIN, WIDTH);
    let columns = width - MARGIN;
    let charts: Vec<Vec<MeanLoad>> =
        picture.series.iter().map(|series| series.loads(picture.length, columns)).collect();
    let grid = Grid::of(picture, &charts, columns);
    let mut lines = Vec::new();
    for (series, loads) in picture.series.iter().zip(&charts) {
        let notes: Vec<String> =
            series.notes.iter().take(NOTES).map(|note| format!("{} {}", note.figure, note.of)).collect();
        let name = format!("{}: ", series.name);
        lines.extend(beside(&[name + &notes.join(", ")], width));
        lines.extend(grid.rows(picture, loads));
        lines.push(String::new());
    }
    // No empty line between the last chart and the times.
    lines.pop();
    lines.push(times_below(picture, columns));
    lines.extend(beside(&LEGEND, width));
    lines.join("\n") + "\n"
}

/// Wraps texts to the right of the axis: between pieces, and within a piece that is too long for a line.
fn beside<S: AsRef<str>>(pieces: &[S], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for piece in pieces {
        let piece = piece.as_ref();
        let words: Vec<&str> =
            if MARGIN + piece.chars().count() > width { piece.split(' ').collect() } else { vec![piece] };
        for (index, word) in words.into_iter().enumerate() {
            let gap = if index == 0 { "   " } else { " " };
            match lines.last_mut() {
                Some(line) if line.chars().count() + gap.len() + word.chars().count() <= width => {
                    line.push_str(gap);
                    line.push_str(word);
                }
                _ => lines.push(format!("{:MARGIN$}{word}", "")),
            }
        }
    }
    lines
}

/// The grid of rows and columns that all charts share.
struct Grid {
    columns: usize,
    rows: usize,
    /// The height of a row in requests a second.
    row: f64,
}

impl Grid {
    fn of(picture: &LoadChart, charts: &[Vec<MeanLoad>], columns: usize) -> Self {
        let row = picture.capacity / ROWS_TO_CAPACITY as f64;
        let most = charts.iter().flatten().map(|load| load.tries).fold(0.0, f64::max);
        let rows = (ROWS_MIN..ROWS_MAX).find(|rows| most <= *rows as f64 * row).unwrap_or(ROWS_MAX);
        Self { columns, rows, row }
    }

    /// The lines of one chart, from top to base.
    fn rows(&self, picture: &LoadChart, loads: &[MeanLoad]) -> Vec<String> {
        let line = |row: usize| {
            let label = match row + 1 {
                ROWS_TO_CAPACITY => rate(picture.capacity),
                top if top == self.rows => rate(self.row * self.rows as f64),
                _ => String::new(),
            };
            let cells: String = loads.iter().map(|load| self.cell(*load, row)).collect();
            format!("{label:>7} │{}", cells.trim_end())
        };
        let base = (0..self.columns).map(|column| match column * picture.length / self.columns {
            second if picture.outage.contains(&second) => '━',
            _ => '─',
        });
        let base = format!("{:>7} └{}", 0, base.collect::<String>());
        (0..self.rows).rev().map(line).chain([base]).collect()
    }

    /// The character for the part of a load that is in this row, counted from 0 at the base.
    fn cell(&self, load: MeanLoad, row: usize) -> char {
        let filled = |rate: f64| (rate / self.row - row as f64).clamp(0.0, 1.0);
        if row + 1 == self.rows && load.tries > self.rows as f64 * self.row {
            return '▲';
        }
        let (tries, taken) = (filled(load.tries), filled(load.taken));
        // Failures are shown if they fill half the cell: the shade has no finer steps.
        if tries - taken >= 0.5 {
            return '░';
        }
        match bar(if tries > taken { taken.max(tries.round()) } else { tries }) {
            ' ' if row + 1 == ROWS_TO_CAPACITY => '╌',
            bar => bar,
        }
    }
}

/// A rate beside the axis: a whole number, or with one decimal.
fn rate(rate: f64) -> String {
    let text = format!("{rate:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// A block character filled from below by this share.
pub fn bar(filled: f64) -> char {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 8")]
    let eighths = (filled.clamp(0.0, 1.0) * 8.0).round() as usize;
    EIGHTHS[eighths]
}

fn times_below(picture: &LoadChart, columns: usize) -> String {
    let mut line = vec![' '; MARGIN + columns];
    let mut put = |second: usize, words: &str| {
        let at = MARGIN + (second * columns).div_ceil(picture.length.max(1));
        let to = at + words.chars().count();
        // A label that would overlap another or be cut is left out.
        if line.get(at..to).is_some_and(|place| place.iter().all(|letter| *letter == ' ')) {
            line.splice(at..to, words.chars());
        }
    };
    put(picture.outage.start, "▲ down");
    put(picture.outage.end, "▲ back");
    for (second, label) in times(picture, 4) {
        put(second, &format!("▲ {label}"));
    }
    line.into_iter().collect::<String>().trim_end().to_owned()
}

/// At most `most` round times after the recovery, as the second and its label.
fn times(picture: &LoadChart, most: usize) -> Vec<(usize, String)> {
    let after = picture.length.saturating_sub(picture.outage.end);
    let steps = [10, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400];
    let step = steps.into_iter().find(|step| after / step <= most).unwrap_or(28_800);
    let label = |seconds: usize| format!("+{}", human(Duration::from_secs(seconds as u64)));
    (1..=after / step).map(|tick| (picture.outage.end + tick * step, label(tick * step))).collect()
}

/// Aligns the first column to the left and the others to the right, each as wide as its longest cell. Each line begins
/// with `indent`.
pub fn aligned(indent: &str, rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let line = |row: &Vec<String>| {
        let cell = |(column, cell): (usize, &String)| match column {
            0 => format!("{cell:width$}", width = width(0)),
            _ => format!("  {cell:>width$}", width = width(column)),
        };
        let cells: String = row.iter().enumerate().map(cell).collect();
        format!("{indent}{cells}").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 910 seconds, so that a column is ten of them: the usual load, an outage, this load, the usual load.
    fn picture(back: Second) -> LoadChart {
        let usual = Second { tries: 30, failed: 0 };
        let down = Second { tries: 25, failed: 25 };
        let parts = [(100, usual), (200, down), (300, back), (310, usual)];
        let seconds = parts.iter().flat_map(|(count, second)| std::iter::repeat_n(*second, *count)).collect();
        let notes = vec![ChartNote { figure: "5,000".to_owned(), of: "tries into the outage" }];
        LoadChart {
            title: String::new(),
            subtitle: String::new(),
            capacity: 50.0,
            outage: 100..300,
            length: 910,
            series: vec![LoadSeries { name: "a sender".to_owned(), notes, seconds }],
        }
    }

    #[test]
    fn a_chart_shows_taken_and_failed_requests_over_time() {
        let text = terminal(&picture(Second { tries: 100, failed: 50 }), WIDTH);
        let expected = [
            "         a sender: 5,000 tries into the outage",
            "    100 │                              ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░",
            "        │                              ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░",
            "     50 │▂▂▂▂▂▂▂▂▂▂╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌██████████████████████████████▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂",
            "        │██████████░░░░░░░░░░░░░░░░░░░░█████████████████████████████████████████████████████████████",
            "      0 └──────────━━━━━━━━━━━━━━━━━━━━─────────────────────────────────────────────────────────────",
            "                   ▲ down              ▲ back                        ▲ +5m",
            "         █ taken   ░ refused or turned away   ╌ what the receiver can take   ▲ more than fits",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected, "{text}");
    }

    #[test]
    fn loads_beyond_the_chart_are_marked() {
        let text = terminal(&picture(Second { tries: 1_000, failed: 950 }), WIDTH);
        let top = text.lines().nth(1).expect("the top row");
        assert_eq!(top.chars().filter(|letter| *letter == '▲').count(), 30, "{text}");
        assert!(top.trim_start().starts_with("200 │"), "{text}");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_or_100() {
        for (length, width) in [(31, 100), (910, 80), (5_000, 60), (86_400, 40), (910, usize::MAX)] {
            let drawn = terminal(&LoadChart { length, ..picture(Second { tries: 40, failed: 0 }) }, width);
            assert!(drawn.lines().all(|line| line.chars().count() <= width.min(100)), "{drawn}");
            assert!(drawn.contains("█ taken") && drawn.contains("▲ more than fits"), "{drawn}");
        }
    }

    #[test]
    fn a_rate_has_one_decimal_unless_it_is_whole() {
        assert_eq!([50.0, 2.65, 21.200_000_000_000_003].map(rate), ["50", "2.6", "21.2"]);
    }

    #[test]
    fn a_run_shorter_than_the_picture_leaves_it_empty() {
        let LoadChart { series, .. } = picture(Second { tries: 40, failed: 0 });
        let loads = series[0].loads(1_820, 182);
        assert_eq!((loads[90].tries, loads[91].tries, loads[181].tries), (30.0, 0.0, 0.0));
    }
    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let rows = [["", "head"], ["long name", "1 µs"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned("  ", &rows), "             head\n  long name  1 µs\n");
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let cases = [(0, "0"), (999, "999"), (1_000, "1,000"), (12_345, "12,345"), (1_234_567, "1,234,567")];
        for (number, text) in cases {
            assert_eq!(grouped(number), text);
        }
    }
}
