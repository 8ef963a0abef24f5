//! `/openapi.json`: every route, what it takes and what it answers, for people and for programs that
//! make clients of it.
//!
//! What is said of a route stands in the file here that is named like its handlers' in [`api`](crate::api), in the
//! form of [`shape`]. It cannot drift unseen: the tests below fail where a route of [`ROUTES`] is not
//! told of, and where a handler asks a body for a field that is not; the tests of the API fail where an
//! answer has a field that is not, and where a route asks for another scope than is told.

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

/// What is said of a route.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The method, as [`ROUTES`] has it.
    pub method: &'static str,
    /// The path, as [`ROUTES`] has it.
    pub path: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// The scope a caller's key needs; `None` where nobody needs a key.
    pub scope: Option<&'static str>,
    /// The scope that a tenant's own key needs instead, to speak of itself.
    pub own_scope: Option<&'static str>,
    /// The parameters it takes.
    pub parameters: &'static [Field],
    /// The body it takes.
    pub takes: Option<Body>,
    /// What it answers when all goes well.
    pub answers: &'static [Answered],
    /// Whether it takes an `Idempotency-Key`.
    pub is_keyed: bool,
    /// Whether a tenant's quota bounds it.
    pub is_limited: bool,
    /// Whether only so many of a tenant's go on at once.
    pub is_bounded: bool,
    /// Whether what is there may stand in its way.
    pub may_conflict: bool,
}

/// A body that a route takes.
#[derive(Clone, Copy, Debug)]
pub struct Body {
    /// What is in it.
    pub shape: &'static Shape,
    /// What it is declared as.
    pub media_type: &'static str,
    /// Whether there may be none.
    pub is_optional: bool,
}

/// What a route answers.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// The status.
    pub status: u16,
    /// What it says, in a line.
    pub says: &'static str,
    /// What is in its body, and what that is declared as.
    pub body: Option<(&'static Shape, &'static str)>,
}

const JSON: &str = "application/json";

impl Operation {
    /// A route that is read.
    pub const fn get(path: &'static str, summary: &'static str) -> Self {
        Self::new("GET", path, summary)
    }

    /// A route that does something, or makes something.
    pub const fn post(path: &'static str, summary: &'static str) -> Self {
        Self::new("POST", path, summary)
    }

    /// A route of any method.
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

    /// For callers whose key has this scope.
    pub const fn scope(self, scope: &'static str) -> Self {
        Self { scope: Some(scope), ..self }
    }

    /// And for a tenant that speaks of itself, with this one.
    pub const fn or_own(self, scope: &'static str) -> Self {
        Self { own_scope: Some(scope), ..self }
    }

    /// With these parameters.
    pub const fn parameters(self, parameters: &'static [Field]) -> Self {
        Self { parameters, ..self }
    }

    /// With this body, which must be there.
    pub const fn takes(self, shape: &'static Shape) -> Self {
        Self { takes: Some(Body { shape, media_type: JSON, is_optional: false }), ..self }
    }

    /// With this body, or none.
    pub const fn may_take(self, shape: &'static Shape) -> Self {
        Self { takes: Some(Body { shape, media_type: JSON, is_optional: true }), ..self }
    }

    /// With a body of lines, each of this shape.
    pub const fn takes_lines(self, shape: &'static Shape) -> Self {
        Self { takes: Some(Body { shape, media_type: "application/x-ndjson", is_optional: false }), ..self }
    }

    /// And these answers.
    pub const fn answers(self, answers: &'static [Answered]) -> Self {
        Self { answers, ..self }
    }

    /// It makes something, so that it takes an `Idempotency-Key`.
    pub const fn keyed(self) -> Self {
        Self { is_keyed: true, ..self }
    }

    /// It is refused beyond a tenant's quota.
    pub const fn limited(self) -> Self {
        Self { is_limited: true, ..self }
    }

    /// It is refused while as many of a tenant's go on as may.
    pub const fn bounded(self) -> Self {
        Self { is_bounded: true, ..self }
    }

    /// It is refused where what is there stands in its way.
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

/// Everything that is said, by the file that says it: each is named like the handlers' file.
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

/// What is said of each route, in the order of the document.
pub fn operations() -> impl Iterator<Item = &'static Operation> {
    BY_FILE.iter().flat_map(|(_, operations)| operations.iter())
}

/// The document.
pub fn document() -> Value {
    document::of(BY_FILE)
}

/// The document as it is served.
pub(crate) fn served() -> Bytes {
    static SERVED: LazyLock<Bytes> =
        LazyLock::new(|| serde_json::to_vec(&document()).expect("our own answers always serialise").into());
    SERVED.clone()
}

/// Whether every route is told of, and no other.
#[cfg(test)]
fn untold() -> Vec<String> {
    let told = |method: &str, path: &str| operations().filter(|one| (one.method, one.path) == (method, path)).count();
    let is_route = |one: &&Operation| ROUTES.iter().any(|route| (route.method, route.path) == (one.method, one.path));
    let missing = ROUTES.iter().filter(|route| told(route.method, route.path) != 1);
    let others = operations().filter(|one| !is_route(one));
    missing
        .map(|route| format!("{} {} is not told of once", route.method, route.path))
        .chain(others.map(|one| format!("{} {} is no route", one.method, one.path)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// The fields that a handlers' file asks bodies for: each is asked for by its name.
    fn asked_for(source: &str) -> BTreeSet<String> {
        let handlers = source.split("#[cfg(test)]").next().unwrap_or_default();
        let mut asked = BTreeSet::new();
        for verb in [".get(\"", ".need(\"", ".object(\"", ".list(\"", ".some(\"", ".texts(\""] {
            for behind in handlers.split(verb).skip(1) {
                asked.extend(behind.split('"').next().map(str::to_owned));
            }
        }
        asked
    }

    fn source(file: &str) -> String {
        let read = |file: &str| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/api/{file}.rs"));
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        // What a message says is read in a file of its own, for one and for many.
        if file == "messages" || file == "batch" { read("new_message") + &read(file) } else { read(file) }
    }

    #[test]
    fn every_route_is_told_of_once_and_nothing_else_is() {
        assert_eq!(untold(), Vec::<String>::new());
    }

    #[test]
    fn every_field_that_a_handler_asks_a_body_for_is_told_of() {
        for (file, operations) in BY_FILE {
            let mut told = BTreeSet::new();
            for body in operations.iter().filter_map(|one| one.takes) {
                body.shape.each_field(&mut |field| {
                    told.insert(field.name.to_owned());
                });
            }
            let asked = asked_for(&source(file));
            let untold: Vec<_> = asked.difference(&told).collect();
            assert!(untold.is_empty(), "api/{file}.rs asks for {untold:?}, of which openapi/{file}.rs does not tell");
        }
    }

    #[test]
    fn every_file_of_handlers_that_reads_bodies_has_one_here() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api");
        for entry in std::fs::read_dir(folder).expect("the handlers' folder") {
            let name = entry.expect("an entry").file_name().to_string_lossy().trim_end_matches(".rs").to_owned();
            let known = BY_FILE.iter().any(|(file, _)| *file == name);
            assert!(known || !source(&name).contains("Object::read"), "openapi/{name}.rs is missing");
        }
    }

    #[test]
    fn what_is_told_of_and_no_handler_asks_for_is_found() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api");
        let files = std::fs::read_dir(folder).expect("the handlers' folder");
        let files = files.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file());
        let sources: String = files.map(|path| std::fs::read_to_string(path).expect("a handlers' file")).collect();
        for body in operations().filter_map(|one| one.takes) {
            body.shape.each_field(&mut |field| {
                let is_tier = posthaste_core::Tier::ALL.iter().any(|tier| tier.name() == field.name);
                assert!(is_tier || sources.contains(&format!("\"{}\"", field.name)), "nobody asks for {}", field.name);
            });
        }
    }

    #[test]
    fn the_look_through_a_handler_finds_what_it_asks_for() {
        let source = "fields.get(\"a\", x); fields.need(\"b\", y); fields.object(\"c\"); #[cfg(test)] .get(\"d\"";
        assert_eq!(asked_for(source).into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
    }
}
