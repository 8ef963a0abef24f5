//! Paging past rows that a cut has ended. The store's sweep turns such rows into outcomes in batches, so pages skip
//! them: a cancelled message may have thousands of rows in one queue, and reading them into the window would only end
//! them one by one.
//!
//! A queue whose page contained such rows *rests* until the sweep calls [`Scheduler::read_on`], so that pages do not read
//! faster than the sweep writes.
//!
//! Invariant: a row outside the remaining span of a queue is covered by a cut, or in the window, or
//! will be reported to [`Scheduler::spilled`].

use std::collections::{BTreeMap, VecDeque};

use super::Scheduler;
use super::drain::{DrainPart, IdRange};
use super::lane::Order;
use crate::delivery::Delivery;
use crate::id::{DeliveryId, LaneId};
use crate::tier::Tier;

/// The rows that a page reads after one with rows of a cut: some milliseconds of reading.
pub(super) const PASSING_PAGE: u32 = 2_000;

/// A part of a queue that is paged by itself: lane, tier and first id.
type PartOf = (LaneId, Tier, DeliveryId);

/// How far each queue has been paged past rows of cuts.
#[derive(Debug, Default)]
pub(super) struct Passed {
    marks: BTreeMap<PartOf, Mark>,
    /// Queues that rest, the longest first.
    resting: VecDeque<PartOf>,
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    /// The span of the queue at that time; the queue may be divided differently since.
    of: IdRange,
    /// The part of the span that is left to read.
    rest: IdRange,
    rests: bool,
}

impl Passed {
    /// The part of this span of a queue that is left to read; the whole span if no row was passed over.
    pub(super) fn rest(&self, lane: LaneId, tier: Tier, of: IdRange) -> IdRange {
        self.mark(lane, tier, of).map_or(of, |mark| mark.rest)
    }

    pub(super) fn rests(&self, lane: LaneId, tier: Tier, of: IdRange) -> bool {
        self.mark(lane, tier, of).is_some_and(|mark| mark.rests)
    }

    pub(super) fn forget(&mut self, lane: LaneId, tier: Tier, of: IdRange) {
        self.marks.remove(&(lane, tier, of.from));
    }

    /// Notes that a row of this lane is behind the window. If it is before the remaining span of its queue, the queue
    /// is read from the beginning again.
    pub(super) fn heard(&mut self, lane: LaneId, row: DeliveryId) {
        if self.marks.is_empty() {
            return;
        }
        let lane_watermark = (lane, Tier::ALL[0], IdRange::ALL.from)..=(lane, Tier::ALL[2], IdRange::ALL.below);
        let missed =
            self.marks.range(lane_watermark).filter(|(_, mark)| mark.of.contains(row) && !mark.rest.contains(row));
        let missed: Vec<PartOf> = missed.map(|(part, _)| *part).collect();
        missed.iter().for_each(|part| _ = self.marks.remove(part));
    }

    fn mark(&self, lane: LaneId, tier: Tier, of: IdRange) -> Option<&Mark> {
        self.marks.get(&(lane, tier, of.from)).filter(|mark| mark.of == of)
    }
}

impl Scheduler {
    /// Whether a cut has ended this delivery and the sweep will write its outcome, since it is not in the window.
    pub fn is_swept(&self, delivery: &Delivery) -> bool {
        self.cuts.cause(delivery).is_some() && !self.knows(delivery.id)
    }

    /// Notes that a page of this span contained rows that [are swept](Self::is_swept), and that all rows up to `upto`,
    /// in the order of the lane, need not be read again. To be called before [`Scheduler::paged`].
    pub fn pass_over(&mut self, id: LaneId, tier: Tier, span: IdRange, upto: DeliveryId) {
        let Some(index) = self.lane_index.get(&id).copied() else { return };
        let lane = self.lane_mut(index);
        let part = lane.drain().map_or(DrainPart::Fresh, |drain| drain.part_of_row(span.from));
        // A page from before the lane was divided differently, or one that may have missed a row spilled since.
        if lane.old_pages > 0 || lane.overflow(part, tier).since {
            return;
        }
        let of = lane.drain().map_or(IdRange::ALL, |drain| drain.span(part));
        let newest_first = lane.settings.as_ref().is_some_and(|settings| settings.order == Order::NewestFirst);
        let rest = if newest_first {
            IdRange { below: upto, ..span }
        } else {
            IdRange { from: DeliveryId(upto.0.plus(1)), ..span }
        };
        self.passed.marks.insert((id, tier, of.from), Mark { of, rest, rests: true });
        self.passed.resting.push_back((id, tier, of.from));
    }

    /// Lets the queue that has rested longest read on.
    pub fn read_on(&mut self) {
        while let Some(part) = self.passed.resting.pop_front() {
            let Some(mark) = self.passed.marks.get_mut(&part).filter(|mark| mark.rests) else { continue };
            mark.rests = false;
            return self.read_lane_on(part.0);
        }
    }

    /// Lets every resting queue read on from its beginning: all rows that were passed over have been swept.
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
