//! Attempts in flight and the records of their outcomes: what starting an attempt takes, what is given back when it
//! ends or was not made after all, and what follows once its record is durable.
//!
//! Invariants: a slot that was taken is freed exactly once. Tokens, the charge to the tenant's share and a probe are
//! given back only if no request was sent. A decision takes effect only after [`Scheduler::recorded`] reported that it
//! is durable.

use std::time::Duration;

use super::destination::DestinationState;
use super::shared::PassedGates;
use super::turn::TakenTurn;
use super::{HORIZON, RowIndex, Scheduler, Stage};
use crate::cut;
use crate::flow::breaker::Pass;
use crate::flow::{Protection, SharedGate};
use crate::id::CredentialId;
use crate::{Compact, Delivery, DeliveryId, EndpointChange, EndpointId, LaneId, MessageId, Shard, State, Timestamp};

/// The expected duration of an attempt at a destination without measurements.
const EXPECTED: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptStart {
    pub delivery: DeliveryId,
    pub message: MessageId,
    pub endpoint: EndpointId,
    pub lane: LaneId,
    /// The number of the attempt; the first is 1.
    pub attempt: u16,
    pub due: Timestamp,
    pub compact: bool,
    /// Whether it is the probe of a breaker: it gets a shorter timeout.
    pub probe: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) delivery: DeliveryId,
    pub(super) endpoint: EndpointId,
    taken: TakenTurn,
    pub(super) started: Timestamp,
    expected: Duration,
    pub(super) slow: bool,
    /// The generation of its lane's breaker at the start.
    pub(super) generation: u32,
    /// The shared gates it passed: its lane may have other gates when it ends.
    pub(super) shared: PassedGates,
}

/// A change to make durable. The owner calls [`Scheduler::recorded`] once it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryChange {
    pub delivery: Delivery,
    /// The number of attempts that the row must have for the change to be valid; otherwise the settle is stale.
    pub attempts_before: u16,
    /// Where the row is kept while it is pending.
    pub place: RowIndex,
    pub shard: Shard,
    /// Whether its strict lane is paused in the same transaction.
    pub pauses_lane: bool,
    /// The change of its endpoint's status. If it is gone, the dispatch loop cuts the lane; the store disables one.
    pub endpoint_change: Option<EndpointChange>,
}

/// What follows once a change is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AfterRecord {
    /// The delivery has ended and left the window.
    Ended,
    Waits,
    /// It has left the window and must be read back from the store before this time.
    Left(Timestamp),
    /// A cut or a receipt came in the meantime: record this change too.
    Again(DeliveryChange),
}

impl Flight {
    /// The credential that the attempt was sent with.
    pub(super) fn credential(&self) -> Option<CredentialId> {
        self.shared.iter().flatten().find_map(|(gate, _)| match gate {
            SharedGate::Credential(credential) => Some(*credential),
            _ => None,
        })
    }
}

impl Scheduler {
    /// Takes the slot and tokens of an attempt; the delivery is then in flight.
    pub(super) fn start(&mut self, id: DeliveryId, taken: TakenTurn, now: Timestamp) -> AttemptStart {
        let delivery = &self.window[id].delivery;
        let (endpoint, due) = (delivery.endpoint, delivery.state.due().unwrap_or(now));
        let first_try = delivery.attempts == 0;
        let (pass, expected, slow) = self.start_own(id, taken.lane, first_try, now);
        let settings = self.lanes[taken.lane].settings.as_ref();
        let shared = settings.map_or([None; 4], |settings| self.shared.start(settings, now));
        self.turns.sent(taken, expected, now);
        let flight =
            Flight { delivery: id, endpoint, taken, started: now, expected, slow, generation: pass.generation, shared };
        let delivery = self.window.take_off(flight);
        AttemptStart {
            delivery: id,
            message: delivery.message,
            endpoint: delivery.endpoint,
            lane: delivery.lane,
            attempt: delivery.attempts.saturating_add(1),
            due,
            compact: delivery.compact == Compact::InUse,
            probe: pass.probe || shared.iter().flatten().any(|(_, pass)| pass.probe),
        }
    }

    /// Takes a slot of the lane and passes its own gates. Returns the expected duration as well, and whether the
    /// destination is slow.
    fn start_own(&mut self, id: DeliveryId, index: u32, first_try: bool, now: Timestamp) -> (Pass, Duration, bool) {
        let protection = self.limits.protection;
        let lane = &mut self.lanes[index];
        lane.in_flight += 1;
        let Some(settings) = lane.settings.as_ref() else { return (Pass::FIRST, EXPECTED, false) };
        if lane.destination.is_none() && (protection == Protection::On || settings.rate().is_some()) {
            lane.destination = Some(Box::new(DestinationState::new(settings, protection, now)));
        }
        let Some(destination) = lane.destination.as_mut() else { return (Pass::FIRST, EXPECTED, false) };
        destination.retries.remove(&id);
        let pass = destination.start(settings, first_try, now);
        (pass, destination.concurrency.latency(), destination.concurrency.is_slow())
    }

    /// Frees the slots of an attempt that has ended.
    pub(super) fn landed(&mut self, id: DeliveryId, now: Timestamp) -> Option<Flight> {
        let (flight, _) = self.free_slot(id)?;
        self.turns.landed(flight.taken, flight.expected, now.since(flight.started));
        Some(flight)
    }

    /// Frees the slots of an attempt that was not made after all, and gives back what it took.
    pub(super) fn unsent(&mut self, id: DeliveryId, now: Timestamp) {
        let Some((flight, index)) = self.free_slot(id) else { return };
        self.turns.put_back(flight.taken, flight.expected, flight.started);
        let lane = &mut self.lanes[index];
        if let Some(settings) = &lane.settings {
            if let Some(destination) = &mut lane.destination {
                destination.put_back(settings, &flight);
            }
            for (gate, pass) in flight.shared.iter().flatten() {
                self.shared.put_back(*gate, *pass, flight.started);
                self.enqueue_parked(*gate, now);
            }
        }
        self.enqueue_tiers(index, now);
    }

    fn free_slot(&mut self, id: DeliveryId) -> Option<(Flight, u32)> {
        let (flight, index) = self.window.land(id)?;
        let lane = &mut self.lanes[index];
        lane.in_flight = lane.in_flight.saturating_sub(1);
        Some((flight, index))
    }

    /// Notes that a delivery's change is durable, and continues with it.
    pub fn recorded(&mut self, now: Timestamp, id: DeliveryId) -> AfterRecord {
        let Some(item) = self.window.get_mut(id).filter(|item| item.stage == Stage::Recording) else {
            return AfterRecord::Ended;
        };
        if item.delivery.state.is_terminal() {
            self.leave(id, now);
            return AfterRecord::Ended;
        }
        if item.delivery.receipt_kept {
            return AfterRecord::Again(self.end(id, State::Delivered { at: now }));
        }
        if let Some(cause) = self.cuts.cause(&item.delivery) {
            return AfterRecord::Again(self.end(id, cut::ended(cause, now)));
        }
        let due = item.delivery.state.due().expect("a pending delivery has a due time");
        if due > now + HORIZON && item.place == RowIndex::Delayed && !self.keeps_retry(id, now) {
            self.leave(id, now);
            return AfterRecord::Left(due);
        }
        self.wait(id, now);
        AfterRecord::Waits
    }

    /// Drops a delivery whose change the store refused: another session owns it, or it has ended.
    pub fn refused(&mut self, now: Timestamp, id: DeliveryId) {
        self.leave(id, now);
    }

    /// Whether a retry far in the future stays in the window: its destination is failing, and a recovery would make it
    /// due at once.
    fn keeps_retry(&mut self, id: DeliveryId, now: Timestamp) -> bool {
        let item = &self.window[id];
        let is_retry = matches!(item.delivery.state, State::Retry { .. });
        if !is_retry || item.keeps_wait || self.window.len() >= self.limits.window / 4 * 3 {
            return false;
        }
        if self.lanes[item.lane].kept[item.delivery.tier.index()] > self.limits.per_queue / 2 {
            // Waiting retries must not keep out deliveries that can be sent.
            return false;
        }
        let index = item.lane;
        let destination = self.lanes[index].destination.as_mut();
        destination.is_some_and(|destination| destination.is_troubled(now) && destination.keep_retry(id))
    }
}
