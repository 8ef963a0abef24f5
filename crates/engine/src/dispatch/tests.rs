//! Interleavings that once went wrong, step by step over a store in memory.

use bytes::Bytes;
use futures_util::FutureExt;
use posthaste_core::cause::Class;
use posthaste_core::fanout::{Candidate, Fanout};
use posthaste_core::id::{MessageId, TenantId};
use posthaste_core::policy::Policy;
use posthaste_core::queue::{LaneSettings, OnDead, Order};
use posthaste_store::{Accepted, MemoryStore, NewDelivery};

use super::call::perform;
use super::*;

/// A loop whose store calls wait until a test lets them happen.
struct Rig {
    store: MemoryStore,
    dispatch: Dispatch,
    session: Session,
    calls: VecDeque<Call>,
    sent: Vec<DeliveryId>,
    answered: Vec<Ticket>,
}

impl Rig {
    fn new() -> Self {
        let store = MemoryStore::default();
        let start = store.lock().open();
        let session = start.session;
        let dispatch = Dispatch::new(Limits::default(), session);
        let (calls, sent, answered) = (VecDeque::new(), Vec::new(), Vec::new());
        let mut rig = Self { store, dispatch, session, calls, sent, answered };
        rig.step(0, Event::Started(Box::new(start)));
        rig.every_call(0);
        rig
    }

    fn step(&mut self, ms: i64, event: Event) {
        let mut effects = Vec::new();
        self.dispatch.step(at(ms), Roll(1), event, &mut effects);
        for effect in effects {
            match effect {
                Effect::Send(send) => self.sent.push(send.start.delivery),
                Effect::Store(call) => self.calls.push_back(call),
                Effect::Answer(ticket, _) => self.answered.push(ticket),
            }
        }
    }

    fn ask(&mut self, ms: i64, ticket: u64, command: Command) {
        self.step(ms, Event::Asked(Ticket(ticket), command));
    }

    /// Lets the call that was made first happen and answer.
    fn first_call(&mut self, ms: i64) {
        let call = self.calls.pop_front().expect("a call is under way");
        let reply = perform(&self.store, self.session, call).now_or_never().expect("memory answers at once");
        let reply = reply.expect("this session owns the store");
        self.step(ms, Event::Replied(reply));
    }

    fn every_call(&mut self, ms: i64) {
        while !self.calls.is_empty() {
            self.first_call(ms);
        }
    }

    fn message(&self, seq: u64) -> MessageId {
        MessageId(Key::new(self.session.writer, seq))
    }

    /// Makes a message durable; its arrival is still on the way.
    fn accept(&mut self, seq: u64, lane: &Arc<LaneSettings>) -> Event {
        self.store.lock().put_lane(Arc::clone(lane));
        let id = self.message(seq);
        let fanout = Fanout {
            message: id,
            tier: Tier::Promotional,
            accepted_at: at(0),
            deliver_at: None,
            ttl: None,
            ack_within: None,
            has_compact: false,
        };
        let delivery = fanout.delivery(0, &Candidate { lane, event_types: &[], ttl: None });
        let place = Place::for_new(lane.order, false, at(0), at(0));
        let message = Message {
            id,
            tenant: lane.tenant,
            at: at(0),
            event_type: None,
            correlation_id: String::new(),
            body: Bytes::new(),
            compact: None,
        };
        let deliveries = vec![NewDelivery { delivery, place, lane: Arc::clone(lane) }];
        let accepted = vec![Accepted { message: Arc::new(message), deliveries }];
        Event::Arrived(self.store.lock().accept(self.session, accepted).expect("this session owns the store"))
    }

    fn send(&mut self, seq: u64, lane: &Arc<LaneSettings>) {
        let arrived = self.accept(seq, lane);
        self.step(1, arrived);
    }

    fn state(&self, id: DeliveryId, ms: i64) -> State {
        self.store.lock().delivery(id, at(ms)).expect("it was accepted").delivery.state
    }
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(1_000_000 + ms)
}

fn lane(order: Order, on_dead: OnDead) -> Arc<LaneSettings> {
    let (lane, tenant) = (LaneId::from_raw(7), TenantId::from_raw(1));
    Arc::new(LaneSettings {
        order,
        on_dead,
        max_in_flight: 10,
        ..LaneSettings::new(lane, tenant, Arc::new(Policy::default()))
    })
}

fn finished(delivery: DeliveryId, cause: Cause) -> Event {
    let verdict = Verdict { class: cause.class(), cause, status: None, retry_after: None };
    Event::Finished(vec![Finished { delivery, verdict, took: Duration::ZERO }])
}

const EVERYTHING: Pause = Pause { scope: PauseScope::All, until: None };

#[test]
fn a_resume_under_way_does_not_undo_a_later_pause() {
    let mut rig = Rig::new();
    rig.ask(1, 1, Command::Pause(EVERYTHING));
    rig.every_call(1);
    rig.ask(2, 2, Command::Resume(PauseScope::All));
    rig.ask(3, 3, Command::Pause(EVERYTHING));
    rig.every_call(4);
    assert_eq!(rig.answered.last(), Some(&Ticket(3)), "the pause is in force");
    rig.send(1, &lane(Order::Fifo, OnDead::Skip));
    assert_eq!(rig.sent, [], "nothing is sent while paused");
}

#[test]
fn a_resume_under_way_does_not_undo_a_strict_lane_s_hold() {
    let mut rig = Rig::new();
    let lane = lane(Order::Strict, OnDead::Hold);
    rig.send(1, &lane);
    rig.send(10, &lane);
    rig.every_call(1);
    let scope = PauseScope::Lane(lane.lane);
    rig.ask(2, 1, Command::Pause(Pause { scope, until: None }));
    rig.every_call(2);
    rig.ask(3, 2, Command::Resume(scope));
    let head = rig.sent[0];
    rig.step(4, finished(head, Cause::NotFound));
    rig.every_call(5);
    assert_eq!(rig.sent, [head], "the lane stops behind its dead head");
}

#[test]
fn a_cancel_spares_what_has_its_outcome_already() {
    let mut rig = Rig::new();
    let lane = lane(Order::Fifo, OnDead::Skip);
    rig.send(1, &lane);
    rig.send(10, &lane);
    let (first, second) = (rig.sent[0], rig.sent[1]);
    rig.step(2, finished(first, Cause::Ok)); // its settle is under way
    rig.step(3, finished(second, Cause::Ok)); // waits behind it
    rig.ask(4, 1, Command::Cancel(rig.message(10)));
    rig.first_call(5); // the first one's settle
    rig.first_call(6); // the cut
    assert!(!rig.state(second, 6).is_terminal(), "nobody reads an end that will change");
    rig.every_call(7);
    assert!(matches!(rig.state(second, 7), State::Delivered { .. }));
}

#[test]
fn an_arrival_that_comes_after_its_cancel_was_swept_is_not_sent() {
    let mut rig = Rig::new();
    let late = rig.accept(1, &lane(Order::Fifo, OnDead::Skip));
    rig.ask(1, 1, Command::Cancel(rig.message(1)));
    rig.every_call(2);
    for ms in [1_100, 2_200, 3_300] {
        rig.step(ms, Event::Woke);
        rig.every_call(ms);
    }
    rig.step(3_400, late);
    rig.every_call(3_401);
    assert_eq!(rig.sent, [], "its cancel was answered");
}

#[test]
fn a_drain_does_not_ask_to_be_woken_for_what_it_will_not_do() {
    let mut rig = Rig::new();
    let lane = lane(Order::Fifo, OnDead::Skip);
    rig.send(1, &lane);
    rig.send(10, &lane);
    rig.step(2, finished(rig.sent[0], Cause::Unavailable));
    rig.every_call(2);
    rig.step(3, Event::Drain);
    rig.step(60_000, Event::Woke);
    rig.every_call(60_000);
    assert_eq!(rig.dispatch.wake_at(), None, "only the attempt under way is waited for");
    rig.step(60_001, finished(rig.sent[1], Cause::Ok));
    rig.every_call(60_002);
    assert!(rig.dispatch.is_drained());
}

#[test]
fn a_fault_of_our_own_spends_no_attempt_and_writes_nothing() {
    let mut rig = Rig::new();
    rig.send(1, &lane(Order::Fifo, OnDead::Skip));
    let id = rig.sent[0];
    assert_eq!(Cause::StoreUnavailable.class(), Class::Ours);
    rig.step(2, finished(id, Cause::StoreUnavailable));
    assert!(rig.calls.is_empty(), "nothing is recorded");
    let wake = rig.dispatch.wake_at().expect("it is taken up again");
    rig.step(wake.as_millis() - 1_000_000, Event::Woke);
    assert_eq!(rig.sent, [id, id]);
    assert_eq!(rig.store.lock().delivery(id, wake).expect("it is pending").delivery.attempts, 0);
}
