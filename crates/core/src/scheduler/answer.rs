//! Applies an answer to the gates its attempt passed: breakers open and close, concurrency and pace are adapted, and a
//! destination that has recovered gets its backlog at a limited pace (E1, E2, F2).
//!
//! Invariant: only attempts that were made count. The gates themselves are in `flow`.

use super::drain::Drain;
use super::flight::Flight;
use super::shared::AnswerSignals;
use super::{Scheduler, Stage};
use crate::flow::breaker::{BreakerChange, BreakerState, Signal};
use crate::flow::pace::Pace;
use crate::flow::{Protection, SharedGate};
use crate::{Cause, Class, DeliveryId, LaneId, Roll, State, Tier, Timestamp, Verdict, VerdictScope};

impl Scheduler {
    /// Reports the outcome of an attempt to every gate that it passed.
    pub(super) fn answered(&mut self, index: u32, flight: &Flight, verdict: &Verdict, now: Timestamp, roll: Roll) {
        let Some(settings) = self.lanes[index].settings.clone() else { return };
        let retry_after = verdict.retry_after.map(|asked| asked.min(settings.policy.retry_after_max()));
        let heard = AnswerSignals {
            signal: Signal::of(verdict),
            credential: credential_signal(verdict),
            resolver: resolver_signal(verdict),
            messages_wait: self.lanes[index].has_work(),
            retry_after,
            roll,
        };
        let lane = &mut self.lanes[index];
        let in_flight = lane.in_flight + 1;
        if let Some(destination) = lane.destination.as_mut().filter(|destination| destination.is_protected()) {
            let own = AnswerSignals { signal: Signal::for_endpoint(verdict), ..heard };
            match destination.answered(&settings, flight, verdict.cause, &own, in_flight, now) {
                Some(BreakerChange::Opened) => self.opened(index, true, now),
                Some(BreakerChange::Reopened) => self.opened(index, false, now),
                Some(BreakerChange::Closed) => self.recovered(index, now),
                None => self.tidy_destination(index, now),
            }
        }
        if self.limits.protection == Protection::Off {
            return;
        }
        for gate in self.answered_shared(&settings, flight, &heard, now) {
            self.shared_recovered(gate, now);
        }
    }

    /// Handles the opening of a lane's breaker: pace and drain end until it closes.
    fn opened(&mut self, index: u32, first: bool, now: Timestamp) {
        self.restock(index, now);
        let lane = &mut self.lanes[index];
        let id = lane.id;
        let Some(destination) = lane.destination.as_mut() else { return };
        destination.pace = None;
        let until = match destination.breaker.standing(now) {
            BreakerState::Open { until, .. } => until,
            _ => None,
        };
        self.lanes.breaker_opened(id, first);
        self.backlog.hold_began();
        if let Some(at) = until {
            self.wake_lane(index, at, now);
        }
    }

    /// Starts the recovery of a lane's destination: waiting retries become due, and a pace limits the rate.
    pub(super) fn recovered(&mut self, index: u32, now: Timestamp) {
        let drain = Drain::new(now, self.backlog.id_timeline.next(), |at| self.backlog.id_timeline.since(at));
        let lane = &mut self.lanes[index];
        let (id, strict) = (lane.id, lane.is_strict());
        let before = lane.spilling();
        let Some(destination) = lane.destination.as_mut() else { return };
        destination.pace = Some(Pace::recovering(now, destination.healthy));
        let retries = std::mem::take(&mut destination.retries);
        if !strict {
            lane.begin_drain(drain);
        }
        self.tell_spilling(index, before);
        self.lanes.breaker_closed(id);
        self.sort_ready(index);
        for retry in retries {
            self.retry_now(now, retry);
        }
        self.stand_in_line(index);
        self.enqueue_tiers(index, now);
        self.tidy_destination(index, now);
    }

    /// Handles the closing of a shared gate's breaker: each lane behind it recovers at its own pace.
    pub(super) fn shared_recovered(&mut self, gate: SharedGate, now: Timestamp) {
        for lane in self.shared.parked_at(gate) {
            let Some(index) = self.lanes.find(lane) else { continue };
            let is_healthy = self.lanes[index].destination.as_ref().is_some_and(|destination| {
                destination.breaker.standing(now) == BreakerState::Closed && destination.pace.is_none()
            });
            if is_healthy {
                if let Some(destination) = self.lanes[index].destination.as_mut() {
                    destination.healthy = destination.healthy.max(destination.breaker.successes_per_second(now));
                }
                self.recovered(index, now);
            }
        }
        self.enqueue_parked(gate, now);
    }

    /// Ends what is no longer needed: a pace that held nothing back, an empty drain, and the budget of a destination
    /// that has stopped failing.
    pub(super) fn tidy_destination(&mut self, index: u32, now: Timestamp) {
        let lane = &mut self.lanes[index];
        if lane.drain().is_some_and(Drain::is_empty) {
            lane.end_drain();
        }
        let drains = lane.drain().is_some();
        let Some(destination) = lane.destination.as_mut() else { return };
        if !drains && destination.pace.as_ref().is_some_and(|pace| pace.is_over(now)) {
            destination.pace = None;
        }
        let postpones = destination.postponed.iter().any(|heap| !heap.is_empty());
        if postpones && !destination.breaker.is_failing(now) {
            self.take_back_postponed(index);
            self.enqueue_tiers(index, now);
        }
    }

    /// Ends a lane's drain and puts its postponed retries back into its queues.
    fn restock(&mut self, index: u32, now: Timestamp) {
        let lane = &mut self.lanes[index];
        let before = lane.spilling();
        lane.end_drain();
        self.tell_spilling(index, before);
        self.take_back_postponed(index);
        self.enqueue_tiers(index, now);
    }

    fn take_back_postponed(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        for tier in Tier::ALL {
            lane.take_back_postponed(tier);
        }
        self.sort_ready(index);
    }

    /// Moves the ready deliveries into the parts they belong to.
    fn sort_ready(&mut self, index: u32) {
        for tier in Tier::ALL {
            for id in self.lanes[index].take_ready(tier) {
                let Some(item) = self.window.get(id) else { continue };
                let part = self.lanes[index].part(item.delivery.born);
                self.lanes[index].push(tier, part, id);
            }
        }
    }

    /// Makes a waiting delivery due now, at its owner's request or for the recovery of its destination. Gates and holds of
    /// its lane still apply; a wait that its endpoint asked for this delivery alone ends. Nothing is written: the row keeps
    /// its due time.
    pub fn retry_now(&mut self, now: Timestamp, id: DeliveryId) {
        let Some(item) = self.window.get_mut(id).filter(|item| item.stage == Stage::Waiting) else { return };
        let due_now = match item.delivery.state {
            State::Queued { due } if due > now => State::Queued { due: now },
            State::Retry { due, cause } if due > now => State::Retry { due: now, cause },
            _ => return,
        };
        item.delivery.state = due_now;
        self.due(id, now);
    }

    /// Takes a retry from the budget of the lane's destination, where it applies; `false` if the budget is spent.
    pub(super) fn may_retry(&mut self, index: u32, now: Timestamp) -> bool {
        let lane = &mut self.lanes[index];
        let drains = lane.drain().is_some();
        let strict = lane.is_strict();
        let Some(destination) = lane.destination.as_mut() else { return true };
        let applies = !strict
            && !drains
            && destination.breaker.standing(now) == BreakerState::Closed
            && destination.breaker.is_failing(now);
        !applies || destination.budget.take(now).is_ok()
    }

    /// Keeps a retry over the budget aside until the budget allows it.
    pub(super) fn postpone(&mut self, index: u32, tier: Tier, id: DeliveryId, now: Timestamp) {
        let lane = &mut self.lanes[index];
        let rank = lane.ranked(id);
        let Some(destination) = lane.destination.as_mut() else { return };
        destination.postponed[tier.index()].push(rank);
        if let Some(at) = destination.budget.next_at(now) {
            self.wake_lane(index, at, now);
        }
    }

    pub fn standing(&self, now: Timestamp, lane: LaneId) -> BreakerState {
        self.lanes.of(lane).map_or(BreakerState::Closed, |lane| lane.breaker_state(now))
    }
}

/// The signal for the DNS resolver's gate. An attempt over a kept connection needs no resolver and counts as a success,
/// since such attempts need not be held.
fn resolver_signal(verdict: &Verdict) -> Signal {
    match verdict.class {
        Class::Ours | Class::Decided => Signal::Neutral,
        _ if verdict.cause == Cause::DnsFailed => Signal::Failure,
        _ => Signal::Success,
    }
}

/// The signal for the credential's gate. Any answer but a refusal shows that the credential is good. One that asks all
/// its deliveries to slow down does not end a hold of the credential.
fn credential_signal(verdict: &Verdict) -> Signal {
    match verdict.class {
        Class::Credential => Signal::Failure,
        Class::Retry if verdict.scope == VerdictScope::Credential => Signal::Neutral,
        _ => Signal::Success,
    }
}
