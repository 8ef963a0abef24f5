//! Draws the figures as an SVG: the delivery rate beside the bare limit, and the server's CPU time by thread.

use std::collections::BTreeSet;

use super::BenchReport;
use super::figures::BenchFigures;
use crate::prove::chart::svg::{SvgDrawing, WIDTH};

/// The space at the right edge.
const MARGIN: f64 = 24.0;
/// The space above the first row, for the title and one line of the legend.
const TOP: f64 = 128.0;
/// The height of a further line of the legend.
const LINE: f64 = 18.0;
/// The average width of a letter of the legend, at most, in the fonts that browsers use.
const LETTER: f64 = 6.8;
const ROW: f64 = 44.0;
const BAR: f64 = 16.0;
/// The left and right edges of the bars for delivery rates, and of those for CPU time.
const RATES: (f64, f64) = (130.0, 440.0);
const TIMES: (f64, f64) = (560.0, 860.0);
/// The number of colours, one for each kind of thread; with more threads the colours repeat.
const COLOURS: usize = 6;

/// Draws the report as an SVG document.
pub(super) fn render(report: &BenchReport) -> String {
    let scale = Scale::of(report);
    let places = scale.places();
    let top = TOP + LINE * places.last().map_or(0.0, |(_, line)| *line);
    let height = top + ROW * report.scenarios.len() as f64 + 24.0;
    let of = format!(
        "{} cores for producer, server and receiver, payloads of {} bytes, every commit synced",
        report.cores, report.payload_bytes
    );
    let mut svg = SvgDrawing::begin(height, "What this machine delivers", &of);
    svg.text("quiet", (RATES.0, 92.0), "delivered a second, within the bare limit");
    svg.text("quiet", (TIMES.0, 92.0), "server CPU for each delivery, µs by thread");
    scale.legend(&mut svg, &places);
    for (index, figures) in report.scenarios.iter().enumerate() {
        scale.row(&mut svg, figures, top + ROW * index as f64);
    }
    svg.end()
}

/// Maps rates and times to lengths.
struct Scale<'a> {
    rate_max: f64,
    cpu_max: f64,
    threads: Vec<&'a str>,
}

impl<'a> Scale<'a> {
    fn of(report: &'a BenchReport) -> Self {
        let most = |value: fn(&BenchFigures) -> f64| report.scenarios.iter().map(value).fold(1.0, f64::max);
        let threads: BTreeSet<&str> = report
            .scenarios
            .iter()
            .flat_map(|figures| figures.server_cpu_us_by_thread.keys().map(String::as_str))
            .collect();
        Self {
            rate_max: most(|figures| figures.bare_per_second.max(figures.delivered_per_second)),
            cpu_max: most(|figures| figures.server_cpu_us),
            threads: threads.into_iter().collect(),
        }
    }

    /// The position and line of each thread's name in the legend; a name that does not fit begins a new line.
    fn places(&self) -> Vec<(f64, f64)> {
        let (mut x, mut line) = (TIMES.0, 0.0);
        let place = |name: &&str| {
            let width = entry_width(name);
            if x > TIMES.0 && x + width > WIDTH - MARGIN {
                (x, line) = (TIMES.0, line + 1.0);
            }
            let place = (x, line);
            x += width + 10.0;
            place
        };
        self.threads.iter().map(place).collect()
    }

    fn legend(&self, svg: &mut SvgDrawing, places: &[(f64, f64)]) {
        for (index, (name, (x, line))) in self.threads.iter().zip(places).enumerate() {
            let y = TOP + LINE * line;
            svg.rect(&colour(index), (*x, y - 24.0), 10.0, 10.0);
            svg.text("quiet", (x + 14.0, y - 15.0), name);
        }
    }

    fn row(&self, svg: &mut SvgDrawing, figures: &BenchFigures, y: f64) {
        let baseline = y + BAR - 3.0;
        svg.text("", (24.0, baseline), figures.scenario.name());
        let length = |rate: f64| (RATES.1 - RATES.0) * (rate / self.rate_max).max(0.0);
        svg.rect("limit", (RATES.0, y), length(figures.bare_per_second), BAR);
        svg.rect("taken", (RATES.0, y + 3.0), length(figures.delivered_per_second), BAR - 6.0);
        let rate = format!("{:.0} ({:.2})", figures.delivered_per_second, figures.delivered_per_bare);
        svg.text("", (RATES.1 + 10.0, baseline), &rate);
        let mut x = TIMES.0;
        for (index, name) in self.threads.iter().enumerate() {
            let spent = figures.server_cpu_us_by_thread.get(*name).copied().unwrap_or_default();
            let length = (TIMES.1 - TIMES.0) * (spent / self.cpu_max).max(0.0);
            svg.rect(&colour(index), (x, y), length, BAR);
            x += length;
        }
        svg.text("", (TIMES.1 + 10.0, baseline), &format!("{:.1} µs", figures.server_cpu_us));
    }
}

/// The width of a name in the legend, with the colour before it.
fn entry_width(name: &str) -> f64 {
    14.0 + LETTER * name.len() as f64
}

fn colour(index: usize) -> String {
    format!("t{}", index % COLOURS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_legend_stays_within_the_picture() {
        let threads = vec!["connections", "dispatch", "journal-follower", "posthaste", "store-reader", "store-writer"];
        let scale = Scale { rate_max: 1.0, cpu_max: 1.0, threads };
        let places = scale.places();
        for ((x, _), name) in places.iter().zip(&scale.threads) {
            assert!(x + entry_width(name) <= WIDTH - MARGIN, "{name} at {x}");
        }
        assert!(places.windows(2).all(|two| two[0].1 < two[1].1 || two[0].0 < two[1].0), "no names overlap");
        assert!(places.last().is_some_and(|(_, line)| *line >= 1.0), "{places:?}");
    }
}
