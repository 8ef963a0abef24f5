//! Draws charts as SVG without scripts, fonts or external files, readable on light and dark backgrounds.
//!
//! Colours are written twice, in classes and again for the dark scheme, and not as variables, which not every renderer
//! supports.

use std::fmt::{Display, Write};

use super::{LoadChart, LoadSeries, MeanLoad, times};

/// The width of every document.
pub const WIDTH: f64 = 960.0;
/// The left and right edges of the plots; labels are to the left, figures to the right.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 712.0;
/// The space above the first plot, for title and legend.
const TOP: f64 = 136.0;
const PLOT: f64 = 128.0;
/// The space between two plots, for the sender's name.
const GAP: f64 = 46.0;
/// The space below the last plot, for the times.
const BOTTOM: f64 = 62.0;
/// The fewest seconds in a point: short enough to show every step of a recovery, long enough for a smooth line.
const POINT_SECONDS: usize = 10;
/// The most points: more would be only a pixel or two apart.
const POINTS_MAX: usize = 400;
/// Loads above this multiple of the receiver's capacity are cut, since they would flatten the rest.
const CUT: f64 = 20.0;
/// The distance from one figure to the next.
const NOTE: f64 = 26.0;

const STYLE: &str = "
  text { font-family: system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif; font-size: 13px; fill: #1c2430 }
  .paper { fill: #ffffff } .title { font-size: 22px; font-weight: 600 } .name { font-size: 15px; font-weight: 600 }
  .quiet { font-size: 12px; fill: #5b6675 } .figure { font-size: 16px; font-weight: 600; fill: #1c2430 }
  .grid { stroke: #e4e8ed } .axis { stroke: #98a2b0 } .outage { fill: #1c2430; fill-opacity: 0.06 }
  .taken { fill: #0f9b83 } .failed { fill: #e5603a } .capacity { stroke: #1c2430; stroke-dasharray: 5 4 }
  .limit { fill: #e4e8ed } .t0 { fill: #2f6fde } .t1 { fill: #e5603a } .t2 { fill: #8a63d2 } .t3 { fill: #0f9b83 }
  .t4 { fill: #d9a514 } .t5 { fill: #6b7685 }
  @media (prefers-color-scheme: dark) {
    text, .figure { fill: #e8ecf1 } .paper { fill: #11161d } .quiet { fill: #9aa5b4 } .grid { stroke: #28323e }
    .axis { stroke: #5d6977 } .outage { fill: #e8ecf1; fill-opacity: 0.08 }
    .taken { fill: #22b89c } .failed { fill: #f27852 } .capacity { stroke: #e8ecf1 } .limit { fill: #28323e }
  }
";

/// An SVG document while it is drawn. Texts are escaped.
pub struct SvgDrawing(String);

impl SvgDrawing {
    /// Begins a document with its title and a line below that.
    pub fn begin(height: f64, title: &str, subtitle: &str) -> Self {
        let mut svg = Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-labelledby=\"title\">\n<title id=\"title\">{}</title>\n<style>{STYLE}</style>\n\
             <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\" rx=\"10\"/>\n",
            escaped(title)
        ));
        svg.text("title", (24.0, 40.0), title);
        svg.text("quiet", (24.0, 62.0), subtitle);
        svg
    }

    pub fn end(self) -> String {
        self.0 + "</svg>\n"
    }

    pub fn text(&mut self, class: &str, (x, y): (f64, f64), words: &str) {
        self.line(format_args!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(words)));
    }

    /// Draws a label that ends at its point, or is centred on it.
    fn anchored(&mut self, anchor: &str, (x, y): (f64, f64), words: &str) {
        let place = format!("x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"");
        self.line(format_args!("<text class=\"quiet\" {place}>{}</text>", escaped(words)));
    }

    pub fn rect(&mut self, class: &str, (x, y): (f64, f64), width: f64, height: f64) {
        let size = format!("width=\"{width:.1}\" height=\"{height:.1}\"");
        self.line(format_args!("<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" {size}/>"));
    }

    fn path(&mut self, class: &str, d: impl Display) {
        self.line(format_args!("<path class=\"{class}\" d=\"{d}\"/>"));
    }

    fn line(&mut self, tag: impl Display) {
        let _ = writeln!(self.0, "{tag}");
    }
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Draws the load as an SVG document.
pub fn render(picture: &LoadChart) -> String {
    let scale = Scale::of(picture);
    let height = TOP + picture.series.len() as f64 * (PLOT + GAP) - GAP + BOTTOM;
    let mut svg = SvgDrawing::begin(height, &picture.title, &picture.subtitle);
    legend(&mut svg, picture);
    for (index, series) in picture.series.iter().enumerate() {
        let top = TOP + index as f64 * (PLOT + GAP);
        panel(&mut svg, &scale, series, top);
    }
    feet(&mut svg, &scale, height - BOTTOM);
    svg.end()
}

/// Maps seconds and rates to coordinates.
struct Scale<'a> {
    picture: &'a LoadChart,
    /// The highest rate that is drawn.
    top: f64,
    /// The rate between two lines of the grid.
    step: f64,
}

impl<'a> Scale<'a> {
    fn of(picture: &'a LoadChart) -> Self {
        let loads = picture.series.iter().flat_map(|series| points(picture, series));
        let most = loads.map(|load| load.tries).fold(picture.capacity * 1.5, f64::max).min(picture.capacity * CUT);
        Self { picture, top: most * 1.05, step: round_step(most / 4.0) }
    }

    fn x(&self, second: usize) -> f64 {
        LEFT + (RIGHT - LEFT) * second as f64 / self.picture.length as f64
    }

    /// The height of a rate above the bottom of a plot.
    fn y(&self, rate: f64) -> f64 {
        PLOT * rate.min(self.top) / self.top
    }
}

/// The smallest of 1, 2, 5, 10, 20, 50 … that is at least `least`.
fn round_step(least: f64) -> f64 {
    let decade = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|digit| digit * decade).find(|step| *step >= least).unwrap_or(least)
}

fn points(picture: &LoadChart, series: &LoadSeries) -> Vec<MeanLoad> {
    series.loads(picture.length, (picture.length / POINT_SECONDS).clamp(1, POINTS_MAX))
}

fn legend(svg: &mut SvgDrawing, picture: &LoadChart) {
    let y = 90.0;
    for (x, class, words) in [(24.0, "taken", "taken"), (92.0, "failed", "refused or turned away")] {
        let place = format!("x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" rx=\"2\"", y - 10.0);
        svg.line(format_args!("<rect class=\"{class}\" {place}/>"));
        svg.text("quiet", (x + 18.0, y), words);
    }
    svg.path("capacity", format_args!("M262 {}H288", y - 4.0));
    svg.text("quiet", (296.0, y), &format!("what the receiver can take: {} a second", picture.capacity));
}

/// Draws a sender's plot with its figures.
fn panel(svg: &mut SvgDrawing, scale: &Scale<'_>, series: &LoadSeries, top: f64) {
    let (picture, bottom) = (scale.picture, top + PLOT);
    svg.text("name", (LEFT, top - 9.0), &series.name);
    let down = (scale.x(picture.outage.start), scale.x(picture.outage.end));
    svg.rect("outage", (down.0, top), down.1 - down.0, PLOT);
    let lines = (0..).map(|line| f64::from(line) * scale.step).take_while(|rate| *rate <= scale.top);
    for rate in lines {
        let y = bottom - scale.y(rate);
        let class = if rate > 0.0 { "grid" } else { "axis" };
        svg.path(class, format_args!("M{LEFT} {y:.1}H{RIGHT}"));
        svg.anchored("end", (LEFT - 8.0, y + 4.0), &format!("{rate}"));
    }
    areas(svg, scale, &points(picture, series), bottom);
    svg.path("capacity", format_args!("M{LEFT} {:.1}H{RIGHT}", bottom - scale.y(picture.capacity)));
    for (index, note) in series.notes.iter().enumerate() {
        svg.line(format_args!(
            "<text class=\"quiet\" x=\"{:.1}\" y=\"{:.1}\"><tspan class=\"figure\">{}</tspan> {}</text>",
            RIGHT + 24.0,
            top + 20.0 + index as f64 * NOTE,
            escaped(&note.figure),
            escaped(note.of)
        ));
    }
}

/// Draws the areas of taken requests, and of failed ones on top.
fn areas(svg: &mut SvgDrawing, scale: &Scale<'_>, loads: &[MeanLoad], bottom: f64) {
    // A point is in the middle of its seconds.
    let x = |index: usize| scale.x((2 * index + 1) * scale.picture.length / (2 * loads.len()));
    let line = |rate: fn(&MeanLoad) -> f64| -> Vec<String> {
        let place = |(index, load): (usize, &MeanLoad)| format!("{:.1} {:.1}", x(index), bottom - scale.y(rate(load)));
        loads.iter().enumerate().map(place).collect()
    };
    let (tries, mut taken) = (line(|load| load.tries), line(|load| load.taken));
    let (first, last) = (x(0), x(loads.len().saturating_sub(1)));
    svg.path("taken", format_args!("M{first:.1} {bottom}L{}L{last:.1} {bottom}Z", taken.join("L")));
    taken.reverse();
    svg.path("failed", format_args!("M{}L{}Z", tries.join("L"), taken.join("L")));
}

/// Draws the times below the last plot.
fn feet(svg: &mut SvgDrawing, scale: &Scale<'_>, bottom: f64) {
    let outage = &scale.picture.outage;
    let ticks = [(outage.start, "down".to_owned()), (outage.end, "back".to_owned())];
    for (second, label) in ticks.into_iter().chain(times(scale.picture, 5)) {
        let x = scale.x(second);
        svg.path("axis", format_args!("M{x:.1} {bottom}v5"));
        svg.anchored("middle", (x, bottom + 20.0), &label);
    }
    svg.text("quiet", (LEFT, bottom + 44.0), "requests a second, over the time since the receiver is back");
}

#[cfg(test)]
mod tests {
    use super::super::{ChartNote, Second};
    use super::*;

    fn picture(tries: u32) -> LoadChart {
        let series = |name: &str| LoadSeries {
            name: name.to_owned(),
            notes: vec![ChartNote { figure: "1,234".to_owned(), of: "tries" }],
            seconds: vec![Second { tries, failed: tries / 2 }; 600],
        };
        LoadChart {
            title: "a < b & c".to_owned(),
            subtitle: "quietly".to_owned(),
            capacity: 50.0,
            outage: 100..200,
            length: 600,
            series: vec![series("one"), series("two")],
        }
    }

    /// Whether every tag that is opened is closed, in order.
    fn is_well_formed(svg: &str) -> bool {
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1).filter_map(|rest| rest.split('>').next()) {
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
            match (tag.starts_with('/'), tag.ends_with('/')) {
                (true, _) if open.pop() != Some(name) => return false,
                (false, false) => open.push(name),
                _ => {}
            }
        }
        open.is_empty()
    }

    #[test]
    fn the_svg_is_well_formed_and_has_no_external_references() {
        let svg = render(&picture(40));
        assert!(is_well_formed(&svg), "{svg}");
        assert!(!is_well_formed(&svg.replace("</svg>", "")));
        assert!(svg.contains("<title id=\"title\">a &lt; b &amp; c</title>"), "{svg}");
        for foreign in ["script", "href", "url(", "import", "NaN", "inf"] {
            assert!(!svg.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn every_sender_has_its_own_plot_on_one_scale() {
        let svg = render(&picture(400));
        assert_eq!(svg.matches("class=\"failed\" d=").count(), 2);
        assert_eq!(svg.matches(">400</text>").count(), 2, "both plots have the same grid line");
    }

    #[test]
    fn loads_far_above_the_capacity_are_cut() {
        let scale_top = |tries| Scale::of(&picture(tries)).top;
        assert!(scale_top(400) > 400.0);
        assert!(scale_top(40_000) < 2_000.0);
        assert!(scale_top(0) > 50.0, "the capacity is always drawn");
    }
}
