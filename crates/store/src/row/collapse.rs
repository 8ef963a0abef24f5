//! Collapse keys: a newer delivery takes the place of one that still waits (A6).

use posthaste_core::cause::Cause;
use posthaste_core::delivery::Delivery;
use posthaste_core::state::State;
use posthaste_core::time::Timestamp;

/// What deliveries of one lane replace each other by: a keyed hash of what the producer calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CollapseKey(pub u64);

impl CollapseKey {
    /// The beginning of a longer hash. Two keys of one lane share it once in 2^64 pairs.
    pub fn of(hash: [u8; 32]) -> Self {
        let mut first = [0; 8];
        first.copy_from_slice(&hash[..8]);
        Self(u64::from_be_bytes(first))
    }
}

/// How a pending delivery ends when another takes its place at `at`. One whose time to live was over
/// by then has ended already, and stays as it ended.
pub(crate) fn superseded(delivery: &Delivery, at: Timestamp) -> State {
    let sent = matches!(delivery.state, State::AwaitingAck { .. });
    match delivery.expiry.at() {
        Some(over) if over <= at && !sent => State::Expired { at: over },
        _ => State::Cancelled { at, cause: Cause::Superseded },
    }
}
