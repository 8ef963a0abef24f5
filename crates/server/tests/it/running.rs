//! Operators' requests to a running server: the audit trail, the master key, pausing a tenant.

use http::StatusCode;

use crate::fixture::Server;

#[tokio::test]
async fn the_audit_trail_is_listed_in_both_orders_and_by_pages() {
    let server = Server::start().await;
    let endpoint = server.endpoint("").await;
    for verb in ["pause", "enable"] {
        assert_eq!(server.post(&format!("/v1/endpoints/{endpoint}/{verb}"), "").await.status, StatusCode::OK);
    }
    let kinds = |body: &serde_json::Value| {
        let data = body["data"].as_array().cloned().unwrap_or_default();
        data.iter().map(|one| one["kind"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let newest = server.get("/v1/audit").await;
    let newest_kinds = kinds(&newest.body);
    assert_eq!(&newest_kinds[..3], ["resumed", "paused", "endpoint"], "{}", newest.body);
    assert_eq!(newest.body["data"][0]["endpoint"], endpoint.as_str());
    let mut oldest = kinds(&server.get("/v1/audit?order=asc").await.body);
    oldest.reverse();
    assert_eq!(oldest, newest_kinds);
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("/v1/audit?limit=2{cursor}")).await;
        seen.extend(kinds(&page.body));
        let Some(next) = page.body["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, newest_kinds);
    assert_eq!(kinds(&server.get("/v1/audit?kind=paused").await.body), ["paused"]);
    assert_eq!(server.get("/v1/audit?kind=pausd").await.problem(), (400, "invalid_parameter", ""));
}

#[tokio::test]
async fn a_checkpoint_request_signs_a_new_checkpoint() {
    let server = Server::start().await;
    let first = server.get("/v1/audit/checkpoint").await.expect(StatusCode::OK);
    assert!(first.text("public_key_pem").starts_with("-----BEGIN PUBLIC KEY-----"));
    server.endpoint("").await;
    let second = server.get("/v1/audit/checkpoint").await;
    assert!(second.body["row"].as_u64() > first.body["row"].as_u64(), "{} {}", first.body, second.body);
}

#[tokio::test]
async fn a_master_key_without_a_keeper_is_not_rotated() {
    let server = Server::start().await;
    assert_eq!(server.get("/v1/master-key/rotation").await.body["under_way"], false);
    assert_eq!(server.post("/v1/master-key/rotation", "").await.problem(), (409, "no_newer_key", ""));
}

#[tokio::test]
async fn a_tenant_can_be_paused_and_resumed() {
    let server = Server::start().await;
    server.endpoint("").await;
    let paused = server.post("/v1/pause", r#"{"scope": "tenant", "id": "default", "reason": "overdue"}"#).await;
    assert_eq!((paused.status, paused.text("scope")), (StatusCode::OK, "tenant"), "{}", paused.body);
    let sent = server.post("/v1/messages", r#"{"payload": 1}"#).await;
    let shown = server.get(&format!("/v1/messages/{}", sent.text("id"))).await;
    assert_eq!(shown.body["deliveries"][0]["waiting"]["why"], "paused", "{}", shown.body);
    let id = paused.text("id");
    let resumed = server.post("/v1/resume", &format!(r#"{{"scope": "tenant", "id": "{id}"}}"#)).await;
    assert_eq!(resumed.body["paused"], false, "{}", resumed.body);
    for (body, pointer) in [
        (r#"{"scope": "tenant"}"#, "/id"),
        (r#"{"scope": "tenant", "id": "unknown"}"#, "/id"),
        (r#"{"scope": "all", "id": "default"}"#, "/id"),
        (r#"{"scope": "origin"}"#, "/id"),
        (r#"{"scope": "origin", "id": "example.com"}"#, "/id"),
        (r#"{"scope": "origin", "id": "https://example.com/hook"}"#, "/id"),
    ] {
        assert_eq!(server.post("/v1/pause", body).await.problem(), (400, "invalid_body", pointer), "{body}");
    }
}
