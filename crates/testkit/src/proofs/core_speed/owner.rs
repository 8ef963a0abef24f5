//! Drives the core's scheduler while it is measured, with the calls of the engine's dispatch loop in the same order
//! and nothing else around them. The store is a set of counters, one attempt in a hundred fails, and the arrivals are
//! fixed: every run is the same.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::scheduler::{Admission, AfterRecord, Limits, Order, PageWanted, Pick};
use posthaste_core::{
    Cause, DeliveryChange, DeliveryId, LaneId, LaneSettings, OriginId, Policy, Roll, RowIndex, Scheduler, TenantId,
    Tier, Timestamp, Verdict,
};

use super::rows::{Rows, index, lane_id};

/// How many lanes have deliveries.
pub(super) const LANES: usize = 10_000;
const TENANTS: u64 = 20;
/// Deliveries in the window at any time: close to its default bound.
pub(super) const PENDING: u64 = 60_000;
/// Rows that wait in the store, in loads with such rows.
const BEHIND: u64 = 1_000_000;
/// One attempt in this many fails and is retried.
const ONE_FAILS_IN: u64 = 100;
/// Attempts that end in one turn of the loop.
const BATCH: usize = 256;
/// The time of a turn. While all slots are taken an attempt lasts four turns, like those of healthy receivers.
const TURN: Duration = Duration::from_millis(32);
const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);
/// The most turns in which no delivery ends: longer than any wait for a first retry.
const IDLE_TURNS_MAX: u32 = 1_000;

/// A scheduler with its store and its attempts in flight.
pub(super) struct Owner {
    queue: Scheduler,
    settings: Vec<Arc<LaneSettings>>,
    rows: Rows,
    in_flight: VecDeque<DeliveryId>,
    records: Vec<DeliveryChange>,
    wanted: Vec<PageWanted>,
    turns: u32,
    /// How many deliveries are to end, and how many have ended.
    target: u64,
    ended: u64,
    /// How many of the ended deliveries were replaced by an arrival, so that their number stays the same.
    replaced: u64,
    /// How many deliveries of each lane have ended.
    ended_of: Vec<u32>,
    before_next: fn(&Scheduler),
}

impl Owner {
    /// All pending deliveries are in the window.
    pub(super) fn with_nothing_behind() -> Self {
        let mut owner = Self::new();
        for _ in 0..PENDING {
            owner.arrive();
        }
        owner
    }

    /// As many deliveries, and a million more, are in the store, in all lanes.
    pub(super) fn with_rows_behind() -> Self {
        let mut owner = Self::new();
        for _ in 0..PENDING + BEHIND {
            owner.rows.arrive(START);
        }
        for settings in &owner.settings {
            owner.queue.set_lane(START, settings);
            for tier in Tier::ALL {
                owner.queue.spilled(settings.lane, tier, DeliveryId::from_raw(0));
            }
        }
        owner
    }

    fn new() -> Self {
        let policy = Arc::new(Policy::default());
        Self {
            queue: Scheduler::new(Limits::default()),
            settings: (0..LANES).map(|lane| Arc::new(settings(lane_id(lane), &policy))).collect(),
            rows: Rows::of(LANES),
            in_flight: VecDeque::new(),
            records: Vec::new(),
            wanted: Vec::new(),
            turns: 0,
            target: 0,
            ended: 0,
            replaced: 0,
            ended_of: vec![0; LANES],
            before_next: |_| {},
        }
    }

    /// The negative control: from now on every lane is read before every pick.
    pub(super) fn look_at_every_lane(&mut self) {
        self.before_next = |queue| {
            let seen = (0..LANES).filter(|lane| queue.is_spilling(lane_id(*lane), Tier::Promotional)).count();
            std::hint::black_box(seen);
        };
    }

    /// Runs turns until this many more deliveries have ended. Deliveries that a turn ended beyond that count for the
    /// next run.
    pub(super) fn run(&mut self, deliveries: u64) {
        self.target += deliveries;
        let mut idle = 0;
        while self.ended < self.target {
            let before = self.ended;
            self.turn();
            idle = if self.ended == before { idle + 1 } else { 0 };
            assert!(idle < IDLE_TURNS_MAX, "nothing has ended for {idle} turns, {} in flight", self.in_flight.len());
        }
        assert_eq!(self.queue.refused_moves(), 0, "a state change was refused");
    }

    /// How many lanes have a delivery that ended.
    pub(super) fn lanes_served(&self) -> usize {
        self.ended_of.iter().filter(|ended| **ended > 0).count()
    }

    fn turn(&mut self) {
        self.turns += 1;
        while self.replaced < self.ended {
            self.replaced += 1;
            self.arrive();
        }
        self.take_pages_in();
        self.finish();
        self.write();
        self.pick();
        let now = self.now();
        while let Some(wanted) = self.queue.next_page(now) {
            self.wanted.push(wanted);
        }
    }

    fn now(&self) -> Timestamp {
        START + TURN * self.turns
    }

    fn arrive(&mut self) {
        let now = self.now();
        let delivery = self.rows.arrive(now);
        let (id, lane, tier) = (delivery.id, delivery.lane, delivery.tier);
        self.queue.seen(now, id);
        self.queue.set_lane(now, &self.settings[index(lane)]);
        let place = RowIndex::for_new(Order::Fifo, self.queue.is_spilling(lane, tier), now, delivery.born);
        let stays_behind = place == RowIndex::Spilled || self.queue.admit(now, delivery, place) == Admission::NoRoom;
        if stays_behind {
            self.queue.spilled(lane, tier, id);
        }
    }

    fn take_pages_in(&mut self) {
        let now = self.now();
        for PageWanted { lane, tier, span, limit, .. } in std::mem::take(&mut self.wanted) {
            let mut rows = self.rows.queue(lane, tier).filter(|row| span.contains(row.id));
            let mut more = false;
            for row in rows.by_ref().take(limit as usize) {
                let id = row.id;
                if self.queue.admit(now, row, RowIndex::Spilled) == Admission::NoRoom {
                    self.queue.spilled(lane, tier, id);
                    more = true;
                }
            }
            more |= rows.next().is_some();
            self.queue.paged(now, lane, tier, span, more);
        }
    }

    /// Ends the oldest attempts.
    fn finish(&mut self) {
        let now = self.now();
        for id in self.in_flight.drain(..BATCH.min(self.in_flight.len())) {
            let roll = Roll(u64::from(self.turns)).fork(id.raw());
            let cause = if fails(roll) { Cause::ServerError } else { Cause::Ok };
            self.records.extend(self.queue.settle(now, roll, id, &Verdict::of(cause), false));
        }
    }

    /// Records decisions, which are durable at once.
    fn write(&mut self) {
        let now = self.now();
        for record in std::mem::take(&mut self.records) {
            self.rows.written(&record.delivery);
            match self.queue.recorded(now, record.delivery.id) {
                AfterRecord::Ended => {
                    self.ended += 1;
                    self.ended_of[index(record.delivery.lane)] += 1;
                }
                AfterRecord::Again(again) => self.records.push(again),
                // After a second failure the wait is long: the row stays in the store, and this run does not read it.
                AfterRecord::Waits | AfterRecord::Left(_) => {}
            }
        }
    }

    fn pick(&mut self) {
        let now = self.now();
        loop {
            (self.before_next)(&self.queue);
            match self.queue.next(now, Roll(u64::from(self.turns))) {
                Some(Pick::Send(start)) => self.in_flight.push_back(start.delivery),
                Some(Pick::Record(record)) => self.records.push(record),
                None => return,
            }
        }
    }
}

/// The settings of a lane: defaults, with an origin of its own.
pub(super) fn settings(lane: LaneId, policy: &Arc<Policy>) -> LaneSettings {
    let tenant = TenantId::from_raw(lane.raw() % TENANTS + 1);
    let origin = Some(OriginId::of(&format!("https://{lane}.example")));
    LaneSettings { origin, ..LaneSettings::new(lane, tenant, Arc::clone(policy)) }
}

pub(super) fn fails(roll: Roll) -> bool {
    roll.0.is_multiple_of(ONE_FAILS_IN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_keeps_the_window_full_and_serves_every_lane() {
        let mut owner = Owner::with_nothing_behind();
        let full = u64::try_from(owner.queue.len()).expect("a window fits");
        owner.run(40_000);
        let waiting = u64::try_from(owner.queue.len()).expect("a window fits");
        assert_eq!(full, PENDING);
        // Deliveries that the last turn ended are not replaced yet.
        assert!((PENDING - BATCH as u64..=PENDING).contains(&waiting), "{waiting} wait");
        assert_eq!(owner.lanes_served(), LANES);
        assert_eq!(owner.queue.take_spilling_changes(), [], "there was room for all deliveries");
    }
}
