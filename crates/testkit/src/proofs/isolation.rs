//! The proof `isolation`: a tenant cannot read, change or detect another tenant's objects through any route.
//!
//! The routes come from the server's own `/openapi.json`. Every route with an id in its path is called twice with a
//! tenant's key: with the id of an object of another tenant, and with an id that does not exist. Both answers must have
//! the same body and headers, except for the request id and the date. Any subject is a valid name, so another tenant's
//! subject must be answered like one without data: nothing exported, nothing erased. The other tenant's objects are
//! compared before and after.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use hyper::{Method, StatusCode};
use posthaste_crypto::random;
use serde_json::Value;

use crate::fixtures::{ApiAnswer, ApiConnection, Launch, binary, block_on, wait};
use crate::proofs::api::routes::{self, DocumentedRoute};
use crate::prove::{CannotRun, Figure, Findings, Options, count};

/// All scopes that a tenant's key can have.
const SCOPES: &str = r#"{"scopes": ["send", "read", "manage", "replay", "secrets", "privacy"]}"#;

/// The longest wait for an empty replay to be done, on a busy machine.
const SETTLES_WITHIN: Duration = Duration::from_secs(20);

/// Runs the proof. It takes seconds, so there is no shorter form.
pub fn run(_: &Options) -> Findings {
    block_on(prove(&binary()?))
}

async fn prove(binary: &Path) -> Findings {
    let folder = tempfile::tempdir()?;
    let server = Launch::new(binary, folder.path()).start()?;
    let mut line = ApiConnection::open(server.address).await?;
    let ours = Tenant::make(&mut line, "ours").await?;
    let theirs = Tenant::make(&mut line, "theirs").await?;
    let before = theirs.looks(&mut line).await?;
    let routes = routes::documented(&mut line).await?;
    let mut tally = Tally::default();
    for route in routes.iter().filter(|route| route.is_guarded && route.path.contains('{')) {
        tally.ask(&mut line, route, &ours, &theirs).await?;
    }
    for (route, path, body) in elsewhere() {
        tally.ask_within(&mut line, route, path, body, &ours, &theirs).await?;
    }
    let after = theirs.looks(&mut line).await?;
    for (before, after) in before.iter().zip(&after).filter(|(before, after)| before != after) {
        eprintln!("another tenant's objects changed: {before} is now {after}");
    }
    let stays = after == before;
    // The control: the comparison must tell a tenant's own object from one that does not exist.
    let path = |id: &str| format!("/v1/endpoints/{id}");
    let known = ours.call(&mut line, Method::GET, &path(&ours.ids["endpoints"]), "").await?;
    let never = ours.call(&mut line, Method::GET, &path(&never("ep_", 26)), "").await?;
    let caught = usize::from(difference(&known, &never).is_some());
    Ok(vec![
        Figure::at_least("routes", count(tally.routes), "routes", 12.0),
        Figure::at_most("routes_without_a_case", count(tally.untried), "routes", 0.0),
        Figure::at_least("pairs", count(tally.pairs), "pairs", 20.0),
        Figure::at_most("told_apart", count(tally.told_apart), "pairs", 0.0),
        Figure::at_most("not_404", count(tally.not_404), "pairs", 0.0),
        Figure::at_least("left_as_it_was", count(usize::from(stays)), "tenants", 1.0),
        Figure::at_least("control_caught", count(caught), "pairs", 1.0),
    ])
}

/// Requests with an id, written `ID`, in the query or the body: the kind of id, the route, the body.
fn elsewhere() -> [(&'static str, &'static str, &'static str); 7] {
    [
        ("endpoints", "GET /v1/deliveries?endpoint=ID", ""),
        ("messages", "GET /v1/deliveries?message=ID", ""),
        ("endpoints", "GET /v1/dead-letters?endpoint=ID", ""),
        ("endpoints", "POST /v1/messages", r#"{"payload": 1, "to": {"endpoints": ["ID"]}}"#),
        ("endpoints", "POST /v1/replays", r#"{"select": {"endpoint": "ID"}}"#),
        ("deliveries", "POST /v1/replays", r#"{"select": {"deliveries": ["ID"]}}"#),
        ("messages", "GET /v1/messages?correlation_id=ID", ""),
    ]
}

/// A tenant with one object of every kind.
struct Tenant {
    key: String,
    ids: BTreeMap<&'static str, String>,
}

impl Tenant {
    async fn make(line: &mut ApiConnection, uid: &str) -> Result<Self, CannotRun> {
        let tenant = made(line, "/v1/tenants", &[], &format!(r#"{{"uid": "{uid}"}}"#)).await?;
        let keys = format!("/v1/tenants/{uid}/keys");
        let answer = line.call(Method::POST, &keys, &[], SCOPES).await?;
        let text = |name: &str| answer.text(name).map(str::to_owned);
        let (Some(key), Some(key_id)) = (text("key"), text("id")) else {
            return Err(CannotRun(format!("no key for a tenant: {}", answer.body)));
        };
        let mut ours = Self { key, ids: BTreeMap::from([("tenants", tenant), ("keys", key_id)]) };
        let bearer = ours.bearer();
        let head: &[(&str, &str)] = &[("authorization", &bearer)];
        let endpoint = r#"{"url": "http://127.0.0.1:9999/not-listening"}"#;
        // Policies are looked up by name, so each tenant's policy has a different one.
        let policy = r#"{"strategy": "fixed", "base": "9s"}"#;
        line.call(Method::PUT, &format!("/v1/policies/{uid}"), head, policy).await?.expect(StatusCode::OK)?;
        ours.ids.insert("policies", uid.to_owned());
        ours.ids.insert("endpoints", made(line, "/v1/endpoints", head, endpoint).await?);
        let later = routes::later(line, head).await?;
        let waits = format!(r#"{{"payload": 1, "subject": "{uid}-customer", "deliver_at": "{later}"}}"#);
        ours.ids.insert("subjects", format!("{uid}-customer"));
        ours.ids.insert("messages", made(line, "/v1/messages", head, &waits).await?);
        let replay = made(line, "/v1/replays", head, r#"{"select": {}}"#).await?;
        // The replay changes by itself until it is done, which must be before the first comparison.
        let path = format!("/v1/replays/{replay}");
        let done = async || Ok(line.call(Method::GET, &path, head, "").await?.text("state") == Some("done"));
        wait("the end of an empty replay", SETTLES_WITHIN, done).await?;
        ours.ids.insert("replays", replay);
        ours.ids.insert("deliveries", line.call(Method::GET, "/v1/deliveries", head, "").await?.id()?);
        Ok(ours)
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.key)
    }

    async fn call(
        &self,
        line: &mut ApiConnection,
        method: Method,
        path: &str,
        body: &str,
    ) -> Result<ApiAnswer, CannotRun> {
        Ok(line.call(method, path, &[("authorization", &self.bearer())], body.to_owned()).await?)
    }

    /// All objects of this tenant, as the API shows them to it.
    async fn looks(&self, line: &mut ApiConnection) -> Result<Vec<String>, CannotRun> {
        let mut seen = Vec::new();
        for path in ["/v1/endpoints", "/v1/messages", "/v1/deliveries", "/v1/replays", "/v1/policies"] {
            seen.push(self.call(line, Method::GET, path, "").await?.body);
        }
        let message = format!("/v1/messages/{}?content=true", self.ids["messages"]);
        let export = format!("/v1/subjects/{}/export", self.ids["subjects"]);
        for path in [message, export] {
            seen.push(self.call(line, Method::GET, &path, "").await?.body);
        }
        Ok(seen)
    }
}

async fn made(line: &mut ApiConnection, path: &str, head: &[(&str, &str)], body: &str) -> Result<String, CannotRun> {
    line.call(Method::POST, path, head, body.to_owned()).await?.id()
}

/// Counts of the pairs of requests compared, and of their differences.
#[derive(Default)]
struct Tally {
    routes: usize,
    untried: usize,
    pairs: usize,
    told_apart: usize,
    not_404: usize,
}

impl Tally {
    /// Calls a route with an id of another tenant's object, and with one that does not exist.
    async fn ask(
        &mut self,
        line: &mut ApiConnection,
        route: &DocumentedRoute,
        ours: &Tenant,
        theirs: &Tenant,
    ) -> Result<(), CannotRun> {
        self.routes += 1;
        let kind = route.path.split('/').nth(2).unwrap_or_default();
        // Breakers are named by the id of their endpoint.
        let Some(id) = theirs.ids.get(if kind == "breakers" { "endpoints" } else { kind }) else {
            self.untried += 1;
            eprintln!("no object of another tenant for {route}");
            return Ok(());
        };
        if route.takes_put_names() {
            return Ok(());
        }
        let method: Method = route.method.parse()?;
        let with = |name: &str| routes::with_names(&route.path, name);
        let known = ours.call(line, method.clone(), &with(id), route.least()).await?;
        let never = ours.call(line, method, &with(&alike(id)), route.least()).await?;
        let status = match route {
            route if route.is_operators => 403,
            route if route.names_subjects() => 200,
            _ => 404,
        };
        self.compare(&route.to_string(), &known, &never, status);
        Ok(())
    }

    /// The same for an id in a query or a body.
    async fn ask_within(
        &mut self,
        line: &mut ApiConnection,
        kind: &str,
        route: &str,
        body: &str,
        ours: &Tenant,
        theirs: &Tenant,
    ) -> Result<(), CannotRun> {
        let (method, path) = route.split_once(' ').unwrap_or_default();
        let method: Method = method.parse()?;
        let id = &theirs.ids[kind];
        let mut answers = Vec::new();
        for id in [id.clone(), alike(id)] {
            answers.push(ours.call(line, method.clone(), &path.replace("ID", &id), &body.replace("ID", &id)).await?);
        }
        // The status depends on the route, but must be the same for both ids.
        let status = answers[1].status.as_u16();
        self.compare(route, &answers[0], &answers[1], status);
        Ok(())
    }

    fn compare(&mut self, what: &str, known: &ApiAnswer, never: &ApiAnswer, status: u16) {
        self.pairs += 1;
        if let Some(difference) = difference(known, never) {
            self.told_apart += 1;
            eprintln!("answers differ: {what}: {difference}");
        }
        if known.status != status {
            self.not_404 += 1;
            eprintln!("not {status}: {what}: {} {}", known.status, known.body);
        }
    }
}

/// The difference between two answers, if there is any beside the request id and the date.
fn difference(one: &ApiAnswer, other: &ApiAnswer) -> Option<String> {
    let head = |answer: &ApiAnswer| {
        let mut fields: Vec<(String, Vec<u8>)> = answer
            .headers
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), "request-id" | "date"))
            .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
            .collect();
        fields.sort();
        fields
    };
    if one.status != other.status {
        return Some(format!("{} and {}", one.status, other.status));
    }
    if without_times(&one.body) != without_times(&other.body) {
        return Some(format!("{} and {}", one.body, other.body));
    }
    (head(one) != head(other)).then(|| format!("{:?} and {:?}", one.headers, other.headers))
}

/// A body without the fields that depend on the time of the request alone: the times of an erasure, and its audit row.
fn without_times(body: &str) -> String {
    let Ok(Value::Object(mut fields)) = serde_json::from_str(body) else { return body.to_owned() };
    ["erased_at", "swept_at", "audit_row"].into_iter().for_each(|name| _ = fields.remove(name));
    Value::Object(fields).to_string()
}

/// An id of the same form that does not exist.
fn alike(id: &str) -> String {
    match id.split_once('_') {
        Some((prefix, rest)) => never(&format!("{prefix}_"), rest.len()),
        None => never("", id.len()),
    }
}

fn never(prefix: &str, letters: usize) -> String {
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let bytes: [u8; 32] = random::bytes();
    let letter = |byte: &u8| char::from(ALPHABET[usize::from(*byte % 32)]);
    prefix.chars().chain(bytes.iter().cycle().take(letters).map(letter)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_id_has_the_form_of_a_known_one() {
        let never = alike("msg_0123456789abcdef");
        assert!(never.starts_with("msg_") && never.len() == 20, "{never}");
        assert_ne!(never, alike("msg_0123456789abcdef"));
    }
}
