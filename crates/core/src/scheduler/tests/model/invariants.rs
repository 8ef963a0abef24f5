//! The checks of the model: every result of the scheduler must be allowed for its rows, and after every step no
//! work may be left undone.

use super::*;
use crate::delivery::Decision;

impl SchedulerModel {
    /// Calls `next` until it returns `None`, and checks that no work is left.
    pub(in crate::scheduler::tests) fn ask(&mut self) {
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
            panic!("the scheduler returned no work, but there is {:?}", row.delivery);
        }
        self.check_wake();
        self.check_explained();
    }

    fn check_send(&mut self, start: &AttemptStart) {
        let at = self.rows.iter().position(|row| row.delivery.id == start.delivery).expect("it has not ended");
        let row = &self.rows[at];
        let id = start.delivery;
        let lane = index(start.lane);
        assert_eq!(row.at, At::Waits, "{id} is under way");
        assert!(self.in_flight() < self.limits.slots as usize, "no slot is free");
        assert!(self.is_open(lane, self.now), "{id} was sent although its lane is held");
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
        assert_eq!(first, Some(id), "another delivery comes first");
        let expected = AttemptStart {
            delivery: id,
            message: row.delivery.message,
            endpoint: row.delivery.endpoint,
            lane: row.delivery.lane,
            attempt: row.delivery.attempts + 1,
            due: row.delivery.state.due().unwrap_or(self.now),
            compact: row.delivery.compact == Compact::InUse,
            probe: false,
        };
        assert_eq!(*start, expected);
        self.take_turn(lane, self.rows[at].delivery.tier);
        self.rows[at].at = At::InFlight;
    }

    /// Checks that no queue with deliveries to send is passed over too often.
    fn take_turn(&mut self, lane: usize, tier: Tier) {
        for other in 0..LANES {
            for of in Tier::ALL {
                let queue_of = |row: &&Row| index(row.delivery.lane) == other && row.delivery.tier == of;
                let waits = |row: &Row| row.at == At::Waits && is_due(&row.delivery, self.now);
                let could = self.is_open(other, self.now) && self.rows.iter().filter(queue_of).any(waits);
                // Tenants are compared by slot-time: only a tenant's own lanes take turns.
                let same_tenant = self.lanes[other].settings.tenant == self.lanes[lane].settings.tenant;
                let passed_over = &mut self.lanes[other].passed_over[of.index()];
                *passed_over = match could && (other, of) != (lane, tier) {
                    true => *passed_over + u64::from(same_tenant),
                    false => 0,
                };
                let all: u64 = WEIGHTS.iter().sum();
                let most = (LANES as u64 + 1) * all / WEIGHTS[of.index()] + all;
                assert!(*passed_over <= most, "lane {other} has been passed over {passed_over} times");
            }
        }
    }

    fn check_record(&mut self, record: DeliveryChange, roll: Roll) {
        let id = record.delivery.id;
        let at = self.rows.iter().position(|row| row.delivery.id == id).expect("it has not ended");
        let row = &self.rows[at];
        assert_eq!(row.at, At::Waits, "{id} is under way");
        if let State::AwaitingAck { until } = row.delivery.state {
            assert!(until <= self.now, "{id} has time for its receipt");
            let policy = &self.lanes[index(row.delivery.lane)].settings.policy;
            let decision =
                delivery::ack_timeout(&row.delivery, &Circumstances::new(policy), self.now, roll.fork(id.raw()));
            return self.decided(at, &decision, record);
        }
        let end = if row.delivery.receipt_kept {
            State::Delivered { at: self.now }
        } else if row.delivery.expiry.is_over(self.now) {
            State::Expired { at: self.now }
        } else {
            cut::ended(self.cut_of(&row.delivery).expect("a cut ended it"), self.now)
        };
        let (lane, tier) = (index(row.delivery.lane), row.delivery.tier);
        self.lanes[lane].passed_over[tier.index()] = 0;
        self.ended(at, record, end);
    }

    /// Applies a decision to a row, unless a cut ends it.
    pub(super) fn decided(&mut self, at: usize, decision: &Decision, record: DeliveryChange) {
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

    pub(super) fn ended(&mut self, at: usize, record: DeliveryChange, end: State) {
        assert_eq!(record.attempts_before, self.rows[at].delivery.attempts);
        assert_eq!(record.endpoint_change, None);
        self.moved(at, record, end);
    }

    fn moved(&mut self, at: usize, record: DeliveryChange, state: State) {
        let row = &mut self.rows[at];
        row.delivery.state = state;
        assert_eq!(record.delivery, row.delivery, "the record matches the decision");
        let lane = index(row.delivery.lane);
        let settings = &self.lanes[lane].settings;
        let strict = self.lanes[lane].known.is_some() && settings.order == Order::Strict;
        let pauses = strict && settings.on_dead == OnDead::Hold && matches!(state, State::Dead { .. });
        assert_eq!(record.place, if strict { RowIndex::Spilled } else { RowIndex::Delayed });
        assert_eq!(record.pauses_lane, pauses, "a strict lane set to hold stops after a dead delivery");
        row.at = At::Recording(Box::new(record));
        if pauses {
            self.pause(Whom::Lane(lane), None);
        }
    }

    pub(super) fn check_books(&mut self) {
        assert_eq!(self.queue.refused_moves(), 0);
        assert_eq!(self.queue.in_flight(), self.in_flight());
        assert_eq!(self.queue.len(), self.in_window());
        for row in &self.rows {
            let id = row.durable.id;
            let under_way = matches!(row.at, At::InFlight | At::Recording(_));
            assert_eq!(self.queue.knows(id), row.at != At::Store, "{id} is {:?}", row.at);
            assert_eq!(self.queue.is_under_way(id), under_way, "{id} is {:?}", row.at);
            if row.at == At::Store && row.place == RowIndex::Spilled {
                let known = self.queue.is_spilling(row.durable.lane, row.durable.tier);
                assert!(known, "{id} is behind the window, but its queue is not spilling");
            }
        }
        (0..LANES).for_each(|lane| self.notice_dropped(lane));
    }

    /// Notes that the scheduler has dropped a lane, which it may do only while the lane is idle.
    pub(super) fn notice_dropped(&mut self, lane: usize) {
        if self.lanes[lane].known.is_some() && !self.queue.knows_lane(lane_id(lane)) {
            self.check_idle(lane);
            self.lanes[lane].known = None;
        }
    }

    /// Checks that a dropped lane had nothing to do.
    fn check_idle(&self, lane: usize) {
        let entry = &self.lanes[lane];
        let holds = self.pauses.get(&Whom::Lane(lane)).into_iter().chain(&entry.holds).any(|hold| hold.holds(self.now));
        let has_rows = self.rows.iter().any(|row| index(row.durable.lane) == lane && row.at != At::Store);
        let paging = self.pages.iter().any(|page| index(page.wanted.lane) == lane);
        assert!(!holds && !has_rows && !paging, "lane {lane} was dropped while it had work");
    }

    fn check_wake(&self) {
        let mut instants: Vec<Timestamp> = Vec::new();
        for row in &self.rows {
            instants.extend(row.delivery.state.due());
            instants.extend(row.delivery.expiry.at());
        }
        for lane in &self.lanes {
            instants.extend(lane.holds.iter().filter_map(|hold| hold.until));
            instants.extend(lane.known.map(|since| since + ASK_AGAIN));
        }
        instants.extend(self.pauses.values().filter_map(|hold| hold.until));
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
                At::Store => assert!(matches!(explained, Explained::Waits(_)), "a row in the store is not being sent"),
                At::InFlight | At::Recording(_) => assert_eq!(explained, Explained::UnderWay),
                At::Waits => assert_eq!(explained, Explained::Waits(self.reason(&row.delivery))),
            }
        }
    }

    fn reason(&self, delivery: &Delivery) -> Hold {
        let lane = index(delivery.lane);
        let due = delivery.state.due();
        let longest = self.lanes[lane].holds.iter().max_by_key(|hold| hold.until.unwrap_or(Timestamp::MAX));
        let asked = longest.filter(|hold| hold.holds(self.now) && (hold.until.is_none() || hold.until >= due));
        let until_due = |why| Hold { why, until: due };
        let or_asked = |why| asked.copied().unwrap_or(until_due(why));
        let no_end = |why| Hold { why, until: None };
        match delivery.state {
            State::AwaitingAck { .. } => until_due(Why::Ack),
            State::Retry { due, .. } if due > self.now => or_asked(Why::Backoff),
            State::Queued { due } if due > self.now => or_asked(Why::Scheduled),
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

    /// Checks that every row behind the window for which there is room is being fetched.
    pub(super) fn check_nothing_is_left_behind(&self) {
        if self.in_window() >= self.limits.window {
            return;
        }
        for row in self.rows.iter().filter(|row| row.at == At::Store && row.place == RowIndex::Spilled) {
            let lane = index(row.durable.lane);
            let strict = self.lanes[lane].settings.order == Order::Strict;
            let of = |it: &&Row| it.durable.lane == row.durable.lane && (strict || it.durable.tier == row.durable.tier);
            let kept = self.rows.iter().filter(of).filter(|it| it.at != At::Store).count();
            let room = kept == 0 && self.pages.is_empty();
            let open = self.lanes[lane].known.is_some() && self.held(lane, self.now).is_none();
            let fetched = self.pages.iter().any(|page| page.wanted.lane == row.durable.lane);
            assert!(!room || !open || fetched, "{} is not being fetched", row.durable.id);
        }
    }

    /// Lets every delivery end, and checks that the scheduler keeps nothing in memory.
    pub(in crate::scheduler::tests) fn wind_down(&mut self) {
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
        // The last delivery to end may have paused its lane.
        (0..LANES).for_each(|lane| self.resume(Whom::Lane(lane)));
        assert!(self.rows.is_empty(), "{} deliveries never end", self.rows.len());
        self.advance(self.now + seconds(1_000_000));
        self.fetch();
        let queue = &self.queue;
        assert!(queue.is_empty() && queue.in_flight() == 0 && queue.lanes.slots.len() == 0, "{queue:?}");
        assert!(queue.timers.over.is_empty() && queue.timers.unacknowledged.is_empty(), "{queue:?}");
        assert!(queue.backlog.rows_to_come == 0 && queue.under_way().is_empty(), "{queue:?}");
        assert!(queue.pauses.is_empty() && queue.wake_at().is_none(), "{queue:?}");
    }
}
