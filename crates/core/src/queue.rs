//! Whose turn it is. The queue holds a bounded window of all pending deliveries and answers five
//! questions: [`Queue::admit`] (may this one come in), [`Queue::next`] (what to send now),
//! [`Queue::settle`] (what to record of an attempt), [`Queue::wake_at`] (when to ask again) and
//! [`Queue::explain`] (why does this one wait).
//!
//! Invariants: a delivery is in flight at most once; nothing is sent that is held, over its TTL or
//! covered by a cut; what was decided about a delivery is acted on only after
//! [`Queue::recorded`] said that it is durable. Driven by the engine's `dispatch`.

mod answer;
mod bar;
mod breakers;
mod destination;
mod drain;
mod explain;
mod items;
mod lane;
mod marks;
mod ready;
mod shared;
mod timer;
mod turn;
mod window;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub use breakers::{BreakerOf, BreakerShown, Recovery, Reset, SoftBreaker};
pub use drain::Span;
pub use explain::Explained;
pub use lane::{LaneSettings, OnDead, Order, Special};
pub use shared::SharedSettings;
pub use turn::{TenantSettings, WEIGHTS};
pub use window::{Admission, PageWanted, Shed};

use crate::cause::Class;
use crate::cut::{self, Cuts};
use crate::delivery::{self, Decision, Delivery, Verdict};
use crate::dice::Roll;
use crate::flow::breaker::Pass;
use crate::flow::{Care, SharedGate};
use crate::hold::Hold;
use crate::id::{DeliveryId, LaneId, MessageId, OriginId, Shard, TenantId};
use crate::id_map::IdMap;
use crate::slice::{self, Tightness};
use crate::slots::Slots;
use crate::state::State;
use crate::tier::Tier;
use crate::time::Timestamp;
use destination::Destination;
use items::Items;
use lane::Lane;
use marks::Marks;
use shared::Shared;
use timer::{Timer, Timers};
use turn::{Room, Speed, Taken, Turn};

/// How far ahead of its due time a delivery is worth a place in memory.
pub const HORIZON: Duration = Duration::from_secs(30);

/// How soon to look again at what could not be decided for want of its lane's settings.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Where a row is kept; decided when it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In its owner's memory: no index knows it.
    Ready,
    /// Indexed by its due time.
    Delayed,
    /// Indexed by its queue: its lane is strict, held or full.
    Spilled,
}

impl Place {
    /// Where the row of a new delivery belongs, decided when it is written.
    pub fn for_new(order: Order, spilling: bool, now: Timestamp, due: Timestamp) -> Self {
        match order {
            Order::Strict => Self::Spilled,
            _ if due > now => Self::Delayed,
            _ if spilling => Self::Spilled,
            _ => Self::Ready,
        }
    }
}

/// A tenant may hold half of the slots beside others, and never less than this.
const TENANT_SLOTS_LEAST: u32 = 2;

/// The lowest tier has one in so many slots whenever it can use them. Where there are fewer slots
/// than that, a whole one would be more than its share: weights alone decide.
const LOWEST_TIER_PART: u32 = 20;

/// How long an attempt is expected to take where nothing is known.
const EXPECTED: Duration = Duration::from_millis(100);

/// The bounds of the window.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Attempts under way at once, over all lanes.
    pub slots: u32,
    /// Deliveries of one queue (lane and tier) in memory.
    pub per_queue: u32,
    /// Deliveries in memory, over all queues.
    pub window: usize,
    /// Whether destinations are treated with care.
    pub care: Care,
}

impl Default for Limits {
    fn default() -> Self {
        Self { slots: 1_024, per_queue: 256, window: 65_536, care: Care::On }
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pick {
    /// Send this one. It is in flight until [`Queue::settle`] or [`Queue::put_back`].
    Send(Start),
    /// This one moved on without being sent: record it.
    Record(Record),
}

/// One attempt to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Of which delivery.
    pub delivery: DeliveryId,
    /// What to send.
    pub message: MessageId,
    /// Where to.
    pub lane: LaneId,
    /// Which attempt it is, from 1.
    pub attempt: u16,
    /// Whether the compact payload is to be sent.
    pub compact: bool,
    /// Whether a breaker waits for its answer: it is given less time.
    pub probe: bool,
}

/// A change to make durable. The owner tells [`Queue::recorded`] once it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The delivery as it is from now on.
    pub delivery: Delivery,
    /// Attempts the store must still count for the change to be valid.
    pub attempts_before: u16,
    /// Where its row goes, while it has one.
    pub place: Place,
    /// Who owns it.
    pub shard: Shard,
    /// A strict lane stops behind its dead head, in the same transaction.
    pub pauses_lane: bool,
    /// The endpoint is no more: cut its lane.
    pub ends_endpoint: bool,
}

/// What a recorded change means for the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// It ended and left.
    Ended,
    /// It waits in the window.
    Waits,
    /// It waits in the store and must be read back before this.
    Left(Timestamp),
    /// A cut came while it was being recorded: record this too.
    Again(Record),
}

/// Where a delivery of the window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its due time has come; it stands in its lane.
    Ready,
    /// Its due time has not come, or it awaits a receipt.
    Waiting,
    /// It is being sent.
    InFlight,
    /// Its outcome is being made durable.
    Recording,
}

/// An attempt under way.
#[derive(Clone, Copy, Debug)]
struct Flight {
    delivery: DeliveryId,
    taken: Taken,
    started: Timestamp,
    expected: Duration,
    slow: bool,
    /// Of its lane's breaker.
    generation: u32,
    /// The shared gates it went through: its lane may be elsewhere when it lands.
    shared: [Option<(SharedGate, Pass)>; 3],
}

/// The window over all pending deliveries of one owner.
#[derive(Debug, Default)]
pub struct Queue {
    limits: Limits,
    lanes: Slots<Lane>,
    lane_index: IdMap<LaneId, u32>,
    items: Items,
    in_flight: Slots<Flight>,
    /// Attempts under way at destinations that answer slowly.
    slow_in_flight: u32,
    /// Those whose outcome is being made durable.
    recording: Slots<DeliveryId>,
    turn: Turn,
    timers: Timers,
    /// Their time to live may be over.
    over: Vec<DeliveryId>,
    /// Their receipt did not come in time.
    unacknowledged: Vec<DeliveryId>,
    /// Queues that began or ended to spill.
    spilling_changes: Vec<(LaneId, Tier, bool)>,
    /// Lanes that may want a page, in turn.
    hungry: VecDeque<u32>,
    /// New rows that pages under way may bring.
    rows_to_come: usize,
    /// Where the next look for rows to spill begins.
    shed_from: u32,
    /// When a look at every lane did not make enough room, and nothing was held since.
    shed_in_vain: Option<Timestamp>,
    cuts: Cuts,
    paused_all: Option<Hold>,
    paused_tenants: IdMap<TenantId, Hold>,
    /// Gates that lanes share.
    shared: BTreeMap<SharedGate, Box<Shared>>,
    /// Origins with one failing lane.
    suspects: IdMap<OriginId, LaneId>,
    /// Lanes whose own breaker is not closed.
    troubled: BTreeSet<LaneId>,
    marks: Marks,
    /// The latest time it was asked at.
    latest: Timestamp,
    refused_moves: u64,
}

impl Queue {
    /// An empty window with these bounds.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// What to send or to record now; ask until it says `None`.
    pub fn next(&mut self, now: Timestamp, roll: Roll) -> Option<Pick> {
        self.fire(now);
        if let Some(record) = self.next_ack_timeout(now, roll) {
            return Some(Pick::Record(record));
        }
        while let Some(id) = self.over.pop() {
            if let Some(record) = self.end_over(id, now) {
                return Some(Pick::Record(record));
            }
        }
        while self.in_flight.len() < self.limits.slots as usize {
            let taken = self.take_turn(now)?;
            let Some(id) = self.pop(taken, now) else { continue };
            // Checked again here, at the last moment: the row may have waited long since it came in.
            if let Some(end) = self.ended_already(&self.items[&id].delivery, now) {
                let record = self.end(id, end);
                self.ring(taken.lane, taken.tier, now);
                return Some(Pick::Record(record));
            }
            let start = self.start(id, taken, now);
            self.ring(taken.lane, taken.tier, now);
            return Some(Pick::Send(start));
        }
        None
    }

    fn take_turn(&mut self, now: Timestamp) -> Option<Taken> {
        let cap = match self.limits.care {
            Care::On => (self.limits.slots / 2).max(TENANT_SLOTS_LEAST),
            Care::Off => u32::MAX,
        };
        let slots = self.limits.slots;
        let lowest = if slots >= LOWEST_TIER_PART { slots.div_ceil(LOWEST_TIER_PART) } else { 0 };
        let taken = self.turn.take(Room { cap, slow: self.has_room_for_slow(), lowest }, now);
        for (at, tenant) in self.turn.take_wakes() {
            self.timers.set(at, Timer::Tenant(tenant));
        }
        taken
    }

    /// A tenth of the slots is for those who answer quickly.
    fn has_room_for_slow(&self) -> bool {
        self.slow_in_flight < self.limits.slots - self.limits.slots / 10
    }

    /// What to record of an attempt; `None` when there is nothing to record: no attempt was spent,
    /// or nothing of that id is in flight.
    pub fn settle(&mut self, now: Timestamp, roll: Roll, id: DeliveryId, verdict: &Verdict) -> Option<Record> {
        let item = self.items.get(&id).filter(|item| item.stage == Stage::InFlight)?;
        let index = item.lane;
        let settings = Arc::clone(self.lane_ref(index).settings.as_ref()?);
        let mut decision = delivery::settle(&item.delivery, verdict, &settings.policy, now, roll);
        let lane = item.delivery.lane;
        let spent = decision.attempts > item.delivery.attempts;
        if verdict.class == Class::Credential && settings.credential().is_some() && self.limits.care == Care::On {
            // Everything behind the credential is held, not this lane alone.
            decision.lane_hold = None;
        }
        if let Some(hold) = decision.lane_hold {
            self.hold(lane, hold);
        }
        if !spent && verdict.class != Class::Credential {
            // Nothing was tried, so there is nothing to remember.
            self.put_back(now, id, decision.state.due().unwrap_or(now));
            return None;
        }
        self.slice(&mut decision, id, now);
        if let Some(flight) = self.landed(id, now) {
            self.answered(index, &flight, verdict, now, roll);
        }
        self.ring_lane(index, now);
        if !spent {
            self.wait_again(id, decision.state.due().unwrap_or(now), now);
            return None;
        }
        let mut record = self.apply(id, &decision, now);
        record.ends_endpoint = decision.ends_endpoint;
        Some(record)
    }

    /// Retries of the lower tiers leave together with others for the same destination (G2).
    fn slice(&self, decision: &mut Decision, id: DeliveryId, now: Timestamp) {
        let State::Retry { due, cause } = decision.state else { return };
        if self.limits.care == Care::Off {
            return;
        }
        let delivery = &self.items[&id].delivery;
        let in_flight = u32::try_from(self.in_flight.len()).unwrap_or(u32::MAX);
        let tight = Tightness::of(in_flight, self.limits.slots);
        let released = slice::released_at(due, now, delivery.lane, delivery.tier, tight);
        if !delivery.expiry.is_over(released) {
            decision.state = State::Retry { due: released, cause };
        }
    }

    /// Takes back one that was picked and not sent: no attempt is spent, nothing is written.
    pub fn put_back(&mut self, now: Timestamp, id: DeliveryId, due: Timestamp) {
        if self.items.get(&id).is_none_or(|item| item.stage != Stage::InFlight) {
            return;
        }
        self.unsent(id, now);
        self.wait_again(id, due, now);
    }

    /// One that was in flight waits as before.
    fn wait_again(&mut self, id: DeliveryId, due: Timestamp, now: Timestamp) {
        let Some(item) = self.items.get_mut(&id) else { return };
        item.delivery.state = item.delivery.put_back(due);
        // A receipt for what was never sent means nothing; another one ends it at its next turn.
        item.delivery.receipt_kept &= item.delivery.attempts > 0;
        self.wait(id, now);
    }

    /// A receipt came (A3). `None` when there is nothing to record yet: the delivery is in flight
    /// and keeps it, or has ended and stays as it is.
    pub fn receipt(&mut self, now: Timestamp, id: DeliveryId) -> Option<Record> {
        let item = self.items.get_mut(&id)?;
        match item.stage {
            Stage::InFlight => {
                item.delivery.receipt_kept = true;
                None
            }
            // Never sent: nobody can have it.
            _ if item.delivery.attempts == 0 => None,
            Stage::Recording => {
                item.delivery.receipt_kept = true;
                None
            }
            Stage::Ready | Stage::Waiting => Some(self.end(id, State::Delivered { at: now })),
        }
    }

    /// A change is durable; the delivery moves on.
    pub fn recorded(&mut self, now: Timestamp, id: DeliveryId) -> Recorded {
        let Some(item) = self.items.get_mut(&id).filter(|item| item.stage == Stage::Recording) else {
            return Recorded::Ended;
        };
        if item.delivery.state.is_terminal() {
            self.leave(id, now);
            return Recorded::Ended;
        }
        if item.delivery.receipt_kept {
            return Recorded::Again(self.end(id, State::Delivered { at: now }));
        }
        if let Some(cause) = self.cuts.cause(&item.delivery) {
            return Recorded::Again(self.end(id, cut::ended(cause, now)));
        }
        let due = item.delivery.state.due().expect("what has not ended is due at some time");
        if due > now + HORIZON && item.place == Place::Delayed && !self.keeps_retry(id, now) {
            self.leave(id, now);
            return Recorded::Left(due);
        }
        self.wait(id, now);
        Recorded::Waits
    }

    /// Its row is not what we think: somebody else owns the delivery, or it has ended.
    pub fn refused(&mut self, now: Timestamp, id: DeliveryId) {
        self.leave(id, now);
    }

    /// When to ask [`Queue::next`] again if nothing happens before.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.timers.next_at()
    }

    /// Whether it is being sent, or its outcome is being written.
    pub fn is_under_way(&self, id: DeliveryId) -> bool {
        self.items.get(&id).is_some_and(|item| matches!(item.stage, Stage::InFlight | Stage::Recording))
    }

    /// Those that are being sent or whose outcome is being written, by id.
    pub fn under_way(&self) -> Vec<DeliveryId> {
        let flying = self.in_flight.iter().map(|flight| flight.delivery);
        let mut under_way: Vec<DeliveryId> = flying.chain(self.recording.iter().copied()).collect();
        under_way.sort_unstable();
        under_way
    }

    /// The store has ended one by itself: it is forgotten, unless it is under way. What is then
    /// recorded of it comes back refused.
    pub fn ended_elsewhere(&mut self, now: Timestamp, id: DeliveryId) {
        if self.items.get(&id).is_some_and(|item| matches!(item.stage, Stage::Ready | Stage::Waiting)) {
            self.leave(id, now);
        }
    }

    /// Attempts under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Deliveries in memory.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether the window is empty.
    pub fn is_empty(&self) -> bool {
        self.items.len() == 0
    }

    /// Moves between states that the table refused. Anything but zero is a bug.
    pub fn refused_moves(&self) -> u64 {
        self.refused_moves
    }

    // --- one delivery's way through the window ---

    /// The first of a lane's ready deliveries, if the lane may send.
    fn pop(&mut self, taken: Taken, now: Timestamp) -> Option<DeliveryId> {
        let index = taken.lane;
        self.lane_mut(index).in_ring[taken.tier.index()] = false;
        if let Some(bar) = self.bar(index, taken.tier, now) {
            self.park(index, bar, now);
            self.drop_if_idle(index, now);
            return None;
        }
        if !taken.open_to_slow && self.lane_ref(index).speed() == Speed::Slow {
            // It became slow while it stood among the quick. Nobody takes it from among the slow
            // before one of them has landed.
            self.lane_mut(index).in_ring[taken.tier.index()] = true;
            self.turn.join_slow(taken);
            return None;
        }
        let id = self.pop_ready(index, taken.tier, now);
        if id.is_none() {
            self.drop_if_idle(index, now);
        }
        id
    }

    /// Passes over entries whose delivery has ended or left since: they cost the lane no turn.
    fn pop_ready(&mut self, index: u32, tier: Tier, now: Timestamp) -> Option<DeliveryId> {
        loop {
            let items = &self.items;
            let waited = |id| items.get(&id).map_or(Duration::ZERO, |item| now.since(item.delivery.born));
            let lane = self.lanes.get_mut(index).expect("an indexed lane is there");
            let id = lane.pop_postponed(tier, now).or_else(|| lane.pop(tier, waited))?;
            let Some(item) = self.items.get(&id).filter(|item| item.stage == Stage::Ready) else { continue };
            if item.delivery.attempts > 0 && !self.may_retry(index, now) {
                self.postpone(index, tier, id, now);
                continue;
            }
            return Some(id);
        }
    }

    /// Lets every deadline that has come take effect.
    fn fire(&mut self, now: Timestamp) {
        if now < self.latest {
            self.catch_up(now);
        }
        self.latest = now;
        if self.timers.is_untidy() {
            self.tidy_timers();
        }
        while let Some(timer) = self.timers.take(now) {
            match timer {
                Timer::Due(id) => self.due(id, now),
                Timer::Over(id) => self.over.push(id),
                // What is over stays over: a clock that is set back would find no timer to end it.
                Timer::Pause => {
                    self.paused_all = self.paused_all.filter(|hold| hold.holds(now));
                    self.paused_tenants.retain(|_, hold| hold.holds(now));
                    self.ring_every_lane(now);
                }
                Timer::Lane(lane) => {
                    if let Some(index) = self.lane_index.get(&lane).copied() {
                        let lane = self.lane_mut(index);
                        lane.release(now);
                        lane.wakes_at = Timestamp::MAX;
                        self.tidy_destination(index, now);
                        self.ring_lane(index, now);
                        self.drop_if_idle(index, now);
                    }
                }
                Timer::Gate(gate) => self.look_at_gate(gate, now),
                Timer::Tenant(tenant) => self.turn.wake(tenant),
                // Whoever is woken asks for what makes room.
                Timer::Shed => {}
            }
        }
    }

    /// The clock was set back: limits go on from here instead of waiting for the time it was.
    fn catch_up(&mut self, now: Timestamp) {
        for index in 0..self.lanes.bound() {
            let Some(lane) = self.lanes.get_mut(index) else { continue };
            let settings = lane.settings.clone();
            if let Some(destination) = &mut lane.destination {
                destination.catch_up(settings.as_deref(), now);
            }
        }
        self.catch_up_shared(now);
        self.turn.catch_up(now);
        let gates: Vec<SharedGate> = self.shared.keys().copied().collect();
        gates.into_iter().for_each(|gate| self.ring_parked(gate, now));
        self.ring_every_lane(now);
    }

    /// Forgets deadlines of what has moved on. Whoever waits again sets them again.
    fn tidy_timers(&mut self) {
        let mut timers = std::mem::take(&mut self.timers);
        timers.tidy(|at, timer| match timer {
            Timer::Pause | Timer::Gate(_) | Timer::Tenant(_) | Timer::Shed => true,
            Timer::Due(id) => self.items.get(&id).is_some_and(|item| item.stage == Stage::Waiting),
            Timer::Over(id) => {
                self.items.get(&id).is_some_and(|item| matches!(item.stage, Stage::Ready | Stage::Waiting))
            }
            Timer::Lane(lane) => self.lane_index.get(&lane).is_some_and(|index| {
                let lane = self.lane_ref(*index);
                lane.wakes_at == at || lane.hold_ends(at)
            }),
        });
        self.timers = timers;
    }

    /// Ends a row that a sweep or a scan of the store found; `None` when it is under way.
    pub fn end_row(&mut self, delivery: Delivery, place: Place, end: State) -> Option<Record> {
        let id = delivery.id;
        match self.items.get(&id).map(|item| item.stage) {
            Some(Stage::InFlight | Stage::Recording) => None,
            Some(Stage::Ready | Stage::Waiting) => Some(self.end(id, end)),
            None => {
                self.insert(delivery, place, Stage::Waiting);
                Some(self.end(id, end))
            }
        }
    }

    /// Receipts that did not come in time become retries: what to record of each.
    fn next_ack_timeout(&mut self, now: Timestamp, roll: Roll) -> Option<Record> {
        loop {
            let id = self.unacknowledged.pop()?;
            let Some(item) = self.items.get(&id).filter(|item| item.stage == Stage::Waiting) else { continue };
            if !matches!(item.delivery.state, State::AwaitingAck { .. }) {
                continue;
            }
            let Some(policy) =
                self.lane_of(id).and_then(|lane| lane.settings.as_ref()).map(|set| Arc::clone(&set.policy))
            else {
                // Its lane is not known yet: decided as soon as it is.
                self.timers.set(now + ASK_AGAIN, Timer::Due(id));
                continue;
            };
            let decision = delivery::ack_timeout(&item.delivery, &policy, now, roll.fork(id.raw()));
            return Some(self.apply(id, &decision, now));
        }
    }

    fn due(&mut self, id: DeliveryId, now: Timestamp) {
        let Some(item) = self.items.get_mut(&id).filter(|item| item.stage == Stage::Waiting) else { return };
        match item.delivery.state.due() {
            Some(due) if due > now => {} // it was moved; a later entry stands for it
            _ if matches!(item.delivery.state, State::AwaitingAck { .. }) => self.unacknowledged.push(id),
            _ => {
                item.stage = Stage::Ready;
                let (index, tier, born) = (item.lane, item.delivery.tier, item.delivery.born);
                let lane = self.lane_mut(index);
                let part = lane.part(born);
                lane.push(tier, part, id);
                self.ring(index, tier, now);
            }
        }
    }

    fn start(&mut self, id: DeliveryId, taken: Taken, now: Timestamp) -> Start {
        let (pass, expected, slow) = self.start_own(id, taken.lane, now);
        let settings = self.lane_ref(taken.lane).settings.clone();
        let shared = settings.map_or([None; 3], |settings| self.start_shared(&settings, now));
        self.turn.sent(taken, expected, now);
        self.slow_in_flight += u32::from(slow);
        let number = self.in_flight.insert(Flight {
            delivery: id,
            taken,
            started: now,
            expected,
            slow,
            generation: pass.generation,
            shared,
        });
        let refused = &mut self.refused_moves;
        let item = self.items.get_mut(&id).expect("picked from the window");
        move_to(&mut item.delivery, State::Dispatching, refused);
        item.stage = Stage::InFlight;
        item.number = number;
        let delivery = &item.delivery;
        Start {
            delivery: id,
            message: delivery.message,
            lane: delivery.lane,
            attempt: delivery.attempts.saturating_add(1),
            compact: delivery.compact == delivery::Compact::InUse,
            probe: pass.probe || shared.iter().flatten().any(|(_, pass)| pass.probe),
        }
    }

    /// Takes a slot and what its lane's own gates ask for: how long it is expected to take, and
    /// whether that is slow.
    fn start_own(&mut self, id: DeliveryId, index: u32, now: Timestamp) -> (Pass, Duration, bool) {
        let first_try = self.items[&id].delivery.attempts == 0;
        let care = self.limits.care;
        let lane = self.lane_mut(index);
        lane.in_flight += 1;
        let Some(settings) = lane.settings.as_ref() else { return (Pass::FIRST, EXPECTED, false) };
        if lane.destination.is_none() && (care == Care::On || settings.rate().is_some()) {
            lane.destination = Some(Box::new(Destination::new(settings, care, now)));
        }
        let Some(destination) = lane.destination.as_mut() else { return (Pass::FIRST, EXPECTED, false) };
        destination.retries.remove(&id);
        let pass = destination.start(settings, first_try, now);
        (pass, destination.concurrency.latency(), destination.concurrency.is_slow())
    }

    /// An attempt is over: its slots are free again.
    fn landed(&mut self, id: DeliveryId, now: Timestamp) -> Option<Flight> {
        let flight = self.free_slot(id)?;
        self.turn.landed(flight.taken, flight.expected, now.since(flight.started));
        Some(flight)
    }

    /// An attempt was not made after all: its slots are free again, and what it took is given back.
    fn unsent(&mut self, id: DeliveryId, now: Timestamp) {
        let Some(flight) = self.free_slot(id) else { return };
        self.turn.put_back(flight.taken, flight.expected);
        let index = self.items[&id].lane;
        let lane = self.lane_mut(index);
        if let Some(settings) = lane.settings.clone() {
            if let Some(destination) = &mut lane.destination {
                destination.put_back(&settings, flight.generation);
            }
            self.put_back_shared(&flight.shared, now);
        }
        self.ring_lane(index, now);
    }

    fn free_slot(&mut self, id: DeliveryId) -> Option<Flight> {
        let item = &self.items[&id];
        let (number, index) = (item.number, item.lane);
        let flight = self.in_flight.remove(number).filter(|flight| flight.delivery == id)?;
        let lane = self.lane_mut(index);
        lane.in_flight = lane.in_flight.saturating_sub(1);
        self.slow_in_flight -= u32::from(flight.slow);
        Some(flight)
    }

    /// Whether a retry is better kept: its destination fails, and a recovery makes it due at once.
    fn keeps_retry(&mut self, id: DeliveryId, now: Timestamp) -> bool {
        let is_retry = matches!(self.items[&id].delivery.state, State::Retry { .. });
        if !is_retry || self.items.len() >= self.limits.window / 4 * 3 {
            return false;
        }
        let item = &self.items[&id];
        if self.lane_ref(item.lane).kept[item.delivery.tier.index()] > self.limits.per_queue / 2 {
            // Those that wait must not keep out what could go.
            return false;
        }
        let index = self.items[&id].lane;
        let destination = self.lane_mut(index).destination.as_mut();
        destination.is_some_and(|destination| destination.is_troubled(now) && destination.keep_retry(id))
    }

    /// Takes over a decision; from here on it is being recorded.
    fn apply(&mut self, id: DeliveryId, decision: &Decision, now: Timestamp) -> Record {
        let item = self.items.get_mut(&id).expect("decided about one in the window");
        let attempts_before = item.delivery.attempts;
        item.delivery.attempts = decision.attempts;
        item.delivery.previous_wait = decision.previous_wait;
        item.delivery.limited_in_a_row = decision.limited_in_a_row;
        item.delivery.compact = decision.compact;
        let mut next = decision.state;
        if !next.is_terminal()
            && let Some(cut) = self.cuts.cause(&item.delivery)
        {
            next = cut::ended(cut, now);
        }
        // The state's own cause: what we failed at ourselves does not hide what the receiver did.
        if let State::Retry { cause, .. } = next {
            item.delivery.last_cause = Some(cause);
        }
        self.record(id, next, attempts_before)
    }

    /// Ends one that is not in flight.
    fn end(&mut self, id: DeliveryId, end: State) -> Record {
        let attempts = self.items[&id].delivery.attempts;
        self.record(id, end, attempts)
    }

    /// Ends one whose time to live is over, unless it is under way or was sent already.
    fn end_over(&mut self, id: DeliveryId, now: Timestamp) -> Option<Record> {
        let item = self.items.get(&id)?;
        let waits = matches!(item.stage, Stage::Ready | Stage::Waiting);
        if !waits || !item.delivery.expiry.is_over(now) || matches!(item.delivery.state, State::AwaitingAck { .. }) {
            return None;
        }
        let end = self.ended_already(&item.delivery, now)?;
        Some(self.end(id, end))
    }

    /// How one that waits to be sent has ended already, if it has.
    fn ended_already(&self, delivery: &Delivery, now: Timestamp) -> Option<State> {
        if delivery.receipt_kept {
            return Some(State::Delivered { at: now });
        }
        if delivery.expiry.is_over(now) {
            return Some(State::Expired { at: now });
        }
        self.cuts.cause(delivery).map(|cause| cut::ended(cause, now))
    }

    fn record(&mut self, id: DeliveryId, next: State, attempts_before: u16) -> Record {
        let lane = self.lane_of(id);
        let strict = lane.is_some_and(Lane::is_strict);
        let holds_on_dead =
            strict && lane.and_then(|lane| lane.settings.as_ref()).is_some_and(|set| set.on_dead == OnDead::Hold);
        let refused = &mut self.refused_moves;
        let item = self.items.get_mut(&id).expect("records are made of what is in the window");
        move_to(&mut item.delivery, next, refused);
        if item.stage != Stage::Recording {
            item.number = self.recording.insert(id);
        }
        item.stage = Stage::Recording;
        // A strict lane's rows stay where their queue is found, also between attempts.
        item.place = if strict { Place::Spilled } else { Place::Delayed };
        Record {
            delivery: item.delivery.clone(),
            attempts_before,
            place: item.place,
            shard: Shard::of(item.delivery.lane),
            pauses_lane: holds_on_dead && matches!(next, State::Dead { .. }),
            ends_endpoint: false,
        }
    }
}

fn move_to(delivery: &mut Delivery, next: State, refused: &mut u64) {
    if delivery.state.become_(next).is_err() {
        *refused += 1;
    }
}

#[cfg(test)]
mod tests;
