//! Messages: taking them in, and ending what was not sent. A message's way begins here:
//! [`send`] parses, `engine::accept` makes it durable, and only then is it promised with a `202`.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use bytes::Bytes;
use http::StatusCode;
use posthaste_core::id::{EndpointId, MessageId};
use posthaste_core::pattern;
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;
use posthaste_crypto::public_id::Kind;
use posthaste_engine::accept::{NewMessage, Promise};
use posthaste_engine::clock::Clock;
use posthaste_store::Store;
use serde::Serialize;
use serde_json::value::RawValue;
use std::time::Duration;

use super::{Answer, Api, body, json};
use crate::object::Object;
use crate::problem::{Code, Problem};
use crate::value;

/// The largest payload.
pub const PAYLOAD_BYTES_MAX: usize = 1_000_000;
/// As many endpoints are fanned out within an accept's transaction.
const ENDPOINTS_MAX: usize = 1_000;
/// How far ahead a message may be scheduled.
const AHEAD_MAX: Duration = Duration::from_secs(90 * 86_400);

/// Fields of a message that are documented and not built.
const NOT_BUILT: &[&str] = &[
    "subject",
    "collapse_key",
    "require_ack",
    "ack_within",
    "compact",
    "notification",
    "raw",
    "labels",
    "region",
    "cost_center",
];

/// `POST /v1/messages`.
pub async fn send<S: Store, C: Clock>(State(api): State<Arc<Api<S, C>>>, request: Request) -> Answer {
    let body = body(request).await?;
    let new = parse(&api, &body)?;
    let promise = api.engine.accept(new).await?;
    Ok(json(StatusCode::ACCEPTED, &Accepted::of(&promise)))
}

/// `POST /v1/messages/{id}/cancel`.
pub async fn cancel<S: Store, C: Clock>(
    State(api): State<Arc<Api<S, C>>>,
    Path(id): Path<String>,
    request: Request,
) -> Answer {
    let body = body(request).await?;
    Object::read_optional(&body)?.finish()?;
    let unknown = || Problem::no_such("message");
    let id = api.engine.opened(Kind::Message, &id).map(|(key, _)| MessageId(key)).ok_or_else(unknown)?;
    let (ended, in_flight) = api.engine.cancel(api.tenant, id).await?.ok_or_else(unknown)?;
    Ok(json(StatusCode::OK, &Ended { ended, in_flight }))
}

#[derive(Serialize)]
struct Accepted<'a> {
    id: &'a str,
    correlation_id: &'a str,
    accepted_at: String,
    expires_at: Option<String>,
    deliveries: usize,
    notes: Vec<&'static str>,
}

impl<'a> Accepted<'a> {
    fn of(promise: &'a Promise) -> Self {
        let nobody = "no endpoint wants this event: nothing will be sent";
        Self {
            id: &promise.public_id,
            correlation_id: &promise.correlation_id,
            accepted_at: value::write_time(promise.accepted_at),
            expires_at: promise.expires_at.map(value::write_time),
            deliveries: promise.deliveries,
            notes: if promise.deliveries == 0 { vec![nobody] } else { Vec::new() },
        }
    }
}

#[derive(Serialize)]
struct Ended {
    ended: u64,
    in_flight: u64,
}

fn parse<S: Store, C: Clock>(api: &Api<S, C>, body: &[u8]) -> Result<NewMessage, Problem> {
    let mut fields = Object::read(body)?;
    let payload = fields.need("payload", |raw| Ok(raw.get()));
    if payload.is_some_and(|payload| payload.len() > PAYLOAD_BYTES_MAX) {
        let detail = format!("the payload is larger than {PAYLOAD_BYTES_MAX} bytes");
        return Err(Problem::new(Code::PayloadTooLarge, detail));
    }
    let event_type = fields.get("event_type", event_type);
    let correlation_id = fields.get("correlation_id", value::name);
    let tier = fields.get("tier", value::tier).unwrap_or(Tier::default());
    let ttl = fields.get("ttl", value::ttl);
    let now = api.engine.now();
    let deliver_at = fields.get("deliver_at", |raw| deliver_at(raw, now));
    let mut to = fields.object("to");
    let endpoints = to.get("endpoints", |raw| endpoints(api, raw)).unwrap_or_default();
    to.not_built(&["subjects", "tags", "channel", "all"]);
    fields.absorb(to);
    fields.not_built(NOT_BUILT);
    fields.finish()?;
    Ok(NewMessage {
        tenant: api.tenant,
        event_type,
        // A copy: a slice would keep the connection's whole read buffer alive for as long as the
        // message waits.
        body: Bytes::copy_from_slice(payload.unwrap_or_default().as_bytes()),
        correlation_id,
        tier,
        ttl,
        deliver_at,
        endpoints,
    })
}

fn event_type(raw: &RawValue) -> Result<String, String> {
    let written = value::text(raw)?;
    if pattern::is_event_type(&written) {
        return Ok(written);
    }
    Err("must be segments of letters, digits, - and _ joined by dots, such as invoice.paid".to_owned())
}

fn deliver_at(raw: &RawValue, now: Timestamp) -> Result<Timestamp, String> {
    let at = value::time(raw)?;
    if at > now + AHEAD_MAX {
        return Err("must be at most 90 days ahead".to_owned());
    }
    Ok(at)
}

/// The endpoints a message names; each gets it once, however often it is named.
fn endpoints<S: Store, C: Clock>(api: &Api<S, C>, raw: &RawValue) -> Result<Vec<EndpointId>, String> {
    let written: Vec<&str> =
        serde_json::from_str(raw.get()).map_err(|_| "must be a list of endpoint ids".to_owned())?;
    if written.is_empty() || written.len() > ENDPOINTS_MAX {
        return Err(format!("must name 1 to {ENDPOINTS_MAX} endpoints; leave `to` out to reach all that match"));
    }
    let mut ids = Vec::with_capacity(written.len());
    for (index, text) in written.iter().enumerate() {
        let id = api.endpoint_id(text).ok_or_else(|| format!("entry {index} is not the id of an endpoint"))?;
        ids.push(id);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}
