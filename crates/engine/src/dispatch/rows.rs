//! Reading rows from the store: those left by a crash, those that are due, and those that overflowed the window.

use std::sync::Arc;

use posthaste_core::scheduler::{Admission, Evicted, PageWanted};
use posthaste_core::{
    Cause, Cut, CutScope, Delivery, DeliveryId, IdRange, Key, LaneId, LaneSettings, RowIndex, State, Tier, Timestamp,
};
use posthaste_store::{PendingPage, PendingRow, Query, SessionStart, Token};

use super::call::StoreCall;
use super::{Departure, Dispatch, Effect, delayed_cursor};

/// Rows in one page of those that earlier sessions left: small, so that other readers of the store are not delayed.
const LEFT_PAGE: u32 = 500;
/// With more departures than this, those are dropped that every page being read already reflects.
const DEPARTED_TIDY: usize = 4_096;
impl Dispatch {
    /// Takes over the cuts, pauses, queues, breakers and rows of earlier sessions.
    pub(super) fn started(&mut self, now: Timestamp, start: SessionStart, effects: &mut Vec<Effect>) {
        self.session = start.session;
        // Higher than every id of earlier sessions.
        self.scheduler.seen(now, DeliveryId(Key::new(self.session.writer, 0)));
        for cut in &start.cuts {
            self.sweep_on(now, cut);
        }
        for pause in start.pauses {
            self.pause(pause);
        }
        for (lane, tier) in start.spilled {
            self.scheduler.spilled(lane, tier, DeliveryId::from_raw(0));
            self.ask_for(lane);
        }
        self.restore_breakers(now, start.breakers);
        self.delayed.start(now);
        self.sweeper.start(now);
        self.read(now, Query::Left { after: None, before: self.session.writer }, LEFT_PAGE, effects);
    }

    /// Reads the pages that are due, sweeps, and spills what must leave the window.
    pub(super) fn read_what_is_due(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.draining {
            return;
        }
        if let Some(query) = self.delayed.next(now) {
            self.read(now, query, delayed_cursor::PAGE, effects);
        }
        while let Some(wanted) = self.scheduler.next_page(now) {
            let PageWanted { lane, tier, order, span, .. } = wanted;
            let query = Query::Spilled { lane, tier, order, span };
            self.read(now, query, wanted.limit, effects);
        }
        self.sweep(now, effects);
        self.to_spill.extend(self.scheduler.evict(now));
        for index in 0..self.to_spill.len() {
            let id = self.to_spill[index].delivery;
            self.depart(id);
        }
    }

    pub(super) fn read(&mut self, now: Timestamp, query: Query, limit: u32, effects: &mut Vec<Effect>) {
        *self.pages.entry(self.departures).or_default() += 1;
        effects.push(Effect::Store(StoreCall::Page(query, limit, now, self.departures)));
    }

    pub(super) fn paged(
        &mut self,
        now: Timestamp,
        query: Query,
        as_of: Departure,
        page: PendingPage,
        effects: &mut Vec<Effect>,
    ) {
        match query {
            Query::Left { before, .. } => {
                for row in page.rows {
                    self.take_in(now, row, as_of);
                }
                if page.more {
                    self.read(now, Query::Left { after: page.looked, before }, LEFT_PAGE, effects);
                }
            }
            Query::Delayed { .. } => {
                self.delayed.paged(now, &page);
                for row in page.rows {
                    if !self.scheduler.is_swept(&row.delivery) {
                        self.take_in(now, row, as_of);
                    }
                }
            }
            Query::Spilled { lane, tier, span, .. } => {
                let more = self.take_in_or_pass(now, lane, tier, span, as_of, page);
                self.scheduler.paged(now, lane, tier, span, more);
            }
            Query::One(id) => self.row_read(now, id, as_of, page, effects),
        }
        self.page_came(as_of);
    }

    /// Takes in a page of spilled rows, except those that a cut has ended: the sweep writes their outcomes.
    /// Returns whether the store may hold more rows of the queue.
    fn take_in_or_pass(
        &mut self,
        now: Timestamp,
        lane: LaneId,
        tier: Tier,
        span: IdRange,
        as_of: Departure,
        page: PendingPage,
    ) -> bool {
        let (mut passed, mut last, mut stuck) = (false, None, false);
        for row in page.rows {
            let id = row.delivery.id;
            let is_swept = self.scheduler.is_swept(&row.delivery);
            if is_swept && !self.scheduler.may_pass(&row.delivery) {
                stuck = true;
                break;
            }
            stuck |= !is_swept && !self.take_in(now, row, as_of);
            if !stuck {
                (passed, last) = (passed || is_swept, Some(id));
            }
        }
        if let Some(last) = last.filter(|_| passed) {
            self.scheduler.pass_over(lane, tier, span, last);
        }
        page.more || stuck
    }

    /// Drops departures that every page still being read already reflects.
    fn page_came(&mut self, as_of: Departure) {
        if let Some(count) = self.pages.get_mut(&as_of) {
            *count -= 1;
            if *count == 0 {
                self.pages.remove(&as_of);
            }
        }
        match self.pages.first_key_value() {
            None => self.departed.clear(),
            Some((oldest, _)) if self.departed.len() > DEPARTED_TIDY => {
                let oldest = *oldest;
                self.departed.retain(|_, departed| *departed > oldest);
            }
            Some(_) => {}
        }
    }

    /// Takes a row into the window, unless the page is older than what memory knows of the delivery. `false`
    /// when the row must be read again.
    pub(super) fn take_in(&mut self, now: Timestamp, row: PendingRow, as_of: Departure) -> bool {
        let (id, lane) = (row.delivery.id, row.delivery.lane);
        if self.is_older(id, as_of) {
            if row.place == RowIndex::Delayed {
                self.delayed.notice(row.delivery.state.due().unwrap_or(now), id);
            }
            return false;
        }
        if row.token == Token::Rejected {
            self.quarantine(now, row);
            return true;
        }
        if row.place != RowIndex::Spilled {
            self.admit_or_spill(now, row.delivery, row.place);
            self.ask_for(lane);
            return true;
        }
        let tier = row.delivery.tier;
        let admission = self.scheduler.admit(now, row.delivery, row.place);
        self.ask_for(lane);
        if admission == Admission::NoRoom {
            self.scheduler.spilled(lane, tier, id);
        }
        admission != Admission::NoRoom
    }

    /// A row that Posthaste did not write is never sent: the delivery ends as dead. If a delivery with this id is in
    /// the window already, it came there from a valid row and continues.
    pub(super) fn quarantine(&mut self, now: Timestamp, row: PendingRow) {
        if !self.scheduler.knows(row.delivery.id) {
            let end = State::Dead { at: now, cause: Cause::TokenRejected };
            let record = self.scheduler.end_row(row.delivery, row.place, end);
            record.into_iter().for_each(|record| self.record(record, None, None));
        }
    }

    /// Whether a row of a page may be older than what memory last knew of its delivery.
    pub(super) fn is_older(&self, id: DeliveryId, as_of: Departure) -> bool {
        self.departed.get(&id).is_some_and(|departed| *departed > as_of)
    }

    /// Takes a delivery into the window, or spills it: a ready row is in no index and would not be found again.
    pub(super) fn admit_or_spill(&mut self, now: Timestamp, delivery: Delivery, place: RowIndex) -> bool {
        let shed = Evicted { delivery: delivery.id, lane: delivery.lane, tier: delivery.tier };
        match self.scheduler.admit(now, delivery, place) {
            Admission::Taken => true,
            Admission::Known => false,
            Admission::NoRoom => {
                self.to_spill.push(shed);
                false
            }
        }
    }

    /// Reads a lane's settings, once.
    pub(super) fn ask_for(&mut self, lane: LaneId) {
        if !self.scheduler.knows_lane(lane) && self.lanes_asked.insert(lane) {
            self.lanes_to_ask.push(lane);
        }
    }

    pub(super) fn lanes_found(
        &mut self,
        now: Timestamp,
        wanted: Vec<LaneId>,
        found: &[Arc<LaneSettings>],
        effects: &mut Vec<Effect>,
    ) {
        for settings in found {
            self.scheduler.tell_lane(now, settings);
            self.scheduler.forget_idle_lane(settings.lane, now);
        }
        for lane in wanted {
            self.lanes_asked.remove(&lane);
            // A lane without settings has no endpoint: its deliveries end.
            if !found.iter().any(|settings| settings.lane == lane) {
                self.cut(Cut::new(CutScope::Lane(lane), Key::MAX, Cause::EndpointGone, now), None, None, effects);
            } else if self.scheduler.lacks_settings(lane) {
                // The settings that were read are older than a change that was reported meanwhile.
                self.ask_for(lane);
            }
        }
    }
}
