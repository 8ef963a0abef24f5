//! What is done for seals before the writer is asked, and after it has answered: keys are read or made, messages are
//! sealed under them, and what first callers were answered is opened.
//!
//! Invariant: what was committed is told as such, whatever cannot be opened afterwards.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::id::TenantId;
use posthaste_crypto::digest::Digest;
use posthaste_crypto::seal::SealingKey;
use rusqlite::Connection;

use super::Sqlite;
use super::sealed::SealedAccept;
use crate::StoreError;
use crate::journal::Entries;
use crate::row::{Acceptance, Accepted, FirstAnswer, KeyHash};

/// How long after a read that saw too little the next begins: until then an erasure is probably on the disk.
const READ_AGAIN_AFTER: Duration = Duration::from_millis(1);
/// Reads for keys, with the pauses between them some seconds: nothing keeps them out of date for so long.
const READS_MAX: usize = 4_000;
/// How often messages are tried to seal. A key that was fetched is forgotten before it is used where very many others
/// are, or where it is destroyed.
const SEALS_MAX: usize = 16;

/// Whose call, and its key.
pub(super) type Keyed = (TenantId, KeyHash);

/// The idempotency keys of messages, one for each; nothing when none has one.
pub(super) fn keys_given(messages: &[Accepted]) -> Vec<Option<Keyed>> {
    if messages.iter().all(|accepted| accepted.idempotency.is_none()) {
        return Vec::new();
    }
    messages.iter().map(|accepted| accepted.idempotency.as_ref().map(|call| (call.tenant, call.key))).collect()
}

impl Sqlite {
    /// Seals messages, under keys that are read or made first where they are not in memory.
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
            // Boxed, as it is rare: every request that is accepted holds room for what it may wait for.
            in_hand.extend(Box::pin(self.keys_of(whose)).await?);
        }
        Err(StoreError::Busy)
    }

    /// A tenant's key, or a subject's, read or made if it is not in memory.
    pub(super) async fn key_of(&self, whose: (TenantId, Option<Digest>)) -> Result<Arc<SealingKey>, StoreError> {
        self.keys_of(vec![whose]).await?.pop().ok_or(StoreError::Busy)
    }

    /// The same for many, in their order.
    async fn keys_of(&self, whose: Vec<(TenantId, Option<Digest>)>) -> Result<Vec<Arc<SealingKey>>, StoreError> {
        let whose = Arc::new(whose);
        for _ in 0..READS_MAX {
            let (vault, whose) = (Arc::clone(&self.shared.vault), Arc::clone(&whose));
            // Before the read begins: what is forgotten from here on, it may not see.
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

    /// What a first caller was answered, as it was answered.
    pub(super) async fn open_answer(&self, keyed: Keyed, sealed: FirstAnswer) -> Result<FirstAnswer, StoreError> {
        let vault = Arc::clone(&self.shared.vault);
        self.readers.read_again(move |conn| vault.open_answer(conn, keyed, &sealed)).await
    }

    /// The same in what an accept found. Where an answer cannot be opened, that is said of its message alone: the others
    /// are on the disk.
    pub(super) async fn open_answers(
        &self,
        mut acceptances: Vec<Acceptance>,
        keyed: Vec<Option<Keyed>>,
    ) -> Vec<Acceptance> {
        let is_replayed = |(_, acceptance): &(usize, &Acceptance)| matches!(acceptance, Acceptance::Replayed(_));
        let replayed: Vec<usize> = acceptances.iter().enumerate().filter(is_replayed).map(|(at, _)| at).collect();
        if replayed.is_empty() {
            return acceptances;
        }
        let sealed: Vec<Option<(Keyed, FirstAnswer)>> = replayed
            .iter()
            .map(|at| match (keyed.get(*at), &acceptances[*at]) {
                (Some(Some(keyed)), Acceptance::Replayed(answer)) => Some((*keyed, answer.clone())),
                _ => None,
            })
            .collect();
        let vault = Arc::clone(&self.shared.vault);
        let open = move |conn: &Connection| {
            let open = |sealed: &Option<(Keyed, FirstAnswer)>| {
                let (keyed, answer) = sealed.as_ref().ok_or(StoreError::Busy)?;
                vault.open_answer(conn, *keyed, answer)
            };
            // What keeps one from being read keeps the others, too.
            let each = sealed.iter().map(open).map(|opened| match opened {
                Err(error @ StoreError::Database { .. }) => Err(error),
                opened => Ok(opened),
            });
            each.collect::<Result<Vec<_>, _>>()
        };
        let opened = self.readers.read_again(open).await;
        let mut opened = opened.unwrap_or_else(|error| vec![Err(error)]).into_iter();
        for at in replayed {
            acceptances[at] = match opened.next() {
                Some(Ok(answer)) => Acceptance::Replayed(answer),
                Some(Err(error)) => {
                    tracing::warn!(%error, "what a first caller was answered cannot be read; whoever asked may ask again");
                    Acceptance::Unanswered
                }
                None => Acceptance::Unanswered,
            };
        }
        acceptances
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use posthaste_core::id::{Key, MessageId};
    use posthaste_core::time::Timestamp;

    use super::*;
    use crate::row::{Erase, Idempotency, Message, Session, Whom};
    use crate::sqlite::accept::Found;
    use crate::sqlite::request::Request;
    use crate::{Erasures, Outbox};

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
    async fn a_first_answer_that_is_gone_by_now_is_missed_by_its_own_message_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Sqlite::open_folder(folder.path(), crate::conformance::master_key_of_tests()).expect("it opens");
        let session = store.open(NOW).await.expect("a session").session;
        let first = vec![message(session, 1, "ann", Some(1)), message(session, 2, "bob", Some(2))];
        _ = store.accept(session, first).await.expect("it accepts");

        let batch = vec![
            message(session, 3, "ann", Some(1)),
            message(session, 4, "bob", None),
            message(session, 5, "bob", Some(2)),
        ];
        let keyed = keys_given(&batch);
        let (messages, sealed, entries) = store.seal(batch).await.expect("it seals");
        let found = Found::default();
        let told =
            store.writer.ask(|reply| Request::Accept { session, messages, sealed, entries, found, room: 0, reply });
        let acceptances = told.await.expect("it accepts").pass_on();
        let whom = Whom::Subject("ann".to_owned());
        store.erase(session, Erase { tenant: TENANT, whom, at: NOW, by: None }).await.expect("it is erased");

        let opened = store.open_answers(acceptances, keyed).await;
        assert_eq!(opened, [Acceptance::Unanswered, Acceptance::Fresh, Acceptance::Replayed(answer())]);
        let again = store.accept(session, vec![message(session, 6, "ann", Some(1))]).await.expect("it accepts");
        assert_eq!(again, [Acceptance::Fresh], "whoever asks again is the first");
        store.close().await;
    }

    #[tokio::test]
    async fn what_was_accepted_is_told_where_nobody_reads_any_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Sqlite::open_folder(folder.path(), crate::conformance::master_key_of_tests()).expect("it opens");
        store.close().await;
        let found = vec![Acceptance::Fresh, Acceptance::Replayed(answer()), Acceptance::KeyReused];
        let keyed = vec![None, Some((TENANT, KeyHash([1; 16]))), Some((TENANT, KeyHash([2; 16])))];
        let told = store.open_answers(found, keyed).await;
        assert_eq!(told, [Acceptance::Fresh, Acceptance::Unanswered, Acceptance::KeyReused]);
    }
}
