//! Seal contexts, the associated data of sealed values: the owner, the field and the object. A sealed value opens only
//! in its own context.
//!
//! A context is logical: it names no table and no file, so a row can move between tables or to another store unchanged.
//! Invariant: different contexts have different encodings.

use crate::digest::Digest;

/// The owner of a value, whose key seals it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SealOwner {
    /// The store itself, for example of the key its public ids are made under.
    Store,
    Tenant(u64),
}

/// The sealed fields of all kinds of objects. The numbers are part of every sealed value: they never change and are
/// never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum SealedField {
    MessageBody = 0x0101,
    MessageCompact = 0x0102,
    /// The subject, correlation id and other fields of a message.
    MessageHead = 0x0103,
    /// The event type, sealed deterministically so that equal ones can be found.
    EventType = 0x0104,
    /// The URL, secrets and other settings of an endpoint.
    EndpointSettings = 0x0201,
    /// The beginning of a receiver's response to an attempt.
    ResponseExcerpt = 0x0301,
    ReplayReason = 0x0401,
    /// The first answer to a call with an idempotency key.
    IdempotencyAnswer = 0x0501,
    /// The name and content of a tenant, an API key or a policy.
    Document = 0x0601,
    /// The reason, API key and origin of a pause.
    PauseSaid = 0x0701,
    IdKey = 0x0b01,
}

impl SealedField {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SealedObject {
    Row(u64),
    /// One of several objects of a row, such as a delivery's third attempt: the row id and the number.
    Part(u64, u64),
    Hashed(Digest),
}

/// The size of an encoded context.
pub(crate) const CONTEXT_BYTES: usize = 1 + 8 + 2 + 1 + 32;

/// The context of a sealed value.
///
/// ```
/// use posthaste_crypto::seal_context::{SealContext, SealOwner, SealedField, SealedObject};
///
/// let body = SealContext::new(SealOwner::Tenant(1), SealedField::MessageBody, SealedObject::Row(77));
/// let compact = SealContext::new(SealOwner::Tenant(1), SealedField::MessageCompact, SealedObject::Row(77));
/// assert_ne!(body, compact);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SealContext {
    whose: SealOwner,
    field: SealedField,
    object: SealedObject,
}

impl SealContext {
    pub const fn new(whose: SealOwner, field: SealedField, object: SealedObject) -> Self {
        Self { whose, field, object }
    }

    pub const fn whose(&self) -> SealOwner {
        self.whose
    }

    /// Encodes the context in a fixed number of bytes. Each part has a fixed offset, and a part whose form varies is
    /// preceded by a tag.
    pub(crate) fn write(&self, out: &mut [u8; CONTEXT_BYTES]) {
        out.fill(0);
        if let SealOwner::Tenant(tenant) = self.whose {
            out[0] = 1;
            out[1..9].copy_from_slice(&tenant.to_be_bytes());
        }
        out[9..11].copy_from_slice(&(self.field as u16).to_be_bytes());
        let (form, object) = out[11..].split_first_mut().expect("the object has bytes");
        match self.object {
            SealedObject::Row(row) => {
                *form = 0;
                object[..8].copy_from_slice(&row.to_be_bytes());
            }
            SealedObject::Part(row, part) => {
                *form = 1;
                object[..8].copy_from_slice(&row.to_be_bytes());
                object[8..16].copy_from_slice(&part.to_be_bytes());
            }
            SealedObject::Hashed(hash) => {
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

    /// Few small numbers and any large ones, so that two contexts often differ in only one part.
    fn any_number() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..3, any::<u64>(), (0u64..8).prop_map(|byte| 1 << (byte * 8))]
    }

    fn any_object() -> impl Strategy<Value = SealedObject> {
        prop_oneof![
            any_number().prop_map(SealedObject::Row),
            (any_number(), any_number()).prop_map(|(row, part)| SealedObject::Part(row, part)),
            (any_number(), any_number()).prop_map(|(row, part)| {
                let mut hash = [0; 32];
                hash[..8].copy_from_slice(&row.to_be_bytes());
                hash[8..16].copy_from_slice(&part.to_be_bytes());
                SealedObject::Hashed(hash)
            }),
            any::<[u8; 32]>().prop_map(SealedObject::Hashed),
        ]
    }

    pub(crate) fn any_context() -> impl Strategy<Value = SealContext> {
        let whose = prop_oneof![Just(SealOwner::Store), any_number().prop_map(SealOwner::Tenant)];
        (whose, prop::sample::select(SealedField::ALL.to_vec()), any_object())
            .prop_map(|(whose, field, object)| SealContext::new(whose, field, object))
    }

    fn written(context: &SealContext) -> [u8; CONTEXT_BYTES] {
        let mut bytes = [0xa5; CONTEXT_BYTES];
        context.write(&mut bytes);
        bytes
    }

    #[test]
    fn each_field_has_a_unique_number_and_is_listed() {
        let numbers: BTreeSet<_> = SealedField::ALL.iter().map(|field| *field as u16).collect();
        assert_eq!(numbers.len(), SealedField::ALL.len());
        assert_eq!(numbers.last(), Some(&(SealedField::IdKey as u16)));
    }

    /// Values sealed once must open for ever. These bytes were recorded when the encoding was defined.
    #[test]
    fn encoding_of_a_context_never_changes() {
        let row = written(&SealContext::new(
            SealOwner::Tenant(0x0102_0304_0506_0708),
            SealedField::EndpointSettings,
            SealedObject::Part(9, 2),
        ));
        assert_eq!(row[..12], [1, 1, 2, 3, 4, 5, 6, 7, 8, 2, 1, 1]);
        assert_eq!(row[12..], [[0; 7].as_slice(), &[9], &[0; 7], &[2], &[0; 16]].concat());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn different_contexts_have_different_encodings(contexts in prop::collection::vec(any_context(), 2..60)) {
            let distinct: HashSet<_> = contexts.iter().collect();
            let written: BTreeSet<_> = contexts.iter().map(written).collect();
            prop_assert_eq!(written.len(), distinct.len());
        }
    }
}
