//! Keyed hashes: how a row is found by a secret value without keeping the value.
//!
//! Whoever reads the table but not the key can neither test a guess nor recognise a value.

use std::fmt;

use aws_lc_rs::{constant_time, hmac};

/// The key that look-ups are hashed under (HMAC-SHA256).
pub struct HashKey(hmac::Key);

impl HashKey {
    /// The key with these bytes.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// The hash `value` is found by.
    pub fn hash(&self, value: &[u8]) -> KeyedHash {
        let tag = hmac::sign(&self.0, value);
        KeyedHash(tag.as_ref().try_into().expect("an HMAC-SHA256 has 32 bytes"))
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(hidden)")
    }
}

/// What is stored instead of the value. Comparing two takes the same time wherever they differ.
#[derive(Clone, Copy, Debug)]
pub struct KeyedHash([u8; 32]);

impl KeyedHash {
    /// A hash as it was stored.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The hash as it is stored.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for KeyedHash {
    fn eq(&self, other: &Self) -> bool {
        constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl Eq for KeyedHash {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_hash_depends_on_every_byte_of_key_and_value(
            key: [u8; 32],
            value in prop::collection::vec(any::<u8>(), 1..80),
            place: prop::sample::Index,
            flip in 1u8..,
        ) {
            let hash = HashKey::from_bytes(&key).hash(&value);
            prop_assert_eq!(KeyedHash::from_bytes(*hash.as_bytes()), HashKey::from_bytes(&key).hash(&value));

            let mut other_value = value.clone();
            other_value[place.index(value.len())] ^= flip;
            prop_assert_ne!(hash, HashKey::from_bytes(&key).hash(&other_value));

            let mut other_key = key;
            other_key[place.index(key.len())] ^= flip;
            prop_assert_ne!(hash, HashKey::from_bytes(&other_key).hash(&value));
        }
    }

    #[test]
    fn a_printed_key_shows_nothing() {
        assert_eq!(format!("{:?}", HashKey::from_bytes(&[7; 32])), "HashKey(hidden)");
    }
}
