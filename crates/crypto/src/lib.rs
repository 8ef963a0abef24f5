//! What Posthaste does with keys: it signs what it sends, and names what it keeps.
//!
//! This crate knows no other crate of ours and reads no clock. All cryptography comes from one
//! provider, aws-lc-rs; randomness comes from the operating system. No type here prints a key.
//!
//! Read [`signature`] for what a receiver can check, [`public_id`] for what an id gives away
//! (nothing but its time).

pub mod digest;
pub mod lookup;
pub mod public_id;
pub mod random;
pub mod signature;

pub use lookup::LookupKey;
pub use public_id::{IdKey, Kind, Opened};
pub use signature::{BadSecret, Received, Refused, Secret, sign, verify};
