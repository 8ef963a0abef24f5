//! Dead letters: deliveries that were given up. They can be listed, counted, and purged without visiting each one.

use posthaste_core::TenantId;

use crate::StoreFuture;
use crate::row::{
    AuditStamp, BoundedCount, DeadLetterCursor, DeadLetterFilter, DeadLetterPage, ListOrder, Session, Swept,
};

/// Stores dead letters. The write that ends a delivery as dead files its dead letter;
/// [`Jobs::start_replay`](crate::Jobs::start_replay) replays them.
pub trait DeadLetters: Send + Sync + 'static {
    /// Dead letters that match, by the time they ended. One request reads a bounded number of rows, so a page may have
    /// fewer than `limit` letters and still have a next one.
    fn dead_letters(
        &self,
        filter: DeadLetterFilter,
        order: ListOrder,
        after: Option<DeadLetterCursor>,
        limit: u32,
    ) -> impl StoreFuture<DeadLetterPage>;

    /// How many dead letters match; counting stops at a bound (see [`BoundedCount`]).
    fn count_dead_letters(&self, filter: DeadLetterFilter) -> impl StoreFuture<BoundedCount>;

    /// Purges every dead letter of a tenant that matches now: once the call returns they are neither listed nor
    /// replayed. Their deliveries stay in the history. If there are few, their rows are removed at once, otherwise
    /// [`DeadLetters::sweep_dead_letters`] removes them.
    fn purge_dead_letters(
        &self,
        session: Session,
        tenant: TenantId,
        filter: DeadLetterFilter,
        act: AuditStamp,
    ) -> impl StoreFuture<BoundedCount>;

    /// Removes a bounded number of rows that purges cover.
    fn sweep_dead_letters(&self, session: Session) -> impl StoreFuture<Swept>;
}
