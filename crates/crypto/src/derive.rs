//! Key derivation: every key in use is derived from a stored key for one purpose, with a label that is used nowhere
//! else.
//!
//! HKDF with SHA-256. Invariant: no two purposes have the same label, so a value made under the key for one purpose
//! reveals nothing about the other keys and is not accepted under them.

use aws_lc_rs::hkdf;

use crate::secret::{KEY_BYTES, SecretKey};

named! {
    /// The purpose of a derived key. Stored data depends on the labels: they never change.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Purpose {
        MasterCheck => "master check",
        /// Wraps the store's key and the tenants' keys.
        MasterWrap => "master wrap",
        /// Seals values that belong to no tenant.
        StoreSeal => "store seal",
        /// Hashes names that are looked up.
        Lookup => "store lookup",
        /// Hashes idempotency keys and their requests.
        Idempotency => "store idempotency",
        /// Hashes the names of erased subjects and tenants.
        Erasure => "store erasure",
        RowMac => "store row mac",
        TokenMac => "store token mac",
        TokenHide => "store token hide",
        /// Hashes API keys.
        ApiKey => "store api key",
        Checkpoint => "store checkpoint",
        TenantSeal => "tenant seal",
        TenantWrap => "tenant wrap",
        SubjectSeal => "subject seal",
        /// Makes fingerprints of values sealed under a key.
        Mark => "mark",
    }
    #[cfg(test)]
    ALL, label
}

/// Not a secret. It separates these keys from keys that another program derives from the same secret.
const SALT: &[u8] = b"posthaste keys, version 1";

pub(crate) fn derive(from: &SecretKey, purpose: Purpose) -> SecretKey {
    let extracted = hkdf::Salt::new(hkdf::HKDF_SHA256, SALT).extract(from.expose());
    SecretKey::filled(|key| {
        extracted
            .expand(&[purpose.label().as_bytes()], Length)
            .and_then(|derived| derived.fill(key))
            .expect("SHA-256 expands to 32 bytes");
    })
}

/// The length of the derived key; the provider takes it as a type.
struct Length;

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        KEY_BYTES
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use aws_lc_rs::hmac;

    use super::*;

    #[test]
    fn each_purpose_has_its_own_key() {
        let secret = SecretKey::generate();
        let keys: BTreeSet<_> = Purpose::ALL.iter().map(|purpose| *derive(&secret, *purpose).expose()).collect();
        assert_eq!(keys.len(), Purpose::ALL.len());
        assert!(!keys.contains(secret.expose()));
    }

    /// HKDF as RFC 5869 composes it from HMAC, for one block.
    #[test]
    fn derivation_matches_rfc_5869() {
        let sign = |key: &[u8], parts: &[&[u8]]| {
            hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), &parts.concat()).as_ref().to_vec()
        };
        let extracted = sign(b"posthaste keys, version 1", &[&[7; 32]]);
        let expected = sign(&extracted, &[b"store row mac", &[1]]);
        let derived = derive(&SecretKey::from_bytes(&[7; 32]), Purpose::RowMac);
        assert_eq!(derived.expose().as_slice(), expected);
    }
}
