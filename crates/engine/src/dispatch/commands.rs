//! Commands that the API sends to the loop. Every change of a delivery goes through the loop, so that
//! the check before a send needs memory alone.

use std::sync::Arc;

use posthaste_core::flow::SharedGate;
use posthaste_core::scheduler::{BreakerOf, BreakerShown, Explained, Reset, TenantSettings};
use posthaste_core::{
    Cause, Cut, CutScope, DeliveryId, EndpointChange, EndpointId, Hold, Key, LaneId, MessageId, State, TenantId,
    Timestamp, Why,
};
use posthaste_store::{ApiKeyRef, AuditStamp, Pause, PauseScope, PendingPage, Query, Token};

use super::call::StoreCall;
use super::counts::Watched;
use super::{Departure, Dispatch, Effect, pauses};

/// Identifies the caller that an answer goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// End every delivery of a message that is not in flight, at the request of a caller with this key.
    Cancel(MessageId, Option<ApiKeyRef>),
    /// End everything that waits in a lane, at a caller's request or, without a key, at the engine's own.
    EndLane(EndLane, Option<ApiKeyRef>),
    /// Pause; nothing of the scope is sent once this is answered.
    Pause(Pause),
    /// End a pause, at the request of a caller with this key.
    Resume(PauseScope, Option<ApiKeyRef>),
    /// List the pauses in force: skip this many, and return at most this many.
    Pauses(usize, usize),
    /// The settings of a lane have changed: read them again.
    Lane(LaneId),
    /// The rules of a tenant, or of all tenants for `None`, have changed, and this is their new number: read the lanes
    /// again.
    Rules(Option<TenantId>, u32),
    /// Answered once every outcome that holds this lane or disables its endpoint is durable.
    Recorded(LaneId),
    IsEnding(LaneId),
    Paused(Vec<LaneId>),
    Receipt(DeliveryId),
    /// Why does this delivery wait? The lane and the state are those of its row.
    Explain(DeliveryId, LaneId, State),
    /// Send this delivery now, before its due time; gates may still hold it.
    Hurry(DeliveryId),
    Breakers,
    /// Which lanes go through this gate, and which tenants own them?
    LanesThrough(SharedGate),
    Tenant(TenantSettings),
    /// Reset a breaker, at the request of a caller with this key: in force at once, and in the journal once it is
    /// answered. It is as durable as breakers are.
    Reset(BreakerOf, Reset, Option<ApiKeyRef>),
    /// A tenant, or a subject of it, is being erased: drop its payloads from memory. Sent before the store erases, so
    /// that none is sent in between, and again afterwards, to learn which messages are in flight then.
    Erased(TenantId, Option<String>),
    /// The store has ended these deliveries because they waited longer than the retention allows. Those not in flight
    /// are not sent.
    GivenUp(Vec<DeliveryId>),
    /// Which deliveries are being sent or recorded?
    UnderWay,
    Watch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndLane {
    pub lane: LaneId,
    /// The highest id that ends.
    pub upto: Key,
    pub cause: Cause,
    /// The endpoint that ends with the lane, and how.
    pub endpoint: Option<(EndpointId, EndpointChange)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LanePaused {
    pub hold: Hold,
    /// The pause with its note, if a caller paused the lane or a dead delivery of a strict lane did.
    pub said: Option<Arc<Pause>>,
}

/// The answer to a [`Command`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandReply {
    /// It is durable and in force.
    Done,
    Ended {
        /// How many will never be sent again.
        ended: u64,
        in_flight: u64,
    },
    /// Nothing was done: the delivery has ended or was never sent, the breaker is closed, the scope is not paused, or
    /// too many retries are being read.
    Nothing,
    /// Why the delivery waits, and the pause that holds it, if that is why.
    Explained(Explained, Option<Arc<Pause>>),
    /// The breakers that are not closed, lanes first.
    Breakers(Vec<BreakerShown>),
    /// The lanes in memory that go through the gate.
    LanesThrough(Vec<(LaneId, TenantId)>),
    /// The pauses in force, in the order of their scopes.
    Pauses(Vec<Arc<Pause>>),
    /// For each lane of the command, in order, whether it is paused.
    Paused(Vec<Option<LanePaused>>),
    /// The message of each attempt in flight.
    InFlight(Vec<MessageId>),
    /// The deliveries being sent or recorded.
    UnderWay(Vec<DeliveryId>),
    Watched(Box<Watched>),
}

/// Rows being read at a time because a caller asked to retry them now. A command beyond that is answered
/// [`CommandReply::Nothing`], and its caller may repeat it.
const HURRIED_MAX: usize = 4_096;

/// Lanes that are read again in one call.
const LANES_AT_ONCE: usize = 500;

impl Dispatch {
    pub(super) fn command(&mut self, now: Timestamp, ticket: Ticket, command: Command, effects: &mut Vec<Effect>) {
        let answer = match command {
            Command::Cancel(message, by) => {
                let cut = Cut::new(CutScope::Message(message), Key::MAX, Cause::Cancelled, now);
                return self.cut(cut, by, Some(ticket), effects);
            }
            Command::EndLane(EndLane { lane, upto, cause, endpoint }, by) => {
                let cut = Cut { endpoint, ..Cut::new(CutScope::Lane(lane), upto, cause, now) };
                return self.cut(cut, by, Some(ticket), effects);
            }
            // In force in memory before it is durable, so that nothing is sent in between.
            Command::Pause(pause) => {
                self.pause(pause.clone());
                let scope = pause.scope;
                return self.after_outcomes_of(scope, Effect::Store(StoreCall::Pause(pause, now, ticket)), effects);
            }
            // Durable before it is in force: a crash in between must not send what is paused. Enabling an endpoint
            // resumes its lane, paused or not.
            Command::Resume(scope, by)
                if matches!(scope, PauseScope::Lane(_)) || self.pauses.in_force(scope, now).is_some() =>
            {
                let resume = StoreCall::Resume(scope, self.pauses.number(scope), AuditStamp { at: now, by }, ticket);
                return self.after_outcomes_of(scope, Effect::Store(resume), effects);
            }
            Command::Resume(..) => CommandReply::Nothing,
            Command::Pauses(passed, most) => CommandReply::Pauses(self.pauses.list(passed, most, now)),
            // Not through `lanes_to_ask`: a read that is already under way may return older settings.
            Command::Lane(lane) => {
                effects.push(Effect::Store(StoreCall::Lanes(vec![lane])));
                CommandReply::Done
            }
            Command::Rules(tenant, number) => {
                self.scheduler.tell_rules(now, tenant, number);
                let lanes = self.scheduler.lanes_of(tenant);
                effects.extend(lanes.chunks(LANES_AT_ONCE).map(|some| Effect::Store(StoreCall::Lanes(some.to_vec()))));
                CommandReply::Done
            }
            Command::Paused(lanes) => CommandReply::Paused(lanes.iter().map(|lane| self.paused(*lane, now)).collect()),
            Command::Recorded(lane) => {
                return self.pauses.behind_outcomes(lane, Effect::Answer(ticket, CommandReply::Done), effects);
            }
            Command::IsEnding(lane) if self.sweeper.is_ending(CutScope::Lane(lane)) => CommandReply::Done,
            Command::IsEnding(_) => CommandReply::Nothing,
            Command::Receipt(delivery) => return self.receipt(now, ticket, delivery, effects),
            Command::Explain(delivery, lane, state) => {
                let explained = self.scheduler.explain(now, delivery, lane, self.as_hurried(now, delivery, state));
                let is_paused = matches!(explained, Explained::Waits(Hold { why: Why::Paused, .. }));
                let pause = self.scheduler.paused_by(lane, now).filter(|_| is_paused);
                let pause = pause.and_then(|by| self.pauses.in_force(pauses::scope(by, lane), now));
                CommandReply::Explained(explained, pause.cloned())
            }
            Command::Hurry(delivery) if self.scheduler.knows(delivery) => {
                self.scheduler.retry_now(now, delivery);
                CommandReply::Done
            }
            Command::Hurry(delivery) if self.hurried.contains(&delivery) => CommandReply::Done,
            Command::Hurry(delivery) if self.hurried.len() < HURRIED_MAX => {
                self.hurried.insert(delivery);
                self.read(now, Query::One(delivery), 1, effects);
                CommandReply::Done
            }
            Command::Hurry(_) => CommandReply::Nothing,
            Command::Breakers => CommandReply::Breakers(self.scheduler.breakers(now)),
            Command::LanesThrough(gate) => CommandReply::LanesThrough(self.scheduler.lanes_through(gate)),
            Command::Tenant(settings) => {
                self.scheduler.set_tenant(now, settings);
                CommandReply::Done
            }
            Command::Reset(of, how, by) => {
                if self.reset(now, of, how) {
                    let reset = StoreCall::Reset(of, how, AuditStamp { at: now, by }, ticket);
                    return effects.push(Effect::Store(reset));
                }
                CommandReply::Nothing
            }
            Command::Erased(tenant, subject) => CommandReply::InFlight(self.drop_erased(now, tenant, subject)),
            Command::GivenUp(deliveries) => {
                let dead = State::Dead { at: now, cause: Cause::Retention };
                deliveries.iter().for_each(|_| self.counts.recorded(&dead));
                self.ended_elsewhere(now, &deliveries);
                CommandReply::Done
            }
            Command::Watch => CommandReply::Watched(Box::new(self.watched(now))),
            Command::UnderWay => CommandReply::UnderWay(self.scheduler.under_way()),
        };
        effects.push(Effect::Answer(ticket, answer));
    }

    /// Stores a pause or a resume. For a lane it waits for outcomes that pause the same lane: otherwise a resume
    /// would be durable before the pause that it ends.
    fn after_outcomes_of(&mut self, scope: PauseScope, call: Effect, effects: &mut Vec<Effect>) {
        match scope {
            PauseScope::Lane(lane) => self.pauses.behind_outcomes(lane, call, effects),
            PauseScope::All | PauseScope::Tenant(_) | PauseScope::Origin(_) => effects.push(call),
        }
    }

    /// Makes a cut in memory first, then in the store; the answer comes once both have it.
    pub(super) fn cut(
        &mut self,
        mut cut: Cut,
        by: Option<ApiKeyRef>,
        ticket: Option<Ticket>,
        effects: &mut Vec<Effect>,
    ) {
        cut.spared = self.scheduler.cut(cut.scope, cut.upto, cut.cause);
        self.sweeper.cut(cut.scope, cut.upto, cut.at);
        effects.push(Effect::Store(StoreCall::Cut(cut, by, ticket)));
    }

    fn receipt(&mut self, now: Timestamp, ticket: Ticket, delivery: DeliveryId, effects: &mut Vec<Effect>) {
        if !self.scheduler.knows(delivery) {
            self.receipts.entry(delivery).or_default().push(ticket);
            self.read(now, Query::One(delivery), 1, effects);
            return;
        }
        match self.scheduler.receipt(now, delivery) {
            Some(record) => {
                self.receipts.entry(delivery).or_default().push(ticket);
                self.record(record, None, None);
            }
            None if self.scheduler.is_under_way(delivery) => self.receipts.entry(delivery).or_default().push(ticket),
            None => effects.push(Effect::Answer(ticket, CommandReply::Nothing)),
        }
    }

    /// Handles again the receipts that wait for a delivery.
    pub(super) fn receipts_again(&mut self, now: Timestamp, id: DeliveryId, effects: &mut Vec<Effect>) {
        for ticket in self.receipts.remove(&id).unwrap_or_default() {
            self.receipt(now, ticket, id, effects);
        }
    }

    fn paused(&self, lane: LaneId, now: Timestamp) -> Option<LanePaused> {
        let hold = self.scheduler.pause_of_lane(lane, now)?;
        Some(LanePaused { hold, said: self.pauses.in_force(PauseScope::Lane(lane), now).cloned() })
    }

    /// The state to explain for a row that is being read because a caller asked to retry it now: due now.
    fn as_hurried(&self, now: Timestamp, id: DeliveryId, state: State) -> State {
        match state {
            State::Queued { .. } if self.hurried.contains(&id) => State::Queued { due: now },
            State::Retry { cause, .. } if self.hurried.contains(&id) => State::Retry { due: now, cause },
            state => state,
        }
    }

    /// One row was read: a receipt is for it, or a change of it was refused.
    pub(super) fn row_read(
        &mut self,
        now: Timestamp,
        id: DeliveryId,
        as_of: Departure,
        page: PendingPage,
        effects: &mut Vec<Effect>,
    ) {
        let row = page.rows.into_iter().next();
        let is_hurried = self.hurried.remove(&id);
        if !self.receipts.contains_key(&id) {
            if let Some(row) = row {
                self.take_in(now, row, as_of);
            }
            if is_hurried {
                self.scheduler.retry_now(now, id);
            }
            return;
        }
        if self.scheduler.knows(id) || self.is_older(id, as_of) {
            // Another page brought it into the window meanwhile, and it may have left again.
            return self.receipts_again(now, id, effects);
        }
        let mut row = row.filter(|row| row.delivery.attempts > 0);
        if let Some(forged) = row.take_if(|row| row.token == Token::Rejected) {
            self.quarantine(now, forged);
            return self.receipt_is_nothing(id, effects);
        }
        let record = row.and_then(|row| self.scheduler.end_row(row.delivery, row.place, State::Delivered { at: now }));
        if let Some(record) = record {
            self.record(record, None, None);
        } else if !self.scheduler.is_under_way(id) {
            self.receipt_is_nothing(id, effects);
        }
    }

    /// Answers the callers of a receipt for which there is nothing to record.
    fn receipt_is_nothing(&mut self, id: DeliveryId, effects: &mut Vec<Effect>) {
        for ticket in self.receipts.remove(&id).unwrap_or_default() {
            effects.push(Effect::Answer(ticket, CommandReply::Nothing));
        }
    }
}
