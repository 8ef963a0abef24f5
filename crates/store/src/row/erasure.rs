//! Erasures: who is to be forgotten, and how far that is.

use posthaste_core::id::{LaneId, TenantId};
use posthaste_core::time::Timestamp;

use super::By;

/// Whom to forget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    /// Whoever has this name with the tenant: all messages that are about them.
    Subject(String),
    /// The tenant with everything it has.
    Tenant,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Erase {
    /// Whose, or who.
    pub tenant: TenantId,
    /// Whom.
    pub whom: Whom,
    /// When.
    pub at: Timestamp,
    /// Who asked for it.
    pub by: Option<By>,
}

/// That somebody asks for what is held about a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportAsked {
    /// Whose subject.
    pub tenant: TenantId,
    /// Which.
    pub subject: String,
    /// When.
    pub at: Timestamp,
    /// Who asks.
    pub by: Option<By>,
}

/// An erasure. What it covers cannot be read from its first commit on; the rest is done in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Erasure {
    /// Its number.
    pub number: u64,
    /// Whose, or who.
    pub tenant: TenantId,
    /// Whether it is the whole tenant.
    pub is_tenant: bool,
    /// The row of the journal that announces it: its place in the audit.
    pub row: u64,
    /// When it was asked for.
    pub at: Timestamp,
    /// Messages that are gone so far.
    pub messages: u64,
    /// Deliveries that are gone so far, pending and ended.
    pub deliveries: u64,
    /// When nothing was left, once that is so.
    pub done: Option<Timestamp>,
}

/// What a step came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErasureStep {
    /// The erasure as it is now.
    pub erasure: Erasure,
    /// Lanes whose endpoints are gone: nothing in them is to be sent.
    pub lanes: Vec<LaneId>,
    /// Whether it waits for something that is under way, or for somebody who reads the file.
    pub waits: bool,
}
