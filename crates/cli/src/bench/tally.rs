//! Counts the deliveries that arrive at the bench's receiver, and measures how long they took.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::part::{sent_us, wall_us};

/// The deliveries that arrived.
#[derive(Debug, Default)]
pub(super) struct Tally {
    taken: u64,
    refused: u64,
    /// Hashes of deliveries' ids: 64 bits of a million ids collide once in 30 million runs.
    deliveries: HashSet<u64>,
    /// The time from sending to arrival of each, in microseconds.
    took_us: Vec<u64>,
}

/// The numbers of requests and deliveries.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Count {
    /// Deliveries; one that came twice counts once.
    pub(super) distinct: u64,
    /// Requests that were answered with success.
    pub(super) taken: u64,
    /// Requests that were answered with a failure.
    pub(super) refused: u64,
}

/// Percentiles of the time from sending to arrival, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Arrival {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) p999_ms: f64,
}

impl Tally {
    /// Counts a request that is answered with a failure.
    pub(super) fn refuse(&mut self) {
        self.refused += 1;
    }

    /// Counts a request that is answered with success, by the hash of its delivery's id.
    pub(super) fn take(&mut self, id: Option<u64>, body: &[u8]) {
        self.taken += 1;
        if id.is_some_and(|id| self.deliveries.insert(id))
            && let Some(sent) = sent_us(body)
        {
            self.took_us.push(wall_us().saturating_sub(sent));
        }
    }

    pub(super) fn count(&self) -> Count {
        Count { distinct: self.deliveries.len() as u64, taken: self.taken, refused: self.refused }
    }

    pub(super) fn arrival(&mut self) -> Arrival {
        self.took_us.sort_unstable();
        let at = |of_thousand: usize| {
            let took = self.took_us.get(self.took_us.len() * of_thousand / 1_000).copied().unwrap_or_default();
            #[expect(clippy::cast_precision_loss, reason = "microseconds of a run are far below 2^52")]
            let took = took as f64 / 1_000.0;
            took
        };
        Arrival { p50_ms: at(500), p99_ms: at(990), p999_ms: at(999) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_delivery_counts_once_as_distinct_and_twice_as_taken() {
        let mut tally = Tally::default();
        tally.refuse();
        for id in [1, 2, 2] {
            tally.take(Some(id), b"{}");
        }
        let count = tally.count();
        assert_eq!((count.distinct, count.taken, count.refused), (2, 3, 1));
    }

    #[test]
    fn percentiles_are_those_of_the_arrived_deliveries() {
        let mut tally = Tally { took_us: (1..=1_000).rev().map(|ms| ms * 1_000).collect(), ..Tally::default() };
        let arrival = tally.arrival();
        assert_eq!((arrival.p50_ms, arrival.p99_ms, arrival.p999_ms), (501.0, 991.0, 1_000.0));
        assert_eq!(Tally::default().arrival().p99_ms, 0.0);
    }
}
