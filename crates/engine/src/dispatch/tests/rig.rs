//! A loop over a store in memory, a step at a time.

use bytes::Bytes;
use futures_util::FutureExt;
use posthaste_core::flow::breaker::{BreakerRule, BreakerState};
use posthaste_core::scheduler::{BreakerOf, SoftBreaker};
use posthaste_core::{Candidate, EndpointId, Fanout, LaneSettings, MessageId, State, Tier};
use posthaste_store::{Accepted, CollapseKey, MemoryStore, NewDelivery};

use super::super::call::perform;
use super::super::*;
use super::{at, finished, since_start};

/// A loop whose store calls wait until a test lets them happen.
pub(super) struct DispatchRig {
    pub(super) store: MemoryStore,
    pub(super) dispatch: Dispatch,
    pub(super) session: Session,
    pub(super) calls: VecDeque<StoreCall>,
    pub(super) sent: Vec<DeliveryId>,
    pub(super) answered: Vec<(Ticket, CommandReply)>,
    /// Every set of breakers that the loop stored.
    pub(super) remembered: Vec<Vec<SoftBreaker>>,
}

impl DispatchRig {
    pub(super) fn new() -> Self {
        Self::over(MemoryStore::default(), 0)
    }

    /// A session over the rows of earlier ones.
    pub(super) fn over(store: MemoryStore, ms: i64) -> Self {
        let mut rig = Self::unread(store, ms);
        rig.every_call(ms);
        rig
    }

    /// A session that has not yet read the rows of earlier ones.
    pub(super) fn unread(store: MemoryStore, ms: i64) -> Self {
        let start = store.lock().open(at(ms));
        let session = start.session;
        let dispatch = Dispatch::new(Limits::default(), session);
        let (calls, sent, answered, remembered) = (VecDeque::new(), Vec::new(), Vec::new(), Vec::new());
        let mut rig = Self { store, dispatch, session, calls, sent, answered, remembered };
        rig.step(ms, Event::Started(Box::new(start)));
        rig
    }

    /// The process dies and another begins.
    pub(super) fn restart(self, ms: i64) -> Self {
        Self::over(self.store, ms)
    }

    /// The same, with every read of the new session still under way.
    pub(super) fn restart_unread(self, ms: i64) -> Self {
        Self::unread(self.store, ms)
    }

    pub(super) fn step(&mut self, ms: i64, event: Event) {
        let mut effects = Vec::new();
        self.dispatch.step(at(ms), Roll(1), event, &mut effects);
        for effect in effects {
            match effect {
                Effect::Send(send) => self.sent.push(send.start.delivery),
                Effect::Store(call) => {
                    if let StoreCall::Remember(breakers) = &call {
                        self.remembered.push(breakers.clone());
                    }
                    self.calls.push_back(call);
                }
                Effect::Answer(ticket, answer) => self.answered.push((ticket, answer)),
            }
        }
    }

    /// Wakes the loop at each of its timers until this time; returns how often.
    pub(super) fn sleep_until(&mut self, ms: i64) -> usize {
        let mut wakes = 0;
        while let Some(wake) = self.dispatch.wake_at().map(since_start).filter(|wake| *wake <= ms) {
            wakes += 1;
            self.step(wake, Event::Woke);
            self.every_call(wake);
        }
        wakes
    }

    pub(super) fn ask(&mut self, ms: i64, ticket: u64, command: Command) {
        self.step(ms, Event::Command(Ticket(ticket), command));
    }

    /// Carries out the oldest call; its answer is still on the way to the loop.
    pub(super) fn perform_first(&mut self) -> StoreReply {
        let call = self.calls.pop_front().expect("a call is under way");
        let reply = perform(&self.store, self.session, call).now_or_never().expect("memory answers at once");
        reply.expect("this session owns the store")
    }

    /// Carries out the oldest call and returns its answer to the loop.
    pub(super) fn first_call(&mut self, ms: i64) {
        let reply = self.perform_first();
        self.step(ms, Event::Replied(reply));
    }

    /// Sends a command, and carries out every call that waits.
    pub(super) fn ask_and_wait(&mut self, ms: i64, ticket: u64, command: Command) {
        self.ask(ms, ticket, command);
        self.every_call(ms);
    }

    pub(super) fn every_call(&mut self, ms: i64) {
        while !self.calls.is_empty() {
            self.first_call(ms);
        }
    }

    pub(super) fn message(&self, seq: u64) -> MessageId {
        MessageId(Key::new(self.session.writer, seq))
    }

    /// The delivery of the message with this number.
    pub(super) fn delivery(&self, seq: u64) -> DeliveryId {
        DeliveryId(self.message(seq).0.plus(1))
    }

    /// Makes a message durable; its arrival is still on the way.
    pub(super) fn accept(&mut self, seq: u64, lane: &Arc<LaneSettings>) -> Event {
        self.accept_as(seq, lane, None, None)
    }

    /// The same for a delivery that waits this long for a receipt, if at all, and has this collapse key.
    pub(super) fn accept_as(
        &mut self,
        seq: u64,
        lane: &Arc<LaneSettings>,
        ack_within: Option<Duration>,
        collapse: Option<CollapseKey>,
    ) -> Event {
        self.store.lock().put_lane(Arc::clone(lane));
        let id = self.message(seq);
        let fanout = Fanout {
            message: id,
            tier: Tier::Promotional,
            accepted_at: at(0),
            deliver_at: None,
            ttl: None,
            ack_within,
            has_compact: false,
        };
        let endpoint = EndpointId(lane.lane.0.plus(70));
        let to = Candidate { endpoint, lane, event_types: &[], subject: None, tags: &[], ttl: None };
        let delivery = fanout.delivery(0, &to);
        let place = RowIndex::for_new(lane.order, false, at(0), at(0));
        let message = Message::new(id, lane.tenant, at(0), Bytes::new());
        let deliveries = vec![NewDelivery { delivery, place, lane: Arc::clone(lane), collapse }];
        let accepted = vec![Accepted::new(message, deliveries)];
        Event::Arrived(self.store.lock().accept(self.session, accepted).expect("this session owns the store").1)
    }

    pub(super) fn send(&mut self, seq: u64, lane: &Arc<LaneSettings>) {
        self.send_at(1, seq, lane);
    }

    pub(super) fn send_at(&mut self, ms: i64, seq: u64, lane: &Arc<LaneSettings>) {
        let arrived = self.accept(seq, lane);
        self.step(ms, arrived);
    }

    pub(super) fn send_under(&mut self, ms: i64, collapse: Option<CollapseKey>, seq: u64, lane: &Arc<LaneSettings>) {
        let arrived = self.accept_as(seq, lane, None, collapse);
        self.step(ms, arrived);
    }

    /// Messages from `seq` on fail one after the other until the lane's breaker opens.
    pub(super) fn break_lane(&mut self, ms: i64, seq: u64, lane: &Arc<LaneSettings>) {
        for n in 0..u64::from(BreakerRule::ENDPOINT.in_a_row) {
            assert_eq!(self.dispatch.scheduler.standing(at(ms), lane.lane), BreakerState::Closed);
            let before = self.sent.len();
            self.send_at(ms, seq + 10 * n, lane);
            assert_eq!(self.sent.len(), before + 1, "a closed breaker holds nothing");
            self.step(ms, finished(self.sent[before], Cause::InternalError));
        }
        assert!(matches!(self.dispatch.scheduler.standing(at(ms), lane.lane), BreakerState::Open { .. }));
    }

    /// The breakers that the next start would find not closed. Ends the session.
    pub(super) fn left_behind(self) -> Vec<BreakerOf> {
        self.store.lock().open(at(0)).breakers.iter().map(|breaker| breaker.of).collect()
    }

    pub(super) fn state(&self, id: DeliveryId, ms: i64) -> State {
        self.store.lock().delivery(id, at(ms)).expect("it was accepted").delivery.state
    }
}
