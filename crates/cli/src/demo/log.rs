//! The log of a receiver of the demo. The ledger compares the server's results with it.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste_prove::chart::Second;

/// The requests that a receiver got.
#[derive(Debug, Default)]
pub(super) struct RequestLog {
    arrivals: Vec<Arrival>,
    taken: BTreeMap<String, usize>,
    /// Requests without a valid signature. They are refused.
    pub(super) forged: usize,
}

#[derive(Clone, Copy, Debug)]
struct Arrival {
    at: Duration,
    /// The status that was answered; `None` if the sender closed the connection before.
    answer: Option<u16>,
}

/// The index of a request in the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestNumber(usize);

impl RequestLog {
    pub(super) fn arrived(&mut self, at: Duration) -> RequestNumber {
        self.arrivals.push(Arrival { at, answer: None });
        RequestNumber(self.arrivals.len() - 1)
    }

    pub(super) fn answered(&mut self, RequestNumber(index): RequestNumber, message: &str, status: u16) {
        self.arrivals[index].answer = Some(status);
        if is_taken(status) {
            *self.taken.entry(message.to_owned()).or_default() += 1;
        }
    }

    pub(super) fn requests(&self) -> usize {
        self.arrivals.len()
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.len()
    }

    pub(super) fn times_taken(&self, message: &str) -> usize {
        self.taken.get(message).copied().unwrap_or(0)
    }

    pub(super) fn duplicates(&self) -> usize {
        self.taken.values().map(|times| times - 1).sum()
    }

    pub(super) fn seconds(&self, length: Duration) -> Vec<Second> {
        let mut seconds = vec![Second::default(); usize::try_from(length.as_secs()).unwrap_or(0)];
        for arrival in &self.arrivals {
            let index = usize::try_from(arrival.at.as_secs()).unwrap_or(usize::MAX);
            let Some(second) = seconds.get_mut(index) else { continue };
            second.tries += 1;
            second.failed += u32::from(!arrival.answer.is_some_and(is_taken));
        }
        seconds
    }
}

fn is_taken(status: u16) -> bool {
    (200..300).contains(&status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_messages_are_duplicates_and_unanswered_requests_have_failed() {
        let mut log = RequestLog::default();
        let at = |second: u64| Duration::from_millis(second * 1_000 + 500);
        for (second, message, status) in [(0, "a", 204), (0, "a", 204), (1, "b", 502), (1, "b", 204)] {
            let entry = log.arrived(at(second));
            log.answered(entry, message, status);
        }
        log.arrived(at(2));
        assert_eq!((log.requests(), log.taken(), log.duplicates()), (5, 2, 1));
        assert_eq!((log.times_taken("a"), log.times_taken("b"), log.times_taken("c")), (2, 1, 0));
        let loads: Vec<(u32, u32)> =
            log.seconds(Duration::from_secs(2)).iter().map(|second| (second.tries, second.failed)).collect();
        assert_eq!(loads, [(2, 0), (2, 1)], "the chart ends before the last request");
    }
}
