//! Idempotency keys: a creating call that is repeated under the same key gets its first answer again (A5).
//!
//! Invariant: the store looks up and writes a key in one transaction, so of any number of concurrent calls under one
//! key exactly one is fresh.

use std::time::Duration;

use bytes::Bytes;
use posthaste_core::{TenantId, Timestamp};

use super::{Begun, EndpointPut, Filed};

/// How long a key is remembered.
pub const KEPT: Duration = Duration::from_secs(24 * 3_600);

const DAY_MS: i64 = 86_400_000;

/// A caller's key as a keyed hash. With 128 bits, finding two keys with the same hash is infeasible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyHash(pub [u8; 16]);

impl KeyHash {
    /// The first half of a longer hash.
    pub fn of(hash: [u8; 32]) -> Self {
        let mut half = [0; 16];
        half.copy_from_slice(&hash[..16]);
        Self(half)
    }
}

/// A day of UTC, counted from 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UtcDay(pub i64);

impl UtcDay {
    pub fn of(at: Timestamp) -> Self {
        Self(at.as_millis().div_euclid(DAY_MS))
    }

    /// The days on which a key used on this day may first have been used. They include the next day, because the clock
    /// may have been set back over midnight since.
    pub fn near(self) -> [Self; 3] {
        [Self(self.0 + 1), self, Self(self.0 - 1)]
    }
}

/// The idempotency key of a creating call, and the answer for repeated calls with the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    pub tenant: TenantId,
    pub key: KeyHash,
    /// SHA-256 of the request: a key is valid for one request only.
    pub digest: [u8; 32],
    pub answer: FirstAnswer,
    pub at: Timestamp,
}

/// The HTTP response to the first call under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstAnswer {
    pub status: u16,
    /// The body, byte for byte.
    pub body: Bytes,
}

/// The result of accepting a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Acceptance {
    Fresh,
    /// The same call was made before under the same idempotency key: nothing was written.
    Replayed(FirstAnswer),
    /// The idempotency key was used for another request: nothing was written.
    KeyReused,
    /// The same call was made before under the same idempotency key, but its answer cannot be read now: nothing was
    /// written, and the caller may retry.
    Unanswered,
}

/// An earlier call under the same idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum EarlierCall {
    /// The same request, with its answer.
    Same(FirstAnswer),
    Another,
}

/// The results of calls with an idempotency key: what each returns for the same request, and for another one.
macro_rules! repeated {
    ($($result:ident: $same:ident, $another:ident;)+) => {$(
        impl From<EarlierCall> for $result {
            fn from(before: EarlierCall) -> Self {
                match before {
                    EarlierCall::Same(answer) => Self::$same(answer),
                    EarlierCall::Another => Self::$another,
                }
            }
        }
    )+};
}

repeated! {
    Acceptance: Replayed, KeyReused;
    EndpointPut: Replayed, KeyReused;
    Filed: Replayed, KeyReused;
    Begun: Before, KeyReused;
}

impl Idempotency {
    /// Compares this call with an earlier one under the same key; `None` if the earlier one is so old that the key may
    /// be used again.
    pub(crate) fn after(&self, known: &Self) -> Option<EarlierCall> {
        if apart(self.at, known.at) >= KEPT {
            return None;
        }
        Some(if self.digest == known.digest { EarlierCall::Same(known.answer.clone()) } else { EarlierCall::Another })
    }
}

fn apart(a: Timestamp, b: Timestamp) -> Duration {
    Duration::from_millis(a.as_millis().abs_diff(b.as_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(at_ms: i64, digest: u8) -> Idempotency {
        Idempotency {
            tenant: TenantId::from_raw(1),
            key: KeyHash([7; 16]),
            digest: [digest; 32],
            answer: FirstAnswer { status: 202, body: Bytes::from_static(b"first") },
            at: Timestamp::from_millis(at_ms),
        }
    }

    #[test]
    fn key_is_remembered_for_a_day_before_and_after_its_first_use() {
        let first = call(1_760_000_000_000, 1);
        for (ms, known) in [(0, true), (DAY_MS - 1, true), (DAY_MS, false), (1 - DAY_MS, true), (-DAY_MS, false)] {
            let again = call(first.at.as_millis() + ms, 1).after(&first);
            assert_eq!(again.is_some(), known, "{ms} ms later");
        }
    }

    #[test]
    fn near_days_include_every_day_a_remembered_key_may_be_from() {
        let noon = Timestamp::from_millis(DAY_MS / 2);
        for ms in [1 - DAY_MS, 0, DAY_MS - 1] {
            let other = Timestamp::from_millis(noon.as_millis() + ms);
            assert!(UtcDay::of(noon).near().contains(&UtcDay::of(other)), "{ms} ms away");
        }
        assert_eq!(UtcDay::of(Timestamp::from_millis(-1)), UtcDay(-1));
    }
}
