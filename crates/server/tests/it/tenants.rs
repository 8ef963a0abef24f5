//! Tenants over the API: their settings, quotas and erasure.

use http::{Method, StatusCode};
use posthaste_server::api::caller::Door;
use serde_json::{Value, json};

use crate::fixture::Server;
use crate::keys::{Locked, PAYLOAD};

#[tokio::test]
async fn tenants_are_made_changed_and_listed() {
    let locked = Locked::start().await;
    let body = r#"{"uid": "acme", "weight": 2.5, "quota": {"per_second": 10}, "policy": "backend"}"#;
    let made = locked.operate(Method::POST, "/v1/tenants", body).await.expect(StatusCode::CREATED);
    assert_eq!(made.body["quota"]["burst"], 10);
    assert_eq!(locked.operate(Method::POST, "/v1/tenants", body).await.problem(), (409, "name_taken", ""));
    for (bad, pointer) in [
        (r#"{"weight": 0}"#, "/weight"),
        (r#"{"quota": {"per_second": 0}}"#, "/quota/per_second"),
        (r#"{"policy": "bakend"}"#, "/policy"),
        (r#"{"uid": "a b"}"#, "/uid"),
        (r#"{"uid": "tn_acme"}"#, "/uid"),
        (r#"{"wieght": 1}"#, "/wieght"),
        (r#"{"quota": {"burst": 2}}"#, "/quota/per_second"),
        (r#"{"quota": {"pending": 0}}"#, "/quota/pending"),
        (r#"{"time_zone": "Europe/Berln"}"#, "/time_zone"),
        (r#"{"off_peak": {"from": "20:00"}}"#, "/off_peak/to"),
        (r#"{"off_peak": {"from": "24:00", "to": "07:00"}}"#, "/off_peak/from"),
        (r#"{"off_peak": {"from": "7:00", "to": "+9:00"}}"#, "/off_peak/from"),
        (r#"{"off_peak": {"from": "07:00", "to": "07:00"}}"#, "/off_peak/to"),
        (r#"{"off_peak": "at night"}"#, "/off_peak"),
        (r#"{"region": "the moon"}"#, "/region"),
    ] {
        let answer = locked.operate(Method::POST, "/v1/tenants", bad).await;
        assert_eq!(answer.problem(), (400, "invalid_body", pointer), "{bad}");
    }
    let changed = locked.operate(Method::PATCH, "/v1/tenants/acme", r#"{"uid": "acme-2", "quota": null}"#).await;
    assert_eq!((changed.text("uid"), &changed.body["weight"]), ("acme-2", &json!(2.5)));
    assert!(changed.body["quota"].is_null());
    assert_eq!(locked.operate(Method::GET, "/v1/tenants/acme", "").await.problem().0, 404);
    let shown = locked.operate(Method::GET, "/v1/tenants/acme-2", "").await;
    assert_eq!(shown.body, changed.body);
    locked.operate(Method::POST, "/v1/tenants", r#"{"uid": "other"}"#).await;
    let first = locked.operate(Method::GET, "/v1/tenants?limit=1", "").await;
    assert_eq!(first.body["data"][0]["uid"], "other", "newest first");
    let next = first.text("next_cursor");
    assert!(first.headers["link"].to_str().expect("a text").contains(next));
    let second = locked.operate(Method::GET, &format!("/v1/tenants?limit=1&cursor={next}"), "").await;
    assert_eq!((&second.body["data"][0], &second.body["next_cursor"]), (&shown.body, &Value::Null));
    locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn concurrent_changes_of_a_tenant_are_all_kept() {
    let server = Server::on_disk(Door::Open).await;
    let path = "/v1/tenants/default";
    assert_eq!(server.get("/v1/endpoints").await.status, StatusCode::OK, "the tenant is created when it is needed");
    let patch = async |body: &str| {
        server.call(Method::PATCH, path, body).await.expect(StatusCode::OK);
    };
    for weight in 2..10 {
        let (region, retention) = (format!("region-{weight}"), format!("{}d", 10 + weight));
        let weight_change = format!(r#"{{"weight": {weight}}}"#);
        let region_change = format!(r#"{{"region": "{region}"}}"#);
        let retention_change = format!(r#"{{"retention": {{"payload": "{retention}"}}}}"#);
        tokio::join!(patch(&weight_change), patch(&region_change), patch(&retention_change));
        let shown = server.get(path).await;
        assert_eq!(shown.body["weight"].as_f64(), Some(f64::from(weight)));
        assert_eq!((shown.text("region"), &shown.body["retention"]["payload"]), (region.as_str(), &retention.into()));
    }
    server.stop().await.expect("it stops");
}

#[tokio::test]
async fn tenant_settings_are_kept_until_they_are_cleared() {
    let locked = Locked::start().await;
    let body = r#"{"uid": "acme", "quota": {"per_second": 10, "burst": 20, "pending": 1000},
        "time_zone": "Europe/Berlin", "off_peak": {"from": "20:00", "to": "07:05"}, "region": "eu",
        "retention": {"payload": "2d", "history": "90d"}}"#;
    let made = locked.operate(Method::POST, "/v1/tenants", body).await;
    let settings: Value = serde_json::from_str(body).expect("JSON");
    for (field, value) in settings.as_object().expect("an object") {
        assert_eq!(&made.body[field], value, "{field}");
    }
    let weighed = locked.operate(Method::PATCH, "/v1/tenants/acme", r#"{"weight": 2}"#).await;
    for field in ["quota", "time_zone", "off_peak", "region", "retention"] {
        assert_eq!(weighed.body[field], made.body[field], "{field}");
        let without = locked.operate(Method::PATCH, "/v1/tenants/acme", &format!(r#"{{"{field}": null}}"#)).await;
        assert!(without.body[field].is_null(), "{field}: {}", without.body);
    }
    let one = locked.operate(Method::PATCH, "/v1/tenants/acme", r#"{"quota": {"pending": 5}}"#).await;
    assert_eq!(one.body["quota"], json!({"per_second": null, "burst": null, "pending": 5}));
    for later in ["sla", "operational_endpoint"] {
        let refused = locked.operate(Method::PATCH, "/v1/tenants/acme", &format!(r#"{{"{later}": {{}}}}"#)).await;
        assert_eq!(refused.problem(), (400, "not_built_yet", format!("/{later}").as_str()));
    }
    locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn a_tenant_key_sees_its_tenant_and_changes_only_some_fields() {
    let locked = Locked::start().await;
    let (id, key) = locked.tenant("acme", "").await;
    let (other, _) = locked.tenant("umbrella", "").await;
    let agreed = locked.operate(Method::PATCH, "/v1/tenants/acme", r#"{"quota": {"pending": 5}, "weight": 2}"#).await;
    let unknown = locked.operate(Method::GET, "/v1/tenants/unknown", "").await;
    for named in ["acme", &id] {
        let path = format!("/v1/tenants/{named}");
        assert_eq!(locked.call(&key, "", Method::GET, &path, "").await.body, agreed.body);
        let own =
            r#"{"policy": "backend", "time_zone": "Europe/Berlin", "off_peak": {"from": "20:00", "to": "07:00"}}"#;
        let changed = locked.call(&key, "", Method::PATCH, &path, own).await;
        assert_eq!((changed.text("policy"), &changed.body["quota"]), ("backend", &agreed.body["quota"]));
        for agreed in [r#"{"quota": null}"#, r#"{"weight": 9}"#, r#"{"region": "eu"}"#, r#"{"retention": null}"#] {
            let refused = locked.call(&key, "", Method::PATCH, &path, agreed).await;
            assert_eq!(refused.problem(), (403, "scope_missing", ""), "{agreed}");
        }
        let nothing = r#"{"policy": null, "time_zone": null, "off_peak": null}"#;
        assert_eq!(locked.call(&key, "", Method::PATCH, &path, nothing).await.body, agreed.body);
    }
    for named in ["umbrella", &other] {
        for method in [Method::GET, Method::PATCH] {
            let refused = locked.call(&key, "", method, &format!("/v1/tenants/{named}"), "{}").await;
            assert_eq!(refused.raw, unknown.raw, "the same answer as for an unknown tenant");
        }
    }
    let (_, reads) = locked.tenant("sees", r#"{"scopes": ["read"]}"#).await;
    assert_eq!(locked.call(&reads, "", Method::GET, "/v1/tenants/sees", "").await.status, StatusCode::OK);
    let refused = locked.call(&reads, "", Method::PATCH, "/v1/tenants/sees", "{}").await;
    assert_eq!(refused.problem(), (403, "scope_missing", ""));
    let refused = locked.call(&key, "", Method::DELETE, "/v1/tenants/acme", "").await;
    assert_eq!(refused.problem(), (403, "scope_missing", ""));
    locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn a_tenant_s_retention_is_checked_against_its_bounds() {
    let locked = Locked::start().await;
    locked.operate(Method::POST, "/v1/tenants", r#"{"uid": "acme"}"#).await;
    for (retention, at) in [
        (r#"{"payload": "59m"}"#, "/retention/payload"),
        (r#"{"payload": "forever"}"#, "/retention/payload"),
        (r#"{"history": "3651d"}"#, "/retention/history"),
        (r#"{"history": "401d"}"#, "/retention/history"),
        (r#"{"history": "6d"}"#, "/retention/history"),
        (r#"{"payload": "31d"}"#, "/retention/payload"),
        (r#"{"payload": "8d", "history": "7d"}"#, "/retention/payload"),
        (r#"{"audit": "8d"}"#, "/retention/audit"),
        (r#""7d""#, "/retention"),
    ] {
        let body = format!(r#"{{"retention": {retention}}}"#);
        let refused = locked.operate(Method::PATCH, "/v1/tenants/acme", &body).await;
        assert_eq!(refused.problem().2, at, "{retention}: {}", refused.body);
    }
    for (retention, shown) in [
        (r#"{"payload": "1h"}"#, json!({"payload": "1h", "history": null})),
        (r#"{"history": "400d"}"#, json!({"payload": null, "history": "400d"})),
        (r#"{"payload": "24h", "history": "1d"}"#, json!({"payload": "1d", "history": "1d"})),
        (r#"{}"#, Value::Null),
    ] {
        let body = format!(r#"{{"retention": {retention}}}"#);
        let changed = locked.operate(Method::PATCH, "/v1/tenants/acme", &body).await;
        assert_eq!(changed.body["retention"], shown, "{}", changed.body);
        let again = locked.operate(Method::GET, "/v1/tenants/acme", "").await;
        assert_eq!(again.body["retention"], shown);
    }
    locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn messages_beyond_the_pending_quota_are_refused_with_retry_after() {
    let locked = Locked::start().await;
    let (_, key) = locked.tenant("acme", "").await;
    let quota = r#"{"quota": {"pending": 2}}"#;
    assert_eq!(locked.operate(Method::PATCH, "/v1/tenants/acme", quota).await.status, StatusCode::OK);
    for _ in 0..5 {
        let sent = locked.call(&key, "", Method::POST, "/v1/messages", PAYLOAD).await;
        assert_eq!((sent.status, &sent.body["deliveries"]), (StatusCode::ACCEPTED, &0.into()), "no endpoint wants it");
    }
    locked.call(&key, "", Method::POST, "/v1/endpoints", r#"{"url": "http://127.0.0.1:9999/hook"}"#).await;
    for _ in 0..2 {
        locked.call(&key, "", Method::POST, "/v1/messages", PAYLOAD).await.expect(StatusCode::ACCEPTED);
    }
    let refused = locked.call(&key, "", Method::POST, "/v1/messages", PAYLOAD).await;
    assert_eq!(refused.problem(), (429, "quota_exceeded", ""));
    assert_eq!(refused.headers["retry-after"], "5");
    assert!(refused.text("detail").starts_with("2 deliveries of this tenant are pending"), "{}", refused.body);
    locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn messages_beyond_the_rate_quota_are_refused_with_retry_after() {
    let locked = Locked::start().await;
    let (_, key) = locked.tenant("acme", "").await;
    let quota = r#"{"quota": {"per_second": 1, "burst": 2}}"#;
    assert_eq!(locked.operate(Method::PATCH, "/v1/tenants/acme", quota).await.status, StatusCode::OK);
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let answer = locked.call(&key, "", Method::POST, "/v1/messages", PAYLOAD).await;
        if answer.status == StatusCode::TOO_MANY_REQUESTS {
            assert_eq!(answer.headers["retry-after"], "1");
        } else {
            assert_eq!(answer.headers["ratelimit-policy"], "\"messages\";q=2;w=2");
            let left = answer.headers["ratelimit"].to_str().expect("text");
            assert!(["\"messages\";r=1;t=1", "\"messages\";r=0;t=2"].contains(&left), "{left}");
        }
        statuses.push(answer.status.as_u16());
    }
    assert_eq!(&statuses[..2], [202, 202]);
    assert!(statuses[2..].contains(&429), "{statuses:?}");
    locked.server.stop().await.expect("it stops");
}

#[tokio::test]
async fn an_erased_tenant_is_not_found_and_its_keys_are_refused() {
    let locked = Locked::start().await;
    let (_, key) = locked.tenant("acme", "").await;
    let endpoint = locked.endpoint(&key, "").await;
    let sent = locked.call(&key, "", Method::POST, "/v1/messages", PAYLOAD).await;
    let erased = locked.operate(Method::DELETE, "/v1/tenants/acme", "").await.expect(StatusCode::OK);
    assert!(erased.body["audit_row"].as_u64().is_some_and(|row| row > 0), "{}", erased.body);
    let audit = locked.operate(Method::GET, "/v1/audit?kind=erased", "").await;
    let entry = &audit.body["data"][0];
    assert_eq!((&entry["row"], &entry["what"]), (&erased.body["audit_row"], &"the tenant".into()), "{}", audit.body);
    assert!(entry["by"].as_str().is_some_and(|by| by.starts_with("key_")), "{}", audit.body);
    assert_eq!(locked.call(&key, "", Method::GET, "/v1/endpoints", "").await.problem().1, "unauthorized");
    for path in [
        format!("/v1/messages/{}", sent.text("id")),
        format!("/v1/endpoints/{endpoint}"),
        "/v1/tenants/acme".to_owned(),
        "/v1/tenants/acme/keys".to_owned(),
    ] {
        assert_eq!(locked.operate(Method::GET, &path, "").await.problem().0, 404, "{path}");
    }
    locked.tenant("acme", "").await;
    locked.server.stop().await.expect("it stops");
}
