//! Holding everything.

use std::task::{Context, Waker};

use http::StatusCode;
use tokio::io::AsyncReadExt;
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
        (r#"{"scope": "tenant", "id": null}"#, "/scope"),
        (r#"{"scope": "all", "until": "2020-01-01T00:00:00Z"}"#, "/until"),
        (r#"{"scope": "all", "till": "2020-01-01T00:00:00Z"}"#, "/till"),
    ];
    for (body, pointer) in cases {
        assert_eq!(server.post("/v1/pause", body).await.problem(), (400, "invalid_body", pointer), "{body}");
    }
}
