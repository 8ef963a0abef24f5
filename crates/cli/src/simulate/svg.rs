//! Draws a [`Picture`] as an SVG without scripts, fonts or external files, readable on light and dark backgrounds.
//!
//! Colours are written twice, in classes and again for the dark scheme, and not as variables, which not every renderer
//! supports.

use std::fmt::Write;

use super::chart::{Load, Picture, Series, times};

const WIDTH: f64 = 960.0;
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
  @media (prefers-color-scheme: dark) {
    text, .figure { fill: #e8ecf1 } .paper { fill: #11161d } .quiet { fill: #9aa5b4 } .grid { stroke: #28323e }
    .axis { stroke: #5d6977 } .outage { fill: #e8ecf1; fill-opacity: 0.08 }
    .taken { fill: #22b89c } .failed { fill: #f27852 } .capacity { stroke: #e8ecf1 }
  }
";

/// Draws the picture as an SVG document.
pub(crate) fn render(picture: &Picture) -> String {
    let scale = Scale::of(picture);
    let height = TOP + picture.series.len() as f64 * (PLOT + GAP) - GAP + BOTTOM;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-labelledby=\"title\">\n<title id=\"title\">{}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\" rx=\"10\"/>\n",
        escaped(&picture.title)
    );
    head(&mut svg, picture);
    for (index, series) in picture.series.iter().enumerate() {
        let top = TOP + index as f64 * (PLOT + GAP);
        panel(&mut svg, &scale, series, top);
    }
    feet(&mut svg, &scale, height - BOTTOM);
    svg += "</svg>\n";
    svg
}

/// Maps seconds and rates to coordinates.
struct Scale<'a> {
    picture: &'a Picture,
    /// The highest rate that is drawn.
    top: f64,
    /// The rate between two lines of the grid.
    step: f64,
}

impl<'a> Scale<'a> {
    fn of(picture: &'a Picture) -> Self {
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

fn points(picture: &Picture, series: &Series) -> Vec<Load> {
    series.loads(picture.length, (picture.length / POINT_SECONDS).clamp(1, POINTS_MAX))
}

fn head(svg: &mut String, picture: &Picture) {
    text(svg, "title", (24.0, 40.0), &picture.title);
    text(svg, "quiet", (24.0, 62.0), &picture.subtitle);
    let y = 90.0;
    swatch(svg, "taken", (24.0, y));
    text(svg, "quiet", (42.0, y), "taken");
    swatch(svg, "failed", (92.0, y));
    text(svg, "quiet", (110.0, y), "refused or turned away");
    let _ = writeln!(svg, "<path class=\"capacity\" d=\"M262 {0}H288\"/>", y - 4.0);
    text(svg, "quiet", (296.0, y), &format!("what the receiver can take: {} a second", picture.capacity));
}

/// Draws a sender's plot with its figures.
fn panel(svg: &mut String, scale: &Scale<'_>, series: &Series, top: f64) {
    let (picture, bottom) = (scale.picture, top + PLOT);
    text(svg, "name", (LEFT, top - 9.0), &series.name);
    let down = (scale.x(picture.outage.start), scale.x(picture.outage.end));
    let _ = writeln!(
        svg,
        "<rect class=\"outage\" x=\"{:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"{PLOT}\"/>",
        down.0,
        down.1 - down.0
    );
    let lines = (0..).map(|line| f64::from(line) * scale.step).take_while(|rate| *rate <= scale.top);
    for rate in lines {
        let y = bottom - scale.y(rate);
        let class = if rate > 0.0 { "grid" } else { "axis" };
        let _ = writeln!(svg, "<path class=\"{class}\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>");
        anchored(svg, "end", (LEFT - 8.0, y + 4.0), &format!("{rate}"));
    }
    areas(svg, scale, &points(picture, series), bottom);
    let _ = writeln!(svg, "<path class=\"capacity\" d=\"M{LEFT} {:.1}H{RIGHT}\"/>", bottom - scale.y(picture.capacity));
    for (index, note) in series.notes.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<text class=\"quiet\" x=\"{:.1}\" y=\"{:.1}\"><tspan class=\"figure\">{}</tspan> {}</text>",
            RIGHT + 24.0,
            top + 20.0 + index as f64 * NOTE,
            escaped(&note.figure),
            escaped(note.of)
        );
    }
}

/// Draws the areas of taken requests, and of failed ones on top.
fn areas(svg: &mut String, scale: &Scale<'_>, loads: &[Load], bottom: f64) {
    // A point is in the middle of its seconds.
    let x = |index: usize| scale.x((2 * index + 1) * scale.picture.length / (2 * loads.len()));
    let line = |rate: fn(&Load) -> f64| -> Vec<String> {
        let place = |(index, load): (usize, &Load)| format!("{:.1} {:.1}", x(index), bottom - scale.y(rate(load)));
        loads.iter().enumerate().map(place).collect()
    };
    let (tries, mut taken) = (line(|load| load.tries), line(|load| load.taken));
    let (first, last) = (x(0), x(loads.len().saturating_sub(1)));
    let _ = writeln!(svg, "<path class=\"taken\" d=\"M{first:.1} {bottom}L{}L{last:.1} {bottom}Z\"/>", taken.join("L"));
    taken.reverse();
    let _ = writeln!(svg, "<path class=\"failed\" d=\"M{}L{}Z\"/>", tries.join("L"), taken.join("L"));
}

/// Draws the times below the last plot.
fn feet(svg: &mut String, scale: &Scale<'_>, bottom: f64) {
    let outage = &scale.picture.outage;
    let ticks = [(outage.start, "down".to_owned()), (outage.end, "back".to_owned())];
    for (second, label) in ticks.into_iter().chain(times(scale.picture, 5)) {
        let x = scale.x(second);
        let _ = writeln!(svg, "<path class=\"axis\" d=\"M{x:.1} {bottom}v5\"/>");
        anchored(svg, "middle", (x, bottom + 20.0), &label);
    }
    text(svg, "quiet", (LEFT, bottom + 44.0), "requests a second, over the time since the receiver is back");
}

fn swatch(svg: &mut String, class: &str, (x, y): (f64, f64)) {
    let _ = writeln!(svg, "<rect class=\"{class}\" x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" rx=\"2\"/>", y - 10.0);
}

fn text(svg: &mut String, class: &str, (x, y): (f64, f64), words: &str) {
    let _ = writeln!(svg, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(words));
}

/// Draws a label that ends at its point, or is centred on it.
fn anchored(svg: &mut String, anchor: &str, (x, y): (f64, f64), words: &str) {
    let words = escaped(words);
    let _ = writeln!(svg, "<text class=\"quiet\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use posthaste_simulator::outage::Second;

    use super::super::chart::Note;
    use super::*;

    fn picture(tries: u32) -> Picture {
        let series = |name: &str| Series {
            name: name.to_owned(),
            notes: vec![Note { figure: "1,234".to_owned(), of: "tries" }],
            seconds: vec![Second { tries, failed: tries / 2 }; 600],
        };
        Picture {
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
