//! Counts the deliveries that arrive at the bench's receiver, and measures how long they took.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::requests::{sent_us, wall_us};

/// The deliveries that arrived.
#[derive(Debug, Default)]
pub(super) struct ArrivalTally {
    taken: u64,
    refused: u64,
    /// Hashes of deliveries' ids: 64 bits of a million ids collide once in 30 million runs.
    deliveries: HashSet<u64>,
    /// The time from sending to arrival of each, in microseconds.
    took_us: Vec<u64>,
}

/// The numbers of requests and deliveries.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct ArrivalCount {
    /// Deliveries; one that came twice counts once.
    pub(super) distinct: u64,
    /// Requests that were answered with success.
    pub(super) taken: u64,
    /// Requests that were answered with a failure.
    pub(super) refused: u64,
}

/// Percentiles of the time from sending to arrival, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct ArrivalTimes {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) p999_ms: f64,
}

impl ArrivalTally {
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

    pub(super) fn count(&self) -> ArrivalCount {
        ArrivalCount { distinct: self.deliveries.len() as u64, taken: self.taken, refused: self.refused }
    }

    pub(super) fn arrival(&mut self) -> ArrivalTimes {
        self.took_us.sort_unstable();
        let at = |of_thousand| percentile_ms(&self.took_us, of_thousand);
        ArrivalTimes { p50_ms: at(500), p99_ms: at(990), p999_ms: at(999) }
    }
}

/// A percentile of ascending times in microseconds.
pub(super) fn percentile_ms(sorted_us: &[u64], of_thousand: usize) -> f64 {
    sorted_us.get(sorted_us.len() * of_thousand / 1_000).copied().unwrap_or_default() as f64 / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_delivery_counts_once_as_distinct_and_twice_as_taken() {
        let mut tally = ArrivalTally::default();
        tally.refuse();
        for id in [1, 2, 2] {
            tally.take(Some(id), b"{}");
        }
        let count = tally.count();
        assert_eq!((count.distinct, count.taken, count.refused), (2, 3, 1));
    }

    #[test]
    fn percentiles_are_those_of_the_arrived_deliveries() {
        let mut tally =
            ArrivalTally { took_us: (1..=1_000).rev().map(|ms| ms * 1_000).collect(), ..ArrivalTally::default() };
        let arrival = tally.arrival();
        assert_eq!((arrival.p50_ms, arrival.p99_ms, arrival.p999_ms), (501.0, 991.0, 1_000.0));
        assert_eq!(ArrivalTally::default().arrival().p99_ms, 0.0);
    }
}
