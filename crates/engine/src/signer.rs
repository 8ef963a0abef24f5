//! Signs for the journal while it grows, so that later changes of it can be told (H3): every minute, every
//! thousand rows, whenever somebody asks, and once more at the end.

use std::sync::Arc;
use std::time::Duration;

use posthaste_crypto::checkpoint::PublicKey;
use posthaste_store::{Checkpoints, Session, Signed, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::engine::Engine;

/// How often a checkpoint may be due.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A journal that grows is signed for so often.
const SIGN_EVERY: Duration = Duration::from_secs(60);
/// Sooner when it has grown by this much.
const GROWN: u64 = 1_000;
/// A stop does not wait longer for the last one: on a full disk it would wait for ever.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// What signs for the journal.
#[derive(Debug)]
pub(crate) struct Signer<S, C> {
    pub(crate) store: Arc<S>,
    pub(crate) session: Session,
    pub(crate) clock: C,
}

impl<S: Checkpoints, C: Clock> Signer<S, C> {
    /// Runs until `stop`, or until the store has stopped. What an earlier session left is signed for first.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let looks = u32::try_from(SIGN_EVERY.as_secs() / LOOK_EVERY.as_secs()).unwrap_or(1);
        for look in (0..looks).cycle() {
            let grown = if look == 0 { 1 } else { GROWN };
            // On a full disk it may take long; nobody waits for that who wants to stop.
            let signed = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                signed = self.sign(grown) => signed,
            };
            match signed {
                Ok(()) => {}
                Err(StoreError::Stopped | StoreError::Fenced { .. }) => return,
                Err(error) => tracing::warn!(%error, "the journal could not be signed for; trying again"),
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// Signs for everything, now that nothing more comes.
    pub(crate) async fn finish(&self) {
        match tokio::time::timeout(FINISH_WITHIN, self.sign(1)).await {
            // Whoever stopped the store says why.
            Ok(Ok(()) | Err(StoreError::Stopped | StoreError::Fenced { .. })) => {}
            Err(_) => tracing::warn!("the end of the journal is not signed for yet; the next start will"),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the end of the journal could not be signed for; the next start will");
            }
        }
    }

    async fn sign(&self, grown: u64) -> Result<(), StoreError> {
        if let Some(signed) = self.store.sign(self.session, grown, self.clock.now()).await? {
            tracing::debug!(row = signed.row, "the journal is signed for");
        }
        Ok(())
    }
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// Signs for the journal's end of this moment: what to keep elsewhere, so that nothing up to here can be changed
    /// unseen. When nothing has happened since the last checkpoint, that one is given.
    pub async fn checkpoint(&self) -> Result<Option<Signed>, StoreError> {
        self.store.sign_now(self.session, self.clock.now()).await
    }

    /// What checkpoints are verified with: one key for the life of the store.
    pub fn checkpoint_key(&self) -> PublicKey {
        self.store.public_key()
    }
}

#[cfg(test)]
mod tests {
    use posthaste_store::{Act, MemoryStore, Outbox, PauseScope};

    use super::*;
    use crate::clock::SystemClock;

    struct World {
        store: Arc<MemoryStore>,
        signer: Signer<MemoryStore, SystemClock>,
    }

    impl World {
        fn new() -> Self {
            let store = Arc::new(MemoryStore::default());
            let clock = SystemClock::new();
            let session = store.lock().open(clock.now()).session;
            let signer = Signer { store: Arc::clone(&store), session, clock };
            Self { store, signer }
        }

        async fn grow(&self, rows: u64) {
            for _ in 0..rows {
                let resumed =
                    self.store.resume(self.signer.session, PauseScope::All, Act::at(self.signer.clock.now())).await;
                resumed.expect("memory takes it");
            }
        }

        /// Which rows are signed for after the signer has run so long beside what else happens.
        async fn signed_after(&self, ran: Duration, beside: impl Future<Output = ()>) -> Vec<u64> {
            let stop = CancellationToken::new();
            let ends = async {
                beside.await;
                _ = tokio::time::timeout(ran, std::future::pending::<()>()).await;
                stop.cancel();
            };
            tokio::join!(self.signer.run(stop.clone()), ends);
            let signed = self.store.checkpoints(0, 100).await.expect("memory reads");
            signed.iter().map(|signed| signed.row).collect()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_grows_is_signed_for_every_minute_and_what_does_not_only_once() {
        let world = World::new();
        let quiet = world.signed_after(Duration::from_secs(300), async {}).await;
        assert_eq!(quiet, [1]);
        world.grow(5).await;
        assert_eq!(world.signed_after(Duration::from_secs(50), world.grow(5)).await, [1, 6], "at the start");
        assert_eq!(world.signed_after(Duration::from_secs(61), async {}).await, [1, 6, 11]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_rows_do_not_wait_for_the_minute() {
        let world = World::new();
        let signed = world.signed_after(Duration::from_secs(3), world.grow(GROWN)).await;
        assert_eq!(signed, [1, 1 + GROWN]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_is_signed_for() {
        let world = World::new();
        let signed = world.signed_after(Duration::from_secs(3), world.grow(3)).await;
        assert_eq!(signed, [1]);
        world.signer.finish().await;
        let signed = world.store.checkpoints(1, 100).await.expect("memory reads");
        assert_eq!(signed.iter().map(|signed| signed.row).collect::<Vec<_>>(), [4]);
    }
}
