//! Ids: the keys that a session mints for new objects, and the public ids of these keys, which users see in the API and
//! in log lines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use posthaste_core::{Key, Timestamp, WriterId};
use posthaste_crypto::public_id::{IdKey, IdKind};

/// The keys of one session, in order; its clones share the position.
#[derive(Clone, Debug)]
pub(crate) struct KeySequence {
    writer: WriterId,
    next: Arc<AtomicU64>,
}

impl KeySequence {
    /// This writer's sequence, from its beginning.
    pub(crate) fn of(writer: WriterId) -> Self {
        Self { writer, next: Arc::new(AtomicU64::new(1)) }
    }

    /// Mints `count` consecutive keys and returns the first.
    pub(crate) fn keys(&self, count: u64) -> Key {
        Key::new(self.writer, self.next.fetch_add(count, Ordering::Relaxed))
    }
}

/// The public id of a key, such as `msg_…`. `at` is when its object was made; for a delivery, when its message was.
pub(crate) fn public_id(ids: &IdKey, kind: IdKind, key: Key, at: Timestamp) -> String {
    ids.mint(kind, key.writer().number(), key.seq(), u64::try_from(at.as_millis()).unwrap_or(0))
}
