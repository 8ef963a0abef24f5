//! Outcomes that are missing because of an erasure. The file records each erasure, a subject by its hidden name in the
//! journal. That record is only a hint: it excuses a missing outcome only if the journal announces the same erasure in
//! the named row and a checkpoint covers that row.

use std::collections::BTreeMap;

use posthaste_core::{EndpointId, MessageId, TenantId};

use crate::journal::{ErasedTarget, Hidden, JournalEntry};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErasedHint {
    /// The row of the journal that announces it.
    pub row: u64,
    pub tenant: TenantId,
    /// Whether the tenant or one of its subjects was erased.
    pub whom: ErasedTarget,
}

/// The erasures known to an audit, and the messages and endpoints they cover.
#[derive(Debug, Default)]
pub(super) struct ErasureRecords {
    hints: Vec<Hint>,
    marks: BTreeMap<Hidden, usize>,
    tenants: BTreeMap<TenantId, usize>,
    messages: BTreeMap<MessageId, usize>,
    /// Endpoints of erased tenants, read before the row of the erasure.
    endpoints: BTreeMap<EndpointId, usize>,
    /// The number of missing outcomes excused by an erasure.
    pub(super) excused: u64,
}

#[derive(Debug)]
struct Hint {
    hint: ErasedHint,
    is_announced: bool,
    excuses: bool,
}

impl ErasureRecords {
    pub(super) fn add(&mut self, hint: ErasedHint) {
        let place = self.hints.len();
        match hint.whom {
            ErasedTarget::Subject(Some(mark)) => _ = self.marks.insert(mark, place),
            ErasedTarget::Subject(None) => return,
            // A later erasure of the same tenant covers more, so it replaces the earlier one.
            ErasedTarget::Tenant => _ = self.tenants.insert(hint.tenant, place),
        }
        self.hints.push(Hint { hint, is_announced: false, excuses: false });
    }

    /// Reads an entry: which messages and endpoints belong to an erasure, and whether it is announced.
    pub(super) fn meet(&mut self, row: u64, entry: &JournalEntry) {
        if self.hints.is_empty() {
            return;
        }
        match entry {
            JournalEntry::Accepted { message, tenant, subject, deliveries, .. } => {
                if let Some(place) = subject.and_then(|mark| self.marks.get(&mark)) {
                    self.messages.insert(*message, *place);
                }
                self.meet_endpoints(row, *tenant, deliveries.iter().map(|(endpoint, ..)| *endpoint));
            }
            JournalEntry::Spread { tenant, deliveries, .. } => {
                self.meet_endpoints(row, *tenant, deliveries.iter().map(|made| made.queue.0));
            }
            JournalEntry::Endpoint { endpoint, tenant, .. } => self.meet_endpoints(row, *tenant, [*endpoint]),
            JournalEntry::Erased { tenant, whom, .. } => {
                let same =
                    |hint: &&mut Hint| (hint.hint.row, hint.hint.tenant, hint.hint.whom) == (row, *tenant, *whom);
                self.hints.iter_mut().filter(same).for_each(|hint| hint.is_announced = true);
            }
            _ => {}
        }
    }

    fn meet_endpoints(&mut self, row: u64, tenant: TenantId, endpoints: impl IntoIterator<Item = EndpointId>) {
        if let Some(place) = self.tenants.get(&tenant)
            && self.hints[*place].hint.row >= row
        {
            self.endpoints.extend(endpoints.into_iter().map(|endpoint| (endpoint, *place)));
        }
    }

    /// Whether an erasure excuses a missing outcome. Counts it if so.
    pub(super) fn excuses(&mut self, message: MessageId, endpoint: EndpointId) -> bool {
        let place = self.messages.get(&message).or_else(|| self.endpoints.get(&endpoint));
        let Some(hint) = place.and_then(|place| self.hints.get_mut(*place)) else { return false };
        hint.excuses = true;
        self.excused += 1;
        true
    }

    /// The row of an erasure that excused an outcome although the journal does not announce it there, or no checkpoint
    /// covers that row. `signed` is the last row covered.
    pub(super) fn unfounded(&self, signed: u64) -> Option<u64> {
        let unfounded = |hint: &&Hint| hint.excuses && (!hint.is_announced || hint.hint.row > signed);
        self.hints.iter().find(unfounded).map(|hint| hint.hint.row)
    }
}
