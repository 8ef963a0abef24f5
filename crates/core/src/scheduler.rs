//! The scheduler: decides which delivery is sent next. It keeps a bounded window of all pending deliveries in memory.
//! Its main calls are [`Scheduler::admit`] (take a delivery into the window), [`Scheduler::next`] (what to send now),
//! [`Scheduler::settle`] (what to record of an attempt), [`Scheduler::wake_at`] (when to call `next` again) and
//! [`Scheduler::explain`] (why a delivery waits).
//!
//! Invariants: a delivery is in flight at most once; a delivery that is held, over its TTL or covered by a cut is not
//! sent; a decision about a delivery takes effect only after [`Scheduler::recorded`] reported that it is durable. Driven
//! by the engine's `dispatch`.
//!
//! The path of a delivery: it is admitted (`window.rs`), gets its turn (`turn.rs`) unless its lane is blocked
//! (`blocked_by.rs`), is sent and recorded (`flight.rs`). The state is divided into parts
//! that own it and do not know each other; the methods of [`Scheduler`] connect them.

mod answer;
mod backlog;
mod blocked_by;
mod breakers;
mod destination;
mod drain;
mod ends;
mod flight;
mod lane;
mod lanes;
mod pauses;
mod ready;
mod shared;
mod timer;
mod turn;
mod views;
mod window;

use std::sync::Arc;
use std::time::Duration;

pub use backlog::{Evicted, PageWanted};
pub use breakers::{BreakerOf, BreakerShown, Recovery, Reset, SoftBreaker};
pub use drain::IdRange;
use flight::Flight;
pub use flight::{AfterRecord, AttemptStart, DeliveryChange};
pub use lane::{LaneSettings, OnDead, Order, Special};
pub use pauses::PausedBy;
pub use shared::SharedSettings;
pub use turn::{TenantSettings, WEIGHTS};
pub use views::{BreakerScope, Explained, SchedulerFigures};
pub use window::Admission;

use crate::delivery::{self, Circumstances};
use crate::flow::Protection;
use crate::flow::breaker::BreakerRule;
use crate::slice::Tightness;
use crate::{DeliveryId, MessageId, Roll, State, Tier, Timestamp, Verdict, VerdictScope};
use backlog::Backlog;
use ends::CutsInForce;
use lanes::Lanes;
use pauses::WidePauses;
use shared::SharedGates;
use timer::{Timer, Timers};
use turn::{Room, Speed, TakenTurn, Turns};
use window::Window;

/// How long before its due time a delivery is read into memory.
pub const HORIZON: Duration = Duration::from_secs(30);

/// How the row of a pending delivery is indexed; decided when it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowIndex {
    /// Not indexed: the delivery is in its owner's memory.
    Ready,
    /// Indexed by its due time.
    Delayed,
    /// Indexed by its queue: its lane is strict, held or full.
    Spilled,
}

impl RowIndex {
    /// The place of a new delivery's row. `spilling`: its queue has rows behind the window.
    pub fn for_new(order: Order, spilling: bool, now: Timestamp, due: Timestamp) -> Self {
        match order {
            Order::Strict => Self::Spilled,
            _ if due > now => Self::Delayed,
            _ if spilling => Self::Spilled,
            _ => Self::Ready,
        }
    }
}

/// While other tenants are active, a tenant may use half of the slots, and at least this many.
const TENANT_SLOTS_LEAST: u32 = 2;

/// The lowest tier gets one in this many slots whenever it can use them. With fewer slots in all, a whole slot would be
/// more than its share, and only the weights apply.
const LOWEST_TIER_PART: u32 = 20;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most attempts in flight at once, over all lanes.
    pub slots: u32,
    /// The most deliveries of one queue (lane and tier) in memory.
    pub per_queue: u32,
    /// The most deliveries in memory, over all queues.
    pub window: usize,
    pub protection: Protection,
    /// The rule for the breakers of origins without settings of their own.
    pub origin: BreakerRule,
}

impl Default for Limits {
    fn default() -> Self {
        Self { slots: 1_024, per_queue: 512, window: 65_536, protection: Protection::On, origin: BreakerRule::ORIGIN }
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pick {
    /// Send this delivery. It is in flight until [`Scheduler::settle`] or [`Scheduler::put_back`].
    Send(AttemptStart),
    /// Record the new state of this delivery, which was not sent.
    Record(DeliveryChange),
}

/// What a delivery of the window is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its due time has come; it waits in its lane for its turn.
    Ready,
    /// Its due time has not come, or it awaits a receipt.
    Waiting,
    InFlight,
    /// Its outcome is being made durable.
    Recording,
}

/// The scheduler of one owner, with its window of pending deliveries.
#[derive(Debug, Default)]
pub struct Scheduler {
    limits: Limits,
    window: Window,
    lanes: Lanes,
    backlog: Backlog,
    turns: Turns,
    pauses: WidePauses,
    /// The gates that several lanes share.
    shared: SharedGates,
    cuts: CutsInForce,
    timers: Timers,
}

impl Scheduler {
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// What to send or to record now. To be called until it returns `None`.
    pub fn next(&mut self, now: Timestamp, roll: Roll) -> Option<Pick> {
        self.fire(now);
        if let Some(record) = self.next_ack_timeout(now, roll) {
            return Some(Pick::Record(record));
        }
        while let Some(id) = self.timers.over.pop() {
            if let Some(record) = self.end_over(id, now) {
                return Some(Pick::Record(record));
            }
        }
        while self.window.in_flight() < self.limits.slots as usize {
            let taken = self.take_turn(now)?;
            let Some(id) = self.pop(taken, now) else { continue };
            // Checked again at the last moment: the delivery may have waited long since it was admitted.
            if let Some(end) = self.ended_already(&self.window[id].delivery, now) {
                let record = self.end(id, end);
                self.enqueue_lane(taken.lane, taken.tier, now);
                return Some(Pick::Record(record));
            }
            let start = self.start(id, taken, now);
            self.enqueue_lane(taken.lane, taken.tier, now);
            return Some(Pick::Send(start));
        }
        None
    }

    fn take_turn(&mut self, now: Timestamp) -> Option<TakenTurn> {
        let cap = match self.limits.protection {
            Protection::On => (self.limits.slots / 2).max(TENANT_SLOTS_LEAST),
            Protection::Off => u32::MAX,
        };
        let slots = self.limits.slots;
        let lowest = if slots >= LOWEST_TIER_PART { slots.div_ceil(LOWEST_TIER_PART) } else { 0 };
        let taken = self.turns.take(Room { cap, slow: self.has_room_for_slow(), lowest }, now);
        for (at, tenant) in self.turns.take_wakes() {
            self.timers.set(at, Timer::Tenant(tenant));
        }
        taken
    }

    /// A tenth of the slots is reserved for destinations that answer quickly.
    fn has_room_for_slow(&self) -> bool {
        self.window.slow_in_flight < self.limits.slots - self.limits.slots / 10
    }

    /// The first of a lane's ready deliveries, if the lane may send.
    fn pop(&mut self, taken: TakenTurn, now: Timestamp) -> Option<DeliveryId> {
        let index = taken.lane;
        self.lanes[index].in_ring[taken.tier.index()] = false;
        if let Some(block) = self.blocked_by(index, taken.tier, now) {
            self.park(index, block, now);
            self.drop_if_idle(index, now);
            return None;
        }
        if !taken.open_to_slow && self.lanes[index].speed() == Speed::Slow {
            // The lane became slow while it waited among the quick ones. It now waits for an attempt at a slow
            // destination to end.
            self.lanes[index].in_ring[taken.tier.index()] = true;
            self.turns.join_slow(taken);
            return None;
        }
        let id = self.pop_ready(index, taken.tier, now);
        if id.is_none() {
            self.drop_if_idle(index, now);
        }
        id
    }

    /// The next ready delivery of a lane. Entries whose delivery has ended or left the window are skipped and cost the
    /// lane no turn.
    fn pop_ready(&mut self, index: u32, tier: Tier, now: Timestamp) -> Option<DeliveryId> {
        loop {
            let window = &self.window;
            let waited = |id| window.get(id).map_or(Duration::ZERO, |item| now.since(item.delivery.born));
            let lane = &mut self.lanes[index];
            let id = lane.pop_postponed(tier, now).or_else(|| lane.pop(tier, waited))?;
            let Some(item) = self.window.get(id).filter(|item| item.stage == Stage::Ready) else { continue };
            if item.delivery.attempts > 0 && !self.may_retry(index, now) {
                self.postpone(index, tier, id, now);
                continue;
            }
            return Some(id);
        }
    }

    /// Decides what follows an attempt, and returns what to record. `None` if there is nothing to record: no attempt
    /// was spent, or no delivery of that id is in flight. `superseded`: a newer delivery has replaced it meanwhile.
    pub fn settle(
        &mut self,
        now: Timestamp,
        roll: Roll,
        id: DeliveryId,
        verdict: &Verdict,
        superseded: bool,
    ) -> Option<DeliveryChange> {
        let item = self.window.get(id).filter(|item| item.stage == Stage::InFlight)?;
        let index = item.lane;
        let settings = Arc::clone(self.lanes[index].settings.as_ref()?);
        let is_protected = self.limits.protection == Protection::On;
        // The credential it was sent with: the lane may have another one by now.
        let credential = self.window.flight(item).and_then(Flight::credential);
        let in_flight = u32::try_from(self.window.in_flight()).unwrap_or(u32::MAX);
        let given = Circumstances {
            strict: settings.strict(),
            cut: self.cuts.cause(&item.delivery),
            superseded,
            tightness: is_protected.then(|| Tightness::of(in_flight, self.limits.slots)),
            credential_gate: is_protected && credential.is_some(),
            ..Circumstances::new(&settings.policy)
        };
        let decision = delivery::settle(&item.delivery, verdict, &given, now, roll);
        if let Some((scope, hold)) = decision.hold {
            match (scope, credential) {
                (VerdictScope::Credential, Some(credential)) => self.hold_credential(credential, hold, now),
                _ => self.hold(settings.lane, hold),
            }
        }
        if !decision.was_made {
            self.unsent(id, now);
        } else {
            if let Some(flight) = self.landed(id, now) {
                self.answered(index, &flight, verdict, now, roll);
            }
            self.enqueue_tiers(index, now);
        }
        if decision.is_recorded {
            return Some(self.window.apply(id, &decision));
        }
        self.wait_again(id, decision.state.due().unwrap_or(now), now);
        None
    }

    /// Takes back a delivery that was picked and not sent: no attempt is spent, nothing is written.
    pub fn put_back(&mut self, now: Timestamp, id: DeliveryId, due: Timestamp) {
        if self.window.get(id).is_none_or(|item| item.stage != Stage::InFlight) {
            return;
        }
        self.unsent(id, now);
        self.wait_again(id, due, now);
    }

    /// Moves a delivery from in flight back to waiting.
    fn wait_again(&mut self, id: DeliveryId, due: Timestamp, now: Timestamp) {
        let Some(item) = self.window.get_mut(id) else { return };
        item.delivery.state = item.delivery.put_back(due);
        // A receipt for a delivery that was never sent is ignored; one for an earlier attempt ends it at its next turn.
        item.delivery.receipt_kept &= item.delivery.attempts > 0;
        self.wait(id, now);
    }

    /// Handles a receipt (A3). `None` if there is nothing to record now: a delivery in flight or being recorded keeps
    /// the receipt until later, and one that has ended or was never sent ignores it.
    pub fn receipt(&mut self, now: Timestamp, id: DeliveryId) -> Option<DeliveryChange> {
        let item = self.window.get_mut(id)?;
        match item.stage {
            Stage::InFlight => {
                item.delivery.receipt_kept = true;
                None
            }
            // Never sent: no receiver can have it.
            _ if item.delivery.attempts == 0 => None,
            Stage::Recording => {
                item.delivery.receipt_kept = true;
                None
            }
            Stage::Ready | Stage::Waiting => Some(self.end(id, State::Delivered { at: now })),
        }
    }

    /// When to call [`Scheduler::next`] again if nothing happens before.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.timers.next_at()
    }

    /// Whether a delivery is being sent, or its outcome is being written.
    pub fn is_under_way(&self, id: DeliveryId) -> bool {
        self.window.get(id).is_some_and(|item| matches!(item.stage, Stage::InFlight | Stage::Recording))
    }

    /// The deliveries that are being sent or whose outcome is being written, sorted by id.
    pub fn under_way(&self) -> Vec<DeliveryId> {
        self.window.under_way(|_| true)
    }

    /// The message of each attempt in flight, sorted by id.
    pub fn messages_in_flight(&self) -> Vec<MessageId> {
        let mut messages: Vec<MessageId> = self.window.flying().map(|delivery| delivery.message).collect();
        messages.sort_unstable();
        messages
    }

    pub fn in_flight(&self) -> usize {
        self.window.in_flight()
    }

    pub fn len(&self) -> usize {
        self.window.len()
    }

    pub fn is_empty(&self) -> bool {
        self.window.len() == 0
    }

    /// How many transitions [`State::become_`] refused. Anything but zero is a bug.
    pub fn refused_moves(&self) -> u64 {
        self.window.refused_moves
    }
}

#[cfg(test)]
mod tests;
