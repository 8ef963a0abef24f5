//! Reading rows back: what a crash left, what is due, what overflowed, what a cut covers, what is
//! over its time to live.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::cause::Cause;
use posthaste_core::cut::{self, Scope};
use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, Key, LaneId};
use posthaste_core::queue::{Admission, LaneSettings, PageWanted, Place, Shed};
use posthaste_core::state::State;
use posthaste_core::time::Timestamp;
use posthaste_store::{Page, Query, Row, Start};

use super::call::Call;
use super::{Departure, Dispatch, Effect, late};

/// Rows in one page of a start, a sweep or a scan: small enough to share the store with others.
const SCAN_PAGE: u32 = 500;
/// Departures remembered before those are dropped that no page under way can be older than.
const DEPARTED_TIDY: usize = 4_096;
/// How often the whole store is looked through for rows whose time to live is over: half of what is
/// promised (D2), so that a busy store has time to follow.
const LOOK_FOR_OVER: Duration = Duration::from_secs(300);
/// How soon a sweep looks again while some of its rows are under way.
const SWEEP_AGAIN: Duration = Duration::from_secs(1);

/// Higher than every id there can be.
pub(super) const EVERYTHING: Key = Key::from_raw(u64::MAX >> 1);
/// Far longer than any accept takes: whoever waits for one has given up by then.
const LANE_CUT_KEPT: Duration = Duration::from_secs(600);
/// Far longer than an arrival takes from the commit to the loop.
const MESSAGE_CUT_KEPT: Duration = Duration::from_secs(60);

/// A cut whose rows are being turned into outcomes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweep {
    pub(super) upto: Key,
    pub(super) cause: Cause,
    pub(super) since: Timestamp,
    pub(super) look_at: Timestamp,
    pub(super) paging: bool,
}

impl Sweep {
    /// A cut that is not durable yet: nothing to look at.
    pub(super) fn new(upto: Key, cause: Cause, since: Timestamp) -> Self {
        Self { upto, cause, since, look_at: Timestamp::MAX, paging: false }
    }

    /// When a cut without rows may be forgotten. A lane's is kept for as long as an accept that
    /// was under way when it was made could still become durable; a message's covers what is
    /// durable already, but its arrival may still be on the way here.
    fn forget_at(&self, scope: Scope) -> Timestamp {
        match scope {
            Scope::Lane(_) => self.since + LANE_CUT_KEPT,
            Scope::Message(_) => self.since + MESSAGE_CUT_KEPT,
        }
    }
}

impl Dispatch {
    /// Takes over what earlier sessions left.
    pub(super) fn started(&mut self, now: Timestamp, start: Start, effects: &mut Vec<Effect>) {
        self.session = start.session;
        // Higher than every id of earlier sessions.
        self.queue.seen(now, DeliveryId(Key::new(self.session.writer, 0)));
        for cut in start.cuts {
            self.queue.cut(cut.scope, cut.upto, cut.cause);
            let sweep = Sweep::new(cut.upto, cut.cause, cut.at);
            self.sweeps.insert(cut.scope, Sweep { look_at: now, ..sweep });
        }
        for pause in start.pauses {
            self.pause(pause);
        }
        for (lane, tier) in start.spilled {
            self.queue.spilled(lane, tier, DeliveryId::from_raw(0));
            self.ask_for(lane);
        }
        self.restore_breakers(now, start.breakers);
        self.late.start(now);
        self.look_for_over_at = now;
        self.read(Query::Left { after: None, before: self.session.writer }, SCAN_PAGE, effects);
    }

    /// Reads whatever it is time to read.
    pub(super) fn read_what_is_due(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.draining {
            return;
        }
        if let Some(query) = self.late.next(now) {
            self.read(query, late::PAGE, effects);
        }
        while let Some(wanted) = self.queue.next_page(now) {
            let PageWanted { lane, tier, order, span, .. } = wanted;
            let query = Query::Spilled { lane, tier, order, span };
            self.read(query, wanted.limit, effects);
        }
        self.read_what_has_ended(now, effects);
        self.to_spill.extend(self.queue.shed(now));
        for index in 0..self.to_spill.len() {
            let id = self.to_spill[index].delivery;
            self.depart(id);
        }
    }

    /// Reads rows that only need to be written off, unless there is plenty to write already.
    fn read_what_has_ended(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if !self.has_time_for_scans() {
            return;
        }
        let due = |sweep: &Sweep| !sweep.paging && sweep.look_at <= now;
        let scopes: Vec<Scope> = self.sweeps.iter().filter(|(_, sweep)| due(sweep)).map(|(scope, _)| *scope).collect();
        for scope in scopes {
            if let Some(sweep) = self.sweeps.get_mut(&scope) {
                sweep.paging = true;
            }
            self.read(Query::Cut(scope), SCAN_PAGE, effects);
        }
        if now >= self.look_for_over_at {
            self.look_for_over_at = now + LOOK_FOR_OVER;
            self.read(Query::Over { now }, SCAN_PAGE, effects);
        }
    }

    /// Writing off comes after writing down.
    pub(super) fn has_time_for_scans(&self) -> bool {
        self.unsettled.len() <= SCAN_PAGE as usize
    }

    pub(super) fn read(&mut self, query: Query, limit: u32, effects: &mut Vec<Effect>) {
        *self.pages.entry(self.departures).or_default() += 1;
        effects.push(Effect::Store(Call::Page(query, limit, self.departures)));
    }

    pub(super) fn paged(
        &mut self,
        now: Timestamp,
        query: Query,
        asked: Departure,
        page: Page,
        effects: &mut Vec<Effect>,
    ) {
        match query {
            Query::Left { before, .. } => {
                let last = page.rows.last().map(|row| row.delivery.id);
                for row in page.rows {
                    self.take_in(now, row, asked);
                }
                if page.more {
                    self.read(Query::Left { after: last, before }, SCAN_PAGE, effects);
                }
            }
            Query::Delayed { .. } => {
                self.late.paged(now, &page);
                for row in page.rows {
                    self.take_in(now, row, asked);
                }
            }
            Query::Spilled { lane, tier, span, .. } => {
                let mut more = page.more;
                for row in page.rows {
                    more |= !self.take_in(now, row, asked);
                }
                self.queue.paged(now, lane, tier, span, more);
            }
            Query::Cut(scope) => self.sweep(now, scope, asked, page, effects),
            Query::Over { now: then } => {
                for row in page.rows {
                    self.end_row(row, asked, State::Expired { at: then });
                }
                if page.more {
                    self.look_for_over_at = now + SWEEP_AGAIN;
                }
            }
            Query::One(id) => self.one_row(now, id, asked, page, effects),
        }
        self.page_came(asked);
    }

    /// Forgets departures that every page still under way knows of.
    fn page_came(&mut self, asked: Departure) {
        if let Some(count) = self.pages.get_mut(&asked) {
            *count -= 1;
            if *count == 0 {
                self.pages.remove(&asked);
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

    /// Lets a row into the window, unless the page is older than what is known of it. `false`
    /// when the row must be looked at again.
    pub(super) fn take_in(&mut self, now: Timestamp, row: Row, asked: Departure) -> bool {
        let (id, lane) = (row.delivery.id, row.delivery.lane);
        self.highest = self.highest.max(id.0);
        if self.is_older(id, asked) {
            if row.place == Place::Delayed {
                self.late.notice(row.delivery.state.due().unwrap_or(now), id);
            }
            return false;
        }
        if row.place != Place::Spilled {
            self.admit_or_spill(now, row.delivery, row.place);
            self.ask_for(lane);
            return true;
        }
        let tier = row.delivery.tier;
        let admission = self.queue.admit(now, row.delivery, row.place);
        self.ask_for(lane);
        if admission == Admission::NoRoom {
            self.queue.spilled(lane, tier, id);
        }
        admission != Admission::NoRoom
    }

    /// Whether a row of a page may be older than what was last known of its delivery.
    pub(super) fn is_older(&self, id: DeliveryId, asked: Departure) -> bool {
        self.departed.get(&id).is_some_and(|departed| *departed > asked)
    }

    /// Lets one in, or moves it behind the window: what nobody indexes must not be forgotten.
    pub(super) fn admit_or_spill(&mut self, now: Timestamp, delivery: Delivery, place: Place) -> bool {
        let shed = Shed { delivery: delivery.id, lane: delivery.lane, tier: delivery.tier };
        match self.queue.admit(now, delivery, place) {
            Admission::Taken => true,
            Admission::Known => false,
            Admission::NoRoom => {
                self.to_spill.push(shed);
                false
            }
        }
    }

    fn sweep(&mut self, now: Timestamp, scope: Scope, asked: Departure, page: Page, effects: &mut Vec<Effect>) {
        let Some(sweep) = self.sweeps.get_mut(&scope) else { return };
        sweep.paging = false;
        sweep.look_at = now + SWEEP_AGAIN;
        let Sweep { upto, cause, .. } = *sweep;
        if page.rows.is_empty() && now < sweep.forget_at(scope) {
            sweep.look_at = sweep.forget_at(scope);
            return;
        }
        if page.rows.is_empty() {
            self.sweeps.remove(&scope);
            self.queue.forget_cut(scope, upto);
            effects.push(Effect::Store(Call::Uncut(scope)));
            return;
        }
        for row in page.rows {
            self.end_row(row, asked, cut::ended(cause, now));
        }
    }

    fn end_row(&mut self, row: Row, asked: Departure, end: State) {
        if self.is_older(row.delivery.id, asked) {
            return;
        }
        if let Some(record) = self.queue.end_row(row.delivery, row.place, end) {
            self.record(record, None);
        }
    }

    /// Asks for a lane's settings, once.
    pub(super) fn ask_for(&mut self, lane: LaneId) {
        if !self.queue.knows_lane(lane) && self.lanes_asked.insert(lane) {
            self.lanes_to_ask.push(lane);
        }
    }

    pub(super) fn lanes_found(
        &mut self,
        now: Timestamp,
        asked: Vec<LaneId>,
        found: &[Arc<LaneSettings>],
        effects: &mut Vec<Effect>,
    ) {
        for settings in found {
            self.queue.set_lane(now, settings);
            self.queue.forget_idle_lane(settings.lane, now);
        }
        for lane in asked {
            self.lanes_asked.remove(&lane);
            // A lane without an endpoint has nowhere to send to.
            if !found.iter().any(|settings| settings.lane == lane) {
                self.cut(now, Scope::Lane(lane), EVERYTHING, Cause::EndpointGone, None, effects);
            }
        }
    }
}
