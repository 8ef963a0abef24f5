//! The window's contract the slow and obvious way: a list of rows, looked through from end to end.
//!
//! It drives a [`Queue`] as its owner would (rows in a store, pages, records) and checks after every
//! step that what the queue did was allowed and that it left nothing undone. Where the contract
//! leaves a choice, such as which lane is next, any legal choice is right.

use super::*;
use crate::{Cause, Key, Scope, Why};

pub(super) const LANES: usize = 4;
const TENANTS: usize = 2;

/// One delivery that has not ended.
struct Row {
    /// As the window knows it, while it is in the window.
    delivery: Delivery,
    /// As the store has it.
    durable: Delivery,
    place: Place,
    at: At,
}

#[derive(Clone, Debug, PartialEq)]
enum At {
    Store,
    Waits,
    InFlight,
    Recording(Box<Record>),
}

struct LaneModel {
    settings: Arc<LaneSettings>,
    /// Since when the queue knows the settings.
    known: Option<Timestamp>,
    paused: Option<Hold>,
    /// Everything the receiver ever asked for.
    holds: Vec<Hold>,
    /// Picks that went to others while a tier had something to send.
    passed_over: [u64; 3],
}

struct Page {
    wanted: PageWanted,
    ids: Vec<DeliveryId>,
    more: bool,
}

pub(super) struct Model {
    queue: Queue,
    limits: Limits,
    now: Timestamp,
    rows: Vec<Row>,
    lanes: Vec<LaneModel>,
    paused_all: Option<Hold>,
    paused_tenants: [Option<Hold>; TENANTS],
    cuts: Vec<(Scope, Key, Cause)>,
    pages: Vec<Page>,
    issued: u64,
    rolls: u64,
}

impl Model {
    pub(super) fn new(limits: Limits) -> Self {
        let lane = |index: usize| LaneModel {
            settings: Arc::new(settings(lane_id(index), Order::Fifo)),
            known: None,
            paused: None,
            holds: Vec::new(),
            passed_over: [0; 3],
        };
        Self {
            queue: Queue::new(limits),
            limits,
            now: NOW,
            rows: Vec::new(),
            lanes: (0..LANES).map(lane).collect(),
            paused_all: None,
            paused_tenants: [None; TENANTS],
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
            Op::CutLane(lane) => self.cut(Scope::Lane(lane_id(lane)), Cause::Unsubscribed),
            Op::Sweep => self.sweep(),
            Op::Pause(whom, lasts) => self.pause(whom, lasts),
            Op::Resume(whom) => self.resume(whom),
            Op::Set { lane, order, on_dead, max_in_flight } => self.set(lane, order, on_dead, max_in_flight),
            Op::Wait(wait) => self.advance(self.now + wait),
            Op::Page => self.page(),
            Op::Paged(nth) => self.paged(nth),
            Op::Shed => self.shed(),
        }
        self.check_books();
    }

    // --- what its owner does ---

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
        let place = Place::for_new(self.lanes[lane].settings.order, spilling, self.now, due);
        self.rows.push(Row { delivery: delivery.clone(), durable: delivery, place, at: At::Store });
        match place {
            Place::Ready => self.admit(self.rows.len() - 1),
            Place::Delayed => self.queue.forget_idle_lane(lane_id(lane), self.now),
            Place::Spilled => self.queue.spilled(lane_id(lane), tier),
        }
    }

    /// Lets a row in, or moves it behind the window; whether it is in.
    fn admit(&mut self, at: usize) {
        let row = &self.rows[at];
        let (id, lane, tier) = (row.durable.id, row.durable.lane, row.durable.tier);
        let room = self.has_room(row);
        let admission = self.queue.admit(self.now, row.durable.clone(), row.place);
        if row.at != At::Store {
            assert_eq!(admission, Admission::Known, "{id} is in the window and was let in again");
        } else if room {
            assert_eq!(admission, Admission::Taken, "there is room for {id}");
            let row = &mut self.rows[at];
            row.delivery = row.durable.clone();
            row.at = At::Waits;
        } else {
            assert_eq!(admission, Admission::NoRoom, "there is no room for {id}");
            self.rows[at].place = Place::Spilled;
            self.queue.spilled(lane, tier);
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
        if row.place == Place::Ready && self.queue.is_spilling(row.durable.lane, row.durable.tier) {
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
        let decision = delivery::settle(&before, verdict, &self.lanes[lane].settings.policy, self.now, roll);
        let settled = self.queue.settle(self.now, roll, before.id, verdict);
        if decision.attempts == before.attempts {
            assert_eq!(settled, None, "nothing was tried, so nothing is recorded");
            self.lanes[lane].holds.extend(decision.lane_hold);
            return self.waits_again(at, decision.state.due().unwrap_or(self.now));
        }
        let record = settled.expect("it is in flight");
        assert_eq!(record.ends_endpoint, decision.ends_endpoint);
        self.lanes[lane].holds.extend(decision.lane_hold);
        self.decided(at, &decision, record.clone());
        if record.ends_endpoint {
            self.cut(Scope::Lane(before.lane), Cause::EndpointGone);
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
        // A receipt for what was never sent means nothing.
        row.delivery.receipt_kept &= row.delivery.attempts > 0;
    }

    fn recorded(&mut self, nth: usize) {
        let Some(at) = self.nth(nth, |row| matches!(row.at, At::Recording(_))) else { return };
        let row = &mut self.rows[at];
        let At::Recording(record) = row.at.clone() else { unreachable!("asked for one that is being recorded") };
        let id = row.delivery.id;
        row.durable = Delivery { receipt_kept: false, ..record.delivery.clone() };
        row.place = record.place;
        let answer = self.queue.recorded(self.now, id);
        if record.delivery.state.is_terminal() {
            assert_eq!(answer, Recorded::Ended);
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
            Recorded::Again(again) => {
                assert_eq!(Some(again.delivery.state), ends, "{id} was ended while it was recorded");
                self.rows[at].at = At::Recording(Box::new(again));
            }
            Recorded::Left(when) => {
                assert!(ends.is_none() && when == due && due > self.now + HORIZON && record.place == Place::Delayed);
                self.rows[at].at = At::Store;
            }
            Recorded::Waits => {
                assert!(ends.is_none() && (due <= self.now + HORIZON || record.place == Place::Spilled), "{id} waits");
                self.rows[at].at = At::Waits;
            }
            Recorded::Ended => panic!("{id} has not ended"),
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
                let record = answer.expect("what waits for a receipt or a retry is ended by one");
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
        self.cut(Scope::Message(self.rows[at].durable.message), Cause::Cancelled);
    }

    fn cut(&mut self, scope: Scope, cause: Cause) {
        let upto = Key::from_raw(self.issued);
        self.cuts.push((scope, upto, cause));
        let under_way = self.rows.iter().filter(|row| matches!(row.at, At::InFlight | At::Recording(_)));
        let mut spared: Vec<DeliveryId> =
            under_way.filter(|row| in_scope(scope, &row.delivery)).map(|row| row.delivery.id).collect();
        spared.sort();
        assert_eq!(self.queue.cut(scope, upto, cause), spared, "what is under way has an outcome of its own");
    }

    /// Ends what the oldest cut covers, and forgets the cut once there is nothing left.
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
        match whom {
            Whom::All => {
                self.paused_all = Some(hold);
                self.queue.pause_all(hold);
            }
            Whom::Tenant(nth) => {
                self.paused_tenants[nth % TENANTS] = Some(hold);
                self.queue.pause_tenant(tenant_id(nth), hold);
            }
            Whom::Lane(lane) => {
                self.lanes[lane].paused = Some(hold);
                self.queue.pause_lane(lane_id(lane), hold);
            }
        }
    }

    fn resume(&mut self, whom: Whom) {
        match whom {
            Whom::All => {
                self.paused_all = None;
                self.queue.resume_all(self.now);
            }
            Whom::Tenant(nth) => {
                self.paused_tenants[nth % TENANTS] = None;
                self.queue.resume_tenant(tenant_id(nth), self.now);
            }
            Whom::Lane(lane) => {
                self.lanes[lane].paused = None;
                self.queue.resume_lane(lane_id(lane), self.now);
            }
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
            if row.at == At::Store && row.place == Place::Delayed && soon {
                self.admit(at);
            }
        }
    }

    /// As its owner does: what is due is let out first, then rows are fetched.
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
            let spilled = self.rows.iter().filter(of).filter(|row| row.place == Place::Spilled);
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

    /// A page comes, as the store was when it was asked for.
    fn paged(&mut self, nth: usize) {
        if self.pages.is_empty() {
            return;
        }
        let Page { wanted, ids, mut more } = self.pages.remove(nth % self.pages.len());
        for id in ids {
            let found = self.rows.iter().position(|row| row.durable.id == id && row.place == Place::Spilled);
            match found {
                Some(at) => {
                    self.admit(at);
                    more |= self.rows[at].at == At::Store;
                }
                None => more = true,
            }
        }
        self.queue.paged(self.now, wanted.lane, wanted.tier, more);
    }

    /// Pages until nothing is behind the window that there is room for.
    fn fetch(&mut self) {
        self.page();
        while !self.pages.is_empty() {
            self.paged(0);
            self.page();
        }
    }

    fn shed(&mut self) {
        let before = self.in_window();
        let shed = self.queue.shed(self.now);
        for at in 0..self.rows.len() {
            let row = &self.rows[at];
            let (id, lane, tier) = (row.delivery.id, row.delivery.lane, row.delivery.tier);
            if row.at == At::Store || self.queue.knows(id) {
                continue;
            }
            assert!(before >= self.limits.window / 4 * 3, "the window has room");
            assert!(self.held(index(lane), self.now).is_some(), "{id} makes room though it can be sent");
            assert_eq!(row.at, At::Waits, "{id} is under way and left");
            assert!(is_due(&row.delivery, self.now), "{id} is not ready");
            let told = shed.contains(&Shed { delivery: id, lane, tier });
            assert_eq!(told, row.place != Place::Spilled, "{id} is written as spilled unless it is");
            let row = &mut self.rows[at];
            row.at = At::Store;
            if told {
                row.place = Place::Spilled;
                self.queue.spilled(lane, tier);
            }
        }
    }

    // --- what the queue answers ---

    /// Asks until there is nothing to do, and checks that there is nothing.
    pub(super) fn ask(&mut self) {
        loop {
            let roll = self.roll();
            match self.queue.next(self.now, roll) {
                None => break,
                Some(Pick::Send(start)) => self.check_send(&start),
                Some(Pick::Record(record)) => self.check_record(record, roll),
            }
            self.check_books();
        }
        self.check_books();
        if let Some(row) = self.rows.iter().find(|row| self.has_work(row, self.now)) {
            panic!("nothing to do, says the queue, but {:?}", row.delivery);
        }
        self.check_wake();
        self.check_explained();
    }

    fn check_send(&mut self, start: &Start) {
        let at = self.rows.iter().position(|row| row.delivery.id == start.delivery).expect("it has not ended");
        let row = &self.rows[at];
        let id = start.delivery;
        let lane = index(start.lane);
        assert_eq!(row.at, At::Waits, "{id} is under way");
        assert!(self.in_flight() < self.limits.slots as usize, "no slot is free");
        assert!(self.is_open(lane, self.now), "{id} was sent through a closed gate");
        assert!(is_due(&row.delivery, self.now) && !row.delivery.expiry.is_over(self.now), "{id} at the wrong time");
        assert_eq!(self.cut_of(&row.delivery), None, "{id} was cut");
        assert!(!row.delivery.receipt_kept, "{id} is known to have arrived");
        let mates = self.rows.iter().filter(|mate| {
            let same_queue = mate.delivery.lane == start.lane && mate.delivery.tier == row.delivery.tier;
            same_queue && mate.at == At::Waits && is_due(&mate.delivery, self.now)
        });
        let first = match self.lanes[lane].settings.order {
            Order::NewestFirst => mates.map(|mate| mate.delivery.id).max(),
            Order::Fifo | Order::Strict => mates.map(|mate| mate.delivery.id).min(),
        };
        assert_eq!(first, Some(id), "another one is first");
        let expected = Start {
            delivery: id,
            message: row.delivery.message,
            lane: row.delivery.lane,
            attempt: row.delivery.attempts + 1,
            compact: row.delivery.compact == Compact::InUse,
        };
        assert_eq!(*start, expected);
        self.take_turn(lane, self.rows[at].delivery.tier);
        self.rows[at].at = At::InFlight;
    }

    /// Every queue with something to send is served before the others were served too often.
    fn take_turn(&mut self, lane: usize, tier: Tier) {
        for other in 0..LANES {
            for of in Tier::ALL {
                let queue_of = |row: &&Row| index(row.delivery.lane) == other && row.delivery.tier == of;
                let waits = |row: &Row| row.at == At::Waits && is_due(&row.delivery, self.now);
                let could = self.is_open(other, self.now) && self.rows.iter().filter(queue_of).any(waits);
                let passed_over = &mut self.lanes[other].passed_over[of.index()];
                *passed_over = if could && (other, of) != (lane, tier) { *passed_over + 1 } else { 0 };
                let all: u64 = WEIGHTS.iter().sum();
                let most = (LANES as u64 + 1) * all / WEIGHTS[of.index()] + all;
                assert!(*passed_over <= most, "lane {other} waits for its turn since {passed_over} picks");
            }
        }
    }

    fn check_record(&mut self, record: Record, roll: Roll) {
        let id = record.delivery.id;
        let at = self.rows.iter().position(|row| row.delivery.id == id).expect("it has not ended");
        let row = &self.rows[at];
        assert_eq!(row.at, At::Waits, "{id} is under way");
        if let State::AwaitingAck { until } = row.delivery.state {
            assert!(until <= self.now, "{id} has time for its receipt");
            let policy = &self.lanes[index(row.delivery.lane)].settings.policy;
            let decision = delivery::ack_timeout(&row.delivery, policy, self.now, roll.fork(id.raw()));
            return self.decided(at, &decision, record);
        }
        let end = if row.delivery.receipt_kept {
            State::Delivered { at: self.now }
        } else if row.delivery.expiry.is_over(self.now) {
            State::Expired { at: self.now }
        } else {
            cut::ended(self.cut_of(&row.delivery).expect("something ended it"), self.now)
        };
        let (lane, tier) = (index(row.delivery.lane), row.delivery.tier);
        self.lanes[lane].passed_over[tier.index()] = 0;
        self.ended(at, record, end);
    }

    /// One moved on by a decision, unless a cut ends it.
    fn decided(&mut self, at: usize, decision: &Decision, record: Record) {
        let row = &mut self.rows[at];
        let before = row.delivery.attempts;
        row.delivery.attempts = decision.attempts;
        row.delivery.previous_wait = decision.previous_wait;
        row.delivery.limited_in_a_row = decision.limited_in_a_row;
        row.delivery.compact = decision.compact;
        let cut = self.cut_of(&self.rows[at].delivery).filter(|_| !decision.state.is_terminal());
        let state = cut.map_or(decision.state, |cause| cut::ended(cause, self.now));
        if let State::Retry { cause, .. } = state {
            self.rows[at].delivery.last_cause = Some(cause);
        }
        assert_eq!(record.attempts_before, before);
        self.moved(at, record, state);
    }

    fn ended(&mut self, at: usize, record: Record, end: State) {
        assert_eq!(record.attempts_before, self.rows[at].delivery.attempts);
        assert!(!record.ends_endpoint);
        self.moved(at, record, end);
    }

    fn moved(&mut self, at: usize, record: Record, state: State) {
        let row = &mut self.rows[at];
        row.delivery.state = state;
        assert_eq!(record.delivery, row.delivery, "what is recorded is what was decided");
        let lane = index(row.delivery.lane);
        let settings = &self.lanes[lane].settings;
        let strict = self.lanes[lane].known.is_some() && settings.order == Order::Strict;
        let pauses = strict && settings.on_dead == OnDead::Hold && matches!(state, State::Dead { .. });
        assert_eq!(record.place, if strict { Place::Spilled } else { Place::Delayed });
        assert_eq!(record.pauses_lane, pauses, "a strict lane stops behind its dead head, if so set");
        row.at = At::Recording(Box::new(record));
        if pauses {
            self.pause(Whom::Lane(lane), None);
        }
    }

    // --- what must be so ---

    fn check_books(&mut self) {
        assert_eq!(self.queue.refused_moves(), 0);
        assert_eq!(self.queue.in_flight(), self.in_flight());
        assert_eq!(self.queue.len(), self.in_window());
        for row in &self.rows {
            let id = row.durable.id;
            let under_way = matches!(row.at, At::InFlight | At::Recording(_));
            assert_eq!(self.queue.knows(id), row.at != At::Store, "{id} is {:?}", row.at);
            assert_eq!(self.queue.is_under_way(id), under_way, "{id} is {:?}", row.at);
            if row.at == At::Store && row.place == Place::Spilled {
                let known = self.queue.is_spilling(row.durable.lane, row.durable.tier);
                assert!(known, "{id} is behind the window and the queue forgot that there is something");
            }
        }
        for lane in 0..LANES {
            if self.lanes[lane].known.is_some() && !self.queue.knows_lane(lane_id(lane)) {
                self.check_idle(lane);
                self.lanes[lane].known = None;
            }
        }
    }

    /// The queue forgot a lane: nothing of it may matter any more.
    fn check_idle(&self, lane: usize) {
        let entry = &self.lanes[lane];
        let holds = entry.paused.iter().chain(&entry.holds).any(|hold| hold.holds(self.now));
        let has_rows = self.rows.iter().any(|row| index(row.durable.lane) == lane && row.at != At::Store);
        let paging = self.pages.iter().any(|page| index(page.wanted.lane) == lane);
        assert!(!holds && !has_rows && !paging, "lane {lane} was forgotten while it had something to do");
    }

    fn check_wake(&self) {
        let mut instants: Vec<Timestamp> = Vec::new();
        for row in &self.rows {
            instants.extend(row.delivery.state.due());
            instants.extend(row.delivery.expiry.at());
        }
        for lane in &self.lanes {
            instants.extend(lane.paused.iter().chain(&lane.holds).filter_map(|hold| hold.until));
            instants.extend(lane.known.map(|since| since + ASK_AGAIN));
        }
        instants
            .extend(self.paused_all.iter().chain(self.paused_tenants.iter().flatten()).filter_map(|hold| hold.until));
        instants.retain(|at| *at > self.now);
        instants.sort();
        let work_at = instants.into_iter().find(|at| self.rows.iter().any(|row| self.has_work(row, *at)));
        if let Some(work_at) = work_at {
            let wake_at = self.queue.wake_at();
            assert!(wake_at.is_some_and(|wake| wake <= work_at), "work at {work_at}, but woken at {wake_at:?}");
        }
    }

    fn check_explained(&self) {
        for row in &self.rows {
            let durable = &row.durable;
            let explained = self.queue.explain(self.now, durable.id, durable.lane, durable.state);
            match row.at {
                At::Store => assert!(matches!(explained, Explained::Waits(_)), "nobody sends what is in the store"),
                At::InFlight | At::Recording(_) => assert_eq!(explained, Explained::UnderWay),
                At::Waits => assert_eq!(explained, Explained::Waits(self.reason(&row.delivery))),
            }
        }
    }

    fn reason(&self, delivery: &Delivery) -> Hold {
        let lane = index(delivery.lane);
        let until_due = |why| Hold { why, until: delivery.state.due() };
        let no_end = |why| Hold { why, until: None };
        match delivery.state {
            State::AwaitingAck { .. } => until_due(Why::Ack),
            State::Retry { due, .. } if due > self.now => until_due(Why::Backoff),
            State::Queued { due } if due > self.now => until_due(Why::Scheduled),
            _ => match self.held(lane, self.now) {
                Some(hold) => hold,
                None if !self.is_open(lane, self.now) && self.lanes[lane].settings.order == Order::Strict => {
                    no_end(Why::Order)
                }
                None if !self.is_open(lane, self.now) => no_end(Why::Concurrency),
                None => no_end(Why::Turn),
            },
        }
    }

    /// Rows behind the window that there is room for, and nobody on the way to fetch them.
    fn check_nothing_is_left_behind(&self) {
        if self.in_window() >= self.limits.window {
            return;
        }
        for row in self.rows.iter().filter(|row| row.at == At::Store && row.place == Place::Spilled) {
            let lane = index(row.durable.lane);
            let strict = self.lanes[lane].settings.order == Order::Strict;
            let of = |it: &&Row| it.durable.lane == row.durable.lane && (strict || it.durable.tier == row.durable.tier);
            let kept = self.rows.iter().filter(of).filter(|it| it.at != At::Store).count();
            let room = if strict { kept == 0 } else { kept <= self.limits.per_queue as usize / 2 };
            let open = self.lanes[lane].known.is_some() && self.held(lane, self.now).is_none();
            let fetched = self.pages.iter().any(|page| page.wanted.lane == row.durable.lane);
            assert!(!room || !open || fetched, "nobody fetches {}", row.durable.id);
        }
    }

    /// Lets everything end, and checks that nothing of it stays in memory.
    pub(super) fn wind_down(&mut self) {
        self.resume(Whom::All);
        (0..TENANTS).for_each(|tenant| self.resume(Whom::Tenant(tenant)));
        for _ in 0..2_000 {
            for lane in 0..LANES {
                self.resume(Whom::Lane(lane));
                self.tell_settings(lane);
                self.queue.forget_idle_lane(lane_id(lane), self.now);
            }
            self.check_books();
            self.fetch();
            self.ask();
            while self.rows.iter().any(|row| row.at == At::InFlight) {
                self.settle(0, &Verdict::of(Cause::Ok));
            }
            while self.rows.iter().any(|row| matches!(row.at, At::Recording(_))) {
                self.recorded(0);
            }
            if self.rows.is_empty() {
                break;
            }
            self.advance(self.now + seconds(5));
        }
        // The last one to end may have stopped its lane.
        (0..LANES).for_each(|lane| self.resume(Whom::Lane(lane)));
        assert!(self.rows.is_empty(), "{} deliveries never end", self.rows.len());
        self.advance(self.now + seconds(1_000_000));
        self.fetch();
        let queue = &self.queue;
        assert!(queue.is_empty() && queue.in_flight.is_empty() && queue.lane_index.is_empty(), "{queue:?}");
        assert!(queue.lanes.iter().all(Option::is_none) && queue.over.is_empty() && queue.unacknowledged.is_empty());
        assert!(queue.hungry.is_empty() && queue.paused_tenants.is_empty() && queue.wake_at().is_none(), "{queue:?}");
    }

    // --- looking things up ---

    /// Whether the queue has something to do about a row, if it is asked at `now`.
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
        let tenant = self.paused_tenants[lane % TENANTS].filter(|_| entry.known.is_some());
        let unknown = Hold { why: Why::Store, until: None };
        let longest = entry.holds.iter().copied().max_by_key(|hold| hold.until.unwrap_or(Timestamp::MAX));
        let gates = [self.paused_all, tenant, entry.known.is_none().then_some(unknown), entry.paused, longest];
        gates.into_iter().flatten().find(|hold| hold.holds(now))
    }

    fn cut_of(&self, delivery: &Delivery) -> Option<Cause> {
        let mark = |scope: Scope| {
            let cuts = self.cuts.iter().filter(move |cut| cut.0 == scope);
            let cause = cuts.clone().next_back().map(|cut| cut.2);
            cause.filter(|_| cuts.map(|cut| cut.1).max() >= Some(delivery.id.0))
        };
        mark(Scope::Message(delivery.message)).or(mark(Scope::Lane(delivery.lane)))
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

fn in_scope(scope: Scope, delivery: &Delivery) -> bool {
    match scope {
        Scope::Message(message) => delivery.message == message,
        Scope::Lane(lane) => delivery.lane == lane,
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
