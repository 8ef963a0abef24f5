//! Where a delivery is, from outside. That one arrives is the testkit's proof `thread`.

use http::StatusCode;

use crate::fixture::Server;

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
    let message = server.post("/v1/messages", &format!(r#"{{"payload": 1, "tier": 3, "deliver_at": "{later}"}}"#)).await;
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

/// The id of a message's only delivery: its key follows the message's, under the same time.
fn delivery_of(message: &str) -> String {
    use posthaste_crypto::public_id::{IdKey, Kind};
    let ids = IdKey::from_bytes([7; 16]);
    let opened = ids.open(message).expect("a message's id");
    ids.mint(Kind::Delivery, opened.writer, opened.seq + 1, opened.time_ms)
}
