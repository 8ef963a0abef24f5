//! The proof `isolation`: every route that names something, asked by one tenant for what another has.
//!
//! The routes come from the server's own `/openapi.json`. Each is asked twice with a tenant's key: with the id of
//! something another tenant has, and with one that never was. Both answers must be the same, byte for byte and head
//! for head, but for the request's own id and the date. A subject is anybody: one of another tenant's is answered as one
//! that never was, with nothing held and nothing gone. The other tenant's things are looked at before and after.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use hyper::{Method, StatusCode};
use posthaste_crypto::random;
use serde_json::Value;
use tokio::time::Instant;

use crate::api::routes::{self, Route};
use crate::caller::{Answer, Line};
use crate::posthaste::{self, Launch};
use crate::prove::{Figure, Findings, Options};

/// What a tenant's key may do at most.
const SCOPES: &str = r#"{"scopes": ["send", "read", "manage", "replay", "secrets", "privacy"]}"#;

/// How soon a replay of nothing is done, on a machine that does other work.
const SETTLES_WITHIN: Duration = Duration::from_secs(20);

/// Runs the proof. It takes seconds: the short form is the whole.
pub fn run(_: &Options) -> Findings {
    let binary = posthaste::binary()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(prove(&binary))?)
}

async fn prove(binary: &Path) -> io::Result<Vec<Figure>> {
    let folder = tempfile::tempdir()?;
    let server = Launch::new(binary, folder.path()).start()?;
    let mut line = Line::open(server.address).await?;
    let ours = Tenant::make(&mut line, "ours").await?;
    let theirs = Tenant::make(&mut line, "theirs").await?;
    let before = theirs.looks(&mut line).await?;
    let routes = routes::told(&mut line).await?;
    let mut tally = Tally::default();
    for route in routes.iter().filter(|route| route.is_guarded && route.path.contains('{')) {
        tally.ask(&mut line, route, &ours, &theirs).await?;
    }
    for (route, path, body) in elsewhere() {
        tally.ask_within(&mut line, route, path, body, &ours, &theirs).await?;
    }
    let after = theirs.looks(&mut line).await?;
    for (before, after) in before.iter().zip(&after).filter(|(before, after)| before != after) {
        eprintln!("another tenant's things changed: {before} is now {after}");
    }
    let stays = after == before;
    // What somebody has is told from what never was: the comparison must see that.
    let own = Method::GET;
    let path = |id: &str| format!("/v1/endpoints/{id}");
    let known = ours.call(&mut line, own.clone(), &path(&ours.ids["endpoints"]), "").await?;
    let never = ours.call(&mut line, own, &path(&never("ep_", 26)), "").await?;
    let caught = usize::from(told_apart(&known, &never).is_some());
    let count = |count: usize| u32::try_from(count).map_or(f64::INFINITY, f64::from);
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

/// Ids that stand elsewhere than in a path: `ID` is one.
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

/// A tenant with one of everything.
struct Tenant {
    key: String,
    ids: BTreeMap<&'static str, String>,
}

impl Tenant {
    async fn make(line: &mut Line, uid: &str) -> io::Result<Self> {
        let tenant = made(line, "/v1/tenants", &[], &format!(r#"{{"uid": "{uid}"}}"#)).await?;
        let keys = format!("/v1/tenants/{uid}/keys");
        let answer = line.call(Method::POST, &keys, &[], SCOPES).await?;
        let text = |name: &str| answer.text(name).map(str::to_owned);
        let (Some(key), Some(key_id)) = (text("key"), text("id")) else {
            return Err(io::Error::other(format!("no key for a tenant: {}", answer.body)));
        };
        let mut ours = Self { key, ids: BTreeMap::from([("tenants", tenant), ("keys", key_id)]) };
        let bearer = ours.bearer();
        let head: &[(&str, &str)] = &[("authorization", &bearer)];
        let endpoint = r#"{"url": "http://127.0.0.1:9999/nobody-listens"}"#;
        // Under a name of its own: names are what policies are asked for by.
        let policy = r#"{"strategy": "fixed", "base": "9s"}"#;
        line.call(Method::PUT, &format!("/v1/policies/{uid}"), head, policy).await?.expect(StatusCode::OK)?;
        ours.ids.insert("policies", uid.to_owned());
        ours.ids.insert("endpoints", made(line, "/v1/endpoints", head, endpoint).await?);
        let later = routes::later(line, head).await?;
        let waits = format!(r#"{{"payload": 1, "subject": "{uid}-customer", "deliver_at": "{later}"}}"#);
        ours.ids.insert("subjects", format!("{uid}-customer"));
        ours.ids.insert("messages", made(line, "/v1/messages", head, &waits).await?);
        let replay = made(line, "/v1/replays", head, r#"{"select": {}}"#).await?;
        // What changes by itself must have done so before anybody compares.
        let path = format!("/v1/replays/{replay}");
        let until = Instant::now() + SETTLES_WITHIN;
        while line.call(Method::GET, &path, head, "").await?.text("state") != Some("done") {
            if Instant::now() > until {
                return Err(io::Error::other("a replay of nothing is not done"));
            }
        }
        ours.ids.insert("replays", replay);
        let listed = line.call(Method::GET, "/v1/deliveries", head, "").await?;
        let delivery = listed.text("id").ok_or_else(|| io::Error::other("a message has no delivery"))?;
        ours.ids.insert("deliveries", delivery.to_owned());
        Ok(ours)
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.key)
    }

    async fn call(&self, line: &mut Line, method: Method, path: &str, body: &str) -> io::Result<Answer> {
        line.call(method, path, &[("authorization", &self.bearer())], body.to_owned()).await
    }

    /// Everything of this tenant's, as it sees it.
    async fn looks(&self, line: &mut Line) -> io::Result<Vec<String>> {
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

async fn made(line: &mut Line, path: &str, head: &[(&str, &str)], body: &str) -> io::Result<String> {
    let answer = line.call(Method::POST, path, head, body.to_owned()).await?;
    let id = answer.text("id").map(str::to_owned);
    id.ok_or_else(|| io::Error::other(format!("POST {path} answered {}: {}", answer.status, answer.body)))
}

/// What was asked, and what was seen.
#[derive(Default)]
struct Tally {
    routes: usize,
    untried: usize,
    pairs: usize,
    told_apart: usize,
    not_404: usize,
}

impl Tally {
    /// Asks a route for what another tenant has, and for what never was.
    async fn ask(&mut self, line: &mut Line, route: &Route, ours: &Tenant, theirs: &Tenant) -> io::Result<()> {
        self.routes += 1;
        let kind = route.path.split('/').nth(2).unwrap_or_default();
        // A breaker is an endpoint's.
        let id = match kind {
            "breakers" => theirs.ids.get("endpoints").map(String::as_str),
            kind => theirs.ids.get(kind).map(String::as_str),
        };
        let Some(id) = id else {
            self.untried += 1;
            eprintln!("nothing of another tenant's to ask {route} for");
            return Ok(());
        };
        if route.takes_put_names() {
            return Ok(());
        }
        let method: Method = route.method.parse().map_err(io::Error::other)?;
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
        line: &mut Line,
        kind: &str,
        route: &str,
        body: &str,
        ours: &Tenant,
        theirs: &Tenant,
    ) -> io::Result<()> {
        let (method, path) = route.split_once(' ').unwrap_or_default();
        let method: Method = method.parse().map_err(io::Error::other)?;
        let id = &theirs.ids[kind];
        let mut answers = Vec::new();
        for id in [id.clone(), alike(id)] {
            answers.push(ours.call(line, method.clone(), &path.replace("ID", &id), &body.replace("ID", &id)).await?);
        }
        // What is named in a body or a filter may be answered otherwise, but never differently.
        let status = answers[1].status.as_u16();
        self.compare(route, &answers[0], &answers[1], status);
        Ok(())
    }

    fn compare(&mut self, what: &str, known: &Answer, never: &Answer, status: u16) {
        self.pairs += 1;
        if let Some(difference) = told_apart(known, never) {
            self.told_apart += 1;
            eprintln!("told apart: {what}: {difference}");
        }
        if known.status != status {
            self.not_404 += 1;
            eprintln!("not {status}: {what}: {} {}", known.status, known.body);
        }
    }
}

/// What tells two answers apart, but for the request's own id and the date.
fn told_apart(one: &Answer, other: &Answer) -> Option<String> {
    let head = |answer: &Answer| {
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
    if without_when(&one.body) != without_when(&other.body) {
        return Some(format!("{} and {}", one.body, other.body));
    }
    (head(one) != head(other)).then(|| format!("{:?} and {:?}", one.headers, other.headers))
}

/// A body without what tells of the moment and nothing else: when something was erased, and by which row.
fn without_when(body: &str) -> String {
    let Ok(Value::Object(mut fields)) = serde_json::from_str(body) else { return body.to_owned() };
    ["erased_at", "swept_at", "audit_row"].into_iter().for_each(|name| _ = fields.remove(name));
    Value::Object(fields).to_string()
}

/// An id that never was, of the same form.
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
    fn an_id_that_never_was_looks_like_one_that_is() {
        let never = alike("msg_0123456789abcdef");
        assert!(never.starts_with("msg_") && never.len() == 20, "{never}");
        assert_ne!(never, alike("msg_0123456789abcdef"));
    }
}
