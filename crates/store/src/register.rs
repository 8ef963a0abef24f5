//! Storage of tenants, API keys and retry policies.

use posthaste_core::{Key, TenantId};

use crate::{AuditStamp, Document, DocumentKind, Filed, Idempotency, ListOrder, Session, StoreFuture};

/// Stores documents. There are few of them, and delivering a message does not depend on any call here.
pub trait Register: Send + Sync + 'static {
    /// Creates or changes a document, unless another document has its name or the same call was made before under the
    /// same idempotency key.
    fn file(
        &self,
        session: Session,
        document: Document,
        once: Option<Idempotency>,
        act: AuditStamp,
    ) -> impl StoreFuture<Filed>;

    /// Removes a document; `false` if there is none.
    fn unfile(&self, session: Session, kind: DocumentKind, id: Key, act: AuditStamp) -> impl StoreFuture<bool>;

    fn document(&self, kind: DocumentKind, id: Key) -> impl StoreFuture<Option<Document>>;

    fn document_named(&self, kind: DocumentKind, tenant: TenantId, name: String) -> impl StoreFuture<Option<Document>>;

    /// Documents of a kind by id, after `after`: those of one tenant, or of all tenants if `tenant` is `None`.
    fn documents(
        &self,
        kind: DocumentKind,
        tenant: Option<TenantId>,
        order: ListOrder,
        after: Option<Key>,
        limit: u32,
    ) -> impl StoreFuture<Vec<Document>>;
}
