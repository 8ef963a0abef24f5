//! The node of a world: steps of the loop, store calls, and crashes at any point between them.

use std::time::Duration;

use futures_util::FutureExt;
use posthaste_core::{Roll, Timestamp};
use posthaste_engine::clock::Anchor;
use posthaste_engine::dispatch::call::perform;
use posthaste_engine::dispatch::{CommandReply, Dispatch, Effect, Event, Finished, StoreCall, StoreReply};
use posthaste_store::Session;

use super::super::history::Ms;
use super::super::outsider;
use super::super::plan::BEGIN;
use super::{Ahead, FOLLOW_EVERY, World};

/// One life of the node: from a start to the next crash.
pub(super) struct Node {
    pub(super) dispatch: Dispatch,
    pub(super) session: Session,
    pub(super) anchor: Anchor,
    pub(super) next_seq: u64,
    pub(super) wake_at: Option<Ms>,
}

impl World<'_> {
    pub(super) fn stamped(&self) -> Ms {
        self.node.as_ref().map_or(self.now, |node| node.anchor.at(elapsed(self.now)).as_millis())
    }

    /// Steps the loop. As in the driver, arrivals come first, so that the loop knows every acknowledged message before
    /// it picks the next send.
    pub(super) fn step(&mut self, event: Event) {
        if matches!(event, Event::Started(_)) || self.take_arrivals() {
            self.step_alone(event);
        }
    }

    /// Passes published arrivals to the loop. Returns `false` if the node crashed.
    pub(super) fn take_arrivals(&mut self) -> bool {
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

    /// Carries out an effect. Returns `false` if the node crashed.
    fn carry_out(&mut self, effect: Effect) -> bool {
        let life = self.life;
        match effect {
            Effect::Answer(ticket, answer) => {
                match &answer {
                    CommandReply::UnderWay(under_way) => {
                        let wait = self.store_wait();
                        let erasures = std::mem::take(&mut self.erasures);
                        self.after(wait, Ahead::EraseStep(life, erasures, under_way.clone()));
                    }
                    CommandReply::InFlight(messages) => {
                        let erased = self.disk.lock().count_erased(messages);
                        let asked = self.tickets.get(&ticket).map(|asked| self.history.asked[*asked].called_at);
                        self.history.in_flight.extend(asked.map(|at| (at, erased)));
                    }
                    _ => {}
                }
                if let Some(asked) = self.tickets.remove(&ticket) {
                    let asked = &mut self.history.asked[asked];
                    (asked.answered_at, asked.done) = (Some(self.now), answer != CommandReply::Nothing);
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
            Effect::Send(send) if self.is_erased(&send) => return !self.crashes_here(),
            Effect::Send(send) => {
                let delivery = send.start.delivery;
                let (now, stamped) = (self.now, self.stamped());
                let recorded = outsider::recorded(&self.disk.lock(), delivery, stamped);
                let fate = self.wire.send(now, stamped, &send.start, recorded);
                self.note(2, delivery.raw() ^ u64::from(send.start.attempt) << 56);
                let finished = Finished { delivery, verdict: fate.verdict, took: fate.after, excerpt: None };
                self.after(ms(fate.after), Ahead::Finished(life, fate.request, finished));
                if let Some(after) = fate.receipt_after
                    && outsider::wants_receipt(&self.history, delivery)
                {
                    self.after(ms(after), Ahead::Receipt(delivery.raw()));
                }
                return !self.crashes_here();
            }
        }
        true
    }

    pub(super) fn commit(&mut self, life: u32, call: StoreCall) {
        if life != self.life {
            return;
        }
        let Some(node) = &self.node else { return };
        let session = node.session;
        let reply = if self.failing && !is_ordered(&call) && self.rng.u32(..3) == 0 {
            // Half of the failed calls take effect, and only their answer is lost.
            if self.rng.bool() {
                self.perform(session, call.clone());
            }
            StoreReply::Failed(call)
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

    /// Performs a store call. The memory store answers at once; the delays are the world's.
    fn perform(&self, session: Session, call: StoreCall) -> StoreReply {
        let answered = perform(&self.disk, session, call).now_or_never().expect("a store in memory answers at once");
        answered.expect("this node has the session")
    }

    pub(super) fn store_wait(&mut self) -> Ms {
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

    pub(super) fn follow(&mut self) {
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

    pub(super) fn replied(&mut self, reply: StoreReply) {
        if !self.crashes_here() {
            self.step(Event::Replied(reply));
        }
    }

    pub(super) fn crashes_here(&mut self) -> bool {
        self.points += 1;
        if self.plan.crash_at_point == Some(self.points) {
            self.crash(Duration::from_secs(1));
            return true;
        }
        false
    }

    pub(super) fn crash(&mut self, down: Duration) {
        let Some(node) = self.node.take() else { return };
        self.history.refused_moves += node.dispatch.scheduler().refused_moves();
        self.history.crashes.push(outsider::crash(&self.disk.lock(), &self.wire.log, self.now));
        self.note(4, u64::from(self.life));
        self.life += 1;
        self.published.clear();
        self.after(ms(down), Ahead::Restart);
    }

    pub(super) fn restart(&mut self) {
        let start = self.disk.lock().open(Timestamp::from_millis(self.now + self.wall_offset));
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
        // Continues erasures of an earlier life.
        self.after(1, Ahead::LookUnderWay(life));
    }
}

/// Whether a call must not overtake others of its kind: pauses and resumes of one scope. The real store guarantees
/// their order with its single writer, which stops at a failed write. All other calls may overtake each other.
fn is_ordered(call: &StoreCall) -> bool {
    matches!(call, StoreCall::Pause(..) | StoreCall::Resume(..))
}

fn elapsed(now: Ms) -> Duration {
    Duration::from_millis(u64::try_from(now - BEGIN).unwrap_or(0))
}

pub(super) fn ms(duration: Duration) -> Ms {
    i64::try_from(duration.as_millis()).unwrap_or(Ms::MAX)
}
