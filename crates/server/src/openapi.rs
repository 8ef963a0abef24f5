//! `/openapi.json`: the OpenAPI document of every route, for people and for client generators.
//!
//! Bodies and parameters are documented by the types and tables that write and parse them: answers by their
//! `Serialize` types, request bodies by [`body!`](crate::body_fields), query parameters by the lists that handlers pass
//! to the parser. The schema of `KeyView` is named `Key`. What cannot be derived (summaries, scopes, statuses) is in
//! `OPERATIONS` of each handlers' file in [`api`]. Tests compare it with the server: each route of
//! [`ROUTES`](api::ROUTES) must be documented, and the scope that a route needs, its parameters and its answers must be
//! those of the document.

mod document;

use std::sync::LazyLock;

use bytes::Bytes;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;

use crate::api;
use crate::api::list::{CURSOR, LIMIT, ORDER};

/// Makes the schema of a type; named types are references to the document's components.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The documentation of one route and method.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The method and the path, as [`ROUTES`](api::ROUTES) has them.
    pub method: &'static str,
    pub path: &'static str,
    /// What the route does, in one line.
    pub summary: &'static str,
    /// The scope that the caller's key needs; `None` if the route needs no key.
    pub scope: Option<&'static str>,
    /// The scope that a tenant's key needs instead, for requests about its own tenant.
    own_scope: Option<&'static str>,
    /// The query parameters of every list, if the route is one.
    paging: &'static [Parameter],
    /// The further query parameters.
    query: &'static [Parameter],
    request: Option<RequestBody>,
    /// The answers on success.
    answers: [Option<SuccessAnswer>; 2],
    /// Whether it takes an `Idempotency-Key`.
    is_keyed: bool,
    /// Whether the tenant's message quota applies (429).
    is_limited: bool,
    /// Whether a tenant may have only a fixed number of them running at once (429).
    is_bounded: bool,
    /// Whether it can be refused with 409 because of the state that its subject is in.
    may_conflict: bool,
}

/// A query parameter. None is required.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    pub name: &'static str,
    /// What it means, in one line.
    says: &'static str,
    schema: SchemaOf,
}

#[derive(Clone, Copy, Debug)]
struct RequestBody {
    /// The schema of the body, or of each of its lines.
    schema: SchemaOf,
    media_type: &'static str,
    is_optional: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SuccessAnswer {
    status: u16,
    /// What it means, in one line.
    says: &'static str,
    /// The schema and the media type of the body, if it has one.
    body: Option<(SchemaOf, &'static str)>,
}

const JSON: &str = "application/json";

impl Operation {
    pub(crate) const fn get(path: &'static str, summary: &'static str) -> Self {
        Self::new("GET", path, summary)
    }

    pub(crate) const fn post(path: &'static str, summary: &'static str) -> Self {
        Self::new("POST", path, summary)
    }

    pub(crate) const fn new(method: &'static str, path: &'static str, summary: &'static str) -> Self {
        Self {
            method,
            path,
            summary,
            scope: None,
            own_scope: None,
            paging: &[],
            query: &[],
            request: None,
            answers: [None; 2],
            is_keyed: false,
            is_limited: false,
            is_bounded: false,
            may_conflict: false,
        }
    }

    pub(crate) const fn scope(self, scope: &'static str) -> Self {
        Self { scope: Some(scope), ..self }
    }

    pub(crate) const fn or_own(self, scope: &'static str) -> Self {
        Self { own_scope: Some(scope), ..self }
    }

    /// Marks a list, with these filters beside the parameters of every list.
    pub(crate) const fn list(self, filters: &'static [Parameter]) -> Self {
        Self { paging: &[LIMIT, ORDER, CURSOR], query: filters, ..self }
    }

    pub(crate) const fn query(self, query: &'static [Parameter]) -> Self {
        Self { query, ..self }
    }

    pub fn parameters(&self) -> impl Iterator<Item = &'static Parameter> {
        self.paging.iter().chain(self.query)
    }

    pub(crate) const fn body<T: JsonSchema>(self) -> Self {
        self.request::<T>(JSON, false)
    }

    /// Sets a JSON body that may be left out.
    pub(crate) const fn optional_body<T: JsonSchema>(self) -> Self {
        self.request::<T>(JSON, true)
    }

    /// Sets a required body of JSON lines, each of this type.
    pub(crate) const fn lines<T: JsonSchema>(self) -> Self {
        self.request::<T>("application/x-ndjson", false)
    }

    const fn request<T: JsonSchema>(self, media_type: &'static str, is_optional: bool) -> Self {
        let schema = SchemaGenerator::subschema_for::<T>;
        Self { request: Some(RequestBody { schema, media_type, is_optional }), ..self }
    }

    /// Adds an answer on success with a JSON body of this type.
    pub(crate) const fn returns<T: JsonSchema>(self, status: u16, says: &'static str) -> Self {
        self.returns_as::<T>(status, says, JSON)
    }

    /// Adds an answer on success with a body of this type, declared as another media type.
    pub(crate) const fn returns_as<T: JsonSchema>(
        self,
        status: u16,
        says: &'static str,
        media_type: &'static str,
    ) -> Self {
        self.answer(SuccessAnswer { status, says, body: Some((SchemaGenerator::subschema_for::<T>, media_type)) })
    }

    /// Adds an answer on success without a body.
    pub(crate) const fn no_answer(self, status: u16, says: &'static str) -> Self {
        self.answer(SuccessAnswer { status, says, body: None })
    }

    const fn answer(self, answer: SuccessAnswer) -> Self {
        let answers = match self.answers {
            [None, _] => [Some(answer), None],
            [first, _] => [first, Some(answer)],
        };
        Self { answers, ..self }
    }

    pub(crate) const fn keyed(self) -> Self {
        Self { is_keyed: true, ..self }
    }

    pub(crate) const fn limited(self) -> Self {
        Self { is_limited: true, ..self }
    }

    pub(crate) const fn bounded(self) -> Self {
        Self { is_bounded: true, ..self }
    }

    pub(crate) const fn conflicts(self) -> Self {
        Self { may_conflict: true, ..self }
    }
}

/// A query parameter whose value has the schema of this type.
pub(crate) const fn parameter<T: JsonSchema>(name: &'static str, says: &'static str) -> Parameter {
    Parameter { name, says, schema: SchemaGenerator::subschema_for::<T> }
}

/// The operations by the handlers' file that documents them.
const BY_FILE: &[(&str, &[Operation])] = &[
    ("messages", api::messages::OPERATIONS),
    ("batch", api::batch::OPERATIONS),
    ("deliveries", api::deliveries::OPERATIONS),
    ("endpoints", api::endpoints::OPERATIONS),
    ("subjects", api::subjects::OPERATIONS),
    ("dead_letters", api::dead_letters::OPERATIONS),
    ("replays", api::replays::OPERATIONS),
    ("breakers", api::breakers::OPERATIONS),
    ("policies", api::policies::OPERATIONS),
    ("switch", api::switch::OPERATIONS),
    ("tenants", api::tenants::OPERATIONS),
    ("keys", api::keys::OPERATIONS),
    ("audit", api::audit::OPERATIONS),
    ("master_key", api::master_key::OPERATIONS),
    ("health", api::health::OPERATIONS),
];

pub fn operations() -> impl Iterator<Item = &'static Operation> {
    BY_FILE.iter().flat_map(|(_, operations)| operations.iter())
}

pub fn document() -> Value {
    document::of(BY_FILE)
}

/// The OpenAPI document as serialised bytes, made once.
pub(crate) fn served() -> Bytes {
    static SERVED: LazyLock<Bytes> =
        LazyLock::new(|| serde_json::to_vec(&document()).expect("our own answers always serialise").into());
    SERVED.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ROUTES;

    #[test]
    fn every_route_is_documented_exactly_once_and_nothing_else_is() {
        let mut documented: Vec<_> = operations().map(|one| (one.path, one.method)).collect();
        let mut routes: Vec<_> = ROUTES.iter().map(|route| (route.path, route.method)).collect();
        documented.sort_unstable();
        routes.sort_unstable();
        assert_eq!(documented, routes);
    }
}
