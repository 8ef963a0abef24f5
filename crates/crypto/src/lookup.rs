//! Names that are only ever looked up, as keyed hashes: whoever reads the database learns neither a
//! caller's key nor whether two tenants use the same one.

use std::fmt;

use aws_lc_rs::hmac;

use crate::digest::{Digest, bytes};
use crate::secret::SecretKey;

/// What names are hashed with: made once for the life of a store. Prints as `LookupKey(hidden)`.
#[derive(Clone)]
pub struct LookupKey(hmac::Key);

impl LookupKey {
    /// The key of a store.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
    }

    pub(crate) fn from_secret(secret: &SecretKey) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.expose()))
    }

    /// The hash of a name. `of` says what it is a name of, so that equal names of different things
    /// have different hashes.
    pub fn hash(&self, of: &'static str, tenant: u64, name: &[u8]) -> Digest {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(&(of.len() as u64).to_be_bytes());
        context.update(of.as_bytes());
        context.update(&tenant.to_be_bytes());
        context.update(name);
        bytes(context.sign().as_ref())
    }
}

impl fmt::Debug for LookupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LookupKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_depends_on_everything_that_is_named() {
        let key = LookupKey::from_bytes([1; 32]);
        let first = key.hash("idempotency key", 1, b"order-99");
        assert_eq!(first, key.hash("idempotency key", 1, b"order-99"));
        let others = [
            key.hash("collapse key", 1, b"order-99"),
            key.hash("idempotency key", 2, b"order-99"),
            key.hash("idempotency key", 1, b"order-98"),
            LookupKey::from_bytes([2; 32]).hash("idempotency key", 1, b"order-99"),
        ];
        assert!(others.iter().all(|other| *other != first));
        assert_eq!(format!("{key:?}"), "LookupKey(hidden)");
    }
}
