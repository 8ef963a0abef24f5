//! Tokens that receivers send back: each allows one action on one delivery until it expires. Its holder needs no API
//! key for that action.
//!
//! A token is version (1 byte), key id (4), tag (16) and the encrypted claims (25), in base64 for URLs: 62 characters
//! without a dot. The tag is an HMAC-SHA-256 of the claims, truncated to 128 bits, and also the initial counter of
//! their encryption (AES-256 in counter mode). So equal claims give equal tokens, no nonce is needed, and a token does
//! not reveal how many deliveries or tenants there are.
//!
//! Invariant: a token has exactly one text and is valid only for the action it was made for.
//!
//! ```
//! use posthaste_crypto::keyring::{KeyId, StoreKey};
//! use posthaste_crypto::token::{Action, BadToken, Claims};
//!
//! let tokens = StoreKey::generate(KeyId(1)).tokens();
//! let claims = Claims { tenant: 1, delivery: 77, expires_ms: 2_000 };
//! let token = tokens.make(Action::Receipt, &claims);
//!
//! assert_eq!(tokens.check(Action::Receipt, token.expose(), 1_999), Ok(claims));
//! assert_eq!(tokens.check(Action::Receipt, token.expose(), 2_000), Err(BadToken::Expired));
//! ```

use std::time::Duration;

use aws_lc_rs::cipher::{AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::keyring::KeyId;
use crate::secret::{SecretKey, SecretText, prints_as, same};

pub const RECEIPT_TTL: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The action that a token allows. The numbers are part of every issued token: they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// Confirm that a delivery arrived, or was clicked.
    Receipt = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claims {
    pub tenant: u64,
    pub delivery: u64,
    /// The time from which the token is refused, in Unix milliseconds.
    pub expires_ms: i64,
}

/// The reason why a token is refused. An API should give outside callers the same answer for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    /// It is not a token, or was made by a newer program.
    #[error("this is not a token; send it as it was received")]
    Unknown,
    /// It was made under a key that is not available.
    #[error("the token was made under key {0}, which is not available")]
    KeyNeeded(KeyId),
    /// It was altered, forged, or made for another action.
    #[error("the token is not genuine, or not for this action; send it as it was received")]
    Forged,
    #[error("the token has expired")]
    Expired,
}

const VERSION: u8 = 1;
const TAG_BYTES: usize = 16;
const CLAIMS_BYTES: usize = 1 + 8 + 8 + 8;
const TOKEN_BYTES: usize = 1 + 4 + TAG_BYTES + CLAIMS_BYTES;
const TEXT_BYTES: usize = (TOKEN_BYTES * 4).div_ceil(3);

pub struct TokenKey {
    id: KeyId,
    mac: hmac::Key,
    hide: EncryptingKey,
}

impl TokenKey {
    pub(crate) fn new(id: KeyId, mac: &SecretKey, hide: &SecretKey) -> Self {
        let hide = UnboundCipherKey::new(&AES_256, hide.expose()).expect("AES-256 takes any 32 bytes");
        let hide = EncryptingKey::ctr(hide).expect("AES-256 has this mode");
        Self { id, mac: hmac::Key::new(hmac::HMAC_SHA256, mac.expose()), hide }
    }

    pub fn make(&self, action: Action, claims: &Claims) -> SecretText {
        let mut written = [0; CLAIMS_BYTES];
        written[0] = action as u8;
        written[1..9].copy_from_slice(&claims.tenant.to_be_bytes());
        written[9..17].copy_from_slice(&claims.delivery.to_be_bytes());
        written[17..].copy_from_slice(&claims.expires_ms.to_be_bytes());
        let tag = self.tag(&written);
        self.mask(&tag, &mut written);

        let mut token = [0; TOKEN_BYTES];
        token[0] = VERSION;
        token[1..5].copy_from_slice(&self.id.0.to_be_bytes());
        token[5..21].copy_from_slice(&tag);
        token[21..].copy_from_slice(&written);
        let mut text = String::with_capacity(TEXT_BYTES);
        URL_SAFE_NO_PAD.encode_string(token, &mut text);
        text.into()
    }

    /// The claims of a token, if it allows the action now.
    pub fn check(&self, action: Action, text: &str, now_ms: i64) -> Result<Claims, BadToken> {
        let mut token = [0; TOKEN_BYTES];
        if text.len() != TEXT_BYTES || URL_SAFE_NO_PAD.decode_slice(text, &mut token) != Ok(TOKEN_BYTES) {
            return Err(BadToken::Unknown);
        }
        let [VERSION, rest @ ..] = &token else { return Err(BadToken::Unknown) };
        let (by, rest) = rest.split_first_chunk().expect("the key id comes first");
        let (tag, rest) = rest.split_first_chunk().expect("then the tag");
        let by = KeyId(u32::from_be_bytes(*by));
        if by != self.id {
            return Err(BadToken::KeyNeeded(by));
        }
        let mut written: [u8; CLAIMS_BYTES] = rest.try_into().expect("the rest is the claims");
        self.mask(tag, &mut written);
        if !same(&self.tag(&written), tag) || written[0] != action as u8 {
            return Err(BadToken::Forged);
        }
        let number = |at: usize| *written[at..].first_chunk().expect("a claim has eight bytes");
        let claims = Claims {
            tenant: u64::from_be_bytes(number(1)),
            delivery: u64::from_be_bytes(number(9)),
            expires_ms: i64::from_be_bytes(number(17)),
        };
        if now_ms < claims.expires_ms { Ok(claims) } else { Err(BadToken::Expired) }
    }

    fn tag(&self, written: &[u8; CLAIMS_BYTES]) -> [u8; TAG_BYTES] {
        let mut context = hmac::Context::with_key(&self.mac);
        context.update(&[VERSION]);
        context.update(&self.id.0.to_be_bytes());
        context.update(written);
        *context.sign().as_ref().first_chunk().expect("HMAC-SHA-256 has 32 bytes")
    }

    /// Encrypts or decrypts the claims: in counter mode both are the same operation.
    fn mask(&self, tag: &[u8; TAG_BYTES], written: &mut [u8; CLAIMS_BYTES]) {
        let from = EncryptionContext::Iv128(FixedLength::from(tag));
        self.hide.less_safe_encrypt(written, from).expect("this mode takes any length");
    }
}

prints_as!(TokenKey, |key| "TokenKey({}, ..)", key.id);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CLAIMS: Claims = Claims { tenant: 1, delivery: 77, expires_ms: 5_000 };

    fn key(id: u32, byte: u8) -> TokenKey {
        TokenKey::new(KeyId(id), &SecretKey::from_bytes(&[byte; 32]), &SecretKey::from_bytes(&[byte + 1; 32]))
    }

    #[test]
    fn token_has_62_url_safe_characters() {
        let token = key(1, 1).make(Action::Receipt, &CLAIMS);
        assert_eq!(token.expose().len(), 62);
        assert!(token.expose().bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
        assert_eq!(format!("{token:?}"), "Secret(..)");
    }

    /// Tokens live for a month, so an issued token must stay valid. The text was computed by another program.
    #[test]
    fn issued_token_keeps_its_meaning() {
        let text = "AQAAAAG9Mf1qA9upcZywpunH_lAP-N1cTdXYgCFXAsXjONri6POsDJMGkWiU8w";
        assert_eq!(key(1, 1).make(Action::Receipt, &CLAIMS).expose(), text);
        assert_eq!(key(1, 1).check(Action::Receipt, text, 0), Ok(CLAIMS));
    }

    #[test]
    fn token_is_refused_from_its_expiry_on() {
        let token = key(1, 1).make(Action::Receipt, &CLAIMS);
        for (now_ms, expected) in [(i64::MIN, Ok(CLAIMS)), (4_999, Ok(CLAIMS)), (5_000, Err(BadToken::Expired))] {
            assert_eq!(key(1, 1).check(Action::Receipt, token.expose(), now_ms), expected);
        }
    }

    #[test]
    fn a_token_of_another_key_is_refused() {
        let token = key(1, 1).make(Action::Receipt, &CLAIMS);
        assert_eq!(key(1, 7).check(Action::Receipt, token.expose(), 0), Err(BadToken::Forged));
        assert_eq!(key(2, 1).check(Action::Receipt, token.expose(), 0), Err(BadToken::KeyNeeded(KeyId(1))));
    }

    #[test]
    fn any_changed_character_is_refused() {
        let token = key(1, 1).make(Action::Receipt, &CLAIMS);
        for at in 0..token.expose().len() {
            for other in ["A", "B", "_", "=", ".", " ", "é"] {
                if token.expose()[at..].starts_with(other) {
                    continue;
                }
                let altered = [&token.expose()[..at], other, &token.expose()[at + 1..]].concat();
                assert!(key(1, 1).check(Action::Receipt, &altered, 0).is_err(), "{at} {other}");
            }
        }
        for text in ["", &token.expose()[1..], &format!("{}=", token.expose()), &format!("{}A", token.expose())] {
            assert_eq!(key(1, 1).check(Action::Receipt, text, 0), Err(BadToken::Unknown));
        }
    }

    #[test]
    fn tokens_of_consecutive_deliveries_look_unrelated() {
        let tokens = [77, 78].map(|delivery| key(1, 1).make(Action::Receipt, &Claims { delivery, ..CLAIMS }));
        let equal = tokens[0].expose().bytes().zip(tokens[1].expose().bytes()).skip(7).filter(|(a, b)| a == b).count();
        assert!(equal < 12, "{equal} of 55 characters are equal");
    }

    proptest! {
        #[test]
        fn token_survives_a_round_trip(tenant: u64, delivery: u64, expires_ms in 1i64.., id: u32) {
            let claims = Claims { tenant, delivery, expires_ms };
            let token = key(id, 3).make(Action::Receipt, &claims);
            prop_assert_eq!(key(id, 3).check(Action::Receipt, token.expose(), 0), Ok(claims));
        }

        #[test]
        fn no_input_causes_a_panic(text in "\\PC*|[A-Za-z0-9_-]{60,64}|AQAAAAE[A-Za-z0-9_-]{55}", now_ms: i64) {
            prop_assert!(key(1, 1).check(Action::Receipt, &text, now_ms).is_err());
        }
    }
}
