//! One key for whoever it is of, on the disk before what it sealed, and nothing under a destroyed one.

use posthaste_core::id::{Key, MessageId};
use posthaste_core::time::Timestamp;
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::*;
use crate::conformance::master_key_of_tests;
use crate::row::{Acceptance, Accepted, Message, Session};
use crate::sqlite::Sqlite;
use crate::sqlite::accept::Found;
use crate::sqlite::request::Request;
use crate::{Archive, Outbox};

const TENANT: TenantId = TenantId::from_raw(7);

fn open(folder: &TempDir) -> Sqlite {
    Sqlite::open_folder(folder.path(), master_key_of_tests()).expect("the folder opens")
}

fn message(session: Session, number: u64, subject: Option<&str>) -> Accepted {
    let id = MessageId(Key::new(session.writer, number));
    let subject = subject.map(str::to_owned);
    let message = Message { subject, ..Message::new(id, TENANT, Timestamp::from_millis(1), "a body") };
    Accepted::new(message, Vec::new())
}

fn keys(folder: &TempDir) -> Vec<(i64, i64)> {
    let conn = Connection::open(folder.path().join("posthaste.db")).expect("the file opens");
    let mut sql = conn.prepare("SELECT id, tenant FROM data_key ORDER BY id").expect("the table is there");
    sql.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).and_then(Iterator::collect).expect("rows")
}

#[tokio::test]
async fn a_subject_s_key_is_made_once_and_outlives_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut read = Vec::new();
    for start in 1..=3 {
        let store = Arc::new(open(&folder));
        let session = store.open().await.expect("a session").session;
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
async fn a_batch_of_a_tenant_that_nobody_knows_yet_is_sealed_and_reads_back_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&folder);
    let session = store.open().await.expect("a session").session;
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
async fn what_was_sealed_under_a_key_that_was_destroyed_since_is_sealed_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&folder);
    let session = store.open().await.expect("a session").session;
    store.accept(session, vec![message(session, 1, Some("user-42"))]).await.expect("it accepts");
    let late = vec![message(session, 2, Some("user-42"))];
    let (late, sealed, entries) = store.seal(late).await.expect("it seals");
    let old = sealed.messages[0].key;
    let vault = &store.shared.vault;
    let (vault, subject) = (Arc::clone(vault), vault.subject(TENANT, "user-42"));
    let gone = store.work(session, 1, move |conn: &Connection| {
        vault.destroy_subject(TENANT, &subject, old);
        conn.execute("DELETE FROM data_key WHERE id = ?1", [old.0]).map_err(failed("destroy a key"))
    });
    assert_eq!(gone.await.expect("it is destroyed"), 1);
    let accepted = store.writer.ask(|reply| Request::Accept {
        session,
        messages: late,
        sealed,
        entries,
        found: Found::default(),
        room: 0,
        reply,
    });
    assert_eq!(accepted.await.expect("it accepts").pass_on(), [Acceptance::Fresh]);
    let read = |number| store.message(MessageId(Key::new(session.writer, number)));
    assert!(read(1).await.expect("it reads").is_none(), "what the destroyed key sealed is gone");
    assert!(read(2).await.expect("it reads").is_some(), "what came after is sealed under another");
    store.close().await;
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
