//! Records: changes of a delivery to make durable, and what follows once they are.
//!
//! Invariant: a decision takes effect only after [`Scheduler::recorded`] reported that it is durable.

use super::{HORIZON, RowIndex, Scheduler, Stage};
use crate::cut::{self, EndpointChange};
use crate::delivery::Delivery;
use crate::id::{DeliveryId, Shard};
use crate::state::State;
use crate::time::Timestamp;

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
