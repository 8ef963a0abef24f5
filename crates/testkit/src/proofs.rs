//! The proofs: one module for each, listed in [`PROOFS`].

pub mod api;
pub mod audit_tamper;
pub mod backup;
pub mod core_speed;
#[cfg(feature = "conformance")]
pub mod erasure;
pub mod failing_disk;
pub mod fan_out_lookup;
pub mod idempotency;
pub mod idle;
pub mod isolation;
pub mod keyed;
pub mod kill9;
pub mod mass_ends;
pub mod noisy_neighbour;
pub mod outage_sockets;
pub mod overload;
pub mod purity;
pub mod redaction;
pub mod restart;
#[cfg(feature = "conformance")]
pub mod retry_tokens;
pub mod rotation;
pub mod sealed;
pub mod signatures;
#[cfg(feature = "conformance")]
pub mod ssrf;
pub mod store_backlog;
#[cfg(feature = "conformance")]
pub mod store_conformance;
pub mod store_kill9;
pub mod store_speed;
pub mod thread;

use std::path::Path;
use std::process::ExitCode;

use posthaste_prove::{CannotRun, Proof};

use crate::bench;

/// Runs a child process of a proof. These are nodes and producers that are killed, processes that are measured, and
/// attackers, which have a store's files and only the keys that they are given.
pub fn child(role: &str, args: &[&str]) -> ExitCode {
    let folder = Path::new(args.first().copied().unwrap_or_default());
    let ended = match (role, args) {
        ("store-node", [_, promise]) => store_kill9::node::run(folder, promise),
        ("store-producer", [_, number]) => store_kill9::producer::run(folder, number),
        ("keyed-node", [_]) => keyed::serve(folder),
        ("backlog-node", [_]) => store_backlog::accept_until_killed(folder),
        ("streams", [_]) => store_backlog::streams::measure(folder),
        ("twins", [_, keys, seed, with]) => idempotency::twins::run(folder, keys, seed, with),
        ("core-speed", task) => core_speed::task::run(task),
        ("search-sealed", folders) => sealed::attacker::search(folders),
        ("move-sealed", [_]) => sealed::attacker::move_values(folder),
        ("unwrap", [_]) => rotation::attacker::run(folder),
        ("tamper", [_, checkpoint, seed]) => audit_tamper::attacker::run(folder, checkpoint, seed),
        #[cfg(feature = "conformance")]
        ("search-erased", folders) => erasure::digger::search(folders),
        #[cfg(feature = "conformance")]
        ("open-erased", [_]) => erasure::digger::open(folder),
        #[cfg(feature = "conformance")]
        ("forge", [_, deed, first, last]) => retry_tokens::forger::vandalise(folder, deed, first, last),
        _ => Err(CannotRun(format!("no proof has a child process with the arguments {args:?}"))),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(CannotRun(why)) => {
            eprintln!("{role}: {why}");
            ExitCode::from(2)
        }
    }
}

/// Every proof of this crate.
pub const PROOFS: &[Proof] = &[
    Proof {
        name: "purity",
        shows: "the core builds without clock, dice, async or serde, and without `unsafe`",
        run: purity::run,
    },
    Proof {
        name: "core-speed",
        shows: "the scheduler's cost of a delivery in instructions and memory, also with a million rows in the store",
        run: core_speed::run,
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
        run: bench::proof::run,
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
