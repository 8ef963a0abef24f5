//! Cuts in a store whose reads fail.

use posthaste_core::{Cause, Cut, CutScope, Key, LaneId};
use posthaste_store::Outbox;
use posthaste_store::sqlite::Sqlite;

use crate::folder::NOW;
use crate::{master_key, new_folder};

#[tokio::test]
async fn cut_whose_rows_cannot_be_counted_is_in_force() {
    let folder = new_folder();
    let store = Sqlite::open_folder(folder.path(), master_key()).expect("a fresh folder opens");
    let session = store.open(NOW).await.expect("a session").session;
    // The follower must not write into the table that is dropped next.
    store.catch_up().await.expect("the follower catches up");
    let conn = rusqlite::Connection::open(folder.path().join("posthaste.db")).expect("the file is there");
    conn.execute_batch("DROP TABLE queue_count").expect("it is there");
    let scope = CutScope::Lane(LaneId::from_raw(3));
    let cut =
        Cut { scope, upto: Key::from_raw(1), cause: Cause::Unsubscribed, at: NOW, spared: Vec::new(), endpoint: None };
    assert_eq!(store.cut(session, cut, None).await.expect("it is in force"), 0);
    let cuts = store.open(NOW).await.expect("the next session").cuts;
    assert_eq!(cuts.iter().map(|cut| cut.scope).collect::<Vec<_>>(), [scope]);
}
