//! Deliveries over the API: shown, listed and retried. The testkit's proof `thread` shows that one arrives.

use std::sync::Arc;

use http::StatusCode;
use posthaste_core::{DeliveryId, Key, State, Timestamp, WriterId};
use posthaste_crypto::public_id::IdKey;
use posthaste_store::Archive;
use tokio::io::AsyncWriteExt;

use crate::fixture::{Server, accept, answer, delivery_of};

#[tokio::test]
async fn a_waiting_delivery_shows_why_and_until_when() {
    let server = Server::start().await;
    server.endpoint("").await;
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let message =
        server.post("/v1/messages", &format!(r#"{{"payload": 1, "tier": 3, "deliver_at": "{later}"}}"#)).await;
    let delivery = delivery_of(message.text("id"));
    let shown = server.get(&format!("/v1/deliveries/{delivery}")).await.expect(StatusCode::OK);
    assert_eq!((shown.text("state"), shown.text("tier")), ("queued", "engagement"));
    assert_eq!(shown.text("message"), message.text("id"));
    assert_eq!(shown.text("accepted_at"), message.text("accepted_at"));
    assert_eq!(shown.body["waiting"]["why"], "scheduled");
    let until: jiff::Timestamp = shown.body["waiting"]["until"].as_str().expect("a time").parse().expect("a time");
    assert_eq!(until.as_millisecond(), later.as_millisecond());
    assert_eq!(shown.body["attempts"], serde_json::json!([]));
}

#[tokio::test]
async fn a_delivery_to_a_closed_port_shows_its_failed_attempt() {
    let server = Server::start().await;
    server.endpoint("").await;
    let shown = server.until(&server.delivery(r#"{"payload": 1}"#).await, "retry").await;
    assert_eq!((shown.text("cause"), shown.body["waiting"]["why"].as_str()), ("connect_refused", Some("backoff")));
    let attempt = &shown.body["attempts"][0];
    assert_eq!((&attempt["attempt"], &attempt["status"]), (&1.into(), &serde_json::Value::Null));
}

#[tokio::test]
async fn an_attempt_in_flight_when_the_server_stops_ends_and_is_recorded() {
    let server = Server::start().await;
    let (receiver, _) = server.receiver("").await;
    let message = server.message(r#"{"payload": 1}"#).await;
    let (mut stream, _) = accept(&receiver).await;

    let store = Arc::clone(&server.store);
    // The shutdown begins before the receiver answers, and must wait for it.
    let (ended, answered) = tokio::join!(biased; server.stop(), stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n"));
    answered.expect("the server reads it");
    ended.expect("an orderly shutdown");
    let opened = IdKey::from_bytes([7; 16]).open(&message).expect("a message's id");
    let id = DeliveryId(Key::new(WriterId::new(opened.writer).expect("a writer"), opened.seq + 1));
    let shown = store.delivery(id, Timestamp::from_millis(0)).await.expect("the store answers").expect("it is known");
    assert!(matches!(shown.delivery.state, State::Delivered { .. }), "{:?}", shown.delivery);
}

#[tokio::test]
async fn deliveries_are_listed_by_every_filter_and_page_by_page() {
    let server = Server::start().await;
    let (first, second) = (server.endpoint("").await, server.endpoint("").await);
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let mut messages = Vec::new();
    for tier in [1, 2] {
        let body = format!(r#"{{"payload": 1, "tier": {tier}, "deliver_at": "{later}"}}"#);
        messages.push(server.message(&body).await);
    }
    server.post(&format!("/v1/messages/{}/cancel", messages[0]), "").await;
    let listed = async |query: String| {
        let answer = server.get(&format!("/v1/deliveries?{query}")).await.expect(StatusCode::OK);
        let one = |one: &serde_json::Value| {
            let at = |ids: &[String], name: &str| ids.iter().position(|id| one[name] == id.as_str()).expect("ours");
            (at(&messages, "message"), at(&[first.clone(), second.clone()], "endpoint"))
        };
        answer.list().iter().map(one).collect::<Vec<_>>()
    };
    let all = listed(String::new()).await;
    assert_eq!(all, [(1, 1), (1, 0), (0, 1), (0, 0)], "newest first");
    assert_eq!(listed("order=asc&limit=1".to_owned()).await, [(0, 0)]);
    assert_eq!(listed(format!("endpoint={first}")).await, [(1, 0), (0, 0)]);
    assert_eq!(listed(format!("message={}", messages[0])).await, [(0, 1), (0, 0)]);
    assert_eq!(listed(format!("message={}&order=asc", messages[0])).await, [(0, 0), (0, 1)]);
    assert_eq!(listed("state=cancelled".to_owned()).await, [(0, 1), (0, 0)]);
    assert_eq!(listed("state=queued&tier=2".to_owned()).await, [(1, 1), (1, 0)]);
    assert_eq!(listed("state=dispatching".to_owned()).await, []);
    assert_eq!(listed("cause=cancelled".to_owned()).await, [(0, 1), (0, 0)]);
    assert_eq!(listed("until=2020-01-01T00:00:00Z".to_owned()).await, []);

    let page = server.get("/v1/deliveries?limit=3").await;
    let cursor = page.text("next_cursor");
    assert_eq!(listed(format!("limit=3&cursor={cursor}")).await, [(0, 0)]);
    for (query, problem) in [
        ("state=sent".to_owned(), (400, "invalid_parameter", "")),
        (format!("tier=1&cursor={cursor}"), (400, "invalid_parameter", "")),
        (format!("endpoint={first}&message={}", messages[0]), (400, "invalid_parameter", "")),
        ("endpoint=ep_0".to_owned(), (404, "not_found", "")),
        ("message=msg_0".to_owned(), (404, "not_found", "")),
        ("stat=dead".to_owned(), (400, "unknown_parameter", "")),
    ] {
        assert_eq!(server.get(&format!("/v1/deliveries?{query}")).await.problem(), problem, "{query}");
    }
}

#[tokio::test]
async fn a_failed_attempt_shows_the_receiver_s_answer_only_with_content() {
    let server = Server::start().await;
    let (receiver, _) = server.receiver("").await;
    let path = server.delivery(r#"{"payload": 1}"#).await;
    let (mut stream, _) = accept(&receiver).await;
    let body = format!("no such field: {}", "x".repeat(2_000));
    let head = format!("HTTP/1.1 422 No\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).await.expect("the server reads it");
    server.until(&path, "dead").await;
    let without = server.get(&path).await;
    assert_eq!(without.body["attempts"][0].get("response"), None, "{}", without.body);
    let shown = server.get(&format!("{path}?content=true")).await;
    assert_eq!(shown.body["attempts"][0]["response"], body[..1_024], "its first 1,024 bytes");
    assert_eq!(server.get(&format!("{path}?content=maybe")).await.problem(), (400, "invalid_parameter", ""));
}

#[tokio::test]
async fn a_retry_request_sends_a_scheduled_delivery_at_once() {
    let server = Server::start().await;
    let (receiver, _) = server.receiver("").await;
    // One delivery that waits in memory, and one whose due time is too far ahead for that.
    for hours in [0, 48] {
        let later = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(hours * 3_600 + 20);
        let path = server.delivery(&format!(r#"{{"payload": 1, "deliver_at": "{later}"}}"#)).await;
        server.post(&format!("{path}/retry"), "").await.expect(StatusCode::OK);
        answer(&receiver, "204 No Content").await;
        server.until(&path, "delivered").await;
        let again = server.post(&format!("{path}/retry"), "").await;
        assert_eq!(again.problem(), (409, "delivery_ended", ""));
        assert!(again.text("detail").contains("a replay would skip it"), "{}", again.body);
    }
    assert_eq!(server.post("/v1/deliveries/dlv_0/retry", "").await.problem(), (404, "not_found", ""));
}

#[tokio::test]
async fn a_retry_request_does_not_lift_a_retry_after() {
    let server = Server::start().await;
    let (receiver, _) = server.receiver("").await;
    let path = server.delivery(r#"{"payload": 1}"#).await;
    answer(&receiver, "503 Service Unavailable\r\nretry-after: 3600").await;
    let waits = server.until(&path, "retry").await;
    assert_eq!(waits.body["waiting"]["why"], "retry_after", "{}", waits.body);
    assert_eq!(waits.body["waiting"]["until"], waits.body["attempts"][0]["next_due"]);
    let hurried = server.post(&format!("{path}/retry"), "").await;
    assert_eq!(hurried.body["waiting"]["why"], "retry_after", "the hold remains: {}", hurried.body);
    assert!(hurried.body["waiting"]["until"].is_string(), "{}", hurried.body);
}

#[tokio::test]
async fn after_a_413_the_compact_payload_is_sent_once() {
    let server = Server::start().await;
    let (receiver, _) = server.receiver("").await;
    let ended = async |path: &str, state: &str| {
        let shown = server.until(path, state).await;
        let attempts = shown.body["attempts"].as_array().expect("a list").clone();
        let causes = attempts.iter().map(|attempt| attempt["cause"].as_str().expect("a cause").to_owned());
        (causes.collect::<Vec<_>>(), shown.body["cause_detail"].as_str().map(str::to_owned))
    };
    let refused = |bytes: usize| Some(format!("its receiver refused {bytes} bytes: its limit is lower"));
    let both = r#"{"payload": {"the": "long one"}, "compact": {"short": 1}}"#;
    for (second, state, causes, detail) in [
        ("204 No Content", "delivered", ["payload_too_large", "ok"], None),
        ("413 Content Too Large", "dead", ["payload_too_large", "payload_too_large"], refused(12)),
    ] {
        let path = server.delivery(both).await;
        assert!(answer(&receiver, "413 Content Too Large").await.ends_with(r#"{"the": "long one"}"#));
        assert!(answer(&receiver, second).await.ends_with(r#"{"short": 1}"#), "in its place");
        assert_eq!(ended(&path, state).await, (causes.map(str::to_owned).to_vec(), detail));
    }
    let path = server.delivery(r#"{"payload": {"the": "long one"}}"#).await;
    answer(&receiver, "413 Content Too Large").await;
    let expected = (vec!["payload_too_large".to_owned()], refused(19));
    assert_eq!(ended(&path, "dead").await, expected, "the message has no compact payload");
}
