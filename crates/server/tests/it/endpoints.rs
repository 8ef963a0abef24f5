//! Endpoints: created, shown, listed, changed, tested and deleted.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::fixture::{Server, answer, delivery_of};

#[tokio::test]
async fn an_endpoint_shows_its_secret_only_when_it_is_created() {
    let server = Server::start().await;
    let made =
        server.post("/v1/endpoints", r#"{"url": "http://127.0.0.1:9999/hook?a=b"}"#).await.expect(StatusCode::CREATED);
    assert!(made.body["signing"]["secret"].as_str().expect("a secret").starts_with("whsec_"));
    let shown = server.get(&format!("/v1/endpoints/{}", made.text("id"))).await.expect(StatusCode::OK);
    assert_eq!(shown.body["signing"], json!({"scheme": "v1"}));
    assert_eq!(shown.text("url"), "http://127.0.0.1:9999/hook?a=b");
    let settings = ["channel", "policy", "order", "on_dead", "status"].map(|name| shown.text(name));
    assert_eq!(settings, ["webhook", "webhook", "fifo", "skip", "active"]);
    assert_eq!(shown.body["max_in_flight"], 20);
}

#[tokio::test]
async fn faults_of_an_endpoint_have_a_code_and_a_pointer() {
    let server = Server::start().await;
    let own = format!(r#"{{"url": "http://{}/"}}"#, server.address);
    for (body, code) in [
        ("{}", "invalid_body"),
        (r#"{"url": "http://10.0.0.5/"}"#, "target_refused"),
        (own.as_str(), "target_refused"),
        (r#"{"url": "ftp://example.com/"}"#, "target_refused"),
    ] {
        assert_eq!(server.post("/v1/endpoints", body).await.problem(), (400, code, "/url"), "{body}");
    }
    for (fields, code, pointer) in [
        (r#""policy": "webhok""#, "invalid_body", "/policy"),
        (r#""channel": "apns""#, "not_built_yet", "/channel"),
        (r#""channel": "webpush""#, "not_built_yet", "/channel"),
        (r#""channel": "pigeon""#, "invalid_body", "/channel"),
        (r#""event_types": ["a", "a b"]"#, "invalid_body", "/event_types/1"),
        (r#""signing": {"secret": "short"}"#, "invalid_body", "/signing/secret"),
        (r#""max_in_flight": 0"#, "invalid_body", "/max_in_flight"),
        (r#""order": "lifo""#, "invalid_body", "/order"),
        (r#""on_dead": "hold""#, "invalid_body", "/on_dead"),
        (r#""headers": {"x": "y", "Webhook-Id": "y"}"#, "invalid_body", "/headers/Webhook-Id"),
        (r#""headers": {"x": 1}"#, "invalid_body", "/headers/x"),
        (r#""uid": "a b""#, "invalid_body", "/uid"),
        (r#""subject": """#, "invalid_body", "/subject"),
        (r#""tags": ["a", "a b"]"#, "invalid_body", "/tags/1"),
        (r#""timeout": "31s""#, "invalid_body", "/timeout"),
        (r#""rate": {"per_second": 0}"#, "invalid_body", "/rate/per_second"),
        (r#""rate": {"burst": 5}"#, "invalid_body", "/rate/per_second"),
        (r#""rate": {}"#, "invalid_body", "/rate/per_second"),
        (r#""uid": "ep_crm""#, "invalid_body", "/uid"),
        (r#""uid": "tn_crm""#, "invalid_body", "/uid"),
        (r#""time_zone": "Europe/Berln""#, "invalid_body", "/time_zone"),
        (r#""tls": {"ca": "text"}"#, "invalid_body", "/tls/ca"),
        (r#""tls": {"client_cert": "text"}"#, "invalid_body", "/tls/client_key"),
        (r#""status_overrides": {"9xx": "retry"}"#, "invalid_body", "/status_overrides/9xx"),
        (r#""signing": {"secret": "whpk_AAAA"}"#, "invalid_body", "/signing/secret"),
        (r#""device_token": "x""#, "not_built_yet", "/device_token"),
    ] {
        let body = format!(r#"{{"url": "https://example.com/", {fields}}}"#);
        assert_eq!(server.post("/v1/endpoints", &body).await.problem(), (400, code, pointer), "{body}");
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
    let read = server.pages("", "/v1/endpoints?limit=2").await;
    assert_eq!(read.iter().map(|one| one["id"].as_str().expect("an id")).collect::<Vec<_>>(), made);
    let oldest = server.get("/v1/endpoints?order=asc&limit=1").await;
    assert_eq!(oldest.body["data"][0]["id"], made[4].as_str());
    assert_eq!(server.get("/v1/endpoints?cursor=x").await.problem(), (400, "invalid_parameter", ""));
}

#[tokio::test]
async fn unknown_ids_and_ids_of_another_kind_are_answered_alike() {
    let server = Server::start().await;
    let never = server.get("/v1/endpoints/ep_00000000000000000000000000000000000").await;
    let other = server.get(&format!("/v1/endpoints/{}", server.message(r#"{"payload": 1}"#).await)).await;
    assert_eq!(never.problem(), (404, "not_found", ""));
    assert_eq!(never.body, other.body);
}

/// Every settable field except `tls`, as the API shows it.
const ALL: &str = r#"{"uid": "crm", "subject": "user-42", "description": "the shop", "tags": ["beta", "eu"],
    "headers": {"x-team": "a"}, "event_types": ["invoice.*"], "policy": "backend", "ttl": "2h", "timeout": "5s",
    "rate": {"per_second": 2.5, "burst": 10}, "max_in_flight": 3, "order": "strict", "on_dead": "hold",
    "time_zone": "Europe/Berlin", "status_overrides": {"404": "retry", "4xx": "dead"}}"#;

fn all() -> serde_json::Map<String, Value> {
    serde_json::from_str(ALL).expect("an object")
}

#[tokio::test]
async fn every_endpoint_field_can_be_set_changed_and_cleared() {
    let server = Server::start().await;
    let mut new = all();
    new.insert("url".to_owned(), "https://example.com/hook".into());
    let secret = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    new.insert("signing".to_owned(), json!({"scheme": "v1", "secret": secret}));
    let made = server.post("/v1/endpoints", &Value::Object(new).to_string()).await.expect(StatusCode::CREATED);
    let shown = server.get("/v1/endpoints/crm").await;
    assert_eq!(shown.body["id"], made.body["id"], "found by its uid");
    for (name, value) in all() {
        assert_eq!(shown.body[&name], value, "{name}");
    }
    let path = format!("/v1/endpoints/{}", made.text("id"));
    let same = server.call(Method::PATCH, &path, "{}").await;
    assert_eq!(same.body, shown.body, "an empty change changes nothing");
    let nulls: serde_json::Map<_, _> = all().into_iter().map(|(name, _)| (name, Value::Null)).collect();
    let bare = server.call(Method::PATCH, &path, &Value::Object(nulls).to_string()).await;
    let plain = server.post("/v1/endpoints", r#"{"url": "https://example.com/hook"}"#).await;
    for (name, _) in all() {
        assert_eq!(bare.body[&name], plain.body[&name], "{name} has its default again");
    }
    let moved = server.call(Method::PATCH, &path, r#"{"url": "https://example.com/other", "max_in_flight": 7}"#).await;
    assert_eq!((moved.text("url"), &moved.body["max_in_flight"]), ("https://example.com/other", &7.into()));
    assert_eq!(server.get("/v1/endpoints/crm").await.status, StatusCode::NOT_FOUND, "its uid was cleared");
}

#[tokio::test]
async fn a_refused_change_has_a_pointer_and_changes_nothing() {
    let server = Server::start().await;
    let id = server.endpoint(r#", "uid": "one""#).await;
    server.endpoint(r#", "uid": "two""#).await;
    let path = format!("/v1/endpoints/{id}");
    let before = server.get(&path).await.body;
    for (body, expected) in [
        (r#"{"url": "http://10.0.0.5/"}"#, (400, "target_refused", "/url")),
        (r#"{"url": "http://127.0.0.1:1/", "max_in_flght": 3}"#, (400, "invalid_body", "/max_in_flght")),
        (r#"{"on_dead": "hold"}"#, (400, "invalid_body", "/on_dead")),
        (r#"{"url": null}"#, (400, "invalid_body", "/url")),
        (r#"{"signing": {"scheme": "v1a"}}"#, (400, "invalid_body", "/signing")),
        (r#"{"signing": {"secret": "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}}"#, (400, "invalid_body", "/signing")),
        (r#"{"uid": "two"}"#, (409, "name_taken", "")),
    ] {
        assert_eq!(server.call(Method::PATCH, &path, body).await.problem(), expected, "{body}");
    }
    assert_eq!(server.get(&path).await.body, before);
    assert_eq!(server.call(Method::PATCH, "/v1/endpoints/unknown", "{}").await.problem(), (404, "not_found", ""));
}

#[tokio::test]
async fn deleting_an_endpoint_ends_its_deliveries_and_frees_its_uid() {
    let server = Server::start().await;
    let id = server.endpoint(r#", "uid": "crm""#).await;
    server.post("/v1/endpoints/crm/pause", "").await;
    let message = server.message(r#"{"payload": 1}"#).await;
    let deleted = server.call(Method::DELETE, "/v1/endpoints/crm", "").await;
    assert_eq!((deleted.text("id"), &deleted.body["ended"], &deleted.body["in_flight"]), (&*id, &1.into(), &0.into()));
    for path in [format!("/v1/endpoints/{id}"), "/v1/endpoints/crm".to_owned()] {
        assert_eq!(server.get(&path).await.problem(), (404, "not_found", ""));
        assert_eq!(server.call(Method::DELETE, &path, "").await.problem(), (404, "not_found", ""));
    }
    assert_eq!(server.get("/v1/endpoints").await.body["data"], json!([]));
    let shown = server.get(&format!("/v1/messages/{message}")).await;
    assert_eq!(shown.text("state"), "cancelled");
    assert_eq!(shown.body["deliveries"][0]["endpoint"], *id);
    let delivery = shown.body["deliveries"][0]["id"].as_str().expect("an id").to_owned();
    for path in ["/v1/deliveries".to_owned(), format!("/v1/deliveries?endpoint={id}")] {
        let listed = &server.get(&path).await.body["data"];
        assert_eq!(listed[0]["id"], *delivery, "{path}: the ended delivery is still listed");
        assert_eq!(listed[0]["endpoint"], *id, "{path}");
    }
    let alone = server.get(&format!("/v1/deliveries/{delivery}")).await;
    assert_eq!((alone.text("state"), alone.text("cause")), ("cancelled", "endpoint_deleted"));
    let named = format!(r#"{{"payload": 1, "to": {{"endpoints": ["{id}"]}}}}"#);
    assert_eq!(server.post("/v1/messages", &named).await.status, StatusCode::BAD_REQUEST);
    assert_ne!(server.endpoint(r#", "uid": "crm""#).await, id, "its uid is free");
}

#[tokio::test]
async fn a_rotated_secret_signs_beside_the_older_one_unless_overlap_is_zero() {
    let server = Server::start().await;
    let made = server.post("/v1/endpoints", r#"{"url": "https://example.com/", "uid": "crm"}"#).await;
    let first = made.body["signing"]["secret"].clone();
    let seen = server.get("/v1/endpoints/crm/secret").await.body;
    assert_eq!(seen, json!({"scheme": "v1", "secret": first, "previous": []}));
    let rotated = server.post("/v1/endpoints/crm/secret/rotate", "").await.body;
    assert_ne!(rotated["secret"], first);
    assert_eq!(rotated["previous"][0]["secret"], first);
    assert!(rotated["previous"][0]["until"].is_string());
    assert_eq!(server.get("/v1/endpoints/crm/secret").await.body, rotated);
    let leaked = server.post("/v1/endpoints/crm/secret/rotate", r#"{"overlap": "0s"}"#).await.body;
    assert_eq!(leaked["previous"], json!([]), "the older ones stop at once");
    assert_ne!(leaked["secret"], rotated["secret"]);
    let long = server.post("/v1/endpoints/crm/secret/rotate", r#"{"overlap": "31d"}"#).await;
    assert_eq!(long.problem(), (400, "invalid_body", "/overlap"));
}

#[tokio::test]
async fn no_secret_stops_signing_before_its_overlap_ends() {
    let server = Server::start().await;
    server.endpoint(r#", "uid": "crm""#).await;
    let rotate = async |key: &str, body: &str| {
        server.call_with(&[("idempotency-key", key)], Method::POST, "/v1/endpoints/crm/secret/rotate", body).await
    };
    for key in ["", "second", ""] {
        assert_eq!(rotate(key, "").await.status, StatusCode::OK);
    }
    let before = server.get("/v1/endpoints/crm/secret").await.body;
    assert_eq!(before["previous"].as_array().map(Vec::len), Some(3));
    for key in ["", "fifth"] {
        let full = rotate(key, "").await;
        assert_eq!(full.problem(), (409, "too_many_secrets", ""));
        let until = before["previous"][2]["until"].as_str().expect("a time");
        assert!(full.text("detail").contains(until), "{}", full.body);
        assert!(full.headers.contains_key("retry-after"));
    }
    assert_eq!(server.get("/v1/endpoints/crm/secret").await.body, before, "and nothing has changed");
    let again = rotate("second", "").await;
    assert_eq!(
        (again.status, &again.headers["idempotency-replayed"]),
        (StatusCode::OK, &"true".parse().expect("text"))
    );
    assert_eq!(again.body["secret"], before["previous"][0]["secret"], "the repeated answer shows the secret again");
    assert_eq!(rotate("second", r#"{"overlap": "0s"}"#).await.problem(), (422, "idempotency_key_reused", ""));
    assert_eq!(rotate("", r#"{"overlap": "0s"}"#).await.status, StatusCode::OK);
}

#[tokio::test]
async fn only_the_public_key_of_a_private_key_is_shown() {
    let server = Server::start().await;
    let body = r#"{"url": "https://example.com/", "uid": "crm", "signing": {"scheme": "v1a"}}"#;
    let made = server.post("/v1/endpoints", body).await;
    let public = made.body["signing"]["public_key"].as_str().expect("a public key").to_owned();
    assert!(public.starts_with("whpk_") && made.body["signing"].get("secret").is_none(), "{}", made.body);
    let seen = server.get("/v1/endpoints/crm/secret").await.body;
    assert_eq!(seen, json!({"scheme": "v1a", "public_key": public, "previous": []}));
    let rotated = server.post("/v1/endpoints/crm/secret/rotate", "").await.body;
    assert_eq!((&rotated["scheme"], &rotated["previous"][0]["public_key"]), (&"v1a".into(), &public.into()));
    let other = r#"{"url": "https://example.com/",
        "signing": {"scheme": "v1a", "secret": "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}}"#;
    assert_eq!(server.post("/v1/endpoints", other).await.problem(), (400, "invalid_body", "/signing/secret"));
}

#[tokio::test]
async fn endpoints_show_their_status_and_are_listed_by_every_filter() {
    let server = Server::start().await;
    let one = server.endpoint(r#", "uid": "one", "tags": ["a", "b"], "subject": "ann""#).await;
    let two = server.endpoint(r#", "uid": "two", "tags": ["b"]"#).await;
    for (body, reason) in [
        ("", "no reason was given"),
        (r#"{"reason": "a move", "until": "2099-01-01T00:00:00Z"}"#, "a move (until 2099-01-01T00:00:00.000Z)"),
        (r#"{"reason": "a move"}"#, "a move"),
    ] {
        let paused = server.post("/v1/endpoints/two/pause", body).await;
        assert_eq!(paused.body["reason"].as_str(), (!body.is_empty()).then_some("a move"));
        let shown = server.get("/v1/endpoints/two").await;
        assert_eq!((shown.text("status"), shown.text("status_reason")), ("paused", reason));
    }
    for (filter, expected) in [
        ("uid=one", vec![&one]),
        ("tags=b", vec![&two, &one]),
        ("tags=a", vec![&one]),
        ("subject=ann", vec![&one]),
        ("status=paused", vec![&two]),
        ("status=active&tags=b", vec![&one]),
        ("tags=b&order=asc&limit=1", vec![&one]),
        ("uid=unknown", vec![]),
    ] {
        let page = server.get(&format!("/v1/endpoints?{filter}")).await;
        let ids: Vec<&str> = page.list().iter().map(|one| one["id"].as_str().expect("an id")).collect();
        assert_eq!(ids, expected, "{filter}");
    }
    assert_eq!(server.get("/v1/endpoints?status=odd").await.problem(), (400, "invalid_parameter", ""));
    server.post("/v1/endpoints/two/enable", "").await;
    assert_eq!(server.get("/v1/endpoints/two").await.text("status"), "active");
}

#[tokio::test]
async fn a_test_sends_a_real_message_to_that_endpoint_only() {
    let server = Server::start().await;
    server.endpoint("").await;
    let id = server.endpoint(r#", "uid": "crm", "event_types": ["other"]"#).await;
    server.post("/v1/endpoints/crm/pause", "").await;
    let sent = server.post("/v1/endpoints/crm/test", "").await;
    assert_eq!((sent.status, &sent.body["deliveries"]), (StatusCode::ACCEPTED, &1.into()));
    let shown = server.get(&format!("/v1/messages/{}", sent.text("id"))).await;
    assert_eq!(shown.text("event_type"), "posthaste.test");
    assert_eq!(shown.body["deliveries"][0]["endpoint"], id.as_str());
}

#[tokio::test]
async fn a_test_of_a_gone_endpoint_is_refused_with_the_way_to_enable_it() {
    let server = Server::start().await;
    let (receiver, id) = server.receiver("").await;
    server.message(r#"{"payload": 1}"#).await;
    answer(&receiver, "410 Gone").await;
    while server.get(&format!("/v1/endpoints/{id}")).await.text("status") != "gone" {}
    let refused = server.post(&format!("/v1/endpoints/{id}/test"), "").await;
    assert_eq!(refused.problem(), (409, "endpoint_gone", ""));
    assert!(refused.text("detail").ends_with(&format!("POST /v1/endpoints/{id}/enable")), "{}", refused.body);
}

#[tokio::test]
async fn a_receiver_can_end_a_message_or_disable_its_endpoint_with_its_answer() {
    let server = Server::start().await;
    let (receiver, _) = server.receiver(r#", "uid": "crm""#).await;
    for (asks, cause) in [("abort-message", "aborted"), ("disable", "disable_asked")] {
        let path = server.delivery(r#"{"payload": 1}"#).await;
        answer(&receiver, &format!("503 Service Unavailable\r\nwebhook-delivery: {asks}")).await;
        assert_eq!(server.until(&path, "dead").await.text("cause"), cause);
    }
    let shown = server.get("/v1/endpoints/crm").await;
    assert_eq!(shown.text("status"), "disabled");
    assert!(shown.text("status_reason").contains("webhook-delivery"), "{}", shown.body);
    let waits = server.post("/v1/messages", r#"{"payload": 1}"#).await;
    assert_eq!(waits.body["deliveries"], 1, "messages for a disabled endpoint are still accepted");
    let path = format!("/v1/deliveries/{}", delivery_of(waits.text("id")));
    assert_eq!(server.get(&path).await.body["waiting"]["why"], "endpoint_disabled");
    assert_eq!(server.post("/v1/endpoints/crm/enable", "").await.status, StatusCode::OK);
    assert_eq!(server.get("/v1/endpoints/crm").await.text("status"), "active");
    answer(&receiver, "204 No Content").await;
    server.until(&path, "delivered").await;
}
