//! Parses the fields of a new message, for single messages and batches. All faults are reported at once.

use std::time::Duration;

use posthaste_core::Audience;
use posthaste_core::pattern::{self, EVENT_TYPE_BYTES_MAX};
use posthaste_engine::accept::{EndpointRef, NewMessage};
use posthaste_engine::tenants::Tenant;
use posthaste_store::Details;
use serde_json::value::RawValue;

use super::endpoint_fields::{ChannelName, check_channel};
use super::prelude::*;
use crate::body_fields::{ParseValue, SomeOf};
use crate::value::{AnyJson, ChosenName, Labels, Subject, TierChoice, Ttl};

/// The largest payload.
const PAYLOAD_BYTES_MAX: usize = 1_000_000;
/// How far ahead a message may be scheduled.
const AHEAD_MAX: Duration = Duration::from_secs(90 * 86_400);

/// The most subjects and tags that a message can name: each is a look-up in the store.
const SUBJECTS_MAX: usize = 1_000;
const TAGS_MAX: usize = 64;

/// Planned fields of a message that this version does not support.
const NOT_BUILT: &[&str] = &["require_ack", "ack_within", "notification", "raw"];

body! {
    pub(super) struct NewMessageBody as "NewMessage" {
        /// Sent to receivers byte for byte; at most 1,000,000 bytes.
        payload: required AnyJson,
        /// A smaller payload, sent once to a receiver that answers 413.
        compact: optional AnyJson,
        /// The kind of event, such as invoice.paid; endpoints subscribe to event types.
        event_type: optional EventType,
        /// Sent with every attempt, and a filter of lists; the message's id by default.
        correlation_id: optional ChosenName,
        /// A newer message with the same key replaces one that is still waiting.
        collapse_key: optional ChosenName,
        /// How urgent it is; promotional by default.
        tier: optional TierChoice,
        /// How long to try; after that a delivery expires. The endpoint's ttl by default.
        ttl: optional Ttl,
        /// The earliest time to send it, at most 90 days ahead.
        deliver_at: optional ApiTime,
        /// The person or thing whose data it is, for export and erasure.
        subject: optional Subject,
        /// At most 16, stored and shown with the message.
        labels: optional Labels,
        /// Stored and shown with the message.
        region: optional ChosenName,
        /// Stored and shown with the message.
        cost_center: optional ChosenName,
        /// The endpoints it is for; by default every endpoint that wants the event type.
        to: optional AddresseesBody,
    }

    pub(super) struct AddresseesBody as "NewAddressees" {
        /// These endpoints, by id or uid, regardless of their event_types.
        endpoints: optional SomeOf<ChosenName, { usize::MAX }>,
        /// Endpoints that want the event and belong to one of these subjects.
        subjects: optional SomeOf<Subject, SUBJECTS_MAX>,
        /// Endpoints that want the event and have one of these tags.
        tags: optional SomeOf<ChosenName, TAGS_MAX>,
        /// Every endpoint, regardless of its event_types.
        all: optional bool,
        /// Endpoints of this channel.
        channel: optional ChannelName,
    }
}

kinds! {
    pub(super) EventType: String = event_type, as String;
}

/// Parses a message from an object, in which no other field may be left.
pub(super) fn parse<S: Store, C: Clock>(
    api: &Api<S, C>,
    tenant: &Tenant,
    body: NewMessageBody,
    mut fields: BodyObject<'_>,
) -> Result<NewMessage> {
    for (name, given) in [("payload", &body.payload), ("compact", &body.compact)] {
        if given.as_ref().is_some_and(|given| given.len() > PAYLOAD_BYTES_MAX) {
            let detail = format!("{name} is larger than {PAYLOAD_BYTES_MAX} bytes");
            return Err(Problem::new(Code::PayloadTooLarge, detail));
        }
    }
    let deliver_at = fields.check("deliver_at", body.deliver_at, |at| {
        if at > api.engine.now() + AHEAD_MAX { Err("must be at most 90 days ahead".to_owned()) } else { Ok(at) }
    });
    let (endpoints, audience) = body.to.map(|to| addressees(api, &mut fields, to)).unwrap_or_default();
    fields.not_built(NOT_BUILT);
    fields.finish()?;
    let NewMessageBody { payload, compact, event_type, correlation_id, collapse_key, subject, ttl, .. } = body;
    let details = Details {
        labels: body.labels.unwrap_or_default(),
        region: body.region,
        cost_center: body.cost_center,
        audience,
        ..Details::default()
    };
    Ok(NewMessage {
        tenant: tenant.id,
        event_type,
        body: payload.unwrap_or_default(),
        compact,
        correlation_id,
        subject,
        tier: body.tier.unwrap_or_default(),
        ttl,
        deliver_at,
        endpoints,
        details,
        collapse_key,
        once: None,
        pending_max: tenant.terms.pending_max,
    })
}

/// Checks `to`: endpoints by id or uid, or an audience among the tenant's endpoints.
fn addressees<S: Store, C: Clock>(
    api: &Api<S, C>,
    fields: &mut BodyObject<'_>,
    to: AddresseesBody,
) -> (Vec<EndpointRef>, Audience) {
    let (subjects, tags) = (to.subjects.unwrap_or_default(), to.tags.unwrap_or_default());
    let all = to.all.unwrap_or(false);
    if let Some(channel) = &to.channel {
        check_channel(fields, "to/channel", channel);
    }
    let narrows = !subjects.is_empty() || !tags.is_empty();
    if all && narrows {
        fields.complain("to/all", "cannot be combined with subjects or tags, which would narrow it".to_owned());
    }
    if to.endpoints.is_some() && (all || narrows || to.channel.is_some()) {
        fields.complain("to/endpoints", "cannot be combined with other fields of to".to_owned());
    }
    let named = |name: String| api.endpoint_id(&name).map_or(EndpointRef::Uid(name), EndpointRef::Id);
    // The engine bounds their number, with a code of its own.
    let endpoints = to.endpoints.unwrap_or_default().into_iter().map(named).collect();
    (endpoints, Audience { subjects, tags, all, named: false })
}

fn event_type(raw: &RawValue) -> Result<String, String> {
    let written = String::parse(raw)?;
    if pattern::is_event_type(&written) {
        return Ok(written);
    }
    if written.len() > EVENT_TYPE_BYTES_MAX {
        return Err(format!("must be at most {EVENT_TYPE_BYTES_MAX} characters"));
    }
    Err("must be segments of letters, digits, - and _ joined by dots, such as invoice.paid".to_owned())
}
