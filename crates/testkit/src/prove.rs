//! A proof: a named check of a claim, which returns figures with their bars.
//!
//! Every proof ends in lines of one form, `figure NAME VALUE UNIT (bar ≤ BAR) ok|short`, for people and scripts.
//! The registry is [`PROOFS`].

pub mod command_line;

use std::fmt;
use std::io;
use std::path::PathBuf;

use posthaste_store::StoreError;

use crate::bench;
use crate::proofs::{
    api, audit_tamper, backup, breakers, core_speed, crash_points, failing_disk, fairness, fan_out_lookup, idempotency,
    idle, isolation, kill9, limits, mass_ends, noisy_neighbour, outage, outage_sockets, overload, planted, purity,
    redaction, restart, rotation, schedules, sealed, signatures, simulation, store_backlog, store_kill9, store_speed,
    thread,
};
#[cfg(feature = "conformance")]
use crate::proofs::{erasure, retry_tokens, ssrf, store_conformance};

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
pub(crate) const QUICK_SLACK: f64 = 3.0;

/// The bar of a figure, and its direction.
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
    /// The measured value.
    pub value: f64,
    /// The unit of value and bar.
    pub unit: &'static str,
    /// The bar that the value has to reach.
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

    /// Marks a figure that is a time or a rate: in the quick form its bar is three times as wide. A measurement of a
    /// few seconds on a busy machine can only show that something is badly wrong; the full form has the real bar.
    #[must_use]
    pub fn by_the_clock(self, options: &Options) -> Self {
        let bar = match self.bar {
            Bar::AtMost(bar) if options.quick => Bar::AtMost(bar * QUICK_SLACK),
            Bar::AtLeast(bar) if options.quick => Bar::AtLeast(bar / QUICK_SLACK),
            bar => bar,
        };
        Self { bar, ..self }
    }

    /// Whether the value reached its bar. NaN never does.
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

/// A value with up to three decimals, without trailing zeros.
fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The reason why a proof could not be run, as opposed to missing a bar.
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

/// Every proof of this crate.
pub const PROOFS: &[Proof] = &[
    Proof {
        name: "purity",
        shows: "the core builds without clock, dice, async or serde, and without `unsafe`",
        run: purity::run,
    },
    Proof {
        name: "schedules",
        shows: "every jitter by statistics, the presets as documented, contention against known figures",
        run: schedules::run,
    },
    Proof { name: "limits", shows: "no sliding second above its limit, also when the clock jumps", run: limits::run },
    Proof {
        name: "breakers",
        shows: "breakers against a slow model, no false trips, a flapping endpoint left alone",
        run: breakers::run,
    },
    Proof {
        name: "outage",
        shows: "twenty minutes of outage: the load on the receiver with naive retries, and with Posthaste",
        run: outage::proof::run,
    },
    Proof {
        name: "fairness",
        shows: "equal shares by slot-time, weights, quiet tenants beside noisy ones, no tier starved",
        run: fairness::run,
    },
    Proof {
        name: "core-speed",
        shows: "the scheduler's cost of a delivery in instructions and memory, also with a million rows in the store",
        run: core_speed::run,
    },
    Proof {
        name: "simulation",
        shows: "the production loop under faults: no promise is broken in any seed",
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
        shows: "canaries in every field of the store: none readable in its files or log; moved values do not open",
        run: sealed::run,
    },
    Proof {
        name: "idempotency",
        shows: "every idempotency key used many times at once, across kill -9: one message and one answer for each",
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
        shows: "erased data cannot be recovered with the files and the master key, nor from an older copy",
        run: erasure::run,
    },
    #[cfg(feature = "conformance")]
    Proof {
        name: "retry-tokens",
        shows: "rows that are forged, moved or back-dated, or have swapped payloads: none is sent, all are quarantined",
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
        shows: "with millions of pending rows a delivery costs hardly more, a start takes no longer, no page is slow",
        run: store_backlog::run,
    },
    Proof {
        name: "mass-ends",
        shows: "a request that ends millions of deliveries is answered at once, and none of them is sent afterwards",
        run: mass_ends::run,
    },
    Proof {
        name: "store-speed",
        shows: "throughput of accept and settle beside a bare file with the same bytes and syncs, and their CPU cost",
        run: store_speed::run,
    },
    Proof {
        name: "audit-tamper",
        shows: "an audit detects every change of the file by an attacker with a checkpoint; retention raises no alarm",
        run: audit_tamper::run,
    },
    Proof {
        name: "planted-bugs",
        shows: "the oracle reports every bug on a list, and nothing while they are switched off",
        run: planted::run,
    },
    Proof {
        name: "api",
        shows: "every documented route over real HTTP, with requests that it accepts and requests that it refuses",
        run: api::run,
    },
    Proof {
        name: "isolation",
        shows: "every route with an id: another tenant's id gets the same bytes as an id that does not exist",
        run: isolation::run,
    },
    Proof {
        name: "kill9",
        shows: "the real binary is killed under producers that call its API: nothing acknowledged is lost",
        run: kill9::run,
    },
    Proof {
        name: "restart",
        shows: "stopped under load and started again: nothing lost or sent twice; a fast start with a long backlog",
        run: restart::run,
    },
    Proof {
        name: "disk",
        shows: "the real binary on a full disk, and on a failing one: it refuses and resumes, or exits with the reason",
        run: failing_disk::run,
    },
    Proof {
        name: "overload",
        shows: "ten times more load than can be delivered: memory stays small and flat, refusals have a Retry-After",
        run: overload::run,
    },
    Proof {
        name: "idle",
        shows: "CPU and memory of a server that is idle, and of one with ten million pending deliveries",
        run: idle::run,
    },
    Proof {
        name: "redaction",
        shows: "canaries in every secret field, the log at trace: none in logs, metrics, errors or listings",
        run: redaction::run,
    },
    Proof {
        name: "signatures",
        shows: "the official libraries verify the server's signatures, and reject every altered byte",
        run: signatures::run,
    },
    Proof {
        name: "thread",
        shows: "the real binary over real sockets and a real file, with kill -9 in the middle",
        run: thread::run,
    },
    Proof {
        name: "bench",
        shows: "cost and latency of a delivery, beside a bare client, the bare disk and an empty server",
        run: bench::run,
    },
    #[cfg(feature = "conformance")]
    Proof {
        name: "ssrf",
        shows: "a corpus of hostile targets is refused with the right codes, and no socket opens to a refused address",
        run: ssrf::run,
    },
    Proof {
        name: "outage-sockets",
        shows: "a receiver that dies under load and returns is not flooded with retries, and everything arrives",
        run: outage_sockets::run,
    },
    Proof {
        name: "fan-out-lookup",
        shows: "a message for one subject or tag costs the same with a thousand endpoints as with a million",
        run: fan_out_lookup::run,
    },
    Proof {
        name: "noisy-neighbour",
        shows: "a tenant whose receivers never answer takes nothing from a hundred others",
        run: noisy_neighbour::run,
    },
];
