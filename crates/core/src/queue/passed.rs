//! Rows behind the window that a cut has ended: the store's sweep writes them off, and pages go on
//! behind them. A cancelled message may have left thousands in one queue; reading them in would only
//! write them off one by one.
//!
//! A page that met such rows makes its queue *rest*: the sweep says when the next one may read on, so
//! that both together go at its pace.
//!
//! Invariant: a row outside what a queue has left to read is covered by a cut, or in the window, or
//! [`Queue::spilled`] will hear of it.

use std::collections::{BTreeMap, VecDeque};

use super::Queue;
use super::drain::{Part, Span};
use super::lane::Order;
use crate::delivery::Delivery;
use crate::id::{DeliveryId, LaneId};
use crate::tier::Tier;

/// Rows that a page looks at where the last one met rows of a cut: some milliseconds of reading.
pub(super) const PASSING_PAGE: u32 = 2_000;

/// A part of a queue that is paged by itself: where it begins.
type PartOf = (LaneId, Tier, DeliveryId);

/// What was passed over.
#[derive(Debug, Default)]
pub(super) struct Passed {
    marks: BTreeMap<PartOf, Mark>,
    /// Those that rest, in turn.
    resting: VecDeque<PartOf>,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Of which rows: a queue may be divided otherwise since.
    of: Span,
    /// What is left of them to read.
    rest: Span,
    rests: bool,
}

impl Passed {
    /// What is left to read of this span of a queue; itself when nothing was passed over.
    pub(super) fn rest(&self, lane: LaneId, tier: Tier, of: Span) -> Span {
        self.mark(lane, tier, of).map_or(of, |mark| mark.rest)
    }

    pub(super) fn rests(&self, lane: LaneId, tier: Tier, of: Span) -> bool {
        self.mark(lane, tier, of).is_some_and(|mark| mark.rests)
    }

    pub(super) fn forget(&mut self, lane: LaneId, tier: Tier, of: Span) {
        self.marks.remove(&(lane, tier, of.from));
    }

    /// A row of this lane is behind the window: what was passed over may not include it.
    pub(super) fn heard(&mut self, lane: LaneId, row: DeliveryId) {
        if self.marks.is_empty() {
            return;
        }
        let of_lane = (lane, Tier::ALL[0], Span::ALL.from)..=(lane, Tier::ALL[2], Span::ALL.below);
        let doubtful = self.marks.range(of_lane).filter(|(_, mark)| mark.of.contains(row) && !mark.rest.contains(row));
        let doubtful: Vec<PartOf> = doubtful.map(|(part, _)| *part).collect();
        doubtful.iter().for_each(|part| _ = self.marks.remove(part));
    }

    fn mark(&self, lane: LaneId, tier: Tier, of: Span) -> Option<&Mark> {
        self.marks.get(&(lane, tier, of.from)).filter(|mark| mark.of == of)
    }
}

impl Queue {
    /// Whether a cut has ended this one and its row is the sweep's to write off: nobody has it in memory.
    pub fn is_swept(&self, delivery: &Delivery) -> bool {
        self.cuts.cause(delivery).is_some() && !self.knows(delivery.id)
    }

    /// A page of this span met rows that [are swept](Self::is_swept): all up to this one are dealt with,
    /// in the order of the lane. To be said before [`Queue::paged`].
    pub fn pass_over(&mut self, id: LaneId, tier: Tier, span: Span, upto: DeliveryId) {
        let Some(index) = self.lane_index.get(&id).copied() else { return };
        let lane = self.lane_mut(index);
        let part = lane.drain().map_or(Part::Fresh, |drain| drain.part_of_row(span.from));
        // A page from before the lane was divided otherwise, or one that a later row may belong to.
        if lane.old_pages > 0 || lane.overflow(part, tier).since {
            return;
        }
        let of = lane.drain().map_or(Span::ALL, |drain| drain.span(part));
        let newest_first = lane.settings.as_ref().is_some_and(|settings| settings.order == Order::NewestFirst);
        let rest =
            if newest_first { Span { below: upto, ..span } } else { Span { from: DeliveryId(upto.0.plus(1)), ..span } };
        self.passed.marks.insert((id, tier, of.from), Mark { of, rest, rests: true });
        self.passed.resting.push_back((id, tier, of.from));
    }

    /// The queue that has rested longest may read on.
    pub fn read_on(&mut self) {
        while let Some(part) = self.passed.resting.pop_front() {
            let Some(mark) = self.passed.marks.get_mut(&part).filter(|mark| mark.rests) else { continue };
            mark.rests = false;
            return self.read_lane_on(part.0);
        }
    }

    /// Every queue that rests may read on, from its beginning: what was passed over is written off.
    pub fn all_read_on(&mut self) {
        self.passed.marks.clear();
        for (lane, ..) in std::mem::take(&mut self.passed.resting) {
            self.read_lane_on(lane);
        }
    }

    pub(super) fn read_lane_on(&mut self, lane: LaneId) {
        if let Some(index) = self.lane_index.get(&lane).copied() {
            self.stand_in_line(index);
        }
    }
}
