//! Draws a chart of the requests per second that reached a receiver: as text for a terminal, as SVG for a page.

use std::fmt::Write;
use std::ops::Range;

/// The size of the text chart; columns are a maximum.
const ROWS: u32 = 8;
const COLUMNS: usize = 90;
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The size of the SVG.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 260.0;
const MARGIN: f64 = 40.0;

/// The data of a chart, by second.
pub(super) struct Drawing {
    pub(super) title: String,
    /// The seconds in which the receiver was dead.
    pub(super) outage: Range<u64>,
    pub(super) taken: Vec<u32>,
    pub(super) refused: Vec<u32>,
}

impl Drawing {
    fn length(&self) -> usize {
        self.taken.len().max(self.refused.len()).max(usize::try_from(self.outage.end).unwrap_or(0)).max(1)
    }

    fn total(&self, second: usize) -> u32 {
        let at = |list: &[u32]| list.get(second).copied().unwrap_or(0);
        at(&self.taken) + at(&self.refused)
    }

    fn peak(&self) -> u32 {
        (0..self.length()).map(|second| self.total(second)).max().unwrap_or(0).max(1)
    }

    /// The chart as columns of block characters, with the outage marked below.
    pub(super) fn text(&self) -> String {
        let step = self.length().div_ceil(COLUMNS);
        let columns: Vec<u32> = (0..self.length())
            .step_by(step)
            .map(|from| (from..from + step).map(|second| self.total(second)).max().unwrap_or(0))
            .collect();
        let peak = self.peak();
        let mut text = format!("{}, {step} s a column\n", self.title);
        for row in (0..ROWS).rev() {
            let label = if row == ROWS - 1 { format!("{peak:>5} ┤") } else { "      │".to_owned() };
            text += &label;
            for column in &columns {
                let eighths = (column * ROWS * 8).div_ceil(peak).saturating_sub(row * 8).min(8);
                text.push(EIGHTHS[eighths as usize]);
            }
            text.push('\n');
        }
        text += "      └";
        for column in 0..columns.len() {
            let second = (column * step) as u64;
            text.push(if self.outage.contains(&second) { '×' } else { '─' });
        }
        text += "\n       × the receiver is dead and resets connections";
        text
    }

    /// The chart as SVG bars, with the outage shaded and resets in red.
    pub(super) fn svg(&self) -> String {
        let (width, height) = (WIDTH - 2.0 * MARGIN, HEIGHT - 2.0 * MARGIN);
        let bar = width / self.length() as f64;
        let unit = height / f64::from(self.peak());
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n<text x=\"{MARGIN}\" \
             y=\"24\" font-size=\"16\">{}</text>\n",
            self.title
        );
        let x = |second: f64| MARGIN + second * bar;
        let (from, to) = (self.outage.start as f64, self.outage.end as f64);
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{MARGIN}\" width=\"{:.1}\" height=\"{height}\" fill=\"#eef0f3\"/>",
            x(from),
            (to - from) * bar
        );
        for second in 0..self.length() {
            let mut base = HEIGHT - MARGIN;
            for (list, colour) in [(&self.taken, "#0f9b83"), (&self.refused, "#e5603a")] {
                let tall = f64::from(list.get(second).copied().unwrap_or(0)) * unit;
                base -= tall;
                if tall > 0.0 {
                    let _ = writeln!(
                        svg,
                        "<rect x=\"{:.1}\" y=\"{base:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" fill=\"{colour}\"/>",
                        x(second as f64),
                        (bar * 0.9).max(0.5)
                    );
                }
            }
        }
        let floor = HEIGHT - MARGIN;
        let _ = write!(
            svg,
            "<text x=\"4\" y=\"{:.1}\">{}/s</text>\n<text x=\"{MARGIN}\" y=\"{:.1}\">0 s</text>\n<text \
             x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{} s</text>\n<text x=\"{:.1}\" y=\"{:.1}\">dead</text>\n</svg>\n",
            MARGIN + 10.0,
            self.peak(),
            floor + 16.0,
            WIDTH - MARGIN,
            floor + 16.0,
            self.length(),
            x(from) + 4.0,
            MARGIN + 14.0
        );
        svg
    }
}
