//! Holding everything.

use std::task::{Context, Waker};

use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::fixture::{Server, delivery_of};

#[tokio::test]
async fn a_pause_holds_what_comes_and_a_resume_sends_it() {
    let receiver = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let server = Server::start().await;
    let url = format!("http://{}/", receiver.local_addr().expect("it listens"));
    let made = server.post("/v1/endpoints", &format!(r#"{{"url": "{url}"}}"#)).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);

    let paused = server.post("/v1/pause", r#"{"scope": "all", "reason": "a look at the logs"}"#).await;
    assert_eq!((paused.status, paused.body["paused"].as_bool()), (StatusCode::OK, Some(true)));
    let message = server.post("/v1/messages", r#"{"payload": 1}"#).await;
    let path = format!("/v1/deliveries/{}", delivery_of(message.text("id")));
    let shown = server.get(&path).await;
    assert_eq!((shown.text("state"), shown.body["waiting"]["why"].as_str()), ("queued", Some("paused")));
    let came = receiver.poll_accept(&mut Context::from_waker(Waker::noop()));
    assert!(came.is_pending(), "nothing is sent: {came:?}");

    let resumed = server.post("/v1/resume", r#"{"scope": "all"}"#).await;
    assert_eq!((resumed.status, resumed.body["paused"].as_bool()), (StatusCode::OK, Some(false)));
    let (mut stream, _) = receiver.accept().await.expect("the attempt comes");
    let mut request = [0; 4_096];
    assert!(stream.read(&mut request).await.expect("a request") > 0);
    assert_eq!(server.get(&path).await.text("state"), "dispatching");
}

#[tokio::test]
async fn a_pause_of_nothing_known_is_refused() {
    let server = Server::start().await;
    let cases = [
        ("{}", "/scope"),
        (r#"{"scope": "al"}"#, "/scope"),
        (r#"{"scope": "tenant", "id": null}"#, "/id"),
        (r#"{"scope": "all", "until": "2020-01-01T00:00:00Z"}"#, "/until"),
        (r#"{"scope": "all", "till": "2020-01-01T00:00:00Z"}"#, "/till"),
    ];
    for (body, pointer) in cases {
        assert_eq!(server.post("/v1/pause", body).await.problem(), (400, "invalid_body", pointer), "{body}");
    }
}

#[tokio::test]
async fn an_endpoint_can_be_paused_and_enabled_by_itself() {
    let server = Server::start().await;
    let (held, free) = (server.endpoint("").await, server.endpoint("").await);
    let paused = server.post(&format!("/v1/endpoints/{held}/pause"), "").await;
    assert_eq!(paused.body, serde_json::json!({"id": held, "paused": true, "until": null}));
    let message = server.post("/v1/messages", r#"{"payload": 1}"#).await;
    let path = format!("/v1/messages/{}", message.text("id"));
    // The other one is tried, and refused by nobody who listens.
    let of = |shown: &crate::fixture::Answer, endpoint: &str| {
        let list = shown.body["deliveries"].as_array().expect("a list");
        list.iter().find(|one| one["endpoint"] == endpoint).cloned().expect("it is among them")
    };
    let shown = loop {
        let shown = server.get(&path).await;
        if of(&shown, &free)["state"] == "retry" {
            break shown;
        }
    };
    let waits = of(&shown, &held);
    assert_eq!((&waits["waiting"]["why"], &waits["attempts"]), (&"paused".into(), &0.into()));
    let enabled = server.post(&format!("/v1/endpoints/{held}/enable"), "").await;
    assert_eq!((enabled.status, enabled.body["paused"].as_bool()), (StatusCode::OK, Some(false)));
    while of(&server.get(&path).await, &held)["state"] != "retry" {}

    let past = server.post(&format!("/v1/endpoints/{held}/pause"), r#"{"until": "2020-01-01T00:00:00Z"}"#).await;
    assert_eq!(past.problem(), (400, "invalid_body", "/until"));
    for verb in ["pause", "enable"] {
        assert_eq!(server.post(&format!("/v1/endpoints/ep_0/{verb}"), "").await.problem(), (404, "not_found", ""));
    }
}

#[tokio::test]
async fn a_strict_lane_held_by_a_dead_head_goes_on_once_it_is_enabled() {
    let receiver = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let server = Server::start().await;
    let url = format!("http://{}/", receiver.local_addr().expect("it listens"));
    let body = format!(r#"{{"url": "{url}", "order": "strict", "on_dead": "hold"}}"#);
    let endpoint = server.post("/v1/endpoints", &body).await.text("id").to_owned();
    let mut paths = Vec::new();
    for _ in 0..2 {
        let message = server.post("/v1/messages", r#"{"payload": 1}"#).await;
        paths.push(format!("/v1/messages/{}", message.text("id")));
    }
    answer(&receiver, "400 Bad Request").await;
    while server.get(&paths[0]).await.text("state") != "failed" {}
    let second = server.get(&paths[1]).await;
    assert_eq!(second.body["deliveries"][0]["waiting"]["why"], "paused", "{}", second.body);

    server.post(&format!("/v1/endpoints/{endpoint}/enable"), "").await;
    answer(&receiver, "204 No Content").await;
    while server.get(&paths[1]).await.text("state") != "delivered" {}
}

/// Takes one request and answers it.
pub(crate) async fn answer(receiver: &TcpListener, status: &str) {
    let (mut stream, _) = receiver.accept().await.expect("the attempt comes");
    let mut request = [0; 4_096];
    assert!(stream.read(&mut request).await.expect("a request") > 0);
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("somebody reads it");
}
