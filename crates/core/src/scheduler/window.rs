//! The window: which deliveries are admitted, wait and leave, and which rows stay in the store.
//!
//! Invariant: a pending row is in the window, or will be paged in, or a cut covers it.

use std::sync::Arc;
use std::time::Duration;

use super::drain::{DrainPart, IdRange};
use super::items::Item;
use super::lane::{Lane, LaneSettings, Order, Overflow};
use super::passed::PASSING_PAGE;
use super::timer::Timer;
use super::{Limits, RowIndex, Scheduler, Stage};
use crate::delivery::Delivery;
use crate::hold::Why;
use crate::id::{DeliveryId, LaneId, TenantId};
use crate::state::State;
use crate::tier::Tier;
use crate::time::Timestamp;

/// How soon all lanes are searched again for rows to spill, after a search that did not free enough room.
const EVICT_AGAIN: Duration = Duration::from_secs(1);

/// The result of [`Scheduler::admit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The delivery is now in the window.
    Taken,
    /// It was in the window already.
    Known,
    /// Its queue or the window is full, or its lane is held: it stays in the store.
    NoRoom,
}

/// A page to read from the store: the first `limit` rows of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageWanted {
    /// The lane to read.
    pub lane: LaneId,
    /// The tier to read; a strict lane is read over all tiers.
    pub tier: Tier,
    /// The order of the rows.
    pub order: Order,
    /// The range of ids.
    pub span: IdRange,
    /// The most rows to read.
    pub limit: u32,
}

/// A delivery that was removed from the window to make room. Its row must be written as spilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The delivery's id.
    pub delivery: DeliveryId,
    /// The delivery's lane.
    pub lane: LaneId,
    /// The delivery's tier.
    pub tier: Tier,
}

impl Scheduler {
    /// Takes a delivery into the window, if there is room for it.
    ///
    /// `place` is where its row is now. Of a strict lane, only one delivery is admitted at a time.
    pub fn admit(&mut self, now: Timestamp, delivery: Delivery, place: RowIndex) -> Admission {
        if self.items.contains(&delivery.id) {
            return Admission::Known;
        }
        let index = self.lane(delivery.lane);
        if !self.has_room(index, &delivery, place, now) {
            self.drop_if_idle(index, now);
            return Admission::NoRoom;
        }
        let id = delivery.id;
        self.insert(delivery, place, Stage::Waiting);
        self.wait(id, now);
        Admission::Taken
    }

    /// Whether a delivery is in the window.
    pub fn knows(&self, id: DeliveryId) -> bool {
        self.items.contains(&id)
    }

    /// Sets a lane's settings as the store has them now, and notes their version.
    pub fn tell_lane(&mut self, now: Timestamp, settings: &Arc<LaneSettings>) {
        self.settings_versions.tell(now, settings);
        self.set_lane(now, settings);
    }

    /// Notes that the rules of a tenant's lanes (`None`: of all lanes) have changed. Settings made from rules with a
    /// smaller number are ignored from now on.
    pub fn tell_rules(&mut self, now: Timestamp, tenant: Option<TenantId>, number: u32) {
        self.settings_versions.tell_rules(now, tenant, number);
    }

    /// Sets a lane's settings, new or changed, unless newer ones are known.
    pub fn set_lane(&mut self, now: Timestamp, settings: &Arc<LaneSettings>) {
        if self.settings_versions.are_older(settings) {
            return;
        }
        let index = self.lane(settings.lane);
        let lane = self.lane_mut(index);
        // The settings that an accept brings along may be older than the lane's.
        let is_known = |known: &Arc<LaneSettings>| Arc::ptr_eq(known, settings) || known.is_newer(settings);
        if lane.settings.as_ref().is_some_and(is_known) {
            return;
        }
        let before = Tier::ALL.map(|tier| lane.is_spilling(tier));
        lane.take_over(settings);
        self.tell_spilling(index, before);
        self.enqueue_tiers(index, now);
    }

    /// Whether this lane's settings are known.
    pub fn knows_lane(&self, lane: LaneId) -> bool {
        self.lane_index.get(&lane).is_some_and(|index| self.lane_ref(*index).settings.is_some())
    }

    /// The lanes in memory of a tenant (`None`: of all tenants), and those whose tenant is not known yet.
    pub fn lanes_of(&self, tenant: Option<TenantId>) -> Vec<LaneId> {
        let matches = |lane: &Lane| {
            let owner = lane.settings.as_ref().map(|settings| settings.tenant);
            tenant.is_none() || owner.is_none() || owner == tenant
        };
        let mut lanes: Vec<LaneId> = self.lane_index.keys().copied().collect();
        lanes.retain(|lane| matches(self.lane_ref(self.lane_index[lane])));
        // Sorted, since the order of a map must not influence a simulation.
        lanes.sort_unstable();
        lanes
    }

    /// Whether this lane waits for its settings.
    pub fn lacks_settings(&self, lane: LaneId) -> bool {
        self.lane_index.get(&lane).is_some_and(|index| self.lane_ref(*index).settings.is_none())
    }

    /// Drops a lane if it has nothing to do.
    pub fn forget_idle_lane(&mut self, lane: LaneId, now: Timestamp) {
        if let Some(index) = self.lane_index.get(&lane).copied() {
            self.drop_if_idle(index, now);
        }
    }

    // --- rows behind the window ---

    /// Whether the store has rows of this queue behind the window. New rows then go behind the window too, so that
    /// they do not overtake.
    pub fn is_spilling(&self, lane: LaneId, tier: Tier) -> bool {
        self.lane_index.get(&lane).is_some_and(|index| self.lane_ref(*index).is_spilling(tier))
    }

    /// The queues that started (`true`) or stopped spilling since the last call.
    pub fn take_spilling_changes(&mut self) -> Vec<(LaneId, Tier, bool)> {
        std::mem::take(&mut self.spilling_changes)
    }

    /// Notes that a row of this queue was written as spilled.
    pub fn spilled(&mut self, id: LaneId, tier: Tier, row: DeliveryId) {
        self.passed.heard(id, row);
        let index = self.lane(id);
        let lane = self.lane_mut(index);
        let part = lane.drain().map_or(DrainPart::Fresh, |drain| drain.part_of_row(row));
        let overflow = lane.overflow(part, tier);
        let began = !overflow.is_spilling();
        overflow.more = true;
        overflow.since |= overflow.paging;
        if began && part == DrainPart::Fresh {
            self.spilling_changes.push((id, tier, true));
        }
        self.stand_in_line(index);
    }

    /// Puts a lane in line for a page.
    pub(super) fn stand_in_line(&mut self, index: u32) {
        if !std::mem::replace(&mut self.lane_mut(index).wants_page, true) {
            self.page_line.push_back(index);
        }
    }

    /// Notes that a delivery with this id was created.
    pub fn seen(&mut self, now: Timestamp, id: DeliveryId) {
        self.id_timeline.see(now, id);
    }

    /// The next page to read from the store. To be called until it returns `None`.
    ///
    /// A page always has the first rows of its queue, and rows that are in the window already are skipped. There is no
    /// cursor that could miss a row that was committed late.
    pub fn next_page(&mut self, now: Timestamp) -> Option<PageWanted> {
        while self.items.len() + self.rows_to_come < self.limits.window {
            let index = self.page_line.pop_front()?;
            let Some(lane) = self.lanes.get_mut(index) else { continue };
            lane.wants_page = false;
            if let Some(wanted) = self.page_wanted(index, now) {
                // Another queue of the lane may want one too.
                self.stand_in_line(index);
                let rest = self.passed.rest(wanted.lane, wanted.tier, wanted.span);
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
        let above = self.cuts.lane_watermark(lane).map(|upto| DeliveryId(upto.plus(1)));
        let from = above.map_or(span.from, |above| above.max(span.from));
        (from < span.below).then_some(IdRange { from, ..span })
    }

    fn page_wanted(&mut self, index: u32, now: Timestamp) -> Option<PageWanted> {
        let order = self.lane_ref(index).settings.as_ref()?.order;
        if self.holding(self.lane_ref(index), now).is_some() {
            self.park_held(index, now);
            return None;
        }
        let half = self.page_size();
        let entry = self.lanes.get_mut(index).expect("an indexed lane is there");
        let lane = entry.id;
        let most = room(&self.limits, entry);
        if entry.old_pages > 0 {
            return None;
        }
        if order == Order::Strict {
            // Paged as a whole, one row at a time: the head may be of any tier.
            let more = entry.overflow.iter().any(|queue| queue.more);
            let wanted = more && entry.kept == [0; 3] && !entry.overflow[0].paging;
            let rests = self.passed.rests(lane, Tier::ALL[0], IdRange::ALL) || self.waits_for_cut(lane);
            let entry = self.lanes.get_mut(index).expect("an indexed lane is there");
            return (wanted && !rests).then(|| {
                entry.overflow[0].paging = true;
                entry.rows_to_come += 1;
                self.rows_to_come += 1;
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
                if overflow.more && !overflow.paging && has_room && !self.passed.rests(lane, tier, span) {
                    overflow.paging = true;
                    let new =
                        u16::try_from(half.min(most - kept)).unwrap_or(u16::MAX).min(u16::MAX - entry.rows_to_come);
                    entry.rows_to_come += new;
                    self.rows_to_come += usize::from(new);
                    return Some(PageWanted { lane, tier, order, span, limit: kept + u32::from(new) });
                }
            }
        }
        None
    }

    /// Notes that a page has come. `more`: the store may have more of these rows than the window.
    pub fn paged(&mut self, now: Timestamp, id: LaneId, tier: Tier, span: IdRange, more: bool) {
        let Some(index) = self.lane_index.get(&id).copied() else { return };
        self.page_came(index);
        let lane = self.lane_mut(index);
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
            self.passed.forget(id, tier, of);
        }
        if more || missed {
            if !self.passed.rests(id, tier, of) {
                self.stand_in_line(index);
            }
        } else if strict {
            self.spilling_changes.extend(Tier::ALL.map(|tier| (id, tier, false)));
        } else if part == DrainPart::Fresh {
            self.spilling_changes.push((id, tier, false));
        }
        self.tidy_destination(index, now);
        self.drop_if_idle(index, now);
    }

    /// How many rows of one queue a page brings: half of the window's room for each queue.
    fn page_size(&self) -> u32 {
        let each = self.limits.window / self.lanes.len().max(1);
        (u32::try_from(each).unwrap_or(u32::MAX).min(self.limits.per_queue) / 2).max(1)
    }

    /// Releases the room that was reserved for one page of a lane: its share of the reserved rows, or all of them with
    /// the last page.
    fn page_came(&mut self, index: u32) {
        let lane = self.lane_mut(index);
        let pages = u16::from(lane.pages_under_way()).max(1);
        let back = lane.rows_to_come / pages;
        lane.rows_to_come -= back;
        self.rows_to_come -= usize::from(back);
    }

    /// Evicts deliveries of held lanes if the window is nearly full, to make room for deliveries that can be sent.
    ///
    /// The returned deliveries have left the window. Their rows must be written as spilled, and then be reported to
    /// [`Scheduler::spilled`]. A search that does not free enough room is repeated after a second, or when another hold
    /// begins.
    pub fn evict(&mut self, now: Timestamp) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        // A search in the future means that the clock was set back.
        let searched = self.evicted_in_vain.is_some_and(|at| at <= now && now.since(at) < EVICT_AGAIN);
        if searched || self.items.len() < self.limits.window / 4 * 3 {
            return evicted;
        }
        let lanes = self.lanes.bound();
        for step in 0..lanes {
            let index = (self.evict_from + step) % lanes;
            if self.lanes.get(index).is_some_and(|lane| self.holding(lane, now).is_some()) {
                self.evict_lane(index, now, &mut evicted);
            }
            if self.items.len() < self.limits.window / 2 {
                self.evict_from = index + 1;
                return evicted;
            }
        }
        self.evicted_in_vain = Some(now);
        self.timers.set(now + EVICT_AGAIN, Timer::Evict);
        evicted
    }

    fn evict_lane(&mut self, index: u32, now: Timestamp, evicted: &mut Vec<Evicted>) {
        let mut ready = Vec::new();
        for tier in Tier::ALL {
            self.lane_mut(index).take_back_postponed(tier);
            ready.extend(self.lane_mut(index).take_ready(tier).into_iter().map(|id| (tier, id)));
        }
        let lane = self.lane_ref(index).id;
        for (tier, id) in ready {
            let Some(item) = self.items.get(&id).filter(|item| item.stage == Stage::Ready) else { continue };
            if item.place == RowIndex::Spilled {
                self.spilled(lane, tier, id);
            } else {
                evicted.push(Evicted { delivery: id, lane, tier });
            }
            self.leave(id, now);
        }
    }

    fn has_room(&self, index: u32, delivery: &Delivery, place: RowIndex, now: Timestamp) -> bool {
        let lane = self.lane_ref(index);
        if lane.is_strict() {
            return lane.kept == [0; 3];
        }
        if place == RowIndex::Ready && lane.is_spilling(delivery.tier) {
            return false;
        }
        // A delivery that waits for a receipt is always admitted; any other needs room in its queue.
        matches!(delivery.state, State::AwaitingAck { .. })
            || (lane.kept[delivery.tier.index()] < room(&self.limits, lane)
                && self.items.len() < self.limits.window
                && (lane.settings.is_none() || self.holding(lane, now).is_none()))
    }

    pub(super) fn insert(&mut self, delivery: Delivery, place: RowIndex, stage: Stage) {
        let index = self.lane(delivery.lane);
        self.lane_mut(index).kept[delivery.tier.index()] += 1;
        self.items.insert(Item { delivery, lane: index, number: 0, place, stage, keeps_wait: false });
    }

    /// Lets a delivery wait for its due time; if that has come, it is ready at once.
    pub(super) fn wait(&mut self, id: DeliveryId, now: Timestamp) {
        let item = self.items.get_mut(&id).expect("the delivery is in the window");
        if item.stage == Stage::Recording {
            self.recording.remove(item.number);
        }
        item.stage = Stage::Waiting;
        let due = item.delivery.state.due().unwrap_or(now);
        if let Some(at) = item.delivery.expiry.at() {
            self.timers.set(at, Timer::Over(id));
        }
        if due > now || matches!(item.delivery.state, State::AwaitingAck { .. }) {
            self.timers.set(due, Timer::Due(id));
        } else {
            self.due(id, now);
        }
    }

    /// Removes a delivery from the window: it has ended, or its row stays in the store.
    pub(super) fn leave(&mut self, id: DeliveryId, now: Timestamp) {
        if self.items.get(&id).is_some_and(|item| item.stage == Stage::InFlight) {
            self.unsent(id, now);
        }
        let Some(item) = self.items.remove(&id) else { return };
        if item.stage == Stage::Recording {
            self.recording.remove(item.number);
        }
        let lane = self.lane_mut(item.lane);
        let kept = &mut lane.kept[item.delivery.tier.index()];
        *kept = kept.saturating_sub(1);
        if let Some(destination) = &mut lane.destination {
            destination.retries.remove(&id);
        }
        self.enqueue_tiers(item.lane, now);
        self.drop_if_idle(item.lane, now);
    }

    // --- lanes ---

    pub(super) fn lane(&mut self, id: LaneId) -> u32 {
        if let Some(index) = self.lane_index.get(&id) {
            return *index;
        }
        let index = self.lanes.insert(Lane::new(id));
        self.lane_index.insert(id, index);
        index
    }

    pub(super) fn lane_ref(&self, index: u32) -> &Lane {
        self.lanes.get(index).expect("an indexed lane is there")
    }

    pub(super) fn lane_mut(&mut self, index: u32) -> &mut Lane {
        self.lanes.get_mut(index).expect("an indexed lane is there")
    }

    pub(super) fn lane_of(&self, id: DeliveryId) -> Option<&Lane> {
        self.items.get(&id).map(|item| self.lane_ref(item.lane))
    }

    /// Adds a lane to a tier's ring if it has a delivery to send and is not blocked.
    pub(super) fn enqueue_lane(&mut self, index: u32, tier: Tier, now: Timestamp) {
        let lane = self.lane_ref(index);
        if lane.in_ring[tier.index()] {
            return;
        }
        if !lane.has_ready(tier, now) {
            if let Some(at) = lane.postponed_until(tier, now) {
                self.wake_lane(index, at, now);
            }
            return;
        }
        if let Some(block) = self.blocked_by(index, tier, now) {
            if block.hold.why == Why::RateLimit
                && let Some(pace) =
                    self.lane_mut(index).destination.as_mut().and_then(|destination| destination.pace.as_mut())
            {
                pace.held_back(now);
            }
            return self.park(index, block, now);
        }
        let Some(tenant) = lane.settings.as_ref().map(|settings| settings.tenant) else { return };
        let speed = lane.speed();
        self.lane_mut(index).in_ring[tier.index()] = true;
        let tenant = self.turn.tenant(tenant, now);
        self.turn.join(tier, tenant, index, speed, now);
    }

    pub(super) fn enqueue_tiers(&mut self, index: u32, now: Timestamp) {
        for tier in Tier::ALL {
            self.enqueue_lane(index, tier, now);
        }
        let lane = self.lane_ref(index);
        if lane.has_more() {
            self.stand_in_line(index);
        }
    }

    pub(super) fn enqueue_all_lanes(&mut self, now: Timestamp) {
        for index in 0..self.lanes.bound() {
            if self.lanes.get(index).is_some() {
                self.enqueue_tiers(index, now);
            }
        }
    }

    /// Drops a lane that has nothing to do and is in no ring.
    pub(super) fn drop_if_idle(&mut self, index: u32, now: Timestamp) {
        let lane = self.lane_ref(index);
        if lane.in_flight > 0 || lane.in_ring != [false; 3] || lane.kept != [0; 3] {
            return;
        }
        if lane.is_idle(now) {
            let id = lane.id;
            self.lane_index.remove(&id);
            self.lanes.remove(index);
            self.troubled.remove(&id);
        } else if let Some(at) = lane.destination.as_ref().map(|destination| destination.over_at(now)) {
            self.wake_lane(index, at, now);
        }
    }
}

/// How many deliveries of one tier of a lane the window takes; a draining lane gets twice as many, so that its backlog
/// does not keep fresh deliveries out.
fn room(limits: &Limits, lane: &Lane) -> u32 {
    if lane.drain().is_some() { limits.per_queue.saturating_mul(2) } else { limits.per_queue }
}
