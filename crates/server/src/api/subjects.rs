//! Subjects: whoever messages are about. They may ask what is held about them, and to be forgotten (L5).
//!
//! A subject stands in a path here, and nowhere else: no log has it, and the trail has a mark.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::try_unfold;
use http::Uri;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use posthaste_engine::clock::Clock;
use posthaste_engine::engine::{NotDone, Sees, View};
use posthaste_engine::export::{Export, Exported};
use posthaste_engine::field;
use posthaste_store::{Store, Whom};
use serde::Serialize;

use super::caller::{Caller, PRIVACY};
use super::endpoint_fields::{self, Sight};
use super::{Answer, Api, NDJSON, deliveries, endpoints, erasure, messages, no_body, no_parameters};
use crate::problem::{Code, Problem, not_written};
use crate::request_id::{self, RequestId};
use crate::value;

/// The subject that a path names.
pub struct Subject(String);

impl<S: Send + Sync> FromRequestParts<S> for Subject {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let named = Path::<String>::from_request_parts(parts, state).await;
        let named = named.map(|Path(named)| named).map_err(|_| "must be UTF-8, percent-encoded".to_owned());
        let named = named.and_then(|named| value::checked_subject(&named).map(|()| named));
        named.map(Self).map_err(|form| Problem::new(Code::InvalidParameter, format!("the subject in the path {form}")))
    }
}

/// `DELETE /v1/subjects/{s}`: erases whoever has this name with the tenant. One that is not known is erased all the
/// same: an older copy of the data may know it.
pub async fn erase<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<PRIVACY>,
    Subject(subject): Subject,
    request: Request,
) -> Answer {
    no_body(request).await?;
    erasure::erase(&api, caller.tenant_id()?, Whom::Subject(subject), caller.by()).await
}

/// `GET /v1/subjects/{s}/export`: everything that is held about a subject, a line for each thing, read part by part
/// as the caller takes it. One that was cut off has no last line.
pub async fn export<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    caller: Caller<PRIVACY>,
    Subject(subject): Subject,
    uri: Uri,
) -> Answer {
    no_parameters(&uri)?;
    let tenant = caller.tenant_id()?;
    let begun = api.engine.export(tenant, subject, caller.by()).await;
    let export = begun.map_err(|error| {
        not_written(&error, "nothing was exported; the audit trail may say that somebody asked; ask again")
    })?;
    let telling = Telling {
        api,
        whose: Sees::Tenant(tenant),
        sight: caller.sight(),
        export,
        request: request_id::current(),
        told: Told::default(),
        is_complete: false,
    };
    let parts = try_unfold(telling, async |mut telling| match telling.next().await {
        Ok(part) => Ok(part.map(|part| (part, telling))),
        Err(error) => {
            let error_told = &error as &dyn std::error::Error;
            let request = telling.request.map(tracing::field::display);
            tracing::error!({ field::REQUEST } = request, error = error_told, "an export was cut off");
            Err(error)
        }
    });
    let mut response = Response::new(Body::from_stream(parts));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    Ok(response)
}

/// An export that is being told.
struct Telling<S, C> {
    api: Arc<Api<S, C>>,
    whose: Sees,
    sight: Sight,
    export: Export,
    /// It is told after it was answered.
    request: Option<RequestId>,
    told: Told,
    is_complete: bool,
}

/// How much was told: the last line.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Told {
    endpoints: u64,
    messages: u64,
    deliveries: u64,
}

/// A line of an export.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Line<'a> {
    Endpoint { endpoint: endpoint_fields::Shown<'a> },
    Message { message: messages::Held },
    Delivery { delivery: deliveries::Whole },
    Complete(Told),
}

impl<S: Store, C: Clock> Telling<S, C> {
    /// The next lines; `None` behind the last.
    async fn next(&mut self) -> Result<Option<Bytes>, NotDone> {
        while !self.is_complete {
            let mut lines = Vec::new();
            match self.api.engine.exported(&mut self.export).await? {
                Some(part) => {
                    for one in part {
                        self.tell(one, &mut lines).await?;
                    }
                }
                None => {
                    self.is_complete = true;
                    write(&Line::Complete(self.told), &mut lines);
                }
            }
            if !lines.is_empty() {
                return Ok(Some(lines.into()));
            }
        }
        Ok(None)
    }

    async fn tell(&mut self, one: Exported, lines: &mut Vec<u8>) -> Result<(), NotDone> {
        match one {
            Exported::Endpoint(endpoint) => {
                let hold = self.api.engine.paused(vec![endpoint.lane]).await?.into_iter().next().flatten();
                let known = endpoints::known(&self.api, &endpoint, hold).await?;
                let endpoint = endpoint_fields::Shown::of(known, &endpoint, self.sight);
                write(&Line::Endpoint { endpoint }, lines);
                self.told.endpoints += 1;
            }
            Exported::Message(message) => {
                let message = messages::Held::of(&self.api, &message).await?;
                write(&Line::Message { message }, lines);
                self.told.messages += 1;
            }
            Exported::Delivery { shown, accepted_at, excerpts } => {
                let view = View { shown, explained: None, paused: None };
                let delivery = deliveries::whole(&self.api, self.whose, accepted_at, &view, &excerpts).await?;
                write(&Line::Delivery { delivery }, lines);
                self.told.deliveries += 1;
            }
        }
        Ok(())
    }
}

fn write(line: &Line<'_>, lines: &mut Vec<u8>) {
    serde_json::to_writer(&mut *lines, line).expect("our own answers always serialise");
    lines.push(b'\n');
}
