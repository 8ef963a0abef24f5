//! A creating verb that is called again gives its first answer again (A5): what is kept to know it by.
//!
//! Invariant: whoever answers has looked and written in one transaction, so of any number of twins
//! exactly one is fresh.

use std::time::Duration;

use bytes::Bytes;
use posthaste_core::id::TenantId;
use posthaste_core::time::Timestamp;

/// How long a key is known.
pub const KEPT: Duration = Duration::from_secs(24 * 3_600);

const DAY_MS: i64 = 86_400_000;

/// A caller's key as a keyed hash: 128 bits, so that nobody finds two keys with one hash.
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
pub struct Day(pub i64);

impl Day {
    /// The day of a point in time.
    pub fn of(at: Timestamp) -> Self {
        Self(at.as_millis().div_euclid(DAY_MS))
    }

    /// The days a key that is used on this one may have been used on before. Tomorrow is among them:
    /// a clock may have been set back over midnight since.
    pub fn near(self) -> [Self; 3] {
        [Self(self.0 + 1), self, Self(self.0 - 1)]
    }
}

/// The key of a call that creates something, and what to answer whoever calls again with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// Whose key.
    pub tenant: TenantId,
    /// The key.
    pub key: KeyHash,
    /// SHA-256 of what was asked for: a key stands for one request alone.
    pub digest: [u8; 32],
    /// The first answer.
    pub answer: FirstAnswer,
    /// When it was asked.
    pub at: Timestamp,
}

/// What the first caller was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstAnswer {
    /// Its status.
    pub status: u16,
    /// Its body, byte for byte.
    pub body: Bytes,
}

/// What became of a call that creates something.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Acceptance {
    /// It was done.
    Fresh,
    /// It was done before, under the same key: nothing was written.
    Replayed(FirstAnswer),
    /// Its key stands for another request: nothing was written.
    KeyReused,
    /// It was done before, under the same key, and what it was answered cannot be read now: nothing was written, and
    /// whoever asks again may be told.
    Unanswered,
}

/// What a call is that was made before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Before {
    /// The same, with what it was answered.
    Same(FirstAnswer),
    /// Another, under the same key.
    Another,
}

impl From<Before> for Acceptance {
    fn from(before: Before) -> Self {
        match before {
            Before::Same(answer) => Self::Replayed(answer),
            Before::Another => Self::KeyReused,
        }
    }
}

impl Idempotency {
    /// What this call is, given one that was known by the same key: `None` when that one is so long
    /// ago that its key is free again.
    pub(crate) fn after(&self, known: &Self) -> Option<Before> {
        if apart(self.at, known.at) >= KEPT {
            return None;
        }
        Some(if self.digest == known.digest { Before::Same(known.answer.clone()) } else { Before::Another })
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
    fn a_key_is_known_for_a_day_on_either_side_of_its_first_use() {
        let first = call(1_760_000_000_000, 1);
        for (ms, known) in [(0, true), (DAY_MS - 1, true), (DAY_MS, false), (1 - DAY_MS, true), (-DAY_MS, false)] {
            let again = call(first.at.as_millis() + ms, 1).after(&first);
            assert_eq!(again.is_some(), known, "{ms} ms later");
        }
    }

    #[test]
    fn every_day_a_known_key_may_be_of_is_near() {
        let noon = Timestamp::from_millis(DAY_MS / 2);
        for ms in [1 - DAY_MS, 0, DAY_MS - 1] {
            let other = Timestamp::from_millis(noon.as_millis() + ms);
            assert!(Day::of(noon).near().contains(&Day::of(other)), "{ms} ms away");
        }
        assert_eq!(Day::of(Timestamp::from_millis(-1)), Day(-1));
    }
}
