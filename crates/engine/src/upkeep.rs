//! Keeps the store tidy: removes what purges cover, and lets go of what was kept for long enough. All of
//! it in small steps, with nine times as long a pause after each: nobody should notice.

use std::sync::Arc;
use std::time::Duration;

use posthaste_store::{Archive, DeadLetters, Retention, RetentionPhase, RetentionStep, Session, StoreError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

/// How often there may be something to do.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Payloads that are still needed are looked at one by one, so only every so many runs.
const KEPT_EVERY: u64 = 60;
/// How much longer than a step the pause after it is.
const YIELD: u32 = 9;

/// What keeps the store tidy.
#[derive(Debug)]
pub(crate) struct Upkeep<S, C> {
    pub(crate) store: Arc<S>,
    pub(crate) session: Session,
    pub(crate) retention: Retention,
    pub(crate) clock: C,
}

impl<S: Archive + DeadLetters, C: Clock> Upkeep<S, C> {
    /// Runs until `stop`, or until the store has stopped. A step that has begun is finished.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut runs = 0;
        while !stop.is_cancelled() {
            match self.once(runs % KEPT_EVERY == 0, &stop).await {
                Ok(()) => {}
                Err(StoreError::Stopped | StoreError::Fenced { .. }) => return,
                Err(error) => tracing::warn!(%error, "the store could not be tidied up; trying again"),
            }
            runs += 1;
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// Everything there is to do now.
    async fn once(&self, looks_at_kept: bool, stop: &CancellationToken) -> Result<(), StoreError> {
        while !stop.is_cancelled() {
            let begun = Instant::now();
            if !self.store.sweep_dead_letters(self.session).await?.more {
                break;
            }
            tokio::time::sleep(begun.elapsed() * YIELD).await;
        }
        let mut step = Some(RetentionStep::START);
        while let Some(next) = step.filter(|_| !stop.is_cancelled()) {
            if next.phase == RetentionPhase::Kept && !looks_at_kept {
                step = next.next_phase();
                continue;
            }
            let begun = Instant::now();
            let retained = self.store.retain(self.session, self.retention, self.clock.now(), next).await?;
            if retained.removed > 0 {
                tokio::time::sleep(begun.elapsed() * YIELD).await;
            }
            step = retained.next;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use posthaste_core::id::{Key, MessageId, TenantId};
    use posthaste_core::time::Timestamp;
    use posthaste_store::{Accepted, MemoryStore, Message, Outbox};

    use super::*;
    use crate::clock::SystemClock;

    #[tokio::test(start_paused = true)]
    async fn what_was_kept_for_long_enough_goes_and_the_rest_stays() {
        let store = Arc::new(MemoryStore::default());
        let session = store.lock().open().session;
        let clock = SystemClock::new();
        let id = |n| MessageId(Key::new(session.writer, n));
        let accept = |n, days: i64| {
            let message = Message::new(
                id(n),
                TenantId::from_raw(1),
                Timestamp::from_millis(clock.now().as_millis() - days * 24 * 60 * 60 * 1_000),
                Bytes::new(),
            );
            Accepted::new(message, Vec::new())
        };
        let messages = vec![accept(1, 8), accept(2, 6)];
        _ = store.accept(session, messages).await.expect("memory accepts");
        let upkeep =
            Upkeep { store: Arc::clone(&store), session, retention: Retention::default(), clock: clock.clone() };
        upkeep.once(true, &CancellationToken::new()).await.expect("memory is tidied up");
        assert!(store.message(id(1)).await.expect("memory reads").is_none());
        assert!(store.message(id(2)).await.expect("memory reads").is_some());
    }
}
