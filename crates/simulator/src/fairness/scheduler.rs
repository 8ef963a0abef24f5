//! The scheduler under test: the core's, with the part of a store that it needs. And, as controls, schedulers that are
//! unfair on purpose: the measurements must show it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use posthaste_core::scheduler::{Admission, AfterRecord, HORIZON, Limits, Order, PageWanted, Pick, TenantSettings};
use posthaste_core::{
    Cause, Delivery, DeliveryChange, DeliveryId, EndpointId, LaneId, LaneSettings, MessageId, Policy, Roll, RowIndex,
    Scheduler, State, TenantId, Tier, Timestamp, Verdict,
};

/// A message that is due, for one destination.
#[derive(Clone, Copy, Debug)]
pub(super) struct DueMessage {
    /// Counted from 0, in order of arrival.
    pub(super) id: usize,
    pub(super) tenant: u64,
    pub(super) lane: u64,
    pub(super) tier: Tier,
    pub(super) due: Timestamp,
    /// Attempts made before.
    pub(super) attempts: u16,
}

/// Decides which job is sent when.
pub(super) trait FairScheduler {
    fn arrive(&mut self, now: Timestamp, job: DueMessage);
    /// The next job to send now. Called until it returns `None`.
    fn next(&mut self, now: Timestamp) -> Option<usize>;
    /// Handles the end of an attempt.
    fn landed(&mut self, now: Timestamp, job: usize, verdict: &Verdict);
    /// When to call `next` again if nothing happens before.
    fn wake_at(&self) -> Option<Timestamp>;
}

/// The core's scheduler. Rows that it leaves in the store are kept here as job numbers.
pub(super) struct CoreScheduler {
    queue: Scheduler,
    policy: Arc<Policy>,
    /// Limits of attempts in flight of tenants' endpoints, where not the default.
    max_in_flight: BTreeMap<u64, u16>,
    jobs: Vec<DueMessage>,
    /// Spilled rows, by queue.
    spilled: BTreeMap<(u64, Tier), BTreeSet<usize>>,
    /// Rows that are outside the window until shortly before they are due.
    later: BTreeMap<(Timestamp, usize), Delivery>,
    rng: Rng,
}

impl CoreScheduler {
    /// The scheduler as it ships, with this many slots.
    pub(super) fn new(slots: u32) -> Self {
        Self::with(Limits { slots, ..Limits::default() })
    }

    pub(super) fn with(limits: Limits) -> Self {
        Self {
            queue: Scheduler::new(limits),
            policy: Arc::new(Policy::default()),
            max_in_flight: BTreeMap::new(),
            jobs: Vec::new(),
            spilled: BTreeMap::new(),
            later: BTreeMap::new(),
            rng: Rng::with_seed(1),
        }
    }

    /// Sets the limit of attempts in flight of a tenant's endpoints.
    pub(super) fn max_in_flight(mut self, tenant: u64, max_in_flight: u16) -> Self {
        self.max_in_flight.insert(tenant, max_in_flight);
        self
    }

    /// Sets a tenant's weight, in thousandths.
    pub(super) fn weight(mut self, now: Timestamp, tenant: u64, weight_milli: u32) -> Self {
        let tenant = TenantSettings::new(TenantId::from_raw(tenant));
        self.queue.set_tenant(now, TenantSettings { weight_milli, ..tenant });
        self
    }

    fn know_lane(&mut self, now: Timestamp, job: &DueMessage) {
        let lane = LaneId::from_raw(job.lane);
        if !self.queue.knows_lane(lane) {
            let tenant = TenantId::from_raw(job.tenant);
            let settings = LaneSettings::new(lane, tenant, Arc::clone(&self.policy));
            let max_in_flight = self.max_in_flight.get(&job.tenant).copied().unwrap_or(settings.max_in_flight);
            let settings = LaneSettings { max_in_flight, ..settings };
            self.queue.set_lane(now, &Arc::new(settings));
        }
    }

    fn admit(&mut self, now: Timestamp, delivery: Delivery, place: RowIndex) -> Admission {
        let job = self.jobs[number(delivery.id)];
        self.know_lane(now, &job);
        let admission = self.queue.admit(now, delivery, place);
        if admission == Admission::NoRoom {
            self.spill(&job);
        }
        admission
    }

    fn spill(&mut self, job: &DueMessage) {
        self.spilled.entry((job.lane, job.tier)).or_default().insert(job.id);
        self.queue.spilled(LaneId::from_raw(job.lane), job.tier, delivery_id(job.id));
    }

    /// Reads rows for which the window has room. Returns whether it admitted any.
    fn page(&mut self, now: Timestamp) -> bool {
        let mut admitted = false;
        while let Some(entry) = self.later.first_entry()
            && entry.key().0 <= now + HORIZON / 2
        {
            let delivery = entry.remove();
            admitted |= self.admit(now, delivery, RowIndex::Delayed) == Admission::Taken;
        }
        for shed in self.queue.evict(now) {
            let job = self.jobs[number(shed.delivery)];
            self.spill(&job);
        }
        while let Some(wanted) = self.queue.next_page(now) {
            admitted |= self.read(now, &wanted);
        }
        // Not needed: `arrive` asks the scheduler itself whether a queue spills.
        self.queue.take_spilling_changes();
        admitted
    }

    fn read(&mut self, now: Timestamp, wanted: &PageWanted) -> bool {
        let limit = usize::try_from(wanted.limit).expect("a page is small");
        let rows = self.spilled.get(&(wanted.lane.raw(), wanted.tier));
        let mut rows: Vec<usize> = rows
            .into_iter()
            .flatten()
            .filter(|id| wanted.span.contains(delivery_id(**id)))
            .take(limit + 1)
            .copied()
            .collect();
        let more = rows.len() > limit;
        rows.truncate(limit);
        let mut admitted = false;
        for id in rows {
            admitted |= self.admit(now, delivery(&self.jobs[id]), RowIndex::Spilled) == Admission::Taken;
        }
        self.queue.paged(now, wanted.lane, wanted.tier, wanted.span, more);
        admitted
    }

    /// Records a change, which is durable at once here.
    fn record(&mut self, now: Timestamp, record: DeliveryChange) {
        let mut record = record;
        loop {
            let id = number(record.delivery.id);
            let job = &mut self.jobs[id];
            job.attempts = record.delivery.attempts;
            if let Some(rows) = self.spilled.get_mut(&(job.lane, job.tier)) {
                rows.remove(&id);
            }
            match self.queue.recorded(now, record.delivery.id) {
                AfterRecord::Again(again) => record = again,
                AfterRecord::Left(due) => {
                    self.later.insert((due, id), record.delivery);
                    return;
                }
                AfterRecord::Ended | AfterRecord::Waits => return,
            }
        }
    }
}

impl FairScheduler for CoreScheduler {
    fn arrive(&mut self, now: Timestamp, job: DueMessage) {
        assert_eq!(job.id, self.jobs.len(), "jobs come in the order of their numbers");
        self.jobs.push(job);
        let id = delivery_id(job.id);
        self.queue.seen(now, id);
        let is_spilling = self.queue.is_spilling(LaneId::from_raw(job.lane), job.tier);
        match RowIndex::for_new(Order::Fifo, is_spilling, now, job.due) {
            RowIndex::Spilled => {
                self.know_lane(now, &job);
                self.spill(&job);
            }
            place => {
                self.admit(now, delivery(&job), place);
            }
        }
    }

    fn next(&mut self, now: Timestamp) -> Option<usize> {
        loop {
            match self.queue.next(now, Roll(self.rng.u64(..))) {
                Some(Pick::Send(start)) => return Some(number(start.delivery)),
                Some(Pick::Record(record)) => self.record(now, record),
                None if self.page(now) => {}
                None => return None,
            }
        }
    }

    fn landed(&mut self, now: Timestamp, job: usize, verdict: &Verdict) {
        let roll = Roll(self.rng.u64(..));
        if let Some(record) = self.queue.settle(now, roll, delivery_id(job), verdict, false) {
            self.record(now, record);
        }
    }

    fn wake_at(&self) -> Option<Timestamp> {
        let later = self.later.first_key_value().map(|((due, _), _)| *due - HORIZON / 2);
        self.queue.wake_at().into_iter().chain(later).min()
    }
}

/// The delivery of a job, as it was at its arrival or after its last attempt.
fn delivery(job: &DueMessage) -> Delivery {
    let id = delivery_id(job.id);
    let lane = LaneId::from_raw(job.lane);
    let mut delivery = Delivery::queued(id, MessageId::from_raw(id.raw()), EndpointId(lane.0), lane, job.tier, job.due);
    if job.attempts > 0 {
        delivery.attempts = job.attempts;
        delivery.state = State::Retry { due: job.due, cause: Cause::Unknown };
        delivery.last_cause = Some(Cause::Unknown);
        delivery.previous_wait = Some(Duration::from_secs(10));
    }
    delivery
}

fn delivery_id(job: usize) -> DeliveryId {
    DeliveryId::from_raw(u64::try_from(job).expect("fits") + 1)
}

fn number(delivery: DeliveryId) -> usize {
    usize::try_from(delivery.raw() - 1).expect("made from a number")
}

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

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_790_000_000_000);

    /// Sends all jobs, each failing this many times first. Returns how often each was sent.
    fn send_all(scheduler: &mut CoreScheduler, jobs: usize, failures: u32) -> Vec<u32> {
        let mut sent = vec![0; jobs];
        let mut now = NOW;
        loop {
            let picked: Vec<usize> = std::iter::from_fn(|| scheduler.next(now)).collect();
            for job in picked {
                let cause = if sent[job] < failures { Cause::InternalError } else { Cause::Ok };
                scheduler.landed(now, job, &Verdict::of(cause));
                sent[job] += 1;
            }
            match scheduler.wake_at() {
                Some(at) => now = at.max(now + Duration::from_millis(1)),
                None if scheduler.queue.is_empty() => return sent,
                None => {}
            }
        }
    }

    fn arrive(scheduler: &mut CoreScheduler, jobs: usize) {
        for id in 0..jobs {
            let lane = u64::try_from(id % 3).expect("below 3");
            let job = DueMessage { id, tenant: lane % 2, lane, tier: Tier::Promotional, due: NOW, attempts: 0 };
            scheduler.arrive(NOW, job);
        }
    }

    #[test]
    fn jobs_beyond_the_window_are_sent_exactly_once() {
        let mut scheduler = CoreScheduler::with(Limits { window: 100, per_queue: 20, ..Limits::default() });
        arrive(&mut scheduler, 1_000);
        assert_eq!(send_all(&mut scheduler, 1_000, 0), [1; 1_000]);
    }

    #[test]
    fn failed_jobs_are_retried_after_leaving_the_window() {
        let mut scheduler = CoreScheduler::new(4);
        arrive(&mut scheduler, 9);
        // The third attempt is minutes after the second.
        assert_eq!(send_all(&mut scheduler, 9, 3), [4; 9]);
    }
}
