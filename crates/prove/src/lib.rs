//! A proof: a named check of a claim, which returns figures with their bars.
//!
//! Every proof ends in lines of one form, `figure NAME VALUE UNIT (bar ≤ BAR) ok|short`, for people and scripts.
//! A crate lists its proofs in a constant `PROOFS`, and has a binary that passes them to [`command_line::main`].

pub mod chart;
pub mod command_line;

use std::fmt;
use std::path::PathBuf;

/// The options with which a proof is run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Run the quick form, as `scripts/test` does.
    pub quick: bool,
    /// How many seeds, where a proof has seeds.
    pub seeds: Option<u64>,
    /// The first seed.
    pub first: Option<u64>,
    /// A corpus instead of the default one, where a proof has a corpus.
    pub corpus: Option<PathBuf>,
    /// Another build of `posthaste` to compare with, where a proof compares.
    pub against: Option<PathBuf>,
    /// How many pairs to measure with `against`.
    pub pairs: Option<u64>,
    /// The bar for the ratio of a comparison, instead of the proof's own.
    pub at_most: Option<f64>,
}

/// How much wider the bars of time measurements are in the quick form.
pub const QUICK_SLACK: f64 = 3.0;

/// The bar of a figure, and its direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FigureBar {
    /// The figure must not be above it.
    AtMost(f64),
    /// The figure must not be below it.
    AtLeast(f64),
}

/// One measured value against its bar.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What was measured, in snake case.
    pub name: String,
    /// The measured value.
    pub value: f64,
    /// The unit of value and bar.
    pub unit: &'static str,
    /// The bar that the value has to reach.
    pub bar: FigureBar,
}

impl Figure {
    /// A figure that must not exceed `bar`.
    pub fn at_most(name: &str, value: f64, unit: &'static str, bar: f64) -> Self {
        Self { name: name.to_owned(), value, unit, bar: FigureBar::AtMost(bar) }
    }

    /// A figure that must reach `bar`.
    pub fn at_least(name: &str, value: f64, unit: &'static str, bar: f64) -> Self {
        Self { name: name.to_owned(), value, unit, bar: FigureBar::AtLeast(bar) }
    }

    /// Marks a figure that is a time or a rate: in the quick form its bar is three times as wide. A measurement of a
    /// few seconds on a busy machine can only show that something is badly wrong; the full form has the real bar.
    #[must_use]
    pub fn by_the_clock(self, options: &Options) -> Self {
        let bar = match self.bar {
            FigureBar::AtMost(bar) if options.quick => FigureBar::AtMost(bar * QUICK_SLACK),
            FigureBar::AtLeast(bar) if options.quick => FigureBar::AtLeast(bar / QUICK_SLACK),
            bar => bar,
        };
        Self { bar, ..self }
    }

    /// Whether the value reached its bar. NaN never does.
    pub fn is_ok(&self) -> bool {
        match self.bar {
            FigureBar::AtMost(bar) => self.value <= bar,
            FigureBar::AtLeast(bar) => self.value >= bar,
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, bar) = match self.bar {
            FigureBar::AtMost(bar) => ('≤', bar),
            FigureBar::AtLeast(bar) => ('≥', bar),
        };
        let verdict = if self.is_ok() { "ok" } else { "short" };
        write!(f, "figure {} {} {} (bar {sign} {}) {verdict}", self.name, short(self.value), self.unit, short(bar))
    }
}

/// A count as the value of a figure.
pub fn count(number: impl TryInto<u32>) -> f64 {
    number.try_into().map_or(f64::INFINITY, f64::from)
}

/// A value with up to three decimals, without trailing zeros.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The reason why a proof could not be run, as opposed to missing a bar.
#[derive(Debug)]
pub struct CannotRun(pub String);

impl fmt::Display for CannotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Says what was being done when an error came, or what is missing.
pub trait Context<T> {
    /// The same result with `what` in front of the error.
    fn context(self, what: impl fmt::Display) -> Result<T, CannotRun>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T, CannotRun> {
        self.map_err(|error| CannotRun(format!("{what}: {error}")))
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, what: impl fmt::Display) -> Result<T, CannotRun> {
        self.ok_or_else(|| CannotRun(what.to_string()))
    }
}

impl<E: std::error::Error> From<E> for CannotRun {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// The result of a proof.
pub type Findings = Result<Vec<Figure>, CannotRun>;

/// A named proof.
#[derive(Clone, Copy)]
pub struct Proof {
    /// Its name on the command line.
    pub name: &'static str,
    /// The claim that it checks, in one line.
    pub shows: &'static str,
    /// Runs it. Progress goes to stderr; stdout is for the figures.
    pub run: fn(&Options) -> Findings,
}

impl Proof {
    /// The proof with this name on the command line.
    pub const fn new(name: &'static str, run: fn(&Options) -> Findings) -> Self {
        Self { name, shows: "", run }
    }

    /// With the claim that it checks, in one line.
    #[must_use]
    pub const fn shows(self, shows: &'static str) -> Self {
        Self { shows, ..self }
    }
}
