//! The routes, and what all handlers share: the shared state, path and query parameters, and JSON answers.
//!
//! [`routes`] takes requests from connections; [`caller`] checks API keys. Read [`messages`] next for a whole handler.

mod access_log;
pub mod audit;
pub mod batch;
mod body;
pub mod breakers;
pub mod caller;
pub mod dead_letters;
pub mod deliveries;
mod endpoint_fields;
pub mod endpoints;
mod erasure;
pub mod health;
mod idempotency;
pub mod keys;
pub(crate) mod list;
pub mod master_key;
pub mod messages;
mod new_message;
mod origin;
pub mod policies;
mod quota;
pub mod replays;
pub mod routes;
pub mod subjects;
pub mod switch;
pub mod tenants;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter};
use axum::{Router, middleware};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{StatusCode, Uri};
use posthaste_core::{EndpointId, TenantId};
use posthaste_crypto::public_id::IdKind;
use posthaste_engine::clock::Clock;
use posthaste_engine::engine::{Engine, Visibility};
use posthaste_store::{Store, StoreError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::object::BodyObject;
use crate::problem::{Code, Problem};
use crate::request_id::RequestId;
use crate::served::HttpCounters;
pub use body::BODY_BYTES_MAX;
use body::body;
use caller::{Caller, Door};
use posthaste_core::policy::nearest;

/// What the files of most routes use.
mod prelude {
    pub(super) use axum::extract::{Request, State};
    pub(super) use http::{StatusCode, Uri};
    pub(super) use posthaste_crypto::public_id::IdKind;
    pub(super) use posthaste_engine::clock::Clock;
    pub(super) use posthaste_engine::engine::Visibility;
    pub(super) use posthaste_store::Store;
    pub(super) use schemars::JsonSchema;
    pub(super) use serde::Serialize;

    pub(super) use super::body::body;
    pub(super) use super::caller::Caller;
    pub(super) use super::list::{ListPage, ListQuery, page};
    pub(super) use super::{Answer, Api, ApiRef, ByName, EmptyBody, JsonBody, Result, json, no_parameters};
    pub(super) use crate::body_fields::Body;
    pub(super) use crate::object::BodyObject;
    pub(super) use crate::openapi::{Operation, Parameter, parameter};
    pub(super) use crate::problem::{Code, Problem};
    pub(super) use crate::value::{ApiTime, ApiWord};
}

/// A result whose error is a refusal, unless it names another.
pub(crate) type Result<T, E = Problem> = std::result::Result<T, E>;

/// The result of a handler: a response, or a refusal.
pub type Answer = Result<Response>;

pub type ApiRef<S, C> = State<Arc<Api<S, C>>>;

/// The media type of JSON lines.
const NDJSON: &str = "application/x-ndjson";

const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// The state that all handlers share.
#[derive(Debug)]
pub struct Api<S, C> {
    pub engine: Arc<Engine<S, C>>,
    door: Door,
    ready: AtomicBool,
    request_prefix: u32,
    pub(crate) served: HttpCounters,
}

impl<S: Store, C: Clock> Api<S, C> {
    /// Makes an API over this engine; `door` says whether callers need a key.
    pub fn new(engine: Arc<Engine<S, C>>, door: Door) -> Self {
        let request_prefix = u32::from_le_bytes(posthaste_crypto::random::bytes());
        Self { engine, door, ready: AtomicBool::new(true), request_prefix, served: HttpCounters::default() }
    }

    /// Makes `/readyz` answer that the server is shutting down.
    pub fn stop_being_ready(&self) {
        self.ready.store(false, Ordering::Relaxed);
    }

    fn numbered(&self) -> RequestId {
        RequestId { prefix: self.request_prefix, number: self.served.begun() }
    }

    /// Counts an answer, and adds the header `request-id`, which the log has too.
    fn stamp(&self, id: RequestId, response: &mut Response) {
        self.served.answered(response);
        let id = HeaderValue::try_from(id.to_string()).expect("hexadecimal digits are a header's value");
        response.headers_mut().insert(REQUEST_ID, id);
    }

    async fn endpoint_named(&self, visibility: Visibility, named: &str) -> Result<EndpointId> {
        let id = self.endpoint_once_named(visibility, named).await?;
        self.engine.endpoint(visibility, id).await?.map(|_| id).ok_or_else(|| Problem::no_such("endpoint"))
    }

    /// Like [`Api::endpoint_named`], but also finds a deleted endpoint, whose deliveries can still be read.
    async fn endpoint_once_named(&self, visibility: Visibility, named: &str) -> Result<EndpointId> {
        let id = self.endpoint_meant(visibility, named).await?;
        let known = self.engine.endpoint_once(visibility, id).await?;
        known.map(|known| known.id).ok_or_else(|| Problem::no_such("endpoint"))
    }

    /// Resolves an endpoint's id or uid. A uid is unique within a tenant only, so it needs one.
    async fn endpoint_meant(&self, visibility: Visibility, named: &str) -> Result<EndpointId> {
        let meant = self.engine.endpoint_named(visibility, named).await?;
        meant.ok_or_else(|| match visibility {
            Visibility::Tenant(_) => Problem::no_such("endpoint"),
            Visibility::All => Problem::new(
                Code::TenantRequired,
                "that is not the id of an endpoint; if it is a uid, name its tenant in the header Posthaste-Tenant",
            ),
        })
    }

    async fn tenant_public_id(&self, tenant: Option<TenantId>) -> Result<Option<String>, StoreError> {
        match tenant {
            Some(tenant) => self.engine.tenant_public_id(tenant).await,
            None => Ok(None),
        }
    }

    fn endpoint_id(&self, public_id: &str) -> Option<EndpointId> {
        self.engine.opened(IdKind::Endpoint, public_id).map(|(key, _)| EndpointId(key))
    }
}

/// A method and path that the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiRoute {
    pub method: &'static str,
    /// The path, with its parameters in braces.
    pub path: &'static str,
}

/// Declares every route once: for the router, and as the constant `ROUTES` for tests and documentation.
macro_rules! routes {
    ($($path:literal { $($method:ident $handler:path),+ })+) => {
        /// Every route of the server.
        pub const ROUTES: &[ApiRoute] = &[$($(ApiRoute { method: stringify!($method), path: $path },)+)+];

        fn routed<S: Store, C: Clock>() -> Router<Arc<Api<S, C>>> {
            Router::new()$(.route(
                $path,
                only(concat!($(stringify!($method), ", "),+), MethodRouter::new()$(.on(MethodFilter::$method, $handler))+),
            ))+
        }
    };
}

routes! {
    "/v1/messages" { GET messages::list, POST messages::send }
    "/v1/messages/batch" { POST batch::send }
    "/v1/messages/{id}" { GET messages::show }
    "/v1/messages/{id}/cancel" { POST messages::cancel }
    "/v1/deliveries" { GET deliveries::list }
    "/v1/deliveries/{id}" { GET deliveries::show }
    "/v1/deliveries/{id}/retry" { POST deliveries::retry }
    "/v1/endpoints" { GET endpoints::list, POST endpoints::make }
    "/v1/endpoints/{id}" { GET endpoints::show, PATCH endpoints::change, DELETE endpoints::delete }
    "/v1/endpoints/{id}/secret" { GET endpoints::secret }
    "/v1/endpoints/{id}/secret/rotate" { POST endpoints::rotate }
    "/v1/endpoints/{id}/pause" { POST endpoints::pause }
    "/v1/endpoints/{id}/enable" { POST endpoints::enable }
    "/v1/endpoints/{id}/test" { POST endpoints::test }
    "/v1/subjects/{s}" { DELETE subjects::erase }
    "/v1/subjects/{s}/export" { GET subjects::export }
    "/v1/dead-letters" { GET dead_letters::list }
    "/v1/replays" { GET replays::list, POST replays::make }
    "/v1/replays/{id}" { GET replays::show }
    "/v1/replays/{id}/pause" { POST replays::pause }
    "/v1/replays/{id}/resume" { POST replays::resume }
    "/v1/replays/{id}/cancel" { POST replays::cancel }
    "/v1/breakers" { GET breakers::list }
    "/v1/breakers/{id}/reset" { POST breakers::reset }
    "/v1/policies" { GET policies::list }
    "/v1/policies/{name}" { GET policies::show, PUT policies::put, DELETE policies::delete }
    "/v1/policies/preview" { POST policies::preview }
    "/v1/audit" { GET audit::list }
    "/v1/audit/checkpoint" { GET audit::checkpoint }
    "/v1/master-key/rotation" { GET master_key::show, POST master_key::begin }
    "/v1/pause" { GET switch::list, POST switch::pause }
    "/v1/resume" { POST switch::resume }
    "/v1/tenants" { GET tenants::list, POST tenants::make }
    "/v1/tenants/{t}" { GET tenants::show, PATCH tenants::change, DELETE tenants::erase }
    "/v1/tenants/{t}/keys" { GET keys::list_tenants, POST keys::make_tenants }
    "/v1/tenants/{t}/keys/{id}" { DELETE keys::revoke_tenants }
    "/v1/keys" { GET keys::list_operators, POST keys::make_operators }
    "/v1/keys/{id}" { DELETE keys::revoke_operators }
    "/healthz" { GET health::alive }
    "/readyz" { GET health::ready }
    "/metrics" { GET health::metrics }
    "/openapi.json" { GET health::openapi }
}

/// The router of all routes; anything else is answered with `not_found`.
fn router<S: Store, C: Clock>(api: Arc<Api<S, C>>) -> Router {
    let router = routed().fallback(async |uri: Uri| Problem::no_route(&uri));
    let in_progress = Arc::<idempotency::InProgress>::default();
    let router = router.layer(middleware::from_fn_with_state(in_progress, idempotency::run_in_turn));
    let router = if access_log::is_read() { router.layer(middleware::from_fn(access_log::write)) } else { router };
    router.with_state(api)
}

/// A route that answers other methods with `method_not_allowed`. `allow` names its methods, each followed by a comma.
fn only<S: Clone + Send + Sync + 'static>(allow: &'static str, routes: MethodRouter<S>) -> MethodRouter<S> {
    routes.fallback(async move |uri: Uri| Problem::method(&uri, allow.trim_end_matches(", ")))
}

/// A request about the object that its path names: its caller, and the parameter of the path or a tuple of several.
pub struct ByName<S, C, const SCOPE: u8, T = String> {
    api: Arc<Api<S, C>>,
    caller: Caller<SCOPE>,
    name: T,
}

impl<S, C, const SCOPE: u8, T> FromRequestParts<Arc<Api<S, C>>> for ByName<S, C, SCOPE, T>
where
    S: Store,
    C: Clock,
    T: DeserializeOwned + Send,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api<S, C>>) -> Result<Self> {
        let caller = Caller::from_request_parts(parts, api).await?;
        // A path that is not UTF-8 is answered as an unknown route.
        let name = Path::from_request_parts(parts, api).await.map_err(|_| Problem::no_route(&parts.uri))?.0;
        Ok(Self { api: Arc::clone(api), caller, name })
    }
}

/// A body of JSON.
pub struct JsonBody(Bytes);

impl<S: Sync> FromRequest<S> for JsonBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self> {
        body(request).await.map(Self)
    }
}

/// The body of a request that needs none: one with fields is refused.
pub struct EmptyBody;

impl<S: Sync> FromRequest<S> for EmptyBody {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self> {
        let body = body(request).await?;
        BodyObject::read_optional(&body)?.finish().map(|()| Self)
    }
}

/// Refuses query parameters: the request takes none.
fn no_parameters(uri: &Uri) -> Result<()> {
    if uri.query().is_none() { Ok(()) } else { parameters(uri, &[]).map(|_| ()) }
}

/// The query parameters of a request. An unknown or repeated one is refused.
fn parameters(uri: &Uri, known: &[&'static str]) -> Result<Vec<(String, String)>> {
    let Query(given) = Query::<Vec<(String, String)>>::try_from_uri(uri)
        .map_err(|_| Problem::new(Code::InvalidParameter, "the query is not name=value pairs joined by &"))?;
    for (index, (name, _)) in given.iter().enumerate() {
        if !known.contains(&name.as_str()) {
            let detail = match nearest(name, known.iter().copied()) {
                Some(nearest) => format!("there is no parameter {name:?}; the nearest is {nearest}"),
                None if known.is_empty() => format!("there is no parameter {name:?}; this route takes none"),
                None => format!("there is no parameter {name:?}; there are {}", known.join(", ")),
            };
            return Err(Problem::new(Code::UnknownParameter, detail));
        }
        if given[..index].iter().any(|(before, _)| before == name) {
            return Err(Problem::new(Code::InvalidParameter, format!("the parameter {name} is given twice")));
        }
    }
    Ok(given)
}

fn json(status: StatusCode, body: &impl Serialize) -> Response {
    json_bytes(status, json_vec(body).into())
}

fn json_vec(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("our own answers always serialise")
}

/// An answer with a body that is JSON already.
fn json_bytes(status: StatusCode, body: Bytes) -> Response {
    let mut response = typed("application/json", body);
    *response.status_mut() = status;
    response
}

/// A successful answer with a body of this media type.
fn typed(media_type: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

fn nothing() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}
