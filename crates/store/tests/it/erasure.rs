//! Erasures interrupted by a restart, and older copies of the data, which must not bring erased subjects back.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use posthaste_core::{EndpointId, Key, LaneId, MessageId, TenantId, Timestamp};
use posthaste_store::sqlite::audit::Trust;
use posthaste_store::sqlite::backup::back_up;
use posthaste_store::sqlite::backup::restore::restore;
use posthaste_store::sqlite::{ErasedAgain, Sqlite};
use posthaste_store::{
    Acceptance, Accepted, Archive, AuditStamp, Checkpoints, Directory, Endpoint, EndpointPut, Erase, ErasureTarget,
    Erasures, Message, Outbox, Session, StoreError,
};
use tempfile::TempDir;

use super::audit::audit;
use super::{NOW, new_folder, opened};

const TENANT: TenantId = TenantId::from_raw(7);

fn later(seconds: i64) -> Timestamp {
    Timestamp::from_millis(NOW.as_millis() + seconds * 1_000)
}

async fn accept(store: &Sqlite, session: Session, number: u64, subject: &str) -> MessageId {
    let id = MessageId(Key::new(session.writer, number));
    let message = Message { subject: Some(subject.to_owned()), ..Message::new(id, TENANT, NOW, "a body") };
    let acceptances = store.accept(session, vec![Accepted::new(message, Vec::new())]).await.expect("it accepts");
    assert_eq!(acceptances, [Acceptance::Fresh]);
    id
}

async fn erase(store: &Sqlite, session: Session, whom: ErasureTarget, at: Timestamp) -> u64 {
    store.erase(session, Erase { tenant: TENANT, whom, at, by: None }).await.expect("it erases").number
}

async fn finish(store: &Sqlite, session: Session, number: u64) {
    loop {
        let step = store.erase_step(session, number, later(9), Vec::new()).await.expect("a step");
        if step.is_none_or(|step| step.erasure.done.is_some()) {
            return;
        }
    }
}

fn subject(name: &str) -> ErasureTarget {
    ErasureTarget::Subject(name.to_owned())
}

/// A copy of the files of a folder that no process has open.
fn copied(from: &Path) -> TempDir {
    let copy = new_folder();
    for file in fs::read_dir(from).expect("a folder") {
        let file = file.expect("a file");
        if !["lock", "reserve"].contains(&file.file_name().to_string_lossy().as_ref()) {
            fs::copy(file.path(), copy.path().join(file.file_name())).expect("it is copied");
        }
    }
    copy
}

fn list(folder: &Path) -> String {
    fs::read_to_string(folder.join("erasures")).expect("the list is there")
}

#[tokio::test]
async fn erasure_continues_after_a_restart_at_every_step_with_a_clean_audit() {
    for whom in [subject("ann"), ErasureTarget::Tenant] {
        let folder = new_folder();
        let (store, session) = opened(folder.path()).await;
        let gone = accept(&store, session, 1, "ann").await;
        accept(&store, session, 2, "bob").await;
        store.sign(session, 1, NOW).await.expect("it signs");
        let number = erase(&store, session, whom, later(1)).await;
        store.close().await;
        for step in 0.. {
            assert!(step < 100, "the erasure does not end");
            let report = audit(folder.path(), &Trust::without_checkpoints(later(9)));
            assert_eq!(report.findings, [], "step {step}");
            let (store, session) = opened(folder.path()).await;
            assert!(store.message(gone).await.expect("it reads").is_none(), "step {step}");
            let stepped = store.erase_step(session, number, later(9), Vec::new()).await.expect("a step");
            let is_done = stepped.expect("it is known").erasure.done.is_some();
            store.close().await;
            if is_done {
                break;
            }
        }
        assert_eq!(list(folder.path()).lines().count(), 1, "listed once");
    }
}

#[tokio::test]
async fn older_copy_repeats_exactly_the_listed_erasures() {
    let folder = new_folder();
    let (store, session) = opened(folder.path()).await;
    let ann = accept(&store, session, 1, "ann").await;
    let bob = accept(&store, session, 2, "bob").await;
    let number = erase(&store, session, subject("cid"), later(1)).await;
    finish(&store, session, number).await;
    store.close().await;
    let older = copied(folder.path());
    let (store, session) = opened(folder.path()).await;
    erase(&store, session, subject("ann"), later(2)).await;
    let new = accept(&store, session, 3, "ann").await;
    store.close().await;
    let list = list(folder.path());

    let (restored, session) = opened(older.path()).await;
    assert!(restored.message(ann).await.expect("it reads").is_some(), "the older copy has it");
    let forged = format!("# a comment\n{list}posthaste erasure 1 00 1 1 00 00\n{}", &list[..30]);
    let again = restored.erase_again(session, &forged, later(3)).await.expect("it is applied");
    assert_eq!(again, ErasedAgain { applied: 1, known: 1, refused: 2 });
    assert!(restored.message(ann).await.expect("it reads").is_none());
    assert!(restored.message(bob).await.expect("it reads").is_some());
    assert_eq!(restored.unfinished_erasures(9).await.expect("it reads"), []);
    let once_more = restored.erase_again(session, &list, later(4)).await.expect("it is applied");
    assert_eq!(once_more, ErasedAgain { applied: 0, known: 2, refused: 0 });
    restored.close().await;
    assert_eq!(audit(older.path(), &Trust::without_checkpoints(later(9))).findings, []);

    let newer = copied(folder.path());
    let (restored, session) = opened(newer.path()).await;
    let again = restored.erase_again(session, &list, later(3)).await.expect("it is applied");
    assert_eq!(again, ErasedAgain { applied: 0, known: 2, refused: 0 });
    assert!(restored.message(new).await.expect("it reads").is_some(), "data accepted after the erasure stays");
    restored.close().await;
}

#[tokio::test]
async fn messages_accepted_during_an_erasure_are_erased_or_kept_whole() {
    let folder = new_folder();
    let (store, session) = opened(folder.path()).await;
    let store = Arc::new(store);
    let accepts = async {
        let mut accepted = Vec::new();
        for number in 1..=200 {
            accepted.push(accept(&store, session, number, "ann").await);
        }
        accepted
    };
    let erases = async {
        let mut last = 0;
        for _ in 0..5 {
            last = erase(&store, session, subject("ann"), NOW).await;
            tokio::task::yield_now().await;
        }
        last
    };
    let (accepted, _) = tokio::join!(accepts, erases);
    let new = accept(&store, session, 500, "ann").await;
    for unfinished in store.unfinished_erasures(9).await.expect("it reads") {
        finish(&store, session, unfinished.number).await;
    }
    // Each message is either readable and found by its subject, or completely gone.
    let conn = rusqlite::Connection::open(folder.path().join("posthaste.db")).expect("the file opens");
    let count = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("a count");
    let mut readable = 1;
    for id in accepted {
        readable += i64::from(store.message(id).await.expect("it reads").is_some());
    }
    assert!(store.message(new).await.expect("it reads").is_some());
    assert_eq!(count("SELECT count(*) FROM message"), readable);
    store.catch_up().await.expect("it follows");
    assert_eq!(count("SELECT count(*) FROM name"), readable);
    assert_eq!(count("SELECT count(*) FROM data_key WHERE tenant = 7"), 2, "the tenant's key and one for the new data");
    store.close().await;
}

#[tokio::test]
async fn erasure_that_cannot_be_listed_fails_and_continues_later() {
    let folder = new_folder();
    let (store, session) = opened(folder.path()).await;
    let ann = accept(&store, session, 1, "ann").await;
    fs::create_dir(folder.path().join("erasures")).expect("a folder in place of the list");
    let refused = store.erase(session, Erase { tenant: TENANT, whom: subject("ann"), at: NOW, by: None }).await;
    assert!(matches!(refused, Err(StoreError::Folder { .. })), "{refused:?}");
    assert!(store.message(ann).await.expect("it reads").is_none(), "the key is destroyed all the same");
    fs::remove_dir(folder.path().join("erasures")).expect("the folder is removed");
    finish(&store, session, 1).await;
    assert_eq!(list(folder.path()).lines().count(), 1);
    store.close().await;
}

/// Restores a backup: whether each of these messages is in it, and how many erasures were repeated.
async fn restored(from: &Path, lists: &[PathBuf], messages: [MessageId; 2]) -> ([bool; 2], ErasedAgain) {
    let parent = new_folder();
    let data = parent.path().join("data");
    let again = restore(from, &data, lists, later(20), |_| Ok(crate::master_key()), |_| {}).await.expect("restored");
    let (store, _) = opened(&data).await;
    let mut there = [false; 2];
    for (there, id) in there.iter_mut().zip(messages) {
        *there = store.message(id).await.expect("a read").is_some();
    }
    store.close().await;
    (there, again.erased_again)
}

#[tokio::test]
async fn restored_backup_does_not_bring_erased_subjects_back() {
    let (folder, backups) = (new_folder(), new_folder());
    let (store, session) = opened(folder.path()).await;
    let messages = [accept(&store, session, 1, "ann").await, accept(&store, session, 2, "bob").await];
    let older = backups.path().join("older");
    back_up(folder.path(), &older, later(1), |_| true).expect("a backup");
    let number = erase(&store, session, subject("ann"), later(2)).await;
    finish(&store, session, number).await;
    let erased = ErasedAgain { applied: 1, known: 0, refused: 0 };
    // Without a list of erasures, the restore cannot know of the erasure.
    let none = ErasedAgain { applied: 0, known: 0, refused: 0 };
    assert_eq!(restored(&older, &[], messages).await, ([true, true], none));
    let newest = [folder.path().join("erasures")];
    assert_eq!(restored(&older, &newest, messages).await, ([false, true], erased));
    // Making a newer backup also puts the newest list beside all backups.
    back_up(folder.path(), &backups.path().join("newer"), later(3), |_| true).expect("a backup");
    assert_eq!(restored(&older, &[], messages).await, ([false, true], erased));
    store.close().await;
}

#[tokio::test]
async fn endpoint_made_during_a_tenant_erasure_is_whole_or_gone() {
    let folder = new_folder();
    let (store, session) = opened(folder.path()).await;
    let (mut whole, mut gone) = (0, 0);
    for round in 1..=40 {
        let id = EndpointId(Key::new(session.writer, 2 * round));
        let endpoint = Endpoint::new(id, LaneId(id.0.plus(1)), TENANT, NOW, format!("https://example.com/{round}"));
        let erase = Erase { tenant: TENANT, whom: ErasureTarget::Tenant, at: later(1), by: None };
        // The call that is polled first is likelier to win, so the order alternates. Each round makes a new key.
        let (put, erased) = if round % 2 == 0 {
            tokio::join!(store.put_endpoint(session, endpoint, None, AuditStamp::at(NOW)), store.erase(session, erase))
        } else {
            let (erased, put) = tokio::join!(
                store.erase(session, erase),
                store.put_endpoint(session, endpoint, None, AuditStamp::at(NOW))
            );
            (put, erased)
        };
        assert_eq!(put.expect("it is made"), EndpointPut::Done);
        finish(&store, session, erased.expect("it erases").number).await;
        match store.endpoint(id).await.expect("it opens, or is not there") {
            Some(endpoint) => {
                assert_eq!(endpoint.target.url(), format!("https://example.com/{round}"));
                whole += 1;
            }
            None => gone += 1,
        }
        store.endpoints(TENANT).await.expect("all that are left open");
    }
    assert_eq!(whole + gone, 40);
    store.close().await;
    let (store, _) = opened(folder.path()).await;
    let left = store.endpoints(TENANT).await.expect("what is on the disk opens");
    assert!(left.len() <= whole, "{} are left of {whole}", left.len());
}
