//! Sweeps in memory: see [`Outbox::sweep`](crate::Outbox::sweep).

use std::ops::Bound::{Excluded, Unbounded};

use posthaste_core::{Cut, CutScope, DeliveryId, RowIndex, State};

use super::MemoryState;
use crate::journal::JournalEntry;
use crate::{PendingRow, SWEEP_ENDS_MAX, SWEEP_LOOKS_MAX, Session, StoreError, Sweep, SweptRows};

impl MemoryState {
    /// See [`Outbox::sweep`](crate::Outbox::sweep).
    pub fn sweep(&mut self, session: Session, sweep: Sweep, under_way: &[DeliveryId]) -> Result<SweptRows, StoreError> {
        self.guard(session)?;
        let mut swept = SweptRows::default();
        let mut ends = Vec::new();
        for (looked, row) in self.looked_at(sweep).enumerate() {
            if ends.len() == SWEEP_ENDS_MAX as usize || looked == SWEEP_LOOKS_MAX as usize {
                swept.stopped_at = self.looked_at(sweep).nth(looked - 1).map(|row| row.delivery.id);
                break;
            }
            let Some((end, spared)) = self.end_of(sweep, row) else { continue };
            if spared || under_way.contains(&row.delivery.id) {
                swept.spared += 1;
            } else {
                ends.push((row.delivery.id, end));
            }
        }
        for (id, end) in ends {
            let Some(row) = self.remove(id) else { continue };
            let mut delivery = row.delivery;
            delivery.state = end;
            self.file(&delivery);
            self.ended.insert(id, delivery);
            swept.ended.push(id);
        }
        swept.ended.sort_unstable();
        let entries: Vec<JournalEntry> =
            swept.ended.iter().map(|id| JournalEntry::ended(&self.ended[id], None)).collect();
        self.note(entries);
        Ok(swept)
    }

    /// The rows that a sweep reads, in its order.
    fn looked_at(&self, sweep: Sweep) -> Box<dyn Iterator<Item = &PendingRow> + '_> {
        match sweep {
            Sweep::Cut(CutScope::Message(message)) => {
                let upto = self.cuts.get(&CutScope::Message(message)).map(|cut| cut.upto);
                let mine = move |row: &&PendingRow| {
                    row.delivery.message == message && upto.is_some_and(|upto| row.delivery.id.0 <= upto)
                };
                Box::new(self.pending.values().filter(mine))
            }
            Sweep::Cut(CutScope::Lane(lane)) => {
                let upto = self.cuts.get(&CutScope::Lane(lane)).map(|cut| cut.upto);
                let spilled =
                    self.spilled.iter().filter(move |(of, _, id)| *of == lane && upto.is_some_and(|upto| id.0 <= upto));
                Box::new(spilled.map(|(_, _, id)| &self.pending[id]))
            }
            Sweep::Roll { after, .. } => {
                let from = after.map_or(Unbounded, Excluded);
                Box::new(self.pending.range((from, Unbounded)).map(|(_, row)| row))
            }
        }
    }

    /// The final state of a row whose delivery has ended, and whether the sweep must skip it because its cut spared it.
    fn end_of(&self, sweep: Sweep, row: &PendingRow) -> Option<(State, bool)> {
        let delivery = &row.delivery;
        let by_cut = |scope: CutScope| {
            let cut = self.cuts.get(&scope)?;
            let all = Cut { spared: Vec::new(), ..cut.clone() };
            let is_left = cut.spared.contains(&delivery.id) && sweep.leaves_spared(cut);
            all.covers(delivery).then(|| (cut.end(), is_left))
        };
        match sweep {
            Sweep::Cut(scope) => {
                let found = matches!(scope, CutScope::Message(_)) || row.place == RowIndex::Spilled;
                by_cut(scope).filter(|_| found)
            }
            Sweep::Roll { now, .. } => by_cut(CutScope::Lane(delivery.lane)).or_else(|| {
                let sent = matches!(delivery.state, State::AwaitingAck { .. });
                let at = delivery.expiry.at().filter(|at| now >= *at && !sent)?;
                Some((State::Expired { at }, false))
            }),
        }
    }
}
