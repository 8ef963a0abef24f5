//! Receivers that misbehave, and the proofs `cargo xtask prove` runs on the store, the engine and the binary.

pub mod bench;
pub mod fixtures;
pub mod proofs;
pub mod receivers;

pub use posthaste_prove as prove;

/// The master key of the stores that proofs make. It is fixed, so that a later process can open a store that an earlier
/// one left behind.
pub const MASTER_KEY: &str = "eTCMQLiQ1WZ3aITDlrR/+iyAzDYqPegWJRe4Ws+PyBg=";

/// [`MASTER_KEY`], parsed.
pub fn master_key() -> posthaste_crypto::master::Masters {
    let key = posthaste_crypto::master::MasterKey::parse(MASTER_KEY);
    posthaste_crypto::master::Masters::new(key.expect("32 random bytes"))
}
