//! Reading and previewing policies.

use http::StatusCode;

use crate::fixture::Server;

#[tokio::test]
async fn the_presets_are_listed_as_somebody_would_write_them() {
    let server = Server::start().await;
    let list = server.get("/v1/policies").await;
    let policies = list.body["data"].as_array().expect("a list");
    let names: Vec<_> = policies.iter().map(|one| one["name"].as_str().expect("a name")).collect();
    assert_eq!(names, posthaste_core::policy::PRESETS);
    assert_eq!(policies[0]["delays"][0], "10s");
}

#[tokio::test]
async fn every_preset_previews_by_name_and_as_it_is_listed() {
    let server = Server::start().await;
    let list = server.get("/v1/policies").await;
    for policy in list.body["data"].as_array().expect("a list") {
        let name = policy["name"].as_str().expect("a name");
        let by_name = server.post("/v1/policies/preview", &format!(r#"{{"policy": "{name}", "tier": 1}}"#)).await;
        assert_eq!(by_name.status, StatusCode::OK, "{name}: {}", by_name.body);
        let mut written = policy.clone();
        let fields = written.as_object_mut().expect("an object");
        fields.remove("name");
        fields.remove("preset");
        let body = serde_json::json!({"policy": written, "tier": "transactional"});
        assert_eq!(server.post("/v1/policies/preview", &body.to_string()).await.body, by_name.body, "{name}");
    }
}

#[tokio::test]
async fn a_preview_has_every_wait() {
    let server = Server::start().await;
    let body = r#"{"policy": {"strategy": "fixed", "base": 5, "jitter": {"kind": "none"}, "max_attempts": 3,
        "breaker": {"failure_rate": 0.5, "min_volume": 20, "consecutive": 10, "open_for": "30s"}}}"#;
    let preview = server.post("/v1/policies/preview", body).await;
    let first = serde_json::json!({"retry": 1, "after": "5s", "earliest": "5s", "latest": "5s", "since_accept": "5s"});
    assert_eq!(preview.body["waits"][0], first);
    assert_eq!(preview.body["waits"].as_array().expect("a list").len(), 2);
    assert_eq!(preview.text("largest_wait"), "5s");
}

#[tokio::test]
async fn what_is_wrong_with_a_policy_is_told_with_its_place() {
    let server = Server::start().await;
    let cases = [
        ("{}", "invalid_body", "/policy"),
        (r#"{"policy": "webhok"}"#, "invalid_body", "/policy"),
        (r#"{"policy": {"bas": "1s"}}"#, "invalid_body", "/policy/bas"),
        (r#"{"policy": {"base": "1x"}}"#, "invalid_body", "/policy/base"),
        (r#"{"policy": {"multiplier": -1, "strategy": "exponential"}}"#, "invalid_body", "/policy/multiplier"),
        (r#"{"policy": {"tiers": {"engagement": {"scal": 2}}}}"#, "invalid_body", "/policy/tiers/engagement/scal"),
        (r#"{"policy": {"breaker": {"open": "30s"}}}"#, "invalid_body", "/policy/breaker/open"),
        (r#"{"policy": {"breaker": {"failure_rate": 50}}}"#, "invalid_body", "/policy/breaker/failure_rate"),
        (r#"{"policy": "webhook", "tire": 1}"#, "invalid_body", "/tire"),
    ];
    for (body, code, pointer) in cases {
        assert_eq!(server.post("/v1/policies/preview", body).await.problem(), (400, code, pointer), "{body}");
    }
}
