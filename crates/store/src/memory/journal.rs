//! The journal in memory: what each call did, made into linked rows when somebody reads it.

use posthaste_crypto::LookupKey;

use super::Memory;
use crate::JournalRow;
use crate::journal::{Entries, Entry, Head};

/// What values are hidden with in a store that nobody can steal.
pub(super) fn lookup_key() -> LookupKey {
    LookupKey::from_bytes([0; 32])
}

impl Memory {
    /// Notes what a call did.
    pub(super) fn note(&mut self, entries: impl IntoIterator<Item = Entry>) {
        let entries: Vec<Entry> = entries.into_iter().collect();
        if !entries.is_empty() {
            self.happened.push(entries);
        }
    }

    /// See [`crate::Archive::journal`].
    pub fn journal(&self, after: u64, limit: u32) -> Vec<JournalRow> {
        let mut head = Head::default();
        let rows = self.happened.iter().map(|call| {
            let mut entries = Entries::default();
            call.iter().for_each(|entry| entries.push(entry));
            let row = head.next(&entries);
            head = Head::behind(&row);
            row
        });
        let after = after.max(self.gone.journal);
        rows.filter(|row| row.number > after).take(limit as usize).collect()
    }
}
