//! Runs a scenario in virtual time: messages are created, the dispatch loop decides, the receiver answers, the store
//! replies after a millisecond. There are no other events, so the next moment is the earliest of a few times, and no
//! event heap is needed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::FutureExt;
use posthaste_core::flow::breaker::BreakerState;
use posthaste_core::scheduler::AttemptStart;
use posthaste_core::{
    Class, Delivery, DeliveryId, EndpointId, Key, LaneSettings, MessageId, Roll, RowIndex, State, Tier, Timestamp,
};
use posthaste_engine::dispatch::call::perform;
use posthaste_engine::dispatch::{Dispatch, Effect, Event, Finished, StoreCall};
use posthaste_store::{Accepted, MemoryStore, Message, NewDelivery, Session};

use super::receiver::ModelReceiver;
use super::tally::{MessageEnd, OutageOutcome, OutageTally};
use super::{OutageScenario, Sender};

/// The first moment on the loop's clock.
const BEGIN: Timestamp = Timestamp::from_millis(1_700_000_000_000);
/// How long the store takes for every call.
const STORE_MS: i64 = 1;
/// A message and its delivery each have a key.
const KEYS_A_MESSAGE: u64 = 2;
const TIER: Tier = Tier::Promotional;

/// Runs a scenario to its end.
pub(super) fn play(scenario: &OutageScenario, sender: &Sender) -> OutageOutcome {
    let mut world = World::new(scenario, sender);
    let ends = BEGIN + scenario.recovers() + scenario.horizon;
    while world.now < ends && !world.tally.is_complete(world.elapsed()) {
        world.now = world.next_moment().min(ends);
        world.happen();
    }
    let elapsed = world.elapsed();
    world.tally.outcome(elapsed)
}

struct World {
    now: Timestamp,
    lane: Arc<LaneSettings>,
    dispatch: Dispatch,
    session: Session,
    disk: MemoryStore,
    receiver: ModelReceiver,
    recovers: Duration,
    rng: Rng,
    load: f64,
    /// When the next message is created. Finer than the clock, so that rounding does not change the rate.
    next_message: Duration,
    messages: u64,
    /// Events from the store for the loop, in order.
    store_events: VecDeque<(Timestamp, Event)>,
    /// Requests that leave in this millisecond.
    leaving: Vec<AttemptStart>,
    /// Requests under way, by their end and then by the order in which they left.
    answers: BTreeMap<(Timestamp, u64), Finished>,
    requests: u64,
    effects: Vec<Effect>,
    tally: OutageTally,
}

impl World {
    fn new(scenario: &OutageScenario, sender: &Sender) -> Self {
        let disk = MemoryStore::default();
        disk.lock().put_lane(Arc::clone(&sender.lane));
        let start = disk.lock().open(BEGIN);
        let mut world = Self {
            now: BEGIN,
            lane: Arc::clone(&sender.lane),
            dispatch: Dispatch::new(sender.limits, start.session),
            session: start.session,
            disk,
            receiver: ModelReceiver::new(scenario),
            recovers: scenario.recovers(),
            rng: Rng::with_seed(scenario.seed),
            load: scenario.load,
            next_message: Duration::ZERO,
            messages: 0,
            store_events: VecDeque::new(),
            leaving: Vec::new(),
            answers: BTreeMap::new(),
            requests: 0,
            effects: Vec::new(),
            tally: OutageTally::new(scenario),
        };
        world.next_message = world.gap();
        world.step(Event::Started(Box::new(start)));
        world
    }

    fn elapsed(&self) -> Duration {
        self.now.since(BEGIN)
    }

    /// The time between two messages of a Poisson process.
    fn gap(&mut self) -> Duration {
        Duration::from_secs_f64(-(1.0 - self.rng.f64()).ln() / self.load)
    }

    /// The time of the next event. It may be now, because a `503` of a full queue takes no time. A wake-up of the loop
    /// is later than now: it was woken for this moment already.
    fn next_moment(&self) -> Timestamp {
        let message = BEGIN + self.next_message;
        let store = self.store_events.front().map(|(at, _)| *at);
        let answer = self.answers.first_key_value().map(|((at, _), _)| *at);
        let wake = self.dispatch.wake_at().map(|at| at.max(self.now + Duration::from_millis(1)));
        // `watch_breaker` must run at the recovery.
        let recovery = Some(BEGIN + self.recovers).filter(|at| *at > self.now);
        [store, answer, wake, recovery].into_iter().flatten().fold(message, Timestamp::min)
    }

    fn happen(&mut self) {
        while let Some((_, event)) = self.store_events.pop_front_if(|(at, _)| *at <= self.now) {
            self.step(event);
        }
        let mut finished = Vec::new();
        while let Some(entry) = self.answers.first_entry()
            && entry.key().0 <= self.now
        {
            finished.push(entry.remove());
        }
        if !finished.is_empty() {
            self.step(Event::Finished(finished));
        }
        if self.dispatch.wake_at().is_some_and(|at| at <= self.now) {
            self.step(Event::Woke);
        }
        let mut accepted = Vec::new();
        while BEGIN + self.next_message <= self.now {
            accepted.push(self.message());
            let gap = self.gap();
            self.next_message += gap;
        }
        if !accepted.is_empty() {
            let (_, arrivals) = self.disk.lock().accept(self.session, accepted).expect("there is one session");
            self.send_to_loop(Event::Arrived(arrivals));
        }
        self.reach_receiver();
        self.watch_breaker();
    }

    /// A new message with its one delivery.
    fn message(&mut self) -> Accepted {
        let id = MessageId(Key::new(self.session.writer, 1 + self.messages * KEYS_A_MESSAGE));
        self.messages += 1;
        self.tally.created(self.elapsed());
        let delivery = Delivery::queued(
            DeliveryId(id.0.plus(1)),
            id,
            EndpointId(self.lane.lane.0),
            self.lane.lane,
            TIER,
            self.now,
        );
        let spilling = self.dispatch.scheduler().is_spilling(self.lane.lane, TIER);
        let place = RowIndex::for_new(self.lane.order, spilling, self.now, self.now);
        let message = Message::new(id, self.lane.tenant, self.now, "{}");
        let new = NewDelivery::new(delivery, place, Arc::clone(&self.lane));
        Accepted::new(message, vec![new])
    }

    fn step(&mut self, event: Event) {
        let roll = Roll(self.rng.u64(..));
        let mut effects = std::mem::take(&mut self.effects);
        self.dispatch.step(self.now, roll, event, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Send(send) => self.leaving.push(send.start),
                Effect::Store(call) => self.call(call),
                Effect::Answer(..) => {}
            }
        }
        self.effects = effects;
    }

    /// Notes when the sender's breaker closes after the recovery.
    fn watch_breaker(&mut self) {
        let now = self.elapsed();
        if now >= self.recovers
            && !self.tally.has_seen_breaker_close()
            && self.dispatch.scheduler().standing(self.now, self.lane.lane) == BreakerState::Closed
        {
            self.tally.breaker_closed(now);
        }
    }

    /// Passes requests to the receiver. Those of the same millisecond arrive in random order, as on a network: the loop
    /// sends the oldest first, and the coarse clock must not favour that one.
    fn reach_receiver(&mut self) {
        let mut leaving = std::mem::take(&mut self.leaving);
        self.rng.shuffle(&mut leaving);
        let now = self.elapsed();
        for start in leaving.drain(..) {
            let delivery = start.delivery;
            let answer = self.receiver.answer(now, start.probe);
            self.tally.sent(number(delivery), now, answer.verdict.class == Class::Delivered);
            self.requests += 1;
            let finished = Finished { delivery, verdict: answer.verdict, took: answer.after, excerpt: None };
            self.answers.insert((self.now + answer.after, self.requests), finished);
        }
        self.leaving = leaving;
    }

    /// Performs a store call at once; the loop gets the reply after `STORE_MS`.
    fn call(&mut self, call: StoreCall) {
        if let StoreCall::Settle(batch) = &call {
            for settlement in batch {
                self.settled(&settlement.record.delivery);
            }
        }
        let reply = perform(&self.disk, self.session, call).now_or_never().expect("a store in memory answers at once");
        self.send_to_loop(Event::Replied(reply.expect("there is one session")));
    }

    fn settled(&mut self, delivery: &Delivery) {
        let end = match delivery.state {
            State::Delivered { at } => MessageEnd::Delivered(at.since(BEGIN)),
            state if state.is_terminal() => MessageEnd::Lost,
            _ => return,
        };
        self.tally.ended(number(delivery.id), end);
    }

    fn send_to_loop(&mut self, event: Event) {
        let at = Timestamp::from_millis(self.now.as_millis() + STORE_MS);
        self.store_events.push_back((at, event));
    }
}

/// The number of the message that a delivery belongs to, from 0.
fn number(delivery: DeliveryId) -> usize {
    usize::try_from(delivery.0.seq() / KEYS_A_MESSAGE - 1).expect("a run is shorter than memory is large")
}

#[cfg(test)]
mod tests {
    use posthaste_core::Policy;

    use super::super::{Down, naive};
    use super::*;

    /// An outage of two minutes, at a load that is small enough for a test.
    fn small(seed: u64) -> OutageScenario {
        OutageScenario { load: 3.0, capacity: 5.0, outage: Duration::from_secs(120), seed, ..OutageScenario::default() }
    }

    #[test]
    fn same_seed_gives_the_same_run() {
        let sender = Sender::posthaste(Policy::default());
        assert_eq!(play(&small(1), &sender), play(&small(1), &sender));
        assert_ne!(play(&small(1), &sender), play(&small(2), &sender));
    }

    #[test]
    fn bare_retries_follow_their_schedule_and_lose_nothing() {
        let outcome = play(&small(1), &Sender::bare(naive::FIXED.policy()));
        // Tried when it is created and every 60.02 s from then on: 1.5 times on average.
        let held = small(1).held();
        let tries = outcome.tries_into_outage as f64 / held;
        assert!((1.3..1.7).contains(&tries), "{tries} tries a held message");
        assert_eq!((outcome.lost, outcome.waiting), (0, 0));
        let by_second: u32 = outcome.seconds[120..240].iter().map(|second| second.tries).sum();
        assert_eq!(u64::from(by_second), outcome.tries_into_outage);
        assert!(outcome.seconds[120..240].iter().all(|second| second.tries == second.failed));
        assert_eq!(outcome.detection_lag, Some(Duration::ZERO), "there is no breaker to close");
    }

    #[test]
    fn posthaste_sends_little_to_a_receiver_that_is_down() {
        for down in [Down::Refuses, Down::Unavailable, Down::Silent] {
            let scenario = OutageScenario { down, ..small(1) };
            let outcome = play(&scenario, &Sender::posthaste(Policy::default()));
            let tries = outcome.tries_into_outage;
            assert!(tries > 0 && tries < 120, "{down:?}: {tries} tries into the outage");
            assert_eq!((outcome.lost, outcome.waiting), (0, 0), "{down:?}");
            assert!(outcome.peak_10s < 7.0, "{down:?}: {} a second", outcome.peak_10s);
        }
    }

    #[test]
    fn run_with_pending_messages_ends_at_its_horizon() {
        let scenario =
            OutageScenario { outage: Duration::from_secs(3_600), horizon: Duration::from_secs(1_800), ..small(1) };
        let outcome = play(&scenario, &Sender::bare(naive::SCHEDULE.policy()));
        assert_eq!(outcome.seconds.len(), 120 + 3_600 + 1_800);
        assert!(outcome.waiting > 0 && outcome.drained.is_none());
    }
}
