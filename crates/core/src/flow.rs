//! What a destination can take, and what it is asked to: token buckets, breakers, concurrency, the
//! retry budget and the pace of a recovery. Each is a small value with its own arithmetic; the
//! queue holds them beside its lanes and asks them before every send.

pub mod breaker;
pub mod bucket;
pub mod budget;
pub mod concurrency;
pub mod pace;

use crate::id::{CredentialId, OriginId, RegionId};

/// Whether destinations are treated with care. Off means naive retries: what a simulation compares
/// with, never what a server runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Care {
    /// Breakers, paced recovery, adaptive concurrency, retry budgets, slices.
    #[default]
    On,
    /// None of that: only what lanes are set to, holds, pauses and cuts.
    Off,
}

/// A gate that several lanes go through. What holds there is its breaker or its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SharedGate {
    /// The same scheme, host and port.
    Origin(OriginId),
    /// The same provider, or group of origins.
    Region(RegionId),
    /// The same credential.
    Credential(CredentialId),
    /// The resolver of names, which all go through that send to a name.
    Resolver,
}
