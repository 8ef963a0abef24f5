//! Erasures in memory: erased messages and endpoints leave their maps at once, the rest with a later step, when nothing
//! of it is in flight.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use posthaste_core::{
    Cause, Cut, CutScope, Delivery, DeliveryId, EndpointId, Key, LaneId, MessageId, State, TenantId, Timestamp,
};

use super::journal::subject_mark;
use super::{MemoryState, MemoryStore};
use crate::journal::{ErasedTarget, Hidden, JournalEntry};
use crate::{
    AuditStamp, Endpoint, EndpointStatus, Erase, Erasure, ErasureStep, ErasureTarget, Erasures, ExportRequest, Message,
    PauseScope, Session, StoreError,
};

/// Erasures, by number.
#[derive(Debug, Default)]
pub(super) struct ErasureTables {
    all: BTreeMap<u64, Erasing>,
    /// Erased messages whose deliveries are not all removed yet, with the time of the erasure.
    messages: BTreeMap<MessageId, Timestamp>,
}

#[derive(Debug)]
struct Erasing {
    erasure: Erasure,
    lanes: Vec<LaneId>,
    messages: BTreeSet<MessageId>,
}

impl ErasureTables {
    /// The final state of pending deliveries of this message, if it was erased.
    pub(super) fn end_of(&self, message: MessageId) -> Option<State> {
        self.messages.get(&message).map(|at| State::Cancelled { at: *at, cause: Cause::Erased })
    }

    /// Whether this message was erased and some of its deliveries remain.
    pub(super) fn has(&self, message: MessageId) -> bool {
        self.messages.contains_key(&message)
    }
}

impl Erasures for MemoryStore {
    async fn erase(&self, session: Session, erase: Erase) -> Result<Erasure, StoreError> {
        self.lock().erase(session, &erase)
    }

    async fn erase_step(
        &self,
        session: Session,
        number: u64,
        now: Timestamp,
        under_way: Vec<DeliveryId>,
    ) -> Result<Option<ErasureStep>, StoreError> {
        self.lock().erase_step(session, number, now, &under_way)
    }

    async fn erasure(&self, number: u64) -> Result<Option<Erasure>, StoreError> {
        Ok(self.lock().erasures.all.get(&number).map(|erasing| erasing.erasure))
    }

    async fn unfinished_erasures(&self, limit: u32) -> Result<Vec<Erasure>, StoreError> {
        Ok(self.lock().unfinished_erasures(limit))
    }

    async fn note_export(&self, session: Session, asked: ExportRequest) -> Result<(), StoreError> {
        let memory = &mut *self.lock();
        memory.guard(session)?;
        let ExportRequest { tenant, at, by, .. } = asked;
        memory.note([JournalEntry::Exported { tenant, subject: memory.mark_of(tenant, &asked.subject), at, by }]);
        Ok(())
    }

    async fn count_erased(&self, messages: Vec<MessageId>) -> Result<u64, StoreError> {
        Ok(self.lock().count_erased(&messages))
    }
}

impl MemoryState {
    pub fn erase_step(
        &mut self,
        session: Session,
        number: u64,
        now: Timestamp,
        under_way: &[DeliveryId],
    ) -> Result<Option<ErasureStep>, StoreError> {
        self.guard(session)?;
        let Some(mut erasing) = self.erasures.all.remove(&number) else { return Ok(None) };
        let lanes = std::mem::take(&mut erasing.lanes);
        for lane in &lanes {
            // What is in flight ends by its own outcome.
            let theirs = |id: &&DeliveryId| self.pending.get(id).is_some_and(|row| row.delivery.lane == *lane);
            let spared: Vec<DeliveryId> = under_way.iter().filter(theirs).copied().collect();
            if let Some(cut) = self.cuts.get_mut(&CutScope::Lane(*lane)).filter(|cut| cut.cause == Cause::Erased) {
                cut.spared.extend(spared);
            }
        }
        if erasing.erasure.done.is_none() {
            if erasing.erasure.is_tenant {
                self.jobs.evict_tenant(erasing.erasure.tenant, erasing.erasure.at);
            }
            for id in std::mem::take(&mut erasing.messages) {
                if !self.erase_message(id, &mut erasing.erasure, under_way) {
                    erasing.messages.insert(id);
                }
            }
            if erasing.messages.is_empty() {
                erasing.erasure.done = Some(now);
                let Erasure { row, messages, deliveries, .. } = erasing.erasure;
                self.note([JournalEntry::ErasureDone { announced: row, messages, deliveries, at: now }]);
            }
        }
        let erasure = erasing.erasure;
        self.erasures.all.insert(number, erasing);
        Ok(Some(ErasureStep { erasure, lanes, waits: erasure.done.is_none() }))
    }

    pub fn erase(&mut self, session: Session, erase: &Erase) -> Result<Erasure, StoreError> {
        self.guard(session)?;
        let is_theirs =
            |message: &&Arc<Message>| message.tenant == erase.tenant && erase.whom.covers(message.subject.as_deref());
        let messages: BTreeSet<_> = self.messages.values().filter(is_theirs).map(|message| message.id).collect();
        let whom = match &erase.whom {
            ErasureTarget::Subject(subject) => ErasedTarget::Subject(self.mark_of(erase.tenant, subject)),
            ErasureTarget::Tenant => ErasedTarget::Tenant,
        };
        self.note([JournalEntry::Erased { tenant: erase.tenant, whom, at: erase.at, by: erase.by }]);
        let erasure = Erasure {
            number: self.erasures.all.len() as u64 + 1,
            tenant: erase.tenant,
            is_tenant: erase.whom == ErasureTarget::Tenant,
            row: self.happened.len() as u64,
            at: erase.at,
            messages: 0,
            deliveries: 0,
            done: None,
        };
        for id in &messages {
            self.messages.remove(id);
            self.erasures.messages.insert(*id, erase.at);
        }
        let (endpoints, lanes): (Vec<EndpointId>, Vec<LaneId>) = self.remove_endpoints(erase).into_iter().unzip();
        let keys = messages.iter().map(|id| id.0).chain(endpoints.iter().map(|id| id.0)).collect();
        self.forget_keys_of(&keys, erase.tenant, erasure.is_tenant);
        self.erasures.all.insert(erasure.number, Erasing { erasure, lanes, messages });
        Ok(erasure)
    }

    /// The hidden name of a subject, if a message or endpoint has it.
    fn mark_of(&self, tenant: TenantId, subject: &str) -> Option<Hidden> {
        let of_messages = self.messages.values().map(|message| (message.tenant, message.subject.as_deref()));
        let of_endpoints = self.endpoints.values().map(|endpoint| (endpoint.tenant, endpoint.subject.as_deref()));
        let is_known = of_messages.chain(of_endpoints).any(|of| of == (tenant, Some(subject)));
        is_known.then(|| subject_mark(tenant, subject))
    }

    fn remove_endpoints(&mut self, erase: &Erase) -> Vec<(EndpointId, LaneId)> {
        let is_theirs = |endpoint: &&Arc<Endpoint>| {
            endpoint.tenant == erase.tenant && erase.whom.covers(endpoint.subject.as_deref())
        };
        if erase.whom == ErasureTarget::Tenant {
            self.documents.retain(|_, document| document.tenant != erase.tenant);
        }
        let theirs = self.endpoints.values().filter(is_theirs);
        let gone: Vec<(EndpointId, LaneId)> = theirs.map(|endpoint| (endpoint.id, endpoint.lane)).collect();
        for (id, lane) in &gone {
            if erase.whom == ErasureTarget::Tenant {
                self.endpoints.remove(id);
                self.lanes.remove(lane);
            } else {
                // A tombstone stays: deliveries of other subjects' messages get their tenant from the endpoint.
                self.turn_endpoint(*id, EndpointStatus::Deleted, AuditStamp::at(erase.at));
                let cut = Cut::new(CutScope::Lane(*lane), Key::MAX, Cause::Erased, erase.at);
                self.cuts.entry(cut.scope).and_modify(|made| made.merge(cut.clone())).or_insert(cut);
            }
            self.pauses.remove(&PauseScope::Lane(*lane));
        }
        gone
    }

    /// Removes the rest of an erased message; `false` if one of its deliveries is in flight.
    fn erase_message(&mut self, id: MessageId, erasure: &mut Erasure, under_way: &[DeliveryId]) -> bool {
        let theirs = |delivery: &&Delivery| delivery.message == id;
        let pending: Vec<Delivery> = self.pending.values().map(|row| &row.delivery).filter(theirs).cloned().collect();
        let ended: Vec<DeliveryId> = self.ended.values().filter(theirs).map(|delivery| delivery.id).collect();
        let (left, gone): (Vec<_>, Vec<_>) = pending.into_iter().partition(|row| under_way.contains(&row.id));
        // A superseded delivery has ended, but its attempt may still be in flight.
        let (sent, ended): (Vec<_>, Vec<_>) = ended.into_iter().partition(|id| under_way.contains(id));
        let state = State::Cancelled { at: erasure.at, cause: Cause::Erased };
        let gone: Vec<Delivery> = gone.into_iter().map(|delivery| Delivery { state, ..delivery }).collect();
        self.note(gone.iter().map(|delivery| JournalEntry::ended(delivery, None)).collect::<Vec<_>>());
        for id in gone.iter().map(|delivery| delivery.id).chain(ended) {
            self.remove(id);
            self.let_outcome_go(id);
            self.jobs.forget_former_life(id);
            erasure.deliveries += 1;
        }
        if !left.is_empty() || !sent.is_empty() {
            return false;
        }
        self.jobs.forget_fan_out(id);
        self.erasures.messages.remove(&id);
        self.let_message_go(id);
        erasure.messages += 1;
        true
    }

    pub fn unfinished_erasures(&self, limit: u32) -> Vec<Erasure> {
        let all = self.erasures.all.values().map(|erasing| erasing.erasure);
        all.filter(|erasure| erasure.done.is_none()).take(limit as usize).collect()
    }

    pub fn count_erased(&self, messages: &[MessageId]) -> u64 {
        messages.iter().filter(|id| self.erasures.has(**id)).count() as u64
    }
}
