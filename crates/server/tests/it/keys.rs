//! API keys: admission, scopes, and which tenants' objects each key sees.

use http::{Method, Request, StatusCode};
use http_body_util::Full;
use posthaste_server::api::ROUTES;
use posthaste_server::api::caller::Door;

use crate::fixture::{Answer, Server};

/// A server that needs keys, with its first operator key.
pub(crate) struct Locked {
    pub(crate) server: Server,
    pub(crate) operator: String,
}

impl Locked {
    pub(crate) async fn start() -> Self {
        let server = Server::behind(Door::Locked).await;
        let operator = server.operator_key().await;
        Self { server, operator }
    }

    pub(crate) async fn call(&self, key: &str, tenant: &str, method: Method, path: &str, body: &str) -> Answer {
        self.server.call_as(key, tenant, method, path, body).await
    }

    /// Posts with this API key and this idempotency key.
    async fn keyed(&self, key: &str, idempotency_key: &str, path: &str, body: &str) -> Answer {
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str()), ("idempotency-key", idempotency_key)];
        self.server.call_with(&headers, Method::POST, path, body).await
    }

    pub(crate) async fn operate(&self, method: Method, path: &str, body: &str) -> Answer {
        self.call(&self.operator, "", method, path, body).await
    }

    /// Creates a tenant and a key with this body; returns the tenant's id and the key.
    pub(crate) async fn tenant(&self, uid: &str, scopes: &str) -> (String, String) {
        let tenant = self.operate(Method::POST, "/v1/tenants", &format!(r#"{{"uid": "{uid}"}}"#)).await;
        let key = self.operate(Method::POST, &format!("/v1/tenants/{uid}/keys"), scopes).await;
        let made = |answer: Answer, field| answer.expect(StatusCode::CREATED).text(field).to_owned();
        (made(tenant, "id"), made(key, "key"))
    }

    pub(crate) async fn endpoint(&self, key: &str, tenant: &str) -> String {
        let made = self.call(key, tenant, Method::POST, "/v1/endpoints", r#"{"url": "http://127.0.0.1:9999/"}"#).await;
        made.expect(StatusCode::CREATED).text("id").to_owned()
    }
}

pub(crate) const PAYLOAD: &str = r#"{"payload": {"n": 1}}"#;

#[tokio::test]
async fn every_api_route_refuses_missing_unknown_and_malformed_keys() {
    let locked = Locked::start().await;
    let mut keys = vec![String::new(), "x".to_owned(), locked.operator.replace("ph_op_", "ph_tn_")];
    keys.push(format!("{}0", &locked.operator[..locked.operator.len() - 1]));
    for route in ROUTES.iter().filter(|route| route.path.starts_with("/v1")) {
        let path = route.path.replace(['{', '}'], "");
        for key in keys.iter().filter(|key| **key != locked.operator) {
            let method = Method::from_bytes(route.method.as_bytes()).expect("a method");
            let answer = locked.call(key, "", method, &path, "").await;
            assert_eq!(answer.problem(), (401, "unauthorized", ""), "{route:?}");
            assert_eq!(answer.headers["www-authenticate"], "Bearer");
        }
    }
    // A key that is not sent as bearer is refused with the right form.
    for sent in [locked.operator.clone(), "Basic cGg6eA==".to_owned(), format!("Bearer{}", locked.operator)] {
        let request = Request::get("/v1/endpoints").header("authorization", sent);
        let refused = locked.server.send(request.body(Full::from("")).expect("a request")).await;
        assert_eq!(refused.problem(), (401, "unauthorized", ""));
        assert!(refused.text("detail").contains("send your API key as Authorization: Bearer"), "{}", refused.body);
    }
    locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn a_cursor_of_keys_and_tenants_belongs_to_its_list() {
    let locked = Locked::start().await;
    for uid in ["ann", "bob"] {
        locked.tenant(uid, "").await;
        locked.operate(Method::POST, &format!("/v1/tenants/{uid}/keys"), "").await;
    }
    locked.operate(Method::POST, "/v1/keys", "").await;
    let lists = ["/v1/tenants", "/v1/keys", "/v1/tenants/ann/keys", "/v1/tenants/bob/keys"];
    for path in lists {
        let first = locked.operate(Method::GET, &format!("{path}?limit=1"), "").await;
        let cursor = first.text("next_cursor");
        assert!(cursor.starts_with("cur_"), "{cursor}");
        for other in lists {
            let answer = locked.operate(Method::GET, &format!("{other}?limit=1&cursor={cursor}"), "").await;
            if other == path {
                assert_ne!(answer.body["data"][0]["id"], first.body["data"][0]["id"]);
            } else {
                assert_eq!(answer.problem(), (400, "invalid_parameter", ""), "{path}'s in {other}");
            }
        }
        let turned = locked.operate(Method::GET, &format!("{path}?limit=1&order=asc&cursor={cursor}"), "").await;
        assert_eq!(turned.problem(), (400, "invalid_parameter", ""));
    }
    locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn a_missing_scope_is_named() {
    let locked = Locked::start().await;
    let (_, reader) = locked.tenant("acme", r#"{"scopes": ["read"]}"#).await;
    for (method, path, scope) in [
        (Method::POST, "/v1/messages", "send"),
        (Method::POST, "/v1/endpoints", "manage"),
        (Method::POST, "/v1/messages/x/cancel", "replay"),
        (Method::GET, "/v1/tenants/acme/keys", "secrets"),
        (Method::GET, "/v1/tenants", "operate"),
        (Method::POST, "/v1/pause", "operate"),
    ] {
        let answer = locked.call(&reader, "", method, path, PAYLOAD).await;
        assert_eq!(answer.problem().1, "scope_missing", "{path}");
        assert!(answer.text("detail").contains(scope), "{}", answer.body);
    }
    assert_eq!(locked.call(&reader, "", Method::GET, "/v1/endpoints", "").await.status, StatusCode::OK);
    let refused = locked.operate(Method::POST, "/v1/tenants/acme/keys", r#"{"scopes": ["operate"]}"#).await;
    assert_eq!(refused.problem(), (400, "invalid_body", "/scopes"));
    locked.server.stop().await.expect("it stops");
}

/// The scopes that a new key gets, or those that its maker lacks.
type Granted<'a> = Result<&'a [&'a str], &'a str>;

#[tokio::test]
async fn a_key_cannot_grant_more_scopes_than_its_own() {
    let locked = Locked::start().await;
    let (_, key) = locked.tenant("acme", r#"{"scopes": ["send", "secrets"]}"#).await;
    let operator = async |scopes: &str| {
        let made = locked.operate(Method::POST, "/v1/keys", &format!(r#"{{"scopes": {scopes}}}"#)).await;
        made.text("key").to_owned()
    };
    let (operates, both) = (operator(r#"["operate"]"#).await, operator(r#"["read", "secrets", "operate"]"#).await);
    let (operators, tenants) = ("/v1/keys", "/v1/tenants/acme/keys");
    let send = r#"{"scopes": ["send"]}"#;
    let all = ["send", "read", "manage", "replay", "secrets", "privacy"];
    let cases: [(&str, &str, &str, Granted<'_>); 9] = [
        (&key, tenants, "{}", Ok(&["send", "secrets"])),
        (&key, tenants, "", Ok(&["send", "secrets"])),
        (&key, tenants, send, Ok(&["send"])),
        (&key, tenants, r#"{"scopes": ["send", "read", "privacy"]}"#, Err("read, privacy")),
        (&operates, operators, "{}", Ok(&["operate"])),
        (&operates, operators, send, Err("send")),
        (&both, tenants, "{}", Ok(&["read", "secrets"])),
        (&both, tenants, send, Err("send")),
        (&locked.operator, tenants, "{}", Ok(&all)),
    ];
    for (key, path, body, expected) in cases {
        let made = locked.call(key, "", Method::POST, path, body).await;
        match expected {
            Ok(scopes) => {
                assert_eq!(made.expect(StatusCode::CREATED).body["scopes"], serde_json::json!(scopes), "{path} {body}");
            }
            Err(missing) => {
                assert_eq!(made.problem(), (403, "scope_missing", ""), "{path} {body}");
                assert!(made.text("detail").contains(missing), "{path} {body}: {}", made.body);
            }
        }
    }
    locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn a_key_cannot_create_one_that_outlasts_it() {
    let locked = Locked::start().await;
    let (_, key) = locked.tenant("acme", r#"{"expires_at": "2099-01-01T00:00:00Z"}"#).await;
    let make = async |body: &str| locked.call(&key, "", Method::POST, "/v1/tenants/acme/keys", body).await;
    assert_eq!(make("{}").await.text("expires_at"), "2099-01-01T00:00:00.000Z");
    let earlier = make(r#"{"expires_at": "2098-01-01T00:00:00Z"}"#).await;
    assert_eq!(earlier.text("expires_at"), "2098-01-01T00:00:00.000Z");
    let later = make(r#"{"expires_at": "2099-01-01T00:00:01Z"}"#).await;
    assert_eq!(later.problem(), (403, "scope_missing", ""));
    assert!(later.text("detail").contains("2099-01-01T00:00:00.000Z"), "{}", later.body);
    locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn a_repeated_request_shows_a_new_key_only_to_its_creator() {
    let locked = Locked::start().await;
    let (_, whole) = locked.tenant("acme", "").await;
    let few = locked.operate(Method::POST, "/v1/tenants/acme/keys", r#"{"scopes": ["secrets"]}"#).await;
    let make = async |key: &str| locked.keyed(key, "k", "/v1/tenants/acme/keys", "{}").await;
    let first = make(&whole).await.expect(StatusCode::CREATED);
    assert_eq!(make(&whole).await.raw, first.raw);
    assert_eq!(make(few.text("key")).await.problem(), (422, "idempotency_key_reused", ""));
    locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn an_operator_names_a_tenant_to_write_and_reads_all_tenants() {
    let locked = Locked::start().await;
    let (id, key) = locked.tenant("acme", "").await;
    let without = locked.operate(Method::POST, "/v1/messages", PAYLOAD).await;
    assert_eq!(without.problem(), (400, "tenant_required", ""));
    let unknown = locked.call(&locked.operator, "unknown", Method::POST, "/v1/messages", PAYLOAD).await;
    assert_eq!(unknown.problem(), (404, "not_found", ""));
    for named in ["acme", id.as_str()] {
        let sent = locked.call(&locked.operator, named, Method::POST, "/v1/messages", PAYLOAD).await;
        let path = format!("/v1/messages/{}", sent.expect(StatusCode::ACCEPTED).text("id"));
        for (caller, tenant) in [(&locked.operator, ""), (&locked.operator, "acme"), (&key, ""), (&key, "acme")] {
            assert_eq!(locked.call(caller, tenant, Method::GET, &path, "").await.status, StatusCode::OK);
        }
    }
    locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn endpoint_urls_and_headers_are_hidden_from_operators() {
    let locked = Locked::start().await;
    let (_, key) = locked.tenant("acme", "").await;
    let body = r#"{"url": "https://example.com/hook?token=canary", "headers": {"x-key": "canary"}, "uid": "crm"}"#;
    let made = locked.call(&key, "", Method::POST, "/v1/endpoints", body).await;
    let one = format!("/v1/endpoints/{}", made.text("id"));
    let own = locked.call(&key, "", Method::GET, &one, "").await;
    assert_eq!(own.text("url"), "https://example.com/hook?token=canary");
    assert_eq!(own.body["headers"]["x-key"], "canary");
    for (tenant, path) in
        [("", one.as_str()), ("acme", "/v1/endpoints/crm"), ("", "/v1/endpoints"), ("acme", "/v1/endpoints")]
    {
        let seen = locked.call(&locked.operator, tenant, Method::GET, path, "").await.expect(StatusCode::OK);
        let text = seen.body.to_string();
        assert!(text.contains("https://example.com/…") && !text.contains("canary"), "{path}: {text}");
    }
    let unnamed = locked.operate(Method::PATCH, &one, "{}").await;
    assert_eq!(unnamed.problem(), (400, "tenant_required", ""));
    locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn another_tenant_s_objects_are_answered_like_unknown_ones() {
    let locked = Locked::start().await;
    let (_, ann) = locked.tenant("ann", "").await;
    let (bob_id, bob) = locked.tenant("bob", "").await;
    let endpoint = locked.endpoint(&ann, "").await;
    let sent = locked.call(&ann, "", Method::POST, "/v1/messages", PAYLOAD).await;
    let message = sent.text("id").to_owned();
    let delivery = crate::fixture::delivery_of(&message);
    for (method, path) in [
        (Method::GET, format!("/v1/messages/{message}")),
        (Method::POST, format!("/v1/messages/{message}/cancel")),
        (Method::GET, format!("/v1/deliveries/{delivery}")),
        (Method::GET, format!("/v1/endpoints/{endpoint}")),
        (Method::POST, format!("/v1/endpoints/{endpoint}/pause")),
        (Method::POST, format!("/v1/endpoints/{endpoint}/enable")),
        (Method::GET, "/v1/tenants/ann/keys".to_owned()),
    ] {
        let answer = locked.call(&bob, "", method.clone(), &path, "").await;
        assert_eq!(answer.problem().0, 404, "{path}");
        let random = path.replace(&message, "msg_x").replace(&delivery, "dlv_x").replace(&endpoint, "ep_x");
        let never = locked.call(&bob, "", method, &random.replace("ann", "never"), "").await;
        assert_eq!(answer.body, never.body, "{path}");
    }
    let listed = locked.call(&bob, "", Method::GET, "/v1/endpoints", "").await;
    assert!(listed.list().is_empty(), "{}", listed.body);
    let body = format!(r#"{{"payload": 1, "to": {{"endpoints": ["{endpoint}"]}}}}"#);
    assert_eq!(locked.call(&bob, "", Method::POST, "/v1/messages", &body).await.problem().1, "endpoint_unknown");
    for named in ["ann", "never"] {
        let answer = locked.call(&bob, named, Method::GET, "/v1/endpoints", "").await;
        assert_eq!(answer.problem(), (404, "not_found", ""), "{named}");
    }
    assert_eq!(locked.call(&bob, &bob_id, Method::GET, "/v1/endpoints", "").await.status, StatusCode::OK);
    locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn a_revoked_key_is_refused() {
    let locked = Locked::start().await;
    let (_, key) = locked.tenant("acme", r#"{"description": "the shop's"}"#).await;
    assert_eq!(locked.call(&key, "", Method::GET, "/v1/endpoints", "").await.status, StatusCode::OK);
    let listed = locked.operate(Method::GET, "/v1/tenants/acme/keys", "").await;
    let shown = &listed.body["data"][0];
    assert_eq!(shown["description"], "the shop's");
    assert_eq!(shown["prefix"], key[..14]);
    assert!(!listed.body.to_string().contains(&key), "a key is shown once");
    let path = format!("/v1/tenants/acme/keys/{}", shown["id"].as_str().expect("an id"));
    assert_eq!(locked.operate(Method::DELETE, &path, "").await.status, StatusCode::NO_CONTENT);
    assert_eq!(locked.call(&key, "", Method::GET, "/v1/endpoints", "").await.problem().1, "unauthorized");
    assert_eq!(locked.operate(Method::DELETE, &path, "").await.problem(), (404, "not_found", ""));
    let no_text = locked.operate(Method::DELETE, "/v1/tenants/acme/keys/%ff", "").await;
    assert_eq!(no_text.problem(), (404, "not_found", ""));
    let operators = locked.operate(Method::GET, "/v1/keys", "").await;
    let own = operators.body["data"][0]["id"].as_str().expect("an id").to_owned();
    let other = locked.operate(Method::DELETE, &format!("/v1/tenants/acme/keys/{own}"), "").await;
    assert_eq!(other.problem(), (404, "not_found", ""), "an operator key is not among a tenant's");
    assert_eq!(locked.operate(Method::DELETE, &format!("/v1/keys/{own}"), "").await.status, StatusCode::NO_CONTENT);
    assert_eq!(locked.operate(Method::GET, "/v1/keys", "").await.problem().1, "unauthorized");
    locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn requests_with_an_idempotency_key_create_once() {
    let locked = Locked::start().await;
    let (_, key) = locked.tenant("acme", "").await;
    for (path, body, other) in [
        ("/v1/tenants", r#"{"uid": "twin"}"#, r#"{"uid": "other"}"#),
        ("/v1/keys", r#"{"description": "a"}"#, r#"{"description": "b"}"#),
        ("/v1/tenants/acme/keys", r#"{"description": "a"}"#, r#"{"description": "b"}"#),
        ("/v1/endpoints", r#"{"url": "http://127.0.0.1:9999/a"}"#, r#"{"url": "http://127.0.0.1:9999/b"}"#),
        ("/v1/replays", r#"{"select": {}}"#, r#"{"select": {"tier": 1}}"#),
    ] {
        let caller = if matches!(path, "/v1/endpoints" | "/v1/replays") { &key } else { &locked.operator };
        let send = async |body: &str| locked.keyed(caller, path, path, body).await;
        let first = send(body).await;
        let expected = if path == "/v1/replays" { StatusCode::ACCEPTED } else { StatusCode::CREATED };
        assert_eq!(first.status, expected, "{path}: {}", first.body);
        let again = send(body).await;
        assert_eq!((again.status, &again.raw), (expected, &first.raw), "{path}");
        assert_eq!(again.headers["idempotency-replayed"], "true");
        assert_eq!(send(other).await.problem(), (422, "idempotency_key_reused", ""), "{path}");
    }
    locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn a_tenant_s_policy_hides_the_operator_s_of_the_same_name() {
    let locked = Locked::start().await;
    let (_, ann) = locked.tenant("ann", "").await;
    let (_, bob) = locked.tenant("bob", "").await;
    let path = "/v1/policies/house";
    let put = locked.operate(Method::PUT, path, r#"{"delays": ["1s"]}"#).await;
    assert_eq!((put.status, put.text("owner")), (StatusCode::OK, "operator"), "{}", put.body);
    // With Posthaste-Tenant, an operator puts that tenant's policy.
    let hides = locked.call(&locked.operator, "ann", Method::PUT, path, r#"{"delays": ["2s"]}"#).await;
    assert_eq!(hides.text("owner"), "tenant");
    for (key, owner, delay) in [(&ann, "tenant", "2s"), (&bob, "operator", "1s"), (&locked.operator, "operator", "1s")]
    {
        let seen = locked.call(key, "", Method::GET, path, "").await;
        assert_eq!((seen.text("owner"), &seen.body["delays"][0]), (owner, &delay.into()));
        let list = locked.call(key, "", Method::GET, "/v1/policies", "").await;
        let named = list.list().iter().filter(|one| one["name"] == "house");
        assert_eq!(named.map(|one| &one["owner"]).collect::<Vec<_>>(), [owner], "it is listed once");
    }
    let not_bobs = locked.call(&bob, "", Method::DELETE, path, "").await;
    assert_eq!(not_bobs.problem(), (404, "not_found", ""), "a tenant cannot delete the operator's");
    let url = r#"{"url": "https://example.com/", "policy": "house"}"#;
    assert_eq!(locked.call(&bob, "", Method::POST, "/v1/endpoints", url).await.status, StatusCode::CREATED);
    let in_use = locked.operate(Method::DELETE, path, "").await;
    assert_eq!(in_use.problem(), (409, "policy_in_use", ""));
    assert!(in_use.text("detail").contains("of the tenant bob"), "{}", in_use.body);
    let audit = locked.operate(Method::GET, "/v1/audit", "").await;
    let made = audit.list().iter().filter(|one| one["what"] == "policy made").count();
    assert_eq!(made, 2, "{}", audit.body);
    locked.server.stop().await.expect("it stops");
}
