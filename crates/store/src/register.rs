//! What people make, name and change: tenants, API keys, policies.

use std::future::Future;

use posthaste_core::id::{Key, TenantId};

use crate::StoreError;
use crate::row::{Act, Document, DocumentKind, Filed, Idempotency, ListOrder, Session};

/// Remembers documents. There are few of them, and nothing here is on the way of a message.
pub trait Register: Send + Sync + 'static {
    /// Makes or changes a document, unless its name is another's, or this was done before under the same
    /// key.
    fn file(
        &self,
        session: Session,
        document: Document,
        once: Option<Idempotency>,
        act: Act,
    ) -> impl Future<Output = Result<Filed, StoreError>> + Send;

    /// Removes one; `false` when there is none.
    fn unfile(
        &self,
        session: Session,
        kind: DocumentKind,
        id: Key,
        act: Act,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// One by its id.
    fn document(
        &self,
        kind: DocumentKind,
        id: Key,
    ) -> impl Future<Output = Result<Option<Document>, StoreError>> + Send;

    /// One by its name.
    fn document_named(
        &self,
        kind: DocumentKind,
        tenant: TenantId,
        name: String,
    ) -> impl Future<Output = Result<Option<Document>, StoreError>> + Send;

    /// Those of a kind by id, from behind one: a tenant's, or everybody's.
    fn documents(
        &self,
        kind: DocumentKind,
        tenant: Option<TenantId>,
        order: ListOrder,
        after: Option<Key>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Document>, StoreError>> + Send;
}
