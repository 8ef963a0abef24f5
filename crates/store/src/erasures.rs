//! Erasing a subject or a tenant (L5): the key goes first, with one commit, and with it everything that was
//! sealed under it, wherever copies of that are; then the rows, a few at a time.
//!
//! What is accepted after the answer is new: it gets a new key. So does what was on its way when the key went, and
//! became durable after that. Read next: `docs/erasure.md`.

use std::future::Future;

use posthaste_core::id::{DeliveryId, MessageId};
use posthaste_core::time::Timestamp;

use crate::StoreError;
use crate::row::{Erase, Erasure, ErasureStep, ExportAsked, Session};

/// Rows that a step of an erasure removes at most, so that nobody's commit waits long for it.
pub const ERASURE_STEP_MAX: u32 = 500;

/// Forgets people and tenants, and takes note of who asks what is held about somebody.
pub trait Erasures: Send + Sync + 'static {
    /// Begins to erase: from the answer on nothing of it can be read or sent, and it is written down beside the
    /// data, for whoever restores an older copy of them.
    fn erase(&self, session: Session, erase: Erase) -> impl Future<Output = Result<Erasure, StoreError>> + Send;

    /// One small step of an erasure; nothing of what is `under_way` is touched. `None` when there is no such
    /// erasure.
    fn erase_step(
        &self,
        session: Session,
        number: u64,
        now: Timestamp,
        under_way: Vec<DeliveryId>,
    ) -> impl Future<Output = Result<Option<ErasureStep>, StoreError>> + Send;

    /// One erasure, while the journal has the row that announced it.
    fn erasure(&self, number: u64) -> impl Future<Output = Result<Option<Erasure>, StoreError>> + Send;

    /// Erasures that are not done, by number.
    fn unfinished_erasures(&self, limit: u32) -> impl Future<Output = Result<Vec<Erasure>, StoreError>> + Send;

    /// Writes into the journal that somebody asks what is held about a subject: before anything of it is told.
    fn note_export(&self, session: Session, asked: ExportAsked) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// How many of these messages are there and were erased.
    fn count_erased(&self, messages: Vec<MessageId>) -> impl Future<Output = Result<u64, StoreError>> + Send;
}
