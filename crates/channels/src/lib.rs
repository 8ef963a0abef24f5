//! The delivery protocols: a message becomes a request, an answer becomes a verdict.
//!
//! Everything here is a pure function: the current time is an argument, no socket is opened and no row is read. The
//! engine's connector sends the requests; `posthaste-core` decides what follows from a verdict.
//!
//! Read [`channel`] first, then [`webhook`]. [`headers`] has the headers of a request and those that an endpoint's owner
//! adds; [`retry_after`] parses `Retry-After`.

pub mod channel;
pub mod headers;
pub mod retry_after;
pub mod webhook;

use std::sync::Arc;

use bytes::Bytes;

pub use channel::{Channel, Outgoing, ResponseView, Unsendable};
pub use headers::{BadHeader, CustomHeaders, Fields};

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
