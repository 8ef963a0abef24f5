//! The proof `redaction`: the real binary, with its log at `trace`, leaks no secret field into logs, metrics, errors or
//! listings (L7).
//!
//! Every secret field gets a canary: a unique text that is a leak wherever it appears. Answers that must show a secret
//! to its owner (a new endpoint, a new key) are not searched; everything that another caller, an operator or a
//! collector of logs and metrics reads is.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::HeaderValue;
use hyper::{Method, Request, StatusCode};
use tokio::sync::Notify;

use crate::fixtures::{ApiAnswer, ApiConnection, Launch, Posthaste, binary, block_on};
use crate::prove::{CannotRun, Context, Figure, Findings, Options, count};
use crate::receivers::{HttpReceiver, Responder, TimedResponse};

/// The least number of canaries: with fewer, the API has lost a field, or the proof does not fill it.
const CANARIES_LEAST: usize = 12;
/// The least number of log lines at `trace`: with fewer, the log was not captured.
const LOG_LINES_LEAST: usize = 20;
/// The longest wait for the first attempt.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

pub fn run(options: &Options) -> Findings {
    let binary = binary()?;
    // Both log formats; the quick form of the proof checks the text format only.
    let formats: &[&str] = if options.quick { &["text"] } else { &["text", "json"] };
    let mut whole = Collected::default();
    let mut canaries = usize::MAX;
    for format in formats {
        let folder = tempfile::tempdir()?;
        canaries = canaries.min(block_on(play(&binary, folder.path(), format, &mut whole))?);
    }
    Ok(whole.figures(canaries))
}

/// Counts of canaries found, by place, and of the texts searched.
#[derive(Debug, Default)]
struct Collected {
    in_logs: usize,
    in_metrics: usize,
    in_errors: usize,
    in_listings: usize,
    log_lines: usize,
    answers: usize,
    control: usize,
}

impl Collected {
    fn figures(&self, canaries: usize) -> Vec<Figure> {
        vec![
            Figure::at_least("canaries", count(canaries), "canaries", count(CANARIES_LEAST)),
            Figure::at_most("in_logs", count(self.in_logs), "canaries", 0.0),
            Figure::at_most("in_metrics", count(self.in_metrics), "canaries", 0.0),
            Figure::at_most("in_errors", count(self.in_errors), "canaries", 0.0),
            Figure::at_most("in_listings", count(self.in_listings), "canaries", 0.0),
            Figure::at_least("log_lines", count(self.log_lines), "lines", count(LOG_LINES_LEAST)),
            Figure::at_least("answers_looked_at", count(self.answers), "answers", 20.0),
            // The control: one leak is planted in the collected log.
            Figure::at_least("control_caught", count(self.control), "canaries", 1.0),
        ]
    }
}

/// The canaries, each with the field it was planted in.
#[derive(Debug, Default)]
struct Canaries(Vec<(&'static str, String)>);

impl Canaries {
    /// A new canary for a field.
    fn plant(&mut self, field: &'static str) -> String {
        let random: [u8; 12] = posthaste_crypto::random::bytes();
        let text: String = random.iter().map(|byte| char::from(b'a' + byte % 26)).collect();
        let canary = format!("canary{text}");
        self.0.push((field, canary.clone()));
        canary
    }

    /// The canaries of an endpoint's fields that only its tenant may read. Operators may see its names.
    fn endpoint_secrets(&self) -> Self {
        let own = ["a URL's path", "a URL's query", "a signing secret", "a custom header"];
        Self(self.0.iter().filter(|(field, _)| own.contains(field)).cloned().collect())
    }

    /// All canaries but that of one field.
    fn but(&self, spared: &str) -> Self {
        Self(self.0.iter().filter(|(field, _)| *field != spared).cloned().collect())
    }

    /// How many of the canaries are in a text. Prints each of them.
    fn found_in(&self, text: &str, place: &str) -> usize {
        let found: Vec<_> = self.0.iter().filter(|(_, canary)| text.contains(canary.as_str())).collect();
        for (field, canary) in &found {
            let line = text.lines().find(|line| line.contains(canary.as_str())).unwrap_or_default();
            eprintln!("{field} leaks into {place}: {}", line.chars().take(300).collect::<String>());
        }
        found.len()
    }
}

/// Runs one server, adds what it leaks to `collected`, and returns the number of canaries.
async fn play(binary: &Path, folder: &Path, format: &str, collected: &mut Collected) -> Result<usize, CannotRun> {
    let log = folder.join("log");
    let launch = Launch::new(binary, folder)
        .with("POSTHASTE_LOG", "trace")
        .with("POSTHASTE_LOG_FORMAT", format)
        .complaining_to(&log);
    let mut server = launch.start()?;
    let mut world = World::new(&server).await?;
    world.plant().await?;
    world.refuse().await?;
    world.look(collected).await?;
    let (canaries, _receiver) = (world.canaries, world.failing);
    if !server.stop()?.success() {
        return Err(CannotRun("the server exited with an error".to_owned()));
    }
    let log = std::fs::read_to_string(&log)?;
    collected.in_logs += canaries.found_in(&log, "the log");
    collected.log_lines += log.lines().count();
    let (field, canary) = &canaries.0[0];
    eprintln!("control: a leak of {field} is planted in the log and must be found");
    collected.control += canaries.found_in(&format!("{log}\nleaked {canary}"), "the log, on purpose");
    Ok(canaries.0.len())
}

/// A server, its callers, and the canaries planted through them.
struct World {
    line: ApiConnection,
    canaries: Canaries,
    tenant: String,
    tenant_key: String,
    operator_key: String,
    /// The bodies of refusals. They must not contain canaries.
    errors: Vec<String>,
    failing: HttpReceiver<Refusal>,
}

impl World {
    async fn new(server: &Posthaste) -> Result<Self, CannotRun> {
        let line = ApiConnection::open(server.address).await?;
        let mut canaries = Canaries::default();
        // A receiver's answer is secret too: it may repeat the payload.
        let refusal = Refusal { body: canaries.plant("a receiver's answer"), requested: Notify::new() };
        let failing = HttpReceiver::listen(refusal).await?;
        let [tenant, tenant_key, operator_key] = [const { String::new() }; 3];
        Ok(Self { line, canaries, tenant, tenant_key, operator_key, errors: Vec::new(), failing })
    }

    /// Fills every secret field with a canary, and sends a message whose delivery fails.
    async fn plant(&mut self) -> Result<(), CannotRun> {
        let uid = self.canaries.plant("a tenant's uid");
        self.operate(Method::POST, "/v1/tenants", &format!(r#"{{"uid":"{uid}"}}"#))
            .await?
            .expect(StatusCode::CREATED)?;
        let operator = self.operate(Method::POST, "/v1/keys", "{}").await?.expect(StatusCode::CREATED)?;
        let operator = operator.text("key").context("a key without a key")?.to_owned();
        self.canaries.0.push(("an operator key", operator.clone()));
        self.operator_key = operator;
        let description = self.canaries.plant("a key's description");
        let path = format!("/v1/tenants/{uid}/keys");
        let body = format!(r#"{{"description":"{description}"}}"#);
        let key = self.operate(Method::POST, &path, &body).await?.expect(StatusCode::CREATED)?;
        let key = key.text("key").context("a key without a key")?.to_owned();
        self.canaries.0.push(("an API key", key.clone()));
        self.tenant_key = key;
        self.tenant = uid;
        let endpoint = self.endpoint().await?;
        let (payload, subject) = (self.canaries.plant("a payload"), self.canaries.plant("a subject"));
        let once = self.canaries.plant("an idempotency key");
        let rest = format!(r#""event_type":"order.paid","payload":{{"card":"{payload}"}},"ttl":"1h""#);
        let bodies = [format!(r#"{{{rest},"subject":"{subject}"}}"#), format!("{{{rest}}}")];
        for body in bodies {
            let headers = [("idempotency-key", once.as_str())];
            let answer = self.call(Method::POST, "/v1/messages", &headers, &body).await?;
            if answer.status == StatusCode::ACCEPTED {
                return self.is_tried(&endpoint).await;
            }
            self.errors.push(answer.body);
        }
        Err(CannotRun("no message was accepted".to_owned()))
    }

    /// Creates an endpoint with all fields set, except those that this version refuses.
    async fn endpoint(&mut self) -> Result<String, CannotRun> {
        let (path, query) = (self.canaries.plant("a URL's path"), self.canaries.plant("a URL's query"));
        let url = format!("http://{}/{path}?token={query}", self.failing.address);
        let secret = self.canaries.plant("a signing secret");
        let secret = format!("whsec_{secret}{}", "A".repeat(44 - secret.len()));
        let mut fields = vec![
            ("url", format!("\"{url}\"")),
            ("signing", format!(r#"{{"secret":"{secret}"}}"#)),
            ("status_overrides", r#"{"5xx":"dead"}"#.to_owned()),
            ("max_in_flight", "1".to_owned()),
            ("uid", format!("\"{}\"", self.canaries.plant("an endpoint's uid"))),
            ("description", format!("\"{}\"", self.canaries.plant("an endpoint's description"))),
            ("subject", format!("\"{}\"", self.canaries.plant("an endpoint's subject"))),
            ("tags", format!("[\"{}\"]", self.canaries.plant("a tag"))),
            ("headers", format!(r#"{{"x-token":"{}"}}"#, self.canaries.plant("a custom header"))),
        ];
        loop {
            let body: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
            let answer = self.call(Method::POST, "/v1/endpoints", &[], &format!("{{{}}}", body.join(","))).await?;
            if answer.status == StatusCode::CREATED {
                return answer.id();
            }
            let before = fields.len();
            fields.retain(|(name, _)| !answer.body.contains(&format!("\"pointer\":\"/{name}")));
            if fields.len() == before {
                return Err(CannotRun(format!("no endpoint was made: {}", answer.body)));
            }
            eprintln!("left out, since this version refuses it: {}", answer.body);
            self.errors.push(answer.body);
        }
    }

    /// Waits for an attempt, then pauses the endpoint, and for a moment an origin.
    async fn is_tried(&mut self, endpoint: &str) -> Result<(), CannotRun> {
        tokio::time::timeout(ENDS_WITHIN, self.failing.responder().requested.notified()).await?;
        let pause = format!("/v1/endpoints/{endpoint}/pause");
        self.call(Method::POST, &pause, &[], "").await?.expect(StatusCode::OK)?;
        let host = self.canaries.plant("a paused origin's host");
        let origin = format!(r#"{{"scope":"origin","id":"https://{host}.example"}}"#);
        for path in ["/v1/pause", "/v1/resume"] {
            self.operate(Method::POST, path, &origin).await?.expect(StatusCode::OK)?;
        }
        Ok(())
    }

    /// Makes requests that are refused, each with a canary where a secret would be.
    async fn refuse(&mut self) -> Result<(), CannotRun> {
        let token = self.canaries.plant("a URL that is refused");
        let payload = self.canaries.plant("a payload that is no JSON");
        let secret = self.canaries.plant("a secret that is none");
        let key = self.canaries.plant("a key that is none");
        for url in [
            format!("https://user:{token}@hooks.example/in"),
            format!("http://10.0.0.1/{token}"),
            format!("https://169.254.169.254/{token}"),
            format!("ftp://hooks.example/{token}"),
        ] {
            self.refused("/v1/endpoints", &format!(r#"{{"url":"{url}"}}"#)).await?;
        }
        let bad = format!(r#"{{"url":"https://hooks.example/","signing":{{"secret":"whsec_!{secret}"}}}}"#);
        self.refused("/v1/endpoints", &bad).await?;
        self.refused("/v1/messages", &format!(r#"{{"payload": {payload}}}"#)).await?;
        self.refused("/v1/messages", &format!(r#"{{"payload": "{payload}", "ttl": "-1s"}}"#)).await?;
        let wrong = format!("Bearer ph_tn_{key}");
        let headers = [("authorization", wrong.as_str())];
        let answer = self.line.call(Method::GET, "/v1/endpoints", &headers, String::new()).await?;
        self.errors.push(answer.expect(StatusCode::UNAUTHORIZED)?.body);
        Ok(())
    }

    async fn refused(&mut self, path: &str, body: &str) -> Result<(), CannotRun> {
        let answer = self.call(Method::POST, path, &[], body).await?;
        if !answer.status.is_client_error() {
            return Err(CannotRun(format!("{path} accepted a bad request: {}", answer.body)));
        }
        self.errors.push(answer.body);
        Ok(())
    }

    /// Searches everything that others than the owner of a secret can read.
    async fn look(&mut self, collected: &mut Collected) -> Result<(), CannotRun> {
        let lists = [
            "/v1/dead-letters",
            "/v1/deliveries",
            "/v1/replays",
            "/v1/breakers",
            "/v1/policies",
            "/v1/audit",
            "/v1/keys",
            "/readyz",
            "/healthz",
            "/openapi.json",
        ];
        let tenant = self.tenant.clone();
        let operator = format!("Bearer {}", self.operator_key);
        // With an operator's key: without one, the caller would be the owner of everything on a server for one person.
        let named = [("authorization", operator.as_str()), ("posthaste-tenant", tenant.as_str())];
        for path in lists {
            for headers in [&named[..], &named[..1]] {
                let answer = self.line.call(Method::GET, path, headers, String::new()).await?;
                collected.in_listings += self.canaries.found_in(&answer.body, path);
                collected.answers += 1;
            }
        }
        // The list of messages shows subjects, but never payloads.
        let messages = self.line.call(Method::GET, "/v1/messages", &named, String::new()).await?;
        collected.in_listings += self.canaries.but("a subject").found_in(&messages.body, "the list of messages");
        let endpoints = self.line.call(Method::GET, "/v1/endpoints", &named, String::new()).await?;
        collected.in_listings +=
            self.canaries.endpoint_secrets().found_in(&endpoints.body, "an operator's list of endpoints");
        let metrics =
            self.line.call(Method::GET, "/metrics", &named[..1], String::new()).await?.expect(StatusCode::OK)?;
        collected.in_metrics += self.canaries.found_in(&metrics.body, "the metrics");
        for error in &self.errors {
            collected.in_errors += self.canaries.found_in(error, "an error");
        }
        collected.answers += 3 + self.errors.len();
        Ok(())
    }

    async fn operate(&mut self, method: Method, path: &str, body: &str) -> Result<ApiAnswer, CannotRun> {
        Ok(self.line.call(method, path, &[], body.to_owned()).await?)
    }

    async fn call(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<ApiAnswer, CannotRun> {
        let key = format!("Bearer {}", self.tenant_key);
        let mut all = vec![("authorization", key.as_str())];
        all.extend_from_slice(headers);
        Ok(self.line.call(method, path, &all, body.to_owned()).await?)
    }
}

/// Answers every request with `500` and this body, and closes the connection.
#[derive(Debug)]
struct Refusal {
    body: String,
    requested: Notify,
}

impl Responder for Refusal {
    fn answer(&self, _: Request<Bytes>) -> TimedResponse {
        let mut answer = TimedResponse::from(StatusCode::INTERNAL_SERVER_ERROR);
        answer.response.headers_mut().insert("connection", HeaderValue::from_static("close"));
        *answer.response.body_mut() = self.body.clone().into();
        self.requested.notify_one();
        answer
    }
}
