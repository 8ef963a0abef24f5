//! Standard Webhooks signatures, scheme `v1`: HMAC-SHA256 over `id.timestamp.body`, so that a
//! receiver knows who sent a message, that no byte of it changed, and that it is not an old one
//! played back.
//!
//! Invariants: what is signed are the very bytes that are sent; a secret leaves only through
//! [`Secret::reveal`]. The headers around a signature are `posthaste-channels`' `webhook`.

use std::fmt;
use std::time::Duration;

use aws_lc_rs::{constant_time, hmac};
use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use zeroize::Zeroizing;

use crate::random;

/// How far a receiver's clock may be from the sender's, as the specification's libraries have it.
pub const TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// Fewer bytes could be guessed in time.
pub const SECRET_BYTES_MIN: usize = 24;
/// The block of SHA-256; more bytes would only be hashed down to 32.
pub const SECRET_BYTES_MAX: usize = 64;

const SECRET_PREFIX: &str = "whsec_";
const VERSION_PREFIX: &str = "v1,";
const TAG_BYTES: usize = 32;
/// A space, `v1,` and the base64 of a tag.
const ENTRY_BYTES: usize = 1 + VERSION_PREFIX.len() + TAG_BYTES.div_ceil(3) * 4;

/// Secrets come from many hands, and some of them drop the padding.
const IMPORTED: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What sender and receiver share. Prints as `Secret(hidden)`; wiped from memory when dropped.
#[derive(Clone)]
pub struct Secret {
    bytes: Zeroizing<Vec<u8>>,
    /// The key's first block already hashed: signing is the hot path. The provider wipes it.
    key: hmac::Key,
}

/// Why a text cannot be a secret. Never says what the text was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    /// What follows the prefix cannot be decoded.
    #[error("secret is not base64; give `whsec_` and the base64 of 24 to 64 random bytes")]
    NotBase64,
    /// It can be decoded, but is too short to be safe or longer than the hash's block.
    #[error("secret has {bytes} bytes; give `whsec_` and the base64 of 24 to 64 random bytes")]
    Length {
        /// How many it has.
        bytes: usize,
    },
}

impl Secret {
    /// A new secret of 32 random bytes.
    pub fn generate() -> Self {
        let bytes = Zeroizing::new(random::bytes::<32>());
        Self::from_bytes(Zeroizing::new(bytes.to_vec()))
    }

    /// A secret as people hand it over: base64, with `whsec_` in front or without.
    pub fn parse(text: &str) -> Result<Self, BadSecret> {
        let encoded = text.strip_prefix(SECRET_PREFIX).unwrap_or(text);
        let bytes = Zeroizing::new(IMPORTED.decode(encoded).map_err(|_| BadSecret::NotBase64)?);
        match bytes.len() {
            SECRET_BYTES_MIN..=SECRET_BYTES_MAX => Ok(Self::from_bytes(bytes)),
            bytes => Err(BadSecret::Length { bytes }),
        }
    }

    /// The secret in the open, as its owner is shown it: `whsec_` and base64.
    pub fn reveal(&self) -> Zeroizing<String> {
        // Room for all of it at once: a string that grows leaves copies of itself behind.
        let room = SECRET_PREFIX.len() + self.bytes.len().div_ceil(3) * 4;
        let mut text = Zeroizing::new(String::with_capacity(room));
        text.push_str(SECRET_PREFIX);
        STANDARD.encode_string(&*self.bytes, &mut text);
        text
    }

    fn from_bytes(bytes: Zeroizing<Vec<u8>>) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        Self { bytes, key }
    }

    /// The signature of `head` followed by `body`, without a copy that joins them.
    fn tag(&self, head: &str, body: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(head.as_bytes());
        context.update(body);
        context.sign()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// The value of `webhook-signature`: one signature for each live secret, in the order given,
/// newest first. Without a secret it is empty, which every receiver refuses.
pub fn sign(secrets: &[Secret], id: &str, timestamp_seconds: i64, body: &[u8]) -> String {
    let head = format!("{id}.{timestamp_seconds}.");
    let mut header = String::with_capacity(secrets.len() * ENTRY_BYTES);
    for secret in secrets {
        if !header.is_empty() {
            header.push(' ');
        }
        header.push_str(VERSION_PREFIX);
        STANDARD.encode_string(secret.tag(&head, body), &mut header);
    }
    header
}

/// What a receiver got: three headers as they came, and the body before anything parsed it.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// `webhook-id`.
    pub id: &'a str,
    /// `webhook-timestamp`.
    pub timestamp: &'a str,
    /// `webhook-signature`.
    pub signature: &'a str,
    /// The body's bytes.
    pub body: &'a [u8],
}

/// Why a receiver must not believe a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The timestamp is not a number of seconds.
    #[error("webhook-timestamp is not a number of seconds; send whole seconds since 1970")]
    Timestamp,
    /// The clocks differ by more than the tolerance, or the message is played back.
    #[error("webhook-timestamp is {apart_seconds} s away from our clock; send the message again or set the clock")]
    TooFarApart {
        /// By how much.
        apart_seconds: u64,
    },
    /// None of the signatures is right.
    #[error("no signature in webhook-signature matches; compare the secret, and check the body as it came")]
    NoMatch,
}

/// Checks that one of the signatures is by one of the secrets, in a time that does not depend on
/// where they differ, and that the message was signed within `tolerance` of `now_seconds`.
pub fn verify(
    secrets: &[Secret],
    received: &Received<'_>,
    now_seconds: i64,
    tolerance: Duration,
) -> Result<(), Refused> {
    let signed_at = parse_timestamp(received.timestamp).ok_or(Refused::Timestamp)?;
    let apart_seconds = now_seconds.abs_diff(signed_at);
    if apart_seconds > tolerance.as_secs() {
        return Err(Refused::TooFarApart { apart_seconds });
    }
    let head = format!("{}.{}.", received.id, received.timestamp);
    let tags: Vec<hmac::Tag> = secrets.iter().map(|secret| secret.tag(&head, received.body)).collect();
    let mut matches = false;
    for claimed in received.signature.split(' ').filter_map(parse_entry) {
        for tag in &tags {
            matches |= constant_time::verify_slices_are_equal(tag.as_ref(), &claimed).is_ok();
        }
    }
    if matches { Ok(()) } else { Err(Refused::NoMatch) }
}

fn parse_timestamp(text: &str) -> Option<i64> {
    // `parse` alone would take a sign.
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// The tag in one entry of the header; `None` for another version, or what cannot be a tag.
fn parse_entry(entry: &str) -> Option<[u8; TAG_BYTES]> {
    STANDARD.decode(entry.strip_prefix(VERSION_PREFIX)?).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::digest;
    use proptest::prelude::*;

    use super::*;

    /// The example that the specification's reference libraries are tested with.
    const EXAMPLE_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const EXAMPLE: Received<'_> = Received {
        id: "msg_p5jXN8AQM9LWM0D4loKWxJek",
        timestamp: "1614265330",
        signature: "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        body: br#"{"test": 2432232314}"#,
    };
    const EXAMPLE_SECONDS: i64 = 1_614_265_330;

    fn secret(text: &str) -> Secret {
        Secret::parse(text).expect("a valid secret")
    }

    fn check(received: &Received<'_>, now_seconds: i64, expected: Result<(), Refused>) {
        let verdict = verify(&[secret(EXAMPLE_SECRET)], received, now_seconds, TOLERANCE);
        assert_eq!(verdict, expected, "{received:?} at {now_seconds}");
    }

    /// HMAC as RFC 2104 composes it from a plain hash.
    fn hmac_by_hand(key: &[u8], message: &[u8]) -> Vec<u8> {
        let mut block = [0; 64];
        block[..key.len()].copy_from_slice(key);
        let hash = |pad: u8, rest: &[u8]| {
            let mut input: Vec<u8> = block.iter().map(|byte| byte ^ pad).collect();
            input.extend_from_slice(rest);
            digest::digest(&digest::SHA256, &input)
        };
        hash(0x5c, hash(0x36, message).as_ref()).as_ref().to_vec()
    }

    #[test]
    fn the_published_example_is_signed_as_published() {
        let header = sign(&[secret(EXAMPLE_SECRET)], EXAMPLE.id, EXAMPLE_SECONDS, EXAMPLE.body);
        assert_eq!(header, EXAMPLE.signature);
        check(&EXAMPLE, EXAMPLE_SECONDS, Ok(()));
    }

    #[test]
    fn a_message_is_believed_up_to_the_tolerance_and_not_a_second_longer() {
        let apart_seconds = TOLERANCE.as_secs() + 1;
        for sign in [1, -1] {
            check(&EXAMPLE, EXAMPLE_SECONDS + sign * 300, Ok(()));
            check(&EXAMPLE, EXAMPLE_SECONDS + sign * 301, Err(Refused::TooFarApart { apart_seconds }));
        }
    }

    #[test]
    fn a_timestamp_that_is_not_plain_digits_is_refused() {
        for timestamp in ["", "+1614265330", "-1", "1614265330.0", " 1614265330", "16e8", "99999999999999999999", "१"]
        {
            check(&Received { timestamp, ..EXAMPLE }, EXAMPLE_SECONDS, Err(Refused::Timestamp));
        }
    }

    #[test]
    fn an_empty_short_or_unknown_signature_is_refused() {
        let tag = EXAMPLE.signature.strip_prefix("v1,").expect("the example is of version 1");
        let cases = [
            "",
            " ",
            "v1",
            "v1,",
            "v1,g0hM",
            "v1,****",
            tag,
            &format!("v1a,{tag}"),
            &format!("v2,{tag}"),
            &format!("V1,{tag}"),
        ];
        for signature in cases {
            check(&Received { signature, ..EXAMPLE }, EXAMPLE_SECONDS, Err(Refused::NoMatch));
        }
    }

    #[test]
    fn entries_of_other_versions_beside_a_right_one_do_no_harm() {
        let signature = format!("v1a,AAAA v1,AAAA {} v9,x", EXAMPLE.signature);
        check(&Received { signature: &signature, ..EXAMPLE }, EXAMPLE_SECONDS, Ok(()));
    }

    #[test]
    fn all_live_secrets_sign_newest_first_and_each_is_enough() {
        let [newest, older, foreign] = [(); 3].map(|()| Secret::generate());
        let both = [newest, older];
        let signature = sign(&both, "msg_1", 60, b"{}");
        let alone = both.each_ref().map(|secret| sign(std::slice::from_ref(secret), "msg_1", 60, b"{}"));
        assert_eq!(signature, alone.join(" "));
        let received = Received { id: "msg_1", timestamp: "60", signature: &signature, body: b"{}" };
        for secret in both {
            assert_eq!(verify(&[secret], &received, 60, TOLERANCE), Ok(()));
        }
        assert_eq!(verify(&[foreign], &received, 60, TOLERANCE), Err(Refused::NoMatch));
        assert_eq!(verify(&[], &received, 60, TOLERANCE), Err(Refused::NoMatch));
        assert_eq!(sign(&[], "msg_1", 60, b"{}"), "");
    }

    #[test]
    fn a_secret_is_taken_with_and_without_prefix_and_padding() {
        let padded = STANDARD.encode([7; 32]);
        let expected = format!("whsec_{padded}");
        for text in [&expected, &padded, padded.trim_end_matches('=')] {
            assert_eq!(*secret(text).reveal(), expected);
        }
    }

    #[test]
    fn a_bad_secret_says_what_is_wrong_but_not_what_it_was() {
        let cases = [
            ("whsec_not base64!", BadSecret::NotBase64),
            ("whpk_AAAA", BadSecret::NotBase64),
            ("", BadSecret::Length { bytes: 0 }),
            ("whsec_", BadSecret::Length { bytes: 0 }),
            (&STANDARD.encode([1; 23]), BadSecret::Length { bytes: 23 }),
            (&STANDARD.encode([1; 65]), BadSecret::Length { bytes: 65 }),
        ];
        for (text, expected) in cases {
            let refused = Secret::parse(text).expect_err("not a secret");
            assert_eq!(refused, expected, "{text:?}");
        }
    }

    #[test]
    fn a_printed_secret_shows_nothing() {
        assert_eq!(format!("{:?}", secret(EXAMPLE_SECRET)), "Secret(hidden)");
    }

    #[test]
    fn generated_secrets_have_32_bytes_and_differ() {
        let [one, other] = [Secret::generate(), Secret::generate()];
        assert_eq!((one.bytes.len(), other.bytes.len()), (32, 32));
        assert_ne!(one.reveal(), other.reveal());
    }

    proptest! {
        #[test]
        fn a_signature_is_the_hmac_of_id_timestamp_and_body(
            key in prop::collection::vec(any::<u8>(), SECRET_BYTES_MIN..=SECRET_BYTES_MAX),
            id in "[a-z]{2,3}_[0-9a-z]{36}",
            timestamp in 0i64..=1 << 40,
            body in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let secret = Secret::parse(&STANDARD.encode(&key)).expect("of an allowed length");
            let message = [format!("{id}.{timestamp}.").as_bytes(), &body].concat();
            let expected = format!("v1,{}", STANDARD.encode(hmac_by_hand(&key, &message)));
            prop_assert_eq!(sign(&[secret], &id, timestamp, &body), expected);
        }

        #[test]
        fn a_changed_byte_anywhere_is_refused(
            body in prop::collection::vec(any::<u8>(), 1..100),
            part in 0..4usize,
            place: prop::sample::Index,
            flip in 1u8..128,
        ) {
            let secrets = [secret(EXAMPLE_SECRET)];
            let signature = sign(&secrets, "msg_7", EXAMPLE_SECONDS, &body);
            let mut parts = [b"msg_7".to_vec(), b"1614265330".to_vec(), signature.into_bytes(), body];
            let whole = parts.clone();
            let check = |parts: &[Vec<u8>; 4]| {
                let text = |part: &[u8]| String::from_utf8(part.to_vec()).expect("flips stay within ASCII");
                let (id, timestamp, signature) = (text(&parts[0]), text(&parts[1]), text(&parts[2]));
                let received = Received { id: &id, timestamp: &timestamp, signature: &signature, body: &parts[3] };
                // A tolerance without end, so that only the signature can refuse.
                verify(&secrets, &received, EXAMPLE_SECONDS, Duration::MAX)
            };
            prop_assert_eq!(check(&whole), Ok(()));
            let changed = &mut parts[part];
            let at = place.index(changed.len());
            changed[at] ^= flip;
            prop_assert!(check(&parts).is_err());
        }

        #[test]
        fn whatever_comes_in_never_panics(id: String, timestamp: String, signature: String, text: String, now: i64) {
            let received = Received { id: &id, timestamp: &timestamp, signature: &signature, body: text.as_bytes() };
            prop_assert!(verify(&[secret(EXAMPLE_SECRET)], &received, now, TOLERANCE).is_err());
            let _ = Secret::parse(&text);
        }
    }
}
