//! Authenticated encryption of stored values. Each sealed value is bound to its [seal context](crate::seal_context): if
//! it is moved, altered or truncated, it does not open.
//!
//! A sealed value is version (1 byte), key id (4), nonce (12), ciphertext, tag (16). Version 1 is AES-256-GCM-SIV with
//! a random nonce. It was chosen over AES-256-GCM because a repeated nonce only reveals whether two values in one
//! context are equal, so the number of uses of a key need not be limited. The associated data are the version, the key
//! id and the context.
//!
//! ```
//! use posthaste_crypto::keyring::{KeyId, TenantKey};
//! use posthaste_crypto::seal::NotOpened;
//! use posthaste_crypto::seal_context::{SealContext, SealOwner, SealedField, SealedObject};
//!
//! let key = TenantKey::generate(KeyId(4), 1);
//! let here = SealContext::new(SealOwner::Tenant(1), SealedField::MessageBody, SealedObject::Row(77));
//! let sealed = key.sealing().seal(&here, b"{\"paid\": 1}");
//!
//! assert_eq!(key.sealing().open(&here, &sealed)?, b"{\"paid\": 1}");
//! let elsewhere = SealContext::new(SealOwner::Tenant(1), SealedField::MessageBody, SealedObject::Row(78));
//! assert_eq!(key.sealing().open(&elsewhere, &sealed), Err(NotOpened::Refused(KeyId(4))));
//! # Ok::<(), NotOpened>(())
//! ```

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use zeroize::Zeroizing;

use crate::derive::{Purpose, derive};
use crate::digest::{self, Digest};
use crate::keyring::KeyId;
use crate::random::{self, NONCE_BYTES};
use crate::seal_context::{CONTEXT_BYTES, SealContext, SealOwner};
use crate::secret::SecretKey;

pub(crate) const VERSION: u8 = 1;
const HEAD_BYTES: usize = 1 + 4 + NONCE_BYTES;
const TAG_BYTES: usize = 16;
/// The difference in size between a sealed value and its content.
pub const OVERHEAD_BYTES: usize = HEAD_BYTES + TAG_BYTES;

/// The reason why a value could not be opened. The error reveals nothing of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOpened {
    /// It is sealed under a key that is not available: destroyed, or not loaded yet.
    #[error("the value is sealed under key {0}, which is not available")]
    KeyNeeded(KeyId),
    /// It is too short, or has a version that this program does not know.
    #[error("this is not a sealed value, or was written by a newer program")]
    Unknown,
    /// It was altered, belongs to another context, or is sealed under another key with that id.
    #[error("the value sealed under key {0} was altered, or moved here from elsewhere")]
    Refused(KeyId),
}

pub fn key_of(sealed: &[u8]) -> Result<KeyId, NotOpened> {
    parse(sealed).map(|parts| KeyId(parts.by))
}

/// A key that seals and opens values. Cheap to use but expensive to make, so keep it.
pub struct SealingKey {
    id: KeyId,
    whose: SealOwner,
    cipher: Cipher,
    marks: hmac::Key,
}

impl SealingKey {
    pub(crate) fn new(id: KeyId, whose: SealOwner, secret: &SecretKey) -> Self {
        let marks = hmac::Key::new(hmac::HMAC_SHA256, derive(secret, Purpose::Mark).expose());
        Self { id, whose, cipher: Cipher::new(secret), marks }
    }

    /// The key's id, which is part of every value it sealed.
    pub const fn id(&self) -> KeyId {
        self.id
    }

    /// Seals a value for its context.
    ///
    /// # Panics
    /// If the context belongs to another owner than this key: erasing that owner would not erase the value.
    pub fn seal(&self, context: &SealContext, plain: &[u8]) -> Vec<u8> {
        assert_eq!(context.whose(), self.whose, "key {} does not seal for other owners", self.id);
        self.cipher.seal(self.id.0, &bound(self.id, context), plain)
    }

    /// Seals a value deterministically: the same value in the same context gives the same bytes. For values that must
    /// be found by equality. It reveals to a reader of the database which values are equal, and nothing else.
    ///
    /// # Panics
    /// As [`SealingKey::seal`].
    pub fn seal_alike(&self, context: &SealContext, plain: &[u8]) -> Vec<u8> {
        assert_eq!(context.whose(), self.whose, "key {} does not seal for other owners", self.id);
        self.cipher.seal_with([0; NONCE_BYTES], self.id.0, &bound(self.id, context), plain)
    }

    /// The keyed fingerprint of some content. Only a holder of the key can verify whether content matches it; once the
    /// key is destroyed, this is impossible. `of` says what kind of content it is.
    pub fn mark(&self, of: &'static str, content: &[u8]) -> Digest {
        let mut context = hmac::Context::with_key(&self.marks);
        context.update(&(of.len() as u64).to_be_bytes());
        context.update(of.as_bytes());
        context.update(content);
        digest::bytes(context.sign().as_ref())
    }

    pub fn open(&self, context: &SealContext, sealed: &[u8]) -> Result<Vec<u8>, NotOpened> {
        let parts = parse(sealed)?;
        if parts.by != self.id.0 {
            return Err(NotOpened::KeyNeeded(KeyId(parts.by)));
        }
        if context.whose() != self.whose {
            return Err(NotOpened::Refused(self.id));
        }
        self.cipher.open(&bound(self.id, context), &parts).ok_or(NotOpened::Refused(self.id))
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealingKey").field("id", &self.id).field("whose", &self.whose).finish_non_exhaustive()
    }
}

/// The associated data of a value.
fn bound(id: KeyId, context: &SealContext) -> [u8; 1 + 4 + CONTEXT_BYTES] {
    let mut bytes = [0; 1 + 4 + CONTEXT_BYTES];
    bytes[0] = VERSION;
    bytes[1..5].copy_from_slice(&id.0.to_be_bytes());
    context.write(bytes[5..].as_mut_array().expect("the rest is the context"));
    bytes
}

/// A parsed sealed value. `by` is the number of its key.
pub(crate) struct Parts<'a> {
    pub(crate) by: u32,
    nonce: [u8; NONCE_BYTES],
    /// Ciphertext and tag.
    rest: &'a [u8],
}

/// Parses a sealed value or a wrapped key, which have the same format.
pub(crate) fn parse(sealed: &[u8]) -> Result<Parts<'_>, NotOpened> {
    let (head, rest) = sealed.split_first_chunk::<HEAD_BYTES>().ok_or(NotOpened::Unknown)?;
    let [VERSION, by @ ..] = head.first_chunk::<5>().expect("the head is longer") else {
        return Err(NotOpened::Unknown);
    };
    if rest.len() < TAG_BYTES {
        return Err(NotOpened::Unknown);
    }
    let nonce = *head.last_chunk().expect("the head ends with the nonce");
    Ok(Parts { by: u32::from_be_bytes(*by), nonce, rest })
}

/// AES-256-GCM-SIV with a prepared key schedule.
pub(crate) struct Cipher(LessSafeKey);

impl Cipher {
    pub(crate) fn new(secret: &SecretKey) -> Self {
        let key = UnboundKey::new(&AES_256_GCM_SIV, secret.expose()).expect("AES-256 takes any 32 bytes");
        Self(LessSafeKey::new(key))
    }

    /// Seals `plain` with the associated data `bound`. `by` is the number of the key.
    pub(crate) fn seal(&self, by: u32, bound: &[u8], plain: &[u8]) -> Vec<u8> {
        self.seal_with(random::nonce(), by, bound, plain)
    }

    fn seal_with(&self, nonce: [u8; NONCE_BYTES], by: u32, bound: &[u8], plain: &[u8]) -> Vec<u8> {
        let mut sealed = Vec::with_capacity(plain.len() + OVERHEAD_BYTES);
        sealed.push(VERSION);
        sealed.extend_from_slice(&by.to_be_bytes());
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(plain);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self
            .0
            .seal_in_place_separate_tag(nonce, Aad::from(bound), &mut sealed[HEAD_BYTES..])
            .expect("a value is far below the cipher's limit of 64 GiB");
        sealed.extend_from_slice(tag.as_ref());
        sealed
    }

    /// Opens a value; `None` if it was not sealed with this key and exactly this associated data.
    pub(crate) fn open(&self, bound: &[u8], parts: &Parts<'_>) -> Option<Vec<u8>> {
        let mut plain = parts.rest.to_vec();
        let nonce = Nonce::assume_unique_for_key(parts.nonce);
        let len = self.0.open_in_place(nonce, Aad::from(bound), &mut plain).ok()?.len();
        plain.truncate(len);
        Some(plain)
    }

    /// Opens a wrapped key; `None` as for [`open`](Self::open), or if it has another length than a key.
    pub(crate) fn open_key(&self, bound: &[u8], parts: &Parts<'_>) -> Option<SecretKey> {
        let opened = Zeroizing::new(self.open(bound, parts)?);
        Some(SecretKey::from_bytes(opened.as_slice().try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::keyring::TenantKey;
    use crate::seal_context::tests::any_context;
    use crate::seal_context::{SealedField, SealedObject};

    fn key(id: u32, whose: SealOwner) -> SealingKey {
        SealingKey::new(KeyId(id), whose, &SecretKey::generate())
    }

    #[test]
    fn deterministic_seals_are_equal_only_under_one_key_in_one_context() {
        let (one, other) = (key(1, SealOwner::Tenant(1)), key(1, SealOwner::Tenant(1)));
        let sealed = one.seal_alike(&body(7), b"invoice.paid");
        assert_eq!(one.seal_alike(&body(7), b"invoice.paid"), sealed);
        assert_eq!(one.open(&body(7), &sealed), Ok(b"invoice.paid".to_vec()));
        assert_ne!(one.seal_alike(&body(8), b"invoice.paid"), sealed);
        assert_ne!(one.seal_alike(&body(7), b"invoice.late"), sealed);
        assert_ne!(other.seal_alike(&body(7), b"invoice.paid"), sealed);
        assert_ne!(one.seal(&body(7), b"invoice.paid"), one.seal(&body(7), b"invoice.paid"));
    }

    #[test]
    fn mark_depends_on_content_purpose_and_key() {
        let (one, other) = (key(1, SealOwner::Tenant(1)), key(1, SealOwner::Tenant(1)));
        assert_eq!(one.mark("payload", b"{}"), one.mark("payload", b"{}"));
        assert_ne!(one.mark("payload", b"{}"), one.mark("payload", b"[]"));
        assert_ne!(one.mark("payload", b"{}"), one.mark("subject", b"{}"));
        assert_ne!(one.mark("payload", b"{}"), other.mark("payload", b"{}"));
    }

    fn body(row: u64) -> SealContext {
        SealContext::new(SealOwner::Tenant(1), SealedField::MessageBody, SealedObject::Row(row))
    }

    /// RFC 8452, appendix C.2.
    #[test]
    fn cipher_matches_rfc_8452() {
        let mut secret = [0; 32];
        secret[0] = 1;
        let mut nonce = [0; 12];
        nonce[0] = 3;
        let sealed = Cipher::new(&SecretKey::from_bytes(&secret)).seal_with(nonce, 7, &[1], &[2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(sealed[..5], [1, 0, 0, 0, 7]);
        assert_eq!(sealed[5..17], nonce);
        assert_eq!(crate::hex::write(&sealed[17..]), "1de22967237a813291213f267e3b452f02d01ae33e4ec854");
    }

    #[test]
    fn altered_truncated_and_extended_values_are_refused() {
        let key = key(0x0102_0304, SealOwner::Tenant(1));
        let sealed = key.seal(&body(7), b"a payload of some bytes");
        assert_eq!(sealed.len(), b"a payload of some bytes".len() + OVERHEAD_BYTES);
        for at in 0..sealed.len() {
            for flip in [1, 0x80, 0xff] {
                let mut altered = sealed.clone();
                altered[at] ^= flip;
                let refused = key.open(&body(7), &altered).expect_err("altered");
                match at {
                    0 => assert_eq!(refused, NotOpened::Unknown),
                    1..5 => assert!(matches!(refused, NotOpened::KeyNeeded(id) if id != key.id())),
                    _ => assert_eq!(refused, NotOpened::Refused(key.id())),
                }
            }
        }
        for len in 0..sealed.len() {
            assert!(key.open(&body(7), &sealed[..len]).is_err(), "cut to {len}");
        }
        assert!(key.open(&body(7), &[&sealed[..], b"\0"].concat()).is_err());
        assert_eq!(key.open(&body(7), &sealed).as_deref(), Ok(&b"a payload of some bytes"[..]));
    }

    #[test]
    fn another_key_of_the_same_id_opens_nothing() {
        let [one, other] = [key(1, SealOwner::Tenant(1)), key(1, SealOwner::Tenant(1))];
        assert_eq!(other.open(&body(7), &one.seal(&body(7), b"x")), Err(NotOpened::Refused(KeyId(1))));
    }

    #[test]
    fn key_opens_nothing_in_the_context_of_another_tenant() {
        let [mine, theirs] = [1, 2].map(|tenant| TenantKey::generate(KeyId(5), tenant));
        let sealed = mine.sealing().seal(&body(7), b"x");
        let moved = SealContext::new(SealOwner::Tenant(2), SealedField::MessageBody, SealedObject::Row(7));
        for key in [mine, theirs] {
            assert_eq!(key.sealing().open(&moved, &sealed), Err(NotOpened::Refused(KeyId(5))));
        }
    }

    /// Tries every sealed value in every other context: fields, rows, parts and tenants.
    #[test]
    fn value_opens_in_no_context_but_its_own() {
        let whose = [SealOwner::Store, SealOwner::Tenant(1), SealOwner::Tenant(2)];
        let objects = [
            SealedObject::Row(7),
            SealedObject::Row(8),
            SealedObject::Part(7, 0),
            SealedObject::Part(7, 1),
            SealedObject::Hashed([7; 32]),
        ];
        let contexts = whose.into_iter().flat_map(|whose| {
            let of_field = move |field| objects.map(|object| SealContext::new(whose, field, object));
            SealedField::ALL.into_iter().flat_map(of_field)
        });
        let contexts: Vec<SealContext> = contexts.collect();
        // The worst case: all owners have the same secret and key id.
        let keys = whose.map(|whose| SealingKey::new(KeyId(1), whose, &SecretKey::from_bytes(&[5; 32])));
        let key = |context: &SealContext| keys.iter().find(|key| key.whose == context.whose()).expect("one for each");
        let sealed: Vec<_> = contexts.iter().map(|context| (context, key(context).seal(context, b"x"))).collect();
        for (from, value) in &sealed {
            for to in &contexts {
                let opened = key(to).open(to, value);
                assert_eq!(opened.is_ok(), *from == to, "{from:?} at {to:?}");
            }
        }
    }

    #[test]
    fn the_same_value_sealed_twice_looks_different() {
        let key = key(1, SealOwner::Tenant(1));
        let [one, other] = [(); 2].map(|()| key.seal(&body(7), b"the same"));
        assert_ne!(one[5..], other[5..]);
    }

    #[test]
    fn printed_keys_and_errors_show_no_secrets() {
        let key = key(3, SealOwner::Store);
        assert_eq!(format!("{key:?}"), "SealingKey { id: KeyId(3), whose: Store, .. }");
        assert_eq!(
            NotOpened::Refused(KeyId(3)).to_string(),
            "the value sealed under key 3 was altered, or moved here from elsewhere"
        );
    }

    proptest! {
        #[test]
        fn value_opens_only_in_its_own_context(
            here in any_context(),
            elsewhere in any_context(),
            plain in prop::collection::vec(any::<u8>(), 0..700),
        ) {
            let key = key(9, here.whose());
            let sealed = key.seal(&here, &plain);
            prop_assert_eq!(key_of(&sealed), Ok(KeyId(9)));
            prop_assert_eq!(key.open(&here, &sealed), Ok(plain.clone()));
            if elsewhere != here {
                prop_assert_eq!(key.open(&elsewhere, &sealed), Err(NotOpened::Refused(KeyId(9))));
            }
        }

        #[test]
        fn opening_any_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..80), first in 0u8..3) {
            let mut bytes = bytes;
            if let Some(version) = bytes.first_mut() {
                *version = first;
            }
            prop_assert!(key(0, SealOwner::Tenant(1)).open(&body(7), &bytes).is_err());
        }
    }
}
