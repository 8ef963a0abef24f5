//! A second channel, complete in this file: it sends its payload in upper case, and its receivers answer in a format
//! of their own.
//!
//! The engine is the real one, over a socket, with a webhook beside the toy. This file shows that the engine needs
//! nothing of a channel but its two functions and one line of registration. The toy has no target type of its own: it
//! uses webhook endpoints with a certain tag.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_channels::{Channel, ChannelRequest, Fields, Outgoing, ResponseView, Unsendable};
use posthaste_core::scheduler::Explained;
use posthaste_core::{Cause, Class, DeliveryId, State, TenantId, Tier, Timestamp, Verdict, VerdictScope, Why};
use posthaste_engine::engine::Settings;
use posthaste_engine::{EndpointRef, ExplainedDelivery, NewMessage, NewSigning, System, Visibility, channels};
use posthaste_store::{Endpoint, EndpointStatus, MemoryStore};

use crate::harness::{Running, loopback_allowed, made, new_endpoint, settings};
use crate::receiver::{OK, Receiver, Step, write};

const TOY: &str = "toy";

/// The wait that a receiver of the toy channel asks for.
const ASKED: Duration = Duration::from_secs(60);

/// Longer than any step of these tests takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends payloads in upper case, and judges by the text of an answer's body.
#[derive(Debug)]
struct Toy;

impl Channel for Toy {
    fn request(&self, outgoing: &Outgoing<'_>, _now: Timestamp) -> Result<ChannelRequest, Unsendable> {
        let mut ours = Fields::with_capacity(64);
        let name = http::HeaderName::from_static("toy-attempt");
        assert!(ours.push(&name, &outgoing.attempt.to_string()), "a number is printable");
        Ok(ChannelRequest { ours, body: Bytes::from(outgoing.body.to_ascii_uppercase()), ..ChannelRequest::default() })
    }

    fn judge(&self, answer: &ResponseView<'_>, _now: Timestamp) -> Verdict {
        let waits = |scope| Verdict {
            status: Some(answer.status),
            retry_after: Some(ASKED),
            scope,
            ..Verdict::of(Cause::TooManyRequests)
        };
        match answer.excerpt {
            b"you alone" => waits(VerdictScope::Endpoint),
            b"all of you" => waits(VerdictScope::Lane),
            b"all with your key" => waits(VerdictScope::Credential),
            b"much later" => {
                Verdict { least_wait: Some(Duration::from_secs(900)), ..Verdict::of(Cause::InternalError) }
            }
            b"never again" => Verdict { class: Class::Dead, prune: true, ..Verdict::of(Cause::NotFound) },
            _ => Verdict { status: Some(answer.status), ..Verdict::of(Cause::Ok) },
        }
    }
}

/// The registration: endpoints with the tag use the toy channel, all others the built-in one.
fn with_toy(endpoint: &Endpoint) -> Box<dyn Channel> {
    if endpoint.tags.iter().any(|tag| tag == TOY) { Box::new(Toy) } else { channels::registered(endpoint) }
}

struct World {
    running: Running<MemoryStore>,
    tenant: TenantId,
}

impl World {
    async fn start() -> Self {
        let mut settings = Settings { channels: with_toy, ..settings() };
        settings.connector.rules = loopback_allowed();
        let running = Running::over(&Arc::default(), settings, Arc::new(System)).await;
        let tenant = running.tenant("acme").await;
        Self { running, tenant }
    }

    async fn endpoint(&self, receiver: &Receiver, tags: &[&str]) -> Endpoint {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let new = Endpoint { tags, ..new_endpoint(&self.running, self.tenant, &receiver.url()) };
        let endpoint = self.running.engine.make_endpoint(new, NewSigning::default(), None, None).await;
        made(endpoint.expect("an endpoint")).endpoint
    }

    async fn send(&self, endpoint: &Endpoint) -> DeliveryId {
        let message = NewMessage {
            endpoints: vec![EndpointRef::Id(endpoint.id)],
            ..NewMessage::new(self.tenant, Bytes::from_static(b"\"hello\""), Tier::Transactional)
        };
        DeliveryId(made(self.running.engine.accept(message).await.expect("it is accepted")).message.0.plus(1))
    }

    /// Waits until a delivery fulfils the condition, and returns it.
    async fn until(&self, delivery: DeliveryId, is_it: impl Fn(&ExplainedDelivery) -> bool) -> ExplainedDelivery {
        let seen = async {
            loop {
                let view = self.running.view(delivery).await;
                if is_it(&view) {
                    return view;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, seen).await.expect("it happens in time")
    }

    async fn until_tried(&self, delivery: DeliveryId) -> ExplainedDelivery {
        self.until(delivery, |view| !view.shown.attempts.is_empty()).await
    }
}

/// A world whose receiver of toy messages has answered the first of them with this text.
async fn world_told(words: &str) -> (World, Receiver, Endpoint, ExplainedDelivery) {
    let (world, receiver) = (World::start().await, receiver_saying(words).await);
    let toy = world.endpoint(&receiver, &[TOY]).await;
    let first = world.send(&toy).await;
    let tried = world.until_tried(first).await;
    (world, receiver, toy, tried)
}

/// A receiver that answers the first request with this text and all others with 200.
async fn receiver_saying(words: &str) -> Receiver {
    let answer = format!("HTTP/1.1 429 No\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{words}", words.len());
    Receiver::start(vec![vec![Step::Read, write(answer)], vec![Step::Serve]]).await
}

fn wait_of(view: &ExplainedDelivery) -> Duration {
    match view.shown.delivery.state {
        State::Retry { due, .. } => due.since(view.shown.attempts[0].at),
        other => panic!("no retry, but {other:?}"),
    }
}

fn is_delivered(view: &ExplainedDelivery) -> bool {
    matches!(view.shown.delivery.state, State::Delivered { .. })
}

#[tokio::test]
async fn toy_channel_and_webhooks_deliver_side_by_side() {
    let world = World::start().await;
    let receivers = [Receiver::start(vec![vec![Step::Read, write(OK)]]).await, receiver_saying("").await];
    let [toy, webhook] = [world.endpoint(&receivers[0], &[TOY]).await, world.endpoint(&receivers[1], &[]).await];
    let [shouted, signed] = [world.send(&toy).await, world.send(&webhook).await];
    world.until(shouted, is_delivered).await;
    world.until_tried(signed).await;
    let requests = receivers.each_ref().map(|receiver| receiver.requests().remove(0));
    assert!(requests[0].contains("toy-attempt: 1") && requests[0].ends_with("\"HELLO\""), "{}", requests[0]);
    assert!(!requests[0].contains("webhook-signature"), "{}", requests[0]);
    assert!(requests[1].contains("webhook-signature") && requests[1].ends_with("\"hello\""), "{}", requests[1]);
    world.running.stop().await;
}

#[tokio::test]
async fn retry_after_of_endpoint_scope_delays_its_delivery_alone() {
    let (world, _receiver, toy, tried) = world_told("you alone").await;
    assert!(wait_of(&tried) >= ASKED);
    let second = world.send(&toy).await;
    world.until(second, is_delivered).await;
    world.running.stop().await;
}

/// For a lane without a credential, a hold of the credential holds the lane.
#[tokio::test]
async fn retry_after_of_lane_or_credential_scope_holds_the_lane() {
    for words in ["all of you", "all with your key"] {
        let (world, receiver, toy, _) = world_told(words).await;
        let second = world.send(&toy).await;
        let held = |view: &ExplainedDelivery| matches!(view.explained, Some(Explained::Waits(hold)) if hold.why == Why::RetryAfter);
        world.until(second, held).await;
        assert_eq!(receiver.requests().len(), 1);
        world.running.stop().await;
    }
}

#[tokio::test]
async fn least_wait_of_the_channel_delays_the_retry() {
    let (world, _receiver, _, tried) = world_told("much later").await;
    assert!(wait_of(&tried) >= Duration::from_secs(900));
    world.running.stop().await;
}

#[tokio::test]
async fn verdict_that_prunes_ends_the_endpoint() {
    let (world, _receiver, toy, _) = world_told("never again").await;
    let known = async || world.running.engine.endpoint(Visibility::All, toy.id).await.expect("memory reads");
    let gone = async {
        while known().await.expect("it is there").endpoint.status != EndpointStatus::Gone {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("its endpoint ends");
    world.running.stop().await;
}
