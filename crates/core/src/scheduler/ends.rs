//! Ends without another attempt: a cut covers the delivery, its TTL is over, a receipt came, or the
//! store ended it.
//!
//! Invariant: a delivery that is in flight or being recorded is not ended here. A cut spares it; other ends are applied
//! once its attempt has ended, by [`Scheduler::recorded`].

use std::collections::BTreeSet;

use super::items::Item;
use super::record::DeliveryChange;
use super::{RowIndex, Scheduler, Stage};
use crate::cause::Cause;
use crate::cut::{self, CutScope};
use crate::delivery::{self, Delivery};
use crate::id::{DeliveryId, Key, LaneId};
use crate::state::State;
use crate::time::Timestamp;

/// A cut that is in force and not yet durable.
#[derive(Debug, Default)]
pub(super) struct Unrecorded {
    /// How many [`Scheduler::cut`] calls have not been recorded.
    calls: u32,
    /// Lanes that read on once all are durable.
    lanes: BTreeSet<LaneId>,
}

impl Scheduler {
    /// Puts a cut in force and returns the deliveries that it spares: those in flight may still arrive, and those
    /// being recorded have an outcome. The caller must call [`Scheduler::cut_recorded`] once the cut is durable.
    pub fn cut(&mut self, scope: CutScope, upto: Key, cause: Cause) -> Vec<DeliveryId> {
        let mut spared: Vec<DeliveryId> = self
            .in_flight
            .iter()
            .map(|flight| &flight.delivery)
            .chain(self.recording.iter())
            .filter(|id| id.0 <= upto)
            .filter(|id| {
                let delivery = &self.items[id].delivery;
                match scope {
                    CutScope::Message(message) => delivery.message == message,
                    CutScope::Lane(lane) => delivery.lane == lane,
                }
            })
            .copied()
            .collect();
        spared.sort_unstable();
        self.cuts.put(scope, upto, cause);
        let unrecorded = self.cutting.entry(scope).or_default();
        unrecorded.calls += 1;
        if let CutScope::Lane(lane) = scope {
            unrecorded.lanes.insert(lane);
        }
        spared
    }

    /// Notes that a cut is durable: strict lanes continue after the deliveries it covers.
    pub fn cut_recorded(&mut self, scope: CutScope) {
        let Some(unrecorded) = self.cutting.get_mut(&scope) else { return };
        unrecorded.calls -= 1;
        if unrecorded.calls == 0 {
            let recorded = self.cutting.remove(&scope).unwrap_or_default();
            recorded.lanes.into_iter().for_each(|lane| self.read_lane_on(lane));
        }
    }

    /// Whether a lane may continue after a row that [is swept](Scheduler::is_swept). A strict lane may not before the cut
    /// is durable: after a crash the row would be pending again, although a later one had been sent.
    pub fn may_pass(&mut self, delivery: &Delivery) -> bool {
        let lane = delivery.lane;
        let is_strict = self.lane_index.get(&lane).is_some_and(|index| self.lane_ref(*index).is_strict());
        let mut cuts = vec![CutScope::Message(delivery.message), CutScope::Lane(lane)];
        cuts.retain(|scope| self.cuts.covers(*scope, delivery));
        if !is_strict || cuts.iter().any(|scope| !self.cutting.contains_key(scope)) {
            return true;
        }
        for scope in &cuts {
            self.cutting.get_mut(scope).into_iter().for_each(|cut| _ = cut.lanes.insert(lane));
        }
        false
    }

    /// Whether a strict lane waits for a cut to become durable.
    pub(super) fn waits_for_cut(&self, lane: LaneId) -> bool {
        self.cutting.values().any(|unrecorded| unrecorded.lanes.contains(&lane))
    }

    /// Ends the waiting deliveries of the window that this scope's cut covers, and returns what to record of each. An
    /// arrival can come after its row was swept; without this it would be sent once the cut is removed.
    pub fn end_covered(&mut self, now: Timestamp, scope: CutScope) -> Vec<DeliveryChange> {
        let waits = |item: &&Item| matches!(item.stage, Stage::Ready | Stage::Waiting);
        let waiting = self.items.iter().filter(waits).map(|item| &item.delivery);
        let covered = waiting.filter(|delivery| self.cuts.covers(scope, delivery));
        let mut ids: Vec<DeliveryId> = covered.map(|delivery| delivery.id).collect();
        ids.sort_unstable();
        let end = |id| {
            let cause = self.cuts.cause(&self.items[&id].delivery)?;
            Some(self.end(id, cut::ended(cause, now)))
        };
        ids.into_iter().filter_map(end).collect()
    }

    /// Removes a cut whose rows are all swept.
    pub fn forget_cut(&mut self, scope: CutScope, upto: Key) {
        self.cuts.forget(scope, upto);
        self.all_read_on();
    }

    /// Ends a row that a sweep or a scan of the store found; `None` if it is in flight or being recorded.
    pub fn end_row(&mut self, delivery: Delivery, place: RowIndex, end: State) -> Option<DeliveryChange> {
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

    /// Drops a delivery that the store has ended. One that is in flight or being recorded stays; the store will refuse
    /// its record.
    pub fn ended_elsewhere(&mut self, now: Timestamp, id: DeliveryId) {
        if self.items.get(&id).is_some_and(|item| matches!(item.stage, Stage::Ready | Stage::Waiting)) {
            self.leave(id, now);
        }
    }

    /// Ends a delivery that is not in flight.
    pub(super) fn end(&mut self, id: DeliveryId, end: State) -> DeliveryChange {
        let strict = self.lane_of(id).and_then(|lane| lane.settings.as_ref()).and_then(|settings| settings.strict());
        let decision = delivery::end(&self.items[&id].delivery, end, strict);
        self.apply(id, &decision)
    }

    /// Ends a delivery whose TTL is over, unless it is in flight, being recorded, or waiting for a receipt.
    pub(super) fn end_over(&mut self, id: DeliveryId, now: Timestamp) -> Option<DeliveryChange> {
        let item = self.items.get(&id)?;
        let waits = matches!(item.stage, Stage::Ready | Stage::Waiting);
        if !waits || !item.delivery.expiry.is_over(now) || matches!(item.delivery.state, State::AwaitingAck { .. }) {
            return None;
        }
        let end = self.ended_already(&item.delivery, now)?;
        Some(self.end(id, end))
    }

    /// The final state of a waiting delivery that must not be sent any more, if that is so.
    pub(super) fn ended_already(&self, delivery: &Delivery, now: Timestamp) -> Option<State> {
        if delivery.receipt_kept {
            return Some(State::Delivered { at: now });
        }
        if delivery.expiry.is_over(now) {
            return Some(State::Expired { at: now });
        }
        self.cuts.cause(delivery).map(|cause| cut::ended(cause, now))
    }
}
