//! Erasing and exporting: what a person may ask for (L5).

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::id::{DeliveryId, MessageId, TenantId};
use posthaste_store::{Erase, Erasure, ListOrder, Message, Name, PauseScope, Shown, Store, StoreError, Whom};

use crate::clock::Clock;
use crate::dispatch::{Answer, Command};
use crate::engine::{Engine, NotDone};

/// An answer waits so long for the end of an erasure, to say what is gone; small ones are done by then.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Messages looked up at once for an export.
const MESSAGES: u32 = 64;
/// Deliveries in one part of an export.
const DELIVERIES: u32 = 500;

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
    pub async fn erase(&self, tenant: TenantId, whom: Whom) -> Result<Erased, NotDone> {
        let subject = match &whom {
            Whom::Subject(subject) => Some(subject.clone()),
            Whom::Tenant => None,
        };
        let erase = Erase { tenant, whom, at: self.clock.now() };
        let erasure = self.store.erase(self.session, erase).await?;
        // Also where it is a subject: some of the endpoints may have been theirs.
        self.destinations.forget_tenant(tenant);
        if erasure.is_tenant {
            self.tenants.forget(tenant);
            self.pending.forget(tenant);
            self.access.forget();
            // There is nothing left that it could hold.
            self.handle.ask(Command::Resume(PauseScope::Tenant(tenant), None)).await?;
        }
        // From here on the loop reads before it sends, and finds nothing.
        let in_flight = match self.handle.ask(Command::Erased(tenant, subject)).await? {
            Answer::InFlight(messages) => self.store.count_erased(messages).await?,
            _ => 0,
        };
        let erasure = self.erasure_done(erasure).await?;
        Ok(Erased { erasure, in_flight })
    }

    /// An erasure of a tenant, or of one of its subjects.
    pub async fn erasure(&self, tenant: TenantId, number: u64) -> Result<Option<Erasure>, StoreError> {
        Ok(self.store.erasure(number).await?.filter(|erasure| erasure.tenant == tenant))
    }

    /// Waits for its end, for a while.
    async fn erasure_done(&self, begun: Erasure) -> Result<Erasure, StoreError> {
        let until = tokio::time::Instant::now() + ANSWER_WITHIN;
        loop {
            let done = self.erasures.done.notified();
            tokio::pin!(done);
            // From here on, so that none is missed between the look and the wait.
            done.as_mut().enable();
            self.erasures.new.notify_one();
            let now = self.store.erasure(begun.number).await?.unwrap_or(begun);
            if now.done.is_some() || tokio::time::timeout_at(until, done).await.is_err() {
                return Ok(now);
            }
        }
    }

    /// What is held about a subject, part by part.
    pub fn export(&self, tenant: TenantId, subject: String) -> Export<'_, S, C> {
        Export { engine: self, tenant, subject, at: At::Messages(None), waiting: Vec::new() }
    }
}

/// One thing that is held about a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exported {
    /// A message that is about it, with its payload.
    Message(Arc<Message>),
    /// What became of the message that came last: a delivery of it, with every attempt.
    Delivery(Shown),
}

/// An export under way. It holds one part in memory at a time.
#[derive(Debug)]
pub struct Export<'e, S, C> {
    engine: &'e Engine<S, C>,
    tenant: TenantId,
    subject: String,
    at: At,
    /// Messages that were looked up and are still to come, the last first.
    waiting: Vec<MessageId>,
}

/// Where an export is.
#[derive(Clone, Copy, Debug)]
enum At {
    /// Behind this message.
    Messages(Option<MessageId>),
    /// Among the deliveries of one, behind this one.
    Deliveries(MessageId, Option<DeliveryId>),
    End,
}

impl<S: Store, C: Clock> Export<'_, S, C> {
    /// The next part, oldest first; `None` at the end. A part may be empty.
    pub async fn part(&mut self) -> Result<Option<Vec<Exported>>, StoreError> {
        let store = &self.engine.store;
        match self.at {
            At::End => Ok(None),
            At::Deliveries(message, after) => {
                let now = self.engine.clock.now();
                let shown = store.deliveries(message, after, now, DELIVERIES).await?;
                let last = shown.last().map(|shown| shown.delivery.id);
                let is_full = shown.len() == DELIVERIES as usize;
                self.at = if is_full { At::Deliveries(message, last) } else { At::Messages(Some(message)) };
                Ok(Some(shown.into_iter().map(Exported::Delivery).collect()))
            }
            At::Messages(after) => {
                if self.waiting.is_empty() {
                    let name = Name::Subject(self.subject.clone());
                    let page = store.named(self.tenant, name, ListOrder::OldestFirst, after, MESSAGES).await?;
                    self.waiting = page.messages;
                    self.waiting.reverse();
                }
                let Some(next) = self.waiting.pop() else {
                    self.at = At::End;
                    return Ok(None);
                };
                // It may have been let go, or erased, since it was looked up.
                let message = store.message(next).await?;
                self.at = if message.is_some() { At::Deliveries(next, None) } else { At::Messages(Some(next)) };
                Ok(Some(message.into_iter().map(Exported::Message).collect()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use posthaste_core::id::Key;
    use posthaste_core::queue::Limits;
    use posthaste_core::tier::Tier;
    use posthaste_crypto::LookupKey;
    use posthaste_crypto::keyring::{KeyId, StoreKey};
    use posthaste_crypto::public_id::IdKey;
    use posthaste_store::MemoryStore;
    use tokio::task::JoinSet;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::accept::{NewMessage, Outcome};
    use crate::clock::SystemClock;
    use crate::connector::{self, Roots, System};
    use crate::engine::Settings;

    const TENANT: TenantId = TenantId::from_raw(1);

    fn about(subject: &str, text: &'static str) -> NewMessage {
        NewMessage {
            tenant: TENANT,
            event_type: None,
            body: Bytes::from_static(text.as_bytes()),
            correlation_id: None,
            subject: Some(subject.to_owned()),
            tier: Tier::Engagement,
            ttl: None,
            deliver_at: None,
            endpoints: Vec::new(),
            uids: Vec::new(),
            details: posthaste_store::Details::default(),
            compact: None,
            collapse_key: None,
            once: None,
        }
    }

    async fn exported(engine: &Engine<MemoryStore, SystemClock>, subject: &str) -> Vec<Bytes> {
        let mut export = engine.export(TENANT, subject.to_owned());
        let mut bodies = Vec::new();
        while let Some(part) = export.part().await.expect("memory reads") {
            bodies.extend(part.into_iter().filter_map(|one| match one {
                Exported::Message(message) => Some(message.body.clone()),
                Exported::Delivery(_) => None,
            }));
        }
        bodies
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_held_about_somebody_can_be_exported_until_it_is_erased() {
        let settings = Settings {
            limits: Limits::default(),
            connector: connector::Settings::default(),
            roots: Roots::none(),
            ids: IdKey::from_bytes([7; 16]),
            lookup: LookupKey::from_bytes([8; 32]),
            api_keys: StoreKey::generate(KeyId(1)).api_keys(),
            seed: 1,
            master_key: None,
            retention: posthaste_store::Retention::default(),
        };
        let (stop, mut task) = (CancellationToken::new(), JoinSet::new());
        let store = Arc::new(MemoryStore::default());
        let started = Engine::start(store, SystemClock::new(), settings, Arc::new(System), stop.clone()).await;
        let (engine, run) = started.expect("memory opens");
        task.spawn(run);
        let mut ids = Vec::new();
        for (subject, text) in [("ann", "one"), ("bob", "two"), ("ann", "three")] {
            match engine.accept(about(subject, text)).await.expect("it is accepted") {
                Outcome::Promised(promise) => ids.push(promise.message),
                Outcome::Replayed(_) => panic!("nobody gave a key"),
            }
        }
        assert_eq!(exported(&engine, "ann").await, ["one", "three"]);
        let erased = engine.erase(TENANT, Whom::Subject("ann".to_owned())).await.expect("it erases");
        assert_eq!((erased.erasure.messages, erased.in_flight), (2, 0), "done within the answer");
        assert!(erased.erasure.done.is_some());
        assert_eq!(exported(&engine, "ann").await, [""; 0]);
        assert_eq!(exported(&engine, "bob").await, ["two"]);
        let known = engine.erasure(TENANT, erased.erasure.number).await.expect("memory reads");
        assert_eq!(known, Some(erased.erasure));
        let others = engine.erasure(TenantId(Key::from_raw(2)), erased.erasure.number).await.expect("memory reads");
        assert_eq!(others, None, "another tenant's is not found");
        stop.cancel();
        task.join_all().await;
    }
}
