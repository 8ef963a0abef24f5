//! Messages: accepted, refused, shown, listed and cancelled.

use http::{Method, StatusCode};
use posthaste_crypto::public_id::{IdKey, IdKind};
use posthaste_engine::accept::FANOUT_MAX;
use serde_json::{Value, json};

use crate::fixture::Server;

#[tokio::test]
async fn a_message_without_recipients_goes_to_every_subscribed_endpoint() {
    let server = Server::start().await;
    server.endpoint("").await;
    server.endpoint(r#", "event_types": ["invoice.*"]"#).await;
    server.endpoint(r#", "event_types": ["order.paid"]"#).await;
    let answer = server
        .post("/v1/messages", r#"{"event_type": "invoice.paid", "payload": {"a": 1}}"#)
        .await
        .expect(StatusCode::ACCEPTED);
    assert_eq!(answer.body["deliveries"], 2);
    assert!(answer.text("id").starts_with("msg_"));
    assert_eq!(answer.text("correlation_id"), answer.text("id"), "the message's own id by default");
    assert!(answer.body["expires_at"].is_null());
    assert_eq!(answer.body["notes"], json!([]));
}

#[tokio::test]
async fn a_message_without_endpoints_is_accepted_with_a_note() {
    let server = Server::start().await;
    let answer = server.post("/v1/messages", r#"{"payload": 0}"#).await;
    assert_eq!((answer.status, &answer.body["deliveries"]), (StatusCode::ACCEPTED, &0.into()));
    assert_eq!(answer.body["notes"][0], "no endpoint wants this event: nothing will be sent");
}

#[tokio::test]
async fn a_large_fan_out_is_accepted_at_once_and_its_deliveries_follow() {
    let server = Server::start().await;
    for _ in 0..=FANOUT_MAX {
        server.endpoint("").await;
    }
    let collapsing = server.post("/v1/messages", r#"{"payload": 1, "collapse_key": "a"}"#).await;
    assert_eq!(collapsing.problem(), (400, "too_many_endpoints", ""), "a late one could replace a newer one");
    let answer = server.post("/v1/messages", r#"{"payload": 1}"#).await.expect(StatusCode::ACCEPTED);
    assert!(answer.body["deliveries"].is_null(), "the total is not known yet");
    assert_eq!(answer.body["notes"].as_array().map(Vec::len), Some(1));
    while server.store.lock().pending() <= FANOUT_MAX {
        tokio::task::yield_now().await;
    }
    server.endpoint("").await;
    let shown = server.get(&format!("/v1/messages/{}", answer.text("id"))).await;
    assert_eq!(shown.body["deliveries"].as_array().map(Vec::len), Some(1_000), "the first of them");
    assert_eq!(server.store.lock().pending(), FANOUT_MAX + 1, "one for each endpoint that existed at accept");
}

#[tokio::test]
async fn a_named_endpoint_gets_it_once_and_each_unknown_one_has_a_pointer() {
    let server = Server::start().await;
    let id = server.endpoint(r#", "uid": "ok""#).await;
    server.endpoint("").await;
    let send = async |named: &[&str]| {
        server.post("/v1/messages", &json!({"payload": 1, "to": {"endpoints": named}}).to_string()).await
    };
    assert_eq!(send(&[&id, &id]).await.body["deliveries"], 1, "however often it is named");
    let answer = send(&["ok", "nope", "hm"]).await;
    assert_eq!(answer.problem(), (400, "endpoint_unknown", "/to/endpoints/1"));
    let errors = answer.body["errors"].as_array().expect("a list");
    let pointers: Vec<_> = errors.iter().map(|one| &one["pointer"]).collect();
    assert_eq!(pointers, ["/to/endpoints/1", "/to/endpoints/2"]);
    let swapped = server.message(r#"{"payload": 1}"#).await.replace("msg_", "ep_");
    assert_eq!(send(&[&swapped]).await.problem(), (400, "endpoint_unknown", "/to/endpoints/0"), "of another kind");
}

#[tokio::test]
async fn more_than_a_thousand_named_endpoints_are_refused() {
    let server = Server::start().await;
    let named: Vec<String> = (0..1_001).map(|number| format!("crm-{number}")).collect();
    let answer = server.post("/v1/messages", &json!({"payload": 1, "to": {"endpoints": named}}).to_string()).await;
    assert_eq!(answer.problem(), (400, "too_many_endpoints", ""));
}

#[tokio::test]
async fn every_field_of_a_message_is_accepted() {
    let server = Server::start().await;
    let body = r#"{"payload": [], "event_type": "a.b", "correlation_id": "order-99", "tier": 1, "ttl": "24h",
                   "deliver_at": null, "require_ack": false}"#;
    let answer = server.post("/v1/messages", body).await;
    assert_eq!(answer.text("correlation_id"), "order-99");
    let time = |name: &str| answer.text(name).parse::<jiff::Timestamp>().expect("a time");
    assert_eq!(time("expires_at").duration_since(time("accepted_at")).as_hours(), 24);
}

#[tokio::test]
async fn faults_of_a_message_have_a_code_and_a_pointer() {
    let server = Server::start().await;
    let cases = [
        ("", "invalid_json", ""),
        ("{", "invalid_json", ""),
        ("[]", "invalid_body", ""),
        ("{}", "invalid_body", "/payload"),
        (r#"{"payload": null}"#, "invalid_body", "/payload"),
        (r#"{"payload": 1, "tier": "1"}"#, "invalid_body", "/tier"),
        (r#"{"payload": 1, "event_typ": "a"}"#, "invalid_body", "/event_typ"),
        (r#"{"payload": 1, "event_type": "a b"}"#, "invalid_body", "/event_type"),
        (r#"{"payload": 1, "payload": 2}"#, "invalid_body", "/payload"),
        (r#"{"payload": 1, "tier": 4}"#, "invalid_body", "/tier"),
        (r#"{"payload": 1, "ttl": "31d"}"#, "invalid_body", "/ttl"),
        (r#"{"payload": 1, "deliver_at": "2999-01-01T00:00:00Z"}"#, "invalid_body", "/deliver_at"),
        (r#"{"payload": 1, "correlation_id": "a b"}"#, "invalid_body", "/correlation_id"),
        (r#"{"payload": 1, "to": {"endpoints": []}}"#, "invalid_body", "/to/endpoints"),
        (r#"{"payload": 1, "to": {"endpoints": ["a b"]}}"#, "invalid_body", "/to/endpoints/0"),
        (r#"{"payload": 1, "to": {"endpoints": ["ep_0"]}}"#, "endpoint_unknown", "/to/endpoints/0"),
        (r#"{"payload": 1, "to": {"endpoint": "x"}}"#, "invalid_body", "/to/endpoint"),
        (r#"{"payload": 1, "to": {"subjects": []}}"#, "invalid_body", "/to/subjects"),
        (r#"{"payload": 1, "to": {"tags": ["a", "a b"]}}"#, "invalid_body", "/to/tags/1"),
        (r#"{"payload": 1, "to": {"all": true, "tags": ["a"]}}"#, "invalid_body", "/to/all"),
        (r#"{"payload": 1, "to": {"channel": "webpush"}}"#, "not_built_yet", "/to/channel"),
        (r#"{"payload": 1, "to": {"channel": "pigeon"}}"#, "invalid_body", "/to/channel"),
        (r#"{"payload": 1, "subject": ""}"#, "invalid_body", "/subject"),
        (r#"{"payload": 1, "labels": {"a": 1}}"#, "invalid_body", "/labels"),
        (r#"{"payload": 1, "region": "e u"}"#, "invalid_body", "/region"),
        (r#"{"payload": 1, "require_ack": true}"#, "not_built_yet", "/require_ack"),
        (r#"{"payload": 1, "notification": {"title": "x"}}"#, "not_built_yet", "/notification"),
    ];
    for (body, code, pointer) in cases {
        assert_eq!(server.post("/v1/messages", body).await.problem(), (400, code, pointer), "{body}");
    }
}

#[tokio::test]
async fn refusals_say_what_is_wrong() {
    let server = Server::start().await;
    let long = "x".repeat(5_000);
    let cases = [
        ("/v1/messages", String::new(), "the body is empty; send a JSON object"),
        ("/v1/messages", r#"{"payload": null}"#.to_owned(), "/payload: is needed and must not be null"),
        ("/v1/messages", format!(r#"{{"payload": 1, "event_type": "{}"}}"#, "a".repeat(129)), "at most 128 characters"),
        ("/v1/messages", r#"{"payload": 1, "xyz": 1}"#.to_owned(), "/xyz: there is no such field"),
        ("/v1/endpoints", format!(r#"{{"url": "https://example.com/{long}"}}"#), "longer than 4096 bytes"),
    ];
    for (path, body, part) in cases {
        let refused = server.post(path, &body).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{body}");
        let detail = refused.text("detail");
        assert!(detail.contains(part) && !detail.contains("the nearest"), "{detail}");
    }
}

#[tokio::test]
async fn notes_warn_of_a_short_ttl_and_a_past_deliver_at() {
    let server = Server::start().await;
    server.endpoint("").await;
    let notes =
        async |body: &str| server.post("/v1/messages", body).await.expect(StatusCode::ACCEPTED).body["notes"].clone();
    let outlasts = |endpoints: &str| {
        format!(
            "the retry policy of {endpoints} endpoints outlasts the TTL: a delivery that has not arrived by then \
             expires before all its attempts are made"
        )
    };
    assert_eq!(notes(r#"{"payload": 1, "ttl": "1m"}"#).await, json!([outlasts("1 of its 1")]));
    assert_eq!(notes(r#"{"payload": 1, "ttl": "20d"}"#).await, json!([]), "the policy ends before that");
    assert_eq!(notes(r#"{"payload": 1, "ttl": 0}"#).await, json!([]), "a TTL of zero means one attempt");
    server.endpoint(r#", "ttl": "1m""#).await;
    assert_eq!(notes(r#"{"payload": 1}"#).await, json!([outlasts("1 of its 2")]), "an endpoint's TTL");
    let past = r#"{"payload": 1, "ttl": "20d", "deliver_at": "2020-01-01T00:00:00Z"}"#;
    assert_eq!(notes(past).await, json!(["deliver_at is in the past: it is sent at once"]));
}

#[tokio::test]
async fn a_message_shows_its_recipients_ttl_and_deliver_at() {
    let server = Server::start().await;
    let endpoint = server.endpoint(r#", "uid": "crm", "tags": ["beta"]"#).await;
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let later = format!("{later:.3}");
    let show = async |body: &str| {
        let sent = server.post("/v1/messages", body).await.expect(StatusCode::ACCEPTED);
        let shown = server.get(&format!("/v1/messages/{}", sent.text("id"))).await;
        assert_eq!(shown.body["expires_at"], sent.body["expires_at"]);
        shown
    };
    let to = r#"{"endpoints": ["crm"]}"#;
    let named = show(&format!(r#"{{"payload": 1, "ttl": "2h", "deliver_at": "{later}", "to": {to}}}"#)).await;
    assert_eq!((named.text("deliver_at"), named.text("ttl")), (later.as_str(), "2h"));
    assert!(named.text("expires_at") > later.as_str(), "its TTL counts from deliver_at");
    assert_eq!(named.body["to"], json!({"endpoints": [endpoint], "subjects": [], "tags": [], "all": false}));
    let tagged = show(&format!(r#"{{"payload": 1, "deliver_at": "{later}", "to": {{"tags": ["beta"]}}}}"#)).await;
    assert_eq!(tagged.body["to"], json!({"subjects": [], "tags": ["beta"], "all": false}));
    let plain = show(&format!(r#"{{"payload": 1, "deliver_at": "{later}"}}"#)).await;
    assert_eq!((&plain.body["to"], &plain.body["ttl"]), (&json!(null), &json!(null)));
    let listed = server.get("/v1/messages?limit=1").await;
    assert_eq!(listed.body["data"][0]["deliver_at"], later);
}

#[tokio::test]
async fn bodies_payloads_and_depth_have_bounds() {
    let server = Server::start().await;
    let payload = |bytes: usize| format!(r#"{{"payload": "{}"}}"#, "x".repeat(bytes - 2));
    assert_eq!(server.post("/v1/messages", &payload(1_000_000)).await.status, StatusCode::ACCEPTED);
    assert_eq!(server.post("/v1/messages", &payload(1_000_001)).await.problem(), (413, "payload_too_large", ""));
    assert_eq!(server.post("/v1/messages", &payload(2_000_000)).await.problem(), (413, "body_too_large", ""));
    let nested = |levels: usize| format!(r#"{{"payload": {}{}}}"#, "[".repeat(levels - 1), "]".repeat(levels - 1));
    assert_eq!(server.post("/v1/messages", &nested(64)).await.status, StatusCode::ACCEPTED);
    assert_eq!(server.post("/v1/messages", &nested(65)).await.problem(), (400, "invalid_body", ""));
}

#[tokio::test]
async fn a_waiting_message_can_be_cancelled_once() {
    let server = Server::start().await;
    server.endpoint("").await;
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(48);
    let message = server.message(&format!(r#"{{"payload": 1, "deliver_at": "{later}"}}"#)).await;
    let path = format!("/v1/messages/{message}/cancel");
    let answer = server.post(&path, "").await;
    assert_eq!((answer.status, answer.body), (StatusCode::OK, json!({"ended": 1, "in_flight": 0})));
    assert_eq!(server.post(&path, "{}").await.body, json!({"ended": 0, "in_flight": 0}));
    assert_eq!(server.post(&path, r#"{"force": true}"#).await.problem(), (400, "invalid_body", "/force"));
    assert_eq!(server.post("/v1/messages/msg_0/cancel", "").await.problem(), (404, "not_found", ""));
}

#[tokio::test]
async fn a_message_shows_the_state_of_its_deliveries() {
    let server = Server::start().await;
    let endpoint = server.endpoint(r#", "event_types": ["order.*"]"#).await;
    server.endpoint("").await;
    server.endpoint(r#", "event_types": ["other"]"#).await;
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let body = format!(
        r#"{{"payload": 1, "event_type": "order.paid", "correlation_id": "order-9", "deliver_at": "{later}"}}"#
    );
    let message = server.post("/v1/messages", &body).await;
    let path = format!("/v1/messages/{}", message.text("id"));
    let shown = server.get(&path).await.expect(StatusCode::OK);
    for name in ["id", "correlation_id", "accepted_at"] {
        assert_eq!(shown.text(name), message.text(name));
    }
    assert_eq!((shown.text("event_type"), shown.text("state")), ("order.paid", "pending"));
    let deliveries = shown.body["deliveries"].as_array().expect("a list");
    assert_eq!(deliveries.len(), 2);
    for delivery in deliveries {
        assert_eq!((&delivery["state"], &delivery["attempts"]), (&"queued".into(), &0.into()));
        assert_eq!(delivery["waiting"]["why"], "scheduled");
        let id = delivery["id"].as_str().expect("an id");
        let alone = server.get(&format!("/v1/deliveries/{id}")).await;
        assert_eq!((alone.text("message"), &alone.body["endpoint"]), (message.text("id"), &delivery["endpoint"]));
    }
    assert!(deliveries.iter().any(|delivery| delivery["endpoint"] == endpoint.as_str()));

    server.post(&format!("{path}/cancel"), "").await;
    let shown = server.get(&path).await;
    assert_eq!((shown.text("state"), &shown.body["deliveries"][0]["cause"]), ("cancelled", &"cancelled".into()));
}

#[tokio::test]
async fn an_id_that_names_no_message_or_delivery_is_not_found() {
    let server = Server::start().await;
    let endpoint = server.endpoint("").await;
    // A good id of a message that was never accepted.
    let never = IdKey::from_bytes([7; 16]).mint(IdKind::Message, 1, 4_711, 1_000);
    for (list, id) in [("messages", "msg_0"), ("messages", never.as_str()), ("deliveries", "dlv_0")] {
        for id in [id, "x", &endpoint] {
            assert_eq!(server.get(&format!("/v1/{list}/{id}")).await.problem(), (404, "not_found", ""), "{list} {id}");
        }
    }
}

#[tokio::test]
async fn a_repeated_idempotency_key_gets_the_first_answer() {
    let server = Server::start().await;
    server.endpoint("").await;
    let send = async |key: &str, body: &str| {
        server.call_with(&[("idempotency-key", key)], Method::POST, "/v1/messages", body).await
    };
    let first = send("order-99", r#"{"payload": 1}"#).await;
    assert_eq!((first.status, first.headers.get("idempotency-replayed")), (StatusCode::ACCEPTED, None));
    for key in ["order-99", "\"order-99\""] {
        let again = send(key, r#"{"payload": 1}"#).await;
        assert_eq!((again.status, &again.body), (StatusCode::ACCEPTED, &first.body), "the same answer");
        assert_eq!(again.headers["idempotency-replayed"], "true");
    }
    assert_eq!(server.store.lock().pending(), 1, "one message, one delivery");
    let other = send("order-99", r#"{"payload": 2}"#).await;
    assert_eq!(other.problem(), (422, "idempotency_key_reused", ""));
    assert_eq!(send("a b", r#"{"payload": 1}"#).await.problem(), (400, "invalid_idempotency_key", ""));
    send("order-100", r#"{"payload": 1, "colour": "red"}"#).await.expect(StatusCode::BAD_REQUEST);
    let corrected = send("order-100", r#"{"payload": 1}"#).await;
    assert_eq!(corrected.status, StatusCode::ACCEPTED, "a refused request uses up no key");
}

#[tokio::test]
async fn a_message_shows_its_fields_and_its_payload_only_on_request() {
    let server = Server::start().await;
    server.endpoint("").await;
    let later = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let body = format!(
        r#"{{"payload": {{"b": 1, "a":  2}}, "compact": [3], "subject": "user-42", "tier": "transactional",
             "labels": {{"purpose": "billing"}}, "region": "eu", "cost_center": "growth", "deliver_at": "{later}"}}"#
    );
    let path = format!("/v1/messages/{}", server.message(&body).await);
    let shown = server.get(&path).await;
    assert_eq!((shown.text("subject"), shown.text("tier")), ("user-42", "transactional"));
    assert_eq!((shown.text("region"), shown.text("cost_center")), ("eu", "growth"));
    assert_eq!(shown.body["labels"], json!({"purpose": "billing"}));
    assert_eq!(shown.body["fanout"], json!({"done": 1, "total": 1, "state": "done"}));
    assert_eq!((shown.body.get("payload"), shown.body.get("compact")), (None, None));
    let whole = server.get(&format!("{path}?content=true")).await;
    assert_eq!((&whole.body["payload"], &whole.body["compact"]), (&json!({"a": 2, "b": 1}), &json!([3])));
    let text = String::from_utf8(whole.raw.to_vec()).expect("text");
    assert!(text.contains(r#"{"b": 1, "a":  2}"#), "byte for byte: {text}");
    assert_eq!(server.get(&format!("{path}?content=yes")).await.problem(), (400, "invalid_parameter", ""));
}

#[tokio::test]
async fn messages_are_listed_by_every_filter_and_page_by_page() {
    let server = Server::start().await;
    let mut ids = Vec::new();
    for (event_type, tier, more) in
        [("a.b", 1, r#", "subject": "ann""#), ("a.b", 2, r#", "correlation_id": "order-1""#), ("a.c", 2, "")]
    {
        let body = format!(r#"{{"payload": 1, "event_type": "{event_type}", "tier": {tier}{more}}}"#);
        ids.push(server.message(&body).await);
    }
    let listed = async |query: &str| {
        let answer = server.get(&format!("/v1/messages?{query}")).await.expect(StatusCode::OK);
        let place = |one: &Value| ids.iter().position(|id| one["id"] == id.as_str()).expect("ours");
        answer.list().iter().map(place).collect::<Vec<_>>()
    };
    assert_eq!(listed("").await, [2, 1, 0], "newest first");
    assert_eq!(listed("order=asc").await, [0, 1, 2]);
    assert_eq!(listed("event_type=a.b").await, [1, 0]);
    assert_eq!(listed("tier=transactional").await, [0]);
    assert_eq!(listed("subject=ann").await, [0]);
    assert_eq!(listed("correlation_id=order-1").await, [1]);
    let own = format!("correlation_id={}", ids[2]);
    assert_eq!(listed(&own).await, [2], "a message's own id is its default correlation id");
    assert_eq!(listed("since=2999-01-01T00:00:00Z").await, [0; 0]);
    assert_eq!(listed("until=2999-01-01T00:00:00Z&limit=1").await, [2]);

    let first = server.get("/v1/messages?limit=2").await;
    let cursor = first.text("next_cursor");
    assert!(first.headers["link"].to_str().expect("text").contains(cursor));
    assert_eq!(listed(&format!("limit=2&cursor={cursor}")).await, [0]);
    for query in [format!("tier=1&cursor={cursor}"), format!("order=asc&cursor={cursor}"), "cursor=x".to_owned()] {
        let other = server.get(&format!("/v1/messages?{query}")).await;
        assert_eq!(other.problem(), (400, "invalid_parameter", ""), "a cursor belongs to its list: {query}");
    }
    let unknown = server.get("/v1/messages?event_typ=a").await;
    assert_eq!(unknown.problem(), (400, "unknown_parameter", ""));
    assert!(unknown.text("detail").contains("event_type"), "{}", unknown.body);
}
