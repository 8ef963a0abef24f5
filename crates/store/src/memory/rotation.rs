//! Master key rotation of a store in memory. Nothing is sealed, so a rotation consists of its first and last step.

use posthaste_core::time::Timestamp;
use posthaste_crypto::master::MasterKeyId;

use super::MemoryState;
use crate::journal::JournalEntry;
use crate::row::{ApiKeyRef, Session};
use crate::{Rotation, StoreError};

/// The numbers of the current, the older and the offered key.
#[derive(Debug, Default)]
pub(super) struct MasterNumbers {
    newest: u32,
    older: Option<u32>,
    offered: Option<(MasterKeyId, Option<ApiKeyRef>)>,
}

impl MemoryState {
    pub fn offer(&mut self, newer: MasterKeyId, by: Option<ApiKeyRef>) {
        self.masters.offered = Some((newer, by));
    }

    pub fn rotate(&mut self, session: Session, at: Timestamp) -> Result<Rotation, StoreError> {
        self.guard(session)?;
        let to = MasterKeyId::from_raw(self.masters.newest);
        if self.masters.older.take().is_some() {
            self.note([JournalEntry::RotationEnded { to, rewrapped: 0, at }]);
        } else if let Some((to, by)) = self.masters.offered.take() {
            self.masters.older = Some(self.masters.newest);
            self.masters.newest = to.raw();
            self.note([JournalEntry::RotationBegun { to, at, by }]);
        }
        Ok(self.rotation())
    }

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
