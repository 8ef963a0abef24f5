//! Documents: the small things that people make, name and change, such as tenants and API keys. The store
//! seals what one says and finds it by id or by name; what it means is its reader's business.

use bytes::Bytes;
use posthaste_core::id::{Key, TenantId};
use posthaste_core::time::Timestamp;

use super::idempotency::{Before, FirstAnswer};

/// What a document is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DocumentKind {
    /// A tenant; its name is its `uid`.
    Tenant,
    /// An API key; its name is a hash of the key.
    ApiKey,
    /// A retry policy; its name is what endpoints call it by.
    Policy,
}

impl DocumentKind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Tenant, Self::ApiKey, Self::Policy];

    /// Among whose names one's must be the only one: the tenant's, or everybody's.
    pub(crate) fn namespace(self, tenant: TenantId) -> TenantId {
        match self {
            Self::Policy => tenant,
            Self::Tenant | Self::ApiKey => OPERATOR,
        }
    }
}

/// Whose a document is that is no tenant's.
pub const OPERATOR: TenantId = TenantId::from_raw(0);

/// A document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// What it is about.
    pub kind: DocumentKind,
    /// Its id.
    pub id: Key,
    /// Whose; [`OPERATOR`] where it is no tenant's.
    pub tenant: TenantId,
    /// What its owner calls it by. No two of a kind have the same: of a tenant for policies, at all for
    /// the others.
    pub name: Option<String>,
    /// When it was made.
    pub at: Timestamp,
    /// What it says.
    pub body: Bytes,
}

/// What became of a document that was to be made or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Filed {
    /// It was.
    Done,
    /// Another one has its name: nothing was written.
    NameTaken,
    /// The call was made before, under the same key: nothing was written.
    Replayed(FirstAnswer),
    /// The call's key stands for another request: nothing was written.
    KeyReused,
}

impl From<Before> for Filed {
    fn from(before: Before) -> Self {
        match before {
            Before::Same(answer) => Self::Replayed(answer),
            Before::Another => Self::KeyReused,
        }
    }
}
