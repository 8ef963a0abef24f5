//! The data folder: data, and with it cuts, survives a restart, and only one process may open it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::{
    Cause, Cut, CutScope, Delivery, DeliveryId, EndpointId, Key, LaneId, MessageId, RowIndex, State, TenantId, Tier,
};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{
    Accepted, Archive, AuditStamp, Directory, Document, DocumentKind, Endpoint, Filed, Message, NewDelivery, Outbox,
    Pause, PauseScope, Query, Register, Session, Settled, Settlement, SigningSecret, StoreError, WebhookTarget,
};

use crate::{NOW, ended, new_folder, open, opened};

#[tokio::test]
async fn everything_is_found_again_after_a_restart() {
    let folder = new_folder();
    let (store, session) = opened(folder.path()).await;
    let id_key = store.id_key();
    _ = store.put_endpoint(session, endpoint(5), None, AuditStamp::at(NOW)).await.expect("an endpoint is put");
    let (waiting, over) = (message(session, 1), message(session, 3));
    store.accept(session, vec![waiting.clone(), over.clone()]).await.expect("both are accepted");
    let settled = store.settle(session, vec![delivered(session, &over)]).await.expect("it is settled");
    assert_eq!(settled, [Settled::Done]);
    store.spill(session, vec![id(&waiting)]).await.expect("it is spilled");
    let pause = Pause::new(PauseScope::Tenant(TenantId::from_raw(9)), Some(NOW));
    store.pause(session, pause.clone(), NOW).await.expect("a pause is recorded");
    let scope = CutScope::Lane(LaneId::from_raw(99));
    let cut = Cut::new(scope, Key::from_raw(4), Cause::Cancelled, NOW);
    store.cut(session, cut.clone(), None).await.expect("a cut is put in force");
    let policy = Document {
        kind: DocumentKind::Policy,
        id: Key::from_raw(40),
        tenant: TenantId::from_raw(9),
        name: Some("payments".to_owned()),
        at: NOW,
        body: Bytes::from_static(b"its content"),
    };
    let filed = store.file(session, policy.clone(), None, AuditStamp::at(NOW)).await;
    assert_eq!(filed.expect("a policy is filed"), Filed::Done);
    drop(store);

    let store = open(folder.path());
    assert_eq!(store.id_key(), id_key, "public ids stay readable");
    let before_open = store.accept(session, vec![message(session, 7)]).await;
    assert!(matches!(before_open, Err(StoreError::Fenced { .. })), "a session ends with its process");
    let start = store.open(NOW).await.expect("it opens again");
    assert!(start.session.id > session.id && start.session.writer > session.writer);
    assert_eq!((start.cuts, start.pauses), (vec![cut], vec![pause]));
    assert_eq!(start.spilled, [(LaneId::from_raw(5), Tier::Promotional)]);
    let found = store.endpoint(endpoint(5).id).await.expect("a read");
    assert_eq!(found.as_deref(), Some(&endpoint(5)));
    let found = store.document_named(policy.kind, policy.tenant, "payments".to_owned()).await.expect("a read");
    assert_eq!(found, Some(policy));
    assert_eq!(store.message(waiting.message.id).await.expect("a read"), Some(waiting.message.clone()));
    let row = store.page(Query::One(id(&waiting)), 1, NOW).await.expect("a read").rows.remove(0);
    assert_eq!((row.delivery, row.place), (waiting.deliveries[0].delivery.clone(), RowIndex::Spilled));
    let shown = store.delivery(id(&over), NOW).await.expect("a read").expect("it is known");
    assert_eq!(shown.delivery.state, State::Delivered { at: NOW });
    assert_eq!(shown.attempts.len(), 1);
}

#[tokio::test]
async fn acknowledged_writes_survive_a_killed_process() {
    let (folder, copy) = (new_folder(), new_folder());
    let (store, session) = opened(folder.path()).await;
    for seq in 0..50 {
        store.accept(session, vec![message(session, 1 + seq * 2)]).await.expect("it is accepted");
        let settled = store.settle(session, vec![delivered(session, &message(session, 1 + seq * 2))]).await;
        assert_eq!(settled.expect("it is settled"), [Settled::Done]);
    }
    let last = message(session, 201);
    store.accept(session, vec![last.clone()]).await.expect("it is accepted");
    // A killed process leaves the files as they are, without a clean close and without locks.
    for file in ["posthaste.db", "posthaste.db-wal"] {
        fs::copy(folder.path().join(file), copy.path().join(file)).expect("the file is there");
    }
    let survivor = open(copy.path());
    let start = survivor.open(NOW).await.expect("it opens");
    let query = Query::Left { after: None, before: start.session.writer };
    let left = survivor.page(query, 10, NOW).await.expect("a read").rows;
    assert_eq!(left.iter().map(|row| row.delivery.id).collect::<Vec<_>>(), [id(&last)]);
    for seq in 0..50 {
        let shown = survivor.delivery(id(&message(session, 1 + seq * 2)), NOW).await.expect("a read");
        assert_eq!(shown.expect("it is known").delivery.state, State::Delivered { at: NOW });
    }
}

#[tokio::test]
async fn a_folder_that_is_open_is_refused_to_others() {
    let folder = new_folder();
    let store = open(folder.path());
    let refused = Sqlite::open_folder(folder.path(), crate::master_key()).expect_err("it is taken").to_string();
    assert_eq!(
        refused,
        format!(
            "cannot use the data folder {}: process {} has it open; stop that one, or give this one a folder of its own",
            folder.path().display(),
            std::process::id()
        )
    );
    store.close().await;
    open(folder.path());
}

#[test]
fn files_are_private_and_an_existing_folder_keeps_its_permissions() {
    let parent = new_folder();
    for (name, made_before) in [("made", false), ("found", true)] {
        let path = parent.path().join(name).join("deeper");
        if made_before {
            fs::create_dir_all(&path).expect("a folder");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("our own folder");
        }
        drop(open(&path));
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode(&path), if made_before { 0o755 } else { 0o700 }, "{name}");
        assert_eq!(mode(&path.join("posthaste.db")), 0o600, "{name}");
    }
    let file = parent.path().join("file");
    fs::write(&file, b"").expect("a file");
    let refused = Sqlite::open_folder(&file, crate::master_key()).expect_err("it is no folder").to_string();
    assert!(refused.starts_with("cannot use the data folder"), "{refused}");
}

#[test]
fn database_file_has_the_intended_settings() {
    let folder = new_folder();
    drop(open(folder.path()));
    let conn = rusqlite::Connection::open(folder.path().join("posthaste.db")).expect("the file is there");
    let pragma = |name: &str| conn.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0));
    assert_eq!(pragma("page_size"), Ok(8192));
    assert_eq!(pragma("auto_vacuum"), Ok(2), "incremental");
    let journal: String = conn.query_row("PRAGMA journal_mode", [], |row| row.get(0)).expect("a mode");
    assert_eq!(journal, "wal");
    let indexes: Vec<String> = conn
        .prepare("SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'delivery' ORDER BY name")
        .and_then(|mut sql| sql.query_map([], |row| row.get(0))?.collect())
        .expect("the schema");
    let expected = ["delivery_collapse", "delivery_late", "delivery_spill"];
    assert_eq!(indexes, expected, "an index that contains fresh rows costs several times the rest of a delivery");
}

#[tokio::test]
async fn a_bad_request_fails_alone_and_as_a_whole() {
    let folder = new_folder();
    let (store, session) = opened(folder.path()).await;
    let store = Arc::new(store);
    store.accept(session, vec![message(session, 1)]).await.expect("it is accepted");
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..40 {
        let store = Arc::clone(&store);
        let mut batch = vec![message(session, 101 + n * 4)];
        if n == 20 {
            batch.push(message(session, 1)); // a duplicate id
        }
        calls.spawn(async move { (n, store.accept(session, batch).await) });
    }
    while let Some(answer) = calls.join_next().await {
        let (n, answer) = answer.expect("no call panics");
        assert_eq!(answer.is_err(), n == 20, "call {n}: {answer:?}");
        if let Err(error) = answer {
            assert_eq!(error.to_string(), "cannot accept messages");
        }
        let kept = store.message(message(session, 101 + n * 4).message.id).await.expect("a read");
        assert_eq!(kept.is_some(), n != 20, "call {n}");
    }
    let mut arrived = 0;
    while arrived < 40 {
        arrived += store.arrivals().await.len();
    }
    assert_eq!(arrived, 40, "a refused message does not arrive");
}

#[tokio::test]
async fn a_writer_that_failed_writes_nothing_more_and_says_why() {
    let folder = new_folder();
    let (store, session) = opened(folder.path()).await;
    let first = message(session, 1);
    store.accept(session, vec![first.clone()]).await.expect("it is accepted");
    assert_eq!(store.stopped(), None);
    let attacker = rusqlite::Connection::open(folder.path().join("posthaste.db")).expect("the file is there");
    attacker.execute_batch("DROP TABLE outcome").expect("nothing protects it");
    let settled = store.settle(session, vec![delivered(session, &first)]).await;
    assert!(matches!(settled, Err(StoreError::Stopped)), "{settled:?}");
    attacker.execute_batch("CREATE TABLE outcome (id)").expect("it was dropped");
    let next = store.accept(session, vec![message(session, 3)]).await;
    assert!(matches!(next, Err(StoreError::Stopped)), "it stops for good: {next:?}");
    let reason = store.stopped().expect("it keeps the reason");
    assert!(reason.starts_with("cannot settle deliveries: ") && reason.contains("outcome"), "{reason}");
    assert_eq!(store.arrivals().await.len(), 1, "an earlier accept still arrives");
    assert!(store.arrivals().await.is_empty(), "an empty result says that no more arrivals will come");
    let row = store.page(Query::One(id(&first)), 1, NOW).await.expect("reads still work");
    assert_eq!(row.rows[0].delivery, first.deliveries[0].delivery, "nothing of the failed group is left");
}

#[tokio::test]
async fn cut_whose_rows_cannot_be_counted_is_in_force() {
    let folder = new_folder();
    let (store, session) = opened(folder.path()).await;
    // The follower must not write into the table that is dropped next.
    store.catch_up().await.expect("the follower catches up");
    let conn = rusqlite::Connection::open(folder.path().join("posthaste.db")).expect("the file is there");
    conn.execute_batch("DROP TABLE queue_count").expect("it is there");
    let scope = CutScope::Lane(LaneId::from_raw(3));
    let cut = Cut::new(scope, Key::from_raw(1), Cause::Unsubscribed, NOW);
    assert_eq!(store.cut(session, cut, None).await.expect("it is in force"), 0);
    let cuts = store.open(NOW).await.expect("the next session").cuts;
    assert_eq!(cuts.iter().map(|cut| cut.scope).collect::<Vec<_>>(), [scope]);
}

#[tokio::test]
async fn a_closed_store_answers_that_it_has_stopped() {
    let folder = new_folder();
    let (store, session) = opened(folder.path()).await;
    store.accept(session, vec![message(session, 1)]).await.expect("it is accepted");
    store.close().await;
    store.close().await;
    assert!(!folder.path().join("posthaste.db-wal").exists(), "it leaves one tidy file");
    assert!(matches!(store.accept(session, vec![message(session, 3)]).await, Err(StoreError::Stopped)));
    assert!(matches!(store.message(message(session, 1).message.id).await, Err(StoreError::Stopped)));
    let again = open(folder.path());
    again.open(NOW).await.expect("the folder is free");
    assert!(again.message(message(session, 1).message.id).await.expect("a read").is_some());
}

#[tokio::test]
async fn store_closed_with_a_full_arrival_queue_answers_all_callers() {
    let folder = new_folder();
    let (store, session) = opened(folder.path()).await;
    let large = message(session, 1);
    // Fills the arrival queue, so that the next accept waits until the arrivals are fetched.
    let body = Bytes::from(vec![b'x'; 64 << 20]);
    let large = Accepted { message: Arc::new(Message { body, ..(*large.message).clone() }), ..large };
    store.accept(session, vec![large]).await.expect("it is accepted");
    let next = || tokio::time::timeout(Duration::from_secs(20), store.accept(session, vec![message(session, 3)]));
    let (waited, ()) = tokio::join!(next(), store.close());
    assert!(matches!(waited, Ok(Err(StoreError::Stopped))), "the waiting call: {waited:?}");
    let late = next().await;
    assert!(matches!(late, Ok(Err(StoreError::Stopped))), "a later call: {late:?}");
}

/// A message with one ready delivery to lane 5.
pub(super) fn message(session: Session, seq: u64) -> Accepted {
    let message = MessageId(Key::new(session.writer, seq));
    let (id, to) = (DeliveryId(message.0.plus(1)), endpoint(5));
    let delivery = Delivery::queued(id, message, to.id, to.lane, Tier::Promotional, NOW);
    let message = Message {
        correlation_id: Some(message.to_string()),
        ..Message::new(message, TenantId::from_raw(9), NOW, "{}")
    };
    let lane = Arc::new(endpoint(5).lane_settings());
    let new = NewDelivery::new(delivery, RowIndex::Ready, lane);
    Accepted::new(message, vec![new])
}

pub(super) fn id(accepted: &Accepted) -> DeliveryId {
    accepted.deliveries[0].delivery.id
}

pub(super) fn delivered(session: Session, accepted: &Accepted) -> Settlement {
    ended(session, &accepted.deliveries[0].delivery, State::Delivered { at: NOW }, NOW)
}

fn endpoint(n: u64) -> Endpoint {
    let (id, lane) = (EndpointId::from_raw(n + 70), LaneId::from_raw(n));
    let target = WebhookTarget::signing("https://example.com/", vec![SigningSecret::lasting("whsec_a")]);
    Endpoint { max_in_flight: 10, ..Endpoint::new(id, lane, TenantId::from_raw(9), NOW, target) }
}
