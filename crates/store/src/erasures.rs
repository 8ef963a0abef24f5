//! Erasing a subject or a tenant (L5). The first commit destroys the key, which makes everything sealed under it
//! unreadable, in every copy. The rows are removed afterwards, a few at a time.
//!
//! Data accepted after `erase` returns is not part of the erasure: it gets a new key. The same holds for data that was
//! being accepted when the key was destroyed and became durable afterwards. Read next: `docs/erasure.md`.

use posthaste_core::{DeliveryId, MessageId, Timestamp};

use crate::{Erase, Erasure, ErasureStep, ExportRequest, Session, StoreFuture};

/// Maximum number of rows that one step of an erasure removes, so that other commits do not wait long.
pub const ERASURE_STEP_MAX: u32 = 500;

/// Erases subjects and tenants, and records who exports a subject's data.
pub trait Erasures: Send + Sync + 'static {
    /// Begins an erasure. Once the call returns, the erased data can be neither read nor sent, and the erasure is
    /// listed in a file beside the database, so that it is repeated when an older backup is restored.
    fn erase(&self, session: Session, erase: Erase) -> impl StoreFuture<Erasure>;

    /// One small step of an erasure; deliveries in `under_way` are not touched. `None` if there is no such erasure.
    fn erase_step(
        &self,
        session: Session,
        number: u64,
        now: Timestamp,
        under_way: Vec<DeliveryId>,
    ) -> impl StoreFuture<Option<ErasureStep>>;

    /// One erasure, as long as the journal has the row that announced it.
    fn erasure(&self, number: u64) -> impl StoreFuture<Option<Erasure>>;

    /// Up to `limit` erasures that are not done, by number.
    fn unfinished_erasures(&self, limit: u32) -> impl StoreFuture<Vec<Erasure>>;

    /// Records in the journal that a caller exports a subject's data. Called before any of the data is handed out.
    fn note_export(&self, session: Session, asked: ExportRequest) -> impl StoreFuture<()>;

    /// How many of these messages are still stored and were erased.
    fn count_erased(&self, messages: Vec<MessageId>) -> impl StoreFuture<u64>;
}
