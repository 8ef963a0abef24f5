//! The proof `api`: good and bad requests to every route of `/openapi.json`, over real HTTP.
//!
//! The routes come from the server itself, whose own tests compare that document with its router. A route without a
//! case here fails the proof. Requests that every route must refuse in the same way (an unknown parameter, an unknown
//! key, a body that is not JSON, an id that does not exist) are tried on every route that they apply to.

mod cases;
pub(crate) mod routes;

use std::path::Path;

use hyper::Method;

use crate::fixtures::{ApiAnswer, Launch, binary, block_on};
use crate::prove::{CannotRun, Figure, Findings, Options, count};
use cases::{ApiCase, CASES};
use routes::{ApiWorld, DocumentedRoute};

/// Runs the proof. It takes seconds, so there is no shorter form.
pub fn run(_: &Options) -> Findings {
    block_on(prove(&binary()?))
}

async fn prove(binary: &Path) -> Findings {
    let folder = tempfile::tempdir()?;
    let server = Launch::new(binary, folder.path()).start()?;
    let mut world = ApiWorld::begin(server.address).await?;
    let routes = routes::documented(&mut world.line).await?;
    let mut trial = Trial::default();
    let mut untried = 0;
    for route in &routes {
        let mine = CASES.iter().filter(|case| case.is_of(route)).count();
        if mine == 0 {
            eprintln!("no case for {route}");
            untried += 1;
        }
        trial.bad(&mut world, route).await?;
    }
    // In the order of the list: a request that ends an object comes after those that need it.
    for case in CASES {
        if let Some(route) = routes.iter().find(|route| case.is_of(route)) {
            trial.good(&mut world, route, case).await?;
        }
    }
    let control = trial.control(&mut world).await?;
    Ok(vec![
        Figure::at_least("routes", count(routes.len()), "routes", 25.0),
        Figure::at_most("routes_without_a_case", count(untried), "routes", 0.0),
        Figure::at_least("good_requests", count(trial.good), "requests", count(routes.len())),
        Figure::at_least("bad_requests", count(trial.bad), "requests", 100.0),
        Figure::at_most("answered_otherwise", count(trial.wrong), "requests", 0.0),
        Figure::at_least("control_caught", count(control), "requests", 1.0),
    ])
}

/// Counts of the requests tried, and of those answered wrongly.
#[derive(Debug, Default)]
struct Trial {
    good: usize,
    bad: usize,
    wrong: usize,
}

impl Trial {
    async fn good(&mut self, world: &mut ApiWorld, route: &DocumentedRoute, case: &ApiCase) -> Result<(), CannotRun> {
        let path = world.path(&route.path);
        let answer = world.line.call_as(method(route)?, &path, &[], route.declared(), world.filled(case.body)).await?;
        self.good += 1;
        world.learn(route, &answer);
        self.check(&format!("{route} with {}", case.body), is_good(&answer, case.status), &answer);
        Ok(())
    }

    /// Tries the requests that every route must refuse.
    async fn bad(&mut self, world: &mut ApiWorld, route: &DocumentedRoute) -> Result<(), CannotRun> {
        for bad in refused(route, &world.path(&route.path))? {
            let Bad { what, method, path, head, declared, body, status, code } = bad;
            let answer = world.line.call_as(method, &path, head, declared, body).await?;
            self.bad += 1;
            self.check(&format!("{route}: wrong {what}"), is_problem(&answer, status, code), &answer);
        }
        Ok(())
    }

    fn check(&mut self, what: &str, holds: bool, answer: &ApiAnswer) {
        if !holds {
            self.wrong += 1;
            eprintln!("unexpected answer: {what}: {} {}", answer.status, answer.body);
        }
    }

    /// The control: counts 1 if the checks accept a `404` as what it is, and not as a success or as another problem.
    async fn control(&self, world: &mut ApiWorld) -> Result<usize, CannotRun> {
        let answer = world.line.call(Method::GET, "/v1/messages/no-such-id", &[], "").await?;
        let caught = !is_good(&answer, 200) && !is_problem(&answer, 404, "another_code");
        Ok(usize::from(caught && is_problem(&answer, 404, "not_found")))
    }
}

/// A request that must be refused.
struct Bad {
    what: &'static str,
    method: Method,
    path: String,
    head: &'static [(&'static str, &'static str)],
    declared: &'static str,
    body: &'static str,
    status: u16,
    code: &'static str,
}

/// The bad requests that apply to a route; `path` is a valid path of it.
fn refused(route: &DocumentedRoute, path: &str) -> Result<Vec<Bad>, CannotRun> {
    let usual = |what, status, code| {
        let (path, declared) = (path.to_owned(), route.declared());
        Ok::<_, CannotRun>(Bad { what, method: method(route)?, path, head: &[], declared, body: "", status, code })
    };
    let mut all = vec![Bad { method: Method::TRACE, ..usual("method", 405, "method_not_allowed")? }];
    if route.is_guarded {
        let head: &'static [_] = &[("authorization", "Bearer ph_tn_nobody")];
        all.push(Bad { head, ..usual("key", 401, "unauthorized")? });
        let path = format!("{path}?no_such_parameter=1");
        all.push(Bad { path, ..usual("parameter", 400, "unknown_parameter")? });
    }
    if route.names_subjects() {
        let path = routes::with_names(&route.path, "%00");
        all.push(Bad { path, ..usual("subject", 400, "invalid_parameter")? });
    } else if route.path.contains('{') && !route.takes_put_names() {
        let path = routes::with_names(&route.path, "no-such-id");
        all.push(Bad { path, body: route.least(), ..usual("id", 404, "not_found")? });
    }
    if route.takes_body {
        all.push(Bad { declared: "text/plain", body: "a=1", ..usual("content type", 415, "not_json")? });
    }
    if route.takes_body && !route.is_lines() {
        all.push(Bad { body: "{", ..usual("body", 400, "invalid_json")? });
        all.push(Bad { body: r#"{"no_such_field": 1}"#, ..usual("field", 400, "invalid_body")? });
    }
    Ok(all)
}

fn method(route: &DocumentedRoute) -> Result<Method, CannotRun> {
    Ok(route.method.parse()?)
}

fn is_good(answer: &ApiAnswer, status: u16) -> bool {
    let declared = answer.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_declared = match status {
        204 => answer.body.is_empty(),
        // The right answer where the object is in a state that no longer allows the request.
        409 => declared == "application/problem+json",
        _ => !declared.is_empty() && declared != "application/problem+json",
    };
    answer.status == status && is_declared && answer.headers.contains_key("request-id")
}

fn is_problem(answer: &ApiAnswer, status: u16, code: &str) -> bool {
    let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap_or_default();
    let has_text = |name: &str| body[name].as_str().is_some_and(|text| !text.is_empty());
    answer.status == status
        && answer.headers.get("content-type").is_some_and(|declared| declared == "application/problem+json")
        && answer.headers.contains_key("request-id")
        && body["status"] == status
        && body["code"] == code
        && ["type", "title", "detail"].into_iter().all(has_text)
}
