//! Retention of journal rows without a time, on both stores. Retention returns free space: the file is then about as
//! large as one that never held more data.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Cause, Delivery, DeliveryId, EndpointId, Key, LaneId, LaneSettings, MessageId, RowIndex, State, TenantId, Tier,
    Timestamp,
};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{
    Accepted, MemoryStore, Message, NewDelivery, Outbox, Pause, PauseScope, Retention, RetentionStep, Session,
    Settlement, Store,
};

use crate::{DAY, NOW, day, ended, new_folder, open, opened, retain};

/// Runs retention at `now` over two journal rows without a time, and then one of each time in `later`. Returns the
/// numbers of the rows that are left.
async fn rows_left(store: &impl Store, later: &[Timestamp], now: Timestamp, caught_up: impl AsyncFnOnce()) -> Vec<u64> {
    let without = Timestamp::default();
    let session = store.open(without).await.expect("a session begins").session;
    for at in [&[without], later].concat() {
        store.pause(session, Pause::new(PauseScope::All, None), at).await.expect("it pauses");
    }
    caught_up().await;
    retain(store, session, Retention::default(), RetentionStep::START, now).await;
    store.journal(0, 100).await.expect("the journal is read").iter().map(|row| row.number).collect()
}

/// Checks which rows are left, on both stores.
async fn check(later: &[Timestamp], now: Timestamp, expected: [u64; 2]) {
    assert_eq!(rows_left(&MemoryStore::default(), later, now, async || {}).await, expected);
    let folder = new_folder();
    let sqlite = open(folder.path());
    let caught_up = async || sqlite.catch_up().await.expect("it catches up");
    assert_eq!(rows_left(&sqlite, later, now, caught_up).await, expected);
}

#[tokio::test]
async fn journal_rows_without_a_time_do_not_expire() {
    check(&[], NOW, [1, 2]).await;
}

#[tokio::test]
async fn rows_before_an_expired_row_are_deleted() {
    // The last row stays, followed by the announcement.
    check(&[NOW], NOW + Retention::default().journal + Duration::from_secs(1), [3, 4]).await;
}

const ENDPOINT: EndpointId = EndpointId::from_raw(7);
const LANE: LaneId = LaneId::from_raw(1);

struct Filled {
    store: Sqlite,
    session: Session,
    next: u64,
}

impl Filled {
    async fn open(path: &Path) -> Self {
        let (store, session) = opened(path).await;
        Self { store, session, next: 1 }
    }

    /// Messages of 4 KiB, each with one delivery.
    async fn accept(&mut self, count: u64, at: Timestamp) -> Vec<Delivery> {
        let lane = Arc::new(LaneSettings::new(LANE, TenantId::from_raw(1), Arc::default()));
        let mut deliveries = Vec::new();
        for _ in 0..count / 100 {
            let batch = (0..100).map(|_| {
                let id = MessageId(Key::new(self.session.writer, self.next));
                self.next += 2;
                let delivery = Delivery::queued(DeliveryId(id.0.plus(1)), id, ENDPOINT, LANE, Tier::Promotional, at);
                deliveries.push(delivery.clone());
                let message = Message {
                    correlation_id: Some(id.to_string()),
                    ..Message::new(id, TenantId::from_raw(1), at, vec![7; 4096])
                };
                let new = NewDelivery::new(delivery, RowIndex::Spilled, Arc::clone(&lane));
                Accepted::new(message, vec![new])
            });
            let batch = batch.collect();
            _ = self.store.accept(self.session, batch).await.expect("it accepts");
            self.store.arrivals().await;
        }
        deliveries
    }

    /// Ends half of the deliveries as delivered, half as dead.
    async fn end(&self, deliveries: Vec<Delivery>, at: Timestamp) {
        let states = [State::Delivered { at }, State::Dead { at, cause: Cause::NotFound }].into_iter().cycle();
        let ends = deliveries.iter().zip(states).map(|(delivery, state)| ended(self.session, delivery, state, at));
        let ends: Vec<Settlement> = ends.collect();
        for batch in ends.chunks(200) {
            self.store.settle(self.session, batch.to_vec()).await.expect("it settles");
        }
    }

    async fn bytes(self, path: &Path) -> u64 {
        self.store.catch_up().await.expect("it catches up");
        self.store.close().await;
        std::fs::metadata(path.join("posthaste.db")).expect("the file is there").len()
    }
}

#[tokio::test]
async fn a_file_shrinks_to_about_what_is_left_in_it() {
    let (folder, fresh_folder) = (new_folder(), new_folder());
    let mut filled = Filled::open(folder.path()).await;
    let old = filled.accept(3_000, day(0)).await;
    filled.end(old, day(1)).await;
    filled.accept(300, day(40)).await;
    filled.store.catch_up().await.expect("it catches up");
    let retention = Retention { journal: 30 * DAY, ..Retention::default() };
    let (_, steps) = retain(&filled.store, filled.session, retention, RetentionStep::START, day(41)).await;
    assert!(steps > 20, "only {steps} steps: they are too large");
    let shrunk = filled.bytes(folder.path()).await;

    let mut fresh = Filled::open(fresh_folder.path()).await;
    fresh.accept(300, day(40)).await;
    let fresh = fresh.bytes(fresh_folder.path()).await;
    assert!(shrunk * 10 <= fresh * 13, "the file has {shrunk} bytes, a fresh one {fresh}");
}
