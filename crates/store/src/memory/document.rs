//! Documents in memory.

use std::collections::BTreeMap;

use posthaste_core::{Key, TenantId};

use super::{MemoryState, MemoryStore};
use crate::journal::JournalEntry;
use crate::row::{AuditStamp, ChangeKind, Document, DocumentKind, Filed, Idempotency, ListOrder, Session};
use crate::{Register, StoreError};

pub(super) type Documents = BTreeMap<(DocumentKind, Key), Document>;

impl Register for MemoryStore {
    async fn file(
        &self,
        session: Session,
        document: Document,
        once: Option<Idempotency>,
        act: AuditStamp,
    ) -> Result<Filed, StoreError> {
        let memory = &mut *self.lock();
        memory.guard(session)?;
        if let Some(filed) = memory.known(once.as_ref()).map(Filed::from) {
            return Ok(filed);
        }
        let name = document.name.as_deref();
        let other = name.and_then(|name| memory.document_named(document.kind, document.tenant, name));
        if other.is_some_and(|other| other.id != document.id) {
            return Ok(Filed::NameTaken);
        }
        memory.remember_call(once, None);
        let is_there = memory.documents.contains_key(&(document.kind, document.id));
        let deed = if is_there { ChangeKind::Changed } else { ChangeKind::Made };
        memory.note([JournalEntry::document(&document, deed, act)]);
        memory.documents.insert((document.kind, document.id), document);
        Ok(Filed::Done)
    }

    async fn unfile(&self, session: Session, kind: DocumentKind, id: Key, act: AuditStamp) -> Result<bool, StoreError> {
        let memory = &mut *self.lock();
        memory.guard(session)?;
        let Some(removed) = memory.documents.remove(&(kind, id)) else { return Ok(false) };
        memory.note([JournalEntry::document(&removed, ChangeKind::Removed, act)]);
        Ok(true)
    }

    async fn document(&self, kind: DocumentKind, id: Key) -> Result<Option<Document>, StoreError> {
        Ok(self.lock().documents.get(&(kind, id)).cloned())
    }

    async fn document_named(
        &self,
        kind: DocumentKind,
        tenant: TenantId,
        name: String,
    ) -> Result<Option<Document>, StoreError> {
        Ok(self.lock().document_named(kind, tenant, &name).cloned())
    }

    async fn documents(
        &self,
        kind: DocumentKind,
        tenant: Option<TenantId>,
        order: ListOrder,
        after: Option<Key>,
        limit: u32,
    ) -> Result<Vec<Document>, StoreError> {
        let memory = self.lock();
        let is_wanted = |one: &&Document| {
            one.kind == kind && tenant.is_none_or(|tenant| tenant == one.tenant) && order.is_behind(one.id, after)
        };
        let wanted = memory.documents.values().filter(is_wanted).cloned();
        Ok(match order {
            ListOrder::OldestFirst => wanted.take(limit as usize).collect(),
            ListOrder::NewestFirst => wanted.rev().take(limit as usize).collect(),
        })
    }
}

impl MemoryState {
    pub fn document_named(&self, kind: DocumentKind, tenant: TenantId, name: &str) -> Option<&Document> {
        let namespace = kind.namespace(tenant);
        let same = |one: &&Document| {
            one.kind == kind && kind.namespace(one.tenant) == namespace && one.name.as_deref() == Some(name)
        };
        self.documents.values().find(same)
    }
}
