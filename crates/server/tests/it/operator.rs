//! Operator keys: they read all tenants' objects, or those of the tenant they name. And the master key.

use http::{Method, StatusCode};
use serde_json::Value;
use tokio::net::TcpListener;

use crate::fixture::{Answer, Server, answer, delivery_of};
use crate::keys::Locked;

/// A server with two tenants, each of which has a dead letter and a replay.
struct Given {
    locked: Locked,
    /// The uid, id, message and replay of each tenant; the older tenant first.
    tenants: Vec<[String; 4]>,
}

impl Given {
    async fn start() -> Self {
        let locked = Locked::start().await;
        let receiver = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/", receiver.local_addr().expect("it listens"));
        let mut tenants = Vec::new();
        for uid in ["acme", "umbrella"] {
            let (id, key) = locked.tenant(uid, "").await;
            let call = async |method, path: &str, body: &str| locked.call(&key, "", method, path, body).await;
            let made = call(Method::POST, "/v1/endpoints", &format!(r#"{{"url": "{url}"}}"#)).await;
            assert_eq!(made.text("tenant"), id);
            let sent = call(Method::POST, "/v1/messages", r#"{"event_type": "order.paid", "payload": 1}"#).await;
            answer(&receiver, "400 Bad Request").await;
            let path = format!("/v1/deliveries/{}", delivery_of(sent.text("id")));
            while call(Method::GET, &path, "").await.text("state") != "dead" {}
            let replay = call(Method::POST, "/v1/replays", r#"{"select": {"cause": "gone"}}"#).await;
            tenants.push([uid.to_owned(), id, sent.text("id").to_owned(), replay.text("id").to_owned()]);
        }
        Self { locked, tenants }
    }

    async fn get(&self, tenant: &str, path: &str) -> Answer {
        self.locked.call(&self.locked.operator, tenant, Method::GET, path, "").await
    }

    async fn post(&self, tenant: &str, path: &str, body: &str) -> Answer {
        self.locked.call(&self.locked.operator, tenant, Method::POST, path, body).await
    }

    /// The tenants of a list's rows, in its order.
    async fn owners(&self, tenant: &str, path: &str) -> Vec<String> {
        self.texts(tenant, path, "tenant").await
    }

    /// A field of a list's rows, in its order.
    async fn texts(&self, tenant: &str, path: &str, field: &str) -> Vec<String> {
        let list = self.get(tenant, path).await.expect(StatusCode::OK);
        list.list().iter().map(|row| row[field].as_str().expect("a text").to_owned()).collect()
    }
}

const LISTS: [&str; 5] = ["/v1/dead-letters", "/v1/replays", "/v1/messages", "/v1/deliveries", "/v1/endpoints"];

#[tokio::test]
async fn an_operator_s_lists_and_cursors_span_all_tenants_unless_it_names_one() {
    let given = Given::start().await;
    let [[uid, first, ..], [_, second, ..]] = given.tenants.as_slice() else { panic!("two tenants") };
    for path in LISTS {
        assert_eq!(given.owners("", path).await, [second.clone(), first.clone()], "{path}");
        let oldest = given.owners("", &format!("{path}?order=asc")).await;
        assert_eq!(oldest, [first.clone(), second.clone()], "{path}");
        for named in [uid, first] {
            assert_eq!(given.owners(named, path).await, std::slice::from_ref(first), "{path}");
        }
        let page = given.get("", &format!("{path}?limit=1")).await;
        let next = format!("{path}?limit=1&cursor={}", page.text("next_cursor"));
        assert_eq!(given.owners("", &next).await, std::slice::from_ref(first), "{path}");
        // A cursor of all tenants' list does not belong to the list of one.
        assert_eq!(given.get(uid, &next).await.problem(), (400, "invalid_parameter", ""), "{path}");
    }
    for query in ["event_type=order.paid", "cause=bad_request", "tier=2", "since=2020-01-01T00:00:00Z"] {
        let path = format!("/v1/dead-letters?{query}");
        assert_eq!(given.owners("", &path).await, [second.clone(), first.clone()], "{path}");
    }
    for query in ["event_type=a", "cause=gone", "tier=1", "until=2020-01-01T00:00:00Z"] {
        assert_eq!(given.owners("", &format!("/v1/dead-letters?{query}")).await, Vec::<String>::new(), "{query}");
    }
    given.locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn an_operator_reads_every_tenant_s_objects_with_their_tenant() {
    let given = Given::start().await;
    for [uid, tenant, message, replay] in &given.tenants {
        let endpoint = given.get(uid, "/v1/endpoints").await.body["data"][0]["id"].clone();
        for path in [
            format!("/v1/messages/{message}"),
            format!("/v1/deliveries/{}", delivery_of(message)),
            format!("/v1/replays/{replay}"),
            format!("/v1/endpoints/{}", endpoint.as_str().expect("an id")),
        ] {
            for named in ["", uid] {
                let shown = given.get(named, &path).await;
                assert_eq!(shown.body["tenant"], Value::from(tenant.as_str()), "{path}: {}", shown.body);
            }
            let other = given.tenants.iter().find(|other| other[0] != *uid).expect("two of them");
            assert_eq!(given.get(&other[0], &path).await.problem(), (404, "not_found", ""), "{path}");
        }
    }
    given.locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn operator_routes_are_limited_to_the_named_tenant() {
    let given = Given::start().await;
    let [[acme, first, ..], [umbrella, second, ..]] = given.tenants.as_slice() else { panic!("two tenants") };
    let endpoint = given.get(umbrella, "/v1/endpoints").await.body["data"][0]["id"].clone();
    let endpoint = endpoint.as_str().expect("an id");
    given.post(umbrella, &format!("/v1/endpoints/{endpoint}/pause"), "").await.expect(StatusCode::OK);
    for id in [acme, umbrella] {
        given.post("", "/v1/pause", &format!(r#"{{"scope": "tenant", "id": "{id}"}}"#)).await.expect(StatusCode::OK);
    }
    let ids = async |tenant: &str, path: &str| given.texts(tenant, path, "id").await;
    assert_eq!(ids("", "/v1/pause").await, [first.as_str(), second, endpoint]);
    assert_eq!(ids(acme, "/v1/pause").await, std::slice::from_ref(first));
    assert_eq!(ids(umbrella, "/v1/pause").await, [second.as_str(), endpoint]);
    let page = given.get(umbrella, "/v1/pause?limit=1").await;
    let next = format!("/v1/pause?limit=1&cursor={}", page.text("next_cursor"));
    assert_eq!(ids(umbrella, &next).await, [endpoint]);
    assert_eq!(given.get("", &next).await.problem(), (400, "invalid_parameter", ""));

    assert_eq!(ids(acme, "/v1/tenants").await, std::slice::from_ref(first));
    assert_eq!(ids(acme, "/v1/tenants?uid=umbrella").await, Vec::<String>::new());
    assert!(ids("", "/v1/tenants").await.contains(second));
    let trail = given.get(acme, "/v1/audit?limit=250").await;
    let rows = trail.list();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["tenant"] == first.as_str()), "{rows:?}");
    let other = given.get(acme, "/v1/audit?tenant=umbrella").await;
    assert_eq!(other.problem(), (400, "invalid_parameter", ""));
    given.locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn an_operator_that_names_a_tenant_can_pause_only_that_tenant() {
    let given = Given::start().await;
    let acme = &given.tenants[0][0];
    for (body, pointer) in [
        (r#"{"scope": "all"}"#, "/scope"),
        (r#"{"scope": "origin", "id": "https://example.com"}"#, "/scope"),
        (r#"{"scope": "tenant", "id": "umbrella"}"#, "/id"),
    ] {
        for path in ["/v1/pause", "/v1/resume"] {
            assert_eq!(given.post(acme, path, body).await.problem(), (400, "invalid_body", pointer), "{path} {body}");
        }
    }
    assert_eq!(given.get("", "/v1/pause").await.body["data"], serde_json::json!([]));
    let own = r#"{"scope": "tenant", "id": "acme"}"#;
    assert_eq!(given.post(acme, "/v1/pause", own).await.status, StatusCode::OK);
    given.locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn every_write_of_an_operator_must_name_the_tenant() {
    let given = Given::start().await;
    let [acme, _, message, replay] = &given.tenants[0];
    let endpoint = given.get(acme, "/v1/endpoints").await.body["data"][0]["id"].clone();
    let endpoint = endpoint.as_str().expect("an id");
    let delivery = delivery_of(message);
    for path in [
        format!("/v1/messages/{message}/cancel"),
        format!("/v1/deliveries/{delivery}/retry"),
        format!("/v1/endpoints/{endpoint}/pause"),
        format!("/v1/endpoints/{endpoint}/enable"),
        format!("/v1/endpoints/{endpoint}/test"),
        format!("/v1/endpoints/{endpoint}/secret/rotate"),
        format!("/v1/replays/{replay}/pause"),
        format!("/v1/replays/{replay}/resume"),
        format!("/v1/replays/{replay}/cancel"),
    ] {
        let call = async |tenant: &str| {
            let whole = given.post(tenant, &path, "").await;
            (whole.status.as_u16(), whole.body["code"].as_str().unwrap_or_default().to_owned())
        };
        assert_eq!(call("").await, (400, "tenant_required".to_owned()), "{path}");
        assert_eq!(call("umbrella").await, (404, "not_found".to_owned()), "{path}");
        assert!([200, 202, 409].contains(&call(acme).await.0), "{path}");
    }
    given.locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn an_operator_must_name_the_tenant_of_a_uid() {
    let given = Given::start().await;
    let body = r#"{"url": "http://127.0.0.1:9999/", "uid": "crm"}"#;
    given.post("acme", "/v1/endpoints", body).await.expect(StatusCode::CREATED);
    for path in [
        "/v1/endpoints/crm",
        "/v1/endpoints/crm/secret",
        "/v1/deliveries?endpoint=crm",
        "/v1/dead-letters?endpoint=crm",
    ] {
        assert_eq!(given.get("", path).await.problem(), (400, "tenant_required", ""), "{path}");
        assert_eq!(given.get("acme", path).await.status, StatusCode::OK, "{path}");
        assert_eq!(given.get("umbrella", path).await.problem(), (404, "not_found", ""), "{path}");
    }
    given.locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn breakers_show_their_origin_and_are_limited_to_the_named_tenant() {
    let locked = Locked::start().await;
    let call = async |tenant: &str, method, path: &str, body: &str| {
        locked.call(&locked.operator, tenant, method, path, body).await
    };
    // Five endpoints that fail together open their origin's breaker, and one alone its own.
    for (tenant, port, endpoints, messages) in [("acme", 9_999, 5, 8), ("umbrella", 9_998, 1, 12)] {
        locked.tenant(tenant, "").await;
        for number in 0..endpoints {
            let body = format!(r#"{{"url": "http://127.0.0.1:{port}/", "uid": "crm-{number}"}}"#);
            assert_eq!(call(tenant, Method::POST, "/v1/endpoints", &body).await.status, StatusCode::CREATED);
        }
        for _ in 0..messages {
            call(tenant, Method::POST, "/v1/messages", r#"{"payload": 1}"#).await;
        }
    }
    let breakers = async |tenant: &str| {
        let row = |row: &Value| (row["of"].clone(), row["origin"].clone(), row["id"].as_str().unwrap_or("").to_owned());
        call(tenant, Method::GET, "/v1/breakers", "").await.list().iter().map(row).collect::<Vec<_>>()
    };
    while breakers("").await.len() < 2 {}
    let (own, shared) = (breakers("umbrella").await, breakers("acme").await);
    for (rows, of, origin) in
        [(&own, "endpoint", "http://127.0.0.1:9998"), (&shared, "origin", "http://127.0.0.1:9999")]
    {
        assert_eq!((rows.len(), &rows[0].0, &rows[0].1), (1, &of.into(), &origin.into()), "{rows:?}");
    }

    let reset = async |tenant: &str, id: &str| {
        call(tenant, Method::POST, &format!("/v1/breakers/{id}/reset"), r#"{"force": true}"#).await
    };
    for id in ["crm-0", &own[0].2] {
        assert_eq!(reset("acme", id).await.problem(), (404, "not_found", ""), "another's, or closed: {id}");
    }
    assert_eq!(reset("", "crm-0").await.problem(), (400, "tenant_required", ""));
    let done = reset("umbrella", "crm-0").await;
    assert_eq!((done.status, done.body["id"].as_str()), (StatusCode::OK, Some(own[0].2.as_str())));
    assert_eq!(reset("umbrella", &shared[0].2).await.problem(), (404, "not_found", ""));
    assert_eq!(reset("acme", &shared[0].2).await.status, StatusCode::OK);
    locked.server.stop().await.expect("it stops");
}

/// All entries of the audit trail that match a query, read page by page.
async fn trail(given: &Given, query: &str) -> Vec<Value> {
    given.locked.server.pages(&given.locked.operator, &format!("/v1/audit?limit=3&{query}")).await
}

#[tokio::test]
async fn the_audit_trail_is_filtered_by_tenant_kind_and_time() {
    let given = Given::start().await;
    let all = trail(&given, "order=asc").await;
    for [uid, id, ..] in &given.tenants {
        let expected: Vec<&Value> = all.iter().filter(|entry| entry["tenant"] == id.as_str()).collect();
        for kind in ["document", "endpoint", "accepted", "ended", "job"] {
            assert!(expected.iter().any(|entry| entry["kind"] == kind), "{kind}: {expected:?}");
        }
        for named in [uid, id] {
            let found = trail(&given, &format!("order=asc&tenant={named}")).await;
            assert_eq!(found.iter().collect::<Vec<_>>(), expected);
        }
        let found = trail(&given, &format!("tenant={uid}&kind=ended")).await;
        assert_eq!((found.len(), &found[0]["what"]), (1, &"dead: bad_request".into()));
    }
    for time in all.iter().map(|entry| entry["recorded_at"].as_str().expect("a time")) {
        let is_since = |entry: &&Value| entry["recorded_at"].as_str() >= Some(time);
        let (since, until): (Vec<&Value>, Vec<&Value>) = all.iter().partition(is_since);
        for (query, expected) in [(format!("since={time}"), since), (format!("until={time}"), until)] {
            let found = trail(&given, &format!("order=asc&{query}")).await;
            assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{query}");
            let newest = trail(&given, &query).await;
            assert_eq!(newest.len(), expected.len(), "{query}");
        }
    }
    assert_eq!(given.get("", "/v1/audit?tenant=unknown").await.problem(), (404, "not_found", ""));
    assert_eq!(given.get("", "/v1/audit?since=today").await.problem(), (400, "invalid_parameter", ""));
    let other = given.get("", "/v1/audit?limit=1").await;
    let path = format!("/v1/audit?limit=1&tenant=acme&cursor={}", other.text("next_cursor"));
    assert_eq!(given.get("", &path).await.problem(), (400, "invalid_parameter", ""));
    given.locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn a_master_key_without_a_keeper_is_not_rotated() {
    let server = Server::start().await;
    assert_eq!(server.get("/v1/master-key/rotation").await.body["under_way"], false);
    assert_eq!(server.post("/v1/master-key/rotation", "").await.problem(), (409, "no_newer_key", ""));
}
