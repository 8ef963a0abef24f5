//! Subjects, the people or things that messages are about: exports and erases their data (L5).
//!
//! A subject appears in the path only. Log lines never contain it, and the audit trail has a keyed hash of it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path};
use bytes::Bytes;
use futures_util::stream::try_unfold;
use http::request::Parts;
use posthaste_engine::engine::{ExplainedDelivery, NotDone};
use posthaste_engine::export::{Export, Exported};
use posthaste_engine::field;
use posthaste_store::ErasureTarget;

use super::caller::PRIVACY;
use super::deliveries::{self, DeliveryView};
use super::endpoint_fields::{EndpointView, Sight};
use super::erasure::{self, ErasedView};
use super::messages::HeldMessageView;
use super::prelude::*;
use super::{NDJSON, endpoints, typed};
use crate::problem::not_written;
use crate::request_id::{self, RequestId};
use crate::value;

pub struct Subject(String);

impl<S: Send + Sync> FromRequestParts<S> for Subject {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let named = Path::<String>::from_request_parts(parts, state).await;
        let named = named.map(|Path(named)| named).map_err(|_| "must be UTF-8, percent-encoded".to_owned());
        let named = named.and_then(|named| value::checked_subject(&named).map(|()| named));
        named.map(Self).map_err(|form| Problem::new(Code::InvalidParameter, format!("the subject in the path {form}")))
    }
}

/// `DELETE /v1/subjects/{s}`: erases the tenant's subject of this name. An unknown subject is recorded as erased too:
/// an older backup may contain it.
pub async fn erase<S: Store, C: Clock>(
    State(api): ApiRef<S, C>,
    caller: Caller<PRIVACY>,
    Subject(subject): Subject,
    _: EmptyBody,
) -> Answer {
    erasure::erase(&api, caller.tenant_id()?, ErasureTarget::Subject(subject), caller.by()).await
}

/// `GET /v1/subjects/{s}/export`: all data about a subject, one line for each object, read from the store as the caller
/// reads the answer. An incomplete export lacks the last line.
pub async fn export<S: Store, C: Clock>(
    State(api): ApiRef<S, C>,
    caller: Caller<PRIVACY>,
    Subject(subject): Subject,
    uri: Uri,
) -> Answer {
    no_parameters(&uri)?;
    let tenant = caller.tenant_id()?;
    let begun = api.engine.export(tenant, subject, caller.by()).await;
    let export = begun.map_err(|error| {
        not_written(&error, "nothing was exported, though the audit trail may have recorded an export; try again")
    })?;
    let stream = ExportStream {
        api,
        visibility: Visibility::Tenant(tenant),
        sight: caller.sight(),
        export,
        request: request_id::current(),
        counts: ExportCounts::default(),
        is_complete: false,
    };
    let parts = try_unfold(stream, async |mut stream| match stream.next().await {
        Ok(part) => Ok(part.map(|part| (part, stream))),
        Err(error) => {
            let source = &error as &dyn std::error::Error;
            let request = stream.request.map(tracing::field::display);
            tracing::error!({ field::REQUEST } = request, error = source, "an export ended early");
            Err(error)
        }
    });
    Ok(typed(NDJSON, Body::from_stream(parts)))
}

struct ExportStream<S, C> {
    api: Arc<Api<S, C>>,
    visibility: Visibility,
    sight: Sight,
    export: Export,
    /// Kept for the log: the body is written after the handler has returned.
    request: Option<RequestId>,
    counts: ExportCounts,
    is_complete: bool,
}

/// The number of lines written, which the last line has.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
struct ExportCounts {
    /// The number of endpoint lines before it.
    endpoints: u64,
    /// The number of message lines before it.
    messages: u64,
    /// The number of delivery lines before it.
    deliveries: u64,
}

/// A line of an export. The last one is of kind complete; an export without it is incomplete.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum ExportLine<'a> {
    Endpoint {
        /// An endpoint that belongs to the subject.
        endpoint: EndpointView<'a>,
    },
    Message {
        /// A message about the subject; the lines of its deliveries follow.
        message: HeldMessageView,
    },
    Delivery {
        /// A delivery with all its attempts, and the answers to those that failed.
        delivery: DeliveryView,
    },
    /// The last line; an export without it is incomplete.
    Complete {
        #[serde(flatten)]
        counts: ExportCounts,
    },
}

pub(crate) const OPERATIONS: &[Operation] = &[
    Operation::new("DELETE", "/v1/subjects/{s}", "Erases a subject: its endpoints, and the messages about it")
        .scope("privacy")
        .returns::<ErasedView>(200, "The subject's data can no longer be read."),
    Operation::get("/v1/subjects/{s}/export", "Exports all data stored about a subject")
        .scope("privacy")
        .returns_as::<ExportLine<'_>>(
            200,
            "One line for each endpoint, message and delivery, oldest first, then a line of kind complete.",
            NDJSON,
        ),
];

impl<S: Store, C: Clock> ExportStream<S, C> {
    /// The next lines; `None` after the last.
    async fn next(&mut self) -> Result<Option<Bytes>, NotDone> {
        while !self.is_complete {
            let mut lines = Vec::new();
            match self.api.engine.exported(&mut self.export).await? {
                Some(part) => {
                    for one in part {
                        self.write_object(one, &mut lines).await?;
                    }
                }
                None => {
                    self.is_complete = true;
                    write(&ExportLine::Complete { counts: self.counts }, &mut lines);
                }
            }
            if !lines.is_empty() {
                return Ok(Some(lines.into()));
            }
        }
        Ok(None)
    }

    async fn write_object(&mut self, one: Exported, lines: &mut Vec<u8>) -> Result<(), NotDone> {
        match one {
            Exported::Endpoint(endpoint) => {
                let hold = self.api.engine.paused(vec![endpoint.lane]).await?.into_iter().next().flatten();
                let known = endpoints::known(&self.api, &endpoint, hold).await?;
                let endpoint = EndpointView::of(known, &endpoint, self.sight);
                write(&ExportLine::Endpoint { endpoint }, lines);
                self.counts.endpoints += 1;
            }
            Exported::Message(message) => {
                let message = HeldMessageView::of(&self.api, &message).await?;
                write(&ExportLine::Message { message }, lines);
                self.counts.messages += 1;
            }
            Exported::Delivery { shown, accepted_at, excerpts } => {
                let view = ExplainedDelivery { shown, explained: None, paused: None };
                let delivery = deliveries::whole(&self.api, self.visibility, accepted_at, &view, &excerpts).await?;
                write(&ExportLine::Delivery { delivery }, lines);
                self.counts.deliveries += 1;
            }
        }
        Ok(())
    }
}

fn write(line: &ExportLine<'_>, lines: &mut Vec<u8>) {
    serde_json::to_writer(&mut *lines, line).expect("our own answers always serialise");
    lines.push(b'\n');
}
