//! Where a sealed value belongs: whose it is, which field, of which object. A sealed value opens at
//! its own spot and at no other.
//!
//! A spot is logical. It names no table and no file, so that a row may move from one to another, or
//! to another store, as it is. Invariant: no two spots are written alike.

use crate::digest::Digest;

/// Whose value it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Whose {
    /// The store's own, such as the key its public ids are made under.
    Store,
    /// The tenant's of this row.
    Tenant(u64),
}

/// Every field that is sealed: the kind of object, and what of it. The numbers are bound into every
/// sealed value: they never change, and none is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Field {
    MessageBody = 0x0101,
    MessageCompact = 0x0102,
    /// Whose data a message is, and what ties everything about it together.
    MessageHead = 0x0103,
    /// What happened, sealed so that equal ones look equal.
    EventType = 0x0104,
    /// Where an endpoint is, what it signs with and what it wants.
    EndpointSettings = 0x0201,
    /// How a receiver's answer to an attempt begins.
    ResponseExcerpt = 0x0301,
    /// Why somebody asked for a replay.
    ReplayReason = 0x0401,
    /// What an idempotency key was answered.
    IdempotencyAnswer = 0x0501,
    /// A tenant, an API key or a policy: what it is called and what it says.
    Document = 0x0601,
    /// What was said of a pause: why, by whom, of which origin.
    PauseSaid = 0x0701,
    /// The key public ids are made under.
    IdKey = 0x0b01,
}

impl Field {
    /// Every field there is.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 11] = [
        Self::MessageBody,
        Self::MessageCompact,
        Self::MessageHead,
        Self::EventType,
        Self::EndpointSettings,
        Self::ResponseExcerpt,
        Self::ReplayReason,
        Self::IdempotencyAnswer,
        Self::Document,
        Self::PauseSaid,
        Self::IdKey,
    ];
}

/// Which object of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Object {
    /// The one of this row.
    Row(u64),
    /// One of several that a row has, such as a delivery's third attempt.
    Part(u64, u64),
    /// The one that is found by this hash.
    Hashed(Digest),
}

/// The bytes every spot is written in.
pub(crate) const SPOT_BYTES: usize = 1 + 8 + 2 + 1 + 32;

/// A sealed value's spot.
///
/// ```
/// use posthaste_crypto::spot::{Field, Object, Spot, Whose};
///
/// let body = Spot::new(Whose::Tenant(1), Field::MessageBody, Object::Row(77));
/// let compact = Spot::new(Whose::Tenant(1), Field::MessageCompact, Object::Row(77));
/// assert_ne!(body, compact);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spot {
    whose: Whose,
    field: Field,
    object: Object,
}

impl Spot {
    /// The field of an object.
    pub const fn new(whose: Whose, field: Field, object: Object) -> Self {
        Self { whose, field, object }
    }

    /// Whose it is.
    pub const fn whose(&self) -> Whose {
        self.whose
    }

    /// Writes it in a fixed number of bytes: each part has its place, and the parts that say which
    /// form another has come before it.
    pub(crate) fn write(&self, out: &mut [u8; SPOT_BYTES]) {
        out.fill(0);
        if let Whose::Tenant(tenant) = self.whose {
            out[0] = 1;
            out[1..9].copy_from_slice(&tenant.to_be_bytes());
        }
        out[9..11].copy_from_slice(&(self.field as u16).to_be_bytes());
        let (form, object) = out[11..].split_first_mut().expect("the object has bytes");
        match self.object {
            Object::Row(row) => {
                *form = 0;
                object[..8].copy_from_slice(&row.to_be_bytes());
            }
            Object::Part(row, part) => {
                *form = 1;
                object[..8].copy_from_slice(&row.to_be_bytes());
                object[8..16].copy_from_slice(&part.to_be_bytes());
            }
            Object::Hashed(hash) => {
                *form = 2;
                object.copy_from_slice(&hash);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::{BTreeSet, HashSet};

    use proptest::prelude::*;

    use super::*;

    /// Small numbers and large ones, so that two spots differ in one thing as often as in all.
    fn any_number() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..3, any::<u64>(), (0u64..8).prop_map(|byte| 1 << (byte * 8))]
    }

    fn any_object() -> impl Strategy<Value = Object> {
        prop_oneof![
            any_number().prop_map(Object::Row),
            (any_number(), any_number()).prop_map(|(row, part)| Object::Part(row, part)),
            (any_number(), any_number()).prop_map(|(row, part)| {
                let mut hash = [0; 32];
                hash[..8].copy_from_slice(&row.to_be_bytes());
                hash[8..16].copy_from_slice(&part.to_be_bytes());
                Object::Hashed(hash)
            }),
            any::<[u8; 32]>().prop_map(Object::Hashed),
        ]
    }

    /// A spot of anybody's.
    pub(crate) fn any_spot() -> impl Strategy<Value = Spot> {
        let whose = prop_oneof![Just(Whose::Store), any_number().prop_map(Whose::Tenant)];
        (whose, prop::sample::select(Field::ALL.to_vec()), any_object())
            .prop_map(|(whose, field, object)| Spot::new(whose, field, object))
    }

    fn written(spot: &Spot) -> [u8; SPOT_BYTES] {
        let mut bytes = [0xa5; SPOT_BYTES];
        spot.write(&mut bytes);
        bytes
    }

    #[test]
    fn every_field_has_a_number_of_its_own_and_the_list_names_all() {
        let numbers: BTreeSet<_> = Field::ALL.iter().map(|field| *field as u16).collect();
        assert_eq!(numbers.len(), Field::ALL.len());
        assert_eq!(numbers.last(), Some(&(Field::IdKey as u16)));
    }

    /// What was sealed once must open for ever: these bytes were written down when the form was made.
    #[test]
    fn a_spot_is_written_as_it_always_was() {
        let row =
            written(&Spot::new(Whose::Tenant(0x0102_0304_0506_0708), Field::EndpointSettings, Object::Part(9, 2)));
        assert_eq!(row[..12], [1, 1, 2, 3, 4, 5, 6, 7, 8, 2, 1, 1]);
        assert_eq!(row[12..], [[0; 7].as_slice(), &[9], &[0; 7], &[2], &[0; 16]].concat());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn no_two_spots_are_written_alike(spots in prop::collection::vec(any_spot(), 2..60)) {
            let distinct: HashSet<_> = spots.iter().collect();
            let written: BTreeSet<_> = spots.iter().map(written).collect();
            prop_assert_eq!(written.len(), distinct.len());
        }
    }
}
