//! Retention returns free space: the file is then about as large as one that never held more data.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Cause, Delivery, DeliveryChange, DeliveryId, EndpointId, Key, LaneId, LaneSettings, MessageId, RowIndex, Shard,
    State, TenantId, Tier, Timestamp,
};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{
    Accepted, Archive, AttemptRecord, Message, NewDelivery, Outbox, Retention, RetentionStep, Session, Settlement,
};

use super::new_folder;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const ENDPOINT: EndpointId = EndpointId::from_raw(7);
const LANE: LaneId = LaneId::from_raw(1);

fn day(day: u32) -> Timestamp {
    Timestamp::from_millis(1_760_000_000_000) + day * DAY
}

struct Filled {
    store: Sqlite,
    session: Session,
    next: u64,
}

impl Filled {
    async fn open(path: &Path) -> Self {
        let store = Sqlite::open_folder(path, crate::master_key()).expect("a fresh folder opens");
        let session = store.open(day(0)).await.expect("a session begins").session;
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
        let ends: Vec<Settlement> = deliveries
            .into_iter()
            .enumerate()
            .map(|(n, delivery)| {
                let dead = State::Dead { at, cause: Cause::NotFound };
                let state = if n % 2 == 0 { State::Delivered { at } } else { dead };
                let attempt =
                    AttemptRecord { number: 1, at, took: Duration::ZERO, cause: Cause::Ok, status: Some(200) };
                Settlement {
                    record: DeliveryChange {
                        delivery: Delivery { state, attempts: 1, ..delivery },
                        attempts_before: 0,
                        place: RowIndex::Ready,
                        shard: Shard::of(LANE),
                        pauses_lane: false,
                        endpoint_change: None,
                    },
                    epoch: self.session.epoch,
                    excerpt: None,
                    attempt: Some(attempt),
                }
            })
            .collect();
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
    let mut step = Some(RetentionStep::START);
    let mut steps = 0;
    while let Some(next) = step {
        step =
            filled.store.retain(filled.session, retention, day(41), next, Vec::new()).await.expect("it retains").next;
        steps += 1;
    }
    assert!(steps > 20, "only {steps} steps: they are too large");
    let shrunk = filled.bytes(folder.path()).await;

    let mut fresh = Filled::open(fresh_folder.path()).await;
    fresh.accept(300, day(40)).await;
    let fresh = fresh.bytes(fresh_folder.path()).await;
    assert!(shrunk * 10 <= fresh * 13, "the file has {shrunk} bytes, a fresh one {fresh}");
}
