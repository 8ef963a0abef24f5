//! How much CPU the SQLite store spends on a delivery: many callers accept one message each, one
//! loop settles whatever has arrived, as the engine does.
//!
//! `cargo run --release -p posthaste-store --example store_speed [SECONDS] [CALLERS…]`

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use posthaste_core::cause::Cause;
use posthaste_core::delivery::Delivery;
use posthaste_core::id::{DeliveryId, Key, LaneId, MessageId, Shard, TenantId};
use posthaste_core::policy::Policy;
use posthaste_core::queue::{LaneSettings, Place, Record};
use posthaste_core::state::State;
use posthaste_core::tier::Tier;
use posthaste_core::time::Timestamp;
use posthaste_store::sqlite::Sqlite;
use posthaste_store::{Accepted, Arrival, Attempt, Message, NewDelivery, Session, Settlement, Store, StoreError};
use tokio::task::JoinSet;

const BODY_BYTES: usize = 1024;
const LANES: u64 = 1_000;
const NOW: Timestamp = Timestamp::from_millis(1_760_000_000_000);

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|arg| arg.parse::<u64>().ok());
    let time = Duration::from_secs(args.next().unwrap_or(5));
    let callers: Vec<u64> = args.collect();
    let callers = if callers.is_empty() { vec![64, 256] } else { callers };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    for callers in callers {
        runtime.block_on(measure(callers, time));
    }
}

#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
async fn measure(callers: u64, time: Duration) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Arc::new(Sqlite::open_folder(folder.path()).expect("a fresh folder opens"));
    let session = store.open().await.expect("a fresh store opens").session;
    let work =
        Arc::new(Work { session, next: AtomicU64::new(1), lanes: lanes(), body: Bytes::from(vec![b'x'; BODY_BYTES]) });

    let (cpu, began) = (cpu_by_thread(), Instant::now());
    let accepting = (0..callers).map(|_| {
        let (store, work) = (Arc::clone(&store), Arc::clone(&work));
        async move {
            while began.elapsed() < time {
                store.accept(session, vec![work.message()]).await.expect("it is accepted");
            }
        }
    });
    let mut tasks: JoinSet<()> = accepting.collect();
    let settled = Arc::new(AtomicU64::new(0));
    let groups = Arc::new(AtomicU64::new(0));
    let mut settling: JoinSet<()> = JoinSet::from_iter([{
        let (store, settled, groups) = (Arc::clone(&store), Arc::clone(&settled), Arc::clone(&groups));
        async move {
            loop {
                let arrived = store.arrivals().await;
                let count = arrived.len() as u64;
                settle(&store, session, &arrived).await.expect("it is settled");
                settled.fetch_add(count, Ordering::Relaxed);
                groups.fetch_add(1, Ordering::Relaxed);
            }
        }
    }]);
    while tasks.join_next().await.is_some() {}
    let count = settled.load(Ordering::Relaxed).max(1);
    let took = began.elapsed();
    let spent = difference(&cpu, &cpu_by_thread());
    settling.shutdown().await;
    store.close().await;
    report(callers, count, groups.load(Ordering::Relaxed), took, &spent);
}

struct Work {
    session: Session,
    next: AtomicU64,
    lanes: Vec<Arc<LaneSettings>>,
    body: Bytes,
}

impl Work {
    fn message(&self) -> Accepted {
        let seq = self.next.fetch_add(2, Ordering::Relaxed);
        let id = MessageId(Key::new(self.session.writer, seq));
        let lane = Arc::clone(&self.lanes[usize::try_from(seq % LANES).expect("below the number of lanes")]);
        let delivery = Delivery::queued(DeliveryId(id.0.plus(1)), id, lane.lane, Tier::Promotional, NOW);
        let message = Message {
            id,
            tenant: lane.tenant,
            at: NOW,
            event_type: Some("invoice.paid".to_owned()),
            correlation_id: "msg_0123456789abcdefghjkmnpqrstvwxyz0123".to_owned(),
            body: self.body.clone(),
            compact: None,
        };
        let new = NewDelivery { delivery, place: Place::Ready, lane };
        Accepted { message: Arc::new(message), deliveries: vec![new], idempotency: None }
    }
}

fn lanes() -> Vec<Arc<LaneSettings>> {
    let policy = Arc::new(Policy::default());
    let lane = |n| LaneSettings::new(LaneId::from_raw(1 << 40 | n), TenantId::from_raw(1), Arc::clone(&policy));
    (0..LANES).map(|n| Arc::new(lane(n))).collect()
}

async fn settle(store: &Sqlite, session: Session, arrived: &[Arrival]) -> Result<(), StoreError> {
    let settlements = arrived.iter().map(|arrival| {
        let mut delivery = arrival.new.delivery.clone();
        let shard = Shard::of(delivery.lane);
        delivery.state = State::Delivered { at: NOW };
        delivery.attempts = 1;
        let took = Duration::from_millis(20);
        Settlement {
            record: Record {
                delivery,
                attempts_before: 0,
                place: Place::Delayed,
                shard,
                pauses_lane: false,
                ends_endpoint: false,
            },
            epoch: session.epoch,
            attempt: Some(Attempt { number: 1, at: NOW, took, cause: Cause::Ok, status: Some(200) }),
        }
    });
    store.settle(session, settlements.collect()).await.map(|_| ())
}

/// Nanoseconds on a CPU by the thread's name.
fn cpu_by_thread() -> BTreeMap<String, u64> {
    let mut spent = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task").expect("Linux has /proc").flatten() {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let stat = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let nanos: u64 = stat.split_whitespace().next().and_then(|field| field.parse().ok()).unwrap_or(0);
        *spent.entry(name.trim().to_owned()).or_insert(0) += nanos;
    }
    spent
}

fn difference(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    after.iter().map(|(name, spent)| (name.clone(), spent - before.get(name).unwrap_or(&0).min(spent))).collect()
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn report(callers: u64, count: u64, groups: u64, took: Duration, spent: &BTreeMap<String, u64>) {
    let each = |nanos: u64| nanos as f64 / count as f64 / 1_000.0;
    let total: u64 = spent.values().sum();
    println!(
        "{callers} callers: {:.0} deliveries/s, {:.1} µs CPU each, {:.0} settled at a time",
        count as f64 / took.as_secs_f64(),
        each(total),
        count as f64 / groups.max(1) as f64,
    );
    for (name, nanos) in spent.iter().filter(|(_, nanos)| **nanos > 0) {
        println!("    {name:16} {:6.2} µs", each(*nanos));
    }
}
