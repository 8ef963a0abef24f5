//! Signs checkpoints of the journal while it grows, so that later changes of it can be detected (H3): every minute,
//! every thousand rows, on request, and once more at shutdown.

use std::sync::Arc;
use std::time::Duration;

use posthaste_crypto::checkpoint::PublicKey;
use posthaste_store::{Signed, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::rest::wait;
use crate::{Clock, Engine};

/// How often a checkpoint may be due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The time between two checkpoints of a journal that grows.
const SIGN_EVERY: Duration = Duration::from_secs(60);
/// A checkpoint is made sooner when the journal has grown by this many rows.
const GROWN: u64 = 1_000;
/// How long a shutdown waits for the last checkpoint: on a full disk it would wait for ever.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Signer<S, C>(pub(crate) Arc<Engine<S, C>>);

impl<S: Store, C: Clock> Signer<S, C> {
    /// Runs until `stop`, or until the store has stopped. Rows of earlier sessions are signed first.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let looks = u32::try_from(SIGN_EVERY.as_secs() / LOOK_EVERY.as_secs()).unwrap_or(1);
        for look in (0..looks).cycle() {
            let grown = if look == 0 { 1 } else { GROWN };
            // On a full disk it may take long; a shutdown does not wait for that.
            let signed = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                signed = self.sign(grown) => signed,
            };
            match signed {
                Ok(()) => {}
                Err(StoreError::Stopped | StoreError::Fenced { .. }) => return,
                Err(error) => tracing::warn!(%error, "journal checkpoint failed; retrying"),
            }
            wait(tokio::time::sleep(LOOK_EVERY), &stop).await;
        }
    }

    /// Signs the last checkpoint, once nothing more is written to the journal.
    pub(crate) async fn finish(&self) {
        match tokio::time::timeout(FINISH_WITHIN, self.sign(1)).await {
            // The reason why the store stopped is reported elsewhere.
            Ok(Ok(()) | Err(StoreError::Stopped | StoreError::Fenced { .. })) => {}
            Err(_) => tracing::warn!("last journal checkpoint timed out; the next start signs it"),
            Ok(Err(error)) => {
                tracing::warn!(%error, "last journal checkpoint failed; the next start signs it");
            }
        }
    }

    async fn sign(&self, grown: u64) -> Result<(), StoreError> {
        if let Some(signed) = self.0.store.sign(self.0.session, grown, self.0.clock.now()).await? {
            tracing::debug!(row = signed.row, "journal checkpoint signed");
        }
        Ok(())
    }
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// A checkpoint of the journal as it is now. Kept elsewhere, it detects every later change of the rows up to it.
    /// When the journal has not grown since the last checkpoint, returns that one.
    pub async fn checkpoint(&self) -> Result<Option<Signed>, StoreError> {
        self.store.sign_now(self.session, self.clock.now()).await
    }

    /// The key that verifies checkpoints; it never changes for a store.
    pub fn checkpoint_key(&self) -> PublicKey {
        self.store.public_key()
    }
}

#[cfg(test)]
mod tests {
    use posthaste_store::{Checkpoints, MemoryStore, Outbox, PauseScope};

    use super::*;
    use crate::SystemClock;
    use crate::fixtures::idle_engine;

    async fn signer() -> Signer<MemoryStore, SystemClock> {
        Signer(idle_engine(Arc::default()).await)
    }

    impl Signer<MemoryStore, SystemClock> {
        async fn grow(&self, rows: u64) {
            for _ in 0..rows {
                let Engine { store, session, .. } = &*self.0;
                let resumed = store.resume(*session, PauseScope::All, self.0.done_by(None)).await;
                resumed.expect("memory takes it");
            }
        }

        /// The rows of all checkpoints after the signer has run this long beside another future.
        async fn signed_after(&self, ran: Duration, beside: impl Future<Output = ()>) -> Vec<u64> {
            let stop = CancellationToken::new();
            let ends = async {
                beside.await;
                _ = tokio::time::timeout(ran, std::future::pending::<()>()).await;
                stop.cancel();
            };
            tokio::join!(self.run(stop.clone()), ends);
            let signed = self.0.store.checkpoints(0, 100).await.expect("memory reads");
            signed.iter().map(|signed| signed.row).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn growing_journal_is_signed_every_minute_and_a_quiet_one_once() {
        let signer = signer().await;
        let quiet = signer.signed_after(Duration::from_secs(300), async {}).await;
        assert_eq!(quiet, [1]);
        signer.grow(5).await;
        assert_eq!(signer.signed_after(Duration::from_secs(50), signer.grow(5)).await, [1, 6], "at the start");
        assert_eq!(signer.signed_after(Duration::from_secs(61), async {}).await, [1, 6, 11]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_rows_do_not_wait_for_the_minute() {
        let signer = signer().await;
        let signed = signer.signed_after(Duration::from_secs(3), signer.grow(GROWN)).await;
        assert_eq!(signed, [1, 1 + GROWN]);
    }

    #[tokio::test(start_paused = true)]
    async fn finish_signs_the_end_of_the_journal() {
        let signer = signer().await;
        let signed = signer.signed_after(Duration::from_secs(3), signer.grow(3)).await;
        assert_eq!(signed, [1]);
        signer.finish().await;
        let signed = signer.0.store.checkpoints(1, 100).await.expect("memory reads");
        assert_eq!(signed.iter().map(|signed| signed.row).collect::<Vec<_>>(), [4]);
    }
}
