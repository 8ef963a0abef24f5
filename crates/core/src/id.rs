//! Internal ids. A row's key grows with time: the number of the writer that minted it, then a sequence number of
//! that writer. Callers see public ids instead: `public_id` of `posthaste-crypto`.

use std::fmt;
use std::num::NonZeroU64;

/// How many bits of a key count a writer's rows; the bits above them name the writer.
const SEQ_BITS: u32 = 40;
/// The highest sequence number a writer can mint.
pub const SEQ_MAX: u64 = (1 << SEQ_BITS) - 1;
/// Keys are stored as signed integers, which leaves 23 bits for the writer.
pub const WRITER_MAX: u32 = (1 << 23) - 1;

/// The number of a writer; in SQLite, a counter of process starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterId(u32);

impl WriterId {
    /// The writer of that number, or `None` above [`WRITER_MAX`].
    pub const fn new(number: u32) -> Option<Self> {
        if number > WRITER_MAX { None } else { Some(Self(number)) }
    }

    pub const fn number(self) -> u32 {
        self.0
    }
}

/// A row's key: writer and sequence number in one ascending integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

impl Key {
    /// Higher than every key that is ever minted, and the highest that a column of SQLite holds.
    pub const MAX: Self = Self::from_raw(u64::MAX >> 1);

    pub fn new(writer: WriterId, seq: u64) -> Self {
        assert!(seq <= SEQ_MAX, "writer {} has used up its sequence", writer.0);
        Self((u64::from(writer.0) << SEQ_BITS) | seq)
    }

    /// A key as it was stored.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub const fn raw(self) -> u64 {
        self.0
    }

    pub const fn writer(self) -> WriterId {
        WriterId((self.0 >> SEQ_BITS) as u32)
    }

    pub const fn seq(self) -> u64 {
        self.0 & SEQ_MAX
    }

    /// The key `n` sequence numbers later.
    pub const fn plus(self, n: u64) -> Self {
        Self(self.0 + n)
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Key);

        impl $name {
            /// The id as it was stored.
            pub const fn from_raw(raw: u64) -> Self {
                Self(Key::from_raw(raw))
            }

            pub const fn raw(self) -> u64 {
                self.0.raw()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}.{}", self.0.writer().number(), self.0.seq())
            }
        }
    )*};
}

ids! {
    /// A message of a producer.
    MessageId;
    /// One message on its way to one endpoint.
    DeliveryId;
    /// A place messages are delivered to.
    EndpointId;
    /// The owner of endpoints and messages.
    TenantId;
    /// Work that makes deliveries in chunks: a large fan-out, or a replay.
    JobId;
    /// The unit of flow: deliveries that share an order, a window and gates. A webhook endpoint has a lane of its own;
    /// the endpoints of one provider may share one. Today every endpoint has a lane of its own (ADR 17).
    LaneId;
    /// A provider, or a group of origins an operator names.
    RegionId;
    /// A credential for a provider such as a push service.
    CredentialId;
}

/// A scheme, host and port that several endpoints may share, as a hash of their text. Never 0, so that an
/// `Option<OriginId>` takes no more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OriginId(NonZeroU64);

impl OriginId {
    /// The origin written like this, in lower case: `https://example.com:443`.
    pub fn of(origin: &str) -> Self {
        // FNV-1a: the same in every process. It need not resist collisions: an attacker gains nothing by one.
        let mixed = origin.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte.to_ascii_lowercase())).wrapping_mul(0x0000_0100_0000_01B3)
        });
        Self::from_raw(mixed)
    }

    /// The id as it was stored; 0, which is never stored, becomes 1.
    pub const fn from_raw(raw: u64) -> Self {
        match NonZeroU64::new(raw) {
            Some(raw) => Self(raw),
            None => Self(NonZeroU64::MIN),
        }
    }

    pub const fn raw(self) -> u64 {
        self.0.get()
    }
}

/// How many shards there are, for the life of a store.
pub const SHARDS: u16 = 256;

/// A fixed part of all lanes; one node owns a shard as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(u16);

impl Shard {
    pub const fn of(lane: LaneId) -> Self {
        // The high bits of a multiplication: neighbouring ids land in different shards.
        let mixed = lane.0.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - SHARDS.ilog2());
        #[expect(clippy::cast_possible_truncation, reason = "fewer bits remain than a shard has")]
        Self(mixed as u16)
    }

    pub const fn number(self) -> u16 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_gives_back_its_writer_and_sequence() {
        let writer = WriterId::new(WRITER_MAX).expect("the highest writer is allowed");
        let key = Key::new(writer, SEQ_MAX);
        assert_eq!((key.writer(), key.seq()), (writer, SEQ_MAX));
        assert!(i64::try_from(key.raw()).is_ok(), "keys fit a signed column");
        assert_eq!(WriterId::new(WRITER_MAX + 1), None);
    }
}
