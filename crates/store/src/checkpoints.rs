//! Checkpoints: signed statements of the journal's last row at a moment. An operator who keeps one elsewhere can verify
//! later that nothing up to that row was changed or removed (H3). Read next: [`audit`](crate::audit).

use posthaste_core::Timestamp;
use posthaste_crypto::checkpoint::PublicKey;

use crate::{Session, StoreFuture};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    pub row: u64,
    /// The line; see [`posthaste_crypto::checkpoint`].
    pub line: String,
}

pub trait Checkpoints: Send + Sync + 'static {
    /// The key that verifies the lines; it never changes during the life of a store.
    fn public_key(&self) -> PublicKey;

    /// Signs a checkpoint for the journal's current last row, if the journal has grown by at least `grown` rows (and at
    /// least one) since the last checkpoint. `at` is the time written into the line.
    fn sign(&self, session: Session, grown: u64, at: Timestamp) -> impl StoreFuture<Option<Signed>>;

    /// The checkpoint that covers the highest row.
    fn last_checkpoint(&self) -> impl StoreFuture<Option<Signed>>;

    /// A checkpoint that covers the journal's current last row: an existing one, or one signed now. `None` if the
    /// journal is empty.
    fn sign_now(&self, session: Session, at: Timestamp) -> impl StoreFuture<Option<Signed>> {
        async move {
            match self.sign(session, 1, at).await? {
                None => self.last_checkpoint().await,
                signed => Ok(signed),
            }
        }
    }

    /// Up to `limit` checkpoints of rows with numbers above `after`.
    fn checkpoints(&self, after: u64, limit: u32) -> impl StoreFuture<Vec<Signed>>;
}
