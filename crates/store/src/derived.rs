//! Data derived from the journal: indexes and counts that can be dropped and rebuilt.
//!
//! Pure functions from entries to rows. The rows are sorted, so that writing them touches each database page once.

use std::collections::BTreeMap;

use posthaste_core::{DeliveryId, EndpointId, LaneId, MessageId, State, TenantId, Tier, Timestamp};

use crate::journal::{Hidden, JournalEntry};
use crate::row::{AttemptRecord, CountedEvent, UtcHour};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DerivedFact {
    Delivery(EndpointId, DeliveryId),
    Named(NameKind, Hidden, MessageId),
    /// Change of the number of pending deliveries in this queue.
    Pending(LaneId, Tier, i64),
    /// Change of a count over all queues.
    Depth(Depth, i64),
    Tally(TenantId, UtcHour, CountedEvent, i64),
}

/// A count over all queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Depth {
    Tier(Tier),
    /// Pending deliveries of any tier without an attempt.
    Untried,
}

impl Depth {
    /// All counts, in the order of their numbers in the store.
    pub(crate) const ALL: [Self; 4] =
        [Self::Tier(Tier::Transactional), Self::Tier(Tier::Promotional), Self::Tier(Tier::Engagement), Self::Untried];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NameKind {
    Subject,
    Correlation,
}

/// The part of the derived data to compute. A query about one lane reads as many entries as one about all lanes, but
/// drops the data derived for the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Only {
    #[default]
    Everything,
    Depth,
    Endpoint(EndpointId),
    Lane(LaneId),
    Name(NameKind, Hidden),
    Tenant(TenantId),
}

#[derive(Debug, Default)]
pub(crate) struct Derived {
    only: Only,
    pub(crate) deliveries: Vec<(EndpointId, DeliveryId)>,
    pub(crate) names: Vec<(NameKind, Hidden, MessageId)>,
    pub(crate) pending: BTreeMap<(LaneId, Tier), i64>,
    pub(crate) depth: BTreeMap<Depth, i64>,
    pub(crate) tallies: BTreeMap<(TenantId, UtcHour, CountedEvent), i64>,
}

impl Derived {
    /// Empty derived data that collects only this part.
    pub(crate) fn of(only: Only) -> Self {
        Self { only, ..Self::default() }
    }

    /// Adds the data derived from an entry. `owner` returns the tenant of an endpoint.
    pub(crate) fn add<E>(
        &mut self,
        entry: &JournalEntry,
        mut owner: impl FnMut(EndpointId) -> Result<TenantId, E>,
    ) -> Result<(), E> {
        match entry {
            JournalEntry::Accepted { message, tenant, at, subject, correlation, deliveries, .. } => {
                for (kind, hidden) in [(NameKind::Subject, subject), (NameKind::Correlation, correlation)] {
                    let wanted = hidden.filter(|hidden| self.includes(Only::Name(kind, *hidden)));
                    self.names.extend(wanted.map(|hidden| (kind, hidden, *message)));
                }
                self.tally(*tenant, *at, CountedEvent::Messages, 1);
                self.made(DeliveryId(message.0.plus(1)), deliveries);
                self.tally(*tenant, *at, CountedEvent::Deliveries, deliveries.len());
            }
            JournalEntry::Attempted { endpoint, attempt, .. } => {
                self.tried(*attempt);
                if self.has_tallies() {
                    self.tally(owner(*endpoint)?, attempt.at, CountedEvent::Attempts, 1);
                }
            }
            JournalEntry::Late { endpoint, attempt, .. } if self.has_tallies() => {
                self.tally(owner(*endpoint)?, attempt.at, CountedEvent::Attempts, 1);
            }
            JournalEntry::Ended { endpoint, lane, tier, state, attempts, attempt, .. } => {
                self.pending(*lane, *tier, -1);
                match attempt {
                    Some(attempt) => self.tried(*attempt),
                    None if *attempts == 0 => self.depth(Depth::Untried, -1),
                    None => {}
                }
                if !self.has_tallies() {
                    return Ok(());
                }
                let tenant = owner(*endpoint)?;
                if let Some(attempt) = attempt {
                    self.tally(tenant, attempt.at, CountedEvent::Attempts, 1);
                }
                if let Some((counted, at)) = end(*state) {
                    self.tally(tenant, at, counted, 1);
                }
            }
            JournalEntry::Spread { tenant, at, deliveries, .. } => {
                for made in deliveries {
                    self.made(made.delivery, &[made.queue]);
                }
                self.tally(*tenant, *at, CountedEvent::Deliveries, deliveries.len());
            }
            JournalEntry::Late { .. }
            | JournalEntry::Opened { .. }
            | JournalEntry::Cut { .. }
            | JournalEntry::Uncut { .. }
            | JournalEntry::Paused { .. }
            | JournalEntry::Hurried { .. }
            | JournalEntry::Reset { .. }
            | JournalEntry::Resumed { .. }
            | JournalEntry::Endpoint { .. }
            | JournalEntry::Job { .. }
            | JournalEntry::Purged { .. }
            | JournalEntry::Retained { .. }
            | JournalEntry::Agreed { .. }
            | JournalEntry::Secret { .. }
            | JournalEntry::Document { .. }
            | JournalEntry::Erased { .. }
            | JournalEntry::Exported { .. }
            | JournalEntry::ErasureDone { .. }
            | JournalEntry::RotationBegun { .. }
            | JournalEntry::RotationEnded { .. } => {}
        }
        Ok(())
    }

    /// Adds new deliveries with consecutive ids from `first`.
    fn made(&mut self, first: DeliveryId, queues: &[(EndpointId, LaneId, Tier)]) {
        for (n, (endpoint, lane, tier)) in (0..).zip(queues) {
            if self.includes(Only::Endpoint(*endpoint)) {
                self.deliveries.push((*endpoint, DeliveryId(first.0.plus(n))));
            }
            self.pending(*lane, *tier, 1);
            self.depth(Depth::Untried, 1);
        }
    }

    fn pending(&mut self, lane: LaneId, tier: Tier, more: i64) {
        if self.includes(Only::Lane(lane)) {
            *self.pending.entry((lane, tier)).or_default() += more;
        }
        self.depth(Depth::Tier(tier), more);
    }

    /// Counts an attempt: after its first, a delivery is no longer untried.
    fn tried(&mut self, attempt: AttemptRecord) {
        if attempt.number == 1 {
            self.depth(Depth::Untried, -1);
        }
    }

    fn depth(&mut self, depth: Depth, more: i64) {
        if self.includes(Only::Depth) {
            *self.depth.entry(depth).or_default() += more;
        }
    }

    fn tally(&mut self, tenant: TenantId, at: Timestamp, counted: CountedEvent, count: usize) {
        if count > 0 && self.includes(Only::Tenant(tenant)) {
            *self.tallies.entry((tenant, UtcHour::of(at), counted)).or_default() +=
                i64::try_from(count).unwrap_or(i64::MAX);
        }
    }

    /// Whether this part is collected.
    fn includes(&self, part: Only) -> bool {
        self.only == Only::Everything || self.only == part
    }

    fn has_tallies(&self) -> bool {
        matches!(self.only, Only::Everything | Only::Tenant(_))
    }

    /// All derived data as rows, in the order of their tables' keys. The same entries give the same rows.
    pub(crate) fn into_facts(self) -> Vec<DerivedFact> {
        let deliveries = self.deliveries.into_iter().map(|(endpoint, id)| DerivedFact::Delivery(endpoint, id));
        let names = self.names.into_iter().map(|(kind, hidden, message)| DerivedFact::Named(kind, hidden, message));
        let mut facts: Vec<DerivedFact> = deliveries.chain(names).collect();
        facts.sort_unstable();
        let pending = self.pending.into_iter().map(|((lane, tier), more)| DerivedFact::Pending(lane, tier, more));
        let tallies = self
            .tallies
            .into_iter()
            .map(|((tenant, hour, counted), more)| DerivedFact::Tally(tenant, hour, counted, more));
        let depth = self.depth.into_iter().map(|(depth, more)| DerivedFact::Depth(depth, more));
        facts.extend(pending.chain(depth).chain(tallies));
        facts
    }
}

/// The counter for a delivery's end, and the time of the end.
fn end(state: State) -> Option<(CountedEvent, Timestamp)> {
    match state {
        State::Delivered { at } => Some((CountedEvent::Delivered, at)),
        State::Dead { at, .. } => Some((CountedEvent::Dead, at)),
        State::Expired { at } => Some((CountedEvent::Expired, at)),
        State::Cancelled { at, .. } => Some((CountedEvent::Cancelled, at)),
        State::Queued { .. } | State::Retry { .. } | State::AwaitingAck { .. } | State::Dispatching => None,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use posthaste_core::Cause;

    use super::*;

    const AT: Timestamp = Timestamp::from_millis(5);

    /// Six messages of two tenants in two lanes under three names, half of them delivered.
    fn entries() -> Vec<JournalEntry> {
        let attempt =
            AttemptRecord { number: 1, at: AT, took: std::time::Duration::ZERO, cause: Cause::Ok, status: None };
        let mut entries = Vec::new();
        for n in 1..=6 {
            let (message, lane) = (MessageId::from_raw(10 * n), LaneId::from_raw(n % 2));
            let endpoint = EndpointId::from_raw(n % 2);
            entries.push(JournalEntry::Accepted {
                message,
                tenant: TenantId::from_raw(n % 2),
                at: AT,
                digest: [0; 32],
                subject: None,
                correlation: Some(Hidden([u8::try_from(n % 3).expect("small"); 16])),
                deliveries: vec![(endpoint, lane, Tier::Promotional)],
            });
            let delivery = DeliveryId(message.0.plus(1));
            let (tier, state) = (Tier::Promotional, State::Delivered { at: AT });
            if n < 4 {
                entries.push(JournalEntry::Ended {
                    delivery,
                    message,
                    endpoint,
                    lane,
                    tier,
                    state,
                    attempts: 1,
                    attempt: Some(attempt),
                });
            }
        }
        entries
    }

    fn derived(only: Only) -> Derived {
        let mut derived = Derived::of(only);
        for entry in entries() {
            let Ok(()) = derived.add(&entry, |of| Ok::<_, Infallible>(TenantId::from_raw(of.raw())));
        }
        derived
    }

    #[test]
    fn each_part_equals_the_same_part_of_everything() {
        let all = derived(Only::Everything);
        assert_eq!((all.deliveries.len(), all.names.len()), (6, 6));
        let lane = LaneId::from_raw(1);
        let part = derived(Only::Lane(lane));
        assert!(part.deliveries.is_empty() && part.names.is_empty() && part.tallies.is_empty());
        assert!(part.pending.iter().eq(all.pending.iter().filter(|((of, _), _)| *of == lane)));
        let endpoint = EndpointId::from_raw(1);
        let part = derived(Only::Endpoint(endpoint));
        assert!(part.names.is_empty() && part.tallies.is_empty() && part.pending.is_empty());
        let endpoint_deliveries = all.deliveries.iter().copied().filter(|(of, _)| *of == endpoint);
        assert_eq!(part.deliveries, endpoint_deliveries.collect::<Vec<_>>());
        let name = (NameKind::Correlation, Hidden([2; 16]));
        let part = derived(Only::Name(name.0, name.1));
        assert!(part.deliveries.is_empty() && part.pending.is_empty() && part.tallies.is_empty());
        assert_eq!(part.names, all.names.iter().copied().filter(|of| (of.0, of.1) == name).collect::<Vec<_>>());
        let part = derived(Only::Depth);
        assert!(part.deliveries.is_empty() && part.pending.is_empty() && part.names.is_empty());
        let expected = [(Depth::Tier(Tier::Promotional), 3), (Depth::Untried, 3)];
        assert_eq!((part.depth, &all.depth), (expected.into_iter().collect(), &expected.into_iter().collect()));
        let tenant = TenantId::from_raw(1);
        let part = derived(Only::Tenant(tenant));
        assert!(part.deliveries.is_empty() && part.pending.is_empty() && part.names.is_empty());
        assert!(part.tallies.iter().eq(all.tallies.iter().filter(|((of, ..), _)| *of == tenant)));
    }
}
