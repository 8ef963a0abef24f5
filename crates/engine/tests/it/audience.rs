//! Messages for subjects and tags: which endpoints get them, at once or by a job.

use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::{Audience, TenantId, Tier};
use posthaste_engine::accept::FANOUT_MAX;
use posthaste_engine::{AcceptOutcome, NewMessage, NewSigning, NotAccepted};
use posthaste_store::{Details, Endpoint, MemoryStore};

use crate::harness::{Running, made, new_endpoint};

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn message(tenant: TenantId, subjects: &[&str], tags: &[&str]) -> NewMessage {
    let audience = Audience { subjects: owned(subjects), tags: owned(tags), ..Audience::default() };
    NewMessage {
        event_type: Some("order.paid".to_owned()),
        details: Details { audience, ..Details::default() },
        ..NewMessage::new(tenant, Bytes::from_static(b"{}"), Tier::Promotional)
    }
}

impl Running<MemoryStore> {
    async fn put(&self, tenant: TenantId, subject: Option<&str>, tags: &[&str], event_types: &[&str]) -> Endpoint {
        let (subject, tags, event_types) = (subject.map(str::to_owned), owned(tags), owned(event_types));
        let new = Endpoint { subject, tags, event_types, ..new_endpoint(self, tenant, "https://example.com/") };
        made(self.engine.make_endpoint(new, NewSigning::default(), None, None).await.expect("it is made")).endpoint
    }

    /// How many deliveries an accept makes of a message; `None` when a job makes them.
    async fn deliveries(&self, message: NewMessage) -> Option<usize> {
        accepted(self.engine.accept(message).await)
    }
}

fn accepted(outcome: Result<AcceptOutcome, NotAccepted>) -> Option<usize> {
    made(outcome.expect("it is accepted")).deliveries
}

#[tokio::test]
async fn a_message_for_subjects_and_tags_goes_once_to_each_endpoint_that_has_both() {
    let running = Running::start(&Arc::<MemoryStore>::default()).await;
    let (tenant, other) = (running.tenant("a").await, running.tenant("b").await);
    running.put(tenant, Some("ann"), &["eu", "beta"], &[]).await;
    running.put(tenant, Some("ann"), &["eu"], &["order.*"]).await;
    running.put(tenant, Some("ann"), &["eu"], &["invoice.*"]).await;
    let bob = running.put(tenant, Some("bob"), &["us"], &[]).await;
    running.put(tenant, None, &["beta"], &[]).await;
    running.put(other, Some("ann"), &["eu"], &[]).await;
    let cases: [(&[&str], &[&str], usize); 7] = [
        (&["ann"], &[], 2),
        (&["ann", "bob", "ann"], &[], 3),
        (&[], &["eu", "beta"], 3),
        (&["ann", "bob"], &["beta", "us"], 2),
        (&["ann"], &["us"], 0),
        (&["eve"], &[], 0),
        (&[], &["nothing"], 0),
    ];
    for (subjects, tags, expected) in cases {
        let found = running.deliveries(message(tenant, subjects, tags)).await;
        assert_eq!(found, Some(expected), "{subjects:?} {tags:?}");
    }
    let together = cases.map(|(subjects, tags, _)| message(tenant, subjects, tags));
    let found: Vec<_> = running.engine.accept_all(together.to_vec()).await.into_iter().map(accepted).collect();
    assert_eq!(found, cases.map(|(_, _, expected)| Some(expected)), "a batch has the same recipients");

    let moved = Endpoint { subject: Some("eve".to_owned()), version: bob.version + 1, ..bob.clone() };
    let eve = running.engine.change_endpoint(moved, None).await.expect("it is changed");
    assert_eq!(running.deliveries(message(tenant, &["bob"], &[])).await, Some(0), "its new subject counts");
    assert_eq!(running.deliveries(message(tenant, &["eve"], &["us"])).await, Some(1));
    running.engine.delete_endpoint(&eve, None).await.expect("it is deleted");
    assert_eq!(running.deliveries(message(tenant, &["eve"], &[])).await, Some(0), "it is deleted");
    running.stop().await;
}

#[tokio::test]
async fn tag_with_more_endpoints_than_fit_an_accept_goes_to_a_job() {
    let running = Running::start(&Arc::<MemoryStore>::default()).await;
    let tenant = running.tenant("a").await;
    for _ in 0..FANOUT_MAX {
        running.put(tenant, Some("ann"), &["eu"], &[]).await;
    }
    let to_tag = || message(tenant, &[], &["eu"]);
    assert_eq!(running.deliveries(to_tag()).await, Some(FANOUT_MAX), "just as many as fit");
    for _ in 0..10 {
        running.put(tenant, Some("ann"), &["eu"], &["invoice.*"]).await;
    }
    assert_eq!(running.deliveries(to_tag()).await, Some(FANOUT_MAX), "those that want other events do not count");
    running.put(tenant, None, &["eu", "beta"], &[]).await;
    assert_eq!(running.deliveries(to_tag()).await, None, "one more endpoint than fit");
    let collapsing = NewMessage { collapse_key: Some("k".to_owned()), ..to_tag() };
    let refused = running.engine.accept(collapsing).await;
    assert!(matches!(refused, Err(NotAccepted::CollapsesTooMany)), "{refused:?}");
    assert_eq!(running.deliveries(message(tenant, &["ann"], &["beta", "eu"])).await, Some(FANOUT_MAX));
    running.stop().await;
}
