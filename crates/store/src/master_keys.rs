//! The master key, rotated while everything else goes on (L3): a newer one is offered, what the older wraps
//! is wrapped anew in small steps, and when nothing is left the older is no longer needed.

use std::future::Future;

use posthaste_core::time::Timestamp;
use posthaste_crypto::master::{MasterKey, MasterKeyId};

use crate::StoreError;
use crate::row::{By, Session};

/// Which master keys a store needs, and how far a rotation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The one that wraps.
    pub newest: MasterKeyId,
    /// Those that still wrap something, or may: they must be kept.
    pub older: Vec<MasterKeyId>,
    /// A newer one that was offered and wraps nothing yet.
    pub offered: Option<MasterKeyId>,
    /// Keys that this rotation, or the last one, has wrapped anew.
    pub rewrapped: u64,
    /// Keys it has yet to wrap anew.
    pub left: u64,
}

impl Rotation {
    /// Whether there is something to do.
    pub fn is_under_way(&self) -> bool {
        !self.older.is_empty() || self.offered.is_some()
    }
}

/// Rotates the master key.
pub trait MasterKeys: Send + Sync + 'static {
    /// Offers a newer master key by somebody's word, which [`MasterKeys::rotate`] takes up once no other rotation is under way. Where
    /// it comes from must keep it already: a crash right after the first step needs it.
    fn offer(&self, newer: MasterKey, by: Option<By>);

    /// One step of the rotation that is under way, or the first of one to the key that was offered. Each is
    /// small, and durable when it is answered; what a crash interrupts goes on from there. Does nothing when
    /// there is nothing to do.
    fn rotate(&self, session: Session, at: Timestamp) -> impl Future<Output = Result<Rotation, StoreError>> + Send;

    /// How far it is.
    fn rotation(&self) -> impl Future<Output = Result<Rotation, StoreError>> + Send;
}
