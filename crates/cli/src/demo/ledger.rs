//! What was promised against what the receivers say they got.

use std::collections::BTreeSet;

use super::Cast;

/// The demo's bookkeeping.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ledger {
    pub(super) accepted: usize,
    /// Accepted messages that a receiver took, with a good signature.
    pub(super) delivered: usize,
    /// Requests that reached a receiver.
    pub(super) attempts: usize,
    /// Messages a receiver took more than once.
    pub(super) duplicates: usize,
}

impl Ledger {
    /// Compares the ids the server promised with the receivers' own logs.
    pub(super) fn of(accepted: &[String], cast: &[Cast]) -> Self {
        let arrivals: Vec<_> = cast.iter().flat_map(|one| one.receiver.arrivals()).collect();
        let taken: Vec<&str> = arrivals
            .iter()
            .filter(|arrival| arrival.answered.is_success() && arrival.is_signed)
            .map(|arrival| arrival.message.as_str())
            .collect();
        let distinct: BTreeSet<&str> = taken.iter().copied().collect();
        Self {
            accepted: accepted.len(),
            delivered: accepted.iter().filter(|id| distinct.contains(id.as_str())).count(),
            attempts: arrivals.len(),
            duplicates: taken.len() - distinct.len(),
        }
    }

    pub(super) fn lost(&self) -> usize {
        self.accepted - self.delivered
    }

    pub(super) fn is_complete(&self) -> bool {
        self.lost() == 0
    }
}
