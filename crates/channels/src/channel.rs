//! The seam between the engine and a protocol: an endpoint's channel makes the request of an attempt and judges its
//! answer.
//!
//! A channel is these two pure functions over what it needs of one endpoint, parsed once. The engine registers it with
//! one line, sends what it makes and settles by what it says.

use std::fmt;

use bytes::Bytes;
use http::HeaderMap;
use http::header::HeaderName;
use posthaste_core::{Timestamp, Verdict};

use crate::Request;

/// How one endpoint is spoken to. The dispatch loop calls both functions: they must not block, and read neither a clock
/// nor the network.
pub trait Channel: fmt::Debug + Send + Sync {
    /// The request of one attempt, made at `now`. With an error nothing is sent, and the attempt fails with the cause
    /// `unsendable`.
    fn request(&self, outgoing: &Outgoing<'_>, now: Timestamp) -> Result<Request, Unsendable>;

    /// What an answer means: its cause, whom it concerns (the endpoint, its lane, its credential), the least wait before
    /// the next attempt, and whether the endpoint is no more. Not called when no answer came: the connector's errors
    /// mean the same in every channel.
    fn judge(&self, answer: &Answer<'_>, now: Timestamp) -> Verdict;
}

/// One attempt, as every channel needs it. It holds the payload: not for printing.
#[derive(Clone)]
pub struct Outgoing<'a> {
    /// The message's public id.
    pub message: &'a str,
    /// The delivery's public id.
    pub delivery: &'a str,
    /// Which attempt this is; the first is 1.
    pub attempt: u16,
    /// What the message is about.
    pub event_type: Option<&'a str>,
    /// What the message belongs to.
    pub correlation_id: &'a str,
    /// The token to acknowledge with, where a receipt is required.
    pub receipt: Option<&'a str>,
    /// The payload as it was accepted.
    pub body: Bytes,
}

/// What came back, as far as a verdict depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The status, also one that HTTP does not know.
    pub status: u16,
    /// The answer's headers.
    pub headers: &'a HeaderMap,
    /// How its body begins, where that was read: providers name their error there.
    pub excerpt: &'a [u8],
}

/// Why an attempt cannot be put into a request. Everything in it was checked when it was accepted,
/// so each of these is a fault of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsendable {
    /// Nothing to sign with: it would go out unsigned.
    #[error("delivery {delivery}: the endpoint has no live secret to sign with; rotate its secret")]
    Unsigned {
        /// Which delivery.
        delivery: String,
    },
    /// A value no header can carry.
    #[error("delivery {delivery}: the value of header {header} is not printable ASCII; send the message with another")]
    Value {
        /// Which delivery.
        delivery: String,
        /// Whose value.
        header: HeaderName,
    },
}
