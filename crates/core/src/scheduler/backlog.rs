//! Rows of pending deliveries that are in the store and not in the window: which pages to read, which deliveries to
//! evict, and how pages get past rows that a cut has ended.
//!
//! The store's sweep turns rows of a cut into outcomes in batches, so pages skip them: a cancelled message may have
//! thousands of rows in one queue, and reading them into the window would only end them one by one. A queue whose page
//! contained such rows *rests* until the sweep calls [`Scheduler::read_on`], so that pages do not read faster than the
//! sweep writes.
//!
//! Invariants: a pending row is in the window, or will be paged in, or a cut covers it. A row outside the remaining
//! span of a queue is covered by a cut, or in the window, or will be reported to [`Scheduler::spilled`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::drain::{DrainPart, IdRange, IdTimeline};
use super::lane::{Order, Overflow};
use super::timer::Timer;
use super::window::room;
use super::{RowIndex, Scheduler, Stage};
use crate::{Delivery, DeliveryId, LaneId, Tier, Timestamp};

/// How soon all lanes are searched again for rows to spill, after a search that did not free enough room.
const EVICT_AGAIN: Duration = Duration::from_secs(1);

/// The rows that a page reads after one with rows of a cut: some milliseconds of reading.
const PASSING_PAGE: u32 = 2_000;

/// A page to read from the store: the first `limit` rows of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageWanted {
    pub lane: LaneId,
    /// The tier to read; a strict lane is read over all tiers.
    pub tier: Tier,
    pub order: Order,
    pub span: IdRange,
    pub limit: u32,
}

/// A delivery that was removed from the window to make room. Its row must be written as spilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    pub delivery: DeliveryId,
    pub lane: LaneId,
    pub tier: Tier,
}

/// What is known of the rows behind the window.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Lanes that may need a page, in the order they are served.
    page_line: VecDeque<u32>,
    /// New rows that requested pages may bring.
    pub(super) rows_to_come: usize,
    passed: PassedRows,
    /// Queues that started or stopped spilling, for [`Scheduler::take_spilling_changes`].
    spilling_changes: Vec<(LaneId, Tier, bool)>,
    pub(super) id_timeline: IdTimeline,
    /// The lane at which the next search for rows to spill starts.
    evict_from: u32,
    /// When a search of all lanes did not free enough room; cleared when a hold begins.
    evicted_in_vain: Option<Timestamp>,
}

impl Backlog {
    /// Notes that a hold began: there may be more to evict than at the last search.
    pub(super) fn hold_began(&mut self) {
        self.evicted_in_vain = None;
    }
}

/// A part of a queue that is paged by itself: lane, tier and first id.
type PartOf = (LaneId, Tier, DeliveryId);

/// How far each queue has been paged past rows of cuts.
#[derive(Debug, Default)]
struct PassedRows {
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

impl PassedRows {
    /// The part of this span of a queue that is left to read; the whole span if no row was passed over.
    fn rest(&self, lane: LaneId, tier: Tier, of: IdRange) -> IdRange {
        self.mark(lane, tier, of).map_or(of, |mark| mark.rest)
    }

    fn rests(&self, lane: LaneId, tier: Tier, of: IdRange) -> bool {
        self.mark(lane, tier, of).is_some_and(|mark| mark.rests)
    }

    fn forget(&mut self, lane: LaneId, tier: Tier, of: IdRange) {
        self.marks.remove(&(lane, tier, of.from));
    }

    /// Notes that a row of this lane is behind the window. If it is before the remaining span of its queue, the queue
    /// is read from the beginning again.
    fn heard(&mut self, lane: LaneId, row: DeliveryId) {
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
    /// Whether the store has rows of this queue behind the window. New rows then go behind the window too, so that
    /// they do not overtake.
    pub fn is_spilling(&self, lane: LaneId, tier: Tier) -> bool {
        self.lanes.of(lane).is_some_and(|lane| lane.is_spilling(tier))
    }

    /// The queues that started (`true`) or stopped spilling since the last call.
    pub fn take_spilling_changes(&mut self) -> Vec<(LaneId, Tier, bool)> {
        std::mem::take(&mut self.backlog.spilling_changes)
    }

    /// Notes that a row of this queue was written as spilled.
    pub fn spilled(&mut self, id: LaneId, tier: Tier, row: DeliveryId) {
        self.backlog.passed.heard(id, row);
        let index = self.lanes.ensure(id);
        let lane = &mut self.lanes[index];
        let part = lane.drain().map_or(DrainPart::Fresh, |drain| drain.part_of_row(row));
        let overflow = lane.overflow(part, tier);
        let began = !overflow.is_spilling();
        overflow.more = true;
        overflow.since |= overflow.paging;
        if began && part == DrainPart::Fresh {
            self.backlog.spilling_changes.push((id, tier, true));
        }
        self.stand_in_line(index);
    }

    /// Puts a lane in line for a page.
    pub(super) fn stand_in_line(&mut self, index: u32) {
        if !std::mem::replace(&mut self.lanes[index].wants_page, true) {
            self.backlog.page_line.push_back(index);
        }
    }

    /// Notes that a delivery with this id was created.
    pub fn seen(&mut self, now: Timestamp, id: DeliveryId) {
        self.backlog.id_timeline.see(now, id);
    }

    /// The next page to read from the store. To be called until it returns `None`.
    ///
    /// A page always has the first rows of its queue, and rows that are in the window already are skipped. There is no
    /// cursor that could miss a row that was committed late.
    pub fn next_page(&mut self, now: Timestamp) -> Option<PageWanted> {
        while self.window.len() + self.backlog.rows_to_come < self.limits.window {
            let index = self.backlog.page_line.pop_front()?;
            let Some(lane) = self.lanes.slots.get_mut(index) else { continue };
            lane.wants_page = false;
            if let Some(wanted) = self.page_wanted(index, now) {
                // Another queue of the lane may want one too.
                self.stand_in_line(index);
                let rest = self.backlog.passed.rest(wanted.lane, wanted.tier, wanted.span);
                let Some(span) = self.above_cut(wanted.lane, rest) else {
                    self.paged(now, wanted.lane, wanted.tier, wanted.span, false);
                    continue;
                };
                let limit = if rest == wanted.span { wanted.limit } else { wanted.limit.max(PASSING_PAGE) };
                return Some(PageWanted { span, limit, ..wanted });
            }
        }
        None
    }

    /// The part of a span that the lane's cut does not cover; `None` if it covers all of it. The store's sweep ends the
    /// covered rows in batches, faster than the window could one by one.
    fn above_cut(&self, lane: LaneId, span: IdRange) -> Option<IdRange> {
        let above = self.cuts.cuts.lane_watermark(lane).map(|upto| DeliveryId(upto.plus(1)));
        let from = above.map_or(span.from, |above| above.max(span.from));
        (from < span.below).then_some(IdRange { from, ..span })
    }

    fn page_wanted(&mut self, index: u32, now: Timestamp) -> Option<PageWanted> {
        let order = self.lanes[index].settings.as_ref()?.order;
        if self.holding(&self.lanes[index], now).is_some() {
            self.park_held(index, now);
            return None;
        }
        let half = self.page_size();
        let entry = &mut self.lanes[index];
        let lane = entry.id;
        let most = room(&self.limits, entry);
        if entry.old_pages > 0 {
            return None;
        }
        if order == Order::Strict {
            // Paged as a whole, one row at a time: the head may be of any tier.
            let more = entry.overflow.iter().any(|queue| queue.more);
            let wanted = more && entry.kept == [0; 3] && !entry.overflow[0].paging;
            let rests = self.backlog.passed.rests(lane, Tier::ALL[0], IdRange::ALL) || self.cuts.is_awaited_by(lane);
            return (wanted && !rests).then(|| {
                entry.overflow[0].paging = true;
                entry.rows_to_come += 1;
                self.backlog.rows_to_come += 1;
                PageWanted { lane, tier: Tier::ALL[0], order, span: IdRange::ALL, limit: 1 }
            });
        }
        for part in DrainPart::all().take(if entry.drain().is_some() { usize::MAX } else { 1 }) {
            for tier in Tier::ALL {
                let kept = entry.kept[tier.index()];
                // The ready count includes deliveries that have ended since.
                let few = kept <= half || entry.ready_count(part, tier) <= half as usize;
                let has_room = few && kept < most;
                let span = entry.drain().map_or(IdRange::ALL, |drain| drain.span(part));
                let overflow = entry.overflow(part, tier);
                if overflow.more && !overflow.paging && has_room && !self.backlog.passed.rests(lane, tier, span) {
                    overflow.paging = true;
                    let new =
                        u16::try_from(half.min(most - kept)).unwrap_or(u16::MAX).min(u16::MAX - entry.rows_to_come);
                    entry.rows_to_come += new;
                    self.backlog.rows_to_come += usize::from(new);
                    return Some(PageWanted { lane, tier, order, span, limit: kept + u32::from(new) });
                }
            }
        }
        None
    }

    /// Notes that a page has come. `more`: the store may have more of these rows than the window.
    pub fn paged(&mut self, now: Timestamp, id: LaneId, tier: Tier, span: IdRange, more: bool) {
        let Some(index) = self.lanes.find(id) else { return };
        self.page_came(index);
        let lane = &mut self.lanes[index];
        if lane.old_pages > 0 {
            lane.old_pages -= 1;
            return self.stand_in_line(index);
        }
        let part = lane.drain().map_or(DrainPart::Fresh, |drain| drain.part_of_row(span.from));
        let of = lane.drain().map_or(IdRange::ALL, |drain| drain.span(part));
        let missed = std::mem::take(&mut lane.overflow(part, tier).since);
        let strict = lane.is_strict();
        if strict {
            lane.overflow = Default::default();
        }
        *lane.overflow(part, tier) = Overflow { more: more || missed, paging: false, since: false };
        if missed || !more {
            self.backlog.passed.forget(id, tier, of);
        }
        if more || missed {
            if !self.backlog.passed.rests(id, tier, of) {
                self.stand_in_line(index);
            }
        } else if strict {
            self.backlog.spilling_changes.extend(Tier::ALL.map(|tier| (id, tier, false)));
        } else if part == DrainPart::Fresh {
            self.backlog.spilling_changes.push((id, tier, false));
        }
        self.tidy_destination(index, now);
        self.drop_if_idle(index, now);
    }

    /// How many rows of one queue a page brings: half of the window's room for each queue.
    fn page_size(&self) -> u32 {
        let each = self.limits.window / self.lanes.slots.len().max(1);
        (u32::try_from(each).unwrap_or(u32::MAX).min(self.limits.per_queue) / 2).max(1)
    }

    /// Releases the room that was reserved for one page of a lane: its share of the reserved rows, or all of them with
    /// the last page.
    fn page_came(&mut self, index: u32) {
        let lane = &mut self.lanes[index];
        let pages = u16::from(lane.pages_under_way()).max(1);
        let back = lane.rows_to_come / pages;
        lane.rows_to_come -= back;
        self.backlog.rows_to_come -= usize::from(back);
    }

    /// Evicts deliveries of held lanes if the window is nearly full, to make room for deliveries that can be sent.
    ///
    /// The returned deliveries have left the window. Their rows must be written as spilled, and then be reported to
    /// [`Scheduler::spilled`]. A search that does not free enough room is repeated after a second, or when another hold
    /// begins.
    pub fn evict(&mut self, now: Timestamp) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        // A search in the future means that the clock was set back.
        let searched = self.backlog.evicted_in_vain.is_some_and(|at| at <= now && now.since(at) < EVICT_AGAIN);
        if searched || self.window.len() < self.limits.window / 4 * 3 {
            return evicted;
        }
        let lanes = self.lanes.slots.bound();
        for step in 0..lanes {
            let index = (self.backlog.evict_from + step) % lanes;
            if self.lanes.slots.get(index).is_some_and(|lane| self.holding(lane, now).is_some()) {
                self.evict_lane(index, now, &mut evicted);
            }
            if self.window.len() < self.limits.window / 2 {
                self.backlog.evict_from = index + 1;
                return evicted;
            }
        }
        self.backlog.evicted_in_vain = Some(now);
        self.timers.set(now + EVICT_AGAIN, Timer::Evict);
        evicted
    }

    fn evict_lane(&mut self, index: u32, now: Timestamp, evicted: &mut Vec<Evicted>) {
        let mut ready = Vec::new();
        for tier in Tier::ALL {
            self.lanes[index].take_back_postponed(tier);
            ready.extend(self.lanes[index].take_ready(tier).into_iter().map(|id| (tier, id)));
        }
        let lane = self.lanes[index].id;
        for (tier, id) in ready {
            let Some(item) = self.window.get(id).filter(|item| item.stage == Stage::Ready) else { continue };
            if item.place == RowIndex::Spilled {
                self.spilled(lane, tier, id);
            } else {
                evicted.push(Evicted { delivery: id, lane, tier });
            }
            self.leave(id, now);
        }
    }

    /// Whether a cut has ended this delivery and the sweep will write its outcome, since it is not in the window.
    pub fn is_swept(&self, delivery: &Delivery) -> bool {
        self.cuts.cause(delivery).is_some() && !self.knows(delivery.id)
    }

    /// Notes that a page of this span contained rows that [are swept](Self::is_swept), and that all rows up to `upto`,
    /// in the order of the lane, need not be read again. To be called before [`Scheduler::paged`].
    pub fn pass_over(&mut self, id: LaneId, tier: Tier, span: IdRange, upto: DeliveryId) {
        let Some(index) = self.lanes.find(id) else { return };
        let lane = &mut self.lanes[index];
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
        self.backlog.passed.marks.insert((id, tier, of.from), Mark { of, rest, rests: true });
        self.backlog.passed.resting.push_back((id, tier, of.from));
    }

    /// Lets the queue that has rested longest read on.
    pub fn read_on(&mut self) {
        while let Some(part) = self.backlog.passed.resting.pop_front() {
            let Some(mark) = self.backlog.passed.marks.get_mut(&part).filter(|mark| mark.rests) else { continue };
            mark.rests = false;
            return self.read_lane_on(part.0);
        }
    }

    /// Lets every resting queue read on from its beginning: all rows that were passed over have been swept.
    pub fn all_read_on(&mut self) {
        self.backlog.passed.marks.clear();
        for (lane, ..) in std::mem::take(&mut self.backlog.passed.resting) {
            self.read_lane_on(lane);
        }
    }

    pub(super) fn read_lane_on(&mut self, lane: LaneId) {
        if let Some(index) = self.lanes.find(lane) {
            self.stand_in_line(index);
        }
    }

    /// Notes which queues started or stopped spilling because the lane was divided differently.
    pub(super) fn tell_spilling(&mut self, index: u32, before: [bool; 3]) {
        let lane = &self.lanes[index];
        let now = Tier::ALL.map(|tier| (lane.id, tier, lane.is_spilling(tier)));
        self.backlog.spilling_changes.extend(now.into_iter().filter(|(_, tier, now)| *now != before[tier.index()]));
    }
}
