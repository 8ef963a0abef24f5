//! Each tenant and subject has one key, which is on the disk no later than values sealed under it; nothing is written
//! under a destroyed key.

use bytes::Bytes;
use posthaste_core::{Key, MessageId, Timestamp};
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::*;
use crate::conformance::master_key_of_tests;
use crate::sqlite::Sqlite;
use crate::sqlite::fixture::{accept_sealed, fresh};
use crate::{
    Acceptance, Accepted, Archive, AuditStamp, Document, DocumentKind, Erase, ErasureTarget, Erasures, Filed,
    FirstAnswer, Idempotency, KeyHash, Message, Outbox, Register, Session,
};

const TENANT: TenantId = TenantId::from_raw(7);
const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);

fn open(folder: &TempDir) -> Sqlite {
    Sqlite::open_folder(folder.path(), master_key_of_tests()).expect("the folder opens")
}

fn message(session: Session, number: u64, subject: Option<&str>) -> Accepted {
    let id = MessageId(Key::new(session.writer, number));
    let subject = subject.map(str::to_owned);
    let message = Message { subject, ..Message::new(id, TENANT, NOW, "a body") };
    Accepted::new(message, Vec::new())
}

fn keys(folder: &TempDir) -> Vec<(i64, i64)> {
    let conn = connection(folder);
    let mut sql = conn.prepare("SELECT id, tenant FROM data_key ORDER BY id").expect("the table is there");
    sql.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).and_then(Iterator::collect).expect("rows")
}

#[tokio::test]
async fn a_subject_s_key_is_made_once_and_outlives_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut read = Vec::new();
    for start in 1..=3 {
        let store = Arc::new(open(&folder));
        let session = store.open(NOW).await.expect("a session").session;
        let mut at_once = JoinSet::new();
        for number in 1..=8 {
            let (store, accepted) = (Arc::clone(&store), message(session, number, Some("user-42")));
            at_once.spawn(async move { store.accept(session, vec![accepted]).await });
        }
        for accepted in at_once.join_all().await {
            assert_eq!(accepted.expect("it accepts"), [Acceptance::Fresh]);
        }
        read.extend((1..=8).map(|number| MessageId(Key::new(session.writer, number))));
        for id in &read {
            let found = store.message(*id).await.expect("it reads").expect("it is there");
            assert_eq!((&*found.body, found.subject.as_deref()), (b"a body".as_slice(), Some("user-42")));
        }
        store.close().await;
        assert_eq!(keys(&folder), [(1, -1), (2, 7), (3, 7)], "start {start}: the store's, the tenant's, the subject's");
    }
}

#[tokio::test]
async fn a_batch_of_a_new_tenant_is_sealed_under_keys_made_once() {
    let (folder, store, session) = fresh().await;
    let batch: Vec<Accepted> = (1..=100).map(|number| message(session, number, Some("user-42"))).collect();
    let accepted = store.accept(session, batch).await.expect("it accepts");
    assert_eq!(accepted, vec![Acceptance::Fresh; 100]);
    for number in 1..=100 {
        let id = MessageId(Key::new(session.writer, number));
        let found = store.message(id).await.expect("it reads").expect("it is there");
        assert_eq!((found.id, &*found.body), (id, b"a body".as_slice()));
    }
    store.close().await;
    assert_eq!(keys(&folder), [(1, -1), (2, 7), (3, 7)], "its keys were made once");
}

#[tokio::test]
async fn a_message_whose_key_is_destroyed_before_its_commit_is_sealed_again() {
    let (_folder, store, session) = fresh().await;
    store.accept(session, vec![message(session, 1, Some("user-42"))]).await.expect("it accepts");
    let answer = FirstAnswer { status: 202, body: Bytes::from_static(b"it is promised") };
    let keyed = |number| {
        let (key, at) = (KeyHash([7; 16]), Timestamp::from_millis(1));
        let call = Idempotency { tenant: TENANT, key, digest: [1; 32], answer: answer.clone(), at };
        Accepted { idempotency: Some(call), ..message(session, number, Some("user-42")) }
    };
    let late = vec![keyed(2)];
    let late = store.seal(late).await.expect("it seals");
    let old = late.1.messages[0].key;
    let vault = &store.shared.vault;
    let (vault, subject) = (Arc::clone(vault), vault.subject(TENANT, "user-42"));
    let destroyed = store.work(session, 1, move |conn: &Connection| {
        vault.destroy_subject(TENANT, &subject, old);
        conn.execute("DELETE FROM data_key WHERE id = ?1", [old.0]).map_err(failed("destroy a key"))
    });
    assert_eq!(destroyed.await.expect("it is destroyed"), 1);
    assert_eq!(accept_sealed(&store, session, late).await, [Acceptance::Fresh]);
    let read = |number| store.message(MessageId(Key::new(session.writer, number)));
    assert!(read(1).await.expect("it reads").is_none(), "sealed under the destroyed key");
    assert!(read(2).await.expect("it reads").is_some(), "sealed under a new key");
    let again = store.accept(session, vec![keyed(3)]).await.expect("it accepts");
    assert_eq!(again, [Acceptance::Replayed(answer)], "its answer is sealed under the new key too");
    store.close().await;
}

/// A few more tenants than there may be keys in memory.
fn many() -> impl Iterator<Item = TenantId> {
    (1_000..1_008 + KEPT_MAX as u64).map(TenantId::from_raw)
}

fn connection(folder: &TempDir) -> Connection {
    Connection::open(folder.path().join("posthaste.db")).expect("the file opens")
}

#[tokio::test]
async fn a_new_subject_gets_its_key_however_many_keys_are_unwritten() {
    let (folder, store, session) = fresh().await;
    store.accept(session, vec![message(session, 1, None)]).await.expect("it accepts");
    let (vault, conn) = (&store.shared.vault, connection(&folder));
    let make = |tenant| vault.find_or_make(&conn, vault.view(), tenant, None).expect("it is made");
    let in_hand: Vec<_> = many().map(make).collect();
    assert_eq!(vault.read().unwritten.len(), in_hand.len(), "keys that are held are not dropped");
    let accepted = store.accept(session, vec![message(session, 2, Some("user-42"))]).await.expect("it accepts");
    assert_eq!(accepted, [Acceptance::Fresh]);
    store.close().await;
    assert_eq!(keys(&folder).len(), 3, "the others were never used");
}

#[tokio::test]
async fn unwritten_keys_are_dropped_unless_they_are_held() {
    let (folder, store, session) = fresh().await;
    let (vault, conn) = (&store.shared.vault, connection(&folder));
    let subject = vault.subject(TENANT, "user-42");
    let make = |tenant, subject| vault.find_or_make(&conn, vault.view(), tenant, subject).expect("it is made");
    let in_hand = make(TENANT, Some(&subject));
    many().for_each(|tenant| drop(make(tenant, None)));
    assert!(vault.read().unwritten.len() <= 1_024, "{} are left", vault.read().unwritten.len());
    assert!(Arc::ptr_eq(&in_hand, &make(TENANT, Some(&subject))), "a held key may still be written");
    assert_eq!(vault.unwritten(TENANT, in_hand.id()).len(), 2, "and its tenant's with it");
    drop(in_hand);
    store.accept(session, vec![message(session, 1, Some("user-42"))]).await.expect("it accepts");
    store.close().await;
    assert_eq!(keys(&folder).len(), 3);
}

#[tokio::test]
async fn keys_written_with_documents_count_as_written() {
    let (folder, store, session) = fresh().await;
    for number in 1..=50 {
        let (kind, tenant) = (DocumentKind::Tenant, TenantId::from_raw(number));
        let (at, body) = (NOW, Bytes::from_static(b"{}"));
        let document = Document { kind, id: tenant.0, tenant, name: None, at, body };
        assert_eq!(store.file(session, document, None, AuditStamp::at(NOW)).await.expect("it is filed"), Filed::Done);
    }
    assert_eq!(store.shared.vault.read().unwritten.len(), 0);
    store.close().await;
    assert_eq!(keys(&folder).len(), 51);
}

#[tokio::test]
async fn a_snapshot_older_than_an_erasure_cannot_find_or_make_keys() {
    let (folder, store, session) = fresh().await;
    store.accept(session, vec![message(session, 1, None)]).await.expect("it accepts");
    let (vault, conn) = (&store.shared.vault, connection(&folder));
    let earlier = vault.view();
    let snapshot = conn.unchecked_transaction().expect("a read begins");
    snapshot.query_row("SELECT count(*) FROM data_key", [], |row| row.get::<_, i64>(0)).expect("it reads");
    let erase = Erase { tenant: TENANT, whom: ErasureTarget::Tenant, at: Timestamp::from_millis(2), by: None };
    store.erase(session, erase).await.expect("it is erased");
    let subject = vault.subject(TENANT, "user-42");
    for view in [earlier, vault.view()] {
        for subject in [None, Some(&subject)] {
            let found = vault.find_or_make(&snapshot, view, TENANT, subject);
            assert!(matches!(found, Err(StoreError::Busy)), "{view:?}: its key was destroyed");
        }
    }
    drop(snapshot);
    let accepted = store.accept(session, vec![message(session, 2, Some("user-42"))]).await.expect("it accepts");
    assert_eq!(accepted, [Acceptance::Fresh], "under a key of its own");
    store.close().await;
}

#[tokio::test]
async fn a_snapshot_that_misses_a_key_cannot_make_a_second_one() {
    let (folder, store, session) = fresh().await;
    let (vault, conn) = (&store.shared.vault, connection(&folder));
    let earlier = vault.view();
    let snapshot = conn.unchecked_transaction().expect("a read begins");
    snapshot.query_row("SELECT count(*) FROM data_key", [], |row| row.get::<_, i64>(0)).expect("it reads");
    store.accept(session, vec![message(session, 1, None)]).await.expect("it accepts");
    // The same as an eviction, without making so many keys.
    let last = vault.read().last;
    *vault.write() = Keys { last, removals: 1, ..Keys::default() };
    let found = vault.find_or_make(&snapshot, earlier, TENANT, None);
    assert!(matches!(found, Err(StoreError::Busy)), "the key is on the disk, and the snapshot does not see it");
    drop(snapshot);
    store.accept(session, vec![message(session, 2, None)]).await.expect("it accepts");
    store.close().await;
    assert_eq!(keys(&folder), [(1, -1), (2, 7)]);
}

#[tokio::test]
async fn another_master_key_is_refused_and_both_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    open(&folder).close().await;
    let other = posthaste_crypto::master::MasterKey::generate();
    let (given, needed) = (other.id().to_string(), master_key_of_tests().newest().id().to_string());
    let refused = Sqlite::open_folder(folder.path(), Masters::new(other)).expect_err("it is another").to_string();
    assert!(refused.contains(&given) && refused.contains(&needed), "{refused}");
}
