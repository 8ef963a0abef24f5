//! Seals what comes in numbers, in a thread of its own: a batch should not hold up everybody else whom its caller's
//! thread serves. One message is sealed where it comes in: handing it over would cost as much.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::sealed::SealedAccept;
use super::thread::Joined;
use super::vault::Vault;
use crate::StoreError;
use crate::journal::Entries;
use crate::row::Accepted;

/// From so many messages on they are handed over.
const MANY: usize = 16;
/// Accepts that may wait for the thread. Their bytes are bounded before they come here.
const WAITING_MAX: usize = 64;

/// The messages again, and what is sealed of them if all keys were in memory.
type Sealed = (Vec<Accepted>, Option<(SealedAccept, Entries)>);

/// The thread, and the way to it.
#[derive(Debug)]
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
                // Whoever asked may have left: nothing was promised.
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
