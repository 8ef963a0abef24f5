//! All of Posthaste's cryptography: signatures of requests, encryption of stored values, keyed hashes, tokens, API keys
//! and public ids.
//!
//! This crate depends on no other crate of the workspace and reads neither clock nor files. All cryptography comes from
//! one provider, aws-lc-rs; randomness comes from the operating system. No type here prints a key.
//!
//! Read [`keyring`] for the hierarchy of keys, [`seal_context`] and [`seal`] for the encryption of stored values,
//! [`signature`] for what a receiver can verify, [`public_id`] for ids, which reveal nothing but their time.

/// An enum whose variants each have a text: the enum, the list of all its variants, and the function that returns the text.
macro_rules! named {
    (
        $(#[$meta:meta])* $vis:vis enum $type:ident { $($(#[$doc:meta])* $variant:ident $(= $number:literal)? => $text:literal,)+ }
        $(#[$only:meta])* ALL, $name:ident
    ) => {
        $(#[$meta])*
        $vis enum $type { $($(#[$doc])* $variant $(= $number)?,)+ }

        impl $type {
            $(#[$only])*
            $vis const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            $vis const fn $name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }
    };
}

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
pub mod seal_context;
pub mod secret;
pub mod signature;
pub mod token;

pub use lookup::LookupKey;
pub use public_id::{IdKey, IdKind, OpenedId};
pub use signature::{BadSecret, Received, Secret, SignatureRefused, SignatureScheme, sign, verify};
