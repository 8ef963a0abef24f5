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
        ("core-speed", [task]) => core_speed::task::run(task),
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
    Proof::new("purity", purity::run)
        .shows("the core builds without clock, dice, async or serde, and without `unsafe`"),
    Proof::new("core-speed", core_speed::run)
        .shows("the scheduler's cost of a delivery in instructions and memory, also with a million rows in the store"),
    Proof::new("sealed", sealed::run)
        .shows("canaries in every field of the store: none readable in its files or log; moved values do not open"),
    Proof::new("idempotency", idempotency::run)
        .shows("every idempotency key used many times at once, across kill -9: one message and one answer for each"),
    #[cfg(feature = "conformance")]
    Proof::new("store-conformance", store_conformance::run)
        .shows("every case of the contract on both stores; any history with crashes reads the same from both"),
    #[cfg(feature = "conformance")]
    Proof::new("erasure", erasure::run)
        .shows("erased data cannot be recovered with the files and the master key, nor from an older copy"),
    #[cfg(feature = "conformance")]
    Proof::new("retry-tokens", retry_tokens::run).shows(
        "rows that are forged, moved or back-dated, or have swapped payloads: none is sent, all are quarantined",
    ),
    Proof::new("store-kill9", store_kill9::run)
        .shows("a process around the loop and the store is killed under eight producers: nothing acknowledged is lost"),
    Proof::new("rotation", rotation::run).shows(
        "the master key rotated under load and killed at every step: nothing lost, nothing left under the old one",
    ),
    Proof::new("backup", backup::run).shows(
        "backups under load, restored elsewhere: everything from before is there, nothing is sent until released",
    ),
    Proof::new("store-backlog", store_backlog::run)
        .shows("with millions of pending rows a delivery costs hardly more, a start takes no longer, no page is slow"),
    Proof::new("mass-ends", mass_ends::run)
        .shows("a request that ends millions of deliveries is answered at once, and none of them is sent afterwards"),
    Proof::new("store-speed", store_speed::run)
        .shows("throughput of accept and settle beside a bare file with the same bytes and syncs, and their CPU cost"),
    Proof::new("audit-tamper", audit_tamper::run)
        .shows("an audit detects every change of the file by an attacker with a checkpoint; retention raises no alarm"),
    Proof::new("api", api::run)
        .shows("every documented route over real HTTP, with requests that it accepts and requests that it refuses"),
    Proof::new("isolation", isolation::run)
        .shows("every route with an id: another tenant's id gets the same bytes as an id that does not exist"),
    Proof::new("kill9", kill9::run)
        .shows("the real binary is killed under producers that call its API: nothing acknowledged is lost"),
    Proof::new("restart", restart::run)
        .shows("stopped under load and started again: nothing lost or sent twice; a fast start with a long backlog"),
    Proof::new("disk", failing_disk::run).shows(
        "the real binary on a full disk, and on a failing one: it refuses and resumes, or exits with the reason",
    ),
    Proof::new("overload", overload::run)
        .shows("ten times more load than can be delivered: memory stays small and flat, refusals have a Retry-After"),
    Proof::new("idle", idle::run)
        .shows("CPU and memory of a server that is idle, and of one with ten million pending deliveries"),
    Proof::new("redaction", redaction::run)
        .shows("canaries in every secret field, the log at trace: none in logs, metrics, errors or listings"),
    Proof::new("signatures", signatures::run)
        .shows("the official libraries verify the server's signatures, and reject every altered byte"),
    Proof::new("thread", thread::run)
        .shows("the real binary over real sockets and a real file, with kill -9 in the middle"),
    Proof::new("bench", bench::proof::run)
        .shows("cost and latency of a delivery, beside a bare client, the bare disk and an empty server"),
    #[cfg(feature = "conformance")]
    Proof::new("ssrf", ssrf::run)
        .shows("a corpus of hostile targets is refused with the right codes, and no socket opens to a refused address"),
    Proof::new("outage-sockets", outage_sockets::run)
        .shows("a receiver that dies under load and returns is not flooded with retries, and everything arrives"),
    Proof::new("fan-out-lookup", fan_out_lookup::run)
        .shows("a message for one subject or tag costs the same with a thousand endpoints as with a million"),
    Proof::new("noisy-neighbour", noisy_neighbour::run)
        .shows("a tenant whose receivers never answer takes nothing from a hundred others"),
];
