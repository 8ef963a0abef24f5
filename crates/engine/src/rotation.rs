//! Rotates the master key in small steps, with a pause after each, and lets the older key go when nothing
//! needs it. What a restart interrupts goes on with the next start.

use std::sync::Arc;
use std::time::Duration;

use posthaste_crypto::master::MasterKeyId;
use posthaste_store::{By, MasterKeys, Rotation, Session, StoreError};
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::master_key::keeper::{Keeper, NoNewerKey, aside};
use crate::rest::rest;

/// How much longer than a step the pause after it is.
const YIELD: u32 = 9;
/// When somebody's read, or a full disk, is in the way.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// After a step that failed.
const FAILED_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Why no rotation was begun.
#[derive(Debug, thiserror::Error)]
pub enum NotRotated {
    /// Nobody looks after a master key here.
    #[error("this engine was started without a master key to look after")]
    NoKeeper,
    /// There is no newer key.
    #[error(transparent)]
    NoNewerKey(#[from] NoNewerKey),
    /// The store did not answer.
    #[error("the store could not be asked about its master key")]
    Store(#[from] StoreError),
}

/// Who rotates the master key, and who asks for it.
#[derive(Debug)]
pub(crate) struct Rotator {
    keeper: Option<Keeper>,
    /// One asks at a time: each would bring a newer key.
    asking: Mutex<()>,
    asked: Notify,
}

impl Rotator {
    pub(crate) fn new(keeper: Option<Keeper>) -> Self {
        Self { keeper, asking: Mutex::new(()), asked: Notify::new() }
    }

    /// Begins a rotation by somebody's word, unless one is under way.
    pub(crate) async fn ask<S: MasterKeys>(&self, store: &S, by: Option<By>) -> Result<Rotation, NotRotated> {
        let _alone = self.asking.lock().await;
        let now = store.rotation().await?;
        if now.is_under_way() {
            return Ok(now);
        }
        let keeper = self.keeper.as_ref().ok_or(NotRotated::NoKeeper)?;
        store.offer(aside(keeper, move |keeper| keeper.newer(now.newest)).await?, by);
        self.asked.notify_one();
        Ok(store.rotation().await?)
    }

    /// Carries out what is under way and what is asked for, until `stop` or until the store has stopped. A step
    /// that has begun is finished.
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
                    tracing::error!(%error, "the master key could not be rotated; trying again");
                    Some(FAILED_AGAIN_AFTER)
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.asked.notified() => {}
                () = tokio::time::sleep(again.unwrap_or_default()), if again.is_some() => {}
            }
        }
    }

    /// Everything there is to do now.
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
            tell(&now, &next);
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
        let Some(keeper) = &self.keeper else { return };
        match aside(keeper, move |keeper| keeper.forget_older(newest)).await {
            Ok(true) => tracing::info!(from = keeper.named(), "the old master key is forgotten"),
            // What is read at the start only is not ours to change.
            Ok(false) | Err(NoNewerKey::ReadAtTheStart { .. }) => {}
            Err(error) => tracing::warn!(%error, "the old master key could not be forgotten; it does no harm"),
        }
    }
}

/// Rotates the master key of a store from beginning to end, without pauses, and says after each step how far
/// it is: where nobody else runs an engine on it.
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

/// What an operator should hear of.
fn tell(before: &Rotation, after: &Rotation) {
    if before.newest != after.newest {
        tracing::info!(from = %before.newest, to = %after.newest, "the master key is being rotated");
    }
    if !before.older.is_empty() && after.older.is_empty() {
        let rewrapped = after.rewrapped;
        tracing::info!(master_key = %after.newest, rewrapped, "the master key is rotated; older backups need the old one");
    }
}

#[cfg(test)]
mod tests {
    use posthaste_store::journal::Entry;
    use posthaste_store::{Archive, MemoryStore};

    use super::*;
    use crate::clock::SystemClock;
    use crate::master_key::{self, Source};

    #[tokio::test]
    async fn a_rotation_that_is_asked_for_is_carried_out_and_the_old_key_is_forgotten() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Arc::new(MemoryStore::default());
        let clock = SystemClock::new();
        let session = store.lock().open(clock.now()).session;
        // A store in memory says that it is sealed under a key of its own: the file has to have it.
        let first = master_key::load(&Source::Folder, folder.path(), &[]).expect("made").into_newest();
        let first_id = first.id();
        store.offer(first, None);
        while store.rotation().await.expect("memory reads").is_under_way() {
            store.rotate(session, clock.now()).await.expect("memory takes it");
        }
        let rotator = Rotator::new(Some(Keeper::new(&Source::Folder, folder.path())));
        let stop = CancellationToken::new();
        let asks = async {
            let begun = rotator.ask(store.as_ref(), None).await.expect("a newer one is made");
            assert!(begun.offered.is_some());
            let twice = rotator.ask(store.as_ref(), None).await.expect("one is under way");
            assert_eq!(twice.offered, begun.offered, "who asks twice gets one");
            while master_key::load(&Source::Folder, folder.path(), &[]).expect("there").iter().count() > 1 {
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
        let told = rows.iter().flat_map(posthaste_store::JournalRow::entries).flatten();
        let told = told.filter(|entry| matches!(entry, Entry::RotationBegun { .. } | Entry::RotationEnded { .. }));
        assert_eq!(told.count(), 4, "two beginnings and two ends");
    }

    #[tokio::test]
    async fn without_somebody_who_looks_after_the_key_nothing_is_begun() {
        let store = MemoryStore::default();
        let refused = Rotator::new(None).ask(&store, None).await.expect_err("there is no key");
        assert!(matches!(refused, NotRotated::NoKeeper));
    }
}
