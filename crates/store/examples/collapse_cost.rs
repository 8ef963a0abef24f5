//! Measures what a collapse key costs per delivery: the writer thread's CPU time for accept and settle without a key,
//! with a unique key, and with a key that supersedes a waiting delivery, with few and with many pending rows.
//!
//! `cargo run --release -p posthaste-store --example collapse_cost [ROWS_BEHIND…]`

use posthaste_crypto::master::{MasterKey, Masters};
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use posthaste_core::{
    Cause, Delivery, DeliveryChange, DeliveryId, EndpointId, Key, LaneId, LaneSettings, MessageId, Policy, RowIndex,
    Shard, State, TenantId, Tier, Timestamp,
};
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Accepted, AttemptRecord, CollapseKey, Message, NewDelivery, Outbox, Session, Settlement};

const GROUP: u64 = 512;
const ROUNDS: usize = 40;
const LANES: u64 = 1_000;
const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);

fn main() {
    let behind: Vec<u64> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let behind = if behind.is_empty() { vec![10_000, 1_000_000] } else { behind };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    behind.into_iter().for_each(|rows| runtime.block_on(measure(rows)));
}

/// The kind of key the deliveries have.
#[derive(Clone, Copy)]
enum Keys {
    None,
    Own,
    /// The key of one of the `behind` pending rows.
    Taken {
        behind: u64,
    },
}

async fn measure(behind: u64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Sqlite::open_folder(folder.path(), Masters::new(MasterKey::generate())).expect("a fresh folder opens");
    let session = store.open(NOW).await.expect("a fresh store opens").session;
    let policy = Arc::new(Policy::default());
    let mut work = Work { store, session, policy, next: 1 };
    for group in 0..behind.div_ceil(4_096) {
        let count = 4_096.min(behind - group * 4_096);
        work.accept(count, |n| Some(CollapseKey(mixed(group * 4_096 + n)))).await;
    }
    for (name, keys) in [("no key", Keys::None), ("unique key", Keys::Own), ("superseding key", Keys::Taken { behind })]
    {
        // The first round warms up.
        let mut each: Vec<f64> = Vec::new();
        for round in 0..=ROUNDS as u64 {
            let before = writer_cpu();
            let from = work.next;
            let made = work
                .accept(GROUP, |n| match keys {
                    Keys::None => None,
                    Keys::Own => Some(CollapseKey(mixed(u64::MAX - from - n))),
                    Keys::Taken { behind } => Some(CollapseKey(mixed((round * GROUP + n) * 7_919 % behind))),
                })
                .await;
            work.settle(made).await;
            each.push((writer_cpu() - before) as f64 / GROUP as f64 / 1_000.0);
        }
        each.remove(0);
        each.sort_by(f64::total_cmp);
        println!("{behind} pending, {name}: {:.1} µs of the writer's CPU a delivery", each[each.len() / 2]);
    }
    work.store.close().await;
}

struct Work {
    store: Sqlite,
    session: Session,
    policy: Arc<Policy>,
    next: u64,
}

impl Work {
    async fn accept(&mut self, count: u64, key: impl Fn(u64) -> Option<CollapseKey>) -> Vec<Delivery> {
        let messages: Vec<Accepted> = (0..count).map(|n| self.message(key(n))).collect();
        let made = messages.iter().map(|accepted| accepted.deliveries[0].delivery.clone()).collect();
        self.store.accept(self.session, messages).await.expect("they are accepted");
        self.store.arrivals().await;
        made
    }

    /// Equal keys get the same lane.
    fn message(&mut self, collapse: Option<CollapseKey>) -> Accepted {
        let id = MessageId(Key::new(self.session.writer, self.next));
        self.next += 2;
        let lane = LaneId::from_raw((1 << 40) + collapse.map_or(self.next, |key| key.0) % LANES);
        let delivery = Delivery::queued(DeliveryId(id.0.plus(1)), id, EndpointId(lane.0), lane, Tier::Promotional, NOW);
        let settings = LaneSettings::new(lane, TenantId::from_raw(1), Arc::clone(&self.policy));
        let message = Message::new(id, TenantId::from_raw(1), NOW, Bytes::from_static(&[b'x'; 200]));
        let new = NewDelivery { delivery, place: RowIndex::Ready, lane: Arc::new(settings), collapse };
        Accepted::new(message, vec![new])
    }

    async fn settle(&self, made: Vec<Delivery>) {
        let settlements = made.into_iter().map(|delivery| Settlement {
            record: DeliveryChange {
                shard: Shard::of(delivery.lane),
                delivery: Delivery { state: State::Delivered { at: NOW }, attempts: 1, ..delivery },
                attempts_before: 0,
                place: RowIndex::Delayed,
                pauses_lane: false,
                endpoint_change: None,
            },
            epoch: self.session.epoch,
            excerpt: None,
            attempt: Some(AttemptRecord {
                number: 1,
                at: NOW,
                took: Duration::ZERO,
                cause: Cause::Ok,
                status: Some(200),
            }),
        });
        self.store.settle(self.session, settlements.collect()).await.expect("they are settled");
    }
}

/// Pseudo-random numbers, the same in every run.
fn mixed(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (n ^ (n >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB)
}

/// CPU time of the writer thread in nanoseconds.
fn writer_cpu() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux has /proc").flatten();
    let writer = tasks
        .map(|task| task.path())
        .find(|path| fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "store-writer"));
    let stat = writer.and_then(|path| fs::read_to_string(path.join("schedstat")).ok()).unwrap_or_default();
    stat.split_whitespace().next().and_then(|field| field.parse().ok()).unwrap_or(0)
}
