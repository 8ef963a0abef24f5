//! Builds the OpenAPI document from the documentation of each route.

use std::collections::BTreeMap;

use schemars::SchemaGenerator;
use schemars::generate::{Contract, SchemaSettings};
use serde_json::{Map, Value, json};

use super::Operation;
use crate::problem::ProblemView;

const DESCRIPTION: &str = "Accepts messages and delivers them to webhook endpoints. A message is on disk before it is \
    answered with 202. Times are RFC 3339 in UTC. Durations are text such as \"500ms\", \"30s\", \"2h\" or \"7d\", or \
    whole seconds. Every answer has a request-id header. An unknown field or parameter is refused, and the refusal \
    names it.";

/// The generators of schemas: what may be left out of a request differs from what may be left out of an answer.
struct Generators {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Generators {
    fn new() -> Self {
        let generator = |contract: Contract| {
            let settings = SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
                settings.contract = contract;
            });
            settings.into_generator()
        };
        Self { requests: generator(Contract::Deserialize), answers: generator(Contract::Serialize) }
    }

    fn definitions(&mut self) -> [BTreeMap<String, Value>; 2] {
        [&mut self.requests, &mut self.answers].map(|generator| {
            let definitions = generator.take_definitions(true).into_iter();
            definitions.map(|(name, schema)| (public_name(&name).to_owned(), schema)).collect()
        })
    }
}

/// The name of a type's schema: that of `KeyView` is `Key`.
fn public_name(name: &str) -> &str {
    name.strip_suffix("View").unwrap_or(name)
}

/// The document of these operations, by the file that documents them: its name is their tag.
pub(super) fn of(by_file: &[(&'static str, &'static [Operation])]) -> Value {
    let mut generators = Generators::new();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for (file, operations) in by_file {
        for one in *operations {
            paths.entry(one.path).or_default().insert(one.method.to_lowercase(), operation(file, one, &mut generators));
        }
    }
    let problem = generators.answers.subschema_for::<ProblemView<'_>>();
    let [mut schemas, answers] = generators.definitions();
    schemas.extend(answers);
    let mut document = json!({
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
                    "content": { "application/problem+json": { "schema": problem } },
                },
                "Later": {
                    "description": "The request was refused for now. Send it again after Retry-After.",
                    "headers": {
                        "Retry-After": { "description": "seconds to wait", "schema": { "type": "integer", "minimum": 0 } },
                    },
                    "content": { "application/problem+json": { "schema": problem } },
                },
            },
            "securitySchemes": {
                "key": { "type": "http", "scheme": "bearer", "description": "an operator key (ph_op_…) or a tenant key (ph_tn_…)" },
            },
        },
        "security": [{ "key": [] }],
        "tags": by_file.iter().map(|(file, _)| json!({ "name": file.replace('_', "-") })).collect::<Vec<_>>(),
    });
    complete(&mut document);
    document
}

/// Completes all schemas in a document: an object has no other fields than those listed, a description is one line, and
/// references have public names.
fn complete(within: &mut Value) {
    match within {
        Value::Object(fields) => {
            if fields.get("type").is_some_and(|kind| kind == "object") {
                fields.entry("additionalProperties").or_insert(json!(false));
            }
            // The width of our integers is no promise.
            if fields.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint")) {
                fields.retain(|name, _| name != "format" && name != "maximum");
            }
            if let Some(Value::String(named)) = fields.get_mut("$ref") {
                *named = public_name(named).to_owned();
            }
            if let Some(Value::String(says)) = fields.get_mut("description") {
                *says = says.replace('\n', " ");
            }
            fields.values_mut().for_each(complete);
        }
        Value::Array(values) => values.iter_mut().for_each(complete),
        _ => {}
    }
}

fn operation(file: &str, one: &Operation, generators: &mut Generators) -> Value {
    let mut described = json!({
        "operationId": operation_id(one),
        "summary": one.summary,
        "tags": [file.replace('_', "-")],
        "parameters": parameters(one, &mut generators.requests),
        "responses": responses(one, &mut generators.answers),
    });
    match one.scope {
        Some(scope) => {
            let own = one.own_scope.map(|own| format!("; for its own tenant, a tenant key needs `{own}` instead"));
            let own = own.unwrap_or_default();
            described["description"] = json!(format!("Needs a key with the scope `{scope}`{own}."));
        }
        None => described["security"] = json!([]),
    }
    if let Some(body) = one.request {
        described["requestBody"] = json!({
            "required": !body.is_optional,
            "content": { body.media_type: { "schema": (body.schema)(&mut generators.requests) } },
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

fn parameters(one: &Operation, generator: &mut SchemaGenerator) -> Vec<Value> {
    let named = one.path.split('{').skip(1).filter_map(|behind| behind.split('}').next());
    let text = json!({ "type": "string" });
    let mut parameters: Vec<Value> =
        named.map(|name| parameter("path", name, "the id or name, percent-encoded", &text)).collect();
    parameters
        .extend(one.parameters().map(|one| parameter("query", one.name, one.says, (one.schema)(generator).as_value())));
    // Routes for operators alone are about all tenants unless the header names one.
    let says = match one.scope {
        Some("operate") if NARROWED.iter().any(|path| one.path.starts_with(path)) => {
            Some("limits the request to this tenant, by id or uid; all tenants by default")
        }
        Some("operate") | None => None,
        Some(_) => Some("the tenant that the request is about, by id or uid; required for writes with an operator key"),
    };
    if let Some(says) = says {
        parameters.push(parameter("header", "Posthaste-Tenant", says, &text));
    }
    if one.is_keyed {
        let says = "a second request with the same key and body within 24 hours gets the first one's answer, and \
                    creates nothing";
        // Visible ASCII, with or without quotes around it (`idempotency::key`).
        let key = json!({ "type": "string", "pattern": r#"^([!#-~]{1,128}|"[!#-~]{1,128}")$"# });
        parameters.push(parameter("header", "Idempotency-Key", says, &key));
    }
    parameters
}

fn parameter(place: &str, name: &str, says: &str, schema: &Value) -> Value {
    json!({ "name": name, "in": place, "required": place == "path", "description": says, "schema": schema })
}

/// Operator routes that `Posthaste-Tenant` limits to one tenant.
const NARROWED: [&str; 5] = ["/v1/breakers", "/v1/pause", "/v1/resume", "/v1/tenants", "/v1/audit"];

fn responses(one: &Operation, generator: &mut SchemaGenerator) -> Map<String, Value> {
    let mut responses = Map::new();
    for answer in one.answers.into_iter().flatten() {
        let mut response = json!({ "description": answer.says });
        if let Some((schema, media_type)) = answer.body {
            response["content"] = json!({ media_type: { "schema": schema(generator) } });
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

    /// A second schema of a name would get a number behind it, or replace the first.
    #[test]
    fn each_schema_has_its_own_name() {
        let mut generators = Generators::new();
        for (file, operations) in super::super::BY_FILE {
            operations.iter().for_each(|one| drop(operation(file, one, &mut generators)));
        }
        let count = |generator: &SchemaGenerator| generator.definitions().len();
        let (of_requests, of_answers) = (count(&generators.requests), count(&generators.answers));
        let [requests, answers] = generators.definitions();
        assert_eq!((requests.len(), answers.len()), (of_requests, of_answers), "two types have one public name");
        for name in requests.keys().chain(answers.keys()) {
            assert!(!name.ends_with(|last: char| last.is_ascii_digit()), "{name} is the name of two schemas");
        }
        for (name, schema) in answers.iter().filter(|(name, _)| requests.contains_key(*name)) {
            assert_eq!(&requests[name], schema, "{name} is one schema in requests, another in answers");
        }
    }
}
