//! Rotation of the master key, with crashes and concurrent writes.

use std::fs;
use std::path::Path;

use posthaste_core::{Key, MessageId, TenantId, Timestamp};
use posthaste_crypto::master::{MasterKey, Masters};
use posthaste_store::sqlite::{Bounds, Sqlite, rotation};
use posthaste_store::{Accepted, Archive, MasterKeys, Message, Outbox, Session};
use rusqlite::Connection;
use tempfile::TempDir;

const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);
/// More keys than one step rewraps.
const TENANTS: u64 = 300;

fn copy(key: &MasterKey) -> MasterKey {
    MasterKey::parse(key.reveal().expose()).expect("it is one")
}

fn open(folder: &Path, keys: &[&MasterKey]) -> Result<Sqlite, String> {
    let masters = Masters::newest_first(keys.iter().map(|key| copy(key))).expect("some are given");
    let bounds = Bounds { reserve_bytes: 0, ..Bounds::default() };
    Sqlite::open_bounded(folder, masters, bounds).map_err(|refused| refused.to_string())
}

fn id(session: Session, number: u64) -> MessageId {
    MessageId(Key::new(session.writer, number))
}

/// Accepts a message of this tenant; every third tenant's has a subject.
async fn accept(store: &Sqlite, session: Session, tenant: u64) {
    let mut message = Message::new(id(session, tenant), TenantId::from_raw(tenant), NOW, format!("body {tenant}"));
    message.subject = tenant.is_multiple_of(3).then(|| "ann".to_owned());
    store.accept(session, vec![Accepted::new(message, Vec::new())]).await.expect("it is accepted");
}

async fn filled(folder: &Path, key: &MasterKey) -> Session {
    let store = open(folder, &[key]).expect("it opens");
    let session = store.open(NOW).await.expect("a session").session;
    for tenant in 1..=TENANTS {
        accept(&store, session, tenant).await;
    }
    store.close().await;
    session
}

async fn all_open(store: &Sqlite, session: Session) {
    for tenant in 1..=TENANTS {
        let found = store.message(id(session, tenant)).await.expect("it opens").expect("it is there");
        assert_eq!(found.body, format!("body {tenant}"));
    }
}

/// Copies the files as a crash would leave them. The store's threads run meanwhile: an open read transaction keeps the
/// log from restarting, and the log is copied last, so it has all changes that the copy of the database lacks.
fn crashed(folder: &Path) -> TempDir {
    let copy = tempfile::tempdir().expect("a folder");
    let reader = Connection::open(folder.join("posthaste.db")).expect("the file opens");
    reader.execute_batch("BEGIN; SELECT count(*) FROM meta").expect("it reads");
    let files = fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").file_name());
    let (log, others): (Vec<_>, Vec<_>) = files.partition(|name| name == "posthaste.db-wal");
    for name in others.iter().chain(&log).filter(|name| *name != "posthaste.db-shm") {
        fs::copy(folder.join(name), copy.path().join(name)).expect("a copy");
    }
    copy
}

/// How many values wrapped by this master key are in the files. Each begins with its version and the key's number.
fn wrapped_by(key: &MasterKey, folder: &Path) -> usize {
    let number = u32::from_str_radix(&key.id().to_string(), 16).expect("a number in hexadecimal digits");
    let begins = [&[1][..], &number.to_be_bytes()].concat();
    let files = ["posthaste.db", "posthaste.db-wal"].map(|name| fs::read(folder.join(name)).unwrap_or_default());
    files.iter().map(|bytes| bytes.windows(begins.len()).filter(|window| *window == begins).count()).sum()
}

#[tokio::test]
async fn rotation_survives_a_crash_at_every_step_and_removes_the_old_key() {
    let (folder, [old, new]) = (tempfile::tempdir().expect("a folder"), [(); 2].map(|()| MasterKey::generate()));
    let session = filled(folder.path(), &old).await;
    assert!(wrapped_by(&old, folder.path()) as u64 > TENANTS);
    let store = open(folder.path(), &[&old]).expect("it opens");
    let now = store.open(NOW).await.expect("a session").session;
    store.offer(copy(&new), None);
    let mut steps = 0;
    while store.rotation().await.expect("it reads").is_under_way() {
        store.rotate(now, NOW).await.expect("a step");
        steps += 1;
        // A new tenant is added at each step.
        accept(&store, now, 1_000 + steps).await;
        let crashed = crashed(folder.path());
        let needed = rotation::status(crashed.path()).expect("it reads");
        if needed.is_under_way() {
            assert!(open(crashed.path(), &[&new]).is_err(), "step {steps}: the old key is needed");
        } else {
            assert_eq!(wrapped_by(&old, crashed.path()), 0, "step {steps}");
            assert!(open(crashed.path(), &[&old]).is_err(), "step {steps}: the new key is needed");
        }
        let again = open(crashed.path(), &[&new, &old]).expect("it opens with both");
        all_open(&again, session).await;
        let third = again.open(NOW).await.expect("a session").session;
        while again.rotation().await.expect("it reads").is_under_way() {
            again.rotate(third, NOW).await.expect("a step");
        }
        again.close().await;
        assert_eq!(wrapped_by(&old, crashed.path()), 0, "a rotation continued after step {steps}");
        let again = open(crashed.path(), &[&new]).expect("it opens with the newer key alone");
        all_open(&again, session).await;
        assert!(again.message(id(now, 1_000 + steps)).await.expect("it opens").is_some());
    }
    assert!(steps >= 5, "a first step, three rewrapping steps and a last step");
    let done = store.rotation().await.expect("it reads");
    assert_eq!((done.newest, done.left), (new.id(), 0));
    assert!(done.rewrapped > TENANTS, "{done:?}");
    store.close().await;
}

#[tokio::test]
async fn a_newer_key_that_is_given_at_the_start_waits_for_the_first_step() {
    let (folder, [old, new]) = (tempfile::tempdir().expect("a folder"), [(); 2].map(|()| MasterKey::generate()));
    let session = filled(folder.path(), &old).await;
    let store = open(folder.path(), &[&new, &old]).expect("it opens");
    let offered = store.rotation().await.expect("it reads");
    assert_eq!((offered.newest, offered.offered), (old.id(), Some(new.id())));
    let now = store.open(NOW).await.expect("a session").session;
    accept(&store, now, 7_777).await;
    store.close().await;
    let store = open(folder.path(), &[&old]).expect("nothing needs the newer key yet");
    all_open(&store, session).await;
    store.close().await;
}

#[tokio::test]
async fn key_made_before_a_rotation_and_written_after_it_is_wrapped_by_the_newer() {
    let (folder, [old, new]) = (tempfile::tempdir().expect("a folder"), [(); 2].map(|()| MasterKey::generate()));
    filled(folder.path(), &old).await;
    let store = open(folder.path(), &[&old]).expect("it opens");
    let now = store.open(NOW).await.expect("a session").session;
    // This accept fails after its tenant's key was made, which leaves a key in memory that is not on disk.
    let mut twice = Message::new(id(now, 1), TenantId::from_raw(5_000), NOW, "one");
    twice.subject = Some("x".repeat(8));
    let same = || Accepted::new(twice.clone(), Vec::new());
    assert!(store.accept(now, vec![same(), same()]).await.is_err(), "the same id twice");
    store.offer(copy(&new), None);
    while store.rotation().await.expect("it reads").is_under_way() {
        store.rotate(now, NOW).await.expect("a step");
    }
    store.accept(now, vec![same()]).await.expect("it is accepted");
    store.close().await;
    assert_eq!(wrapped_by(&old, folder.path()), 0);
    let store = open(folder.path(), &[&new]).expect("it opens");
    assert!(store.message(id(now, 1)).await.expect("it opens").is_some());
    store.close().await;
}
