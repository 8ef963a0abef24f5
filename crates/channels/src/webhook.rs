//! The webhook channel: a signed POST of the payload, byte for byte, and the verdict on its answer.
//!
//! A request is built for every attempt, but work that is the same for all is done once: an endpoint's custom
//! headers are already checked, its secrets have their keys prepared, and the body is shared, not copied. Invariant:
//! the bytes signed are the bytes sent, and no header of ours can be replaced: [`CustomHeaders`] refuses their names.
//! The verdict only classifies the answer; `posthaste_core::delivery::settle` decides what follows.

use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use posthaste_core::classify::{self, Overrides};
use posthaste_core::{Cause, Class, Timestamp, Verdict};
use posthaste_crypto::Secret;

use crate::{Channel, ChannelRequest, CustomHeaders, Fields, Outgoing, ResponseView, Unsendable, retry_after};

/// The message's id: the same on every attempt.
pub const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
/// When this attempt was signed, in seconds.
pub const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
/// One signature for each live secret.
pub const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
pub const DELIVERY: HeaderName = HeaderName::from_static("posthaste-delivery");
/// The number of the attempt; the first is 1.
pub const ATTEMPT: HeaderName = HeaderName::from_static("posthaste-attempt");
pub const EVENT_TYPE: HeaderName = HeaderName::from_static("posthaste-event-type");
pub const CORRELATION_ID: HeaderName = HeaderName::from_static("posthaste-correlation-id");
/// The token of a receipt, where the producer asked for one.
pub const RECEIPT: HeaderName = HeaderName::from_static("posthaste-receipt");

/// The response header by which a receiver ends the message (`abort-message`) or disables the endpoint (`disable`).
pub const ASKS: HeaderName = HeaderName::from_static("webhook-delivery");

/// Enough for our headers with one secret and an event type.
const FIELDS_BYTES: usize = 512;
const JSON: &str = "application/json";
const AGENT: &str = concat!("Posthaste/", env!("CARGO_PKG_VERSION"));

#[derive(Debug, Default)]
pub struct WebhookChannel {
    /// The signing secrets, newest first, each with its end. No secret ends later than the one before it.
    pub secrets: Vec<(Secret, Option<Timestamp>)>,
    pub headers: CustomHeaders,
    /// The endpoint's classes for status codes.
    pub overrides: Overrides,
}

impl WebhookChannel {
    /// The secrets that sign at this time, newest first.
    fn live_secrets(&self, now: Timestamp) -> Vec<&Secret> {
        let live = self.secrets.iter().take_while(|(_, until)| until.is_none_or(|until| now < until));
        live.map(|(secret, _)| secret).collect()
    }
}

impl Channel for WebhookChannel {
    fn request(&self, outgoing: &Outgoing<'_>, now: Timestamp) -> Result<ChannelRequest, Unsendable> {
        let delivery = || outgoing.delivery.to_owned();
        let secrets = self.live_secrets(now);
        if secrets.is_empty() {
            return Err(Unsendable::Unsigned { delivery: delivery() });
        }
        let timestamp_seconds = now.as_millis().div_euclid(1_000);
        let signature = posthaste_crypto::sign(&secrets, outgoing.message, timestamp_seconds, &outgoing.body);
        let (timestamp, attempt) = (timestamp_seconds.to_string(), outgoing.attempt.to_string());
        let values = [
            (CONTENT_TYPE, Some(JSON)),
            (USER_AGENT, Some(AGENT)),
            (WEBHOOK_ID, Some(outgoing.message)),
            (WEBHOOK_TIMESTAMP, Some(&timestamp)),
            (WEBHOOK_SIGNATURE, Some(&signature)),
            (DELIVERY, Some(outgoing.delivery)),
            (ATTEMPT, Some(&attempt)),
            (CORRELATION_ID, Some(outgoing.correlation_id)),
            (EVENT_TYPE, outgoing.event_type),
            (RECEIPT, outgoing.receipt),
        ];
        let mut ours = Fields::with_capacity(FIELDS_BYTES);
        for (header, value) in values {
            let Some(value) = value else { continue };
            if !ours.push(&header, value) {
                return Err(Unsendable::Value { delivery: delivery(), header });
            }
        }
        Ok(ChannelRequest { ours, own: self.headers.0.clone(), body: outgoing.body.clone() })
    }

    /// Overrides change the class; the cause still names the status that came.
    fn judge(&self, answer: &ResponseView<'_>, now: Timestamp) -> Verdict {
        // An invalid or past `Retry-After` counts as a wait of zero. Only a 429 without any doubles the backoff.
        let asked_wait = || {
            let mut values = answer.headers.get_all(RETRY_AFTER).iter().map(HeaderValue::as_bytes).peekable();
            values.peek()?;
            Some(retry_after::parse(values, now).unwrap_or_default())
        };
        let (mut class, mut cause) = (self.overrides.class(answer.status), classify::status(answer.status));
        if let Some(asked) = asked_cause(answer.headers) {
            // A message that was delivered cannot be aborted.
            let taken = class == Class::Delivered;
            if !taken || asked == Cause::DisableAsked {
                cause = asked;
            }
            // An endpoint that is gone stays gone.
            if !taken && class != Class::Gone {
                class = Class::Dead;
            }
        }
        Verdict {
            class,
            status: Some(answer.status),
            retry_after: classify::heeds_retry_after(answer.status).then(asked_wait).flatten(),
            prune: class == Class::Gone,
            ..Verdict::of(cause)
        }
    }
}

/// The cause that the receiver asks for by the header [`ASKS`]; unknown values are ignored.
fn asked_cause(headers: &HeaderMap) -> Option<Cause> {
    headers.get_all(ASKS).iter().find_map(|value| match value.as_bytes().trim_ascii() {
        word if word.eq_ignore_ascii_case(b"abort-message") => Some(Cause::Aborted),
        word if word.eq_ignore_ascii_case(b"disable") => Some(Cause::DisableAsked),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;
    use std::time::Duration;

    use bytes::Bytes;
    use posthaste_crypto::{Received, verify};
    use proptest::prelude::*;

    use super::*;

    /// With half a second that the header must not show.
    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_500);
    static SECRET: LazyLock<Secret> =
        LazyLock::new(|| Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a valid secret"));

    fn channel() -> WebhookChannel {
        WebhookChannel { secrets: vec![(SECRET.clone(), None)], ..WebhookChannel::default() }
    }

    fn outgoing() -> Outgoing<'static> {
        Outgoing {
            message: "msg_1",
            delivery: "dlv_2",
            attempt: 3,
            event_type: Some("invoice.paid"),
            correlation_id: "order-99",
            receipt: None,
            body: Bytes::from_static(br#"{"paid": 1.0}"#),
        }
    }

    fn made(outgoing: &Outgoing<'_>) -> ChannelRequest {
        made_with(&CustomHeaders::default(), outgoing)
    }

    fn made_with(headers: &CustomHeaders, outgoing: &Outgoing<'_>) -> ChannelRequest {
        let channel = WebhookChannel { headers: headers.clone(), ..channel() };
        channel.request(outgoing, NOW).expect("a valid attempt")
    }

    /// Every header, ours first.
    fn fields_of(request: &ChannelRequest) -> Vec<(&str, &str)> {
        request.ours.iter().chain(request.own.iter()).collect()
    }

    fn field<'a>(request: &'a ChannelRequest, name: &HeaderName) -> Option<&'a str> {
        fields_of(request).into_iter().find_map(|(other, value)| (name == other).then_some(value))
    }

    fn check_signature(request: &ChannelRequest) {
        let names = [WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE];
        let [id, timestamp, signature] = names.map(|name| field(request, &name).expect("every request has it"));
        let received = Received { id, timestamp, signature, body: &request.body };
        assert_eq!(verify(std::slice::from_ref(&*SECRET), &received, 1_800_000_000, Duration::ZERO), Ok(()));
    }

    #[test]
    fn a_request_has_the_documented_headers_and_no_other() {
        let custom = CustomHeaders::parse([("X-Team", "a")]).expect("a valid header");
        let request = made_with(&custom, &Outgoing { receipt: Some("rct-7"), ..outgoing() });
        let signature = posthaste_crypto::sign(&[&*SECRET], "msg_1", 1_800_000_000, br#"{"paid": 1.0}"#);
        let agent = concat!("Posthaste/", env!("CARGO_PKG_VERSION"));
        let expected = [
            ("content-type", "application/json"),
            ("user-agent", agent),
            ("webhook-id", "msg_1"),
            ("webhook-timestamp", "1800000000"),
            ("webhook-signature", &signature),
            ("posthaste-delivery", "dlv_2"),
            ("posthaste-attempt", "3"),
            ("posthaste-correlation-id", "order-99"),
            ("posthaste-event-type", "invoice.paid"),
            ("posthaste-receipt", "rct-7"),
            ("x-team", "a"),
        ];
        assert_eq!(fields_of(&request), expected);
        check_signature(&request);
    }

    #[test]
    fn optional_headers_are_left_out_without_a_value() {
        let request = made(&Outgoing { event_type: None, ..outgoing() });
        assert_eq!([EVENT_TYPE, RECEIPT].map(|name| field(&request, &name)), [None, None]);
    }

    #[test]
    fn missing_secrets_and_unprintable_values_are_refused() {
        let refused = |channel: &WebhookChannel, outgoing: &Outgoing<'_>| channel.request(outgoing, NOW).err();
        let delivery = || "dlv_2".to_owned();
        let unsigned = Unsendable::Unsigned { delivery: delivery() };
        assert_eq!(refused(&WebhookChannel::default(), &outgoing()), Some(unsigned));
        for event_type in ["a\r\nx: y", "a\0", "ä"] {
            let unprintable = Outgoing { event_type: Some(event_type), ..outgoing() };
            let expected = Unsendable::Value { delivery: delivery(), header: EVENT_TYPE };
            assert_eq!(refused(&channel(), &unprintable), Some(expected));
        }
    }

    /// The verdict on an answer with these values of one header.
    fn judged_with(status: u16, name: &HeaderName, values: &[&'static str], overrides: &[(&str, &str)]) -> Verdict {
        let headers = values.iter().map(|value| (name.clone(), HeaderValue::from_static(value)));
        let mut table = Overrides::default();
        overrides.iter().for_each(|(status, class)| table.add(status, class).expect("a valid override"));
        let answer = ResponseView { status, headers: &headers.collect(), excerpt: b"" };
        WebhookChannel { overrides: table, ..channel() }.judge(&answer, NOW)
    }

    fn judged(status: u16, retry_after: &[&'static str], overrides: &[(&str, &str)]) -> Verdict {
        judged_with(status, &RETRY_AFTER, retry_after, overrides)
    }

    #[test]
    fn a_verdict_follows_the_status() {
        let cases = [
            (200, Class::Delivered, Cause::Ok),
            (204, Class::Delivered, Cause::Ok),
            (301, Class::Dead, Cause::RedirectNotFollowed),
            (404, Class::Dead, Cause::NotFound),
            (410, Class::Gone, Cause::Gone),
            (413, Class::TooLarge, Cause::PayloadTooLarge),
            (500, Class::Retry, Cause::InternalError),
        ];
        for (status, class, cause) in cases {
            let expected = Verdict { class, status: Some(status), prune: status == 410, ..Verdict::of(cause) };
            assert_eq!(judged(status, &[], &[]), expected);
        }
    }

    #[test]
    fn a_status_outside_http_is_a_protocol_error_despite_overrides() {
        let everything = [("2xx", "dead"), ("3xx", "gone"), ("4xx", "gone"), ("5xx", "dead")];
        for status in [0, 99, 100, 199, 600, 999, u16::MAX] {
            let verdict = judged(status, &["120"], &everything);
            assert_eq!((verdict.class, verdict.cause), (Class::Retry, Cause::ProtocolError));
            assert_eq!(verdict.retry_after, None);
        }
    }

    #[test]
    fn an_override_changes_the_class_but_not_the_cause() {
        let verdict = judged(404, &[], &[("4xx", "gone"), ("404", "retry")]);
        assert_eq!((verdict.class, verdict.cause), (Class::Retry, Cause::NotFound));
        assert!(judged(404, &[], &[("404", "gone")]).prune, "an endpoint that is gone is pruned");
        assert!(!judged(410, &[], &[("410", "retry")]).prune);
    }

    #[test]
    fn a_receiver_may_end_a_message_or_its_endpoint_with_its_answer() {
        let judged = |status, asks: &'static str, overrides: &[(&str, &str)]| {
            let verdict = judged_with(status, &ASKS, &[asks], overrides);
            (verdict.class, verdict.cause)
        };
        assert_eq!(judged(503, "abort-message", &[]), (Class::Dead, Cause::Aborted));
        assert_eq!(judged(500, " Disable ", &[("5xx", "retry")]), (Class::Dead, Cause::DisableAsked));
        assert_eq!(judged(200, "abort-message", &[]), (Class::Delivered, Cause::Ok), "it was delivered");
        assert_eq!(judged(204, "disable", &[]), (Class::Delivered, Cause::DisableAsked));
        assert_eq!(judged(410, "disable", &[]).0, Class::Gone);
        assert_eq!(judged(413, "abort-message", &[]).0, Class::Dead, "no compact payload is tried");
        assert_eq!(judged(500, "explode", &[]), (Class::Retry, Cause::InternalError));
    }

    #[test]
    fn retry_after_counts_on_429_and_503_alone() {
        for status in [200, 301, 404, 408, 413, 500, 502, 504] {
            assert_eq!(judged(status, &["120"], &[]).retry_after, None, "status {status}");
        }
        for status in [429, 503] {
            assert_eq!(judged(status, &["120", "abc", "60"], &[]).retry_after, Some(Duration::from_secs(120)));
            for invalid in ["0", "", "abc", "-5"] {
                assert_eq!(judged(status, &[invalid], &[]).retry_after, Some(Duration::ZERO));
            }
            assert_eq!(judged(status, &[], &[]).retry_after, None, "a bare {status}");
        }
    }

    #[test]
    fn a_secret_signs_only_until_its_end() {
        let until = |ms: Option<i64>| (Secret::generate(), ms.map(Timestamp::from_millis));
        let channel = WebhookChannel {
            secrets: vec![until(None), until(Some(20)), until(Some(10))],
            ..WebhookChannel::default()
        };
        let live = |ms| channel.live_secrets(Timestamp::from_millis(ms)).len();
        assert_eq!([9, 10, 19, 20, 1_000].map(live), [3, 2, 2, 1, 1]);
    }

    proptest! {
        #[test]
        fn custom_headers_never_replace_ours_nor_frame_the_request(
            fields in prop::collection::vec(
                (
                    "(?i)host|content-length|transfer-encoding|connection|content-type|user-agent|\
                     webhook-(id|signature|timestamp)|posthaste-(attempt|delivery|x)|x-[a-z]{1,3}",
                    "[ -~]{0,20}",
                ),
                0..6,
            ),
        ) {
            let given = fields.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            // Only headers that are accepted one by one.
            let taken = given.filter(|field| CustomHeaders::parse([*field]).is_ok());
            let custom = CustomHeaders::parse(taken).unwrap_or_default();
            let plain = made(&outgoing());
            let request = made_with(&custom, &outgoing());
            let (plain, both) = (fields_of(&plain), fields_of(&request));
            prop_assert_eq!(&both[..plain.len()], &plain[..]);
            let mut names: Vec<&str> = both.iter().map(|(name, _)| *name).collect();
            names.sort_unstable();
            names.dedup();
            prop_assert_eq!(names.len(), plain.len() + custom.iter().count());
            for name in ["host", "content-length", "transfer-encoding", "connection"] {
                prop_assert!(!names.contains(&name));
            }
        }

        #[test]
        fn the_bytes_sent_are_the_bytes_signed(body: Vec<u8>) {
            let shared = Bytes::from(body.clone());
            let request = made(&Outgoing { body: shared.clone(), ..outgoing() });
            prop_assert_eq!(&request.body, &body);
            prop_assert_eq!(request.body.as_ptr(), shared.as_ptr(), "it is not copied");
            check_signature(&request);
        }
    }
}
