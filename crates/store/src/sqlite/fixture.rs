//! Stores and databases for the tests of this store.

use posthaste_core::Timestamp;
use rusqlite::Connection;
use tempfile::TempDir;

use super::{AcceptResult, Bounds, SealedAccept, Sqlite, WriteRequest};
use crate::journal::Entries;
use crate::{Acceptance, Accepted, Outbox, Session};

/// Opens the store in a folder, and begins a session.
pub(super) async fn open(folder: &TempDir, bounds: Bounds) -> (Sqlite, Session) {
    let store = Sqlite::open_bounded(folder.path(), crate::conformance::master_key_of_tests(), bounds);
    let store = store.expect("the folder opens");
    let session = store.open(Timestamp::from_millis(1_760_000_000_000)).await.expect("a session begins").session;
    (store, session)
}

/// A store in a folder of its own, and its first session.
pub(super) async fn fresh() -> (TempDir, Sqlite, Session) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (store, session) = open(&folder, Bounds::default()).await;
    (folder, store, session)
}

/// Has the writer accept messages that were sealed earlier.
pub(super) async fn accept_sealed(
    store: &Sqlite,
    session: Session,
    (messages, sealed, entries): (Vec<Accepted>, SealedAccept, Entries),
) -> Vec<Acceptance> {
    let found = AcceptResult::default();
    let request = |reply| WriteRequest::Accept { session, messages, sealed, entries, found, room: 0, reply };
    store.writer.ask(request).await.expect("it accepts").wake_rest()
}

/// An empty database with the tables of this build.
pub(super) fn database() -> Connection {
    let conn = Connection::open_in_memory().expect("memory is there");
    conn.execute_batch(&Sqlite::schema()).expect("the schema is valid");
    conn
}

/// How SQLite carries out a query, in one line.
pub(super) fn plan(sql: &str) -> String {
    let conn = database();
    let mut explain = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("the query is valid");
    let mut rows = explain.raw_query();
    let mut steps: Vec<String> = Vec::new();
    while let Some(row) = rows.next().expect("unbound parameters are null") {
        steps.push(row.get(3).expect("a step is text"));
    }
    steps.join("; ")
}
