//! Runs a plan on an event heap: the dispatch loop's `step`, a store in memory whose calls take
//! effect and answer when the plan says, receivers, clients, and a node that can die anywhere.
//!
//! Order is by (virtual time, place in line), so a seed always gives the same run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::FutureExt;
use posthaste_core::cause::Cause;
use posthaste_core::dice::Roll;
use posthaste_core::id::{DeliveryId, Key, LaneId, MessageId, TenantId};
use posthaste_core::queue::Explained;
use posthaste_core::state::State;
use posthaste_core::time::Timestamp;
use posthaste_engine::clock::Anchor;
use posthaste_engine::dispatch::call::perform;
use posthaste_engine::dispatch::{Answer, Call, Command, Dispatch, Effect, Event, Finished, Reply, Ticket};
use posthaste_store::{Accepted, Arrival, Memory, MemoryStore, Pause, PauseScope, Session};

use super::Outcome;
use super::history::{Asked, Crash, Ending, History, Look, Ms, Sent, What};
use super::plan::{BEGIN, Happening, MessagePlan, Plan, Sabotage};
use super::wire::Wire;
use super::{oracle, producer};

/// A run that has not come to rest after this much virtual time never will.
const GIVE_UP: Ms = 20 * 86_400_000;
/// How often the node follows the wall clock.
const FOLLOW_EVERY: Ms = 60_000;
/// How often somebody looks at what waits, and at how many.
const LOOK_EVERY: Ms = 3_000;
const LOOKS: usize = 100;

/// Runs a plan to its end and judges it.
pub fn run(plan: &Plan) -> Outcome {
    let mut world = World::new(plan);
    world.run();
    world.finish()
}

/// Something that will happen.
enum Ahead {
    Outside(Happening),
    ResumeAt(u8, u64),
    /// A store call takes effect, then answers.
    Commit(u32, Call),
    Reply(u32, Reply),
    /// An accept takes effect, then its rows are there for the loop, which comes for them sooner or
    /// later; its caller hears of it once they are there.
    Accept(u32, usize, Vec<Accepted>),
    Publish(u32, Vec<Arrival>),
    Arrive(u32),
    Ack(u32, usize),
    /// An attempt ended; its place in the log if a request left.
    Finished(u32, Option<usize>, Finished),
    Receipt(u64),
    Wake(u32, Ms),
    Restart,
    Follow(u32),
    Look,
    StallEnds,
    FailEnds,
    Healed,
}

struct Node {
    dispatch: Dispatch,
    session: Session,
    anchor: Anchor,
    next_seq: u64,
    wake_at: Option<Ms>,
}

struct World<'a> {
    plan: &'a Plan,
    now: Ms,
    line: u64,
    heap: BinaryHeap<Reverse<(Ms, u64)>>,
    ahead: BTreeMap<u64, Ahead>,
    disk: MemoryStore,
    node: Option<Node>,
    life: u32,
    wire: Wire,
    rng: Rng,
    history: History,
    tickets: BTreeMap<Ticket, usize>,
    next_ticket: u64,
    wall_offset: Ms,
    store_ms: Ms,
    failing: bool,
    /// What the loop has not come for, in the order of its commits; and when the last of it was there.
    published: Vec<Arrival>,
    published_until: Ms,
    /// When the last call that keeps its order takes effect.
    ordered_until: Ms,
    points: u64,
    trace: u64,
    healed: bool,
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan) -> Self {
        let mut world = Self {
            plan,
            now: BEGIN,
            line: 0,
            heap: BinaryHeap::new(),
            ahead: BTreeMap::new(),
            disk: MemoryStore::default(),
            node: None,
            life: 0,
            wire: Wire::new(plan),
            rng: Rng::with_seed(plan.seed ^ 0x57_4F_52_4C),
            history: History::default(),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            wall_offset: 0,
            store_ms: 3,
            failing: false,
            published: Vec::new(),
            published_until: BEGIN,
            ordered_until: BEGIN,
            points: 0,
            trace: 0xCBF2_9CE4_8422_2325,
            healed: false,
        };
        for lane in &plan.lanes {
            world.disk.lock().put_lane(Arc::clone(&lane.settings));
        }
        for (at, happening) in &plan.happenings {
            world.at(*at, Ahead::Outside(happening.clone()));
        }
        world.at(plan.healed_at, Ahead::Healed);
        world.at(BEGIN + LOOK_EVERY, Ahead::Look);
        world.restart();
        world
    }

    fn at(&mut self, at: Ms, what: Ahead) {
        self.line += 1;
        self.heap.push(Reverse((at.max(self.now), self.line)));
        self.ahead.insert(self.line, what);
    }

    fn after(&mut self, ms: Ms, what: Ahead) {
        self.at(self.now + ms, what);
    }

    fn note(&mut self, tag: u64, a: u64) {
        for value in [tag, a, self.now.cast_unsigned()] {
            self.trace = (self.trace ^ value).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }

    fn run(&mut self) {
        while let Some(Reverse((at, line))) = self.heap.pop() {
            self.now = at;
            if at > self.plan.healed_at + GIVE_UP {
                self.history.gave_up_at = Some(at);
                return;
            }
            let what = self.ahead.remove(&line).expect("what is on the heap is in the map");
            self.happen(what);
            if self.healed && self.disk.lock().pending() == 0 && self.node.is_some() && self.is_idle() {
                return;
            }
        }
    }

    fn is_idle(&self) -> bool {
        let busy = |what: &Ahead| {
            matches!(
                what,
                Ahead::Outside(_)
                    | Ahead::Accept(..)
                    | Ahead::Publish(..)
                    | Ahead::Arrive(_)
                    | Ahead::Ack(..)
                    | Ahead::Commit(..)
            )
        };
        !self.ahead.values().any(busy)
    }

    fn happen(&mut self, what: Ahead) {
        match what {
            Ahead::Outside(happening) => self.outside(happening),
            Ahead::ResumeAt(kind, id) => self.ask(What::Resume(kind, id)),
            Ahead::Commit(life, call) => self.commit(life, call),
            Ahead::Reply(life, reply) if life == self.life => self.replied(reply),
            Ahead::Accept(life, sent, accepted) if life == self.life => self.commit_accept(sent, accepted),
            Ahead::Publish(life, arrivals) if life == self.life => self.published.extend(arrivals),
            Ahead::Arrive(life) if life == self.life => _ = self.take_arrivals(),
            Ahead::Ack(life, sent) if life == self.life => self.history.sent[sent].acked_at = Some(self.now),
            Ahead::Finished(life, request, finished) if life == self.life => {
                if let Some(request) = request {
                    self.wire.log[request].answered_at = Some(self.now);
                }
                if !self.crashes_here() {
                    self.step(Event::Finished(vec![finished]));
                }
            }
            Ahead::Receipt(delivery) => self.ask(What::Receipt(delivery)),
            Ahead::Wake(life, at) if life == self.life => {
                if let Some(node) = &mut self.node
                    && node.wake_at == Some(at)
                {
                    node.wake_at = None;
                    self.step(Event::Woke);
                }
            }
            Ahead::Restart => self.restart(),
            Ahead::Follow(life) if life == self.life => self.follow(),
            Ahead::Look => self.look(),
            Ahead::StallEnds => self.store_ms = 3,
            Ahead::FailEnds => self.failing = false,
            Ahead::Healed => self.heal(),
            // Meant for an earlier life of the node.
            _ => {}
        }
    }

    // --- what comes from outside ---

    fn outside(&mut self, happening: Happening) {
        match happening {
            Happening::Send(message) => self.send(&message),
            Happening::Cancel(ago) => {
                let sent = self.history.sent.iter().rev().filter(|sent| sent.acked_at.is_some()).nth(ago);
                if let Some(message) = sent.map(|sent| sent.message) {
                    self.ask(What::Cancel(message));
                }
            }
            Happening::EndLane(lane) => {
                let upto = self.history.sent.iter().flat_map(|sent| &sent.deliveries).map(|new| new.id).max();
                let lane = self.plan.lanes[lane].settings.lane.raw();
                self.ask(What::EndLane(lane, upto.unwrap_or(0)));
            }
            Happening::Pause(kind, lane, wait) => {
                let settings = &self.plan.lanes[lane].settings;
                let id = [0, settings.tenant.raw(), settings.lane.raw()][usize::from(kind)];
                self.ask(What::Pause(kind, id));
                let wait = i64::try_from(wait.as_millis()).unwrap_or(0);
                self.after(wait, Ahead::ResumeAt(kind, id));
            }
            Happening::Crash(down) => self.crash(down),
            Happening::Stall(each, length) => {
                self.store_ms = i64::try_from(each.as_millis()).unwrap_or(0);
                self.after(i64::try_from(length.as_millis()).unwrap_or(0), Ahead::StallEnds);
            }
            Happening::Fail(length) => {
                self.failing = true;
                self.after(i64::try_from(length.as_millis()).unwrap_or(0), Ahead::FailEnds);
            }
            Happening::Jump(ms) => self.wall_offset += ms,
        }
    }

    fn send(&mut self, message: &MessagePlan) {
        let stamped = self.stamped();
        let Some(node) = &mut self.node else { return };
        let id = MessageId(Key::new(node.session.writer, node.next_seq));
        node.next_seq += 1 + message.lanes.len() as u64;
        let dispatch = &node.dispatch;
        let now = Timestamp::from_millis(stamped);
        let (accepted, sent) =
            producer::compose(self.plan, message, id, now, |lane, tier| dispatch.is_spilling(lane, tier));
        self.history.sent.push(Sent { called_at: self.now, ..sent });
        let index = self.history.sent.len() - 1;
        let (life, wait) = (self.life, self.store_wait());
        if self.plan.sabotage == Some(Sabotage::AckBeforeDurable) {
            self.history.sent[index].acked_at = Some(self.now);
        }
        if !self.crashes_here() {
            self.after(wait, Ahead::Accept(life, index, vec![accepted]));
        }
    }

    fn commit_accept(&mut self, sent: usize, accepted: Vec<Accepted>) {
        let Some(node) = &self.node else { return };
        if self.failing && self.rng.bool() {
            return; // refused: never acknowledged
        }
        let (_, arrivals) = self.disk.lock().accept(node.session, accepted).expect("this node has the session");
        self.note(1, sent as u64);
        if self.crashes_here() {
            return;
        }
        let (arrive, ack) = (self.rng.i64(0..5), self.rng.i64(0..5));
        let life = self.life;
        self.published_until = self.published_until.max(self.now + arrive / 2);
        let there = self.published_until;
        self.at(there, Ahead::Publish(life, arrivals));
        self.at(there.max(self.now + arrive), Ahead::Arrive(life));
        self.at(there.max(self.now + ack), Ahead::Ack(life, sent));
    }

    /// Somebody calls the API.
    fn ask(&mut self, what: What) {
        if self.node.is_none() {
            // The caller tries again when the node is back; a pause that was never made needs no end.
            if matches!(what, What::Resume(..) | What::Receipt(_)) {
                let again = match what {
                    What::Resume(kind, id) => Ahead::ResumeAt(kind, id),
                    What::Receipt(id) => Ahead::Receipt(id),
                    _ => return,
                };
                self.after(5_000, again);
            }
            return;
        }
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        self.tickets.insert(ticket, self.history.asked.len());
        self.history.asked.push(Asked { what, called_at: self.now, answered_at: None, done: false });
        let command = match what {
            What::Cancel(message) => Command::Cancel(MessageId::from_raw(message)),
            What::EndLane(lane, upto) => {
                Command::EndLane(LaneId::from_raw(lane), Key::from_raw(upto), Cause::Unsubscribed)
            }
            What::Pause(kind, id) => Command::Pause(Pause { scope: scope(kind, id), until: None }),
            What::Resume(kind, id) => Command::Resume(scope(kind, id)),
            What::Receipt(id) => Command::Receipt(DeliveryId::from_raw(id)),
        };
        self.step(Event::Asked(ticket, command));
    }

    // --- the node ---

    fn stamped(&self) -> Ms {
        self.node.as_ref().map_or(self.now, |node| node.anchor.at(elapsed(self.now)).as_millis())
    }

    /// As the driver does: what an accept was answered for is known before anything is picked.
    fn step(&mut self, event: Event) {
        if matches!(event, Event::Started(_)) || self.take_arrivals() {
            self.step_alone(event);
        }
    }

    /// `false` when the node died of it.
    fn take_arrivals(&mut self) -> bool {
        let life = self.life;
        let arrivals = std::mem::take(&mut self.published);
        if !arrivals.is_empty() {
            self.step_alone(Event::Arrived(arrivals));
        }
        life == self.life
    }

    fn step_alone(&mut self, event: Event) {
        let stamped = self.stamped();
        let Some(node) = &mut self.node else { return };
        let mut effects = Vec::new();
        let roll = Roll(self.rng.u64(..));
        node.dispatch.step(Timestamp::from_millis(stamped), roll, event, &mut effects);
        for effect in effects {
            if !self.carry_out(effect) {
                return;
            }
        }
        self.set_wake();
    }

    /// `false` when the node died doing it.
    fn carry_out(&mut self, effect: Effect) -> bool {
        let life = self.life;
        match effect {
            Effect::Answer(ticket, answer) => {
                if let Some(asked) = self.tickets.remove(&ticket) {
                    let asked = &mut self.history.asked[asked];
                    (asked.answered_at, asked.done) = (Some(self.now), answer != Answer::Nothing);
                }
            }
            Effect::Store(call) => {
                let mut at = self.now + self.store_wait();
                if is_ordered(&call) {
                    at = at.max(self.ordered_until);
                    self.ordered_until = at;
                }
                self.at(at, Ahead::Commit(life, call));
                return !self.crashes_here();
            }
            Effect::Send(send) => {
                let delivery = send.start.delivery;
                let (now, stamped) = (self.now, self.stamped());
                let recorded = recorded(&self.disk.lock(), delivery, stamped);
                let fate = self.wire.send(now, stamped, &send.start, recorded);
                self.note(2, delivery.raw() ^ u64::from(send.start.attempt) << 56);
                let finished = Finished { delivery, verdict: fate.verdict, took: fate.after };
                self.after(ms(fate.after), Ahead::Finished(life, fate.request, finished));
                if let Some(after) = fate.receipt_after
                    && self.wants_receipt(delivery.raw())
                {
                    self.after(ms(after), Ahead::Receipt(delivery.raw()));
                }
                return !self.crashes_here();
            }
        }
        true
    }

    fn wants_receipt(&self, delivery: u64) -> bool {
        let mine = |sent: &&Sent| sent.deliveries.iter().any(|new| new.id == delivery);
        self.history.sent.iter().find(mine).is_some_and(|sent| sent.wants_receipt)
    }

    fn commit(&mut self, life: u32, call: Call) {
        if life != self.life {
            return;
        }
        let Some(node) = &self.node else { return };
        let session = node.session;
        let reply = if self.failing && !is_ordered(&call) && self.rng.u32(..3) == 0 {
            // Half of the failures are only failures of the answer.
            if self.rng.bool() {
                self.perform(session, call.clone());
            }
            Reply::Failed(call)
        } else {
            self.perform(session, call)
        };
        let pending = self.disk.lock().pending() as u64;
        self.note(3, pending);
        if !self.crashes_here() {
            let wait = self.rng.i64(0..4);
            self.after(wait, Ahead::Reply(life, reply));
        }
    }

    /// A store in memory answers at once, so the world decides when it is asked.
    fn perform(&self, session: Session, call: Call) -> Reply {
        let answered = perform(&self.disk, session, call).now_or_never().expect("a store in memory answers at once");
        answered.expect("this node has the session")
    }

    fn store_wait(&mut self) -> Ms {
        self.rng.i64(1..=self.store_ms.max(1))
    }

    fn set_wake(&mut self) {
        let stamped = self.stamped();
        let Some(node) = &mut self.node else { return };
        let Some(wake) = node.dispatch.wake_at() else { return };
        let at = self.now + (wake.as_millis() - stamped).max(0);
        if node.wake_at.is_none_or(|set| at < set) {
            node.wake_at = Some(at);
            let life = self.life;
            self.at(at, Ahead::Wake(life, at));
        }
    }

    fn follow(&mut self) {
        let wall = Timestamp::from_millis(self.now + self.wall_offset);
        if let Some(node) = &mut self.node {
            node.anchor.follow(elapsed(self.now), wall);
            node.wake_at = None;
        }
        self.set_wake();
        if self.plan.clock_jumps && !self.healed {
            let life = self.life;
            self.after(FOLLOW_EVERY, Ahead::Follow(life));
        }
    }

    // --- death and what comes after ---

    fn replied(&mut self, reply: Reply) {
        if !self.crashes_here() {
            self.step(Event::Replied(reply));
        }
    }

    fn crashes_here(&mut self) -> bool {
        self.points += 1;
        if self.plan.crash_at_point == Some(self.points) {
            self.crash(Duration::from_secs(1));
            return true;
        }
        false
    }

    fn crash(&mut self, down: Duration) {
        let Some(node) = self.node.take() else { return };
        self.history.refused_moves += node.dispatch.refused_moves();
        let mut last: BTreeMap<u64, u16> = BTreeMap::new();
        for request in &self.wire.log {
            last.insert(request.delivery, request.attempt);
        }
        let now = Timestamp::from_millis(self.now);
        let on_disk =
            |id: u64| self.disk.lock().delivery(DeliveryId::from_raw(id), now).map_or(0, |shown| shown.attempts.len());
        let unsettled = last.iter().filter(|(id, attempt)| on_disk(**id) < usize::from(**attempt)).map(|(id, _)| *id);
        let unsettled = unsettled.collect();
        self.history.crashes.push(Crash { at: self.now, unsettled });
        self.note(4, u64::from(self.life));
        self.life += 1;
        self.published.clear();
        self.after(ms(down), Ahead::Restart);
    }

    fn restart(&mut self) {
        let start = self.disk.lock().open();
        let session = start.session;
        let anchor = Anchor::new(Timestamp::from_millis(self.now + self.wall_offset), elapsed(self.now));
        let dispatch = Dispatch::new(self.plan.limits, session);
        self.node = Some(Node { dispatch, session, anchor, next_seq: 1, wake_at: None });
        self.note(5, session.id);
        let life = self.life;
        if self.plan.clock_jumps {
            self.after(FOLLOW_EVERY, Ahead::Follow(life));
        }
        self.step(Event::Started(Box::new(start)));
    }

    /// From here on nothing breaks: receivers are well, and somebody lifts what holds on.
    fn heal(&mut self) {
        self.healed = true;
        self.wall_offset = 0;
        self.failing = false;
        self.store_ms = 3;
        if self.node.is_some() {
            self.follow();
        }
        let mut scopes = vec![(0, 0)];
        scopes.extend(self.plan.lanes.iter().map(|lane| (1, lane.settings.tenant.raw())));
        scopes.extend(self.plan.lanes.iter().map(|lane| (2, lane.settings.lane.raw())));
        scopes.sort_unstable();
        scopes.dedup();
        for (kind, id) in scopes {
            self.ask(What::Resume(kind, id));
        }
        // A strict lane that stops at its dead head is resumed by its owner, again and again.
        if self.disk.lock().pending() > 0 {
            let patient = self.now > self.plan.healed_at + 2 * 86_400_000;
            self.after(if patient { 6 * 3_600_000 } else { 600_000 }, Ahead::Healed);
        }
    }

    // --- looking ---

    fn look(&mut self) {
        let stamped = self.stamped();
        if let Some(node) = &self.node {
            let mine = self.history.sent.iter().filter(|sent| sent.acked_at.is_some());
            let ids: Vec<(u64, u64)> = mine.flat_map(|sent| &sent.deliveries).map(|new| (new.id, new.lane)).collect();
            let skip = if ids.is_empty() { 0 } else { self.rng.usize(..ids.len()) };
            let now = Timestamp::from_millis(stamped);
            for (id, lane) in ids.iter().cycle().skip(skip).take(ids.len().min(LOOKS)) {
                let Some(shown) = self.disk.lock().delivery(DeliveryId::from_raw(*id), now) else { continue };
                if shown.delivery.state.is_terminal() {
                    continue;
                }
                let explained = node.dispatch.explain(
                    now,
                    DeliveryId::from_raw(*id),
                    LaneId::from_raw(*lane),
                    shown.delivery.state,
                );
                let Explained::Waits(hold) = explained else { continue };
                self.history.looks.push(Look {
                    at: self.now,
                    stamped,
                    life: self.life,
                    delivery: *id,
                    state: shown.delivery.state.phase().name(),
                    attempts: shown.delivery.attempts,
                    why: hold.why.name(),
                    until: hold.until.map(Timestamp::as_millis),
                });
            }
        }
        if !self.healed {
            self.after(LOOK_EVERY, Ahead::Look);
        }
    }

    fn finish(mut self) -> Outcome {
        if let Some(node) = &self.node {
            self.history.refused_moves += node.dispatch.refused_moves();
        }
        let now = Timestamp::from_millis(self.stamped());
        for sent in &self.history.sent {
            for new in &sent.deliveries {
                self.history.endings.push(ending(&self.disk.lock(), new.id, now));
            }
        }
        self.history.requests = std::mem::take(&mut self.wire.log);
        let points = self.points;
        outcome(self.plan, &self.history, self.trace, points)
    }
}

/// Pauses and resumes of one scope must not overtake each other: a store with one writer, which ends
/// with a write that fails, sees to that. Everything else may.
fn is_ordered(call: &Call) -> bool {
    matches!(call, Call::Pause(..) | Call::Resume(..))
}

/// The highest attempt of a delivery's history, as the API shows it.
pub(super) fn recorded(disk: &Memory, id: DeliveryId, stamped: Ms) -> u16 {
    let shown = disk.delivery(id, Timestamp::from_millis(stamped));
    shown.and_then(|shown| shown.attempts.iter().map(|attempt| attempt.number).max()).unwrap_or(0)
}

/// How the API shows a delivery at the end of a run.
pub(super) fn ending(disk: &Memory, id: u64, now: Timestamp) -> Ending {
    let Some(shown) = disk.delivery(DeliveryId::from_raw(id), now) else {
        return Ending { delivery: id, state: "missing", cause: "", attempts: 0, numbers: Vec::new() };
    };
    let cause = match shown.delivery.state {
        State::Dead { cause, .. } | State::Cancelled { cause, .. } => cause.code(),
        _ => "",
    };
    Ending {
        delivery: id,
        state: shown.delivery.state.phase().name(),
        cause,
        attempts: shown.delivery.attempts,
        numbers: shown.attempts.iter().map(|attempt| attempt.number).collect(),
    }
}

/// Judges a history.
pub(super) fn outcome(plan: &Plan, history: &History, trace: u64, points: u64) -> Outcome {
    let acked = history.sent.iter().filter(|sent| sent.acked_at.is_some());
    Outcome {
        seed: plan.seed,
        violations: oracle::judge(plan, history),
        trace,
        deliveries: acked.map(|sent| sent.deliveries.len()).sum(),
        requests: history.requests.len(),
        duplicates: oracle::duplicates(history),
        crashes: history.crashes.len(),
        exercised: oracle::exercised(plan, history),
        points,
    }
}

pub(super) fn scope(kind: u8, id: u64) -> PauseScope {
    match kind {
        0 => PauseScope::All,
        1 => PauseScope::Tenant(TenantId::from_raw(id)),
        _ => PauseScope::Lane(LaneId::from_raw(id)),
    }
}

fn elapsed(now: Ms) -> Duration {
    Duration::from_millis(u64::try_from(now - BEGIN).unwrap_or(0))
}

fn ms(duration: Duration) -> Ms {
    i64::try_from(duration.as_millis()).unwrap_or(Ms::MAX)
}
