//! Runs a plan on an event heap: the dispatch loop's `step`, a memory store whose calls take effect and answer at times
//! that the plan determines, receivers, clients, and a node that can crash at any point.
//!
//! Events are ordered by virtual time and then by insertion, so a seed always gives the same run.

mod erasing;
mod node;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use fastrand::Rng;
use posthaste_core::scheduler::Explained;
use posthaste_core::{DeliveryId, Key, LaneId, MessageId, Timestamp};
use posthaste_engine::dispatch::{Event, Finished, StoreCall, StoreReply, Ticket};
use posthaste_store::{Accepted, ArrivedDelivery, MemoryStore};

use super::RunOutcome;
use super::history::{ApiCall, History, Ms, PendingSnapshot, SentMessage, What};
use super::outsider;
use super::plan::{BEGIN, Happening, MessagePlan, RunPlan};
use super::wire::SimulatedWire;
use node::{Node, ms};

/// The virtual time after the end of all faults within which everything must end.
const GIVE_UP: Ms = 20 * 86_400_000;
/// How often the node follows the wall clock.
const FOLLOW_EVERY: Ms = 60_000;
/// How often waiting deliveries are viewed, and how many of them.
const LOOK_EVERY: Ms = 3_000;
const LOOKS: usize = 100;

/// Runs a plan to its end and judges it.
pub fn run(plan: &RunPlan) -> RunOutcome {
    let mut world = World::new(plan);
    world.run();
    world.finish()
}

/// An event on the heap. Most of them carry the number of the node's life for which they are meant.
enum Ahead {
    Outside(Happening),
    ResumeAt(u8, u64),
    /// A store call takes effect, then answers.
    Commit(u32, StoreCall),
    Reply(u32, StoreReply),
    /// An accept takes effect, then its arrivals are published, then the loop takes them; the caller gets its answer
    /// any time after they are published.
    Accept(u32, usize, Vec<Accepted>),
    Publish(u32, Vec<ArrivedDelivery>),
    Arrive(u32),
    Ack(u32, usize),
    /// An attempt ended; with the index of its request in the log, if one left.
    Finished(u32, Option<usize>, Finished),
    Receipt(u64),
    /// An erasure takes effect, then the loop gets its command again; its rows are removed once the loop has answered
    /// which deliveries are under way.
    Erase(u32, usize, Option<u64>),
    Erased(u32, usize, Option<u64>),
    LookUnderWay(u32),
    EraseStep(u32, Vec<u64>, Vec<DeliveryId>),
    Wake(u32, Ms),
    Restart,
    Follow(u32),
    Look,
    StallEnds,
    FailEnds,
    Healed,
}

struct World<'a> {
    plan: &'a RunPlan,
    now: Ms,
    /// The number of the last event inserted.
    line: u64,
    heap: BinaryHeap<Reverse<(Ms, u64)>>,
    /// The events on the heap, by number.
    ahead: BTreeMap<u64, Ahead>,
    disk: MemoryStore,
    node: Option<Node>,
    life: u32,
    wire: SimulatedWire,
    rng: Rng,
    history: History,
    tickets: BTreeMap<Ticket, usize>,
    /// Erasures whose next step waits for the loop's list of deliveries under way.
    erasures: Vec<u64>,
    next_ticket: u64,
    wall_offset: Ms,
    store_ms: Ms,
    failing: bool,
    /// Arrivals that the loop has not taken yet, in commit order; and the time at which the last of them is published.
    published: Vec<ArrivedDelivery>,
    published_until: Ms,
    /// When the last of the calls that must keep their order takes effect.
    ordered_until: Ms,
    points: u64,
    trace: u64,
    healed: bool,
}

impl<'a> World<'a> {
    fn new(plan: &'a RunPlan) -> Self {
        let mut world = Self {
            plan,
            now: BEGIN,
            line: 0,
            heap: BinaryHeap::new(),
            ahead: BTreeMap::new(),
            disk: MemoryStore::default(),
            node: None,
            life: 0,
            wire: SimulatedWire::new(plan),
            rng: Rng::with_seed(plan.seed ^ 0x57_4F_52_4C),
            history: History::default(),
            tickets: BTreeMap::new(),
            erasures: Vec::new(),
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
            let what = self.ahead.remove(&line).expect("every event on the heap is in the map");
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
                    | Ahead::Erase(..)
                    | Ahead::Erased(..)
                    | Ahead::EraseStep(..)
            )
        };
        !self.ahead.values().any(busy) && self.disk.lock().unfinished_erasures(1).is_empty()
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
            Ahead::Erase(life, asked, whom) if life == self.life => self.commit_erase(asked, whom),
            Ahead::Erased(life, asked, whom) if life == self.life => self.tell_of_erased(asked, whom),
            Ahead::LookUnderWay(life) if life == self.life => self.look_under_way(),
            Ahead::EraseStep(life, erasures, under_way) if life == self.life => self.erase_step(&erasures, &under_way),
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
            // The event is for an earlier life of the node.
            _ => {}
        }
    }

    // --- events from outside ---

    fn outside(&mut self, happening: Happening) {
        match happening {
            Happening::Send(message) => self.send(&message),
            Happening::Cancel(ago) => {
                if let Some(cancel) = outsider::cancel(&self.history, ago) {
                    self.ask(cancel);
                }
            }
            Happening::EndLane(lane) => self.ask(outsider::end_of_lane(self.plan, &self.history, lane)),
            Happening::Pause(kind, lane, wait) => {
                let id = outsider::paused(self.plan, kind, lane);
                self.ask(What::Pause(kind, id));
                self.after(ms(wait), Ahead::ResumeAt(kind, id));
            }
            Happening::Erase(whom) => self.erase(whom),
            Happening::Crash(down) => self.crash(down),
            Happening::Stall(each, length) => {
                self.store_ms = ms(each);
                self.after(ms(length), Ahead::StallEnds);
            }
            Happening::Fail(length) => {
                self.failing = true;
                self.after(ms(length), Ahead::FailEnds);
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
            outsider::compose(self.plan, message, id, now, |lane, tier| dispatch.scheduler().is_spilling(lane, tier));
        self.history.sent.push(SentMessage { called_at: self.now, ..sent });
        let index = self.history.sent.len() - 1;
        let (life, wait) = (self.life, self.store_wait());
        if self.plan.acks_early {
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
        let published_at = self.published_until;
        self.at(published_at, Ahead::Publish(life, arrivals));
        self.at(published_at.max(self.now + arrive), Ahead::Arrive(life));
        self.at(published_at.max(self.now + ack), Ahead::Ack(life, sent));
    }

    /// Makes a call of the API.
    fn ask(&mut self, what: What) {
        if self.node.is_none() {
            // Callers retry resumes and receipts until the node is back; other calls are dropped.
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
        self.history.asked.push(ApiCall { what, called_at: self.now, answered_at: None, done: false });
        self.step(Event::Command(ticket, outsider::command(what)));
    }

    /// Ends all faults. From now on receivers are healthy, and everything paused is resumed.
    fn heal(&mut self) {
        self.healed = true;
        self.wall_offset = 0;
        self.failing = false;
        self.store_ms = 3;
        if self.node.is_some() {
            self.follow();
        }
        for resume in outsider::resume_everything(self.plan) {
            self.ask(resume);
        }
        // A strict lane that stops at a dead head must be resumed by its owner, again and again.
        if self.disk.lock().pending() > 0 {
            let patient = self.now > self.plan.healed_at + 2 * 86_400_000;
            self.after(if patient { 6 * 3_600_000 } else { 600_000 }, Ahead::Healed);
        }
    }

    // --- views ---

    fn look(&mut self) {
        let stamped = self.stamped();
        if let Some(node) = &self.node {
            let mine = self.history.sent.iter().filter(|sent| sent.acked_at.is_some());
            let ids: Vec<(u64, u64)> = mine.flat_map(|sent| &sent.deliveries).map(|new| (new.id, new.lane)).collect();
            let skip = if ids.is_empty() { 0 } else { self.rng.usize(..ids.len()) };
            let now = Timestamp::from_millis(stamped);
            for (id, lane) in ids.iter().cycle().skip(skip).take(ids.len().min(LOOKS)) {
                let Some(found) = self.disk.lock().delivery(DeliveryId::from_raw(*id), now) else { continue };
                if found.delivery.state.is_terminal() {
                    continue;
                }
                let explained = node.dispatch.scheduler().explain(
                    now,
                    DeliveryId::from_raw(*id),
                    LaneId::from_raw(*lane),
                    found.delivery.state,
                );
                let Explained::Waits(hold) = explained else { continue };
                self.history.looks.push(PendingSnapshot {
                    at: self.now,
                    stamped,
                    life: self.life,
                    delivery: *id,
                    attempts: found.delivery.attempts,
                    why: hold.why.name(),
                    until: hold.until.map(Timestamp::as_millis),
                });
            }
        }
        if !self.healed {
            self.after(LOOK_EVERY, Ahead::Look);
        }
    }

    fn finish(mut self) -> RunOutcome {
        if let Some(node) = &self.node {
            self.history.refused_moves += node.dispatch.scheduler().refused_moves();
        }
        let now = Timestamp::from_millis(self.stamped());
        for sent in &self.history.sent {
            for new in &sent.deliveries {
                self.history.endings.push(outsider::ending(&self.disk.lock(), new.id, now));
            }
        }
        self.history.requests = std::mem::take(&mut self.wire.log);
        let points = self.points;
        outsider::outcome(self.plan, &self.history, self.trace, points)
    }
}
