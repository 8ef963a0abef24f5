//! `/openapi.json`: the OpenAPI document of every route, for people and for client generators.
//!
//! The documentation of a route stands in the file here that has the same name as its handlers' file in
//! [`api`](crate::api), in the form of [`shape`]. Tests keep it in step with the code: those below fail where a route
//! of [`ROUTES`] is missing here, and where a handler reads a body's field that is not documented; those of the API
//! fail where an answer has an undocumented field, and where a route needs another scope than the documented one.

mod audit;
mod batch;
mod breakers;
mod dead_letters;
mod deliveries;
mod document;
mod endpoints;
mod health;
mod keys;
mod master_key;
mod messages;
mod policies;
mod replays;
pub mod shape;
mod subjects;
mod switch;
mod tenants;

use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::Value;

#[cfg(test)]
use crate::api::ROUTES;
use shape::{Field, Shape};

/// The documentation of one route and method.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The method, as [`ROUTES`] has it.
    pub method: &'static str,
    /// The path, as [`ROUTES`] has it.
    pub path: &'static str,
    /// What the route does, in one line.
    pub summary: &'static str,
    /// The scope that the caller's key needs; `None` if the route needs no key.
    pub scope: Option<&'static str>,
    /// The scope that a tenant's key needs instead, for requests about its own tenant.
    pub own_scope: Option<&'static str>,
    /// The query parameters.
    pub parameters: &'static [Field],
    /// The request body.
    pub takes: Option<Body>,
    /// The answers on success.
    pub answers: &'static [Answered],
    /// Whether it takes an `Idempotency-Key`.
    pub is_keyed: bool,
    /// Whether the tenant's message quota applies (429).
    pub is_limited: bool,
    /// Whether a tenant may have only a fixed number of them running at once (429).
    pub is_bounded: bool,
    /// Whether it can be refused with 409 because of the state that its subject is in.
    pub may_conflict: bool,
}

/// A request body.
#[derive(Clone, Copy, Debug)]
pub struct Body {
    /// The shape of the body, or of each of its lines.
    pub shape: &'static Shape,
    /// The `content-type` to declare.
    pub media_type: &'static str,
    /// Whether the body may be left out.
    pub is_optional: bool,
}

/// An answer on success.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// The HTTP status.
    pub status: u16,
    /// What the answer means, in one line.
    pub says: &'static str,
    /// The shape and the media type of the body, if it has one.
    pub body: Option<(&'static Shape, &'static str)>,
}

const JSON: &str = "application/json";

impl Operation {
    /// Documents a GET route.
    pub const fn get(path: &'static str, summary: &'static str) -> Self {
        Self::new("GET", path, summary)
    }

    /// Documents a POST route.
    pub const fn post(path: &'static str, summary: &'static str) -> Self {
        Self::new("POST", path, summary)
    }

    /// Documents a route of any method.
    pub const fn new(method: &'static str, path: &'static str, summary: &'static str) -> Self {
        Self {
            method,
            path,
            summary,
            scope: None,
            own_scope: None,
            parameters: &[],
            takes: None,
            answers: &[],
            is_keyed: false,
            is_limited: false,
            is_bounded: false,
            may_conflict: false,
        }
    }

    /// Sets the scope that the caller's key needs.
    pub const fn scope(self, scope: &'static str) -> Self {
        Self { scope: Some(scope), ..self }
    }

    /// Sets the scope that a tenant's key needs for its own tenant.
    pub const fn or_own(self, scope: &'static str) -> Self {
        Self { own_scope: Some(scope), ..self }
    }

    /// Sets the query parameters.
    pub const fn parameters(self, parameters: &'static [Field]) -> Self {
        Self { parameters, ..self }
    }

    /// Sets a required JSON body.
    pub const fn takes(self, shape: &'static Shape) -> Self {
        Self { takes: Some(Body { shape, media_type: JSON, is_optional: false }), ..self }
    }

    /// Sets an optional JSON body.
    pub const fn may_take(self, shape: &'static Shape) -> Self {
        Self { takes: Some(Body { shape, media_type: JSON, is_optional: true }), ..self }
    }

    /// Sets a required body of JSON lines, each of this shape.
    pub const fn takes_lines(self, shape: &'static Shape) -> Self {
        Self { takes: Some(Body { shape, media_type: "application/x-ndjson", is_optional: false }), ..self }
    }

    /// Sets the answers on success.
    pub const fn answers(self, answers: &'static [Answered]) -> Self {
        Self { answers, ..self }
    }

    /// Marks a route that takes an `Idempotency-Key`.
    pub const fn keyed(self) -> Self {
        Self { is_keyed: true, ..self }
    }

    /// Marks a route that is refused (429) beyond the tenant's quota.
    pub const fn limited(self) -> Self {
        Self { is_limited: true, ..self }
    }

    /// Marks a route that is refused (429) while the tenant has the most running that it may have.
    pub const fn bounded(self) -> Self {
        Self { is_bounded: true, ..self }
    }

    /// Marks a route that is refused (409) in some states of its subject.
    pub const fn conflicts(self) -> Self {
        Self { may_conflict: true, ..self }
    }
}

/// An answer in JSON.
pub const fn answer(status: u16, says: &'static str, shape: &'static Shape) -> Answered {
    Answered { status, says, body: Some((shape, JSON)) }
}

/// An answer of another media type.
pub const fn answer_as(status: u16, says: &'static str, shape: &'static Shape, media_type: &'static str) -> Answered {
    Answered { status, says, body: Some((shape, media_type)) }
}

/// An answer without a body.
pub const fn no_answer(status: u16, says: &'static str) -> Answered {
    Answered { status, says, body: None }
}

/// The operations by the file that documents them, which has the name of the handlers' file.
const BY_FILE: &[(&str, &[Operation])] = &[
    ("messages", messages::OPERATIONS),
    ("batch", batch::OPERATIONS),
    ("deliveries", deliveries::OPERATIONS),
    ("endpoints", endpoints::OPERATIONS),
    ("subjects", subjects::OPERATIONS),
    ("dead_letters", dead_letters::OPERATIONS),
    ("replays", replays::OPERATIONS),
    ("breakers", breakers::OPERATIONS),
    ("policies", policies::OPERATIONS),
    ("switch", switch::OPERATIONS),
    ("tenants", tenants::OPERATIONS),
    ("keys", keys::OPERATIONS),
    ("audit", audit::OPERATIONS),
    ("master_key", master_key::OPERATIONS),
    ("health", health::OPERATIONS),
];

/// The documentation of each route, in the order of the document.
pub fn operations() -> impl Iterator<Item = &'static Operation> {
    BY_FILE.iter().flat_map(|(_, operations)| operations.iter())
}

/// The OpenAPI document.
pub fn document() -> Value {
    document::of(BY_FILE)
}

/// The OpenAPI document as serialised bytes, made once.
pub(crate) fn served() -> Bytes {
    static SERVED: LazyLock<Bytes> =
        LazyLock::new(|| serde_json::to_vec(&document()).expect("our own answers always serialise").into());
    SERVED.clone()
}

/// Differences between [`ROUTES`] and the documentation: routes not documented exactly once, and operations that are
/// no route.
#[cfg(test)]
fn mismatches() -> Vec<String> {
    let count = |method: &str, path: &str| operations().filter(|one| (one.method, one.path) == (method, path)).count();
    let is_route = |one: &&Operation| ROUTES.iter().any(|route| (route.method, route.path) == (one.method, one.path));
    let missing = ROUTES.iter().filter(|route| count(route.method, route.path) != 1);
    let others = operations().filter(|one| !is_route(one));
    missing
        .map(|route| format!("{} {} is not documented exactly once", route.method, route.path))
        .chain(others.map(|one| format!("{} {} is no route", one.method, one.path)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// The body fields that a handlers' file reads, found by the calls that read a field by name.
    fn fields_read(source: &str) -> BTreeSet<String> {
        let handlers = source.split("#[cfg(test)]").next().unwrap_or_default();
        let mut names = BTreeSet::new();
        for verb in [".get(\"", ".need(\"", ".object(\"", ".list(\"", ".some(\"", ".texts(\""] {
            for behind in handlers.split(verb).skip(1) {
                names.extend(behind.split('"').next().map(str::to_owned));
            }
        }
        names
    }

    fn source(file: &str) -> String {
        let read = |file: &str| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/api/{file}.rs"));
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        // A message's fields are parsed in a file of their own, for a single message and for a batch.
        if file == "messages" || file == "batch" { read("new_message") + &read(file) } else { read(file) }
    }

    #[test]
    fn every_route_is_documented_exactly_once_and_nothing_else_is() {
        assert_eq!(mismatches(), Vec::<String>::new());
    }

    #[test]
    fn every_body_field_that_a_handler_reads_is_documented() {
        for (file, operations) in BY_FILE {
            let mut documented = BTreeSet::new();
            for body in operations.iter().filter_map(|one| one.takes) {
                body.shape.each_field(&mut |field| {
                    documented.insert(field.name.to_owned());
                });
            }
            let read = fields_read(&source(file));
            let missing: Vec<_> = read.difference(&documented).collect();
            assert!(missing.is_empty(), "api/{file}.rs reads {missing:?}, which openapi/{file}.rs does not document");
        }
    }

    #[test]
    fn every_handler_file_that_reads_bodies_is_documented() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api");
        for entry in std::fs::read_dir(folder).expect("the handlers' folder") {
            let name = entry.expect("an entry").file_name().to_string_lossy().trim_end_matches(".rs").to_owned();
            let known = BY_FILE.iter().any(|(file, _)| *file == name);
            assert!(known || !source(&name).contains("Object::read"), "openapi/{name}.rs is missing");
        }
    }

    #[test]
    fn every_documented_body_field_is_read_by_a_handler() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api");
        let files = std::fs::read_dir(folder).expect("the handlers' folder");
        let files = files.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file());
        let sources: String = files.map(|path| std::fs::read_to_string(path).expect("a handlers' file")).collect();
        for body in operations().filter_map(|one| one.takes) {
            body.shape.each_field(&mut |field| {
                let is_tier = posthaste_core::Tier::ALL.iter().any(|tier| tier.name() == field.name);
                assert!(is_tier || sources.contains(&format!("\"{}\"", field.name)), "no handler reads {}", field.name);
            });
        }
    }

    #[test]
    fn fields_read_finds_the_fields_read_outside_tests() {
        let source = "fields.get(\"a\", x); fields.need(\"b\", y); fields.object(\"c\"); #[cfg(test)] .get(\"d\"";
        assert_eq!(fields_read(source).into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
    }
}
