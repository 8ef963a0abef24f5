//! Erasing a subject or a tenant (L5): begins the erasure; the eraser carries it out. Read next: `eraser`.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::id::TenantId;
use posthaste_store::{ApiKeyRef, Erase, Erasure, ErasureTarget, PauseScope, Store, StoreError};

use crate::clock::Clock;
use crate::dispatch::{Command, CommandReply};
use crate::engine::{Engine, NotDone};

/// How long an answer waits for the erasure to end; small erasures are done by then.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErasureStarted {
    pub erasure: Erasure,
    /// Deliveries that were in flight and may still arrive.
    pub in_flight: u64,
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// Erases a subject or a tenant. Once this returns, its data cannot be read, and only attempts already in flight
    /// may still arrive. The data is deleted in steps; [`Engine::erasure`] returns the progress.
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
        let until = tokio::time::Instant::now() + ANSWER_WITHIN;
        loop {
            let done = self.erasures.done.notified();
            tokio::pin!(done);
            // Enabled before the read, so that no notice is missed between the read and the wait.
            done.as_mut().enable();
            let now = self.store.erasure(begun.number).await?.unwrap_or(begun);
            if now.done.is_some() || tokio::time::timeout_at(until, done).await.is_err() {
                return Ok(now);
            }
        }
    }
}

#[cfg(test)]
mod tests;
