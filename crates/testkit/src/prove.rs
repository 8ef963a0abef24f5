//! What a proof is: a name, what it shows, and figures with their bars.
//!
//! Every proof ends in lines of one form, `figure NAME VALUE UNIT (bar ≤ BAR) ok|short`, so that a
//! person and a script read the same thing. The registry is [`PROOFS`].

pub mod command_line;

use std::fmt;
use std::io;
use std::path::PathBuf;

use posthaste_store::StoreError;

use crate::{
    api, audit_tamper, backup, bench, breakers, core_speed, crash_points, failing_disk, fairness, fan_out_lookup,
    idempotency, idle, isolation, kill9, limits, mass_ends, noisy_neighbour, outage, outage_sockets, overload, planted,
    purity, redaction, restart, rotation, schedules, sealed, signatures, simulation, store_backlog, store_kill9,
    store_speed, thread,
};
#[cfg(feature = "conformance")]
use crate::{erasure, retry_tokens, ssrf, store_conformance};

/// How a proof is run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The short form that `scripts/test` runs.
    pub quick: bool,
    /// How many seeds, where a proof has seeds.
    pub seeds: Option<u64>,
    /// The first seed.
    pub first: Option<u64>,
    /// A corpus instead of the one that is kept, where a proof has one.
    pub corpus: Option<PathBuf>,
    /// Another build of `posthaste` to compare with, where a proof compares.
    pub against: Option<PathBuf>,
    /// How many pairs to measure with `against`.
    pub pairs: Option<u64>,
    /// The bar for the ratio that comes of `against`, instead of the proof's own.
    pub at_most: Option<f64>,
}

/// How much wider the bar of a time is in the short form.
pub(crate) const QUICK_SLACK: f64 = 3.0;

/// Which side of the bar is good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
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
    /// The value.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// What it has to reach.
    pub bar: Bar,
}

impl Figure {
    /// A figure that must not exceed `bar`.
    pub fn at_most(name: &str, value: f64, unit: &'static str, bar: f64) -> Self {
        Self { name: name.to_owned(), value, unit, bar: Bar::AtMost(bar) }
    }

    /// A figure that must reach `bar`.
    pub fn at_least(name: &str, value: f64, unit: &'static str, bar: f64) -> Self {
        Self { name: name.to_owned(), value, unit, bar: Bar::AtLeast(bar) }
    }

    /// For a figure that a clock or a processor's time tells: in the short form its bar is three times
    /// as wide. A few seconds on a machine that does other work say whether something is badly wrong,
    /// and not more; the full form has the bar itself.
    #[must_use]
    pub fn by_the_clock(self, options: &Options) -> Self {
        let bar = match self.bar {
            Bar::AtMost(bar) if options.quick => Bar::AtMost(bar * QUICK_SLACK),
            Bar::AtLeast(bar) if options.quick => Bar::AtLeast(bar / QUICK_SLACK),
            bar => bar,
        };
        Self { bar, ..self }
    }

    /// Whether it reached its bar. A value that is no number never does.
    pub fn is_ok(&self) -> bool {
        match self.bar {
            Bar::AtMost(bar) => self.value <= bar,
            Bar::AtLeast(bar) => self.value >= bar,
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, bar) = match self.bar {
            Bar::AtMost(bar) => ('≤', bar),
            Bar::AtLeast(bar) => ('≥', bar),
        };
        let verdict = if self.is_ok() { "ok" } else { "short" };
        write!(f, "figure {} {} {} (bar {sign} {}) {verdict}", self.name, short(self.value), self.unit, short(bar))
    }
}

/// Up to three decimals, none where they say nothing.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A proof could not be run at all: not the same as falling short.
#[derive(Debug)]
pub struct CannotRun(pub String);

impl From<StoreError> for CannotRun {
    fn from(error: StoreError) -> Self {
        Self(format!("the store refused: {error}"))
    }
}

impl From<io::Error> for CannotRun {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// What a proof found.
pub type Findings = Result<Vec<Figure>, CannotRun>;

/// One of the named proofs.
#[derive(Clone, Copy)]
pub struct Proof {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows, in one line.
    pub shows: &'static str,
    /// Runs it, writing progress to stderr as it goes: stdout is for the figures.
    pub run: fn(&Options) -> Findings,
}

/// Every proof there is.
pub const PROOFS: &[Proof] = &[
    Proof {
        name: "purity",
        shows: "the core builds without clock, dice, async or serde, and without `unsafe`",
        run: purity::run,
    },
    Proof {
        name: "schedules",
        shows: "every jitter by statistics, the presets as written, contention as known",
        run: schedules::run,
    },
    Proof { name: "limits", shows: "no sliding second above its limit, whatever the clock does", run: limits::run },
    Proof {
        name: "breakers",
        shows: "breakers against a slow model, no false trips, a flapping endpoint left alone",
        run: breakers::run,
    },
    Proof {
        name: "outage",
        shows: "twenty minutes down: what reaches the receiver, naive and with all gates",
        run: outage::proof::run,
    },
    Proof {
        name: "fairness",
        shows: "equal shares by slot-time, weights, quiet tenants beside noisy ones, no tier starved",
        run: fairness::run,
    },
    Proof {
        name: "core-speed",
        shows: "what the queue costs a delivery in instructions and memory, alone and with a million behind it",
        run: core_speed::run,
    },
    Proof {
        name: "simulation",
        shows: "the production loop under faults: no promise broken in any seed",
        run: simulation::run,
    },
    Proof { name: "determinism", shows: "a seed gives the same run in every process", run: simulation::determinism },
    Proof {
        name: "crash-points",
        shows: "a crash at every effect of many scenarios loses nothing",
        run: crash_points::run,
    },
    Proof {
        name: "sealed",
        shows: "canaries through every field of the store: none in its files or its log, none moved opens",
        run: sealed::run,
    },
    Proof {
        name: "idempotency",
        shows: "twins of every key at once, across kill -9: one message each, one answer for all",
        run: idempotency::run,
    },
    #[cfg(feature = "conformance")]
    Proof {
        name: "store-conformance",
        shows: "every case of the contract on both stores; any history with crashes reads the same from both",
        run: store_conformance::run,
    },
    #[cfg(feature = "conformance")]
    Proof {
        name: "erasure",
        shows: "who is erased is gone for somebody with the files and the master key, and from an older copy as well",
        run: erasure::run,
    },
    #[cfg(feature = "conformance")]
    Proof {
        name: "retry-tokens",
        shows: "rows forged, moved, back-dated or payload-swapped in the file: none sent, all quarantined; late ones sent",
        run: retry_tokens::run,
    },
    Proof {
        name: "store-kill9",
        shows: "a process around the loop and the store is killed under eight producers: nothing acknowledged is lost",
        run: store_kill9::run,
    },
    Proof {
        name: "rotation",
        shows: "the master key rotated under load and killed at every step: nothing lost, nothing left under the old one",
        run: rotation::run,
    },
    Proof {
        name: "backup",
        shows: "backups under load, restored elsewhere: everything from before is there, nothing is sent until released",
        run: backup::run,
    },
    Proof {
        name: "store-backlog",
        shows: "millions of rows that wait make a delivery hardly dearer, a start no slower and no page long",
        run: store_backlog::run,
    },
    Proof {
        name: "mass-ends",
        shows: "what ends millions of deliveries is answered at once, and nothing of them is sent afterwards",
        run: mass_ends::run,
    },
    Proof {
        name: "store-speed",
        shows: "accept and settle beside a bare file with the same bytes and syncs, and what they cost in CPU",
        run: store_speed::run,
    },
    Proof {
        name: "audit-tamper",
        shows: "whoever has the file and an old checkpoint changes nothing without being seen; retention is no alarm",
        run: audit_tamper::run,
    },
    Proof {
        name: "planted-bugs",
        shows: "the oracle complains of every bug on a list, and of nothing while they sleep",
        run: planted::run,
    },
    Proof {
        name: "api",
        shows: "every route the server tells of, over real HTTP, with what it takes and with what it refuses",
        run: api::run,
    },
    Proof {
        name: "isolation",
        shows: "every route that names something, asked for another tenant's: the same bytes as for what never was",
        run: isolation::run,
    },
    Proof {
        name: "kill9",
        shows: "the real binary is killed under producers that call its API: nothing acknowledged is lost",
        run: kill9::run,
    },
    Proof {
        name: "restart",
        shows: "asked to stop under load and started again: nothing lost, nothing twice; back soon with a long queue",
        run: restart::run,
    },
    Proof {
        name: "disk",
        shows: "the real binary on a disk that is full, and on one that fails: it refuses and resumes, or ends and says why",
        run: failing_disk::run,
    },
    Proof {
        name: "overload",
        shows: "ten times more than can be delivered: memory stays small and flat, refusals say when to come back",
        run: overload::run,
    },
    Proof {
        name: "idle",
        shows: "what a server takes of the machine that has nothing to do, or ten million deliveries waiting",
        run: idle::run,
    },
    Proof {
        name: "redaction",
        shows: "canaries in every secret field, the log at trace: none in logs, metrics, errors or listings",
        run: redaction::run,
    },
    Proof {
        name: "signatures",
        shows: "what the server signs is verified by the official libraries, and no altered byte is",
        run: signatures::run,
    },
    Proof {
        name: "thread",
        shows: "the real binary over real sockets and a real file, with kill -9 in the middle",
        run: thread::run,
    },
    Proof {
        name: "bench",
        shows: "what a delivery costs and how long it takes, beside a bare client, the bare disk and an empty server",
        run: bench::run,
    },
    #[cfg(feature = "conformance")]
    Proof {
        name: "ssrf",
        shows: "a corpus of hostile targets ends with the right codes, and no socket opens to a refused address",
        run: ssrf::run,
    },
    Proof {
        name: "outage-sockets",
        shows: "a receiver that dies under load and returns is not hammered, and everything arrives",
        run: outage_sockets::run,
    },
    Proof {
        name: "fan-out-lookup",
        shows: "a message for one subject or tag costs the same with a thousand endpoints and with a million",
        run: fan_out_lookup::run,
    },
    Proof {
        name: "noisy-neighbour",
        shows: "a tenant whose receivers never answer takes nothing from a hundred others",
        run: noisy_neighbour::run,
    },
];
