//! The OpenAPI document, made of what is said of each route.

use std::collections::BTreeMap;

use posthaste_core::Why;
use posthaste_core::state::Phase;
use serde_json::{Map, Value, json};

use super::Operation;
use super::shape::{Field, Presence, Shape, need, null, object};
use crate::problem::Code;

const DESCRIPTION: &str = "Takes a message, promises to deliver it, and keeps the promise. Times are RFC 3339 in UTC, \
    durations such as \"500ms\", \"30s\", \"2h\" or \"7d\", or whole seconds. Every answer carries a request-id. A \
    field or a parameter that is not told of here is refused by name.";

const COMPLAINT: Shape = Shape::Object(&[
    need("pointer", Shape::Text, "where in the body, as a JSON pointer"),
    need("detail", Shape::Text, "what is wrong, and the way out"),
]);

/// A document of these operations, by the file that says them: its name is their tag.
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
                    "description": "It was refused: what happened, which thing, and the way out.",
                    "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
                },
                "Later": {
                    "description": "Not now: send it again after Retry-After.",
                    "headers": {
                        "Retry-After": { "description": "in so many seconds", "schema": { "type": "integer", "minimum": 0 } },
                    },
                    "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
                },
            },
            "securitySchemes": {
                "key": { "type": "http", "scheme": "bearer", "description": "an operator key (ph_op_…) or a tenant's (ph_tn_…)" },
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
        need("status", Shape::Whole, "the answer's status"),
        need("detail", Shape::Text, "what happened, and the way out"),
        need("code", Shape::Text, "what happened, in a word that never changes"),
        super::shape::may("errors", Shape::List(&COMPLAINT), "everything that is wrong with the body"),
    ]);
    problem["properties"]["code"]["enum"] = Code::ALL.iter().map(|code| code.name()).collect();
    problem
}

fn operation(file: &str, one: &Operation) -> Value {
    let mut told = json!({
        "operationId": operation_id(one),
        "summary": one.summary,
        "tags": [file.replace('_', "-")],
        "parameters": parameters(one),
        "responses": responses(one),
    });
    match one.scope {
        Some(scope) => {
            let own = one.own_scope.map(|own| format!(", or a tenant's own with `{own}` for itself"));
            let own = own.unwrap_or_default();
            told["description"] = json!(format!("Needs a key with the scope `{scope}`{own}."));
        }
        None => told["security"] = json!([]),
    }
    if let Some(body) = one.takes {
        told["requestBody"] = json!({
            "required": !body.is_optional,
            "content": { body.media_type: { "schema": body.shape.schema() } },
        });
    }
    told
}

/// `POST /v1/tenants/{t}/keys` is `post_tenants_t_keys`.
fn operation_id(one: &Operation) -> String {
    let words = one.path.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let path: Vec<&str> = words.filter(|word| *word != "v1").collect();
    format!("{}_{}", one.method.to_lowercase(), path.join("_"))
}

fn parameters(one: &Operation) -> Vec<Value> {
    let named = one.path.split('{').skip(1).filter_map(|behind| behind.split('}').next());
    let mut told: Vec<Value> =
        named.map(|name| parameter("path", &need(name, Shape::Text, "its id or name, percent-encoded"))).collect();
    told.extend(one.parameters.iter().map(|field| parameter("query", field)));
    // What operators alone may do is about everybody, unless they name one.
    let says = match one.scope {
        Some("operate") if NARROWED.iter().any(|path| one.path.starts_with(path)) => {
            Some("whose things alone it is about, by id or uid; everybody's where nobody is named")
        }
        Some("operate") | None => None,
        Some(_) => Some("whose things it is about, by id or uid; an operator's writes need it"),
    };
    if let Some(says) = says {
        told.push(parameter("header", &super::shape::may("Posthaste-Tenant", Shape::Text, says)));
    }
    if one.is_keyed {
        let says = "the same key and body within 24 hours: the same answer, and nothing is made twice";
        told.push(parameter("header", &super::shape::may("Idempotency-Key", Shape::Text, says)));
    }
    told
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

/// Operators' routes that are narrowed to the tenant they name.
const NARROWED: [&str; 5] = ["/v1/breakers", "/v1/pause", "/v1/resume", "/v1/tenants", "/v1/audit"];

fn responses(one: &Operation) -> Map<String, Value> {
    let mut told = Map::new();
    for answer in one.answers {
        let mut shown = json!({ "description": answer.says });
        if let Some((shape, media_type)) = answer.body {
            shown["content"] = json!({ media_type: { "schema": shape.schema() } });
        }
        let headers = headers(one);
        if !headers.is_empty() {
            shown["headers"] = Value::Object(headers);
        }
        told.insert(answer.status.to_string(), shown);
    }
    for status in refusals(one) {
        let kind = if matches!(status, 429 | 503) { "Later" } else { "Problem" };
        told.entry(status.to_string()).or_insert(json!({ "$ref": format!("#/components/responses/{kind}") }));
    }
    told.insert("default".to_owned(), json!({ "$ref": "#/components/responses/Problem" }));
    told
}

/// What an answer says beside its body.
fn headers(one: &Operation) -> Map<String, Value> {
    let mut told = Map::new();
    let mut tell = |name: &str, says: &str| {
        told.insert(name.to_owned(), json!({ "description": says, "schema": { "type": "string" } }));
    };
    if one.is_keyed {
        tell("Idempotency-Replayed", "`true` where the key was used before, and this is the first answer again");
    }
    if one.is_limited {
        tell("RateLimit", "what is left of the tenant's quota: `r` messages, and in `t` seconds all; where it has one");
        tell("RateLimit-Policy", "the quota: `q` messages at once, within `w` seconds; where it has one");
    }
    told
}

/// Every status that a route refuses with, but for what no caller who reads this meets: another method or media type,
/// a body that comes too slowly.
fn refusals(one: &Operation) -> Vec<u16> {
    let has_body = one.method != "GET";
    let said = [
        (400, one.path.starts_with("/v1")),
        (401, one.scope.is_some()),
        (403, one.scope.is_some()),
        // What the path names, or the tenant in the header.
        (404, one.scope.is_some()),
        (409, one.is_keyed || one.may_conflict),
        (413, has_body),
        (422, one.is_keyed),
        (429, one.is_limited || one.is_bounded),
        (503, one.scope.is_some()),
    ];
    said.into_iter().filter(|(_, is_so)| *is_so).map(|(status, _)| status).collect()
}

/// The states of a delivery, and why one waits, as the code names them.
pub(super) const STATES: [&str; Phase::ALL.len()] = {
    let mut names = [""; Phase::ALL.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = Phase::ALL[at].name();
        at += 1;
    }
    names
};
const WHYS: [&str; Why::ALL.len()] = {
    let mut names = [""; Why::ALL.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = Why::ALL[at].name();
        at += 1;
    }
    names
};

/// Why a delivery waits, wherever one is shown.
pub(super) const WAITING: Shape = Shape::Named(
    "Waiting",
    &[
        need("why", Shape::OneOf(&WHYS), "what holds it"),
        null("until", Shape::Time, "until when, where that is known"),
        need("detail", Shape::Text, "the same for people"),
    ],
);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_operation_has_an_id_of_its_own() {
        let document = super::super::document();
        let mut ids = BTreeSet::new();
        for (path, operations) in document["paths"].as_object().expect("paths") {
            for (method, operation) in operations.as_object().expect("operations") {
                let id = operation["operationId"].as_str().expect("an id");
                assert!(ids.insert(id.to_owned()), "{method} {path}: {id} is there twice");
            }
        }
        assert!(ids.contains("post_tenants_t_keys"), "{ids:?}");
    }

    #[test]
    fn one_name_is_one_shape() {
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
