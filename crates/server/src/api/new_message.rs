//! Parses the fields of a new message, for single messages and batches. All faults are reported at once.

use std::time::Duration;

use bytes::Bytes;
use posthaste_core::fanout::Audience;
use posthaste_core::pattern::{self, EVENT_TYPE_BYTES_MAX};
use posthaste_core::time::Timestamp;
use posthaste_engine::accept::{EndpointRef, NewMessage};
use posthaste_engine::clock::Clock;
use posthaste_engine::tenants::Tenant;
use posthaste_store::{Details, Store};
use serde_json::value::RawValue;

use super::Api;
use super::endpoint_fields::check_channel;
use crate::object::Object;
use crate::problem::{Code, Problem};
use crate::value;

/// The largest payload.
const PAYLOAD_BYTES_MAX: usize = 1_000_000;
/// How far ahead a message may be scheduled.
const AHEAD_MAX: Duration = Duration::from_secs(90 * 86_400);

/// The most subjects and tags that a message can name: each is a look-up in the store.
const SUBJECTS_MAX: usize = 1_000;
const TAGS_MAX: usize = 64;

/// Planned fields of a message that this version does not support.
const NOT_BUILT: &[&str] = &["require_ack", "ack_within", "notification", "raw"];

/// Parses a message from an object, in which no other field may be left.
pub(super) fn parse<S: Store, C: Clock>(
    api: &Api<S, C>,
    tenant: &Tenant,
    mut fields: Object<'_>,
) -> Result<NewMessage, Problem> {
    let payload = fields.need("payload", |raw| Ok(raw.get()));
    let compact = fields.get("compact", |raw| Ok(raw.get()));
    for (name, given) in [("payload", payload), ("compact", compact)] {
        if given.is_some_and(|given| given.len() > PAYLOAD_BYTES_MAX) {
            let detail = format!("{name} is larger than {PAYLOAD_BYTES_MAX} bytes");
            return Err(Problem::new(Code::PayloadTooLarge, detail));
        }
    }
    let event_type = fields.get("event_type", event_type);
    let correlation_id = fields.get("correlation_id", value::name);
    let collapse_key = fields.get("collapse_key", value::name);
    let tier = fields.get("tier", value::tier).unwrap_or_default();
    let ttl = fields.get("ttl", value::ttl);
    let now = api.engine.now();
    let deliver_at = fields.get("deliver_at", |raw| deliver_at(raw, now));
    let subject = fields.get("subject", value::subject);
    let labels = fields.get("labels", value::labels).unwrap_or_default();
    let region = fields.get("region", value::name);
    let cost_center = fields.get("cost_center", value::name);
    let (endpoints, audience) = to(api, &mut fields);
    fields.not_built(NOT_BUILT);
    fields.finish()?;
    // Copies: a slice would keep the connection's whole read buffer alive for as long as the message waits.
    let copy = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    Ok(NewMessage {
        tenant: tenant.id,
        event_type,
        body: copy(payload.unwrap_or_default()),
        compact: compact.map(copy),
        correlation_id,
        subject,
        tier,
        ttl,
        deliver_at,
        endpoints,
        details: Details { labels, region, cost_center, audience, ..Details::default() },
        collapse_key,
        once: None,
        pending_max: tenant.terms.pending_max,
    })
}

/// Parses `to`: endpoints by id or uid, or an audience among the tenant's endpoints.
fn to<S: Store, C: Clock>(api: &Api<S, C>, fields: &mut Object<'_>) -> (Vec<EndpointRef>, Audience) {
    let mut to = fields.object("to");
    // The engine bounds their number, with a code of its own.
    let endpoints = to.some("endpoints", usize::MAX, value::name).map(|named| endpoints(api, named));
    let subjects = to.some("subjects", SUBJECTS_MAX, value::subject).unwrap_or_default();
    let tags = to.some("tags", TAGS_MAX, value::name).unwrap_or_default();
    let all = to.get("all", value::truth).unwrap_or(false);
    let channel = to.get("channel", value::text);
    if let Some(channel) = &channel {
        check_channel(&mut to, channel);
    }
    let narrows = !subjects.is_empty() || !tags.is_empty();
    if all && narrows {
        to.complain("all", "cannot be combined with subjects or tags, which would narrow it".to_owned());
    }
    if endpoints.is_some() && (all || narrows || channel.is_some()) {
        to.complain("endpoints", "cannot be combined with other fields of to".to_owned());
    }
    fields.absorb(to);
    (endpoints.unwrap_or_default(), Audience { subjects, tags, all, named: false })
}

fn event_type(raw: &RawValue) -> Result<String, String> {
    let written = value::text(raw)?;
    if pattern::is_event_type(&written) {
        return Ok(written);
    }
    if written.len() > EVENT_TYPE_BYTES_MAX {
        return Err(format!("must be at most {EVENT_TYPE_BYTES_MAX} characters"));
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

/// The endpoints that a message names, by id or by uid.
fn endpoints<S: Store, C: Clock>(api: &Api<S, C>, names: Vec<String>) -> Vec<EndpointRef> {
    names.into_iter().map(|name| api.endpoint_id(&name).map_or(EndpointRef::Uid(name), EndpointRef::Id)).collect()
}
