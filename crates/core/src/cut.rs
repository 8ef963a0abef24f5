//! Watermarks that end many deliveries at once: cancel, unsubscribe, the end of an endpoint.
//!
//! A cut is one row: a scope and the highest id it covers. That is the highest id issued so far, or, for an
//! endpoint that is gone and takes no further messages, every id. A delivery that a cut covers has ended: it
//! is never sent, and readers see it as ended at once. A sweep turns the covered rows into outcomes later, in
//! small batches. The owner keeps a cut in memory from before it is durable until the last row is swept and no
//! accept below it can still be under way.

use crate::{Cause, Delivery, DeliveryId, EndpointId, IdMap, Key, LaneId, MessageId, State, Timestamp};

/// Which deliveries a cut ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CutScope {
    Message(MessageId),
    Lane(LaneId),
}

impl CutScope {
    pub fn contains(self, delivery: &Delivery) -> bool {
        match self {
            Self::Message(message) => delivery.message == message,
            Self::Lane(lane) => delivery.lane == lane,
        }
    }
}

/// A watermark below which everything in its scope has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    pub scope: CutScope,
    /// The highest id it covers.
    pub upto: Key,
    pub cause: Cause,
    pub at: Timestamp,
    /// Deliveries that were in flight when the cut was made: they may still arrive, so their own outcome
    /// ends them. After a restart the exception no longer holds, and they are not sent again.
    pub spared: Vec<DeliveryId>,
    /// The endpoint that ends with its lane, and its new status, written in the same commit.
    pub endpoint: Option<(EndpointId, EndpointChange)>,
}

/// A change of an endpoint's status, by an answer of its receiver or at its owner's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointChange {
    /// Its receiver answered that the endpoint no longer exists.
    Gone,
    /// Its receiver asked for no further deliveries.
    Disabled,
    Deleted,
}

impl Cut {
    /// A cut that spares no delivery and ends no endpoint.
    pub const fn new(scope: CutScope, upto: Key, cause: Cause, at: Timestamp) -> Self {
        Self { scope, upto, cause, at, spared: Vec::new(), endpoint: None }
    }

    pub fn covers(&self, delivery: &Delivery) -> bool {
        self.scope.contains(delivery) && delivery.id.0 <= self.upto && !self.spared.contains(&delivery.id)
    }

    /// Merges a later cut of the same scope: the higher watermark, the spared deliveries of both, and the cause
    /// and time of the later one, as [`Cuts::put`] does. The later cut's endpoint is not taken over: it ended when
    /// that cut was made.
    pub fn merge(&mut self, later: Cut) {
        self.upto = self.upto.max(later.upto);
        self.cause = later.cause;
        self.at = later.at;
        self.spared.extend(later.spared);
    }

    /// The final state of the deliveries it covers.
    pub const fn end(&self) -> State {
        ended(self.cause, self.at)
    }
}

/// The final state of a delivery that a cut with this cause covers.
pub const fn ended(cause: Cause, at: Timestamp) -> State {
    match cause {
        Cause::EndpointGone => State::Dead { at, cause },
        _ => State::Cancelled { at, cause },
    }
}

#[derive(Clone, Debug, Default)]
pub struct Cuts {
    marks: IdMap<CutScope, (Key, Cause)>,
}

impl Cuts {
    /// Puts a cut in force. With an earlier one of the same scope it is merged as by [`Cut::merge`].
    pub fn put(&mut self, scope: CutScope, upto: Key, cause: Cause) {
        let mark = self.marks.entry(scope).or_insert((upto, cause));
        *mark = (mark.0.max(upto), cause);
    }

    /// Removes a cut whose rows are swept up to `upto`, unless a later one has raised its watermark.
    pub fn forget(&mut self, scope: CutScope, upto: Key) {
        if self.marks.get(&scope).is_some_and(|mark| mark.0 <= upto) {
            self.marks.remove(&scope);
        }
    }

    pub fn covers(&self, scope: CutScope, delivery: &Delivery) -> bool {
        scope.contains(delivery) && self.marks.get(&scope).is_some_and(|(upto, _)| delivery.id.0 <= *upto)
    }

    /// The highest id that this lane's cut covers, if there is one.
    pub fn lane_watermark(&self, lane: LaneId) -> Option<Key> {
        self.marks.get(&CutScope::Lane(lane)).map(|(upto, _)| *upto)
    }

    pub fn cause(&self, delivery: &Delivery) -> Option<Cause> {
        if self.marks.is_empty() {
            return None;
        }
        [CutScope::Message(delivery.message), CutScope::Lane(delivery.lane)]
            .iter()
            .filter_map(|scope| self.marks.get(scope))
            .find(|(upto, _)| delivery.id.0 <= *upto)
            .map(|(_, cause)| *cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tier;

    const LANE: LaneId = LaneId::from_raw(3);

    fn cut(upto: u64, cause: Cause, at: i64, spared: &[u64]) -> Cut {
        Cut {
            scope: CutScope::Lane(LANE),
            upto: Key::from_raw(upto),
            cause,
            at: Timestamp::from_millis(at),
            spared: spared.iter().copied().map(DeliveryId::from_raw).collect(),
            endpoint: None,
        }
    }

    fn waiting(id: u64) -> Delivery {
        let (id, message, endpoint) = (DeliveryId::from_raw(id), MessageId::from_raw(1), EndpointId::from_raw(2));
        Delivery::queued(id, message, endpoint, LANE, Tier::Promotional, Timestamp::default())
    }

    #[test]
    fn a_merged_cut_has_the_higher_watermark_and_the_later_cause() {
        for (first, later) in [(20, 30), (30, 20)] {
            let mut merged = cut(first, Cause::Cancelled, 1, &[7]);
            merged.merge(cut(later, Cause::EndpointGone, 2, &[9]));
            assert_eq!(merged, cut(30, Cause::EndpointGone, 2, &[7, 9]));
        }
    }

    #[test]
    fn the_cuts_in_force_cover_the_same_as_the_merged_cut() {
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
