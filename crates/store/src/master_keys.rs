//! Online rotation of the master key (L3). A newer key is offered; the keys that the older one wraps are rewrapped in
//! small steps; when none is left, the older key is no longer needed.

use posthaste_core::Timestamp;
use posthaste_crypto::master::{MasterKey, MasterKeyId};

use crate::{ApiKeyRef, Session, StoreFuture};

/// The master keys a store needs, and the progress of a rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The key that new keys are wrapped under.
    pub newest: MasterKeyId,
    /// Keys that still wrap something, or may: the operator must keep them.
    pub older: Vec<MasterKeyId>,
    /// A newer key that was offered and wraps nothing yet.
    pub offered: Option<MasterKeyId>,
    pub rewrapped: u64,
    pub left: u64,
}

impl Rotation {
    pub fn is_under_way(&self) -> bool {
        !self.older.is_empty() || self.offered.is_some()
    }
}

pub trait MasterKeys: Send + Sync + 'static {
    /// Offers a newer master key; `by` is the API key that asked for it. [`MasterKeys::rotate`] begins to use it once
    /// no other rotation is under way. The source of master keys must hold the newer key before this call, because a
    /// restart after a crash needs it as soon as the first step has run.
    fn offer(&self, newer: MasterKey, by: Option<ApiKeyRef>);

    /// Runs one step of the rotation under way, or the first step of a rotation to the offered key. A step is small and
    /// durable when the call returns; a restart after a crash continues from there. Does nothing if no rotation is
    /// offered or unfinished.
    fn rotate(&self, session: Session, at: Timestamp) -> impl StoreFuture<Rotation>;

    /// The progress of the rotation, without a step.
    fn rotation(&self) -> impl StoreFuture<Rotation>;
}
