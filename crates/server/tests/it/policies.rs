//! Policies: put, shown, listed, previewed and deleted.

use http::{Method, StatusCode};

use crate::fixture::Server;

#[tokio::test]
async fn every_preset_is_listed_and_previews_by_name_and_in_the_form_it_is_listed() {
    let server = Server::start().await;
    let list = server.get("/v1/policies").await;
    let names: Vec<_> = list.list().iter().map(|one| one["name"].as_str().expect("a name")).collect();
    assert_eq!(names, posthaste_core::policy::PRESETS);
    assert_eq!(list.list()[0]["delays"][0], "10s");
    for (policy, name) in list.list().iter().zip(names) {
        let by_name = server.post("/v1/policies/preview", &format!(r#"{{"policy": "{name}", "tier": 1}}"#)).await;
        assert_eq!(by_name.status, StatusCode::OK, "{name}: {}", by_name.body);
        let mut written = policy.clone();
        let fields = written.as_object_mut().expect("an object");
        for metadata in ["name", "preset", "owner", "created_at"] {
            fields.remove(metadata);
        }
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
async fn faults_of_a_policy_have_a_pointer() {
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

/// A policy with every field.
const FULL: &str = r#"{"strategy": "exponential", "base": "2s", "multiplier": 2.5, "cap": "1m", "step": null,
    "delays": null, "jitter": {"kind": "spread", "share": 0.1}, "max_attempts": 7, "window": "12h",
    "retry_after_max": "1h", "tiers": {"transactional": {"scale": 0.5, "first": "500ms"}, "engagement": {"scale": 2.5}},
    "breaker": {"failure_rate": 0.4, "min_volume": 10, "consecutive": 5, "open_for": "20s"}}"#;

/// Checks that every field that was written is shown.
fn check_shown(shown: &serde_json::Value, written: &serde_json::Value) {
    match written.as_object() {
        None => assert_eq!(shown, written),
        Some(fields) => fields.iter().for_each(|(name, written)| check_shown(&shown[name], written)),
    }
}

#[tokio::test]
async fn a_policy_is_put_shown_listed_used_and_deleted_by_its_name() {
    let server = Server::start().await;
    let put = server.call(Method::PUT, "/v1/policies/payments", FULL).await.expect(StatusCode::OK);
    let written: serde_json::Value = serde_json::from_str(FULL).expect("JSON");
    check_shown(&put.body, &written);
    assert_eq!((put.text("name"), put.text("owner"), &put.body["preset"]), ("payments", "tenant", &false.into()));
    assert_eq!(server.get("/v1/policies/payments").await.body, put.body);
    let list = server.get("/v1/policies").await;
    assert_eq!(list.list().last(), Some(&put.body));
    let preview = server.post("/v1/policies/preview", r#"{"policy": "payments"}"#).await;
    assert_eq!(preview.body["waits"].as_array().map(Vec::len), Some(6), "{}", preview.body);

    let endpoint = server.endpoint(r#", "policy": "payments""#).await;
    let changed = server.call(Method::PUT, "/v1/policies/payments", r#"{"delays": ["1s"]}"#).await;
    assert_eq!((changed.status, &changed.body["strategy"]), (StatusCode::OK, &serde_json::Value::Null));
    assert_eq!(changed.body["created_at"], put.body["created_at"], "it is the same policy");
    let in_use = server.call(Method::DELETE, "/v1/policies/payments", "").await;
    assert_eq!(in_use.problem(), (409, "policy_in_use", ""));
    assert!(in_use.text("detail").contains(&endpoint), "{}", in_use.body);
    let other = server.call(Method::PATCH, &format!("/v1/endpoints/{endpoint}"), r#"{"policy": null}"#).await;
    assert_eq!(other.text("policy"), "webhook");
    assert_eq!(server.call(Method::DELETE, "/v1/policies/payments", "").await.status, StatusCode::NO_CONTENT);
    assert_eq!(server.call(Method::DELETE, "/v1/policies/payments", "").await.problem(), (404, "not_found", ""));
    assert_eq!(server.get("/v1/policies/payments").await.problem(), (404, "not_found", ""));
}

#[tokio::test]
async fn an_unknown_policy_name_is_refused_with_the_nearest_name() {
    let server = Server::start().await;
    server.call(Method::PUT, "/v1/policies/payments", FULL).await;
    let endpoint = server.endpoint("").await;
    for (method, path, body) in [
        (Method::POST, "/v1/endpoints", r#"{"url": "https://example.com/", "policy": "paymnts"}"#),
        (Method::PATCH, &format!("/v1/endpoints/{endpoint}"), r#"{"policy": "paymnts"}"#),
        (Method::PATCH, "/v1/tenants/default", r#"{"policy": "paymnts"}"#),
        (Method::POST, "/v1/policies/preview", r#"{"policy": "paymnts"}"#),
    ] {
        let refused = server.call(method, path, body).await;
        assert_eq!(refused.problem(), (400, "invalid_body", "/policy"), "{path}");
        assert!(refused.text("detail").contains("the nearest is payments"), "{}", refused.body);
    }
    let tenant = server.call(Method::PATCH, "/v1/tenants/default", r#"{"policy": "payments"}"#).await;
    assert_eq!(tenant.text("policy"), "payments");
    let made = server.post("/v1/endpoints", r#"{"url": "http://127.0.0.1:9999/"}"#).await;
    assert_eq!(made.text("policy"), "payments");
}

#[tokio::test]
async fn an_endpoint_without_a_policy_follows_its_tenant_s() {
    let server = Server::start().await;
    let (follows, named) = (server.endpoint("").await, server.endpoint(r#", "policy": "backend""#).await);
    for (body, policy) in [(r#"{"policy": "gethook"}"#, "gethook"), (r#"{"policy": null}"#, "webhook")] {
        assert_eq!(server.call(Method::PATCH, "/v1/tenants/default", body).await.status, StatusCode::OK);
        let policies = async |id: &str| server.get(&format!("/v1/endpoints/{id}")).await.text("policy").to_owned();
        assert_eq!([policies(&follows).await, policies(&named).await], [policy, "backend"]);
    }
    server.call(Method::PUT, "/v1/policies/payments", FULL).await;
    server.call(Method::PATCH, "/v1/tenants/default", r#"{"policy": "payments"}"#).await;
    let in_use = server.call(Method::DELETE, "/v1/policies/payments", "").await;
    assert_eq!(in_use.problem(), (409, "policy_in_use", ""));
    assert!(in_use.text("detail").starts_with("the tenant itself uses it"), "{}", in_use.body);
}

#[tokio::test]
async fn presets_and_bad_policies_are_not_put() {
    let server = Server::start().await;
    let negative = r#"{"multiplier": -1, "strategy": "exponential"}"#;
    for (method, path, body, problem) in [
        (Method::PUT, "/v1/policies/webhook", "{}", (409, "preset_read_only", "")),
        (Method::DELETE, "/v1/policies/gethook", "", (409, "preset_read_only", "")),
        (Method::PUT, "/v1/policies/a%20b", "{}", (400, "invalid_parameter", "")),
        (Method::PUT, "/v1/policies/mine", r#"{"bas": "1s"}"#, (400, "invalid_body", "/bas")),
        (Method::PUT, "/v1/policies/mine", negative, (400, "invalid_body", "/multiplier")),
        (Method::PUT, "/v1/policies/mine", r#"{"delays": []}"#, (400, "invalid_body", "/delays")),
        (Method::PUT, "/v1/policies/preview", "{}", (405, "method_not_allowed", "")),
    ] {
        let answer = server.call(method, path, body).await;
        assert_eq!(answer.problem(), problem, "{path} {body}");
    }
    assert_eq!(server.get("/v1/policies/webhook").await.body["preset"], true);
}

#[tokio::test]
async fn a_tenant_has_at_most_the_allowed_number_of_policies() {
    let server = Server::start().await;
    for n in 0..posthaste_engine::policies::POLICIES_MAX {
        server.call(Method::PUT, &format!("/v1/policies/p{n}"), "{}").await.expect(StatusCode::OK);
    }
    assert_eq!(server.call(Method::PUT, "/v1/policies/more", "{}").await.problem(), (409, "too_many_policies", ""));
    assert_eq!(server.call(Method::PUT, "/v1/policies/p7", "{}").await.status, StatusCode::OK, "a change adds none");
}
