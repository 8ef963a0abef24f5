//! Secrets in memory. They do not print, are wiped when dropped, are compared in constant time, and cannot be cloned.
//!
//! They are allocated on the heap, so that moving one leaves no copy behind.
//!
//! ```
//! use posthaste_crypto::secret::{SecretKey, SecretText};
//!
//! let key = SecretKey::generate();
//! assert_eq!(format!("{key:?}"), "Secret(..)");
//! assert!(key != SecretKey::generate());
//! assert_eq!(SecretText::from("whsec_…".to_owned()).expose(), "whsec_…");
//! ```

use aws_lc_rs::constant_time;
use zeroize::{Zeroize, Zeroizing};

use crate::random;

/// The size of every key.
pub const KEY_BYTES: usize = 32;

/// A key of 256 bits.
pub struct SecretKey(Box<[u8; KEY_BYTES]>);

impl SecretKey {
    pub fn generate() -> Self {
        Self::filled(random::fill)
    }

    pub fn from_bytes(bytes: &[u8; KEY_BYTES]) -> Self {
        Self::filled(|key| key.copy_from_slice(bytes))
    }

    /// A key whose bytes `fill` writes in place, so that no copy is left elsewhere.
    pub(crate) fn filled(fill: impl FnOnce(&mut [u8])) -> Self {
        let mut key = Self(Box::new([0; KEY_BYTES]));
        fill(&mut *key.0);
        key
    }

    /// The key's bytes. A caller that copies them must wipe the copy.
    pub fn expose(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl Drop for SecretKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// A secret text, such as an API key.
pub struct SecretText(Zeroizing<String>);

impl SecretText {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for SecretText {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

/// Whether two secrets are equal. The time depends only on their lengths.
pub(crate) fn same(one: &[u8], other: &[u8]) -> bool {
    constant_time::verify_slices_are_equal(one, other).is_ok()
}

impl PartialEq for SecretKey {
    fn eq(&self, other: &Self) -> bool {
        same(&*self.0, &*other.0)
    }
}

impl Eq for SecretKey {}

impl PartialEq for SecretText {
    fn eq(&self, other: &Self) -> bool {
        same(self.0.as_bytes(), other.0.as_bytes())
    }
}

impl Eq for SecretText {}

/// Implements `Debug` for a type that holds a secret: with this text, or with this text and the given public values.
macro_rules! prints_as {
    ($type:ty, $text:literal) => { $crate::secret::prints_as!($type, |_hidden| $text); };
    ($type:ty, |$this:ident| $text:literal $(, $shown:expr)*) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $this = self;
                write!(f, $text $(, $shown)*)
            }
        }
    };
}
pub(crate) use prints_as;

prints_as!(SecretKey, "Secret(..)");
prints_as!(SecretText, "Secret(..)");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_secret_shows_nothing() {
        let printed = [
            format!("{:?}", SecretKey::from_bytes(&[0x41; KEY_BYTES])),
            format!("{:#?}", SecretText::from("AAAA".to_owned())),
        ];
        assert_eq!(printed, ["Secret(..)"; 2]);
    }

    #[test]
    fn secrets_are_equal_only_if_every_byte_is() {
        let key = SecretKey::generate();
        assert!(key == SecretKey::from_bytes(key.expose()));
        for place in 0..KEY_BYTES {
            let mut other = *key.expose();
            other[place] ^= 1;
            assert!(key != SecretKey::from_bytes(&other), "byte {place}");
        }
        assert!(SecretText::from("a".to_owned()) != SecretText::from(String::new()));
    }
}
