//! Encryption in the caller's task. Before a request goes to the writer, keys are read or made and messages are sealed
//! under them; after the writer's reply, stored answers to earlier calls are opened.
//!
//! Invariant: committed messages are reported as committed, also when a stored answer cannot be opened.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::TenantId;
use posthaste_crypto::digest::Digest;
use posthaste_crypto::seal::SealingKey;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::{Joined, SealedAccept, Sqlite, Vault};
use crate::journal::Entries;
use crate::{Acceptance, Accepted, FirstAnswer, KeyHash, StoreError};

/// Batches of at least so many messages are handed to the thread.
const MANY: usize = 16;
/// Accepts that may wait for the thread. Their bytes are bounded before they come here.
const WAITING_MAX: usize = 64;
/// The pause after a read of keys that was out of date: by then the commit of an erasure is probably on the disk.
const READ_AGAIN_AFTER: Duration = Duration::from_millis(1);
/// The most reads for keys: with the pauses between them they take some seconds, and no read is out of date for so
/// long.
const READS_MAX: usize = 4_000;
/// The most attempts to seal messages. An attempt fails when a key that was just read is evicted because of very many
/// other keys, or destroyed.
const SEALS_MAX: usize = 16;

/// The tenant of a call, and the hash of its idempotency key.
pub(super) type Keyed = (TenantId, KeyHash);

/// The idempotency keys of messages, one entry for each; an empty list if no message has one.
pub(super) fn keys_given(messages: &[Accepted]) -> Vec<Option<Keyed>> {
    if messages.iter().all(|accepted| accepted.idempotency.is_none()) {
        return Vec::new();
    }
    messages.iter().map(|accepted| accepted.idempotency.as_ref().map(|call| (call.tenant, call.key))).collect()
}

impl Sqlite {
    /// Seals messages; reads or makes the keys that are not in memory.
    pub(super) async fn seal(
        &self,
        mut messages: Vec<Accepted>,
    ) -> Result<(Vec<Accepted>, SealedAccept, Entries), StoreError> {
        let mut in_hand = Vec::new();
        for _ in 0..SEALS_MAX {
            let sealed;
            (messages, sealed) = self.sealer.seal(messages).await?;
            if let Some((sealed, entries)) = sealed {
                return Ok((messages, sealed, entries));
            }
            let vault = &self.shared.vault;
            let whose = messages.iter().flat_map(|accepted| vault.keys_needed(&accepted.message)).collect();
            // Boxed because it is rare: otherwise the future of every accept would be as large as this one.
            in_hand.extend(Box::pin(self.keys_of(whose)).await?);
        }
        Err(StoreError::Busy)
    }

    /// The key of a tenant or of a subject; read or made if it is not in memory.
    pub(super) async fn key_of(&self, whose: (TenantId, Option<Digest>)) -> Result<Arc<SealingKey>, StoreError> {
        self.keys_of(vec![whose]).await?.pop().ok_or(StoreError::Busy)
    }

    /// Several keys, in the order of their owners.
    async fn keys_of(&self, whose: Vec<(TenantId, Option<Digest>)>) -> Result<Vec<Arc<SealingKey>>, StoreError> {
        let whose = Arc::new(whose);
        for _ in 0..READS_MAX {
            let (vault, whose) = (Arc::clone(&self.shared.vault), Arc::clone(&whose));
            // Taken before the read begins: the read may miss keys that are evicted or destroyed later.
            let view = vault.view();
            let find = move |conn: &Connection| {
                let find = |(tenant, subject): &(TenantId, Option<Digest>)| {
                    vault.find_or_make(conn, view, *tenant, subject.as_ref())
                };
                whose.iter().map(find).collect()
            };
            match self.readers.read_again(find).await {
                Err(StoreError::Busy) => tokio::time::sleep(READ_AGAIN_AFTER).await,
                found => return found,
            }
        }
        Err(StoreError::Busy)
    }

    /// Opens the stored answer to the first call with an idempotency key.
    pub(super) async fn open_answer(&self, keyed: Keyed, sealed: FirstAnswer) -> Result<FirstAnswer, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        self.readers.read_again(move |conn| vault.open_answer(conn, keyed, &sealed)).await
    }

    /// Opens the stored answers in the result of an accept. Where one cannot be opened, only its message becomes
    /// [`Acceptance::Unanswered`]: the others are committed.
    pub(super) async fn open_answers(
        &self,
        mut acceptances: Vec<Acceptance>,
        keyed: Vec<Option<Keyed>>,
    ) -> Vec<Acceptance> {
        let mut sealed = Vec::new();
        for (at, acceptance) in acceptances.iter_mut().enumerate() {
            if let Acceptance::Replayed(answer) = acceptance {
                sealed.push((at, keyed.get(at).copied().flatten(), answer.clone()));
                *acceptance = Acceptance::Unanswered;
            }
        }
        if sealed.is_empty() {
            return acceptances;
        }
        let vault = Arc::clone(&self.shared.vault);
        let open = move |conn: &Connection| {
            let each = sealed.iter().map(|(at, keyed, answer)| {
                let opened = keyed.ok_or(StoreError::Busy).and_then(|keyed| vault.open_answer(conn, keyed, answer));
                match opened {
                    // It would hit the other answers too, so it ends the read, which is then repeated.
                    Err(error @ StoreError::Database { .. }) => Err(error),
                    opened => Ok((*at, opened)),
                }
            });
            each.collect::<Result<Vec<_>, _>>()
        };
        let opened = self.readers.read_again(open).await;
        for (at, opened) in opened.unwrap_or_else(|error| vec![(0, Err(error))]) {
            match opened {
                Ok(answer) => acceptances[at] = Acceptance::Replayed(answer),
                Err(error) => {
                    tracing::warn!(%error, "cannot decrypt the stored answer of an idempotent request; the caller may retry");
                }
            }
        }
        acceptances
    }
}

/// The messages, and their sealed values if all keys were in memory.
type Sealed = (Vec<Accepted>, Option<(SealedAccept, Entries)>);

/// Seals batches of messages in a thread of its own, so that a batch does not block the other tasks of its caller's
/// runtime thread. A few messages are sealed in the caller's task: handing them over would cost as much.
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use posthaste_core::{Key, MessageId, Timestamp};

    use super::*;
    use crate::sqlite::fixture::{accept_sealed, fresh};
    use crate::{Erase, ErasureTarget, Erasures, Idempotency, Message, Outbox, Session};

    const TENANT: TenantId = TenantId::from_raw(7);
    const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);

    fn answer() -> FirstAnswer {
        FirstAnswer { status: 202, body: Bytes::from_static(b"it is promised") }
    }

    fn message(session: Session, number: u64, subject: &str, key: Option<u8>) -> Accepted {
        let id = MessageId(Key::new(session.writer, number));
        let message = Message { subject: Some(subject.to_owned()), ..Message::new(id, TENANT, NOW, "a body") };
        let call =
            |n| Idempotency { tenant: TENANT, key: KeyHash([n; 16]), digest: [1; 32], answer: answer(), at: NOW };
        Accepted { idempotency: key.map(call), ..Accepted::new(message, Vec::new()) }
    }

    #[tokio::test]
    async fn an_erased_answer_leaves_only_its_own_message_unanswered() {
        let (_folder, store, session) = fresh().await;
        let first = vec![message(session, 1, "ann", Some(1)), message(session, 2, "bob", Some(2))];
        _ = store.accept(session, first).await.expect("it accepts");

        let batch = vec![
            message(session, 3, "ann", Some(1)),
            message(session, 4, "bob", None),
            message(session, 5, "bob", Some(2)),
        ];
        let keyed = keys_given(&batch);
        let sealed = store.seal(batch).await.expect("it seals");
        let acceptances = accept_sealed(&store, session, sealed).await;
        let whom = ErasureTarget::Subject("ann".to_owned());
        store.erase(session, Erase { tenant: TENANT, whom, at: NOW, by: None }).await.expect("it is erased");

        let opened = store.open_answers(acceptances, keyed).await;
        assert_eq!(opened, [Acceptance::Unanswered, Acceptance::Fresh, Acceptance::Replayed(answer())]);
        let again = store.accept(session, vec![message(session, 6, "ann", Some(1))]).await.expect("it accepts");
        assert_eq!(again, [Acceptance::Fresh], "the key of the erased call is unknown again");
        store.close().await;
    }

    #[tokio::test]
    async fn acceptances_are_reported_after_the_readers_have_stopped() {
        let (_folder, store, _) = fresh().await;
        store.close().await;
        let found = vec![Acceptance::Fresh, Acceptance::Replayed(answer()), Acceptance::KeyReused];
        let keyed = vec![None, Some((TENANT, KeyHash([1; 16]))), Some((TENANT, KeyHash([2; 16])))];
        let opened = store.open_answers(found, keyed).await;
        assert_eq!(opened, [Acceptance::Fresh, Acceptance::Unanswered, Acceptance::KeyReused]);
    }
}
