//! What follows from the journal: indexes and counts that can be thrown away and made again.
//!
//! Pure: entries in, rows out, sorted so that whoever writes them touches each page once.

use std::collections::BTreeMap;

use posthaste_core::id::{DeliveryId, LaneId, MessageId, TenantId};
use posthaste_core::state::State;
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;

use crate::journal::{Entry, Hidden};
use crate::row::{Counted, Hour};

/// One row of what is derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fact {
    /// A delivery is one of this lane's.
    Delivery(LaneId, DeliveryId),
    /// A message has this name.
    Named(NameKind, Hidden, MessageId),
    /// So many more, or fewer, are pending in this queue.
    Pending(LaneId, Tier, i64),
    /// So many more of this in this hour.
    Tally(TenantId, Hour, Counted, i64),
}

/// What a name is a name of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NameKind {
    Subject,
    Correlation,
}

/// What follows from some entries.
#[derive(Debug, Default)]
pub(crate) struct Derived {
    pub(crate) deliveries: Vec<(LaneId, DeliveryId)>,
    pub(crate) names: Vec<(NameKind, Hidden, MessageId)>,
    pub(crate) pending: BTreeMap<(LaneId, Tier), i64>,
    pub(crate) tallies: BTreeMap<(TenantId, Hour, Counted), i64>,
}

impl Derived {
    /// Adds what follows from an entry. `owner` says whose a lane is.
    pub(crate) fn add(&mut self, entry: &Entry, mut owner: impl FnMut(LaneId) -> TenantId) {
        match entry {
            Entry::Accepted { message, tenant, at, subject, correlation, deliveries, .. } => {
                for (kind, hidden) in [(NameKind::Subject, subject), (NameKind::Correlation, correlation)] {
                    self.names.extend(hidden.map(|hidden| (kind, hidden, *message)));
                }
                self.tally(*tenant, *at, Counted::Messages, 1);
                self.made(DeliveryId(message.0.plus(1)), deliveries);
                self.tally(*tenant, *at, Counted::Deliveries, deliveries.len());
            }
            Entry::Attempted { lane, attempt, .. } | Entry::Late { lane, attempt, .. } => {
                self.tally(owner(*lane), attempt.at, Counted::Attempts, 1);
            }
            Entry::Ended { lane, tier, state, attempt, .. } => {
                *self.pending.entry((*lane, *tier)).or_default() -= 1;
                let tenant = owner(*lane);
                if let Some(attempt) = attempt {
                    self.tally(tenant, attempt.at, Counted::Attempts, 1);
                }
                if let Some((counted, at)) = end(*state) {
                    self.tally(tenant, at, counted, 1);
                }
            }
            Entry::Spread { tenant, at, deliveries, .. } => {
                for (delivery, _, lane, tier) in deliveries {
                    self.made(*delivery, &[(*lane, *tier)]);
                }
                self.tally(*tenant, *at, Counted::Deliveries, deliveries.len());
            }
            Entry::Opened { .. }
            | Entry::Cut { .. }
            | Entry::Uncut { .. }
            | Entry::Paused { .. }
            | Entry::Resumed { .. }
            | Entry::Endpoint { .. }
            | Entry::Job { .. }
            | Entry::Purged { .. }
            | Entry::Retained { .. } => {}
        }
    }

    /// Deliveries were made whose ids begin with this one.
    fn made(&mut self, first: DeliveryId, queues: &[(LaneId, Tier)]) {
        for (n, (lane, tier)) in (0..).zip(queues) {
            self.deliveries.push((*lane, DeliveryId(first.0.plus(n))));
            *self.pending.entry((*lane, *tier)).or_default() += 1;
        }
    }

    fn tally(&mut self, tenant: TenantId, at: Timestamp, counted: Counted, count: usize) {
        if count > 0 {
            *self.tallies.entry((tenant, Hour::of(at), counted)).or_default() +=
                i64::try_from(count).unwrap_or(i64::MAX);
        }
    }

    /// Everything as rows, in the order of their tables' keys. The same entries give the same rows.
    pub(crate) fn into_facts(self) -> Vec<Fact> {
        let deliveries = self.deliveries.into_iter().map(|(lane, id)| Fact::Delivery(lane, id));
        let names = self.names.into_iter().map(|(kind, hidden, message)| Fact::Named(kind, hidden, message));
        let mut facts: Vec<Fact> = deliveries.chain(names).collect();
        facts.sort_unstable();
        let pending = self.pending.into_iter().map(|((lane, tier), more)| Fact::Pending(lane, tier, more));
        let tallies =
            self.tallies.into_iter().map(|((tenant, hour, counted), more)| Fact::Tally(tenant, hour, counted, more));
        facts.extend(pending.chain(tallies));
        facts
    }
}

/// How a delivery's end is counted, and when it was.
fn end(state: State) -> Option<(Counted, Timestamp)> {
    match state {
        State::Delivered { at } => Some((Counted::Delivered, at)),
        State::Dead { at, .. } => Some((Counted::Dead, at)),
        State::Expired { at } => Some((Counted::Expired, at)),
        State::Cancelled { at, .. } => Some((Counted::Cancelled, at)),
        State::Queued { .. } | State::Retry { .. } | State::AwaitingAck { .. } | State::Dispatching => None,
    }
}
