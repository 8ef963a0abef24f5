//! Whose turn it is. The queue holds a bounded window of all pending deliveries and answers five
//! questions: [`Queue::admit`] (may this one come in), [`Queue::next`] (what to send now),
//! [`Queue::settle`] (what to record of an attempt), [`Queue::wake_at`] (when to ask again) and
//! [`Queue::explain`] (why does this one wait).
//!
//! Invariants: a delivery is in flight at most once; nothing is sent that is held, over its TTL or
//! covered by a cut; what was decided about a delivery is acted on only after
//! [`Queue::recorded`] said that it is durable. Driven by the engine's `dispatch`.

mod explain;
mod gate;
mod lane;
mod timer;
mod turn;
mod window;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

pub use explain::Explained;
pub use lane::{LaneSettings, OnDead, Order};
pub use turn::WEIGHTS;
pub use window::{Admission, PageWanted, Shed};

use crate::cut::{self, Cuts};
use crate::delivery::{self, Decision, Delivery, Verdict};
use crate::dice::Roll;
use crate::hold::Hold;
use crate::id::{DeliveryId, LaneId, MessageId, Shard, TenantId};
use crate::id_map::IdMap;
use crate::state::State;
use crate::tier::Tier;
use crate::time::Timestamp;
use lane::Lane;
use timer::{Timer, Timers};
use turn::Turn;

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

/// The bounds of the window.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Attempts under way at once, over all lanes.
    pub slots: u32,
    /// Deliveries of one queue (lane and tier) in memory.
    pub per_queue: u32,
    /// Deliveries in memory, over all queues.
    pub window: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { slots: 1_024, per_queue: 256, window: 65_536 }
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

#[derive(Debug)]
struct Item {
    delivery: Delivery,
    place: Place,
    stage: Stage,
}

/// The window over all pending deliveries of one owner.
#[derive(Debug, Default)]
pub struct Queue {
    limits: Limits,
    lanes: Vec<Option<Lane>>,
    free_lanes: Vec<u32>,
    lane_index: IdMap<LaneId, u32>,
    items: IdMap<DeliveryId, Item>,
    in_flight: BTreeSet<DeliveryId>,
    /// Those whose outcome is being made durable.
    recording: BTreeSet<DeliveryId>,
    turn: Turn,
    timers: Timers,
    /// Their time to live may be over.
    over: Vec<DeliveryId>,
    /// Their receipt did not come in time.
    unacknowledged: Vec<DeliveryId>,
    /// Queues that began or ended to spill.
    spilling_changes: Vec<(LaneId, Tier, bool)>,
    /// Lanes that may want a page.
    hungry: BTreeSet<LaneId>,
    /// Where the next look for rows to spill begins.
    shed_from: u32,
    cuts: Cuts,
    paused_all: Option<Hold>,
    paused_tenants: IdMap<TenantId, Hold>,
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
            let (tier, index) = self.turn.take()?;
            let Some(id) = self.pop(index, tier, now) else { continue };
            // Checked again here, at the last moment: the row may have waited long since it came in.
            if let Some(end) = self.ended_already(&self.items[&id].delivery, now) {
                return Some(Pick::Record(self.end(id, end)));
            }
            self.turn.charge(tier);
            return Some(Pick::Send(self.start(id, index)));
        }
        None
    }

    /// What to record of an attempt; `None` when there is nothing to record: no attempt was spent,
    /// or nothing of that id is in flight.
    pub fn settle(&mut self, now: Timestamp, roll: Roll, id: DeliveryId, verdict: &Verdict) -> Option<Record> {
        let policy = Arc::clone(&self.lane_of(id)?.settings.as_ref()?.policy);
        let item = self.items.get(&id).filter(|item| item.stage == Stage::InFlight)?;
        let decision = delivery::settle(&item.delivery, verdict, &policy, now, roll);
        let lane = item.delivery.lane;
        let spent = decision.attempts > item.delivery.attempts;
        if let Some(hold) = decision.lane_hold {
            self.hold(lane, hold);
        }
        if !spent {
            // Nothing was tried, so there is nothing to remember.
            self.put_back(now, id, decision.state.due().unwrap_or(now));
            return None;
        }
        self.landed(id, now);
        let mut record = self.apply(id, &decision, now);
        record.ends_endpoint = decision.ends_endpoint;
        Some(record)
    }

    /// Takes back one that was picked and not sent: no attempt is spent, nothing is written.
    pub fn put_back(&mut self, now: Timestamp, id: DeliveryId, due: Timestamp) {
        let Some(item) = self.items.get_mut(&id).filter(|item| item.stage == Stage::InFlight) else { return };
        let state = item.delivery.put_back(due);
        item.delivery.state = state;
        // A receipt for what was never sent means nothing; another one ends it at its next turn.
        item.delivery.receipt_kept &= item.delivery.attempts > 0;
        self.landed(id, now);
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
        if due > now + HORIZON && item.place == Place::Delayed {
            self.leave(id, now);
            return Recorded::Left(due);
        }
        self.wait(id, now);
        Recorded::Waits
    }

    /// A change was refused by the store: somebody else owns the delivery, or it has ended.
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
        self.items.is_empty()
    }

    /// Moves between states that the table refused. Anything but zero is a bug.
    pub fn refused_moves(&self) -> u64 {
        self.refused_moves
    }

    // --- one delivery's way through the window ---

    /// The first of a lane's ready deliveries, if the lane may send; it goes to the ring's end.
    fn pop(&mut self, index: u32, tier: Tier, now: Timestamp) -> Option<DeliveryId> {
        self.lane_mut(index).in_ring[tier.index()] = false;
        let id = if self.may_send(index, now) { self.pop_ready(index, tier) } else { None };
        self.ring(index, tier, now);
        self.drop_if_idle(index, now);
        id
    }

    /// Passes over entries whose delivery has ended or left since: they cost the lane no turn.
    fn pop_ready(&mut self, index: u32, tier: Tier) -> Option<DeliveryId> {
        loop {
            let id = self.lane_mut(index).pop(tier)?;
            if self.items.get(&id).is_some_and(|item| item.stage == Stage::Ready) {
                return Some(id);
            }
        }
    }

    /// Lets every deadline that has come take effect.
    fn fire(&mut self, now: Timestamp) {
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
                        self.lane_mut(index).release(now);
                        self.ring_lane(index, now);
                        self.drop_if_idle(index, now);
                    }
                }
            }
        }
    }

    /// Forgets deadlines of what has moved on. Whoever waits again sets them again.
    fn tidy_timers(&mut self) {
        let mut timers = std::mem::take(&mut self.timers);
        timers.tidy(|at, timer| match timer {
            Timer::Pause => true,
            Timer::Due(id) => self.items.get(&id).is_some_and(|item| item.stage == Stage::Waiting),
            Timer::Over(id) => {
                self.items.get(&id).is_some_and(|item| matches!(item.stage, Stage::Ready | Stage::Waiting))
            }
            Timer::Lane(lane) => self.lane_index.get(&lane).is_some_and(|index| {
                let lane = self.lane_ref(*index);
                lane.hold.iter().chain(&lane.paused).any(|hold| hold.until == Some(at))
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
                let (lane, tier) = (item.delivery.lane, item.delivery.tier);
                let index = self.lane(lane);
                self.lane_mut(index).push(tier, id);
                self.ring(index, tier, now);
            }
        }
    }

    fn start(&mut self, id: DeliveryId, index: u32) -> Start {
        self.lane_mut(index).in_flight += 1;
        self.in_flight.insert(id);
        let refused = &mut self.refused_moves;
        let item = self.items.get_mut(&id).expect("picked from the window");
        move_to(&mut item.delivery, State::Dispatching, refused);
        item.stage = Stage::InFlight;
        let delivery = &item.delivery;
        Start {
            delivery: id,
            message: delivery.message,
            lane: delivery.lane,
            attempt: delivery.attempts.saturating_add(1),
            compact: delivery.compact == delivery::Compact::InUse,
        }
    }

    /// An attempt is over: its slots are free again.
    fn landed(&mut self, id: DeliveryId, now: Timestamp) {
        self.in_flight.remove(&id);
        let lane = self.items[&id].delivery.lane;
        let index = self.lane(lane);
        let lane = self.lane_mut(index);
        lane.in_flight = lane.in_flight.saturating_sub(1);
        self.ring_lane(index, now);
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
        item.stage = Stage::Recording;
        self.recording.insert(id);
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
