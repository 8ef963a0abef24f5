//! The ledger: what a store has acknowledged, and the comparison with what is found in it.

use std::collections::{BTreeMap, BTreeSet};

use posthaste_core::{CutScope, Delivery, DeliveryId, EndpointId, LaneId, MessageId};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Accepted, Archive, Directory, PauseScope, SessionStart, StoreError};

use super::NOW;
use crate::crowd::{Flaw, chain};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadAnswer {
    Done,
    /// The disk is full: the call had no effect.
    Full,
    /// The store has stopped: the call may be done or not.
    Doubt,
    /// An answer that the store must not give.
    Wrong(&'static str),
}

/// Something that a store either has or has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StoreFact {
    Cut(LaneId),
    Pause(LaneId),
    Endpoint(EndpointId),
}

#[derive(Debug)]
struct Sent {
    accepted: Accepted,
    answer: LoadAnswer,
}

#[derive(Debug)]
struct Life {
    /// The delivery after the last call that was answered as done.
    sure: Delivery,
    /// The delivery after each later call that is in doubt.
    perhaps: Vec<Delivery>,
}

/// The answers of a store during one life.
#[derive(Debug, Default)]
pub(super) struct LoadLedger {
    sent: BTreeMap<MessageId, Sent>,
    lives: BTreeMap<DeliveryId, Life>,
    /// Pending deliveries for which no call is under way.
    pub(super) waiting: BTreeSet<DeliveryId>,
    facts: BTreeMap<StoreFact, LoadAnswer>,
    /// Ids that no message may have.
    pub(super) never: BTreeSet<MessageId>,
    next_fact: u64,
    /// How many calls were answered as done.
    pub(super) acknowledged: u64,
    /// Whether there are arrivals that were not fetched.
    pub(super) arrived: bool,
}

impl LoadLedger {
    /// A number for a fact, higher than those of the lanes in use.
    pub(super) fn fresh_fact(&mut self) -> u64 {
        self.next_fact += 1;
        1_000 + self.next_fact
    }

    /// Takes up to `most` waiting deliveries, preferring recent ones.
    pub(super) fn take_waiting(&mut self, dice: &mut fastrand::Rng, most: usize) -> Vec<Delivery> {
        let ids: Vec<_> =
            self.waiting.iter().rev().take(40).copied().filter(|_| dice.u8(..3) == 0).take(most).collect();
        ids.iter().for_each(|id| _ = self.waiting.remove(id));
        ids.iter().filter_map(|id| Some(self.lives.get(id)?.sure.clone())).collect()
    }

    /// A random message that was acknowledged under an idempotency key.
    pub(super) fn keyed(&self, dice: &mut fastrand::Rng) -> Option<Accepted> {
        let known = |sent: &&Sent| sent.answer == LoadAnswer::Done && sent.accepted.idempotency.is_some();
        let keyed: Vec<_> = self.sent.values().filter(known).collect();
        let sent = keyed.get(dice.usize(..keyed.len().max(1)))?;
        Some(Accepted { deliveries: Vec::new(), ..sent.accepted.clone() })
    }

    fn count(&mut self, answer: LoadAnswer) {
        self.acknowledged += u64::from(answer == LoadAnswer::Done);
    }

    pub(super) fn accepted(&mut self, accepted: Accepted, answer: LoadAnswer) {
        self.count(answer);
        self.arrived |= answer == LoadAnswer::Done && !accepted.deliveries.is_empty();
        for new in &accepted.deliveries {
            let id = new.delivery.id;
            self.lives.insert(id, Life { sure: new.delivery.clone(), perhaps: Vec::new() });
            if answer == LoadAnswer::Done {
                self.waiting.insert(id);
            }
        }
        self.sent.insert(accepted.message.id, Sent { accepted, answer });
    }

    pub(super) fn settled(&mut self, next: Delivery, answer: LoadAnswer) {
        self.count(answer);
        let Some(life) = self.lives.get_mut(&next.id) else { return };
        match answer {
            LoadAnswer::Done => {
                if !next.state.is_terminal() {
                    self.waiting.insert(next.id);
                }
                life.sure = next;
            }
            LoadAnswer::Doubt => life.perhaps.push(next),
            LoadAnswer::Full | LoadAnswer::Wrong(_) => {}
        }
    }

    pub(super) fn stated(&mut self, fact: StoreFact, answer: LoadAnswer) {
        self.count(answer);
        self.facts.insert(fact, answer);
    }

    /// Compares the cuts and pauses that a session finds at its beginning.
    pub(super) fn check_start(&self, start: &SessionStart) -> Result<(), String> {
        for (fact, answer) in &self.facts {
            let found = match fact {
                StoreFact::Cut(lane) => start.cuts.iter().any(|cut| cut.scope == CutScope::Lane(*lane)),
                StoreFact::Pause(lane) => start.pauses.iter().any(|pause| pause.scope == PauseScope::Lane(*lane)),
                StoreFact::Endpoint(_) => continue,
            };
            agrees(*answer, found).map_err(|how| format!("{fact:?} {how}"))?;
        }
        Ok(())
    }

    /// Compares everything, and resolves calls in doubt to what is found.
    pub(super) async fn verify(&mut self, store: &Sqlite) -> Result<(), Flaw> {
        let unread = |error: StoreError| Flaw::Damaged(format!("the store cannot be read: {}", chain(&error)));
        for (fact, answer) in &mut self.facts {
            if let StoreFact::Endpoint(id) = fact {
                let found = store.endpoint(*id).await.map_err(unread)?.is_some();
                agrees(*answer, found).map_err(|how| format!("{fact:?} {how}"))?;
            }
        }
        for id in &self.never {
            if store.message(*id).await.map_err(unread)?.is_some() {
                return Err(Flaw::Lost(format!("message {id} was made although its key was known")));
            }
        }
        self.waiting.clear();
        for (id, sent) in &mut self.sent {
            let found = store.message(*id).await.map_err(unread)?;
            agrees(sent.answer, found.is_some()).map_err(|how| format!("message {id} {how}"))?;
            if found.as_ref().is_some_and(|found| *found != sent.accepted.message) {
                return Err(Flaw::Lost(format!("message {id} is not what was sent")));
            }
            for new in &sent.accepted.deliveries {
                let delivery = new.delivery.id;
                let shown = store.delivery(delivery, NOW).await.map_err(unread)?;
                let Some(life) = self.lives.get_mut(&delivery) else { continue };
                match (shown, found.is_some()) {
                    (None, false) => {}
                    (Some(shown), true) => {
                        life.check(&shown.delivery, shown.attempts.len())?;
                        if shown.place.is_some() {
                            self.waiting.insert(delivery);
                        }
                    }
                    (shown, _) => {
                        let half = if shown.is_some() { "without its message" } else { "missing from its message" };
                        return Err(Flaw::Lost(format!("delivery {delivery} is {half}")));
                    }
                }
            }
            // The doubt, if there was one, is resolved.
            sent.answer = if found.is_some() { LoadAnswer::Done } else { LoadAnswer::Full };
        }
        Ok(())
    }
}

impl Life {
    fn check(&mut self, found: &Delivery, attempts: usize) -> Result<(), String> {
        if *found != self.sure && !self.perhaps.contains(found) {
            return Err(format!("delivery {} is {:?} and was settled as {:?}", found.id, found.state, self.sure.state));
        }
        if attempts != usize::from(found.attempts) {
            return Err(format!("delivery {} has {attempts} attempts of {}", found.id, found.attempts));
        }
        self.sure = found.clone();
        self.perhaps.clear();
        Ok(())
    }
}

/// Compares the answer to a call with whether its effect is found.
fn agrees(answer: LoadAnswer, found: bool) -> Result<(), &'static str> {
    match (answer, found) {
        (LoadAnswer::Done, false) => Err("was acknowledged and is lost"),
        (LoadAnswer::Full, true) => Err("was refused and is there"),
        _ => Ok(()),
    }
}
