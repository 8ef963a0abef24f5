//! The settable fields of an endpoint: parsed from a body into a stored endpoint, and shown again.
//!
//! Creating and changing parse the same fields. A field that is left out keeps its value; `null` sets it back to the
//! default.

use std::collections::BTreeMap;

use posthaste_core::scheduler::{OnDead, Order};
use posthaste_crypto::signature::{Secret, SignatureScheme};
use posthaste_engine::dispatch::LanePaused;
use posthaste_engine::endpoints::NewSigning;
use posthaste_store::{DisabledBy, Endpoint, EndpointRate, EndpointStatus, EndpointTarget, EndpointTls, SigningSecret};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::object::Object;
use crate::{duration, value};

/// The default of `max_in_flight`.
pub(super) const MAX_IN_FLIGHT: u16 = 20;
const MAX_IN_FLIGHT_MAX: u64 = 1_000;
const EVENT_TYPES_MAX: usize = 100;
/// The most tags: a message is compared with each of them.
const TAGS_MAX: usize = 100;
const DESCRIPTION_BYTES_MAX: usize = 1_000;
/// The longest attempt that the server allows.
const TIMEOUT_MAX: std::time::Duration = std::time::Duration::from_secs(30);
const TIMEOUT_MIN: std::time::Duration = std::time::Duration::from_millis(100);
/// The largest rate and burst that a token bucket can count.
const RATE_MAX: f64 = 1_000_000.0;
const BURST_MAX: u64 = 1_000_000;

const ORDERS: [(&str, Order); 3] =
    [("fifo", Order::Fifo), ("newest_first", Order::NewestFirst), ("strict", Order::Strict)];
const ON_DEAD: [(&str, OnDead); 2] = [("skip", OnDead::Skip), ("hold", OnDead::Hold)];

/// Planned fields, for channels that this version does not support.
const NOT_BUILT: &[&str] =
    &["subscription", "device_token", "topic", "environment", "registration_token", "credential"];

/// Planned channels that this version does not support.
const CHANNELS_NOT_BUILT: [&str; 3] = ["webpush", "apns", "fcm"];

/// Refuses every channel except `webhook`.
pub(super) fn check_channel(fields: &mut Object<'_>, channel: &str) {
    if CHANNELS_NOT_BUILT.contains(&channel) {
        fields.cannot_yet("channel", "this version cannot do that yet; it supports only webhook".to_owned());
    } else if channel != "webhook" {
        fields.complain("channel", "must be webhook".to_owned());
    }
}

/// Parses the fields that can be set at creation and changed later. Complaints are collected in `fields`.
pub(super) fn read(fields: &mut Object<'_>, endpoint: &mut Endpoint) {
    if let Some(channel) = fields.get("channel", value::text) {
        check_channel(fields, &channel);
    }
    let had = |fields: &Object<'_>, name: &str| fields.has(name);
    macro_rules! field {
        ($name:literal, $parse:expr => $slot:expr, $default:expr) => {
            let is_there = had(fields, $name);
            let given = fields.get($name, $parse);
            if is_there {
                $slot = given.unwrap_or($default);
            }
        };
    }
    field!("uid", |raw| value::uid(raw).map(Some) => endpoint.uid, None);
    field!("subject", |raw| value::subject(raw).map(Some) => endpoint.subject, None);
    field!("description", |raw| description(raw).map(Some) => endpoint.description, None);
    if had(fields, "tags") {
        endpoint.tags = tags(fields);
    }
    let EndpointTarget::Webhook(webhook) = &mut endpoint.target;
    if had(fields, "headers") {
        webhook.headers = fields.texts("headers").unwrap_or_default();
    }
    if had(fields, "event_types") {
        endpoint.event_types = event_types(fields);
    }
    field!("policy", |raw| value::text(raw).map(Some) => endpoint.policy, None);
    field!("ttl", |raw| value::ttl(raw).map(Some) => endpoint.ttl, None);
    field!("timeout", |raw| timeout(raw).map(Some) => endpoint.timeout, None);
    field!("max_in_flight", max_in_flight => endpoint.max_in_flight, MAX_IN_FLIGHT);
    field!("order", |raw| value::parse_word(raw, &ORDERS) => endpoint.order, Order::Fifo);
    field!("on_dead", |raw| value::parse_word(raw, &ON_DEAD) => endpoint.on_dead, OnDead::Skip);
    field!("time_zone", |raw| value::text(raw).map(Some) => endpoint.time_zone, None);
    if had(fields, "status_overrides") {
        webhook.status_overrides = fields.texts("status_overrides").unwrap_or_default();
    }
    if endpoint.on_dead == OnDead::Hold && endpoint.order != Order::Strict {
        fields.complain(
            "on_dead",
            "\"hold\" needs \"order\": \"strict\": other orders do not wait for a delivery".to_owned(),
        );
    }
    rate(fields, endpoint);
    tls(fields, endpoint);
    fields.not_built(NOT_BUILT);
}

/// Parses how a new endpoint signs.
pub(super) fn signing(fields: &mut Object<'_>) -> NewSigning {
    let mut signing = fields.object("signing");
    let scheme = signing.get("scheme", |raw| value::parse_word(raw, &SignatureScheme::ALL));
    let secret = signing.get("secret", value::text);
    fields.absorb(signing);
    NewSigning { scheme, secret }
}

fn rate(fields: &mut Object<'_>, endpoint: &mut Endpoint) {
    let (is_there, is_set) = (fields.has("rate"), fields.has("rate") && !fields.is_null("rate"));
    let mut given = fields.object("rate");
    let rate = |raw: &RawValue| match value::number(raw)? {
        rate if rate > 0.0 && rate <= RATE_MAX => Ok(rate),
        _ => Err(format!("must be above 0 and at most {RATE_MAX}")),
    };
    let per_second = if is_set { given.need("per_second", rate) } else { None };
    let burst = given.get("burst", |raw| match value::whole(raw)? {
        count @ 1..=BURST_MAX => u32::try_from(count).map_err(|error| error.to_string()),
        _ => Err(format!("must be 1 to {BURST_MAX}")),
    });
    fields.absorb(given);
    if is_there {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
        let thousandths = |rate: f64| ((rate * 1_000.0).round() as u64).max(1);
        endpoint.rate = per_second.map(|rate| EndpointRate { milli: thousandths(rate), burst: burst.unwrap_or(1) });
    }
}

fn tls(fields: &mut Object<'_>, endpoint: &mut Endpoint) {
    let is_there = fields.has("tls");
    let mut given = fields.object("tls");
    let ca = given.get("ca", value::text);
    let client_cert = given.get("client_cert", value::text);
    let client_key = given.get("client_key", value::text);
    fields.absorb(given);
    if is_there {
        let EndpointTarget::Webhook(webhook) = &mut endpoint.target;
        webhook.tls = EndpointTls { ca, client_cert, client_key };
    }
}

fn description(raw: &RawValue) -> Result<String, String> {
    match value::text(raw)? {
        long if long.len() > DESCRIPTION_BYTES_MAX => Err(format!("must be at most {DESCRIPTION_BYTES_MAX} bytes")),
        text => Ok(text),
    }
}

fn tags(fields: &mut Object<'_>) -> Vec<String> {
    let given = fields.list("tags", value::name).unwrap_or_default();
    if given.len() > TAGS_MAX {
        fields.complain("tags", format!("must be at most {TAGS_MAX} tags"));
        return Vec::new();
    }
    let mut tags: Vec<String> = Vec::with_capacity(given.len());
    for tag in given {
        if !tags.contains(&tag) {
            tags.push(tag);
        }
    }
    tags
}

fn event_types(fields: &mut Object<'_>) -> Vec<String> {
    let given = fields.list("event_types", value::text).unwrap_or_default();
    if given.len() > EVENT_TYPES_MAX {
        fields.complain("event_types", format!("must be at most {EVENT_TYPES_MAX} patterns"));
    }
    given
}

fn timeout(raw: &RawValue) -> Result<std::time::Duration, String> {
    match value::duration(raw)? {
        fits if (TIMEOUT_MIN..=TIMEOUT_MAX).contains(&fits) => Ok(fits),
        _ => Err(format!("must be {} to {}", duration::write(TIMEOUT_MIN), duration::write(TIMEOUT_MAX))),
    }
}

fn max_in_flight(raw: &RawValue) -> Result<u16, String> {
    match value::whole(raw)? {
        count @ 1..=MAX_IN_FLIGHT_MAX => u16::try_from(count).map_err(|error| error.to_string()),
        _ => Err(format!("must be 1 to {MAX_IN_FLIGHT_MAX}")),
    }
}

/// What the API shows of an endpoint beside its stored fields.
pub(super) struct Known {
    pub(super) id: String,
    pub(super) tenant: Option<String>,
    pub(super) policy: String,
    pub(super) paused: Option<LanePaused>,
    /// The dead delivery that its strict order waits behind, if that is why it is paused.
    pub(super) dead_head: Option<String>,
}

/// An endpoint as the API shows it.
#[derive(Serialize)]
pub(super) struct Shown<'a> {
    pub(super) id: String,
    tenant: Option<String>,
    uid: Option<&'a str>,
    channel: &'static str,
    url: String,
    subject: Option<&'a str>,
    description: Option<&'a str>,
    tags: &'a [String],
    headers: BTreeMap<&'a str, &'a str>,
    event_types: &'a [String],
    policy: String,
    ttl: Option<String>,
    timeout: Option<String>,
    rate: Option<ShownRate>,
    max_in_flight: u16,
    order: &'static str,
    on_dead: &'static str,
    time_zone: Option<&'a str>,
    tls: Option<ShownTls>,
    status_overrides: BTreeMap<&'a str, &'a str>,
    status: &'static str,
    status_reason: Option<String>,
    created_at: String,
    signing: Signing<'a>,
}

#[derive(Serialize)]
struct ShownRate {
    per_second: f64,
    burst: u32,
}

/// Which parts of the TLS settings are set; their texts are not shown.
#[derive(Serialize)]
struct ShownTls {
    ca: bool,
    client_cert: bool,
}

/// How an endpoint signs. The secret is set only in answers that show it.
#[derive(Serialize)]
pub(super) struct Signing<'a> {
    scheme: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    public_key: Option<String>,
}

impl<'a> Signing<'a> {
    /// The key that the receiver verifies with: the shared secret, or the public key.
    pub(super) fn revealed(secret: &'a SigningSecret) -> Self {
        let known = Secret::parse(&secret.text).ok();
        let scheme = known.as_ref().map(Secret::scheme).unwrap_or_default();
        let text = (scheme == SignatureScheme::V1).then_some(secret.text.as_str());
        Self { scheme: scheme.name(), secret: text, public_key: known.and_then(|known| known.public()) }
    }

    fn hidden(secrets: &'a [SigningSecret]) -> Self {
        let newest = secrets.first().map(Self::revealed);
        newest.map_or(Self { scheme: "v1", secret: None, public_key: None }, |all| Self { secret: None, ..all })
    }
}

/// How much a caller sees of what may contain credentials: URLs and the values of headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    Whole,
    Origin,
}

impl<'a> Shown<'a> {
    pub(super) fn of(known: Known, endpoint: &'a Endpoint, sight: Sight) -> Self {
        let status = status(endpoint, known.paused.as_ref());
        let status_reason = status_reason(endpoint, &known);
        let Known { id, tenant, policy, .. } = known;
        let EndpointTarget::Webhook(webhook) = &endpoint.target;
        let tls = &webhook.tls;
        let value = |value: &'a String| if sight == Sight::Whole { value.as_str() } else { "…" };
        Self {
            id,
            tenant,
            uid: endpoint.uid.as_deref(),
            channel: "webhook",
            url: if sight == Sight::Whole { webhook.url.clone() } else { origin(&webhook.url) },
            subject: endpoint.subject.as_deref(),
            description: endpoint.description.as_deref(),
            tags: &endpoint.tags,
            headers: webhook.headers.iter().map(|(name, text)| (name.as_str(), value(text))).collect(),
            event_types: &endpoint.event_types,
            policy,
            ttl: endpoint.ttl.map(duration::write),
            timeout: endpoint.timeout.map(duration::write),
            #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
            rate: endpoint.rate.map(|rate| ShownRate { per_second: rate.milli as f64 / 1_000.0, burst: rate.burst }),
            max_in_flight: endpoint.max_in_flight,
            order: word(&ORDERS, endpoint.order),
            on_dead: word(&ON_DEAD, endpoint.on_dead),
            time_zone: endpoint.time_zone.as_deref(),
            tls: (*tls != EndpointTls::default())
                .then(|| ShownTls { ca: tls.ca.is_some(), client_cert: tls.client_cert.is_some() }),
            status_overrides: webhook.status_overrides.iter().map(|(of, to)| (of.as_str(), to.as_str())).collect(),
            status,
            status_reason,
            created_at: value::write_time(endpoint.at),
            signing: Signing::hidden(&webhook.secrets),
        }
    }

    /// Adds the secret or public key that the receiver verifies with.
    pub(super) fn revealed(self, secrets: &'a [SigningSecret]) -> Self {
        match secrets.first() {
            Some(newest) => Self { signing: Signing::revealed(newest), ..self },
            None => self,
        }
    }
}

/// The status of an endpoint, as the API names it.
pub(super) fn status(endpoint: &Endpoint, paused: Option<&LanePaused>) -> &'static str {
    match endpoint.status {
        EndpointStatus::Gone => "gone",
        EndpointStatus::Deleted => "deleted",
        EndpointStatus::Disabled(DisabledBy::Receiver) => "disabled",
        EndpointStatus::Active if paused.is_some() => "paused",
        EndpointStatus::Active => "active",
    }
}

/// Why an endpoint is not active; `None` while it is.
fn status_reason(endpoint: &Endpoint, known: &Known) -> Option<String> {
    match endpoint.status {
        EndpointStatus::Gone => Some("its receiver answered 410".to_owned()),
        EndpointStatus::Deleted => None,
        EndpointStatus::Disabled(DisabledBy::Receiver) => {
            Some("its receiver asked for it with webhook-delivery: disable".to_owned())
        }
        EndpointStatus::Active => known.paused.as_ref().map(|paused| pause_reason(paused, known.dead_head.as_deref())),
    }
}

/// Why an endpoint is paused: the reason that was given, or the dead delivery of its strict order.
fn pause_reason(paused: &LanePaused, dead_head: Option<&str>) -> String {
    let given = paused.said.as_ref().and_then(|pause| pause.reason.clone());
    let why = given.or_else(|| dead_head.map(|dead| format!("its order is strict and {dead} is dead")));
    let why = why.unwrap_or_else(|| "no reason was given".to_owned());
    match paused.hold.until {
        Some(until) => format!("{why} (until {})", value::write_time(until)),
        None => why,
    }
}

/// A URL as an operator key sees it: without path and query, which may contain credentials.
fn origin(url: &str) -> String {
    let host = url.find("://").map_or(0, |at| at + 3);
    match url[host..].find(['/', '?', '#']) {
        Some(end) if url[host + end..].len() > 1 => format!("{}/…", &url[..host + end]),
        _ => url.to_owned(),
    }
}

fn word<T: Copy + PartialEq>(words: &[(&'static str, T)], meaning: T) -> &'static str {
    words.iter().find(|(_, known)| *known == meaning).map_or("", |(word, _)| *word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_to_operators_without_path_and_query() {
        for (url, expected) in [
            ("https://example.com/hook?token=canary", "https://example.com/…"),
            ("https://example.com?token=canary", "https://example.com/…"),
            ("https://example.com:8443/", "https://example.com:8443/"),
            ("https://example.com", "https://example.com"),
        ] {
            assert_eq!(origin(url), expected);
        }
    }
}
