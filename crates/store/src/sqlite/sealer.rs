//! Seals batches of messages in a thread of its own, so that a batch does not block the other tasks of its caller's
//! runtime thread. A few messages are sealed in the caller's task: handing them over would cost as much.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::sealed::SealedAccept;
use super::thread::Joined;
use super::vault::Vault;
use crate::StoreError;
use crate::journal::Entries;
use crate::row::Accepted;

/// Batches of at least so many messages are handed to the thread.
const MANY: usize = 16;
/// Accepts that may wait for the thread. Their bytes are bounded before they come here.
const WAITING_MAX: usize = 64;

/// The messages, and their sealed values if all keys were in memory.
type Sealed = (Vec<Accepted>, Option<(SealedAccept, Entries)>);

pub(super) struct Sealer {
    jobs: mpsc::Sender<(Vec<Accepted>, oneshot::Sender<Sealed>)>,
    vault: Arc<Vault>,
    _thread: Joined,
}

impl Sealer {
    pub(super) fn start(vault: &Arc<Vault>) -> Result<Self, StoreError> {
        let (jobs, mut queue) = mpsc::channel::<(Vec<Accepted>, oneshot::Sender<Sealed>)>(WAITING_MAX);
        let own = Arc::clone(vault);
        let serve = move || {
            while let Some((messages, reply)) = queue.blocking_recv() {
                let sealed = own.seal(&messages);
                // The caller may have hung up; its messages were not acknowledged.
                _ = reply.send((messages, sealed));
            }
        };
        Ok(Self { jobs, vault: Arc::clone(vault), _thread: Joined::spawn("store-sealer", serve)? })
    }

    pub(super) async fn seal(&self, messages: Vec<Accepted>) -> Result<Sealed, StoreError> {
        if messages.len() < MANY {
            let sealed = self.vault.seal(&messages);
            return Ok((messages, sealed));
        }
        let (reply, sealed) = oneshot::channel();
        self.jobs.send((messages, reply)).await.map_err(|_| StoreError::Stopped)?;
        sealed.await.map_err(|_| StoreError::Stopped)
    }
}
