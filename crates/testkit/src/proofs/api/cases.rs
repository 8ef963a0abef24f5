//! A valid request for each route, with the status that it must be answered with.

use super::routes::DocumentedRoute;

/// A valid request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ApiCase {
    method: &'static str,
    path: &'static str,
    /// `<kind>` stands for the id of one object of that kind, `LATER` for a time in the future.
    pub(super) body: &'static str,
    pub(super) status: u16,
}

impl ApiCase {
    pub(super) fn is_of(&self, route: &DocumentedRoute) -> bool {
        self.method == route.method && self.path == route.path
    }
}

const fn get(path: &'static str) -> ApiCase {
    ApiCase { method: "GET", path, body: "", status: 200 }
}

const fn post(path: &'static str, body: &'static str, status: u16) -> ApiCase {
    ApiCase { method: "POST", path, body, status }
}

const fn other(method: &'static str, path: &'static str, body: &'static str, status: u16) -> ApiCase {
    ApiCase { method, path, body, status }
}

/// The requests, in the order in which they are sent.
pub(super) const CASES: &[ApiCase] = &[
    get("/healthz"),
    get("/readyz"),
    get("/openapi.json"),
    get("/metrics"),
    post("/v1/messages", r#"{"payload": {"n": 1}, "event_type": "a.b", "tier": 1, "deliver_at": "LATER"}"#, 202),
    post("/v1/messages", r#"{"payload": 1, "to": {"endpoints": ["<endpoints>"]}, "deliver_at": "LATER"}"#, 202),
    post("/v1/messages", r#"{"payload": 1, "to": {"tags": ["absent"]}, "labels": {"a": "b"}, "region": "eu"}"#, 202),
    post("/v1/messages/batch", "{\"payload\": 1, \"deliver_at\": \"LATER\"}\nnot JSON\n", 200),
    post("/v1/messages", r#"{"payload": 1, "subject": "Ann O/Hara", "deliver_at": "LATER"}"#, 202),
    get("/v1/subjects/{s}/export"),
    other("DELETE", "/v1/subjects/{s}", "", 200),
    get("/v1/messages"),
    get("/v1/messages/{id}"),
    get("/v1/deliveries"),
    get("/v1/deliveries/{id}"),
    post("/v1/deliveries/{id}/retry", "", 200),
    post("/v1/messages/{id}/cancel", "", 200),
    get("/v1/endpoints"),
    get("/v1/endpoints/{id}"),
    post("/v1/endpoints/{id}/pause", "", 200),
    post("/v1/endpoints/{id}/enable", "", 200),
    other("PATCH", "/v1/endpoints/{id}", r#"{"description": "changed"}"#, 200),
    get("/v1/endpoints/{id}/secret"),
    post("/v1/endpoints/{id}/secret/rotate", r#"{"overlap": "0s"}"#, 200),
    post("/v1/endpoints/{id}/test", "", 202),
    post("/v1/breakers/{id}/reset", r#"{"force": true}"#, 200),
    get("/v1/breakers"),
    post("/v1/endpoints", r#"{"url": "http://127.0.0.1:9999/another"}"#, 201),
    post("/v1/replays", r#"{"select": {"missing_for": "<endpoints>"}, "dry_run": true}"#, 200),
    other("DELETE", "/v1/endpoints/{id}", "", 200),
    get("/v1/dead-letters"),
    post("/v1/replays", r#"{"select": {"tier": 2}, "dry_run": true}"#, 200),
    post("/v1/replays", r#"{"select": {}, "per_second": 10}"#, 202),
    get("/v1/replays"),
    post("/v1/replays", r#"{"select": {"state": ["dead", "expired"]}, "dry_run": true}"#, 200),
    get("/v1/replays/{id}"),
    // The replay selected nothing and has ended already.
    post("/v1/replays/{id}/pause", "", 409),
    post("/v1/replays/{id}/resume", "", 409),
    post("/v1/replays/{id}/cancel", "", 409),
    get("/v1/policies"),
    post("/v1/policies/preview", r#"{"policy": "webhook"}"#, 200),
    post("/v1/policies/preview", r#"{"policy": "ours"}"#, 200),
    get("/v1/policies/{name}"),
    other("PUT", "/v1/policies/{name}", r#"{"strategy": "fixed", "base": "5s"}"#, 200),
    other("DELETE", "/v1/policies/{name}", "", 204),
    post("/v1/pause", r#"{"scope": "all"}"#, 200),
    get("/v1/pause"),
    post("/v1/resume", r#"{"scope": "all"}"#, 200),
    get("/v1/audit"),
    get("/v1/audit/checkpoint"),
    get("/v1/master-key/rotation"),
    post("/v1/master-key/rotation", "", 202),
    get("/v1/keys"),
    post("/v1/keys", r#"{"scopes": ["read"]}"#, 201),
    other("DELETE", "/v1/keys/{id}", "", 204),
    get("/v1/tenants"),
    post("/v1/tenants", r#"{"uid": "another", "quota": {"per_second": 10, "burst": 20, "pending": 5}}"#, 201),
    post("/v1/tenants", r#"{"time_zone": "Europe/Berlin", "off_peak": {"from": "20:00", "to": "07:00"}}"#, 201),
    post("/v1/tenants", r#"{"retention": {"payload": "1d", "history": "90d"}}"#, 201),
    get("/v1/tenants/{t}"),
    other("PATCH", "/v1/tenants/{t}", r#"{"weight": 2}"#, 200),
    other("PATCH", "/v1/tenants/{t}", r#"{"retention": {"payload": "2d"}}"#, 200),
    other("PATCH", "/v1/tenants/{t}", r#"{"retention": null}"#, 200),
    get("/v1/tenants/{t}/keys"),
    post("/v1/tenants/{t}/keys", r#"{"scopes": ["read"]}"#, 201),
    other("DELETE", "/v1/tenants/{t}/keys/{id}", "", 204),
    other("DELETE", "/v1/tenants/{t}", "", 200),
];
