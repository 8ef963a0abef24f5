//! The routes that a server documents in `/openapi.json`, and a server with one object of every kind that they name.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::{Method, StatusCode};
use serde_json::Value;

use crate::fixtures::{ApiAnswer, ApiConnection, wait};
use crate::prove::{CannotRun, Context};

/// The longest wait for a breaker to open.
const WITHIN: Duration = Duration::from_secs(20);

/// A route of the server's OpenAPI document.
#[derive(Clone, Debug)]
pub(crate) struct DocumentedRoute {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Whether the route needs an API key.
    pub(crate) is_guarded: bool,
    /// Whether only operators may call it.
    pub(crate) is_operators: bool,
    pub(crate) takes_body: bool,
    lines: bool,
}

impl fmt::Display for DocumentedRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

impl DocumentedRoute {
    /// Whether its body is newline-delimited JSON.
    pub(crate) fn is_lines(&self) -> bool {
        self.lines
    }

    /// The content type of its request body.
    pub(crate) fn declared(&self) -> &'static str {
        if self.lines { "application/x-ndjson" } else { "application/json" }
    }

    /// Whether the route creates the object that its path names, so that no name is unknown to it.
    pub(crate) fn takes_put_names(&self) -> bool {
        self.method == "PUT"
    }

    /// Whether its path names a subject. Any subject is valid: one without messages has no data.
    pub(crate) fn names_subjects(&self) -> bool {
        self.path.starts_with("/v1/subjects/")
    }

    /// The smallest body that it accepts, for requests in which only the path is wrong.
    pub(crate) fn least(&self) -> &'static str {
        if self.takes_body { "{}" } else { "" }
    }
}

/// Reads the routes from the server's OpenAPI document.
pub(crate) async fn documented(line: &mut ApiConnection) -> Result<Vec<DocumentedRoute>, CannotRun> {
    let answer = line.call(Method::GET, "/openapi.json", &[], "").await?.expect(StatusCode::OK)?;
    let document: Value = serde_json::from_str(&answer.body)?;
    let mut routes = Vec::new();
    for (path, operations) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in operations.as_object().into_iter().flatten() {
            let content = operation["requestBody"]["content"].as_object();
            let description = operation["description"].as_str().unwrap_or_default();
            routes.push(DocumentedRoute {
                method: method.to_uppercase(),
                path: path.clone(),
                is_guarded: operation["security"].is_null(),
                is_operators: description.contains("`operate`") && !description.contains("for its own tenant"),
                takes_body: content.is_some(),
                lines: content.is_some_and(|content| content.contains_key("application/x-ndjson")),
            });
        }
    }
    Ok(routes)
}

/// A path with every placeholder replaced by this text.
pub(crate) fn with_names(path: &str, name: &str) -> String {
    let parts = path.split('/').map(|part| if part.starts_with('{') { name } else { part });
    parts.collect::<Vec<_>>().join("/")
}

/// A server with one object of every kind.
#[derive(Debug)]
pub(crate) struct ApiWorld {
    pub(crate) line: ApiConnection,
    later: String,
    /// One id of each kind of object; the kind is the path segment before the id.
    ids: Vec<(&'static str, String)>,
}

impl ApiWorld {
    /// Creates one object of every kind through the API.
    pub(crate) async fn begin(address: SocketAddr) -> Result<Self, CannotRun> {
        let mut line = ApiConnection::open(address).await?;
        let later = later(&mut line, &[]).await?;
        let mut world = Self { line, later, ids: Vec::new() };
        let endpoint = r#"{"url": "http://127.0.0.1:9999/not-listening"}"#;
        let endpoint = world.made("/v1/endpoints", endpoint).await?;
        let waits = world.filled(r#"{"payload": 1, "deliver_at": "LATER"}"#);
        let message = world.made("/v1/messages", &waits).await?;
        // The first in the list.
        let delivery = world.line.call(Method::GET, "/v1/deliveries", &[], "").await?.id()?;
        let replay = world.made("/v1/replays", r#"{"select": {}}"#).await?;
        let tenant = world.made("/v1/tenants", r#"{"uid": "acme"}"#).await?;
        let key = world.made("/v1/tenants/acme/keys", r#"{"scopes": ["read"]}"#).await?;
        let operator = world.made("/v1/keys", r#"{"scopes": ["read"]}"#).await?;
        let policy = r#"{"strategy": "fixed", "base": "9s"}"#;
        world.line.call(Method::PUT, "/v1/policies/ours", &[], policy).await?.expect(StatusCode::OK)?;
        world.ids = vec![
            ("messages", message),
            ("deliveries", delivery),
            ("endpoints", endpoint),
            ("replays", replay),
            ("tenants", tenant),
            ("tenant's keys", key),
            ("keys", operator),
            ("policies", "ours".to_owned()),
            ("subjects", "Ann%20O%2fHara".to_owned()),
        ];
        let breaker = world.opened().await?;
        world.ids.push(("breakers", breaker));
        Ok(world)
    }

    /// Creates an object and returns its id.
    async fn made(&mut self, path: &str, body: &str) -> Result<String, CannotRun> {
        self.line.call(Method::POST, path, &[], body.to_owned()).await?.id()
    }

    /// Sends messages to the endpoint, where no receiver listens, until its breaker opens. Returns the breaker's id.
    async fn opened(&mut self) -> Result<String, CannotRun> {
        for _ in 0..40 {
            self.made("/v1/messages", r#"{"payload": 1}"#).await?;
        }
        let mut id = None;
        let opened = async || {
            id = self.line.call(Method::GET, "/v1/breakers", &[], "").await?.id().ok();
            Ok(id.is_some())
        };
        wait("an open breaker", WITHIN, opened).await?;
        id.context("no breaker opened for an endpoint that refuses connections")
    }

    /// A path with its placeholders replaced by ids of this world.
    pub(crate) fn path(&self, path: &str) -> String {
        let mut parts: Vec<String> = Vec::new();
        for part in path.split('/') {
            let before = parts.last().map_or("", String::as_str);
            let is_tenants_key = path.starts_with("/v1/tenants/") && before == "keys";
            let kind = if is_tenants_key { "tenant's keys" } else { before };
            let named = part.starts_with('{').then(|| self.id(kind)).flatten();
            parts.push(named.unwrap_or(part).to_owned());
        }
        parts.join("/")
    }

    pub(crate) fn id(&self, kind: &str) -> Option<&str> {
        self.ids.iter().find(|(known, _)| *known == kind).map(|(_, id)| id.as_str())
    }

    /// A body with its placeholders replaced by ids and times of this world.
    pub(crate) fn filled(&self, body: &str) -> String {
        let body = body.replace("LATER", &self.later);
        self.ids.iter().fold(body, |body, (kind, id)| body.replace(&format!("<{kind}>"), id))
    }

    /// Remembers the id of an object that a request created, for the requests that follow.
    pub(crate) fn learn(&mut self, route: &DocumentedRoute, answer: &ApiAnswer) {
        if let (201 | 202, Some(kind), Some(id)) = (answer.status.as_u16(), kind(&route.path), answer.text("id")) {
            self.ids.retain(|(known, _)| *known != kind);
            self.ids.push((kind, id.to_owned()));
        }
    }
}

/// A time one day ahead, for deliveries that must still be waiting: the expiry of a message without recipients.
pub(crate) async fn later(line: &mut ApiConnection, head: &[(&str, &str)]) -> Result<String, CannotRun> {
    let body = r#"{"payload": 1, "ttl": "24h", "to": {"tags": ["absent"]}}"#;
    let answer = line.call(Method::POST, "/v1/messages", head, body).await?;
    let later = answer.text("expires_at").map(str::to_owned);
    later.context(format!("a message was answered {}: {}", answer.status, answer.body))
}

/// The kind of object that a route creates, if it creates one.
fn kind(path: &str) -> Option<&'static str> {
    match path {
        "/v1/endpoints" => Some("endpoints"),
        "/v1/tenants" => Some("tenants"),
        "/v1/tenants/{t}/keys" => Some("tenant's keys"),
        "/v1/keys" => Some("keys"),
        _ => None,
    }
}
