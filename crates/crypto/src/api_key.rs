//! API keys: `ph_op_` or `ph_tn_` and 256 random bits in 52 digits of base 32. A store keeps a keyed hash of the whole
//! key, and its first digits, by which people recognize their keys in lists.
//!
//! To check a key, the server hashes it first and looks up the hash, so an unknown key takes as long as a known one.
//!
//! ```
//! use posthaste_crypto::api_key::{ApiKey, KeyClass, ApiKeyScope, ApiKeyScopes};
//! use posthaste_crypto::keyring::{KeyId, StoreKey};
//!
//! let hasher = StoreKey::generate(KeyId(1)).api_keys();
//! let key = ApiKey::generate(KeyClass::Tenant);
//! let kept = hasher.keep(&key, ApiKeyScopes::of(&[ApiKeyScope::Send, ApiKeyScope::Read]), Some(9_000))?;
//!
//! let presented = ApiKey::parse(key.reveal())?;
//! assert_eq!(kept.hash, hasher.hash(&presented));
//! assert!(kept.scopes.contains(ApiKeyScope::Send) && !kept.scopes.contains(ApiKeyScope::Secrets));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;

use aws_lc_rs::hmac;

use crate::base32;
use crate::digest::{Digest, bytes};
use crate::secret::{KEY_BYTES, SecretKey, SecretText, prints_as, same};

/// The class of an API key: an operator's or a tenant's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyClass {
    Operator,
    Tenant,
}

impl KeyClass {
    const ALL: [Self; 2] = [Self::Operator, Self::Tenant];

    const fn prefix(self) -> &'static str {
        match self {
            Self::Operator => "ph_op_",
            Self::Tenant => "ph_tn_",
        }
    }

    /// All scopes that keys of this class may have.
    pub const fn scopes(self) -> ApiKeyScopes {
        match self {
            Self::Operator => ApiKeyScopes::ALL,
            Self::Tenant => ApiKeyScopes(ApiKeyScopes::ALL.0 & !ApiKeyScope::Operate.bit()),
        }
    }
}

named! {
    /// A permission of a key. The numbers are stored: they never change.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u8)]
    pub enum ApiKeyScope {
        Send = 0 => "send",
        /// Read everything that needs no other scope.
        Read = 1 => "read",
        /// Change endpoints, policies and settings.
        Manage = 2 => "manage",
        /// Retry, replay, cancel.
        Replay = 3 => "replay",
        /// See and rotate secrets, credentials and keys.
        Secrets = 4 => "secrets",
        /// Unsubscribe, erase, export, read payloads.
        Privacy = 5 => "privacy",
        /// Operate the server. Only for operator keys.
        Operate = 6 => "operate",
    }
    ALL, name
}

impl ApiKeyScope {
    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for ApiKeyScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApiKeyScopes(u8);

impl ApiKeyScopes {
    const ALL: Self = {
        let mut all = 0;
        let mut at = 0;
        while at < ApiKeyScope::ALL.len() {
            all |= ApiKeyScope::ALL[at].bit();
            at += 1;
        }
        Self(all)
    };

    pub fn of(scopes: &[ApiKeyScope]) -> Self {
        Self(scopes.iter().fold(0, |all, scope| all | scope.bit()))
    }

    /// Decodes stored scopes; `None` if a bit is unknown.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits & !Self::ALL.0 == 0 { Some(Self(bits)) } else { None }
    }

    pub const fn bits(self) -> u8 {
        self.0
    }

    pub const fn contains(self, scope: ApiKeyScope) -> bool {
        self.0 & scope.bit() != 0
    }

    pub fn iter(self) -> impl Iterator<Item = ApiKeyScope> {
        ApiKeyScope::ALL.into_iter().filter(move |scope| self.contains(*scope))
    }

    /// The intersection with `other`.
    #[must_use]
    pub const fn within(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The scopes that `other` lacks.
    pub fn beyond(self, other: Self) -> impl Iterator<Item = ApiKeyScope> {
        self.iter().filter(move |scope| !other.contains(*scope))
    }
}

/// The presented text is not an API key. The error never contains the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not an API key; send `ph_tn_` or `ph_op_` and 52 characters, as shown when the key was made")]
pub struct BadApiKey;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("scope {0} is only for operator keys; leave it out")]
pub struct ScopeNotAllowed(pub ApiKeyScope);

/// An API key in plain text: just generated, or presented by a caller.
#[derive(Debug, PartialEq, Eq)]
pub struct ApiKey {
    class: KeyClass,
    text: SecretText,
}

/// Number of public digits: enough to recognize a key, and 216 bits stay secret.
const PUBLIC_DIGITS: usize = 8;
const PREFIX_BYTES: usize = KeyClass::Tenant.prefix().len();
const _: () = assert!(PREFIX_BYTES == KeyClass::Operator.prefix().len());
const TEXT_BYTES: usize = PREFIX_BYTES + base32::digits(KEY_BYTES);

impl ApiKey {
    pub fn generate(class: KeyClass) -> Self {
        let mut text = String::with_capacity(TEXT_BYTES);
        text.push_str(class.prefix());
        base32::push(SecretKey::generate().expose(), &mut text);
        Self { class, text: text.into() }
    }

    pub fn parse(text: &str) -> Result<Self, BadApiKey> {
        let known = |class: KeyClass| Some((class, text.strip_prefix(class.prefix())?));
        let (class, digits) = KeyClass::ALL.into_iter().find_map(known).ok_or(BadApiKey)?;
        let mut value = base32::parse::<KEY_BYTES>(digits).ok_or(BadApiKey)?;
        zeroize::Zeroize::zeroize(&mut value);
        Ok(Self { class, text: text.to_owned().into() })
    }

    pub const fn class(&self) -> KeyClass {
        self.class
    }

    /// The part that is not secret.
    pub fn public_prefix(&self) -> &str {
        &self.text.expose()[..PREFIX_BYTES + PUBLIC_DIGITS]
    }

    /// The whole key, which its owner sees once.
    pub fn reveal(&self) -> &str {
        self.text.expose()
    }
}

/// The keyed hash of an API key. Compared in constant time.
#[derive(Clone, Copy)]
pub struct ApiKeyHash(Digest);

impl ApiKeyHash {
    pub const fn to_bytes(self) -> Digest {
        self.0
    }
}

impl PartialEq for ApiKeyHash {
    fn eq(&self, other: &Self) -> bool {
        same(&self.0, &other.0)
    }
}

impl Eq for ApiKeyHash {}

prints_as!(ApiKeyHash, "ApiKeyHash(..)");

/// Hashes API keys under a key of the store, so that a reader of the database can neither use nor test a key.
pub struct ApiKeyHasher(hmac::Key);

impl ApiKeyHasher {
    pub(crate) fn new(secret: &SecretKey) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.expose()))
    }

    pub fn hash(&self, key: &ApiKey) -> ApiKeyHash {
        ApiKeyHash(bytes(hmac::sign(&self.0, key.text.expose().as_bytes()).as_ref()))
    }

    /// The record to store for a new key. The key expires at `expires_ms`; `None` means never.
    pub fn keep(
        &self,
        key: &ApiKey,
        scopes: ApiKeyScopes,
        expires_ms: Option<i64>,
    ) -> Result<KeptApiKey, ScopeNotAllowed> {
        if let Some(scope) = scopes.beyond(key.class.scopes()).next() {
            return Err(ScopeNotAllowed(scope));
        }
        Ok(KeptApiKey {
            class: key.class,
            public_prefix: key.public_prefix().to_owned(),
            hash: self.hash(key),
            scopes,
            expires_ms,
        })
    }
}

prints_as!(ApiKeyHasher, "ApiKeyHasher(..)");

/// The reason why a key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// No such key is stored.
    #[error("the key is not known")]
    Wrong,
    #[error("the key has expired; make a new one")]
    Expired,
    /// The key lacks the scope that the request needs.
    #[error("the key lacks the scope {0}; use one that has it")]
    ScopeMissing(ApiKeyScope),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptApiKey {
    pub class: KeyClass,
    /// The first characters of the key, shown in lists.
    pub public_prefix: String,
    /// The keyed hash by which the key is found.
    pub hash: ApiKeyHash,
    pub scopes: ApiKeyScopes,
    /// When the key expires, in Unix milliseconds; `None` means never.
    pub expires_ms: Option<i64>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hasher() -> ApiKeyHasher {
        ApiKeyHasher::new(&SecretKey::from_bytes(&[5; 32]))
    }

    #[test]
    fn key_has_58_characters_no_dot_and_a_public_prefix() {
        for (class, prefix) in [(KeyClass::Operator, "ph_op_"), (KeyClass::Tenant, "ph_tn_")] {
            let key = ApiKey::generate(class);
            assert!(key.reveal().starts_with(prefix));
            assert_eq!(key.reveal().len(), 58);
            assert!(key.reveal()[6..].bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase()));
            assert_eq!(key.public_prefix(), &key.reveal()[..14]);
            assert_eq!(ApiKey::parse(key.reveal()), Ok(key));
        }
    }

    #[test]
    fn text_that_is_not_a_key_is_refused() {
        let key = ApiKey::generate(KeyClass::Tenant);
        let text = key.reveal();
        let wrong = [
            "",
            "ph_tn_",
            &text[6..],
            &text[..57],
            &format!("{text}0"),
            &format!(" {text}"),
            &format!("ph_xx_{}", &text[6..]),
            &text.to_uppercase(),
            // The same digits with a padding bit set.
            &format!("ph_tn_2{}", &text[7..]),
            &format!("ph_tn_{}u", &text[6..57]),
        ];
        for text in wrong {
            assert_eq!(ApiKey::parse(text), Err(BadApiKey), "{text:?}");
        }
    }

    #[test]
    fn key_has_another_hash_in_another_installation() {
        let key = ApiKey::generate(KeyClass::Tenant);
        let elsewhere = ApiKeyHasher::new(&SecretKey::from_bytes(&[6; 32]));
        assert!(hasher().hash(&key) != elsewhere.hash(&key));
    }

    #[test]
    fn tenant_key_cannot_have_the_operate_scope() {
        let key = ApiKey::generate(KeyClass::Tenant);
        let requested = ApiKeyScopes::of(&[ApiKeyScope::Send, ApiKeyScope::Operate]);
        assert_eq!(hasher().keep(&key, requested, None), Err(ScopeNotAllowed(ApiKeyScope::Operate)));
        let operator = ApiKey::generate(KeyClass::Operator);
        assert!(hasher().keep(&operator, ApiKeyScopes::of(&ApiKeyScope::ALL), None).is_ok());
    }

    #[test]
    fn scopes_are_kept_as_bits() {
        for (at, scope) in ApiKeyScope::ALL.into_iter().enumerate() {
            assert_eq!(ApiKeyScopes::of(&[scope]).bits(), 1 << at);
        }
        assert_eq!(ApiKeyScopes::from_bits(0x80), None);
        assert_eq!(ApiKeyScopes::from_bits(0x7f), Some(ApiKeyScopes::of(&ApiKeyScope::ALL)));
        let (some, others) = (
            ApiKeyScopes::of(&[ApiKeyScope::Send, ApiKeyScope::Read]),
            ApiKeyScopes::of(&[ApiKeyScope::Read, ApiKeyScope::Manage]),
        );
        assert_eq!(some.within(others), ApiKeyScopes::of(&[ApiKeyScope::Read]));
        assert_eq!(some.beyond(others).collect::<Vec<_>>(), [ApiKeyScope::Send]);
    }

    #[test]
    fn printed_keys_and_hashes_show_nothing() {
        let key = ApiKey::generate(KeyClass::Tenant);
        assert_eq!(format!("{key:?}"), "ApiKey { class: Tenant, text: Secret(..) }");
        assert_eq!(format!("{:?}", hasher().hash(&key)), "ApiKeyHash(..)");
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_exactly_or_refused(text in "\\PC*|ph_(op|tn)_[01][0-9a-z]{51}") {
            if let Ok(key) = ApiKey::parse(&text) {
                prop_assert_eq!(key.reveal(), text);
            }
        }
    }
}
