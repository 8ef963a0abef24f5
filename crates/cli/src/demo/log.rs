//! What a receiver of the demo wrote down: what the server claims is compared with this.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste_testkit::outage::Second;

/// A receiver's own log.
#[derive(Debug, Default)]
pub(super) struct Log {
    arrivals: Vec<Arrival>,
    /// How often each message was taken.
    taken: BTreeMap<String, usize>,
    /// Requests that were not signed as they should be. They are refused.
    pub(super) forged: usize,
}

#[derive(Clone, Copy, Debug)]
struct Arrival {
    at: Duration,
    /// What it was answered; nothing if the sender left before.
    answer: Option<u16>,
}

/// One request's place in the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry(usize);

impl Log {
    /// A request came.
    pub(super) fn arrived(&mut self, at: Duration) -> Entry {
        self.arrivals.push(Arrival { at, answer: None });
        Entry(self.arrivals.len() - 1)
    }

    /// It is answered now.
    pub(super) fn answered(&mut self, Entry(index): Entry, message: &str, status: u16) {
        self.arrivals[index].answer = Some(status);
        if is_taken(status) {
            *self.taken.entry(message.to_owned()).or_default() += 1;
        }
    }

    pub(super) fn requests(&self) -> usize {
        self.arrivals.len()
    }

    /// Messages that were taken, once or more often.
    pub(super) fn taken(&self) -> usize {
        self.taken.len()
    }

    /// How often a message was taken.
    pub(super) fn times_taken(&self, message: &str) -> usize {
        self.taken.get(message).copied().unwrap_or(0)
    }

    /// How often messages were taken that were taken before.
    pub(super) fn duplicates(&self) -> usize {
        self.taken.values().map(|times| times - 1).sum()
    }

    /// The load second by second of the story.
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
    fn what_was_taken_again_is_a_duplicate_and_what_was_not_answered_has_failed() {
        let mut log = Log::default();
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
        assert_eq!(loads, [(2, 0), (2, 1)], "the picture ends before the last");
    }
}
