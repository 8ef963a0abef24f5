//! Erases subjects and tenants, for both routes.

use posthaste_core::TenantId;
use posthaste_engine::engine::NotDone;
use posthaste_engine::erase::ErasureStarted;
use posthaste_store::{ApiKeyRef, Erasure, ErasureTarget};

use super::prelude::*;
use crate::problem::not_written;

/// Erases a subject or a tenant. After the answer its data can no longer be read; its rows are removed in steps.
pub(super) async fn erase<S: Store, C: Clock>(
    api: &Api<S, C>,
    tenant: TenantId,
    whom: ErasureTarget,
    by: Option<ApiKeyRef>,
) -> Answer {
    let erased = api.engine.erase(tenant, whom, by).await.map_err(not_erased)?;
    let Erasure { row, is_tenant, .. } = erased.erasure;
    tracing::info!(audit_row = row, is_tenant, "erased a subject or a tenant");
    Ok(json(StatusCode::OK, &ErasedView::of(&erased)))
}

fn not_erased(error: NotDone) -> Problem {
    match error {
        NotDone::Ended(_) => error.into(),
        NotDone::Store(error) => not_written(
            &error,
            "it may have been erased, which is known only after a restart; erase it again, which does no harm",
        ),
    }
}

#[derive(Serialize, JsonSchema)]
pub(super) struct ErasedView {
    /// When it became unreadable: its keys are destroyed.
    erased_at: ApiTime,
    /// The row of the audit trail that records the erasure.
    audit_row: u64,
    /// The number of messages removed so far.
    messages: u64,
    /// The number of deliveries removed so far.
    deliveries: u64,
    /// The number of deliveries being sent; they may still arrive.
    in_flight: u64,
    /// When the last row was removed; null while rows are left. The audit trail records the end as erasure_done.
    swept_at: Option<ApiTime>,
}

impl ErasedView {
    fn of(ErasureStarted { erasure, in_flight }: &ErasureStarted) -> Self {
        Self {
            erased_at: ApiTime(erasure.at),
            audit_row: erasure.row,
            messages: erasure.messages,
            deliveries: erasure.deliveries,
            in_flight: *in_flight,
            swept_at: erasure.done.map(ApiTime),
        }
    }
}
