//! A store under load: many callers accept one message at a time, and a loop settles all arrivals.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_core::cause::Cause;
use posthaste_core::id::{Shard, WriterId};
use posthaste_core::scheduler::{DeliveryRecord, RowIndex};
use posthaste_core::state::State;
use posthaste_core::time::Timestamp;
use posthaste_crypto::LookupKey;
use posthaste_crypto::keyring::{KeyId, TenantKey};
use posthaste_crypto::spot::{Field, Object, Spot, Whose};
use posthaste_store::journal::{self, Entries, Entry, Marks};
use posthaste_store::sqlite::{Commits, Sqlite};
use posthaste_store::{Accepted, Arrival, Attempt, Outbox, Session, Settlement, StoreError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cpu::Cpu;
use crate::master_key;
use crate::prove::CannotRun;
use crate::seeder::{Mint, THEN, put_endpoints};

const BODY_BYTES: usize = 1024;
const LANES: u64 = 1_000;
/// The bytes that must be stored for a delivery from its accept to its end: the body, its event type (12 bytes), and
/// the ids and times of message, delivery and outcome (eight each).
pub(crate) const LOGICAL_BYTES: u64 = BODY_BYTES as u64 + 12 + 11 * 8;
const NOW: Timestamp = THEN;

/// The results of a slice.
pub(crate) struct Slice {
    pub(crate) deliveries: u64,
    pub(crate) took: Duration,
}

impl Slice {
    pub(crate) fn rate(&self) -> f64 {
        self.deliveries as f64 / self.took.as_secs_f64()
    }
}

/// A store with its callers, which work during slices only.
pub(crate) struct Busy {
    store: Arc<Sqlite>,
    settled: Arc<AtomicU64>,
    works: watch::Sender<bool>,
    tasks: JoinSet<Result<(), StoreError>>,
}

impl Busy {
    pub(crate) async fn start(folder: &Path, callers: usize) -> Result<Self, CannotRun> {
        let store = Arc::new(Sqlite::open_folder(folder, master_key())?);
        let session = store.open(NOW).await?.session;
        put_endpoints(&store, session, 0..LANES).await?;
        let mint = Arc::new(Mint::new(session, 0..LANES, RowIndex::Ready).with_body(BODY_BYTES));
        let (works, _) = watch::channel(false);
        let settled = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for _ in 0..callers {
            let (store, mint, works) = (Arc::clone(&store), Arc::clone(&mint), works.subscribe());
            tasks.spawn(call(store, session, mint, works));
        }
        tasks.spawn(settle_all(Arc::clone(&store), session, Arc::clone(&settled)));
        Ok(Self { store, settled, works, tasks })
    }

    /// Lets the callers work for this long, then waits until everything accepted is settled.
    pub(crate) async fn slice(&mut self, slice: Duration) -> Result<Slice, CannotRun> {
        let (began, before) = (Instant::now(), self.settled.load(Ordering::Relaxed));
        self.works.send_replace(true);
        tokio::time::sleep(slice).await;
        let settled = self.settled.load(Ordering::Relaxed);
        let took = began.elapsed();
        self.works.send_replace(false);
        if let Some(ended) = self.tasks.try_join_next() {
            return Err(CannotRun(format!("a caller stopped: {ended:?}")));
        }
        // Waits for the rest, which does not count, so that it does not disturb the next measurement.
        let mut last = settled;
        loop {
            tokio::time::sleep(Duration::from_millis(30)).await;
            let now = self.settled.load(Ordering::Relaxed);
            if now == last {
                return Ok(Slice { deliveries: settled - before, took });
            }
            last = now;
        }
    }

    pub(crate) fn commits(&self) -> Commits {
        self.store.commits()
    }

    pub(crate) async fn stop(mut self) {
        self.tasks.shutdown().await;
        self.store.close().await;
    }
}

async fn call(
    store: Arc<Sqlite>,
    session: Session,
    mint: Arc<Mint>,
    mut works: watch::Receiver<bool>,
) -> Result<(), StoreError> {
    while works.wait_for(|works| *works).await.is_ok() {
        store.accept(session, vec![mint.message()]).await?;
    }
    Ok(())
}

async fn settle_all(store: Arc<Sqlite>, session: Session, settled: Arc<AtomicU64>) -> Result<(), StoreError> {
    loop {
        let arrived = store.arrivals().await;
        let settlements = arrived.iter().map(|arrival| delivered(session, arrival)).collect();
        store.settle(session, settlements).await?;
        settled.fetch_add(arrived.len() as u64, Ordering::Relaxed);
    }
}

/// The CPU time for sealing the payload and head of a message. Nothing else must run in this process meanwhile.
pub(crate) fn sealing() -> Result<Duration, CannotRun> {
    const TIMES: u32 = 20_000;
    let tenant = TenantKey::generate(KeyId(2), 1);
    let key = tenant.sealing();
    let spot = |field, row: u32| Spot::new(Whose::Tenant(1), field, Object::Row(row.into()));
    let body = vec![b'x'; BODY_BYTES];
    let before = Cpu::now()?;
    for row in 0..TIMES {
        std::hint::black_box(key.seal(&spot(Field::MessageBody, row), &body));
        std::hint::black_box(key.seal(&spot(Field::MessageHead, row), b"a time and invoice.paid"));
    }
    Ok(Cpu::now()?.since(&before).all() / TIMES)
}

/// The CPU time for hashing payload and journal entries of a delivery, from its accept to its end. Nothing else must
/// run in this process meanwhile.
pub(crate) fn hashing() -> Result<Duration, CannotRun> {
    const TIMES: u32 = 2_000;
    /// Enough to make the cost of reading the clock negligible.
    const ROUNDS: u32 = 10;
    let session = Session { id: 1, writer: WriterId::new(1).expect("a small number"), epoch: 1 };
    let mint = Mint::new(session, 0..LANES, RowIndex::Ready).with_body(BODY_BYTES);
    let lookup = LookupKey::from_bytes([1; 32]);
    let messages: Vec<Accepted> = (0..TIMES).map(|_| mint.message()).collect();
    let arrivals = messages.iter().flat_map(|accepted| {
        let message = &accepted.message;
        accepted.deliveries.iter().map(|new| Arrival {
            new: new.clone(),
            message: Arc::clone(message),
            superseded: Vec::new(),
        })
    });
    let settlements: Vec<Settlement> = arrivals.map(|arrival| delivered(session, &arrival)).collect();
    let before = Cpu::now()?;
    for _ in 0..ROUNDS {
        let mut entries = Entries::with_capacity(messages.len());
        for accepted in &messages {
            let message = &accepted.message;
            let payload = lookup.hash("payload", 1, &message.body);
            entries.push(&Entry::accepted(accepted, &Marks { payload, subject: None, correlation: None }));
        }
        std::hint::black_box((entries, journal::settle_entries(&settlements)));
    }
    Ok(Cpu::now()?.since(&before).all() / (TIMES * ROUNDS))
}

/// A settlement of a delivery that was delivered at its first attempt.
fn delivered(session: Session, arrival: &Arrival) -> Settlement {
    let mut delivery = arrival.new.delivery.clone();
    let shard = Shard::of(delivery.lane);
    delivery.state = State::Delivered { at: NOW };
    delivery.attempts = 1;
    let took = Duration::from_millis(20);
    Settlement {
        record: DeliveryRecord {
            delivery,
            attempts_before: 0,
            place: RowIndex::Delayed,
            shard,
            pauses_lane: false,
            endpoint_change: None,
        },
        epoch: session.epoch,
        excerpt: None,
        attempt: Some(Attempt { number: 1, at: NOW, took, cause: Cause::Ok, status: Some(200) }),
    }
}
