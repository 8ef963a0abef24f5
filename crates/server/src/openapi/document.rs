//! Builds the OpenAPI document from the documentation of each route.
//!
//! Read [`shape`](super::shape) next for the JSON Schema of bodies.

use std::collections::BTreeMap;

use posthaste_core::Why;
use posthaste_core::state::Phase;
use serde_json::{Map, Value, json};

use super::Operation;
use super::shape::{Field, Presence, Shape, need, null, object};
use crate::problem::Code;

const DESCRIPTION: &str = "Accepts messages and delivers them to webhook endpoints. A message is on disk before it is \
    answered with 202. Times are RFC 3339 in UTC. Durations are text such as \"500ms\", \"30s\", \"2h\" or \"7d\", or \
    whole seconds. Every answer has a request-id header. An unknown field or parameter is refused, and the refusal \
    names it.";

const COMPLAINT: Shape = Shape::Object(&[
    need("pointer", Shape::Text, "the place in the body, as a JSON pointer"),
    need("detail", Shape::Text, "what is wrong, and what to do"),
]);

/// The document of these operations, by the file that documents them: its name is their tag.
pub(super) fn of(by_file: &[(&'static str, &'static [Operation])]) -> Value {
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    let mut schemas: BTreeMap<&str, Value> = BTreeMap::new();
    for (file, operations) in by_file {
        for one in *operations {
            paths.entry(one.path).or_default().insert(one.method.to_lowercase(), operation(file, one));
            let bodies = one.answers.iter().filter_map(|answer| answer.body.map(|(shape, _)| shape));
            for shape in bodies.chain(one.takes.map(|body| body.shape)) {
                shape.each_named(&mut |name, fields| drop(schemas.insert(name, object(fields))));
            }
        }
    }
    schemas.insert("Problem", problem());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Posthaste",
            "version": env!("CARGO_PKG_VERSION"),
            "description": DESCRIPTION,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {
                "Problem": {
                    "description": "The request was refused. detail says why, and what to do.",
                    "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
                },
                "Later": {
                    "description": "The request was refused for now. Send it again after Retry-After.",
                    "headers": {
                        "Retry-After": { "description": "seconds to wait", "schema": { "type": "integer", "minimum": 0 } },
                    },
                    "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
                },
            },
            "securitySchemes": {
                "key": { "type": "http", "scheme": "bearer", "description": "an operator key (ph_op_…) or a tenant key (ph_tn_…)" },
            },
        },
        "security": [{ "key": [] }],
        "tags": by_file.iter().map(|(file, _)| json!({ "name": file.replace('_', "-") })).collect::<Vec<_>>(),
    })
}

fn problem() -> Value {
    let mut problem = object(&[
        need("type", Shape::Text, "the code as a URI"),
        need("title", Shape::Text, "what the code means"),
        need("status", Shape::Whole, "the HTTP status"),
        need("detail", Shape::Text, "what is wrong, and what to do"),
        need("code", Shape::Text, "a stable code for programs; it never changes"),
        super::shape::may("errors", Shape::List(&COMPLAINT), "the first 20 faults of the body"),
    ]);
    problem["properties"]["code"]["enum"] = Code::ALL.iter().map(|code| code.name()).collect();
    problem
}

fn operation(file: &str, one: &Operation) -> Value {
    let mut described = json!({
        "operationId": operation_id(one),
        "summary": one.summary,
        "tags": [file.replace('_', "-")],
        "parameters": parameters(one),
        "responses": responses(one),
    });
    match one.scope {
        Some(scope) => {
            let own = one.own_scope.map(|own| format!("; for its own tenant, a tenant key needs `{own}` instead"));
            let own = own.unwrap_or_default();
            described["description"] = json!(format!("Needs a key with the scope `{scope}`{own}."));
        }
        None => described["security"] = json!([]),
    }
    if let Some(body) = one.takes {
        described["requestBody"] = json!({
            "required": !body.is_optional,
            "content": { body.media_type: { "schema": body.shape.schema() } },
        });
    }
    described
}

/// `POST /v1/tenants/{t}/keys` is `post_tenants_t_keys`.
fn operation_id(one: &Operation) -> String {
    let words = one.path.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let path: Vec<&str> = words.filter(|word| *word != "v1").collect();
    format!("{}_{}", one.method.to_lowercase(), path.join("_"))
}

fn parameters(one: &Operation) -> Vec<Value> {
    let named = one.path.split('{').skip(1).filter_map(|behind| behind.split('}').next());
    let mut parameters: Vec<Value> =
        named.map(|name| parameter("path", &need(name, Shape::Text, "the id or name, percent-encoded"))).collect();
    parameters.extend(one.parameters.iter().map(|field| parameter("query", field)));
    // Routes for operators alone are about all tenants unless the header names one.
    let says = match one.scope {
        Some("operate") if NARROWED.iter().any(|path| one.path.starts_with(path)) => {
            Some("limits the request to this tenant, by id or uid; all tenants by default")
        }
        Some("operate") | None => None,
        Some(_) => Some("the tenant that the request is about, by id or uid; required for writes with an operator key"),
    };
    if let Some(says) = says {
        parameters.push(parameter("header", &super::shape::may("Posthaste-Tenant", Shape::Text, says)));
    }
    if one.is_keyed {
        let says = "a second request with the same key and body within 24 hours gets the first one's answer, and \
                    creates nothing";
        parameters.push(parameter("header", &super::shape::may("Idempotency-Key", Shape::Text, says)));
    }
    parameters
}

fn parameter(place: &str, field: &Field) -> Value {
    json!({
        "name": field.name,
        "in": place,
        "required": field.presence == Presence::Always,
        "description": field.says,
        "schema": field.shape.schema(),
    })
}

/// Operator routes that `Posthaste-Tenant` limits to one tenant.
const NARROWED: [&str; 5] = ["/v1/breakers", "/v1/pause", "/v1/resume", "/v1/tenants", "/v1/audit"];

fn responses(one: &Operation) -> Map<String, Value> {
    let mut responses = Map::new();
    for answer in one.answers {
        let mut response = json!({ "description": answer.says });
        if let Some((shape, media_type)) = answer.body {
            response["content"] = json!({ media_type: { "schema": shape.schema() } });
        }
        let headers = headers(one);
        if !headers.is_empty() {
            response["headers"] = Value::Object(headers);
        }
        responses.insert(answer.status.to_string(), response);
    }
    for status in refusals(one) {
        let kind = if matches!(status, 429 | 503) { "Later" } else { "Problem" };
        responses.entry(status.to_string()).or_insert(json!({ "$ref": format!("#/components/responses/{kind}") }));
    }
    responses.insert("default".to_owned(), json!({ "$ref": "#/components/responses/Problem" }));
    responses
}

/// The headers of an answer on success.
fn headers(one: &Operation) -> Map<String, Value> {
    let mut headers = Map::new();
    let mut add = |name: &str, says: &str| {
        headers.insert(name.to_owned(), json!({ "description": says, "schema": { "type": "string" } }));
    };
    if one.is_keyed {
        add("Idempotency-Replayed", "`true` if the key was used before and this is the first answer repeated");
    }
    if one.is_limited {
        add(
            "RateLimit",
            "what is left of the tenant's quota: `r` messages now, all of it in `t` seconds; absent without a quota",
        );
        add(
            "RateLimit-Policy",
            "the tenant's quota: `q` messages at once, refilled within `w` seconds; absent without a quota",
        );
    }
    headers
}

/// Every status that a route refuses with, except those that a client made from this document does not meet: another
/// method or media type, a body that is sent too slowly.
fn refusals(one: &Operation) -> Vec<u16> {
    let has_body = one.method != "GET";
    let statuses = [
        (400, one.path.starts_with("/v1")),
        (401, one.scope.is_some()),
        (403, one.scope.is_some()),
        // The path's id, or the tenant in the header, is unknown.
        (404, one.scope.is_some()),
        (409, one.is_keyed || one.may_conflict),
        (413, has_body),
        (422, one.is_keyed),
        (429, one.is_limited || one.is_bounded),
        (503, one.scope.is_some()),
    ];
    statuses.into_iter().filter(|(_, applies)| *applies).map(|(status, _)| status).collect()
}

/// The names of a delivery's states.
pub(super) const STATES: [&str; Phase::ALL.len()] = {
    let mut names = [""; Phase::ALL.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = Phase::ALL[at].name();
        at += 1;
    }
    names
};
/// The names of the reasons why a delivery waits.
const WHYS: [&str; Why::ALL.len()] = {
    let mut names = [""; Why::ALL.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = Why::ALL[at].name();
        at += 1;
    }
    names
};

/// Why a delivery waits, as every view of a delivery has it.
pub(super) const WAITING: Shape = Shape::Named(
    "Waiting",
    &[
        need("why", Shape::OneOf(&WHYS), "the reason"),
        null("until", Shape::Time, "when the wait ends; null if that is not known"),
        need("detail", Shape::Text, "the reason in words"),
    ],
);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_operation_has_a_unique_id() {
        let document = super::super::document();
        let mut ids = BTreeSet::new();
        for (path, operations) in document["paths"].as_object().expect("paths") {
            for (method, operation) in operations.as_object().expect("operations") {
                let id = operation["operationId"].as_str().expect("an id");
                assert!(ids.insert(id.to_owned()), "{method} {path}: the id {id} is used twice");
            }
        }
        assert!(ids.contains("post_tenants_t_keys"), "{ids:?}");
    }

    #[test]
    fn each_schema_name_has_a_single_shape() {
        let mut known: BTreeMap<&str, String> = BTreeMap::new();
        for one in super::super::operations() {
            let bodies = one.answers.iter().filter_map(|answer| answer.body.map(|(shape, _)| shape));
            for shape in bodies.chain(one.takes.map(|body| body.shape)) {
                shape.each_named(&mut |name, fields| {
                    let written = object(fields).to_string();
                    assert_eq!(*known.entry(name).or_insert_with(|| written.clone()), written, "{name} is two shapes");
                });
            }
        }
    }
}
