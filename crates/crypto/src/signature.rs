//! Standard Webhooks signatures over `id.timestamp.body`. With them a receiver can verify the sender of a message, that
//! no byte was changed, and that an old message was not replayed. Scheme `v1` is HMAC-SHA256 with a shared secret;
//! `v1a` is Ed25519, for which the receiver only needs the public key.
//!
//! Invariants: the signed bytes are exactly the bytes sent; a secret is only exposed by [`Secret::reveal`]. The
//! `webhook` module of `posthaste-channels` sets the headers.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use aws_lc_rs::{constant_time, hmac};
use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use zeroize::Zeroizing;

use crate::random;
use crate::secret::prints_as;

/// Maximum difference between the clocks of sender and receiver, as in the specification's libraries.
pub const TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// Minimum size of a secret; a shorter one could be guessed.
pub const SECRET_BYTES_MIN: usize = 24;
/// Maximum size of a secret: the block size of SHA-256. A longer one would only be hashed to 32 bytes.
pub const SECRET_BYTES_MAX: usize = 64;

const SECRET_PREFIX: &str = "whsec_";
const PRIVATE_PREFIX: &str = "whsk_";
const PUBLIC_PREFIX: &str = "whpk_";
const SEED_BYTES: usize = 32;
/// Size of a private key: the seed, followed by its public key.
const PRIVATE_BYTES: usize = 64;
/// Size of a header entry: a space, `v1a,` and the base64 of the longer signature.
const ENTRY_BYTES: usize = 1 + 4 + 64_usize.div_ceil(3) * 4;

/// Decoder for secrets from other systems, some of which drop the padding.
const IMPORTED: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SignatureScheme {
    /// HMAC-SHA256 with a shared secret.
    #[default]
    V1,
    /// Ed25519: the receiver only needs the public key.
    V1a,
}

impl SignatureScheme {
    /// Both schemes, with their names in the API and in front of a signature.
    pub const ALL: [(&'static str, Self); 2] = [("v1", Self::V1), ("v1a", Self::V1a)];

    /// The scheme's name in the API and in front of a signature.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V1 => "v1",
            Self::V1a => "v1a",
        }
    }
}

/// A signing secret. Prints as `Secret(hidden)` and is wiped from memory when dropped.
#[derive(Clone)]
pub struct Secret {
    bytes: Zeroizing<Vec<u8>>,
    key: Key,
}

/// A prepared key, because signing is on the hot path. The provider wipes it.
#[derive(Clone)]
enum Key {
    /// The first block is already hashed.
    V1(Arc<hmac::Key>),
    V1a(Arc<Ed25519KeyPair>),
}

/// The reason why a text is refused as a secret. The error never contains the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    /// The text after the prefix cannot be decoded.
    #[error("secret is not base64; give `whsec_` and the base64 of 24 to 64 random bytes")]
    NotBase64,
    /// It is too short to be safe, or longer than the hash's block.
    #[error("secret has {bytes} bytes; give `whsec_` and the base64 of 24 to 64 random bytes")]
    Length { bytes: usize },
    /// It has the prefix of a private key, but is not one.
    #[error("private key is not valid; give `whsk_` and the base64 of an Ed25519 seed and its public key")]
    NotPrivate,
    /// It is a public key, which only receivers need.
    #[error("that is a public key, which cannot sign; give the private one, `whsk_…`")]
    Public,
    /// It is for another scheme than the requested one.
    #[error("that is a secret for scheme {}; leave the scheme out, or give one that fits", .0.name())]
    OtherScheme(SignatureScheme),
}

impl Secret {
    /// A new secret for `v1`, of 32 random bytes.
    pub fn generate() -> Self {
        Self::generate_for(SignatureScheme::V1)
    }

    pub fn generate_for(scheme: SignatureScheme) -> Self {
        let bytes = Zeroizing::new(random::bytes::<32>());
        match scheme {
            SignatureScheme::V1 => Self::shared(Zeroizing::new(bytes.to_vec())),
            SignatureScheme::V1a => Self::private(&*bytes).expect("any 32 bytes are a seed"),
        }
    }

    /// Parses a secret: base64, with or without the prefix `whsec_`, or a private key with the prefix `whsk_`.
    pub fn parse(text: &str) -> Result<Self, BadSecret> {
        if text.starts_with(PUBLIC_PREFIX) {
            return Err(BadSecret::Public);
        }
        if let Some(encoded) = text.strip_prefix(PRIVATE_PREFIX) {
            let bytes = Zeroizing::new(IMPORTED.decode(encoded).map_err(|_| BadSecret::NotPrivate)?);
            return Self::private(&bytes);
        }
        let encoded = text.strip_prefix(SECRET_PREFIX).unwrap_or(text);
        let bytes = Zeroizing::new(IMPORTED.decode(encoded).map_err(|_| BadSecret::NotBase64)?);
        match bytes.len() {
            SECRET_BYTES_MIN..=SECRET_BYTES_MAX => Ok(Self::shared(bytes)),
            bytes => Err(BadSecret::Length { bytes }),
        }
    }

    pub const fn scheme(&self) -> SignatureScheme {
        match self.key {
            Key::V1(_) => SignatureScheme::V1,
            Key::V1a(_) => SignatureScheme::V1a,
        }
    }

    /// The secret in plain text, as its owner sees it: a prefix and base64.
    pub fn reveal(&self) -> Zeroizing<String> {
        let prefix = match self.key {
            Key::V1(_) => SECRET_PREFIX,
            Key::V1a(_) => PRIVATE_PREFIX,
        };
        // Full capacity from the start: a string that grows leaves copies of its content behind.
        let room = prefix.len() + self.bytes.len().div_ceil(3) * 4;
        let mut text = Zeroizing::new(String::with_capacity(room));
        text.push_str(prefix);
        STANDARD.encode_string(&*self.bytes, &mut text);
        text
    }

    /// The public key that a receiver verifies with: `whpk_` and base64. `None` for a shared secret.
    pub fn public(&self) -> Option<String> {
        match &self.key {
            Key::V1(_) => None,
            Key::V1a(pair) => Some(format!("{PUBLIC_PREFIX}{}", STANDARD.encode(pair.public_key()))),
        }
    }

    fn shared(bytes: Zeroizing<Vec<u8>>) -> Self {
        let key = Key::V1(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &bytes)));
        Self { bytes, key }
    }

    /// Makes a private key from a seed, optionally followed by its public key, which must match.
    fn private(bytes: &[u8]) -> Result<Self, BadSecret> {
        let (seed, claimed) = bytes.split_at_checked(SEED_BYTES).ok_or(BadSecret::NotPrivate)?;
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| BadSecret::NotPrivate)?;
        if !claimed.is_empty() && claimed != pair.public_key().as_ref() {
            return Err(BadSecret::NotPrivate);
        }
        let mut bytes = Zeroizing::new(Vec::with_capacity(PRIVATE_BYTES));
        bytes.extend_from_slice(seed);
        bytes.extend_from_slice(pair.public_key().as_ref());
        Ok(Self { bytes, key: Key::V1a(Arc::new(pair)) })
    }

    /// Appends the signature of `head` followed by `body`.
    fn sign(&self, head: &str, body: &[u8], header: &mut String) {
        header.push_str(self.scheme().name());
        header.push(',');
        match &self.key {
            Key::V1(key) => STANDARD.encode_string(tag(key, head, body), header),
            Key::V1a(pair) => STANDARD.encode_string(pair.sign(&joined(head, body)), header),
        }
    }

    /// Whether the claimed signature is this secret's signature of `head` followed by `body`.
    fn signed(&self, head: &str, body: &[u8], (scheme, claimed): (&str, &[u8])) -> bool {
        match &self.key {
            _ if scheme != self.scheme().name() => false,
            Key::V1(key) => constant_time::verify_slices_are_equal(tag(key, head, body).as_ref(), claimed).is_ok(),
            Key::V1a(pair) => {
                let public = UnparsedPublicKey::new(&ED25519, pair.public_key());
                public.verify(&joined(head, body), claimed).is_ok()
            }
        }
    }
}

/// The HMAC of `head` followed by `body`, without copying them together.
fn tag(key: &hmac::Key, head: &str, body: &[u8]) -> hmac::Tag {
    let mut context = hmac::Context::with_key(key);
    context.update(head.as_bytes());
    context.update(body);
    context.sign()
}

/// Joins both parts: Ed25519 reads its message twice, so it must be contiguous.
fn joined(head: &str, body: &[u8]) -> Vec<u8> {
    [head.as_bytes(), body].concat()
}

prints_as!(Secret, "Secret(hidden)");

/// The value of the header `webhook-signature`: one signature for each given secret, in the given order (newest first).
/// Without a secret it is empty, which every receiver refuses.
pub fn sign<S: Borrow<Secret>>(secrets: &[S], id: &str, timestamp_seconds: i64, body: &[u8]) -> String {
    let head = format!("{id}.{timestamp_seconds}.");
    let mut header = String::with_capacity(secrets.len() * ENTRY_BYTES);
    for secret in secrets {
        if !header.is_empty() {
            header.push(' ');
        }
        secret.borrow().sign(&head, body, &mut header);
    }
    header
}

/// A request as a receiver got it: the three headers, and the unparsed body.
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

/// The reason why a receiver must refuse a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureRefused {
    /// The timestamp is not a number of seconds.
    #[error("webhook-timestamp is not a number of seconds; send whole seconds since 1970")]
    Timestamp,
    /// The clocks differ by more than the tolerance, or the message is a replay of an old one.
    #[error("webhook-timestamp is {apart_seconds} s away from our clock; send the message again or set the clock")]
    TooFarApart { apart_seconds: u64 },
    #[error("no signature in webhook-signature matches; compare the secret, and check the body as it came")]
    NoMatch,
}

/// Checks that one of the signatures was made with one of the secrets, in constant time, and that the message was
/// signed within `tolerance` of `now_seconds`.
pub fn verify(
    secrets: &[Secret],
    received: &Received<'_>,
    now_seconds: i64,
    tolerance: Duration,
) -> Result<(), SignatureRefused> {
    let signed_at = parse_timestamp(received.timestamp).ok_or(SignatureRefused::Timestamp)?;
    let apart_seconds = now_seconds.abs_diff(signed_at);
    if apart_seconds > tolerance.as_secs() {
        return Err(SignatureRefused::TooFarApart { apart_seconds });
    }
    let head = format!("{}.{}.", received.id, received.timestamp);
    let mut matches = false;
    for entry in received.signature.split(' ') {
        let Some((scheme, encoded)) = entry.split_once(',') else { continue };
        let Ok(claimed) = STANDARD.decode(encoded) else { continue };
        for secret in secrets {
            matches |= secret.signed(&head, received.body, (scheme, &claimed));
        }
    }
    if matches { Ok(()) } else { Err(SignatureRefused::NoMatch) }
}

fn parse_timestamp(text: &str) -> Option<i64> {
    // `parse` alone would accept a sign.
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
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

    fn check(received: &Received<'_>, now_seconds: i64, expected: Result<(), SignatureRefused>) {
        let verdict = verify(&[secret(EXAMPLE_SECRET)], received, now_seconds, TOLERANCE);
        assert_eq!(verdict, expected, "{received:?} at {now_seconds}");
    }

    /// HMAC composed from a plain hash as in RFC 2104.
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

    /// The key pair and signature that the specification's other reference library is tested with.
    const PRIVATE: &str =
        "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";
    const PUBLIC: &str = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=";
    const SIGNED: &str = "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==";

    #[test]
    fn the_published_example_of_a_private_key_is_signed_as_published() {
        let private = secret(PRIVATE);
        assert_eq!((private.scheme(), private.public().as_deref()), (SignatureScheme::V1a, Some(PUBLIC)));
        assert_eq!(private.reveal().as_str(), PRIVATE);
        let header = sign(std::slice::from_ref(&private), EXAMPLE.id, EXAMPLE_SECONDS, EXAMPLE.body);
        assert_eq!(header, SIGNED);
        let received = Received { signature: SIGNED, ..EXAMPLE };
        assert_eq!(verify(&[private], &received, EXAMPLE_SECONDS, TOLERANCE), Ok(()));
    }

    #[test]
    fn a_private_key_is_a_seed_with_its_own_public_key_or_alone() {
        let seed = format!("whsk_{}", STANDARD.encode(&STANDARD.decode(&PRIVATE[5..]).expect("base64")[..32]));
        assert_eq!(secret(&seed).reveal().as_str(), PRIVATE);
        let mut other = STANDARD.decode(&PRIVATE[5..]).expect("base64");
        other[63] ^= 1;
        let bad = |text: &str| Secret::parse(text).map(|_| ()).expect_err("not a private key");
        assert_eq!(bad(&format!("whsk_{}", STANDARD.encode(&other))), BadSecret::NotPrivate);
        assert_eq!(bad("whsk_AAAA"), BadSecret::NotPrivate);
        assert_eq!(bad("whsk_!"), BadSecret::NotPrivate);
        assert_eq!(bad(PUBLIC), BadSecret::Public);
    }

    #[test]
    fn secrets_of_both_schemes_sign_side_by_side_and_neither_passes_for_the_other() {
        let both = [Secret::generate_for(SignatureScheme::V1a), Secret::generate()];
        let header = sign(&both, EXAMPLE.id, EXAMPLE_SECONDS, EXAMPLE.body);
        assert!(header.starts_with("v1a,") && header.contains(" v1,"), "{header}");
        let received = Received { signature: &header, ..EXAMPLE };
        for one in &both {
            assert_eq!(verify(std::slice::from_ref(one), &received, EXAMPLE_SECONDS, TOLERANCE), Ok(()));
        }
        let swapped = header.replace("v1a,", "x,").replace("v1,", "v1a,").replace("x,", "v1,");
        let received = Received { signature: &swapped, ..EXAMPLE };
        assert_eq!(verify(&both, &received, EXAMPLE_SECONDS, TOLERANCE), Err(SignatureRefused::NoMatch));
    }

    #[test]
    fn message_is_accepted_up_to_the_tolerance_and_not_a_second_longer() {
        let apart_seconds = TOLERANCE.as_secs() + 1;
        for sign in [1, -1] {
            check(&EXAMPLE, EXAMPLE_SECONDS + sign * 300, Ok(()));
            check(&EXAMPLE, EXAMPLE_SECONDS + sign * 301, Err(SignatureRefused::TooFarApart { apart_seconds }));
        }
    }

    #[test]
    fn a_timestamp_that_is_not_plain_digits_is_refused() {
        for timestamp in ["", "+1614265330", "-1", "1614265330.0", " 1614265330", "16e8", "99999999999999999999", "१"]
        {
            check(&Received { timestamp, ..EXAMPLE }, EXAMPLE_SECONDS, Err(SignatureRefused::Timestamp));
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
            check(&Received { signature, ..EXAMPLE }, EXAMPLE_SECONDS, Err(SignatureRefused::NoMatch));
        }
    }

    #[test]
    fn entries_of_other_versions_are_ignored() {
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
        assert_eq!(verify(&[foreign], &received, 60, TOLERANCE), Err(SignatureRefused::NoMatch));
        assert_eq!(verify(&[], &received, 60, TOLERANCE), Err(SignatureRefused::NoMatch));
        assert_eq!(sign::<Secret>(&[], "msg_1", 60, b"{}"), "");
    }

    #[test]
    fn secret_is_accepted_with_and_without_prefix_and_padding() {
        let padded = STANDARD.encode([7; 32]);
        let expected = format!("whsec_{padded}");
        for text in [&expected, &padded, padded.trim_end_matches('=')] {
            assert_eq!(*secret(text).reveal(), expected);
        }
    }

    #[test]
    fn bad_secret_error_names_the_problem_but_not_the_secret() {
        let cases = [
            ("whsec_not base64!", BadSecret::NotBase64),
            ("whpk_AAAA", BadSecret::Public),
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
                // An unlimited tolerance, so that only the signature can be refused.
                verify(&secrets, &received, EXAMPLE_SECONDS, Duration::MAX)
            };
            prop_assert_eq!(check(&whole), Ok(()));
            let changed = &mut parts[part];
            let at = place.index(changed.len());
            changed[at] ^= flip;
            prop_assert!(check(&parts).is_err());
        }

        #[test]
        fn no_input_causes_a_panic(id: String, timestamp: String, signature: String, text: String, now: i64) {
            let received = Received { id: &id, timestamp: &timestamp, signature: &signature, body: text.as_bytes() };
            prop_assert!(verify(&[secret(EXAMPLE_SECRET)], &received, now, TOLERANCE).is_err());
            let _ = Secret::parse(&text);
        }
    }
}
