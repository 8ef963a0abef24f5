//! How far apart commits begin: under load, one that waits a moment takes more along.
//!
//! A commit costs nearly the same for one request as for ten: the pages at the end of each table, their sync, and waking
//! whoever waits. On a disk that syncs in a third of a millisecond the writer would make thousands a second of a few
//! requests each, and take the cores from everybody else. So a group of several requests lets the next one begin no
//! sooner than [`APART`] after it began itself; where they come one by one, nobody is kept waiting.

use std::thread;
use std::time::{Duration, Instant};

/// Once there is company. A slow disk's commits take longer by themselves: then nobody waits.
const APART: Duration = Duration::from_millis(1);
/// As many requests are company: one who sends a message after the other comes with a settle or two.
const COMPANY: usize = 4;

/// When the last round began, and how many requests it committed.
#[derive(Debug)]
pub(super) struct Spacing {
    began: Instant,
    requests: usize,
}

impl Spacing {
    pub(super) fn new() -> Self {
        Self { began: now(), requests: 0 }
    }

    /// Waits until the next group may begin.
    pub(super) fn begin(&mut self) {
        let wait = wait(std::mem::take(&mut self.requests), self.began.elapsed());
        if !wait.is_zero() {
            thread::sleep(wait);
        }
        self.began = now();
    }

    /// The group has so many requests.
    pub(super) fn gathered(&mut self, requests: usize) {
        self.requests = requests;
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "how far commits are apart is the disk's time, which decides nothing else"
)]
fn now() -> Instant {
    Instant::now()
}

/// How long the next group waits that comes so long after one of so many requests began.
fn wait(requests: usize, since: Duration) -> Duration {
    if requests < COMPANY { Duration::ZERO } else { APART.saturating_sub(since) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_with_company_begin_apart_and_others_at_once() {
        let soon = Duration::from_micros(300);
        assert_eq!(wait(1, soon), Duration::ZERO);
        assert_eq!(wait(COMPANY - 1, soon), Duration::ZERO);
        assert_eq!(wait(COMPANY, soon), Duration::from_micros(700));
        assert_eq!(wait(500, Duration::from_secs(2)), Duration::ZERO);
    }
}
