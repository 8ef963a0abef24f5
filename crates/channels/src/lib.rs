//! The delivery protocols: a message becomes a request, an answer becomes a verdict.
//!
//! Everything here is a pure function: the current time is an argument, no socket is opened and no
//! row is read. The engine's connector sends the requests; `posthaste-core` decides what
//! follows from a verdict.
//!
//! Read [`channel`] first, then [`webhook`]. [`custom_headers`] are the headers that an endpoint's owner adds to
//! requests, [`retry_after`] parses `Retry-After`, and [`Fields`] holds the headers of a request.

pub mod channel;
pub mod custom_headers;
pub mod fields;
pub mod retry_after;
pub mod webhook;

use std::sync::Arc;

use bytes::Bytes;

pub use channel::{Channel, Outgoing, ResponseView, Unsendable};
pub use custom_headers::{BadHeader, CustomHeaders};
pub use fields::{BadField, Fields};

/// The POST request of one attempt. The connector adds the target and the `Content-Length`.
#[derive(Clone, Debug, Default)]
pub struct ChannelRequest {
    /// Headers built for this attempt.
    pub ours: Fields,
    /// The endpoint's custom headers, shared by its requests. They may be credentials.
    pub own: Arc<Fields>,
    /// The body, sent byte for byte.
    pub body: Bytes,
}
