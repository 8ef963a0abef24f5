//! Schedulers that are unfair on purpose, as controls: the measurements must show it.

use std::collections::{BTreeMap, VecDeque};

use posthaste_core::{Timestamp, Verdict};

use super::scheduler::{DueMessage, FairScheduler};

/// The order in which a plain scheduler serves messages.
#[derive(Clone, Copy, Debug)]
pub(super) enum PlainRule {
    /// One queue for all messages, first in first out.
    Fifo,
    /// Tenants in turn, one message each, regardless of slot-time.
    ByCount,
    /// Always the most urgent tier first.
    ByTier,
}

/// A scheduler with a number of slots and a rule, without retries.
pub(super) struct Plain {
    rule: PlainRule,
    free: u32,
    waiting: BTreeMap<u64, VecDeque<usize>>,
    last: u64,
}

impl Plain {
    pub(super) fn new(rule: PlainRule, slots: u32) -> Self {
        Self { rule, free: slots, waiting: BTreeMap::new(), last: 0 }
    }

    fn queue_of(&self, job: &DueMessage) -> u64 {
        match self.rule {
            PlainRule::Fifo => 0,
            PlainRule::ByCount => job.tenant,
            PlainRule::ByTier => job.tier as u64,
        }
    }
}

impl FairScheduler for Plain {
    fn arrive(&mut self, _: Timestamp, job: DueMessage) {
        self.waiting.entry(self.queue_of(&job)).or_default().push_back(job.id);
    }

    fn next(&mut self, _: Timestamp) -> Option<usize> {
        let free = self.free.checked_sub(1)?;
        let after = match self.rule {
            PlainRule::ByCount => self.last + 1,
            PlainRule::Fifo | PlainRule::ByTier => 0,
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
