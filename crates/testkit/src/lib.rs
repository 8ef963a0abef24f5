//! The simulator, its oracle, receivers that misbehave, and the proofs `cargo xtask prove` runs.

pub mod contention;
pub mod prove;
pub mod purity;
pub mod schedules;
