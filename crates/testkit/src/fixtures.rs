//! What proofs share: stores filled with rows, servers, callers, and gauges of CPU and memory.

#[cfg(feature = "conformance")]
pub mod authority;
pub(crate) mod busy;
pub mod caller;
pub mod cpu;
pub mod ledger;
pub mod loopback;
pub mod part;
pub mod posthaste;
pub mod rss;
pub mod seeder;
pub mod served;
pub(crate) mod statistics;
pub(crate) mod synced;
