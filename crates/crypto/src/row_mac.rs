//! Row MACs: authentication codes of delivery rows, so that a row that the store did not write is never sent (L2).
//!
//! HMAC-SHA-256, truncated to 128 bits, over everything that decides whether, when and what is sent. It is made with
//! the commit that schedules the delivery and verified before the delivery is sent. A row that waited longer than the
//! TTL is [`Checked::Late`]: it is genuine, but must be compared with the delivery's history first.
//!
//! The payload is covered by the message's id: it is sealed for that id and opens for no other, so its digest would add
//! nothing.
//!
//! ```
//! use std::time::Duration;
//! use posthaste_crypto::keyring::{KeyId, StoreKey};
//! use posthaste_crypto::row_mac::{Checked, Ends, REST_BYTES, Scheduled};
//!
//! let key = StoreKey::generate(KeyId(1)).row_macs();
//! let row = Scheduled {
//!     delivery: 77,
//!     message: 76,
//!     endpoint: 4,
//!     lane: 5,
//!     attempts: 1,
//!     due_ms: 60_000,
//!     ends: Ends::Never,
//!     rest: [0; REST_BYTES],
//! };
//! let mac = key.make(&row);
//!
//! let ttl = Duration::from_secs(300);
//! assert_eq!(key.check(&row, &mac, 61_000, ttl), Checked::Valid);
//! assert_eq!(key.check(&row, &mac, 600_000, ttl), Checked::Late);
//! let back_dated = Scheduled { due_ms: 10, ..row };
//! assert_eq!(key.check(&back_dated, &mac, 61_000, ttl), Checked::Forged);
//! ```

use std::time::Duration;

use aws_lc_rs::hmac;

use crate::keyring::KeyId;
use crate::secret::{SecretKey, prints_as, same};

pub const ROW_MAC_BYTES: usize = 16;

/// The size of [`Scheduled::rest`]. With it, all authenticated bytes fit into two blocks of the hash.
pub const REST_BYTES: usize = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowMac(pub [u8; ROW_MAC_BYTES]);

/// The time from which a delivery is no longer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// It has no TTL.
    Never,
    /// From this time on, in Unix milliseconds.
    At(i64),
    /// From this time on, in Unix milliseconds, and it gets only one attempt.
    NowOrNever(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    pub delivery: u64,
    /// The id of the message, whose payload is sealed for this id.
    pub message: u64,
    pub endpoint: u64,
    pub lane: u64,
    pub attempts: u32,
    /// When the delivery is due, in Unix milliseconds.
    pub due_ms: i64,
    pub ends: Ends,
    /// The other fields of the row, each at a fixed offset.
    pub rest: [u8; REST_BYTES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    Valid,
    /// The row is genuine, but was due longer ago than the TTL: verify it against the history before sending it.
    Late,
    /// The MAC does not match: the delivery must never be sent.
    Forged,
}

pub struct RowMacKey {
    id: KeyId,
    key: hmac::Key,
}

const ROW_BYTES: usize = 4 + 8 + 8 + 8 + 8 + 4 + 8 + 1 + 8 + REST_BYTES;

impl RowMacKey {
    pub(crate) fn new(id: KeyId, secret: &SecretKey) -> Self {
        Self { id, key: hmac::Key::new(hmac::HMAC_SHA256, secret.expose()) }
    }

    pub fn make(&self, row: &Scheduled) -> RowMac {
        let tag = hmac::sign(&self.key, &self.written(row));
        RowMac(*tag.as_ref().first_chunk().expect("HMAC-SHA-256 has 32 bytes"))
    }

    /// Checks a row's MAC. A genuine row is valid until `ttl` after it was due; whether it is due yet is not checked.
    pub fn check(&self, row: &Scheduled, mac: &RowMac, now_ms: i64, ttl: Duration) -> Checked {
        if !same(&self.make(row).0, &mac.0) {
            return Checked::Forged;
        }
        let ttl_ms = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        if now_ms > row.due_ms.saturating_add(ttl_ms) { Checked::Late } else { Checked::Valid }
    }

    /// Encodes a row. Each field has a fixed offset, so different rows have different encodings.
    fn written(&self, row: &Scheduled) -> [u8; ROW_BYTES] {
        let (ends, ends_ms) = match row.ends {
            Ends::Never => (0, 0),
            Ends::At(ms) => (1, ms),
            Ends::NowOrNever(ms) => (2, ms),
        };
        let mut bytes = [0; ROW_BYTES];
        bytes[..4].copy_from_slice(&self.id.0.to_be_bytes());
        bytes[4..12].copy_from_slice(&row.delivery.to_be_bytes());
        bytes[12..20].copy_from_slice(&row.message.to_be_bytes());
        bytes[20..28].copy_from_slice(&row.endpoint.to_be_bytes());
        bytes[28..36].copy_from_slice(&row.lane.to_be_bytes());
        bytes[36..40].copy_from_slice(&row.attempts.to_be_bytes());
        bytes[40..48].copy_from_slice(&row.due_ms.to_be_bytes());
        bytes[48] = ends;
        bytes[49..57].copy_from_slice(&ends_ms.to_be_bytes());
        bytes[57..].copy_from_slice(&row.rest);
        bytes
    }
}

prints_as!(RowMacKey, |key| "RowMacKey({}, ..)", key.id);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const TTL: Duration = Duration::from_secs(300);
    const ROW: Scheduled = Scheduled {
        delivery: 77,
        message: 76,
        endpoint: 4,
        lane: 5,
        attempts: 1,
        due_ms: 1_000_000,
        ends: Ends::At(9_000_000),
        rest: [3; REST_BYTES],
    };

    fn key() -> RowMacKey {
        RowMacKey::new(KeyId(1), &SecretKey::from_bytes(&[8; 32]))
    }

    fn check(row: &Scheduled, mac: &RowMac, now_ms: i64, expected: Checked) {
        assert_eq!(key().check(row, mac, now_ms, TTL), expected, "{row:?} at {now_ms}");
    }

    #[test]
    fn row_is_valid_until_the_ttl_ends_and_late_afterwards() {
        let mac = key().make(&ROW);
        for now_ms in [i64::MIN, 0, 999_999, 1_000_000, 1_300_000] {
            check(&ROW, &mac, now_ms, Checked::Valid);
        }
        for now_ms in [1_300_001, i64::MAX] {
            check(&ROW, &mac, now_ms, Checked::Late);
        }
        let far = Scheduled { due_ms: i64::MAX - 1, ..ROW };
        check(&far, &key().make(&far), i64::MAX, Checked::Valid);
    }

    /// Rows wait for days and across upgrades, so the MAC must not change. It was computed by another program.
    #[test]
    fn mac_of_a_scheduled_row_never_changes() {
        let expected = [0x0a, 0x3c, 0xc1, 0x2e, 0x48, 0xf6, 0xbb, 0xfc, 0xcd, 0x31, 0x11, 0x8f, 0xdb, 0xfe, 0xa5, 0xf0];
        assert_eq!(key().make(&ROW).0, expected);
    }

    #[test]
    fn changed_row_is_forged_even_when_late() {
        let mac = key().make(&ROW);
        let mut other = ROW.rest;
        other[REST_BYTES - 1] ^= 1;
        let forged = [
            Scheduled { delivery: 78, ..ROW },
            Scheduled { message: 75, ..ROW },
            Scheduled { endpoint: 3, ..ROW },
            Scheduled { lane: 6, ..ROW },
            Scheduled { attempts: 0, ..ROW },
            Scheduled { due_ms: 999_999, ..ROW },
            Scheduled { ends: Ends::At(9_000_001), ..ROW },
            Scheduled { ends: Ends::NowOrNever(9_000_000), ..ROW },
            Scheduled { ends: Ends::Never, ..ROW },
            Scheduled { rest: other, ..ROW },
        ];
        for row in forged {
            check(&row, &mac, 1_000_000, Checked::Forged);
            check(&row, &mac, 5_000_000, Checked::Forged);
        }
    }

    #[test]
    fn an_altered_or_foreign_mac_is_forged() {
        let mac = key().make(&ROW);
        for bit in 0..ROW_MAC_BYTES * 8 {
            let mut altered = mac;
            altered.0[bit / 8] ^= 1 << (bit % 8);
            check(&ROW, &altered, 1_000_000, Checked::Forged);
        }
        let others = [
            RowMacKey::new(KeyId(2), &SecretKey::from_bytes(&[8; 32])),
            RowMacKey::new(KeyId(1), &SecretKey::from_bytes(&[9; 32])),
        ];
        for other in others {
            check(&ROW, &other.make(&ROW), 1_000_000, Checked::Forged);
        }
        check(&ROW, &RowMac([0; ROW_MAC_BYTES]), 1_000_000, Checked::Forged);
    }

    fn any_row() -> impl Strategy<Value = Scheduled> {
        let number = || prop_oneof![0u64..3, any::<u64>()];
        let time = || prop_oneof![0i64..3, any::<i64>()];
        let ends = prop_oneof![Just(Ends::Never), time().prop_map(Ends::At), time().prop_map(Ends::NowOrNever)];
        let rest = prop_oneof![Just([0; REST_BYTES]), any::<u8>().prop_map(|byte| [byte; REST_BYTES])];
        (number(), number(), number(), number(), 0u32..3, time(), ends, rest).prop_map(
            |(delivery, message, endpoint, lane, attempts, due_ms, ends, rest)| Scheduled {
                delivery,
                message,
                endpoint,
                lane,
                attempts,
                due_ms,
                ends,
                rest,
            },
        )
    }

    proptest! {
        #[test]
        fn different_rows_have_different_encodings(rows in prop::collection::vec(any_row(), 2..60)) {
            let key = key();
            let written: BTreeSet<_> = rows.iter().map(|row| key.written(row)).collect();
            let mut distinct: Vec<Scheduled> = Vec::new();
            for row in rows {
                if !distinct.contains(&row) {
                    distinct.push(row);
                }
            }
            prop_assert_eq!(written.len(), distinct.len());
        }
    }
}
