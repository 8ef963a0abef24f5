//! Ends without another attempt: a cut covers the delivery, its TTL is over, a receipt came, or the store ended it.
//!
//! Invariant: a delivery that is in flight or being recorded is not ended here. A cut spares it; other ends are applied
//! once its attempt has ended, by [`Scheduler::recorded`].

use std::collections::{BTreeMap, BTreeSet};

use super::flight::DeliveryChange;
use super::lane::Lane;
use super::window::Item;
use super::{RowIndex, Scheduler, Stage};
use crate::cut::{self, Cuts};
use crate::delivery;
use crate::{Cause, CutScope, Delivery, DeliveryId, Key, LaneId, State, Timestamp};

/// The cuts in force, and which of them are not durable yet.
#[derive(Debug, Default)]
pub(super) struct CutsInForce {
    pub(super) cuts: Cuts,
    unrecorded: BTreeMap<CutScope, UnrecordedCut>,
}

#[derive(Debug, Default)]
struct UnrecordedCut {
    /// How many [`Scheduler::cut`] calls have not been recorded.
    calls: u32,
    /// Lanes that read on once all are durable.
    lanes: BTreeSet<LaneId>,
}

impl CutsInForce {
    /// The cause with which a cut ends this delivery, if one covers it.
    pub(super) fn cause(&self, delivery: &Delivery) -> Option<Cause> {
        self.cuts.cause(delivery)
    }

    /// Whether a strict lane waits for a cut to become durable.
    pub(super) fn is_awaited_by(&self, lane: LaneId) -> bool {
        self.unrecorded.values().any(|cut| cut.lanes.contains(&lane))
    }

    fn put(&mut self, scope: CutScope, upto: Key, cause: Cause) {
        self.cuts.put(scope, upto, cause);
        let unrecorded = self.unrecorded.entry(scope).or_default();
        unrecorded.calls += 1;
        if let CutScope::Lane(lane) = scope {
            unrecorded.lanes.insert(lane);
        }
    }

    /// Notes that a cut is durable, and returns the lanes that may read on.
    fn recorded(&mut self, scope: CutScope) -> BTreeSet<LaneId> {
        let Some(unrecorded) = self.unrecorded.get_mut(&scope) else { return BTreeSet::new() };
        unrecorded.calls -= 1;
        if unrecorded.calls > 0 {
            return BTreeSet::new();
        }
        self.unrecorded.remove(&scope).unwrap_or_default().lanes
    }

    /// Whether a strict lane may continue after a covered row; if not, it waits until the cut is durable.
    fn may_pass(&mut self, delivery: &Delivery) -> bool {
        let mut scopes = vec![CutScope::Message(delivery.message), CutScope::Lane(delivery.lane)];
        scopes.retain(|scope| self.cuts.covers(*scope, delivery));
        if scopes.iter().any(|scope| !self.unrecorded.contains_key(scope)) {
            return true;
        }
        for scope in &scopes {
            self.unrecorded.get_mut(scope).into_iter().for_each(|cut| _ = cut.lanes.insert(delivery.lane));
        }
        false
    }
}

impl Scheduler {
    /// Puts a cut in force and returns the deliveries that it spares: those in flight may still arrive, and those
    /// being recorded have an outcome. The caller must call [`Scheduler::cut_recorded`] once the cut is durable.
    pub fn cut(&mut self, scope: CutScope, upto: Key, cause: Cause) -> Vec<DeliveryId> {
        self.cuts.put(scope, upto, cause);
        self.window.under_way(|delivery| delivery.id.0 <= upto && scope.contains(delivery))
    }

    /// Notes that a cut is durable: strict lanes continue after the deliveries it covers.
    pub fn cut_recorded(&mut self, scope: CutScope) {
        self.cuts.recorded(scope).into_iter().for_each(|lane| self.read_lane_on(lane));
    }

    /// Whether a lane may continue after a row that [is swept](Scheduler::is_swept). A strict lane may not before the
    /// cut is durable: after a crash the row would be pending again, although a later one had been sent.
    pub fn may_pass(&mut self, delivery: &Delivery) -> bool {
        !self.lanes.of(delivery.lane).is_some_and(Lane::is_strict) || self.cuts.may_pass(delivery)
    }

    /// Ends the waiting deliveries of the window that this scope's cut covers, and returns what to record of each. An
    /// arrival can come after its row was swept; without this it would be sent once the cut is removed.
    pub fn end_covered(&mut self, now: Timestamp, scope: CutScope) -> Vec<DeliveryChange> {
        let ids = self.window.waiting(|delivery| self.cuts.cuts.covers(scope, delivery));
        let end = |id| {
            let cause = self.cuts.cause(&self.window[id].delivery)?;
            Some(self.end(id, cut::ended(cause, now)))
        };
        ids.into_iter().filter_map(end).collect()
    }

    /// Removes a cut whose rows are all swept.
    pub fn forget_cut(&mut self, scope: CutScope, upto: Key) {
        self.cuts.cuts.forget(scope, upto);
        self.all_read_on();
    }

    /// Ends a row that a sweep or a scan of the store found; `None` if it is in flight or being recorded.
    pub fn end_row(&mut self, delivery: Delivery, place: RowIndex, end: State) -> Option<DeliveryChange> {
        let id = delivery.id;
        match self.window.get(id).map(|item| item.stage) {
            Some(Stage::InFlight | Stage::Recording) => None,
            Some(Stage::Ready | Stage::Waiting) => Some(self.end(id, end)),
            None => {
                self.insert(delivery, place);
                Some(self.end(id, end))
            }
        }
    }

    /// Drops a delivery that the store has ended. One that is in flight or being recorded stays; the store will refuse
    /// its record.
    pub fn ended_elsewhere(&mut self, now: Timestamp, id: DeliveryId) {
        if self.window.get(id).is_some_and(Item::waits) {
            self.leave(id, now);
        }
    }

    /// Ends a delivery that is not in flight.
    pub(super) fn end(&mut self, id: DeliveryId, end: State) -> DeliveryChange {
        let strict = self.lane_of(id).and_then(|lane| lane.settings.as_ref()).and_then(|settings| settings.strict());
        let decision = delivery::end(&self.window[id].delivery, end, strict);
        self.window.apply(id, &decision)
    }

    /// Ends a delivery whose TTL is over, unless it is in flight, being recorded, or waiting for a receipt.
    pub(super) fn end_over(&mut self, id: DeliveryId, now: Timestamp) -> Option<DeliveryChange> {
        let item = self.window.get(id).filter(|item| item.waits() && item.delivery.expiry.is_over(now))?;
        if matches!(item.delivery.state, State::AwaitingAck { .. }) {
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
