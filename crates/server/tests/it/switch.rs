//! Pauses: of everything, an origin, a tenant and an endpoint.

use std::task::{Context, Waker};

use http::{Method, StatusCode};
use posthaste_server::api::caller::Door;
use tokio::net::TcpListener;

use crate::fixture::{Answer, Server, accept, answer};

#[tokio::test]
async fn a_pause_holds_what_comes_and_a_resume_sends_it() {
    let server = Server::start().await;
    let (receiver, _) = server.receiver("").await;

    let paused = server.post("/v1/pause", r#"{"scope": "all", "reason": "a look at the logs"}"#).await;
    assert_eq!((paused.status, paused.body["paused"].as_bool()), (StatusCode::OK, Some(true)));
    let path = server.delivery(r#"{"payload": 1}"#).await;
    let shown = server.get(&path).await;
    assert_eq!((shown.text("state"), shown.body["waiting"]["why"].as_str()), ("queued", Some("paused")));
    let came = receiver.poll_accept(&mut Context::from_waker(Waker::noop()));
    assert!(came.is_pending(), "nothing is sent: {came:?}");

    let resumed = server.post("/v1/resume", r#"{"scope": "all"}"#).await;
    assert_eq!((resumed.status, resumed.body["paused"].as_bool()), (StatusCode::OK, Some(false)));
    let _unanswered = accept(&receiver).await;
    assert_eq!(server.get(&path).await.text("state"), "dispatching");
}

#[tokio::test]
async fn a_paused_origin_holds_its_deliveries_and_shows_the_reason() {
    let receiver = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let server = Server::start().await;
    let origin = format!("http://{}", receiver.local_addr().expect("it listens"));
    for path in ["one", "two"] {
        server.post("/v1/endpoints", &format!(r#"{{"url": "{origin}/{path}"}}"#)).await.expect(StatusCode::CREATED);
    }
    let until = "2099-01-01T00:00:00.000Z";
    let body = format!(
        r#"{{"scope": "origin", "id": "{}", "until": "{until}", "reason": "they move house"}}"#,
        origin.to_uppercase().replace("HTTP", "http")
    );
    let paused = server.post("/v1/pause", &body).await;
    let audit_id = paused.text("audit_id");
    assert!(audit_id.starts_with("origin_"), "{}", paused.body);
    let expected = serde_json::json!({
        "scope": "origin", "id": origin, "audit_id": audit_id, "paused": true, "until": until,
        "reason": "they move house"
    });
    assert_eq!((paused.status, &paused.body), (StatusCode::OK, &expected));

    let shown = server.get(&format!("/v1/messages/{}", server.message(r#"{"payload": 1}"#).await)).await;
    for nth in 0..2 {
        let waiting = &shown.body["deliveries"][nth]["waiting"];
        assert_eq!((&waiting["why"], &waiting["until"]), (&"paused".into(), &until.into()), "{}", shown.body);
        let detail = waiting["detail"].as_str().expect("a text");
        assert!(detail.contains("they move house") && detail.contains("scope origin"), "{detail}");
    }
    let listed = server.get("/v1/pause").await;
    let expected = serde_json::json!([
        {"scope": "origin", "id": origin, "audit_id": audit_id, "until": until, "reason": "they move house", "by": null}
    ]);
    assert_eq!(listed.body["data"], expected);
    assert_eq!(server.get("/readyz").await.body["paused_origins"], 1);

    let resume = format!(r#"{{"scope": "origin", "id": "{origin}"}}"#);
    assert_eq!(server.post("/v1/resume", &resume).await.body["paused"], false);
    for _ in 0..2 {
        answer(&receiver, "204 No Content").await;
    }
    assert_eq!(server.get("/v1/pause").await.body["data"], serde_json::json!([]));
    for body in [resume.as_str(), r#"{"scope": "all"}"#, r#"{"scope": "tenant", "id": "default"}"#] {
        assert_eq!(server.post("/v1/resume", body).await.problem(), (409, "not_paused", ""), "{body}");
    }
}

#[tokio::test]
async fn pauses_are_listed_widest_first_with_their_api_key() {
    let server = Server::behind(Door::Locked).await;
    let key = server.operator_key().await;
    let call = async |method: Method, path: &str, body: &str| {
        let tenant = if path.starts_with("/v1/endpoints") { "default" } else { "" };
        server.call_as(&key, tenant, method, path, body).await
    };
    assert_eq!(call(Method::POST, "/v1/tenants", r#"{"uid": "default"}"#).await.status, StatusCode::CREATED);
    let endpoint = call(Method::POST, "/v1/endpoints", r#"{"url": "http://127.0.0.1:9999/"}"#).await;
    let endpoint = endpoint.text("id").to_owned();
    let path = format!("/v1/endpoints/{endpoint}/pause");
    for (path, body) in [
        (path.as_str(), r#"{"reason": "a look"}"#),
        ("/v1/pause", r#"{"scope": "tenant", "id": "default"}"#),
        ("/v1/pause", r#"{"scope": "all", "reason": "fire"}"#),
    ] {
        assert_eq!(call(Method::POST, path, body).await.status, StatusCode::OK, "{path}");
    }
    let pauses = server.pages(&key, "/v1/pause?limit=2").await;
    let expected = [("all", Some("fire")), ("tenant", None), ("endpoint", Some("a look"))];
    assert_eq!(pauses.len(), expected.len());
    for (pause, (scope, reason)) in pauses.iter().zip(expected) {
        assert!(pause["by"].as_str().expect("a key").starts_with("key_"), "{pause}");
        assert_eq!((pause["scope"].as_str(), pause["reason"].as_str()), (Some(scope), reason));
    }
    let ready = call(Method::GET, "/readyz", "").await;
    assert_eq!((&ready.body["paused_reason"], &ready.body["paused_tenants"]), (&"fire".into(), &1.into()));

    call(Method::POST, "/v1/resume", r#"{"scope": "all"}"#).await.expect(StatusCode::OK);
    for kind in ["paused", "resumed"] {
        let trail = call(Method::GET, &format!("/v1/audit?kind={kind}"), "").await;
        let by = &trail.body["data"][0]["by"];
        assert!(by.as_str().is_some_and(|by| by.starts_with("key_")), "{}", trail.body);
    }
}

#[tokio::test]
async fn a_tenant_can_be_paused_and_resumed() {
    let server = Server::start().await;
    server.endpoint("").await;
    let paused = server.post("/v1/pause", r#"{"scope": "tenant", "id": "default", "reason": "overdue"}"#).await;
    assert_eq!((paused.status, paused.text("scope")), (StatusCode::OK, "tenant"), "{}", paused.body);
    let shown = server.get(&format!("/v1/messages/{}", server.message(r#"{"payload": 1}"#).await)).await;
    assert_eq!(shown.body["deliveries"][0]["waiting"]["why"], "paused", "{}", shown.body);
    let id = paused.text("id");
    let resumed = server.post("/v1/resume", &format!(r#"{{"scope": "tenant", "id": "{id}"}}"#)).await;
    assert_eq!(resumed.body["paused"], false, "{}", resumed.body);
}

#[tokio::test]
async fn a_pause_with_bad_fields_is_refused() {
    let server = Server::start().await;
    let cases = [
        ("{}", "/scope"),
        (r#"{"scope": "al"}"#, "/scope"),
        (r#"{"scope": "tenant", "id": null}"#, "/id"),
        (r#"{"scope": "all", "until": "2020-01-01T00:00:00Z"}"#, "/until"),
        (r#"{"scope": "all", "reason": "one\ntwo"}"#, "/reason"),
        (r#"{"scope": "all", "till": "2020-01-01T00:00:00Z"}"#, "/till"),
        (r#"{"scope": "tenant"}"#, "/id"),
        (r#"{"scope": "tenant", "id": "unknown"}"#, "/id"),
        (r#"{"scope": "all", "id": "default"}"#, "/id"),
        (r#"{"scope": "origin"}"#, "/id"),
        (r#"{"scope": "origin", "id": "example.com"}"#, "/id"),
        (r#"{"scope": "origin", "id": "https://example.com/hook"}"#, "/id"),
    ];
    for (body, pointer) in cases {
        assert_eq!(server.post("/v1/pause", body).await.problem(), (400, "invalid_body", pointer), "{body}");
    }
}

#[tokio::test]
async fn an_endpoint_can_be_paused_and_enabled() {
    let server = Server::start().await;
    let (held, free) = (server.endpoint("").await, server.endpoint("").await);
    let paused = server.post(&format!("/v1/endpoints/{held}/pause"), "").await;
    assert_eq!(paused.body, serde_json::json!({"id": held, "paused": true, "until": null, "reason": null}));
    let path = format!("/v1/messages/{}", server.message(r#"{"payload": 1}"#).await);
    // The other endpoint is tried; its port has no listener.
    let of = |shown: &Answer, endpoint: &str| {
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
async fn enabling_resumes_a_strict_lane_held_by_a_dead_delivery() {
    let server = Server::start().await;
    let (receiver, endpoint) = server.receiver(r#", "order": "strict", "on_dead": "hold""#).await;
    let mut paths = Vec::new();
    for _ in 0..2 {
        paths.push(format!("/v1/messages/{}", server.message(r#"{"payload": 1}"#).await));
    }
    answer(&receiver, "400 Bad Request").await;
    server.until(&paths[0], "failed").await;
    let second = server.get(&paths[1]).await;
    assert_eq!(second.body["deliveries"][0]["waiting"]["why"], "paused", "{}", second.body);
    let shown = server.get(&format!("/v1/endpoints/{endpoint}")).await;
    let dead = server.get(&paths[0]).await.body["deliveries"][0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(shown.text("status_reason"), format!("its order is strict and {dead} is dead"));

    server.post(&format!("/v1/endpoints/{endpoint}/enable"), "").await;
    answer(&receiver, "204 No Content").await;
    server.until(&paths[1], "delivered").await;
}
