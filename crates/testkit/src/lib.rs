//! The simulator, its oracle, receivers that misbehave, and the proofs `cargo xtask prove` runs.

pub mod audit_tamper;
pub mod backup;
pub mod breakers;
mod busy;
pub mod caller;
pub mod contention;
pub mod core_speed;
pub mod cpu;
pub mod crash_points;
#[cfg(feature = "conformance")]
pub mod erasure;
pub mod fairness;
pub mod idempotency;
pub mod keyed;
pub mod limits;
pub mod loopback;
pub mod mass_ends;
pub mod outage;
pub mod part;
pub mod planted;
pub mod posthaste;
pub mod prove;
pub mod purity;
pub mod receiver;
#[cfg(feature = "conformance")]
pub mod retry_tokens;
pub mod rotation;
pub mod rss;
pub mod schedules;
pub mod sealed;
pub mod seeder;
pub mod sim;
pub mod simulation;
pub mod store_backlog;
#[cfg(feature = "conformance")]
pub mod store_conformance;
pub mod store_kill9;
pub mod store_speed;
pub mod thread;

/// The master key of the stores that proofs make: what one process leaves behind, the next one opens.
pub fn master_key() -> posthaste_crypto::master::Masters {
    let key = posthaste_crypto::master::MasterKey::parse("eTCMQLiQ1WZ3aITDlrR/+iyAzDYqPegWJRe4Ws+PyBg=");
    posthaste_crypto::master::Masters::new(key.expect("32 random bytes"))
}
