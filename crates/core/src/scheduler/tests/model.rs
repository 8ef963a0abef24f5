//! A slow and simple model of the scheduler: a list of rows that is searched from end to end.
//!
//! It drives a [`Scheduler`] as its owner does (rows in a store, pages, records) and checks after every
//! step that the scheduler's actions were allowed and that it left no work undone. Where the contract
//! leaves a choice, such as which lane is next, any allowed choice is accepted.

mod invariants;

use std::collections::BTreeMap;

use super::*;
use crate::EndpointChange;

pub(super) const LANES: usize = 4;
const TENANTS: usize = 2;

struct Row {
    /// Its state in the window, while it is there.
    delivery: Delivery,
    /// Its state in the store.
    durable: Delivery,
    place: RowIndex,
    at: At,
}

#[derive(Clone, Debug, PartialEq)]
enum At {
    Store,
    Waits,
    InFlight,
    Recording(Box<DeliveryChange>),
}

struct LaneModel {
    settings: Arc<LaneSettings>,
    /// Since when the scheduler has the settings.
    known: Option<Timestamp>,
    /// Every hold that the receiver ever asked for.
    holds: Vec<Hold>,
    /// Picks of other lanes while this one had a delivery to send, by tier.
    passed_over: [u64; 3],
}

struct Page {
    wanted: PageWanted,
    ids: Vec<DeliveryId>,
    more: bool,
}

pub(super) struct SchedulerModel {
    queue: Scheduler,
    limits: Limits,
    now: Timestamp,
    rows: Vec<Row>,
    lanes: Vec<LaneModel>,
    pauses: BTreeMap<Whom, Hold>,
    cuts: Vec<(CutScope, Key, Cause)>,
    pages: Vec<Page>,
    issued: u64,
    rolls: u64,
}

impl SchedulerModel {
    pub(super) fn new(limits: Limits) -> Self {
        let lane = |index: usize| LaneModel {
            settings: Arc::new(settings(lane_id(index), Order::Fifo)),
            known: None,
            holds: Vec::new(),
            passed_over: [0; 3],
        };
        Self {
            queue: Scheduler::new(limits),
            limits,
            now: NOW,
            rows: Vec::new(),
            lanes: (0..LANES).map(lane).collect(),
            pauses: BTreeMap::new(),
            cuts: Vec::new(),
            pages: Vec::new(),
            issued: 0,
            rolls: 1,
        }
    }

    pub(super) fn step(&mut self, op: &Op) {
        match *op {
            Op::Arrive { lane, tier, due_in, ttl, ack, known } => self.arrive(lane, tier, due_in, ttl, ack, known),
            Op::Settle(nth, ref verdict) => self.settle(nth, verdict),
            Op::PutBack(nth, after) => self.put_back(nth, after),
            Op::Recorded(nth) => self.recorded(nth),
            Op::Refused(nth) => self.refused(nth),
            Op::Receipt(nth) => self.receipt(nth),
            Op::EndRow(nth) => self.end_row(nth),
            Op::Cancel(nth) => self.cancel(nth),
            Op::CutLane(lane) => self.cut(CutScope::Lane(lane_id(lane)), Cause::Unsubscribed),
            Op::Sweep => self.sweep(),
            Op::Pause(whom, lasts) => self.pause(whom, lasts),
            Op::Resume(whom) => self.resume(whom),
            Op::Set { lane, order, on_dead, max_in_flight } => self.set(lane, order, on_dead, max_in_flight),
            Op::Wait(wait) => self.advance(self.now + wait),
            Op::Page => self.page(),
            Op::Paged(nth) => self.paged(nth),
            Op::Evicted => self.evict(),
        }
        self.check_books();
    }

    // --- actions of the owner ---

    fn arrive(&mut self, lane: usize, tier: Tier, due_in: Duration, ttl: Option<Duration>, ack: bool, known: bool) {
        self.issued += 1;
        if known {
            self.tell_settings(lane);
        }
        let due = self.now + due_in;
        let delivery = Delivery {
            message: MessageId::from_raw(self.issued / 2),
            lane: lane_id(lane),
            tier,
            born: due,
            state: State::Queued { due },
            expiry: Expiry::from_ttl(due, ttl),
            ack_within: ack.then_some(seconds(3)),
            ..delivery(self.issued)
        };
        let spilling = self.queue.is_spilling(delivery.lane, tier);
        let place = RowIndex::for_new(self.lanes[lane].settings.order, spilling, self.now, due);
        self.rows.push(Row { delivery: delivery.clone(), durable: delivery, place, at: At::Store });
        match place {
            RowIndex::Ready => self.admit(self.rows.len() - 1),
            RowIndex::Delayed => self.queue.forget_idle_lane(lane_id(lane), self.now),
            RowIndex::Spilled => self.queue.spilled(lane_id(lane), tier, DeliveryId::from_raw(self.issued)),
        }
    }

    /// Admits a row, or leaves it behind the window.
    fn admit(&mut self, at: usize) {
        // An earlier row may have found no room, and the scheduler drops an idle lane at once.
        self.notice_dropped(index(self.rows[at].durable.lane));
        let row = &self.rows[at];
        let (id, lane, tier) = (row.durable.id, row.durable.lane, row.durable.tier);
        let room = self.has_room(row);
        let admission = self.queue.admit(self.now, row.durable.clone(), row.place);
        if row.at != At::Store {
            assert_eq!(admission, Admission::Known, "{id} is in the window and was admitted again");
        } else if room {
            assert_eq!(admission, Admission::Taken, "there is room for {id}");
            let row = &mut self.rows[at];
            row.delivery = row.durable.clone();
            row.at = At::Waits;
        } else {
            assert_eq!(admission, Admission::NoRoom, "there is no room for {id}");
            self.rows[at].place = RowIndex::Spilled;
            self.queue.spilled(lane, tier, id);
        }
    }

    fn has_room(&self, row: &Row) -> bool {
        let lane = index(row.durable.lane);
        let kept = |any_tier: bool| {
            let of =
                |it: &&Row| it.durable.lane == row.durable.lane && (any_tier || it.durable.tier == row.durable.tier);
            self.rows.iter().filter(of).filter(|it| it.at != At::Store).count()
        };
        if self.lanes[lane].known.is_some() && self.lanes[lane].settings.order == Order::Strict {
            return kept(true) == 0;
        }
        if row.place == RowIndex::Ready && self.queue.is_spilling(row.durable.lane, row.durable.tier) {
            return false;
        }
        matches!(row.durable.state, State::AwaitingAck { .. })
            || (kept(false) < self.limits.per_queue as usize
                && self.in_window() < self.limits.window
                && (self.lanes[lane].known.is_none() || self.held(lane, self.now).is_none()))
    }

    fn settle(&mut self, nth: usize, verdict: &Verdict) {
        let Some(at) = self.nth(nth, |row| row.at == At::InFlight) else { return };
        let before = Delivery { state: State::Dispatching, ..self.rows[at].delivery.clone() };
        let lane = index(before.lane);
        let roll = self.roll();
        let decision =
            delivery::settle(&before, verdict, &Circumstances::new(&self.lanes[lane].settings.policy), self.now, roll);
        let settled = self.queue.settle(self.now, roll, before.id, verdict, false);
        if decision.attempts == before.attempts {
            assert_eq!(settled, None, "no attempt was made, so nothing is recorded");
            self.lanes[lane].holds.extend(decision.hold.map(|(_, hold)| hold));
            return self.waits_again(at, decision.state.due().unwrap_or(self.now));
        }
        let record = settled.expect("it is in flight");
        assert_eq!(record.endpoint_change, decision.endpoint_change);
        self.lanes[lane].holds.extend(decision.hold.map(|(_, hold)| hold));
        self.decided(at, &decision, record.clone());
        if record.endpoint_change == Some(EndpointChange::Gone) {
            self.cut(CutScope::Lane(before.lane), Cause::EndpointGone);
        }
    }

    fn put_back(&mut self, nth: usize, after: Duration) {
        let Some(at) = self.nth(nth, |row| row.at == At::InFlight) else { return };
        let due = self.now + after;
        self.queue.put_back(self.now, self.rows[at].delivery.id, due);
        self.waits_again(at, due);
    }

    fn waits_again(&mut self, at: usize, due: Timestamp) {
        let row = &mut self.rows[at];
        row.at = At::Waits;
        row.delivery.state = row.delivery.put_back(due);
        // A receipt for a delivery that was never sent is ignored.
        row.delivery.receipt_kept &= row.delivery.attempts > 0;
    }

    fn recorded(&mut self, nth: usize) {
        let Some(at) = self.nth(nth, |row| matches!(row.at, At::Recording(_))) else { return };
        let row = &mut self.rows[at];
        let At::Recording(record) = row.at.clone() else { unreachable!("the row is being recorded") };
        let id = row.delivery.id;
        row.durable = Delivery { receipt_kept: false, ..record.delivery.clone() };
        row.place = record.place;
        let answer = self.queue.recorded(self.now, id);
        if record.delivery.state.is_terminal() {
            assert_eq!(answer, AfterRecord::Ended);
            self.rows.remove(at);
            return;
        }
        let ends = if self.rows[at].delivery.receipt_kept {
            Some(State::Delivered { at: self.now })
        } else {
            self.cut_of(&self.rows[at].delivery).map(|cause| cut::ended(cause, self.now))
        };
        let due = record.delivery.state.due().expect("it has not ended");
        match answer {
            AfterRecord::Again(again) => {
                assert_eq!(Some(again.delivery.state), ends, "{id} was ended while it was recorded");
                self.rows[at].at = At::Recording(Box::new(again));
            }
            AfterRecord::Left(when) => {
                assert!(ends.is_none() && when == due && due > self.now + HORIZON && record.place == RowIndex::Delayed);
                self.rows[at].at = At::Store;
            }
            AfterRecord::Waits => {
                let stays = due <= self.now + HORIZON || record.place == RowIndex::Spilled;
                assert!(ends.is_none() && stays, "{id} waits");
                self.rows[at].at = At::Waits;
            }
            AfterRecord::Ended => panic!("{id} has not ended"),
        }
    }

    fn refused(&mut self, nth: usize) {
        let Some(at) = self.nth(nth, |row| matches!(row.at, At::Recording(_))) else { return };
        let row = self.rows.remove(at);
        self.queue.refused(self.now, row.delivery.id);
    }

    fn receipt(&mut self, nth: usize) {
        let Some(at) = self.nth(nth, |row| row.at != At::Store) else { return };
        let row = &mut self.rows[at];
        let answer = self.queue.receipt(self.now, row.delivery.id);
        match row.at {
            At::Waits if row.delivery.attempts > 0 => {
                let record = answer.expect("a receipt ends a delivery that waits for it or for a retry");
                self.ended(at, record, State::Delivered { at: self.now });
            }
            _ => {
                assert_eq!(answer, None, "{} cannot end by a receipt now", row.delivery.id);
                let was_sent = row.at == At::InFlight || row.delivery.attempts > 0;
                row.delivery.receipt_kept |= row.at != At::Waits && was_sent;
            }
        }
    }

    fn end_row(&mut self, nth: usize) {
        let Some(at) = self.nth(nth, |_| true) else { return };
        self.end_at(at, State::Cancelled { at: self.now, cause: Cause::Cancelled });
    }

    fn end_at(&mut self, at: usize, end: State) {
        let row = &mut self.rows[at];
        let answer = self.queue.end_row(row.durable.clone(), row.place, end);
        match row.at {
            At::InFlight | At::Recording(_) => assert_eq!(answer, None, "{} is under way", row.delivery.id),
            At::Store | At::Waits => {
                if row.at == At::Store {
                    row.delivery = row.durable.clone();
                }
                self.ended(at, answer.expect("it waits"), end);
            }
        }
    }

    fn cancel(&mut self, nth: usize) {
        let Some(at) = self.nth(nth, |_| true) else { return };
        self.cut(CutScope::Message(self.rows[at].durable.message), Cause::Cancelled);
    }

    fn cut(&mut self, scope: CutScope, cause: Cause) {
        let upto = Key::from_raw(self.issued);
        self.cuts.push((scope, upto, cause));
        let under_way = self.rows.iter().filter(|row| matches!(row.at, At::InFlight | At::Recording(_)));
        let mut spared: Vec<DeliveryId> =
            under_way.filter(|row| in_scope(scope, &row.delivery)).map(|row| row.delivery.id).collect();
        spared.sort();
        assert_eq!(self.queue.cut(scope, upto, cause), spared, "deliveries in flight have an outcome of their own");
        self.queue.cut_recorded(scope);
    }

    /// Ends the rows that the oldest cut covers, and removes the cut once none is left.
    fn sweep(&mut self) {
        let Some((scope, upto, _)) = self.cuts.first().copied() else { return };
        let covered = |row: &Row| in_scope(scope, &row.durable) && row.durable.id.0 <= upto;
        for at in 0..self.rows.len() {
            if covered(&self.rows[at]) {
                let cause = self.cut_of(&self.rows[at].durable).expect("the cut is in force");
                self.end_at(at, cut::ended(cause, self.now));
            }
        }
        if !self.rows.iter().any(covered) {
            self.queue.forget_cut(scope, upto);
            let farthest = self.cuts.iter().filter(|cut| cut.0 == scope).map(|cut| cut.1).max();
            if farthest <= Some(upto) {
                self.cuts.retain(|cut| cut.0 != scope);
            } else {
                self.cuts.remove(0);
            }
        }
    }

    fn pause(&mut self, whom: Whom, lasts: Option<Duration>) {
        let hold = Hold { why: Why::Paused, until: lasts.map(|lasts| self.now + lasts) };
        self.pauses.insert(whom, hold);
        match whom {
            Whom::All => self.queue.pause_all(hold),
            Whom::Tenant(nth) => self.queue.pause_tenant(tenant_id(nth), hold),
            Whom::Lane(lane) => self.queue.pause_lane(lane_id(lane), hold),
        }
    }

    fn resume(&mut self, whom: Whom) {
        self.pauses.remove(&whom);
        match whom {
            Whom::All => self.queue.resume_all(self.now),
            Whom::Tenant(nth) => self.queue.resume_tenant(tenant_id(nth), self.now),
            Whom::Lane(lane) => self.queue.resume_lane(lane_id(lane), self.now),
        }
    }

    fn set(&mut self, lane: usize, order: Order, on_dead: OnDead, max_in_flight: u16) {
        let entry = &mut self.lanes[lane];
        entry.settings =
            Arc::new(LaneSettings { order, on_dead, max_in_flight, ..LaneSettings::clone(&entry.settings) });
        self.tell_settings(lane);
        self.queue.forget_idle_lane(lane_id(lane), self.now);
    }

    fn tell_settings(&mut self, lane: usize) {
        let entry = &mut self.lanes[lane];
        entry.known = entry.known.or(Some(self.now));
        self.queue.set_lane(self.now, &entry.settings);
    }

    /// Time passes; rows that become due soon are read from the store.
    fn advance(&mut self, to: Timestamp) {
        self.now = self.now.max(to);
        for at in 0..self.rows.len() {
            let row = &self.rows[at];
            let soon = row.durable.state.due().is_some_and(|due| due <= self.now + HORIZON);
            if row.at == At::Store && row.place == RowIndex::Delayed && soon {
                self.admit(at);
            }
        }
    }

    /// Reads pages as the owner does: due deliveries are sent first, then rows are fetched.
    fn page(&mut self) {
        self.ask();
        while let Some(wanted) = self.queue.next_page(self.now) {
            let lane = index(wanted.lane);
            let strict = wanted.order == Order::Strict;
            assert!(self.held(lane, self.now).is_none(), "a held lane needs no rows");
            assert!(wanted.limit > 0 && wanted.order == self.lanes[lane].settings.order, "{wanted:?}");
            let doubled = |page: &Page| page.wanted.lane == wanted.lane && page.wanted.tier == wanted.tier;
            assert!(!self.pages.iter().any(doubled), "{wanted:?} was asked for already");
            let of = |row: &&Row| row.durable.lane == wanted.lane && (strict || row.durable.tier == wanted.tier);
            let spilled = self.rows.iter().filter(of).filter(|row| row.place == RowIndex::Spilled);
            let mut ids: Vec<DeliveryId> = spilled.map(|row| row.durable.id).collect();
            ids.sort();
            if wanted.order == Order::NewestFirst {
                ids.reverse();
            }
            let more = ids.len() > wanted.limit as usize;
            ids.truncate(wanted.limit as usize);
            self.pages.push(Page { wanted, ids, more });
        }
        self.check_nothing_is_left_behind();
    }

    /// Hands over a page, with the rows that the store had when it was requested.
    fn paged(&mut self, nth: usize) {
        if self.pages.is_empty() {
            return;
        }
        let Page { wanted, ids, mut more } = self.pages.remove(nth % self.pages.len());
        for id in ids {
            let found = self.rows.iter().position(|row| row.durable.id == id && row.place == RowIndex::Spilled);
            match found {
                Some(at) => {
                    self.admit(at);
                    more |= self.rows[at].at == At::Store;
                }
                None => more = true,
            }
        }
        self.queue.paged(self.now, wanted.lane, wanted.tier, wanted.span, more);
    }

    /// Pages until no row is behind the window for which there is room.
    fn fetch(&mut self) {
        self.page();
        while !self.pages.is_empty() {
            self.paged(0);
            self.page();
        }
    }

    fn evict(&mut self) {
        let before = self.in_window();
        let evicted = self.queue.evict(self.now);
        for at in 0..self.rows.len() {
            let row = &self.rows[at];
            let (id, lane, tier) = (row.delivery.id, row.delivery.lane, row.delivery.tier);
            if row.at == At::Store || self.queue.knows(id) {
                continue;
            }
            assert!(before >= self.limits.window / 4 * 3, "the window has room");
            assert!(self.held(index(lane), self.now).is_some(), "{id} was evicted although it can be sent");
            assert_eq!(row.at, At::Waits, "{id} is in flight and was evicted");
            assert!(is_due(&row.delivery, self.now), "{id} is not ready");
            let returned = evicted.contains(&Evicted { delivery: id, lane, tier });
            assert_eq!(returned, row.place != RowIndex::Spilled, "{id} is written as spilled unless it is");
            let row = &mut self.rows[at];
            row.at = At::Store;
            if returned {
                row.place = RowIndex::Spilled;
                self.queue.spilled(lane, tier, id);
            }
        }
    }

    // --- look-ups ---

    /// Whether the scheduler has to act on a row at `now`.
    fn has_work(&self, row: &Row, now: Timestamp) -> bool {
        let lane = index(row.delivery.lane);
        if row.at != At::Waits {
            return false;
        }
        if let State::AwaitingAck { until } = row.delivery.state {
            return until <= now && self.lanes[lane].known.is_some_and(|since| since + ASK_AGAIN <= now);
        }
        let slot = self.in_flight() < self.limits.slots as usize;
        row.delivery.expiry.is_over(now) || (slot && is_due(&row.delivery, now) && self.is_open(lane, now))
    }

    fn is_open(&self, lane: usize, now: Timestamp) -> bool {
        let settings = &self.lanes[lane].settings;
        let most = if settings.order == Order::Strict { 1 } else { usize::from(settings.max_in_flight) };
        let flying = self.rows.iter().filter(|row| row.at == At::InFlight && index(row.delivery.lane) == lane).count();
        self.held(lane, now).is_none() && flying < most
    }

    fn held(&self, lane: usize, now: Timestamp) -> Option<Hold> {
        let entry = &self.lanes[lane];
        let pause = |whom: Whom| self.pauses.get(&whom).copied();
        let tenant = pause(Whom::Tenant(lane % TENANTS)).filter(|_| entry.known.is_some());
        let unknown = Hold { why: Why::Store, until: None };
        let longest = entry.holds.iter().copied().max_by_key(|hold| hold.until.unwrap_or(Timestamp::MAX));
        let unknown = entry.known.is_none().then_some(unknown);
        let gates = [pause(Whom::All), tenant, unknown, pause(Whom::Lane(lane)), longest];
        gates.into_iter().flatten().find(|hold| hold.holds(now))
    }

    fn cut_of(&self, delivery: &Delivery) -> Option<Cause> {
        let mark = |scope: CutScope| {
            let cuts = self.cuts.iter().filter(move |cut| cut.0 == scope);
            let cause = cuts.clone().next_back().map(|cut| cut.2);
            cause.filter(|_| cuts.map(|cut| cut.1).max() >= Some(delivery.id.0))
        };
        mark(CutScope::Message(delivery.message)).or(mark(CutScope::Lane(delivery.lane)))
    }

    fn nth(&self, nth: usize, which: impl Fn(&Row) -> bool) -> Option<usize> {
        let found: Vec<usize> = (0..self.rows.len()).filter(|at| which(&self.rows[*at])).collect();
        (!found.is_empty()).then(|| found[nth % found.len()])
    }

    fn in_flight(&self) -> usize {
        self.rows.iter().filter(|row| row.at == At::InFlight).count()
    }

    fn in_window(&self) -> usize {
        self.rows.iter().filter(|row| row.at != At::Store).count()
    }

    fn roll(&mut self) -> Roll {
        self.rolls += 1;
        Roll(0).fork(self.rolls)
    }
}

fn is_due(delivery: &Delivery, now: Timestamp) -> bool {
    let waits = matches!(delivery.state, State::Queued { .. } | State::Retry { .. });
    waits && delivery.state.due().is_some_and(|due| due <= now)
}

fn in_scope(scope: CutScope, delivery: &Delivery) -> bool {
    match scope {
        CutScope::Message(message) => delivery.message == message,
        CutScope::Lane(lane) => delivery.lane == lane,
    }
}

fn lane_id(lane: usize) -> LaneId {
    LaneId::from_raw(lane as u64)
}

fn tenant_id(nth: usize) -> TenantId {
    TenantId::from_raw((nth % TENANTS) as u64)
}

fn index(lane: LaneId) -> usize {
    usize::try_from(lane.raw()).expect("lanes are numbered from 0")
}
