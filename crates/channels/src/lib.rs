//! How each protocol speaks: a message becomes a request, an answer becomes a verdict.
//!
//! Everything here is a pure function: `now` comes in as an argument, no socket is opened and no
//! row is read. The engine's connector sends what is made here; `posthaste-core` decides what
//! follows from a verdict.
//!
//! Read [`channel`] first, then [`webhook`]; [`custom_headers`] is what an endpoint's owner may add to a request,
//! [`retry_after`] what a receiver may ask of us, [`Fields`] how a request's head is kept.

pub mod channel;
pub mod custom_headers;
pub mod fields;
pub mod retry_after;
pub mod webhook;

use std::sync::Arc;

use bytes::Bytes;

pub use channel::{Answer, Channel, Outgoing, Unsendable};
pub use custom_headers::{BadHeader, CustomHeaders};
pub use fields::{BadField, Fields};

/// What is sent for one attempt: a POST. Where it leads and how long it is are the connection's to say.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Fields made for this attempt.
    pub ours: Fields,
    /// The endpoint's own, made once. They may be credentials.
    pub own: Arc<Fields>,
    /// Byte for byte.
    pub body: Bytes,
}
