//! The effect of a noisy tenant on quiet ones: with slow receivers (tarpits), with a flood of retries, and when the
//! quiet ones come late.
//!
//! Nine quiet tenants send a little each. The waits of their messages, from due to sent, are compared with a run
//! without the noisy tenant.

use std::ops::Range;
use std::time::Duration;

use posthaste_core::scheduler::Limits;

use super::scheduler::{CoreScheduler, FairScheduler, Plain, PlainRule};
use super::world::{FairnessLoad, FairnessReceiver, Got, LoadSource, play, quantile};
use super::{Part, SLOTS, in_millis, millis, seconds};
use posthaste_prove::{Figure, Options};

const QUIET: u64 = 9;
const NOISY: u64 = 10;
const NOISY_TOO: u64 = 11;
/// The most slots that a noisy tenant may hold.
const SLOTS_BAR: u32 = SLOTS / 2;
const TIMEOUT: Duration = seconds(30);
const WHOLE: Range<Duration> = seconds(0)..seconds(240);
/// When the quiet tenants begin, where they come late.
const LATE: Duration = seconds(120);
/// Rows in memory while a million are due.
const FLOOD_WINDOW: usize = 100_000;

pub(super) fn run(options: &Options) -> Part {
    let undisturbed = Waits::of(&play(&quiet(Duration::ZERO), &mut posthaste(), WHOLE));
    eprintln!("fairness: quiet tenants alone: {undisturbed}");
    let mut part = Part::default();
    for tarpit in TARPITS {
        let got = play(&tarpit.sources(), &mut posthaste(), WHOLE);
        part.figures.push(undisturbed.judge(tarpit.name, &got, 1.2));
        part.figures.push(slots_most(tarpit.name, &got));
    }
    for (name, sources, measured) in [late(), two_tarpits()] {
        let got = play(&sources, &mut posthaste(), measured);
        part.figures.push(undisturbed.judge(name, &got, 1.2));
    }
    let backlog = if options.quick { 200_000 } else { 1_000_000 };
    let flood = seconds(0)..seconds(if options.quick { 30 } else { 120 });
    for (name, lanes) in [("flood", 1), ("wide_flood", 200)] {
        let limits = Limits { slots: SLOTS, window: FLOOD_WINDOW, ..Limits::default() };
        let got = play(&flooded(lanes, backlog), &mut CoreScheduler::with(limits), flood.clone());
        part.figures.push(undisturbed.judge(name, &got, 1.5));
        part.figures.push(slots_most(name, &got));
        let left = (backlog - got[got.len() - 1].sent) as f64;
        part.figures.push(Figure::at_least(&format!("{name}_still_due"), left, "messages", 1.0));
    }

    let tarpit = &TARPITS[0];
    for (name, rule) in [("fifo", PlainRule::Fifo), ("by_count", PlainRule::ByCount)] {
        let got = play(&tarpit.sources(), &mut Plain::new(rule, SLOTS), WHOLE);
        let name = format!("{}_{name}", tarpit.name);
        part.controls.push(undisturbed.judge(&name, &got, 1.2));
        part.controls.push(slots_most(&name, &got));
    }
    part
}

/// Posthaste as it ships. The noisy tenants' endpoints have no limit of attempts in flight, so that only fairness
/// limits them.
fn posthaste() -> impl FairScheduler {
    CoreScheduler::new(SLOTS).max_in_flight(NOISY, u16::MAX).max_in_flight(NOISY_TOO, u16::MAX)
}

/// A tenant with slow receivers. It could use four or twelve times the slots there are.
struct Tarpit {
    name: &'static str,
    endpoints: u64,
    receiver: FairnessReceiver,
}

const TARPITS: [Tarpit; 4] = [
    Tarpit { name: "tarpit", endpoints: 1, receiver: FairnessReceiver::well(seconds(10)) },
    Tarpit { name: "wide_tarpit", endpoints: 200, receiver: FairnessReceiver::well(seconds(10)) },
    Tarpit { name: "hanging", endpoints: 1, receiver: FairnessReceiver::hangs(TIMEOUT) },
    Tarpit { name: "wide_hanging", endpoints: 200, receiver: FairnessReceiver::hangs(TIMEOUT) },
];

impl Tarpit {
    fn sources(&self) -> Vec<LoadSource> {
        let mut sources = quiet(Duration::ZERO);
        sources.push(noisy(NOISY, self.endpoints, self.receiver));
        sources
    }
}

/// The quiet tenants: each sends 20 messages per second to one endpoint that answers in 50 ms.
fn quiet(from: Duration) -> Vec<LoadSource> {
    let load = FairnessLoad::Random { per_second: 20.0, from };
    let receiver = FairnessReceiver::well(millis(50));
    (1..=QUIET).map(|tenant| LoadSource::new(tenant, tenant..tenant + 1, load, receiver)).collect()
}

/// A noisy tenant: it sends 100 messages per second.
fn noisy(tenant: u64, endpoints: u64, receiver: FairnessReceiver) -> LoadSource {
    let (first, load) = (tenant * 1_000, FairnessLoad::Random { per_second: 100.0, from: Duration::ZERO });
    LoadSource::new(tenant, first..first + endpoints, load, receiver)
}

/// The quiet tenants begin when the noisy one has been alone for long enough to hold as many slots as it can use.
fn late() -> (&'static str, Vec<LoadSource>, Range<Duration>) {
    let mut sources = quiet(LATE);
    sources.push(noisy(NOISY, 200, FairnessReceiver::well(seconds(10))));
    ("late", sources, LATE..WHOLE.end)
}

/// Two noisy tenants, each of which may hold half of the slots. The measurement begins when the scheduler has learnt
/// that their receivers are slow.
fn two_tarpits() -> (&'static str, Vec<LoadSource>, Range<Duration>) {
    let mut sources = quiet(Duration::ZERO);
    sources.extend([NOISY, NOISY_TOO].map(|tenant| noisy(tenant, 200, FairnessReceiver::well(seconds(10)))));
    ("two_tarpits", sources, seconds(30)..WHOLE.end)
}

/// A noisy tenant with this many retries due at once.
fn flooded(endpoints: u64, retries: u64) -> Vec<LoadSource> {
    let mut sources = quiet(Duration::ZERO);
    let load = FairnessLoad::AtOnce { messages: retries, from: seconds(5), attempts: 1 };
    sources.push(LoadSource { load, ..noisy(NOISY, endpoints, FairnessReceiver::well(millis(50))) });
    sources
}

fn slots_most(name: &str, got: &[Got]) -> Figure {
    let most = got[usize::try_from(QUIET).expect("a few")].slots_most;
    Figure::at_most(&format!("{name}_slots_most"), f64::from(most), "slots", SLOTS_BAR.into())
}

/// Quantiles of the waits of all quiet tenants' messages.
struct Waits {
    p50: Duration,
    p99: Duration,
    longest: Duration,
}

impl Waits {
    fn of(got: &[Got]) -> Self {
        let quiet = &got[..usize::try_from(QUIET).expect("a few")];
        let waits: Vec<Duration> = quiet.iter().flat_map(|got| &got.waits).copied().collect();
        let [p50, p99, longest] = [0.5, 0.99, 1.0].map(|share| quantile(waits.clone(), share));
        Self { p50, p99, longest }
    }

    /// The figure of the quiet tenants' 99th percentile. The bar is the undisturbed one times the factor, or plus 5 ms.
    fn judge(&self, name: &str, got: &[Got], factor: f64) -> Figure {
        let waits = Self::of(got);
        let held = got[usize::try_from(QUIET).expect("a few")].slots_most;
        eprintln!("fairness: {name}: {waits}; the noisy one held up to {held} slots");
        let bar = self.p99.mul_f64(factor).max(self.p99 + millis(5));
        Figure::at_most(&format!("{name}_quiet_wait_p99"), in_millis(waits.p99), "ms", in_millis(bar))
    }
}

impl std::fmt::Display for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "wait p50 {:?}, p99 {:?}, at most {:?}", self.p50, self.p99, self.longest)
    }
}
