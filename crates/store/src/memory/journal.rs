//! The journal in memory: the entries of each call, packed into linked rows when they are read. Checkpoints are signed
//! with a key that is generated on first use.

use std::collections::BTreeMap;

use posthaste_core::{TenantId, Timestamp};
use posthaste_crypto::LookupKey;
use posthaste_crypto::checkpoint::{Checkpoint, CheckpointKey, PublicKey};
use posthaste_crypto::digest::sha256;
use posthaste_crypto::keyring::{KeyId, StoreKey};

use super::{MemoryState, MemoryStore};
use crate::journal::{Entries, Head, Hidden, JournalEntry, MessageMarks};
use crate::{Checkpoints, JournalRow, Message, Session, Signed, StoreError};

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

/// The store id in checkpoints. All stores in memory share it.
const STORE: [u8; 16] = [0; 16];

/// The signing key, and the checkpoint lines by row.
#[derive(Debug, Default)]
pub(super) struct Lines {
    key: Option<CheckpointKey>,
    lines: BTreeMap<u64, String>,
}

impl Lines {
    fn key(&mut self) -> &CheckpointKey {
        self.key.get_or_insert_with(|| StoreKey::generate(KeyId(1)).checkpoints())
    }

    /// Removes the lines for rows up to `upto`, which were deleted.
    pub(super) fn delete_expired(&mut self, upto: u64) {
        self.lines = self.lines.split_off(&(upto + 1));
    }
}

impl Checkpoints for MemoryStore {
    fn public_key(&self) -> PublicKey {
        let memory = &mut *self.lock();
        memory.signed.key().public()
    }

    async fn sign(&self, session: Session, grown: u64, at: Timestamp) -> Result<Option<Signed>, StoreError> {
        let memory = &mut *self.lock();
        memory.guard(session)?;
        let before = memory.signed.lines.last_key_value().map_or(0, |(row, _)| *row);
        let row = memory.happened.len() as u64;
        if row < before.saturating_add(grown.max(1)) {
            return Ok(None);
        }
        let Some(last) = memory.journal(row - 1, 1).pop() else { return Ok(None) };
        let checkpoint = Checkpoint { store: STORE, row, chain: last.hash(), at_ms: at.as_millis() };
        let line = memory.signed.key().sign(&checkpoint);
        memory.signed.lines.insert(row, line.clone());
        Ok(Some(Signed { row, line }))
    }

    async fn last_checkpoint(&self) -> Result<Option<Signed>, StoreError> {
        Ok(self.lock().signed.lines.last_key_value().map(|(row, line)| Signed { row: *row, line: line.clone() }))
    }

    async fn checkpoints(&self, after: u64, limit: u32) -> Result<Vec<Signed>, StoreError> {
        let memory = self.lock();
        let behind = memory.signed.lines.range(after.saturating_add(1)..);
        Ok(behind.take(limit as usize).map(|(row, line)| Signed { row: *row, line: line.clone() }).collect())
    }
}
