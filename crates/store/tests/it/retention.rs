//! Retention of journal rows without a time, on both stores.

use std::time::Duration;

use posthaste_core::Timestamp;
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Archive, MemoryStore, Outbox, Pause, PauseScope, Retention, RetentionStep, Session, Store};

use super::new_folder;

const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);

/// Writes two journal rows without a time.
async fn filled(store: &impl Store) -> Session {
    let without = Timestamp::default();
    let session = store.open(without).await.expect("a session begins").session;
    store.pause(session, Pause::new(PauseScope::All, None), without).await.expect("it pauses");
    session
}

async fn retain(store: &impl Store, session: Session, now: Timestamp) {
    let mut step = Some(RetentionStep::START);
    while let Some(next) = step {
        let retained = store.retain(session, Retention::default(), now, next, Vec::new()).await;
        step = retained.expect("a step of retention").next;
    }
}

async fn numbers(store: &impl Archive) -> Vec<u64> {
    store.journal(0, 100).await.expect("the journal is read").iter().map(|row| row.number).collect()
}

#[tokio::test]
async fn journal_rows_without_a_time_do_not_expire() {
    let memory = MemoryStore::default();
    let session = filled(&memory).await;
    retain(&memory, session, NOW).await;
    assert_eq!(numbers(&memory).await, [1, 2]);

    let folder = new_folder();
    let sqlite = Sqlite::open_folder(folder.path(), crate::master_key()).expect("a fresh folder opens");
    let session = filled(&sqlite).await;
    sqlite.catch_up().await.expect("it catches up");
    retain(&sqlite, session, NOW).await;
    assert_eq!(numbers(&sqlite).await, [1, 2]);
}

#[tokio::test]
async fn rows_before_an_expired_row_are_deleted() {
    let old = NOW + Retention::default().journal + Duration::from_secs(1);
    let memory = MemoryStore::default();
    let session = filled(&memory).await;
    memory.pause(session, Pause::new(PauseScope::All, None), NOW).await.expect("it pauses");
    retain(&memory, session, old).await;
    assert_eq!(numbers(&memory).await, [3, 4], "the last row stays, followed by the announcement");

    let folder = new_folder();
    let sqlite = Sqlite::open_folder(folder.path(), crate::master_key()).expect("a fresh folder opens");
    let session = filled(&sqlite).await;
    sqlite.pause(session, Pause::new(PauseScope::All, None), NOW).await.expect("it pauses");
    sqlite.catch_up().await.expect("it catches up");
    retain(&sqlite, session, old).await;
    assert_eq!(numbers(&sqlite).await, [3, 4]);
}
