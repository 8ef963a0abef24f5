//! Making and reading endpoints.

use http::StatusCode;

use crate::fixture::Server;

#[tokio::test]
async fn an_endpoint_shows_its_secret_when_it_is_made_and_never_again() {
    let server = Server::start().await;
    let made = server.post("/v1/endpoints", r#"{"url": "http://127.0.0.1:9999/hook?a=b"}"#).await;
    assert_eq!(made.status, StatusCode::CREATED);
    assert!(made.body["signing"]["secret"].as_str().expect("a secret").starts_with("whsec_"));
    let shown = server.get(&format!("/v1/endpoints/{}", made.text("id"))).await;
    assert_eq!(shown.status, StatusCode::OK);
    assert!(shown.body.get("signing").is_none());
    assert_eq!(shown.text("url"), "http://127.0.0.1:9999/hook?a=b");
    let settings = ["channel", "policy", "order", "on_dead", "status"].map(|name| shown.text(name));
    assert_eq!(settings, ["webhook", "webhook", "fifo", "skip", "active"]);
    assert_eq!(shown.body["max_in_flight"], 20);
}

#[tokio::test]
async fn what_an_owner_sets_is_what_is_shown() {
    let server = Server::start().await;
    let secret = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let id = server
        .endpoint(&format!(
            r#", "event_types": ["a.*"], "policy": "backend", "ttl": "2h", "order": "strict", "on_dead": "hold",
               "max_in_flight": 3, "signing": {{"scheme": "v1", "secret": "{secret}"}}"#
        ))
        .await;
    let shown = server.get(&format!("/v1/endpoints/{id}")).await;
    let settings = ["policy", "ttl", "order", "on_dead"].map(|name| shown.text(name));
    assert_eq!(settings, ["backend", "2h", "strict", "hold"]);
    assert_eq!((&shown.body["max_in_flight"], &shown.body["event_types"][0]), (&3.into(), &"a.*".into()));
}

#[tokio::test]
async fn what_is_wrong_with_an_endpoint_is_told_with_its_place() {
    let server = Server::start().await;
    let own = format!(r#"{{"url": "http://{}/"}}"#, server.address);
    let cases = [
        ("{}", "invalid_body", "/url"),
        (r#"{"url": "http://10.0.0.5/"}"#, "target_refused", "/url"),
        (own.as_str(), "target_refused", "/url"),
        (r#"{"url": "ftp://example.com/"}"#, "target_refused", "/url"),
        (r#"{"url": "https://example.com/", "policy": "webhok"}"#, "invalid_body", "/policy"),
        (r#"{"url": "https://example.com/", "channel": "apns"}"#, "invalid_body", "/channel"),
        (r#"{"url": "https://example.com/", "event_types": ["a b"]}"#, "invalid_body", "/event_types"),
        (r#"{"url": "https://example.com/", "signing": {"secret": "short"}}"#, "invalid_body", "/signing/secret"),
        (r#"{"url": "https://example.com/", "max_in_flight": 0}"#, "invalid_body", "/max_in_flight"),
        (r#"{"url": "https://example.com/", "order": "lifo"}"#, "invalid_body", "/order"),
        (r#"{"url": "https://example.com/", "on_dead": "hold"}"#, "invalid_body", "/on_dead"),
        (r#"{"url": "https://example.com/", "headers": {"x": "y"}}"#, "not_built_yet", "/headers"),
    ];
    for (body, code, pointer) in cases {
        assert_eq!(server.post("/v1/endpoints", body).await.problem(), (400, code, pointer), "{body}");
    }
}

#[tokio::test]
async fn a_list_is_read_page_by_page_newest_first() {
    let server = Server::start().await;
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(server.endpoint("").await);
    }
    made.reverse();
    let mut read = Vec::new();
    let mut path = "/v1/endpoints?limit=2".to_owned();
    loop {
        let page = server.get(&path).await;
        let ids = page.body["data"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|one| one["id"].as_str().expect("an id").to_owned());
        read.extend(ids);
        let Some(cursor) = page.body["next_cursor"].as_str() else { break };
        path = format!("/v1/endpoints?limit=2&cursor={cursor}");
    }
    assert_eq!(read, made);
    let oldest = server.get("/v1/endpoints?order=asc&limit=1").await;
    assert_eq!(oldest.body["data"][0]["id"], made[4].as_str());
    assert_eq!(server.get("/v1/endpoints?cursor=x").await.problem(), (400, "invalid_parameter", ""));
}

#[tokio::test]
async fn an_id_that_never_was_and_an_id_of_another_kind_look_the_same() {
    let server = Server::start().await;
    let message = server.post("/v1/messages", r#"{"payload": 1}"#).await;
    let never = server.get("/v1/endpoints/ep_00000000000000000000000000000000000").await;
    let other = server.get(&format!("/v1/endpoints/{}", message.text("id"))).await;
    assert_eq!(never.problem(), (404, "not_found", ""));
    assert_eq!(never.body, other.body);
}
