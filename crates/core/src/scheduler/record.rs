//! Records: changes of a delivery to make durable, and what follows once they are.
//!
//! Invariant: a decision takes effect only after [`Scheduler::recorded`] reported that it is durable.

use super::{HORIZON, RowIndex, Scheduler, Stage};
use crate::cut::{self, EndpointChange};
use crate::delivery::{Decision, Delivery};
use crate::id::{DeliveryId, Shard};
use crate::state::State;
use crate::time::Timestamp;

/// A change to make durable. The owner calls [`Scheduler::recorded`] once it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryChange {
    /// The changed delivery.
    pub delivery: Delivery,
    /// The number of attempts that the row must have for the change to be valid; otherwise the settle is stale.
    pub attempts_before: u16,
    /// Where the row is kept while it is pending.
    pub place: RowIndex,
    /// The shard of its lane.
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
    /// It waits in the window.
    Waits,
    /// It has left the window and must be read back from the store before this time.
    Left(Timestamp),
    /// A cut or a receipt came in the meantime: record this change too.
    Again(DeliveryChange),
}

impl Scheduler {
    /// Notes that a delivery's change is durable, and continues with it.
    pub fn recorded(&mut self, now: Timestamp, id: DeliveryId) -> AfterRecord {
        let Some(item) = self.items.get_mut(&id).filter(|item| item.stage == Stage::Recording) else {
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
        let item = &self.items[&id];
        let is_retry = matches!(item.delivery.state, State::Retry { .. });
        if !is_retry || item.keeps_wait || self.items.len() >= self.limits.window / 4 * 3 {
            return false;
        }
        if self.lane_ref(item.lane).kept[item.delivery.tier.index()] > self.limits.per_queue / 2 {
            // Waiting retries must not keep out deliveries that can be sent.
            return false;
        }
        let index = item.lane;
        let destination = self.lane_mut(index).destination.as_mut();
        destination.is_some_and(|destination| destination.is_troubled(now) && destination.keep_retry(id))
    }

    /// Applies a decision; the delivery is then being recorded.
    pub(super) fn apply(&mut self, id: DeliveryId, decision: &Decision) -> DeliveryChange {
        let refused = &mut self.refused_moves;
        let item = self.items.get_mut(&id).expect("the decision is about a delivery of the window");
        let attempts_before = item.delivery.attempts;
        item.delivery.attempts = decision.attempts;
        item.delivery.previous_wait = decision.previous_wait;
        item.delivery.limited_in_a_row = decision.limited_in_a_row;
        item.delivery.last_cause = decision.last_cause;
        item.delivery.compact = decision.compact;
        move_to(&mut item.delivery, decision.state, refused);
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

/// Changes the state. A transition that the table refuses is counted and not made.
pub(super) fn move_to(delivery: &mut Delivery, next: State, refused: &mut u64) {
    if delivery.state.become_(next).is_err() {
        *refused += 1;
    }
}
