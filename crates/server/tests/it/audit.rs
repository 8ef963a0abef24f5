//! The audit trail over the API: the time, object and API key of each entry, and checkpoints.

use std::time::Duration;

use http::{Method, StatusCode};
use posthaste_core::Timestamp;
use posthaste_engine::clock::{Clock, SystemClock};
use serde_json::Value;

use crate::fixture::Server;
use crate::keys::Locked;

/// A server with the id of its first operator key.
struct Given {
    locked: Locked,
    operator: String,
}

impl Given {
    async fn start() -> Self {
        let locked = Locked::start().await;
        let operator = text(&locked.operate(Method::GET, "/v1/keys", "").await.list()[0], "id");
        Self { locked, operator }
    }

    /// Sends a request with a key, and expects this status.
    async fn ask(&self, key: &str, method: Method, path: &str, body: &str, status: StatusCode) -> Value {
        self.locked.call(key, "", method, path, body).await.expect(status).body
    }

    async fn operate(&self, method: Method, path: &str, body: &str, status: StatusCode) -> Value {
        self.ask(&self.locked.operator, method, path, body, status).await
    }

    async fn trail(&self, query: &str) -> Vec<Value> {
        let page = self.locked.operate(Method::GET, &format!("/v1/audit?limit=100&{query}"), "").await;
        page.expect(StatusCode::OK).list().to_vec()
    }
}

fn text(body: &Value, name: &str) -> String {
    body[name].as_str().unwrap_or_else(|| panic!("{name} is a text in {body}")).to_owned()
}

/// The kind of an entry, its `what`, and the id of its object.
fn summary(entry: &Value) -> (String, String, Value) {
    let ids = ["id", "endpoint", "message"].map(|name| entry[name].clone());
    let object = ids.into_iter().find(|id| !id.is_null()).unwrap_or_default();
    (text(entry, "kind"), entry["what"].as_str().unwrap_or_default().to_owned(), object)
}

#[tokio::test]
async fn audit_entries_have_their_own_time_without_messages() {
    let given = Given::start().await;
    given.operate(Method::POST, "/v1/tenants", r#"{"uid": "acme"}"#, StatusCode::CREATED).await;
    given.operate(Method::POST, "/v1/tenants/acme/keys", "{}", StatusCode::CREATED).await;
    for path in ["/v1/pause", "/v1/resume"] {
        given.operate(Method::POST, path, r#"{"scope": "all"}"#, StatusCode::OK).await;
    }
    let all = given.trail("order=asc").await;
    let kinds: Vec<String> = all.iter().map(|entry| text(entry, "kind")).collect();
    assert_eq!(kinds, ["opened", "document", "document", "document", "paused", "resumed"]);
    for entry in &all {
        for name in ["at", "recorded_at"] {
            let then: jiff::Timestamp = text(entry, name).parse().expect("a time");
            let ago = SystemClock::new().now().since(Timestamp::from_millis(then.as_millisecond()));
            assert!(ago < Duration::from_secs(60 * 60), "{entry}");
        }
    }
    given.locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn the_since_filter_finds_entries_from_that_time_on() {
    let given = Given::start().await;
    given.operate(Method::POST, "/v1/tenants", r#"{"uid": "acme"}"#, StatusCode::CREATED).await;
    let before = given.trail("").await;
    let last = text(&before[0], "recorded_at");
    let mut times = vec![last];
    for (path, kind) in [("/v1/pause", "paused"), ("/v1/resume", "resumed"), ("/v1/pause", "paused")] {
        // Wait for the next millisecond, the resolution of the trail's times.
        let clock = SystemClock::new();
        let now = clock.now();
        while clock.now().as_millis() - now.as_millis() < 2 {}
        given.operate(Method::POST, path, r#"{"scope": "all"}"#, StatusCode::OK).await;
        let newest = given.trail("").await[0].clone();
        assert_eq!(newest["kind"], kind);
        assert_eq!(newest["at"], newest["recorded_at"], "{newest}");
        let at = text(&newest, "at");
        assert!(at > times[times.len() - 1], "{at} is after {times:?}");
        assert_eq!(given.trail(&format!("since={at}")).await, [newest]);
        times.push(at);
    }
    given.locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn audit_entries_name_the_change_the_object_and_the_api_key() {
    use StatusCode as S;
    let given = Given::start().await;
    let tenant = given.operate(Method::POST, "/v1/tenants", r#"{"uid": "acme"}"#, S::CREATED).await;
    given.operate(Method::PATCH, "/v1/tenants/acme", r#"{"weight": 2}"#, S::OK).await;
    let key = given.operate(Method::POST, "/v1/tenants/acme/keys", "{}", S::CREATED).await;
    for delay in ["1s", "2s"] {
        let body = format!(r#"{{"delays": ["{delay}"]}}"#);
        given.operate(Method::PUT, "/v1/policies/house", &body, S::OK).await;
    }
    let origin = r#"{"scope": "origin", "id": "http://127.0.0.1:9999"}"#;
    let paused = given.operate(Method::POST, "/v1/pause", origin, S::OK).await;

    let (secret, key) = (text(&key, "key"), text(&key, "id"));
    let ask = async |method, path: &str, body: &str, status| given.ask(&secret, method, path, body, status).await;
    let endpoint = ask(Method::POST, "/v1/endpoints", r#"{"url": "http://127.0.0.1:9999/"}"#, S::CREATED).await;
    let endpoint = text(&endpoint, "id");
    let path = format!("/v1/endpoints/{endpoint}");
    ask(Method::PATCH, &path, r#"{"description": "ours"}"#, S::OK).await;
    ask(Method::GET, &format!("{path}/secret"), "", S::OK).await;
    ask(Method::POST, &format!("{path}/secret/rotate"), "", S::OK).await;
    let message = text(&ask(Method::POST, "/v1/messages", r#"{"payload": 1}"#, S::ACCEPTED).await, "id");
    let shown = ask(Method::GET, &format!("/v1/messages/{message}"), "", S::OK).await;
    let delivery = text(&shown["deliveries"][0], "id");
    ask(Method::POST, &format!("/v1/deliveries/{delivery}/retry"), "", S::OK).await;
    ask(Method::POST, &format!("/v1/messages/{message}/cancel"), "", S::OK).await;
    let replay = ask(Method::POST, "/v1/replays", r#"{"select": {"cause": "gone"}}"#, S::ACCEPTED).await;
    ask(Method::DELETE, &path, "", S::OK).await;

    let revoke = format!("/v1/tenants/acme/keys/{key}");
    given.operate(Method::DELETE, &revoke, "", S::NO_CONTENT).await;

    let expected = |entries: &[(&str, &str, &Value)]| -> Vec<(String, String, Value)> {
        entries.iter().map(|(kind, what, id)| ((*kind).to_owned(), (*what).to_owned(), (*id).clone())).collect()
    };
    let by = |entries: &[Value], key: &str| assert!(entries.iter().all(|entry| entry["by"] == key), "{entries:?}");
    let operators = given.trail(&format!("order=asc&by={}", given.operator)).await;
    by(&operators, &given.operator);
    let (house, key_id): (Value, Value) = ("house".into(), key.as_str().into());
    assert_eq!(
        operators.iter().map(summary).collect::<Vec<_>>(),
        expected(&[
            ("document", "tenant made", &tenant["id"]),
            ("document", "tenant changed", &tenant["id"]),
            ("document", "API key made", &key_id),
            ("document", "policy made", &house),
            ("document", "policy changed", &house),
            ("paused", "an origin", &paused["audit_id"]),
            ("document", "API key revoked", &key_id),
        ])
    );
    let tenants = given.trail(&format!("order=asc&by={key}")).await;
    by(&tenants, &key);
    let (to, sent): (Value, Value) = (endpoint.as_str().into(), message.as_str().into());
    assert_eq!(
        tenants.iter().map(summary).collect::<Vec<_>>(),
        expected(&[
            ("endpoint", "made", &to),
            ("endpoint", "changed", &to),
            ("secret", "shown", &to),
            ("endpoint", "changed", &to),
            ("secret", "rotated", &to),
            ("hurried", "retry requested", &to),
            ("cut", "cancelled", &sent),
            ("job", "replay begun", &replay["id"]),
            ("cut", "endpoint_deleted", &to),
            ("endpoint", "deleted", &to),
        ])
    );
    let refused = given.locked.operate(Method::GET, "/v1/audit?by=acme", "").await;
    assert_eq!(refused.problem(), (400, "invalid_parameter", ""));
    given.locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn a_pause_s_audit_id_matches_the_audit_entry_of_its_origin() {
    let given = Given::start().await;
    let origin = r#"{"scope": "origin", "id": "https://example.com"}"#;
    given.operate(Method::POST, "/v1/pause", origin, StatusCode::OK).await;
    let entry = given.trail("kind=paused").await[0].clone();
    let pauses = given.operate(Method::GET, "/v1/pause", "", StatusCode::OK).await;
    assert_eq!(pauses["data"][0]["id"], "https://example.com:443");
    assert_eq!(pauses["data"][0]["audit_id"], entry["id"], "{entry}");
    assert!(!entry.to_string().contains("example.com"), "{entry}");
    given.locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn the_audit_trail_is_listed_in_both_orders_and_by_pages() {
    let server = Server::start().await;
    let endpoint = server.endpoint("").await;
    for verb in ["pause", "enable"] {
        assert_eq!(server.post(&format!("/v1/endpoints/{endpoint}/{verb}"), "").await.status, StatusCode::OK);
    }
    let kinds = |entries: &[Value]| entries.iter().map(|entry| text(entry, "kind")).collect::<Vec<_>>();
    let newest = server.get("/v1/audit").await;
    let newest_kinds = kinds(newest.list());
    assert_eq!(&newest_kinds[..3], ["resumed", "paused", "endpoint"], "{}", newest.body);
    assert_eq!(newest.body["data"][0]["endpoint"], endpoint.as_str());
    let mut oldest = kinds(server.get("/v1/audit?order=asc").await.list());
    oldest.reverse();
    assert_eq!(oldest, newest_kinds);
    assert_eq!(kinds(&server.pages("", "/v1/audit?limit=2").await), newest_kinds);
    assert_eq!(kinds(server.get("/v1/audit?kind=paused").await.list()), ["paused"]);
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
