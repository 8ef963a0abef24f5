//! A refusal as the API tells it: `application/problem+json` with a stable code.

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
use serde::Serialize;

use crate::object::escaped;
use crate::request_id;

macro_rules! codes {
    ($($name:ident $code:literal $status:ident $title:literal;)*) => {
        /// Every code there is: what happened, in a word that never changes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code {
            $(#[doc = $title] $name,)*
        }

        impl Code {
            /// Every code, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code as the API writes it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $code,)* }
            }

            /// The status it is answered with.
            pub const fn status(self) -> StatusCode {
                match self { $(Self::$name => StatusCode::$status,)* }
            }

            /// What it means, in a line.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }
        }
    };
}

codes! {
    InvalidJson "invalid_json" BAD_REQUEST "the body is not JSON";
    InvalidBody "invalid_body" BAD_REQUEST "the body does not say what is needed";
    UnknownParameter "unknown_parameter" BAD_REQUEST "a parameter is not known";
    InvalidParameter "invalid_parameter" BAD_REQUEST "a parameter has no usable value";
    NotBuiltYet "not_built_yet" BAD_REQUEST "this version cannot do that yet";
    InvalidIdempotencyKey "invalid_idempotency_key" BAD_REQUEST "the idempotency key is not one";
    TargetRefused "target_refused" BAD_REQUEST "the URL is not one we may send to";
    EndpointUnknown "endpoint_unknown" BAD_REQUEST "a named endpoint does not exist";
    TooManyEndpoints "too_many_endpoints" BAD_REQUEST "more endpoints than one message may go to";
    TenantRequired "tenant_required" BAD_REQUEST "the request does not say whose things it is about";
    Unauthorized "unauthorized" UNAUTHORIZED "there is no key, or none that is known";
    ScopeMissing "scope_missing" FORBIDDEN "the key may not do that";
    ForbiddenOrigin "forbidden_origin" FORBIDDEN "the request comes from where none may";
    NotFound "not_found" NOT_FOUND "there is no such thing";
    MethodNotAllowed "method_not_allowed" METHOD_NOT_ALLOWED "the route does not take this method";
    BodyTooSlow "body_too_slow" REQUEST_TIMEOUT "the body did not arrive in time";
    BodyTooLarge "body_too_large" PAYLOAD_TOO_LARGE "the body is too large";
    PayloadTooLarge "payload_too_large" PAYLOAD_TOO_LARGE "the payload is too large";
    NotJson "not_json" UNSUPPORTED_MEDIA_TYPE "the body is not declared as JSON";
    IdempotencyKeyReused "idempotency_key_reused" UNPROCESSABLE_ENTITY "the key was used for another request";
    IdempotencyInProgress "idempotency_in_progress" CONFLICT "the first request with the key is still running";
    DeliveryEnded "delivery_ended" CONFLICT "the delivery has ended";
    ReplayEnded "replay_ended" CONFLICT "the replay has ended";
    NoNewerKey "no_newer_key" CONFLICT "there is no newer master key to rotate to";
    NameTaken "name_taken" CONFLICT "another one is called so";
    NotPaused "not_paused" CONFLICT "there is no such pause to end";
    PresetReadOnly "preset_read_only" CONFLICT "the name is a preset's, which nobody changes";
    PolicyInUse "policy_in_use" CONFLICT "somebody still goes by the policy";
    TooManyPolicies "too_many_policies" CONFLICT "there are as many policies as there may be";
    EndpointGone "endpoint_gone" CONFLICT "the endpoint is gone";
    TooManySecrets "too_many_secrets" CONFLICT "as many secrets sign as may";
    Conflict "conflict" CONFLICT "something else is being done to it";
    TooManyReplays "too_many_replays" TOO_MANY_REQUESTS "as many replays go on as may at once";
    QuotaExceeded "quota_exceeded" TOO_MANY_REQUESTS "the tenant sends more than was agreed";
    Overloaded "overloaded" SERVICE_UNAVAILABLE "the server has too much to do";
    StoreUnavailable "store_unavailable" SERVICE_UNAVAILABLE "the store does not answer";
    DiskFull "disk_full" SERVICE_UNAVAILABLE "the disk is full";
    ShuttingDown "shutting_down" SERVICE_UNAVAILABLE "the server is going down";
}

/// How soon to ask again after a refusal that is the server's own.
const RETRY_AFTER_SECONDS: u64 = 5;

/// How soon an endpoint that was gone can be enabled: an end is kept in force for ten minutes.
const STILL_ENDING_SECONDS: u64 = 60;

/// How soon there may be room again for a tenant's deliveries: some of what waits has ended by then, or nothing has.
const ROOM_AFTER_SECONDS: u64 = 5;

/// How soon one more replay may find room: a small one is done by then.
const REPLAY_AGAIN_SECONDS: u64 = 60;

/// One thing that is wrong with a body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Complaint {
    /// Where, as a JSON pointer.
    pub pointer: String,
    /// What, and the way out.
    pub detail: String,
}

/// As many are told; the rest are counted.
const COMPLAINTS_MAX: usize = 20;

/// What is wrong with a body: the first complaints, and how many more there are.
#[derive(Debug, Default)]
pub struct Complaints {
    told: Vec<Complaint>,
    untold: usize,
}

impl Complaints {
    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// Those that are put into words.
    pub fn told(&self) -> &[Complaint] {
        &self.told
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.told.len() + self.untold
    }

    /// Adds one, which is only put into words while there is room for it.
    pub fn add(&mut self, complaint: impl FnOnce() -> Complaint) {
        if self.told.len() < COMPLAINTS_MAX {
            self.told.push(complaint());
        } else {
            self.untold += 1;
        }
    }

    /// Takes over others.
    pub fn absorb(&mut self, others: Self) {
        self.untold += others.untold;
        others.told.into_iter().for_each(|one| self.add(|| one));
    }
}

impl FromIterator<Complaint> for Complaints {
    fn from_iter<I: IntoIterator<Item = Complaint>>(all: I) -> Self {
        let mut complaints = Self::default();
        all.into_iter().for_each(|one| complaints.add(|| one));
        complaints
    }
}

/// A refusal: what happened, which thing, and the way out.
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

#[derive(Serialize)]
struct Wire<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [Complaint],
    /// Where no header can say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    /// Which line it is about, among many.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
}

impl Problem {
    /// A refusal with this code and detail.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Box::new(Inner { code, detail: detail.into(), errors: Vec::new(), allow: None, retry_after: None }))
    }

    /// Everything that is wrong with a body. Its detail is the first complaint's, so that a reader
    /// who looks no further still learns something.
    pub fn of_body(code: Code, complaints: Complaints) -> Self {
        let Complaints { told: errors, untold } = complaints;
        let mut detail = errors.first().map(|first| format!("{}: {}", first.pointer, first.detail)).unwrap_or_default();
        if untold > 0 {
            detail.push_str(&format!(" (the first of {}; {untold} more are not told)", errors.len() + untold));
        }
        Self(Box::new(Inner { code, detail, errors, allow: None, retry_after: None }))
    }

    /// A route that does not exist.
    pub fn no_route(uri: &Uri) -> Self {
        Self::new(Code::NotFound, format!("there is no route {}", uri.path()))
    }

    /// More is asked for than the server can hold.
    pub(crate) fn overloaded() -> Self {
        Self::new(Code::Overloaded, "the server has too much to do; nothing was stored; send it again in a second")
            .after(1)
    }

    /// An id that names nothing of this kind; the same for one that never was.
    pub fn no_such(kind: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no {kind} with that id"))
    }

    /// A route that takes other methods.
    pub fn method(uri: &Uri, allow: &'static str) -> Self {
        let mut problem = Self::new(Code::MethodNotAllowed, format!("{} takes {allow}", uri.path()));
        problem.0.allow = Some(allow);
        problem
    }

    /// The same, to be tried again in so many seconds.
    #[must_use]
    pub fn after(mut self, seconds: u64) -> Self {
        self.0.retry_after = Some(seconds);
        self
    }

    /// Its code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// In how many seconds to try again, where that makes sense.
    fn retry_after(&self) -> Option<u64> {
        let own = (self.0.code.status() == StatusCode::SERVICE_UNAVAILABLE).then_some(RETRY_AFTER_SECONDS);
        self.0.retry_after.or(own)
    }

    fn wire(&self) -> Wire<'_> {
        let Inner { code, detail, errors, .. } = &*self.0;
        Wire {
            r#type: format!("urn:posthaste:problem:{}", code.name()),
            title: code.title(),
            status: code.status().as_u16(),
            detail,
            code: code.name(),
            errors,
            retry_after: None,
            line: None,
        }
    }

    /// The refusal of one line among others: what a header says elsewhere stands in it.
    pub(crate) fn write_line(&self, number: usize, line: &mut Vec<u8>) {
        let wire = Wire { retry_after: self.retry_after(), line: Some(number), ..self.wire() };
        serde_json::to_writer(line, &wire).expect("texts and numbers always serialise");
    }
}

/// A read that failed. A write that failed is [`not_written`].
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        tracing::error!(
            { field::REQUEST } = request_id::told(),
            error = &error as &dyn std::error::Error,
            "the store could not be read"
        );
        Self::new(Code::StoreUnavailable, "the store could not be read; ask again later")
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
        let at = |pointer: &str, detail| Complaints::from_iter([Complaint { pointer: pointer.to_owned(), detail }]);
        match error {
            NotMade::Store(error) => not_written(
                &error,
                "the endpoint may have been made, nobody can say before the restart; \
                 look for it in GET /v1/endpoints before you make it again",
            ),
            NotMade::UidTaken => Self::new(Code::NameTaken, error.to_string()),
            NotMade::KeyReused => Self::new(Code::IdempotencyKeyReused, error.to_string()),
            NotMade::Target(refusal) => {
                Self::of_body(Code::TargetRefused, at("/url", format!("{refusal} [{}]", refusal.code())))
            }
            NotMade::Secret(bad) => Self::of_body(Code::InvalidBody, at("/signing/secret", bad.to_string())),
            NotMade::Header { name, bad } => {
                let member = name.map(|name| format!("/{}", escaped(&name))).unwrap_or_default();
                Self::of_body(Code::InvalidBody, at(&format!("/headers{member}"), bad.to_string()))
            }
            NotMade::Override { status, bad } => {
                let pointer = format!("/status_overrides/{}", escaped(&status));
                Self::of_body(Code::InvalidBody, at(&pointer, bad.to_string()))
            }
            NotMade::Zone(unknown) => Self::of_body(Code::InvalidBody, at("/time_zone", unknown.to_string())),
            NotMade::Tls(bad) => {
                let pointer = bad.field().map_or_else(|| "/tls".to_owned(), |field| format!("/tls/{field}"));
                Self::of_body(Code::InvalidBody, at(&pointer, bad.to_string()))
            }
            NotMade::TooManySecrets { until, now } => {
                let at = crate::value::write_time(until);
                let detail = format!(
                    "{error}, and the first of them stops at {at}: rotate again then, or end the older ones now with \
                     {{\"overlap\": \"0s\"}}"
                );
                Self::new(Code::TooManySecrets, detail).after(until.since(now).as_secs() + 1)
            }
            NotMade::Stale => Self::new(Code::Conflict, error.to_string()),
            NotMade::StillEnding => Self::new(Code::Conflict, error.to_string()).after(STILL_ENDING_SECONDS),
            NotMade::Ended(ended) => Self::new(Code::ShuttingDown, ended.to_string()),
            NotMade::EventType { index, bad } => {
                Self::of_body(Code::InvalidBody, at(&format!("/event_types/{index}"), bad.to_string()))
            }
            NotMade::Policy(unknown) => Self::of_body(Code::InvalidBody, at("/policy", unknown.to_string())),
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
                "the replay may have begun, nobody can say before the restart; \
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
                "it may have been done, nobody can say before the restart; look whether it was before you ask again, \
                 or ask again with the same Idempotency-Key",
            ),
        }
    }
}

impl From<NotAccepted> for Problem {
    fn from(error: NotAccepted) -> Self {
        match error {
            NotAccepted::Store(error) => not_written(
                &error,
                "the message may have been stored, nobody can say before the restart; send it again with the same \
                 Idempotency-Key, or without one with the same correlation_id, so that receivers can tell it if it \
                 arrives twice",
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
                Self::of_body(Code::EndpointUnknown, places.into_iter().map(at).collect())
            }
        }
    }
}

/// A write that failed. A store that stopped may have stopped after its commit: then `perhaps` says
/// what the caller can do. Every other refusal came before one.
pub(crate) fn not_written(error: &StoreError, perhaps: &'static str) -> Problem {
    match error {
        // Told once by the store: a line for each refusal would only fill the disk further.
        StoreError::Full => tracing::debug!("refused: the disk is full"),
        StoreError::Busy => tracing::debug!("refused: the store has too much to do"),
        _ => tracing::error!(
            { field::REQUEST } = request_id::told(),
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
        let body = serde_json::to_vec(&self.wire()).expect("texts and numbers always serialise");
        let (code, allow, retry_after) = (self.0.code, self.0.allow, self.retry_after());
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = code.status();
        // For whoever counts what was refused.
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
    fn every_code_has_its_line_in_the_documentation_and_no_line_is_of_another() {
        let page = include_str!("../../../docs/errors.md");
        for code in Code::ALL {
            let begins = format!("| `{}` | {} | {} | ", code.name(), code.status().as_u16(), code.title());
            let way_out = page.lines().find_map(|line| line.strip_prefix(&begins));
            assert!(way_out.is_some_and(|line| line.len() > 10), "docs/errors.md must say what to do after: {begins}");
        }
        let told = page.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(told, Code::ALL.len(), "docs/errors.md tells of a code that there is not");
    }

    #[test]
    fn no_two_problems_share_a_code() {
        let mut names: Vec<_> = Code::ALL.iter().map(|code| code.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Code::ALL.len());
    }

    fn check(problem: impl Into<Problem>, says: &str) {
        let problem = problem.into();
        assert_eq!(problem.code(), Code::StoreUnavailable);
        assert!(problem.0.detail.starts_with(says), "{}", problem.0.detail);
    }

    #[test]
    fn only_what_is_known_of_a_store_that_failed_is_told() {
        let fenced = || StoreError::Fenced { session: 1 };
        check(NotAccepted::from(StoreError::Stopped), "the message may have been stored");
        check(NotAccepted::from(fenced()), "nothing was stored");
        check(NotMade::Store(StoreError::Stopped), "the endpoint may have been made");
        check(NotMade::Store(fenced()), "nothing was stored");
        check(NotDone::Store(StoreError::Stopped), "the store could not be read");
        check(StoreError::Stopped, "the store could not be read");
    }

    #[test]
    fn a_full_disk_is_told_apart_and_says_when_to_ask_again() {
        let problem = Problem::from(NotAccepted::from(StoreError::Full));
        assert_eq!(problem.code(), Code::DiskFull);
        assert!(problem.0.detail.starts_with("nothing was stored"), "{}", problem.0.detail);
        let response = problem.into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(response.headers().contains_key(RETRY_AFTER));
    }
}
