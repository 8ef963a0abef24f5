//! What is made durable of a delivery, and what follows once it is.
//!
//! Invariant: what was decided is acted on only after [`Queue::recorded`] said that it is durable.

use super::{HORIZON, Place, Queue, Stage};
use crate::cut::{self, EndpointChange};
use crate::delivery::{Decision, Delivery};
use crate::id::{DeliveryId, Shard};
use crate::state::State;
use crate::time::Timestamp;

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
    /// What becomes of its endpoint. The loop cuts the lane of one that is gone, the store disables one.
    pub endpoint_change: Option<EndpointChange>,
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

impl Queue {
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

    /// Whether a retry is better kept: its destination fails, and a recovery makes it due at once.
    fn keeps_retry(&mut self, id: DeliveryId, now: Timestamp) -> bool {
        let item = &self.items[&id];
        let is_retry = matches!(item.delivery.state, State::Retry { .. });
        if !is_retry || item.keeps_wait || self.items.len() >= self.limits.window / 4 * 3 {
            return false;
        }
        if self.lane_ref(item.lane).kept[item.delivery.tier.index()] > self.limits.per_queue / 2 {
            // Those that wait must not keep out what could go.
            return false;
        }
        let index = item.lane;
        let destination = self.lane_mut(index).destination.as_mut();
        destination.is_some_and(|destination| destination.is_troubled(now) && destination.keep_retry(id))
    }

    /// Takes over a decision; from here on it is being recorded.
    pub(super) fn apply(&mut self, id: DeliveryId, decision: &Decision) -> Record {
        let refused = &mut self.refused_moves;
        let item = self.items.get_mut(&id).expect("decided about one in the window");
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
        Record {
            delivery: item.delivery.clone(),
            attempts_before,
            place: item.place,
            shard: Shard::of(item.delivery.lane),
            pauses_lane: decision.pauses_lane,
            endpoint_change: decision.endpoint_change,
        }
    }
}

/// A move that the table refuses is not made, and counted.
pub(super) fn move_to(delivery: &mut Delivery, next: State, refused: &mut u64) {
    if delivery.state.become_(next).is_err() {
        *refused += 1;
    }
}
