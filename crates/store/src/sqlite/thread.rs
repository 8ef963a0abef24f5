//! A thread whose owner waits for its end.

use std::io;
use std::thread::{Builder, JoinHandle};

use crate::StoreError;

/// A thread that is joined when this is dropped. In a struct, declare it after the field (such as a channel's sender)
/// whose drop ends the thread.
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
            // Callers got `StoreError::Stopped`; the panic message itself is on stderr.
            tracing::error!("a thread of the store panicked");
        }
    }
}
