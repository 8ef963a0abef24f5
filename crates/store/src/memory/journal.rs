//! The journal in memory: the entries of each call, packed into linked rows when they are read.

use posthaste_core::TenantId;
use posthaste_crypto::LookupKey;
use posthaste_crypto::digest::sha256;

use super::MemoryState;
use crate::JournalRow;
use crate::journal::{Entries, Head, Hidden, JournalEntry, MessageMarks};
use crate::row::Message;

/// The key that names are hashed with. It need not be secret, because a store in memory leaves no file.
pub(super) fn lookup_key() -> LookupKey {
    LookupKey::from_bytes([0; 32])
}

pub(super) fn marks(message: &Message) -> MessageMarks {
    let hide = |id: &str| Hidden::new(&lookup_key(), "correlation", message.tenant, id);
    MessageMarks {
        payload: sha256(&[&message.body]),
        subject: message.subject.as_deref().map(|subject| subject_mark(message.tenant, subject)),
        correlation: message.correlation_id.as_deref().map(hide),
    }
}

pub(super) fn subject_mark(tenant: TenantId, subject: &str) -> Hidden {
    Hidden::new(&lookup_key(), "subject", tenant, subject)
}

impl MemoryState {
    pub(super) fn note(&mut self, entries: impl IntoIterator<Item = JournalEntry>) {
        let entries: Vec<JournalEntry> = entries.into_iter().collect();
        if !entries.is_empty() {
            self.happened.push(entries);
        }
    }

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
