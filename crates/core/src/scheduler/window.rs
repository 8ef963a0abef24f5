//! The window: the pending deliveries in memory, which of them are in flight or being recorded, and which deliveries
//! it takes.
//!
//! Invariants: an id has at most one entry, and the slot of an attempt is freed exactly once.

use std::ops::Index;

use super::flight::{DeliveryChange, Flight};
use super::lane::Lane;
use super::timer::Timer;
use super::{Limits, RowIndex, Scheduler, Stage};
use crate::delivery::Decision;
use crate::slots::Slots;
use crate::{Delivery, DeliveryId, IdMap, Shard, State, Timestamp};

#[derive(Debug)]
pub(super) struct Item {
    pub(super) delivery: Delivery,
    pub(super) lane: u32,
    /// Its index in `Window::in_flight` or `Window::recording`, by its stage.
    number: u32,
    pub(super) place: RowIndex,
    pub(super) stage: Stage,
    /// [`crate::delivery::Decision::keeps_wait`] of its last attempt.
    pub(super) keeps_wait: bool,
}

/// The deliveries in memory. They are kept in a slab, so that the table of ids stays small: most of a window's memory
/// is here.
#[derive(Debug, Default)]
pub(super) struct Window {
    items: Slots<Item>,
    numbers: IdMap<DeliveryId, u32>,
    in_flight: Slots<Flight>,
    pub(super) slow_in_flight: u32,
    /// Deliveries whose outcome is being made durable.
    recording: Slots<DeliveryId>,
    /// How many transitions [`State::become_`] refused.
    pub(super) refused_moves: u64,
}

impl Window {
    fn insert(&mut self, delivery: Delivery, lane: u32, place: RowIndex) {
        let id = delivery.id;
        let item = Item { delivery, lane, number: 0, place, stage: Stage::Waiting, keeps_wait: false };
        let number = self.items.insert(item);
        self.numbers.insert(id, number);
    }

    fn remove(&mut self, id: DeliveryId) -> Option<Item> {
        let item = self.items.remove(self.numbers.remove(&id)?)?;
        if item.stage == Stage::Recording {
            self.recording.remove(item.number);
        }
        Some(item)
    }

    pub(super) fn get(&self, id: DeliveryId) -> Option<&Item> {
        self.items.get(*self.numbers.get(&id)?)
    }

    pub(super) fn get_mut(&mut self, id: DeliveryId) -> Option<&mut Item> {
        self.items.get_mut(*self.numbers.get(&id)?)
    }

    pub(super) fn contains(&self, id: DeliveryId) -> bool {
        self.numbers.contains_key(&id)
    }

    /// All items, in an order that has no meaning but is the same in every run.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Item> {
        self.items.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The attempt that a delivery of the window is in, if it is in flight.
    pub(super) fn flight(&self, item: &Item) -> Option<&Flight> {
        self.in_flight.get(item.number).filter(|flight| flight.delivery == item.delivery.id)
    }

    /// The deliveries in flight, in the order of their slots.
    pub(super) fn flying(&self) -> impl Iterator<Item = &Delivery> {
        self.in_flight.iter().map(|flight| &self[flight.delivery].delivery)
    }

    /// The deliveries in flight and those being recorded, sorted by id.
    pub(super) fn under_way(&self, matches: impl Fn(&Delivery) -> bool) -> Vec<DeliveryId> {
        let recording = self.recording.iter().map(|id| &self[*id].delivery);
        let matching = self.flying().chain(recording).filter(|delivery| matches(delivery));
        let mut ids: Vec<DeliveryId> = matching.map(|delivery| delivery.id).collect();
        ids.sort_unstable();
        ids
    }

    /// The waiting deliveries that a predicate holds for, sorted by id.
    pub(super) fn waiting(&self, matches: impl Fn(&Delivery) -> bool) -> Vec<DeliveryId> {
        let waiting = self.iter().filter(|item| item.waits() && matches(&item.delivery));
        let mut ids: Vec<DeliveryId> = waiting.map(|item| item.delivery.id).collect();
        ids.sort_unstable();
        ids
    }

    /// Notes that an attempt at this delivery starts.
    pub(super) fn take_off(&mut self, flight: Flight) -> &Delivery {
        let id = flight.delivery;
        self.slow_in_flight += u32::from(flight.slow);
        let number = self.in_flight.insert(flight);
        let item = self.numbers.get(&id).and_then(|at| self.items.get_mut(*at)).expect("picked from the window");
        self.refused_moves += u64::from(!item.delivery.state.become_(State::Dispatching));
        item.stage = Stage::InFlight;
        item.number = number;
        &item.delivery
    }

    /// Frees the slot of an attempt that has ended or was not made. Returns the index of its lane as well.
    pub(super) fn land(&mut self, id: DeliveryId) -> Option<(Flight, u32)> {
        let &Item { number, lane, .. } = &self[id];
        let flight = self.in_flight.remove(number).filter(|flight| flight.delivery == id)?;
        self.slow_in_flight -= u32::from(flight.slow);
        Some((flight, lane))
    }

    fn let_wait(&mut self, id: DeliveryId) -> &Item {
        let item = self.numbers.get(&id).and_then(|at| self.items.get_mut(*at)).expect("the delivery is in the window");
        if item.stage == Stage::Recording {
            self.recording.remove(item.number);
        }
        item.stage = Stage::Waiting;
        item
    }

    /// Applies a decision; the delivery is then being recorded.
    pub(super) fn apply(&mut self, id: DeliveryId, decision: &Decision) -> DeliveryChange {
        let item = self.numbers.get(&id).and_then(|at| self.items.get_mut(*at));
        let item = item.expect("the decision is about a delivery of the window");
        let attempts_before = item.delivery.attempts;
        item.delivery.attempts = decision.attempts;
        item.delivery.previous_wait = decision.previous_wait;
        item.delivery.limited_in_a_row = decision.limited_in_a_row;
        item.delivery.last_cause = decision.last_cause;
        item.delivery.compact = decision.compact;
        self.refused_moves += u64::from(!item.delivery.state.become_(decision.state));
        if item.stage != Stage::Recording {
            item.number = self.recording.insert(id);
        }
        item.stage = Stage::Recording;
        item.place = decision.place;
        item.keeps_wait = decision.keeps_wait;
        DeliveryChange {
            delivery: item.delivery.clone(),
            attempts_before,
            place: item.place,
            shard: Shard::of(item.delivery.lane),
            pauses_lane: decision.pauses_lane,
            endpoint_change: decision.endpoint_change,
        }
    }
}

impl Item {
    /// Whether it is neither in flight nor being recorded.
    pub(super) fn waits(&self) -> bool {
        matches!(self.stage, Stage::Ready | Stage::Waiting)
    }
}

impl Index<DeliveryId> for Window {
    type Output = Item;

    fn index(&self, id: DeliveryId) -> &Item {
        self.get(id).expect("the delivery is in the window")
    }
}

/// The result of [`Scheduler::admit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Taken,
    /// It was in the window already.
    Known,
    /// Its queue or the window is full, or its lane is held: it stays in the store.
    NoRoom,
}

impl Scheduler {
    /// Takes a delivery into the window, if there is room for it.
    ///
    /// `place` is where its row is now. Of a strict lane, only one delivery is admitted at a time.
    pub fn admit(&mut self, now: Timestamp, delivery: Delivery, place: RowIndex) -> Admission {
        if self.window.contains(delivery.id) {
            return Admission::Known;
        }
        let index = self.lanes.ensure(delivery.lane);
        if !self.has_room(index, &delivery, place, now) {
            self.drop_if_idle(index, now);
            return Admission::NoRoom;
        }
        let id = delivery.id;
        self.insert(delivery, place);
        self.wait(id, now);
        Admission::Taken
    }

    pub fn knows(&self, id: DeliveryId) -> bool {
        self.window.contains(id)
    }

    fn has_room(&self, index: u32, delivery: &Delivery, place: RowIndex, now: Timestamp) -> bool {
        let lane = &self.lanes[index];
        if lane.is_strict() {
            return lane.kept == [0; 3];
        }
        if place == RowIndex::Ready && lane.is_spilling(delivery.tier) {
            return false;
        }
        // A delivery that waits for a receipt is always admitted; any other needs room in its queue.
        matches!(delivery.state, State::AwaitingAck { .. })
            || (lane.kept[delivery.tier.index()] < room(&self.limits, lane)
                && self.window.len() < self.limits.window
                && (lane.settings.is_none() || self.holding(lane, now).is_none()))
    }

    pub(super) fn insert(&mut self, delivery: Delivery, place: RowIndex) {
        let index = self.lanes.ensure(delivery.lane);
        self.lanes[index].kept[delivery.tier.index()] += 1;
        self.window.insert(delivery, index, place);
    }

    /// Lets a delivery wait for its due time; if that has come, it is ready at once.
    pub(super) fn wait(&mut self, id: DeliveryId, now: Timestamp) {
        let item = self.window.let_wait(id);
        let due = item.delivery.state.due().unwrap_or(now);
        if let Some(at) = item.delivery.expiry.at() {
            self.timers.set(at, Timer::Over(id));
        }
        if due > now || matches!(item.delivery.state, State::AwaitingAck { .. }) {
            self.timers.set(due, Timer::Due(id));
        } else {
            self.due(id, now);
        }
    }

    /// Removes a delivery from the window: it has ended, or its row stays in the store.
    pub(super) fn leave(&mut self, id: DeliveryId, now: Timestamp) {
        if self.window.get(id).is_some_and(|item| item.stage == Stage::InFlight) {
            self.unsent(id, now);
        }
        let Some(item) = self.window.remove(id) else { return };
        let lane = &mut self.lanes[item.lane];
        let kept = &mut lane.kept[item.delivery.tier.index()];
        *kept = kept.saturating_sub(1);
        if let Some(destination) = &mut lane.destination {
            destination.retries.remove(&id);
        }
        self.enqueue_tiers(item.lane, now);
        self.drop_if_idle(item.lane, now);
    }

    pub(super) fn lane_of(&self, id: DeliveryId) -> Option<&Lane> {
        self.window.get(id).map(|item| &self.lanes[item.lane])
    }
}

/// How many deliveries of one tier of a lane the window takes; a draining lane gets twice as many, so that its backlog
/// does not keep fresh deliveries out.
pub(super) fn room(limits: &Limits, lane: &Lane) -> u32 {
    if lane.drain().is_some() { limits.per_queue.saturating_mul(2) } else { limits.per_queue }
}
