//! Mints keys for the whole process: one sequence for each session.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use posthaste_core::id::{Key, WriterId};

/// A source of keys, shared by its clones.
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
