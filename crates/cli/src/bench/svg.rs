//! The figures as a picture: what is delivered beside the bare limit, and where the server's CPU goes. An SVG
//! without scripts, fonts or files of its own, readable on light and on dark.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::Report;
use super::figures::Figures;

const WIDTH: f64 = 960.0;
/// Above the first row: title and legend.
const TOP: f64 = 128.0;
const ROW: f64 = 44.0;
const BAR: f64 = 16.0;
/// Where the bars of deliveries begin and end, and those of CPU.
const RATES: (f64, f64) = (130.0, 440.0);
const TIMES: (f64, f64) = (560.0, 860.0);
/// As many as there are kinds of threads in a server; a further one begins anew.
const COLOURS: usize = 6;

const STYLE: &str = "
  text { font-family: system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif; font-size: 13px; fill: #1c2430 }
  .paper { fill: #ffffff } .title { font-size: 22px; font-weight: 600 } .quiet { font-size: 12px; fill: #5b6675 }
  .limit { fill: #e4e8ed } .delivered { fill: #0f9b83 }
  .t0 { fill: #2f6fde } .t1 { fill: #e5603a } .t2 { fill: #8a63d2 } .t3 { fill: #0f9b83 } .t4 { fill: #d9a514 }
  .t5 { fill: #6b7685 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e8ecf1 } .paper { fill: #11161d } .quiet { fill: #9aa5b4 } .limit { fill: #28323e }
    .delivered { fill: #22b89c }
  }
";

/// Draws it.
pub(super) fn render(report: &Report) -> String {
    let height = TOP + ROW * report.scenarios.len() as f64 + 24.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-labelledby=\"title\">\n<title id=\"title\">What this machine delivers</title>\n<style>{STYLE}</style>\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\" rx=\"10\"/>\n"
    );
    text(&mut svg, "title", (24.0, 40.0), "What this machine delivers");
    let of = format!(
        "{} cores for producer, server and receiver, payloads of {} bytes, every commit synced",
        report.cores, report.payload_bytes
    );
    text(&mut svg, "quiet", (24.0, 62.0), &of);
    text(&mut svg, "quiet", (RATES.0, 92.0), "delivered a second, within the bare limit");
    text(&mut svg, "quiet", (TIMES.0, 92.0), "server CPU for each delivery, µs by thread");
    let scale = Scale::of(report);
    scale.legend(&mut svg);
    for (index, figures) in report.scenarios.iter().enumerate() {
        scale.row(&mut svg, figures, TOP + ROW * index as f64);
    }
    svg += "</svg>\n";
    svg
}

/// From rates and times to lengths.
struct Scale<'a> {
    rate_max: f64,
    cpu_max: f64,
    threads: Vec<&'a str>,
}

impl<'a> Scale<'a> {
    fn of(report: &'a Report) -> Self {
        let most = |value: fn(&Figures) -> f64| report.scenarios.iter().map(value).fold(1.0, f64::max);
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

    fn legend(&self, svg: &mut String) {
        let mut x = TIMES.0;
        for (index, name) in self.threads.iter().enumerate() {
            bar(svg, &colour(index), (x, TOP - 24.0), 10.0, 10.0);
            text(svg, "quiet", (x + 14.0, TOP - 15.0), name);
            x += 24.0 + 6.2 * name.len() as f64;
        }
    }

    fn row(&self, svg: &mut String, figures: &Figures, y: f64) {
        let baseline = y + BAR - 3.0;
        text(svg, "", (24.0, baseline), &figures.scenario);
        let length = |rate: f64| (RATES.1 - RATES.0) * (rate / self.rate_max).max(0.0);
        bar(svg, "limit", (RATES.0, y), length(figures.bare_per_second), BAR);
        bar(svg, "delivered", (RATES.0, y + 3.0), length(figures.delivered_per_second), BAR - 6.0);
        let rate = format!("{:.0} ({:.2})", figures.delivered_per_second, figures.delivered_per_bare);
        text(svg, "", (RATES.1 + 10.0, baseline), &rate);
        let mut x = TIMES.0;
        for (index, name) in self.threads.iter().enumerate() {
            let spent = figures.server_cpu_us_by_thread.get(*name).copied().unwrap_or_default();
            let length = (TIMES.1 - TIMES.0) * (spent / self.cpu_max).max(0.0);
            bar(svg, &colour(index), (x, y), length, BAR);
            x += length;
        }
        text(svg, "", (TIMES.1 + 10.0, baseline), &format!("{:.1} µs", figures.server_cpu_us));
    }
}

fn colour(index: usize) -> String {
    format!("t{}", index % COLOURS)
}

fn bar(svg: &mut String, class: &str, (x, y): (f64, f64), width: f64, height: f64) {
    let _ = writeln!(
        svg,
        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
    );
}

/// Words of ours: nothing in them needs to be escaped.
fn text(svg: &mut String, class: &str, (x, y): (f64, f64), words: &str) {
    let _ = writeln!(svg, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{words}</text>");
}
