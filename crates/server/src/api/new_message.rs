//! A message as its producer writes it: every field is parsed here, and all complaints are told at once.

use std::time::Duration;

use bytes::Bytes;
use posthaste_core::id::{EndpointId, TenantId};
use posthaste_core::pattern;
use posthaste_core::time::Timestamp;
use posthaste_engine::accept::{FANOUT_MAX, NewMessage};
use posthaste_engine::clock::Clock;
use posthaste_store::Store;
use serde_json::value::RawValue;

use super::Api;
use crate::object::Object;
use crate::problem::{Code, Problem};
use crate::value;

/// The largest payload.
const PAYLOAD_BYTES_MAX: usize = 1_000_000;
/// How far ahead a message may be scheduled.
const AHEAD_MAX: Duration = Duration::from_secs(90 * 86_400);

/// Fields of a message that are documented and not built.
const NOT_BUILT: &[&str] =
    &["subject", "require_ack", "ack_within", "compact", "notification", "raw", "labels", "region", "cost_center"];

/// Reads the message a body is.
pub(super) fn read<S: Store, C: Clock>(api: &Api<S, C>, tenant: TenantId, body: &[u8]) -> Result<NewMessage, Problem> {
    parse(api, tenant, Object::read(body)?)
}

/// Takes a message's fields from an object, in which nothing else may be left.
pub(super) fn parse<S: Store, C: Clock>(
    api: &Api<S, C>,
    tenant: TenantId,
    mut fields: Object<'_>,
) -> Result<NewMessage, Problem> {
    let payload = fields.need("payload", |raw| Ok(raw.get()));
    if payload.is_some_and(|payload| payload.len() > PAYLOAD_BYTES_MAX) {
        let detail = format!("the payload is larger than {PAYLOAD_BYTES_MAX} bytes");
        return Err(Problem::new(Code::PayloadTooLarge, detail));
    }
    let event_type = fields.get("event_type", event_type);
    let correlation_id = fields.get("correlation_id", value::name);
    let collapse_key = fields.get("collapse_key", value::name);
    let tier = fields.get("tier", value::tier).unwrap_or_default();
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
        tenant,
        event_type,
        // A copy: a slice would keep the connection's whole read buffer alive for as long as the
        // message waits.
        body: Bytes::copy_from_slice(payload.unwrap_or_default().as_bytes()),
        correlation_id,
        subject: None,
        tier,
        ttl,
        deliver_at,
        endpoints,
        collapse_key,
        once: None,
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
    if written.is_empty() || written.len() > FANOUT_MAX {
        return Err(format!("must name 1 to {FANOUT_MAX} endpoints; leave `to` out to reach all that match"));
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
