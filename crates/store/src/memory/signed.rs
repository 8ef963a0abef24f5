//! Checkpoints in memory, signed with a key that is generated on first use.

use std::collections::BTreeMap;

use posthaste_core::Timestamp;
use posthaste_crypto::checkpoint::{Checkpoint, CheckpointKey, PublicKey};
use posthaste_crypto::keyring::{KeyId, StoreKey};

use super::MemoryStore;
use crate::row::Session;
use crate::{Checkpoints, Signed, StoreError};

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
