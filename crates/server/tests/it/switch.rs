//! Holding everything.

use http::StatusCode;

use crate::fixture::Server;

#[tokio::test]
async fn a_pause_is_told_and_ended() {
    let server = Server::start().await;
    let paused = server.post("/v1/pause", r#"{"scope": "all", "reason": "a look at the logs"}"#).await;
    assert_eq!((paused.status, paused.body["paused"].as_bool()), (StatusCode::OK, Some(true)));
    let resumed = server.post("/v1/resume", r#"{"scope": "all"}"#).await;
    assert_eq!((resumed.status, resumed.body["paused"].as_bool()), (StatusCode::OK, Some(false)));
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
