//! The least time between the beginnings of two commits under load: a short wait gathers more requests into one commit.
//!
//! A commit costs nearly the same for one request as for ten: the pages at the end of each table, their sync, and
//! waking the callers. On a disk that syncs in a third of a millisecond the writer would make thousands of commits a
//! second of a few requests each, and use up the processor's cores. So after a group of [`COMPANY`] or more requests
//! the next group begins no sooner than [`APART`] after that one began; after a smaller group it begins at once.

use std::thread;
use std::time::{Duration, Instant};

/// The least time between the beginnings of two groups under load. On a slow disk commits take longer than this, and no
/// group waits.
const APART: Duration = Duration::from_millis(1);
/// A group of so many requests counts as load: one producer that sends message after message causes an accept and a
/// settle or two in each group.
const COMPANY: usize = 4;

/// When the last group began, and how many requests it committed.
pub(super) struct Spacing {
    began: Instant,
    pub(super) requests: usize,
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
}

#[expect(
    clippy::disallowed_methods,
    reason = "how far commits are apart is the disk's time, which decides nothing else"
)]
fn now() -> Instant {
    Instant::now()
}

/// How long the next group waits, when the last one had `requests` and began `since` ago.
fn wait(requests: usize, since: Duration) -> Duration {
    if requests < COMPANY { Duration::ZERO } else { APART.saturating_sub(since) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_under_load_begin_apart_and_others_at_once() {
        let soon = Duration::from_micros(300);
        assert_eq!(wait(1, soon), Duration::ZERO);
        assert_eq!(wait(COMPANY - 1, soon), Duration::ZERO);
        assert_eq!(wait(COMPANY, soon), Duration::from_micros(700));
        assert_eq!(wait(500, Duration::from_secs(2)), Duration::ZERO);
    }
}
