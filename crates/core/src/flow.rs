//! Flow control for one destination: token buckets, circuit breakers, concurrency limits, the
//! retry budget and the pace of a recovery. Each is a small value with its own arithmetic; the
//! scheduler keeps them beside its lanes and checks them before every send.

pub mod breaker;
pub mod bucket;
pub mod concurrency;
pub mod pace;

use crate::OriginId;
use crate::id::{CredentialId, RegionId};

/// Whether destinations are protected from overload. `Off` means naive retries, for comparison in simulations; a
/// server always runs with `On`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protection {
    /// Breakers, paced recovery, adaptive concurrency, retry budgets, slices.
    #[default]
    On,
    /// Only the lanes' settings, holds, pauses and cuts.
    Off,
}

/// A gate that several lanes share. Its breaker or its rate limit holds all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SharedGate {
    /// Lanes with the same scheme, host and port.
    Origin(OriginId),
    /// Lanes with the same provider, or group of origins.
    Region(RegionId),
    Credential(CredentialId),
    /// The DNS resolver, which every lane with a host name shares.
    Resolver,
}
