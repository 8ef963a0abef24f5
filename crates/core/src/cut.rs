//! Mass ends as watermarks: cancel, unsubscribe, the end of an endpoint.
//!
//! A cut is one row: a scope and the highest id it covers, which is the highest one issued so far, or
//! every id where nothing can come later: an endpoint that is gone takes no messages. Whatever it covers
//! is ended by definition: never sent, read as ended at once. Rows become outcomes later, in small
//! batches. The owner's memory knows a cut before the store does and forgets it after the last row is
//! swept and nothing more can be under way.

use crate::cause::Cause;
use crate::delivery::Delivery;
use crate::id::{DeliveryId, EndpointId, Key, LaneId, MessageId};
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
    /// The endpoint that ends with its lane, and what becomes of it by the same commit.
    pub endpoint: Option<(EndpointId, EndpointChange)>,
}

/// What becomes of an endpoint, by an answer of its receiver or at its owner's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointChange {
    /// Its receiver said that it is no more.
    Gone,
    /// Its receiver asked for nothing more.
    Disabled,
    /// Its owner deleted it.
    Deleted,
}

impl Cut {
    /// One that spares nothing and ends no endpoint.
    pub const fn new(scope: Scope, upto: Key, cause: Cause, at: Timestamp) -> Self {
        Self { scope, upto, cause, at, spared: Vec::new(), endpoint: None }
    }

    /// Whether this delivery is ended by it.
    pub fn covers(&self, delivery: &Delivery) -> bool {
        in_scope(self.scope, delivery) && delivery.id.0 <= self.upto && !self.spared.contains(&delivery.id)
    }

    /// Makes one cut of two that were made of the same scope: it reaches as far as either, spares
    /// what either spared, and says what the later one says, as [`Cuts::put`] does. The endpoint that ends with a cut ends
    /// when that cut is made, so the later one's is not taken over.
    pub fn merge(&mut self, later: Cut) {
        self.upto = self.upto.max(later.upto);
        self.cause = later.cause;
        self.at = later.at;
        self.spared.extend(later.spared);
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
    /// Puts a cut in force; a later one of the same scope reaches further and says why, as with
    /// [`Cut::merge`].
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

    /// Whether the cut of this scope covers this delivery.
    pub fn covers(&self, scope: Scope, delivery: &Delivery) -> bool {
        in_scope(scope, delivery) && self.marks.get(&scope).is_some_and(|(upto, _)| delivery.id.0 <= *upto)
    }

    /// The highest id that the cut of this lane covers, if there is one.
    pub fn of_lane(&self, lane: LaneId) -> Option<Key> {
        self.marks.get(&Scope::Lane(lane)).map(|(upto, _)| *upto)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tier::Tier;

    const LANE: LaneId = LaneId::from_raw(3);

    fn cut(upto: u64, cause: Cause, at: i64, spared: &[u64]) -> Cut {
        Cut {
            scope: Scope::Lane(LANE),
            upto: Key::from_raw(upto),
            cause,
            at: Timestamp::from_millis(at),
            spared: spared.iter().copied().map(DeliveryId::from_raw).collect(),
            endpoint: None,
        }
    }

    fn waiting(id: u64) -> Delivery {
        Delivery::queued(
            DeliveryId::from_raw(id),
            MessageId::from_raw(1),
            EndpointId::from_raw(2),
            LANE,
            Tier::Promotional,
            Timestamp::from_millis(0),
        )
    }

    #[test]
    fn two_cuts_reach_as_far_as_either_and_say_what_the_later_says() {
        for (first, later) in [(20, 30), (30, 20)] {
            let mut merged = cut(first, Cause::Cancelled, 1, &[7]);
            merged.merge(cut(later, Cause::EndpointGone, 2, &[9]));
            assert_eq!(merged, cut(30, Cause::EndpointGone, 2, &[7, 9]));
        }
    }

    #[test]
    fn what_is_in_force_agrees_with_the_merged_cut() {
        for (first, later) in [(20, 30), (30, 20)] {
            let mut merged = cut(first, Cause::Cancelled, 1, &[]);
            let mut cuts = Cuts::default();
            cuts.put(merged.scope, merged.upto, merged.cause);
            let second = cut(later, Cause::Unsubscribed, 2, &[]);
            cuts.put(second.scope, second.upto, second.cause);
            merged.merge(second);
            for delivery in [10, 20, 25, 30, 31].map(waiting) {
                let expected = merged.covers(&delivery).then_some(merged.cause);
                assert_eq!(cuts.cause(&delivery), expected, "{}", delivery.id);
            }
        }
    }
}
