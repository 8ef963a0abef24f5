//! A thread with an owner who waits for its end.

use std::io;
use std::thread::{Builder, JoinHandle};

use crate::StoreError;

/// A thread that is joined when its owner is dropped. Declare it after whatever ends it.
#[derive(Debug)]
pub(super) struct Joined(Option<JoinHandle<()>>);

impl Joined {
    pub(super) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<Self, StoreError> {
        let spawned = Builder::new().name(name.to_owned()).spawn(run);
        spawned.map(|handle| Self(Some(handle))).map_err(|source: io::Error| StoreError::Thread { source })
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(Err(_)) = self.0.take().map(JoinHandle::join) {
            // Its callers were told that the store has stopped; the panic itself is on stderr.
            tracing::error!("a thread of the store panicked");
        }
    }
}
