//! The requests of the bench's clients: messages for the server, and webhooks for the receiver.

use std::time::SystemTime;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, StatusCode, Uri};

use super::part::ClientLoad;

/// The requests to post, and the answers that they must get.
pub(super) trait Post {
    /// The request with the messages from number `first` on. Its payloads contain the send time, in microseconds.
    fn request(&self, first: u64, sent_us: u64) -> Request<Full<Bytes>>;

    /// Whether an answer means that every message of the request was taken.
    fn is_taken(&self, status: StatusCode, body: &[u8]) -> bool;
}

/// Messages as a producer posts them, to the endpoints in turn.
pub(super) struct Messages<'a> {
    load: &'a ClientLoad,
    fields: HeaderMap,
    to: Uri,
    payload: Payload,
}

impl<'a> Messages<'a> {
    pub(super) fn new(load: &'a ClientLoad) -> Self {
        let (to, content_type) = match load.batch {
            0 => ("/v1/messages", "application/json"),
            _ => ("/v1/messages/batch", "application/x-ndjson"),
        };
        let fields =
            [(HOST, HeaderValue::from_static("127.0.0.1")), (CONTENT_TYPE, HeaderValue::from_static(content_type))];
        let payload = Payload::of(load.payload);
        Self { load, fields: HeaderMap::from_iter(fields), to: Uri::from_static(to), payload }
    }

    fn write(&self, number: u64, sent_us: u64, body: &mut Vec<u8>) {
        // Tier 1, transactional: a failed attempt is retried within a second.
        body.extend_from_slice(b"{\"event_type\":\"bench.sent\",\"tier\":1,\"payload\":");
        self.payload.write(sent_us, body);
        body.extend_from_slice(b",\"to\":{\"endpoints\":[");
        let all = self.load.endpoints.len().max(1);
        let first = usize::try_from(number).unwrap_or_default() * self.load.fan % all;
        for turn in 0..self.load.fan {
            let endpoint = self.load.endpoints.get((first + turn) % all).map_or("", String::as_str);
            body.extend_from_slice(if turn == 0 { b"\"" } else { b",\"" });
            body.extend_from_slice(endpoint.as_bytes());
            body.push(b'"');
        }
        body.extend_from_slice(b"]}}");
    }
}

impl Post for Messages<'_> {
    fn request(&self, first: u64, sent_us: u64) -> Request<Full<Bytes>> {
        let lines = self.load.batch.max(1);
        let mut body = Vec::with_capacity((self.load.payload + 256) * usize::try_from(lines).unwrap_or(1));
        for number in first..first + lines {
            self.write(number, sent_us, &mut body);
            body.push(b'\n');
        }
        post(&self.to, &self.fields, body)
    }

    fn is_taken(&self, status: StatusCode, body: &[u8]) -> bool {
        const TAKEN: &[u8] = b"{\"status\":202,";
        match self.load.batch {
            0 => status == StatusCode::ACCEPTED,
            _ => {
                let mut lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                status == StatusCode::OK && lines.all(|line| line.starts_with(TAKEN))
            }
        }
    }
}

/// Requests of the bare client, with the payloads and the length of real webhooks.
pub(super) struct Webhooks {
    fields: HeaderMap,
    to: Uri,
    payload: Payload,
}

pub(super) const DELIVERY: HeaderName = HeaderName::from_static("posthaste-delivery");
/// The path of bare requests, which the receiver does not count as deliveries.
pub(super) const BARE: &str = "/bare";

impl Webhooks {
    pub(super) fn new(load: &ClientLoad) -> Self {
        const SIGNATURE: &str = "v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        const MESSAGE: &str = "msg_000000000000000000000000000000000000";
        let own =
            |name: &'static str, value: &'static str| (HeaderName::from_static(name), HeaderValue::from_static(value));
        let fields = [
            (HOST, HeaderValue::from_static("127.0.0.1:65535")),
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (USER_AGENT, HeaderValue::from_static(concat!("Posthaste/", env!("CARGO_PKG_VERSION")))),
            own("webhook-id", MESSAGE),
            own("webhook-timestamp", "1800000000"),
            own("webhook-signature", SIGNATURE),
            own("posthaste-attempt", "1"),
            own("posthaste-event-type", "bench.sent"),
            own("posthaste-correlation-id", MESSAGE),
        ];
        Self { fields: HeaderMap::from_iter(fields), to: Uri::from_static(BARE), payload: Payload::of(load.payload) }
    }
}

impl Post for Webhooks {
    fn request(&self, first: u64, sent_us: u64) -> Request<Full<Bytes>> {
        let mut body = Vec::with_capacity(self.payload.filled.len());
        self.payload.write(sent_us, &mut body);
        let mut request = post(&self.to, &self.fields, body);
        let delivery = HeaderValue::try_from(format!("dlv_{first:036}")).expect("digits are a header's value");
        request.headers_mut().insert(DELIVERY, delivery);
        request
    }

    fn is_taken(&self, status: StatusCode, _: &[u8]) -> bool {
        status == StatusCode::NO_CONTENT
    }
}

fn post(to: &Uri, fields: &HeaderMap, body: Vec<u8>) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::from(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = to.clone();
    *request.headers_mut() = fields.clone();
    request
}

const SENT: &str = "{\"sent_us\":";
const DIGITS: usize = 16;

/// A payload of a given size that contains its send time.
struct Payload {
    filled: Vec<u8>,
}

impl Payload {
    fn of(bytes: usize) -> Self {
        let mut filled = format!("{SENT}{:0DIGITS$},\"fill\":\"", 0).into_bytes();
        let missing = bytes.saturating_sub(filled.len() + 2);
        filled.extend(std::iter::repeat_n(b'x', missing));
        filled.extend_from_slice(b"\"}");
        Self { filled }
    }

    fn write(&self, sent_us: u64, body: &mut Vec<u8>) {
        body.extend_from_slice(SENT.as_bytes());
        body.extend_from_slice(format!("{sent_us:0DIGITS$}").as_bytes());
        body.extend_from_slice(&self.filled[SENT.len() + DIGITS..]);
    }
}

/// The send time in a payload.
pub(super) fn sent_us(payload: &[u8]) -> Option<u64> {
    let digits = payload.strip_prefix(SENT.as_bytes())?.get(..DIGITS)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The wall clock in microseconds, which all processes of the bench share.
#[expect(clippy::disallowed_methods, reason = "two processes can compare nothing but the wall clock")]
pub(super) fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::part::tests::load;
    use super::*;

    #[test]
    fn a_payload_has_its_size_and_its_send_time() {
        let (mut written, now) = (Vec::new(), wall_us());
        Payload::of(600).write(now, &mut written);
        assert_eq!((written.len(), sent_us(&written)), (600, Some(now)));
        assert!(serde_json::from_slice::<serde_json::Value>(&written).is_ok());
        assert_eq!(sent_us(b"{}"), None);
    }

    #[test]
    fn messages_go_to_their_endpoints_in_turn() {
        let load = load();
        let mut line = Vec::new();
        Messages::new(&load).write(1, 1_800_000_000_000_000, &mut line);
        let message: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
        assert_eq!(message["to"]["endpoints"], serde_json::json!(["ep_c", "ep_a"]));
    }

    #[test]
    fn a_batch_is_taken_if_every_line_is() {
        let load = load();
        let taken = |body: &[u8]| Messages::new(&load).is_taken(StatusCode::OK, body);
        assert!(taken(b"{\"status\":202,\"id\":\"msg_1\"}\n{\"status\":202,\"id\":\"msg_2\"}\n"));
        assert!(!taken(b"{\"status\":202,\"id\":\"msg_1\"}\n{\"status\":429}\n"));
    }
}
