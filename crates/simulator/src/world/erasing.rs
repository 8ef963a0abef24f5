//! Erasures in a world, with the steps that the engine's call and its eraser make: a command to the loop, the store,
//! the command to the loop again, then the removal of rows in steps. A crash may come between any two of them.

use std::time::Duration;

use futures_util::FutureExt;
use posthaste_core::{Cause, DeliveryId, Timestamp, Verdict};
use posthaste_engine::dispatch::{Command, Event, Finished, SendAttempt, Ticket};
use posthaste_store::{Archive, Erase, ErasureTarget};

use super::super::history::{ApiCall, Ms, What};
use super::super::outsider::{TENANT, subject_name};
use super::{Ahead, World};

/// The time between two steps.
const STEP_EVERY: Ms = 200;
/// The most erasures whose rows are removed in one step.
const TURNS_MAX: u32 = 8;

impl World<'_> {
    /// Begins the erasure of a subject, or with `None` of the whole tenant.
    pub(super) fn erase(&mut self, whom: Option<u64>) {
        if self.node.is_none() {
            return;
        }
        let asked = self.history.asked.len();
        let what = What::Erase(whom);
        self.history.asked.push(ApiCall { what, called_at: self.now, answered_at: None, done: false });
        let life = self.life;
        let ticket = self.ticket();
        self.step(Event::Command(ticket, Command::Erased(TENANT, whom.map(subject_name))));
        let wait = self.store_wait();
        if !self.crashes_here() {
            self.after(wait, Ahead::Erase(life, asked, whom));
        }
    }

    pub(super) fn commit_erase(&mut self, asked: usize, whom: Option<u64>) {
        let at = Timestamp::from_millis(self.stamped());
        let Some(node) = &self.node else { return };
        if self.failing && self.rng.bool() {
            return; // refused, and never answered
        }
        let subject = whom.map_or(ErasureTarget::Tenant, |subject| ErasureTarget::Subject(subject_name(subject)));
        let erase = Erase { tenant: TENANT, whom: subject, at, by: None };
        self.disk.lock().erase(node.session, &erase).expect("this node has the session");
        self.note(6, asked as u64);
        if !self.crashes_here() {
            let (life, wait) = (self.life, self.rng.i64(0..4));
            self.after(wait, Ahead::Erased(life, asked, whom));
            self.after(STEP_EVERY, Ahead::LookUnderWay(life));
        }
    }

    /// Sends the command to the loop once more. Its answer is the caller's answer.
    pub(super) fn tell_of_erased(&mut self, asked: usize, whom: Option<u64>) {
        if self.crashes_here() {
            return;
        }
        let ticket = self.ticket();
        self.tickets.insert(ticket, asked);
        self.step(Event::Command(ticket, Command::Erased(TENANT, whom.map(subject_name))));
    }

    /// Asks the loop which deliveries are under way and must not be removed yet, if there are unfinished erasures.
    /// Erasures that begin later wait for the next answer.
    pub(super) fn look_under_way(&mut self) {
        self.erasures = self.disk.lock().unfinished_erasures(TURNS_MAX).iter().map(|erasure| erasure.number).collect();
        if !self.erasures.is_empty() {
            let ticket = self.ticket();
            self.step(Event::Command(ticket, Command::UnderWay));
        }
    }

    pub(super) fn erase_step(&mut self, erasures: &[u64], under_way: &[DeliveryId]) {
        let now = Timestamp::from_millis(self.stamped());
        let Some(node) = &self.node else { return };
        let mut disk = self.disk.lock();
        for number in erasures {
            disk.erase_step(node.session, *number, now, under_way).expect("this node has the session");
        }
        let pending = disk.pending() as u64;
        drop(disk);
        self.note(7, pending);
        if !self.crashes_here() {
            let life = self.life;
            self.after(STEP_EVERY, Ahead::LookUnderWay(life));
        }
    }

    /// Whether the message of a send was erased: it is neither carried along nor in the store. Then no request leaves,
    /// and the attempt ends with the cause `Erased`.
    pub(super) fn is_erased(&mut self, send: &SendAttempt) -> bool {
        let stored = || self.disk.message(send.start.message).now_or_never();
        if send.message.is_some() || !matches!(stored(), Some(Ok(None))) {
            return false;
        }
        let delivery = send.start.delivery;
        let finished = Finished { delivery, verdict: Verdict::of(Cause::Erased), took: Duration::ZERO, excerpt: None };
        let (life, wait) = (self.life, self.rng.i64(1..4));
        self.after(wait, Ahead::Finished(life, None, finished));
        true
    }

    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }
}
