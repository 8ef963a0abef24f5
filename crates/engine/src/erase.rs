//! Erasing a subject or a tenant (L5): [`Engine::erase`] begins an erasure, and the `Eraser` carries it out step by
//! step. The store keeps its progress, so that a restart continues it. Most of the writer thread's time is left to other
//! work.
//!
//! Invariant: a delivery is not erased while it is being sent or recorded; the loop lists those before each step.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{Cause, Key, TenantId};
use posthaste_store::{ApiKeyRef, Erase, Erasure, ErasureStep, ErasureTarget, PauseScope, Store, StoreError};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::rest::{rest, wait};
use crate::{Clock, Command, CommandReply, EndLane, Engine, NotDone};

/// How long an answer waits for the erasure to end; small erasures are done by then.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// The most erasures that take turns; later ones wait until one of these is done.
const TURNS_MAX: u32 = 64;
/// The pause after a step, in multiples of the step's duration.
const YIELD: u32 = 4;
/// The pause when an erasure waits for an attempt to end, or for a reader of the database file.
const WAIT: Duration = Duration::from_millis(200);
/// How often the store is polled without a notice, such as after a step that failed.
const LOOK_EVERY: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErasureStarted {
    pub erasure: Erasure,
    /// Deliveries that were in flight and may still arrive.
    pub in_flight: u64,
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// Erases a subject or a tenant. Once this returns, its data cannot be read, and only attempts already in flight
    /// may still arrive. The data is deleted in steps; the result has the progress after at most two seconds.
    pub async fn erase(
        self: &Arc<Self>,
        tenant: TenantId,
        whom: ErasureTarget,
        by: Option<ApiKeyRef>,
    ) -> Result<ErasureStarted, NotDone> {
        let begun = self.run_detached(|engine| async move { engine.erase_begun(tenant, whom, by).await }).await??;
        let erasure = self.erasure_done(begun.erasure).await?;
        Ok(ErasureStarted { erasure, ..begun })
    }

    async fn erase_begun(
        &self,
        tenant: TenantId,
        whom: ErasureTarget,
        by: Option<ApiKeyRef>,
    ) -> Result<ErasureStarted, NotDone> {
        let subject = match &whom {
            ErasureTarget::Subject(subject) => Some(subject.clone()),
            ErasureTarget::Tenant => None,
        };
        // From here on the loop has no payload of the erased in memory, and reads each one before it sends. This comes
        // before the store erases: an attempt made with a payload from memory is then either under way when the eraser
        // asks the loop, or was made before the erasure.
        self.handle.ask(Command::Erased(tenant, subject.clone())).await?;
        let erase = Erase { tenant, whom, at: self.clock.now(), by };
        let erasure = {
            let _alone = self.tenants.changing.lock().await;
            self.store.erase(self.session, erase).await?
        };
        // Also for a subject, which may have endpoints.
        self.endpoint_cache.forget_tenant(tenant);
        if erasure.is_tenant {
            self.tenants.forget(tenant);
            self.pending.forget(tenant);
            self.access.forget();
            self.override_sync.changed();
        }
        let in_flight = match self.handle.ask(Command::Erased(tenant, subject)).await? {
            CommandReply::InFlight(messages) => self.store.count_erased(messages).await?,
            _ => 0,
        };
        if erasure.is_tenant {
            // The tenant has nothing left that its pause could hold.
            self.handle.ask(Command::Resume(PauseScope::Tenant(tenant), by)).await?;
        }
        self.erasures.new.notify_one();
        Ok(ErasureStarted { erasure, in_flight })
    }

    /// Waits until the erasure is done, for at most two seconds.
    async fn erasure_done(&self, begun: Erasure) -> Result<Erasure, StoreError> {
        let until = Instant::now() + ANSWER_WITHIN;
        loop {
            let done = self.erasures.done.notified();
            tokio::pin!(done);
            // Enabled before the read, so that no notice is missed between the read and the wait.
            done.as_mut().enable();
            let now = self.store.erasure(begun.number).await?.unwrap_or(begun);
            if now.done.is_some() || timeout_at(until, done).await.is_err() {
                return Ok(now);
            }
        }
    }
}

/// The task that carries out erasures.
#[derive(Debug)]
pub(crate) struct Eraser<S, C>(pub(crate) Arc<Engine<S, C>>);

#[derive(Debug, Default)]
pub(crate) struct ErasureWakes {
    pub(crate) new: Notify,
    pub(crate) done: Notify,
}

impl<S: Store, C: Clock> Eraser<S, C> {
    /// Runs until `stop`, or until the store or the loop has stopped. A step that has begun is finished.
    pub(crate) async fn run(self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let look_within = match self.round(&stop).await {
                Ok(Some(soonest)) => soonest,
                Ok(None) => LOOK_EVERY,
                Err(NotDone::Ended(_) | NotDone::Store(StoreError::Stopped | StoreError::Fenced { .. })) => return,
                Err(NotDone::Store(error)) => {
                    tracing::warn!(%error, "erasure step failed; retrying in a minute");
                    LOOK_EVERY
                }
            };
            wait(timeout(look_within, self.0.erasures.new.notified()), &stop).await;
        }
    }

    /// Makes a step of each erasure. Returns how soon the next round is due; `None` when no erasure is left.
    async fn round(&self, stop: &CancellationToken) -> Result<Option<Duration>, NotDone> {
        let mut soonest = None;
        for erasure in self.0.store.unfinished_erasures(TURNS_MAX).await? {
            if stop.is_cancelled() {
                return Ok(None);
            }
            let begun = Instant::now();
            let Some(step) = self.step(erasure).await? else { continue };
            if step.erasure.done.is_some() {
                let Erasure { row, messages, deliveries, .. } = step.erasure;
                tracing::info!(audit_row = row, messages, deliveries, "erasure done");
                self.0.erasures.done.notify_waiters();
            }
            let wait = if step.waits { WAIT } else { Duration::ZERO };
            soonest = Some(soonest.map_or(wait, |soonest: Duration| soonest.min(wait)));
            rest(begun.elapsed() * YIELD, stop).await;
        }
        Ok(soonest)
    }

    async fn step(&self, erasure: Erasure) -> Result<Option<ErasureStep>, NotDone> {
        let under_way = match self.0.handle.ask(Command::UnderWay).await? {
            CommandReply::UnderWay(under_way) => under_way,
            _ => Vec::new(),
        };
        let step = self.0.store.erase_step(self.0.session, erasure.number, self.0.clock.now(), under_way).await?;
        for lane in step.iter().flat_map(|step| &step.lanes) {
            let end = EndLane { lane: *lane, upto: Key::MAX, cause: Cause::Erased, endpoint: None };
            self.0.end_lane(end, None).await?;
        }
        Ok(step)
    }
}

#[cfg(test)]
mod tests;
