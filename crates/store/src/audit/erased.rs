//! Outcomes that are missing because somebody was erased. The file says who, by the mark their messages have in the
//! journal; that is a hint, and nothing is excused by it unless the journal announces the same at that row and a
//! checkpoint vouches for it.

use std::collections::BTreeMap;

use posthaste_core::id::{EndpointId, MessageId, TenantId};

use crate::journal::{Entry, ErasedWhom, Hidden};

/// An erasure that the file tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErasedHint {
    /// The row that announces it.
    pub row: u64,
    /// Whose, or who.
    pub tenant: TenantId,
    /// Whom.
    pub whom: ErasedWhom,
}

/// What an audit knows of erasures.
#[derive(Debug, Default)]
pub(super) struct Erased {
    hints: Vec<Hint>,
    marks: BTreeMap<Hidden, usize>,
    tenants: BTreeMap<TenantId, usize>,
    /// Messages with one of the marks, met so far.
    messages: BTreeMap<MessageId, usize>,
    /// Endpoints of erased tenants, met before they were erased.
    endpoints: BTreeMap<EndpointId, usize>,
    /// Outcomes that are missing for their sake.
    pub(super) excused: u64,
}

#[derive(Debug)]
struct Hint {
    hint: ErasedHint,
    is_announced: bool,
    excuses: bool,
}

impl Erased {
    pub(super) fn add(&mut self, hint: ErasedHint) {
        let place = self.hints.len();
        match hint.whom {
            ErasedWhom::Subject(Some(mark)) => _ = self.marks.insert(mark, place),
            ErasedWhom::Subject(None) => return,
            // The last reaches furthest.
            ErasedWhom::Tenant => _ = self.tenants.insert(hint.tenant, place),
        }
        self.hints.push(Hint { hint, is_announced: false, excuses: false });
    }

    /// Takes note of what belongs to whom.
    pub(super) fn meet(&mut self, row: u64, entry: &Entry) {
        if self.hints.is_empty() {
            return;
        }
        match entry {
            Entry::Accepted { message, tenant, subject, deliveries, .. } => {
                if let Some(place) = subject.and_then(|mark| self.marks.get(&mark)) {
                    self.messages.insert(*message, *place);
                }
                self.meet_endpoints(row, *tenant, deliveries.iter().map(|(endpoint, ..)| *endpoint));
            }
            Entry::Spread { tenant, deliveries, .. } => {
                self.meet_endpoints(row, *tenant, deliveries.iter().map(|made| made.queue.0));
            }
            Entry::Endpoint { endpoint, tenant, .. } => self.meet_endpoints(row, *tenant, [*endpoint]),
            Entry::Erased { tenant, whom, .. } => {
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

    /// Whether an outcome that is missing is one of somebody who was erased.
    pub(super) fn excuses(&mut self, message: MessageId, endpoint: EndpointId) -> bool {
        let place = self.messages.get(&message).or_else(|| self.endpoints.get(&endpoint));
        let Some(hint) = place.and_then(|place| self.hints.get_mut(*place)) else { return false };
        hint.excuses = true;
        self.excused += 1;
        true
    }

    /// The row of an erasure that excuses something and is not announced there, or not signed for.
    pub(super) fn unfounded(&self, signed: u64) -> Option<u64> {
        let unfounded = |hint: &&Hint| hint.excuses && (!hint.is_announced || hint.hint.row > signed);
        self.hints.iter().find(unfounded).map(|hint| hint.hint.row)
    }
}
