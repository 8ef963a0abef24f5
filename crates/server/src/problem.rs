//! Refusals of the API: `application/problem+json` with a stable code.
//!
//! [`Code`] lists every code; `docs/errors.md` says what a client does about each, and a test keeps the two in step.

use std::fmt;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{StatusCode, Uri};
use posthaste_engine::accept::NotAccepted;
use posthaste_engine::endpoints::NotMade;
use posthaste_engine::engine::NotDone;
use posthaste_engine::field;
use posthaste_engine::replays::NotReplayed;
use posthaste_engine::tenants::NotFiled;
use posthaste_store::StoreError;
use schemars::JsonSchema;
use serde::Serialize;

use crate::object::escaped;
use crate::request_id;
use crate::value::ApiWord;

macro_rules! codes {
    ($($name:ident $code:literal $status:ident $title:literal;)*) => {
        /// The code of a refusal. A code never changes its meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code {
            $(#[doc = $title] $name,)*
        }

        impl Code {
            /// Every code, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $code,)* }
            }

            pub const fn status(self) -> StatusCode {
                match self { $(Self::$name => StatusCode::$status,)* }
            }

            /// What the code means, in one line; also the problem document's `title`.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }
        }
    };
}

codes! {
    InvalidJson "invalid_json" BAD_REQUEST "the body is not JSON";
    InvalidBody "invalid_body" BAD_REQUEST "a field of the body is missing or not valid";
    UnknownParameter "unknown_parameter" BAD_REQUEST "a query parameter is unknown";
    InvalidParameter "invalid_parameter" BAD_REQUEST "the value of a query parameter is not valid";
    NotBuiltYet "not_built_yet" BAD_REQUEST "this version cannot do that yet";
    InvalidIdempotencyKey "invalid_idempotency_key" BAD_REQUEST "the idempotency key is not valid";
    TargetRefused "target_refused" BAD_REQUEST "messages may not be sent to the URL";
    EndpointUnknown "endpoint_unknown" BAD_REQUEST "a named endpoint does not exist";
    TooManyEndpoints "too_many_endpoints" BAD_REQUEST "the message is for more endpoints than one message may have";
    TenantRequired "tenant_required" BAD_REQUEST "the request does not name a tenant";
    Unauthorized "unauthorized" UNAUTHORIZED "the API key is missing or unknown";
    ScopeMissing "scope_missing" FORBIDDEN "the API key does not allow the request";
    ForbiddenOrigin "forbidden_origin" FORBIDDEN "the request's Origin or Host is not allowed";
    NotFound "not_found" NOT_FOUND "the route or the object does not exist";
    MethodNotAllowed "method_not_allowed" METHOD_NOT_ALLOWED "the route does not take this method";
    BodyTooSlow "body_too_slow" REQUEST_TIMEOUT "the body did not arrive in time";
    BodyTooLarge "body_too_large" PAYLOAD_TOO_LARGE "the body is too large";
    PayloadTooLarge "payload_too_large" PAYLOAD_TOO_LARGE "the payload is too large";
    NotJson "not_json" UNSUPPORTED_MEDIA_TYPE "the body is not declared as JSON";
    IdempotencyKeyReused "idempotency_key_reused" UNPROCESSABLE_ENTITY "the idempotency key belongs to another request";
    IdempotencyInProgress "idempotency_in_progress" CONFLICT "the first request with the key is still running";
    DeliveryEnded "delivery_ended" CONFLICT "the delivery has ended";
    ReplayEnded "replay_ended" CONFLICT "the replay has ended";
    NoNewerKey "no_newer_key" CONFLICT "there is no newer master key to rotate to";
    NameTaken "name_taken" CONFLICT "the name or uid is taken";
    NotPaused "not_paused" CONFLICT "there is no such pause";
    PresetReadOnly "preset_read_only" CONFLICT "the policy is a preset, which cannot be changed";
    PolicyInUse "policy_in_use" CONFLICT "the policy is in use";
    TooManyPolicies "too_many_policies" CONFLICT "there are as many policies as are allowed";
    EndpointGone "endpoint_gone" CONFLICT "the endpoint is gone";
    TooManySecrets "too_many_secrets" CONFLICT "the endpoint already has as many secrets as are allowed";
    Conflict "conflict" CONFLICT "another change of it is under way";
    TooManyReplays "too_many_replays" TOO_MANY_REQUESTS "the tenant has as many running replays as are allowed";
    QuotaExceeded "quota_exceeded" TOO_MANY_REQUESTS "the tenant's quota is exceeded";
    Overloaded "overloaded" SERVICE_UNAVAILABLE "the server is overloaded";
    StoreUnavailable "store_unavailable" SERVICE_UNAVAILABLE "the store does not answer";
    DiskFull "disk_full" SERVICE_UNAVAILABLE "the disk is full";
    ShuttingDown "shutting_down" SERVICE_UNAVAILABLE "the server is shutting down";
}

/// `Retry-After` of a 503 that sets none of its own.
const RETRY_AFTER_SECONDS: u64 = 5;

/// `Retry-After` while an endpoint that was gone cannot be enabled yet: its cut stays in force for ten minutes.
const STILL_ENDING_SECONDS: u64 = 60;

/// `Retry-After` when a tenant has the most pending deliveries that it may have.
const ROOM_AFTER_SECONDS: u64 = 5;

/// `Retry-After` when a tenant has the most replays that may run at once: a small replay is done by then.
const REPLAY_AGAIN_SECONDS: u64 = 60;

/// One fault of a body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Complaint {
    /// The place in the body, as a JSON pointer.
    pub pointer: String,
    /// What is wrong, and what to do.
    pub detail: String,
}

/// The most complaints that an answer lists; further ones are only counted.
const COMPLAINTS_MAX: usize = 20;

/// The faults of a body: the first 20 as complaints, and the number of further ones.
#[derive(Debug, Default)]
pub struct Complaints {
    pub(crate) listed: Vec<Complaint>,
    further: usize,
}

impl Complaints {
    /// The number of all complaints, listed or not.
    pub fn count(&self) -> usize {
        self.listed.len() + self.further
    }

    /// Adds a complaint. `complaint` is called only if the complaint is listed.
    pub fn add(&mut self, complaint: impl FnOnce() -> Complaint) {
        if self.listed.len() < COMPLAINTS_MAX {
            self.listed.push(complaint());
        } else {
            self.further += 1;
        }
    }

    pub fn absorb(&mut self, others: Self) {
        self.further += others.further;
        others.listed.into_iter().for_each(|one| self.add(|| one));
    }
}

impl FromIterator<Complaint> for Complaints {
    fn from_iter<I: IntoIterator<Item = Complaint>>(all: I) -> Self {
        let mut complaints = Self::default();
        all.into_iter().for_each(|one| complaints.add(|| one));
        complaints
    }
}

/// A refusal with its code, a detail for people, and headers where they apply.
#[derive(Debug)]
pub struct Problem(Box<Inner>);

#[derive(Debug)]
struct Inner {
    code: Code,
    detail: String,
    errors: Vec<Complaint>,
    allow: Option<&'static str>,
    retry_after: Option<u64>,
}

/// The body of a refusal.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ProblemView<'a> {
    /// The code as a URI.
    r#type: String,
    /// What the code means.
    title: &'a str,
    /// The HTTP status.
    status: u16,
    /// What is wrong, and what to do.
    detail: &'a str,
    /// A stable code for programs; it never changes.
    code: ApiWord<Code>,
    /// The first 20 faults of the body.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [Complaint],
}

/// The refusal of a batch's line, which has no status and headers of its own: `status` is the HTTP status that the
/// message would get in a request of its own.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RefusedLine<'a> {
    #[serde(flatten)]
    problem: ProblemView<'a>,
    /// The number of seconds to wait before sending it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    /// The line of the request body that this answers, counted from 1.
    line: usize,
}

impl Problem {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner { code, detail: detail.into(), errors: Vec::new(), allow: None, retry_after: None }))
    }

    /// A refusal for the faults of a body. Its detail is the first complaint, for clients that do not read `errors`.
    pub fn with_complaints(code: Code, complaints: Complaints) -> Self {
        let Complaints { listed: errors, further } = complaints;
        let mut detail = errors.first().map(|first| format!("{}: {}", first.pointer, first.detail)).unwrap_or_default();
        if further > 0 {
            detail.push_str(&format!(" (the first of {}; {further} more are not listed)", errors.len() + further));
        }
        Self(Box::new(Inner { code, detail, errors, allow: None, retry_after: None }))
    }

    fn fault(code: Code, pointer: &str, detail: String) -> Self {
        Self::with_complaints(code, Complaints::from_iter([Complaint { pointer: pointer.to_owned(), detail }]))
    }

    pub fn no_route(uri: &Uri) -> Self {
        Self::new(Code::NotFound, format!("there is no route {}", uri.path()))
    }

    /// A refusal because the server has no capacity for the request now.
    pub(crate) fn overloaded() -> Self {
        Self::new(Code::Overloaded, "the server is overloaded; nothing was stored; send it again in a second").after(1)
    }

    /// An unknown id. The answer is the same for another tenant's id and for one that never existed.
    pub fn no_such(kind: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no {kind} with that id"))
    }

    pub fn method(uri: &Uri, allow: &'static str) -> Self {
        let mut problem = Self::new(Code::MethodNotAllowed, format!("{} takes {allow}", uri.path()));
        problem.0.allow = Some(allow);
        problem
    }

    /// Sets `Retry-After` to this number of seconds.
    #[must_use]
    pub fn after(mut self, seconds: u64) -> Self {
        self.0.retry_after = Some(seconds);
        self
    }

    pub fn code(&self) -> Code {
        self.0.code
    }

    /// `Retry-After` in seconds: the one set, or the default of a 503.
    fn retry_after(&self) -> Option<u64> {
        let own = (self.0.code.status() == StatusCode::SERVICE_UNAVAILABLE).then_some(RETRY_AFTER_SECONDS);
        self.0.retry_after.or(own)
    }

    fn view(&self) -> ProblemView<'_> {
        let Inner { code, detail, errors, .. } = &*self.0;
        ProblemView {
            r#type: format!("urn:posthaste:problem:{}", code.name()),
            title: code.title(),
            status: code.status().as_u16(),
            detail,
            code: ApiWord(*code),
            errors,
        }
    }

    /// Writes the refusal of a batch's line. `Retry-After` becomes the field `retry_after`.
    pub(crate) fn write_line(&self, number: usize, line: &mut Vec<u8>) {
        let refused = RefusedLine { problem: self.view(), retry_after: self.retry_after(), line: number };
        serde_json::to_writer(line, &refused).expect("texts and numbers always serialise");
    }
}

/// A read that failed. A write that failed is [`not_written`].
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        tracing::error!(
            { field::REQUEST } = request_id::log_field(),
            error = &error as &dyn std::error::Error,
            "the store could not be read"
        );
        Self::new(Code::StoreUnavailable, "the store could not be read; try again later")
    }
}

impl From<NotDone> for Problem {
    fn from(error: NotDone) -> Self {
        match error {
            NotDone::Ended(ended) => Self::new(Code::ShuttingDown, ended.to_string()),
            NotDone::Store(error) => error.into(),
        }
    }
}

impl From<NotMade> for Problem {
    fn from(error: NotMade) -> Self {
        let invalid = |pointer: &str, bad: &dyn fmt::Display| Self::fault(Code::InvalidBody, pointer, bad.to_string());
        match &error {
            NotMade::Store(error) => not_written(
                error,
                "the endpoint may have been created, which is known only after a restart; \
                 look for it in GET /v1/endpoints before you create it again",
            ),
            NotMade::UidTaken => Self::new(Code::NameTaken, error.to_string()),
            NotMade::KeyReused => Self::new(Code::IdempotencyKeyReused, error.to_string()),
            NotMade::Target(refusal) => {
                Self::fault(Code::TargetRefused, "/url", format!("{refusal} [{}]", refusal.code()))
            }
            NotMade::Secret(bad) => invalid("/signing/secret", bad),
            NotMade::Header { name: Some(name), bad } => invalid(&format!("/headers/{}", escaped(name)), bad),
            NotMade::Header { name: None, bad } => invalid("/headers", bad),
            NotMade::Override { status, bad } => invalid(&format!("/status_overrides/{}", escaped(status)), bad),
            NotMade::Zone(unknown) => invalid("/time_zone", unknown),
            NotMade::Tls(bad) => invalid(&bad.field().map_or("/tls".to_owned(), |field| format!("/tls/{field}")), bad),
            NotMade::TooManySecrets { until, now } => {
                let at = crate::value::write_time(*until);
                let detail = format!(
                    "{error}, and the next one stops at {at}: rotate again then, or end the older ones now with \
                     {{\"overlap\": \"0s\"}}"
                );
                Self::new(Code::TooManySecrets, detail).after(until.since(*now).as_secs() + 1)
            }
            NotMade::Stale => Self::new(Code::Conflict, error.to_string()),
            NotMade::StillEnding => Self::new(Code::Conflict, error.to_string()).after(STILL_ENDING_SECONDS),
            NotMade::Ended(ended) => Self::new(Code::ShuttingDown, ended.to_string()),
            NotMade::EventType { index, bad } => invalid(&format!("/event_types/{index}"), bad),
            NotMade::Policy(unknown) => invalid("/policy", unknown),
        }
    }
}

impl From<NotReplayed> for Problem {
    fn from(error: NotReplayed) -> Self {
        match error {
            NotReplayed::TooMany => Self::new(Code::TooManyReplays, error.to_string()).after(REPLAY_AGAIN_SECONDS),
            NotReplayed::KeyReused => Self::new(Code::IdempotencyKeyReused, error.to_string()),
            NotReplayed::Store(error) => not_written(
                &error,
                "the replay may have begun, which is known only after a restart; \
                 look for it in GET /v1/replays before you begin it again",
            ),
        }
    }
}

impl From<NotFiled> for Problem {
    fn from(error: NotFiled) -> Self {
        match error {
            NotFiled::NameTaken => Self::new(Code::NameTaken, error.to_string()),
            NotFiled::Stale => Self::new(Code::Conflict, error.to_string()),
            NotFiled::KeyReused => Self::new(Code::IdempotencyKeyReused, error.to_string()),
            NotFiled::Scope(scope) => Self::new(Code::InvalidBody, scope.to_string()),
            NotFiled::Ended(ended) => Self::new(Code::ShuttingDown, ended.to_string()),
            NotFiled::Store(error) => not_written(
                &error,
                "the change may have been made, which is known only after a restart; check before you repeat it, or \
                 repeat it with the same Idempotency-Key",
            ),
        }
    }
}

impl From<NotAccepted> for Problem {
    fn from(error: NotAccepted) -> Self {
        match error {
            NotAccepted::Store(error) => not_written(
                &error,
                "the message may have been stored, which is known only after a restart; send it again with the same \
                 Idempotency-Key, or without one with the same correlation_id, so that receivers can recognise a \
                 duplicate",
            ),
            NotAccepted::TooMany { .. } | NotAccepted::CollapsesTooMany => {
                Self::new(Code::TooManyEndpoints, error.to_string())
            }
            NotAccepted::NoRoom { .. } => {
                let then = format!("nothing was stored; send it again in {ROOM_AFTER_SECONDS} s, or cancel some");
                Self::new(Code::QuotaExceeded, format!("{error}; {then}")).after(ROOM_AFTER_SECONDS)
            }
            NotAccepted::KeyReused => Self::new(Code::IdempotencyKeyReused, error.to_string()),
            NotAccepted::NoSuchEndpoints(places) => {
                let detail = "there is no such endpoint, or it is gone; nothing was accepted";
                let at = |place| Complaint { pointer: format!("/to/endpoints/{place}"), detail: detail.to_owned() };
                Self::with_complaints(Code::EndpointUnknown, places.into_iter().map(at).collect())
            }
        }
    }
}

/// The answer to a write that failed. A store that stopped may have stopped after its commit: then the detail is
/// `perhaps`, which says what the caller can do. With every other error nothing was committed.
pub(crate) fn not_written(error: &StoreError, perhaps: &'static str) -> Problem {
    match error {
        // The store logs this once: a line for each refusal would only fill the disk further.
        StoreError::Full => tracing::debug!("refused: the disk is full"),
        StoreError::Busy => tracing::debug!("refused: the store is overloaded"),
        _ => tracing::error!(
            { field::REQUEST } = request_id::log_field(),
            error = error as &dyn std::error::Error,
            "the store could not be written"
        ),
    }
    match error {
        StoreError::Stopped => Problem::new(Code::StoreUnavailable, perhaps),
        StoreError::Busy => Problem::overloaded(),
        StoreError::Full => Problem::new(Code::DiskFull, "nothing was stored: the disk is full; send it again later"),
        _ => Problem::new(Code::StoreUnavailable, "nothing was stored; send it again later"),
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.view()).expect("texts and numbers always serialise");
        let (code, allow, retry_after) = (self.0.code, self.0.allow, self.retry_after());
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = code.status();
        // `HttpCounters::answered` counts refusals by code.
        response.extensions_mut().insert(code);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if code == Code::Unauthorized {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(allow) = allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docs_errors_md_has_exactly_one_line_for_each_code() {
        let page = include_str!("../../../docs/errors.md");
        for code in Code::ALL {
            let begins = format!("| `{}` | {} | {} | ", code.name(), code.status().as_u16(), code.title());
            let remedy = page.lines().find_map(|line| line.strip_prefix(&begins));
            assert!(remedy.is_some_and(|line| line.len() > 10), "docs/errors.md must say what to do after: {begins}");
        }
        let lines = page.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(lines, Code::ALL.len(), "docs/errors.md has a line for a code that does not exist");
    }

    #[test]
    fn code_names_are_unique() {
        let mut names: Vec<_> = Code::ALL.iter().map(|code| code.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Code::ALL.len());
    }

    fn check(problem: impl Into<Problem>, beginning: &str) {
        let problem = problem.into();
        assert_eq!(problem.code(), Code::StoreUnavailable);
        assert!(problem.0.detail.starts_with(beginning), "{}", problem.0.detail);
    }

    #[test]
    fn a_stopped_store_may_have_written_and_a_fenced_one_has_not() {
        let fenced = || StoreError::Fenced { session: 1 };
        check(NotAccepted::from(StoreError::Stopped), "the message may have been stored");
        check(NotAccepted::from(fenced()), "nothing was stored");
        check(NotMade::Store(StoreError::Stopped), "the endpoint may have been created");
        check(NotMade::Store(fenced()), "nothing was stored");
        check(NotDone::Store(StoreError::Stopped), "the store could not be read");
        check(StoreError::Stopped, "the store could not be read");
    }

    #[test]
    fn a_full_disk_has_its_own_code_and_a_retry_after() {
        let problem = Problem::from(NotAccepted::from(StoreError::Full));
        assert_eq!(problem.code(), Code::DiskFull);
        assert!(problem.0.detail.starts_with("nothing was stored"), "{}", problem.0.detail);
        let response = problem.into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(response.headers().contains_key(RETRY_AFTER));
    }
}
