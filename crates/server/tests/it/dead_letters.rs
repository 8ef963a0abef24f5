//! Dead letters, replays and breakers over the API.

use http::StatusCode;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::fixture::{Answer, Server, answer, delivery_of};

/// A server with an endpoint whose receiver the test answers for.
struct Given {
    server: Server,
    receiver: TcpListener,
    endpoint: String,
}

impl Given {
    async fn start() -> Self {
        let server = Server::start().await;
        let (receiver, endpoint) = server.receiver("").await;
        Self { server, receiver, endpoint }
    }

    /// Sends a message of this event type that its receiver refuses with 400; returns its id.
    async fn dead(&self, event_type: &str) -> String {
        let body = format!(r#"{{"event_type": "{event_type}", "payload": {{}}}}"#);
        let id = self.server.message(&body).await;
        answer(&self.receiver, "400 Bad Request").await;
        self.server.until(&format!("/v1/deliveries/{}", delivery_of(&id)), "dead").await;
        id
    }

    async fn listed(&self, query: &str) -> Vec<String> {
        let list = self.server.get(&format!("/v1/dead-letters{query}")).await.expect(StatusCode::OK);
        list.list().iter().map(|letter| letter["message"].as_str().expect("an id").to_owned()).collect()
    }

    async fn replay(&self, body: &str) -> Answer {
        self.server.post("/v1/replays", body).await
    }
}

#[tokio::test]
async fn dead_letters_are_listed_by_every_filter_and_page_by_page() {
    let given = Given::start().await;
    let first = given.dead("order.paid").await;
    let second = given.dead("order.lost").await;
    assert_eq!(given.listed("").await, [second.clone(), first.clone()]);
    assert_eq!(given.listed("?order=asc").await, [first.clone(), second.clone()]);
    let endpoint = format!("?endpoint={}", given.endpoint);
    for query in [endpoint.as_str(), "?cause=bad_request", "?tier=promotional", "?since=2020-01-01T00:00:00Z"] {
        assert_eq!(given.listed(query).await.len(), 2, "{query}");
    }
    assert_eq!(given.listed("?event_type=order.paid").await, std::slice::from_ref(&first));
    for query in ["?cause=gone", "?tier=1", "?until=2020-01-01T00:00:00Z", "?event_type=a"] {
        assert!(given.listed(query).await.is_empty(), "{query}");
    }
    let page = given.server.get("/v1/dead-letters?limit=1").await;
    let cursor = page.text("next_cursor").to_owned();
    assert_eq!(given.listed(&format!("?limit=1&cursor={cursor}")).await, [first]);
    for (query, code) in [
        (format!("?cause=gone&cursor={cursor}"), "invalid_parameter"),
        ("?cause=bad_reqest".to_owned(), "invalid_parameter"),
        ("?since=yesterday".to_owned(), "invalid_parameter"),
        ("?endpoint=ep_0".to_owned(), "not_found"),
    ] {
        let answer = given.server.get(&format!("/v1/dead-letters{query}")).await;
        assert_eq!(answer.problem().1, code, "{query}");
    }
}

#[tokio::test]
async fn a_replay_sends_dead_letters_again_and_shows_its_progress() {
    let given = Given::start().await;
    let message = given.dead("order.paid").await;
    let dry = given.replay(r#"{"select": {"cause": "bad_request"}, "dry_run": true}"#).await;
    assert_eq!((dry.status, &dry.body["total"]["count"]), (StatusCode::OK, &1.into()), "{}", dry.body);
    let begun = given
        .replay(r#"{"select": {"cause": "bad_request"}, "per_second": 100, "reason": "mended"}"#)
        .await
        .expect(StatusCode::ACCEPTED);
    answer(&given.receiver, "204 No Content").await;
    let path = format!("/v1/replays/{}", begun.text("id"));
    let done = given.server.until(&path, "done").await;
    assert_eq!((&done.body["replayed"], &done.body["skipped"]), (&1.into(), &0.into()));
    assert_eq!((done.text("reason"), &done.body["forecast"]), ("mended", &Value::Null));
    assert_eq!(given.server.get("/v1/replays").await.body["data"], serde_json::json!([done.body]));
    assert_eq!(done.body["select"], serde_json::json!({"state": ["dead"], "cause": "bad_request"}));
    let shown = loop {
        let shown = given.server.get(&format!("/v1/messages/{message}")).await;
        if shown.body["deliveries"][1]["state"] == "delivered" {
            break shown;
        }
    };
    assert_eq!(shown.body["deliveries"].as_array().map(Vec::len), Some(2), "the dead delivery and its replay");
    assert_eq!(shown.text("state"), "delivered", "the last delivery counts");
    assert_eq!(shown.body["fanout"], serde_json::json!({"done": 1, "total": 1, "state": "done"}));
}

#[tokio::test]
async fn a_replayed_delivery_and_its_replay_link_to_each_other() {
    let given = Given::start().await;
    let message = given.dead("order.paid").await;
    let old = delivery_of(&message);
    let begun = given.replay(&format!(r#"{{"select": {{"deliveries": ["{old}"]}}}}"#)).await;
    assert_eq!(begun.body["select"], serde_json::json!({"deliveries": 1}));
    answer(&given.receiver, "204 No Content").await;
    let letter = given.server.get("/v1/dead-letters").await.body["data"][0].clone();
    assert_eq!((&letter["replayed"], letter["delivery"].as_str()), (&true.into(), Some(old.as_str())));
    let new = letter["replayed_as"].as_str().expect("the id of its replay").to_owned();
    let get = async |id: &str| given.server.get(&format!("/v1/deliveries/{id}")).await;
    let (before, after) = (get(&old).await, get(&new).await);
    assert_eq!((before.text("replayed_as"), after.text("replay_of")), (new.as_str(), old.as_str()));
    assert_eq!((&before.body["replay_of"], &after.body["replayed_as"]), (&Value::Null, &Value::Null));
    assert_eq!((&before.body["replay"], after.text("replay")), (&Value::Null, begun.text("id")));
    assert_eq!(before.text("created_at"), before.text("accepted_at"));
    assert_eq!(after.text("accepted_at"), before.text("accepted_at"));
    assert!(after.text("created_at") >= begun.text("created_at"), "{}", after.body);
    let listed = given.server.get("/v1/deliveries").await;
    let links = |row: &Value| ["id", "created_at", "replay_of", "replayed_as", "replay"].map(|name| row[name].clone());
    let rows: Vec<_> = listed.list().iter().map(links).collect();
    assert_eq!(rows, [links(&after.body), links(&before.body)]);
}

#[tokio::test]
async fn expired_deliveries_are_replayed_and_others_are_counted_by_skip_reason() {
    let given = Given::start().await;
    let expired = delivery_of(&given.server.message(r#"{"payload": 1, "ttl": 0}"#).await);
    answer(&given.receiver, "503 Service Unavailable").await;
    let shown = given.server.until(&format!("/v1/deliveries/{expired}"), "expired").await;
    assert_eq!((shown.text("cause"), &shown.body["attempts"][0]["cause"]), ("ttl_expired", &"unavailable".into()));
    for (query, found) in [("cause=ttl_expired", 1), ("state=expired&cause=unavailable", 0), ("cause=ok", 0)] {
        let list = given.server.get(&format!("/v1/deliveries?{query}")).await;
        assert_eq!(list.list().len(), found, "{query}: {}", list.body);
    }
    let arrived = delivery_of(&given.server.message(r#"{"payload": 2}"#).await);
    answer(&given.receiver, "204 No Content").await;
    given.server.until(&format!("/v1/deliveries/{arrived}"), "delivered").await;
    let none = given.replay(r#"{"select": {"state": ["dead"]}, "dry_run": true}"#).await;
    assert_eq!(none.body["total"], serde_json::json!({"count": 0, "exact": true}));
    let select = format!(r#"{{"deliveries": ["{expired}", "{arrived}"]}}"#);
    let dry = given.replay(&format!(r#"{{"select": {select}, "dry_run": true}}"#)).await;
    assert_eq!(dry.body["replayed"], 1, "{}", dry.body);
    assert_eq!(dry.body["skips"], serde_json::json!({"delivered": 1}));
    let dry = given.replay(r#"{"select": {"state": ["dead", "expired"]}, "dry_run": true}"#).await;
    assert_eq!(dry.body["total"], serde_json::json!({"count": 1, "exact": true}), "{}", dry.body);
    let begun =
        given.replay(r#"{"select": {"state": ["expired"]}, "per_second": 1}"#).await.expect(StatusCode::ACCEPTED);
    assert_eq!(begun.body["forecast"]["left"], serde_json::json!({"count": 1, "exact": true}));
    assert!(begun.body["forecast"]["done_at"].is_string());
    answer(&given.receiver, "204 No Content").await;
    let path = format!("/v1/replays/{}", begun.text("id"));
    given.server.until(&path, "done").await;
    let again = given.replay(r#"{"select": {"state": ["expired"]}, "dry_run": true}"#).await;
    assert_eq!(again.body["total"]["count"], 0, "it was replayed already");
}

#[tokio::test]
async fn a_missing_for_replay_sends_only_messages_the_endpoint_wants() {
    let given = Given::start().await;
    let endpoint = &given.endpoint;
    for body in [
        r#"{"event_type": "order.paid", "payload": 1}"#.to_owned(),
        r#"{"event_type": "order.lost", "payload": 2}"#.to_owned(),
        format!(r#"{{"event_type": "order.paid", "payload": 3, "to": {{"endpoints": ["{endpoint}"]}}}}"#),
    ] {
        given.server.message(&body).await;
        answer(&given.receiver, "204 No Content").await;
    }
    let (later, id) = given.server.receiver(r#", "event_types": ["order.paid"]"#).await;
    let select = format!(r#"{{"missing_for": "{id}", "since": "2020-01-01T00:00:00Z"}}"#);
    let dry = given.replay(&format!(r#"{{"select": {select}, "dry_run": true}}"#)).await;
    assert_eq!(dry.body["total"], serde_json::json!({"count": 1, "exact": true}), "{}", dry.body);
    let begun = given.replay(&format!(r#"{{"select": {select}}}"#)).await;
    let received = answer(&later, "204 No Content").await;
    assert!(received.contains("posthaste-event-type: order.paid"), "{received}");
    let path = format!("/v1/replays/{}", begun.text("id"));
    let done = given.server.until(&path, "done").await;
    assert_eq!((&done.body["replayed"], &done.body["skipped"]), (&1.into(), &0.into()), "{}", done.body);
    assert_eq!(done.body["select"]["missing_for"], serde_json::json!(id));
    let got = given.server.get(&format!("/v1/deliveries?endpoint={id}")).await.body["data"][0].clone();
    assert_eq!((&got["replay_of"], got["replay"].as_str()), (&Value::Null, Some(done.text("id"))), "{got}");
    let dry = given.replay(&format!(r#"{{"select": {select}, "dry_run": true}}"#)).await;
    assert_eq!(dry.body["total"]["count"], 0, "it is not missing any more");
}

#[tokio::test]
async fn a_replay_is_paused_resumed_and_cancelled() {
    let given = Given::start().await;
    given.dead("order.paid").await;
    given.dead("order.lost").await;
    // The first delivery is created at once, the second after more than a second.
    let begun = given.replay(r#"{"select": {}, "per_second": 1}"#).await;
    let path = format!("/v1/replays/{}", begun.text("id"));
    let change = async |verb: &str| given.server.post(&format!("{path}/{verb}"), "").await;
    let paused = change("pause").await;
    assert_eq!((paused.status, paused.text("state")), (StatusCode::OK, "paused"));
    assert_eq!(paused.body["forecast"]["done_at"], Value::Null);
    assert_eq!(change("pause").await.text("state"), "paused");
    assert_eq!(change("resume").await.text("state"), "running");
    assert_eq!(change("cancel").await.text("state"), "cancelled");
    assert_eq!(change("resume").await.problem(), (409, "replay_ended", ""));
    assert_eq!(given.server.post("/v1/replays/rpl_0/pause", "").await.problem(), (404, "not_found", ""));
}

#[tokio::test]
async fn a_tenant_has_at_most_16_running_replays() {
    let given = Given::start().await;
    // Each later endpoint is missing a minute's worth of messages, so no replay is done before the test ends.
    for _ in 0..60 {
        given.server.message(r#"{"payload": 1}"#).await;
    }
    let slow = async || {
        let select = format!(r#"{{"missing_for": "{}"}}"#, given.server.endpoint("").await);
        given.replay(&format!(r#"{{"select": {select}, "per_second": 1}}"#)).await
    };
    let first = slow().await;
    for _ in 1..16 {
        assert_eq!(slow().await.status, StatusCode::ACCEPTED);
    }
    let refused = slow().await;
    assert_eq!(refused.problem(), (429, "too_many_replays", ""));
    assert!(refused.headers.contains_key("retry-after"));
    let change = async |verb: &str| given.server.post(&format!("/v1/replays/{}/{verb}", first.text("id")), "").await;
    assert_eq!(change("pause").await.text("state"), "paused");
    assert_eq!(slow().await.status, StatusCode::ACCEPTED, "a paused replay does not count");
    assert_eq!(change("resume").await.problem(), (429, "too_many_replays", ""));
}

#[tokio::test]
async fn faults_of_a_replay_have_a_pointer() {
    let given = Given::start().await;
    let never = delivery_of(&given.dead("order.paid").await).replace("dlv_0", "dlv_1");
    for (body, pointer) in [
        ("{}", "/select"),
        (r#"{"select": {"cause": "no"}}"#, "/select/cause"),
        (r#"{"select": {"endpoint": "ep_0"}}"#, "/select/endpoint"),
        (r#"{"select": {"deliveries": []}}"#, "/select/deliveries"),
        (r#"{"select": {"state": ["delivered"]}}"#, "/select/state"),
        (r#"{"select": {"state": []}}"#, "/select/state"),
        (r#"{"select": {"missing_for": "ep_0"}}"#, "/select/missing_for"),
        (&format!(r#"{{"select": {{"missing_for": "{}", "cause": "gone"}}}}"#, given.endpoint), "/select/missing_for"),
        (r#"{"select": {}, "per_second": 0}"#, "/per_second"),
        (&format!(r#"{{"select": {{"deliveries": ["{never}"]}}}}"#), "/select/deliveries"),
    ] {
        assert_eq!(given.replay(body).await.problem(), (400, "invalid_body", pointer), "{body}");
    }
    assert_eq!(given.server.get("/v1/replays/rpl_0").await.problem(), (404, "not_found", ""));
}

#[tokio::test]
async fn an_open_breaker_is_shown_and_reset() {
    let server = Server::start().await;
    server.endpoint("").await;
    assert_eq!(server.get("/v1/breakers").await.body["data"], serde_json::json!([]));
    for _ in 0..12 {
        server.post("/v1/messages", r#"{"payload": 1}"#).await;
    }
    let open = loop {
        let breakers = server.get("/v1/breakers").await;
        if breakers.body["data"][0]["state"] == "open" {
            break breakers.body["data"][0].clone();
        }
    };
    assert!(open["why"].as_str().is_some_and(|why| why.contains("failures")), "{open}");
    assert!(open["until"].is_string() && open["since"].is_string(), "{open}");
    assert_eq!(open["tenant"], server.get("/v1/tenants/default").await.body["id"], "the tenant of its endpoint");
    let path = format!("/v1/breakers/{}/reset", open["id"].as_str().expect("an id"));
    assert_eq!(server.post(&path, r#"{"force": true}"#).await.status, StatusCode::OK);
    let trail = server.get("/v1/audit?kind=breaker_reset").await;
    let entry = &trail.body["data"][0];
    assert_eq!((&entry["endpoint"], &entry["what"]), (&open["id"], &"closed at once".into()), "{}", trail.body);
    assert_eq!(server.post("/v1/breakers/ep_0/reset", "").await.problem(), (404, "not_found", ""));
    let trail = server.get("/v1/audit?kind=breaker_reset").await;
    assert_eq!(trail.list().len(), 1, "a refused reset leaves no entry");
}

#[tokio::test]
async fn a_breaker_of_an_origin_shows_its_origin() {
    let server = Server::start().await;
    for _ in 0..4 {
        server.endpoint("").await;
    }
    let mut found = None;
    for _ in 0..200 {
        server.post("/v1/messages", r#"{"payload": 1}"#).await;
        found = server.get("/v1/breakers").await.list().iter().find(|one| one["of"] == "origin").cloned();
        if found.is_some() {
            break;
        }
    }
    let breaker = found.expect("endpoints that fail at one origin open its breaker");
    assert_eq!(breaker["origin"], "http://127.0.0.1:9999", "{breaker}");
    let path = format!("/v1/breakers/{}/reset", breaker["id"].as_str().expect("an id"));
    assert_eq!(server.post(&path, "").await.status, StatusCode::OK);
    let trail = server.get("/v1/audit?kind=breaker_reset").await;
    assert_eq!(trail.body["data"][0]["id"], breaker["id"], "{}", trail.body);
}
