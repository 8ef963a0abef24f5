//! The simplest implementation of the contract: maps in memory, one call after the other.
//!
//! [`MemoryStore`] implements the traits of a [`crate::Store`]. What the simulator calls is a method of [`MemoryState`],
//! which is synchronous, so that the simulator decides when a call takes effect and when its result arrives.

mod dead_letter;
mod derived;
mod document;
mod endpoint;
mod erasure;
mod idempotency;
mod job;
mod journal;
mod retention;
mod rotation;
mod store;
mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::flow::breaker::Soft;
use posthaste_core::scheduler::{BreakerOf, Order, Reset, SoftBreaker};
use posthaste_core::{
    Cut, CutScope, Delivery, DeliveryId, EndpointId, IdRange, LaneId, LaneSettings, MessageId, RowIndex, State,
    TenantId, Tier, Timestamp, WriterId,
};

use crate::journal::JournalEntry;
use crate::row::collapse::{CollapseKey, superseded};
use crate::{
    Acceptance, Accepted, ApiKeyRef, ArrivedDelivery, AttemptRecord, AuditStamp, DeliveryRecord, Endpoint, Message,
    Pause, PauseScope, PendingPage, PendingRow, Query, RetentionOverride, Session, SessionStart, Settled, Settlement,
    StoreError, Token,
};
use dead_letter::LetterTables;
use journal::marks;
pub use store::MemoryStore;

/// All content of a store, in maps.
#[derive(Debug, Default)]
pub struct MemoryState {
    sessions: u64,
    messages: BTreeMap<MessageId, Arc<Message>>,
    pending: BTreeMap<DeliveryId, PendingRow>,
    delayed: BTreeSet<(Timestamp, DeliveryId)>,
    spilled: BTreeSet<(LaneId, Tier, DeliveryId)>,
    ended: BTreeMap<DeliveryId, Delivery>,
    attempts: BTreeMap<DeliveryId, Vec<AttemptRecord>>,
    excerpts: BTreeMap<(DeliveryId, u16), Bytes>,
    cuts: BTreeMap<CutScope, Cut>,
    pauses: BTreeMap<PauseScope, Pause>,
    breakers: BTreeMap<BreakerOf, Soft>,
    endpoints: BTreeMap<EndpointId, Arc<Endpoint>>,
    lanes: BTreeMap<LaneId, Arc<LaneSettings>>,
    keys: idempotency::IdempotencyCalls,
    dead: LetterTables,
    /// The journal: the entries of each call.
    happened: Vec<Vec<JournalEntry>>,
    /// Deliveries by lane and collapse key. Deliveries that have ended are removed when their key is used again.
    collapsing: BTreeSet<(LaneId, CollapseKey, DeliveryId)>,
    jobs: job::JobTables,
    documents: document::Documents,
    gone: retention::DeletedData,
    /// Retention overrides, by tenant.
    own: BTreeMap<TenantId, RetentionOverride>,
    erasures: erasure::ErasureTables,
    signed: journal::Lines,
    masters: rotation::MasterNumbers,
}

impl MemoryState {
    pub fn open(&mut self, at: Timestamp) -> SessionStart {
        self.sessions += 1;
        for cut in self.cuts.values_mut() {
            cut.spared.clear();
        }
        self.note([JournalEntry::Opened { session: self.sessions, at }]);
        let queues: BTreeSet<(LaneId, Tier)> = self.spilled.iter().map(|(lane, tier, _)| (*lane, *tier)).collect();
        SessionStart {
            session: self.session(),
            cuts: self.cuts.values().cloned().collect(),
            pauses: self.pauses.values().cloned().collect(),
            spilled: queues.into_iter().collect(),
            breakers: self.breakers.iter().map(|(of, soft)| SoftBreaker { of: *of, soft: *soft }).collect(),
        }
    }

    fn session(&self) -> Session {
        let writer = u32::try_from(self.sessions).ok().and_then(WriterId::new);
        Session { id: self.sessions, writer: writer.expect("fewer sessions than writer ids"), epoch: self.sessions }
    }

    fn guard(&self, session: Session) -> Result<(), StoreError> {
        if session == self.session() { Ok(()) } else { Err(StoreError::Fenced { session: session.id }) }
    }

    /// See [`crate::Outbox::accept`]. Also returns the arrivals.
    pub fn accept(
        &mut self,
        session: Session,
        messages: Vec<Accepted>,
    ) -> Result<(Vec<Acceptance>, Vec<ArrivedDelivery>), StoreError> {
        self.guard(session)?;
        let mut acceptances = Vec::with_capacity(messages.len());
        let mut arrivals = Vec::new();
        let mut happened = Vec::new();
        for accepted in messages {
            let entry = JournalEntry::accepted(&accepted, &marks(&accepted.message));
            let acceptance = self.once(accepted.idempotency, Some(accepted.message.id.0));
            let fresh = acceptance == Acceptance::Fresh;
            acceptances.push(acceptance);
            if !fresh {
                continue;
            }
            happened.push(entry);
            for new in accepted.deliveries {
                self.lanes.entry(new.delivery.lane).or_insert_with(|| Arc::clone(&new.lane));
                let (id, lane) = (new.delivery.id, new.delivery.lane);
                let old = new.collapse.map_or_else(Vec::new, |key| self.supersede(lane, key, accepted.message.at));
                happened.extend(old.iter().map(|old| JournalEntry::ended(old, None)));
                let superseded = old.iter().map(|old| old.id).collect();
                self.collapsing.extend(new.collapse.map(|key| (lane, key, id)));
                self.put(PendingRow { delivery: new.delivery.clone(), place: new.place, token: Token::Valid });
                arrivals.push(ArrivedDelivery { new, message: Arc::clone(&accepted.message), superseded });
            }
            if let Some(fan_out) = accepted.fan_out {
                self.jobs.fan_out(fan_out, &accepted.message);
            }
            self.messages.insert(accepted.message.id, accepted.message);
        }
        self.note(happened);
        Ok((acceptances, arrivals))
    }

    /// Ends the deliveries that wait under this key and returns them. Deliveries that a cut covers are left to the
    /// sweep.
    fn supersede(&mut self, lane: LaneId, key: CollapseKey, at: Timestamp) -> Vec<Delivery> {
        let all = (lane, key, DeliveryId::from_raw(0))..=(lane, key, DeliveryId::from_raw(u64::MAX));
        let known: Vec<DeliveryId> = self.collapsing.range(all).map(|(.., id)| *id).collect();
        let mut ended = Vec::new();
        for id in known {
            let cut = |row: &PendingRow| self.cuts.values().any(|cut| cut.covers(&row.delivery));
            if self.pending.get(&id).is_some_and(cut) {
                continue;
            }
            self.collapsing.remove(&(lane, key, id));
            if let Some(mut row) = self.remove(id) {
                row.delivery.state = superseded(&row.delivery, at);
                ended.push(row.delivery.clone());
                self.ended.insert(id, row.delivery);
            }
        }
        ended
    }

    pub fn settle(&mut self, session: Session, settlements: Vec<Settlement>) -> Result<Vec<Settled>, StoreError> {
        self.guard(session)?;
        let mut happened = Vec::new();
        let disable = |one: &Settlement| one.asked_to_disable().map(|at| (one.record.delivery.endpoint, at));
        let disabled: Vec<(EndpointId, Timestamp)> = settlements.iter().filter_map(disable).collect();
        let settled = settlements.into_iter().map(|settlement| self.settle_one(session, settlement, &mut happened));
        let settled = settled.collect();
        for (endpoint, at) in disabled {
            happened.extend(self.disable_endpoint(endpoint, at));
        }
        self.note(happened);
        Ok(settled)
    }

    fn settle_one(&mut self, session: Session, settlement: Settlement, happened: &mut Vec<JournalEntry>) -> Settled {
        let id = settlement.record.delivery.id;
        let mut late = JournalEntry::late(&settlement);
        if let Some(attempt) = settlement.attempt {
            let attempts = self.attempts.entry(id).or_default();
            // If the caller retries a settle whose result was lost, its attempt is already recorded.
            if attempts.contains(&attempt) {
                late = None;
            } else {
                attempts.push(attempt);
            }
        }
        let settled = JournalEntry::settled(&settlement);
        let paused = settlement.record.pauses_lane.then(|| JournalEntry::paused_by_end(&settlement));
        let record = settlement.record;
        let row = self.pending.get(&id);
        let mine =
            settlement.epoch == session.epoch && row.is_some_and(|row| row.delivery.attempts == record.attempts_before);
        if !mine {
            happened.extend(late);
            return Settled::Stale;
        }
        happened.extend(settled);
        self.remove(id);
        if let (Some(attempt), Some(excerpt)) = (settlement.attempt, settlement.excerpt) {
            self.excerpts.entry((id, attempt.number)).or_insert(excerpt);
        }
        if record.pauses_lane {
            let scope = PauseScope::Lane(record.delivery.lane);
            self.pauses.insert(scope, Pause::new(scope, None));
        }
        happened.extend(paused);
        if record.delivery.state.is_terminal() {
            self.file(&record.delivery);
            self.ended.insert(id, record.delivery);
        } else {
            self.put(PendingRow { delivery: record.delivery, place: record.place, token: Token::Valid });
        }
        Settled::Done
    }

    pub fn spill(&mut self, session: Session, deliveries: &[DeliveryId]) -> Result<(), StoreError> {
        self.guard(session)?;
        for id in deliveries {
            if let Some(row) = self.remove(*id) {
                self.put(PendingRow { place: RowIndex::Spilled, ..row });
            }
        }
        Ok(())
    }

    pub fn page(&self, query: Query, limit: u32) -> PendingPage {
        let limit = limit as usize;
        let mut next_due = None;
        let ids: Vec<DeliveryId> = match query {
            Query::Left { after, before } => self
                .pending
                .values()
                .filter(|row| row.place == RowIndex::Ready && row.delivery.id.0.writer() < before)
                .map(|row| row.delivery.id)
                .filter(|id| after.is_none_or(|after| *id > after))
                .take(limit)
                .collect(),
            Query::Delayed { after, until } => {
                let last = (until, DeliveryId::from_raw(u64::MAX));
                next_due = self.delayed.range((Excluded(last), Unbounded)).next().map(|(due, _)| *due);
                let from = after.map_or(Unbounded, Excluded);
                let rest = self.delayed.range((from, Unbounded));
                rest.take_while(|(due, _)| *due <= until).map(|(_, id)| *id).take(limit).collect()
            }
            Query::Spilled { lane, tier, order, span } => self.spilled_ids(lane, tier, order, span, limit),
            Query::One(id) => self.pending.get(&id).map(|row| row.delivery.id).into_iter().collect(),
        };
        let more = ids.len() == limit;
        let looked = ids.last().copied().filter(|_| more && matches!(query, Query::Left { .. }));
        PendingPage { more, looked, rows: ids.iter().map(|id| self.pending[id].clone()).collect(), next_due }
    }

    fn spilled_ids(&self, lane: LaneId, tier: Tier, order: Order, span: IdRange, limit: usize) -> Vec<DeliveryId> {
        let queue = |tier| {
            // A span may end before it begins and then has no rows. `range` would panic on it.
            let below = span.below.max(span.from);
            self.spilled.range((lane, tier, span.from)..(lane, tier, below)).map(|(_, _, id)| *id)
        };
        match order {
            Order::Fifo => queue(tier).take(limit).collect(),
            Order::NewestFirst => queue(tier).rev().take(limit).collect(),
            Order::Strict => {
                let mut ids: Vec<DeliveryId> = Tier::ALL.into_iter().flat_map(|tier| queue(tier).take(limit)).collect();
                ids.sort_unstable();
                ids.truncate(limit);
                ids
            }
        }
    }

    pub fn cut(&mut self, session: Session, cut: Cut, by: Option<ApiKeyRef>) -> Result<u64, StoreError> {
        self.guard(session)?;
        let mut happened = vec![JournalEntry::cut(&cut, by)];
        if let Some((endpoint, change)) = cut.endpoint {
            happened.extend(self.turn_endpoint(endpoint, change.into(), AuditStamp { at: cut.at, by }));
        }
        // The endpoint is changed already, so the stored cut must not repeat the change after a restart.
        let cut = Cut { endpoint: None, ..cut };
        self.note(happened);
        if let CutScope::Message(message) = cut.scope {
            self.jobs.end_fan_out(message);
        }
        let cut = self.cuts.entry(cut.scope).and_modify(|made| made.merge(cut.clone())).or_insert(cut);
        Ok(self.pending.values().filter(|row| cut.covers(&row.delivery)).count() as u64)
    }

    pub fn uncut(&mut self, session: Session, scope: CutScope, at: Timestamp) -> Result<(), StoreError> {
        self.guard(session)?;
        self.note([JournalEntry::Uncut { scope, at }]);
        self.cuts.remove(&scope);
        Ok(())
    }

    pub fn pause(&mut self, session: Session, pause: Pause, at: Timestamp) -> Result<(), StoreError> {
        self.guard(session)?;
        self.note([JournalEntry::paused(&pause, at)]);
        self.pauses.insert(pause.scope, pause);
        Ok(())
    }

    pub fn resume(&mut self, session: Session, scope: PauseScope, act: AuditStamp) -> Result<(), StoreError> {
        self.guard(session)?;
        self.note([JournalEntry::Resumed { scope, at: act.at, by: act.by }]);
        self.pauses.remove(&scope);
        Ok(())
    }

    pub fn reset(&mut self, session: Session, of: BreakerOf, how: Reset, act: AuditStamp) -> Result<(), StoreError> {
        self.guard(session)?;
        self.note([JournalEntry::Reset { of, how, at: act.at, by: act.by }]);
        Ok(())
    }

    pub fn remember(&mut self, session: Session, breakers: &[SoftBreaker]) -> Result<(), StoreError> {
        self.guard(session)?;
        self.breakers = breakers.iter().map(|breaker| (breaker.of, breaker.soft)).collect();
        Ok(())
    }

    pub fn lanes(&self, lanes: &[LaneId]) -> Vec<Arc<LaneSettings>> {
        lanes.iter().filter_map(|lane| self.lanes.get(lane)).cloned().collect()
    }

    /// Creates or changes a lane without an endpoint, for tests that need no URL.
    pub fn put_lane(&mut self, settings: Arc<LaneSettings>) {
        self.lanes.insert(settings.lane, settings);
    }

    pub fn delivery(&self, id: DeliveryId, now: Timestamp) -> Option<DeliveryRecord> {
        let attempts = self.attempts.get(&id).cloned().unwrap_or_default();
        if let Some(delivery) = self.ended.get(&id) {
            return Some(DeliveryRecord { delivery: delivery.clone(), place: None, attempts });
        }
        let row = self.pending.get(&id)?;
        let mut delivery = row.delivery.clone();
        let cut = self.cuts.values().find(|cut| cut.covers(&delivery));
        let sent = matches!(delivery.state, State::AwaitingAck { .. });
        match (cut.map(Cut::end).or_else(|| self.erasures.end_of(delivery.message)), delivery.expiry.at()) {
            (Some(end), _) => delivery.state = end,
            (None, Some(at)) if now >= at && !sent => delivery.state = State::Expired { at },
            _ => {}
        }
        Some(DeliveryRecord { delivery, place: Some(row.place), attempts })
    }

    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    fn put(&mut self, row: PendingRow) {
        let id = row.delivery.id;
        match row.place {
            RowIndex::Ready => {}
            RowIndex::Delayed => {
                let due = row.delivery.state.due().expect("a pending delivery has a due time");
                self.delayed.insert((due, id));
            }
            RowIndex::Spilled => {
                self.spilled.insert((row.delivery.lane, row.delivery.tier, id));
            }
        }
        self.pending.insert(id, row);
    }

    fn remove(&mut self, id: DeliveryId) -> Option<PendingRow> {
        let row = self.pending.remove(&id)?;
        if let Some(due) = row.delivery.state.due() {
            self.delayed.remove(&(due, id));
        }
        self.spilled.remove(&(row.delivery.lane, row.delivery.tier, id));
        Some(row)
    }
}
