//! Erasures of subjects and tenants: the request, and its progress.

use posthaste_core::{LaneId, TenantId, Timestamp};

use super::ApiKeyRef;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErasureTarget {
    /// A subject of the tenant: all messages and endpoints with this subject.
    Subject(String),
    /// The whole tenant, with everything it has.
    Tenant,
}

impl ErasureTarget {
    /// Whether the target covers a message or endpoint of the tenant with this subject.
    pub(crate) fn covers(&self, subject: Option<&str>) -> bool {
        match self {
            Self::Subject(erased) => subject == Some(erased),
            Self::Tenant => true,
        }
    }
}

/// A request to erase a subject or a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Erase {
    pub tenant: TenantId,
    pub whom: ErasureTarget,
    pub at: Timestamp,
    /// The API key that made the request, where that is known.
    pub by: Option<ApiKeyRef>,
}

/// A request to export the data held about a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportRequest {
    pub tenant: TenantId,
    pub subject: String,
    pub at: Timestamp,
    /// The API key that made the request, where that is known.
    pub by: Option<ApiKeyRef>,
}

/// An erasure. From its first commit on, the erased data cannot be read; the rows are then removed in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Erasure {
    pub number: u64,
    /// The erased tenant, or the tenant of the erased subject.
    pub tenant: TenantId,
    pub is_tenant: bool,
    /// The row of the journal that announces the erasure.
    pub row: u64,
    pub at: Timestamp,
    pub messages: u64,
    /// Deliveries removed so far, pending and ended.
    pub deliveries: u64,
    /// When the last of it was removed; `None` while the erasure is under way.
    pub done: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErasureStep {
    pub erasure: Erasure,
    /// Lanes whose endpoints were removed: nothing in them may be sent.
    pub lanes: Vec<LaneId>,
    /// Whether the erasure waits for a delivery in flight, or for a process that reads the database file.
    pub waits: bool,
}
