//! How each protocol speaks: a message becomes a request, an answer becomes a verdict.
//!
//! Everything here is a pure function: `now` comes in as an argument, no socket is opened and no
//! row is read. The engine's connector sends what is made here; `posthaste-core` decides what
//! follows from a verdict.
//!
//! Read [`webhook`] first; [`custom_headers`] is what an endpoint's owner may add to a request,
//! [`retry_after`] what a receiver may ask of us.

pub mod custom_headers;
pub mod retry_after;
pub mod webhook;

pub use custom_headers::{BadHeader, CustomHeaders};
