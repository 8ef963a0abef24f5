//! Whose outcomes are missing, and whose may be. Where another time was agreed with a tenant, an announcement names it, and
//! is held against what the journal told was agreed, in a row that somebody has signed for.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste_core::id::TenantId;
use posthaste_core::time::Timestamp;

use crate::row::OwnRetention;

/// What an audit knows of tenants: of as many as have ever let something go.
#[derive(Debug, Default)]
pub(super) struct Agreements(BTreeMap<TenantId, Agreement>);

#[derive(Debug, Default)]
struct Agreement {
    /// How long histories are kept, and the row that told it.
    history: Option<(u64, Duration)>,
    /// Up to which end outcomes were announced to be gone.
    before: Option<Timestamp>,
    /// The latest end of one that is missing.
    latest_missing: Option<Timestamp>,
}

impl Agreements {
    /// A row tells what is agreed from now on.
    pub(super) fn tell(&mut self, row: u64, tenant: TenantId, own: OwnRetention) {
        let agreement = self.0.entry(tenant).or_default();
        // What is told again was told before.
        if agreement.history.map(|(_, kept)| kept) != own.history {
            agreement.history = own.history.map(|kept| (row, kept));
        }
    }

    /// How long a tenant's histories are kept, where rows up to `signed` told it.
    pub(super) fn history(&self, tenant: TenantId, signed: u64) -> Option<Duration> {
        self.0.get(&tenant)?.history.filter(|(row, _)| *row <= signed).map(|(_, kept)| kept)
    }

    /// Outcomes of a tenant were announced to be gone.
    pub(super) fn announced(&mut self, tenant: TenantId, before: Timestamp) {
        let agreement = self.0.entry(tenant).or_default();
        agreement.before = agreement.before.max(Some(before));
    }

    /// Takes note of an outcome that is missing: what was agreed and announced may come in a later row.
    pub(super) fn missing(&mut self, tenant: TenantId, at: Option<Timestamp>) {
        let agreement = self.0.entry(tenant).or_default();
        agreement.latest_missing = agreement.latest_missing.max(at);
    }

    /// Whether one is missing that ended later than was announced of its tenant, or of everybody.
    pub(super) fn are_late(&self, of_all: Option<Timestamp>) -> bool {
        self.0.values().any(|agreement| agreement.latest_missing > agreement.before.max(of_all))
    }
}
