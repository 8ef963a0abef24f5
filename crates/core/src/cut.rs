//! Mass ends as watermarks: cancel, unsubscribe, the end of an endpoint.
//!
//! A cut is one row: a scope and the highest id issued when it was made. Whatever it covers is
//! ended by definition: never sent, read as ended at once. Rows become outcomes later, in small
//! batches. The owner's memory knows a cut before the store does and forgets it after the last
//! row is swept.

use crate::cause::Cause;
use crate::delivery::Delivery;
use crate::id::{DeliveryId, Key, LaneId, MessageId};
use crate::id_map::IdMap;
use crate::state::State;
use crate::time::Timestamp;

/// What a cut ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Every delivery of one message.
    Message(MessageId),
    /// Everything that waits for one destination.
    Lane(LaneId),
}

/// A watermark below which everything in its scope has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// What it ends.
    pub scope: Scope,
    /// The highest id it covers.
    pub upto: Key,
    /// Why.
    pub cause: Cause,
    /// When.
    pub at: Timestamp,
    /// Deliveries in flight when it was made: they may still arrive, so their own outcome ends
    /// them. A restart forgets the exception: what was in flight then is not sent again.
    pub spared: Vec<DeliveryId>,
}

impl Cut {
    /// Whether this delivery is ended by it.
    pub fn covers(&self, delivery: &Delivery) -> bool {
        in_scope(self.scope, delivery) && delivery.id.0 <= self.upto && !self.spared.contains(&delivery.id)
    }

    /// The state of what it covers.
    pub const fn end(&self) -> State {
        ended(self.cause, self.at)
    }
}

/// The end that a mass end with this cause brings.
pub const fn ended(cause: Cause, at: Timestamp) -> State {
    match cause {
        Cause::EndpointGone => State::Dead { at, cause },
        _ => State::Cancelled { at, cause },
    }
}

fn in_scope(scope: Scope, delivery: &Delivery) -> bool {
    match scope {
        Scope::Message(message) => delivery.message == message,
        Scope::Lane(lane) => delivery.lane == lane,
    }
}

/// The cuts an owner has in force.
#[derive(Clone, Debug, Default)]
pub struct Cuts {
    marks: IdMap<Scope, (Key, Cause)>,
}

impl Cuts {
    /// Puts a cut in force; a later one of the same scope reaches further.
    pub fn put(&mut self, scope: Scope, upto: Key, cause: Cause) {
        let mark = self.marks.entry(scope).or_insert((upto, cause));
        *mark = (mark.0.max(upto), cause);
    }

    /// Forgets a cut whose rows are all swept, unless it reaches further by now.
    pub fn forget(&mut self, scope: Scope, upto: Key) {
        if self.marks.get(&scope).is_some_and(|mark| mark.0 <= upto) {
            self.marks.remove(&scope);
        }
    }

    /// Why this delivery is ended, if a cut covers it.
    pub fn cause(&self, delivery: &Delivery) -> Option<Cause> {
        if self.marks.is_empty() {
            return None;
        }
        [Scope::Message(delivery.message), Scope::Lane(delivery.lane)]
            .iter()
            .filter_map(|scope| self.marks.get(scope))
            .find(|(upto, _)| delivery.id.0 <= *upto)
            .map(|(_, cause)| *cause)
    }
}
