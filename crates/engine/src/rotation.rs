//! Rotates the master key in small steps, with a pause after each, and deletes the older key once nothing
//! is wrapped with it. A rotation that a restart interrupts continues at the next start.

use std::sync::Arc;
use std::time::Duration;

use posthaste_crypto::master::MasterKeyId;
use posthaste_store::{ApiKeyRef, MasterKeys, Rotation, Session, StoreError};
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::master_key::aside;
use crate::master_key::keeper::NoNewerKey;
use crate::rest::rest;
use crate::{Clock, Keeper};

/// The pause after a step, in multiples of the step's duration.
const YIELD: u32 = 9;
/// The pause after a step that changed nothing, because a read transaction or a full disk prevented it.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const FAILED_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Why no rotation was begun.
#[derive(Debug, thiserror::Error)]
pub enum NotRotated {
    #[error("this engine was started without a master key to look after")]
    NoKeeper,
    #[error(transparent)]
    NoNewerKey(#[from] NoNewerKey),
    #[error("the store could not be asked about its master key")]
    Store(#[from] StoreError),
}

/// The task that rotates the master key, and the way to request a rotation.
#[derive(Debug)]
pub(crate) struct Rotator {
    keeper: Option<Arc<Keeper>>,
    /// Held by the request that begins a rotation: two at once would each make a newer key.
    asking: Mutex<()>,
    wake: Notify,
}

impl Rotator {
    pub(crate) fn new(keeper: Option<Keeper>) -> Self {
        Self { keeper: keeper.map(Arc::new), asking: Mutex::new(()), wake: Notify::new() }
    }

    /// Begins a rotation at an operator's request, unless one is under way; returns its progress.
    pub(crate) async fn ask<S: MasterKeys>(&self, store: &S, by: Option<ApiKeyRef>) -> Result<Rotation, NotRotated> {
        let _alone = self.asking.lock().await;
        let now = store.rotation().await?;
        if now.is_under_way() {
            return Ok(now);
        }
        let keeper = self.keeper.clone().ok_or(NotRotated::NoKeeper)?;
        store.offer(aside(move || keeper.newer(now.newest)).await?, by);
        self.wake.notify_one();
        Ok(store.rotation().await?)
    }

    /// Continues a rotation under way and carries out those that are requested, until `stop` or until the store has
    /// stopped. A step that has begun is finished.
    pub(crate) async fn run<S: MasterKeys, C: Clock>(
        &self,
        store: &Arc<S>,
        session: Session,
        clock: &C,
        stop: CancellationToken,
    ) {
        while !stop.is_cancelled() {
            let again = match self.carry_out(store.as_ref(), session, clock, &stop).await {
                Ok(()) => None,
                Err(StoreError::Stopped | StoreError::Fenced { .. }) => return,
                Err(error) => {
                    tracing::error!(%error, "master key rotation failed; retrying in a minute");
                    Some(FAILED_AGAIN_AFTER)
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.wake.notified() => {}
                () = tokio::time::sleep(again.unwrap_or_default()), if again.is_some() => {}
            }
        }
    }

    /// Carries a rotation that is under way to its end.
    pub(crate) async fn carry_out<S: MasterKeys, C: Clock>(
        &self,
        store: &S,
        session: Session,
        clock: &C,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let mut now = store.rotation().await?;
        while now.is_under_way() && !stop.is_cancelled() {
            let begun = Instant::now();
            let next = store.rotate(session, clock.now()).await?;
            log_progress(&now, &next);
            let pause = if next == now { AGAIN_AFTER } else { begun.elapsed() * YIELD };
            now = next;
            if now.is_under_way() {
                rest(pause, stop).await;
            }
        }
        if !now.is_under_way() {
            self.forget_older(now.newest).await;
        }
        Ok(())
    }

    async fn forget_older(&self, newest: MasterKeyId) {
        let Some(keeper) = self.keeper.clone() else { return };
        let forgets = Arc::clone(&keeper);
        match aside(move || forgets.forget_older(newest)).await {
            Ok(true) => tracing::info!(from = keeper.named, "deleted the old master key"),
            // A source that is read at the start only is managed by the operator.
            Ok(false) | Err(NoNewerKey::ReadAtTheStart { .. }) => {}
            Err(error) => tracing::warn!(%error, "cannot delete the old master key; nothing needs it any more"),
        }
    }
}

/// Rotates the master key of a store from beginning to end, without pauses, and calls `say` after each step. Only for a
/// store without a running engine.
pub async fn rotate_now<S: MasterKeys, C: Clock>(
    store: &S,
    session: Session,
    clock: &C,
    keeper: Keeper,
    mut say: impl FnMut(&Rotation),
) -> Result<Rotation, NotRotated> {
    let rotator = Rotator::new(Some(keeper));
    let mut now = rotator.ask(store, None).await?;
    say(&now);
    while now.is_under_way() {
        let next = store.rotate(session, clock.now()).await?;
        if next == now {
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        now = next;
        say(&now);
    }
    rotator.forget_older(now.newest).await;
    Ok(now)
}

fn log_progress(before: &Rotation, after: &Rotation) {
    if before.newest != after.newest {
        tracing::info!(from = %before.newest, to = %after.newest, "master key rotation began");
    }
    if !before.older.is_empty() && after.older.is_empty() {
        let rewrapped = after.rewrapped;
        tracing::info!(master_key = %after.newest, rewrapped, "master key rotated; older backups need the old key");
    }
}

#[cfg(test)]
mod tests {
    use posthaste_store::journal::JournalEntry;
    use posthaste_store::{Archive, MemoryStore};

    use super::*;
    use crate::{MasterKeySource, SystemClock, master_key};

    #[tokio::test]
    async fn requested_rotation_is_carried_out_and_the_old_key_is_deleted() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Arc::new(MemoryStore::default());
        let clock = SystemClock::new();
        let session = store.lock().open(clock.now()).session;
        // A store in memory begins with a master key of its own: rotates it to the key in the file first.
        let first = master_key::load(&MasterKeySource::Folder, folder.path(), &[]).expect("made").into_newest();
        let first_id = first.id();
        store.offer(first, None);
        while store.rotation().await.expect("memory reads").is_under_way() {
            store.rotate(session, clock.now()).await.expect("memory takes it");
        }
        let rotator = Rotator::new(Some(Keeper::new(&MasterKeySource::Folder, folder.path())));
        let stop = CancellationToken::new();
        let asks = async {
            let begun = rotator.ask(store.as_ref(), None).await.expect("a newer one is made");
            assert!(begun.offered.is_some());
            let twice = rotator.ask(store.as_ref(), None).await.expect("one is under way");
            assert_eq!(twice.offered, begun.offered, "a second request joins the rotation under way");
            while master_key::load(&MasterKeySource::Folder, folder.path(), &[]).expect("there").iter().count() > 1 {
                tokio::task::yield_now().await;
            }
            stop.cancel();
            begun.offered
        };
        let (newer, ()) = tokio::join!(asks, rotator.run(&store, session, &clock, stop.clone()));
        let now = store.rotation().await.expect("memory reads");
        assert_eq!((Some(now.newest), now.is_under_way()), (newer, false));
        assert_ne!(now.newest, first_id);
        let rows = store.journal(0, 100).await.expect("memory reads");
        let entries = rows.iter().flat_map(posthaste_store::JournalRow::entries).flatten();
        let rotations = entries
            .filter(|entry| matches!(entry, JournalEntry::RotationBegun { .. } | JournalEntry::RotationEnded { .. }));
        assert_eq!(rotations.count(), 4, "two beginnings and two ends");
    }

    #[tokio::test]
    async fn rotation_without_a_keeper_is_refused() {
        let store = MemoryStore::default();
        let refused = Rotator::new(None).ask(&store, None).await.expect_err("there is no key");
        assert!(matches!(refused, NotRotated::NoKeeper));
    }
}
