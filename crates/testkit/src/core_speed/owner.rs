//! Who drives the queue while it is measured: the calls the engine's dispatch loop makes, in its
//! order and with nothing else around them. The store is a row of counters, receivers are well but
//! for one answer in a hundred, and which delivery comes when is fixed: every run makes the same.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::cause::Cause;
use posthaste_core::delivery::Verdict;
use posthaste_core::dice::Roll;
use posthaste_core::id::{DeliveryId, LaneId, OriginId, TenantId};
use posthaste_core::policy::Policy;
use posthaste_core::queue::{Admission, LaneSettings, Limits, Order, PageWanted, Pick, Place, Queue, Record, Recorded};
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;

use super::rows::{Rows, index, lane_id};

/// How many destinations have work.
pub(super) const LANES: usize = 10_000;
const TENANTS: u64 = 20;
/// What waits in the window at any time: close to its default bound.
pub(super) const PENDING: u64 = 60_000;
/// What waits behind the window, where something does.
const BEHIND: u64 = 1_000_000;
/// One attempt in so many fails and is tried again.
const ONE_FAILS_IN: u64 = 100;
/// Attempts that end in one turn of the loop.
const BATCH: usize = 256;
/// How much time passes with every turn. While all slots are taken an attempt lasts four turns, as
/// receivers do that are well.
const TURN: Duration = Duration::from_millis(32);
const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);
/// Turns without an end after which something is wrong: longer than any first retry waits.
const IDLE_TURNS_MAX: u32 = 1_000;

/// A queue and what surrounds it.
pub(super) struct Owner {
    queue: Queue,
    settings: Vec<Arc<LaneSettings>>,
    rows: Rows,
    in_flight: VecDeque<DeliveryId>,
    records: Vec<Record>,
    wanted: Vec<PageWanted>,
    turns: u32,
    /// How many deliveries were asked for, and how many ended.
    target: u64,
    ended: u64,
    /// How many of the ended were followed by an arrival: as many wait as before.
    replaced: u64,
    /// How many of each lane ended.
    ended_of: Vec<u32>,
    before_next: fn(&Queue),
}

impl Owner {
    /// Everything that waits is in the window.
    pub(super) fn with_nothing_behind() -> Self {
        let mut owner = Self::new();
        for _ in 0..PENDING {
            owner.arrive();
        }
        owner
    }

    /// As much waits in the store, and a million more: some of every lane.
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
            queue: Queue::new(Limits::default()),
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

    /// Wrong on purpose: from now on every pick first looks at every lane.
    pub(super) fn look_at_every_lane(&mut self) {
        self.before_next = |queue| {
            let seen = (0..LANES).filter(|lane| queue.is_spilling(lane_id(*lane), Tier::Promotional)).count();
            std::hint::black_box(seen);
        };
    }

    /// Turns the loop until this many more deliveries have ended; what a turn did beyond is the
    /// next run's.
    pub(super) fn run(&mut self, deliveries: u64) {
        self.target += deliveries;
        let mut idle = 0;
        while self.ended < self.target {
            let before = self.ended;
            self.turn();
            idle = if self.ended == before { idle + 1 } else { 0 };
            assert!(idle < IDLE_TURNS_MAX, "nothing has ended for {idle} turns, {} in flight", self.in_flight.len());
        }
        assert_eq!(self.queue.refused_moves(), 0, "a delivery moved as none may");
    }

    /// How many lanes had a delivery that ended.
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
        let place = Place::for_new(Order::Fifo, self.queue.is_spilling(lane, tier), now, delivery.born);
        let stays_behind = place == Place::Spilled || self.queue.admit(now, delivery, place) == Admission::NoRoom;
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
                if self.queue.admit(now, row, Place::Spilled) == Admission::NoRoom {
                    self.queue.spilled(lane, tier, id);
                    more = true;
                }
            }
            more |= rows.next().is_some();
            self.queue.paged(now, lane, tier, span, more);
        }
    }

    /// The attempts that began first end.
    fn finish(&mut self) {
        let now = self.now();
        for id in self.in_flight.drain(..BATCH.min(self.in_flight.len())) {
            let roll = Roll(u64::from(self.turns)).fork(id.raw());
            let cause = if fails(roll) { Cause::ServerError } else { Cause::Ok };
            self.records.extend(self.queue.settle(now, roll, id, &Verdict::of(cause), false));
        }
    }

    /// What was decided is durable.
    fn write(&mut self) {
        let now = self.now();
        for record in std::mem::take(&mut self.records) {
            self.rows.written(&record.delivery);
            match self.queue.recorded(now, record.delivery.id) {
                Recorded::Ended => {
                    self.ended += 1;
                    self.ended_of[index(record.delivery.lane)] += 1;
                }
                Recorded::Again(again) => self.records.push(again),
                // A second failure waits long: it is the store's, and nobody waits for its return.
                Recorded::Waits | Recorded::Left(_) => {}
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

/// What a lane's owner has set: nothing special, an address of its own.
pub(super) fn settings(lane: LaneId, policy: &Arc<Policy>) -> LaneSettings {
    let tenant = TenantId::from_raw(lane.raw() % TENANTS + 1);
    let origin = Some(OriginId::of(&format!("https://{lane}.example")));
    LaneSettings { origin, ..LaneSettings::new(lane, tenant, Arc::clone(policy)) }
}

/// Whether the attempt of this roll fails.
pub(super) fn fails(roll: Roll) -> bool {
    roll.0.is_multiple_of(ONE_FAILS_IN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_wait_after_a_run_as_before_it_and_every_lane_was_served() {
        let mut owner = Owner::with_nothing_behind();
        let full = u64::try_from(owner.queue.len()).expect("a window fits");
        owner.run(40_000);
        let waiting = u64::try_from(owner.queue.len()).expect("a window fits");
        assert_eq!(full, PENDING);
        // What the last turn ended has no follower yet.
        assert!((PENDING - BATCH as u64..=PENDING).contains(&waiting), "{waiting} wait");
        assert_eq!(owner.lanes_served(), LANES);
        assert_eq!(owner.queue.take_spilling_changes(), [], "there was room for all of it");
    }
}
