//! Erasing and exporting with a running engine over a store in memory.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use posthaste_core::{Cause, EndpointId, LaneId, MessageId, Tier};
use posthaste_crypto::signature::Secret;
use posthaste_store::{
    AttemptRecord, Directory, Endpoint, MemoryStore, Outbox, Pause, Settlement, SigningSecret, WebhookTarget,
};

use super::*;
use crate::export::Exported;
use crate::fixtures::given_up;
use crate::harness::{Running, made, settings};
use crate::{NewMessage, NoAnswer, Resolve, SystemClock};

const TENANT: TenantId = TenantId::from_raw(1);

/// A resolver that counts look-ups and never answers, so that every attempt stays in flight.
#[derive(Debug, Default)]
struct Silence(AtomicUsize);

impl Resolve for Silence {
    fn resolve<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Vec<IpAddr>, NoAnswer>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::pending())
    }
}

type MemoryEngine = Arc<Engine<MemoryStore, SystemClock>>;

async fn start(resolver: &Arc<Silence>) -> Running<MemoryStore> {
    Running::over(&Arc::default(), settings(), Arc::clone(resolver) as _).await
}

impl Running<MemoryStore> {
    async fn put_endpoint(&self, id: u64, subject: Option<&str>) {
        let secrets = vec![SigningSecret::lasting(Secret::generate().reveal().as_str())];
        let target = WebhookTarget::signing("https://receiver.example/", secrets);
        let endpoint = Endpoint {
            subject: subject.map(str::to_owned),
            ..Endpoint::new(EndpointId::from_raw(id), LaneId::from_raw(70 + id), TENANT, self.engine.now(), target)
        };
        let put = self.engine.store.put_endpoint(self.engine.session, endpoint, None, self.engine.done_by(None)).await;
        _ = put.expect("this engine has the session");
    }

    async fn accept(&self, subject: &str, text: &'static str) -> MessageId {
        let message = NewMessage {
            subject: Some(subject.to_owned()),
            ..NewMessage::new(TENANT, Bytes::from_static(text.as_bytes()), Tier::Engagement)
        };
        made(self.engine.accept(message).await.expect("it is accepted")).message
    }
}

/// All items of a subject's export, and the number of its parts.
async fn exported(engine: &MemoryEngine, subject: &str) -> (Vec<Exported>, usize) {
    let mut export = engine.export(TENANT, subject.to_owned(), None).await.expect("memory takes note");
    let (mut all, mut parts) = (Vec::new(), 0);
    while let Some(part) = engine.exported(&mut export).await.expect("memory reads") {
        all.extend(part);
        parts += 1;
    }
    (all, parts)
}

async fn bodies(engine: &MemoryEngine, subject: &str) -> Vec<Bytes> {
    let body = |one| match one {
        Exported::Message(message) => Some(message.body.clone()),
        Exported::Delivery { .. } | Exported::Endpoint(_) => None,
    };
    exported(engine, subject).await.0.into_iter().filter_map(body).collect()
}

#[tokio::test(start_paused = true)]
async fn export_has_endpoints_messages_and_deliveries_of_its_subject_alone() {
    let running = start(&Arc::default()).await;
    let engine = &running.engine;
    running.put_endpoint(7, Some("ann")).await;
    running.put_endpoint(8, Some("bob")).await;
    running.put_endpoint(9, None).await;
    let about = [running.accept("ann", "one").await, running.accept("ann", "two").await];
    running.accept("bob", "three").await;
    let mut items = Vec::new();
    for one in exported(engine, "ann").await.0 {
        items.push(match one {
            Exported::Endpoint(endpoint) => format!("endpoint {}", endpoint.id.raw()),
            Exported::Message(message) => {
                format!("message {}", about.iter().position(|id| *id == message.id).expect("a message about ann"))
            }
            Exported::Delivery { shown, accepted_at, excerpts } => {
                assert_eq!(excerpts, [], "no receiver has answered");
                let of = about.iter().position(|id| *id == shown.delivery.message).expect("a message about ann");
                assert!(accepted_at <= engine.now());
                format!("delivery of {of} to {}", shown.delivery.endpoint.raw())
            }
        });
    }
    let deliveries = |of: usize| (7..=9).map(move |endpoint| format!("delivery of {of} to {endpoint}"));
    let mut expected = vec!["endpoint 7".to_owned(), "message 0".to_owned()];
    expected.extend(deliveries(0));
    expected.push("message 1".to_owned());
    expected.extend(deliveries(1));
    assert_eq!(items, expected);
    let others = engine.export(TenantId::from_raw(2), "ann".to_owned(), None).await;
    let mut others = others.expect("memory takes note");
    while let Some(part) = engine.exported(&mut others).await.expect("memory reads") {
        assert_eq!(part, [], "another tenant's subject of the same name is another subject");
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn export_has_the_excerpts_of_receivers_answers() {
    let running = start(&Arc::default()).await;
    let engine = &running.engine;
    running.put_endpoint(7, None).await;
    running.accept("ann", "one").await;
    let delivery = |one| match one {
        Exported::Delivery { shown, .. } => Some(shown.delivery),
        _ => None,
    };
    let waiting = exported(engine, "ann").await.0.into_iter().find_map(delivery).expect("a delivery");
    let at = engine.now();
    let failed = AttemptRecord { number: 1, at, took: Duration::ZERO, cause: Cause::Unavailable, status: Some(503) };
    let bytes = Bytes::from_static(b"no such ann");
    let dead = given_up(engine, &waiting, at, Cause::Unavailable);
    let settlement = Settlement { attempt: Some(failed), excerpt: Some(bytes.clone()), ..dead };
    engine.store.settle(engine.session, vec![settlement]).await.expect("memory takes it");
    let items = exported(engine, "ann").await.0;
    let Some(Exported::Delivery { excerpts, .. }) = items.last() else { panic!("a delivery is the last: {items:?}") };
    assert_eq!(*excerpts, [(1, bytes)]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn export_spans_pages_and_holds_one_message_at_a_time() {
    let running = start(&Arc::default()).await;
    for _ in 0..130 {
        running.accept("ann", "one").await;
        running.accept("bob", "two").await;
    }
    let (all, parts) = exported(&running.engine, "ann").await;
    assert_eq!(all.len(), 130);
    assert!(parts >= 130, "{parts}");
    let mut ids: Vec<MessageId> = all
        .iter()
        .filter_map(|one| match one {
            Exported::Message(message) => Some(message.id),
            _ => None,
        })
        .collect();
    ids.dedup();
    assert!(ids.len() == 130 && ids.is_sorted());
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn subjects_data_can_be_exported_until_it_is_erased() {
    let running = start(&Arc::default()).await;
    let engine = &running.engine;
    for (subject, text) in [("ann", "one"), ("bob", "two"), ("ann", "three")] {
        running.accept(subject, text).await;
    }
    assert_eq!(bodies(engine, "ann").await, ["one", "three"]);
    let erased = engine.erase(TENANT, ErasureTarget::Subject("ann".to_owned()), None).await.expect("it erases");
    assert_eq!((erased.erasure.messages, erased.in_flight), (2, 0), "done within the answer");
    assert!(erased.erasure.done.is_some());
    assert_eq!(bodies(engine, "ann").await, [""; 0]);
    assert_eq!(bodies(engine, "bob").await, ["two"]);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn erasing_a_paused_tenant_sends_nothing() {
    let resolver = Arc::default();
    let running = start(&resolver).await;
    let engine = &running.engine;
    running.put_endpoint(7, None).await;
    engine.pause(Pause::new(PauseScope::Tenant(TENANT), None)).await.expect("it pauses");
    running.accept("ann", "one").await;
    running.accept("bob", "two").await;
    let erased = engine.erase(TENANT, ErasureTarget::Tenant, None).await.expect("it erases");
    assert_eq!((erased.erasure.messages, erased.in_flight), (2, 0));
    assert_eq!(resolver.0.load(Ordering::SeqCst), 0, "the receiver's name was not resolved");
    running.stop().await;
}
