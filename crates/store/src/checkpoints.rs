//! Signed words on how the journal ended, so that whoever keeps one elsewhere can tell later whether
//! anything up to there was changed, removed or cut off (H3). Read next: [`audit`](crate::audit).

use std::future::Future;

use posthaste_core::time::Timestamp;
use posthaste_crypto::checkpoint::PublicKey;

use crate::StoreError;
use crate::row::Session;

/// A checkpoint as it is kept and exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The row it vouches for, and all before it.
    pub row: u64,
    /// The line; see [`posthaste_crypto::checkpoint`].
    pub line: String,
}

/// Signs for the journal.
pub trait Checkpoints: Send + Sync + 'static {
    /// What the lines are verified with: one key for the life of the store.
    fn public_key(&self) -> PublicKey;

    /// Signs for the journal's end of this moment, if it has grown by so many rows, and at least by one,
    /// since the last checkpoint. `at` is when, and goes into the line.
    fn sign(
        &self,
        session: Session,
        grown: u64,
        at: Timestamp,
    ) -> impl Future<Output = Result<Option<Signed>, StoreError>> + Send;

    /// The checkpoint of the highest row that has one.
    fn last_checkpoint(&self) -> impl Future<Output = Result<Option<Signed>, StoreError>> + Send;

    /// A checkpoint for the journal's end of this moment or a later one: signed now, unless there is one. None where
    /// nothing has happened yet.
    fn sign_now(
        &self,
        session: Session,
        at: Timestamp,
    ) -> impl Future<Output = Result<Option<Signed>, StoreError>> + Send {
        async move {
            match self.sign(session, 1, at).await? {
                None => self.last_checkpoint().await,
                signed => Ok(signed),
            }
        }
    }

    /// Checkpoints of rows behind the `after`th, as many as `limit`.
    fn checkpoints(&self, after: u64, limit: u32) -> impl Future<Output = Result<Vec<Signed>, StoreError>> + Send;
}
