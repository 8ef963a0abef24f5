//! Erasing, as subjects and tenants are: what is answered, and what is told of a store that failed meanwhile.

use http::StatusCode;
use posthaste_core::id::TenantId;
use posthaste_engine::clock::Clock;
use posthaste_engine::engine::NotDone;
use posthaste_engine::erase::Erased;
use posthaste_store::{By, Store, Whom};
use serde::Serialize;

use super::{Answer, Api, json};
use crate::problem::{Problem, not_written};
use crate::value;

/// Erases somebody. Once it answers, nobody can read anything of theirs; the rows go in steps after that.
pub(super) async fn erase<S: Store, C: Clock>(api: &Api<S, C>, tenant: TenantId, whom: Whom, by: Option<By>) -> Answer {
    let erased = api.engine.erase(tenant, whom, by).await.map_err(not_erased)?;
    tracing::info!(row = erased.erasure.row, is_tenant = erased.erasure.is_tenant, "erased somebody");
    Ok(json(StatusCode::OK, &Shown::of(&erased)))
}

fn not_erased(error: NotDone) -> Problem {
    match error {
        NotDone::Ended(_) => error.into(),
        NotDone::Store(error) => not_written(
            &error,
            "it may have been erased, nobody can say before the restart; erase it again, which does no harm",
        ),
    }
}

#[derive(Serialize)]
struct Shown {
    erased_at: String,
    audit_row: u64,
    /// So many are gone so far.
    messages: u64,
    deliveries: u64,
    in_flight: u64,
    /// When the last row went; nothing while some are left.
    swept_at: Option<String>,
}

impl Shown {
    fn of(Erased { erasure, in_flight }: &Erased) -> Self {
        Self {
            erased_at: value::write_time(erasure.at),
            audit_row: erasure.row,
            messages: erasure.messages,
            deliveries: erasure.deliveries,
            in_flight: *in_flight,
            swept_at: erasure.done.map(value::write_time),
        }
    }
}
