//! The dispatch loop as a state machine: `step(now, roll, event) → effects`.
//!
//! Everything that can wake the loop is an [`Event`]; everything it can ask for is an [`Effect`].
//! It reads no clock, draws no random numbers and waits for nothing, so the simulator runs the same
//! code as production. In production [`driver`] feeds it.
//!
//! The path of a delivery: [`Event::Arrived`] → `core::scheduler` picks it → [`Effect::Send`] →
//! [`Event::Finished`] → `core::delivery::settle` decides → [`StoreCall::Settle`] → [`StoreReply::Settled`].
//!
//! Invariants: a delivery whose end was decided is not sent; a decision takes effect only once it is
//! durable; every pending row is in the window or will be read later: a notice of a committed row
//! always moves back the cursor that would have passed it.

pub mod call;
mod collapse;
mod commands;
pub mod counts;
mod delayed_cursor;
pub mod driver;
mod erased;
mod pauses;
mod rows;
mod soft;
mod sweeper;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::scheduler::{AfterRecord, AttemptStart, Limits, Pick};
use posthaste_core::{
    Cause, Cut, CutScope, DeliveryChange, DeliveryId, EndpointChange, IdMap, IdSet, Key, LaneId, Roll, RowIndex,
    Scheduler, Timestamp, Verdict,
};
use posthaste_store::{ArrivedDelivery, AttemptRecord, Message, Pause, PauseScope, Session, Settled, Settlement};

pub use call::{StoreCall, StoreReply};
pub use commands::{Command, CommandReply, EndLane, LanePaused, Ticket};
use counts::{DispatchCounts, Watched};
use delayed_cursor::DelayedCursor;
use erased::RecentErasures;
pub use pauses::PauseNumber;
use pauses::PauseTable;
use soft::StoredBreakers;
use sweeper::Sweeper;

/// Rows changed by one call: a group commit's worth.
const SETTLE_BATCH_MAX: usize = 512;
/// With this many outcomes not yet written, nothing more is sent.
const UNSETTLED_MAX: usize = 4_096;
/// Bytes of payloads kept in memory from accept to send: tens of thousands of small payloads. Few large ones fit;
/// reading a large one back from the store is cheap beside sending it.
const INLINE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long after its failure a store call is repeated.
const CALL_AGAIN: Duration = Duration::from_secs(1);

/// Everything that can wake the loop.
#[derive(Debug)]
pub enum Event {
    /// The session has begun; holds what earlier sessions left.
    Started(Box<posthaste_store::SessionStart>),
    /// Deliveries became durable.
    Arrived(Vec<ArrivedDelivery>),
    Finished(Vec<Finished>),
    Replied(StoreReply),
    /// A caller sent a command through [`driver::DispatchHandle`].
    Command(Ticket, Command),
    /// The time of [`Dispatch::wake_at`] has come.
    Woke,
    /// Shut down: begin no attempts; those in flight end and are recorded.
    Drain,
}

/// Everything the loop can ask for.
#[derive(Debug)]
pub enum Effect {
    /// Make an attempt and report it as [`Event::Finished`].
    Send(SendAttempt),
    /// Call the store and report its answer as [`Event::Replied`].
    Store(StoreCall),
    Answer(Ticket, CommandReply),
}

#[derive(Clone, Debug)]
pub struct SendAttempt {
    /// The delivery, its attempt number and where it goes.
    pub start: AttemptStart,
    /// The message, when it is in memory; otherwise it is read from the store.
    pub message: Option<Arc<Message>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    pub delivery: DeliveryId,
    pub verdict: Verdict,
    pub took: Duration,
    /// The beginning of the receiver's answer, if the attempt failed.
    pub excerpt: Option<Bytes>,
}

/// Numbers the deliveries that left the window: a page of rows includes the effects of departures up to its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Departure(u64);

#[derive(Debug)]
pub struct Dispatch {
    session: Session,
    scheduler: Scheduler,
    /// Outcomes that wait to be written.
    unsettled: VecDeque<Settlement>,
    /// The batch of outcomes being written.
    settling: Vec<DeliveryId>,
    /// Payloads of deliveries in the window, kept since their accept.
    inline_payloads: IdMap<DeliveryId, Arc<Message>>,
    inline_bytes: usize,
    erased: RecentErasures,
    delayed: DelayedCursor,
    sweeper: Sweeper,
    lanes_asked: IdSet<LaneId>,
    lanes_to_ask: Vec<LaneId>,
    /// Deliveries that left the window while a page was being read, each with its departure number:
    /// the page's copy of the row may be older.
    departed: IdMap<DeliveryId, Departure>,
    departures: Departure,
    /// How many pages are being read, by the last departure before each was requested.
    pages: BTreeMap<Departure, u32>,
    to_spill: Vec<posthaste_core::scheduler::Evicted>,
    /// Deliveries under way whose row has ended, because a newer delivery replaced them.
    superseded: IdSet<DeliveryId>,
    /// Callers that wait until a receipt is recorded.
    receipts: IdMap<DeliveryId, Vec<Ticket>>,
    /// Deliveries whose rows are being read because a caller asked to retry them now.
    hurried: IdSet<DeliveryId>,
    failed_calls: Vec<StoreCall>,
    call_again_at: Timestamp,
    pauses: PauseTable,
    stored_breakers: StoredBreakers,
    counts: DispatchCounts,
    draining: bool,
}

impl Dispatch {
    /// A loop that has not begun: its first event is [`Event::Started`].
    pub fn new(limits: Limits, session: Session) -> Self {
        Self {
            session,
            scheduler: Scheduler::new(limits),
            unsettled: VecDeque::new(),
            settling: Vec::new(),
            inline_payloads: IdMap::default(),
            inline_bytes: 0,
            erased: RecentErasures::default(),
            delayed: DelayedCursor::default(),
            sweeper: Sweeper::default(),
            lanes_asked: IdSet::default(),
            lanes_to_ask: Vec::new(),
            departed: IdMap::default(),
            departures: Departure(0),
            pages: BTreeMap::new(),
            to_spill: Vec::new(),
            superseded: IdSet::default(),
            receipts: IdMap::default(),
            hurried: IdSet::default(),
            failed_calls: Vec::new(),
            call_again_at: Timestamp::MAX,
            pauses: PauseTable::default(),
            stored_breakers: StoredBreakers::default(),
            counts: DispatchCounts::default(),
            draining: false,
        }
    }

    pub fn step(&mut self, now: Timestamp, roll: Roll, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Started(start) => self.started(now, *start, effects),
            Event::Arrived(arrivals) => {
                self.counts.arrived += arrivals.len() as u64;
                for arrival in arrivals {
                    self.arrived(now, arrival);
                }
            }
            Event::Finished(finished) => {
                for finished in finished {
                    self.finished(now, roll, finished, effects);
                }
            }
            Event::Replied(reply) => self.replied(now, reply, effects),
            Event::Command(ticket, command) => self.command(now, ticket, command, effects),
            Event::Woke => {}
            Event::Drain => self.draining = true,
        }
        self.pump(now, roll, effects);
    }

    /// When to send [`Event::Woke`] if nothing happens before.
    pub fn wake_at(&self) -> Option<Timestamp> {
        // No timer for work that is not done during a shutdown, or while too many outcomes are
        // unwritten: the answer to a write wakes the loop.
        let queue = self.scheduler.wake_at().filter(|_| self.may_pick());
        let delayed = self.delayed.look_at().filter(|_| !self.draining);
        let sweeps = self.sweeper.wake_at().filter(|_| !self.draining);
        let soft = self.stored_breakers.look_at().filter(|_| !self.draining);
        let all = [queue, delayed, sweeps, soft, Some(self.call_again_at)];
        all.into_iter().flatten().filter(|at| *at < Timestamp::MAX).min()
    }

    /// Whether the shutdown is complete: nothing is in flight and everything is recorded.
    pub fn is_drained(&self) -> bool {
        let is_recorded = self.unsettled.is_empty() && self.settling.is_empty() && !self.stored_breakers.is_writing;
        self.draining && self.scheduler.in_flight() == 0 && is_recorded
    }

    /// The deliveries in memory, to look at.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    pub fn watched(&self, now: Timestamp) -> Watched {
        let mut counts = self.counts.clone();
        counts.refused_moves = self.scheduler.refused_moves();
        Watched {
            counts,
            queue: self.scheduler.figures(now),
            unsettled: (self.unsettled.len() + self.settling.len()) as u64,
        }
    }

    // --- events ---

    fn arrived(&mut self, now: Timestamp, arrival: ArrivedDelivery) {
        self.supersede(now, &arrival.superseded);
        let delivery = &arrival.new.delivery;
        let (id, lane, tier) = (delivery.id, delivery.lane, delivery.tier);
        self.scheduler.seen(now, id);
        // Settings that were changed after the accept read them are not taken: the store is read instead.
        self.scheduler.set_lane(now, &arrival.new.lane);
        match arrival.new.place {
            RowIndex::Ready => {
                if self.admit_or_spill(now, arrival.new.delivery, RowIndex::Ready) {
                    self.keep_payload(now, id, arrival.message);
                }
                self.ask_for(lane);
            }
            // A row that is in an index is only ever read from the store: a row that came in both
            // as an arrival and by a page could be sent twice.
            RowIndex::Delayed => {
                self.delayed.notice(delivery.state.due().unwrap_or(now), id);
                self.scheduler.forget_idle_lane(lane, now);
            }
            RowIndex::Spilled => {
                self.scheduler.spilled(lane, tier, id);
                self.ask_for(lane);
            }
        }
    }

    fn finished(&mut self, now: Timestamp, roll: Roll, finished: Finished, effects: &mut Vec<Effect>) {
        let id = finished.delivery;
        let verdict = &finished.verdict;
        self.stored_breakers.heard(verdict);
        self.counts.attempted(verdict.class, finished.took);
        let superseded = self.superseded.contains(&id);
        let Some(record) = self.scheduler.settle(now, roll.fork(id.raw()), id, verdict, superseded) else {
            return self.put_back(now, id);
        };
        match record.endpoint_change {
            // In force in memory before the settlement makes it durable.
            Some(EndpointChange::Disabled) => self.pauses.disable(&mut self.scheduler, record.delivery.lane),
            // The cut also covers arrivals under way and rows that were not read since the start.
            Some(change @ (EndpointChange::Gone | EndpointChange::Deleted)) => {
                let cut = Cut::new(CutScope::Lane(record.delivery.lane), Key::MAX, Cause::EndpointGone, now);
                let endpoint = Some((record.delivery.endpoint, change));
                self.cut(Cut { endpoint, ..cut }, None, None, effects);
            }
            None => {}
        }
        let attempt = AttemptRecord {
            number: record.attempts_before.saturating_add(1),
            at: now,
            took: finished.took,
            cause: verdict.cause,
            status: verdict.status,
        };
        // A delivery that was erased meanwhile was not sent: it has no attempt.
        let attempt = Some(attempt).filter(|_| record.delivery.attempts > record.attempts_before);
        self.record(record, attempt, finished.excerpt);
    }

    fn replied(&mut self, now: Timestamp, reply: StoreReply, effects: &mut Vec<Effect>) {
        match reply {
            StoreReply::Settled(results) => self.settled(now, &results, effects),
            StoreReply::Paged(query, as_of, page) => self.paged(now, query, as_of, page, effects),
            StoreReply::Spilled(sheds) => {
                for shed in sheds {
                    self.scheduler.spilled(shed.lane, shed.tier, shed.delivery);
                    self.ask_for(shed.lane);
                }
            }
            StoreReply::Lanes(wanted, found) => self.lanes_found(now, wanted, &found, effects),
            StoreReply::Cut { scope, ticket, ended, in_flight, .. } => {
                self.sweeper.durable(scope, now);
                self.scheduler.cut_recorded(scope);
                if let Some(ticket) = ticket {
                    effects.push(Effect::Answer(ticket, CommandReply::Ended { ended, in_flight }));
                }
            }
            StoreReply::Swept(sweep, swept) => {
                self.counts.swept += swept.ended.len() as u64;
                self.swept(now, sweep, &swept, effects);
            }
            StoreReply::Uncut => {}
            StoreReply::Remembered => self.stored_breakers.is_writing = false,
            StoreReply::Paused(ticket) | StoreReply::Reset(ticket) => {
                effects.push(Effect::Answer(ticket, CommandReply::Done));
            }
            StoreReply::Resumed(scope, pause, ticket) => {
                self.pauses.resume(&mut self.scheduler, now, scope, pause);
                effects.push(Effect::Answer(ticket, CommandReply::Done));
            }
            StoreReply::Failed(call) => {
                self.failed_calls.push(call);
                self.call_again_at = self.call_again_at.min(now + CALL_AGAIN);
            }
        }
    }

    fn settled(&mut self, now: Timestamp, results: &[Settled], effects: &mut Vec<Effect>) {
        let ids = std::mem::take(&mut self.settling);
        assert_eq!(ids.len(), results.len(), "the store answers for every settlement");
        for (id, result) in ids.into_iter().zip(results) {
            self.pauses.written(id, effects);
            let superseded = self.superseded.remove(&id);
            let recorded = match result {
                Settled::Done if !superseded => self.scheduler.recorded(now, id),
                Settled::Done | Settled::Stale => {
                    self.stale(now, id, effects);
                    continue;
                }
            };
            match recorded {
                AfterRecord::Waits => continue,
                AfterRecord::Again(record) => {
                    self.record(record, None, None);
                    continue;
                }
                AfterRecord::Left(due) => {
                    self.depart(id);
                    self.delayed.notice(due, id);
                    // A receipt that came before the delivery was in the window is still to be recorded.
                    self.receipts_again(now, id, effects);
                    continue;
                }
                AfterRecord::Ended => self.depart(id),
            }
            for ticket in self.receipts.remove(&id).unwrap_or_default() {
                effects.push(Effect::Answer(ticket, CommandReply::Done));
            }
        }
    }

    /// The store refused a change. The row is read again: it has ended, or belongs to another session,
    /// or the change was made before and only its answer was lost.
    fn stale(&mut self, now: Timestamp, id: DeliveryId, effects: &mut Vec<Effect>) {
        self.scheduler.refused(now, id);
        self.depart(id);
        self.read(now, posthaste_store::Query::One(id), 1, effects);
    }

    // --- what follows from every event ---

    fn pump(&mut self, now: Timestamp, roll: Roll, effects: &mut Vec<Effect>) {
        self.repeat_failed_calls(now, effects);
        while self.may_pick() {
            match self.scheduler.next(now, roll) {
                Some(Pick::Send(start)) => {
                    self.counts.latency.note(now.since(start.due));
                    let message = self.inline_payloads.get(&start.delivery).cloned();
                    effects.push(Effect::Send(SendAttempt { start, message }));
                }
                Some(Pick::Record(record)) => self.record(record, None, None),
                None => break,
            }
        }
        self.read_what_is_due(now, effects);
        self.flush_decisions(effects);
        self.remember(now, effects);
    }

    /// Whether an attempt may begin: not when its outcome could not be recorded soon.
    fn may_pick(&self) -> bool {
        !self.draining && self.unsettled.len() + self.settling.len() < UNSETTLED_MAX
    }

    fn flush_decisions(&mut self, effects: &mut Vec<Effect>) {
        if self.settling.is_empty() && !self.unsettled.is_empty() {
            let batch: Vec<Settlement> = self.unsettled.drain(..self.unsettled.len().min(SETTLE_BATCH_MAX)).collect();
            self.settling.extend(batch.iter().map(|settlement| settlement.record.delivery.id));
            effects.push(Effect::Store(StoreCall::Settle(batch)));
        }
        if !self.to_spill.is_empty() {
            let sheds = std::mem::take(&mut self.to_spill);
            effects.extend(sheds.chunks(SETTLE_BATCH_MAX).map(|batch| Effect::Store(StoreCall::Spill(batch.to_vec()))));
        }
        if !self.lanes_to_ask.is_empty() {
            effects.push(Effect::Store(StoreCall::Lanes(std::mem::take(&mut self.lanes_to_ask))));
        }
    }

    fn repeat_failed_calls(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        if now >= self.call_again_at {
            self.call_again_at = Timestamp::MAX;
            effects.extend(self.failed_calls.drain(..).map(Effect::Store));
        }
    }

    fn record(&mut self, record: DeliveryChange, attempt: Option<AttemptRecord>, excerpt: Option<Bytes>) {
        if record.pauses_lane {
            self.pause(Pause::new(PauseScope::Lane(record.delivery.lane), None));
        }
        if record.pauses_lane || record.endpoint_change == Some(EndpointChange::Disabled) {
            self.pauses.decided(record.delivery.id, record.delivery.lane);
        }
        self.counts.recorded(&record.delivery.state);
        self.unsettled.push_back(Settlement { record, epoch: self.session.epoch, attempt, excerpt });
    }

    fn keep_payload(&mut self, now: Timestamp, id: DeliveryId, message: Arc<Message>) {
        let bytes = message.body.len();
        if self.inline_bytes + bytes <= INLINE_BYTES_MAX && !self.erased.covers(now, &message) {
            self.inline_bytes += bytes;
            self.inline_payloads.insert(id, message);
        }
    }

    /// A delivery left the window.
    fn depart(&mut self, id: DeliveryId) {
        if let Some(message) = self.inline_payloads.remove(&id) {
            self.inline_bytes -= message.body.len();
        }
        if !self.pages.is_empty() {
            self.departures.0 += 1;
            self.departed.insert(id, self.departures);
        }
    }

    fn pause(&mut self, pause: Pause) {
        self.pauses.pause(&mut self.scheduler, pause);
    }
}

#[cfg(test)]
mod tests;
