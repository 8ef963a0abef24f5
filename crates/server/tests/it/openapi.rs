//! Checks that the server behaves as `/openapi.json` says.

use std::sync::LazyLock;

use http::{Method, StatusCode};
use posthaste_server::api::caller::Door;
use posthaste_server::openapi;
use serde_json::Value;

use crate::fixture::Server;

/// An operation's path with the parameter values `nothing`, which no object has as its id.
fn path(operation: &openapi::Operation) -> String {
    let parts = operation.path.split('/').map(|part| if part.starts_with('{') { "nothing" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn the_openapi_document_is_served() {
    let server = Server::start().await;
    let answer = server.get("/openapi.json").await.expect(StatusCode::OK);
    assert_eq!(answer.body["openapi"], "3.1.0");
    assert_eq!(answer.body, openapi::document());
}

#[tokio::test]
async fn every_route_needs_its_documented_scope() {
    let server = Server::behind(Door::Locked).await;
    let first = server.operator_key().await;
    let names = ["send", "read", "manage", "replay", "secrets", "privacy", "operate"];
    let mut without = Vec::new();
    for missing in names {
        let scopes: Vec<&str> = names.into_iter().filter(|name| *name != missing).collect();
        let body = serde_json::json!({ "scopes": scopes }).to_string();
        let made = server.call_as(&first, "", Method::POST, "/v1/keys", &body).await;
        without.push((missing, made.text("key").to_owned()));
    }
    for operation in openapi::operations() {
        let method: Method = operation.method.parse().expect("a method");
        let stranger = server.call_as("", "", method.clone(), &path(operation), "").await;
        let Some(scope) = operation.scope else {
            assert_ne!(stranger.status, StatusCode::UNAUTHORIZED, "{} needs no key", operation.path);
            continue;
        };
        assert_eq!(stranger.problem(), (401, "unauthorized", ""), "{method} {}", operation.path);
        let (_, key) = without.iter().find(|(missing, _)| *missing == scope).expect("a scope there is");
        let refused = server.call_as(key, "", method.clone(), &path(operation), "").await;
        assert_eq!(refused.problem(), (403, "scope_missing", ""), "{method} {}", operation.path);
        assert!(refused.text("detail").contains(scope), "{method} {}: {}", operation.path, refused.body);
    }
}

#[tokio::test]
async fn every_documented_parameter_is_known() {
    let server = Server::start().await;
    for operation in openapi::operations() {
        for parameter in operation.parameters() {
            let answer = server.get(&format!("{}?{}=1", path(operation), parameter.name)).await;
            let code = answer.body["code"].as_str().unwrap_or_default();
            assert_ne!(code, "unknown_parameter", "{}: {}", operation.path, parameter.name);
        }
    }
}

/// The places of an answer that differ from the document, as pointers.
pub(crate) fn undocumented(method: &Method, path: &str, status: StatusCode, body: &Value) -> Vec<String> {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(openapi::document);
    let document = &*DOCUMENT;
    let paths = document["paths"].as_object().into_iter().flatten();
    let Some((route, operations)) = paths.into_iter().find(|(route, _)| matches(route, path)) else {
        return Vec::new();
    };
    let answers = &operations[method.as_str().to_lowercase()]["responses"];
    let answer = &answers[status.as_str()];
    if answer.is_null() {
        // A client made from the document uses documented methods, declares JSON and sends it without delay.
        let is_other = [405, 408, 415].contains(&status.as_u16()) || body["code"] == "forbidden_origin";
        return if is_other { Vec::new() } else { vec![format!("{method} {route} answers {status}")] };
    }
    let mut found = Vec::new();
    let content = answer["content"].as_object().and_then(|content| content.values().next());
    if let Some(content) = content {
        compare(document, &content["schema"], body, &format!("{method} {route}"), &mut found);
    }
    found
}

/// Whether a path belongs to this route. A route with a literal segment takes precedence over one with a parameter.
fn matches(route: &str, path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    let (routes, parts): (Vec<&str>, Vec<&str>) = (route.split('/').collect(), path.split('/').collect());
    let fits = |(route, part): (&&str, &&str)| route == part || route.starts_with('{');
    let is_other = openapi::operations().any(|one| one.path == path) && route != path;
    !is_other && routes.len() == parts.len() && routes.iter().zip(&parts).all(fits)
}

fn compare(document: &Value, schema: &Value, value: &Value, at: &str, untold: &mut Vec<String>) {
    if let Some(named) = schema["$ref"].as_str() {
        let name = named.rsplit('/').next().unwrap_or_default();
        return compare(document, &document["components"]["schemas"][name], value, at, untold);
    }
    if let Some(either) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        let tried = either.iter().map(|schema| {
            let mut untold = Vec::new();
            compare(document, schema, value, at, &mut untold);
            untold
        });
        untold.extend(tried.min_by_key(Vec::len).unwrap_or_default());
        return;
    }
    match value {
        Value::Object(fields) => {
            let open = schema["additionalProperties"] != false;
            for (name, value) in fields {
                match schema["properties"].get(name) {
                    Some(schema) => compare(document, schema, value, &format!("{at}/{name}"), untold),
                    None if open => {}
                    None => untold.push(format!("{at}/{name}")),
                }
            }
            let needed = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            untold.extend(
                needed.filter(|name| !fields.contains_key(*name)).map(|name| format!("{at}/{name} is missing")),
            );
        }
        Value::Array(values) => {
            values.iter().for_each(|value| compare(document, &schema["items"], value, &format!("{at}/-"), untold));
        }
        Value::Null if schema.get("type").is_some_and(|kind| kind != "null" && !is_among(kind, "null")) => {
            untold.push(format!("{at} is null"));
        }
        Value::String(text)
            if schema["enum"].as_array().is_some_and(|words| !words.iter().any(|word| word == text)) =>
        {
            untold.push(format!("{at} is {text}"));
        }
        _ => {}
    }
}

fn is_among(kinds: &Value, kind: &str) -> bool {
    kinds.as_array().is_some_and(|kinds| kinds.iter().any(|one| one == kind))
}

#[test]
fn undocumented_and_missing_fields_are_found() {
    let found = |body: &str| undocumented(&Method::GET, "/healthz", StatusCode::OK, &body.parse().expect("JSON"));
    assert_eq!(found(r#"{"status": "ok"}"#), Vec::<String>::new());
    assert_eq!(found(r#"{"status": "ok", "more": 1}"#), ["GET /healthz/more"]);
    assert_eq!(found("{}"), ["GET /healthz/status is missing"]);
    assert_eq!(found(r#"{"status": null}"#), ["GET /healthz/status is null"]);
}
