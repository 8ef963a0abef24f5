//! The proof `outage`: bare retries load the model receiver as known figures say, and Posthaste stays far below.
//!
//! First the model is validated: it must reproduce known figures of three bare retry policies. Then Posthaste, as it
//! ships, is held to its bars over many seeds, in three kinds of outage. The negative control: bare retries must miss
//! the same bars.

use std::fmt;
use std::time::Duration;

use posthaste_core::Policy;

use super::naive::{FIXED, Naive, SCHEDULE, SPREAD};
use super::{Down, OutageOutcome, OutageScenario, Sender, play_all};
use posthaste_prove::{Figure, Findings, Options};

/// How far a figure of the model may be from the known one.
const ERROR_BAR_PERCENT: f64 = 10.0;
/// The bar for the peak: the maximum over thousands of random seconds varies more than a mean.
const PEAK_ERROR_BAR_PERCENT: f64 = 20.0;

pub fn run(options: &Options) -> Findings {
    let first = options.first.unwrap_or(1);
    let (known_seeds, shipped_seeds) = if options.quick { (3, 3) } else { (4, 20) };
    let shipped_seeds = options.seeds.unwrap_or(shipped_seeds);
    let known = KNOWN.iter().flat_map(|known| (first..first + known_seeds).map(|seed| known.play(seed)));
    let shipped = KINDS.iter().flat_map(|kind| (first..first + shipped_seeds).map(|seed| kind.play(seed)));
    let plays: Vec<(OutageScenario, Sender)> = known.chain(shipped).collect();
    eprintln!("outage: {} runs of an hour and more", plays.len());
    let outcomes = play_all(&plays, |_, _| {});

    let mut outcomes = outcomes.into_iter();
    let mut take = |count: u64| -> Vec<OutageOutcome> { (0..count).filter_map(|_| outcomes.next()).collect() };
    let known = KNOWN.each_ref().map(|known| (known, take(known_seeds)));
    let mut figures: Vec<Figure> = known.iter().flat_map(|(known, outcomes)| known.compare(outcomes)).collect();
    for kind in &KINDS {
        figures.extend(kind.judge(first, &take(shipped_seeds)));
    }
    figures.push(control(&known[0].1));
    Ok(figures)
}

type Measurement = fn(&OutageOutcome) -> f64;

/// Each measurement with its known figures of bare retries in the default scenario, one for each of [`KNOWN`]. They come
/// from an older, separate model without the dispatch loop.
const MEASUREMENTS: [(&str, Measurement, [f64; 3]); 7] = [
    (PEAK, |outcome| f64::from(outcome.peak), [678.0, 244.0, 164.0]),
    ("tries into the outage", |outcome| outcome.tries_into_outage as f64, [377_782.0, 215_593.0, 150_459.0]),
    ("delivered a second", |outcome| outcome.goodput, [49.9, 47.7, 44.8]),
    ("drained after", |outcome| seconds(outcome.drained), [1_838.0, 2_465.0, 10_468.0]),
    ("fresh p99", |outcome| seconds(outcome.fresh_p99), [1_383.0, 655.0, 183.0]),
    ("tries a message", |outcome| outcome.tries_a_message, [10.95, 4.16, 2.95]),
    ("503s after recovery", |outcome| outcome.shed as f64, [517_145.0, 68_116.0, 24_792.0]),
];
const PEAK: &str = "peak second";

/// A way of bare retries, and the place of its figures in [`MEASUREMENTS`].
struct Known {
    naive: Naive,
    name: &'static str,
    place: usize,
}

const KNOWN: [Known; 3] = [
    Known { naive: FIXED, name: "fixed", place: 0 },
    Known { naive: SPREAD, name: "exponential", place: 1 },
    Known { naive: SCHEDULE, name: "schedule", place: 2 },
];

impl Known {
    fn play(&self, seed: u64) -> (OutageScenario, Sender) {
        (OutageScenario { seed, ..OutageScenario::default() }, Sender::bare(self.naive.policy()))
    }

    fn compare(&self, outcomes: &[OutageOutcome]) -> [Figure; 2] {
        let (mut worst, mut peak_error) = (0.0_f64, 0.0);
        for (what, measure, known) in &MEASUREMENTS {
            let known = known[self.place];
            let found = median(outcomes.iter().map(measure).collect());
            let error = (found / known - 1.0).abs() * 100.0;
            eprintln!("outage: {}: {what}: {found:.2}, known {known}: {error:.1} % off", self.name);
            if *what == PEAK { peak_error = error } else { worst = worst.max(error) }
        }
        [
            Figure::at_most(&format!("{}_error", self.name), worst, "%", ERROR_BAR_PERCENT),
            Figure::at_most(&format!("{}_peak_error", self.name), peak_error, "%", PEAK_ERROR_BAR_PERCENT),
        ]
    }
}

/// The median. It is used instead of the mean because a single straggler among 36,000 messages can move the end of a
/// run by twenty minutes.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let (low, high) = ((values.len() - 1) / 2, values.len() / 2);
    f64::midpoint(values[low], values[high])
}

/// A time in seconds; an unknown time exceeds every bar.
fn seconds(time: Option<Duration>) -> f64 {
    time.map_or(f64::INFINITY, |time| time.as_secs_f64())
}

/// A kind of outage for which Posthaste is held to its bars.
struct Kind {
    /// The prefix of its figures' names.
    name: &'static str,
    down: Down,
    shed_cost: f64,
}

const KINDS: [Kind; 3] = [
    Kind { name: "refused", down: Down::Refuses, shed_cost: 0.0 },
    Kind { name: "costly_shedding", down: Down::Refuses, shed_cost: 0.25 },
    Kind { name: "only_503", down: Down::Unavailable, shed_cost: 0.0 },
];

impl Kind {
    fn play(&self, seed: u64) -> (OutageScenario, Sender) {
        let scenario = OutageScenario { down: self.down, shed_cost: self.shed_cost, seed, ..OutageScenario::default() };
        (scenario, Sender::posthaste(Policy::default()))
    }

    fn judge(&self, first: u64, outcomes: &[OutageOutcome]) -> Vec<Figure> {
        for (seed, outcome) in (first..).zip(outcomes) {
            eprintln!("outage: {}, seed {seed}: {}", self.name, Line(outcome));
        }
        bars(self.name, outcomes)
    }
}

/// The figures of a kind of outage: the worst over all seeds, except for `fresh_p99_beyond_detection`, which is a mean.
fn bars(kind: &str, outcomes: &[OutageOutcome]) -> Vec<Figure> {
    let worst = |value: &dyn Fn(&OutageOutcome) -> f64| outcomes.iter().map(value).fold(f64::NEG_INFINITY, f64::max);
    let at_most = |name: &str, value: f64, unit, bar| Figure::at_most(&format!("{kind}_{name}"), value, unit, bar);
    let beyond = |one: &OutageOutcome| seconds(one.fresh_p99) - one.detection_lag.map_or(0.0, |lag| lag.as_secs_f64());
    let mean_beyond = outcomes.iter().map(beyond).sum::<f64>() / outcomes.len() as f64;
    vec![
        at_most("tries_into_outage", worst(&|one| one.tries_into_outage as f64), "tries", 150.0),
        at_most("peak_second", worst(&|one| f64::from(one.peak)), "/s", 60.0),
        at_most("503s_after_recovery", worst(&|one| one.shed as f64 * 100.0 / one.tries_after as f64), "%", 1.0),
        at_most("drained_after", worst(&|one| seconds(one.drained)), "s", 2_700.0),
        at_most("tries_a_message", worst(&|one| one.tries_a_message), "tries", 1.02),
        at_most("after_close_p99", worst(&|one| seconds(one.after_close_p99)), "s", 5.0),
        at_most("fresh_p99_beyond_detection", mean_beyond, "s", 10.0),
        at_most("fresh_p99", worst(&|one| seconds(one.fresh_p99)), "s", 75.0),
        at_most("lost", worst(&|one| one.lost as f64), "messages", 0.0),
    ]
}

/// A run as one line of text.
struct Line<'a>(&'a OutageOutcome);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = self.0;
        write!(
            f,
            "{} tries into it, noticed after {:.1} s, peak {}/s, {} of {} shed, drained after {:.0} s, \
             fresh p50 {:.2} s, p99 {:.1} s, after close p99 {:.2} s, {:.4} tries a message, {} lost",
            one.tries_into_outage,
            seconds(one.detection_lag),
            one.peak,
            one.shed,
            one.tries_after,
            seconds(one.drained),
            seconds(one.fresh_p50),
            seconds(one.fresh_p99),
            seconds(one.after_close_p99),
            one.tries_a_message,
            one.lost,
        )
    }
}

/// The control: how many bars bare retries miss. Bars about breakers and losses are left out: bare retries have no
/// breaker and lose nothing.
fn control(bare: &[OutageOutcome]) -> Figure {
    let telling = ["tries_into_outage", "peak_second", "503s_after_recovery", "tries_a_message", "fresh_p99"];
    let judged = bars("control", bare);
    let falls_short = |name: &&&str| {
        let figure = judged.iter().find(|figure| figure.name == format!("control_{name}"));
        figure.is_some_and(|figure| !figure.is_ok())
    };
    let caught = telling.iter().filter(falls_short).count();
    Figure::at_least("negative_control_caught", caught as f64, "bars", telling.len() as f64)
}
