//! Public ids: `msg_` and 36 characters that sort by time and reveal nothing else.
//!
//! The characters are 176 bits in base 32: the time (48 bits, milliseconds), then one AES-128 block of kind (8), writer
//! (24), sequence number (40), the time again (48) and zeros (8). Opening an id yields the row's key without a look-up.
//! A forged id would have to guess kind, time and zeros, 64 bits. Ids of one kind sort by time, because the digits sort
//! the same way in ASCII and as numbers.
//!
//! Invariant: an id has exactly one text; any other spelling is refused.

use aws_lc_rs::cipher::{AES_128, DecryptingKey, DecryptionContext, EncryptingKey, UnboundCipherKey};
use zeroize::Zeroizing;

use crate::secret::prints_as;
use crate::{base32, random};

/// The highest writer number that fits into an id.
pub const WRITER_MAX: u32 = (1 << 24) - 1;
/// The highest sequence number that fits into an id.
pub const SEQ_MAX: u64 = (1 << 40) - 1;
/// The highest Unix time in milliseconds that fits into an id; in the year 10889.
pub const TIME_MS_MAX: u64 = (1 << 48) - 1;

const TIME_BYTES: usize = 6;
const BLOCK_BYTES: usize = 16;
const VALUE_BYTES: usize = TIME_BYTES + BLOCK_BYTES;
const DIGIT_COUNT: usize = base32::digits(VALUE_BYTES);

named! {
    /// The kind of object that an id names. The numbers are part of every issued id: they never change.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum IdKind {
        Message = 1 => "msg_",
        Delivery = 2 => "dlv_",
        Endpoint = 3 => "ep_",
        Tenant = 4 => "tn_",
        Credential = 5 => "crd_",
        Replay = 6 => "rpl_",
        Key = 7 => "key_",
        Cursor = 8 => "cur_",
    }
    ALL, prefix
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedId {
    pub kind: IdKind,
    pub writer: u32,
    pub seq: u64,
    /// When the row was made, in Unix milliseconds.
    pub time_ms: u64,
}

/// The key that all ids of an installation are made under. It is made once; without it, no id can be opened.
pub struct IdKey {
    // Both directions, with prepared key schedules.
    seal: EncryptingKey,
    open: DecryptingKey,
}

impl IdKey {
    pub fn generate() -> Self {
        Self::from_bytes(random::bytes())
    }

    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let bytes = Zeroizing::new(bytes);
        let key = || UnboundCipherKey::new(&AES_128, &*bytes).expect("AES-128 takes any 16 bytes");
        let seal = EncryptingKey::ecb(key()).expect("AES-128 has this mode");
        let open = DecryptingKey::ecb(key()).expect("AES-128 has this mode");
        Self { seal, open }
    }

    /// The id of a row.
    ///
    /// # Panics
    /// If a number does not fit into an id. Stores mint no numbers that large.
    pub fn mint(&self, kind: IdKind, writer: u32, seq: u64, time_ms: u64) -> String {
        assert!(writer <= WRITER_MAX, "writer {writer} does not fit an id");
        assert!(seq <= SEQ_MAX, "sequence number {seq} does not fit an id");
        assert!(time_ms <= TIME_MS_MAX, "time {time_ms} ms does not fit an id");
        let time = &time_ms.to_be_bytes()[2..];

        let mut value = [0; VALUE_BYTES];
        let (open_time, block) = value.split_at_mut(TIME_BYTES);
        open_time.copy_from_slice(time);
        block[0] = kind as u8;
        block[1..4].copy_from_slice(&writer.to_be_bytes()[1..]);
        block[4..9].copy_from_slice(&seq.to_be_bytes()[3..]);
        block[9..15].copy_from_slice(time);
        self.seal.encrypt(block).expect("a whole block");

        let prefix = kind.prefix();
        let mut text = String::with_capacity(prefix.len() + DIGIT_COUNT);
        text.push_str(prefix);
        base32::push(&value, &mut text);
        text
    }

    /// The content of an id; `None` if this key did not make it.
    pub fn open(&self, text: &str) -> Option<OpenedId> {
        let (kind, digits) =
            IdKind::ALL.into_iter().find_map(|kind| Some((kind, text.strip_prefix(kind.prefix())?)))?;
        let mut value: [u8; VALUE_BYTES] = base32::parse(digits)?;
        let (open_time, block) = value.split_at_mut(TIME_BYTES);
        self.open.decrypt(block, DecryptionContext::None).expect("a whole block");

        let genuine = block[0] == kind as u8 && block[9..15] == *open_time && block[15] == 0;
        genuine.then(|| OpenedId {
            kind,
            writer: number(&block[1..4]).try_into().expect("three bytes"),
            seq: number(&block[4..9]),
            time_ms: number(open_time),
        })
    }
}

prints_as!(IdKey, "IdKey(hidden)");

fn number(big_endian: &[u8]) -> u64 {
    big_endian.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> IdKey {
        IdKey::from_bytes(std::array::from_fn(|place| u8::try_from(place).expect("below 16")))
    }

    fn any_kind() -> impl Strategy<Value = IdKind> {
        prop::sample::select(IdKind::ALL.to_vec())
    }

    fn any_opened() -> impl Strategy<Value = OpenedId> {
        (any_kind(), 0..=WRITER_MAX, 0..=SEQ_MAX, 0..=TIME_MS_MAX).prop_map(|(kind, writer, seq, time_ms)| OpenedId {
            kind,
            writer,
            seq,
            time_ms,
        })
    }

    fn mint(key: &IdKey, opened: OpenedId) -> String {
        key.mint(opened.kind, opened.writer, opened.seq, opened.time_ms)
    }

    /// The expected texts were made by another implementation of AES and of base 32.
    #[test]
    fn issued_id_keeps_its_meaning() {
        let cases = [
            (IdKind::Message, 1, 1, 1_800_000_000_000, "msg_00d331e5004rctv95fa3mxrbjc1pn640cd18"),
            (
                IdKind::Delivery,
                0x12_3456,
                0x12_3456_789a,
                1_800_000_000_001,
                "dlv_00d331e5009b2jvc7zfhrhp6v0xwy7jhwa5h",
            ),
            (IdKind::Key, WRITER_MAX, SEQ_MAX, TIME_MS_MAX, "key_1zzzzzzzzzwc10nvwas72ktcfvtdnf4tm4jq"),
            (IdKind::Endpoint, 0, 0, 0, "ep_00000000004cq2ch93rzn3zs2cpgxcatjdqj"),
        ];
        for (kind, writer, seq, time_ms, text) in cases {
            let opened = OpenedId { kind, writer, seq, time_ms };
            assert_eq!(mint(&key(), opened), text);
            assert_eq!(key().open(text), Some(opened));
        }
    }

    #[test]
    fn text_that_is_not_an_id_is_refused() {
        let id = key().mint(IdKind::Message, 1, 2, 1_800_000_000_000);
        let digits = id.strip_prefix("msg_").expect("a message's id");
        let wrong = [
            String::new(),
            "msg_".to_owned(),
            digits.to_owned(),
            format!("msg{digits}"),
            format!("dlv_{digits}"),
            format!("MSG_{digits}"),
            format!("msg_{}", digits.to_uppercase()),
            format!("msg_0{digits}"),
            format!("{id}0"),
            format!("{id} "),
            format!(" {id}"),
            id[..id.len() - 1].to_owned(),
            format!("msg_{}é", &digits[..34]),
            // The same digits with a padding bit set.
            format!("msg_2{}", &digits[1..]),
        ];
        for text in wrong {
            assert_eq!(key().open(&text), None, "{text:?}");
        }
    }

    #[test]
    fn two_installations_do_not_open_each_others_ids() {
        let id = IdKey::generate().mint(IdKind::Tenant, 1, 2, 3);
        assert_eq!(IdKey::generate().open(&id), None);
    }

    #[test]
    fn a_printed_key_shows_nothing() {
        assert_eq!(format!("{:?}", key()), "IdKey(hidden)");
    }

    proptest! {
        #[test]
        fn id_survives_a_round_trip(opened in any_opened()) {
            let bytes = random::bytes();
            let key = IdKey::from_bytes(bytes);
            let text = mint(&key, opened);
            prop_assert_eq!(text.len(), opened.kind.prefix().len() + DIGIT_COUNT);
            prop_assert_eq!(IdKey::from_bytes(bytes).open(&text), Some(opened));
        }

        #[test]
        fn ids_sort_by_time(one in any_opened(), other in any_opened(), near in 1..10_000u64) {
            let key = key();
            let text = mint(&key, one);
            for time_ms in [other.time_ms, one.time_ms.saturating_sub(near), (one.time_ms + near).min(TIME_MS_MAX)] {
                if time_ms != one.time_ms {
                    let later = mint(&key, OpenedId { kind: one.kind, time_ms, ..other });
                    prop_assert_eq!(one.time_ms.cmp(&time_ms), text.cmp(&later));
                }
            }
        }

        #[test]
        fn any_changed_character_is_refused(opened in any_opened(), place: prop::sample::Index, other in 0u8..128) {
            let key = key();
            let mut text = mint(&key, opened).into_bytes();
            let place = place.index(text.len());
            prop_assume!(text[place] != other);
            text[place] = other;
            let text = String::from_utf8(text).expect("ASCII");
            prop_assert_eq!(key.open(&text), None);
        }

        #[test]
        fn no_input_causes_a_panic(text in "\\PC*|(msg|ep)_[0-9a-z]{36}") {
            prop_assert_eq!(key().open(&text), None);
        }
    }
}
