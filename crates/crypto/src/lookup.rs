//! Keyed hashes of names that are only looked up. A reader of the database learns neither a name, such as an
//! idempotency key, nor whether two tenants use the same one.

use aws_lc_rs::hmac;

use crate::digest::{Digest, bytes};
use crate::secret::{SecretKey, prints_as};

/// The key that names are hashed with. It never changes during the life of a store. Prints as `LookupKey(hidden)`.
#[derive(Clone)]
pub struct LookupKey(hmac::Key);

impl LookupKey {
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
    }

    pub(crate) fn from_secret(secret: &SecretKey) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.expose()))
    }

    /// The hash of a tenant's name. `of` says what kind of name it is, so that equal names of different kinds have
    /// different hashes.
    pub fn hash(&self, of: &'static str, tenant: u64, name: &[u8]) -> Digest {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(&(of.len() as u64).to_be_bytes());
        context.update(of.as_bytes());
        context.update(&tenant.to_be_bytes());
        context.update(name);
        bytes(context.sign().as_ref())
    }
}

prints_as!(LookupKey, "LookupKey(hidden)");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_depends_on_key_purpose_tenant_and_name() {
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
