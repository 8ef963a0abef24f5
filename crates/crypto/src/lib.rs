//! What Posthaste does with keys: it signs what it sends, seals what it keeps, and knows again what
//! comes back.
//!
//! This crate knows no other crate of ours, reads no clock and no file. All cryptography comes from
//! one provider, aws-lc-rs; randomness comes from the operating system. No type here prints a key.
//!
//! Read [`keyring`] for which key there is and what it is for, [`spot`] and [`seal`] for what is kept,
//! [`signature`] for what a receiver can check, [`public_id`] for what an id gives away (nothing but
//! its time).

pub mod api_key;
mod base32;
pub mod checkpoint;
mod derive;
pub mod digest;
pub mod hex;
pub mod keyring;
pub mod lookup;
pub mod master;
pub mod public_id;
pub mod random;
pub mod row_mac;
pub mod seal;
pub mod secret;
pub mod signature;
pub mod spot;
pub mod token;

pub use lookup::LookupKey;
pub use public_id::{IdKey, Kind, Opened};
pub use signature::{BadSecret, Received, Refused, Scheme, Secret, sign, verify};
