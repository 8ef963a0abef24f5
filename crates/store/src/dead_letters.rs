//! What was given up: listed, counted, and taken back without looking at each.

use std::future::Future;

use posthaste_core::id::TenantId;

use crate::StoreError;
use crate::row::{Act, Count, DeadLetterCursor, DeadLetterFilter, DeadLetterPage, ListOrder, Session, Swept};

/// Remembers dead letters. They are filed by what ends a delivery, and replayed by
/// [`Jobs::start_replay`](crate::Jobs::start_replay).
pub trait DeadLetters: Send + Sync + 'static {
    /// Dead letters that match, by the time of their end. A page may be short and still have a
    /// next: one request looks at a bounded number of rows.
    fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        order: ListOrder,
        after: Option<DeadLetterCursor>,
        limit: u32,
    ) -> impl Future<Output = Result<DeadLetterPage, StoreError>> + Send;

    /// How many dead letters match, as far as it is worth counting.
    fn count_dead_letters(&self, filter: DeadLetterFilter) -> impl Future<Output = Result<Count, StoreError>> + Send;

    /// Takes back every dead letter of a tenant that matches and is filed by now: from the answer on it is
    /// not listed and not replayed. What became of its delivery stays in the history. Its rows go at once
    /// where they are few, otherwise by [`DeadLetters::sweep_dead_letters`].
    fn purge_dead_letters(
        &self,
        session: Session,
        tenant: TenantId,
        filter: DeadLetterFilter,
        act: Act,
    ) -> impl Future<Output = Result<Count, StoreError>> + Send;

    /// Removes a bounded number of rows that purges cover.
    fn sweep_dead_letters(&self, session: Session) -> impl Future<Output = Result<Swept, StoreError>> + Send;
}
