//! An attacker who can write the database file but lacks the key: rows and payloads they forge are never accepted (L2).

use std::time::Duration;

use posthaste_core::{Cause, DeliveryId, RowIndex, State, Timestamp};
use posthaste_store::sqlite::{RETRY_TOKEN_TTL, Sqlite, Tokens};
use posthaste_store::{
    Accepted, Archive, AttemptRecord, Outbox, Query, Session, Settled, Settlement, StoreError, Token,
};
use rusqlite::Connection;
use rusqlite::types::Value;
use tempfile::TempDir;

use super::folder::{delivered, id, message};
use super::{NOW, new_folder, opened};

const DUE: Timestamp = Timestamp::from_millis(1_760_000_060_000);

/// A store, and an attacker's connection to its file.
struct Tampered {
    folder: TempDir,
    store: Sqlite,
    session: Session,
    attacker: Connection,
}

impl Tampered {
    async fn new() -> Self {
        let folder = new_folder();
        let (store, session) = opened(folder.path()).await;
        let attacker = Connection::open(folder.path().join("posthaste.db")).expect("the file is there");
        attacker.execute_batch("PRAGMA ignore_check_constraints = ON").expect("nothing protects it");
        Self { folder, store, session, attacker }
    }

    /// A message whose delivery was tried once and waits.
    async fn waiting(&self, seq: u64) -> Accepted {
        let accepted = message(self.session, seq);
        self.store.accept(self.session, vec![accepted.clone()]).await.expect("it is accepted");
        self.settle(self.retry(&accepted, 0, DUE)).await;
        accepted
    }

    fn retry(&self, accepted: &Accepted, before: u16, due: Timestamp) -> Settlement {
        let mut settlement = delivered(self.session, accepted);
        let delivery = &mut settlement.record.delivery;
        delivery.state = State::Retry { due, cause: Cause::Unavailable };
        delivery.attempts = before + 1;
        delivery.last_cause = Some(Cause::Unavailable);
        delivery.previous_wait = Some(Duration::from_secs(60));
        settlement.record.attempts_before = before;
        settlement.record.place = RowIndex::Delayed;
        let took = Duration::from_millis(20);
        let number = before + 1;
        settlement.attempt =
            Some(AttemptRecord { number, at: NOW, took, cause: Cause::Unavailable, status: Some(503) });
        settlement
    }

    async fn settle(&self, settlement: Settlement) {
        let settled = self.store.settle(self.session, vec![settlement]).await.expect("it is settled");
        assert_eq!(settled, [Settled::Done]);
    }

    async fn token(&self, id: DeliveryId, now: Timestamp) -> Option<Token> {
        let page = self.store.page(Query::One(id), 1, now).await.expect("a read");
        page.rows.first().map(|row| row.token)
    }

    fn tamper(&self, sql: &str) {
        self.attacker.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

#[tokio::test]
async fn a_row_that_was_changed_in_any_column_but_its_place_is_rejected() {
    let world = Tampered::new().await;
    let id = id(&world.waiting(1).await);
    assert_eq!(world.token(id, NOW).await, Some(Token::Valid));
    let changes = [
        ("back", "back + 1"),
        ("endpoint", "endpoint + 1"),
        ("lane", "lane + 1"),
        ("tier", "2 - tier * 2"),
        ("due_ms", "due_ms - 1"),
        ("cause", "cause + 1"),
        ("attempts", "attempts + 1"),
        ("attempts", "0"),
        ("born_ms", "born_ms + 1"),
        ("previous_wait_us", "NULL"),
        ("limited_in_a_row", "4"),
        ("last_cause", "NULL"),
        ("ack_within_us", "1000"),
        ("compact", "1"),
        ("mac", "zeroblob(16)"),
        ("mac", "substr(mac, 1, 15)"),
        ("mac", "zeroblob(17)"),
    ];
    for (column, to) in changes {
        let was: Value = world
            .attacker
            .query_row(&format!("SELECT {column} FROM delivery"), [], |row| row.get(0))
            .expect("there is one row");
        world.tamper(&format!("UPDATE delivery SET {column} = {to}"));
        assert_eq!(world.token(id, NOW).await, Some(Token::Rejected), "{column} = {to}");
        world.attacker.execute(&format!("UPDATE delivery SET {column} = ?1"), [was]).expect("it is put back");
        assert_eq!(world.token(id, NOW).await, Some(Token::Valid), "{column} restored");
    }
    for together in
        ["state = 2, cause = NULL", "expiry = 1, expires_ms = 9000000000000000", "id = id + 1, back = back + 1"]
    {
        world.tamper("CREATE TEMP TABLE old AS SELECT * FROM delivery");
        world.tamper(&format!("UPDATE delivery SET {together}"));
        let moved = DeliveryId(if together.starts_with("id") { id.0.plus(1) } else { id.0 });
        assert_eq!(world.token(moved, NOW).await, Some(Token::Rejected), "{together}");
        world.tamper("DELETE FROM delivery; INSERT INTO delivery SELECT * FROM old; DROP TABLE old");
    }
    world.store.spill(world.session, vec![id]).await.expect("it is spilled");
    assert_eq!(world.token(id, NOW).await, Some(Token::Valid), "a row may move");
    assert_eq!(world.store.tokens(), Tokens::default(), "reads do not count as rejections");
}

#[tokio::test]
async fn a_late_row_is_renewed_unless_its_delivery_has_moved_on() {
    let world = Tampered::new().await;
    let accepted = world.waiting(1).await;
    let id = id(&accepted);
    let over = DUE + RETRY_TOKEN_TTL;
    assert_eq!(world.token(id, over).await, Some(Token::Valid));
    assert_eq!(world.token(id, over + Duration::from_millis(1)).await, Some(Token::Renewed));
    assert_eq!(world.store.tokens(), Tokens { renewed: 1, rejected: 0 });
    world.tamper("CREATE TEMP TABLE old AS SELECT * FROM delivery");
    world.settle(world.retry(&accepted, 1, DUE)).await;
    assert_eq!(world.token(id, Timestamp::MAX).await, Some(Token::Renewed));
    world.tamper("REPLACE INTO delivery SELECT * FROM old");
    assert_eq!(world.token(id, Timestamp::MAX).await, Some(Token::Rejected), "it had a second attempt since");
}

#[tokio::test]
async fn row_put_back_after_its_end_is_rejected_and_removed() {
    let world = Tampered::new().await;
    let accepted = world.waiting(1).await;
    let id = id(&accepted);
    world.tamper("CREATE TEMP TABLE old AS SELECT * FROM delivery");
    let mut end = delivered(world.session, &accepted);
    (end.record.attempts_before, end.record.delivery.attempts) = (1, 2);
    world.settle(end.clone()).await;
    world.tamper("INSERT INTO delivery SELECT * FROM old");
    assert_eq!(world.token(id, NOW).await, Some(Token::Rejected));
    end.record.delivery.state = State::Dead { at: NOW, cause: Cause::TokenRejected };
    end.attempt = None;
    let settled = world.store.settle(world.session, vec![end]).await.expect("the writer continues");
    assert_eq!(settled, [Settled::Stale], "it has ended already");
    assert_eq!(world.token(id, NOW).await, None, "the row is gone");
    let shown = world.store.delivery(id, NOW).await.expect("a read").expect("it is known");
    assert_eq!(shown.delivery.state, State::Delivered { at: NOW });
}

#[tokio::test]
async fn quarantined_delivery_is_counted_once_recorded() {
    let world = Tampered::new().await;
    let accepted = world.waiting(1).await;
    let mut end = delivered(world.session, &accepted);
    end.record.delivery.state = State::Dead { at: NOW, cause: Cause::TokenRejected };
    (end.record.attempts_before, end.record.delivery.attempts, end.attempt) = (1, 1, None);
    world.settle(end.clone()).await;
    assert_eq!(world.store.tokens(), Tokens { renewed: 0, rejected: 1 });
    let again = world.store.settle(world.session, vec![end]).await.expect("it is answered");
    assert_eq!((again.as_slice(), world.store.tokens().rejected), ([Settled::Stale].as_slice(), 1));
}

#[tokio::test]
async fn message_opens_only_at_its_own_place() {
    let world = Tampered::new().await;
    let (one, other) = (world.waiting(1).await, world.waiting(3).await);
    world.tamper("UPDATE message SET at_ms = at_ms + 1, event_type = NULL");
    let read = world.store.message(one.message.id).await.expect("it opens");
    assert_eq!(read.as_ref(), Some(&one.message), "the sealed fields count, not the columns used for lists");
    for column in ["body", "head"] {
        let swap = format!(
            "CREATE TEMP TABLE old AS SELECT id, {column} AS sealed FROM message;
             UPDATE message SET {column} = (SELECT sealed FROM old WHERE old.id <> message.id);"
        );
        world.tamper(&swap);
        for accepted in [&one, &other] {
            let read = world.store.message(accepted.message.id).await;
            assert!(matches!(read, Err(StoreError::Altered { .. })), "{column}: {read:?}");
        }
        let put_back =
            format!("UPDATE message SET {column} = (SELECT sealed FROM old WHERE old.id = message.id); DROP TABLE old");
        world.tamper(&put_back);
    }
    world.tamper("UPDATE message SET body = x'01'");
    let read = world.store.message(one.message.id).await;
    assert!(matches!(read, Err(StoreError::Altered { .. })), "{read:?}");
    drop(world.folder);
}
