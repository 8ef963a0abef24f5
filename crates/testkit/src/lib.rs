//! The simulator, its oracle, receivers that misbehave, and the proofs `cargo xtask prove` runs.

pub mod api;
pub mod audit_tamper;
#[cfg(feature = "conformance")]
pub mod authority;
pub mod backup;
pub mod bench;
pub mod breakers;
mod busy;
pub mod caller;
pub mod contention;
pub mod core_speed;
pub mod counter;
pub mod cpu;
pub mod crash_points;
#[cfg(feature = "conformance")]
pub mod erasure;
pub mod failing_disk;
pub mod fairness;
pub mod fan_out_lookup;
pub mod idempotency;
pub mod idle;
pub mod isolation;
pub mod keyed;
pub mod kill9;
pub mod ledger;
pub mod limits;
pub mod loopback;
pub mod mass_ends;
pub mod noisy_neighbour;
pub mod outage;
pub mod outage_sockets;
pub mod overload;
pub mod part;
pub mod planted;
pub mod posthaste;
pub mod prove;
pub mod purity;
pub mod receiver;
pub mod redaction;
pub mod restart;
#[cfg(feature = "conformance")]
pub mod retry_tokens;
pub mod rotation;
pub mod rss;
pub mod schedules;
pub mod sealed;
pub mod seeder;
pub mod served;
pub mod signatures;
pub mod sim;
pub mod simulation;
#[cfg(feature = "conformance")]
pub mod ssrf;
mod statistics;
pub mod store_backlog;
#[cfg(feature = "conformance")]
pub mod store_conformance;
pub mod store_kill9;
pub mod store_speed;
pub mod thread;

/// The master key of the stores that proofs make. It is fixed, so that a later process can open a store that an earlier
/// one left behind.
pub const MASTER_KEY: &str = "eTCMQLiQ1WZ3aITDlrR/+iyAzDYqPegWJRe4Ws+PyBg=";

/// [`MASTER_KEY`], parsed.
pub fn master_key() -> posthaste_crypto::master::Masters {
    let key = posthaste_crypto::master::MasterKey::parse(MASTER_KEY);
    posthaste_crypto::master::Masters::new(key.expect("32 random bytes"))
}
