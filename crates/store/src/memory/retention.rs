//! What was kept for long enough leaves the maps: a phase at a time, as a run over a small file would.

use std::collections::BTreeSet;

use posthaste_core::cause::Cause;
use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, JobId, MessageId};
use posthaste_core::state::State;
use posthaste_core::time::Timestamp;

use super::Memory;
use crate::StoreError;
use crate::journal::Entry;
use crate::row::idempotency::Day;
use crate::row::{Retained, Retention, RetentionPhase, RetentionStep, Session};

/// What is gone, for those who look at the journal to find things.
#[derive(Debug, Default)]
pub(super) struct Gone {
    pub(super) deliveries: BTreeSet<DeliveryId>,
    pub(super) messages: BTreeSet<MessageId>,
    /// Messages past their time that are still needed.
    kept: BTreeSet<MessageId>,
    /// Rows of the journal up to this one.
    pub(super) journal: u64,
}

impl Memory {
    /// See [`crate::Archive::retain`].
    pub fn retain(
        &mut self,
        session: Session,
        retention: Retention,
        now: Timestamp,
        step: RetentionStep,
    ) -> Result<Retained, StoreError> {
        self.guard(session)?;
        let old = retention.old(step.phase, now);
        let (removed, upto) = match step.phase {
            RetentionPhase::Pending => (self.give_up(old, now), 0),
            RetentionPhase::Messages => self.let_messages_go(old),
            RetentionPhase::History => self.let_history_go(old),
            RetentionPhase::Kept => self.let_kept_go(),
            RetentionPhase::Jobs => self.jobs.let_go(old),
            RetentionPhase::Keys => (self.forget_keys_before(Day::of(old), usize::MAX), 0),
            RetentionPhase::Journal => self.let_journal_go(old),
            RetentionPhase::Space => (0, 0),
        };
        if removed > 0 && step.phase != RetentionPhase::Pending {
            self.note([Entry::Retained { phase: step.phase, upto, removed: removed as u64, before: old, at: now }]);
        }
        Ok(Retained { removed: removed as u64, next: step.next_phase() })
    }

    fn give_up(&mut self, old: Timestamp, now: Timestamp) -> usize {
        let waits = |delivery: &Delivery| {
            let shown = self.delivery(delivery.id, now).map(|shown| shown.delivery.state);
            !matches!(delivery.state, State::AwaitingAck { .. }) && shown.is_some_and(|state| !state.is_terminal())
        };
        let ends: Vec<Delivery> = self
            .pending
            .values()
            .map(|row| &row.delivery)
            .filter(|delivery| delivery.born <= old && waits(delivery))
            .map(|delivery| Delivery { state: State::Dead { at: now, cause: Cause::Retention }, ..delivery.clone() })
            .collect();
        self.note(ends.iter().map(|delivery| Entry::ended(delivery, None)).collect::<Vec<_>>());
        let count = ends.len();
        for delivery in ends {
            self.remove(delivery.id);
            self.file(&delivery);
            self.ended.insert(delivery.id, delivery);
        }
        count
    }

    fn let_messages_go(&mut self, old: Timestamp) -> (usize, u64) {
        let past: Vec<MessageId> = self
            .messages
            .values()
            .filter(|message| message.at <= old && !self.gone.kept.contains(&message.id))
            .map(|message| message.id)
            .collect();
        let upto = past.last().map_or(0, |id| id.raw());
        for id in &past {
            if self.needs(*id) {
                self.gone.kept.insert(*id);
            } else {
                self.let_message_go(*id);
            }
        }
        (past.len(), upto)
    }

    fn let_kept_go(&mut self) -> (usize, u64) {
        let over: Vec<MessageId> = self.gone.kept.iter().copied().filter(|id| !self.needs(*id)).collect();
        for id in &over {
            self.gone.kept.remove(id);
            self.let_message_go(*id);
        }
        (over.len(), over.last().map_or(0, |id| id.raw()))
    }

    pub(super) fn let_message_go(&mut self, id: MessageId) {
        self.messages.remove(&id);
        self.jobs.chunks.retain(|(of, _), _| *of != id);
        self.jobs.missed.retain(|(of, _)| *of != id);
        self.gone.messages.insert(id);
    }

    /// Whether a payload is still needed.
    fn needs(&self, id: MessageId) -> bool {
        self.pending.values().any(|row| row.delivery.message == id)
            || self.dead.has_message(id)
            || self.jobs.is_fanning_out(JobId(id.0))
    }

    fn let_history_go(&mut self, old: Timestamp) -> (usize, u64) {
        let at = |delivery: &Delivery| crate::number::split(&delivery.state).1;
        let past: Vec<DeliveryId> = self
            .ended
            .values()
            .filter(|delivery| at(delivery).is_some_and(|at| at <= old))
            .map(|delivery| delivery.id)
            .collect();
        past.iter().for_each(|id| self.let_outcome_go(*id));
        (past.len(), past.last().map_or(0, |id| id.raw()))
    }

    pub(super) fn let_outcome_go(&mut self, id: DeliveryId) {
        self.ended.remove(&id);
        self.attempts.remove(&id);
        self.excerpts.retain(|(of, _), _| *of != id);
        self.dead.let_go(id);
        self.jobs.forget_life(id);
        self.gone.deliveries.insert(id);
    }

    fn let_journal_go(&mut self, old: Timestamp) -> (usize, u64) {
        // A row may not say when it was: the one behind it was not earlier.
        let rows = self.journal(self.gone.journal, u32::MAX);
        let behind = rows.iter().skip(1).take_while(|row| row.at <= old);
        let past: Vec<u64> = rows.iter().zip(behind).map(|(row, _)| row.number).collect();
        let upto = past.last().copied().unwrap_or(self.gone.journal);
        self.gone.journal = upto;
        self.signed.let_go(upto);
        (past.len(), upto)
    }
}
