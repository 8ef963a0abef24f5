//! The journal: a log of every change, in the order in which the changes became durable.
//!
//! Each group commit appends one [`JournalRow`]: packed [`JournalEntry`]s, the root of a Merkle tree over them, and the
//! hash of the row before. The journal is the audit trail, and the source of all derived data, which can be dropped and
//! rebuilt from it.
//!
//! Invariant: every change of a delivery's state, or of what is sent, writes an entry in the same commit. An entry
//! holds ids, times and fingerprints, but no payload, address or name. Every entry has a time, so every row has one.

mod entry;
mod merkle;
pub(crate) mod pack;

use bytes::Bytes;
use posthaste_core::{TenantId, Timestamp};
use posthaste_crypto::LookupKey;
use posthaste_crypto::digest::{Digest, sha256};

pub use entry::{EntryKind, ErasedTarget, JournalEntry, SpreadDelivery};

use crate::{Settlement, StoreError};

/// Domain prefix for the hash of a row; leaves and nodes of the tree have others.
const ROW: &[u8] = &[2];

/// Upper bound for the packed size of an entry about one delivery.
const ENTRY_BYTES: usize = 112;

/// The digest used where there is nothing to hash: the root of no entries, the row before the first.
const NO_DIGEST: Digest = [0; 32];

/// A name as an entry holds it: a keyed hash. Only a holder of both the name and the store's key can find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hidden(pub [u8; 16]);

impl Hidden {
    /// Hashes a tenant's name under the key; `of` says what kind of name it is, such as `subject`.
    pub fn new(lookup: &LookupKey, of: &'static str, tenant: TenantId, name: &str) -> Self {
        let hash = lookup.hash(of, tenant.raw(), name.as_bytes());
        Self(*hash.first_chunk().expect("a digest is longer"))
    }
}

/// Keyed fingerprints of a message's sealed fields, as the entry of its accept holds them. A holder of the key can
/// verify that the sealed fields match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageMarks {
    pub payload: Digest,
    pub subject: Option<Hidden>,
    /// The hidden correlation id, if the producer gave one.
    pub correlation: Option<Hidden>,
}

/// Entries to be written as one row: packed, with the leaves of their Merkle tree.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    bytes: Vec<u8>,
    entries: Vec<PackedEntry>,
    /// The latest time of any entry.
    at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct PackedEntry {
    /// The offset in the bytes at which it ends.
    end: usize,
    leaf: Digest,
    weight: usize,
}

impl Entries {
    /// An empty list with room for `count` entries.
    pub fn with_capacity(count: usize) -> Self {
        Self { bytes: Vec::with_capacity(count * ENTRY_BYTES), entries: Vec::with_capacity(count), at: None }
    }

    pub fn push(&mut self, entry: &JournalEntry) {
        let from = pack::framed(&mut self.bytes, |bytes| entry.pack(bytes));
        let leaf = merkle::leaf(&self.bytes[from..]);
        self.entries.push(PackedEntry { end: self.bytes.len(), leaf, weight: entry.weight() });
        self.at = self.at.max(Some(entry.at()));
    }

    /// Appends the `index`th entry of `others`, which is packed already.
    pub fn push_from(&mut self, others: &Self, index: usize) {
        let from = if index == 0 { 0 } else { others.entries[index - 1].end };
        let entry = others.entries[index];
        self.bytes.extend_from_slice(&others.bytes[from..entry.end]);
        self.entries.push(PackedEntry { end: self.bytes.len(), ..entry });
        self.at = self.at.max(others.at);
    }

    /// Removes all but the first `length` entries.
    pub fn truncate(&mut self, length: usize) {
        self.entries.truncate(length);
        self.bytes.truncate(self.entries.last().map_or(0, |entry| entry.end));
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn weight(&self) -> usize {
        self.entries.iter().map(|entry| entry.weight).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes all entries and keeps the allocations for the next row.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.at = None;
    }
}

/// The entries that settlements write when applied: one for each that [writes any](leaves_entry).
pub fn settle_entries(settlements: &[Settlement]) -> Entries {
    let mut entries = Entries::with_capacity(settlements.len());
    settlements.iter().filter_map(JournalEntry::settled).for_each(|entry| entries.push(&entry));
    entries
}

/// Whether a settlement writes an entry when it is applied. One that only moves a row does not.
pub fn leaves_entry(settlement: &Settlement) -> bool {
    settlement.attempt.is_some() || settlement.record.delivery.state.is_terminal()
}

/// One row: the entries of one group commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalRow {
    /// The row's number: consecutive, from 1.
    pub number: u64,
    /// The latest time of its entries, and never before the time of the row before.
    pub at: Timestamp,
    pub packed: Bytes,
    /// The root of the Merkle tree over the entries.
    pub root: Digest,
    pub before: Digest,
}

impl JournalRow {
    /// The row's own hash, which the next row holds as `before`.
    pub fn hash(&self) -> Digest {
        let (number, at) = (self.number.to_le_bytes(), self.at.as_millis().to_le_bytes());
        sha256(&[ROW, &number, &at, &self.root, &self.before])
    }

    /// The entries, in order.
    pub fn entries(&self) -> impl Iterator<Item = Result<JournalEntry, StoreError>> {
        pack::frames(&self.packed).map(|frame| JournalEntry::unpack(frame?))
    }

    pub fn is_sound(&self) -> Result<bool, StoreError> {
        let leaves = pack::frames(&self.packed).map(|frame| frame.map(merkle::leaf)).collect::<Result<Vec<_>, _>>()?;
        Ok(merkle::root(leaves) == self.root)
    }
}

/// The end of the hash chain, to which the next row is linked.
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
    /// The end of a chain whose last row is `row`.
    pub fn behind(row: &JournalRow) -> Self {
        Self { number: row.number, at: row.at, hash: row.hash() }
    }

    /// Builds the next row. The caller makes it the new end of the chain once it is durable.
    pub fn next(&self, entries: &Entries) -> JournalRow {
        JournalRow {
            number: self.number + 1,
            at: self.at.max(entries.at.unwrap_or(self.at)),
            packed: Bytes::copy_from_slice(&entries.bytes),
            root: merkle::root(entries.entries.iter().map(|entry| entry.leaf).collect()),
            before: self.hash,
        }
    }

    /// Whether `row` is the direct successor: its number, link and time fit.
    pub fn is_followed_by(&self, row: &JournalRow) -> bool {
        row.number == self.number + 1 && row.before == self.hash && row.at >= self.at
    }
}

#[cfg(test)]
mod tests;
