//! Master key rotation of a store in memory. Nothing is sealed, so a rotation consists of its first and last step.

use posthaste_core::Timestamp;
use posthaste_crypto::master::{MasterKey, MasterKeyId};

use super::{MemoryState, MemoryStore};
use crate::journal::JournalEntry;
use crate::{ApiKeyRef, MasterKeys, Rotation, Session, StoreError};

/// The numbers of the current, the older and the offered key.
#[derive(Debug, Default)]
pub(super) struct MasterNumbers {
    newest: u32,
    older: Option<u32>,
    offered: Option<(MasterKeyId, Option<ApiKeyRef>)>,
}

impl MasterKeys for MemoryStore {
    fn offer(&self, newer: MasterKey, by: Option<ApiKeyRef>) {
        self.lock().masters.offered = Some((newer.id(), by));
    }

    async fn rotate(&self, session: Session, at: Timestamp) -> Result<Rotation, StoreError> {
        let memory = &mut *self.lock();
        memory.guard(session)?;
        let to = MasterKeyId::from_raw(memory.masters.newest);
        if memory.masters.older.take().is_some() {
            memory.note([JournalEntry::RotationEnded { to, rewrapped: 0, at }]);
        } else if let Some((to, by)) = memory.masters.offered.take() {
            memory.masters.older = Some(memory.masters.newest);
            memory.masters.newest = to.raw();
            memory.note([JournalEntry::RotationBegun { to, at, by }]);
        }
        Ok(memory.rotation())
    }

    async fn rotation(&self) -> Result<Rotation, StoreError> {
        Ok(self.lock().rotation())
    }
}

impl MemoryState {
    pub fn rotation(&self) -> Rotation {
        Rotation {
            newest: MasterKeyId::from_raw(self.masters.newest),
            older: self.masters.older.map(MasterKeyId::from_raw).into_iter().collect(),
            offered: self.masters.offered.map(|(offered, _)| offered),
            rewrapped: 0,
            left: 0,
        }
    }
}
