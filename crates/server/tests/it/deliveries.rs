//! Where a delivery is, from outside. That one arrives is the testkit's proof `thread`.

use std::sync::Arc;

use http::StatusCode;
use posthaste_core::{DeliveryId, State, Timestamp};
use posthaste_crypto::public_id::IdKey;
use posthaste_store::Archive;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::fixture::{Server, delivery_of};

#[tokio::test]
async fn an_id_that_names_no_delivery_is_not_found() {
    let server = Server::start().await;
    let endpoint = server.endpoint("").await;
    for id in ["dlv_0", "x", &endpoint] {
        assert_eq!(server.get(&format!("/v1/deliveries/{id}")).await.problem(), (404, "not_found", ""), "{id}");
    }
}

#[tokio::test]
async fn a_delivery_that_waits_says_why_and_until_when() {
    let server = Server::start().await;
    server.endpoint("").await;
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let message =
        server.post("/v1/messages", &format!(r#"{{"payload": 1, "tier": 3, "deliver_at": "{later}"}}"#)).await;
    let delivery = delivery_of(message.text("id"));
    let shown = server.get(&format!("/v1/deliveries/{delivery}")).await;
    assert_eq!(shown.status, StatusCode::OK, "{}", shown.body);
    assert_eq!((shown.text("state"), shown.text("tier")), ("queued", "engagement"));
    assert_eq!(shown.text("message"), message.text("id"));
    assert_eq!(shown.text("accepted_at"), message.text("accepted_at"));
    assert_eq!(shown.body["waiting"]["why"], "scheduled");
    let until: jiff::Timestamp = shown.body["waiting"]["until"].as_str().expect("a time").parse().expect("a time");
    assert_eq!(until.as_millisecond(), later.as_millisecond());
    assert_eq!(shown.body["attempts"], serde_json::json!([]));
}

#[tokio::test]
async fn a_delivery_nobody_takes_shows_its_attempt() {
    let server = Server::start().await;
    server.endpoint("").await;
    let message = server.post("/v1/messages", r#"{"payload": 1}"#).await;
    let path = format!("/v1/deliveries/{}", delivery_of(message.text("id")));
    let shown = loop {
        let shown = server.get(&path).await;
        if shown.text("state") == "retry" {
            break shown;
        }
    };
    assert_eq!((shown.text("cause"), shown.body["waiting"]["why"].as_str()), ("connect_refused", Some("backoff")));
    let attempt = &shown.body["attempts"][0];
    assert_eq!((&attempt["attempt"], &attempt["status"]), (&1.into(), &serde_json::Value::Null));
}

#[tokio::test]
async fn an_attempt_in_flight_when_the_server_stops_ends_and_is_recorded() {
    let receiver = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let server = Server::start().await;
    let url = format!("http://{}/", receiver.local_addr().expect("it listens"));
    let made = server.post("/v1/endpoints", &format!(r#"{{"url": "{url}"}}"#)).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let message = server.post("/v1/messages", r#"{"payload": 1}"#).await;
    let (mut stream, _) = receiver.accept().await.expect("the attempt comes");
    let mut request = [0; 4_096];
    assert!(stream.read(&mut request).await.expect("a request") > 0);

    let store = Arc::clone(&server.store);
    // The stop is asked for before the receiver answers, and has to wait for it.
    let (ended, answered) = tokio::join!(biased; server.stop(), stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n"));
    answered.expect("somebody reads it");
    ended.expect("an orderly end");
    let id = DeliveryId(posthaste_core::Key::from_raw(key_of(message.text("id")).raw() + 1));
    let shown = store.delivery(id, Timestamp::from_millis(0)).await.expect("the store answers").expect("it is known");
    assert!(matches!(shown.delivery.state, State::Delivered { .. }), "{:?}", shown.delivery);
}

fn key_of(message: &str) -> posthaste_core::Key {
    let opened = IdKey::from_bytes([7; 16]).open(message).expect("a message's id");
    posthaste_core::Key::new(posthaste_core::WriterId::new(opened.writer).expect("a writer"), opened.seq)
}
