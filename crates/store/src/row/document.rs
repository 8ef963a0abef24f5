//! Documents: small named records, such as tenants and API keys. The store seals the body of a document and finds it by
//! id or by name; it does not interpret the body.

use bytes::Bytes;
use posthaste_core::{Key, TenantId, Timestamp};

use super::FirstAnswer;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DocumentKind {
    /// A tenant; its name is its `uid`.
    Tenant,
    /// An API key; its name is a hash of the key.
    ApiKey,
    /// A retry policy; endpoints refer to it by its name.
    Policy,
}

impl DocumentKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Tenant, Self::ApiKey, Self::Policy];

    /// The namespace in which a document's name must be unique: its tenant's, or one for the whole store
    /// ([`OPERATOR`]).
    pub(crate) fn namespace(self, tenant: TenantId) -> TenantId {
        match self {
            Self::Policy => tenant,
            Self::Tenant | Self::ApiKey => OPERATOR,
        }
    }
}

/// The tenant id of documents that belong to no tenant.
pub const OPERATOR: TenantId = TenantId::from_raw(0);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub kind: DocumentKind,
    pub id: Key,
    /// The tenant that owns it, or [`OPERATOR`].
    pub tenant: TenantId,
    /// Its name. The name of a policy is unique within its tenant; other names are unique per kind in the whole store.
    pub name: Option<String>,
    pub at: Timestamp,
    /// Its content, which the store does not interpret.
    pub body: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Filed {
    Done,
    /// Another document has its name: nothing was written.
    NameTaken,
    /// The same call was made before under the same idempotency key: nothing was written.
    Replayed(FirstAnswer),
    /// The idempotency key was used for another request: nothing was written.
    KeyReused,
}
