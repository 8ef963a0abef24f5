//! The journal: what happened, in the order in which it became durable.
//!
//! Each group commit appends one [`JournalRow`]: packed [`Entry`]s, the root of a Merkle tree over
//! them, and the hash of the row before. It is the audit trail, and what everything derived is made
//! from: whoever follows it can be thrown away and made again.
//!
//! Invariant: whatever changes a delivery's state, or what is sent, leaves an entry in the commit
//! that changed it. An entry holds no payload, no address and no name: ids, times and fingerprints. Each says when
//! it happened, so that no row is without a time.

mod entry;
mod merkle;
pub(crate) mod pack;

use bytes::Bytes;
use posthaste_core::id::TenantId;
use posthaste_core::time::Timestamp;
use posthaste_crypto::LookupKey;
use posthaste_crypto::digest::{Digest, sha256};

pub use entry::{Entry, ErasedWhom, Kind, SpreadDelivery};

use crate::StoreError;
use crate::row::Settlement;

/// Keeps the hash of a row apart from those of a tree's leaves and nodes.
const ROW: &[u8] = &[2];

/// What an entry of one delivery takes at most.
const ENTRY_BYTES: usize = 112;

/// What stands where there is nothing to hash.
const NO_DIGEST: Digest = [0; 32];

/// A name as an entry holds it: whoever has the name and the store's key finds it, nobody else does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hidden(pub [u8; 16]);

impl Hidden {
    /// Hides a tenant's name; `of` says what it is a name of.
    pub fn new(lookup: &LookupKey, of: &'static str, tenant: TenantId, name: &str) -> Self {
        let hash = lookup.hash(of, tenant.raw(), name.as_bytes());
        Self(*hash.first_chunk().expect("a digest is longer"))
    }
}

/// What the entry of an accept says of what its store keeps under seal: whoever has the key can tell that
/// it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Of the payload.
    pub payload: Digest,
    /// Of whose data it is.
    pub subject: Option<Hidden>,
    /// Of what ties everything about it together, if its caller named it.
    pub correlation: Option<Hidden>,
}

/// Entries on their way into a row: packed, with the leaves of their tree.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
    leaves: Vec<Digest>,
    /// What each [weighs](Entry::weight).
    weights: Vec<usize>,
    /// The latest time one of them names.
    at: Option<Timestamp>,
}

impl Entries {
    /// Room for so many.
    pub fn with_capacity(count: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(count * ENTRY_BYTES),
            ends: Vec::with_capacity(count),
            leaves: Vec::with_capacity(count),
            weights: Vec::with_capacity(count),
            at: None,
        }
    }

    /// Adds one.
    pub fn push(&mut self, entry: &Entry) {
        let from = pack::framed(&mut self.bytes, |bytes| entry.pack(bytes));
        self.leaves.push(merkle::leaf(&self.bytes[from..]));
        self.ends.push(self.bytes.len());
        self.weights.push(entry.weight());
        self.at = self.at.max(Some(entry.at()));
    }

    /// Adds one that was packed elsewhere: the `index`th of `others`.
    pub fn push_from(&mut self, others: &Self, index: usize) {
        let from = if index == 0 { 0 } else { others.ends[index - 1] };
        self.bytes.extend_from_slice(&others.bytes[from..others.ends[index]]);
        self.leaves.push(others.leaves[index]);
        self.ends.push(self.bytes.len());
        self.weights.push(others.weights[index]);
        self.at = self.at.max(others.at);
    }

    /// Takes back all but the first `length`.
    pub fn truncate(&mut self, length: usize) {
        self.ends.truncate(length);
        self.leaves.truncate(length);
        self.weights.truncate(length);
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// What they weigh together.
    pub fn weight(&self) -> usize {
        self.weights.iter().sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Makes room for the next row.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.leaves.clear();
        self.weights.clear();
        self.at = None;
    }
}

/// What settlements leave if they take effect: one entry for each that [leaves any](leaves_entry).
pub fn of_settle(settlements: &[Settlement]) -> Entries {
    let mut entries = Entries::with_capacity(settlements.len());
    settlements.iter().filter_map(Entry::settled).for_each(|entry| entries.push(&entry));
    entries
}

/// Whether a settlement that takes effect leaves an entry: one that only moves a row does not.
pub fn leaves_entry(settlement: &Settlement) -> bool {
    settlement.attempt.is_some() || settlement.record.delivery.state.is_terminal()
}

/// One row: what one group commit did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalRow {
    /// Its place, from 1, without gaps.
    pub number: u64,
    /// When, by what it holds; never before the row before.
    pub at: Timestamp,
    /// The packed entries.
    pub packed: Bytes,
    /// The root of the tree over them.
    pub root: Digest,
    /// The hash of the row before.
    pub before: Digest,
}

impl JournalRow {
    /// The row's own hash, which the next one names.
    pub fn hash(&self) -> Digest {
        let (number, at) = (self.number.to_le_bytes(), self.at.as_millis().to_le_bytes());
        sha256(&[ROW, &number, &at, &self.root, &self.before])
    }

    /// The entries, in order.
    pub fn entries(&self) -> impl Iterator<Item = Result<Entry, StoreError>> {
        pack::frames(&self.packed).map(|frame| Entry::unpack(frame?))
    }

    /// Whether the entries are those the root was made over.
    pub fn is_sound(&self) -> Result<bool, StoreError> {
        let leaves = pack::frames(&self.packed).map(|frame| frame.map(merkle::leaf)).collect::<Result<Vec<_>, _>>()?;
        Ok(merkle::root(leaves) == self.root)
    }
}

/// The end of the chain: what the next row is linked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    number: u64,
    at: Timestamp,
    hash: Digest,
}

impl Default for Head {
    fn default() -> Self {
        Self { number: 0, at: Timestamp::from_millis(0), hash: NO_DIGEST }
    }
}

impl Head {
    /// The end of a chain whose last row is this one.
    pub fn behind(row: &JournalRow) -> Self {
        Self { number: row.number, at: row.at, hash: row.hash() }
    }

    /// The next row. It is the end of the chain once it is durable.
    pub fn next(&self, entries: &Entries) -> JournalRow {
        JournalRow {
            number: self.number + 1,
            at: self.at.max(entries.at.unwrap_or(self.at)),
            packed: Bytes::copy_from_slice(&entries.bytes),
            root: merkle::root(entries.leaves.clone()),
            before: self.hash,
        }
    }

    /// Whether this row is the next one.
    pub fn is_followed_by(&self, row: &JournalRow) -> bool {
        row.number == self.number + 1 && row.before == self.hash && row.at >= self.at
    }
}

#[cfg(test)]
mod tests;
