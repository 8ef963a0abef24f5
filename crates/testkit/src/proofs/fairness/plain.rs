//! Schedulers that are unfair on purpose, as controls: the measurements must show it.

use std::collections::{BTreeMap, VecDeque};

use posthaste_core::delivery::Verdict;
use posthaste_core::time::Timestamp;

use super::scheduler::{FairScheduler, Job};

/// The order in which a plain scheduler serves messages.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// One queue for all messages, first in first out.
    Fifo,
    /// Tenants in turn, one message each, regardless of slot-time.
    ByCount,
    /// Always the most urgent tier first.
    ByTier,
}

/// A scheduler with a number of slots and a rule, without retries.
pub(super) struct Plain {
    rule: Rule,
    free: u32,
    waiting: BTreeMap<u64, VecDeque<usize>>,
    last: u64,
}

impl Plain {
    pub(super) fn new(rule: Rule, slots: u32) -> Self {
        Self { rule, free: slots, waiting: BTreeMap::new(), last: 0 }
    }

    fn queue_of(&self, job: &Job) -> u64 {
        match self.rule {
            Rule::Fifo => 0,
            Rule::ByCount => job.tenant,
            Rule::ByTier => job.tier as u64,
        }
    }
}

impl FairScheduler for Plain {
    fn arrive(&mut self, _: Timestamp, job: Job) {
        self.waiting.entry(self.queue_of(&job)).or_default().push_back(job.id);
    }

    fn next(&mut self, _: Timestamp) -> Option<usize> {
        let free = self.free.checked_sub(1)?;
        let after = match self.rule {
            Rule::ByCount => self.last + 1,
            Rule::Fifo | Rule::ByTier => 0,
        };
        let in_turn = self.waiting.range(after..).chain(self.waiting.range(..after));
        self.last = in_turn.filter(|(_, jobs)| !jobs.is_empty()).map(|(queue, _)| *queue).next()?;
        self.free = free;
        self.waiting.get_mut(&self.last)?.pop_front()
    }

    fn landed(&mut self, _: Timestamp, _: usize, _: &Verdict) {
        self.free += 1;
    }

    fn wake_at(&self) -> Option<Timestamp> {
        None
    }
}
