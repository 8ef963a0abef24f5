//! Documents in memory.

use std::collections::BTreeMap;

use posthaste_core::id::{Key, TenantId};

use super::MemoryState;
use crate::StoreError;
use crate::journal::JournalEntry;
use crate::row::{AuditStamp, ChangeKind, Document, DocumentKind, Filed, Idempotency, ListOrder, Session};

pub(super) type Documents = BTreeMap<(DocumentKind, Key), Document>;

impl MemoryState {
    pub fn file_document(
        &mut self,
        session: Session,
        document: Document,
        once: Option<Idempotency>,
        act: AuditStamp,
    ) -> Result<Filed, StoreError> {
        self.guard(session)?;
        if let Some(filed) = self.known(once.as_ref()).map(Filed::from) {
            return Ok(filed);
        }
        let name = document.name.as_deref();
        let other = name.and_then(|name| self.document_named(document.kind, document.tenant, name));
        if other.is_some_and(|other| other.id != document.id) {
            return Ok(Filed::NameTaken);
        }
        self.remember_call(once, None);
        let is_there = self.documents.contains_key(&(document.kind, document.id));
        let deed = if is_there { ChangeKind::Changed } else { ChangeKind::Made };
        self.note([JournalEntry::document(&document, deed, act)]);
        self.documents.insert((document.kind, document.id), document);
        Ok(Filed::Done)
    }

    pub fn unfile(
        &mut self,
        session: Session,
        kind: DocumentKind,
        id: Key,
        act: AuditStamp,
    ) -> Result<bool, StoreError> {
        self.guard(session)?;
        let Some(removed) = self.documents.remove(&(kind, id)) else { return Ok(false) };
        self.note([JournalEntry::document(&removed, ChangeKind::Removed, act)]);
        Ok(true)
    }

    pub fn document_named(&self, kind: DocumentKind, tenant: TenantId, name: &str) -> Option<&Document> {
        let namespace = kind.namespace(tenant);
        let same = |one: &&Document| {
            one.kind == kind && kind.namespace(one.tenant) == namespace && one.name.as_deref() == Some(name)
        };
        self.documents.values().find(same)
    }

    pub fn documents(
        &self,
        kind: DocumentKind,
        tenant: Option<TenantId>,
        order: ListOrder,
        after: Option<Key>,
        limit: u32,
    ) -> Vec<Document> {
        let is_behind = |id: Key| match (order, after) {
            (_, None) => true,
            (ListOrder::OldestFirst, Some(after)) => id > after,
            (ListOrder::NewestFirst, Some(after)) => id < after,
        };
        let is_wanted =
            |one: &&Document| one.kind == kind && tenant.is_none_or(|tenant| tenant == one.tenant) && is_behind(one.id);
        let wanted = self.documents.values().filter(is_wanted).cloned();
        match order {
            ListOrder::OldestFirst => wanted.take(limit as usize).collect(),
            ListOrder::NewestFirst => wanted.rev().take(limit as usize).collect(),
        }
    }
}
