//! Erasing: what a person may ask for (L5).

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::id::TenantId;
use posthaste_store::{By, Erase, Erasure, PauseScope, Store, StoreError, Whom};

use crate::clock::Clock;
use crate::dispatch::{Answer, Command};
use crate::engine::{Engine, NotDone};

/// An answer waits so long for the end of an erasure, to say what is gone; small ones are done by then.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// What an erasure was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Erased {
    /// How far it is: its place in the audit, and what is gone so far.
    pub erasure: Erasure,
    /// Deliveries that were in flight and may still arrive.
    pub in_flight: u64,
}

impl<S: Store, C: Clock> Engine<S, C> {
    /// Erases a subject or a tenant. Once this returns, nothing of it can be read, and nothing is sent but what was in
    /// flight; the rest goes in steps, and [`Engine::erasure`] says how far that is.
    pub async fn erase(self: &Arc<Self>, tenant: TenantId, whom: Whom, by: Option<By>) -> Result<Erased, NotDone> {
        let begun = self.act(|engine| async move { engine.erase_begun(tenant, whom, by).await }).await??;
        let erasure = self.erasure_done(begun.erasure).await?;
        Ok(Erased { erasure, ..begun })
    }

    async fn erase_begun(&self, tenant: TenantId, whom: Whom, by: Option<By>) -> Result<Erased, NotDone> {
        let subject = match &whom {
            Whom::Subject(subject) => Some(subject.clone()),
            Whom::Tenant => None,
        };
        // From here on the loop reads before it sends. Before anything goes: what it sends by what it carries is under
        // way whenever the eraser asks, or was sent before there was anything to erase.
        self.handle.ask(Command::Erased(tenant, subject.clone())).await?;
        let erase = Erase { tenant, whom, at: self.clock.now(), by };
        let erasure = {
            let _alone = self.tenants.changing.lock().await;
            self.store.erase(self.session, erase).await?
        };
        // Also where it is a subject: some of the endpoints may have been theirs.
        self.destinations.forget_tenant(tenant);
        if erasure.is_tenant {
            self.tenants.forget(tenant);
            self.pending.forget(tenant);
            self.access.forget();
            self.agreements.changed();
        }
        let in_flight = match self.handle.ask(Command::Erased(tenant, subject)).await? {
            Answer::InFlight(messages) => self.store.count_erased(messages).await?,
            _ => 0,
        };
        if erasure.is_tenant {
            // There is nothing left that it could hold.
            self.handle.ask(Command::Resume(PauseScope::Tenant(tenant), by)).await?;
        }
        self.erasures.new.notify_one();
        Ok(Erased { erasure, in_flight })
    }

    /// Waits for its end, for a while.
    async fn erasure_done(&self, begun: Erasure) -> Result<Erasure, StoreError> {
        let until = tokio::time::Instant::now() + ANSWER_WITHIN;
        loop {
            let done = self.erasures.done.notified();
            tokio::pin!(done);
            // From here on, so that none is missed between the look and the wait.
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
