//! What the API asks of the loop. Every change of a delivery goes through its owner, so that the
//! check before a send is against memory.

use std::sync::Arc;

use posthaste_core::cause::Cause;
use posthaste_core::cut::{Cut, EndpointChange, Scope};
use posthaste_core::flow::SharedGate;
use posthaste_core::hold::{Hold, Why};
use posthaste_core::id::{DeliveryId, EndpointId, Key, LaneId, MessageId, TenantId};
use posthaste_core::queue::{BreakerOf, BreakerShown, Explained, Reset, TenantSettings};
use posthaste_core::state::State;
use posthaste_core::time::Timestamp;
use posthaste_store::{Act, By, Page, Pause, PauseScope, Query, Token};

use super::call::Call;
use super::counts::Watched;
use super::{Departure, Dispatch, Effect, pauses};

/// Tells an answer's asker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Something to do for somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// End every delivery of a message that is not in flight, by somebody's word.
    Cancel(MessageId, Option<By>),
    /// End everything that waits in a lane, at an API caller's request or by the engine's own.
    EndLane(EndLane, Option<By>),
    /// Hold; nothing is sent once it is answered.
    Pause(Pause),
    /// End a pause, by somebody's word.
    Resume(PauseScope, Option<By>),
    /// What is paused? So many are passed over, and so many are told at most.
    Pauses(usize, usize),
    /// What an owner says of a lane has changed: read it again.
    Lane(LaneId),
    /// The rules of a tenant's lanes, or of everybody's, have changed, to those of this number: read them again.
    Rules(Option<TenantId>, u32),
    /// Answered once every outcome is durable that holds this lane, or disables its endpoint.
    Recorded(LaneId),
    /// Is an end of this lane still being carried out?
    IsEnding(LaneId),
    /// Which of these lanes are paused?
    Paused(Vec<LaneId>),
    /// A signed receipt came for this delivery.
    Receipt(DeliveryId),
    /// Why does a delivery wait whose row has this lane and state?
    Explain(DeliveryId, LaneId, State),
    /// Send this now, whatever its schedule says; the gates still hold.
    Hurry(DeliveryId),
    /// Which breakers are not closed?
    Breakers,
    /// Which lanes go through this gate, and whose are they?
    LanesThrough(SharedGate),
    /// Take over what was agreed with a tenant.
    Tenant(TenantSettings),
    /// Reset a breaker, by somebody's word: in force at once, as durable as breakers are, and in the journal once it is
    /// answered.
    Reset(BreakerOf, Reset, Option<By>),
    /// A tenant, or a subject of it, is being erased: nothing that rides in memory is sent to or about it. Asked before
    /// the store erases, so that nothing slips out in between, and after it, for what is in flight then.
    Erased(TenantId, Option<String>),
    /// The store has given these up: they waited for too long. None of them is sent that is not in flight.
    GivenUp(Vec<DeliveryId>),
    /// Which deliveries are being sent or recorded?
    UnderWay,
    /// What happened so far, and how much is there to do?
    Watch,
}

/// The end of everything that waits in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndLane {
    /// Which lane.
    pub lane: LaneId,
    /// The highest id that ends.
    pub upto: Key,
    /// Why.
    pub cause: Cause,
    /// The endpoint that ends with its lane, and what becomes of it.
    pub endpoint: Option<(EndpointId, EndpointChange)>,
}

/// A lane that waits by somebody's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LanePaused {
    /// Until when.
    pub hold: Hold,
    /// What was said of it, where anybody paused it, or a dead delivery of a strict order did.
    pub said: Option<Arc<Pause>>,
}

/// What became of a [`Command`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is durable and in force.
    Done,
    /// So many were ended; so many were in flight and may still arrive.
    Ended {
        /// Never sent from now on.
        ended: u64,
        /// May still arrive.
        in_flight: u64,
    },
    /// Nothing to do: the delivery has ended or was never sent, the breaker is closed, nothing is paused.
    Nothing,
    /// Why it waits, and the pause that holds it, where that is why.
    Explained(Explained, Option<Arc<Pause>>),
    /// Those that are not closed, lanes first.
    Breakers(Vec<BreakerShown>),
    /// Those that go through a gate, as far as the window knows them.
    LanesThrough(Vec<(LaneId, TenantId)>),
    /// Those in force, in the order of their scopes.
    Pauses(Vec<Arc<Pause>>),
    /// What holds each lane that was asked for by somebody's word.
    Paused(Vec<Option<LanePaused>>),
    /// What is in flight, by message: one for each attempt.
    InFlight(Vec<MessageId>),
    /// Being sent or recorded.
    UnderWay(Vec<DeliveryId>),
    /// What happened so far, and how much there is to do.
    Watched(Box<Watched>),
}

/// Deliveries that are read to be sent at once: somebody who asks for more asks again.
const HURRIED_MAX: usize = 4_096;

/// Lanes that are read again in one call.
const LANES_AT_ONCE: usize = 500;

impl Dispatch {
    pub(super) fn asked(&mut self, now: Timestamp, ticket: Ticket, command: Command, effects: &mut Vec<Effect>) {
        match command {
            Command::Cancel(message, by) => {
                let cut = Cut::new(Scope::Message(message), Key::MAX, Cause::Cancelled, now);
                self.cut(cut, by, Some(ticket), effects);
            }
            Command::EndLane(EndLane { lane, upto, cause, endpoint }, by) => {
                let cut = Cut { endpoint, ..Cut::new(Scope::Lane(lane), upto, cause, now) };
                self.cut(cut, by, Some(ticket), effects);
            }
            // In force here before it is durable, so that nothing slips out in between.
            Command::Pause(pause) => {
                self.pause(pause.clone());
                let scope = pause.scope;
                self.said_of(scope, Effect::Store(Call::Pause(pause, now, ticket)), effects);
            }
            // Durable before it is in force: a crash in between must not send what is paused.
            Command::Resume(scope, by) => {
                // A lane is resumed by whoever enables an endpoint, paused or not.
                if matches!(scope, PauseScope::Lane(_)) || self.pauses.in_force(scope, now).is_some() {
                    let resume = Call::Resume(scope, self.pauses.number(scope), Act { at: now, by }, ticket);
                    self.said_of(scope, Effect::Store(resume), effects);
                } else {
                    effects.push(Effect::Answer(ticket, Answer::Nothing));
                }
            }
            Command::Pauses(passed, most) => {
                effects.push(Effect::Answer(ticket, Answer::Pauses(self.pauses.list(passed, most, now))));
            }
            // Not by the list of what is to be read: what is being read already may be older.
            Command::Lane(lane) => {
                effects.push(Effect::Store(Call::Lanes(vec![lane])));
                effects.push(Effect::Answer(ticket, Answer::Done));
            }
            Command::Rules(tenant, number) => {
                self.queue.tell_rules(now, tenant, number);
                let lanes = self.queue.lanes_of(tenant);
                effects.extend(lanes.chunks(LANES_AT_ONCE).map(|some| Effect::Store(Call::Lanes(some.to_vec()))));
                effects.push(Effect::Answer(ticket, Answer::Done));
            }
            Command::Paused(lanes) => {
                let paused = lanes.iter().map(|lane| self.paused(*lane, now)).collect();
                effects.push(Effect::Answer(ticket, Answer::Paused(paused)));
            }
            Command::Recorded(lane) => {
                self.pauses.behind_outcomes(lane, Effect::Answer(ticket, Answer::Done), effects);
            }
            Command::IsEnding(lane) => {
                let answer = if self.sweeper.is_ending(Scope::Lane(lane)) { Answer::Done } else { Answer::Nothing };
                effects.push(Effect::Answer(ticket, answer));
            }
            Command::Receipt(delivery) => self.receipt(now, ticket, delivery, effects),
            Command::Explain(delivery, lane, state) => {
                let explained = self.explain(now, delivery, lane, self.as_hurried(now, delivery, state));
                let is_paused = matches!(explained, Explained::Waits(Hold { why: Why::Paused, .. }));
                let pause = self.queue.paused_by(lane, now).filter(|_| is_paused);
                let pause = pause.and_then(|by| self.pauses.in_force(pauses::scope(by, lane), now));
                effects.push(Effect::Answer(ticket, Answer::Explained(explained, pause.cloned())));
            }
            Command::Hurry(delivery) => {
                let answer = if self.queue.knows(delivery) {
                    self.queue.hurry(now, delivery);
                    Answer::Done
                } else if self.hurried.contains(&delivery) {
                    Answer::Done
                } else if self.hurried.len() < HURRIED_MAX {
                    self.hurried.insert(delivery);
                    self.read(now, Query::One(delivery), 1, effects);
                    Answer::Done
                } else {
                    Answer::Nothing
                };
                effects.push(Effect::Answer(ticket, answer));
            }
            Command::Breakers => effects.push(Effect::Answer(ticket, Answer::Breakers(self.queue.breakers(now)))),
            Command::LanesThrough(gate) => {
                effects.push(Effect::Answer(ticket, Answer::LanesThrough(self.queue.lanes_through(gate))));
            }
            Command::Tenant(settings) => {
                self.queue.set_tenant(now, settings);
                effects.push(Effect::Answer(ticket, Answer::Done));
            }
            Command::Reset(of, how, by) => effects.push(if self.reset(now, of, how) {
                Effect::Store(Call::Reset(of, how, Act { at: now, by }, ticket))
            } else {
                Effect::Answer(ticket, Answer::Nothing)
            }),
            Command::Erased(tenant, subject) => {
                let in_flight = self.drop_erased(now, tenant, subject);
                effects.push(Effect::Answer(ticket, Answer::InFlight(in_flight)));
            }
            Command::GivenUp(deliveries) => {
                let dead = State::Dead { at: now, cause: Cause::Retention };
                deliveries.iter().for_each(|_| self.counts.recorded(&dead));
                self.ended_elsewhere(now, &deliveries);
                effects.push(Effect::Answer(ticket, Answer::Done));
            }
            Command::Watch => effects.push(Effect::Answer(ticket, Answer::Watched(Box::new(self.watched(now))))),
            Command::UnderWay => effects.push(Effect::Answer(ticket, Answer::UnderWay(self.queue.under_way()))),
        }
    }

    /// Somebody says whether a scope is paused. Of a lane that comes behind what its outcomes say: otherwise a resume
    /// would be on the disk before the pause that it ends.
    fn said_of(&mut self, scope: PauseScope, said: Effect, effects: &mut Vec<Effect>) {
        match scope {
            PauseScope::Lane(lane) => self.pauses.behind_outcomes(lane, said, effects),
            PauseScope::All | PauseScope::Tenant(_) | PauseScope::Origin(_) => effects.push(said),
        }
    }

    /// Marks memory first, then the store; the answer comes once both have it.
    pub(super) fn cut(&mut self, mut cut: Cut, by: Option<By>, ticket: Option<Ticket>, effects: &mut Vec<Effect>) {
        cut.spared = self.queue.cut(cut.scope, cut.upto, cut.cause);
        self.sweeper.cut(cut.scope, cut.upto, cut.at);
        effects.push(Effect::Store(Call::Cut(cut, by, ticket)));
    }

    fn receipt(&mut self, now: Timestamp, ticket: Ticket, delivery: DeliveryId, effects: &mut Vec<Effect>) {
        if !self.queue.knows(delivery) {
            self.receipts.entry(delivery).or_default().push(ticket);
            self.read(now, Query::One(delivery), 1, effects);
            return;
        }
        match self.queue.receipt(now, delivery) {
            Some(record) => {
                self.receipts.entry(delivery).or_default().push(ticket);
                self.record(record, None, None);
            }
            None if self.queue.is_under_way(delivery) => self.receipts.entry(delivery).or_default().push(ticket),
            None => effects.push(Effect::Answer(ticket, Answer::Nothing)),
        }
    }

    /// Takes up again whatever receipts wait for a delivery.
    pub(super) fn receipts_again(&mut self, now: Timestamp, id: DeliveryId, effects: &mut Vec<Effect>) {
        for ticket in self.receipts.remove(&id).unwrap_or_default() {
            self.receipt(now, ticket, id, effects);
        }
    }

    fn paused(&self, lane: LaneId, now: Timestamp) -> Option<LanePaused> {
        let hold = self.queue.pause_of_lane(lane, now)?;
        Some(LanePaused { hold, said: self.pauses.in_force(PauseScope::Lane(lane), now).cloned() })
    }

    /// How a row stands of which somebody is in a hurry, while it is being read: it waits for its time no more.
    fn as_hurried(&self, now: Timestamp, id: DeliveryId, state: State) -> State {
        match state {
            State::Queued { .. } if self.hurried.contains(&id) => State::Queued { due: now },
            State::Retry { cause, .. } if self.hurried.contains(&id) => State::Retry { due: now, cause },
            state => state,
        }
    }

    /// One row was read: a receipt is for it, or a change of it was refused.
    pub(super) fn one_row(
        &mut self,
        now: Timestamp,
        id: DeliveryId,
        as_of: Departure,
        page: Page,
        effects: &mut Vec<Effect>,
    ) {
        let row = page.rows.into_iter().next();
        let is_hurried = self.hurried.remove(&id);
        if !self.receipts.contains_key(&id) {
            if let Some(row) = row {
                self.take_in(now, row, as_of);
            }
            if is_hurried {
                self.queue.hurry(now, id);
            }
            return;
        }
        if self.queue.knows(id) || self.is_older(id, as_of) {
            // It came into the window by another page meanwhile, and may have left it again.
            return self.receipts_again(now, id, effects);
        }
        let mut row = row.filter(|row| row.delivery.attempts > 0);
        if let Some(forged) = row.take_if(|row| row.token == Token::Rejected) {
            self.quarantine(now, forged);
            return self.receipt_is_nothing(id, effects);
        }
        let record = row.and_then(|row| self.queue.end_row(row.delivery, row.place, State::Delivered { at: now }));
        if let Some(record) = record {
            self.record(record, None, None);
        } else if !self.queue.is_under_way(id) {
            self.receipt_is_nothing(id, effects);
        }
    }

    /// There is nothing to record a receipt of.
    fn receipt_is_nothing(&mut self, id: DeliveryId, effects: &mut Vec<Effect>) {
        for ticket in self.receipts.remove(&id).unwrap_or_default() {
            effects.push(Effect::Answer(ticket, Answer::Nothing));
        }
    }
}
