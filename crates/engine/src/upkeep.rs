//! Upkeep of the store: deletes dead letters that a purge covers, and messages and history whose retention time is
//! over, by each tenant's own times. It works in small steps, each followed by a pause nine times as long, so that
//! other work is not delayed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use posthaste_core::{DeliveryId, TenantId};
use posthaste_store::{
    DocumentKind, ListOrder, RetentionOverride, RetentionOverrides, RetentionPhase, RetentionStep, Store, StoreError,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::rest::{rest, wait};
use crate::{Clock, Command, CommandReply, Engine, Tenant};

/// The time between two runs.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Expired payloads that are still needed are checked one by one, so only once in this many runs.
const KEPT_EVERY: u64 = 60;
/// The pause after a step, in multiples of the step's duration.
const YIELD: u32 = 9;
/// Tenants whose retention times are passed to the store at a time.
const TENANTS_PAGE: u32 = 500;

#[derive(Debug)]
pub(crate) struct Upkeep<S, C>(pub(crate) Arc<Engine<S, C>>);

/// Whether the store has the tenants' retention times as their documents have them. At the start that is not known.
#[derive(Debug, Default)]
pub(crate) struct OverrideSync {
    pub(crate) is_sent: AtomicBool,
    /// Whether any tenant has retention times of its own.
    exist: AtomicBool,
}

impl OverrideSync {
    /// A tenant's retention times have changed: the next run passes them to the store.
    pub(crate) fn changed(&self) {
        self.is_sent.store(false, Ordering::Release);
    }
}

impl<S: Store, C: Clock> Upkeep<S, C> {
    /// Runs until `stop`, or until the store has stopped. A step that has begun is finished.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut runs = 0;
        while !stop.is_cancelled() {
            match self.once(runs % KEPT_EVERY == 0, &stop).await {
                Ok(()) => {}
                Err(StoreError::Stopped | StoreError::Fenced { .. }) => return,
                Err(error) => tracing::warn!(%error, "store upkeep failed; retrying in a minute"),
            }
            runs += 1;
            wait(tokio::time::sleep(LOOK_EVERY), &stop).await;
        }
    }

    /// One run: everything that is due now.
    async fn once(&self, looks_at_kept: bool, stop: &CancellationToken) -> Result<(), StoreError> {
        while !stop.is_cancelled() {
            let begun = Instant::now();
            if !self.0.store.sweep_dead_letters(self.0.session).await?.more {
                break;
            }
            rest(begun.elapsed() * YIELD, stop).await;
        }
        self.set_retention_overrides().await?;
        let mut step = Some(RetentionStep::START);
        while let Some(next) = step.filter(|_| !stop.is_cancelled()) {
            if next.phase == RetentionPhase::Kept && !looks_at_kept {
                step = next.next_phase();
                continue;
            }
            let begun = Instant::now();
            let Some(under_way) = self.under_way(next.phase).await else {
                step = next.next_phase();
                continue;
            };
            let now = self.0.clock.now();
            let retained = self.0.store.retain(self.0.session, self.0.retention, now, next, under_way).await?;
            if !retained.given_up.is_empty() && self.0.handle.ask(Command::GivenUp(retained.given_up)).await.is_err() {
                return Ok(());
            }
            let goes_on = retained.next.is_some_and(|step| step.phase == next.phase && step.kept == next.kept);
            if retained.removed > 0 || goes_on {
                rest(begun.elapsed() * YIELD, stop).await;
            }
            step = retained.next;
        }
        Ok(())
    }

    /// The deliveries under way, for a step that ends pending deliveries: it must spare them. `None` when the loop does
    /// not answer.
    async fn under_way(&self, phase: RetentionPhase) -> Option<Vec<DeliveryId>> {
        if phase != RetentionPhase::Pending {
            return Some(Vec::new());
        }
        match self.0.handle.ask(Command::UnderWay).await {
            Ok(CommandReply::UnderWay(under_way)) => Some(under_way),
            Ok(_) | Err(_) => None,
        }
    }

    /// Passes the tenants' own retention times to the store, if they may have changed.
    async fn set_retention_overrides(&self) -> Result<(), StoreError> {
        if !self.0.override_sync.is_sent.swap(true, Ordering::AcqRel) {
            let exist = self.pass_on_overrides().await.inspect_err(|_| self.0.override_sync.changed())?;
            self.0.override_sync.exist.store(exist, Ordering::Release);
        }
        // An audit accepts deletions by a tenant's own times only where a signature over these times came first.
        if self.0.override_sync.exist.load(Ordering::Acquire) {
            self.0.store.sign_now(self.0.session, self.0.clock.now()).await?;
        }
        Ok(())
    }

    /// Passes every tenant's retention times to the store, in pages. Returns whether any tenant has its own.
    async fn pass_on_overrides(&self) -> Result<bool, StoreError> {
        let (mut after, mut exist) = (None, false);
        loop {
            let from = after.map(|tenant: TenantId| tenant.0);
            let order = ListOrder::OldestFirst;
            let page = self.0.store.documents(DocumentKind::Tenant, None, order, from, TENANTS_PAGE).await?;
            let upto = page.last().map(|last| last.tenant).filter(|_| page.len() == TENANTS_PAGE as usize);
            let mut own = Vec::new();
            for document in page {
                let tenant = Tenant::of(document)?;
                own.push((tenant.id, tenant.terms.retention()));
            }
            own.retain(|(_, own)| *own != RetentionOverride::default());
            exist |= !own.is_empty();
            let overrides = RetentionOverrides { after, upto, own };
            self.0.store.set_retention_overrides(self.0.session, overrides, self.0.clock.now()).await?;
            if upto.is_none() {
                return Ok(exist);
            }
            after = upto;
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use posthaste_core::{Key, MessageId, TenantId};
    use posthaste_store::journal::JournalEntry;
    use posthaste_store::{
        Accepted, Archive, AuditStamp, Checkpoints, JournalRow, MemoryStore, Message, Outbox, Pause, PauseScope,
        Register,
    };

    use super::*;
    use crate::fixtures::idle_engine;
    use crate::{SystemClock, TenantTerms};

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    async fn upkeep() -> Upkeep<MemoryStore, SystemClock> {
        Upkeep(idle_engine(Arc::default()).await)
    }

    impl Upkeep<MemoryStore, SystemClock> {
        /// Stores a message that a tenant sent this many days ago.
        async fn accept(&self, tenant: u64, n: u64, days: u32) -> MessageId {
            let id = MessageId(Key::new(self.0.session.writer, n));
            let message = Message::new(id, TenantId::from_raw(tenant), self.0.clock.now() - days * DAY, Bytes::new());
            let accepted = vec![Accepted::new(message, Vec::new())];
            _ = self.0.store.accept(self.0.session, accepted).await.expect("memory accepts");
            id
        }

        async fn put_tenant(&self, tenant: u64, days: Option<u32>) {
            let id = TenantId::from_raw(tenant);
            let terms = TenantTerms { payload_kept: days.map(|days| days * DAY), ..TenantTerms::default() };
            let tenant = Tenant { id, at: self.0.clock.now(), uid: None, terms };
            let filed = self.0.store.file(self.0.session, tenant.document(), None, self.0.done_by(None)).await;
            _ = filed.expect("memory files");
            self.0.override_sync.changed();
        }

        /// Runs the upkeep once; whether each of these messages is left.
        async fn left(&self, messages: &[MessageId]) -> Vec<bool> {
            self.once(true, &CancellationToken::new()).await.expect("the upkeep of a store in memory succeeds");
            let mut left = Vec::new();
            for id in messages {
                left.push(self.0.store.message(*id).await.expect("memory reads").is_some());
            }
            left
        }
    }

    #[tokio::test(start_paused = true)]
    async fn expired_messages_are_deleted_and_others_stay() {
        let upkeep = upkeep().await;
        let messages = [upkeep.accept(1, 1, 8).await, upkeep.accept(1, 2, 6).await];
        assert_eq!(upkeep.left(&messages).await, [false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn operator_changes_stay_in_the_journal_of_a_server_without_messages() {
        let upkeep = upkeep().await;
        let (session, pause) = (upkeep.0.session, Pause::new(PauseScope::All, None));
        upkeep.put_tenant(1, None).await;
        upkeep.0.store.pause(session, pause, upkeep.0.clock.now()).await.expect("memory pauses");
        let act = AuditStamp::at(upkeep.0.clock.now());
        upkeep.0.store.resume(session, PauseScope::All, act).await.expect("memory resumes");
        upkeep.left(&[]).await;
        let rows = upkeep.0.store.journal(0, 100).await.expect("memory reads");
        assert_eq!(rows.iter().map(|row| row.number).collect::<Vec<_>>(), [1, 2, 3, 4]);
        let ago = |row: &JournalRow| upkeep.0.clock.now().since(row.at);
        assert!(rows.iter().all(|row| ago(row) < DAY), "{rows:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn tenant_retention_applies_from_the_next_run_on() {
        let upkeep = upkeep().await;
        // More than fit in one page.
        for tenant in 10..u64::from(TENANTS_PAGE) + 20 {
            upkeep.put_tenant(tenant, None).await;
        }
        for (tenant, days) in [(1, Some(30)), (2, Some(2)), (999, Some(1))] {
            upkeep.put_tenant(tenant, days).await;
        }
        let messages = [upkeep.accept(1, 1, 29).await, upkeep.accept(2, 2, 3).await, upkeep.accept(999, 3, 1).await];
        assert_eq!(upkeep.left(&messages).await, [true, false, false]);
        upkeep.put_tenant(1, None).await;
        assert_eq!(upkeep.left(&messages).await, [false, false, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn tenant_retention_is_signed_before_it_is_applied() {
        let upkeep = upkeep().await;
        upkeep.put_tenant(2, Some(2)).await;
        upkeep.accept(2, 1, 3).await;
        upkeep.left(&[]).await;
        let rows = upkeep.0.store.journal(0, 100).await.expect("memory reads");
        let row = |is: fn(&JournalEntry) -> bool| {
            let has = |row: &&JournalRow| row.entries().flatten().any(|entry| is(&entry));
            rows.iter().find(has).expect("the journal has it").number
        };
        let agreed = row(|entry| matches!(entry, JournalEntry::Agreed { .. }));
        let gone = row(|entry| matches!(entry, JournalEntry::Retained { .. }));
        let signed = upkeep.0.store.checkpoints(0, 10).await.expect("memory reads");
        assert!(signed.iter().any(|signed| (agreed..gone).contains(&signed.row)), "{signed:?}");
    }
}
