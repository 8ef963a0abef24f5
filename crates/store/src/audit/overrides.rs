//! Missing outcomes by tenant. If a tenant has a retention override, deletions under it are announced with the tenant's
//! id. The announcement is checked against the override in the journal, which counts once a checkpoint covers its row.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste_core::{TenantId, Timestamp};

use crate::row::RetentionOverride;

/// Retention overrides, announcements and missing outcomes by tenant.
#[derive(Debug, Default)]
pub(super) struct OverrideHistory(BTreeMap<TenantId, Agreement>);

#[derive(Debug, Default)]
struct Agreement {
    history: Option<(u64, Duration)>,
    /// The latest retention limit announced for outcomes.
    before: Option<Timestamp>,
    /// The latest end of a missing outcome.
    latest_missing: Option<Timestamp>,
}

impl OverrideHistory {
    /// Sets a tenant's override, as `row` records it.
    pub(super) fn set(&mut self, row: u64, tenant: TenantId, own: RetentionOverride) {
        let agreement = self.0.entry(tenant).or_default();
        // Retention writes an override again before it deletes its row. Such a repetition keeps the first row.
        if agreement.history.map(|(_, kept)| kept) != own.history {
            agreement.history = own.history.map(|kept| (row, kept));
        }
    }

    /// A tenant's override for histories, if a row up to `signed` set it.
    pub(super) fn history(&self, tenant: TenantId, signed: u64) -> Option<Duration> {
        self.0.get(&tenant)?.history.filter(|(row, _)| *row <= signed).map(|(_, kept)| kept)
    }

    /// Records the retention limit of an announcement for a tenant.
    pub(super) fn announced(&mut self, tenant: TenantId, before: Timestamp) {
        let agreement = self.0.entry(tenant).or_default();
        agreement.before = agreement.before.max(Some(before));
    }

    /// Records a missing outcome. It is judged at the end, because the override and announcement may be in later rows.
    pub(super) fn missing(&mut self, tenant: TenantId, at: Option<Timestamp>) {
        let agreement = self.0.entry(tenant).or_default();
        agreement.latest_missing = agreement.latest_missing.max(at);
    }

    /// Whether an outcome is missing that ended later than the limits announced for its tenant and for all tenants.
    pub(super) fn are_late(&self, of_all: Option<Timestamp>) -> bool {
        self.0.values().any(|agreement| agreement.latest_missing > agreement.before.max(of_all))
    }
}
