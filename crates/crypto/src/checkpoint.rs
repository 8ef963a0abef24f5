//! Signed checkpoints of the journal. An operator who keeps one elsewhere can verify later that no row up to the one it
//! names was changed or removed.
//!
//! A checkpoint is one line of text:
//!
//! ```text
//! posthaste checkpoint 1 STORE ROW CHAIN TIME_MS KEY SIGNATURE
//! ```
//!
//! `STORE`, `CHAIN` and `KEY` are hexadecimal, `ROW` and `TIME_MS` decimal, `SIGNATURE` is base64. It is the Ed25519
//! signature of the line up to the space before it, so that standard tools can verify it with only the
//! [public key](PublicKey::to_pem). Invariant: a checkpoint has exactly one text.
//!
//! ```
//! use posthaste_crypto::checkpoint::{BadCheckpoint, Checkpoint, PublicKey};
//! use posthaste_crypto::keyring::{KeyId, StoreKey};
//!
//! let key = StoreKey::generate(KeyId(1)).checkpoints();
//! let head = Checkpoint { store: [7; 16], row: 1_234, chain: [9; 32], at_ms: 1_800_000_000_000 };
//! let line = key.sign(&head);
//!
//! // Elsewhere, with the public key alone:
//! let public = PublicKey::parse(&key.public().to_string()).expect("as it was written");
//! assert_eq!(public.verify(&line), Ok(head));
//! assert_eq!(public.verify(&line.replace("1234", "1235")), Err(BadCheckpoint::Forged));
//! ```

use std::fmt;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::digest::{Digest, sha256};
use crate::hex;
use crate::secret::{SecretKey, prints_as};

/// The content of a checkpoint: at `at_ms`, the journal of `store` ended with `row`, and this was the row's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub store: [u8; 16],
    pub row: u64,
    /// That row's hash, which covers all rows before it.
    pub chain: Digest,
    /// When it was signed, in Unix milliseconds.
    pub at_ms: i64,
}

/// The reason why a checkpoint is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCheckpoint {
    /// It is not a checkpoint line, or was written by a newer program.
    #[error("this is not a checkpoint; give the line as it was exported")]
    Unknown,
    /// It was signed with another key.
    #[error("the checkpoint was signed with key {needed}, but public key {given} was given")]
    KeyNeeded { needed: SignerId, given: SignerId },
    /// Its signature does not match its content.
    #[error("the checkpoint's signature does not match: it was altered, or not signed by this store")]
    Forged,
}

/// Identifies a public key: the first bytes of its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignerId([u8; 4]);

impl fmt::Display for SignerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::write(&self.0))
    }
}

pub struct CheckpointKey {
    pair: Ed25519KeyPair,
    public: PublicKey,
}

impl CheckpointKey {
    pub(crate) fn from_seed(seed: &SecretKey) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.expose()).expect("any 32 bytes are a seed");
        let public = PublicKey(pair.public_key().as_ref().try_into().expect("Ed25519 has public keys of 32 bytes"));
        Self { pair, public }
    }

    /// The key that others verify checkpoints with.
    pub const fn public(&self) -> PublicKey {
        self.public
    }

    pub fn sign(&self, checkpoint: &Checkpoint) -> String {
        let mut line = words(checkpoint, self.public.id());
        let signature = self.pair.sign(line.as_bytes());
        line.push(' ');
        STANDARD.encode_string(signature, &mut line);
        line
    }
}

prints_as!(CheckpointKey, |key| "CheckpointKey({}, ..)", key.public.id());

/// Verifies checkpoints. Not a secret. Displays as base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Parses a key in base64.
    pub fn parse(text: &str) -> Option<Self> {
        STANDARD.decode(text.trim()).ok()?.try_into().ok().map(Self)
    }

    pub fn id(&self) -> SignerId {
        SignerId(*sha256(&[&self.0]).first_chunk().expect("a digest is longer"))
    }

    /// The key as PEM, for `openssl pkeyutl -verify -rawin -pubin -inkey`.
    pub fn to_pem(&self) -> String {
        /// The header of RFC 8410 before the key's bytes.
        const HEAD: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
        let body = STANDARD.encode([&HEAD[..], &self.0].concat());
        format!("-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n")
    }

    /// The content of a line, if this key signed it.
    pub fn verify(&self, line: &str) -> Result<Checkpoint, BadCheckpoint> {
        let (signed, signature) = line.trim_end().rsplit_once(' ').ok_or(BadCheckpoint::Unknown)?;
        let (checkpoint, needed) = parse(signed).ok_or(BadCheckpoint::Unknown)?;
        let signature = STANDARD.decode(signature).map_err(|_| BadCheckpoint::Unknown)?;
        if needed != self.id() {
            return Err(BadCheckpoint::KeyNeeded { needed, given: self.id() });
        }
        let key = UnparsedPublicKey::new(&ED25519, &self.0);
        key.verify(signed.as_bytes(), &signature).map_err(|_| BadCheckpoint::Forged)?;
        Ok(checkpoint)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

const HEAD: &str = "posthaste checkpoint 1";

/// The line without its signature.
fn words(checkpoint: &Checkpoint, signer: SignerId) -> String {
    let Checkpoint { store, row, chain, at_ms } = checkpoint;
    format!("{HEAD} {} {row} {} {at_ms} {signer}", hex::write(store), hex::write(chain))
}

/// The content and signer that a line claims, without verifying its signature. For finding the right store and key.
pub fn claimed(line: &str) -> Option<(Checkpoint, SignerId)> {
    parse(line.trim_end().rsplit_once(' ')?.0)
}

/// Parses a line without its signature; `None` unless it is exactly what [`words`] writes.
fn parse(signed: &str) -> Option<(Checkpoint, SignerId)> {
    let mut parts = signed.strip_prefix(HEAD)?.strip_prefix(' ')?.split(' ');
    let mut next = || parts.next();
    let checkpoint = Checkpoint {
        store: hex::read(next()?)?,
        row: next()?.parse().ok()?,
        chain: hex::read(next()?)?,
        at_ms: next()?.parse().ok()?,
    };
    let signer = SignerId(hex::read(next()?)?);
    (words(&checkpoint, signer) == signed).then_some((checkpoint, signer))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEAD_OF_JOURNAL: Checkpoint =
        Checkpoint { store: [7; 16], row: 42, chain: [9; 32], at_ms: 1_800_000_000_000 };

    fn key() -> CheckpointKey {
        CheckpointKey::from_seed(&SecretKey::from_bytes(&[3; 32]))
    }

    /// RFC 8032, section 7.1, test 2: seed, public key.
    #[test]
    fn public_key_matches_rfc_8032() {
        let seed = hex::read("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb").expect("32 bytes");
        let public = CheckpointKey::from_seed(&SecretKey::from_bytes(&seed)).public();
        assert_eq!(hex::write(&public.0), "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c");
    }

    /// Ed25519 signatures are deterministic, so a line exported years ago must be equal. The expected line was signed
    /// by another program.
    #[test]
    fn exported_line_keeps_its_meaning() {
        let line = key().sign(&HEAD_OF_JOURNAL);
        let expected = concat!(
            "posthaste checkpoint 1 07070707070707070707070707070707 42 ",
            "0909090909090909090909090909090909090909090909090909090909090909 1800000000000 b62e867f ",
            "sK91jUwguO7/eBz/vCF17ZfMMF69Vj7eiBK6nGxP1opqhAZ9ecksu4vFwF7qFgvHTftKRK2SzntJdTwTHjBUDA=="
        );
        assert_eq!(line, expected);
        assert_eq!(key().public().verify(&line), Ok(HEAD_OF_JOURNAL));
        assert_eq!(key().public().verify(&format!("{line}\n")), Ok(HEAD_OF_JOURNAL));
        assert_eq!(claimed(&line), Some((HEAD_OF_JOURNAL, key().public().id())));
    }

    #[test]
    fn any_changed_character_is_refused() {
        let (public, line) = (key().public(), key().sign(&HEAD_OF_JOURNAL));
        for at in 0..line.len() {
            for other in ["0", "1", "A", "f", "F", " ", "+", "é"] {
                let altered = [&line[..at], other, &line[at + 1..]].concat();
                assert!(altered == line || public.verify(&altered).is_err(), "{at}: {altered}");
            }
            assert!(public.verify(&[&line[..at], &line[at + 1..]].concat()).is_err(), "without {at}");
            assert!(public.verify(&line[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_line_of_another_store_names_its_key() {
        let other = CheckpointKey::from_seed(&SecretKey::generate());
        let refused = key().public().verify(&other.sign(&HEAD_OF_JOURNAL));
        let expected = BadCheckpoint::KeyNeeded { needed: other.public().id(), given: key().public().id() };
        assert_eq!(refused, Err(expected));
    }

    #[test]
    fn public_key_survives_a_round_trip() {
        let public = key().public();
        assert_eq!(PublicKey::parse(&format!("{public}\n")), Some(public));
        for text in ["", "AAAA", "not base64", &"A".repeat(64)] {
            assert_eq!(PublicKey::parse(text), None);
        }
        assert!(public.to_pem().starts_with("-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA"));
    }

    proptest! {
        #[test]
        fn signed_checkpoint_survives_a_round_trip(store: [u8; 16], row: u64, chain: [u8; 32], at_ms: i64) {
            let checkpoint = Checkpoint { store, row, chain, at_ms };
            prop_assert_eq!(key().public().verify(&key().sign(&checkpoint)), Ok(checkpoint));
        }

        #[test]
        fn no_input_causes_a_panic(line in "\\PC*|posthaste checkpoint 1 \\PC*") {
            prop_assert!(key().public().verify(&line).is_err());
        }
    }
}
