//! Collapse keys: a newer delivery supersedes one that still waits under the same key (A6).

use posthaste_core::{Cause, Delivery, State, Timestamp};

/// Deliveries of one lane with the same key supersede each other. Holds a keyed hash of the key the producer gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CollapseKey(pub u64);

impl CollapseKey {
    /// The first 8 bytes of a longer hash. Two different keys of a lane have the same value once in 2^64 pairs.
    pub fn of(hash: [u8; 32]) -> Self {
        let mut first = [0; 8];
        first.copy_from_slice(&hash[..8]);
        Self(u64::from_be_bytes(first))
    }
}

/// The final state of a pending delivery that is superseded at `at`. If its TTL was over by then, it has already
/// expired, and stays expired.
pub(crate) fn superseded(delivery: &Delivery, at: Timestamp) -> State {
    let sent = matches!(delivery.state, State::AwaitingAck { .. });
    match delivery.expiry.at() {
        Some(over) if over <= at && !sent => State::Expired { at: over },
        _ => State::Cancelled { at, cause: Cause::Superseded },
    }
}
