//! The interface between the engine and a protocol: an endpoint's channel builds the request of an attempt and judges
//! its answer.
//!
//! A channel is these two pure functions over the parsed settings of one endpoint. The engine registers it in
//! one line, sends its requests and settles deliveries by its verdicts.

use std::fmt;

use bytes::Bytes;
use http::HeaderMap;
use http::header::HeaderName;
use posthaste_core::{Timestamp, Verdict};

use crate::ChannelRequest;

/// The protocol of one endpoint. The dispatch loop calls both functions: they must not block, and read neither a clock
/// nor the network.
pub trait Channel: fmt::Debug + Send + Sync {
    /// Builds the request of one attempt. On an error nothing is sent, and the attempt fails with the cause
    /// `unsendable`.
    fn request(&self, outgoing: &Outgoing<'_>, now: Timestamp) -> Result<ChannelRequest, Unsendable>;

    /// Judges an answer: its cause, its scope (the endpoint, its lane, its credential), the least wait before
    /// the next attempt, and whether the endpoint no longer exists. Not called if no answer came: the connector's
    /// errors mean the same in every channel.
    fn judge(&self, answer: &ResponseView<'_>, now: Timestamp) -> Verdict;
}

/// The input of [`Channel::request`]. It has no `Debug`, since it holds the payload.
#[derive(Clone)]
pub struct Outgoing<'a> {
    pub message: &'a str,
    pub delivery: &'a str,
    /// The number of the attempt; the first is 1.
    pub attempt: u16,
    pub event_type: Option<&'a str>,
    pub correlation_id: &'a str,
    /// The token of a receipt, where one is required.
    pub receipt: Option<&'a str>,
    /// The payload as it was accepted.
    pub body: Bytes,
}

/// The input of [`Channel::judge`].
#[derive(Clone, Copy, Debug)]
pub struct ResponseView<'a> {
    /// The status code, also one outside HTTP's range.
    pub status: u16,
    pub headers: &'a HeaderMap,
    /// The beginning of the body, where it was read: some providers name their error there.
    pub excerpt: &'a [u8],
}

/// Why no request can be built. All inputs are checked when the message is accepted, so each of these is a fault in
/// Posthaste.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsendable {
    /// There is no secret, and a request must not be sent unsigned.
    #[error("delivery {delivery}: the endpoint has no live secret to sign with; rotate its secret")]
    Unsigned { delivery: String },
    #[error("delivery {delivery}: the value of header {header} is not printable ASCII; send the message with another")]
    Value { delivery: String, header: HeaderName },
}
